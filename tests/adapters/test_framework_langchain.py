"""Stores and a cache for LangChain."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("langchain_core", minversion="1.7", reason="langchain-core is not installed")

from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, Generation

from scrubjay import InvalidInput, Memory, Unavailable, exact_json
from scrubjay.adapters import _large, langchain
from scrubjay.adapters.langchain import ScrubjayByteStore, ScrubjayCache, ScrubjayJsonStore


def test_bytes_and_json_come_back_as_they_were(home):
    data = bytes(range(256))
    ScrubjayByteStore().mset([("a", data), ("b", b"")])
    assert Memory("langchain-bytes").usage().writes_today == 1
    assert ScrubjayByteStore().mget(["b", "none", "a"]) == [b"", None, data]
    assert list(ScrubjayByteStore().yield_keys(prefix="a")) == ["a"]
    store = ScrubjayJsonStore()
    store.mset([("x", {"n": [1, "two"]})])
    assert store.mget(["x"]) == [{"n": [1, "two"]}]
    store.mdelete(["x"])
    assert store.mget(["x"]) == [None]
    with pytest.raises(InvalidInput):
        store.mset([("x", object())])


def test_more_than_one_call_can_carry_is_stored_in_several(home):
    store = ScrubjayByteStore()
    store.mset([(str(number), bytes(5 * 2**20)) for number in range(4)])
    assert [len(value) for value in store.mget(["0", "3"])] == [5 * 2**20] * 2


def test_more_keys_than_one_call_may_have_are_stored_read_and_deleted_in_several(home, monkeypatch):
    monkeypatch.setattr(langchain, "MAX_WRITE_ROWS", 3)
    monkeypatch.setattr(exact_json, "MAX_WRITE_ROWS", 3)
    monkeypatch.setattr(_large, "DELETED_KEYS", 3)
    store = ScrubjayJsonStore()
    keys = [str(number) for number in range(8)]
    store.mset([(key, 1) for key in keys])
    assert list(store.yield_keys()) == keys
    long = [f"{key:0>512}" for key in range(2049)]
    assert store.mget(keys + long) == [1] * 8 + [None] * 2049
    store.mdelete(keys[:7])
    assert list(store.yield_keys()) == keys[7:]


def test_answers_are_found_by_prompt_and_model(home):
    message = AIMessage("hi", tool_calls=[{"name": "t", "args": {"a": 1}, "id": "x"}])
    answers = [ChatGeneration(message=message, generation_info={"why": "test"}), Generation(text="t")]
    ScrubjayCache().update("prompt", "model", answers)
    assert ScrubjayCache().lookup("prompt", "model") == answers
    assert ScrubjayCache().lookup("promptm", "odel") is None
    (stored,) = Memory("langchain-cache").scan()
    assert stored.expires_at is None
    ScrubjayCache(ttl=60).update("prompt", "model", answers)
    (stored,) = Memory("langchain-cache").scan()
    assert stored.expires_at is not None
    assert Memory("langchain-cache").usage().writes_today == 2
    ScrubjayCache().clear()
    assert ScrubjayCache().lookup("prompt", "model") is None


def test_a_model_is_asked_once(home):
    async def ask() -> list[str]:
        model = FakeListChatModel(responses=["one", "two"], cache=ScrubjayCache())
        return [model.invoke("Hi").content, (await model.ainvoke("Hi")).content, model.invoke("Bye").content]

    assert asyncio.run(ask()) == ["one", "one", "two"]


def test_an_unreachable_server_is_not_an_empty_store(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1)
    with pytest.raises(Unavailable):
        ScrubjayByteStore(memory).mget(["a"])


def test_another_process_goes_on_after_kill_9(script):
    writer = script.start("""
        import itertools
        from scrubjay.adapters.langchain import ScrubjayByteStore
        store = ScrubjayByteStore()
        for number in itertools.count():
            store.mset([(f"{number:06}", b"%d" % number), ("last", b"%d" % number)])
            print(number, flush=True)
    """)
    seen = [int(writer.stdout.readline()) for _ in range(20)]
    writer.kill()
    writer.communicate(timeout=60)
    found = script("""
        from scrubjay.adapters.langchain import ScrubjayByteStore
        store = ScrubjayByteStore()
        keys = [key for key in store.yield_keys() if key != "last"]
        print(len(keys), store.mget(["last"])[0].decode(), *(value.decode() for value in store.mget(keys)))
    """).split()
    count, last, *values = map(int, found)
    assert values == list(range(count))
    assert last == count - 1 >= seen[-1]
