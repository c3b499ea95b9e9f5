"""The awaited verbs, on a file and on a server."""

from __future__ import annotations

import asyncio
import inspect
import os

import pytest

from harness import fresh_name
from scrubjay import AsyncMemory, Conflict, InvalidInput, Memory


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
