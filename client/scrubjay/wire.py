"""Requests to a server over kept-alive connections, and nothing else of HTTP.

A call to a server on the same machine takes some 200 µs, of which a general client spends more than
the server does: requests took five times as long here, urllib3 twice, http.client once and a half.
What needs more than this (a proxy, a user name in the address) goes through requests.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import socket
import weakref
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import SplitResult, quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from .errors import InvalidInput
from .forks import Forkable
from .names import check_seconds, shown

MAX_LINE = 65_536
"""Bytes of one header line; what is longer is no answer of a Scrubjay server."""
STREAM_SECONDS = 600.0
"""How long a server may be silent while it makes, checks or takes in a whole namespace or file."""


_LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""No proxy can know what this machine calls itself."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    data: bytes


class NoAnswer(OSError):
    """The request was sent, and nobody knows what became of it."""


class Flow(Protocol):
    """An answer that is read bit by bit."""

    status: int
    headers: Any

    def read(self, amt: int | None = None, /) -> bytes: ...
    def close(self) -> None: ...


class Wire(Protocol):
    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """One request and its answer; an OSError when the server was not reached, NoAnswer when it did not answer."""

    def stream(self, method: str, path: str, body: BinaryIO | None, headers: Mapping[str, str]) -> Flow:
        """A request, or an answer, that is too large for memory; the answer is the caller's to close."""

    def close(self) -> None: ...


def open_wire(url: str, timeout: float) -> Wire:
    parts = _split(url)
    check_seconds("timeout", timeout)
    if _is_proxied(parts) or parts.username is not None:
        return _RequestsWire(url, timeout)
    return _DirectWire(parts, timeout)


def _is_proxied(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    return host not in _LOOPBACK and parts.scheme in getproxies() and not proxy_bypass(host)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.netloc.encode("idna")
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:  # brackets that do not close, a port that is no number, a name that cannot be one
        pass
    raise InvalidInput(f"the url {shown(url)} is not one of a server; write it as http://127.0.0.1:8787")


class _Connection:
    """A socket, and the reading end of it as a file."""

    def __init__(self, parts: SplitResult, timeout: float) -> None:
        opened = _tls(parts, timeout) if parts.scheme == "https" else _tcp(parts, timeout)
        opened.connect()
        self.socket: socket.socket = opened.sock
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def is_stale(self) -> bool:
        """Whether the server has hung up meanwhile: then there is something to read, namely the end."""
        if not hasattr(select, "poll"):  # Windows, whose select() takes any socket
            return bool(select.select([self.socket], [], [], 0)[0])
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def _tcp(parts: SplitResult, timeout: float) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)


def _tls(parts: SplitResult, timeout: float) -> http.client.HTTPConnection:
    import ssl  # noqa: PLC0415 - only for https

    from requests.utils import DEFAULT_CA_BUNDLE_PATH  # noqa: PLC0415 - what other Python programs trust, too

    context = ssl.create_default_context(cafile=os.environ.get("REQUESTS_CA_BUNDLE") or DEFAULT_CA_BUNDLE_PATH)
    return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout, context=context)


class _DirectWire(Forkable):
    """A pool of connections, last used first; any number of threads may send at once."""

    def __init__(self, parts: SplitResult, timeout: float) -> None:
        self._parts = parts
        self._timeout = timeout
        self._root = quote(parts.path.rstrip("/"), safe="/%")
        self._host = parts.netloc.encode("idna").decode()
        self._idle: list[_Connection] = []
        weakref.finalize(self, _close_all, self._idle)
        self.watch_forks()

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        lines = [f"{method} {self._root}{path} HTTP/1.1", f"Host: {self._host}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        request = "\r\n".join([*lines, "\r\n"]).encode("latin-1") + body
        connection = self._take()
        try:
            connection.socket.sendall(request)
            answer, keep = _read(connection.file, bodiless=method == "HEAD")
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise NoAnswer(str(error) or type(error).__name__) from error
            raise
        if keep:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def stream(self, method: str, path: str, body: BinaryIO | None, headers: Mapping[str, str]) -> Flow:
        opened = (_tls if self._parts.scheme == "https" else _tcp)(self._parts, self._timeout)
        opened.connect()
        opened.sock.settimeout(STREAM_SECONDS)
        try:
            once = {"Content-Length": str(_size(body)), "Connection": "close"}
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused halfway: the answer says why
                opened.request(method, self._root + path, body, {**headers, **once})
            answer = opened.getresponse()
        except http.client.HTTPException as error:
            opened.close()
            raise NoAnswer(f"what answered does not speak HTTP: {error}") from error
        except OSError as error:
            opened.close()
            raise NoAnswer(str(error) or type(error).__name__) from error
        if opened.sock:  # whoever answers may want to keep it; it lives until the answer is closed
            opened.sock.close()
        return answer

    def close(self) -> None:
        _close_all(self._idle)

    def start_anew(self) -> None:
        """The parent goes on using the sockets; a child only lets go of its copies."""
        _close_all(self._idle)

    def _take(self) -> _Connection:
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if not connection.is_stale():
                    return connection
                connection.close()
        return _Connection(self._parts, self._timeout)


def _close_all(connections: list[_Connection]) -> None:
    while connections:
        connections.pop().close()


def _read(file: Any, *, bodiless: bool) -> tuple[Answer, bool]:
    """The answer, and whether the connection can be used again."""
    status_line = _line(file)
    try:
        protocol, code = status_line.split(None, 2)[:2]
        status = int(code)
        headers = {}
        while line := _line(file):
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if bodiless or status in (204, 304):
            data = b""
        elif "chunked" in headers.get("transfer-encoding", ""):
            data = b"".join(iter(lambda: _chunk(file), b""))
        elif "content-length" in headers:
            data = _exactly(file, int(headers["content-length"]))
        else:
            data, headers["connection"] = file.read(), "close"
    except ValueError:
        raise ConnectionError("what answered does not speak HTTP") from None
    keep = protocol == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return Answer(status, headers, data), keep


def _line(file: Any) -> str:
    line = file.readline(MAX_LINE)
    if not line.endswith(b"\n"):
        raise ConnectionError("the connection was closed in the middle of an answer")
    return str(line, "latin-1").rstrip("\r\n")


def _chunk(file: Any) -> bytes:
    size = int(_line(file).partition(";")[0], 16)
    data = _exactly(file, size)
    if size:
        _line(file)
    else:
        while _line(file):  # trailers
            pass
    return data


def _exactly(file: Any, size: int) -> bytes:
    data: bytes = file.read(size)
    if len(data) < size:
        raise ConnectionError("the connection was closed in the middle of an answer")
    return data


def _size(file: BinaryIO | None) -> int:
    return 0 if file is None else os.fstat(file.fileno()).st_size - file.tell()


class _RequestsWire(Forkable):
    """Through requests, which knows proxies and all they want."""

    def __init__(self, url: str, timeout: float) -> None:
        self._url = url
        self._timeout = timeout
        self.start_anew()
        self.watch_forks()

    def start_anew(self) -> None:
        import requests  # noqa: PLC0415 - only who needs it pays for it

        self._session = requests.Session()

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        answer = self._request(method, path, body, headers, self._timeout)
        return Answer(
            answer.status_code, {name.lower(): value for name, value in answer.headers.items()}, answer.content
        )

    def stream(self, method: str, path: str, body: BinaryIO | None, headers: Mapping[str, str]) -> Flow:
        timeout = (self._timeout, STREAM_SECONDS)
        flow: Flow = self._request(method, path, body or b"", headers, timeout, stream=True).raw
        return flow

    def _request(
        self, method: str, path: str, body: Any, headers: Mapping[str, str], timeout: Any, *, stream: bool = False
    ) -> Any:
        from requests import ReadTimeout, Request  # noqa: PLC0415

        prepared = self._session.prepare_request(Request(method, self._url, data=body, headers=dict(headers)))
        prepared.url = self._url + path  # as it is: requests would resolve a key of ".."
        settings = self._session.merge_environment_settings(self._url, {}, stream, None, None)
        try:
            return self._session.send(prepared, timeout=timeout, allow_redirects=False, **settings)
        except ReadTimeout as error:
            raise NoAnswer(str(error)) from error

    def close(self) -> None:
        self._session.close()
