"""Group commit: writes that wait at the same time share one transaction, and so one fsync.

The thread that gets the lock commits the writes of all threads in the queue; a single thread pays nothing for it.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from scrubjay.errors import ScrubjayError, Unavailable
from scrubjay.store.jobs import Batch, Job, first_jobs, remove_done, start_batch
from scrubjay.store.operation import ERASE, Context, Operation
from scrubjay.store.sqlite.connection import Connections, is_busy, roll_back, run_statements

T = TypeVar("T")

MAX_BATCH = 256
"""Operations in one transaction: few enough that the writers of other processes get their turn."""


class Writer:
    """The queue of writes to one file, and its commits."""

    def __init__(
        self,
        connections: Connections,
        context_of: Callable[[Operation[Any]], Context],
        empty_log: Callable[[sqlite3.Connection], None],
    ) -> None:
        self._connections = connections
        self._context_of = context_of
        self._empty_log = empty_log
        self._jobs: deque[Job[Any]] = deque()
        self.lock = threading.Lock()
        """Held by the thread that commits."""

    def run(self, operation: Operation[T]) -> Job[T]:
        """Run an operation, in a transaction with those of other threads."""
        job = Job(operation)
        self._jobs.append(job)
        try:
            while not job.batch.is_done:
                with self.lock:
                    if not job.batch.is_done:
                        self._commit_queue()
        except BaseException:  # Ctrl-C while waiting: a write that was not acknowledged must not happen later
            with contextlib.suppress(ValueError):
                self._jobs.remove(job)
            raise
        if operation.mode is ERASE:
            with self.lock:  # the thread that committed is emptying the log
                pass
        return job

    def _commit_queue(self) -> None:
        """Commit the queue, with the lock held. Jobs leave it only when they are done."""
        remove_done(self._jobs)
        try:
            self.commit(first_jobs(self._jobs, MAX_BATCH))
        finally:
            remove_done(self._jobs)

    def commit(self, jobs: list[Job[Any]]) -> None:
        """Run write operations in one transaction; each has its own outcome, and none happens in part."""
        batch = start_batch(jobs)
        connection = None
        try:
            connection = self._connections.take()
            self._begin(connection)
            self._connections.check_before_write(connection)
            if self.attempt(connection, jobs):
                self._end(connection, jobs, batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome of these jobs
            # Each job alone would wait for the same lock once more.
            if len(jobs) == 1 or is_busy(error):
                for job in jobs:
                    job.error = self._connections.explained(error) if isinstance(error, sqlite3.Error) else error
                batch.is_done = True
        finally:
            if connection is not None:
                self._release(connection, jobs if batch.is_done else [])
        if not batch.is_done and len(jobs) == 1:  # refused after it had written something
            batch.is_done = True
        elif not batch.is_done:  # one of them made the transaction fail: each gets its own
            for job in jobs:
                self.commit([job])

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Take the write lock, in turn with other processes."""
        turnstile = self._connections.turnstile
        try:
            turnstile.enter()
            connection.execute("BEGIN IMMEDIATE")
        finally:
            turnstile.leave()

    def attempt(self, connection: sqlite3.Connection, jobs: list[Job[Any]], max_rows: float = math.inf) -> bool:
        """Run jobs in the open transaction; False when one was refused after it had written something."""
        for job in jobs:
            job.error, changes = None, connection.total_changes
            is_wanted = job.operation.is_wanted
            if is_wanted is not None and not is_wanted():
                job.error = Unavailable("the client has closed the connection, so nothing was written")
                continue
            try:
                job.result = run_statements(connection, job.operation, self._context_of(job.operation), max_rows)
            except ScrubjayError as error:
                job.error = error
                if connection.total_changes != changes:
                    return False
        return True

    def _end(self, connection: sqlite3.Connection, jobs: list[Job[Any]], batch: Batch) -> None:
        """COMMIT, and note it even when Ctrl-C arrives at its end.

        A write is only acknowledged if the file is at its path afterwards: one that was deleted just before has taken
        the write with it.
        """
        failed = False
        try:
            connection.execute("COMMIT")
        except sqlite3.Error:
            failed = True
            raise
        finally:
            try:
                if not failed and not self._connections.has_file(connection):
                    for job in jobs:
                        job.error = job.error or Unavailable(
                            f"{self._connections.describe_loss()}; this write went into the file that was open"
                        )
            finally:
                batch.is_done = not failed and not connection.in_transaction

    def _release(self, connection: sqlite3.Connection, done: list[Job[Any]]) -> None:
        try:
            roll_back(connection)
            for job in done:
                if job.operation.mode is ERASE:
                    self._empty_log(connection)
                    break
        finally:
            self._connections.put_back(connection)
