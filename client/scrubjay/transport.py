"""The HTTP transport: one request and its response, over a pool of connections, to a server, a proxy or a socket file.

A call to a server on the same machine takes some 200 µs. `http.client` reads the response; the request is written as
one block, because `http.client` sends headers and body as two packets.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import os
import re
import select
import shlex
import socket
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from scrubjay.errors import InvalidInput, repr_short
from scrubjay.fork_safety import ForkSafe
from scrubjay.settings import SETTINGS
from scrubjay.validation import check_seconds

STREAM_SECONDS = 600.0
"""Seconds that a server may be silent during an export, import, backup or erase: it may check a file of gigabytes."""
MAX_IDLE_CONNECTIONS = 32
"""Connections to one server that are kept for later calls of this process: more than threads usually call at once, and
an eighth of the 256 files that some systems allow a process. A call that finds none opens one."""
MIN_BYTES_PER_SECOND = 1_000
"""A response must arrive within the timeout, plus its size at this rate: slower than any usable network, but a server
that sends a byte a second cannot hold the caller. A pause in it must not be longer than the timeout either."""
SOCKET_SCHEME = "unix:"
"""The URL of a server that listens on a socket file: unix:/path/of/the/file."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Hosts that are never reached through a proxy: to the proxy these names mean itself."""


class Response(NamedTuple):
    """A response that was read as a whole."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    data: bytes


class ResponseLost(OSError):
    """The request was sent, but no complete response arrived: it may have been carried out or not."""


class StreamedResponse(Protocol):
    """A response whose body is read in pieces; the caller closes it."""

    status: int
    headers: Any

    def read(self, amt: int | None = None, /) -> bytes: ...
    def close(self) -> None: ...


class Transport(Protocol):
    """Carries requests to one server; safe to share between threads."""

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Send a request and read its response. Raises ResponseLost, or another OSError if nothing was sent."""

    def stream(self, method: str, path: str, body: BinaryIO | None, headers: Mapping[str, str]) -> StreamedResponse:
        """The same for bodies that are larger than memory."""

    def close(self) -> None: ...


def open_transport(url: str, timeout: float) -> Transport:
    """The transport for a URL; the timeout is in seconds."""
    check_seconds("timeout", timeout)
    if url.startswith(SOCKET_SCHEME):
        return PooledTransport(urlsplit("http://localhost"), timeout, socket_path=_socket_path(url))
    parts = _split(url)
    return PooledTransport(parts, timeout, proxy=_proxy_of(parts))


def is_server(location: str) -> bool:
    """Whether a location is the URL of a server, and not the path of a file."""
    return location.startswith(("http://", "https://", SOCKET_SCHEME))


def _proxy_of(parts: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for a server, if any."""
    host, proxies = parts.hostname or "", getproxies()
    url = proxies.get(parts.scheme) or proxies.get("all")
    if not url or host in _LOOPBACK or proxy_bypass(host):
        return None
    proxy = urlsplit(url if "://" in url else f"http://{url}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise InvalidInput(
            f"the proxy {repr_short(f'{proxy.scheme}://{proxy.hostname}')} is not an http:// proxy; name the server in"
            " NO_PROXY, or set another proxy"
        )
    return proxy


def _socket_path(url: str) -> str:
    path = url.removeprefix(SOCKET_SCHEME)
    if not path.startswith("/"):
        raise InvalidInput(f"the url {repr_short(url)} has no absolute path; write it as unix:/run/scrubjay.sock")
    return path


def _split(url: str) -> SplitResult:
    """The parts of a server's URL, without what a pasted one may have more: /v1 of the API, or the dashboard's #…."""
    shown, why = without_credentials(url), ""
    try:
        parts = _split_strictly(url)
        if parts.scheme in ("http", "https") and parts.hostname:
            path = parts.path.rstrip("/").removesuffix("/v1")
            return parts._replace(netloc=parts.netloc.removesuffix(":"), path=path, query="", fragment="")
    except ValueError:
        why = _why_invalid(shown)
    raise InvalidInput(f"the url {repr_short(shown)} is not the URL of a server{why}; {_how_to_write(shown)}")


def _how_to_write(shown: str) -> str:
    """What to write instead of what is not the URL of a server."""
    if _PATH.match(shown):
        return f"a file is given with --path {shlex.quote(shown)}, or as path= in Python"
    if _HOST.fullmatch(shown):
        return f"write it as http://{shown}"
    return "write it like http://127.0.0.1:8787"


def _split_strictly(url: str) -> SplitResult:
    """Raises ValueError for unclosed brackets, a port that is not one, and an invalid host name."""
    parts = urlsplit(url)
    parts.netloc.encode("idna")
    if re.search(r"[\0- \x7f]", parts.hostname or ""):
        raise ValueError("a host name has no spaces or control characters")
    if parts.port == 0:
        raise ValueError("no server has port 0")
    return parts


def _why_invalid(shown: str) -> str:
    """Python's reasons repeat parts of a URL, so this one is about what may be shown of it."""
    try:
        _split_strictly(shown)
    except ValueError as error:
        return f" ({error})"
    return " (special characters of a password are written as %XX)"


_PATH = re.compile(r"(?!//)[./~\\]|[A-Za-z]:\\|[^/]*\.(db|sqlite3?)$")
"""What the path of a file looks like, given as a URL."""
_HOST = re.compile(r"([^\s:/]+|\[[^\s/]+\])(:\d+)?")
"""A host and perhaps a port, given without http://."""
_CREDENTIALS = re.compile(
    r"(?:^|(?<=//))(?:[^/]*@"
    r"|[^/@[]*:(?!\d*(?:/|$)).*@)"  # a password with a slash, and not a port
    r"|\?.*"
)


def without_credentials(url: str) -> str:
    """A URL as it may be shown, valid or not: without what may be an api key or a password."""
    return url if url.startswith(SOCKET_SCHEME) else _CREDENTIALS.sub("", url)


def split_credentials(url: str) -> tuple[str, str | None]:
    """The URL as it may be shown and stored, and the user name and password in it, if any."""
    if url.startswith(SOCKET_SCHEME):
        return url, None
    parts = _split(url)
    credentials, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=host).geturl().rstrip("/"), credentials if at else None


def start_hint(location: str) -> str:
    """How to start a server at a location that nothing answers at; if it is another machine, only its name."""
    if location.startswith(SOCKET_SCHEME):
        return f"is it running? start it with: scrubjay serve --socket {shlex.quote(_socket_path(location))}"
    parts, default = _split(location), SETTINGS["port"].default
    if parts.hostname not in _LOOPBACK:
        return f"check that it is running on {parts.hostname}"
    if parts.port is None:
        with_port = parts._replace(netloc=f"{parts.netloc}:{default}").geturl()
        return f"the URL has no port, and that of `scrubjay serve` is {default}: {with_port}"
    host = " --host ::1" if parts.hostname == "::1" else ""
    port = "" if parts.port == default else f" --port {parts.port}"
    return f"is it running? start it with: scrubjay serve{host}{port}"


def _basic(parts: SplitResult) -> str:
    """The header of Basic authentication for the user name and password in a URL."""
    credentials = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    return {} if proxy.username is None else {"Proxy-Authorization": _basic(proxy)}


class _Reader(io.RawIOBase):
    """The receiving end of a socket with a limit for each pause and a deadline for the whole response."""

    def __init__(self, source: socket.socket, timeout: float) -> None:
        self._socket = source
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out: the response arrived too slowly")
        self._socket.settimeout(min(left, self._timeout))
        received = self._socket.recv_into(buffer)
        self._deadline += received / MIN_BYTES_PER_SECOND
        return received

    def makefile(self, _mode: str) -> io.BufferedReader:
        """What HTTPResponse asks of a socket."""
        return io.BufferedReader(self, 65_536)


class Route(NamedTuple):
    """What a connection depends on; the timeout, the path and the credentials of the server are those of a request."""

    scheme: str
    host: str
    port: int | None
    proxy: SplitResult | None
    socket_path: str | None
    authorities: str | None
    """The file of the certificate authorities that the user trusts instead of those of requests."""

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        """A connection that is not open yet."""
        if self.socket_path:
            return _SocketConnection(self.socket_path, timeout)
        host, port, proxy = self.host, self.port, self.proxy
        if self.scheme == "http":
            if proxy:
                host, port = proxy.hostname or "", proxy.port
            return http.client.HTTPConnection(host, port, timeout=timeout)
        context = _tls_context(self.authorities)
        if not proxy:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        tunnel = http.client.HTTPSConnection(proxy.hostname or "", proxy.port or 80, timeout=timeout, context=context)
        tunnel.set_tunnel(host, port, _proxy_headers(proxy))
        return tunnel


class ConnectionPool(ForkSafe):
    """Idle connections of this process on one route; the one that was used last is used first.

    Its transports alone refer to it, so the last of them closes its connections, and no other.
    """

    def __init__(self, route: Route, max_idle: int = MAX_IDLE_CONNECTIONS) -> None:
        self.route = route
        self._max_idle = max_idle
        self._idle: list[socket.socket] = []  # whose methods are atomic
        weakref.finalize(self, _close_all, self._idle)
        self.register_at_fork()

    def take(self, timeout: float) -> tuple[socket.socket, bool]:
        """A connection, and whether it was used before."""
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if not _is_readable(connection):
                    return connection, True
                connection.close()
        return self.open(timeout), False

    def open(self, timeout: float) -> socket.socket:
        opened = self.route.connection(timeout)
        opened.connect()
        if not self.route.socket_path:
            opened.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made: socket.socket = opened.sock
        return made

    def put_back(self, connection: socket.socket) -> None:
        self._idle.append(connection)
        with contextlib.suppress(IndexError):
            while len(self._idle) > self._max_idle:
                self._idle.pop(0).close()  # the one that was idle for longest

    def reset(self) -> None:
        """The parent goes on using its sockets; a forked child closes its copies."""
        _close_all(self._idle)


class _Pools(ForkSafe):
    """The connection pools of this process: a web application with a Memory for each user needs few connections."""

    def __init__(self) -> None:
        self._pools: weakref.WeakValueDictionary[Route, ConnectionPool] = weakref.WeakValueDictionary()
        self.reset()
        self.register_at_fork()

    def reset(self) -> None:
        self._lock = threading.Lock()

    def of(self, route: Route) -> ConnectionPool:
        with self._lock:
            pool = self._pools.get(route)
            if pool is None:
                pool = self._pools[route] = ConnectionPool(route)
            return pool


_pools = _Pools()


class PooledTransport:
    """A transport whose kept-alive connections are those of every transport of this process on the same route."""

    def __init__(
        self,
        parts: SplitResult,
        timeout: float,
        *,
        proxy: SplitResult | None = None,
        socket_path: str | None = None,
    ) -> None:
        self._timeout = timeout
        self._host = parts.netloc.rpartition("@")[2].encode("idna").decode()
        self._root = quote(parts.path.rstrip("/"), safe="/%")
        self._headers = {} if parts.username is None else {"Authorization": _basic(parts)}
        if proxy and parts.scheme == "http":  # a proxy is sent the whole URL; https goes through a tunnel
            self._root = f"http://{self._host}{self._root}"
            self._headers |= _proxy_headers(proxy)
        authorities = os.environ.get("REQUESTS_CA_BUNDLE") if parts.scheme == "https" else None
        route = Route(parts.scheme, parts.hostname or "", parts.port, proxy, socket_path, authorities)
        self._pool = _pools.of(route)

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        lines = [f"{method} {self._root}{path} HTTP/1.1", f"Host: {self._host}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in {**self._headers, **headers}.items()]
        request = "\r\n".join([*lines, "\r\n"]).encode("latin-1") + body
        pool = self._pool
        connection, is_reused = pool.take(self._timeout)
        try:
            return self._exchange(pool, connection, method, request)
        except ResponseLost as error:
            if not (is_reused and method == "GET" and isinstance(error.__cause__, ConnectionError)):
                raise
        # The server has closed an idle connection; a proxy in between may tell it late. A read is safe to repeat.
        return self._exchange(pool, pool.open(self._timeout), method, request)

    def _exchange(self, pool: ConnectionPool, connection: socket.socket, method: str, request: bytes) -> Response:
        """Send a request on a connection, and read its response."""
        try:
            connection.settimeout(self._timeout)
            connection.sendall(request)
            response = http.client.HTTPResponse(_Reader(connection, self._timeout), method=method)  # type: ignore[arg-type]
            response.begin()
            data = response.read()
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | http.client.HTTPException):
                raise ResponseLost(_reason(error)) from error
            raise
        if response.will_close:
            connection.close()
        else:
            pool.put_back(connection)
        return Response(response.status, {name.lower(): value for name, value in response.getheaders()}, data)

    def stream(self, method: str, path: str, body: BinaryIO | None, headers: Mapping[str, str]) -> StreamedResponse:
        opened = self._pool.route.connection(self._timeout)
        opened.connect()
        opened.sock.settimeout(STREAM_SECONDS)
        try:
            extra = {"Content-Length": str(_size(body)), "Connection": "close"}
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused halfway: the response says why
                opened.request(method, self._root + path, body, {**self._headers, **headers, **extra})
            response = opened.getresponse()
        except (OSError, http.client.HTTPException) as error:
            opened.close()
            raise ResponseLost(_reason(error)) from error
        if opened.sock:  # the response holds it open until it is closed
            opened.sock.close()
        return response

    def close(self) -> None:
        """Leave the pool. A call after that has a connection of its own, which is not kept."""
        self._pool = ConnectionPool(self._pool.route, max_idle=0)


class _SocketConnection(http.client.HTTPConnection):
    """A connection to a socket file."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.sock.close()
            raise


def _tls_context(authorities: str | None) -> Any:
    import ssl  # noqa: PLC0415 - only for https

    from requests.utils import DEFAULT_CA_BUNDLE_PATH  # noqa: PLC0415 - the authorities that requests trusts

    return ssl.create_default_context(cafile=authorities or DEFAULT_CA_BUNDLE_PATH)


def _is_readable(idle: socket.socket) -> bool:
    """True when the server has closed the connection: an idle one has nothing to read but its end."""
    if not hasattr(select, "poll"):  # Windows, whose select() takes any socket
        return bool(select.select([idle], [], [], 0)[0])
    poll = select.poll()
    poll.register(idle, select.POLLIN)
    return bool(poll.poll(0))


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return f"the response is not HTTP or was cut off ({type(error).__name__}: {error})"
    return str(error) or type(error).__name__


def _close_all(connections: list[socket.socket]) -> None:
    while connections:
        connections.pop().close()


def _size(file: BinaryIO | None) -> int:
    return 0 if file is None else os.fstat(file.fileno()).st_size - file.tell()
