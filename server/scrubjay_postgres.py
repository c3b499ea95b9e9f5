"""The parts of the service that differ when its data is in PostgreSQL: cached api keys, and waking watchers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from scrubjay.errors import Unavailable
from scrubjay.store import api_keys, changes
from scrubjay.store.api_keys import Access
from scrubjay.store.postgres import PostgresStore
from scrubjay.store.postgres.asyncio import AsyncPostgresStore
from scrubjay.store.postgres.listener import FALLBACK_SECONDS
from scrubjay.store.postgres.queries import ADMINISTRATION
from scrubjay_auth import MAX_CACHED_KEYS

KEY_SECONDS = 1.0
"""Seconds for which a key is not read again. A key that is revoked is forgotten at once on the server that revokes it,
and on the others when the notification arrives: this is the longest that they go on without it."""
KEY_WAIT_SECONDS = 0.2
"""Seconds that reading a key may be tried again: the event loop waits for it."""


class SharedKeyCache:
    """What each api key allows, read from PostgreSQL once a second, and again when any server has changed a key."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._known: dict[str | None, tuple[Access, float]] = {}
        self._failure: tuple[Unavailable, float] | None = None
        self._token = store.listener.token_of(ADMINISTRATION)
        store.listener.subscribe(self._forget)

    def close(self) -> None:
        self._store.listener.unsubscribe(self._forget)

    def find(self, apikey: str | None) -> Access | None:
        """What a request with this key may do; None if nothing."""
        now = time.monotonic()
        access, read_at = self._known.get(apikey, (None, 0.0))
        if access is None or now - read_at > KEY_SECONDS:
            access = self._read(apikey, now)
            if access is not None:
                if len(self._known) >= MAX_CACHED_KEYS:
                    self._known.clear()
                self._known[apikey] = access, now
        return access

    def _read(self, apikey: str | None, now: float) -> Access | None:
        """Read a key; while the database does not answer, only one request a second waits for it."""
        if self._failure and now - self._failure[1] < KEY_SECONDS:
            raise self._failure[0]
        try:
            access = self._store.read(api_keys.admit(apikey), KEY_WAIT_SECONDS)
        except Unavailable as error:
            self._failure = error, time.monotonic()
            raise
        self._failure = None
        return access

    def _forget(self, token: str | None) -> None:
        if token in (None, self._token):
            self._known.clear()


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
