"""What adapters share: a write on a thread comes to its end, whatever becomes of its caller."""

from __future__ import annotations

import asyncio
import threading

import pytest

from scrubjay.adapters._framework import write
from scrubjay.async_memory import submit

THREADS = 16


@pytest.mark.parametrize("has_started", [True, False])
@pytest.mark.parametrize("cancellations", [1, 3])
@pytest.mark.parametrize("fails", [True, False])
def test_a_cancelled_caller_goes_on_after_the_write_has_happened_once(has_started, cancellations, fails):
    gate, started, done = threading.Event(), threading.Event(), []

    def verb() -> None:
        started.set()
        gate.wait(100)
        done.append("written")
        if fails:
            raise ValueError

    async def use() -> None:
        others = [] if has_started else [submit(gate.wait, 100) for _ in range(THREADS)]
        task = asyncio.ensure_future(write(verb))
        await asyncio.sleep(0)
        if has_started:
            await asyncio.to_thread(started.wait, 100)
        for _ in range(cancellations):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["written"]
        assert all(other.result(100) for other in others)

    asyncio.run(use())


def test_a_result_and_an_error_reach_the_caller():
    assert asyncio.run(write(lambda: 5)) == 5
    with pytest.raises(ZeroDivisionError):
        asyncio.run(write(lambda: 1 // 0))
