"""Idempotency: a write that is sent again happens once, and returns its first result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import SyncDriver
from scrubjay import commands
from scrubjay.errors import Conflict, InvalidInput, NotFound, QuotaExceeded
from scrubjay.operations import operation_for
from scrubjay.store import items, lists, notes, usage
from scrubjay.store.idempotency import IdempotencyKey, run_once
from scrubjay.store.operation import Operation, Quota
from scrubjay.store.sqlite import SqliteStore
from scrubjay.store.transaction import run_all
from scrubjay.validation import NewNote


def count(driver) -> int:
    return driver.query("SELECT count(*) FROM idempotency_keys")[0][0]


def test_a_repeated_set_does_not_overwrite_a_later_value(driver):
    for _ in range(2):
        assert driver.run(run_once(items.set_item("ns", "k", '"mine"'), IdempotencyKey("s", 1)))[0] == 1
        driver.run(items.set_item("ns", "k", '"another\'s"'))
    assert driver.run(items.read_text("ns", "k")) == '"another\'s"'


def test_every_verb_returns_the_same_result_when_repeated(driver):
    driver.run(items.set_item("ns", "old", "1"))
    verbs = [
        items.set_item("ns", "k", "1"),
        items.delete_item("ns", "old"),
        items.delete_item("ns", "never there"),
        items.update_items("ns", {"a": "1", "b": None}),
        lists.append_items("ns", "l", ["1", "2"]),
        items.increment("ns", "n", 1.5),
    ]
    for number, verb in enumerate(verbs):
        first, _ = driver.run(run_once(verb, IdempotencyKey(f"sender-{number}", number)))
        again, used = driver.run(run_once(verb, IdempotencyKey(f"sender-{number}", number)))
        assert (again, type(again)) == (first, type(first))
    assert used.summary().writes_today == 5, "the second time is not counted"


def test_a_sender_has_one_row_whatever_it_sends(driver):
    for number in range(1, 50):
        driver.run(run_once(lists.append_items("ns", "l", [str(number)]), IdempotencyKey("s", number)))
    assert count(driver) == 1
    assert driver.run(run_once(lists.append_items("ns", "l", ["49"]), IdempotencyKey("s", 49)))[0] == 49


def test_a_sequence_number_below_the_last_one_is_a_conflict(driver):
    for number in (1, 2):
        driver.run(run_once(lists.append_items("ns", "l", [str(number)]), IdempotencyKey("s", number)))
    with pytest.raises(Conflict, match="older than the last of its sender, 2"):
        driver.run(run_once(lists.append_items("ns", "l", ["1"]), IdempotencyKey("s", 1)))
    assert driver.run(items.read_text("ns", "l")) == "[1,2]"


def test_an_idempotency_key_belongs_to_one_verb_and_one_namespace(driver):
    driver.run(run_once(items.set_item("ns", "k", "1"), IdempotencyKey("id")))
    with pytest.raises(Conflict, match="used for set"):
        driver.run(run_once(items.delete_item("ns", "k"), IdempotencyKey("id")))
    assert driver.run(run_once(items.delete_item("other", "k"), IdempotencyKey("id")))[0] is False


def draft(content: str, **options) -> Operation:
    return notes.remember("ns", NewNote.check(content, **options))


CALLS = {
    "set": lambda: items.set_item("ns", "k", "1"),
    "set another value": lambda: items.set_item("ns", "k", "2"),
    "set another key": lambda: items.set_item("ns", "other", "1"),
    "set with a ttl": lambda: items.set_item("ns", "k", "1", 60.0),
    "set at a version": lambda: items.set_item("ns", "k", "1", None, 0),
    "delete": lambda: items.delete_item("ns", "k"),
    "delete at a version": lambda: items.delete_item("ns", "k", 0),
    "delete another key": lambda: items.delete_item("ns", "other"),
    "update": lambda: items.update_items("ns", {"k": "1"}),
    "update with another value": lambda: items.update_items("ns", {"k": None}),
    "update with a ttl": lambda: items.update_items("ns", {"k": "1"}, None, 60.0),
    "update at a version": lambda: items.update_items("ns", {"k": "1"}, {"k": 0}),
    "append": lambda: lists.append_items("ns", "x", ["1"]),
    "append to another key": lambda: lists.append_items("ns", "y", ["1"]),
    "append another item": lambda: lists.append_items("ns", "x", ["2"]),
    "append two": lambda: lists.append_items("ns", "x", ["1", "1"]),
    "incr": lambda: items.increment("ns", "n", 1),
    "incr by 2": lambda: items.increment("ns", "n", 2),
    "incr another key": lambda: items.increment("ns", "m", 1),
    "remember": lambda: draft("said"),
    "remember something else": lambda: draft("said more"),
    "remember with a tag": lambda: draft("said", tags=["t"]),
    "remember with a ttl": lambda: draft("said", ttl=60),
    "transaction": lambda: run_all("ns", [items.set_item("ns", "k", "1"), draft("said")]),
    "transaction with a ttl": lambda: run_all("ns", [items.set_item("ns", "k", "1", 60.0), draft("said")]),
    "transaction with a ttl of a note": lambda: run_all("ns", [items.set_item("ns", "k", "1"), draft("said", ttl=60)]),
}


def once(call: Callable[[], Operation], number: int) -> Operation:
    return run_once(call(), IdempotencyKey("id", number))


@pytest.mark.parametrize("number", [0, 7])
@pytest.mark.parametrize("first", CALLS)
def test_another_call_under_the_same_key_is_a_conflict_and_changes_nothing(driver, first, number):
    driver.run(once(CALLS[first], number))
    before = driver.dump()
    for name, call in CALLS.items():
        if name != first:
            with pytest.raises(Conflict, match=r"key 'id' was used for .*, and this is .*; give each call its own"):
                driver.run(once(call, number))
    assert driver.dump() == before
    driver.run(once(CALLS[first], number))


def test_the_conflict_names_both_calls(driver):
    driver.run(run_once(lists.append_items("ns", "x", ["1"]), IdempotencyKey("m")))
    with pytest.raises(Conflict, match="'m' was used for append of 'x', and this is append of 'y';"):
        driver.run(run_once(lists.append_items("ns", "y", ["2"]), IdempotencyKey("m")))
    with pytest.raises(Conflict, match="and this is append of 'x' with other arguments;"):
        driver.run(run_once(lists.append_items("ns", "x", ["2"]), IdempotencyKey("m")))
    with pytest.raises(Conflict, match="and this is incr of 'x';"):
        driver.run(run_once(items.increment("ns", "x", 2), IdempotencyKey("m")))


AGED = {
    "set": lambda ttl: commands.SET("ns", "k", "1", ttl, None),
    "update": lambda ttl: commands.UPDATE("ns", {"k": "1"}, None, ttl),
    "remember": lambda ttl: commands.REMEMBER("ns", NewNote.check("said", ttl=ttl)),
    "transaction": lambda ttl: commands.TRANSACTION("ns", tuple(AGED[verb](ttl) for verb in ("set", "update"))),
}


@pytest.mark.parametrize("verb", AGED)
def test_a_queued_write_is_the_same_call_however_late_it_is_sent(driver, verb):
    for ttl in (60.0, None):
        for age in (0, 1.5, 59.0, 1e6):
            command = AGED[verb](ttl).aged(age)
            _, used = driver.run(run_once(operation_for(command), IdempotencyKey(f"{ttl}")))
    assert used.summary().writes_today == 2


def test_idempotency_keys_survive_reencryption(tmp_path):
    append = run_once(lists.append_items("ns", "l", ["1"]), IdempotencyKey("m"))
    for secret, then in ((None, "one"), ("one", "two"), ("two", None)):
        store = SqliteStore(tmp_path / "db", secret=secret or "")
        assert store.run(append)[0] == 1
        store.reencrypt(then)


def test_a_refused_write_does_not_use_its_key(open_driver):
    driver = open_driver(quota=Quota(writes_per_day=1))
    driver.run(items.set_item("ns", "k", "1"))
    for _ in range(2):
        with pytest.raises(QuotaExceeded):
            driver.run(run_once(items.set_item("ns", "k", "2"), IdempotencyKey("s", 1)))
    assert count(driver) == 0
    driver.run(usage.set_quota("ns", {"writes_per_day": 5}))
    assert driver.run(run_once(items.set_item("ns", "k", "2"), IdempotencyKey("s", 1)))[0] == 2


def test_only_the_id_of_a_note_is_stored_so_that_forgetting_leaves_no_copy(driver):
    draft = NewNote.check("the door code is 4711")

    def remember():
        return run_once(notes.remember("ns", draft), IdempotencyKey("s", 1))

    note, _ = driver.run(remember())
    assert driver.run(remember())[0] == note
    assert driver.run(notes.list_notes("ns"))[0].times == 1
    driver.run(notes.forget("ns", note.id))
    with pytest.raises(NotFound):
        driver.run(remember())
    assert driver.run(notes.list_notes("ns")) == []
    assert "4711" not in str(driver.query("SELECT * FROM idempotency_keys"))


def test_idempotency_keys_are_parsed_as_they_are_written():
    assert IdempotencyKey.parse(str(IdempotencyKey("abc", 17))) == IdempotencyKey("abc", 17)
    assert IdempotencyKey.parse('"abc"') == IdempotencyKey.parse("abc") == IdempotencyKey("abc", 0)
    for wrong in ("a;seq=", "a;seq=-1", "a;seq=x", "a;seq=" + "9" * 16):
        with pytest.raises(InvalidInput, match="Idempotency-Key"):
            IdempotencyKey.parse(wrong)
    with pytest.raises(InvalidInput):
        run_once(items.set_item("ns", "k", "1"), IdempotencyKey(""))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30))
def test_however_often_an_append_is_sent_the_list_has_it_once(tmp_path_factory, sends):
    """Senders take turns; `True` repeats the last append of the sender, as after a lost response."""
    driver = SyncDriver(tmp_path_factory.mktemp("once") / "db", durability="fast")
    numbers, expected = dict.fromkeys("abc", 0), []
    for sender, again in sends:
        if not again or not numbers[sender]:
            numbers[sender] += 1
            expected.append(f'"{sender}{numbers[sender]}"')
        text = f'"{sender}{numbers[sender]}"'
        length, _ = driver.run(run_once(lists.append_items("ns", "l", [text]), IdempotencyKey(sender, numbers[sender])))
        assert length == expected.index(text) + 1
    assert driver.run(items.read_text("ns", "l")) in (None, f"[{','.join(expected)}]")
    driver.close()
