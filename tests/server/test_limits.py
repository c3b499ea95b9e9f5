"""Hostile clients on raw sockets: they are refused or disconnected, and other clients are served."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import select
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

import scrubjay_http
import scrubjay_limits
import scrubjay_server
from harness import AsgiTransport, Server, eventually, issue_key, serving
from scrubjay import Memory, QuotaExceeded, Unauthenticated, Unavailable
from scrubjay.exact_json import MAX_WRITE_ROWS
from scrubjay.settings import server_settings
from scrubjay.validation import MAX_NOTE_BYTES
from scrubjay_http import OFF_LOOP_BYTES
from scrubjay_limits import (
    CHECK_SECONDS,
    MAX_COUNTED_CLIENTS,
    MAX_HEAD_BYTES,
    MIN_BYTES_PER_SECOND,
    SMALL_BODY_BYTES,
    STALL_SECONDS,
    BodyLimit,
    LimitedProtocol,
    RequestLimit,
)

READING_POSTS = ("read", "find", "recall", "context", "inject-context", "search")
"""The last part of a path whose POST only reads."""
ENDLESS_BYTES = 2**26
"""More than the buffers of both sockets hold, so that a client can only send it to a server that reads it."""
HEAD = b"PUT /v1/namespaces/ns/items/k HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
GET = b"GET /v1/namespaces/ns/items/k HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A server that disconnects a stalled client after a second."""
    limits = {"STALL_SECONDS": 1.0, "CHECK_SECONDS": 0.1}
    with serving(tmp_path_factory.mktemp("quick") / "db", "--writes-per-day", "0", limits=limits) as server:
        requests.put(f"{server.url}/v1/namespaces/ns/items/k", json={"value": 1}, timeout=60)
        yield server


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def response_of(client: socket.socket) -> tuple[int, dict]:
    """The status and JSON of the response that closes the connection; (0, {}) if there was none."""
    received = b""
    try:
        while piece := client.recv(65_536):
            received += piece
    except ConnectionResetError:  # it was still sending when the server hung up
        pass
    if not received:
        return 0, {}
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def is_serving(server: Server) -> bool:
    return requests.get(f"{server.url}/v1/namespaces/ns/items/k", timeout=60).status_code in (200, 404)


def memory_of(server: Server) -> int:
    """Bytes of memory that the process uses."""
    status = Path(f"/proc/{server.process.pid}/status")
    if not status.exists():
        pytest.skip("this system has no /proc to read the memory of a process from")
    return int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) * 1024


def sockets_of(server: Server) -> int:
    """How many sockets the process has open."""
    count = 0
    for descriptor in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += str(descriptor.readlink()).startswith("socket:")
    return count


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize("piece", [b"X-%d: y\r\n", b"X: " + b"y" * 1000 + b"\r\n", b"y" * 1000], ids=str)
def test_endless_headers_are_refused(quick, piece):
    with connect(quick) as client:
        client.sendall(HEAD + b"X-Long: ")
        sent = 0
        try:
            while sent < ENDLESS_BYTES:
                sent += client.send(piece * 50)
                time.sleep(0.0005)
        except ConnectionError:
            pass
        status, answer = response_of(client)
    assert (status, answer.get("code")) in ((431, "value_too_large"), (0, None))
    assert sent < ENDLESS_BYTES, "the server went on reading"
    assert is_serving(quick)


def test_a_large_head_in_one_piece_is_refused_and_its_request_not_run(quick):
    with connect(quick) as client:
        client.sendall(HEAD + b"X: " + b"y" * MAX_HEAD_BYTES + b"\r\nContent-Length: 13\r\n\r\n" + b'{"value": 99}')
        status, answer = response_of(client)
    assert (status, answer["code"]) == (431, "value_too_large")
    assert requests.get(f"{quick.url}/v1/namespaces/ns/items/k", timeout=60).json()["value"] == 1


def test_the_most_tags_fit_into_a_url(quick):
    tags = "&".join(f"tag={'%C3%A4' * 150}{i:03}" for i in range(64))
    assert requests.get(f"{quick.url}/v1/namespaces/ns/notes?{tags}", timeout=60).status_code == 200


def test_endless_trailers_are_refused(quick):
    with connect(quick) as client:
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n")
        try:
            for i in range(100_000):
                client.sendall(b"X-%d: y\r\n" % i * 100)
        except ConnectionError:
            i = 0
        assert i == 0, "the server went on reading"
    assert is_serving(quick)


@pytest.mark.parametrize("size", [10, 7000, 400_000])
def test_a_large_body_in_pieces_of_any_size_is_read(quick, size):
    body = b'{"value":"' + b"x" * 300_000 + b'"}'
    pieces = (body[start : start + size] for start in range(0, len(body), size))
    with connect(quick) as client:
        client.sendall(HEAD.replace(b"/k ", b"/body ") + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.sendall(b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n")
        assert response_of(client)[0] == 200


def test_an_endless_chunked_body_is_refused_without_using_memory(quick):
    before = memory_of(quick)
    piece = b"100000\r\n" + b"x" * 2**20 + b"\r\n"
    with connect(quick) as client:
        client.sendall(HEAD + b'Transfer-Encoding: chunked\r\n\r\n2\r\n{"\r\n')
        try:
            for _ in range(200):
                client.sendall(piece)
        except ConnectionError:
            pass
    assert is_serving(quick)
    assert memory_of(quick) - before < 120 * 2**20


def test_concurrent_large_bodies_use_limited_memory(tmp_path):
    """Each alone is allowed, and none is finished."""
    with serving(tmp_path / "db") as server, contextlib.ExitStack() as open_sockets:
        assert is_serving(server)
        before = memory_of(server)
        clients = [open_sockets.enter_context(connect(server)) for _ in range(14)]
        for client in clients:
            client.sendall(HEAD + b"Content-Length: 34000000\r\n\r\n")
            client.sendall(b" " * 33_000_000)
        assert statuses_of(clients, 4).count(503) >= 4
        assert memory_of(server) - before < 500 * 2**20
        open_sockets.close()
        assert requests.put(f"{server.url}/v1/namespaces/ns/items/k", json={"value": 1}, timeout=60).status_code == 200


def with_key(head: bytes, key: str) -> bytes:
    return head + f"X-API-Key: {key}\r\n".encode()


def statuses_of(clients: list[socket.socket], count: int = 0) -> list[int]:
    """The status of each client's response, 0 if it has none; waits until so many have one, and half a second more."""
    eventually(lambda: len(select.select(clients, (), (), 0)[0]) >= count)
    time.sleep(0.5)
    answered = select.select(clients, (), (), 0)[0]
    return [int(client.recv(10_000).split()[1]) if client in answered else 0 for client in clients]


def test_a_client_with_many_unfinished_bodies_blocks_only_itself(tmp_path):
    """Even with a read-only key: a read may have a body, too."""
    path = tmp_path / "db"
    reader, writer = issue_key(path, "reader", "--read-only"), issue_key(path, "writer")
    asking = HEAD.replace(b"PUT ", b"POST ").replace(b"/items/k ", b"/read ")
    limits = {"MAX_BUFFERED_BYTES": 2**20}
    with serving(path, "--writes-per-day", "0", limits=limits) as server, contextlib.ExitStack() as open_sockets:
        clients = [open_sockets.enter_context(connect(server)) for _ in range(16)]
        for client in clients:
            client.sendall(with_key(asking, reader) + b"Content-Length: 1000000\r\n\r\n" + b" " * 190_000)
        assert sorted(statuses_of(clients, 14)) == [0, 0] + [503] * 14, "a quarter of the memory is two of these"
        target, headers = f"{server.url}/v1/namespaces/ns/items/k", {"X-API-Key": writer}
        for size in (1, 60_000, 300_000):
            assert requests.put(target, json={"value": "x" * size}, headers=headers, timeout=60).status_code == 200


def test_a_small_body_is_read_when_large_ones_use_all_the_memory(tmp_path):
    path = tmp_path / "db"
    keys = [issue_key(path, f"bot {n}") for n in range(5)]
    limits = {"MAX_BUFFERED_BYTES": 2**20}
    with serving(path, "--writes-per-day", "0", limits=limits) as server, contextlib.ExitStack() as open_sockets:
        for key in keys[:4]:
            client = open_sockets.enter_context(connect(server))
            client.sendall(with_key(HEAD, key) + b"Content-Length: 1000000\r\n\r\n" + b" " * 320_000)
            assert statuses_of([client]) == [0]
        target, headers = f"{server.url}/v1/namespaces/ns/items/k", {"X-API-Key": keys[4]}
        for size, expected in ((60_000, 200), (200_000, 503), (60_000, 200)):
            answer = requests.put(target, json={"value": "x" * size}, headers=headers, timeout=60)
            assert answer.status_code == expected


bodies = st.lists(st.tuples(st.sampled_from("abcde"), st.lists(st.integers(1, 400_000), max_size=4)), max_size=12)


@given(bodies)
def test_memory_for_bodies_is_limited_and_released(bodies):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scrubjay_limits, "MAX_BUFFERED_BYTES", 2**20)
        limit = BodyLimit()
        with contextlib.ExitStack() as unfinished:
            for client, sizes in bodies:
                grow, size = unfinished.enter_context(limit.hold(client)), 0
                before = dict(limit._buffered)
                for more in sizes:
                    size += more
                    try:
                        grow(size)
                    except Unavailable:
                        assert size > SMALL_BODY_BYTES
                        unfinished.close()  # as when the request has been refused: all of these end here
                        break
                    assert limit._buffered.total() <= 2**20
                    assert max(limit._buffered.values(), default=0) <= 2**18
                    assert {c: n for c, n in limit._buffered.items() if c != client} == {
                        c: n for c, n in before.items() if c != client
                    }
        assert not limit._buffered


@pytest.mark.parametrize("path", ["items/large", "values?limit=1"])
def test_a_client_that_does_not_read_large_responses_fills_no_memory_and_blocks_only_itself(tmp_path, path):
    key, other = (issue_key(tmp_path / "db", name) for name in ("reader", "other"))
    with Memory("ns", path=str(tmp_path / "db"), durability="fast") as memory:
        memory.set("large", "x" * 15_000_000)
    with serving(tmp_path / "db") as server, contextlib.ExitStack() as sockets:
        url, statuses = f"{server.url}/v1/namespaces/ns/{path}", []
        for _ in range(20):
            unread = sockets.enter_context(connect(server))
            unread.sendall(b"GET /v1/namespaces/ns/%b HTTP/1.1\r\nHost: x\r\n" % path.encode())
            unread.sendall(b"X-API-Key: %b\r\n\r\n" % key.encode())
            statuses.append(unread.recv(12)[-3:])
        assert set(statuses[:4]) == {b"200"}
        assert set(statuses[6:]) == {b"503"}
        refused = requests.get(url, headers={"X-API-Key": key}, timeout=60)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        small = requests.get(f"{server.url}/v1/namespaces/ns/items", headers={"X-API-Key": key}, timeout=60)
        assert small.json() == {"keys": ["large"]}
        with Memory("ns", url=server.url, api_key=key) as memory:
            assert memory.remember("word " * 20_000).times == 1, "a write that has happened is answered"
        assert len(requests.get(url, headers={"X-API-Key": other}, timeout=60).content) > 15_000_000
        sockets.close()
        eventually(lambda: requests.get(url, headers={"X-API-Key": key}, timeout=60).status_code == 200)


def test_a_body_shorter_than_its_content_length_times_out(quick):
    with connect(quick) as client:
        client.sendall(HEAD + b'Content-Length: 1000\r\n\r\n{"value": 5}')
        status, answer = response_of(client)
    assert (status, answer["code"]) == (408, "unavailable")
    assert requests.get(f"{quick.url}/v1/namespaces/ns/items/k", timeout=60).json()["value"] == 1


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 3\r\n\r\n{}X",
        b"Content-Length: -1\r\n\r\n{}",
        b"Content-Length: 1e9\r\n\r\n{}",
        b"Content-Length: 99999999999999999999999\r\n\r\n{}",
        b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
        b"Bad Header\r\n\r\n",
        b"X: a\x00b\r\n\r\n",
    ],
)
def test_an_invalid_head_is_refused_with_json(quick, headers):
    with connect(quick) as client:
        client.sendall(HEAD + b"Connection: close\r\n" + headers)
        status, answer = response_of(client)
    assert status == 400
    assert set(answer) == {"code", "detail"}
    assert is_serving(quick)


# ---------------------------------------------------------------- seconds


@pytest.mark.parametrize("slow", [HEAD * 100, b"\r\n" * 500], ids=["headers", "line breaks"])
def test_a_head_sent_byte_by_byte_is_disconnected(quick, slow):
    with connect(quick) as client:
        for i in range(200):
            try:
                client.sendall(slow[i : i + 1])
            except ConnectionError:
                break
            if i % 10 == 0:
                assert is_serving(quick)
            time.sleep(0.05)
        else:
            pytest.fail("it was served for ten times the limit")


def test_a_body_sent_byte_by_byte_is_refused_with_408(quick):
    with connect(quick) as client:
        client.sendall(HEAD + b"Content-Length: 100000\r\n\r\n")
        client.settimeout(0.05)
        received = b""
        for _ in range(200):
            try:
                client.sendall(b"x")
                received = client.recv(10_000)
                break
            except TimeoutError:
                assert is_serving(quick)
    assert received.startswith(b"HTTP/1.1 408 ")
    assert b'"code": "unavailable"' in received


def test_a_body_that_starts_fast_may_not_stall_for_longer(quick):
    with connect(quick) as client:
        client.sendall(HEAD + b"Content-Length: 2000000\r\n\r\n ")
        for _ in range(10):  # half a megabyte, while the server looks at it several times
            time.sleep(0.1)
            client.sendall(b" " * 50_000)
        status, answer = response_of(client)
    assert (status, answer["code"]) == (408, "unavailable")


def test_a_slow_but_steady_body_is_read(quick):
    """For three times STALL_SECONDS, at twice the minimum rate."""
    body = b'{"value":"' + b"x" * 24_000 + b'"}'
    head = HEAD.replace(b"/k ", b"/body ") + b"Connection: close\r\n"

    def send_steadily() -> bool:
        """False if this process could not keep the rate, because the machine is busy."""
        with connect(quick) as client:
            client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body))
            started, is_steady = time.monotonic(), True
            for start in range(0, len(body), 800):
                with contextlib.suppress(ConnectionError):  # it was too slow
                    client.sendall(body[start : start + 800])
                time.sleep(0.1)
                is_steady &= time.monotonic() - started < start / MIN_BYTES_PER_SECOND + 0.5
            status = response_of(client)[0]
        assert status == 200 or not is_steady
        return is_steady

    eventually(send_steadily)


def test_a_check_that_runs_late_does_not_count_against_the_client():
    """A busy server looks late, and may not have read yet what the client has sent."""
    now, disconnected, body = 1000.0, [], object()
    protocol = object.__new__(LimitedProtocol)
    protocol.loop = SimpleNamespace(time=lambda: now, call_later=lambda *_: None)
    protocol._awaited, protocol._due, protocol._progress, protocol._check_at = None, 0.0, 0, 0.0
    protocol._is_idle = False
    protocol._awaited_from_client = lambda: (body, 0)
    protocol._disconnect_stalled = lambda: disconnected.append(now)
    protocol._check_progress()
    now += 10 * STALL_SECONDS
    protocol._check_progress()
    assert not disconnected
    late_at = now
    while not disconnected:
        now += CHECK_SECONDS
        protocol._check_progress()
    assert STALL_SECONDS - 2 * CHECK_SECONDS <= disconnected[0] - late_at <= STALL_SECONDS + CHECK_SECONDS


def test_a_response_that_is_not_read_is_dropped(quick):
    """With its connection. How soon the process gives the memory back to the system is up to its allocator."""
    requests.put(f"{quick.url}/v1/namespaces/ns/items/large", json={"value": "x" * 15_000_000}, timeout=60)
    memory_of(quick)  # skips where there is no /proc
    sockets = sockets_of(quick)
    clients = [connect(quick) for _ in range(20)]
    for client in clients:
        client.sendall(GET.replace(b"/k ", b"/large "))
    for client in clients:
        with contextlib.suppress(ConnectionError):  # it was dropped already
            client.recv(1, socket.MSG_PEEK)  # it is being answered
    eventually(lambda: sockets_of(quick) <= sockets)
    assert is_serving(quick)
    for client in clients:
        client.close()


def test_a_slowly_read_stream_is_complete(quick):
    """Slower than the disk, and for longer than a response that is not read is kept."""
    for n in range(20):
        requests.put(f"{quick.url}/v1/namespaces/stream/items/{n}", json={"value": "x" * 10**6}, timeout=60)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        client.connect(("127.0.0.1", quick.port))
        client.sendall(b"GET /v1/backup HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        received = bytearray()
        while piece := client.recv(2**16):
            received += piece
            time.sleep(len(piece) / 5e6)
    head, _, body = received.partition(b"\r\n\r\n")
    assert len(body) == int(re.search(rb"content-length: (\d+)", head)[1])


def test_a_silent_connection_is_closed_and_a_used_one_kept(quick):
    with connect(quick) as silent, connect(quick) as talking:
        talking.sendall(GET)
        time.sleep(0.2)
        assert talking.recv(10_000).startswith(b"HTTP/1.1 200")
        assert silent.recv(10) == b""
        talking.sendall(GET)
        assert talking.recv(10_000).startswith(b"HTTP/1.1 200")


# ---------------------------------------------------------------- connections


LONG_POLL = b"GET /v1/namespaces/ns/changes?after=0&wait=60 HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n"


def test_an_idle_connection_is_replaced_and_a_busy_one_is_not(tmp_path):
    path = tmp_path / "db"
    *keys, third = [issue_key(path, name) for name in ("one", "two", "three")]
    with serving(path, limits={"MAX_CONNECTIONS": 4}) as server, contextlib.ExitStack() as open_sockets:
        for _ in range(4):
            idle = open_sockets.enter_context(connect(server))
            idle.sendall(with_key(GET[:-2], keys[0]) + b"\r\n")
            assert idle.recv(10_000).startswith(b"HTTP/1.1 404")
        waiting = []
        for key in keys * 2:
            waiting.append(open_sockets.enter_context(connect(server)))
            waiting[-1].sendall(with_key(GET[:-2], key) + b"\r\n")
            assert waiting[-1].recv(10_000).startswith(b"HTTP/1.1 404"), "the server knows its key"
            waiting[-1].sendall(with_key(LONG_POLL, key) + b"\r\n")
        assert statuses_of(waiting) == [0] * 4
        with connect(server) as late:
            status, answer = response_of(late)
        assert (status, answer["code"]) == (503, "unavailable")
        assert "4 connections" in answer["detail"]
        assert statuses_of(waiting) == [0] * 4
        waiting[0].close()
        listed = functools.partial(requests.get, f"{server.url}/v1/namespaces", timeout=60)
        eventually(lambda: listed(headers={"X-API-Key": third}).ok)


HEADS = {
    "silent": b"",
    "half a head": HEAD,
    "no key": GET,
    "a body without a key": HEAD + b"Content-Length: 1000\r\n\r\n{",
    "a probe": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}


@pytest.mark.parametrize("sent", HEADS.values(), ids=HEADS)
def test_many_connections_without_a_key_do_not_block_clients_with_one(tmp_path, sent):
    path = tmp_path / "db"
    key = issue_key(path, "boss", "--admin")
    with serving(path, limits={"MAX_CONNECTIONS": 20}) as server, contextlib.ExitStack() as open_sockets:
        waiting = open_sockets.enter_context(connect(server))
        waiting.sendall(with_key(LONG_POLL, key) + b"\r\n")
        time.sleep(0.2)
        for _ in range(10):
            for _ in range(10):
                with contextlib.suppress(ConnectionError):
                    open_sockets.enter_context(connect(server)).sendall(sent)
            answer = requests.get(f"{server.url}/v1/namespaces", timeout=60, headers={"X-API-Key": key})
            assert answer.status_code == 200
        assert statuses_of([waiting]) == [0], "a connection that is being served is not replaced"


@pytest.mark.parametrize("then", ["", "X"], ids=["idle", "half a head"])
def test_many_connections_with_one_key_do_not_block_other_keys(tmp_path, then):
    """Neither with unfinished requests nor with idle connections."""
    path = tmp_path / "db"
    greedy, other = issue_key(path, "greedy"), issue_key(path, "other")
    head = with_key(HEAD, greedy) + b"Content-Length: 1000\r\n\r\n{"
    with serving(path, limits={"MAX_CONNECTIONS": 8}) as server, contextlib.ExitStack() as open_sockets:
        clients = [open_sockets.enter_context(connect(server)) for _ in range(8)]
        for client in clients:
            client.sendall(head)
        statuses = statuses_of(clients, 4)
        assert sorted(statuses) == [0] * 4 + [503] * 4
        for client, status in zip(clients, statuses, strict=True):
            client.sendall(then.encode() if status else b"")
        for _ in range(10):
            answer = requests.get(f"{server.url}/v1/namespaces", timeout=60, headers={"X-API-Key": other})
            assert answer.status_code == 200


# ---------------------------------------------------------------- requests a minute


def test_requests_a_minute_are_limited_and_probes_are_not(tmp_path):
    with serving(tmp_path / "db", "--requests-per-minute", "3") as server, Memory("ns", url=server.url) as memory:
        assert "3 requests a minute for each client" in server.banner
        for i in range(3):
            memory.set("k", i)
        with pytest.raises(QuotaExceeded, match="3 requests a minute") as refused:
            memory.get("k")
        assert 0 < refused.value.retry_after <= 20
        answer = requests.get(f"{server.url}/v1/namespaces", timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
        assert 0 < int(answer.headers["Retry-After"]) <= 20
        for path in ("health", "ready"):
            assert requests.get(f"{server.url}/{path}", timeout=60).status_code == 200


def test_each_api_key_has_its_own_limit_and_wrong_keys_count_for_their_address(tmp_path):
    keys = [issue_key(tmp_path / "db", name) for name in ("one", "two")]
    with serving(tmp_path / "db", "--requests-per-minute", "5") as server:
        one, two, wrong = (Memory("ns", url=server.url, api_key=key) for key in (*keys, f"{keys[0]}x"))
        for _ in range(5):
            one.get("k")
        with pytest.raises(QuotaExceeded):
            one.get("k")
        two.get("k")
        for _ in range(5):
            with pytest.raises(Unauthenticated):
                wrong.get("k")
        with pytest.raises(QuotaExceeded):
            wrong.get("k")
        two.get("k")  # a right key from the same address is not limited
        for memory in (one, two, wrong):
            memory.close()


def test_workers_share_the_limit(tmp_path):
    with serving(tmp_path / "db", "--workers", "2", "--requests-per-minute", "20") as server:
        started = time.monotonic()
        answers = [requests.get(f"{server.url}/v1/namespaces", timeout=60) for _ in range(60)]
        came_back = (time.monotonic() - started) * 20 / 60
        banner = server.banner
    statuses = [answer.status_code for answer in answers]
    assert 10 <= statuses.count(200) <= 20 + came_back
    assert set(statuses) == {200, 429}
    refused = next(answer.json()["detail"] for answer in answers if answer.status_code == 429)
    for text in (banner, refused):
        assert "20 requests a minute (10 in each of 2 workers)" in text


def test_the_request_limit_refills_and_forgets_the_least_recent_client():
    now = [1000.0]
    limit = RequestLimit(60, clock=lambda: now[0])
    for _ in range(60):
        limit.take("a")
    with pytest.raises(QuotaExceeded) as refused:
        limit.take("a")
    assert refused.value.retry_after == 1
    now[0] += 2
    limit.take("a")
    limit.take("a")
    with pytest.raises(QuotaExceeded):
        limit.check("a")
    for i in range(MAX_COUNTED_CLIENTS * 2):
        limit.take(f"10.0.0.{i}")
    assert len(limit._full_at) == MAX_COUNTED_CLIENTS
    limit.take("a")


# ---------------------------------------------------------------- watches at once


def watch(server: Server, **options) -> requests.Response:
    return requests.get(f"{server.url}/v1/namespaces/ns/changes", stream=True, timeout=60, **options)


def watch_when_possible(server: Server, **options) -> requests.Response:
    """Retries: the server notices a closed connection a moment later."""
    give_up_at = time.monotonic() + 120
    while (answer := watch(server, **options)).status_code == 429 and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert answer.status_code == 200
    return answer


def test_a_clients_open_watches_are_limited(tmp_path):
    wait = {"headers": {"Accept": "application/json"}, "params": {"wait": 60, "after": 0}}
    with serving(tmp_path / "db", "--max-watches", "2") as server, Memory("ns", url=server.url) as memory:
        with watch(server) as stream, ThreadPoolExecutor() as pool:
            waiting = pool.submit(lambda: watch_when_possible(server, **wait).json())
            while watch(server, params={"after": 99}).status_code == 409:  # until it waits
                time.sleep(0.05)
            for refused in (watch(server), watch(server, **wait)):
                assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
                assert "SCRUBJAY_MAX_WATCHES" in refused.json()["detail"]
            with pytest.raises(QuotaExceeded, match="watches open"):
                next(memory.watch())
            assert is_serving(server)
            assert watch(server, headers=wait["headers"]).json()["cursor"] == 0, (
                "a request that does not wait is not counted"
            )
            memory.set("k", 1)
            assert [change["key"] for change in waiting.result()["changes"]] == ["k"]
            watch_when_possible(server).close()
            assert stream.status_code == 200
        with watch_when_possible(server), watch_when_possible(server):
            assert watch(server).status_code == 429


def test_a_watch_whose_client_has_hung_up_is_not_counted(tmp_path):
    short = {"headers": {"Accept": "application/json"}, "params": {"wait": 0.01, "after": 0}}
    with serving(tmp_path / "db", "--max-watches", "2") as server:
        with contextlib.ExitStack() as clients:

            def is_refused_beside_another() -> bool:
                clients.enter_context(connect(server)).sendall(LONG_POLL + b"\r\n")
                return watch(server, **short).status_code == 429

            eventually(is_refused_beside_another)
        eventually(lambda: watch(server, **short).status_code == 200, seconds=50)  # they would wait for 60


def test_a_refused_watch_is_not_counted(tmp_path):
    with serving(tmp_path / "db", "--max-watches", "1") as server:
        for _ in range(3):
            assert watch(server, params={"after": 99}).status_code == 409
        with watch(server) as stream:
            assert stream.status_code == 200


def test_each_api_key_has_its_own_limit_of_watches(tmp_path):
    keys = [issue_key(tmp_path / "db", name) for name in ("one", "two")]
    with serving(tmp_path / "db", "--max-watches", "1") as server, contextlib.ExitStack() as streams:
        for key in keys:
            stream = streams.enter_context(watch(server, headers={"X-API-Key": key}))
            assert stream.status_code == 200
            assert watch(server, headers={"X-API-Key": key}).status_code == 429


def test_without_a_limit_watches_are_not_counted(tmp_path):
    with serving(tmp_path / "db", "--max-watches", "0") as server, contextlib.ExitStack() as streams:
        opened = [streams.enter_context(watch(server)) for _ in range(20)]
        assert {stream.status_code for stream in opened} == {200}


# ---------------------------------------------------------------- the process


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_server_exits_with_0(tmp_path, workers, how):
    server = Server(tmp_path / "db", "--workers", workers)
    requests.get(f"{server.url}/ready", timeout=60)
    assert server.stop(how) == 0


def is_listening(server: Server) -> bool:
    with contextlib.suppress(ConnectionError):
        connect(server).close()
        return True
    return False


def test_workers_stop_when_their_supervisor_is_killed(tmp_path):
    server = Server(tmp_path / "db", "--workers", "2")
    requests.get(f"{server.url}/ready", timeout=60)
    server.stop(signal.SIGKILL)
    eventually(lambda: not is_listening(server))
    with serving(tmp_path / "db", port=server.port) as again:
        assert is_serving(again)


def test_the_banner_of_a_server_on_all_addresses_has_a_working_url(tmp_path):
    with serving(tmp_path / "db", "--host", "0.0.0.0") as server:
        assert "0.0.0.0" not in server.banner
        assert requests.get(f"{server.url}/health", timeout=60).status_code == 200


# ---------------------------------------------------------------- other protocols

UPGRADE = b"""Connection: Upgrade\r
Upgrade: %s\r
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r
Sec-WebSocket-Version: 13\r
"""


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
def test_a_request_for_another_protocol_gets_a_normal_response(tmp_path, protocol):
    pytest.importorskip("websockets", reason="without it Uvicorn has no WebSockets anyway")
    with serving(tmp_path / "db") as server, connect(server) as getting, connect(server) as putting:
        requests.put(f"{server.url}/v1/namespaces/ns/items/k", json={"value": 1}, timeout=60)
        getting.sendall(GET[:-2] + UPGRADE % protocol + b"Content-Length: 0\r\n\r\n")
        status, answer = response_of(getting)
        assert (status, answer.get("value")) == (200, 1)
        # The parser does not read the body of such a request: it must not be taken for one without.
        putting.sendall(HEAD + UPGRADE % protocol + b'Content-Length: 12\r\n\r\n{"value": 2}')
        status, answer = response_of(putting)
        assert (status, answer.get("code")) == (400, "invalid_input")
        assert "Upgrade" in answer["detail"]
        server.process.send_signal(signal.SIGTERM)
        assert "upgrade" not in server.process.stderr.read(), "the log grows with each"


# ---------------------------------------------------------------- bodies


def paths_with_bodies(server: Server) -> list[tuple[str, str]]:
    """Method and path of every route that takes a body."""
    paths = requests.get(f"{server.url}/openapi.json", timeout=60).json()["paths"]
    return [
        (method.upper(), re.sub(r"{\w+}", "x", path))
        for path, methods in paths.items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]


def test_a_forbidden_write_is_refused_before_its_body_is_read(tmp_path):
    """Only the head is sent: a server that waits for the body would answer 408 later."""
    key = issue_key(tmp_path / "db", "reader", "--read-only")
    other = issue_key(tmp_path / "db", "other", "--namespaces", "other-*")
    with serving(tmp_path / "db") as server:
        found = 0
        for method, path in paths_with_bodies(server):
            if path.rpartition("/")[2] in READING_POSTS:
                continue
            for secret in (key, other) if "/namespaces/" in path or path.startswith("/memory") else (key,):
                head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {secret}\r\nContent-Length: 30000000\r\n\r\n"
                with connect(server) as client:
                    client.sendall(head.encode())
                    assert client.recv(65_536).startswith(b"HTTP/1.1 403 "), (method, path)
                found += 1
        assert found > 15


@pytest.mark.parametrize("path", ["read", "notes/recall", "notes/context"])
def test_the_body_of_a_read_is_small(quick, path):
    """A read-only key cannot send more than this."""
    url = f"{quick.url}/v1/namespaces/ns/{path}"
    field = "keys" if path == "read" else "query"
    asked = {"keys": [f"{i:0512}" for i in range(2048)], "query": "x" * MAX_NOTE_BYTES}[field]
    assert requests.post(url, json={field: asked}, timeout=60).status_code == 200
    for more in (asked + asked[:100], asked * 5):
        answer = requests.post(url, json={field: more}, timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (413, "value_too_large")


@pytest.mark.parametrize("verb", ["append", "update", "compare", "transaction", "both"])
def test_one_request_does_not_hold_the_file_for_millions_of_rows(quick, verb):
    many = [1] * (MAX_WRITE_ROWS + 1)
    keys = dict.fromkeys(map(str, range(MAX_WRITE_ROWS + 1)), 1)
    method, path, body = {
        "append": ("POST", "lists/k", {"items": many}),
        "update": ("PATCH", "items", {"values": keys}),
        "compare": ("PATCH", "items", {"values": {}, "if_versions": keys}),
        "transaction": ("POST", "transaction", {"commands": [{"verb": "append", "key": "k", "items": many[1:]}] * 2}),
        "both": ("PATCH", "items", {"values": dict.fromkeys(list(keys)[1:], 1), "if_versions": {"0": 0}}),
    }[verb]
    answer = requests.request(method, f"{quick.url}/v1/namespaces/rows/{path}", json=body, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (413, "value_too_large"), answer.text


def test_a_large_body_is_parsed_on_a_thread_and_a_small_one_is_not(tmp_path, monkeypatch):
    parsed_by = []

    def parse(body, given):
        parsed_by.append((len(given) > OFF_LOOP_BYTES, threading.current_thread().name.startswith("scrubjay-parser")))
        return original(body, given)

    original = scrubjay_http.JsonBody._parse
    monkeypatch.setattr(scrubjay_http.JsonBody, "_parse", parse)
    transport = AsgiTransport(scrubjay_server.create_app(server_settings(path=str(tmp_path / "db"))))
    try:
        for size in (10, 2 * OFF_LOOP_BYTES):
            for method, path, field in (
                ("PUT", "items/k", "value"),
                ("POST", "notes", "content"),
                ("POST", "notes/recall", "query"),
            ):
                body = json.dumps({field: "x" * size}).encode()
                assert transport.send(method, f"/v1/namespaces/ns/{path}", body, {}).status == 200
    finally:
        transport.close()
    assert parsed_by == [(False, False)] * 3 + [(True, True)] * 3


def test_small_requests_are_answered_while_large_bodies_are_parsed(quick):
    """A large body is parsed on a thread, so that the event loop stays free."""
    body = json.dumps({"value": [{"a": i, "b": [i]} for i in range(150_000)]}).encode()
    done = threading.Event()
    with ThreadPoolExecutor(4) as pool, requests.Session() as session:
        put = functools.partial(requests.put, data=body, timeout=100)
        sent = [pool.submit(put, f"{quick.url}/v1/namespaces/large/items/{i}") for i in range(8)]
        pool.submit(lambda: [each.result() for each in sent] and done.set())
        answered = 0
        while not done.is_set():
            assert session.get(f"{quick.url}/health", timeout=100).status_code == 200
            answered += 1
        assert {each.result().status_code for each in sent} == {200}
    assert answered > 10 * len(sent), "they waited for the large ones"


def test_a_client_cannot_fill_the_disk_with_exports_that_it_does_not_read(tmp_path):
    key = issue_key(tmp_path / "db", "reader", "--read-only")
    other = issue_key(tmp_path / "db", "other", "--read-only")
    with Memory("ns", path=str(tmp_path / "db"), durability="fast") as memory:
        memory.update({f"k{i}": "x" * 2**20 for i in range(12)})
    with serving(tmp_path / "db") as server, contextlib.ExitStack() as sockets:
        for _ in range(2):  # more than the sockets hold, so that the server waits for the client
            unread = sockets.enter_context(connect(server))
            unread.sendall(b"GET /v1/namespaces/ns/export HTTP/1.1\r\nHost: x\r\nX-API-Key: %b\r\n\r\n" % key.encode())
            assert unread.recv(12) == b"HTTP/1.1 200"
        url = f"{server.url}/v1/namespaces/ns/export"
        refused = requests.get(url, headers={"X-API-Key": key}, timeout=60)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert requests.get(url, headers={"X-API-Key": other}, timeout=60).text.endswith("}\n")
        sockets.close()
        eventually(lambda: requests.get(url, headers={"X-API-Key": key}, timeout=60).status_code == 200)
