"""The verbs on several keys, on the ends of lists and on fields of objects, and the manners of a dict."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import memories
from harness import fresh_name, run_command, run_text
from scrubjay import AsyncMemory, Conflict, InvalidInput, NotFound, QuotaExceeded
from scrubjay import memory as memory_module
from scrubjay.commands import VERBS
from scrubjay.store import items as items_module


@pytest.fixture(params=["embedded", "server", "postgres"])
def open_memory(request, tmp_path):
    yield from memories(request, tmp_path)


@pytest.fixture
def filled(memory):
    memory.update({f"t/{n:02}": n for n in range(12)})
    memory.set("other", "x")
    return memory


def test_items_are_keys_with_values_in_order(filled):
    assert dict(filled.items()) == {**{f"t/{n:02}": n for n in range(12)}, "other": "x"}
    assert [key for key, _ in filled.items()] == filled.keys()
    assert list(filled.items("t/", limit=2)) == [("t/00", 0), ("t/01", 1)]
    assert list(filled.items("t/", reverse=True, limit=2)) == [("t/11", 11), ("t/10", 10)]
    assert list(filled.items("t/", after="t/09")) == [("t/10", 10), ("t/11", 11)]
    assert list(filled.items("t/", after="t/02", reverse=True)) == [("t/01", 1), ("t/00", 0)]
    assert list(filled.items("nope")) == []
    assert list(filled.values("t/", after="t/09")) == [10, 11]


def test_a_list_among_the_items_is_whole(memory):
    memory.append("a", 1, 2)
    memory.set("b", [3])
    memory.set("c", "x", ttl=100)
    assert list(memory.items()) == [("a", [1, 2]), ("b", [3]), ("c", "x")]
    assert list(memory.scan()) == [memory.item(key) for key in "abc"]


@pytest.mark.parametrize("reverse", [False, True])
def test_pages_of_few_items_and_of_few_bytes_hold_the_same(memory, monkeypatch, reverse):
    monkeypatch.setattr(memory_module, "MAX_PAGE", 3)
    monkeypatch.setattr(items_module, "PAGE_BYTES", 40)
    expected = {f"k{n}": "x" * n * 10 for n in range(10)}
    memory.update(expected)
    found = list(memory.items(reverse=reverse))
    assert found == sorted(expected.items(), reverse=reverse)


def test_items_are_read_while_they_are_iterated(filled):
    iterator = filled.items("t/", limit=3)
    filled.set("t/00", "changed")
    assert next(iterator) == ("t/00", "changed")


def test_a_whole_number_may_be_a_float(filled):
    filled.append("rows", *range(5))
    filled.append("chat", {"role": "user", "content": "Hi"})
    assert list(filled.items("t/", limit=2.0)) == [("t/00", 0), ("t/01", 1)]
    assert filled.slice("rows", 1.0, 3.0) == [1, 2]
    assert len(filled.find("t/", limit=2.0, offset=11.0)) == 1
    assert len(filled.conversation(key="chat", limit=1.0, after=-1.0)) == 1
    assert filled.set("other", 1, if_version=1.0) == 2
    assert filled.delete("other", if_version=2.0)
    assert filled.set_quota(writes_per_day=100.0) == filled.usage()


@pytest.mark.parametrize(
    "wrong", [{"limit": -1}, {"limit": "2"}, {"after": ""}, {"after": 1}, {"reverse": "no"}, {"reverse": 0}]
)
def test_wrong_arguments_of_items_are_refused_before_the_iteration(memory, wrong):
    with pytest.raises(InvalidInput):
        memory.items(**wrong)


def test_pop_takes_from_either_end(memory):
    memory.append("l", *range(6))
    assert memory.pop("l") == [5]
    assert memory.pop("l", 2) == [3, 4]
    assert memory.pop("l", first=True) == [0]
    assert memory.get("l") == [1, 2]
    assert memory.append("l", 9) == 3
    assert memory.get("l") == [1, 2, 9]
    assert memory.pop("l", 100, first=True) == [1, 2, 9]
    assert memory.pop("l") == []
    assert memory.get("l") == []
    assert memory.pop("nope") == []
    assert "nope" not in memory


def test_pop_is_about_lists_only(memory):
    memory.set("user", {"name": "Sarah"})
    with pytest.raises(Conflict, match="not a list"):
        memory.pop("user")
    with pytest.raises(InvalidInput, match="to remove a key, use delete"):
        memory.pop("user", None)
    assert memory["user"] == {"name": "Sarah"}


def test_each_item_is_popped_by_exactly_one_thread(memory):
    memory.append("jobs", *range(200))

    def work(first: bool) -> list[int]:
        taken = []
        while got := memory.pop("jobs", 3, first=first):
            taken += got
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = [job for part in pool.map(work, [True, False, True, False]) for job in part]
    assert sorted(taken) == list(range(200))


@pytest.mark.parametrize("prefix", [None, 0, False, [], b"t/"])
@pytest.mark.parametrize("verb", ["keys", "items", "values", "scan", "find", "search", "clear", "watch"])
def test_a_prefix_is_text(memory, verb, prefix):
    arguments = ("x", prefix) if verb == "search" else (prefix,)
    with pytest.raises(InvalidInput, match=r"^a prefix is text, not "):
        getattr(memory, verb)(*arguments)


def test_length_and_slice_are_those_of_a_python_list(memory):
    memory.append("rows", *range(10))
    memory.pop("rows", 2, first=True)
    memory.set("text", list(range(2, 10)))
    for key in ("rows", "text"):
        assert memory.length(key) == 8
        for start, stop in ((0, None), (2, 4), (-3, None), (-3, -1), (5, 2), (0, 100), (-100, 1)):
            assert memory.slice(key, start, stop) == list(range(2, 10))[start:stop]
    assert memory.length("nope") == 0
    assert memory.slice("nope") == []
    memory.set("n", 1)
    for call in (memory.length, memory.slice):
        with pytest.raises(Conflict, match="not a list"):
            call("n")


def test_update_under_versions_is_all_or_none(memory):
    memory.set("a", 1)
    memory.update({"a": 2, "b": 2}, if_versions={"a": 1, "b": 0})
    assert memory.get_many(["a", "b"]) == {"a": 2, "b": 2}
    with pytest.raises(Conflict, match="'b' is at version"):
        memory.update({"a": 3, "c": 3}, if_versions={"a": memory.item("a").version, "b": 0})
    assert dict(memory.items()) == {"a": 2, "b": 2}
    with pytest.raises(Conflict):
        memory.update({"c": 3}, if_versions={"missing": 1})
    assert "c" not in memory


def test_an_error_names_the_argument_that_is_wrong(memory):
    memory.set("a", 1)
    for call, reason in (
        (lambda: memory.update({"a": 2}, if_versions={"a": None}), r"^if_versions\['a'\] is a whole number, not None"),
        (lambda: memory.items(limit=0), "^limit is between 1 and"),
        (lambda: memory.scan(limit=0), "^limit is between 1 and"),
        (lambda: memory.get_many(5), "^get_many takes a list of keys, not 5$"),
        (lambda: memory.get_many(None), "^get_many takes a list of keys, not None$"),
        (lambda: memory.items(after=1), "^a key in after is text, not 1"),
        (lambda: memory.get_many(f"{i:0512}" for i in range(2049)), "one call reads at most 1048576, so split it"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            call()
    for key, version, reason in (
        ("a", 2**53, r"^'a' is at version \d+, and the call expects version 9007199254740992; read it again and"),
        ("a", 0, r"^'a' is at version \d+, and the call expects no value;"),
        ("gone", 3, "^'gone' does not exist, and the call expects version 3;"),
    ):
        with pytest.raises(Conflict, match=reason):
            memory.set(key, 2, if_version=version)


def test_update_gives_all_values_the_same_time_to_live(memory):
    memory.update({"a": 1, "b": 2}, ttl=1000)
    left = memory.item("a").expires_at - memory.item("a").created_at
    assert left.total_seconds() == 1000
    assert memory.item("b").expires_at == memory.item("a").expires_at


def test_an_update_counts_as_one_write(memory):
    memory.set_quota(writes_per_day=2)
    memory.update({f"k{n}": n for n in range(100)})
    assert memory.usage().writes_today == 1
    memory.update({"k0": None})
    assert memory.usage().writes_today == 1
    memory.merge("o", {"a": 1})
    with pytest.raises(QuotaExceeded):
        memory.update({"x": 1})


def test_an_update_fits_if_the_sum_of_its_values_does(memory):
    memory.set_quota(max_bytes=40)
    memory.update({"a": "x" * 20, "b": "y"})
    memory.update({"b": "y" * 20, "a": "x"})
    with pytest.raises(QuotaExceeded):
        memory.update({"a": "x" * 20, "b": "y" * 20})
    assert dict(memory.items()) == {"a": "x", "b": "y" * 20}


def test_a_quota_that_is_not_given_stays_as_it_is(memory):
    memory.set_quota(writes_per_day=7, max_bytes=1000)
    assert memory.set_quota() == memory.usage()
    changed = memory.set_quota(max_bytes=2000)
    assert (changed.writes_per_day, changed.max_bytes) == (7, 2000)
    changed = memory.set_quota(writes_per_day=None, max_bytes=0)
    assert (changed.writes_per_day, changed.max_bytes) == (0, 0)
    with pytest.raises(TypeError, match="max_byte"):
        memory.set_quota(max_byte=1)


def test_clear_deletes_what_starts_with_a_prefix_and_keeps_the_rest(memory):
    memory.update({"thread/1/a": 1, "thread/1/b": 2, "thread/10": 3, "other": 4})
    memory.append("thread/1/list", 1, 2)
    memory.remember("a note")
    assert memory.clear("thread/1/") == 3
    assert memory.keys() == ["other", "thread/10"]
    assert len(memory.notes()) == 1
    assert memory.usage().keys == 2
    assert memory.clear("nope") == 0
    assert memory.append("thread/1/list", 3) == 1
    assert memory.clear() == 4
    assert list(memory.items()) == []


def test_versions_go_on_after_a_clear_with_a_prefix(memory):
    for value in range(5):
        memory.set("a/k", value)
    memory.clear("a/")
    assert memory.set("a/k", "again") > 5


def test_merge_replaces_and_removes_fields(memory):
    assert memory.merge("user", {"name": "Sarah", "city": "Bonn"}) == 1
    assert memory.merge("user", {"city": "Berlin", "name": None, "tags": [1, {"x": None}]}) == 2
    assert memory.get("user") == {"city": "Berlin", "tags": [1, {"x": None}]}
    memory.set("n", [1])
    memory.append("rows", 1)
    for key in ("n", "rows"):
        with pytest.raises(Conflict, match="not an object"):
            memory.merge(key, {"a": 1})
    for wrong in ([1], "text", None, {1: 2}):
        with pytest.raises(InvalidInput):
            memory.merge("user", wrong)


def test_merges_of_many_threads_lose_no_field(memory):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: memory.merge("o", {f"f{n}": n}), range(40)))
    assert memory.get("o") == {f"f{n}": n for n in range(40)}


def test_touch_changes_the_expiry_and_nothing_else(memory):
    memory.set("k", "v")
    before, used = memory.item("k"), memory.usage().writes_today
    assert memory.touch("k", 1000)
    touched = memory.item("k")
    assert touched.expires_at is not None
    assert touched._replace(expires_at=None) == before
    assert memory.usage().writes_today == used
    assert memory.touch("k", None)
    assert memory.item("k") == before
    assert not memory.touch("nope", 5)
    assert "nope" not in memory
    memory.touch("k", 0.001)
    deadline = time.monotonic() + 60
    while "k" in memory and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "k" not in memory


def test_a_transaction_merges(memory):
    with memory.transaction() as t:
        t.merge("user", {"name": "Sarah"})
        t.append("log", "named")
        t.update({"a": 1}, ttl=1000)
    assert memory.get("user") == {"name": "Sarah"}
    assert memory.item("a").expires_at


def test_a_transaction_under_a_version_that_is_not_there_changes_nothing(memory):
    memory.set("a", 1)
    with pytest.raises(Conflict), memory.transaction() as t:  # noqa: PT012 - a transaction is a block
        t.append("log", "x")
        t.update({"a": 2}, if_versions={"a": 7})
    assert dict(memory.items()) == {"a": 1}


def test_a_memory_has_the_manners_of_a_dict(memory):
    memory["k"] = {"a": [1]}
    assert memory["k"] == {"a": [1]}
    assert "k" in memory
    assert len(memory) == 1
    assert list(memory) == ["k"]
    assert dict(memory) == {"k": {"a": [1]}}
    assert memory.setdefault("k", 2) == {"a": [1]}
    assert memory.setdefault("new", 2) == 2
    del memory["k"]
    for call in (lambda: memory["k"], lambda: memory.__delitem__("k")):
        with pytest.raises(KeyError, match=r"^there is no 'k' in "):
            call()
    with pytest.raises(NotFound):
        memory["k"]
    with pytest.raises(InvalidInput):
        memory.setdefault("x", None)


def test_of_many_defaults_one_is_stored(memory):
    barrier = threading.Barrier(4)

    def give(n: int) -> int:
        barrier.wait(60)
        return memory.setdefault("k", n)

    with ThreadPoolExecutor(4) as pool:
        assert len({*pool.map(give, range(4)), memory["k"]}) == 1


def test_every_verb_can_be_awaited(open_memory):
    async def use() -> None:
        async with AsyncMemory(open_memory().namespace, **open_memory.where) as memory:
            await memory.update({"a": 1, "b": 2}, if_versions={"a": 0})
            assert [pair async for pair in memory.items(reverse=True)] == [("b", 2), ("a", 1)]
            assert [value async for value in memory.values()] == [1, 2]
            assert [item.key async for item in memory.scan(limit=1)] == ["a"]
            assert await memory.setdefault("a", 5) == 1
            await memory.append("l", 1, 2, 3)
            assert await memory.pop("l", first=True) == [1]
            assert await memory.length("l") == 2
            assert await memory.slice("l", 1) == [3]
            assert await memory.merge("o", {"x": 1}) == 1
            assert await memory.touch("o", 100)
            assert await memory.clear("o") == 1
            async with memory.transaction() as t:
                t.pop("l")
                t.incr("n")
            assert t.results == [[3], 1]
            await memory.remember("Sarah drinks tea", id="drink")
            note = await memory.remember("Sarah drinks coffee", id="drink")
            assert [(found.id, found.content) for found in await memory.notes()] == [(note.id, "Sarah drinks coffee")]
            await memory.set("text", "PostgreSQL")
            assert [match.key for match in await memory.search("postgresql")] == ["text"]

    asyncio.run(use())


def test_the_command_has_the_verbs(tmp_path):
    where = {"SCRUBJAY_PATH": str(tmp_path / "db")}

    def run(*words: str) -> str:
        done = run_command(*words, **where)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    run("merge", "ns", "user", '{"name": "Sarah", "old": 1}')
    run("merge", "ns", "user", '{"old": null}')
    run("append", "ns", "list", "1", "2", "3")
    assert run("items", "ns") == '{"key": "list", "value": [1, 2, 3]}\n{"key": "user", "value": {"name": "Sarah"}}\n'
    assert run("items", "ns", "u", "--reverse", "-n", "1") == '{"key": "user", "value": {"name": "Sarah"}}\n'
    assert run("length", "ns", "list") == "3\n"
    assert run("slice", "ns", "list", "-2") == "2\n3\n"
    assert run("pop", "ns", "list", "--first") == "1\n"
    run("touch", "ns", "list", "--ttl", "100")
    assert run("clear", "ns", "l") == "1\n"
    assert run("keys", "ns") == "user\n"
    assert run_command("touch", "ns", "nope", **where).returncode == 1
    assert run_command("merge", "ns", "user", "text", **where).returncode == 1


@pytest.mark.parametrize("place", ["file", "server"])
def test_the_command_writes_several_things_together(place, tmp_path, request):
    where = {"SCRUBJAY_PATH": str(tmp_path / "db")}
    if place == "server":
        where = {"SCRUBJAY_URL": request.getfixturevalue("server").url}
    ns = fresh_name()

    def run(*words: str, stdin: str = "") -> str:
        done = run_text(*words, stdin=stdin, **where)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("update", ns, '{"a": 1, "b": [1, 2], "c": 3}', "--ttl", "100")
    run("update", ns, "-", "--if-versions", '{"a": 1, "d": 0}', stdin='{"c": null, "d": {"x": 1}}')
    assert run_text("update", ns, '{"a": 2}', "--if-versions", '{"a": 9}', **where).returncode == 1
    lines = '{"key": "b", "value": [1, 2]}\n{"key": "d", "value": {"x": 1}}\n'
    assert run("items", ns, "--after", "a") == lines
    assert run("items", ns, "--after", "d", "--reverse", "-n", "1") == '{"key": "b", "value": [1, 2]}\n'

    writes = [
        {"verb": "set", "key": "k", "value": 1, "if_version": 0, "ttl": 100},
        {"verb": "delete", "key": "a"},
        {"verb": "update", "values": {"u": 1}, "if_versions": {"u": 0}},
        {"verb": "merge", "key": "d", "fields": {"x": None, "y": 2}},
        {"verb": "touch", "key": "b", "ttl": None},
        {"verb": "incr", "key": "n", "by": 2},
        {"verb": "append", "key": "b", "items": [3, 4]},
        {"verb": "pop", "key": "b", "n": 2, "first": True},
        {"verb": "clear", "prefix": "u"},
        {"verb": "remember", "content": "Sarah likes tea", "id": "tea"},
        {"verb": "forget", "key": "tea"},
        {"verb": "forget_session", "key": "s"},
    ]
    results = json.loads(run("transaction", ns, "-", "--once", "id-1", "--json", stdin=json.dumps(writes)))["results"]
    assert results == [results[0], True, None, results[3], True, 2, 4, [1, 2], 1, results[9], True, 0]
    assert {write["verb"] for write in writes} == {verb.name for verb in VERBS.values() if verb.in_transaction}
    assert json.loads(run("get", ns, "b")) == [3, 4]
    results[7] = None  # the items of a pop are not stored for a repetition
    assert json.loads(run("transaction", ns, json.dumps(writes), "--once", "id-1")) == results


@pytest.mark.parametrize(
    ("writes", "reason"),
    [
        ("{}", "writes is a list of writes"),
        ('[{"verb": "usage"}]', "writes[0] is an object with a verb, one of set, delete"),
        ("[1]", "not 1"),
        ('[{"verb": "delete"}]', 'writes[0] lacks the field "key"'),
        ('[{"verb": "touch", "key": "k"}]', 'writes[0] lacks the field "ttl"'),
        (
            '[{"verb": "set", "key": "k", "value": 1, "x": 1}]',
            "writes[0] has an unknown field 'x'; set takes key, value, ttl, if_version",
        ),
        ('[{"verb": "remember", "content": "c", "x": 1}]', "unknown field 'x'; remember takes content, type, tags,"),
        ('[{"verb": "append", "key": "k", "items": "abc"}]', "items is a list"),
        ('[{"verb": "pop", "key": "k", "n": -1}]', "n is between 0 and"),
        ('[{"verb": "pop", "key": "k", "first": "no"}]', "first is true or false, not 'no'"),
        ('[{"verb": "update"}]', 'writes[0] lacks the field "values"'),
        (
            '[{"verb": "update", "values": {"a": 1}, "mapping": {"b": 1}}]',
            "unknown field 'mapping'; update takes values, if_versions, ttl",
        ),
        ('[{"verb": "merge", "key": "k", "mapping": {}}]', "unknown field 'mapping'; merge takes key, fields"),
        ('[{"verb": "forget", "note_id": "n"}]', "unknown field 'note_id'; forget takes key"),
        ('[{"verb": "clear", "prefix": null}]', "a prefix is text, not None"),
    ],
)
def test_the_command_names_what_is_wrong_with_a_transaction(tmp_path, writes, reason):
    where = {"SCRUBJAY_PATH": str(tmp_path / "db")}
    done = run_text("transaction", "ns", writes, **where)
    assert done.returncode == 1
    assert reason in done.stderr


def test_the_command_names_the_argument_that_is_not_json(tmp_path):
    where = {"SCRUBJAY_PATH": str(tmp_path / "db")}
    assert run_text("set", "ns", "k", "1", **where).returncode == 0
    for words, start in (
        (("update", "ns", "{"), "VALUES"),
        (("update", "ns", "{}", "--if-versions", "x"), "--if-versions"),
        (("merge", "ns", "k", "x"), "FIELDS"),
        (("find", "ns", "--where", "x"), "--where"),
        (("transaction", "ns", "x"), "WRITES"),
    ):
        done = run_text(*words, **where)
        assert (done.returncode, done.stderr.startswith(f"scrubjay: {start}: this is not JSON")) == (1, True)


@pytest.mark.parametrize("words", [("set", "ns", "k"), ("append", "ns", "k"), ("remember", "ns"), ("update", "ns")])
def test_input_that_is_not_utf8_is_refused_as_such(tmp_path, words):
    done = run_command(*words, "-", stdin=b'"\xff"', SCRUBJAY_PATH=str(tmp_path / "db"))
    assert done.returncode == 1
    assert b"standard input is not UTF-8 text" in done.stderr
