"""A small HTTP load generator: keep-alive connections that each send the next request after a response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import uvloop


class _Connection(asyncio.Protocol):
    """A connection that parses only as much of HTTP as it takes to find the end of a response."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._next()

    def _next(self) -> None:
        request = self._load.next_request()
        if request is None:
            self._transport.close()
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, found, body = self._seen.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(body) >= length:
            self._seen = b""
            self._load.answered(head[9:12])
            self._next()

    def connection_lost(self, _error: Exception | None) -> None:
        self._load.lost()


class _Load:
    def __init__(self, request: Callable[[int], bytes], count: int, connections: int) -> None:
        self._request, self._count, self._open = request, count, connections
        self.sent = 0
        self.statuses: dict[str, int] = {}
        self.done = asyncio.get_running_loop().create_future()

    def next_request(self) -> bytes | None:
        if self.sent == self._count:
            return None
        self.sent += 1
        return self._request(self.sent)

    def answered(self, status: bytes) -> None:
        self.statuses[status.decode()] = self.statuses.get(status.decode(), 0) + 1

    def lost(self) -> None:
        self._open -= 1
        if not self._open:
            self.done.set_result(None)


def requests_per_second(
    port: int, request: Callable[[int], bytes], *, count: int = 4000, connections: int = 16
) -> float:
    """The rate at which `count` requests are answered; every response must be a 200."""

    async def run() -> float:
        loop = asyncio.get_running_loop()
        load = _Load(request, count, connections)
        started = time.perf_counter()
        for _ in range(connections):
            await loop.create_connection(lambda: _Connection(load), "127.0.0.1", port)
        await load.done
        took = time.perf_counter() - started
        if load.statuses != {"200": count}:
            raise SystemExit(f"the server on port {port} answered {load.statuses}")
        return count / took

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def http(method: str, path: str, body: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
