# ruff: noqa: PT012 - a transaction is a block
"""Transactions: all or none, one write, the same embedded, on a server and from the queue."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import serving
from scrubjay import AsyncMemory, Conflict, InvalidInput, Memory, QuotaExceeded, ValueTooLarge
from scrubjay.commands import Command
from scrubjay.transaction import Transaction

KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.integers() | st.lists(st.integers(), max_size=3) | st.dictionaries(st.text(max_size=3), st.none())
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("update"), st.dictionaries(KEYS, VALUES | st.none())),
    st.tuples(st.just("append"), KEYS, st.integers()),
)
numbers = count()


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """How to open a namespace embedded and on a server."""
    folder = tmp_path_factory.mktemp("transactions")
    with serving(folder / "served.db", "--writes-per-day", "0", "--durability", "fast") as server:
        yield {
            "embedded": lambda name: Memory(name, path=folder / "own.db", durability="fast"),
            "server": lambda name: Memory(name, url=server.url, outbox=folder / "outbox.db"),
        }


def apply(model, verb, *arguments):
    """What a verb does to a dict; raises Conflict where Memory does."""
    if verb == "set":
        model[arguments[0]] = arguments[1]
    elif verb == "delete":
        model.pop(arguments[0], None)
    elif verb == "append":
        key, item = arguments
        if not isinstance(model.get(key, []), list):
            raise Conflict("not a list")
        model[key] = [*model.get(key, []), item]
    else:
        for key, value in arguments[0].items():
            apply(model, "delete", key) if value is None else apply(model, "set", key, value)


@pytest.mark.parametrize("where", ["embedded", "server"])
def test_a_transaction_does_what_its_verbs_do_or_nothing(stores, where):
    @settings(max_examples=60 if where == "embedded" else 25)
    @given(st.lists(st.lists(STEPS, max_size=5), max_size=4))
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
            version, length, missing, deleted, note = t.results
            assert (version, length, missing, deleted) == (1, 2, False, True)
            assert [found.id for found in memory.recall("Berlin")] == [note]


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
            t.append("log", 1)
            t.set("k", 2)
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
            ({"commands": 1}, "'commands': Input should be a valid list"),
            ({"commands": []}, "at least 1 item"),
            ({"commands": [{"verb": "incr", "key": "k"}]}, "'commands[0]': Input tag 'incr'"),
            ({"commands": [{"verb": "set", "key": "k"}]}, 'commands[0] lacks the field "value"'),
            ({"commands": [{"verb": "set", "key": "k", "value": 1, "x": 1}]}, "commands[0] has an unknown field 'x'"),
            ({"commands": [{"verb": "remember", "content": "c", "x": 1}]}, "commands[0] has an unknown field 'x'"),
            ({"commands": [{"verb": "append", "key": "k", "items": 1}]}, "items is a list"),
            ({"commands": [{"verb": "delete", "key": ""}]}, "a key"),
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
