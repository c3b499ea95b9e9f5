"""The SQLite driver under asyncio, for the server: it never blocks the event loop.

Short reads and the statements of a write run on the loop itself: at some ten microseconds each they cost less than
switching to a thread, and far less than two threads that compete for the interpreter. A thread waits for the COMMIT
with its fsync, and for the lock of another process. Writes that arrive meanwhile form the next transaction, so that
many share one fsync. Reads that may touch many rows go to aiosqlite.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

import aiosqlite

from scrubjay.errors import Unavailable
from scrubjay.store.jobs import Job
from scrubjay.store.operation import READ, WRITE, WRITES, Context, Operation, Rows, SlowQuery, Statement, WouldBlock
from scrubjay.store.sqlite.connection import BUSY_SECONDS, is_busy, roll_back
from scrubjay.store.sqlite.queries import QUERIES
from scrubjay.store.sqlite.store import SqliteStore
from scrubjay.store.sqlite.writer import MAX_BATCH

T = TypeVar("T")

SLOW_READERS = 2
"""Connections, and so threads, for slow reads."""
MAX_ROWS = 100
"""Rows that one statement may write on the event loop; more take longer than switching to a thread."""
GROUP_COMMIT_SHARE = 0.25
"""Group commit waits up to this share of the last commit's duration for more writers."""
LOCK_SECONDS = 1.0
"""Seconds that the event loop polls for the write lock of another process, before a thread waits for it."""
LOCK_POLL_SECONDS = 0.001
"""Seconds between two polls. SQLite itself waits up to 100 ms between them, so that a process which writes in a loop
would get the lock a hundred times before this one."""

PendingJob = tuple[Job[Any], "asyncio.Future[Any]"]


class AsyncStore:
    """A SqliteStore for one event loop; open it with `async with`."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self._thread = ThreadPoolExecutor(1, "scrubjay-writer")
        self._readers: asyncio.Queue[aiosqlite.Connection] = asyncio.Queue()
        self._waiting: list[PendingJob] = []
        self._draining: asyncio.Task[None] | None = None
        self._closing = False
        self._expected = 0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._writer = self.store.connect(busy_seconds=0)
        for _ in range(SLOW_READERS):
            reader = await aiosqlite.connect(self.store.uri, timeout=BUSY_SECONDS, isolation_level=None, uri=True)
            for pragma in self.store.pragmas():
                await reader.execute(pragma)
            self._readers.put_nowait(reader)
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Commit the writes in progress, then close."""
        self._closing = True
        while self._draining is not None:
            await self._draining
        self._thread.shutdown()
        self.store.discard(self._writer)
        for _ in range(SLOW_READERS):
            reader = await self._readers.get()
            await reader.close()
        self.store.close()

    async def run(self, operation: Operation[T]) -> T:
        mode = operation.mode
        if mode is READ:
            try:
                return self.run_now(operation)
            except WouldBlock:
                pass  # it is started again, with its slow statements in a thread
        elif mode in WRITES:
            return await self._write(operation)
        self.store.check_recently()
        try:
            return await (self._read(operation) if mode is READ else self._snapshot(operation))
        except sqlite3.Error as error:
            raise self.store.explained(error) from error

    answers_now = True
    """Whether reads of a few rows need no waiting."""

    def run_now(self, operation: Operation[T]) -> T:
        """Run a read in this call; raises WouldBlock if it has a slow statement."""
        return self.store.run(operation, MAX_ROWS)

    def check_ready(self) -> None:
        """Raise Unavailable if the file was moved or replaced, or if SQLite has found that it is damaged."""
        self.store.check_file_identity()
        if self.store.damage:
            raise Unavailable(self.store.damage)

    async def sweep(self) -> None:
        """Remove what has expired."""
        await self.run_in_thread(SqliteStore.sweep)

    @property
    def folder(self) -> Path | None:
        """The folder for temporary copies of the store; None when it may not be written."""
        folder = self.store.path.parent
        return folder if os.access(folder, os.W_OK) else None

    async def run_in_thread(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function with the store in a thread: for calls on the whole file, which may take minutes."""
        return await asyncio.to_thread(call, self.store, *args)

    async def _read(self, operation: Operation[T]) -> T:
        """Run slow statements in a thread, and the others on the loop."""
        statements = operation.start(self.store.context(operation))
        try:
            statement: Statement = next(statements)
            while True:
                if type(statement) is SlowQuery:
                    async with self._reader() as reader:
                        rows = await _fetch(reader, statement)
                else:
                    rows = self._fetch_on_loop(statement)
                statement = statements.send(rows)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def _fetch_on_loop(self, statement: Statement) -> Rows:
        query, params = statement
        connection = self.store.take()
        try:
            return connection.execute(QUERIES[query], params).fetchall()
        finally:
            self.store.put_back(connection)

    async def _snapshot(self, operation: Operation[T]) -> T:
        """Run all statements on one connection, in one read transaction."""
        async with self._reader() as reader:
            try:
                await reader.execute("BEGIN")
                return await _run_statements(reader, operation, self.store.context(operation))
            finally:
                # Also when no BEGIN has run yet: a task that is cancelled leaves it in aiosqlite's queue before this.
                await reader.rollback()

    @contextlib.asynccontextmanager
    async def _reader(self) -> Any:
        reader = await self._readers.get()
        try:
            yield reader
        finally:
            self._readers.put_nowait(reader)

    async def _write(self, operation: Operation[T]) -> T:
        if self._closing:
            raise Unavailable("the server is shutting down; try again in a moment")
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append((Job(operation), future))
        if self._draining is None:
            self._draining = self._loop.create_task(self._drain())
        elif len(self._waiting) == self._expected:
            _wake(self._gathered)
        return await future

    async def _drain(self) -> None:
        """Commit the writes that wait, batch after batch."""
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                started = self._loop.time()
                await self._commit([job for job, _ in batch])
                _report(batch)
                if len(batch) > 1:
                    await self._gather(
                        len(batch) + len(self._waiting), (self._loop.time() - started) * GROUP_COMMIT_SHARE
                    )
        finally:
            self._draining = None

    async def _gather(self, expected: int, seconds: float) -> None:
        """Wait for the next writes of the clients that just got their responses.

        Without this they arrive while the next commit is running, and the writers split into two halves that wait for
        each other: half as many share an fsync.
        """
        self._expected, self._gathered = expected, self._loop.create_future()
        timer = self._loop.call_later(seconds, _wake, self._gathered)
        await self._gathered
        timer.cancel()
        self._expected = 0

    async def _commit(self, jobs: list[Job[Any]]) -> None:
        """Commit; whatever goes wrong, every job has an outcome."""
        try:
            await self._try_commit(jobs)
        except Exception as error:  # noqa: BLE001 - no request may wait forever
            for job in jobs:
                job.error = self.store.explained(error) if isinstance(error, sqlite3.Error) else error

    async def _try_commit(self, jobs: list[Job[Any]]) -> None:
        """Run the jobs on the loop and only the COMMIT in the thread; if that is not possible, all in the thread."""
        self.store.check_file_identity()
        if all(job.operation.mode is WRITE for job in jobs) and await self._begin() and self._attempt_on_loop(jobs):
            try:
                await self._in_writer_thread(self._writer.execute, "COMMIT")
            except sqlite3.Error:
                roll_back(self._writer)
            else:
                self.store.check_file_identity()  # a file that was deleted meanwhile has taken the batch with it
                return
        await self._in_writer_thread(self.store.writer.commit, jobs)

    async def _begin(self) -> bool:
        """Take the write lock; False when another process has it for longer than LOCK_SECONDS."""
        give_up_at = self._loop.time() + LOCK_SECONDS
        has_turn = False
        try:
            while self._loop.time() <= give_up_at:
                has_turn = has_turn or self.store.turnstile.try_enter()
                if self._try_begin():
                    return True
                await asyncio.sleep(LOCK_POLL_SECONDS)
        except sqlite3.Error:  # the thread meets it again
            pass
        finally:
            if has_turn:
                self.store.turnstile.leave()
        return False

    def _try_begin(self) -> bool:
        """Take the write lock, if it is free."""
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if is_busy(error):
                return False
            raise
        return True

    def _attempt_on_loop(self, jobs: list[Job[Any]]) -> bool:
        """Run the batch on the loop up to its COMMIT; False, and nothing done, if it would block."""
        try:
            if self.store.writer.attempt(self._writer, jobs, MAX_ROWS):
                return True
        except Exception:  # noqa: BLE001, S110 - the thread meets it again, and assigns it to a job
            pass
        roll_back(self._writer)
        return False

    async def _in_writer_thread(self, call: Callable[..., Any], *args: Any) -> None:
        await self._loop.run_in_executor(self._thread, call, *args)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _report(batch: list[PendingJob]) -> None:
    """Give each waiting request its outcome; one that was cancelled needs none."""
    for job, future in batch:
        if future.done():
            continue
        if job.error is not None:
            future.set_exception(job.error)
        else:
            future.set_result(job.result)


async def _fetch(reader: aiosqlite.Connection, statement: Statement) -> Rows:
    query, params = statement
    return list(await reader.execute_fetchall(QUERIES[query], params))  # type: ignore[arg-type]


async def _run_statements(reader: aiosqlite.Connection, operation: Operation[T], context: Context) -> T:
    statements = operation.start(context)
    try:
        statement: Statement = next(statements)
        while True:
            statement = statements.send(await _fetch(reader, statement))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
