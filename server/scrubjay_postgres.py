"""The parts of the service that differ when its data is in PostgreSQL: cached api keys, and waking watchers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from scrubjay.errors import Unavailable
from scrubjay.store import api_keys, changes
from scrubjay.store.api_keys import Access
from scrubjay.store.postgres.asyncio import AsyncPostgresStore
from scrubjay.store.postgres.listener import FALLBACK_SECONDS
from scrubjay.store.postgres.queries import ADMINISTRATION
from scrubjay_auth import MAX_CACHED_KEYS

KEY_SECONDS = 1.0
"""Seconds for which a key is not read again. A key that is revoked is forgotten at once on the server that revokes it,
and on the others when the notification arrives: this is the longest that they go on without it."""


class SharedKeyCache:
    """What each api key allows, read from PostgreSQL once a second, and again when any server has changed a key.

    Requests with the same key wait for the same read; other requests go on meanwhile.
    """

    def __init__(self, store: AsyncPostgresStore) -> None:
        self._store = store
        self._listener = store.store.listener
        self._known: dict[str | None, tuple[Access, float]] = {}
        self._reading: dict[str | None, asyncio.Task[Access | None]] = {}
        self._failure: tuple[Unavailable, float] | None = None
        self._token = self._listener.token_of(ADMINISTRATION)
        self._listener.subscribe(self._forget)

    def close(self) -> None:
        self._listener.unsubscribe(self._forget)

    async def find(self, apikey: str | None) -> Access | None:
        """What a request with this key may do; None if nothing."""
        now = time.monotonic()
        access, read_at = self._known.get(apikey, (None, 0.0))
        if access is not None and now - read_at <= KEY_SECONDS:
            return access
        if self._failure and now - self._failure[1] < KEY_SECONDS:
            raise self._failure[0]  # while the database does not answer, only one request a second waits for it
        reading = self._reading.get(apikey)
        if reading is None:
            reading = self._reading[apikey] = asyncio.create_task(self._read(apikey, now))
            reading.add_done_callback(_retrieve)
        return await asyncio.shield(reading)

    async def _read(self, apikey: str | None, now: float) -> Access | None:
        """Read a key, which holds for KEY_SECONDS from `now`: it may be revoked while the answer is on its way."""
        try:
            access = await self._store.run(api_keys.admit(apikey))
        except Unavailable as error:
            self._failure = error, time.monotonic()
            raise
        finally:
            del self._reading[apikey]
        self._failure = None
        if access is not None:
            if len(self._known) >= MAX_CACHED_KEYS:
                self._known.clear()
            self._known[apikey] = access, now
        return access

    def _forget(self, token: str | None) -> None:
        if token in (None, self._token):
            self._known.clear()


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Look at the error of a task, which asyncio logs if every request that waited for it has been cancelled."""
    if not task.cancelled():
        task.exception()


class NotifiedWatchers:
    """Wakes the requests that watch a namespace when PostgreSQL notifies this server that it has changed."""

    def __init__(self, store: AsyncPostgresStore) -> None:
        self._store = store
        self._listener = store.store.listener
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Future[None], str] = {}
        self.closed = False
        self._listener.subscribe(self._notified)

    async def wait(self, namespace: str, cursor: int, seconds: float) -> None:
        """Return when the namespace may have changes after the cursor, or when the time is over.

        It also looks without a notification, though rarely: one may be lost with its connection.
        """
        give_up_at = time.monotonic() + seconds
        woken: asyncio.Future[None] = self._loop.create_future()
        self._waiting[woken] = self._listener.token_of(namespace)  # before the first look, so that none is missed
        try:
            while not self.closed and not woken.done() and (left := give_up_at - time.monotonic()) > 0:
                if await self._store.run(changes.last_change(namespace)) != cursor:
                    return
                await asyncio.wait([woken], timeout=min(left, FALLBACK_SECONDS))
        finally:
            del self._waiting[woken]

    def close(self) -> None:
        """Wake every request, so that the server can stop."""
        self.closed = True
        self._listener.unsubscribe(self._notified)
        self._wake(None)

    def _notified(self, token: str | None) -> None:
        """Called in the thread that listens, or in the one that has written."""
        self._loop.call_soon_threadsafe(self._wake, token)

    def _wake(self, token: Any) -> None:
        for woken, wanted in self._waiting.items():
            if token in (None, wanted) and not woken.done():
                woken.set_result(None)
