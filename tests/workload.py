"""Measuring that work grows in proportion to the size of what it is about."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable

import pytest

from scrubjay import ScrubjayError

SMALL = 16_000
"""Bytes of the smaller of two documents: enough that a check takes longer than the clock's step."""
TIMES = 32
MOST = 250
"""How much more work TIMES the bytes may take: in proportion it is 32, and 1,024 if each part is compared with each. A
busy machine makes it up to four times as much for the larger document alone, which does not fit into its caches."""
ATTEMPTS = 12
"""Measurements before a test fails; with the pauses between them they take seven seconds."""


def seconds(call: Callable[[], object]) -> float:
    """The least processor time of a few calls: what else the machine does only adds to it."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(3):
            start = time.thread_time()
            with contextlib.suppress(ScrubjayError):
                call()
            best = min(best, time.thread_time() - start)
    finally:
        gc.enable()
    return best


def assert_proportional(make: Callable[[int], str], check: Callable[[str], object], start: int = SMALL) -> None:
    """Fails only if no attempt shows it: a machine that is busy slows large documents down more than small ones."""
    small, large = make(start), make(TIMES * start)
    most = MOST * len(large) / len(small) / TIMES
    least_small = least_large = float("inf")
    for attempt in range(ATTEMPTS):
        time.sleep(attempt * 0.1)
        least_small = min(least_small, seconds(lambda: check(small)))
        least_large = min(least_large, seconds(lambda: check(large)))
        if least_large < most * max(least_small, 1e-4):
            return
    pytest.fail(f"{TIMES} times the size takes more than {MOST} times the work: {small[:60]}…{small[-60:]}")
