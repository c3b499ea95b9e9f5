"""The store against a plain dict: after any sequence of calls both must agree."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from harness import DRIVERS
from scrubjay.errors import Conflict, QuotaExceeded
from scrubjay.exact_json import decode, encode
from scrubjay.store import consistency, expiry, items, lists, usage
from scrubjay.store.operation import Quota

KEYS = st.sampled_from(["a", "b", "ключ", "a/b", "\x00"])
VALUES = st.one_of(
    st.dictionaries(st.sampled_from("xy"), st.integers(0, 3), max_size=2),
    st.integers(-5, 5),
    st.text(max_size=3),
    st.lists(st.integers(0, 3), max_size=3),
    st.just("x" * 40),
    st.booleans(),
)
QUOTA = Quota(writes_per_day=40, max_bytes=400)
DAY = 86_400


class StoreModel(RuleBasedStateMachine):
    """The model holds values, versions and expiry times; the clock moves only when a rule says so."""

    driver_class = None

    @initialize()
    def start(self):
        self._folder = tempfile.TemporaryDirectory()
        self.time = 1_000 * DAY + 5.0
        path = Path(self._folder.name) / "scrubjay.db"
        self.driver = self.driver_class(path, durability="fast", quota=QUOTA, clock=lambda: self.time)
        self.model: dict[str, tuple[object, float | None]] = {}
        self.seen: dict[str, int] = {}
        self.writes = 0

    def teardown(self):
        if hasattr(self, "driver"):
            self.driver.close()
            self._folder.cleanup()

    def live(self) -> dict[str, object]:
        return {key: value for key, (value, over) in self.model.items() if over is None or over > self.time}

    def size(self, values: dict[str, object]) -> int:
        return sum(len(key.encode()) + len(encode(value).encode()) for key, value in values.items())

    def expect(self, after: dict[str, object], writes: int) -> type[Exception] | None:
        """What the quota says to a change that leads to `after`."""
        if self.writes + writes > QUOTA.writes_per_day:
            return QuotaExceeded
        if self.size(after) > max(QUOTA.max_bytes, self.size(self.live())):
            return QuotaExceeded
        return None

    def attempt(self, operation, error):
        if error:
            with pytest.raises(error):
                self.driver.run(operation)
            return None
        return self.driver.run(operation)[0]

    def saw_version(self, key: str) -> None:
        version = self.driver.run(items.find_version("ns", key))
        assert version > self.seen.get(key, 0), "a version was used twice"
        self.seen[key] = version

    @rule(key=KEYS, value=VALUES, ttl=st.sampled_from([None, None, 10.0]))
    def set(self, key, value, ttl):
        after = {**self.live(), key: value}
        error = self.expect(after, 1)
        self.attempt(items.set_item("ns", key, encode(value), ttl), error)
        if not error:
            self.model[key] = (value, ttl and self.time + ttl)
            self.writes += 1
            self.saw_version(key)

    @rule(key=KEYS, value=VALUES, offset=st.sampled_from([0, 0, 1]))
    def set_if_version(self, key, value, offset):
        version = self.driver.run(items.find_version("ns", key)) or 0
        after = {**self.live(), key: value}
        error = Conflict if offset else self.expect(after, 1)
        self.attempt(items.set_item("ns", key, encode(value), None, version + offset), error)
        if not error:
            self.model[key] = (value, None)
            self.writes += 1
            self.saw_version(key)

    @rule(key=KEYS)
    def delete(self, key):
        assert self.attempt(items.delete_item("ns", key), None) == (key in self.live())
        self.model.pop(key, None)

    @rule(key=KEYS, parts=st.lists(VALUES, min_size=1, max_size=3))
    def append(self, key, parts):
        old = self.live().get(key, [])
        error = self.expect({**self.live(), key: old + parts}, 1) if isinstance(old, list) else Conflict
        length = self.attempt(lists.append_items("ns", key, [encode(part) for part in parts]), error)
        if not error:
            assert length == len(old) + len(parts)
            over = self.model[key][1] if key in self.live() else None
            self.model[key] = (old + parts, over)
            self.writes += 1
            self.saw_version(key)

    @rule(key=KEYS, by=st.integers(-3, 3))
    def increment(self, key, by):
        old = self.live().get(key, 0)
        error = self.expect({**self.live(), key: old + by}, 1) if type(old) is int else Conflict
        total = self.attempt(items.increment("ns", key, by), error)
        if not error:
            assert total == old + by
            over = self.model[key][1] if key in self.live() else None
            self.model[key] = (total, over)
            self.writes += 1
            self.saw_version(key)

    @rule(
        changes=st.dictionaries(KEYS, st.none() | VALUES, max_size=3),
        versions=st.dictionaries(KEYS, st.sampled_from([0, 0, 0, 1]), max_size=2),
        ttl=st.sampled_from([None, None, 10.0]),
    )
    def update(self, changes, versions, ttl):
        """All or none, as one write. Sizes are checked key by key, so that their order decides about the quota."""
        texts = {key: None if value is None else encode(value) for key, value in changes.items()}
        found = {key: self.driver.run(items.find_version("ns", key)) or 0 for key in versions}
        expected = {key: found[key] + offset for key, offset in versions.items()}
        operation = items.update_items("ns", texts, expected, ttl)
        writes = int(any(value is not None for value in changes.values()))
        if self.writes + writes > QUOTA.writes_per_day:
            self.attempt(operation, QuotaExceeded)
            return
        if expected != found:
            self.attempt(operation, Conflict)
            return
        try:
            self.driver.run(operation)
        except QuotaExceeded:
            return
        self.writes += writes
        for key, value in changes.items():
            self.model.pop(key, None)
            if value is not None:
                self.model[key] = (value, ttl and self.time + ttl)
                self.saw_version(key)

    @rule(key=KEYS, fields=st.dictionaries(st.sampled_from("xyz"), st.none() | st.integers(0, 9), max_size=3))
    def merge(self, key, fields):
        old = self.live().get(key, {})
        if not isinstance(old, dict):
            self.attempt(items.merge_item("ns", key, encode(fields)), Conflict)
            return
        merged = {**old, **fields}
        for name, value in fields.items():
            if value is None:
                del merged[name]
        error = self.expect({**self.live(), key: merged}, 1)
        self.attempt(items.merge_item("ns", key, encode(fields)), error)
        if not error:
            over = self.model[key][1] if key in self.live() else None
            self.model[key] = (merged, over)
            self.writes += 1
            self.saw_version(key)

    @rule(key=KEYS, ttl=st.sampled_from([None, 10.0]))
    def touch(self, key, ttl):
        before = self.driver.run(items.read_item("ns", key))
        assert self.attempt(items.touch_item("ns", key, ttl), None) == (key in self.live())
        if key in self.live():
            self.model[key] = (self.model[key][0], ttl and self.time + ttl)
            after = self.driver.run(items.read_item("ns", key))
            assert after._replace(expires_at=None) == before._replace(expires_at=None)

    @rule(key=KEYS, count=st.integers(0, 4), first=st.booleans())
    def pop(self, key, count, first):
        old = self.live().get(key, [])
        if not isinstance(old, list):
            self.attempt(lists.pop_items("ns", key, count, first), Conflict)
            return
        split = min(count, len(old)) if first else max(len(old) - count, 0)
        taken, left = (old[:split], old[split:]) if first else (old[split:], old[:split])
        texts = self.attempt(lists.pop_items("ns", key, count, first), None)
        assert [decode(text) for text in texts] == taken
        if taken:
            self.model[key] = (left, self.model[key][1])
            self.saw_version(key)

    @rule(prefix=st.sampled_from(["a", "a/", "b", "\x00", "nope"]))
    def clear_prefix(self, prefix):
        there = [key for key in self.live() if key.startswith(prefix)]
        assert self.attempt(items.clear_prefix("ns", prefix), None) == len(there)
        self.model = {key: held for key, held in self.model.items() if not key.startswith(prefix)}

    @rule()
    def clear(self):
        assert self.attempt(items.clear_items("ns"), None) == len(self.live())
        self.model.clear()

    @rule()
    def sweep(self):
        self.driver.run(expiry.sweep(90, 1000))

    @rule(seconds=st.sampled_from([1.0, 9.0, 11.0]))
    def wait(self, seconds):
        self.time += seconds

    @precondition(lambda self: self.writes > QUOTA.writes_per_day - 5)
    @rule()
    def next_day(self):
        self.time += DAY
        self.writes = 0

    @rule(key=KEYS, count=st.integers(0, 4))
    def tail(self, key, count):
        value = self.live().get(key, [])
        if isinstance(value, list):
            texts = self.driver.run(lists.read_tail("ns", key, count))
            assert [decode(text) for text in texts] == value[max(len(value) - count, 0) :]
        else:
            with pytest.raises(Conflict):
                self.driver.run(lists.read_tail("ns", key, count))

    @rule(key=KEYS, start=st.integers(-4, 4), stop=st.none() | st.integers(-4, 4))
    def slice(self, key, start, stop):
        value = self.live().get(key, [])
        if isinstance(value, list):
            assert self.driver.run(lists.find_length("ns", key)) == len(value)
            texts = self.driver.run(lists.read_slice("ns", key, start, stop))
            assert [decode(text) for text in texts] == value[start:stop]
        else:
            for operation in (lists.find_length("ns", key), lists.read_slice("ns", key, start, stop)):
                with pytest.raises(Conflict):
                    self.driver.run(operation)

    @rule(
        prefix=st.sampled_from(["", "a", "a/"]),
        after=st.just("") | KEYS,
        limit=st.integers(1, 3),
        reverse=st.booleans(),
    )
    def page(self, prefix, after, limit, reverse):
        """A page, and from its cursor on all the others."""
        expected = sorted((key for key in self.live() if key.startswith(prefix)), reverse=reverse)
        expected = [key for key in expected if not after or (key < after if reverse else key > after)]
        found = []
        while after is not None:
            page, after = self.driver.run(items.list_items("ns", prefix, after, limit, reverse))
            assert len(page) <= limit
            found += page
        assert [item.key for item in found] == expected
        for item in found:
            assert decode(item.text) == self.live()[item.key]
            assert item == self.driver.run(items.read_item("ns", item.key))

    @invariant()
    def reads_agree(self):
        if not hasattr(self, "driver"):
            return
        live = self.live()
        found = self.driver.run(items.read_many("ns", ["a", "b", "ключ", "a/b", "\x00", "nope"]))
        assert {key: decode(text) for key, text in found.items()} == live
        assert self.driver.run(items.list_keys("ns")) == sorted(live)
        for key in live:
            assert decode(self.driver.run(items.read_text("ns", key))) == live[key]
            assert decode(self.driver.run(items.read_item("ns", key)).text) == live[key]

    @invariant()
    def counters_agree(self):
        if not hasattr(self, "driver"):
            return
        used = self.driver.run(usage.read_usage("ns"))
        assert (used.keys, used.bytes, used.writes_today) == (len(self.live()), self.size(self.live()), self.writes)
        assert self.driver.run(consistency.find_problems()) == []


@pytest.mark.parametrize("kind", DRIVERS)
def test_the_store_does_what_a_dict_does(kind):
    machine = type("Machine", (StoreModel,), {"driver_class": DRIVERS[kind]})
    examples = 15 if kind == "postgres" else 40  # each needs a schema of its own
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40))
