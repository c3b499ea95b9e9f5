"""What one client may take of the service: bytes, seconds, connections, requests a minute, watches at once.

Uvicorn's protocol reads headers without end and waits for a request for ever, so that a few clients
who send a byte a second could hold everything. The limits are kept where the bytes arrive, before
anything else sees them, and cost a request one addition and one comparison.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from scrubjay.errors import InvalidInput, QuotaExceeded, ScrubjayError, Unavailable, ValueTooLarge
from scrubjay.names import counted

try:
    import resource
except ImportError:  # Windows, which has no such limit
    resource = None  # type: ignore[assignment]

MAX_HEAD_BYTES = 64 * 2**10
"""A request's line and headers, and whatever else is no body, such as trailers; the parser's own limit for a URL."""
MAX_CONNECTIONS = 1000
"""Open at once, for each process; beyond that whoever is idle makes room."""
PATIENCE_SECONDS = 20.0
"""How long a client may take for its headers; for its body, and to read an answer, if it is slower than…"""
MIN_BYTES_PER_SECOND = 4096
"""…this."""
OTHER_FILES = 100
"""Open files that are no connections."""
LOOK_SECONDS = 1.0
"""How often a connection is looked at."""
MAX_BUCKETS = 10_000
"""Clients whose requests are counted; among more, those seen least recently are forgotten."""


class LimitedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, which neither reads nor waits without end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refusal: ScrubjayError | None = None
        self._loose_bytes = 0  # received since the last end of a head or piece of a body
        self._received = 0
        self._awaited: object = None  # what the client has to do, since when, and how far it was then
        self._since = 0.0
        self._progress_then = 0

    # ------------------------------------------------------------ bytes

    def data_received(self, data: bytes) -> None:
        self._loose_bytes += len(data)
        self._received += len(data)
        super().data_received(data)
        if self._loose_bytes > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())

    def on_headers_complete(self) -> None:
        if self._loose_bytes > MAX_HEAD_BYTES and self._head_bytes() > MAX_HEAD_BYTES:
            self._refusal = _head_too_large()
            raise self._refusal  # the parser stops, and send_400_response says why
        self._loose_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._loose_bytes = 0
        super().on_body(body)

    def _head_bytes(self) -> int:
        """Only a large piece of data needs this: it may hold a small head and some of the body."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def send_400_response(self, _msg: str) -> None:
        """What the parser cannot read; in Uvicorn's words it would be plain text."""
        self._refuse(self._refusal or InvalidInput("this is not HTTP/1.1: check what the client sends"))

    def _refuse(self, error: ScrubjayError) -> None:
        """Answer, if no answer is under way, and hang up."""
        if self.transport.is_closing():
            return
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.transport.write(_plain_answer(error))
        self.transport.close()

    # ------------------------------------------------------------ seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()
        if len(self.connections) > most_connections():
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._looking.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """See whether the client does what it has to do, or hang up. A timer for each request would cost more."""
        self._looking = self.loop.call_later(LOOK_SECONDS, self._look)
        awaited, progress = self._waiting_for()
        now = self.loop.time()
        if awaited is None or awaited is not self._awaited:
            self._awaited, self._since, self._progress_then = awaited, now, progress
        elif now - self._since > PATIENCE_SECONDS + (progress - self._progress_then) / MIN_BYTES_PER_SECOND:
            self._give_up()

    def _waiting_for(self) -> tuple[object, int]:
        """What stands for that which the client has to do, and how far it is; None if it is not its turn."""
        cycle = self.cycle
        if unread := self.transport.get_write_buffer_size():
            return self.flow, -unread
        if self.flow.read_paused:
            return None, 0
        if cycle is None or cycle.scope is not self.scope:  # it has begun a request, or never sent anything
            return self.scope or self.transport, 0
        if cycle.response_complete:
            # Without Uvicorn's timer there came bytes after the answer that are no request: the rest of a body
            # that nobody wants, or line breaks.
            return None if self._is_idle else cycle.message_event, 0
        return cycle if cycle.more_body else None, self._received

    def resume_writing(self) -> None:
        """What was written has been read, and what the answer goes on with is measured by itself."""
        self._awaited = None
        super().resume_writing()

    @property
    def _is_idle(self) -> bool:
        return self.timeout_keep_alive_task is not None and not self.transport.is_closing()

    def _give_up(self) -> None:
        if self.transport.get_write_buffer_size():  # closing would wait for it to be read
            self.transport.abort()
        elif self._received:
            self._refuse(_too_slow())
        else:
            self.transport.close()

    # ------------------------------------------------------------ connections

    def _make_room(self) -> None:
        """Close a connection that is only kept open for later; if there is none, this one."""
        idle = next((other for other in self.connections if getattr(other, "_is_idle", False)), None)
        if idle is not None:
            idle.shutdown()
        else:
            self._refuse(Unavailable(f"all {most_connections()} connections are in use; try again in a moment"))


@functools.cache
def most_connections() -> int:
    """Each is an open file, of which the system allows a process only so many; the database needs some, too."""
    if resource is None:
        return MAX_CONNECTIONS
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + OTHER_FILES
    if wanted <= allowed or allowed == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    granted = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (granted, most))
    return max(granted - OTHER_FILES, 1)


def _head_too_large() -> ScrubjayError:
    return ValueTooLarge(f"the headers have more than {MAX_HEAD_BYTES} bytes; send fewer", status=431)


def _too_slow() -> ScrubjayError:
    return Unavailable("the request took too long to arrive; send it again, at once", status=408)


def _plain_answer(error: ScrubjayError) -> bytes:
    """An answer in the shape of all others, for when there is no request to answer."""
    body = json.dumps({"code": error.code, "detail": error.detail})
    wait = "retry-after: 1\r\n" if error.status == 503 else ""
    return (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{wait}connection: close\r\n\r\n{body}"
    ).encode()


class RequestLimit:
    """So many requests a minute for each client, of which a full minute's worth may come at once.

    Of each client only the moment is kept at which it has all of them again, so one that is forgotten
    to make room starts afresh, and many addresses cost no more memory than MAX_BUCKETS.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def take(self, client: str) -> None:
        """Count a request, or refuse it."""
        self.check(client)
        full_at = max(self._full_at.pop(client, 0.0), self._clock())
        self._full_at[client] = full_at + 60 / self._per_minute  # last in the dict: seen most recently
        if len(self._full_at) > MAX_BUCKETS:
            del self._full_at[next(iter(self._full_at))]

    def check(self, client: str) -> None:
        """Refuse a client that has none left."""
        wait = self._full_at.get(client, 0.0) + 60 / self._per_minute - 60 - self._clock()
        if wait > 0:
            seconds = math.ceil(wait)
            allowed = counted(math.ceil(self._per_minute), "request")
            raise QuotaExceeded(
                f"more than {allowed} a minute; try again in {seconds} s, or raise it on the server:"
                " SCRUBJAY_REQUESTS_PER_MINUTE",
                retry_after=seconds,
            )


class WatchLimit:
    """So many who wait for changes at once, for each client: each holds a connection, perhaps for ever."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()

    @contextlib.contextmanager
    def hold(self, client: str) -> Iterator[None]:
        """Count one who waits, for as long as it does, or refuse it. 0 = no limit."""
        if self._most and self._held[client] >= self._most:
            raise QuotaExceeded(
                f"at most {self._most:,} may wait for changes at once for each client, and as many do; end some, or"
                " raise it on the server: SCRUBJAY_MAX_WATCHES",
                retry_after=1,
            )
        self._held[client] += 1
        try:
            yield
        finally:
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]
