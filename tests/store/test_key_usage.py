"""Limits of api keys: writes a day, bytes and namespaces, over all namespaces that a key writes to."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import DAY, Clock
from scrubjay import QuotaExceeded
from scrubjay.store import api_keys, expiry, items, lists, notes
from scrubjay.store.operation import LOCAL, Actor, KeyQuota, Operation
from scrubjay.store.sqlite import SqliteStore, erase
from scrubjay.store.transaction import run_all
from scrubjay.validation import NewNote


def issue(driver, **limits: int) -> Actor:
    """A new key that may write everywhere, within limits; the first one comes with an admin key."""
    issued = driver.run(api_keys.issue("bot", ("*",), False, False, limits))
    return Actor("bot", issued.apikey.id)


def run(driver, actor: Actor, operation: Operation):
    operation.actor = actor
    return driver.run(operation)


def usage_of(driver, actor: Actor):
    return next(key for key in driver.run(api_keys.list_all()) if key.id == actor.key_id)


def test_writes_are_limited_over_all_namespaces(open_driver):
    clock = Clock()
    driver = open_driver(clock=clock)
    bot = issue(driver, writes_per_day=3)
    for number in range(3):
        run(driver, bot, items.set_item(f"team-{number}", "k", "1"))
    with pytest.raises(QuotaExceeded, match=rf"{bot.key_id} --writes-per-day N") as refused:
        run(driver, bot, items.set_item("team-3", "k", "1"))
    assert refused.value.status == 429
    assert 0 < refused.value.retry_after <= DAY
    run(driver, bot, items.delete_item("team-0", "k"))  # free
    driver.run(items.set_item("team-3", "k", "1"))  # another program
    clock.now += DAY
    run(driver, bot, items.set_item("team-3", "k", "2"))
    assert usage_of(driver, bot).writes_today == 1


def test_bytes_are_limited_over_all_namespaces_and_deleting_makes_room(driver):
    bot = issue(driver, max_bytes=100)
    run(driver, bot, items.set_item("a", "k", f'"{"x" * 50}"'))
    with pytest.raises(QuotaExceeded, match=r"hold 53 of 100 bytes, and this needs 53 more") as refused:
        run(driver, bot, items.set_item("b", "k", f'"{"x" * 50}"'))
    assert (refused.value.status, refused.value.retry_after) == (507, None)
    run(driver, bot, items.delete_item("a", "k"))
    run(driver, bot, items.set_item("b", "k", f'"{"x" * 50}"'))
    assert (usage_of(driver, bot).bytes, usage_of(driver, bot).namespaces_in_use) == (53, 1)
    assert driver.store.find_problems() == []


def test_namespaces_in_use_are_limited(driver):
    bot = issue(driver, max_namespaces=2)
    run(driver, bot, items.set_item("a", "k", "1"))
    run(driver, bot, notes.remember("b", NewNote("a note")))
    with pytest.raises(QuotaExceeded, match="2 namespaces in use"):
        run(driver, bot, lists.append_items("c", "l", ["1"]))
    with pytest.raises(QuotaExceeded, match="2 namespaces in use"):
        run(driver, bot, notes.remember("c", NewNote("a note")))
    run(driver, bot, items.set_item("a", "other", "1"))
    run(driver, bot, notes.clear_all("b"))
    run(driver, bot, lists.append_items("c", "l", ["1"]))
    assert driver.store.find_problems() == []


def test_a_second_key_cannot_fill_the_namespaces_of_the_first_beyond_its_limit(driver):
    first, second = issue(driver, max_bytes=100), issue(driver, max_bytes=100)
    run(driver, first, items.set_item("shared", "k", "1"))
    with pytest.raises(QuotaExceeded, match=first.key_id):
        run(driver, second, items.set_item("shared", "large", f'"{"x" * 200}"'))
    run(driver, second, items.set_item("shared", "small", "1"))
    assert usage_of(driver, second).bytes == 0


def test_expired_items_do_not_count_against_the_limit_of_a_key(open_driver):
    clock = Clock()
    driver = open_driver(clock=clock)
    bot = issue(driver, max_bytes=100)
    run(driver, bot, items.set_item("ns", "old", f'"{"x" * 90}"', 10))
    clock.now += 11
    run(driver, bot, items.set_item("ns", "new", f'"{"x" * 90}"'))
    assert driver.store.find_problems() == []


def test_the_limits_of_a_server_apply_to_keys_without_their_own(driver):
    bot = issue(driver)._replace(key_quota=KeyQuota(writes_per_day=1))
    run(driver, bot, items.set_item("a", "k", "1"))
    with pytest.raises(QuotaExceeded):
        run(driver, bot, items.set_item("b", "k", "1"))
    driver.run(api_keys.set_quota(bot.key_id, {"writes_per_day": 2}))
    run(driver, bot, items.set_item("b", "k", "1"))
    assert usage_of(driver, bot).writes_per_day == 2
    driver.run(api_keys.set_quota(bot.key_id, {"writes_per_day": None}))
    with pytest.raises(QuotaExceeded):
        run(driver, bot, items.set_item("b", "k", "1"))


def test_an_update_and_a_transaction_count_as_one_write_of_a_key(driver):
    bot = issue(driver, writes_per_day=2)
    run(driver, bot, items.update_items("ns", {"a": "1", "b": "2", "c": None}))
    run(driver, bot, run_all("ns", [items.set_item("ns", "d", "1"), lists.append_items("ns", "l", ["1", "2"])]))
    assert usage_of(driver, bot).writes_today == 2
    assert driver.store.find_problems() == []


def test_an_erased_namespace_does_not_count(tmp_path):
    store = SqliteStore(tmp_path / "db", durability="fast")
    bot = Actor("bot", store.run(api_keys.issue("bot")).apikey.id)
    operation = items.set_item("ns", "k", "1")
    operation.actor = bot
    store.run(operation)
    erase.erase(store, "ns")
    (key, _) = store.run(api_keys.list_all())
    assert (key.bytes, key.namespaces_in_use) == (0, 0)
    assert store.find_problems() == []
    store.close()


def test_a_wrong_count_is_found(driver):
    bot = issue(driver)
    run(driver, bot, items.set_item("ns", "k", "1"))
    driver.query("UPDATE api_keys SET bytes = 7 WHERE id = ?", bot.key_id)
    (problem,) = driver.store.find_problems()
    assert "counts 7 bytes in 1 namespaces, but has 2 bytes in 1" in problem


OPERATIONS = {
    "set": lambda namespace: items.set_item(namespace, "k", '"text"'),
    "grow": lambda namespace: items.set_item(namespace, "k", f'"{"x" * 30}"'),
    "short": lambda namespace: items.set_item(namespace, "soon", "1", 1),
    "append": lambda namespace: lists.append_items(namespace, "l", ["1", "2"]),
    "delete": lambda namespace: items.delete_item(namespace, "k"),
    "remember": lambda namespace: notes.remember(namespace, NewNote("some text of a note")),
    "clear notes": notes.clear_notes,
    "clear": notes.clear_all,
}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("nm"), st.sampled_from([*OPERATIONS, "later"]))))
@settings(max_examples=60)
def test_counters_of_keys_agree_with_what_is_stored_after_any_operations(tmp_path_factory, steps):
    clock = Clock()
    store = SqliteStore(tmp_path_factory.mktemp("keys") / "db", durability="fast", clock=clock)
    limits = {"max_bytes": 80, "max_namespaces": 1}
    actors = {"a": LOCAL} | {
        name: Actor(name, store.run(api_keys.issue(name, ("*",), False, False, limits)).apikey.id) for name in "bc"
    }
    for who, namespace, step in steps:
        if step == "later":
            clock.now += 2
            store.run(expiry.sweep(90, 1000))
            continue
        operation = OPERATIONS[step](namespace)
        operation.actor = actors[who]
        with suppress(QuotaExceeded):
            store.run(operation)
        assert store.find_problems() == []
        for key in store.run(api_keys.list_all()):
            assert key.bytes <= 80 or key.max_bytes is None
            assert key.namespaces_in_use <= 1 or key.max_namespaces is None
    store.close()
