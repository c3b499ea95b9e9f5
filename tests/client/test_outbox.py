"""The outbox: what cannot be sent waits on disk, and arrives once, in order, whatever happens in between."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import http.server
import itertools
import json
import logging
import os
import pickle
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import DAY, Server, clean_environment, eventually, free_port, fresh_name, serving
from scrubjay import AsyncMemory, Conflict, Forbidden, InvalidInput, Memory, QuotaExceeded, Unauthenticated, Unavailable
from scrubjay.adapters._copies import unattended_copy
from scrubjay.cli import main
from scrubjay.cli import queue as cli_queue
from scrubjay.commands import SET
from scrubjay.http import HttpExecutor
from scrubjay.memory import memory_on
from scrubjay.outbox import queue
from scrubjay.outbox import sender as sender_module
from scrubjay.outbox.queue import QueueFile, Target
from scrubjay.outbox.sender import Pause, Sender
from scrubjay.settings import memory_settings
from scrubjay.store import api_keys
from scrubjay.store.sqlite import SqliteStore

FREE = ("--writes-per-day", "0", "--max-bytes", "0", "--durability", "fast")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """The retries of a minute in a second."""
    for name, seconds in (("FIRST_RETRY_SECONDS", 0.02), ("MAX_RETRY_SECONDS", 0.2), ("MAX_REFUSAL_SECONDS", 0.2)):
        monkeypatch.setattr(sender_module, name, seconds)


class Between(http.server.ThreadingHTTPServer):
    """Stands before a server and does to each request what `mode` says.

    pass: hand it on. lose: hand it on and swallow the answer. refuse: hang up. hang: be silent. A number: answer that.
    """

    daemon_threads = True

    def __init__(self, behind: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = behind
        self.mode: str | int = "pass"
        self.then: str | int | None = None
        self.requests: list[str] = []
        self.ended = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def next_mode(self) -> str | int:
        mode = self.mode
        if self.then is not None:
            self.mode, self.then = self.then, None
        return mode


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_words) -> None: ...

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(f"{self.command} {self.path}")
        mode = self.server.next_mode()
        if mode == "hang":
            self.server.ended.wait(120)
        if mode in ("refuse", "hang"):
            self.close_connection = True
            return
        if isinstance(mode, int):
            self.answer(mode, {}, b"<html>somebody else speaks</html>")
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if mode == "lose":
            self.close_connection = True
            return
        self.answer(answer.status, dict(answer.getheaders()), data)

    def answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "date", "server"):
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = do_HEAD = handle_request  # noqa: N815


@pytest.fixture
def between(server):
    with Between(server.port) as proxy:
        yield proxy
        proxy.ended.set()
        proxy.shutdown()


def between_attempts(memory):
    """A lock under which nothing is sent: an attempt that had begun is over, and the next reads the queue again."""
    return memory._executor._sender._sending


@pytest.fixture
def remote(between):
    """A memory behind the proxy."""
    with Memory(fresh_name(), url=between.url) as memory:
        yield memory


def direct(server: Server, memory: Memory) -> Memory:
    """The same namespace, without the proxy."""
    return Memory(memory.namespace, url=server.url, strict=True)


def write_all(memory: Memory) -> list:
    """One of each verb that can wait."""
    return [
        memory.set("k", {"v": 1}),
        memory.append("l", 1, 2),
        memory.delete("gone"),
        memory.update({"u": "x", "w": None}),
        memory.remember("Sarah prefers short answers", tags=["style"]),
    ]


# ---------------------------------------------------------------- queued writes, and what is raised


def test_everything_waits_for_a_server_that_is_not_there_yet(tmp_path, caplog):
    port = free_port()
    with Memory("ns", url=f"http://127.0.0.1:{port}") as memory, caplog.at_level(logging.INFO, "scrubjay"):
        assert write_all(memory) == [None] * 5
        assert [(waits.verb, waits.key) for waits in memory.pending()] == [
            ("set", "k"), ("append", "l"), ("delete", "gone"), ("update", ""), ("remember", ""),
        ]  # fmt: skip
        assert all("cannot reach" in waits.reason and not waits.refused for waits in memory.pending())
        with serving(tmp_path / "db", *FREE, port=port):
            memory.flush()
            assert memory.pending() == []
            assert (memory.get("k"), memory.get("l"), memory.get("u")) == ({"v": 1}, [1, 2], "x")
            assert [note.tags for note in memory.notes()] == [("style",)]
            assert write_all(memory)[:3] == [2, 4, False], "from here on the server answers again"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert str(memory_settings().outbox) in caplog.records[0].getMessage()
    url = f"--url http://127.0.0.1:{port}"
    for command in (
        "`scrubjay pending --all`",
        f"`scrubjay flush {url}`",
        f"`scrubjay pending --drop {url} --yes` deletes all",
    ):
        assert command in caplog.records[0].getMessage()


def test_a_server_that_dies_and_comes_back_has_everything_in_order(tmp_path):
    server = Server(tmp_path / "db", *FREE)
    with Memory("ns", url=server.url) as memory:
        for number in range(30):
            if number == 10:
                server.stop(signal.SIGKILL)
            if number == 20:
                server = Server(tmp_path / "db", *FREE, port=server.port)
            memory.append("l", number)
        memory.flush()
        assert memory.get("l") == list(range(30))
    server.stop()


def test_queued_notes_with_an_id_replace_each_other_when_they_are_sent(between, server, remote):
    between.mode = "lose"
    for content in ("first", "second", "third"):
        assert remote.remember(content, id="own", ttl=60) is None
    between.mode = "pass"
    remote.flush()
    with direct(server, remote) as memory:
        assert [(note.id, note.content, note.times) for note in memory.notes()] == [("own", "third", 1)]


@pytest.mark.parametrize("losses", [1, 3])
def test_a_lost_answer_does_not_make_a_write_happen_twice(between, server, remote, losses):
    for write in (
        lambda: remote.append("l", "x"),
        lambda: remote.remember("told once"),
        lambda: remote.set("k", 1),
        lambda: remote.update({"a": 1}),
        lambda: remote.delete("k"),
    ):
        between.mode = "lose"
        seen = len(between.requests)
        assert write() is None
        while len(between.requests) < seen + losses:
            pass
        between.mode = "pass"
        remote.flush()
    with direct(server, remote) as memory:
        assert memory.get("l") == ["x"]
        assert [note.times for note in memory.notes()] == [1]
        assert (memory.item("a").version, memory.get("k")) == (1, None)
        assert memory.usage().writes_today == 4


def test_a_set_that_is_sent_again_does_not_overwrite_what_another_wrote_meanwhile(between, server, remote):
    between.mode, between.then = "lose", "refuse"
    assert remote.set("k", "mine") is None
    with direct(server, remote) as other:
        assert other.get("k") == "mine"
        other.set("k", "theirs")
        between.mode = "pass"
        remote.flush()
        assert other.get("k") == remote.get("k") == "theirs"


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_server_that_fails_is_waited_for(between, remote, status):
    between.mode = status
    assert write_all(remote) == [None] * 5
    between.mode = "pass"
    remote.flush()
    assert (remote.get("k"), remote.get("l")) == ({"v": 1}, [1, 2])


@pytest.mark.parametrize("status", [302, 404])
def test_an_address_that_is_no_scrubjay_server_is_said_at_once(between, remote, status):
    between.mode = status
    with pytest.raises(Unavailable, match="not as a Scrubjay server; check SCRUBJAY_URL"):
        remote.set("k", 1)
    assert remote.pending() == []


def test_an_address_that_turns_out_to_be_somebody_else_loses_nothing(between, remote):
    between.mode = "refuse"
    remote.set("k", 1)
    between.mode = 404
    with pytest.raises(Unavailable, match="404"):
        remote.flush(0.5)
    assert [waits.refused for waits in remote.pending()] == [False]
    between.mode = "pass"
    remote.flush()
    assert remote.get("k") == 1


def expecting_transaction(memory: Memory) -> None:
    with memory.transaction() as t:
        t.append("l", 1)
        t.update({"n": 2}, if_versions={"n": 1})


def test_what_needs_the_answer_is_raised_and_never_overtakes(between, remote):
    remote.set("n", 1)
    between.mode = "refuse"
    for call in (lambda: remote.incr("n"), lambda: remote.set("k", 1, if_version=0), remote.clear, remote.keys):
        with pytest.raises(Unavailable):
            call()
    assert remote.pending() == []
    assert remote.set("n", 5) is None
    for call in (
        lambda: remote.incr("n"),
        lambda: remote.pop("l"),
        lambda: remote.touch("n", 5),
        lambda: remote.clear("n"),
        lambda: remote.setdefault("x", 1),
        lambda: expecting_transaction(remote),
        lambda: remote.update({"n": 2}, if_versions={"n": 1}),
        lambda: remote.delete("n", if_version=1),
        lambda: remote.item("n"),
        remote.clear,
    ):
        with pytest.raises(Unavailable):
            call()
    between.mode = "pass"
    assert remote.incr("n") == 6


def test_the_end_of_a_list_that_is_queued_is_read_without_the_server():
    with Memory("ns", url=f"http://127.0.0.1:{free_port()}") as memory:
        memory.append("l", 1, 2, 3)
        memory.append("l", 4)
        assert memory.tail("l", 3) == [2, 3, 4]
        assert memory.tail("l", 4) == [1, 2, 3, 4]
        for _ in range(3):
            with pytest.raises(Unavailable):  # what is before them only the server knows
                memory.tail("l", 5)


def test_an_error_that_is_raised_again_does_not_grow():
    depths = set()
    url = f"http://127.0.0.1:{free_port()}"
    with Memory("ns", url=url) as attended, unattended_copy(attended) as memory:
        memory.set("k", 1)
        for _ in range(5):
            with pytest.raises(Unavailable) as raised:
                memory.incr("n")
            depths.add(len(raised.traceback))
    assert len(depths) == 1


def test_what_the_server_refuses_is_raised_and_not_kept(tmp_path):
    with serving(tmp_path / "db", "--writes-per-day", "1") as server, Memory("ns", url=server.url) as memory:
        memory.set("k", "text")
        with pytest.raises(QuotaExceeded):
            memory.set("k", 2)
        with pytest.raises(Conflict):
            memory.append("k", 1)
        with pytest.raises(InvalidInput):
            memory.set("", 1)
        store = SqliteStore(tmp_path / "db")
        secret = store.run(api_keys.issue("reader", ("*",), True, False)).secret
        store.close()
        with pytest.raises(Unauthenticated):
            memory.set("k", 3)
        with Memory("ns", url=server.url, api_key=secret) as reader, pytest.raises(Forbidden):
            reader.set("k", 3)
        assert memory.pending() == []
    assert not Path(memory_settings().outbox).exists(), "as long as nothing waits there is no file"


def test_strict_raises_instead_and_travels_with_a_copy(between):
    between.mode = "refuse"
    with Memory(fresh_name(), url=between.url, strict=True) as memory:
        copied = pickle.loads(pickle.dumps(memory))
        for strict in (memory, copied):
            with pytest.raises(Unavailable):
                strict.set("k", 1)
            assert strict.pending() == []
            strict.flush()
        copied.close()


def test_a_server_that_never_answers_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(sender_module, "FIRST_RETRY_SECONDS", 600)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Memory("ns", url=url, timeout=0.2) as memory, Memory("other", url=url, timeout=0.2) as other:
            for number in range(20):
                assert memory.append("l", number) is None
                assert other.set("k", number) is None
            assert memory.set("l", []) is None
            assert (memory.get("l"), other.get("k")) == ([], 19)
            assert len(memory.pending()) == 21
        assert count_connections(silent) == 1


def count_connections(listener: socket.socket) -> int:
    """How many wait to be accepted."""
    listener.settimeout(0.2)
    for number in itertools.count():
        try:
            listener.accept()[0].close()
        except TimeoutError:
            return number
    raise AssertionError


def test_embedded_nothing_is_ever_pending(tmp_path):
    with Memory("ns", path=tmp_path / "db") as memory:
        memory.set("k", 1)
        assert memory.pending() == []
        memory.flush()


def test_it_can_be_awaited(between):
    async def use() -> None:
        async with AsyncMemory(fresh_name(), url=between.url) as memory:
            between.mode = "refuse"
            assert await memory.append("l", 1) is None
            assert [waits.verb for waits in await memory.pending()] == ["append"]
            with pytest.raises(Unavailable, match="1 write could not be sent"):
                await memory.flush(0.1)
            between.mode = "pass"
            await memory.flush()
            assert await memory.pending() == []
            assert await memory.get("l") == [1]

    asyncio.run(use())


# ---------------------------------------------------------------- what the server refuses later


def blocked(server: Server, tmp_path) -> tuple[Server, Memory, Memory]:
    """Five appends to a namespace that may write two more, three to one that is free, all while the server is away."""
    full, free = unattended_copy(Memory("full", url=server.url)), Memory("free", url=server.url)
    full.update({"old": 1, "other": 2})
    full.set_quota(writes_per_day=3)
    server.stop()
    for number in range(5):
        full.append("l", number)
    for number in range(3):
        free.append("l", number)
    return Server(tmp_path / "db", *FREE, port=server.port), full, free


def test_a_quota_stops_its_own_namespace_and_no_other(tmp_path):
    server, full, free = blocked(Server(tmp_path / "db", *FREE), tmp_path)
    free.flush()
    assert free.get("l") == [0, 1, 2]
    with pytest.raises(Unavailable, match=r"3 writes could not be sent.*writes a day"):
        full.flush()
    with Memory("full", url=server.url) as ordinary, pytest.raises(QuotaExceeded, match="writes a day"):
        ordinary.append("l", 5)
    assert full.append("l", 5) is None, "it goes behind the others"
    with direct(server, full) as stored:
        assert stored.get("l") == [0, 1]

    # Reads include queued writes on top of what the server has.
    assert full.get("l") == list(range(6))
    assert (full.tail("l", 3), full.tail("l", 0), full.tail("new", 3)) == ([3, 4, 5], [], [])
    full.set("new", {"a": 1})
    full.update({"old": None, "newer": []})
    assert full.keys() == ["l", "new", "newer", "other"]
    assert (full.keys("n"), "old" in full, "newer" in full, "other" in full) == (["new", "newer"], False, True, True)
    assert full.get_many(["old", "new", "other", "l"]) == {"new": {"a": 1}, "other": 2, "l": list(range(6))}
    assert full.item("other").value == 2
    with pytest.raises(Unavailable, match="no version yet"):
        full.item("new")
    with pytest.raises(Unavailable, match=r"writes to .* must be sent before it"):
        full.incr("other")

    # A client that is over a limit can get below it.
    assert full.delete("other") is True
    assert full.delete("new") is None, "that one waits itself"

    full.set_quota(writes_per_day=0)
    full.flush()
    assert full.get("l") == list(range(6))
    assert full.keys() == ["l", "newer"]
    for memory in (full, free):
        memory.close()
    server.stop()


def test_the_sender_sleeps_while_there_is_nothing_that_it_may_try(tmp_path):
    """A server that was away and now refuses: its old pause is over, and must not keep the thread awake."""
    sender = Sender(None, queue.QueueFile(tmp_path / "outbox.db", queue.Target("http://a", "")))
    sender.unsent = {"refused", "also refused"}
    later = time.monotonic() + 1000
    sender._pauses = {name: Pause(later, 1.0, QuotaExceeded("full")) for name in sender.unsent}
    sender._pauses[None] = Pause(0.0, 1.0, Unavailable("unreachable"))
    assert sender._seconds_to_next_attempt() > 900
    sender.unsent.add("new")
    assert sender._seconds_to_next_attempt() == 0


def test_clearing_a_namespace_clears_what_waits_for_it(tmp_path):
    server, full, free = blocked(Server(tmp_path / "db", *FREE), tmp_path)
    with pytest.raises(Unavailable):
        full.flush()
    assert full.clear() == 3
    assert full.pending() == []
    assert full.keys() == []
    free.flush()
    for memory in (full, free):
        memory.close()
    server.stop()


def test_an_agents_messages_can_wait_for_a_quota_too(tmp_path):
    with (
        serving(tmp_path / "db", "--writes-per-day", "1") as server,
        unattended_copy(Memory("ns", url=server.url)) as memory,
    ):
        assert memory.append("l", 1) == 1
        assert [memory.append("l", number) for number in (2, 3)] == [None, None]
        assert "write a day" in memory.pending()[0].reason
        assert memory.get("l") == [1, 2, 3]
        memory.set_quota(writes_per_day=10)
        memory.flush()
        assert memory.get("l") == [1, 2, 3]


SAYS_WHY = """
import logging, sys, time
from scrubjay import Memory
from scrubjay.adapters._copies import unattended_copy
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("scrubjay").addHandler(handler)
with unattended_copy(Memory("ns", url=sys.argv[1])) as memory:
    memory.append("l", 1)
    end = time.monotonic() + 60
    while not said and time.monotonic() < end:
        time.sleep(0.01)
    memory.append("l", 2)
print(len(said), *said)
"""


def test_each_process_says_once_that_its_writes_are_queued_behind_a_quota(tmp_path):
    with serving(tmp_path / "db", "--writes-per-day", "1") as server, Memory("ns", url=server.url) as memory:
        memory.set("k", 1)
        for _ in range(2):
            command = [sys.executable, "-c", SAYS_WHY, server.url]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=120, env=clean_environment()
            )
            assert done.stdout.startswith("1 ")
            assert "write a day" in done.stdout
            assert "Writes are queued in" in done.stdout


def test_what_can_never_succeed_is_set_aside_and_said(between, server, remote, caplog, capsys):
    remote.set("text", "no list")
    between.mode = "refuse"
    remote.append("text", 1)
    remote.set("after", 2)
    between.mode = "pass"
    with pytest.raises(Unavailable, match=r"has refused 1 write: .*is not a list"):
        remote.flush()
    assert [(waits.verb, waits.key, waits.refused) for waits in remote.pending()] == [("append", "text", True)]
    assert remote.get("after") == 2, "the rest goes on"
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert "'text'" in errors[0]
    assert "is not a list" in errors[0]
    assert "`scrubjay pending --drop-refused` deletes it and all others that were refused" in errors[0]
    assert main(["pending", "--all"]) == 0
    assert "refused: " in capsys.readouterr().out
    between.mode = "refuse"
    remote.set("waiting", 3)
    assert main(["pending"]) == 0
    told = capsys.readouterr().out
    assert f"refused by {between.url}: " in told
    assert f"queued for {between.url}: " in told
    assert main(["pending", "--drop-refused"]) == 0
    assert "waits" not in capsys.readouterr().out
    assert [waits.key for waits in remote.pending()] == ["waiting"]
    between.mode = "pass"
    remote.flush()


def test_what_waits_for_an_erased_namespace_is_erased_as_well(tmp_path, capsys):
    server, full, free = blocked(Server(tmp_path / "db", *FREE), tmp_path)
    with pytest.raises(Unavailable):
        full.flush()
    free.flush()
    assert {write.namespace for write in full.pending()} == {full.namespace}
    assert main(["erase", full.namespace, "--yes", "--url", server.url]) == 0
    assert "queued writes in" in capsys.readouterr().err
    assert full.pending() == []
    assert full.keys() == []
    assert free.keys() != []
    for memory in (full, free):
        memory.close()
    left = b"".join(part.read_bytes() for part in Path(memory_settings().outbox).parent.glob("outbox*"))
    assert full.namespace.encode() not in left
    server.stop()


def test_what_waits_for_a_quota_is_not_sent_to_the_namespace_that_is_being_erased(tmp_path, monkeypatch):
    server, full, free = blocked(Server(tmp_path / "db", *FREE), tmp_path)
    erase = HttpExecutor.erase

    def erase_slowly(*arguments):
        erased = erase(*arguments)
        with contextlib.suppress(Unavailable):
            full.flush()  # which the quota of the erased namespace does not hold up any more
        return erased

    monkeypatch.setattr(HttpExecutor, "erase", erase_slowly)
    assert main(["erase", full.namespace, "--yes", "--url", server.url]) == 0
    with direct(server, full) as stored:
        assert stored.keys() == []
    for memory in (full, free):
        memory.close()
    server.stop()


@pytest.mark.parametrize("there", ["nobody", "a stranger"])
def test_what_waits_is_erased_even_if_the_server_cannot_be_reached(between, there, capsys):
    url = between.url if there == "a stranger" else f"http://127.0.0.1:{free_port()}"
    between.mode = 503
    with Memory("erased", url=url, api_key="a key") as memory, Memory("stays", url=url) as other:
        for each in (memory, other):
            each.set("k", f"a secret of {each.namespace}")
        between.mode = 404
        with_key = url.replace("//", "//sj_key@")  # the queue has the URL without it
        assert main(["erase", "erased", "--yes", "--url", f"{with_key}/v1"]) == 3
        told = capsys.readouterr()
        assert "dropped  1 queued write in" in told.err
        assert "is not erased: run this again when it answers" in told.err
        assert memory.pending() == []
        assert len(other.pending()) == 1
    left = b"".join(part.read_bytes() for part in Path(memory_settings().outbox).parent.glob("outbox*"))
    assert b"a secret of stays" in left
    assert b"a secret of erased" not in left


def test_an_erasure_that_the_server_refuses_erases_nothing_that_is_queued(tmp_path, capsys, monkeypatch):
    with serving(tmp_path / "db", *FREE) as server, closing(SqliteStore(tmp_path / "db")) as store:
        key, admin = (
            store.run(api_keys.issue(name, ("*",), False, name == "admin")).secret for name in ("bot", "admin")
        )
        with Between(server.port) as proxy, Memory("ns", url=proxy.url, api_key=key) as memory:
            proxy.mode = 503
            memory.set("k", 1)
            proxy.mode = "hang"  # for the sender thread
            with between_attempts(memory):
                proxy.mode = "pass"
                monkeypatch.setenv("SCRUBJAY_API_KEY", key)
                assert main(["erase", "ns", "--yes", "--url", proxy.url]) == 1
                assert "admin key" in capsys.readouterr().err
                assert len(memory.pending()) == 1
                monkeypatch.setenv("SCRUBJAY_API_KEY", admin)
                main(["erase", "ns", "--yes", "--url", proxy.url])
                assert memory.pending() == []
            proxy.ended.set()
            proxy.shutdown()


def test_erasing_in_a_file_tells_of_what_waits_for_a_server_and_leaves_it(tmp_path, capsys):
    url = f"http://127.0.0.1:{free_port()}"
    with Memory("my ns", url=url) as memory, Memory("my ns", path=tmp_path / "db") as local:
        memory.set("k", 1)
        local.set("k", 1)
        assert main(["erase", "my ns", "--yes", "--path", str(tmp_path / "db")]) == 0
        told = capsys.readouterr().err
        assert f"scrubjay pending --drop --url {url} --namespace='my ns' --yes\n" in told
        assert len(memory.pending()) == 1
        assert main(shlex.split(told.rpartition(": scrubjay ")[2])) == 0, "as printed"
        assert memory.pending() == []


def test_what_waits_for_a_mistyped_server_can_be_dropped(capsys):
    wrong, right = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    memories = [
        Memory(name, url=url, api_key=key)
        for url, name, key in ((wrong, "a", None), (wrong, "b", "a key"), (right, "a", None), (right, "b", None))
    ]
    for memory in memories:
        memory.set("k", f"secret {memory.namespace} {memory.location}")

    def left() -> list[int]:
        return [len(memory.pending()) for memory in memories]

    assert main(["pending", "--drop", "--yes"]) == 1
    assert "--url" in capsys.readouterr().err
    assert main(["pending", "--drop", "--url", f"{wrong}/"]) == 1
    told = capsys.readouterr()
    assert f"queued for {wrong}" in told.out
    assert right not in told.out
    assert "nothing was deleted; pass --yes to delete 2 queued writes" in told.err
    assert left() == [1, 1, 1, 1]
    assert main(["pending", "--drop", "--url", wrong, "--namespace", "a", "--yes"]) == 0
    assert "dropped 1 write" in capsys.readouterr().err
    assert left() == [0, 1, 1, 1]
    assert main(["pending", "--drop", "--url", wrong, "--yes"]) == 0
    assert left() == [0, 0, 1, 1]
    assert main(["pending", "--drop", "--url", wrong, "--yes"]) == 0
    assert "no such writes are queued; `scrubjay pending` lists the 2 writes that are" in capsys.readouterr().err
    assert main(["pending", "--namespace", "b", "--all"]) == 0
    assert capsys.readouterr().out.startswith(f"{right}  b  set")
    assert main(["pending", "--drop", "--all-servers", "--yes"]) == 0
    assert left() == [0, 0, 0, 0]
    for memory in memories:
        memory.close()
    assert b"secret" not in b"".join(
        part.read_bytes() for part in Path(memory_settings().outbox).parent.glob("outbox*")
    )


def test_what_was_refused_for_good_can_be_dropped_with_the_rest(between, remote, capsys):
    remote.set("text", "no list")
    between.mode = "refuse"
    remote.append("text", 1)
    between.mode = "pass"
    with pytest.raises(Unavailable, match="scrubjay pending --drop"):
        remote.flush()
    assert [waits.refused for waits in remote.pending()] == [True]
    assert main(["pending", "--drop", "--url", between.url, "--yes"]) == 0
    assert "dropped 1 write" in capsys.readouterr().err
    assert remote.pending() == []


def test_who_goes_on_sending_takes_no_notice_of_what_was_dropped(between, server, remote):
    between.mode = "refuse"
    for number in range(3):
        remote.append("l", number)
    assert main(["pending", "--drop", "--url", between.url, "--yes"]) == 0
    with between_attempts(remote):
        between.mode = "pass"
    remote.flush()
    assert remote.append("l", "new") == 1
    assert direct(server, remote).get("l") == ["new"]


def test_a_write_that_may_have_happened_is_not_sent_again_after_the_server_forgot_its_key(between, server, remote):
    between.mode, between.then = "lose", "refuse"
    assert remote.append("l", "once") is None
    assert direct(server, remote).get("l") == ["once"], "it has happened, and only its response was lost"
    with closing(sqlite3.connect(server.path)) as file:
        file.execute("DELETE FROM idempotency_keys WHERE namespace = ?", (remote.namespace,))
        file.commit()
    with between_attempts(remote), closing(sqlite3.connect(memory_settings().outbox)) as file:
        changed = file.execute(f"UPDATE writes SET first_sent_at = first_sent_at - {8 * DAY * 1000} RETURNING id")
        assert len(changed.fetchall()) == 1
        file.commit()
    between.mode = "pass"
    ways_out = rf"flush --refused --url {between.url}` sends them once more, .* --drop-refused --url {between.url}`"
    with pytest.raises(Unavailable, match=f"has refused 1 write: .* may have happened.*{ways_out}"):
        remote.flush()
    assert direct(server, remote).get("l") == ["once"]
    assert main(["flush", "--url", between.url]) == 1
    assert [write.refused for write in remote.pending()] == [True]
    assert main(["flush", "--url", between.url, "--refused"]) == 0
    assert direct(server, remote).get("l") == ["once", "once"], "as asked for"
    assert remote.pending() == []


def test_a_write_that_never_left_is_sent_at_any_age(server):
    port = free_port()
    memory = Memory(fresh_name(), url=f"http://127.0.0.1:{port}")
    memory.append("l", 1)
    with closing(sqlite3.connect(memory_settings().outbox)) as file:
        ((first_sent_at,),) = file.execute("SELECT first_sent_at FROM writes").fetchall()
    assert first_sent_at is None
    memory.close()


def test_a_rotated_key_sends_what_waits_for_the_old_one(tmp_path):
    with serving(tmp_path / "db", *FREE) as server, Between(server.port) as proxy:
        store = SqliteStore(tmp_path / "db")
        issued = store.run(api_keys.issue("bot"))
        with Memory("ns", url=proxy.url, api_key=issued.secret) as memory:
            proxy.mode = "refuse"
            memory.set("k", 1)
        new = store.run(api_keys.rotate(issued.apikey.id))
        store.close()
        proxy.mode = "pass"
        with Memory("ns", url=proxy.url, api_key=new) as memory:
            memory.flush()
            assert memory.get("k") == 1
        proxy.shutdown()


def test_another_api_key_can_send_what_waits_for_a_revoked_one(tmp_path, capsys, monkeypatch):
    secrets = []
    with serving(tmp_path / "db", *FREE) as server:
        store = SqliteStore(tmp_path / "db")
        for name in ("old", "new"):
            issued = store.run(api_keys.issue(name, ("*",), False, True))
            secrets.append((issued.apikey.id, issued.secret))
        with Between(server.port) as proxy, Memory("ns", url=proxy.url, api_key=secrets[0][1]) as memory:
            proxy.mode = "refuse"
            memory.set("k", 1)
            store.run(api_keys.revoke(secrets[0][0]))
            store.close()
            proxy.mode = "pass"
            with pytest.raises(Unavailable, match="not known to the server"):
                memory.flush()
            assert secrets[0][1].encode() not in b"".join(
                path.read_bytes() for path in Path(memory_settings().outbox).parent.iterdir()
            )
            monkeypatch.setenv("SCRUBJAY_URL", proxy.url)
            monkeypatch.setenv("SCRUBJAY_API_KEY", secrets[0][1])
            assert main(["flush", "--timeout", "1"]) == 3
            assert "not known to the server" in capsys.readouterr().err
            monkeypatch.setenv("SCRUBJAY_API_KEY", secrets[1][1])
            assert main(["pending", "--all"]) == 0
            assert f'{proxy.url}  ns  set "k"' in capsys.readouterr().out
            assert main(["flush"]) == 1
            assert "1 write to" in (told := capsys.readouterr().err)
            assert f"scrubjay flush --other-keys --url {proxy.url}" in told
            assert main(["flush", "--other-keys"]) == 0
            assert memory.pending() == []
            proxy.shutdown()


def test_a_command_is_refused_and_not_done_later(capsys):
    assert main(["set", "ns", "k", "1", "--url", f"http://127.0.0.1:{free_port()}"]) == 3
    assert "cannot reach" in capsys.readouterr().err
    for command in ("pending", "flush"):
        assert main([command]) == 0
        assert capsys.readouterr() == ("", "no writes are queued\n")


def test_pending_tells_each_reason_once_and_how_much_waits_where(capsys):
    url = f"http://127.0.0.1:{free_port()}"
    with Memory("one", url=url) as one, Memory("two", url=url) as two:
        for i in range(30):
            one.append("l", i)
        two.set("ключ", 1)
    assert main(["pending"]) == 0
    reason, *lines = capsys.readouterr().out.splitlines()
    assert reason.startswith(f"queued for {url}: cannot reach {url}")
    assert [re.sub(r"\d+s ago", "0s ago", line) for line in lines] == [
        "    one  30 writes, the oldest 0s ago",
        "    two  1 write, the oldest 0s ago",
        f"  to send them: scrubjay flush --url {url}",
        f"to delete all writes for {url} (31): scrubjay pending --drop --url {url} --yes",
    ]
    assert main(["pending", "--all"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 31
    assert f'{url}  two  set "ключ"' in listed[-1]


def test_pending_has_the_reason_of_the_last_attempt_for_every_write(between, remote, capsys):
    between.mode = "refuse"
    for i in range(3):
        remote.append("l", i)
    between.mode = 503
    eventually(lambda: "answered (503)" in remote.pending()[0].reason)
    assert ["answered (503)" in write.reason for write in remote.pending()] == [True] * 3
    for flags, lines in (([], 4), (["--all"], 3)):
        assert main(["pending", *flags]) == 0
        told = capsys.readouterr().out
        assert (told.count("answered (503)"), told.count("did not answer"), told.count("\n")) == (1, 0, lines)


def test_pending_says_which_writes_wait_for_another_key_and_its_commands_end_them(server, capsys, monkeypatch):
    url, name = f"http://127.0.0.1:{free_port()}", fresh_name()
    monkeypatch.setenv("SCRUBJAY_API_KEY", "a")
    for key in ("a", "b"):
        with Memory(name, url=url, api_key=key) as memory:
            memory.set(key, key)
    assert main(["pending"]) == 0
    told = capsys.readouterr().out
    heads = re.findall(rf"^queued for {url}( with another api key|)", told, re.MULTILINE)
    assert heads == ["", " with another api key"]
    assert f"scrubjay flush --other-keys --url {url}\n" in told
    assert main(["pending", "--json"]) == 0
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert [line["other_key"] for line in lines] == [False, True]
    assert main(["pending", "--all"]) == 0
    assert [" for another api key: " in line for line in capsys.readouterr().out.splitlines()] == [False, True]
    (drop,) = re.findall(rf"^to delete all writes for {url} \(2\): scrubjay (.*)", told, re.MULTILINE)
    assert main(drop.split()) == 0
    capsys.readouterr()
    assert main(["pending"]) == 0
    assert capsys.readouterr().err == "no writes are queued\n"


def test_pending_shows_writes_of_several_other_keys_once_as_the_commands_treat_them(capsys):
    url = f"http://127.0.0.1:{free_port()}"
    for key, name in (("a", "both"), ("b", "both"), ("b", "one")):
        with Memory(name, url=url, api_key=key) as memory:
            memory.set("k", 1)
    assert main(["pending"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"queued for {url} with 2 other api keys than SCRUBJAY_API_KEY or SCRUBJAY_URL has: ")
    assert [re.sub(r"\d+s ago", "0s ago", line) for line in lines[:3]] == [
        "    both  2 writes, the oldest 0s ago",
        "    one  1 write, the oldest 0s ago",
        f"  to send them with the key of now: scrubjay flush --other-keys --url {url}",
    ]
    assert len(lines) == 4


def test_pending_says_that_nothing_was_refused_and_how_many_writes_others_have(capsys):
    url = f"http://127.0.0.1:{free_port()}"
    with Memory("ns", url=url) as memory:
        memory.set("k", 1)
        assert main(["pending", "--drop-refused"]) == 0
        assert capsys.readouterr() == ("", "no such writes were refused\n")
        assert len(memory.pending()) == 1
    assert main(["pending", "--namespace", "other"]) == 0
    assert capsys.readouterr().err == "no such writes are queued; `scrubjay pending` lists the 1 write that is\n"


def test_a_key_in_the_url_of_the_environment_is_the_key_of_the_printed_commands(between, capsys, monkeypatch):
    with_key = between.url.replace("//", "//sj_0123456789abcdef@")
    monkeypatch.setenv("SCRUBJAY_URL", with_key)
    between.mode = "refuse"
    with Memory(fresh_name()) as memory:
        memory.set("k", 1)
        assert main(["pending"]) == 0
        told = capsys.readouterr().out
        assert "another api key" not in told
        assert f"to send them: scrubjay flush --url {between.url}\n" in told
        assert main(["flush", "--timeout", "0", "--json"]) == 3
        told, errors = capsys.readouterr()
        assert json.loads(told) == {"failed": [between.url], "made_with_other_keys": 0}
        assert "sj_" not in errors
        between.mode = "pass"
        assert main(["flush", "--url", between.url]) == 0
        assert memory.pending() == []
    elsewhere = f"http://127.0.0.1:{free_port()}"
    with Memory("ns", url=elsewhere.replace("//", "//sj_0123456789abcdef@")) as memory:
        memory.set("k", 1)
    assert main(["pending"]) == 0
    assert f"queued for {elsewhere} with another api key" in capsys.readouterr().out, "no key is sent elsewhere"
    monkeypatch.setenv("SCRUBJAY_URL", "http://[mistyped")
    assert main(["pending"]) == 0


def test_the_commands_that_pending_prints_delete_as_many_writes_as_it_says(capsys):
    url = "http://127.0.0.1:9"
    with closing(QueueFile(Path(memory_settings().outbox), Target.of(url, None))) as file:
        for namespace, reason in (("junk", "no such quota"), ("precious", "cannot reach"), ("a b", "is not a list")):
            file.add(SET(namespace, "k", "1", None, None), namespace, reason)
        file.mark_refused(file.everything()[file.target][-1].id, "is not a list")

        def commands(*flags: str) -> list[tuple[str, str]]:
            assert main(["pending", *flags]) == 0
            return re.findall(r"to delete (.*): scrubjay (.*)", capsys.readouterr().out)

        assert commands() == [
            (f"all refused writes for {url} (1)", f"pending --drop-refused --url {url}"),
            (f"all writes for {url} (3)", f"pending --drop --url {url} --yes"),
        ]
        for namespace in ("junk", "a b"):
            ((_, command),) = commands("--namespace", namespace)
            assert main(shlex.split(command)) == 0
            capsys.readouterr()
            assert namespace not in {each.namespace for each in file.summaries()}
        assert commands() == [(f"all writes for {url} (1)", f"pending --drop --url {url} --yes")]


QUEUE_AND_EXIT = """
import os, sys
from scrubjay import Memory
memory = Memory("ns", url=sys.argv[1])
memory.set("k", "queued")
memory.append("session:dave:messages", {"role": "user", "content": "Hi"})
os._exit(0)
"""


def test_a_command_is_newer_than_what_other_programs_have_queued(tmp_path, capsys):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {**clean_environment(), "XDG_DATA_HOME": os.environ["XDG_DATA_HOME"]}
    subprocess.run([sys.executable, "-c", QUEUE_AND_EXIT, url], check=True, timeout=60, env=environment)
    with serving(tmp_path / "db", *FREE, port=port):
        assert main(["set", "ns", "k", "newer", "--url", url]) == 0
        assert main(["forget-session", "ns", "dave", "--yes", "--url", url]) == 0
        assert main(["flush", "--url", url]) == 0
        with Memory("ns", url=url) as memory:
            assert memory.get("k") == "newer"
            assert memory.conversations() == []


def flush_until(memory: Memory, left: int, monkeypatch) -> str:
    """The error of a flush whose timeout ends as soon as so many writes are left; it begins when nothing is sent."""
    sender = memory._executor._sender

    def wait_for(*_) -> None:
        sender._sending.release()
        while in_file(memory) > left:
            sender._changed.wait(0.01)

    monkeypatch.setattr(sender._changed, "wait_for", wait_for)
    with pytest.raises(Unavailable) as raised:
        memory.flush(7)
    return str(raised.value)


def test_a_flush_whose_timeout_runs_out_says_how_much_was_sent_and_no_reason_that_is_over(between, remote, monkeypatch):
    between.mode = 503
    for i in range(3):
        remote.append("l", i)
    between_attempts(remote).acquire()  # flush_until releases it
    between.mode, between.then = "pass", "hang"
    assert flush_until(remote, 2, monkeypatch) == (
        f"1 of 3 writes were sent to {between.url} in 7 s, the rest is still queued: flush again, or with a longer"
        " timeout"
    )
    assert [write.reason for write in remote.pending()] == ["", ""]


def test_a_reason_is_told_until_a_write_was_sent(between, remote, capsys):
    between.mode = 503
    for i in range(3):
        remote.append("l", i)
    with between_attempts(remote):
        first = remote.pending()[0]
        assert "answered (503)" in first.reason
        remote._executor._sender._file.remove(first.id)
        assert [write.reason for write in remote.pending()] == ["", ""]
        assert main(["pending"]) == 0
    assert f"queued for {between.url}: not tried since a write was sent\n" in capsys.readouterr().out


def test_a_namespace_with_many_writes_does_not_delay_those_of_others(between):
    with Memory(fresh_name("a"), url=between.url) as many, Memory(fresh_name("b"), url=between.url) as few:
        between.mode = 503
        for i in range(2 * sender_module.PAGE_WRITES + 1):
            many.append("l", i)
        few.append("l", 1)
        with between_attempts(many):
            between.requests.clear()
            between.mode = "pass"
        few.flush()
        sent = ["few" if few.namespace in request else "many" for request in between.requests]
        assert sent.index("few") <= sender_module.PAGE_WRITES
        many.flush()


def test_flush_without_a_server_named_sends_to_all_but_shows_an_api_key_to_none_that_did_not_have_it(
    tmp_path, capsys, monkeypatch
):
    away, other = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    for url, apikey in ((away, None), (other, "a key")):
        with Memory("ns", url=url, api_key=apikey) as memory:
            memory.set("k", 1)
    monkeypatch.setenv("SCRUBJAY_API_KEY", "another")
    assert main(["flush", "--timeout", "0.2"]) == 3
    told = capsys.readouterr().err
    assert f"1 write could not be sent to {away}: cannot reach" in told
    assert f"scrubjay flush --other-keys --url {other}" in told
    with serving(tmp_path / "db", *FREE, port=int(away.rpartition(":")[2])):
        assert main(["flush"]) == 1
        # Nothing is said of a server whose writes the sender thread of this process has sent before.
        assert capsys.readouterr().out in ("", *(f"{sent} sent to {away}\n" for sent in ("0 writes", "1 write")))
        with Memory("ns", url=away, api_key="") as memory:
            assert memory.get("k") == 1
    assert main(["flush", "--other-keys"]) == 1
    assert "--url" in capsys.readouterr().err


# ---------------------------------------------------------------- reads while nobody answers


def test_reads_answer_from_what_waits_where_that_decides(between, remote):
    remote.append("l", 0)
    between.mode = "refuse"
    remote.set("k", 1)
    remote.set("list", [1])
    remote.append("list", 2)
    remote.delete("gone")
    remote.append("l", 1)
    remote.update({"a": 1, "b": None})
    assert (remote.get("k"), remote.get("list"), remote.tail("list", 1)) == (1, [1, 2], [2])
    assert ("gone" in remote, "a" in remote, "b" in remote) == (False, True, False)
    assert remote.get_many(["k", "b", "gone"]) == {"k": 1}
    with pytest.raises(Conflict):
        remote.tail("k", 1)
    for undecided in (lambda: remote.get("l"), lambda: remote.get("unknown"), remote.keys, lambda: remote.item("k")):
        with pytest.raises(Unavailable, match="are queued in"):
            undecided()
    between.mode = "pass"
    assert remote.get("l") == [0, 1], "a read sends queued writes first"
    assert remote.pending() == []


def test_a_read_is_never_answered_from_a_state_that_may_hold_what_waits(between, remote):
    """The append has happened and its answer was lost; then the server fails for this namespace alone."""
    between.mode, between.then = "lose", 500
    assert remote.append("l", 1) is None
    for _ in range(3):
        with pytest.raises(Unavailable):
            remote.get("l")
    between.mode = "pass"
    assert remote.get("l") == [1]


def test_a_time_to_live_begins_when_it_is_written(between, server, remote):
    between.mode = "refuse"
    remote.set("short", 1, ttl=0.05)
    remote.set("long", 1, ttl=1000)
    remote.remember("soon forgotten", ttl=0.05)
    queued_at = remote.pending()[1].queued_at
    while remote.get("short") is not None:
        pass
    between.mode = "pass"
    remote.flush()
    with direct(server, remote) as memory:
        assert memory.get("short") is None
        assert memory.notes() == []
        assert 0 < (memory.item("long").expires_at - queued_at).total_seconds() <= 1000.5


# ---------------------------------------------------------------- processes that end, fork, and share

WRITER = """
import itertools, sys
from scrubjay import Memory
memory = Memory("ns", url=sys.argv[1])
for number in itertools.count() if sys.argv[2] == "-" else range(int(sys.argv[2])):
    memory.append("l", number)
    print(number, flush=True)
"""
FLUSHER = "import sys; from scrubjay import Memory; Memory('ns', url=sys.argv[1]).flush(60)"


def test_what_waits_survives_kill_9_and_is_sent_by_the_next_process(tmp_path):
    port = free_port()
    command = [sys.executable, "-c", WRITER, f"http://127.0.0.1:{port}", "-"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=clean_environment()
    )
    for _ in range(50):
        process.stdout.readline()
    process.kill()
    printed = 50 + len(process.stdout.read().splitlines()[:-1])
    process.wait()
    process.stdout.close()
    with serving(tmp_path / "db", *FREE, port=port) as server, Memory("ns", url=server.url) as memory:
        memory.flush(60)
        stored = memory.get("l")
    assert stored == list(range(len(stored)))
    assert len(stored) >= printed


def test_a_process_ends_at_once_with_what_waits_left_for_the_next(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        port = silent.getsockname()[1]
        program = WRITER.replace("sys.argv[1])", "sys.argv[1], timeout=0.2)")
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program, f"http://127.0.0.1:{port}", "20"],
            capture_output=True, text=True, check=True, timeout=60, env=clean_environment(),
        )  # fmt: skip
        assert len(done.stdout.splitlines()) == 20
        assert "Traceback" not in done.stderr
        assert "Warning" not in done.stderr
    with serving(tmp_path / "db", *FREE, port=port) as server, Memory("ns", url=server.url) as memory:
        memory.flush(60)
        assert memory.get("l") == list(range(20))


def test_two_processes_may_send_the_same_outbox(tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Memory("ns", url=url) as memory:
        for number in range(300):
            memory.append("l", number)
        with serving(tmp_path / "db", *FREE, port=port):
            command = [sys.executable, "-c", FLUSHER, url]
            processes = [subprocess.Popen(command, env=clean_environment()) for _ in range(3)]
            assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
            memory.flush(60)
            assert memory.get("l") == list(range(300))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_forked_child_and_its_parent_send_everything_once(between, server, remote):
    between.mode = "refuse"
    for number in range(20):
        remote.append("parent", number)
    child = os.fork()
    if not child:
        code = 1
        try:
            remote.append("child", 0)
            between_url = remote.location
            with Memory(remote.namespace, url=between_url) as own:
                own.append("child", 1)
            waiting = ThreadPoolExecutor().submit(remote.pending).result(60)  # its threads do not wait for the parent's
            code = 0 if len(waiting) == 22 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    between.mode = "pass"
    remote.flush()
    with direct(server, remote) as memory:
        assert (memory.get("parent"), memory.get("child")) == (list(range(20)), [0, 1])


def test_a_child_writes_under_ids_of_its_own(server):
    """A slot that both used would make the server take the child's first write for one of the parent's."""
    with Memory(fresh_name(), url=server.url) as memory:
        memory.append("l", "parent")
        child = os.fork()
        if not child:
            os._exit(memory.append("l", "child"))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        assert memory.append("l", "parent again") == 3


# ---------------------------------------------------------------- the file


def test_the_file_is_private_and_forgets_what_was_sent(between, remote):
    between.mode = "refuse"
    remote.append("l", "a secret that was told")
    path = Path(memory_settings().outbox)
    assert path.stat().st_mode & 0o777 == 0o600
    kept = b"".join(part.read_bytes() for part in path.parent.iterdir())
    assert b"a secret that was told" in kept
    between.mode = "pass"
    remote.flush()
    assert b"a secret" not in b"".join(part.read_bytes() for part in path.parent.iterdir())


@pytest.fixture
def full_disk(monkeypatch):
    """While it is set, nothing can be written to the outbox."""
    full, run = threading.Event(), queue.QueueFile._run

    def refuse(self, sql, params=()):
        if full.is_set() and sql.startswith(("DELETE", "UPDATE", "INSERT")):
            raise queue.QueueUnavailable(f"the outbox {self.path} cannot be used: database or disk is full")
        return run(self, sql, params)

    monkeypatch.setattr(queue.QueueFile, "_run", refuse)
    return full


def in_file(memory: Memory) -> int:
    """How many writes the file has, whether they are sent or not."""
    file = queue.QueueFile(Path(memory_settings().outbox), queue.Target("", ""))
    try:
        return sum(each.writes for each in file.summaries() if each.namespace == memory.namespace)
    finally:
        file.close()


def test_a_full_disk_does_not_keep_what_waits_from_being_sent(between, server, remote, full_disk, caplog):
    between.mode = "refuse"
    for number in range(50):
        remote.append("l", number)
    full_disk.set()
    between.mode, seen = "pass", len(between.requests)
    remote.flush()
    assert len(between.requests) == seen + 50, "each is sent once, though none can be removed"
    assert not remote._executor.is_unreachable
    assert remote.pending() == []
    assert remote.append("l", 50) == 51, "directly, after what waited"
    assert remote.get("l") == list(range(51))
    assert in_file(remote) == 50
    assert len([record for record in caplog.records if "disk is full" in record.getMessage()]) == 1
    full_disk.clear()
    eventually(lambda: in_file(remote) == 0)
    assert len(between.requests) == seen + 52
    assert direct(server, remote).get("l") == list(range(51))


def test_what_is_refused_for_good_while_the_disk_is_full_is_not_lost(between, remote, full_disk):
    remote.set("text", "no list")
    between.mode = "refuse"
    remote.append("text", 1)
    remote.set("after", 2)
    full_disk.set()
    between.mode = "pass"
    remote.flush()
    assert remote.get("after") == 2
    full_disk.clear()
    eventually(lambda: [waits.refused for waits in remote.pending()] == [True])


def test_a_file_that_cannot_be_read_is_not_taken_for_a_server_that_is_away(between, remote, monkeypatch):
    between.mode = "refuse"
    remote.set("k", 1)

    def broken(*_):
        raise queue.QueueUnavailable("the outbox cannot be used: disk I/O error")

    with monkeypatch.context() as patch, Memory(fresh_name(), url=between.url) as other:
        patch.setattr(queue.QueueFile, "unsent", broken)
        between.mode = "pass"
        assert other.get("k") is None, "so the server is there"
        eventually(lambda: "disk I/O error" in str(remote._executor._sender.cause(remote.namespace)))
        assert not remote._executor.is_unreachable
        assert other.set("k", 1) == 1
    remote.flush()
    assert remote.get("k") == 1


@pytest.mark.parametrize("fault", ["damaged", "another program's", "in no folder"])
def test_nothing_pretends_to_be_kept_when_the_file_cannot_be_used(tmp_path, monkeypatch, between, fault):
    path = tmp_path / "outbox.db"
    if fault == "damaged":
        path.write_bytes(b"this is not a database, and never was one" * 200)
    elif fault == "another program's":
        SqliteStore(path).close()
    else:
        (tmp_path / "file").write_text("")
        path = tmp_path / "file" / "outbox.db"
    monkeypatch.setenv("SCRUBJAY_OUTBOX", str(path))
    with Memory(fresh_name(), url=between.url) as memory:
        assert memory.set("k", 1) == 1, "the server is there, so nobody needs the outbox"
        between.mode = "refuse"
        for _ in range(2):
            with pytest.raises(
                Unavailable, match=rf"did not answer.*could not be queued.*{path.name}.*SCRUBJAY_OUTBOX"
            ):
                memory.set("k", 2)
        between.mode = "pass"
        assert memory.get("k") == 1


# ---------------------------------------------------------------- the whole of it against a dict

KEYS = st.sampled_from("abc")
STEPS = st.one_of(
    st.tuples(st.just("mode"), st.sampled_from(["pass", "refuse", "lose", 500, 503])),
    st.tuples(st.just("set"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("append"), st.sampled_from("lm"), st.integers(0, 9)),
    st.tuples(st.just("delete"), st.sampled_from("abclm")),
    st.tuples(st.just("update"), st.dictionaries(KEYS, st.none() | st.integers(0, 9), min_size=1)),
    st.tuples(st.just("merge"), st.just("o"), st.dictionaries(KEYS, st.none() | st.integers(0, 9))),
    st.tuples(st.just("get"), st.sampled_from("abclmo")),
    st.tuples(st.just("keys")),
    st.tuples(st.just("items")),
    st.tuples(st.just("length"), st.sampled_from("lm")),
    st.tuples(st.just("slice"), st.sampled_from("lm"), st.integers(-3, 3)),
    st.tuples(st.just("pop"), st.sampled_from("lm"), st.integers(1, 2)),
)
READS = {
    "get": lambda model, key: model.get(key),
    "keys": sorted,
    "items": lambda model: sorted(model.items()),
    "length": lambda model, key: len(model.get(key, [])),
    "slice": lambda model, key, start: model.get(key, [])[start:],
}


def read(memory: Memory, verb: str, *args):
    found = getattr(memory, verb)(*args)
    return list(found) if verb == "items" else found


@settings(max_examples=40)
@given(st.lists(STEPS, max_size=25))
def test_whatever_the_network_does_the_memory_is_like_a_dict(between, steps):
    model: dict = {}
    between.mode = "pass"
    with Memory(fresh_name(), url=between.url) as memory:
        for verb, *args in steps:
            if verb == "mode":
                between.mode = args[0]
            elif verb in READS:
                try:
                    assert read(memory, verb, *args) == READS[verb](model, *args)
                except Unavailable:
                    assert between.mode != "pass" or memory.pending()
            elif verb == "pop":
                if between.mode == "pass":  # a lost answer is a lost item: it raises, and the caller knows
                    memory.flush()
                    assert memory.pop(*args) == model.get(args[0], [])[-args[1] :]
                    if args[0] in model:
                        del model[args[0]][-args[1] :]
            else:
                getattr(memory, verb)(*args)
                follow(model, verb, *args)
        between.mode = "pass"
        memory.flush()
        assert memory.get_many(list("abclmo")) == model


WRITES = st.one_of(
    st.tuples(st.just("set"), st.sampled_from("abc"), st.integers(0, 9)),
    st.tuples(st.just("append"), st.sampled_from("lm"), st.integers(0, 9)),
    st.tuples(st.just("merge"), st.just("o"), st.dictionaries(KEYS, st.none() | st.integers(0, 9))),
    st.tuples(st.just("update"), st.dictionaries(KEYS, st.none() | st.integers(0, 9), min_size=1)),
)


@settings(max_examples=40)
@given(
    before=st.lists(WRITES, max_size=8),
    after=st.lists(WRITES, min_size=1, max_size=8),
    limit=st.none() | st.integers(1, 3),
    start=st.none() | st.sampled_from("abclmo"),
    reverse=st.booleans(),
)
def test_pages_of_items_hold_what_is_queued_behind_a_quota(tmp_path, before, after, limit, start, reverse):
    model: dict = {}
    with Memory(fresh_name(), path=tmp_path / "db", durability="fast", outbox=tmp_path / "outbox") as memory:
        for verb, *args in before:
            getattr(memory, verb)(*args)
            follow(model, verb, *args)
        memory.set("zz", 1)
        model["zz"] = 1
        memory.set_quota(writes_per_day=1)
        copy = unattended_copy(memory)
        for verb, *args in after:
            getattr(copy, verb)(*args)
            follow(model, verb, *args)
        expected = sorted(model.items(), reverse=reverse)
        expected = [pair for pair in expected if not start or (pair[0] < start if reverse else pair[0] > start)]
        assert list(copy.items(after=start, limit=limit, reverse=reverse)) == expected[:limit]
        assert copy.keys() == sorted(model)
        assert copy.length("l") == len(model.get("l", []))
        for start_at, stop in ((-2, None), (0, 3), (2, 4), (5, 9), (1, -1)):
            assert copy.slice("m", start_at, stop) == model.get("m", [])[start_at:stop]
        assert copy.get("o") == model.get("o")
        queued = {write.key for write in copy.pending()} - {""}
        for key in queued:
            with pytest.raises(Unavailable, match="no version yet"):
                list(copy.scan(key))
        copy.close()


def follow(model: dict, verb: str, *args) -> None:
    if verb == "update":
        for key, value in args[0].items():
            follow(model, "delete" if value is None else "set", key, value)
    elif verb == "delete":
        model.pop(args[0], None)
    elif verb == "append":
        model[args[0]] = [*model.get(args[0], []), args[1]]
    elif verb == "merge":
        merged = {**model.get(args[0], {}), **args[1]}
        model[args[0]] = {name: value for name, value in merged.items() if value is not None}
    else:
        model[args[0]] = args[1]


def test_a_password_in_the_url_is_in_no_file_error_or_log(tmp_path, caplog, between, server):
    url = between.url.replace("://", "://sarah:hunter2@")
    between.mode = "refuse"
    with Memory(fresh_name(), url=url) as memory:
        assert memory.set("k", 1) is None
        with pytest.raises(Unavailable) as raised:
            memory.incr("n")
        shown = f"{raised.value} {memory!r} {memory.location} {caplog.text} {memory.pending()}"
        stored = b"".join(part.read_bytes() for part in Path(memory_settings().outbox).parent.iterdir())
        assert "hunter2" not in shown
        assert b"hunter2" not in stored
        between.mode = "pass"
        memory.flush()
        assert direct(server, memory).get("k") == 1


def test_a_silent_server_is_waited_for_once_by_all_calls_that_need_it(between):
    with contextlib.ExitStack() as stack:
        memories = [stack.enter_context(Memory(fresh_name(), url=between.url, timeout=3)) for _ in range(12)]
        between.mode = 503
        for memory in memories:
            memory.append("l", 1)
        between.mode = "hang"
        before = len(between.requests)
        with ThreadPoolExecutor(4) as pool:

            def get(memory: Memory) -> str:
                with pytest.raises(Unavailable, match="this call was not sent: earlier writes") as raised:
                    memory.get("l")
                return str(raised.value)

            assert all("scrubjay flush" in message for message in pool.map(get, memories))
        assert len(between.requests) - before <= 5, "one attempt of the calls, and few of the sender thread"


def test_a_call_waits_for_its_own_timeout_whoever_has_queued_the_writes(between):
    with Memory(fresh_name(), url=between.url, timeout=60) as patient:
        name = patient.namespace
        between.mode = 503
        with between_attempts(patient):  # the sender thread, which has the timeout of the first, does not try
            patient.append("l", 1)
        between.mode = "hang"
        with Memory(name, url=between.url, timeout=1) as memory:
            started = time.monotonic()
            for call in (lambda: memory.get("l"), lambda: memory.incr("n"), lambda: memory.pop("l")):
                with pytest.raises(Unavailable, match="this call was not sent"):
                    call()
            assert time.monotonic() - started < 50


def test_a_program_that_ends_sends_what_is_queued_while_the_server_takes_it(tmp_path):
    port, name = free_port(), fresh_name()
    with Memory(name, url=f"http://127.0.0.1:{port}") as memory:
        for i in range(20):
            memory.append("l", i)
        assert len(memory.pending()) == 20
        with between_attempts(memory), serving(tmp_path / "db", *FREE, port=port) as server:
            program = (
                "from scrubjay import Memory; from scrubjay.outbox import sender; sender.EXIT_SECONDS = 120;"
                f" Memory('other', url={server.url!r}).get('k')"
            )
            variables = {**clean_environment(), "SCRUBJAY_OUTBOX": str(memory._executor._sender.path)}
            ended = subprocess.run(
                [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True
            )
            assert ended.stderr == ""
            assert Memory(name, url=server.url, strict=True).get("l") == list(range(20))


def test_what_an_earlier_api_key_has_queued_is_announced_with_the_command_that_sends_it(between, caplog):
    name = fresh_name()
    between.mode = "refuse"
    with Memory(name, url=between.url, api_key="old") as earlier, between_attempts(earlier):
        earlier.set("k", 1)
        between.mode = "pass"
        caplog.clear()
        with Memory("other", url=between.url, api_key="new") as other:
            other.get("k")
        assert caplog.messages == []
        with Memory(name, url=between.url, api_key="new") as memory:
            assert memory.get("k") is None
            assert memory.get("k") is None
    (message,) = caplog.messages
    assert f"1 write to {name!r} made with another api key" in message
    assert f"`scrubjay flush --other-keys --url {between.url}`" in message


def test_commands_in_messages_name_the_queue_file_unless_it_is_the_default_one(tmp_path):
    for options, prefix in (
        ({}, "`scrubjay"),
        ({"outbox": tmp_path / "my box"}, f"`SCRUBJAY_OUTBOX='{tmp_path}/my box' "),
    ):
        with Memory("ns", url=f"http://127.0.0.1:{free_port()}", **options) as memory:
            memory.set("k", 1)
            with pytest.raises(Unavailable, match=re.escape(prefix)):
                memory.item("k")


def test_queued_writes_alone_answer_reads_and_take_no_writes():
    with Memory("ns", url=f"http://127.0.0.1:{free_port()}") as memory:
        memory.append("l", 1, 2)
        memory.set("k", {"a": 1})
        alone = memory_on(memory._executor.queued_alone(), "ns", memory._settings)
        assert (alone.tail("l", 1), alone.get("k"), alone.keys(), alone.get("x")) == ([2], {"a": 1}, ["k", "l"], None)
        assert [write.verb for write in alone.pending()] == ["append", "set"]
        for call in (lambda: alone.set("k", 2), lambda: alone.recall("x")):
            with pytest.raises(Unavailable, match="queued writes alone do not answer"):
                call()


def test_a_forked_child_that_does_nothing_ends_at_once():
    program = f"""
import os, sys, time
from scrubjay import Memory
from scrubjay.outbox import sender
sender.EXIT_SECONDS = 60
memory = Memory("ns", url="http://127.0.0.1:{free_port()}")
memory.append("l", 1)
started = time.monotonic()
if (child := os.fork()) == 0:
    sys.exit()
os.waitpid(child, 0)
print(time.monotonic() - started)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], env=clean_environment(), capture_output=True, text=True, check=True
    )
    assert float(ended.stdout) < 50


def test_a_slow_refusal_of_one_namespace_is_not_silence(between, monkeypatch):
    monkeypatch.setattr(sender_module, "SILENCE_SECONDS", 0.0)
    names = [fresh_name(), fresh_name()]
    with Memory(names[0], url=between.url) as full, Memory(names[1], url=between.url) as free:
        between.mode = 503
        with between_attempts(full):
            full.append("l", 1)
            free.append("l", 1)
        sender = full._executor._sender
        with between_attempts(full):
            sender._pauses.clear()
            sender._pause(full.namespace, QuotaExceeded("full"), 60)
            between.mode = "pass"
        assert free.get("l") == [1]
        with between_attempts(full):
            sender._pause(None, Unavailable("silent"), 60)
        assert sender._is_silent
        sender.mark_reachable()
        assert not sender._is_silent


def test_a_write_while_the_interpreter_ends_is_queued(monkeypatch):
    def refuse(_thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with Memory(fresh_name(), url=f"http://127.0.0.1:{free_port()}") as memory:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            assert memory.append("l", 1) is None
        assert len(memory.pending()) == 1


def test_a_flush_counts_what_the_sender_thread_sends_before_it(between, capsys, monkeypatch):
    open_outbox = cli_queue._open_outbox

    def open_late(*arguments):
        executor = open_outbox(*arguments)
        eventually(lambda: not executor.pending(None))
        return executor

    monkeypatch.setattr(cli_queue, "_open_outbox", open_late)
    with Memory(fresh_name(), url=between.url) as memory:
        between.mode = 503
        memory.append("l", 1)
        with between_attempts(memory):
            between.mode = "pass"
            monkeypatch.setattr(sender_module, "_senders", {})  # those of another process
            assert main(["flush", "--url", between.url]) == 0
    assert "sending 1 write to" in (told := capsys.readouterr()).err
    assert "1 write sent to" in told.out
