"""Watching a namespace, on a file and on a server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from harness import clean_environment, fresh_name, serving
from scrubjay import AsyncMemory, InvalidInput, Memory, Unavailable


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
