"""The log of changes: everything that happened, in the order of commits, and nothing that did not."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import DAY, Clock
from scrubjay.drafts import Draft
from scrubjay.errors import Conflict, QuotaExceeded
from scrubjay.store import apikeys, changes, erasure, items, lists, notes, quotas
from scrubjay.store.deliveries import Delivery, once


def said(driver, namespace: str = "ns") -> list[tuple[str, str, str | None]]:
    return [(change.verb, change.key, change.refusal) for change in driver.run(changes.read_audit(namespace, 0, 0))]


def test_every_verb_is_recorded_once_with_its_key(driver):
    driver.run(items.set_item("ns", "k", "1"))
    driver.run(items.increment("ns", "k", 1))
    driver.run(lists.append_items("ns", "l", ["1", "2"]))
    driver.run(items.update_items("ns", {"a": "1", "k": None}))
    driver.run(items.delete_item("ns", "a"))
    note = driver.run(notes.remember("ns", Draft.check("hello")))[0]
    driver.run(notes.forget("ns", note.id))
    driver.run(quotas.set_quota("ns", {"max_bytes": 0}))
    driver.run(notes.clear_all("ns"))
    assert said(driver) == [
        ("set", "k", None),
        ("incr", "k", None),
        ("append", "l", None),
        ("delete", "k", None),
        ("set", "a", None),
        ("delete", "a", None),
        ("remember", note.id, None),
        ("forget", note.id, None),
        ("quota", "", None),
        ("clear", "", None),
    ]


def test_what_changes_nothing_is_not_recorded(driver):
    driver.run(items.set_item("ns", "k", "1"))
    driver.run(items.delete_item("ns", "other"))
    for _ in range(2):
        driver.run(once(lists.append_items("ns", "l", ["1"]), "ns", Delivery("an id")))
    driver.run(notes.forget("ns", "1"))
    driver.run(notes.clear_all("empty"))
    with pytest.raises(Conflict):
        driver.run(items.set_item("ns", "k", "2", None, 7))
    assert said(driver) == [("set", "k", None), ("append", "l", None)]
    assert said(driver, "empty") == []


def test_what_expires_is_recorded_when_it_goes(open_driver):
    clock = Clock()
    driver = open_driver(clock=clock)
    driver.run(items.set_item("ns", "k", "1", 10))
    driver.run(notes.remember("ns", Draft.check("hello", ttl=10)))
    clock.now += 11
    driver.store.sweep()
    assert [verb for verb, _, _ in said(driver)] == ["set", "remember", "expire", "expire"]


def test_the_name_of_whoever_asks_is_kept(driver):
    operation = items.set_item("ns", "k", "12345")
    operation.who = "support bot"
    driver.run(operation)
    driver.run(apikeys.issue("1234", "secret", "bob", ("*",), False, False))
    driver.run(apikeys.revoke("1234"))
    found = driver.run(changes.read_audit(None, 0, 0))
    assert [(change.who, change.verb, change.bytes) for change in found] == [
        ("support bot", "set", 6),
        ("local", "issue", 0),
        ("local", "revoke", 0),
    ]


def test_a_write_over_its_quota_is_recorded_as_refused(open_driver):
    if open_driver.kind == "aio":
        pytest.skip("the server writes its refusals down itself: tests/server/test_changes.py")
    driver = open_driver()
    driver.run(quotas.set_quota("ns", {"writes_per_day": 1}))
    driver.run(items.set_item("ns", "k", "1"))
    append = lists.append_items("ns", "l", ["1"])
    for write in (items.set_item("ns", "k", "2"), once(append, "ns", Delivery("an id"))):
        with pytest.raises(QuotaExceeded):
            driver.run(write)
    with pytest.raises(QuotaExceeded):
        driver.run(notes.remember("ns", Draft.check("hello")))
    assert said(driver)[2:] == [
        ("set", "k", "quota_exceeded"),
        ("append", "l", "quota_exceeded"),
        ("remember", "", "quota_exceeded"),
    ]


def test_the_log_is_rotated_by_age_and_by_number_and_keeps_its_last(open_driver, monkeypatch):
    clock = Clock()
    driver = open_driver(clock=clock)
    for n in range(30):
        driver.run(items.set_item("ns", f"k{n}", "1"))
    monkeypatch.setenv("SCRUBJAY_AUDIT_ROWS", "20")
    driver.store.sweep()
    assert [change.id for change in driver.run(changes.read_audit(None, 0, 0))] == list(range(11, 31))
    clock.now += 91 * DAY
    driver.store.sweep()
    assert [change.id for change in driver.run(changes.read_audit(None, 0, 0))] == [30]
    driver.run(items.set_item("ns", "new", "1"))
    assert driver.run(changes.last_change()) == 31
    with pytest.raises(Conflict, match="cursor 5 is not among"):
        driver.run(changes.read_changes("ns", "", 5))


def test_with_no_rows_allowed_nothing_is_recorded_and_watching_says_so(open_driver, monkeypatch):
    monkeypatch.setenv("SCRUBJAY_AUDIT_ROWS", "0")
    driver = open_driver()
    driver.run(items.set_item("ns", "k", "1"))
    driver.run(apikeys.issue("1234", "secret", "bob", ("*",), False, False))
    driver.run(changes.refuse(changes.Entry("set", "ns", refusal="forbidden")))
    driver.run(erasure.delete_rows("ns"))
    assert driver.run(changes.read_audit(None, 0, 0)) == []
    with pytest.raises(Conflict, match="SCRUBJAY_AUDIT_ROWS"):
        driver.run(changes.read_changes("ns", "", None))


def test_a_cursor_of_another_store_is_refused(driver):
    with pytest.raises(Conflict, match="read anew"):
        driver.run(changes.read_changes("ns", "", 99))


writes = st.lists(st.tuples(st.sampled_from(["one", "two"]), st.sampled_from(["a", "ab", "b"])), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(done=writes, prefix=st.sampled_from(["", "a", "ab", "c"]), page=st.integers(1, 4))
def test_reading_on_from_each_cursor_gives_every_change_once(driver, done, prefix, page):
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
