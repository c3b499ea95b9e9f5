"""The driver under the server: SQLite without ever making the event loop wait.

Writes go to one thread that runs whatever has gathered meanwhile in one transaction: one hop, one fsync.
Point reads run right on the loop: at some ten microseconds they cost less than the hop to a thread.
Reads that may touch many rows go to aiosqlite.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from typing import Any, TypeVar

import aiosqlite

from ..errors import Unavailable
from .operation import READ, WRITE, Context, Long, Operation, Rows, Statement
from .sqlite import BUSY_SECONDS, MAX_BATCH, Job, SqliteStore

T = TypeVar("T")

LONG_READERS = 2
"""Connections, and so threads, for reads that take long."""

Ticket = tuple[Job[Any], "asyncio.Future[Any]"]


class AioStore:
    """A SqliteStore for one event loop; open it with `async with`."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._queue: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._readers: asyncio.Queue[aiosqlite.Connection] = asyncio.Queue()
        self._writer: threading.Thread | None = None

    async def __aenter__(self) -> AioStore:
        self._loop = asyncio.get_running_loop()
        self._writer = threading.Thread(target=self._write_forever, name="scrubjay-writer", daemon=True)
        self._writer.start()
        for _ in range(LONG_READERS):
            reader = await aiosqlite.connect(self._store.path, timeout=BUSY_SECONDS, isolation_level=None)
            for pragma in self._store.pragmas():
                await reader.execute(pragma)
            self._readers.put_nowait(reader)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish and commit what is in flight, then close."""
        writer, self._writer = self._writer, None  # no write is taken from here on
        if writer is not None:
            self._queue.put(None)
            await asyncio.to_thread(writer.join)
        for _ in range(LONG_READERS):
            await (await self._readers.get()).close()
        self._store.close()

    async def run(self, operation: Operation[T]) -> T:
        if operation.mode is WRITE:
            return await self._write(operation)
        try:
            if operation.mode is READ:
                return await self._read(operation)
            return await self._snapshot(operation)
        except sqlite3.Error as error:
            raise self._store.explained(error) from error

    async def sweep(self) -> None:
        """Remove what has expired."""
        await asyncio.to_thread(self._store.sweep)

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
            return connection.execute(*statement).fetchall()  # type: ignore[arg-type]
        finally:
            self._store.put_back(connection)

    async def _snapshot(self, operation: Operation[T]) -> T:
        """All statements on one connection, in one read transaction."""
        async with self._reader() as reader:
            await reader.execute("BEGIN")
            try:
                return await _steps_through(reader, operation, self._store.context())
            finally:
                await reader.execute("COMMIT")

    @contextlib.asynccontextmanager
    async def _reader(self) -> Any:
        reader = await self._readers.get()
        try:
            yield reader
        finally:
            self._readers.put_nowait(reader)

    async def _write(self, operation: Operation[T]) -> T:
        if self._writer is None:
            raise Unavailable("the server is shutting down; try again in a moment")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((Job(operation), future))
        return await future

    def _write_forever(self) -> None:
        """The writer thread: takes what has gathered, commits it, reports, until it is told to stop."""
        stopping = False
        while not stopping:
            tickets = [self._queue.get()]
            while len(tickets) < MAX_BATCH and tickets[-1] is not None:
                try:
                    tickets.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            batch = [ticket for ticket in tickets if ticket is not None]
            stopping = len(batch) < len(tickets)
            if batch:
                self._store.commit([job for job, _ in batch])
                self._loop.call_soon_threadsafe(_report, batch)


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
