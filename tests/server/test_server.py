"""The service in its own process, over plain HTTP."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import requests

from harness import Server, clean_environment, eventually, fresh_name, issue_key, serving
from scrubjay import InvalidInput, Memory, QuotaExceeded, Unavailable
from scrubjay.cli import parser
from scrubjay.exact_json import MAX_WRITE_BYTES
from scrubjay.outbox.queue import Target
from scrubjay.settings import server_settings
from scrubjay.store.sqlite import SqliteStore
from scrubjay.transport import split_credentials


@pytest.fixture
def items(server) -> str:
    return f"{server.url}/v1/namespaces/{fresh_name()}/items"


def raw(server: Server, method: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, dict]:
    """A request that no library has normalized."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.putrequest(method, target, skip_accept_encoding=True)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text else {}


def test_a_server_without_a_process_is_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["serve", "--workers", "0"])
    assert "argument --workers: '0' is not a whole number from 1 up" in capsys.readouterr().err
    monkeypatch.setenv("SCRUBJAY_WORKERS", "0")
    with pytest.raises(InvalidInput, match="SCRUBJAY_WORKERS: '0' is not a whole number from 1 up"):
        server_settings()


def test_the_banner_has_the_url_the_file_and_the_quotas(tmp_path):
    with serving(tmp_path / "here.db", "--writes-per-day", "7", "--max-bytes", "2MB") as server:
        for word in (
            server.url,
            str(tmp_path / "here.db"),
            "7 writes a day",
            "2,000,000 bytes",
            "scrubjay set",
            "/docs",
        ):
            assert word in server.banner


def test_a_value_has_a_version_and_an_etag(items):
    put = requests.put(f"{items}/user", json={"value": {"name": "Sarah"}}, timeout=60)
    assert (put.status_code, put.json(), put.headers["ETag"]) == (200, {"version": 1}, '"1"')
    got = requests.get(f"{items}/user", timeout=60)
    assert got.headers["ETag"] == '"1"'
    assert got.headers["Content-Type"] == "application/json"
    assert got.json()["value"] == {"name": "Sarah"}
    assert set(got.json()) == {"key", "value", "version", "created_at", "updated_at", "expires_at", "bytes"}
    assert got.json()["created_at"].endswith("+00:00")
    unchanged = requests.get(f"{items}/user", headers={"If-None-Match": '"1"'}, timeout=60)
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert requests.head(f"{items}/user", timeout=60).headers["ETag"] == '"1"'
    assert requests.head(f"{items}/nope", timeout=60).status_code == 404
    assert requests.put(f"{items}/user", json={"value": None}, timeout=60).json() == {"version": 0}
    assert requests.get(f"{items}/user", timeout=60).json()["code"] == "not_found"


def test_if_match_and_if_none_match_are_preconditions_of_a_write(items):
    key = f"{items}/k"
    write = lambda value, **headers: requests.put(key, json={"value": value}, headers=headers, timeout=60)  # noqa: E731
    assert write(1, **{"If-None-Match": "*"}).status_code == 200
    assert write(2, **{"If-None-Match": "*"}).status_code == 412
    assert write(2, **{"If-Match": '"1"'}).json() == {"version": 2}
    stale = write(3, **{"If-Match": '"1"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "conflict")
    assert requests.delete(key, headers={"If-Match": '"1"'}, timeout=60).status_code == 412
    assert write(3, **{"If-Match": "soon"}).status_code == 400
    assert write(3, **{"If-Match": '"1"', "If-None-Match": "*"}).status_code == 412
    assert write(3, **{"If-Match": "*"}).json() == {"version": 3}
    assert requests.delete(key, headers={"If-Match": '"3"'}, timeout=60).status_code == 204
    nothing = write(4, **{"If-Match": "*"})
    assert nothing.status_code == 412
    assert "does not exist, and the call expects a value" in nothing.json()["detail"]


def test_every_write_returns_the_remaining_quota(tmp_path):
    with serving(tmp_path / "db", "--writes-per-day", "3", "--max-bytes", "100") as server:
        root = f"{server.url}/v1/namespaces/ns"
        first = requests.put(f"{root}/items/k", json={"value": "x" * 10}, timeout=60).headers
        assert (first["RateLimit-Limit"], first["RateLimit-Remaining"]) == ("3", "2")
        assert (first["Storage-Limit"], first["Storage-Remaining"]) == ("100", "87")
        assert 0 < int(first["RateLimit-Reset"]) <= 86_400
        full = requests.put(f"{root}/items/k2", json={"value": "x" * 100}, timeout=60)
        assert (full.status_code, full.json()["code"]) == (507, "quota_exceeded")
        assert full.headers["Storage-Remaining"] == "87"
        assert requests.post(f"{root}/lists/l", json={"items": [1]}, timeout=60).headers["RateLimit-Remaining"] == "1"
        assert requests.post(f"{root}/counters/n", json={}, timeout=60).headers["RateLimit-Remaining"] == "0"
        over = requests.patch(f"{root}/items", json={"values": {"a": 1}}, timeout=60)
        assert (over.status_code, over.json()["code"]) == (429, "quota_exceeded")
        assert 0 < int(over.headers["Retry-After"]) <= 86_400
        assert over.headers["RateLimit-Remaining"] == "0"
        deleted = requests.delete(f"{root}/items/k", timeout=60)
        assert (deleted.status_code, deleted.headers["RateLimit-Remaining"]) == (204, "0")
        assert "429" not in requests.get(f"{root}/items/l", timeout=60).text
        assert requests.patch(f"{root}/quota", json={"writes_per_day": 0}, timeout=60).json()["writes_per_day"] == 0
        assert "RateLimit-Limit" not in requests.put(f"{root}/items/k", json={"value": 1}, timeout=60).headers


def test_the_default_quota_is_a_thousand_writes_and_50_mb_from_the_first_key_on(tmp_path):
    with serving(tmp_path / "db") as server:
        assert "quotas   none" in server.banner
        assert "from the first api key on, 1,000 writes a day and 50,000,000 bytes for each namespace" in server.banner
        with Memory("ns", url=server.url) as memory:
            used = memory.usage()
            assert (used.writes_per_day, used.max_bytes) == (0, 0)
        key = issue_key(tmp_path / "db", "first")
        with Memory("ns", url=server.url, api_key=key) as memory:
            used = memory.usage()
            assert (used.writes_per_day, used.max_bytes) == (1000, 50_000_000)
    with serving(tmp_path / "db") as server:
        assert "quotas   1,000 writes a day and 50,000,000 bytes for each namespace" in server.banner


def test_a_server_that_needs_no_key_keeps_a_quota_that_is_set(tmp_path):
    with serving(tmp_path / "db", "--writes-per-day", "2") as server, Memory("ns", url=server.url) as memory:
        assert "2 writes a day and unlimited storage" in server.banner
        memory.update({"a": 1, "b": 2, "c": 3})  # one write
        with memory.transaction() as transaction:
            transaction.set("d", 1)
            transaction.append("l", 1)
        assert memory.usage().writes_today == 2
        with pytest.raises(QuotaExceeded):
            memory.set("e", 1)


def test_concurrent_workers_and_processes_never_exceed_the_quota(tmp_path):
    with serving(tmp_path / "db", "--workers", "2", "--writes-per-day", "200", "--durability", "fast") as server:
        Memory("ns", path=str(tmp_path / "db")).set_quota(writes_per_day=200)  # for the embedded writer too
        allowed, refused = [], []

        def hammer(number: int) -> None:
            where = {"path": str(tmp_path / "db")} if number == 0 else {"url": server.url, "timeout": 30}
            with Memory("ns", **where) as memory:
                for i in range(60):
                    try:
                        memory.append("list", [number, i])
                        allowed.append((number, i))
                    except QuotaExceeded as error:
                        refused.append(error.retry_after)

        threads = [threading.Thread(target=hammer, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(allowed), len(refused)) == (200, 160)
        assert all(0 < wait <= 86_400 for wait in refused)
        with Memory("ns", url=server.url) as memory:
            assert sorted(map(tuple, memory.get("list"))) == sorted(allowed)
            assert memory.usage().writes_today == 200
    store = SqliteStore(tmp_path / "db")
    assert store.find_problems() == []
    store.close()


BAD_BODIES = [
    (b"", "lacks the field"),
    (b"{", "not JSON"),
    (b'{"value": NaN}', "NaN is not JSON"),
    (b'{"value": 1e999}', "inf"),
    (b'{"value": "\xff"}', "not JSON"),
    (b'{"value": "\\ud800"}', "lone surrogate"),
    (b'{"value": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nests deeper"),
    (b'{"value": ' + b"[" * 300 + b"]" * 300 + b"}", "nests deeper"),
    (b'{"value": ' + b"9" * 5000 + b"}", "digits"),
    (b"[1]", "JSON object"),
    (b"{}", 'lacks the field "value"'),
    (b'{"value": 1, "tll": 5}', "tll"),
    (b'{"value": 1, "ttl": -5}', "ttl"),
    (b'{"value": 1, "ttl": "soon"}', "ttl"),
    (b'{"value": 1, "ttl": true}', "ttl"),
    (b'{"value": 1, "value": 2}', "the name 'value' twice"),
    (b'{"value": {"a": {"b": 1, "c": 2, "b": 3}}}', "the name 'b' twice"),
    ('{"value": 1}'.encode("utf-16"), "not JSON"),
    (b'\xef\xbb\xbf{"value": 1}', "not JSON"),
]


@pytest.mark.parametrize(("body", "word"), BAD_BODIES)
def test_an_invalid_body_is_refused_with_a_reason(server, body, word):
    namespace = fresh_name()
    status, answer = raw(server, "PUT", f"/v1/namespaces/{namespace}/items/k", body)
    assert status == 400
    assert answer["code"] == "invalid_input"
    assert word in answer["detail"]
    assert raw(server, "GET", f"/v1/namespaces/{namespace}/items") == (200, {"keys": []})


@pytest.mark.parametrize("size", [MAX_WRITE_BYTES, 3 * MAX_WRITE_BYTES])
def test_a_body_that_is_too_large_is_refused_while_it_arrives(server, size):
    body = b'{"value":"' + b"x" * size + b'"}'
    status, answer = raw(server, "PUT", f"/v1/namespaces/{fresh_name()}/items/k", body)
    assert (status, answer["code"]) == (413, "value_too_large")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/namespaces/a%2Fb/items/k", 404),  # not a path of the service, however it is split
        ("/v1/namespaces/a%0Ab/items/k", 400),
        ("/v1/namespaces/%FF/items/k", 400),
        ("/v1/namespaces/a/items/%FF", 400),
        ("/v1/namespaces/a/items?prefix=%FF", 400),
        ("/v1/namespaces/a/items?limit=0", 400),
        ("/v1/namespaces/a/items?limit=x", 400),
        ("/v1/namespaces/a/items?limit=99999999999999999999", 400),
        ("/v1/namespaces/a/items/" + "x" * 513, 400),
        ("/v1/namespaces/" + "x" * 129 + "/items/k", 400),
        ("/v1/namespaces/a/lists/k?tail=-1", 400),
        ("/nowhere", 404),
        ("/v1/namespaces/a/items/", 404),
    ],
)
def test_an_invalid_url_is_refused(server, target, status):
    found, answer = raw(server, "GET", target)
    assert found == status
    assert set(answer) == {"code", "detail"}


def test_an_unknown_method_is_405(server):
    status, answer = raw(server, "POST", "/health")
    assert (status, answer["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "items", {"values": [1]}),
        ("PATCH", "items", {"values": {"": 1}}),
        ("POST", "lists/l", {"items": "abc"}),
        ("POST", "counters/n", {"by": "1"}),
        ("POST", "counters/n", {"by": True}),
        ("POST", "read", {"keys": "abc"}),
        ("POST", "read", {"keys": [1]}),
        ("PATCH", "quota", {"writes_per_day": -1}),
        ("PATCH", "quota", {"max_bytes": "50MB"}),
        ("PATCH", "quota", {"bytes": 1}),
    ],
)
def test_fields_of_the_wrong_kind_are_refused(server, method, path, body):
    answer = requests.request(method, f"{server.url}/v1/namespaces/{fresh_name()}/{path}", json=body, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input")


def test_the_openapi_document_has_every_status(server):
    document = requests.get(f"{server.url}/openapi.json", timeout=60).json()
    native = {path: methods for path, methods in document["paths"].items() if path.startswith("/v1/")}
    for path, methods in native.items():
        for method, described in methods.items():
            statuses = set(described["responses"])
            assert statuses & {"200", "204"}, (method, path)
            assert "503" in statuses, (method, path)
            if "{namespace}" in path:
                assert "400" in statuses, (method, path)
                assert "namespace" in {given["name"] for given in described["parameters"]}
    item = native["/v1/namespaces/{namespace}/items/{key}"]
    written = {"200", "400", "401", "403", "409", "412", "413", "429", "431", "503", "507"}
    assert set(item["put"]["responses"]) == written
    assert set(item["get"]["responses"]) == {"200", "304", "400", "401", "403", "404", "429", "431", "503"}
    schemas = document["components"]["schemas"]
    body = item["put"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert schemas[body]["required"] == ["value"]
    assert schemas[body]["additionalProperties"] is False
    for reference in re.findall(r'"\$ref": "([^"]*)"', json.dumps(document)):
        assert reference.removeprefix("#/components/schemas/") in schemas, reference


def test_an_encoded_slash_does_not_change_the_namespace(server):
    for target in (
        "/v1/namespaces/victim%2Fitems%2Fz/items/k",
        "/memory/victim%2fa",
        "/memory/victim%2Fa/k",
        "/v1%2Fnamespaces/a/items/k",
    ):
        status, answer = raw(server, "GET", target)
        assert (status, answer["code"]) == (400, "invalid_input")
    assert raw(server, "GET", "/v1/namespaces/ns/items/a%2Fb")[0] == 404


def test_a_wrong_url_is_an_error_and_not_an_empty_memory(server):
    with Memory("ns", url=f"{server.url}/wrong") as memory:
        for call in (
            lambda: memory.get("k"),
            lambda: memory.item("k"),
            lambda: "k" in memory,
            lambda: memory.delete("k"),
        ):
            with pytest.raises(InvalidInput, match=rf"no such path.*write it as {server.url}$"):
                call()


@pytest.mark.parametrize("more", ["/", "/v1", "/v1/", "/#/namespaces/ns", "/?namespace=ns"])
def test_a_url_that_was_copied_with_more_than_the_server_means_the_server(server, more):
    name = fresh_name()
    with Memory(name, url=f"{server.url}{more}", strict=True) as memory:
        memory.set("k", 1)
    with Memory(name, url=server.url) as memory:
        assert memory.get("k") == 1
    assert Target.of(split_credentials(f"{server.url}{more}")[0], None) == Target.of(server.url, None)


def test_a_refused_update_returns_the_actual_usage(tmp_path):
    with serving(tmp_path / "db", "--max-bytes", "100") as server:
        items = f"{server.url}/v1/namespaces/ns/items"
        large = requests.patch(items, json={"values": {"a": "x" * 50, "b": "x" * 50}}, timeout=60)
        assert (large.status_code, large.headers["Storage-Remaining"]) == (507, "100")
        assert "holds 0 of 100 bytes, and this needs 106 more" in large.json()["detail"]


def test_a_write_that_waits_for_another_process_times_out(tmp_path):
    with serving(tmp_path / "db") as server, Memory("ns", url=server.url, timeout=60) as memory:
        memory.set("k", 1)
        other = sqlite3.connect(tmp_path / "db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="another process"):
            memory.incr("k")
        assert memory.get("k") == 1
        other.execute("COMMIT")
        other.close()
        assert memory.incr("k") == 2


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/namespaces/ns/items/k", "DELETE, GET, HEAD, PATCH, PUT"),
        ("/v1/namespaces/ns/notes/recall", "DELETE, POST"),
        ("/v1/namespaces/ns/notes/recalled", "DELETE"),
        ("/api/v1/agents/a/b", "DELETE"),
        ("/api/v1/agents/a/b/recall", "POST"),
        ("/api/v1/agents/a/b/memories", "DELETE, GET"),
    ],
)
def test_405_lists_the_allowed_methods(server, path, methods):
    answer = requests.options(f"{server.url}{path}", timeout=60)
    assert (answer.status_code, answer.headers["Allow"]) == (405, methods)


@pytest.mark.parametrize(
    ("method", "path", "reason"),
    [
        ("DELETE", "?prefx=cache", "unknown parameter 'prefx'; it takes prefix"),
        ("DELETE", "/lists/l?frist=true", "unknown parameter 'frist'; it takes first, n"),
        ("PUT", "/items/k?ttl=5", "unknown parameter 'ttl'; it takes none"),
        ("GET", "/lists/l?tail=1&head=1", "unknown parameter 'head'; it takes tail"),
        ("GET", "/values?revers=true", "unknown parameter 'revers'; it takes after, limit, prefix, reverse"),
        ("POST", "/import?relpace=true", "unknown parameter 'relpace'; it takes replace"),
    ],
)
def test_an_unknown_parameter_in_the_query_is_refused(server, method, path, reason):
    with Memory(fresh_name(), url=server.url) as memory:
        memory.append("l", 1, 2)
        url = f"{server.url}/v1/namespaces/{memory.namespace}{path}"
        answer = requests.request(method, url, json={"value": 1}, timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input")
        assert reason in answer.json()["detail"]
        assert dict(memory.items()) == {"l": [1, 2]}


def test_an_empty_update_creates_no_namespace(server):
    namespace = fresh_name()
    for values in ({}, {"not there": None}):
        updated = requests.patch(f"{server.url}/v1/namespaces/{namespace}/items", json={"values": values}, timeout=60)
        assert (updated.status_code, updated.json()) == (200, {"updated": len(values)})
    assert namespace not in requests.get(f"{server.url}/v1/namespaces", timeout=60).json()["namespaces"]


def test_a_read_of_too_many_keys_is_refused(server):
    keys = [f"{i:0512}" for i in range(MAX_WRITE_BYTES // 512 + 1)]
    answer = requests.post(f"{server.url}/v1/namespaces/ns/read", json={"keys": keys}, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (413, "value_too_large")


def test_health_ready_and_metrics_answer(server):
    assert requests.get(f"{server.url}/health", timeout=60).json()["status"] == "ok"
    assert requests.get(f"{server.url}/ready", timeout=60).json()["status"] == "ready"
    text = requests.get(f"{server.url}/metrics", timeout=60).text
    assert 'scrubjay_requests_total{method="GET",route="/health",status="200"}' in text
    assert "scrubjay_request_seconds_bucket" in text


def test_metrics_add_up_over_workers(tmp_path):
    with serving(tmp_path / "db", "--workers", "2") as server:
        for _ in range(20):
            requests.get(f"{server.url}/ready", timeout=60)
        give_up_at = time.monotonic() + 60
        count = ""
        while not count.endswith(" 20.0"):  # a worker publishes its counts once a second
            assert time.monotonic() < give_up_at, count
            lines = requests.get(f"{server.url}/metrics", timeout=60).text.splitlines()
            (count,) = [line for line in lines if line.startswith("scrubjay_requests_total") and "/ready" in line]


def test_ready_is_503_when_the_database_is_damaged(tmp_path):
    path = tmp_path / "db"
    SqliteStore(path).close()
    with sqlite3.connect(path) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'namespaces'").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    with serving(path) as server:
        written = requests.put(f"{server.url}/v1/namespaces/ns/items/k", json={"value": 1}, timeout=60)
        assert (written.status_code, written.json()["code"]) == (503, "unavailable")
        assert "damaged" in written.json()["detail"]
        assert requests.get(f"{server.url}/ready", timeout=60).status_code == 503
        assert requests.get(f"{server.url}/health", timeout=60).status_code == 200


def test_sigterm_finishes_running_requests_and_loses_no_acknowledged_write(tmp_path):
    server = Server(tmp_path / "db", "--writes-per-day", "0")
    acknowledged, stop = [], threading.Event()

    def write(number: int) -> None:
        with Memory("ns", url=server.url, strict=True) as memory:
            for i in range(100_000):
                try:
                    memory.append("list", [number, i])
                except Unavailable:
                    return
                acknowledged.append((number, i))
                if stop.is_set():
                    return

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(acknowledged) > 100)
    assert server.stop(signal.SIGTERM) == 0
    stop.set()
    for thread in threads:
        thread.join()
    with Memory("ns", path=str(tmp_path / "db")) as memory:
        stored = [tuple(pair) for pair in memory.get("list")]
    assert set(acknowledged) <= set(stored)
    assert len(stored) == len(set(stored))
    assert not Path(f"{tmp_path / 'db'}-wal").exists(), "a clean shutdown checkpoints the log"


def test_a_restart_keeps_everything(tmp_path):
    for expected in (None, "kept"):
        with serving(tmp_path / "db") as server, Memory("ns", url=server.url) as memory:
            assert memory.get("k") == expected
            memory.set("k", "kept")


def test_a_client_survives_a_restart_of_its_server(tmp_path):
    first = Server(tmp_path / "db")
    memory = Memory("ns", url=first.url)
    memory.set("k", 1)
    first.stop()
    with pytest.raises(Unavailable, match="scrubjay serve"):
        memory.get("k")
    with serving(tmp_path / "db", port=first.port):
        assert memory.get("k") == 1
    memory.close()


def test_server_and_embedded_processes_share_one_file(tmp_path):
    path = str(tmp_path / "db")
    with serving(tmp_path / "db") as server, Memory("ns", url=server.url) as far, Memory("ns", path=path) as near:
        near.set("from", "the process")
        assert far.get("from") == "the process"
        far.append("list", 1)
        assert near.append("list", 2) == 2
        assert far.get("list") == [1, 2]


def test_expired_items_are_swept_by_the_server(tmp_path):
    with Memory("ns", path=str(tmp_path / "db")) as memory:
        memory.set("k", 1, ttl=0.01)
    time.sleep(0.02)
    with serving(tmp_path / "db") as server:
        requests.get(f"{server.url}/ready", timeout=60)
        store = SqliteStore(tmp_path / "db")
        connection = store.take()
        eventually(lambda: connection.execute("SELECT count(*) FROM items").fetchone() == (0,))
        connection.close()


def test_a_port_in_use_and_a_bad_file_are_reported_at_the_start(tmp_path):
    command = [sys.executable, str(Path(__file__).parents[2] / "server" / "scrubjay_server.py")]
    run = lambda *flags: subprocess.run(  # noqa: E731
        [*command, *flags], capture_output=True, text=True, timeout=60, env=clean_environment(), check=False
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run("--port", str(taken.getsockname()[1]), "--path", str(tmp_path / "db"))
    assert ended.returncode == 1
    assert "--port" in ended.stderr
    (tmp_path / "text").write_text("no database " * 100)
    ended = run("--port", "0", "--path", str(tmp_path / "text"))
    assert ended.returncode == 3
    assert "SCRUBJAY_PATH" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert run("--port", "many").returncode == 2


def test_the_server_file_can_be_run_as_a_script(tmp_path):
    command = [sys.executable, str(Path(__file__).parents[2] / "server" / "scrubjay_server.py"), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--path", str(tmp_path / "db")], stdout=subprocess.PIPE, text=True, env=clean_environment()
    )
    url = process.stdout.readline().split()[-1]
    assert requests.get(f"{url}/ready", timeout=60).json()["status"] == "ready"
    process.terminate()
    process.wait(timeout=120)
    process.stdout.close()


def test_a_write_with_an_idempotency_key_happens_once(server):
    at = f"{server.url}/v1/namespaces/{fresh_name()}"

    def send(method, path, key, body=None):
        return requests.request(method, at + path, json=body, headers={"Idempotency-Key": key}, timeout=60)

    for _ in range(2):
        assert send("PUT", "/items/k", "slot;seq=1", {"value": "first"}).json() == {"version": 1}
        assert send("POST", "/lists/l", '"a-uuid"', {"items": [1]}).json() == {"length": 1}
        assert send("POST", "/notes", "note", {"content": "told once"}).json()["times"] == 1
    assert send("PUT", "/items/k", "slot;seq=2", {"value": "second"}).json() == {"version": 2}
    assert [send("DELETE", "/items/k", "slot;seq=3").status_code for _ in range(2)] == [204, 204]
    assert [send("DELETE", "/items/k", "slot;seq=4").status_code for _ in range(2)] == [404, 404]
    assert [send("PATCH", "/items", "slot;seq=5", {"values": {"a": 1}}).status_code for _ in range(2)] == [200, 200]
    late = send("PUT", "/items/k", "slot;seq=1", {"value": "first"})
    assert (late.status_code, late.json()["code"]) == (409, "conflict")
    for path, key, body in (
        ("/lists/l", "a-uuid", {"items": [2]}),
        ("/lists/other", "a-uuid", {"items": [1]}),
        ("/counters/l", "a-uuid", {"by": 1}),
        ("/notes", "note", {"content": "something else"}),
    ):
        other = send("POST", path, key, body)
        assert (other.status_code, other.json()["code"]) == (409, "conflict"), path
    assert send("PUT", "/items/k", "slot;seq=x", {"value": 1}).status_code == 400
    assert send("PUT", "/items/k", "x" * 513, {"value": 1}).status_code == 400
    document = requests.get(f"{server.url}/openapi.json", timeout=60).json()["paths"]
    put = document["/v1/namespaces/{namespace}/items/{key}"]["put"]
    assert "Idempotency-Key" in {parameter["name"] for parameter in put["parameters"]}
