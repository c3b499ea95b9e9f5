"""The wire against servers that answer in every legal way, and in some that are not."""

from __future__ import annotations

import http.server
import socket
import threading
import time
import urllib.request
from contextlib import closing

import pytest

from scrubjay import Memory, Unavailable
from scrubjay.http_backend import HttpBackend
from scrubjay.wire import open_wire


class Scripted:
    """A server that says what it is told to, whatever it is asked."""

    def __init__(self, *answers: bytes, keep: bool = False) -> None:
        self._keep = keep
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.requests: list[bytes] = []
        self._answers = iter(answers)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for answer in self._answers:
            connection, _ = self._listener.accept()
            self.connections += 1
            with connection:
                self.requests.append(connection.recv(65536))
                connection.sendall(answer)
                for again in self._answers if self._keep else ():
                    self.requests.append(connection.recv(65536))
                    connection.sendall(again)

    def close(self) -> None:
        self._listener.close()
        self._thread.join(timeout=10)


@pytest.fixture
def scripted():
    servers = []

    def make(*answers: bytes, **options: bool) -> Scripted:
        servers.append(Scripted(*answers, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


LEGAL = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "chunked": b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: x\r\n\r\n",
    "until the end": b"HTTP/1.1 200 OK\r\n\r\nhello",
    "old": b"HTTP/1.0 200 OK\nContent-Length: 5\n\nhello",
    "without a reason": b"HTTP/1.1 200\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
}


@pytest.mark.parametrize("kind", LEGAL)
def test_every_legal_answer_is_understood(scripted, kind):
    wire = open_wire(scripted(LEGAL[kind]).url, 5)
    answer = wire.send("GET", "/", b"", {})
    assert (answer.status, answer.data) == (200, b"hello")
    wire.close()


def test_a_connection_is_used_again(scripted):
    server = scripted(LEGAL["length"], LEGAL["length"], keep=True)
    wire = open_wire(server.url + "/mounted/", 5)
    assert [wire.send("PUT", "/x", b"body", {"A": "b"}).data for _ in range(2)] == [b"hello"] * 2
    wire.close()
    assert server.connections == 1
    assert server.requests[0].startswith(b"PUT /mounted/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert server.requests[0].endswith(b"\r\nContent-Length: 4\r\nA: b\r\n\r\nbody")


def test_a_connection_that_was_closed_meanwhile_is_not(scripted):
    server = scripted(LEGAL["length"], LEGAL["length"])
    wire = open_wire(server.url, 5)
    for _ in range(2):
        assert wire.send("GET", "/", b"", {}).data == b"hello"
        time.sleep(0.1)  # the end of the connection arrives
    wire.close()
    assert server.connections == 2


ILLEGAL = {
    "nothing": b"",
    "half a header": b"HTTP/1.1 200 OK\r\nContent-",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "no number": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
    "half a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhe",
    "an endless header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
    "no JSON": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "somebody else's error": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\n\r\nhello",
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("kind", ILLEGAL)
def test_everything_else_is_unavailable(scripted, kind):
    with Memory("ns", url=scripted(ILLEGAL[kind]).url) as memory, pytest.raises(Unavailable, match=r"http://127\."):
        memory.get("k")


def test_a_long_call_to_somebody_else_is_unavailable_too(scripted):
    with (
        closing(HttpBackend(scripted(LEGAL["length"]).url, 5)) as server,
        pytest.raises(Unavailable, match="is it a Scrubjay server"),
    ):
        server.erase("ns")


def test_a_server_that_says_nothing_is_given_up_after_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Memory("ns", url=url, timeout=0.2) as memory, pytest.raises(Unavailable, match="timed out"):
            memory.get("k")


class Proxy(http.server.BaseHTTPRequestHandler):
    seen: list[str] = []  # noqa: RUF012 - shared by design

    def log_message(self, *_words) -> None:
        pass

    def do_PUT(self) -> None:
        self.forward()

    def do_GET(self) -> None:
        self.forward()

    def forward(self) -> None:
        """Names that the proxy knows and this machine does not: scrubjay.test is the server behind it."""
        self.seen.append(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = self.path.replace("http://scrubjay.test", self.server.behind)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        request = urllib.request.Request(url, body or None, headers, method=self.command)
        with urllib.request.urlopen(request) as answer:
            data = answer.read()
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)


def test_a_proxy_in_the_environment_is_used_but_never_for_this_machine(server, monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        proxy.behind = server.url
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        monkeypatch.setattr(urllib.request, "_opener", urllib.request.build_opener(urllib.request.ProxyHandler({})))
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with Memory("proxied", url="http://scrubjay.test") as memory:
            memory.set("k", 1)
            assert memory.get("k") == 1
        assert Proxy.seen == ["http://scrubjay.test/v1/namespaces/proxied/items/k"] * 2
        with Memory("proxied", url=server.url) as memory:
            assert memory.get("k") == 1
        assert len(Proxy.seen) == 2
        proxy.shutdown()
