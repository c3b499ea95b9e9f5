"""Watching a namespace, on a file and on a server."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time

import pytest

from harness import clean_environment, eventually, fresh_name, serving
from scrubjay import AsyncMemory, InvalidInput, Memory, QuotaExceeded, Unavailable
from scrubjay.async_memory import LOOK_SECONDS
from scrubjay.commands import CHANGES
from scrubjay.http import HttpExecutor
from scrubjay.local import LocalExecutor
from scrubjay.store.pool import MAX_WATCHER_CONNECTIONS
from scrubjay.threads import MAX_THREADS


def test_a_watcher_sees_what_happens_from_its_call_on(open_memory):
    memory = open_memory()
    memory.set("before", 1)
    watch = memory.watch(timeout=60)
    memory.set("k", 1)
    open_memory().set("elsewhere", 1)
    memory.append("l", "x")
    memory.delete("k")
    seen = [next(watch) for _ in range(3)]
    assert [(change.verb, change.key) for change in seen] == [("set", "k"), ("append", "l"), ("delete", "k")]
    assert {change.namespace for change in seen} == {memory.namespace}
    assert [change.id for change in seen] == sorted(change.id for change in seen)


def test_a_watcher_goes_on_after_the_change_it_saw_last(open_memory):
    memory = open_memory()
    watch = memory.watch(timeout=60)
    for n in range(5):
        memory.set(f"k{n}", n)
    last = [next(watch) for _ in range(2)][-1]
    again = list(memory.watch(after=last.id, timeout=0.2))
    assert [change.key for change in again] == ["k2", "k3", "k4"]


def test_a_watch_that_is_read_after_its_timeout_has_what_changed_meanwhile(open_memory):
    memory = open_memory()
    watch = memory.watch(timeout=0.01)
    memory.set("k", 1)
    time.sleep(0.02)
    assert [change.key for change in watch] == ["k"]


def test_a_prefix_keeps_to_its_keys_and_to_what_concerns_all(open_memory):
    memory = open_memory()
    watch = memory.watch("user:", timeout=0.3)
    memory.set("user:1", 1)
    memory.set("other", 1)
    memory.clear()
    assert [(change.verb, change.key) for change in watch] == [("set", "user:1"), ("clear", "")]


def test_a_change_of_another_thread_wakes_the_watcher(open_memory):
    memory = open_memory()
    watch = memory.watch(timeout=120)
    timer = threading.Timer(0.3, memory.set, ("late", 1))
    timer.start()
    assert next(watch).key == "late"
    timer.join()


def test_closing_the_memory_ends_its_watch(open_memory, monkeypatch):
    monkeypatch.setattr("scrubjay.watch.WAIT_SECONDS", 0.2)  # a request that waits for changes is not cut off
    memory = open_memory()
    watch = memory.watch()
    timer = threading.Timer(0.1, memory.close)
    timer.start()
    with pytest.raises(Unavailable, match="this Memory is closed"):
        next(watch)
    timer.join()


def test_a_change_of_another_process_wakes_the_watcher(open_memory):
    memory = open_memory()
    watch = memory.watch(timeout=120)
    program = "import sys; from scrubjay import Memory; Memory(sys.argv[1], **eval(sys.argv[2])).set('far', 1)"
    subprocess.run(
        [sys.executable, "-c", program, memory.namespace, repr(open_memory.where)],
        check=True,
        timeout=60,
        env=clean_environment(),
    )
    assert next(watch).key == "far"


def test_watching_ends_when_nothing_happens_for_the_time_given(open_memory):
    assert list(open_memory().watch(timeout=0.1)) == []


def test_wrong_questions_are_refused(open_memory):
    memory = open_memory()
    for wrong in ({"after": -1}, {"after": "x"}, {"timeout": 0}, {"prefix": 5}):
        with pytest.raises(InvalidInput):
            memory.watch(**wrong)


def test_awaited_watching_sees_the_same(open_memory):
    async def watch_some() -> list[str]:
        memory = AsyncMemory(fresh_name(), **open_memory.where)
        first = asyncio.create_task(anext(memory.watch(timeout=120)))
        while not first.done():
            await memory.incr("k")
        again = memory.watch(after=first.result().id, timeout=0.5)
        await memory.append("l", 1)
        seen = [change.verb async for change in again if change.verb != "incr"]
        assert [change async for change in memory.watch(timeout=0.2)] == []
        await memory.close()
        return seen

    assert asyncio.run(watch_some()) == ["append"]


def test_an_awaited_watch_misses_nothing_between_its_start_and_the_iteration(open_memory):
    async def watch_some() -> list[str]:
        async with AsyncMemory(fresh_name(), **open_memory.where) as memory:
            changes = await memory.watch(timeout=0.2)
            await memory.set("k", 1)
            await memory.delete("k")
            return [change.verb async for change in changes]

    assert asyncio.run(watch_some()) == ["set", "delete"]


def test_an_awaited_watch_is_a_long_poll(open_memory, monkeypatch):
    made = HttpExecutor if "url" in open_memory.where else LocalExecutor
    waits, run = [], made.run

    def counted(executor, command, *key):
        if command.verb is CHANGES:
            waits.append(command.argument("wait"))
        return run(executor, command, *key)

    async def watch_one() -> None:
        async with AsyncMemory(fresh_name(), **open_memory.where) as memory:
            step = asyncio.create_task(anext(memory.watch()))
            await asyncio.to_thread(eventually, lambda: len(waits) > 1)
            await memory.set("k", 1)
            assert (await step).key == "k"

    monkeypatch.setattr(made, "run", counted)
    asyncio.run(watch_one())
    assert waits == [0, *[LOOK_SECONDS] * (len(waits) - 1)]


def test_idle_awaited_watches_leave_the_threads_to_other_calls(open_memory):
    async def watch_many() -> None:
        async with AsyncMemory(fresh_name(), **open_memory.where) as memory:
            watches = [await memory.watch() for _ in range(40)]
            steps = [asyncio.create_task(anext(watch)) for watch in watches]
            await asyncio.sleep(0)
            await memory.set("k", 1)
            assert {change.key for change in await asyncio.gather(*steps)} == {"k"}

    asyncio.run(watch_many())


def test_many_watchers_of_a_file_share_few_connections(tmp_path):
    async def watch_many() -> None:
        async with AsyncMemory("ns", path=tmp_path / "db", durability="fast") as memory:
            steps = [asyncio.create_task(anext(await memory.watch())) for _ in range(100)]
            await asyncio.sleep(0)
            await memory.set("k", 1)
            await asyncio.gather(*steps)
            store = memory._memory._executor._store
            assert len(store._opened) <= MAX_THREADS + MAX_WATCHER_CONNECTIONS + 1, (
                "the threads of calls and the listener, too"
            )

    asyncio.run(watch_many())


def test_a_step_after_one_that_was_cancelled_misses_nothing(open_memory):
    async def watch_some() -> list[str]:
        async with AsyncMemory(fresh_name(), **open_memory.where) as memory:
            changes, seen = await memory.watch(), []
            for key in "abc":
                step = asyncio.create_task(anext(changes))
                await asyncio.sleep(0.01)
                step.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    seen.append((await step).key)
                await memory.set(key, 1)
            return [*seen, *[(await anext(changes)).key for _ in range(3 - len(seen))]]

    assert asyncio.run(watch_some()) == ["a", "b", "c"]


def test_closing_the_memory_ends_an_awaited_watch_before_its_thread(server, monkeypatch):
    monkeypatch.setattr("scrubjay.async_memory.LOOK_SECONDS", 60.0)

    async def watch_one() -> None:
        memory = AsyncMemory(fresh_name(), url=server.url, timeout=120)
        step = asyncio.create_task(anext(await memory.watch()))
        await asyncio.to_thread(eventually, lambda: looking_threads() - before)
        await memory.close()
        with pytest.raises(Unavailable, match="this Memory is closed"):
            await step
        assert looking_threads() - before

    before = looking_threads()
    asyncio.run(watch_one())


def looking_threads() -> set[threading.Thread]:
    """Those of earlier tests may still end."""
    return {thread for thread in threading.enumerate() if thread.name == "scrubjay-watch"}


def test_awaited_watches_count_for_the_limit_of_the_server(tmp_path, monkeypatch):
    monkeypatch.setattr("scrubjay.async_memory.LOOK_SECONDS", 60.0)

    async def watch_two(url: str) -> None:
        async with AsyncMemory("ns", url=url, timeout=120) as memory:
            steps = [asyncio.create_task(anext(memory.watch())) for _ in range(2)]
            done, _ = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
            with pytest.raises(QuotaExceeded, match="1 watches open"):
                done.pop().result()
            await memory.set("k", 1)
            (left,) = [step for step in steps if not step.done()]
            assert (await left).key == "k"

    with serving(tmp_path / "db", "--max-watches", "1") as server:
        asyncio.run(watch_two(server.url))


def test_watching_goes_on_when_the_server_comes_back(tmp_path):
    with serving(tmp_path / "db") as server, Memory("ns", url=server.url) as memory:
        watch = memory.watch(timeout=120)
        memory.set("before", 1)
        assert next(watch).key == "before"
        server.stop()
        with serving(tmp_path / "db", port=server.port):
            memory.set("after", 1)
            assert next(watch).key == "after"


def test_watching_a_server_that_is_not_there_says_so(tmp_path):
    with serving(tmp_path / "db") as server:
        pass
    with Memory("ns", url=server.url) as memory, pytest.raises(Unavailable):
        memory.watch()
