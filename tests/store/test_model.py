"""The store against a plain dict: whatever the calls and their order, both must agree."""

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
from scrubjay.store import checks, items, lists, quotas
from scrubjay.store.operation import Quota
from scrubjay.values import decode, encode

KEYS = st.sampled_from(["a", "b", "ключ", "a/b", "\x00"])
VALUES = st.one_of(
    st.integers(-5, 5), st.text(max_size=3), st.lists(st.integers(0, 3), max_size=3), st.just("x" * 40), st.booleans()
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

    @rule(changes=st.dictionaries(KEYS, st.none() | VALUES, max_size=3))
    def update(self, changes):
        """All or none: the sizes are checked key by key, so only the sums of the whole are modelled here."""
        after = self.live()
        for key, value in changes.items():
            if value is None:
                after.pop(key, None)
            else:
                after[key] = value
        texts = {key: None if value is None else encode(value) for key, value in changes.items()}
        try:
            self.driver.run(items.update_items("ns", texts))
        except QuotaExceeded:
            return
        for key, value in changes.items():
            self.model.pop(key, None)
            if value is not None:
                self.model[key] = (value, None)
                self.writes += 1
                self.saw_version(key)

    @rule()
    def clear(self):
        assert self.attempt(items.clear_items("ns"), None) == len(self.live())
        self.model.clear()

    @rule()
    def sweep(self):
        self.driver.run(quotas.sweep(90, 1000))

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
        used = self.driver.run(quotas.read_usage("ns"))
        assert (used.keys, used.bytes, used.writes_today) == (len(self.live()), self.size(self.live()), self.writes)
        assert self.driver.run(checks.find_faults()) == []


@pytest.mark.parametrize("kind", DRIVERS)
def test_the_store_does_what_a_dict_does(kind):
    machine = type("Machine", (StoreModel,), {"driver_class": DRIVERS[kind]})
    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=40, deadline=None))
