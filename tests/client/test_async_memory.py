"""The awaited verbs, on a file and on a server."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import threading
import time

import pytest

from harness import eventually, fresh_name
from scrubjay import AsyncMemory, Conflict, InvalidInput, Memory, Unavailable
from scrubjay.threads import MAX_THREADS
from scrubjay.transport import PooledTransport


@pytest.fixture
def run(open_memory):
    """Run a coroutine function with an AsyncMemory on either end."""

    def run_(work):
        async def inside():
            async with AsyncMemory(fresh_name(), **open_memory.where) as memory:
                return await work(memory)

        return asyncio.run(inside())

    return run_


def test_every_verb_can_be_awaited(run):
    async def work(memory):
        assert await memory.set("k", {"a": 1}) == 1
        assert await memory.get("k") == {"a": 1}
        assert await memory.get("nope", 5) == 5
        assert (await memory.item("k")).version == 1
        assert await memory.contains("k")
        assert not await memory.contains("nope")
        assert await memory.append("l", 1, 2) == 2
        assert await memory.tail("l", 1) == [2]
        assert await memory.incr("n", 3) == 3
        await memory.update({"x": 1, "y": None})
        assert await memory.get_many(["x", "y"]) == {"x": 1}
        assert await memory.keys() == ["k", "l", "n", "x"]
        assert await memory.count() == 4
        assert (await memory.usage()).writes_today == 4
        assert (await memory.set_quota(writes_per_day=9)).writes_per_day == 9
        assert memory.namespace in await memory.namespaces()
        assert await memory.delete("k")
        assert await memory.clear() == 3
        assert memory.location in repr(memory)
        assert memory.namespace in repr(memory)
        with pytest.raises(InvalidInput):
            await memory.set("k", {1: 2})
        await memory.set("k", "text")
        with pytest.raises(Conflict):
            await memory.append("k", 1)

    run(work)


def test_wrong_arguments_are_refused_before_the_iteration(run):
    async def work(memory):
        for verb in (memory.items, memory.values, memory.scan):
            with pytest.raises(InvalidInput):
                verb(limit=-1)

    run(work)


def test_a_transaction_may_be_named_before_its_block(run):
    async def work(memory):
        t = memory.transaction()
        async with t:
            t.append("log", 1)
        assert t.results == [1]
        with pytest.raises(TypeError), memory.transaction():
            pass

    run(work)


def test_many_at_once_lose_nothing(run):
    async def work(memory):
        lengths = await asyncio.gather(*(memory.append("l", i) for i in range(200)))
        assert sorted(lengths) == list(range(1, 201))
        assert sorted(await memory.get("l")) == list(range(200))

    run(work)


def test_both_have_the_same_verbs_with_the_same_signatures():
    """What Python cannot await (in, len, iteration) has a word of its own."""
    verbs = lambda of: {n: inspect.signature(f) for n, f in vars(of).items() if inspect.isfunction(f) and n[0] != "_"}  # noqa: E731
    sync, awaited = verbs(Memory), verbs(AsyncMemory)
    assert set(awaited) - set(sync) == {"contains", "count"}
    assert set(sync) <= set(awaited)
    for name, signature in sync.items():
        parameters = dict(awaited[name].parameters)
        if name == "distill":  # whose model may be async
            parameters["model"] = signature.parameters["model"]
        assert parameters == signature.parameters
    assert inspect.signature(Memory) == inspect.signature(AsyncMemory)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_forked_child_has_threads_of_its_own(run, open_memory):
    namespace = fresh_name()
    memory = AsyncMemory(namespace, **open_memory.where)
    asyncio.run(memory.set("k", 1))
    child = os.fork()
    if not child:
        os._exit(asyncio.run(memory.incr("k")))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    asyncio.run(memory.close())


@pytest.fixture
def silent():
    """A server that takes connections and answers nothing, until it is closed."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield listener


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_server_that_does_not_answer_holds_up_no_other_target(silent, tmp_path):
    async def work():
        url = url_of(silent)
        async with AsyncMemory("ns", path=tmp_path / "db") as file:
            calls = [asyncio.create_task(AsyncMemory(f"ns{i}", url=url).get("k")) for i in range(MAX_THREADS)]
            await asyncio.sleep(0)
            await file.set("k", 1)
            assert await file.get("k") == 1
            assert not any(call.done() for call in calls)
            silent.close()
            await asyncio.wait(calls)
            assert all(isinstance(call.exception(), Unavailable) for call in calls)

    asyncio.run(work())


@pytest.mark.parametrize("strict", [False, True])
def test_calls_to_a_silent_server_do_not_wait_for_it_one_after_the_other(silent, tmp_path, monkeypatch, strict):
    sent, send = [], PooledTransport.send

    def counted(transport, method, *rest):
        if threading.current_thread().name != "scrubjay-outbox":
            sent.append(method)
        return send(transport, method, *rest)

    async def work():
        url, outbox = url_of(silent), tmp_path / "outbox"
        async with AsyncMemory("ns", url=url, timeout=2, strict=strict, outbox=outbox) as memory:
            found = await asyncio.gather(*(memory.get("k") for _ in range(64)), return_exceptions=True)
            assert {type(error) for error in found} == {Unavailable}
            assert sum("not sent: it waited for one of 16 threads" in str(error) for error in found) == 48
            written = await asyncio.gather(*(memory.set("k", n) for n in range(64)), return_exceptions=True)
            if strict:
                assert all(isinstance(error, Unavailable) for error in written)
            else:
                assert written == [None] * 64
                assert len(await memory.pending()) == 64

    monkeypatch.setattr(PooledTransport, "send", counted)
    asyncio.run(work())
    assert sent.count("GET") == MAX_THREADS


def test_calls_to_a_slow_target_are_all_sent(monkeypatch, tmp_path):
    """They wait longer than the timeout for a thread, and each is answered."""

    async def work():
        async with AsyncMemory("ns", path=tmp_path / "db") as memory:
            memory._timeout = 0.05
            monkeypatch.setattr(memory._memory, "get", lambda *_: time.sleep(0.01) or 1)
            assert await asyncio.gather(*(memory.get("k") for _ in range(300))) == [1] * 300

    asyncio.run(work())


def test_a_failure_before_the_last_answer_holds_up_no_call(monkeypatch, tmp_path):
    """A call that waits for slow writes is sent, though another one failed before."""

    def fail(*_):
        raise Unavailable("stopped")

    async def work():
        async with AsyncMemory("ns", path=tmp_path / "db") as memory:
            memory._timeout = 0.05
            with monkeypatch.context() as patch:
                patch.setattr(memory._memory, "get", fail)
                with pytest.raises(Unavailable, match="stopped"):
                    await memory.get("k")
            assert await memory.get("k") is None
            monkeypatch.setattr(memory._memory, "set", lambda *_, **__: time.sleep(0.1))
            writes = [asyncio.create_task(memory.set("k", 1)) for _ in range(MAX_THREADS)]
            await asyncio.sleep(0)
            assert await memory.get("k") is None
            await asyncio.gather(*writes)

    asyncio.run(work())


def test_the_threads_of_a_target_end_with_its_last_memory(tmp_path):
    async def work():
        for number in range(3):
            async with AsyncMemory("ns", path=tmp_path / str(number)) as memory:
                await memory.set("k", 1)

    before = calling_threads()
    asyncio.run(work())
    eventually(lambda: not calling_threads() - before)


def calling_threads() -> set[int | None]:
    return {thread.ident for thread in threading.enumerate() if thread.name.startswith("scrubjay_")}
