"""What a running server answers when its disk, its file or another process does not play along."""

from __future__ import annotations

import resource
import shutil
import sqlite3

import pytest
import requests

from harness import Server, serving
from scrubjay.store.sqlite import SqliteStore


@pytest.fixture
def server(tmp_path):
    with serving(tmp_path / "db", "--writes-per-day", "0", "--max-bytes", "0") as server:
        assert put(server, "k", 1).status_code == 200
        yield server


def put(server: Server, key: str, value: object) -> requests.Response:
    return requests.put(f"{server.url}/v1/namespaces/ns/items/{key}", json={"value": value}, timeout=20)


def get(server: Server, path: str) -> requests.Response:
    return requests.get(f"{server.url}{path}", timeout=20)


def assert_told(answer: requests.Response, cause: str, server: Server) -> None:
    """503 in words for the client, which has nothing to do with where the file lies."""
    told = answer.json()
    assert (answer.status_code, told["code"]) == (503, "unavailable")
    assert int(answer.headers["Retry-After"]) > 0
    assert cause in told["detail"]
    assert str(server.path.parent) not in told["detail"]


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="a limit on another process can only be set on Linux")
def test_a_full_disk_refuses_writes_goes_on_reading_and_recovers(server):
    unlimited = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    acknowledged = []
    for i in range(1000):
        answer = put(server, f"f{i}", "x" * 5000)
        if answer.status_code != 200:
            break
        acknowledged.append(f"f{i}")
    assert_told(answer, "nothing was half-written", server)
    assert get(server, "/v1/namespaces/ns/items/k").json()["value"] == 1
    assert get(server, "/v1/namespaces/ns/items").json()["keys"] == sorted([*acknowledged, "k"])
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)
    assert put(server, "again", 1).status_code == 200
    server.stop()
    store = SqliteStore(server.path)
    assert store.find_faults() == []
    store.close()


def test_a_lock_that_another_process_holds_too_long_is_told_and_reads_go_on(server):
    other = sqlite3.connect(server.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert_told(put(server, "k", 2), "another process has been writing", server)
    assert get(server, "/v1/namespaces/ns/items/k").json()["value"] == 1
    assert get(server, "/ready").status_code == 200
    other.execute("COMMIT")
    other.close()
    assert put(server, "k", 2).status_code == 200


def test_a_file_that_was_moved_away_takes_no_more_writes_until_it_is_back(server, tmp_path):
    """Its old descriptor would take them, and nobody would ever find them."""
    (tmp_path / "db").rename(tmp_path / "moved")
    assert_told(put(server, "k", 2), "moved, deleted, emptied or replaced", server)
    assert_told(get(server, "/ready"), "moved, deleted, emptied or replaced", server)
    assert get(server, "/health").status_code == 200
    (tmp_path / "moved").rename(tmp_path / "db")
    assert put(server, "k", 2).status_code == 200
    assert get(server, "/ready").status_code == 200


def test_a_file_that_was_replaced_by_another_takes_no_writes(server, tmp_path):
    shutil.copy(tmp_path / "db", tmp_path / "copy")
    (tmp_path / "copy").replace(tmp_path / "db")
    assert_told(put(server, "k", 2), "moved, deleted, emptied or replaced", server)


def test_a_file_that_was_emptied_takes_no_writes_and_what_is_read_is_right_or_told(server, tmp_path):
    for name in ("db", "db-wal"):
        (tmp_path / name).write_bytes(b"")
    assert_told(put(server, "k", 2), "database", server)
    for path in ("/v1/namespaces/ns/items/k", "/v1/namespaces/ns/items", "/v1/namespaces", "/ready"):
        answer = get(server, path)
        if answer.status_code == 200:
            assert answer.json().get("value", 1) == 1
        else:
            assert_told(answer, "", server)
    assert server.process.poll() is None
