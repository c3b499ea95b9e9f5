"""The transports against servers that respond in every legal way, and in some illegal ones."""

from __future__ import annotations

import http.server
import socket
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from scrubjay import InvalidInput, Memory, Unavailable, commands
from scrubjay.http import HttpExecutor
from scrubjay.settings import memory_settings
from scrubjay.transport import ConnectionPool, ResponseLost, Route, open_transport, start_hint


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
            with connection, suppress(OSError):  # the client may hang up in the middle of an answer
                self.requests.append(connection.recv(65536))
                connection.sendall(answer)
                for again in self._answers if self._keep else ():
                    self.requests.append(connection.recv(65536))
                    connection.sendall(again)

    def close(self) -> None:
        self._listener.close()
        self._thread.join(timeout=60)


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


FOUND = b'HTTP/1.1 200 OK\r\nScrubjay-Version: 1\r\nContent-Length: 11\r\n\r\n{"value":1}'


@pytest.mark.parametrize("kind", LEGAL)
def test_every_legal_answer_is_understood(scripted, kind):
    transport = open_transport(scripted(LEGAL[kind]).url, 60)
    answer = transport.send("GET", "/", b"", {})
    assert (answer.status, answer.data) == (200, b"hello")
    transport.close()


def test_a_connection_is_used_again(scripted):
    server = scripted(LEGAL["length"], LEGAL["length"], keep=True)
    transport = open_transport(server.url + "/mounted/", 60)
    assert [transport.send("PUT", "/x", b"body", {"A": "b"}).data for _ in range(2)] == [b"hello"] * 2
    transport.close()
    assert server.connections == 1
    assert server.requests[0].startswith(b"PUT /mounted/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert server.requests[0].endswith(b"\r\nContent-Length: 4\r\nA: b\r\n\r\nbody")


def test_memories_of_one_server_share_connections_whatever_their_keys_and_timeouts(scripted):
    server = scripted(*[FOUND] * 3, keep=True)
    memories = [
        Memory("a", url=server.url, api_key="first"),
        Memory("b", url=server.url, timeout=50),
        Memory("c", url=server.url.replace("//", "//user:password@")),
    ]
    assert [memory.get("k") for memory in memories] == [1] * 3
    for memory in memories:
        memory.close()
    assert server.connections == 1
    assert [b"X-API-Key: first" in request for request in server.requests] == [True, False, False]
    assert [b"Authorization" in request for request in server.requests] == [False, False, True]


def test_the_last_memory_of_a_server_closes_its_connections():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first, second = (Memory("ns", url=f"http://127.0.0.1:{listener.getsockname()[1]}") for _ in range(2))
        with ThreadPoolExecutor(1) as threads:
            found = threads.submit(first.get, "k")
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(FOUND)
                assert found.result(60) == 1
                first.close()
                found = threads.submit(second.get, "k")
                assert b"/items/k" in connection.recv(65536), "the other Memory uses the connection"
                connection.sendall(FOUND)
                assert found.result(60) == 1
                second.close()
                assert connection.recv(65536) == b""


def test_a_call_after_the_close_leaves_no_connection_open(scripted):
    server = scripted(LEGAL["length"], LEGAL["length"])
    transport = open_transport(server.url, 60)
    transport.close()
    for _ in range(2):
        assert transport.send("GET", "/", b"", {}).data == b"hello"
    assert server.connections == 2


def test_a_pool_keeps_the_connections_that_were_used_last():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        pool = ConnectionPool(Route("http", host, port, None, None, None), max_idle=2)
        opened = [pool.take(60)[0] for _ in range(5)]
        for connection in opened:
            pool.put_back(connection)
        assert [connection.fileno() >= 0 for connection in opened] == [False, False, False, True, True]
        assert pool.take(60) == (opened[-1], True)
        opened[-1].close()


def test_another_proxy_or_other_authorities_need_other_connections(monkeypatch):
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    used = []
    for variable, value in [("no_proxy", ""), ("https_proxy", "http://p.test"), ("REQUESTS_CA_BUNDLE", "/ca.pem")]:
        monkeypatch.setenv(variable, value)
        used += [open_transport(url, 60) for url in ("https://scrubjay.test", "https://scrubjay.test:8787")]
    assert len({id(transport._pool) for transport in used}) == 6


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on a process's files")
def test_a_process_with_too_many_files_is_told_so(tmp_path):
    import resource

    with Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox.db") as memory:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            with pytest.raises(Unavailable) as read:
                memory.get("k")
            with pytest.raises(Unavailable) as written:
                memory.set("k", 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    cause = "cannot reach http://127.0.0.1:9: [Errno 24] Too many open files"
    advice = "; close some of the files and connections of this program, or raise their limit with `ulimit -n`"
    assert str(read.value) == cause + advice
    assert "the outbox" in str(written.value)
    assert str(written.value).count(advice) == 2


def test_a_connection_that_was_closed_meanwhile_is_not(scripted):
    server = scripted(LEGAL["length"], LEGAL["length"])
    transport = open_transport(server.url, 60)
    for _ in range(2):
        assert transport.send("GET", "/", b"", {}).data == b"hello"
        time.sleep(0.1)  # the end of the connection arrives
    transport.close()
    assert server.connections == 2


@pytest.mark.parametrize(("method", "is_repeated"), [("GET", True), ("POST", False)])
def test_a_read_is_repeated_if_an_idle_connection_turns_out_to_be_closed(method, is_repeated):
    """A proxy may tell the end of a connection only when the next request comes."""
    connections = []

    def serve(listener: socket.socket) -> None:
        for _ in range(1 + is_repeated):
            connection, _ = listener.accept()
            connections.append(connection)
            with connection:
                connection.recv(65536)
                connection.sendall(LEGAL["length"])
                connection.recv(65536)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        transport = open_transport(f"http://127.0.0.1:{listener.getsockname()[1]}", 60)
        assert transport.send(method, "/", b"", {}).data == b"hello"
        if is_repeated:
            assert transport.send(method, "/", b"", {}).data == b"hello"
        else:
            with pytest.raises(ResponseLost):
                transport.send(method, "/", b"", {})
        transport.close()
        thread.join(60)
        assert len(connections) == 1 + is_repeated
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody tried a connection more
            listener.accept()


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
        closing(HttpExecutor(memory_settings(url=scripted(LEGAL["length"]).url))) as server,
        pytest.raises(Unavailable, match="not as a Scrubjay server"),
    ):
        server.erase("ns", dict)


def test_a_server_that_says_nothing_is_given_up_after_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Memory("ns", url=url, timeout=0.2) as memory, pytest.raises(Unavailable, match="timed out") as told:
            memory.get("k")
    assert str(told.value).endswith("set SCRUBJAY_TIMEOUT to more seconds (in Python: timeout=)")


@pytest.mark.parametrize("way", ["direct", "credentials", "proxy"])
@pytest.mark.parametrize("part", ["head", "body"])
def test_an_answer_that_drips_is_given_up_after_the_timeout(part, way, monkeypatch):
    """A byte comes more often than the time-out, for ever."""
    begun = b"HTTP/1.1 200 OK\r\nX: " if part == "head" else b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
    given_up = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(begun)
            for _ in range(1000):  # ten seconds, if nobody hangs up
                if given_up.wait(0.01):
                    return
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        if way == "proxy":
            monkeypatch.setenv("http_proxy", f"http://{address}")
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
        urls = {"direct": f"http://{address}", "credentials": f"http://u:p@{address}", "proxy": "http://scrubjay.test"}
        transport = open_transport(urls[way], 0.3)
        with pytest.raises(ResponseLost, match="timed out"):
            transport.send("GET", "/", b"", {})
        given_up.set()
        thread.join(timeout=120)
        transport.close()


@pytest.mark.parametrize(("size", "pause", "count", "is_whole"), [(120, 0.02, 200, True), (1_000_000, 60, 2, False)])
def test_an_answer_may_be_slow_but_not_silent(size, pause, count, is_whole):
    """5,000 bytes a second without a pause of the timeout; then a megabyte at once, and nothing more."""
    given_up = threading.Event()

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {size * count}\r\n\r\n".encode())
            for _ in range(count):
                connection.sendall(b"x" * size)
                if given_up.wait(pause):
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        transport = open_transport(f"http://127.0.0.1:{listener.getsockname()[1]}", 2)
        if is_whole:
            assert len(transport.send("GET", "/", b"", {}).data) == size * count
        else:
            with pytest.raises(ResponseLost, match="timed out"):
                transport.send("GET", "/", b"", {})
            assert thread.is_alive(), "it was given up before the server went on"
        given_up.set()
        thread.join(timeout=120)
        transport.close()


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
            self.send_header("Scrubjay-Version", answer.headers["Scrubjay-Version"])
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


def test_credentials_for_a_server_and_for_a_proxy_are_sent_to_each(scripted, monkeypatch):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    server = scripted(answer)
    open_transport(server.url.replace("//", "//user%40x:p%3Aw@"), 5).send("GET", "/k", b"", {})
    assert b"\r\nAuthorization: Basic dXNlckB4OnA6dw==\r\n" in server.requests[0]
    assert b"Host: 127.0.0.1:" in server.requests[0]
    proxy = scripted(answer)
    monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//me:pw@"))
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    open_transport("http://scrubjay.test/mounted", 5).send("GET", "/k", b"", {})
    assert proxy.requests[0].startswith(b"GET http://scrubjay.test/mounted/k HTTP/1.1\r\nHost: scrubjay.test\r\n")
    assert b"\r\nProxy-Authorization: Basic bWU6cHc=\r\n" in proxy.requests[0]


def test_https_goes_through_a_tunnel_of_the_proxy(scripted, monkeypatch):
    proxy = scripted(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
    monkeypatch.setenv("https_proxy", proxy.url.replace("//", "//me:pw@"))
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    with pytest.raises(OSError, match="403"):
        open_transport("https://scrubjay.test", 5).send("GET", "/k", b"", {})
    assert proxy.requests[0].startswith(b"CONNECT scrubjay.test:443 HTTP/1.")
    assert b"Proxy-Authorization: Basic bWU6cHc=" in proxy.requests[0]


def test_a_proxy_of_another_kind_is_refused_with_a_reason(monkeypatch):
    monkeypatch.setenv("http_proxy", "socks5://me:pw@127.0.0.1:1080")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    with pytest.raises(InvalidInput, match=r"socks5://127\.0\.0\.1' is not an http:// proxy") as refused:
        open_transport("http://scrubjay.test", 5)
    assert "pw" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("http://127.0.0.1:8787", "start it with: scrubjay serve"),
        ("http://localhost:9001/v1", "start it with: scrubjay serve --port 9001"),
        ("http://[::1]:9001", "start it with: scrubjay serve --host ::1 --port 9001"),
        ("http://[::1]", "that of `scrubjay serve` is 8787: http://[::1]:8787"),
        ("http://127.0.0.1:", "that of `scrubjay serve` is 8787: http://127.0.0.1:8787"),
        ("http://127.0.0.1/mounted", "that of `scrubjay serve` is 8787: http://127.0.0.1:8787/mounted"),
        ("unix:/tmp/my agents", "start it with: scrubjay serve --socket '/tmp/my agents'"),
        ("unix:/run/scrubjay.sock", "start it with: scrubjay serve --socket /run/scrubjay.sock"),
        ("http://127.0.0.1", "that of `scrubjay serve` is 8787: http://127.0.0.1:8787"),
        ("https://memory.example.com", "check that it is running on memory.example.com"),
    ],
)
def test_the_advice_for_a_server_that_is_not_there_has_its_own_address(url, hint):
    assert start_hint(url).endswith(hint)


def test_a_url_that_is_not_valid_is_shown_without_its_password():
    with pytest.raises(InvalidInput) as refused:
        open_transport("http://user:hunter2@host:port", 5)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        *("mysql://u:secret@h/db", "mysql://h/db?password=secret", "u:secret@h?x=secret", "mysql://u:secret/x@h/db"),
        *(f"http://u:secret{special}x@h" for special in "#?/[\u2100"),
        *("http://u:x/y@secret@h", "u:secret/x@h"),
    ],
)
def test_an_invalid_url_is_named_without_a_password(url):
    with pytest.raises(InvalidInput, match="is not the URL of a server") as raised:
        Memory("ns", url=url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory.test:8787", "write it as http://memory.test:8787"),
        ("http://memory.test:99999", "(Port out of range 0-65535)"),
        ("http://memory.test:0", "(no server has port 0)"),
        ("localhost", "write it as http://localhost"),
        ("[::1]:8787", "write it as http://[::1]:8787"),
        ("http://", "write it like http://127.0.0.1:8787"),
        ("http://ex ample", "(a host name has no spaces or control characters); write it like http://127"),
        ("http://ex\x7fample:80", "(a host name has no spaces or control characters)"),
        ("/tmp/x.db", "a file is given with --path /tmp/x.db, or as path= in Python"),
        ("my notes.db", "a file is given with --path 'my notes.db'"),
        ("http://u:p#q@memory.test", "(special characters of a password are written as %XX)"),
    ],
)
def test_an_invalid_url_is_told_how_to_be_written(url, words):
    with pytest.raises(InvalidInput) as raised:
        Memory("ns", url=url)
    assert words in str(raised.value)


def test_spaces_around_a_url_are_ignored(scripted, monkeypatch):
    server = scripted(ILLEGAL["nothing"], ILLEGAL["nothing"])
    for given in (f" {server.url}\n", None):
        monkeypatch.setenv("SCRUBJAY_URL", f"{server.url} ")
        with Memory("ns", url=given) as memory, pytest.raises(Unavailable, match=f"^{server.url} did not answer"):
            memory.get("k")
    assert memory_settings(url=" postgresql://h/db ").url == "postgresql://h/db"


@pytest.mark.parametrize("key", ["a/b", "..", ".", "ü", "%2e"])
def test_a_request_whose_path_a_proxy_may_change_says_how_it_was_written(scripted, key):
    answer = b"HTTP/1.1 200 OK\r\nScrubjay-Version: 1\r\nETag: 1\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    server = scripted(answer, answer, answer)
    with closing(HttpExecutor(memory_settings(url=f"{server.url}/prefix", timeout=60))) as executor:
        for verb in (commands.GET, commands.CONTAINS):
            with suppress(Unavailable):
                executor.run(verb("ns", key))
        executor.export(key, bytes, lambda *_: None)
    assert len(server.requests) == 3
    for request in server.requests:
        line, *headers = request.decode().split("\r\n")
        path = line.split()[1].removeprefix("/prefix")
        assert f"Scrubjay-Path: {path}" in headers


def test_a_plain_path_is_sent_without_a_header_of_its_own(scripted):
    server = scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    with closing(HttpExecutor(memory_settings(url=server.url, timeout=60))) as executor, suppress(Unavailable):
        executor.run(commands.TAIL("ns", "plain-key", 1))
    assert b"Scrubjay-Path" not in server.requests[0]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(scripted, status):
    head = f"HTTP/1.1 {status} Moved\r\nScrubjay-Version: 1\r\nLocation: /v1/namespaces/other/items/k\r\n"
    server = scripted(*[f"{head}Connection: close\r\nContent-Length: 2\r\n\r\n{{}}".encode()] * 2)
    with closing(HttpExecutor(memory_settings(url=server.url, timeout=60))) as executor:
        for call in (lambda: executor.run(commands.GET("ns", "k")), lambda: executor.erase("ns", dict)):
            with pytest.raises(Unavailable):
                call()
    assert len(server.requests) == 2
