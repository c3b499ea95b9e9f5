"""Watching namespaces for changes, and logging refused requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, Protocol

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from scrubjay.errors import ScrubjayError
from scrubjay.models import Change
from scrubjay.store import changes
from scrubjay.store.engine import ServedStore
from scrubjay.store.operation import Actor
from scrubjay.store.sqlite.asyncio import AsyncStore

LOGGED_READ_REFUSALS = (401, 403)
LOGGED_WRITE_REFUSALS = (*LOGGED_READ_REFUSALS, 400, 413, 429, 507)
"""Statuses of refused requests that are logged; that a key does not exist or has another version is not a refusal."""
MAX_REFUSALS = 100
"""Different refusals that are logged a second; all others become one row. 100 are a page to read, and let 5 % of a log
of a million rows (changes.REFUSAL_SHARE) cover eight minutes of an attack."""
POLL_SECONDS = 0.05
"""Seconds between two checks for what other processes have changed: a delay that a person does not notice."""
MAX_WAIT_SECONDS = 60
"""Seconds that a request for changes may wait: proxies cut off longer ones."""
HEARTBEAT_SECONDS = 15
"""Seconds after which an event stream without events sends its cursor, so that proxies do not close it."""


class RefusalLog:
    """Refused requests, written once a second: logging a refusal must cost less than what was refused.

    Refusals of the same client in the same namespace with the same error become one row, with the first key.
    """

    def __init__(self, store: ServedStore) -> None:
        self._store = store
        self._pending: dict[tuple[str, ...], tuple[str, changes.Refusal]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def log(self, scope: Scope, verb: str, error: ScrubjayError) -> None:
        """Log the error of a request, if it is a refusal; names that are too long are cut."""
        if error.status not in (LOGGED_WRITE_REFUSALS if scope.get("writes") else LOGGED_READ_REFUSALS):
            return
        access, client, names = scope.get("access"), scope.get("client"), scope.get("path_params", {})
        who = access.name if access else f"nobody at {client[0] if client else 'unknown'}"
        namespace, key = names.get("namespace", ""), names.get("key", "")
        self.add(who, changes.Refusal(verb, namespace[:128], key[:512], error.code))

    def add(self, who: str, refusal: changes.Refusal) -> None:
        kind: tuple[str, ...] = (who, refusal.verb, refusal.namespace, refusal.code)
        if kind not in self._pending and len(self._pending) >= MAX_REFUSALS:
            kind, who, refusal = (), "many", changes.Refusal("other", "", "", "refused")
        _, logged = self._pending.get(kind, (who, refusal._replace(times=0)))
        self._pending[kind] = who, logged._replace(times=logged.times + 1)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(1, self._start_writing)

    def _start_writing(self) -> None:
        self._timer = None
        self._writing = asyncio.create_task(self.write())  # kept: the event loop has only a weak reference to it

    async def write(self) -> None:
        """Write the pending refusals."""
        pending, self._pending = self._pending, {}
        refusals: dict[str, list[changes.Refusal]] = {}
        for who, refusal in pending.values():
            refusals.setdefault(who, []).append(refusal)
        await asyncio.gather(*(self._record(*each) for each in refusals.items()))  # concurrently: they share a commit

    async def _record(self, who: str, refusals: list[changes.Refusal]) -> None:
        operation = changes.refuse(*refusals)
        operation.actor = Actor(who)
        with contextlib.suppress(ScrubjayError):
            await self._store.run(operation)


class Watchers:
    """Wakes the requests that watch a namespace when it has changed, whichever process wrote it.

    It wakes no others: each request that wakes reads the log, and many of them would slow down every write.
    """

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._waiting: dict[asyncio.Future[None], str] = {}
        self._polling: asyncio.Task[None] | None = None
        self.closed = False

    async def wait(self, namespace: str, cursor: int, seconds: float) -> None:
        """Return when the namespace may have changes after the cursor, or when the time is over."""
        if self.closed or namespace in self._changed(cursor, [namespace]):
            return
        woken = asyncio.get_running_loop().create_future()
        self._waiting[woken] = namespace
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll(cursor))
        try:
            await asyncio.wait_for(woken, seconds)
        except TimeoutError:
            pass
        finally:
            del self._waiting[woken]

    def close(self) -> None:
        """Wake every request, so that the server can stop."""
        self.closed = True
        self._wake(set(self._waiting.values()))

    async def _poll(self, seen: int) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(POLL_SECONDS)
                last = self._last()
                if last != seen:
                    self._wake(self._changed(seen, set(self._waiting.values())))
                    seen = last
        finally:
            self._polling = None

    def _wake(self, namespaces: Collection[str]) -> None:
        for woken, namespace in self._waiting.items():
            if namespace in namespaces and not woken.done():
                woken.set_result(None)

    def _changed(self, seen: int, watched: Collection[str]) -> Collection[str]:
        """The namespaces that have changed since; all watched ones if the log was replaced by an older one."""
        if self._last() < seen:
            return watched
        return self._store.run_now(changes.changed_since(seen))

    def _last(self) -> int:
        return self._store.run_now(changes.last_change())


class AnyWatchers(Protocol):
    """What a watch needs, whichever engine wakes it."""

    closed: bool

    async def wait(self, namespace: str, cursor: int, seconds: float) -> None: ...
    def close(self) -> None: ...


class Watch:
    """The position of one request in the changes of a namespace."""

    def __init__(
        self, store: ServedStore, watchers: AnyWatchers, namespace: str, prefix: str, cursor: int | None
    ) -> None:
        self._store = store
        self._watchers = watchers
        self._namespace = namespace
        self._prefix = prefix
        self.cursor: Any = cursor

    async def read(self) -> list[Change]:
        """The changes since the last read."""
        found, self.cursor = await self._store.run(changes.read_changes(self._namespace, self._prefix, self.cursor))
        return found

    async def wait(self, seconds: float) -> list[Change]:
        """The changes since the last read, as soon as there are any; none when the time is over."""
        give_up_at = time.monotonic() + seconds
        found: list[Change] = []
        while not found and not self._watchers.closed and (left := give_up_at - time.monotonic()) > 0:
            await self._watchers.wait(self._namespace, self.cursor, left)
            found = await self.read()
        return found

    async def events(self, found: list[Change], authenticate: Callable[[], Awaitable[object]]) -> AsyncIterator[str]:
        """Server-sent events, until the client disconnects, the server stops, or the api key is revoked.

        An id without data only moves the cursor. Any other error ends the stream; the client's next request gets it.
        """
        yield "retry: 1000\n\n"
        while not self._watchers.closed:
            for change in found:
                yield f"id: {change.id}\ndata: {json.dumps(change.to_json(), ensure_ascii=False)}\n\n"
            yield f"id: {self.cursor}\n\n"
            try:
                found = await self.wait(HEARTBEAT_SECONDS)
                await authenticate()
            except ScrubjayError:
                return


class EventStream(StreamingResponse):
    """A response of server-sent events that counts as an open watch until it ends."""

    def __init__(self, events: AsyncIterator[str], counted: contextlib.ExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            await super().__call__(scope, receive, send)
