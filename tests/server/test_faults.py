"""Responses of a running server when its disk is full, its file is moved or another process holds the lock."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import signal
import sqlite3

import pytest
import requests

from harness import Server, run_text, serving
from scrubjay.store import items
from scrubjay.store.sqlite import SqliteStore


@pytest.fixture
def server(tmp_path):
    with serving(tmp_path / "db", "--writes-per-day", "0", "--max-bytes", "0") as server:
        assert put(server, "k", 1).status_code == 200
        yield server


def put(server: Server, key: str, value: object) -> requests.Response:
    return requests.put(f"{server.url}/v1/namespaces/ns/items/{key}", json={"value": value}, timeout=60)


def get(server: Server, path: str) -> requests.Response:
    return requests.get(f"{server.url}{path}", timeout=60)


def assert_unavailable(answer: requests.Response, cause: str, server: Server) -> None:
    """A 503 with the cause, but without the path of the server's file."""
    error = answer.json()
    assert (answer.status_code, error["code"]) == (503, "unavailable")
    assert int(answer.headers["Retry-After"]) > 0
    assert cause in error["detail"]
    assert str(server.path.parent) not in error["detail"]


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="a limit on another process can only be set on Linux")
def test_a_full_disk_refuses_writes_keeps_reading_and_recovers(server):
    unlimited = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    acknowledged = []
    for i in range(1000):
        answer = put(server, f"f{i}", "x" * 5000)
        if answer.status_code != 200:
            break
        acknowledged.append(f"f{i}")
    assert_unavailable(answer, "nothing was half-written", server)
    assert get(server, "/v1/namespaces/ns/items/k").json()["value"] == 1
    assert get(server, "/v1/namespaces/ns/items").json()["keys"] == sorted([*acknowledged, "k"])
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)
    assert put(server, "again", 1).status_code == 200
    server.stop()
    store = SqliteStore(server.path)
    assert store.find_problems() == []
    store.close()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="a limit on another process can only be set on Linux")
def test_a_backup_that_the_servers_disk_has_no_room_for_names_what_needs_none(server, tmp_path):
    for i in range(20):
        assert put(server, f"f{i}", "x" * 5000).status_code == 200
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    answer = get(server, "/v1/backup")
    assert_unavailable(answer, "the server has no room for a temporary copy", server)
    assert ".scrubjay-backup" not in answer.json()["detail"]
    assert "`scrubjay backup --path FILE TARGET` on its machine, which writes to TARGET" in answer.json()["detail"]
    assert list(tmp_path.glob(".scrubjay-backup-*")) == []


def test_a_lock_held_by_another_process_refuses_writes_and_not_reads(server):
    other = sqlite3.connect(server.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert_unavailable(put(server, "k", 2), "another process has been writing", server)
    assert get(server, "/v1/namespaces/ns/items/k").json()["value"] == 1
    assert get(server, "/ready").status_code == 200
    other.execute("COMMIT")
    other.close()
    assert put(server, "k", 2).status_code == 200


def test_a_moved_file_refuses_writes_until_it_is_back(server, tmp_path):
    """The open descriptor would accept them, and they would be lost."""
    (tmp_path / "db").rename(tmp_path / "moved")
    assert_unavailable(put(server, "k", 2), "moved, deleted, emptied or replaced", server)
    assert_unavailable(get(server, "/ready"), "moved, deleted, emptied or replaced", server)
    assert get(server, "/health").status_code == 200
    (tmp_path / "moved").rename(tmp_path / "db")
    assert put(server, "k", 2).status_code == 200
    assert get(server, "/ready").status_code == 200


def test_a_replaced_file_refuses_writes(server, tmp_path):
    shutil.copy(tmp_path / "db", tmp_path / "copy")
    (tmp_path / "copy").replace(tmp_path / "db")
    assert_unavailable(put(server, "k", 2), "moved, deleted, emptied or replaced", server)


def test_an_emptied_file_refuses_writes_and_never_returns_wrong_values(server, tmp_path):
    for name in ("db", "db-wal"):
        (tmp_path / name).write_bytes(b"")
    assert_unavailable(put(server, "k", 2), "database", server)
    for path in ("/v1/namespaces/ns/items/k", "/v1/namespaces/ns/items", "/v1/namespaces", "/ready"):
        answer = get(server, path)
        if answer.status_code == 200:
            assert answer.json().get("value", 1) == 1
        else:
            assert_unavailable(answer, "", server)
    assert server.process.poll() is None


def test_damage_that_a_read_meets_is_logged_once_and_the_server_is_no_longer_ready(tmp_path):
    path = tmp_path / "db"
    with contextlib.closing(SqliteStore(path)) as store:
        for i in range(200):
            store.run(items.set_item("ns", f"k{i:03}", json.dumps("x" * 1000)))
    with path.open("r+b") as file:
        file.seek(40 * 4096)
        file.write(b"\xff" * (path.stat().st_size - 40 * 4096))
    with serving(path) as server:
        for _ in range(3):
            assert_unavailable(get(server, "/v1/namespaces/ns/values"), "malformed", server)
        assert_unavailable(get(server, "/ready"), "the file is damaged", server)
        checked = run_text("doctor", SCRUBJAY_URL=server.url)
        assert (checked.returncode, "damaged" in checked.stdout) == (1, True)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.stderr.read().count("malformed") == 1


def test_a_server_that_is_stopped_while_it_starts_stops(tmp_path):
    for number in range(5):
        server = Server(tmp_path / f"db-{number}")
        assert server.stop() == 0
