"""Hostile clients, on raw sockets: they are told or dropped, and the others do not notice."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from harness import Server, issue_key, serving
from scrubjay import Memory, QuotaExceeded, Unauthenticated
from scrubjay_limits import MAX_BUCKETS, MAX_HEAD_BYTES, RequestLimit

HEAD = b"PUT /v1/namespaces/ns/items/k HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
GET = b"GET /v1/namespaces/ns/items/k HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A server that loses its patience after a second."""
    limits = {"PATIENCE_SECONDS": 1.0, "LOOK_SECONDS": 0.1}
    with serving(tmp_path_factory.mktemp("quick") / "db", "--writes-per-day", "0", limits=limits) as server:
        requests.put(f"{server.url}/v1/namespaces/ns/items/k", json={"value": 1}, timeout=5)
        yield server


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def answer_of(client: socket.socket) -> tuple[int, dict]:
    """The status and the JSON of the answer, after which the connection is closed; (0, {}) if there was none."""
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


def is_well(server: Server) -> bool:
    return requests.get(f"{server.url}/v1/namespaces/ns/items/k", timeout=5).status_code in (200, 404)


def memory_of(server: Server) -> int:
    """Bytes that the process holds in memory."""
    status = Path(f"/proc/{server.process.pid}/status")
    if not status.exists():
        pytest.skip("this system has no /proc to read the memory of a process from")
    return int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) * 1024


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize("piece", [b"X-%d: y\r\n", b"X: " + b"y" * 1000 + b"\r\n", b"y" * 1000], ids=str)
def test_headers_without_end_are_refused(quick, piece):
    with connect(quick) as client:
        client.sendall(HEAD + b"X-Long: ")
        sent = 0
        try:
            while sent < 4 * MAX_HEAD_BYTES:
                sent += client.send(piece * 50)
                time.sleep(0.0005)
        except ConnectionError:
            pass
        status, answer = answer_of(client)
    assert (status, answer.get("code")) in ((431, "value_too_large"), (0, None))
    assert sent < 4 * MAX_HEAD_BYTES, "it went on reading"
    assert is_well(quick)


def test_a_head_that_comes_at_once_is_measured_too_and_its_request_is_not_done(quick):
    with connect(quick) as client:
        client.sendall(HEAD + b"X: " + b"y" * MAX_HEAD_BYTES + b"\r\nContent-Length: 13\r\n\r\n" + b'{"value": 99}')
        status, answer = answer_of(client)
    assert (status, answer["code"]) == (431, "value_too_large")
    assert requests.get(f"{quick.url}/v1/namespaces/ns/items/k", timeout=5).json()["value"] == 1


def test_many_tags_still_fit_into_an_address(quick):
    tags = "&".join(f"tag={'%C3%A4' * 150}{i:03}" for i in range(64))
    assert requests.get(f"{quick.url}/v1/namespaces/ns/notes?{tags}", timeout=5).status_code == 200


def test_trailers_without_end_are_refused(quick):
    with connect(quick) as client:
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n")
        try:
            for i in range(100_000):
                client.sendall(b"X-%d: y\r\n" % i * 100)
        except ConnectionError:
            i = 0
        assert i == 0, "it went on reading"
    assert is_well(quick)


@pytest.mark.parametrize("size", [10, 7000, 400_000])
def test_a_large_body_in_pieces_of_any_size_is_read(quick, size):
    body = b'{"value":"' + b"x" * 300_000 + b'"}'
    pieces = (body[start : start + size] for start in range(0, len(body), size))
    with connect(quick) as client:
        client.sendall(HEAD.replace(b"/k ", b"/body ") + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.sendall(b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n")
        assert answer_of(client)[0] == 200


def test_a_chunked_body_without_end_is_refused_while_it_comes_and_costs_no_memory(quick):
    before = memory_of(quick)
    piece = b"100000\r\n" + b"x" * 2**20 + b"\r\n"
    with connect(quick) as client:
        client.sendall(HEAD + b'Transfer-Encoding: chunked\r\n\r\n2\r\n{"\r\n')
        try:
            for _ in range(200):
                client.sendall(piece)
        except ConnectionError:
            pass
    assert is_well(quick)
    assert memory_of(quick) - before < 120 * 2**20


def test_many_large_bodies_at_once_are_bounded_in_all(tmp_path):
    """Each of them is allowed, and none is finished."""
    with serving(tmp_path / "db") as server, contextlib.ExitStack() as open_sockets:
        assert is_well(server)
        before, refused = memory_of(server), 0
        for _ in range(14):
            client = open_sockets.enter_context(connect(server))
            client.sendall(HEAD + b"Content-Length: 34000000\r\n\r\n")
            client.sendall(b" " * 33_000_000)
            client.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                refused += client.recv(10_000).startswith(b"HTTP/1.1 503 ")
        assert refused >= 4
        assert memory_of(server) - before < 500 * 2**20
        open_sockets.close()
        assert requests.put(f"{server.url}/v1/namespaces/ns/items/k", json={"value": 1}, timeout=20).status_code == 200


def test_a_content_length_that_promises_more_than_comes_is_waited_for_only_so_long(quick):
    with connect(quick) as client:
        client.sendall(HEAD + b'Content-Length: 1000\r\n\r\n{"value": 5}')
        status, answer = answer_of(client)
    assert (status, answer["code"]) == (408, "unavailable")
    assert requests.get(f"{quick.url}/v1/namespaces/ns/items/k", timeout=5).json()["value"] == 1


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
def test_a_head_that_contradicts_itself_is_refused_as_json(quick, headers):
    with connect(quick) as client:
        client.sendall(HEAD + b"Connection: close\r\n" + headers)
        status, answer = answer_of(client)
    assert status == 400
    assert set(answer) == {"code", "detail"}
    assert is_well(quick)


# ---------------------------------------------------------------- seconds


@pytest.mark.parametrize("slow", [HEAD * 100, b"\r\n" * 500], ids=["headers", "line breaks"])
def test_a_head_of_a_byte_at_a_time_is_dropped(quick, slow):
    with connect(quick) as client:
        for i in range(200):
            try:
                client.sendall(slow[i : i + 1])
            except ConnectionError:
                break
            if i % 10 == 0:
                assert is_well(quick)
            time.sleep(0.05)
        else:
            pytest.fail("it was served for ten times its time")


def test_a_body_of_a_byte_at_a_time_is_dropped_with_408(quick):
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
                assert is_well(quick)
    assert received.startswith(b"HTTP/1.1 408 ")
    assert b'"code": "unavailable"' in received


def test_a_slow_body_that_keeps_its_pace_is_read(quick):
    """Three times the patience, at twice the least pace."""
    body = b'{"value":"' + b"x" * 24_000 + b'"}'
    with connect(quick) as client:
        head = HEAD.replace(b"/k ", b"/body ") + b"Connection: close\r\n"
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 800):
            client.sendall(body[start : start + 800])
            time.sleep(0.1)
        assert answer_of(client)[0] == 200


def test_an_answer_that_nobody_reads_is_given_up(quick):
    requests.put(f"{quick.url}/v1/namespaces/ns/items/large", json={"value": "x" * 15_000_000}, timeout=20)
    before = memory_of(quick)
    clients = [connect(quick) for _ in range(20)]
    for client in clients:
        client.sendall(GET.replace(b"/k ", b"/large "))
    time.sleep(1)  # by now they are all being answered
    give_up_at = time.monotonic() + 20
    while memory_of(quick) - before > 100 * 2**20:
        assert time.monotonic() < give_up_at, "the answers are still there"
        time.sleep(0.2)
    assert is_well(quick)
    for client in clients:
        client.close()


def test_a_stream_that_is_read_slowly_comes_to_its_end(quick):
    """Slower than the disk, and for longer than an answer that nobody reads is kept."""
    for n in range(20):
        requests.put(f"{quick.url}/v1/namespaces/stream/items/{n}", json={"value": "x" * 10**6}, timeout=20)
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


def test_a_connection_that_never_says_anything_is_closed_and_one_that_did_is_kept(quick):
    with connect(quick) as silent, connect(quick) as talking:
        talking.sendall(GET)
        time.sleep(0.2)
        assert talking.recv(10_000).startswith(b"HTTP/1.1 200")
        assert silent.recv(10) == b""
        talking.sendall(GET)
        assert talking.recv(10_000).startswith(b"HTTP/1.1 200")


# ---------------------------------------------------------------- connections


def test_when_all_connections_are_in_use_an_idle_one_makes_room_and_else_503(tmp_path):
    limits = {"MAX_CONNECTIONS": 5}
    with serving(tmp_path / "db", limits=limits) as server:
        idle = [connect(server) for _ in range(5)]
        for client in idle:
            client.sendall(GET)
            assert client.recv(10_000).startswith(b"HTTP/1.1 404")
        assert is_well(server)
        busy = [connect(server) for _ in range(5)]
        for client in busy:
            client.sendall(HEAD)
        time.sleep(0.3)
        with connect(server) as late:
            status, answer = answer_of(late)
        assert (status, answer["code"]) == (503, "unavailable")
        assert "5 connections" in answer["detail"]
        for client in (*busy, *idle):
            client.close()
        time.sleep(0.3)
        assert is_well(server)


# ---------------------------------------------------------------- requests a minute


def test_one_request_too_many_waits_and_probes_do_not(tmp_path):
    with serving(tmp_path / "db", "--requests-per-minute", "3") as server, Memory("ns", url=server.url) as memory:
        assert "3 requests a minute for each client" in server.banner
        for i in range(3):
            memory.set("k", i)
        with pytest.raises(QuotaExceeded, match="3 requests a minute") as refused:
            memory.get("k")
        assert 0 < refused.value.retry_after <= 20
        answer = requests.get(f"{server.url}/v1/namespaces", timeout=5)
        assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
        assert 0 < int(answer.headers["Retry-After"]) <= 20
        for path in ("health", "ready"):
            assert requests.get(f"{server.url}/{path}", timeout=5).status_code == 200


def test_api_keys_count_each_for_itself_and_wrong_ones_for_their_address(tmp_path):
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
        two.get("k")  # whoever comes from the same address with a right key is not held up
        for memory in (one, two, wrong):
            memory.close()


def test_workers_share_the_limit(tmp_path):
    with serving(tmp_path / "db", "--workers", "2", "--requests-per-minute", "20") as server:
        started = time.monotonic()
        statuses = [requests.get(f"{server.url}/v1/namespaces", timeout=20).status_code for _ in range(60)]
        came_back = (time.monotonic() - started) * 20 / 60
    assert 10 <= statuses.count(200) <= 20 + came_back
    assert set(statuses) == {200, 429}


def test_the_limit_gives_back_what_time_brings_and_forgets_who_came_least_recently():
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
    for i in range(MAX_BUCKETS * 2):
        limit.take(f"10.0.0.{i}")
    assert len(limit._full_at) == MAX_BUCKETS
    limit.take("a")


# ---------------------------------------------------------------- watches at once


def watch(server: Server, **options) -> requests.Response:
    return requests.get(f"{server.url}/v1/namespaces/ns/changes", stream=True, timeout=20, **options)


def eventually_watches(server: Server, **options) -> requests.Response:
    """The server sees a moment later that somebody has hung up."""
    give_up_at = time.monotonic() + 20
    while (answer := watch(server, **options)).status_code == 429 and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert answer.status_code == 200
    return answer


def test_only_so_many_of_a_client_wait_for_changes_at_once(tmp_path):
    wait = {"headers": {"Accept": "application/json"}, "params": {"wait": 20, "after": 0}}
    with serving(tmp_path / "db", "--max-watches", "2") as server, Memory("ns", url=server.url) as memory:
        with watch(server) as stream, ThreadPoolExecutor() as pool:
            waiting = pool.submit(lambda: eventually_watches(server, **wait).json())
            while watch(server, params={"after": 99}).status_code == 409:  # until it waits
                time.sleep(0.05)
            for refused in (watch(server), watch(server, **wait)):
                assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
                assert "SCRUBJAY_MAX_WATCHES" in refused.json()["detail"]
            with pytest.raises(QuotaExceeded, match="wait for changes at once"):
                next(memory.watch())
            assert is_well(server)
            assert watch(server, headers=wait["headers"]).json()["cursor"] == 0, "who does not wait is not counted"
            memory.set("k", 1)
            assert [change["key"] for change in waiting.result()["changes"]] == ["k"]
            eventually_watches(server).close()
            assert stream.status_code == 200
        with eventually_watches(server), eventually_watches(server):
            assert watch(server).status_code == 429


def test_a_watch_that_is_refused_for_another_reason_takes_no_place(tmp_path):
    with serving(tmp_path / "db", "--max-watches", "1") as server:
        for _ in range(3):
            assert watch(server, params={"after": 99}).status_code == 409
        with watch(server) as stream:
            assert stream.status_code == 200


def test_api_keys_watch_each_for_itself(tmp_path):
    keys = [issue_key(tmp_path / "db", name) for name in ("one", "two")]
    with serving(tmp_path / "db", "--max-watches", "1") as server, contextlib.ExitStack() as streams:
        for key in keys:
            stream = streams.enter_context(watch(server, headers={"X-API-Key": key}))
            assert stream.status_code == 200
            assert watch(server, headers={"X-API-Key": key}).status_code == 429


def test_without_a_limit_any_number_may_watch(tmp_path):
    with serving(tmp_path / "db", "--max-watches", "0") as server, contextlib.ExitStack() as streams:
        opened = [streams.enter_context(watch(server)) for _ in range(20)]
        assert {stream.status_code for stream in opened} == {200}


# ---------------------------------------------------------------- the process


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_asked_to_end_ends_with_0(tmp_path, workers, how):
    server = Server(tmp_path / "db", "--workers", workers)
    requests.get(f"{server.url}/ready", timeout=20)
    assert server.stop(how) == 0


def test_workers_end_when_their_supervisor_is_killed(tmp_path):
    server = Server(tmp_path / "db", "--workers", "2")
    requests.get(f"{server.url}/ready", timeout=20)
    server.stop(signal.SIGKILL)
    give_up_at = time.monotonic() + 20
    while time.monotonic() < give_up_at:
        try:
            connect(server).close()
        except ConnectionRefusedError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("somebody still listens")
    with serving(tmp_path / "db", port=server.port) as again:
        assert is_well(again)


def test_a_server_on_every_address_names_one_that_works(tmp_path):
    with serving(tmp_path / "db", "--host", "0.0.0.0") as server:
        assert "0.0.0.0" not in server.banner
        assert requests.get(f"{server.url}/health", timeout=5).status_code == 200
