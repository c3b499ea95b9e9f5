"""The driver under the server: SQLite without ever making the event loop wait.

Point reads and the statements of a write run right on the loop: at some ten microseconds each they
cost less than the hop to a thread, and far less than two threads quarrelling over the interpreter.
What waits goes to a thread: the COMMIT with its fsync, another process's lock. Whatever writes
arrive meanwhile form the next transaction, so that many share one fsync.
Reads that may touch many rows go to aiosqlite.
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

from .operation import READ, WRITE, WRITES, Context, Long, Operation, Rows, Statement
from .sqlite import BUSY_SECONDS, MAX_BATCH, Job, SqliteStore, roll_back

T = TypeVar("T")

LONG_READERS = 2
"""Connections, and so threads, for reads that take long."""

MOST_ROWS = 100
"""Rows that one statement may write on the event loop."""
PATIENCE = 0.25
"""How long a commit waits for company, in terms of how long the last one took."""

Ticket = tuple[Job[Any], "asyncio.Future[Any]"]


class AioStore:
    """A SqliteStore for one event loop; open it with `async with`."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, "scrubjay-writer")
        self._readers: asyncio.Queue[aiosqlite.Connection] = asyncio.Queue()
        self._waiting: list[Ticket] = []
        self._draining: asyncio.Task[None] | None = None
        self._closing = False
        self._expected = 0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._writer = self._store.connect(patience=0)
        for _ in range(LONG_READERS):
            reader = await aiosqlite.connect(self._store.uri, timeout=BUSY_SECONDS, isolation_level=None, uri=True)
            for pragma in self._store.pragmas():
                await reader.execute(pragma)
            self._readers.put_nowait(reader)
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Finish and commit what is in flight, then close."""
        self._closing = True
        while self._draining is not None:
            await self._draining
        self._thread.shutdown()
        self._writer.close()
        for _ in range(LONG_READERS):
            reader = await self._readers.get()
            await reader.close()
        self._store.close()

    async def run(self, operation: Operation[T]) -> T:
        if operation.mode in WRITES:
            return await self._write(operation)
        try:
            if operation.mode is READ:
                return await self._read(operation)
            return await self._snapshot(operation)
        except sqlite3.Error as error:
            raise self._store.explained(error) from error

    def read_now(self, operation: Operation[T]) -> T:
        """Run a read of a few rows right here, without a round of the loop."""
        return self._store.run(operation)

    def check_place(self) -> None:
        self._store.check_place()

    async def sweep(self) -> None:
        """Remove what has expired."""
        await self.apart(SqliteStore.sweep)

    @property
    def folder(self) -> Path | None:
        """Where there is room for copies of what is stored; None where that may not be written to."""
        folder = self._store.path.parent
        return folder if os.access(folder, os.W_OK) else None

    async def apart(self, call: Callable[..., T], *args: Any) -> T:
        """A call on the store that concerns the whole file, or takes minutes, on a thread of its own."""
        return await asyncio.to_thread(call, self._store, *args)

    async def _read(self, operation: Operation[T]) -> T:
        """Statement by statement, each where it belongs."""
        steps = operation.start(self._store.context())
        try:
            statement: Statement = next(steps)
            while True:
                if type(statement) is Long:
                    async with self._reader() as reader:
                        rows = await _fetch(reader, statement)
                else:
                    rows = self._fetch_here(statement)
                statement = steps.send(rows)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def _fetch_here(self, statement: Statement) -> Rows:
        connection = self._store.take()
        try:
            return connection.execute(*statement).fetchall()
        finally:
            self._store.put_back(connection)

    async def _snapshot(self, operation: Operation[T]) -> T:
        """All statements on one connection, in one read transaction."""
        async with self._reader() as reader:
            try:
                await reader.execute("BEGIN")
                return await _steps_through(reader, operation, self._store.context())
            finally:
                # Also when there is none yet: whoever is cancelled leaves its BEGIN in the line before this.
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
        """Commit what is waiting, batch after batch."""
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                started = self._loop.time()
                await self._settle([job for job, _ in batch])
                _report(batch)
                if len(batch) > 1:
                    await self._gather(len(batch) + len(self._waiting), (self._loop.time() - started) * PATIENCE)
        finally:
            self._draining = None

    async def _gather(self, expected: int, seconds: float) -> None:
        """Wait a little for those who were just answered to come back.

        Without this they find the next commit under way, and the writers fall into two halves that
        wait for each other: half as many share an fsync.
        """
        self._expected, self._gathered = expected, self._loop.create_future()
        timer = self._loop.call_later(seconds, _wake, self._gathered)
        await self._gathered
        timer.cancel()
        self._expected = 0

    async def _settle(self, jobs: list[Job[Any]]) -> None:
        """Commit; whatever goes wrong with that, every job has an outcome."""
        try:
            await self._commit(jobs)
        except Exception as error:  # noqa: BLE001 - nobody may be left waiting
            for job in jobs:
                job.error = self._store.explained(error) if isinstance(error, sqlite3.Error) else error

    async def _commit(self, jobs: list[Job[Any]]) -> None:
        """Try it here, and only the COMMIT on the thread; whatever comes in the way takes the patient path."""
        self.check_place()
        if all(job.operation.mode is WRITE for job in jobs) and self._attempt_here(jobs):
            try:
                await self._on_thread(self._writer.execute, "COMMIT")
            except sqlite3.Error:
                roll_back(self._writer)
            else:
                return
        await self._on_thread(self._store.commit, jobs)

    def _attempt_here(self, jobs: list[Job[Any]]) -> bool:
        """Run the batch on the loop up to its COMMIT; False, and nothing done, if that cannot be done at once."""
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            if self._store.attempt(self._writer, jobs, MOST_ROWS):
                return True
        except Exception:  # noqa: BLE001, S110 - the patient path meets it again and says whose it is
            pass
        roll_back(self._writer)
        return False

    async def _on_thread(self, call: Callable[..., Any], *args: Any) -> None:
        await self._loop.run_in_executor(self._thread, call, *args)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _report(batch: list[Ticket]) -> None:
    """Hand each waiting request its outcome; one whose client has gone needs none."""
    for job, future in batch:
        if future.done():
            continue
        if job.error is not None:
            future.set_exception(job.error)
        else:
            future.set_result(job.result)


async def _fetch(reader: aiosqlite.Connection, statement: Statement) -> Rows:
    return list(await reader.execute_fetchall(*statement))  # type: ignore[arg-type]


async def _steps_through(reader: aiosqlite.Connection, operation: Operation[T], context: Context) -> T:
    steps = operation.start(context)
    try:
        statement: Statement = next(steps)
        while True:
            statement = steps.send(await _fetch(reader, statement))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
