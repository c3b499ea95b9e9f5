"""Search and find on every engine: words in values and lists, and values by their fields."""

from __future__ import annotations

import itertools

import pytest

from scrubjay.errors import InvalidInput
from scrubjay.exact_json import encode
from scrubjay.store import find as find_module
from scrubjay.store import items, lists
from scrubjay.store import search as search_module
from scrubjay.store.find import find_items
from scrubjay.store.search import search

PEOPLE = {
    "users/anna": {"name": "Anna", "age": 31, "city": "Berlin"},
    "users/ben": {"name": "Ben", "age": 17, "city": "Bonn"},
    "users/Ça_va": {"name": "Ça", "age": 31.0, "note": 'likes \\ and "quotes" and % and _'},
}


@pytest.fixture
def filled(open_driver):
    seconds = itertools.count(1_800_000_000)  # later with every look at the clock
    driver = open_driver(clock=lambda: float(next(seconds)))
    for key, value in PEOPLE.items():
        driver.run(items.set_item("ns", key, encode(value)))
    messages = ["Which database should we take?", "Take PostgreSQL: it has transactions.", "Lunch in Zürich?"]
    driver.run(lists.append_items("ns", "chat", [encode({"role": "user", "content": each}) for each in messages]))
    driver.run(items.set_item("other", "chat", encode("PostgreSQL")))
    return driver


def found(driver, query, prefix="", limit=10):
    return [(match.key, match.position) for match in driver.run(search("ns", query, prefix, limit))]


def test_words_are_found_in_values_lists_and_keys_of_one_namespace(filled):
    assert found(filled, "PostgreSQL") == [("chat", 1)]
    assert found(filled, "databases") == [("chat", 0)]
    assert found(filled, "zurich") == [("chat", 2)]
    assert found(filled, "va") == [("users/Ça_va", None)]
    assert found(filled, "walnut") == []
    assert set(found(filled, "Berlin Bonn Zürich")) == {("users/anna", None), ("users/ben", None), ("chat", 2)}
    assert len(found(filled, "Berlin Bonn Zürich", limit=2)) == 2


def test_a_prefix_is_compared_letter_by_letter(filled):
    assert found(filled, "Berlin PostgreSQL", prefix="users/") == [("users/anna", None)]
    assert found(filled, "Berlin", prefix="users_") == found(filled, "Berlin", prefix="Users/") == []


def test_what_has_expired_or_was_taken_is_not_found(filled):
    filled.run(lists.pop_items("ns", "chat", 1, False))
    filled.run(lists.pop_items("ns", "chat", 1, True))
    assert found(filled, "Zürich database") == []
    assert found(filled, "PostgreSQL") == [("chat", 0)]
    filled.run(items.delete_item("ns", "chat"))
    assert found(filled, "PostgreSQL") == []


def test_a_search_that_would_read_too_much_is_refused(filled, monkeypatch):
    monkeypatch.setattr(search_module, "MAX_SEARCH_BYTES", 200)
    with pytest.raises(InvalidInput, match="longer prefix"):
        found(filled, "Berlin")
    assert found(filled, "Berlin", prefix="users/a") == [("users/anna", None)]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, ["Ça_va", "ben", "anna"]),
        ({"age": 31}, ["Ça_va", "anna"]),
        ({"age": {"$lt": 31}}, ["ben"]),
        ({"city": "Bonn"}, ["ben"]),
        ({"note": PEOPLE["users/Ça_va"]["note"]}, ["Ça_va"]),
        ({"city": {"$ne": "Bonn"}, "name": {"$gt": "A"}}, ["Ça_va", "anna"]),
    ],
)
@pytest.mark.parametrize("page_bytes", [None, 100])
def test_values_are_found_by_their_fields_the_latest_first(filled, monkeypatch, where, expected, page_bytes):
    if page_bytes:
        monkeypatch.setattr(find_module, "PAGE_BYTES", page_bytes)
    rows = filled.run(find_items("ns", "users/", encode(where), 10, 0))
    assert [row.key.removeprefix("users/") for row in rows] == expected
    assert [row.key for row in filled.run(find_items("ns", "users/", encode(where), 1, 1))] == [
        f"users/{name}" for name in expected[1:2]
    ]
