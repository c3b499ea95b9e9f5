# ruff: noqa: PT012 - a transaction is a block
"""Transactions: all or none, one write, the same embedded, on a server and from the queue."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import postgres, serving
from scrubjay import AsyncMemory, Conflict, InvalidInput, Memory, QuotaExceeded, Unavailable, ValueTooLarge
from scrubjay.calls import NoteFields, commands_of, transaction_call
from scrubjay.commands import VERBS, Command
from scrubjay.errors import from_response
from scrubjay.http import HttpExecutor
from scrubjay.operations import operation_for
from scrubjay.store.items import SLOW_CHARS
from scrubjay.store.operation import LONG_WRITE, WRITE
from scrubjay.store.transaction import SLOW_PARTS
from scrubjay.transaction import Transaction

KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.integers() | st.lists(st.integers(), max_size=3) | st.dictionaries(st.text(max_size=3), st.none())
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("update"), st.dictionaries(KEYS, VALUES | st.none())),
    st.tuples(st.just("append"), KEYS, st.integers()),
)
EVERY_STEP = STEPS | st.one_of(
    st.tuples(st.just("pop"), KEYS, st.integers(0, 3)),
    st.tuples(st.just("incr"), KEYS, st.integers(-3, 3)),
    st.tuples(st.just("merge"), KEYS, st.dictionaries(st.text(max_size=3), st.integers() | st.none())),
    st.tuples(st.just("clear"), KEYS),
)
"""With the verbs that are never queued."""
NEEDS = {"append": (list, []), "pop": (list, []), "incr": (int, 0), "merge": (dict, {})}
"""What a value has to be for a verb, and what it starts as."""
numbers = count()


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """How to open a namespace embedded, on a server and on PostgreSQL."""
    folder = tmp_path_factory.mktemp("transactions")
    database = postgres().fresh_url()
    with serving(folder / "served.db", "--writes-per-day", "0", "--durability", "fast") as server:
        yield {
            "embedded": lambda name: Memory(name, path=folder / "own.db", durability="fast"),
            "server": lambda name: Memory(name, url=server.url, outbox=folder / "outbox.db"),
            "postgres": lambda name: Memory(name, url=database, outbox=folder / "database-outbox.db"),
        }


def apply(model, verb, *arguments):
    """What a verb does to a dict; raises Conflict where Memory does."""
    if verb == "update":
        for key, value in arguments[0].items():
            apply(model, "delete", key) if value is None else apply(model, "set", key, value)
        return
    key, *rest = arguments
    kind, start = NEEDS.get(verb, (object, None))
    value = model.get(key, start)
    if not isinstance(value, kind):
        raise Conflict(f"not a {kind}")
    if verb in ("delete", "clear"):
        model.pop(key, None)
    elif verb == "set":
        model[key] = rest[0]
    elif verb == "pop":
        if key in model:
            model[key] = value[: max(len(value) - rest[0], 0)]
    elif verb == "merge":
        merged = {**value, **rest[0]}
        model[key] = {name: each for name, each in merged.items() if name not in rest[0] or each is not None}
    else:
        model[key] = value + (rest if verb == "append" else rest[0])


@pytest.mark.parametrize("where", ["embedded", "server", "postgres"])
def test_a_transaction_does_what_its_verbs_do_or_nothing(stores, where):
    @settings(max_examples=60 if where == "embedded" else 25)
    @given(st.lists(st.lists(EVERY_STEP, max_size=5), max_size=4))
    def check(transactions):
        memory, model = stores[where](f"{where}-{next(numbers)}"), {}
        for steps in transactions:
            changed = dict(model)
            try:
                for step in steps:
                    apply(changed, *step)
            except Conflict:
                with pytest.raises(Conflict), memory.transaction() as t:
                    run(t, steps)
            else:
                with memory.transaction() as t:
                    run(t, steps)
                model = changed
            assert memory.get_many(list("abc")) == model
        memory.close()

    check()


def run(transaction, steps):
    for verb, *arguments in steps:
        getattr(transaction, verb)(*arguments)


@settings(max_examples=40)
@given(st.lists(st.lists(STEPS, min_size=1, max_size=5), min_size=1, max_size=4))
def test_reads_include_queued_transactions(tmp_path_factory, transactions):
    outbox = tmp_path_factory.mktemp("outbox") / "outbox.db"
    with Memory("queued", url="http://127.0.0.1:9", outbox=outbox) as memory:
        memory.update(dict.fromkeys("abc"))
        model = {}
        for steps in transactions:
            changed = dict(model)
            try:
                for step in steps:
                    apply(changed, *step)
            except Conflict:  # the server will refuse it as a whole, later
                return
            with memory.transaction() as t:
                run(t, steps)
            assert t.results is None
            model = changed
            assert memory.get_many(list("abc")) == model


def test_results_are_those_of_the_verbs(stores):
    for open_memory in stores.values():
        with open_memory("results") as memory:
            with memory.transaction() as t:
                t.set("k", 1)
                t.append("log", "x", "y")
                t.delete("missing")
                t.set("k", None)
                t.remember("The user lives in Berlin.", type="fact")
                t.remember("The user likes tea.", id="mine")
            version, length, missing, deleted, note, own = t.results
            assert (version, length, missing, deleted) == (1, 2, False, True)
            assert [found.id for found in memory.recall("Berlin")] == [note]
            assert [(found.id, found.number) for found in memory.recall("tea")] == [("mine", own)]
            assert memory.forget(own)


def test_a_transaction_has_every_verb_that_can_be_part_of_one():
    names = {name for name, verb in VERBS.items() if verb.in_transaction}
    assert {name for name in names if hasattr(Transaction, name)} == names
    beside = {"transaction", "set_quota", "issue_key", "set_key_quota", "rotate_key", "revoke_key"}
    assert names == {name for name, verb in VERBS.items() if verb.writes} - beside
    for name in names - {"remember"}:  # whose fields are a TypedDict
        own = inspect.signature(getattr(Transaction("ns", print, None), name)).parameters
        assert set(own) == inspect.signature(getattr(Memory, name)).parameters.keys() - {"self", "once"}, name
    there = inspect.signature(Memory.remember).parameters.keys() - {"self", "content"}
    assert NoteFields.__annotations__.keys() == there


def test_verbs_see_what_those_before_them_have_left(stores):
    for open_memory in stores.values():
        with open_memory("in-order") as memory:
            memory.append("jobs", "a", "b", "c")
            note = memory.remember("The user lives in Bonn.")
            memory.remember("The user said hello.", session="s")
            with memory.transaction() as t:
                t.pop("jobs", first=True)
                t.append("jobs", "d")
                t.pop("jobs", 2)
                t.pop("nothing")
                t.incr("taken", 3)
                t.incr("taken", 0.5)
                t.set("old/1", 1)
                t.clear("old/")
                t.update({})
                t.append("jobs")
                t.forget(note.id)
                t.forget(note.id)
                t.forget_session("s")
            assert t.results == [["a"], 3, ["c", "d"], [], 3, 3.5, t.results[6], 1, None, 1, True, False, 1]
            assert dict(memory.items()) == {"jobs": ["b"], "taken": 3.5}
            assert memory.notes() == []


def test_a_transaction_that_fails_takes_no_item_and_erases_nothing(stores):
    for open_memory in stores.values():
        with open_memory("all-or-none") as memory:
            memory.update({"jobs": ["a"], "n": 1, "o": {}})
            note = memory.remember("The user lives in Bonn.")
            for last in (lambda t: t.incr("o"), lambda t: t.pop("n"), lambda t: t.set("n", 2, if_version=9)):
                with pytest.raises(Conflict), memory.transaction() as t:
                    t.pop("jobs")
                    t.incr("n")
                    t.forget(note.id)
                    t.clear("o")
                    t.set("o", {})
                    last(t)
                assert t.results is None
            assert dict(memory.items()) == {"jobs": ["a"], "n": 1, "o": {}}
            assert memory.recall("Bonn")


def test_a_value_is_replaced_under_its_version(stores):
    for open_memory in stores.values():
        with open_memory("versions") as memory:
            version = memory.set("k", 1)
            with memory.transaction() as t:
                t.set("k", 2, if_version=version)
                t.set("new", 1, if_version=0)
                t.delete("k", if_version=version + 1)
            assert dict(memory.items()) == {"new": 1}
            with pytest.raises(Conflict), memory.transaction() as t:
                t.set("new", None, if_version=9)
            assert "new" in memory


def test_clear_in_a_transaction_erases_the_namespace(stores):
    for open_memory in stores.values():
        with open_memory("cleared") as memory:
            memory.set("a", 1)
            memory.remember("note")
            with memory.transaction() as t:
                t.clear()
                t.set("b", 1)
            assert t.results[0] == 2
            assert (dict(memory.items()), memory.notes()) == ({"b": 1}, [])


def test_takers_in_transactions_get_each_item_once(stores):
    for open_memory in stores.values():
        with open_memory("takers") as memory:
            memory.append("jobs", *range(60))

            def work(_, memory=memory):
                taken = []
                while True:
                    with memory.transaction() as t:
                        t.pop("jobs", 2, first=True)
                        t.incr("calls")
                    if not t.results[0]:
                        return taken
                    taken += t.results[0]

            with ThreadPoolExecutor(4) as pool:
                taken = [job for part in pool.map(work, range(4)) for job in part]
            assert sorted(taken) == list(range(60))
            assert memory["calls"] == 34


def test_a_transaction_whose_result_is_needed_is_never_queued(tmp_path):
    with Memory("away", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1) as memory:
        for verb in ("pop", "incr", "clear", "forget", "forget_session"):
            reason = f"; {verb} is never queued, so nothing of this call was stored"
            with pytest.raises(Unavailable, match=reason), memory.transaction() as t:
                t.set("k", 1)
                getattr(t, verb)("x")
        with pytest.raises(Unavailable, match="; touch is never queued"), memory.transaction() as t:
            t.touch("k", None)
        with pytest.raises(Unavailable, match="; set with a version is never queued"), memory.transaction() as t:
            t.set("k", 1, if_version=0)
        with pytest.raises(Unavailable, match="; incr is never queued"):
            memory.incr("n")
        assert memory.pending() == []


def test_a_mistake_of_the_server_does_not_say_that_nothing_was_stored(tmp_path, monkeypatch):
    def fail(*_):
        raise from_response("internal", "the server made a mistake", 500)

    monkeypatch.setattr(HttpExecutor, "run", fail)
    with Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox") as memory:
        with pytest.raises(Unavailable, match=r"^the server made a mistake$") as raised:
            memory.incr("n")
        assert raised.value.status == 500


def test_a_transaction_of_many_writes_does_not_run_on_the_event_loop_of_a_server():
    def mode_of(count):
        writes = [{"verb": "incr", "key": "n"}] * count
        return operation_for(transaction_call("ns", commands_of("ns", writes, "commands"))).mode

    assert (mode_of(SLOW_PARTS), mode_of(SLOW_PARTS + 1)) == (WRITE, LONG_WRITE)


def test_a_transaction_of_long_values_does_not_run_on_the_event_loop_of_a_server():
    def mode_of(*writes):
        return operation_for(transaction_call("ns", commands_of("ns", list(writes), "commands"))).mode

    long = "x" * (SLOW_CHARS // 3)
    sets, append = [{"verb": "set", "key": f"{n}", "value": long} for n in range(2)], {"verb": "append", "key": "l"}
    assert mode_of(*sets) is WRITE
    assert mode_of(*sets, {**append, "items": ["short"]}) is WRITE
    assert mode_of(*sets, {**append, "items": [long]}) is LONG_WRITE
    assert mode_of(*sets, {"verb": "merge", "key": "m", "fields": {"k": long}}) is LONG_WRITE


def test_a_repeated_transaction_stores_no_popped_items(tmp_path):
    path = tmp_path / "db"
    with Memory("once", path=path) as memory:
        memory.append("jobs", "the secret job", "b")
        for expected in (["the secret job"], None):
            with memory.transaction(once="id-1") as t:
                t.pop("jobs", first=True)
                t.incr("taken")
            assert t.results == [expected, 1]
        assert dict(memory.items()) == {"jobs": ["b"], "taken": 1}
    with sqlite3.connect(path) as connection:
        stored = [row for (row,) in connection.execute("SELECT result FROM idempotency_keys")]
    assert stored == ["[null,1]"]


def test_an_expiry_is_replaced_with_the_other_writes_or_not_at_all(stores):
    for open_memory in stores.values():
        with open_memory("expiries") as memory:
            version = memory.set("k", 1, ttl=1000)
            with pytest.raises(Conflict), memory.transaction() as t:
                t.touch("k", None)
                t.update({}, if_versions={"k": version + 1})
            assert memory.item("k").expires_at is not None
            before = memory.usage().writes_today
            with memory.transaction() as t:
                t.touch("k", None)
                t.touch("missing", 5)
            assert t.results == [True, False]
            assert (memory.item("k").expires_at, memory.item("k").version) == (None, version)
            assert memory.usage().writes_today == before


def test_an_exception_in_the_block_writes_nothing(stores):
    with stores["embedded"]("raised") as memory:
        with pytest.raises(RuntimeError), memory.transaction() as t:
            t.set("k", 1)
            raise RuntimeError
        with pytest.raises(InvalidInput), memory.transaction() as t:
            t.set("k", 1)
            t.set("k", print)
        assert memory.keys() == []
        with memory.transaction():
            pass
        assert memory.usage().writes_today == 0


def test_a_transaction_counts_as_one_write_and_deletions_as_none(stores):
    for open_memory in stores.values():
        with open_memory("counted") as memory:
            memory.set_quota(writes_per_day=2)
            with memory.transaction() as t:
                t.set("a", 1)
                t.update({"b": 2, "c": 3})
                t.append("log", 1)
                t.remember("one")
            assert memory.usage().writes_today == 1
            with memory.transaction() as t:
                t.delete("a")
                t.update({"b": None})
                t.pop("log")
                t.clear("x")
                t.forget("1")
            assert memory.usage().writes_today == 1
            memory.set("a", 1)
            with pytest.raises(QuotaExceeded), memory.transaction() as t:
                t.delete("c")
                t.set("d", 1)
            assert memory.keys() == ["a", "c", "log"]


def test_a_transaction_that_exceeds_the_storage_stores_nothing(stores):
    for open_memory in stores.values():
        with open_memory("full") as memory:
            memory.set_quota(max_bytes=1000)
            with pytest.raises(QuotaExceeded), memory.transaction() as t:
                t.set("a", 1)
                t.set("b", "x" * 2000)
            assert memory.keys() == []


def test_a_transaction_with_an_id_happens_once(stores):
    for open_memory in stores.values():
        with open_memory("once") as memory:
            for _ in range(2):
                with memory.transaction(once="id-1") as t:
                    t.append("log", 1)
                    t.remember("note")
            assert memory.get("log") == [1]
            assert len(t.results) == 2
            with pytest.raises(Conflict), memory.transaction(once="id-1") as t:
                t.append("log", 2)


def test_a_transaction_has_a_largest_size(stores):
    with stores["embedded"]("large") as memory:
        with pytest.raises(ValueTooLarge), memory.transaction() as t:
            for number in range(3):
                t.set(f"k{number}", "x" * 7_000_000)
        assert memory.keys() == []


def test_a_queued_transaction_is_sent_as_one(tmp_path):
    outbox = tmp_path / "outbox.db"
    with serving(tmp_path / "served.db") as server:
        pass
    with Memory("later", url=server.url, outbox=outbox) as memory:
        with memory.transaction() as t:
            t.append("log", {"n": 1})
            t.set("k", "v", ttl=3600)
            t.remember("note", tags=["x"])
        (pending,) = memory.pending()
        assert pending.verb == "transaction"
        assert (memory.get("k"), "k" in memory) == ("v", True)
        with serving(tmp_path / "served.db", port=server.port):
            memory.flush()
            assert memory.get("log") == [{"n": 1}]
            assert memory.item("k").expires_at is not None
            assert [list(note.tags) for note in memory.notes()] == [["x"]]


def test_a_command_of_a_transaction_is_read_as_it_was_written():
    sent = []
    with Transaction("ns", sent.append, "once-1") as writes:
        writes.set("k", {"a": None}, ttl=3)
        writes.update({"x": None, "y": [1.0]})
        writes.append("l", 1, None)
        writes.delete("d")
        writes.touch("k", None)
        writes.remember("text", tags=["t"], metadata={"n": 1}, ttl=9)
    (command,) = sent
    read = Command.from_json("transaction", "ns", command.to_json())
    assert read.to_json() == command.to_json()
    assert read.once == "once-1"
    assert read.aged(1).argument("commands")[0].arguments == ("k", '{"a":null}', 2, None)


def test_async_transactions():
    async def main():
        memory = AsyncMemory("async")
        async with memory.transaction() as t:
            t.append("log", 0, 1)
            t.pop("log", first=True)
            t.set("k", 2, if_version=0)
        assert t.results == [2, [0], 1]
        with pytest.raises(RuntimeError):
            async with memory.transaction() as t:
                t.set("k", 3)
                raise RuntimeError
        found = await memory.get_many(["log", "k"])
        await memory.close()
        return found

    assert asyncio.run(main()) == {"log": [1], "k": 2}


def test_a_server_names_what_is_wrong_with_a_transaction(stores):
    import json
    import urllib.error
    import urllib.request

    with stores["server"]("wrong") as memory:
        for body, reason in (
            ({"commands": 1}, "commands is a list of writes, not 1"),
            ({"commands": []}, "commands is an empty list"),
            (
                {"commands": [{"verb": "set_quota", "key": "k"}]},
                "commands[0] is an object with a verb, one of set, delete",
            ),
            ({"commands": [{"verb": "pop", "key": "k", "n": -1}]}, "n is between 0 and"),
            ({"commands": [{"verb": "incr", "key": "k", "by": "1"}]}, "by is a finite number"),
            (
                {"commands": [{"verb": "set", "key": "k", "value": 1, "if_version": "1"}]},
                "if_version is a whole number",
            ),
            ({"commands": [{"verb": "set", "key": "k"}]}, 'commands[0] lacks the field "value"'),
            ({"commands": [{"verb": "set", "key": "k", "value": 1, "x": 1}]}, "commands[0] has an unknown field 'x'"),
            ({"commands": [{"verb": "remember", "content": "c", "x": 1}]}, "commands[0] has an unknown field 'x'"),
            ({"commands": [{"verb": "append", "key": "k", "items": 1}]}, "items is a list"),
            ({"commands": [{"verb": "delete", "key": ""}]}, "commands[0]: a key"),
            ({"commands": [{"verb": "incr", "key": "k"}, {"verb": "incr", "key": 5}]}, "commands[1]: a key is text"),
        ):
            request = urllib.request.Request(
                f"{memory.location}/v1/namespaces/wrong/transaction",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with pytest.raises(urllib.error.HTTPError) as raised:
                urllib.request.urlopen(request)
            assert raised.value.code == 400
            assert reason in json.loads(raised.value.read())["detail"]


def test_a_transaction_that_fails_names_the_command_and_keeps_the_kind_of_the_error(stores):
    for open_memory in stores.values():
        with open_memory("named") as memory:
            memory.set("text", "x")
            for error, status, number, fail in (
                (Conflict, 409, 1, lambda t: t.append("text", 1)),
                (Conflict, 412, 1, lambda t: t.set("text", 1, if_version=99)),
                (InvalidInput, 400, 2, lambda t: (t.set("n", 1e308), t.incr("n", 1e308))),
            ):
                with pytest.raises(error, match=rf"^commands\[{number}\]: ") as raised, memory.transaction() as t:
                    t.set("k", 1)
                    fail(t)
                assert (type(raised.value), raised.value.status) == (error, status)
            assert dict(memory.items()) == {"text": "x"}


def test_a_write_outside_of_the_block_is_refused(stores):
    for memory in (stores["embedded"]("late"), stores["server"]("late")):
        with memory.transaction() as t:
            t.set("k", 1)
        for late in (t, memory.transaction()):
            for write in (lambda t: t.set("k", 2), lambda t: t.append("l", 1), lambda t: t.remember("x")):
                with pytest.raises(InvalidInput, match="inside of it"):
                    write(late)
        assert dict(memory.items()) == {"k": 1}
        memory.close()


def test_a_transaction_has_one_block(stores):
    for where in ("embedded", "server"):
        with stores[where]("again") as memory:
            t = memory.transaction()
            with t:
                t.append("log", 1)
            failed = memory.transaction()
            with pytest.raises(RuntimeError), failed:
                failed.append("log", "of a failed block")
                raise RuntimeError
            for used in (t, failed):
                with (
                    pytest.raises(InvalidInput, match=r"has one block; start another with memory\.transaction\(\)"),
                    used,
                ):
                    used.append("log", 2)
            assert memory["log"] == [1]


def test_a_transaction_writes_nothing_after_its_memory_is_closed(stores):
    for open_memory in stores.values():
        memory = open_memory("closed")
        t = memory.transaction()
        memory.close()
        with pytest.raises(Unavailable, match="this Memory is closed"), t:
            t.set("k", 1)
        with open_memory("closed") as again:
            assert "k" not in again


def test_a_transaction_without_writes_has_no_results(stores):
    for where in ("embedded", "server"):
        with stores[where]("empty") as memory:
            with memory.transaction() as t:
                assert t.results is None
            assert t.results == []
