"""Limits on what one client may use of the service: bytes, seconds, connections, requests and watches.

Uvicorn's protocol reads headers without a limit and waits for a request without a timeout, so a few clients that
send one byte a second could hold every connection. The limits apply where the bytes arrive, before anything else
reads them, and cost a request one addition and one comparison.

A client is an api key, or an address while the server has no api keys. No client can block the others:

- Memory for request bodies: one client gets at most a quarter (BODY_SHARE). The first 64 KiB of each body are not
  counted, so a small write is never refused because of another client's large ones.
- Memory for responses: the same share, of what its connections have not read yet. One response alone is always sent.
- Connections: one client's requests use at most half (REQUEST_SHARE). When all connections are open, a new one
  replaces another. Connections whose last request had no valid key, or that have not sent a request yet, are
  unauthenticated; one of them is closed if they are a quarter of all (UNAUTHENTICATED_SHARE) or if no authenticated
  connection is idle, and an idle one otherwise. Of these, the address with the most connections loses its oldest.
  A client that opens many connections without a key therefore replaces its own, and an authenticated connection is
  closed only while it is idle. Addresses are used for nothing else: behind a proxy all clients share one.
- Time: a client slower than MIN_BYTES_PER_SECOND uses up STALL_SECONDS, and regains only what it catches up. A body
  that starts fast does not earn time to stall later.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from http import HTTPStatus
from typing import Any

from starlette.responses import Response
from starlette.types import Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from scrubjay.errors import InvalidInput, QuotaExceeded, ScrubjayError, Unavailable, ValueTooLarge, pluralize
from scrubjay.exact_json import MAX_WRITE_BYTES
from scrubjay.version import __version__
from scrubjay_log import log_refused_connection

try:
    import resource
except ImportError:  # Windows, which has no such limit
    resource = None  # type: ignore[assignment]

MAX_HEAD_BYTES = 64 * 2**10
"""Bytes of a request line with headers or of trailers; more are refused with 431. The parser's own limit for a URL."""
MAX_BODY_BYTES = 2 * MAX_WRITE_BYTES + 2**20
"""Bytes of a request body that writes; more are refused with 413. One call's values, escaped, and the JSON around."""
SMALL_BODY_BYTES = 64 * 2**10
"""Bytes of each body that are not counted in MAX_BUFFERED_BYTES: what Uvicorn reads ahead anyway, 64 MB in all."""
MAX_BUFFERED_BYTES = 8 * MAX_BODY_BYTES
"""Bytes of unfinished bodies that a process keeps in memory, and of unread responses; more are refused with 503."""
BODY_SHARE = 4
"""One client's bodies get MAX_BUFFERED_BYTES divided by this: two of the largest, or four values of 16 MB. So do its
responses."""
MAX_CONNECTIONS = 1000
"""Open connections of a process; a new one beyond that replaces another."""
REQUEST_SHARE = 2
"""One client runs at most MAX_CONNECTIONS divided by this requests at once: more than the quarter that may watch by
default, so that a client can write while it watches."""
UNAUTHENTICATED_SHARE = 4
"""While unauthenticated connections are fewer than MAX_CONNECTIONS divided by this, an idle connection is closed
first: that costs its client nothing, and an unauthenticated one may be about to send its key."""
STALL_SECONDS = 20.0
"""Seconds that a client may take for its headers, or fall behind MIN_BYTES_PER_SECOND; then it is disconnected."""
MIN_BYTES_PER_SECOND = 4096
"""Bytes of a body that a client has to send, or of a response to read, in a second: less than a modem's rate."""
OTHER_FILES = 100
"""Open files that are not connections: the database, its log, the listening socket."""
CHECK_SECONDS = 1.0
"""Seconds between two checks of a connection's progress; a timer for each request would cost more."""
MAX_EXPORTS = 2
"""Exports that one client may have open. Not one: the next may be asked for before the last has ended here."""
MAX_COUNTED_CLIENTS = 10_000
"""Clients whose requests a minute are counted; beyond that the least recent is forgotten."""


class LimitedProtocol(HttpToolsProtocol):
    """Uvicorn's HTTP protocol with limits on header bytes, on stalled clients and on connections."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refusal: ScrubjayError | None = None
        self._head_bytes_received = 0  # since the last complete head or piece of a body
        self._received = 0
        self._awaited: object = None  # identifies what the client has to do next
        self._due = 0.0  # when the client is disconnected unless it makes progress
        self._progress = 0  # at the last check
        self._check_at = 0.0  # when the next check should run
        self.idle_since = self.loop.time()  # or when it was opened
        self._answered_at = self.idle_since
        self._is_idle = False  # answered, and no byte of another request has arrived

    # ------------------------------------------------------------ bytes

    def data_received(self, data: bytes) -> None:
        self._is_idle = False
        self._head_bytes_received += len(data)
        self._received += len(data)
        super().data_received(data)
        if self._head_bytes_received > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["connections"] = self.connections  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        if self._head_bytes_received > MAX_HEAD_BYTES and self._head_bytes() > MAX_HEAD_BYTES:
            self._refusal = _head_too_large()
            raise self._refusal  # stops the parser, which calls send_400_response
        if self.parser.should_upgrade() and self._has_body():
            self._refusal = InvalidInput("a request with an Upgrade header has no body; leave that header out")
            raise self._refusal
        self._head_bytes_received = 0
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Let the application answer at once, if it can, and start a task if not.

        Only the last of several requests in one piece is answered at once: each answer starts the next request.
        Versions of Uvicorn that have no such method start a task for every request.
        """
        answer_now = getattr(app, "answer_now", None)
        if cycle is not self.cycle or answer_now is None or self.parser.should_upgrade() or not answer_now(cycle):
            super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._head_bytes_received = 0
        super().on_body(body)

    def _unsupported_upgrade_warning(self) -> None:
        """Answer a request for another protocol, such as WebSocket, as if it had not asked for one.

        The parser reads nothing after its headers: a body is refused, and the connection ends with the response.
        Uvicorn would write two lines to the log for each.
        """
        self.headers.append((b"connection", b"close"))
        self.cycle.keep_alive = False

    def _has_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in self.headers
        )

    def _head_bytes(self) -> int:
        """The size of the head alone: a large piece of data may hold a small head and some of the body."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def send_400_response(self, _msg: str) -> None:
        """Answer what the parser cannot read; Uvicorn would send plain text."""
        self._refuse(self._refusal or InvalidInput("this is not HTTP/1.1: check what the client sends"))

    def _refuse(self, error: ScrubjayError) -> None:
        """Send the error, unless a response is being sent, and close the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.transport.write(_raw_response(error))
            if self.is_answered:  # otherwise the application logs the request
                log_refused_connection(error.status, self.address)
        self.transport.close()

    # ------------------------------------------------------------ seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._check_progress()
        if len(self.connections) > max_connections():
            self._replace_a_connection()

    def on_response_complete(self) -> None:
        """Uvicorn would start a timer for each response that closes the connection; `_check_progress` does that."""
        if self.pipeline:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self._is_idle, self._answered_at = True, self.loop.time()
            if "access" in self.cycle.scope:
                self.idle_since = self._answered_at
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_check.cancel()
        super().connection_lost(exc)

    def _check_progress(self) -> None:
        """Disconnect the client if it is too slow with what it has to do."""
        self._next_check = self.loop.call_later(CHECK_SECONDS, self._check_progress)
        awaited, progress = self._awaited_from_client()
        now = self.loop.time()
        late, self._check_at = now - self._check_at, now + CHECK_SECONDS
        if awaited is None or awaited is not self._awaited:
            self._awaited, self._due = awaited, now + STALL_SECONDS
        else:
            # A check is late when the server was busy, and may not have read yet what the client has sent.
            earned = max(progress - self._progress, 0) / MIN_BYTES_PER_SECOND + max(late, 0)
            self._due = min(self._due + earned, now + STALL_SECONDS)
            if now > self._due:
                self._disconnect_stalled()
        self._progress = progress
        if self._is_idle and now - self._answered_at > self.timeout_keep_alive:
            self.transport.close()

    def _awaited_from_client(self) -> tuple[object, int]:
        """An object that identifies what the client has to do, and its progress; None if the server has to act."""
        cycle = self.cycle
        if unread := self.transport.get_write_buffer_size():
            return self.flow, -unread
        if self.flow.read_paused:
            return None, 0
        if cycle is None or cycle.scope is not self.scope:  # it has begun a request, or never sent anything
            return self.scope or self.transport, 0
        if cycle.response_complete:
            # Not idle: bytes came after the response that are not a request, such as the rest of a refused body.
            return None if self._is_idle else cycle.message_event, 0
        return cycle if cycle.more_body else None, self._received

    def resume_writing(self) -> None:
        """Start a new measurement: the client has read everything that was written before."""
        self._awaited = None
        super().resume_writing()

    def _disconnect_stalled(self) -> None:
        if self.transport.get_write_buffer_size():  # close() would wait until the client has read it
            self.transport.abort()
        elif self._received:
            self._refuse(_too_slow())
        else:
            self.transport.close()

    # ------------------------------------------------------------ connections

    @property
    def is_authenticated(self) -> bool:
        """True if its last request was admitted, which the server notes in the request's scope."""
        return self.cycle is not None and "access" in self.cycle.scope

    @property
    def is_answered(self) -> bool:
        """True if no request is being processed; the client may be sending one or reading the last response."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    def _replace_a_connection(self) -> None:
        """Close another connection or, if authenticated clients are using all of them, this one."""
        others = [other for other in self.connections if isinstance(other, LimitedProtocol) and other is not self]
        others = [other for other in others if not other.transport.is_closing()]
        if len(others) < max_connections():  # some are being closed
            return
        unauthenticated = [other for other in others if not other.is_authenticated]
        idle = [other for other in others if other.is_authenticated and other.is_answered]
        too_many = len(unauthenticated) >= share_of_connections(UNAUTHENTICATED_SHARE)
        if candidates := unauthenticated if too_many or not idle else idle:
            _select_to_close(candidates).close_for_another()
        else:
            self._refuse(_all_connections_in_use())

    @property
    def client_id(self) -> str:
        """The client of its last request; empty if that was not admitted."""
        return str(self.cycle.scope.get("client_id", "")) if self.cycle else ""

    def close_for_another(self) -> None:
        """Close this connection; a client that waits for a response gets an error."""
        if self.transport.get_write_buffer_size():  # close() would wait until the client has read it
            self.transport.abort()
        elif self._is_idle:
            self.transport.close()
        else:
            self._refuse(_all_connections_in_use())


def _select_to_close(candidates: Collection[LimitedProtocol]) -> LimitedProtocol:
    """The oldest of the address with the most connections, and one that is being read only if there is no other."""
    count = Counter(each.address for each in candidates)
    return min(
        candidates,
        key=lambda each: (-count[each.address], each.transport.get_write_buffer_size() > 0, each.idle_since),
    )


def share_of_connections(share: int) -> int:
    return max(max_connections() // share, 1)


@functools.cache
def max_connections() -> int:
    """MAX_CONNECTIONS, or fewer where the operating system allows the process fewer open files."""
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
    return Unavailable("the request took too long to arrive; send it again without pauses", status=408)


def _all_connections_in_use() -> ScrubjayError:
    return Unavailable(f"all {max_connections()} connections are in use; try again in a moment")


def _raw_response(error: ScrubjayError) -> bytes:
    """An error response as bytes, for when there is no request to answer."""
    body = json.dumps({"code": error.code, "detail": error.detail})
    wait = "retry-after: 1\r\n" if error.status == 503 else ""
    return (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
        f"scrubjay-version: {__version__}\r\ncontent-length: {len(body)}\r\n{wait}connection: close\r\n\r\n{body}"
    ).encode()


def check_unread(scope: Scope, size: int) -> None:
    """Raise Unavailable if a response of this size is too much beside those that clients have not read yet.

    The response to a write is always sent: the write has happened.
    """
    if size <= SMALL_BODY_BYTES or scope.get("writes"):
        return
    unread: Counter[str] = Counter()
    for each in scope.get("connections", ()):
        if isinstance(each, LimitedProtocol) and (waiting := each.transport.get_write_buffer_size()):
            unread[each.client_id] += waiting
    own = unread[scope.get("client_id", "")]
    if own and own + size > MAX_BUFFERED_BYTES // BODY_SHARE:
        raise Unavailable("this client leaves too many large responses unread; read them first")
    if unread.total() and unread.total() + size > MAX_BUFFERED_BYTES:
        raise Unavailable("too many large responses are being read at once; try again in a moment")


def send_at_once(response: Response, send: Send) -> bool:
    """Send a finished response in one write; False if it has to be sent the usual way.

    Uvicorn checks every header against two patterns and writes head and body separately, which takes 15 µs more.
    The usual way remains where it is not Uvicorn that serves, and for a client that reads slowly.
    """
    cycle = getattr(send, "__self__", None)
    if type(cycle) is not RequestResponseCycle or cycle.flow.write_paused or cycle.disconnected:
        return False
    cycle.response_started = cycle.response_complete = True
    parts: list[bytes | memoryview] = [STATUS_LINE[response.status_code], _default_head(cycle.default_headers)]
    for name, value in response.raw_headers:
        parts += (name, b": ", value, b"\r\n")
    parts += (b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", response.body)
    cycle.transport.write(b"".join(parts))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


_last_default: tuple[object, bytes] = (None, b"")


def _default_head(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The headers of every response as bytes; Uvicorn makes a new list of them once a second, for the date."""
    global _last_default  # noqa: PLW0603 - a cache of one
    if _last_default[0] is not headers:
        _last_default = headers, b"".join(b"%b: %b\r\n" % header for header in headers)
    return _last_default[1]


def describe_rate(per_minute: int, workers: int) -> str:
    """The limit of requests a minute, in the words of the banner and of the error."""
    share = f" ({per_minute / workers:,g} in each of {workers} workers)" if workers > 1 else ""
    return f"{pluralize(per_minute, 'request')} a minute{share}"


class RequestLimit:
    """A limit of requests a minute for each client, of which a minute's worth may come at once.

    Only the time at which a client has its full allowance again is stored, so a forgotten client starts with all
    of it, and many addresses take no more memory than MAX_COUNTED_CLIENTS.
    """

    def __init__(self, per_minute: int, workers: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowed = describe_rate(per_minute, workers)
        self._per_minute = per_minute / workers  # each process counts for itself, and allows its share
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def take(self, client: str) -> None:
        """Count a request, or raise QuotaExceeded."""
        self.check(client)
        full_at = max(self._full_at.pop(client, 0.0), self._clock())
        self._full_at[client] = full_at + 60 / self._per_minute  # moves it to the end: the most recent client
        if len(self._full_at) > MAX_COUNTED_CLIENTS:
            del self._full_at[next(iter(self._full_at))]

    def check(self, client: str) -> None:
        """Raise QuotaExceeded if the client has no request left."""
        wait = self._full_at.get(client, 0.0) + 60 / self._per_minute - 60 - self._clock()
        if wait > 0:
            seconds = math.ceil(wait)
            raise QuotaExceeded(
                f"more than {self._allowed}; try again in {seconds} s, or raise it on the server:"
                " SCRUBJAY_REQUESTS_PER_MINUTE",
                retry_after=seconds,
            )


class BodyLimit:
    """A limit on the memory for unfinished request bodies, for each client and in total."""

    def __init__(self) -> None:
        self._buffered: Counter[str] = Counter()

    @contextlib.contextmanager
    def hold(self, client: str) -> Iterator[Callable[[int], None]]:
        """A function to call with the size of the body so far; it raises Unavailable when memory is short."""
        counted_bytes = 0

        def grow(size: int) -> None:
            nonlocal counted_bytes
            more = max(size - SMALL_BODY_BYTES, 0) - counted_bytes
            if not more:
                return
            counted_bytes += more
            self._buffered[client] += more
            if self._buffered[client] > MAX_BUFFERED_BYTES // BODY_SHARE:
                raise Unavailable("this client is sending too many large requests at once; wait for some to end")
            if self._buffered.total() > MAX_BUFFERED_BYTES:
                raise Unavailable("too many large requests are arriving at once; try again in a moment")

        try:
            yield grow
        finally:
            if counted_bytes:
                self._buffered[client] -= counted_bytes
                if not self._buffered[client]:
                    del self._buffered[client]


class ConcurrencyLimit:
    """A limit on one client's concurrent requests: each uses a connection. 0 means no limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: dict[str, int] = {}

    def take(self, client: str) -> None:
        """Count a request until `release`, or raise an error."""
        running = self._running.get(client, 0)
        if self._most and running >= self._most:
            raise self._refusal()
        self._running[client] = running + 1

    def release(self, client: str) -> None:
        running = self._running.pop(client) - 1
        if running:
            self._running[client] = running

    @contextlib.contextmanager
    def hold(self, client: str) -> Iterator[None]:
        self.take(client)
        try:
            yield
        finally:
            self.release(client)

    def _refusal(self) -> ScrubjayError:
        return Unavailable(
            f"this client has {pluralize(self._most, 'request')} running, half of what the server runs at once;"
            " wait for some to end"
        )


class WatchLimit(ConcurrencyLimit):
    """A limit on one client's open watches: each uses a connection, possibly without end."""

    def _refusal(self) -> ScrubjayError:
        return QuotaExceeded(
            f"this client has {self._most:,} watches open, which is the limit: close some, or raise it on the"
            " server: SCRUBJAY_MAX_WATCHES",
            retry_after=1,
        )


class ExportLimit(ConcurrencyLimit):
    """A limit on one client's exports: the server's disk holds a copy of each until the client has read it."""

    def __init__(self) -> None:
        super().__init__(MAX_EXPORTS)

    def _refusal(self) -> ScrubjayError:
        return QuotaExceeded(
            f"this client has {MAX_EXPORTS} exports running; wait for one to end and read it to its end", retry_after=1
        )
