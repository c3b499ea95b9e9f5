"""Api keys in the store: what forgetting one removes, and which keys have the name of a namespace."""

from __future__ import annotations

import pytest

from scrubjay.store import api_keys, changes, items
from scrubjay.store.operation import LOCAL, Actor


@pytest.fixture
def driver(open_driver):
    return open_driver()


def issue(driver, name, *namespaces):
    """A new key with exact namespaces; who the logs say that it is."""
    issued = driver.run(api_keys.issue(name, namespaces, False, False, {}, True))
    return Actor(name, issued.apikey.id)


def run_as(driver, actor, operation):
    operation.actor = actor
    return driver.run(operation)


def leave_traces(driver, actor):
    """A change and a refused request of a key, in namespaces of others."""
    run_as(driver, actor, items.set_item("shared", "k", "1"))
    run_as(driver, actor, changes.refuse(changes.Refusal("set", "other", "k", "forbidden")))


def actors(driver):
    return [change.who for change in driver.run(changes.read_audit(None, 0))[0]]


@pytest.mark.parametrize("was_revoked", [False, True])
def test_a_forgotten_key_is_revoked_and_its_id_takes_the_place_of_its_name(driver, was_revoked):
    key, other = issue(driver, "Sarah Lind", "user-sarah"), issue(driver, "bot", "user-bot")
    for actor in (key, other, LOCAL):
        leave_traces(driver, actor)
    before = actors(driver)
    if was_revoked:
        assert driver.run(api_keys.revoke(key.key_id))
        before.append("local")
    assert driver.run(api_keys.revoke(key.key_id, True))
    after = actors(driver)[: len(before)]
    assert sorted(after) == sorted(key.key_id if name == "Sarah Lind" else name for name in before)
    left = driver.run(api_keys.set_quota(key.key_id, {}))
    assert (left.name, left.namespaces) == (key.key_id, ())
    assert key.key_id not in [each.id for each in driver.run(api_keys.list_all())]
    assert driver.run(api_keys.find_named("user-sarah")) == []


def test_a_revoked_key_keeps_its_name_for_the_audit(driver):
    key = issue(driver, "Sarah Lind", "user-sarah")
    leave_traces(driver, key)
    driver.run(api_keys.revoke(key.key_id))
    assert actors(driver).count("Sarah Lind") == 2
    assert driver.run(api_keys.find_named("user-sarah")) == [
        {"id": key.key_id, "name": "Sarah Lind", "is_revoked": True}
    ]


def test_a_name_that_two_keys_have_stays_in_the_log_until_both_are_forgotten(driver):
    keys = [issue(driver, "one user", f"user-{n}") for n in range(2)]
    leave_traces(driver, keys[0])
    driver.run(api_keys.revoke(keys[0].key_id, True))
    assert actors(driver).count("one user") == 2
    driver.run(api_keys.revoke(keys[1].key_id, True))
    assert "one user" not in actors(driver)


def test_forgetting_a_key_that_is_named_like_those_without_a_key_leaves_their_changes(driver):
    key = issue(driver, "local", "ns")
    leave_traces(driver, LOCAL)
    driver.run(api_keys.revoke(key.key_id, True))
    assert key.key_id not in actors(driver)


def test_a_store_whose_last_key_is_forgotten_admits_nobody(driver):
    for key in driver.run(api_keys.issue("bot"))[0], *driver.run(api_keys.list_all()):
        driver.run(api_keys.revoke(key.id, True))
    assert driver.run(api_keys.admit(None)) is None


def test_an_unknown_key_is_not_forgotten(driver):
    assert driver.run(api_keys.revoke("3f9c0a12", True)) is False


@pytest.mark.parametrize(
    ("name", "namespaces", "namespace", "is_found"),
    [
        ("phone", ["user-ann"], "user-ann", True),
        ("phone", ["x", "user-*"], "user-*", True),
        ("user-ann's phone", ["x"], "user-ann", True),
        ("phone", ["user-ann-smith"], "user-ann", False),
        ("user-ann-smith", ["x"], "user-ann", False),
        ("user-anne", ["user-anne"], "user-ann", False),
        ("phone", ["user-a.n"], "user-ann", False),
    ],
)
def test_the_keys_that_have_the_name_of_a_namespace_are_found(driver, name, namespaces, namespace, is_found):
    key = issue(driver, name, *namespaces)
    assert [each["id"] for each in driver.run(api_keys.find_named(namespace))] == [key.key_id] * is_found
