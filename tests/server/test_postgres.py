"""Several servers on one PostgreSQL database."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import scrubjay_postgres
from harness import Server, fresh_name, postgres, run_command
from scrubjay import Memory, QuotaExceeded, ScrubjayError
from scrubjay.commands import SET
from scrubjay.errors import Unauthenticated
from scrubjay.outbox.queue import QueueFile, Target
from scrubjay.settings import server_settings
from scrubjay.store import api_keys
from scrubjay.store.postgres import PostgresStore
from scrubjay.store.postgres.asyncio import AsyncPostgresStore
from scrubjay.write_keys import new_key
from scrubjay_command import choose_store
from scrubjay_postgres import KEY_SECONDS, SharedKeyCache


@pytest.fixture(scope="module")
def url() -> str:
    return postgres().fresh_url()


@pytest.fixture(scope="module")
def servers(url):
    servers = [Server(Path("unused"), "--store", url, "--durability", "fast") for _ in range(2)]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def memories(servers):
    """Handles on one namespace, each through a server of its own."""
    namespace = fresh_name()
    memories = [Memory(namespace, url=server.url, timeout=60, strict=True) for server in servers]
    yield memories
    for memory in memories:
        memory.close()


def request(server: Server, method: str, path: str, key: str = "") -> tuple[int, dict]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    asked = urllib.request.Request(server.url + path, method=method, headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_each_server_reads_what_the_other_has_written(memories, servers, url):
    one, two = memories
    one["k"] = {"a": 1}
    assert two["k"] == {"a": 1}
    two.append("l", "x")
    assert one.append("l", "y") == 2
    with Memory(one.namespace, url=url) as direct:
        assert direct.get("l") == ["x", "y"]
    one.remember("Sarah likes tea")
    assert [note.content for note in two.recall("Sarah")] == ["Sarah likes tea"]
    assert [match.key for match in two.search("y")] == ["l"]
    assert one.incr("n") + two.incr("n") == 3
    assert postgres().url.partition("@")[2].partition("/")[0] in servers[0].banner


def test_a_watch_through_one_server_sees_every_write_through_the_other(memories):
    one, two = memories
    found, ready = [], threading.Event()

    def watch():
        changes = two.watch(timeout=60, after=0)
        ready.set()
        for change in changes:
            found.append(change.key)
            if change.key == "last":
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    ready.wait()
    for n in range(20):
        (one, two)[n % 2][f"k{n}"] = n
    one["last"] = True
    watcher.join(120)
    assert found == [*(f"k{n}" for n in range(20)), "last"]


def test_a_quota_is_exact_over_two_servers(memories):
    one, two = memories
    limits = ("--new", "--writes-per-day", "10")
    assert run_command("quota", one.namespace, *limits, SCRUBJAY_URL=one.location).returncode == 0
    refused = []

    def write(memory, name):
        for n in range(10):
            try:
                memory[f"{name}{n}"] = n
            except QuotaExceeded:
                refused.append(n)

    writers = [threading.Thread(target=write, args=each) for each in ((one, "a"), (two, "b"))]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(refused) == 10
    assert (one.usage().keys, one.usage().writes_today) == (10, 10)


def test_an_export_moves_a_namespace_between_the_engines(memories, url, tmp_path):
    source, copy = memories[0], tmp_path / "file.db"
    for key in ("a", "\0", "z\1"):
        source[key] = {"key": [key]}
    source.append("l", 1)
    source.remember("Sarah likes tea", tags=["t"])
    exported = run_command("export", source.namespace, "--url", url).stdout
    assert run_command("import", "--path", copy, stdin=exported).returncode == 0
    again = run_command("export", source.namespace, "--path", copy).stdout
    assert again.splitlines()[1:] == exported.splitlines()[1:]
    assert run_command("import", "back", "--url", url, stdin=again).returncode == 0
    back = run_command("export", "back", "--url", url).stdout
    assert back.splitlines()[1:] == exported.splitlines()[1:]
    over_http = run_command("export", source.namespace, "--url", source.location).stdout
    assert over_http.splitlines()[1:] == exported.splitlines()[1:]


def test_all_namespaces_move_between_the_engines_and_come_back_the_same(tmp_path):
    url, file, exported = postgres().fresh_url(), tmp_path / "file.db", tmp_path / "all.jsonl"
    for name in ("a", "b ü", "c"):
        with Memory(name, path=str(file)) as memory:
            memory.update({"k": [name], "\0": 2**70, "z\1": None})
            memory.set("expires", 1, ttl=1000)
            memory.append("l", "x", "y")
            memory.remember(f"Sarah likes {name}", tags=["t"], metadata={"from": name})
    with Memory("c", path=str(file)) as memory:
        memory.set_quota(writes_per_day=7)
    assert run_command("export", "--all", "--path", file, "-o", exported).returncode == 0
    done = run_command("import", "--json", "--url", url, "-i", exported)
    assert [each["namespace"] for each in json.loads(done.stdout)["imported"]] == ["a", "b ü", "c"]
    for words, variables in ((("--url", url), {}), ((), {"SCRUBJAY_STORE": url})):
        checked = run_command("doctor", *words, **variables)
        assert (checked.returncode, checked.stdout.startswith(b"database postgresql://")) == (0, True)
    there = run_command("export", "--all", "--url", url).stdout
    assert without_headers(there) == without_headers(exported.read_bytes())
    assert run_command("import", "--path", tmp_path / "back.db", stdin=there).returncode == 0
    back = run_command("export", "--all", "--path", tmp_path / "back.db").stdout
    assert without_headers(back) == without_headers(exported.read_bytes())
    with Memory("c", url=url) as memory:
        assert memory.usage().writes_per_day == 7
        assert [note.content for note in memory.recall("Sarah")] == ["Sarah likes c"]


def without_headers(exported: bytes) -> list[dict]:
    """The lines of exports, without the time at which they were made."""
    lines = [json.loads(line) for line in exported.splitlines()]
    return [{name: value for name, value in line.items() if name != "exported_at"} for line in lines]


def test_a_file_with_several_exports_is_refused_before_anything_is_imported(tmp_path):
    for namespace in ("p", "q"):
        with Memory(namespace, path=str(tmp_path / "file.db")) as memory:
            memory["k"] = 1
    exported = run_command("export", "--all", "--path", tmp_path / "file.db").stdout
    target = ("--path", tmp_path / "other.db")
    assert b"has 2 namespaces" in run_command("import", "name", *target, stdin=exported).stderr
    cut = run_command("import", *target, stdin=exported.rstrip(b"\n").rpartition(b"\n")[0] + b"\n")
    assert (cut.returncode, b"incomplete" in cut.stderr) == (1, True)
    assert run_command("import", *target, stdin=exported).returncode == 0
    for words in (("export",), ("export", "p", "--all")):
        assert b"pass --all" in run_command(*words, *target).stderr


def test_what_a_file_can_do_and_a_database_cannot_is_refused_with_a_sentence(servers, url, tmp_path):
    for command in (["backup", tmp_path / "x"], ["restore", tmp_path / "x"], ["compact"], ["encrypt"], ["decrypt"]):
        done = run_command(*command, "--url", url)
        assert done.returncode == 1
        assert b"the data is in PostgreSQL" in done.stderr
    status, body = request(servers[0], "GET", "/v1/backup")
    assert (status, "pg_dump" in body["detail"]) == (400, True)


def test_doctor_and_status_show_the_database(memories, url):
    memories[0]["k"] = 1
    for command in ("doctor", "status"):
        done = run_command(command, "--url", url)
        assert done.returncode == 0, done.stderr
        assert b"postgresql://127.0.0.1" in done.stdout


def test_erase_says_what_it_does_not_prove(memories, servers, url):
    memories[0]["k"] = 1
    status, erased = request(servers[1], "POST", f"/v1/namespaces/{memories[0].namespace}/erase")
    assert (status, erased["rows"]["items"], erased["traces"]) == (200, 1, [])
    assert "write-ahead log" in erased["limits"]
    memories[0]["k"] = 1
    done = run_command("erase", memories[0].namespace, "--yes", "--url", url)
    assert b"CAUTION  the rows are deleted and vacuumed" in done.stdout
    assert "k" not in memories[1]


def test_the_database_that_is_served_is_the_one_that_was_named(tmp_path, monkeypatch):
    both = run_command("serve", "--path", tmp_path / "db", "--store", "postgresql://127.0.0.1/x", "--port", "0")
    assert (both.returncode, b"give one of them" in both.stderr) == (1, True)
    url = postgres().fresh_url()
    for variables, flags, served in (
        ({"SCRUBJAY_URL": url}, {}, url),
        ({"SCRUBJAY_URL": "http://127.0.0.1:1", "SCRUBJAY_STORE": url}, {}, url),
        ({"SCRUBJAY_URL": url}, {"store": "postgresql://127.0.0.1/x"}, "postgresql://127.0.0.1/x"),
        ({"SCRUBJAY_URL": url}, {"path": "db"}, None),
        ({"SCRUBJAY_URL": "http://127.0.0.1:1"}, {}, None),
    ):
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            choose_store({"path": None, "store": None, **flags})
            assert server_settings(**flags).store == served
            for name, value in flags.items():  # as `serve` does for its workers
                patched.setenv(f"SCRUBJAY_{name.upper()}", value)
            assert server_settings().store == served


def test_when_every_key_is_revoked_each_advice_works_when_it_is_pasted():
    url = postgres().fresh_url()
    key = run_command("key", "issue", "--admin", "--url", url).stdout.decode().split()[0]
    revoked = run_command("key", "revoke", key.split("_")[1], "--url", url)
    server = Server(Path("unused"), "--store", url.replace("postgres@", "postgres:secret@"), "--durability", "fast")
    try:
        in_note = re.search(r"to make another: scrubjay (key .*)$", revoked.stderr.decode(), re.MULTILINE)[1]
        in_banner = re.search(r"every key is revoked: scrubjay (key .*)$", server.banner, re.MULTILINE)[1]
        assert shlex.split(in_note) == shlex.split(in_banner) == ["key", "issue", "--admin", "--url", url]
        status, refused = request(server, "GET", "/v1/apikeys", key)
        assert status == 401
        assert "--url postgresql://USER@HOST/DATABASE instead of --path FILE" in refused["detail"]
        made = run_command(*shlex.split(in_banner), SCRUBJAY_URL=server.url).stdout.decode().strip()
        assert request(server, "GET", "/v1/apikeys", made)[0] == 200
    finally:
        server.stop()


def test_a_key_that_one_server_revokes_is_refused_by_the_other():
    url = postgres().fresh_url()
    admin = run_command("key", "issue", "--admin", "--name", "admin", "--url", url).stdout.decode().split()[0]
    bot = run_command("key", "issue", "--name", "bot", "--url", url).stdout.decode().split()[0]
    servers = [Server(Path("unused"), "--store", url, "--durability", "fast") for _ in range(2)]
    try:
        memories = [Memory("ns", url=server.url, api_key=bot, timeout=60, strict=True) for server in servers]
        for memory in memories:
            memory["k"] = 1
        identity = bot.removeprefix("sj_").partition("_")[0]
        done = run_command("key", "revoke", identity, SCRUBJAY_URL=servers[0].url, SCRUBJAY_API_KEY=admin)
        assert done.returncode == 0, done.stderr
        with pytest.raises(Unauthenticated):
            memories[0].get("k")
        time.sleep(KEY_SECONDS)
        with pytest.raises(Unauthenticated):
            memories[1].get("k")
        for memory in memories:
            memory.close()
    finally:
        for server in servers:
            server.stop()


def test_without_a_notification_a_revoked_key_is_refused_after_the_stated_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(scrubjay_postgres.time, "monotonic", lambda: now[0])

    async def work(here: PostgresStore, there: PostgresStore) -> None:
        issued = there.run(api_keys.issue("bot"))
        async with AsyncPostgresStore(here) as served:
            keys = SharedKeyCache(served)
            keys.close()  # no notification arrives
            found = await asyncio.gather(*(keys.find(issued.secret) for _ in range(20)))
            assert {access.name for access in found} == {"bot"}
            there.run(api_keys.revoke(issued.apikey.id))
            now[0] += KEY_SECONDS
            assert await keys.find(issued.secret) == found[0]
            now[0] += 0.001
            assert await keys.find(issued.secret) is None

    url = postgres().fresh_url()
    there = PostgresStore(url)
    asyncio.run(work(PostgresStore(url), there))
    there.close()


class SilentHost:
    """Forwards connections to PostgreSQL; from `is_silent` on it accepts them, and answers nothing."""

    def __init__(self) -> None:
        self.is_silent = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", postgres().port))
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with source, contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self.is_silent:
                    target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)  # which ends the other thread

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # which ends `accept`


def test_a_database_that_never_answers_does_not_hold_up_requests_that_do_not_need_it(tmp_path):
    host = SilentHost()
    url = postgres().fresh_url().replace(str(postgres().port), str(host.port))
    server = Server(tmp_path, "--store", f"{url}&connect_timeout=600")
    answered = []

    def ask(method, path, key=""):
        with contextlib.suppress(OSError):  # the server is stopped at the end
            answered.append(request(server, method, path, key))

    try:
        assert request(server, "GET", "/ready")[0] == 200
        host.is_silent = True
        asked = [
            *(("GET", "/v1/namespaces/ns/items/k"), ("GET", "/v1/namespaces/ns/items/k", "sj_other_key")),
            *(("DELETE", "/v1/namespaces/ns/items/k"), ("GET", "/v1/namespaces"), ("GET", "/ready")),
        ]
        threads = [threading.Thread(target=ask, args=each, daemon=True) for each in asked * 4]
        for thread in threads:
            thread.start()
        for _ in range(10):
            assert request(server, "GET", "/health")[0] == 200
        assert request(server, "GET", "/nowhere")[0] == 404
        assert answered == []
    finally:
        server.process.kill()
        server.stop()
        host.close()
    for thread in threads:
        thread.join(60)


def test_a_server_whose_database_restarts_goes_on(tmp_path):
    from postgres import Postgres

    database = Postgres()
    server = Server(tmp_path, "--store", database.fresh_url())
    try:
        with Memory("ns", url=server.url, timeout=60, strict=True) as memory:
            memory["k"] = 1
            database.stop()
            with pytest.raises(ScrubjayError):
                memory["k"] = 2
            assert request(server, "GET", "/ready")[0] == 503
            database.start()
            give_up_at = time.monotonic() + 120
            while request(server, "GET", "/ready")[0] != 200:
                assert time.monotonic() < give_up_at
            memory["k"] = 3
            assert memory["k"] == 3
    finally:
        server.stop()
        database.close()


@pytest.mark.parametrize("how", ["SCRUBJAY_STORE", "SCRUBJAY_URL", "--url"])
def test_flush_sends_what_an_agent_has_queued_for_a_database(tmp_path, monkeypatch, how):
    url, outbox = postgres().fresh_url(), str(tmp_path / "outbox")
    with Memory("ns", url=url) as memory:
        queue = QueueFile(tmp_path / "outbox", Target.of(memory.location, None))
        queue.add(SET("ns", "k", "1", None, None), str(new_key()), "locked")
        queue.close()
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        words, variables = (("--url", url), {}) if how == "--url" else ((), {how: url})
        sent = run_command("flush", *words, SCRUBJAY_OUTBOX=outbox, **variables)
        assert (sent.returncode, sent.stdout.startswith(b"1 write sent to postgresql://")) == (0, True), sent.stderr
        assert memory.get("k") == 1
    assert list((tmp_path / "here").iterdir()) == []
