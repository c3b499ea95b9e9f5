"""Find: items by the fields of their values, those that changed last first."""

from __future__ import annotations

import asyncio
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import run_command
from scrubjay import AsyncMemory, InvalidInput, Memory
from scrubjay.exact_json import encode
from scrubjay.filters import MAX_NAME_CHARS, MAX_NAMES, matches, needles_of
from scrubjay.store import find as find_module
from scrubjay.validation import MAX_RECALL

PEOPLE = {
    "users/a": {"name": "Anna", "age": 31, "address": {"city": "Berlin", "zip": "10115"}},
    "users/b": {"name": "Ben", "age": 17, "address": {"city": "Bonn"}, "a.b": 1},
    "users/c": {"name": "Carla", "age": 31.0, "tags": ["x"], "left": None},
    "other": {"name": "Anna"},
}


NESTED = reduce(lambda inner, _: {"a": inner}, range(5000), {})
"""More levels than JSON may have, and than Python may call functions."""


@pytest.fixture
def people(memory):
    for key, value in PEOPLE.items():
        memory.set(key, value)
    memory.append("users/list", {"name": "Anna"})
    memory.set("users/text", "Anna")
    return memory


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"name": "Anna"}, "a"),
        ({"age": 31}, "ac"),
        ({"age": {"$lt": 31}}, "b"),
        ({"age": {"$gte": 17, "$lt": 31.5}}, "abc"),
        ({"name": {"$gt": "B"}, "age": {"$ne": 17}}, "c"),
        ({"name": {"$gt": 1}}, ""),
        ({"address.city": "Berlin"}, "a"),
        ({"address": {"city": "Bonn"}}, "b"),
        ({"address": {"city": {"$eq": "Bonn"}}}, "b"),
        ({"a.b": 1}, "b"),
        ({"a": {"b": 1}}, ""),
        ({"tags": ["x"]}, "c"),
        ({"left": None}, "abc"),
        ({"address": {"$eq": {"city": "Bonn"}}}, "b"),
    ],
)
def test_a_filter_chooses_values(people, where, expected):
    assert sorted(item.key for item in people.find("users/", where=where)) == [f"users/{name}" for name in expected]


def test_what_changed_last_comes_first_page_by_page(memory):
    for number in range(25):
        memory.set(f"k{number:02}", {"n": number, "even": number % 2 == 0})
    memory.set("k03", {"n": 3, "even": False})
    every = memory.find(limit=1000)
    assert every == sorted(memory.scan(), key=lambda item: (-item.updated_at.timestamp(), item.key))
    assert memory.item("k03").updated_at == every[0].updated_at  # others may be of the same millisecond
    pages = [memory.find(limit=10, offset=offset) for offset in (0, 10, 20, 30)]
    assert [item.key for page in pages for item in page] == [item.key for item in every]
    even = memory.find(where={"even": True}, limit=1000)
    assert even == [item for item in every if item.value["even"]]
    assert memory.find(where={"even": True}, limit=4, offset=3) == even[3:7]
    assert even[0] == memory.item(even[0].key)


def test_without_a_filter_lists_are_found_too(people):
    assert {item.key for item in people.find("users/")} == {*list(PEOPLE)[:3], "users/list", "users/text"}
    assert people.find("nobody/") == []


def test_values_that_are_too_large_for_one_page_are_read_in_turn(people, monkeypatch):
    monkeypatch.setattr(find_module, "PAGE_BYTES", 60)
    assert [item.key for item in people.find("users/", where={"name": "Ben"})] == ["users/b"]
    assert len(people.find("users/", where={"age": {"$gt": 0}})) == 3


def test_encrypted_values_are_found(tmp_path):
    pytest.importorskip("cryptography")
    with Memory("ns", path=tmp_path / "db", secret="correct horse battery") as memory:
        memory.update(PEOPLE)
        assert [item.key for item in memory.find(where={"address.zip": "10115"})] == ["users/a"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"where": ["name"]},
        {"where": {"age": {"$near": 3}}},
        {"where": {"$gt": 3}},
        {"where": {"$or": [{"age": 3}]}},
        {"where": {"name": "Ben", "address": {"age": {"$gt": 3}, "$lt": 5}}},
        {"where": {"age": {"$gt": 3, "unit": "years"}}},
        {"where": {"age": float("nan")}},
        {"where": {"age": {1: 2}}},
        {"where": NESTED},
        {"where": {f"f{i}": None for i in range(MAX_NAMES + 1)}},
        {"where": {"a": {f"f{i}": None for i in range(MAX_NAMES)}}},
        {"where": {".".join("a" * (MAX_NAMES + 1)): None}},
        {"where": {"a" * (MAX_NAME_CHARS + 1): None}},
        {"limit": -1},
        {"limit": 0},
        {"limit": MAX_RECALL + 1},
        {"offset": -1},
        {"prefix": 3},
    ],
)
def test_wrong_arguments_are_refused(memory, wrong):
    with pytest.raises(InvalidInput):
        memory.find(**wrong)


def test_a_filter_may_have_many_names(people):
    path = ".".join("a" * (MAX_NAMES - 1))
    assert people.find(where={path: None, "name": "Ben"})[0].key == "users/b"
    assert people.find(where={"a" * (MAX_NAME_CHARS - 4): None, "name": "Ben"})[0].key == "users/b"


def test_an_operator_without_a_field_is_told_where_it_belongs(memory):
    with pytest.raises(InvalidInput, match=r"^where has '\$gt' in the place of a field; write"):
        memory.find(where={"$gt": 3})


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
fields = st.dictionaries(st.sampled_from(["a", "b", "a.b"]), scalars | st.lists(scalars, max_size=2), max_size=3)
objects = st.dictionaries(st.sampled_from(["a", "b", "c"]), scalars | fields, max_size=3)


@given(objects, objects)
def test_the_text_of_a_value_that_matches_contains_all_needles(value, where):
    if matches(value, where):
        assert all(needle in encode(value) for needle in needles_of(where))
    assert matches(value, value)
    assert all(needle in encode(value) for needle in needles_of(value))


def test_asyncio_has_it_too(tmp_path):
    async def use() -> None:
        memory = AsyncMemory("ns", path=tmp_path / "db")
        await memory.set("k", {"a": 1})
        assert [item.key for item in await memory.find(where={"a": 1})] == ["k"]

    asyncio.run(use())


def test_the_command_prints_what_it_finds(tmp_path):
    where = {"SCRUBJAY_PATH": str(tmp_path / "db")}
    run_command("set", "ns", "user", '{"city": "Berlin"}', **where)
    printed = run_command("find", "ns", "--where", '{"city": "Berlin"}', **where).stdout
    assert printed == b'{"key": "user", "value": {"city": "Berlin"}}\n'
    assert not run_command("find", "ns", "--offset", "1", **where).stdout
