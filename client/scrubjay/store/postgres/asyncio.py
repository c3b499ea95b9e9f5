"""The PostgreSQL driver under asyncio, for the server: each operation runs in a thread.

Statements wait for the network, so none runs on the event loop. Threads cost less than psycopg's asyncio connections do
in Python, and share the commits of a namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from scrubjay.errors import Unavailable
from scrubjay.store.operation import WRITES, Operation, WouldBlock
from scrubjay.store.postgres.store import PostgresStore

T = TypeVar("T")

READERS, WRITERS = 8, 24
"""Threads, and so connections at most. Writers that wait for their namespace have no connection."""


class AsyncPostgresStore:
    """A PostgresStore for one event loop; open it with `async with`."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self._readers = ThreadPoolExecutor(READERS, "scrubjay-reader")
        self._writers = ThreadPoolExecutor(WRITERS, "scrubjay-writer")
        self._closing = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Commit the writes in progress, then close."""
        self._closing = True
        for threads in (self._writers, self._readers):
            await asyncio.to_thread(threads.shutdown)
        self.store.close()

    async def run(self, operation: Operation[T]) -> T:
        if self._closing:
            raise Unavailable("the server is shutting down; try again in a moment")
        if operation.mode in WRITES:
            return await self._loop.run_in_executor(self._writers, self.store.write, operation)
        return await self._loop.run_in_executor(self._readers, self.store.read, operation)

    def run_now(self, _operation: Operation[T]) -> T:
        raise WouldBlock

    def check_file_identity(self) -> None:
        """Do nothing: a database cannot be replaced under an open connection."""

    async def sweep(self) -> None:
        """Remove what has expired."""
        await self.run_in_thread(PostgresStore.sweep)

    @property
    def folder(self) -> Path | None:
        """The folder for temporary copies of the store: the system's."""
        return None

    async def run_in_thread(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function with the store in a thread: for calls that may take minutes."""
        return await asyncio.to_thread(call, self.store, *args)
