"""The log of changes: everything that happened, in the order of commits, and nothing that did not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import DAY, Clock, SyncDriver, work_of
from scrubjay.errors import Conflict, QuotaExceeded
from scrubjay.models import Change
from scrubjay.store import api_keys, changes, items, lists, notes, usage
from scrubjay.store.idempotency import IdempotencyKey, run_once
from scrubjay.store.operation import Actor
from scrubjay.validation import NewNote

REFUSAL = changes.Refusal("set", "ns", "k", "forbidden")


def logged(driver, namespace: str = "ns") -> list[tuple[str, str, str | None]]:
    return [(change.verb, change.key, change.refusal) for change in audit(driver, namespace)]


def audit(driver, namespace: str | None = None) -> list[Change]:
    return driver.run(changes.read_audit(namespace, 0))[0]


def test_every_verb_is_recorded_once_with_its_key(driver):
    driver.run(items.set_item("ns", "k", "1"))
    driver.run(items.increment("ns", "k", 1))
    driver.run(lists.append_items("ns", "l", ["1", "2"]))
    driver.run(items.update_items("ns", {"a": "1", "k": None}))
    driver.run(items.delete_item("ns", "a"))
    note = driver.run(notes.remember("ns", NewNote.check("hello")))[0]
    driver.run(notes.forget("ns", note.id))
    driver.run(usage.set_quota("ns", {"max_bytes": 0}))
    driver.run(notes.clear_all("ns"))
    assert logged(driver) == [
        ("set", "k", None),
        ("incr", "k", None),
        ("append", "l", None),
        ("delete", "k", None),
        ("set", "a", None),
        ("delete", "a", None),
        ("remember", note.id, None),
        ("forget", note.id, None),
        ("set_quota", "", None),
        ("clear", "", None),
    ]


def test_a_clear_is_recorded_with_the_bytes_that_it_freed(driver):
    driver.run(items.set_item("ns", "k", '"text"'))
    driver.run(notes.remember("ns", NewNote.check("a note that stays")))
    used = driver.run(usage.read_usage("ns")).bytes
    driver.run(items.clear_items("ns"))
    left = driver.run(usage.read_usage("ns")).bytes
    assert used > left > 0
    assert audit(driver, "ns")[-1].bytes == used - left


def test_calls_that_change_nothing_are_not_recorded(driver):
    driver.run(items.set_item("ns", "k", "1"))
    driver.run(items.delete_item("ns", "other"))
    for _ in range(2):
        driver.run(run_once(lists.append_items("ns", "l", ["1"]), IdempotencyKey("an id")))
    driver.run(notes.forget("ns", "1"))
    driver.run(notes.clear_all("empty"))
    with pytest.raises(Conflict):
        driver.run(items.set_item("ns", "k", "2", None, 7))
    assert logged(driver) == [("set", "k", None), ("append", "l", None)]
    assert logged(driver, "empty") == []


def test_expiry_is_recorded_when_the_sweep_removes_it(open_driver):
    clock = Clock()
    driver = open_driver(clock=clock)
    driver.run(items.set_item("ns", "k", "1", 10))
    driver.run(notes.remember("ns", NewNote.check("hello", ttl=10)))
    clock.now += 11
    driver.store.sweep()
    assert [verb for verb, _, _ in logged(driver)] == ["set", "remember", "expire", "expire"]


def test_the_log_has_the_name_of_the_actor(driver):
    operation = items.set_item("ns", "k", "12345")
    operation.actor = Actor("support bot")
    driver.run(operation)
    issued = driver.run(api_keys.issue("bob", ("*",), False, True))
    driver.run(api_keys.revoke(issued.apikey.id))
    found = audit(driver)
    assert [(change.who, change.verb, change.bytes) for change in found] == [
        ("support bot", "set", 6),
        ("local", "issue_key", 0),
        ("local", "revoke_key", 0),
    ]


def test_a_write_over_its_quota_is_recorded_as_refused(open_driver):
    if open_driver.kind == "aio":
        pytest.skip("the server writes its refusals down itself: tests/server/test_changes.py")
    driver = open_driver()
    driver.run(usage.set_quota("ns", {"writes_per_day": 1}))
    driver.run(items.set_item("ns", "k", "1"))
    append = lists.append_items("ns", "l", ["1"])
    for write in (items.set_item("ns", "k", "2"), run_once(append, IdempotencyKey("an id"))):
        with pytest.raises(QuotaExceeded):
            driver.run(write)
    with pytest.raises(QuotaExceeded):
        driver.run(notes.remember("ns", NewNote.check("hello")))
    assert logged(driver)[2:] == [
        ("set", "k", "quota_exceeded"),
        ("append", "l", "quota_exceeded"),
        ("remember", "", "quota_exceeded"),
    ]


def test_the_log_is_rotated_by_age_and_by_number_and_keeps_its_last(open_driver, monkeypatch):
    clock = Clock()
    driver = open_driver(clock=clock, audit_rows=20)
    for n in range(30):
        driver.run(items.set_item("ns", f"k{n}", "1"))
    driver.store.sweep()
    assert [change.id for change in audit(driver)] == list(range(11, 31))
    clock.now += 91 * DAY
    driver.store.sweep()
    assert [change.id for change in audit(driver)] == [30]
    driver.run(items.set_item("ns", "new", "1"))
    assert driver.run(changes.last_change("ns")) == 31
    with pytest.raises(Conflict, match="cursor 5 is not among"):
        driver.run(changes.read_changes("ns", "", 5))


def test_with_zero_audit_rows_nothing_is_recorded_and_reading_changes_is_a_conflict(open_driver):
    driver = open_driver(audit_rows=0)
    driver.run(items.set_item("ns", "k", "1"))
    driver.run(api_keys.issue("bob", ("*",), False, True))
    driver.run(changes.refuse(REFUSAL))
    driver.run(driver.delete_rows("ns"))
    assert audit(driver) == []
    with pytest.raises(Conflict, match="SCRUBJAY_AUDIT_ROWS"):
        driver.run(changes.read_changes("ns", "", None))


def test_a_cursor_of_another_store_is_refused(driver):
    with pytest.raises(Conflict, match="read the values again"):
        driver.run(changes.read_changes("ns", "", 99))


def test_refusals_never_push_out_changes_nor_make_a_cursor_invalid(open_driver):
    driver = open_driver(audit_rows=100)
    driver.run(items.set_item("ns", "k", "1"))
    _, cursor = driver.run(changes.read_changes("ns", "", None))
    for _ in range(30):
        driver.run(changes.refuse(*[REFUSAL] * 100))
    driver.store.sweep()
    assert [change.refusal for change in audit(driver)] == [None] + ["forbidden"] * 5
    assert [change.id for change in audit(driver)[1:]] == list(range(2996, 3001)), "the latest are kept"
    driver.run(items.set_item("ns", "k", "2"))
    found, after = driver.run(changes.read_changes("ns", "", cursor))
    assert ([change.id for change in found], after) == ([2], 2)
    for n in range(200):
        driver.run(items.set_item("ns", f"k{n}", "1"))
    driver.store.sweep()
    with pytest.raises(Conflict, match="is not among the changes in the log"):
        driver.run(changes.read_changes("ns", "", cursor))
    assert len([change for change in audit(driver) if change.refusal is None]) == 100


def test_refusals_are_rotated_by_age_and_erased_with_their_namespace(open_driver):
    clock = Clock()
    driver = open_driver(clock=clock)
    driver.run(changes.refuse(REFUSAL, REFUSAL, REFUSAL))
    clock.now += 91 * DAY
    driver.store.sweep()
    assert [change.id for change in audit(driver)] == [3]
    assert driver.run(driver.delete_rows("ns")) == {"refusals": 1}
    driver.run(changes.refuse(REFUSAL))
    assert [(change.verb, change.refusal) for change in audit(driver)] == [("erase", None), ("set", "forbidden")]


def test_the_log_finds_its_bounds_without_reading_it_all(tmp_path):
    driver = SyncDriver(tmp_path / "db", durability="fast")
    work = []
    for _ in range(2):
        for start in range(0, 3000, 1000):
            driver.run(items.update_items("ns", {f"k{n}": "1" for n in range(start, start + 1000)}))
        last = driver.run(changes.last_change())
        work.append(work_of(driver.store.path, changes.read_changes("ns", "", last)))
    driver.close()
    assert work[1] < 2 * work[0] < 1000


happened = st.lists(st.sampled_from(["set", "refuse", "erase", "sweep"]), max_size=15)


@settings(max_examples=25)
@given(before=happened, after=happened, page=st.integers(1, 4))
def test_reading_the_audit_page_by_page_gives_every_entry_once_in_order(driver, before, after, page):
    """Whatever is erased or rotated in between: the cursor of a reader stays valid."""
    driver.run(driver.delete_rows("ns"))
    numbers = iter(range(1000))
    cursor, seen, expected = driver.run(changes.read_audit(None, 0))[1], [], []

    def happen(verbs):
        for verb in verbs:
            if verb == "sweep":
                driver.store.sweep()
                continue
            key = f"{next(numbers)}"
            if verb == "set":
                driver.run(items.set_item("ns", key, "1"))
            elif verb == "refuse":
                driver.run(changes.refuse(REFUSAL._replace(key=key)))
            else:
                driver.run(driver.delete_rows("ns"))
                expected.clear()
                continue
            expected.append(key)

    def read_rest():
        nonlocal cursor
        while True:
            found, cursor = driver.run(changes.read_audit("ns", 0, cursor, page))
            seen.extend(change.key for change in found)
            if not found:
                return

    happen(before)
    read_rest()
    assert seen == expected
    seen.clear()
    expected.clear()
    happen(after)
    read_rest()
    assert seen == expected


writes = st.lists(st.tuples(st.sampled_from(["one", "two"]), st.sampled_from(["a", "ab", "b"])), max_size=12)


@settings(max_examples=25)
@given(done=writes, prefix=st.sampled_from(["", "a", "ab", "c"]), page=st.integers(1, 4))
def test_reading_changes_page_by_page_gives_every_change_once(driver, done, prefix, page):
    _, cursor = driver.run(changes.read_changes("one", "", None))
    for namespace, key in done:
        driver.run(items.set_item(namespace, key, "1"))
    seen = []
    while True:
        found, after = driver.run(changes.read_changes("one", prefix, cursor, page))
        seen += [change.key for change in found]
        if after == cursor:
            break
        cursor = after
    assert seen == [key for namespace, key in done if namespace == "one" and key.startswith(prefix)]
