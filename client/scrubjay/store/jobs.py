"""Jobs of a group commit: write operations that wait, with their outcomes."""

from __future__ import annotations

import contextlib
from collections import deque
from itertools import islice
from typing import Any, Generic, TypeVar

from scrubjay.store.operation import Operation

T = TypeVar("T")


class Batch:
    """Jobs in one transaction. A single assignment ends them all, which Ctrl-C cannot interrupt halfway."""

    __slots__ = ("is_done",)

    def __init__(self) -> None:
        self.is_done = False


_NOT_STARTED = Batch()


class Job(Generic[T]):
    """A write operation with its outcome."""

    __slots__ = ("batch", "error", "operation", "result")

    def __init__(self, operation: Operation[T]) -> None:
        self.operation = operation
        self.batch = _NOT_STARTED
        self.error: Exception | None = None
        self.result: T | None = None

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


def start_batch(jobs: list[Job[Any]]) -> Batch:
    """A new batch of these jobs."""
    batch = Batch()
    for job in jobs:
        job.batch = batch
    return batch


def first_jobs(queue: deque[Job[Any]], count: int) -> list[Job[Any]]:
    """The first jobs of a queue, which are listed again if another thread adds one meanwhile."""
    while True:
        with contextlib.suppress(RuntimeError):  # the queue has changed while it was listed
            return list(islice(queue, count))


def remove_done(queue: deque[Job[Any]]) -> None:
    """Remove the jobs at the start of a queue that are done.

    A writer calls it before it takes jobs, too: Ctrl-C may have kept the thread before it from that, and a job must not
    run twice.
    """
    while queue and queue[0].batch.is_done:
        queue.popleft()
