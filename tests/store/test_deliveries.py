"""Writes that are sent again: they happen once, and answer what the first one came to."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import SyncDriver
from scrubjay.drafts import Draft
from scrubjay.errors import Conflict, InvalidInput, NotFound, QuotaExceeded
from scrubjay.store import items, lists, notes, quotas
from scrubjay.store.deliveries import Delivery, once
from scrubjay.store.operation import Quota


def count(driver) -> int:
    connection = driver.store.take()
    try:
        return connection.execute("SELECT count(*) FROM deliveries").fetchone()[0]
    finally:
        driver.store.put_back(connection)


def test_a_set_that_is_sent_again_does_not_overwrite_what_came_between(driver):
    for _ in range(2):
        assert driver.run(once(items.set_item("ns", "k", '"mine"'), "ns", Delivery("s", 1)))[0] == 1
        driver.run(items.set_item("ns", "k", '"another\'s"'))
    assert driver.run(items.read_text("ns", "k")) == '"another\'s"'


def test_every_verb_answers_the_same_twice(driver):
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
        first, _ = driver.run(once(verb, "ns", Delivery(f"slot-{number}", number)))
        again, account = driver.run(once(verb, "ns", Delivery(f"slot-{number}", number)))
        assert (again, type(again)) == (first, type(first))
    assert account.usage().writes_today == 5, "the second time is not counted"


def test_a_slot_keeps_one_row_whatever_it_carries(driver):
    for number in range(1, 50):
        driver.run(once(lists.append_items("ns", "l", [str(number)]), "ns", Delivery("s", number)))
    assert count(driver) == 1
    assert driver.run(once(lists.append_items("ns", "l", ["49"]), "ns", Delivery("s", 49)))[0] == 49


def test_a_number_that_was_overtaken_is_not_done_again(driver):
    for number in (1, 2):
        driver.run(once(lists.append_items("ns", "l", [str(number)]), "ns", Delivery("s", number)))
    with pytest.raises(Conflict, match="followed by number 2"):
        driver.run(once(lists.append_items("ns", "l", ["1"]), "ns", Delivery("s", 1)))
    assert driver.run(items.read_text("ns", "l")) == "[1,2]"


def test_an_id_belongs_to_one_kind_of_call_and_one_namespace(driver):
    driver.run(once(items.set_item("ns", "k", "1"), "ns", Delivery("id")))
    with pytest.raises(Conflict, match="used for set_item"):
        driver.run(once(items.delete_item("ns", "k"), "ns", Delivery("id")))
    assert driver.run(once(items.delete_item("other", "k"), "other", Delivery("id")))[0] is False


def test_what_was_refused_has_not_happened(open_driver):
    driver = open_driver(quota=Quota(writes_per_day=1))
    driver.run(items.set_item("ns", "k", "1"))
    for _ in range(2):
        with pytest.raises(QuotaExceeded):
            driver.run(once(items.set_item("ns", "k", "2"), "ns", Delivery("s", 1)))
    assert count(driver) == 0
    driver.run(quotas.set_quota("ns", {"writes_per_day": 5}))
    assert driver.run(once(items.set_item("ns", "k", "2"), "ns", Delivery("s", 1)))[0] == 2


def test_of_a_note_only_its_id_is_kept_so_that_forgetting_leaves_no_copy(driver):
    draft = Draft.check("the door code is 4711")

    def remember():
        again = functools.partial(notes.read_note, "ns")
        return once(notes.remember("ns", draft), "ns", Delivery("s", 1), keep=lambda note: note.id, again=again)

    note, _ = driver.run(remember())
    assert driver.run(remember())[0] == note
    assert driver.run(notes.list_notes("ns"))[0].times == 1
    driver.run(notes.forget("ns", note.id))
    with pytest.raises(NotFound):
        driver.run(remember())
    assert driver.run(notes.list_notes("ns")) == []
    connection = driver.store.take()
    assert "4711" not in str(connection.execute("SELECT * FROM deliveries").fetchall())
    driver.store.put_back(connection)


def test_ids_are_read_as_they_are_written():
    assert Delivery.parse(str(Delivery("abc", 17))) == Delivery("abc", 17)
    assert Delivery.parse('"abc"') == Delivery.parse("abc") == Delivery("abc", 0)
    for wrong in ("a;seq=", "a;seq=-1", "a;seq=x", "a;seq=" + "9" * 16):
        with pytest.raises(InvalidInput, match="Idempotency-Key"):
            Delivery.parse(wrong)
    with pytest.raises(InvalidInput):
        once(items.set_item("ns", "k", "1"), "ns", Delivery(""))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30))
def test_however_often_each_is_sent_the_list_has_each_once(tmp_path_factory, sends):
    """Slots take turns; `True` sends the slot's last one again, as after a lost answer."""
    driver = SyncDriver(tmp_path_factory.mktemp("once") / "db", durability="fast")
    numbers, expected = dict.fromkeys("abc", 0), []
    for slot, again in sends:
        if not again or not numbers[slot]:
            numbers[slot] += 1
            expected.append(f'"{slot}{numbers[slot]}"')
        text = f'"{slot}{numbers[slot]}"'
        length, _ = driver.run(once(lists.append_items("ns", "l", [text]), "ns", Delivery(slot, numbers[slot])))
        assert length == expected.index(text) + 1
    assert driver.run(items.read_text("ns", "l")) in (None, f"[{','.join(expected)}]")
    driver.close()
