"""Api keys: authentication, the namespaces that a key may use, and access without keys from the server's machine."""

from __future__ import annotations

import contextlib
import functools
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from starlette.testclient import TestClient

import scrubjay_auth
import scrubjay_server
from forking import ForkedServer
from harness import clean_environment, eventually, issue_key, run_command, run_text, serving
from scrubjay import AsyncMemory, Forbidden, InvalidInput, Memory, QuotaExceeded, Unauthenticated
from scrubjay.store import api_keys
from scrubjay.store.api_keys import Access
from scrubjay.store.sqlite import SqliteStore


def issue(path, *words: str, **variables: str) -> str:
    where = [] if "SCRUBJAY_URL" in variables or "--path" in words else ["--path", str(path)]
    SqliteStore(path).close()  # the command makes none
    done = run_text("key", "issue", *words, *where, **variables)
    done.check_returncode()
    assert "shown only now" in done.stderr
    return done.stdout.strip()


@pytest.fixture
def guarded(tmp_path):
    """A server with some data and three api keys."""
    with serving(tmp_path / "db", "--writes-per-day", "0") as server:
        with Memory("support-eu", url=server.url) as memory:
            memory.set("k", "eu")
        with Memory("sales", url=server.url) as memory:
            memory.append("l", "secret deal")
        server.keys = {
            "support": issue(server.path, "--namespaces", "support-*", "--name", "support bot"),
            "reader": issue(server.path, "--read-only"),
            "admin": issue(server.path, "--admin"),
        }
        yield server


def test_from_the_first_key_on_every_request_needs_one(guarded):
    for key in (None, "", "sj_00000000_wrong", guarded.keys["support"] + "x", guarded.keys["support"][:-1], "ключ"):
        headers = {"X-API-Key": key.encode()} if key else {}
        for path in (
            "/v1/namespaces",
            "/v1/namespaces/support-eu/items/k",
            "/memory/sales/l",
            "/metrics",
            "/v1/apikeys",
        ):
            answer = requests.get(guarded.url + path, headers=headers, timeout=60)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    with Memory("support-eu", url=guarded.url) as memory:
        for call in (lambda: memory.get("k"), lambda: memory.set("k", 1), memory.keys, memory.usage, memory.clear):
            with pytest.raises(Unauthenticated, match="SCRUBJAY_API_KEY"):
                call()
        with pytest.raises(Unauthenticated):
            assert "k" in memory
    assert requests.get(f"{guarded.url}/health", timeout=60).status_code == 200
    assert requests.get(f"{guarded.url}/ready", timeout=60).status_code == 200


def test_without_a_key_only_the_pages_that_show_nothing_stored_are_answered(guarded):
    document = requests.get(f"{guarded.url}/openapi.json", timeout=60).json()
    answered = set()
    for path, methods in document["paths"].items():
        url = guarded.url + path.replace("{", "").replace("}", "")
        for method in methods:
            if requests.request(method, url, json={}, timeout=60).status_code != 401:
                answered.add((method, path))
    assert answered == {("get", "/health"), ("get", "/ready"), ("get", "/v1/sign-in")}
    assert requests.get(f"{guarded.url}/v1/sign-in", timeout=60).json()["namespaces"] == []
    for page in ("/", "/docs"):
        shown = requests.get(guarded.url + page, timeout=60)
        assert shown.status_code == 200
        assert "support" not in shown.text


def test_a_key_is_accepted_in_both_headers_and_from_the_environment(guarded, monkeypatch):
    key = guarded.keys["support"]
    for headers in ({"Authorization": f"Bearer {key}"}, {"authorization": f"bearer  {key} "}, {"x-api-key": key}):
        answer = requests.get(f"{guarded.url}/v1/namespaces/support-eu/items/k", headers=headers, timeout=60)
        assert answer.json()["value"] == "eu"
    monkeypatch.setenv("SCRUBJAY_API_KEY", key)
    assert Memory("support-eu", url=guarded.url).get("k") == "eu"
    assert Memory("support-eu", url=guarded.url, api_key=guarded.keys["reader"]).get("k") == "eu"
    assert AsyncMemory("support-eu", url=guarded.url, api_key=key)
    with pytest.raises(InvalidInput, match="line break"):
        Memory("ns", url=guarded.url, api_key=key + "\n")


def test_a_hidden_namespace_looks_like_a_missing_one(guarded):
    with (
        Memory("sales", url=guarded.url, api_key=guarded.keys["support"]) as hidden,
        Memory("support-us", url=guarded.url, api_key=guarded.keys["support"]) as absent,
    ):
        for memory in (hidden, absent):
            assert memory.get("l") is None
            assert memory.item("l") is None
            assert "l" not in memory
            assert memory.keys() == []
            assert memory.tail("l", 5) == []
            assert memory.get_many(["l"]) == {}
            assert (memory.usage().keys, memory.usage().writes_today, memory.usage().namespace) == (
                0,
                0,
                memory.namespace,
            )
            assert memory.namespaces() == ["support-eu"]
    answers = [
        requests.get(
            f"{guarded.url}/v1/namespaces/{namespace}/items/l",
            headers={"X-API-Key": guarded.keys["support"]},
            timeout=60,
        )
        for namespace in ("sales", "nowhere")
    ]
    assert answers[0].status_code == answers[1].status_code == 404
    assert answers[0].text.replace("sales", "nowhere") == answers[1].text
    assert {name.lower() for name in answers[0].headers} == {name.lower() for name in answers[1].headers}


def test_a_key_writes_only_to_its_namespaces(guarded):
    with Memory("sales", url=guarded.url, api_key=guarded.keys["support"]) as memory:
        for write in (
            lambda: memory.set("k", 1),
            lambda: memory.delete("l"),
            lambda: memory.append("l", 1),
            lambda: memory.incr("n"),
            lambda: memory.update({"a": 1}),
            memory.clear,
        ):
            with pytest.raises(Forbidden, match=r"support-\*"):
                write()
    with Memory("support-eu", url=guarded.url, api_key=guarded.keys["support"]) as memory:
        memory.set("k", "changed")
    with Memory("sales", url=guarded.url, api_key=guarded.keys["reader"]) as memory:
        assert memory.get("l") == ["secret deal"]
        assert memory.get_many(["l"]) == {"l": ["secret deal"]}
        with pytest.raises(Forbidden, match="only read"):
            memory.append("l", 1)


def test_changing_quotas_and_keys_needs_an_admin_key(guarded):
    for name in ("support", "reader"):
        headers = {"X-API-Key": guarded.keys[name]}
        for method, path in (
            ("GET", "/v1/apikeys"),
            ("POST", "/v1/apikeys"),
            ("DELETE", "/v1/apikeys/x"),
            ("PATCH", "/v1/namespaces/support-eu/quota"),
        ):
            answer = requests.request(method, guarded.url + path, json={}, headers=headers, timeout=60)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    with Memory("sales", url=guarded.url, api_key=guarded.keys["admin"]) as memory:
        assert memory.set_quota(writes_per_day=7).writes_per_day == 7


def test_keys_are_listed_without_secrets_and_revoked_immediately(guarded):
    admin = {"SCRUBJAY_URL": guarded.url, "SCRUBJAY_API_KEY": guarded.keys["admin"]}
    fresh = issue(guarded.path, "--name", "for a day", "--namespaces", "a-*", "--namespaces", "b", **admin)
    run = functools.partial(run_text, "key", **admin)
    listed = run("list").stdout
    (line,) = [line for line in listed.splitlines() if "for a day" in line]
    assert "a-*,b" in line
    assert "read-write" in line
    assert not any(key in listed for key in guarded.keys.values())
    with Memory("b", url=guarded.url, api_key=fresh) as memory:
        memory.set("k", 1)
        assert run("revoke", line.split()[0]).returncode == 0
        with pytest.raises(Unauthenticated):
            memory.get("k")
    gone = run("revoke", line.split()[0])
    assert gone.returncode == 1
    assert "key list" in gone.stderr


def test_a_refusal_that_waits_to_be_logged_does_not_outlive_the_name_of_its_key(guarded):
    admin = {"SCRUBJAY_URL": guarded.url, "SCRUBJAY_API_KEY": guarded.keys["admin"]}
    key = issue(guarded.path, "--name", "Sarah Lind", "--exact", "--namespaces", "user-sarah", **admin)
    url, headers = f"{guarded.url}/v1/apikeys/{key.split('_')[1]}", {"Authorization": f"Bearer {guarded.keys['admin']}"}
    with Memory("sales", url=guarded.url, api_key=key, strict=True) as memory, pytest.raises(Forbidden):
        memory.set("k", 1)
    assert requests.delete(url, params={"forget": "true"}, headers=headers, timeout=60).status_code == 204
    logged = run_text("audit", **admin).stdout
    assert re.search(rf"{key.split('_')[1]} .*REFUSED", logged)
    assert "Sarah" not in logged


def test_names_of_keys_deceive_nobody_in_the_list_and_in_the_log(tmp_path):
    path = tmp_path / "db"
    issue(path, "--admin")
    key = issue(path, "--name", "boss\u202e", "--namespaces", "a\u202e*")
    where = {"SCRUBJAY_PATH": str(path)}
    assert r'"a\u202e*"' in run_text("key", "list", **where).stdout
    with serving(path) as server, Memory("a\u202e", url=server.url, api_key=key) as memory:
        memory.set("k", 1)
    shown = [
        run_text(*words, **where).stdout
        for words in (("key", "list"), ("audit",), ("key", "revoke", key.split("_")[1]))
    ]
    for text in shown:
        assert r"boss\u202e" in text
        assert "\u202e" not in text


def test_only_the_hash_of_a_key_is_in_the_file(tmp_path):
    secret = issue(tmp_path / "db")
    store = SqliteStore(tmp_path / "db")
    assert store.run(api_keys.admit(secret)).patterns == ("*",)
    store.close()
    stored = b"".join(part.read_bytes() for part in tmp_path.glob("db*"))
    assert secret.rpartition("_")[2].encode() not in stored
    assert secret.split("_")[1].encode() in stored


def test_without_keys_only_local_requests_are_answered(server):
    url = f"{server.url}/v1/namespaces"
    ask = lambda **headers: requests.get(url, headers=headers, timeout=60).status_code  # noqa: E731
    assert ask() == 200
    assert ask(Host="localhost:8787") == ask(Host="127.0.0.1") == ask(Host="[::1]:8787") == 200
    assert ask(Host="evil.example") == ask(Host="127.0.0.1.evil.example") == ask(Host="") == ask(Host="[") == 403
    assert ask(Origin="http://evil.example") == ask(Origin="null") == ask(Origin="http://[x") == 403
    assert ask(Origin=server.url) == 200
    assert (
        "access-control-allow-origin" not in requests.options(url, headers={"Origin": server.url}, timeout=60).headers
    )


def test_a_server_on_a_public_address_issues_its_first_key(tmp_path):
    with serving(tmp_path / "db", "--host", "0.0.0.0") as server:
        secret = server.banner.split("api key")[1].split()[0]
        url = f"http://127.0.0.1:{server.port}"
        assert requests.get(f"{url}/v1/namespaces", timeout=60).status_code == 401
        with Memory("ns", url=url, api_key=secret) as memory:
            memory.set("k", 1)
            assert memory.set_quota(writes_per_day=5).writes_per_day == 5
    with serving(tmp_path / "db", "--host", "0.0.0.0") as server:
        assert "sj_" not in server.banner


def test_without_keys_requests_from_other_machines_are_refused(tmp_path, monkeypatch):
    """By the address that the connection comes from, not by a header."""
    monkeypatch.setenv("SCRUBJAY_PATH", str(tmp_path / "db"))
    for address, status in (("127.0.0.1", 200), ("::1", 200), ("10.1.2.3", 401)):
        app = scrubjay_server.create_app()
        with TestClient(app, base_url="http://localhost", client=(address, 50_000)) as client:
            assert client.get("/v1/namespaces").status_code == status


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost", "127.1.2.3:80", "[::1]:8787"])
def test_loopback_addresses_are_recognized(address):
    assert scrubjay_auth.is_loopback(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "::2", "localhost.evil.example", "", "127.0.0.1.nip.io", "["])
def test_other_addresses_are_not_loopback(address):
    assert not scrubjay_auth.is_loopback(address)


def test_memories_of_one_key_in_a_compat_api_are_private(guarded):
    mine, other = issue(guarded.path), issue(guarded.path)
    body = {"content": "the deal is secret"}
    requests.post(f"{guarded.url}/v1/memory/remember", json=body, headers={"X-API-Key": mine}, timeout=60)
    with Memory("x", url=guarded.url, api_key=guarded.keys["admin"]) as memory:
        (private,) = [name for name in memory.namespaces() if name.startswith("memstore:")]
    with Memory(private, url=guarded.url, api_key=other) as memory:
        assert private not in memory.namespaces()
        assert memory.notes() == []
    both = {"Authorization": f"Bearer {other}", "X-API-Key": mine}
    asked = requests.get(f"{guarded.url}/v1/memory/recall?q=deal", headers=both, timeout=60)
    assert asked.json()["memories"] == [], "the key that is authenticated is the key whose memories are read"


def test_an_admin_key_has_every_namespace(tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        issue(tmp_path / "db", "--admin", "--namespaces", "support-*")


@pytest.mark.parametrize(
    "words", [("--name", ""), ("--namespaces", "a/b"), ("--admin", "--read-only"), ("--name", "x" * 200)]
)
def test_an_invalid_key_is_not_issued(tmp_path, words):
    SqliteStore(tmp_path / "db").close()
    done = run_text("key", "issue", "--path", tmp_path / "db", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("scrubjay: ")


def test_the_compat_apis_enforce_keys(guarded):
    """In Kronvex's and Memstore's APIs each key has its own memories; a read-only key cannot add any."""
    url = guarded.url
    guarded.keys["bot"] = issue(guarded.path, "--namespaces", "kronvex:bot*,memstore")
    for path, body in (
        ("/api/v1/agents/bot/remember", {"content": "the deal is secret"}),
        ("/v1/memory/remember", {"content": "the deal is secret"}),
    ):
        send = lambda path, body, name: requests.post(  # noqa: E731
            url + path, json=body, headers={"X-API-Key": guarded.keys[name]} if name else {}, timeout=60
        )
        assert send(path, body, None).status_code == 401
        assert send(path, body, "reader").status_code == 403
        assert send(path, body, "support").status_code == 403, "its patterns do not match"
        assert send(path, body, "bot").status_code == 200
    for name, found in (("bot", 1), ("support", 0), ("reader", 0), ("admin", 0)):
        headers = {"X-API-Key": guarded.keys[name]}
        asked = {"query": "which deal?", "limit": 5}
        recalled = requests.post(f"{url}/api/v1/agents/bot/recall", json=asked, headers=headers, timeout=60)
        assert len(recalled.json()["memories"]) == found
        recalled = requests.get(f"{url}/v1/memory/recall", params={"q": "deal"}, headers=headers, timeout=60)
        assert len(recalled.json()["memories"]) == found
        agents = requests.get(f"{url}/api/v1/agents", headers=headers, timeout=60).json()
        assert [agent["id"] for agent in agents] == ["bot"] * found


def test_a_rotated_key_has_the_same_memories_rights_and_usage(guarded):
    old, admin = issue(guarded.path, "--namespaces", "kronvex:*,memstore,team"), guarded.keys["admin"]
    remember = {"content": "the deal is secret"}
    for path in ("/api/v1/agents/bot/remember", "/v1/memory/remember"):
        assert requests.post(guarded.url + path, json=remember, headers={"X-API-Key": old}, timeout=60).ok
    identity = old.split("_")[1]
    new = run_command("key", "rotate", identity, SCRUBJAY_URL=guarded.url, SCRUBJAY_API_KEY=admin)
    secret = new.stdout.decode().strip()
    assert b"shown only now" in new.stderr
    assert status(guarded, old) == 401
    headers = {"X-API-Key": secret}
    recalled = requests.get(f"{guarded.url}/v1/memory/recall?q=deal", headers=headers, timeout=60).json()
    assert len(recalled["memories"]) == 1
    listed = requests.get(f"{guarded.url}/api/v1/agents/bot/memories", headers=headers, timeout=60).json()
    assert len(listed["memories"]) == 1
    shown = run_command("key", "quota", identity, SCRUBJAY_URL=guarded.url, SCRUBJAY_API_KEY=admin).stdout.decode()
    assert "writes today  3 (the server's default limit)" in shown  # Kronvex's agent has an entry in a directory
    assert "namespaces    3" in shown
    assert run_command("key", "rotate", "00000000", "--path", guarded.path).returncode == 1


def test_a_key_has_limits_over_all_its_namespaces(guarded):
    limits = ("--writes-per-day", "3", "--max-bytes", "1KB", "--max-namespaces", "2")
    key, admin = issue(guarded.path, "--namespaces", "team-*", *limits), guarded.keys["admin"]
    with Memory("team-a", url=guarded.url, api_key=key) as a, Memory("team-b", url=guarded.url, api_key=key) as b:
        a.set("k", 1)
        b.set("k", 1)
        with pytest.raises(QuotaExceeded, match="2 namespaces"):
            Memory("team-c", url=guarded.url, api_key=key).set("k", 1)
        with pytest.raises(QuotaExceeded, match="1,000 bytes") as full:
            b.set("large", "x" * 1000)
        assert full.value.status == 507
        b.set("k", 2)
        with pytest.raises(QuotaExceeded, match="3 writes a day") as over:
            a.set("k", 2)
        assert over.value.retry_after > 0
        as_admin = {"SCRUBJAY_URL": guarded.url, "SCRUBJAY_API_KEY": admin}
        refused = run_command("key", "quota", key.split("_")[1], "--writes-per-day", "0", SCRUBJAY_URL=guarded.url,
                              SCRUBJAY_API_KEY=key)  # fmt: skip
        assert b"takes an admin key" in refused.stderr
        assert run_command("key", "quota", key.split("_")[1], "--writes-per-day", "0", **as_admin).returncode == 0
        a.set("k", 2)
    assert run_command("key", "issue", "--admin", *limits, **as_admin).returncode == 1


def test_notes_enforce_keys(guarded):
    with Memory("sales", url=guarded.url, api_key=guarded.keys["admin"]) as memory:
        memory.remember("The discount for Acme is ten percent")
    with Memory("sales", url=guarded.url, api_key=guarded.keys["support"]) as hidden:
        assert hidden.recall("discount for Acme") == []
        assert hidden.inject_context("discount for Acme") == ""
        assert hidden.notes() == []
        with pytest.raises(Forbidden):
            hidden.remember("mine now")
    with Memory("sales", url=guarded.url, api_key=guarded.keys["reader"]) as reader:
        assert len(reader.recall("discount for Acme")) == 1
        with pytest.raises(Forbidden):
            reader.remember("mine now")


# ---------------------------------------------------------------- the first key and the last


def status(server, apikey: str | None = None, path: str = "/v1/namespaces", **options) -> int:
    headers = {"X-API-Key": apikey} if apikey else {}
    return requests.get(
        server.url + path, headers=headers | options.pop("headers", {}), timeout=60, **options
    ).status_code


@pytest.mark.parametrize("way", ["file", "command over HTTP", "HTTP"])
def test_an_admin_key_comes_with_the_first_key(tmp_path, way):
    with serving(tmp_path / "db") as server:
        if way == "HTTP":
            issued = requests.post(f"{server.url}/v1/apikeys", json={"name": "bot"}, timeout=60).json()
            assert not issued["admin"]
            key, admin = issued["key"], issued["admin_key"]
            second = requests.post(
                f"{server.url}/v1/apikeys", json={"name": "next"}, headers={"X-API-Key": admin}, timeout=60
            )
            assert second.json()["admin_key"] is None
            assert (issued["first"], second.json()["first"]) == (True, False)
        else:
            where = {"SCRUBJAY_URL": server.url} if way != "file" else {"SCRUBJAY_PATH": str(server.path)}
            done = run_text("key", "issue", "--name", "bot", **where)
            assert done.returncode == 0, done.stderr
            (key,) = done.stdout.split()
            admin = done.stderr.split("admin key  ")[1].split()[0]
            assert key not in done.stderr
            assert "every namespace has a quota:\n1,000 writes a day and 50.0 MB" in done.stderr
            second = run_text("key", "issue", "--name", "next", **where, SCRUBJAY_API_KEY=admin)
            assert second.returncode == 0, second.stderr
            assert "admin key" not in second.stderr
            assert "quota" not in second.stderr
        assert status(server, key) == 200
        assert status(server, key, "/v1/apikeys") == 403
        assert status(server, admin, "/v1/apikeys") == 200
        listed = run_text("key", "list", SCRUBJAY_URL=server.url, SCRUBJAY_API_KEY=admin).stdout.splitlines()
        assert len(listed) == 3
        assert len([line for line in listed if "admin" in line.split()[1]]) == 1


def test_a_key_is_issued_only_in_a_database_that_exists(tmp_path):
    done = run_text("key", "issue", "--admin", "--path", tmp_path / "typo.db")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"there is no database at {tmp_path / 'typo.db'}" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_first_key_with_admin_rights_comes_alone(tmp_path):
    SqliteStore(tmp_path / "db").close()
    done = run_text("key", "issue", "--admin", "--path", tmp_path / "db")
    assert "admin key  " not in done.stderr
    assert "every namespace has a quota:\n1,000 writes a day and 50.0 MB" in done.stderr
    assert len(run_text("key", "list", "--path", tmp_path / "db").stdout.splitlines()) == 1


def test_concurrent_first_keys_yield_one_admin_key(tmp_path):
    with serving(tmp_path / "db") as server:

        def issue_one(number: int) -> dict:
            return requests.post(f"{server.url}/v1/apikeys", json={"name": f"n{number}"}, timeout=60).json()

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(issue_one, range(16)))
    admins = [answer["admin_key"] for answer in answers if answer.get("admin_key")]
    assert len(admins) == 1
    store = SqliteStore(tmp_path / "db")
    assert sum(made.admin for made in store.run(api_keys.list_all())) == 1
    store.close()


def test_a_missing_key_and_an_unknown_one_have_different_errors(guarded):
    asked = lambda headers: requests.get(f"{guarded.url}/v1/namespaces", headers=headers, timeout=60).json()  # noqa: E731
    revoked = issue(guarded.path)
    assert run_text("key", "revoke", revoked.split("_")[1], "--path", guarded.path).returncode == 0
    for headers in ({}, {"X-API-Key": ""}):
        assert "no api key was sent" in asked(headers)["detail"]
    for headers in ({"Authorization": "Bearer "}, {"Authorization": "Basic dXNlcjpwYXNz"}):
        assert "the Authorization header has no api key" in asked(headers)["detail"]
    for key in ("nonsense", guarded.keys["support"] + "x", revoked):
        assert "not known to the server" in asked({"X-API-Key": key})["detail"]
        assert "no api key was sent" not in asked({"X-API-Key": key})["detail"]
    for headers in ({}, {"X-API-Key": "nonsense"}):
        assert "`scrubjay key issue --admin --path FILE`" in asked(headers)["detail"]


def test_the_command_in_a_401_makes_a_working_key(guarded):
    """Also in a shell that has SCRUBJAY_URL set: --path means the file."""
    made = issue(guarded.path, "--admin", "--path", str(guarded.path), SCRUBJAY_URL=guarded.url)
    assert status(guarded, made, "/v1/apikeys") == 200


def test_after_the_last_key_is_revoked_every_request_is_refused(tmp_path):
    with serving(tmp_path / "db") as server:
        with Memory("ns", url=server.url) as memory:
            memory.set("k", "secret")
        key = issue(server.path, "--admin")
        revoked = run_text("key", "revoke", key.split("_")[1], "--path", server.path)
        assert revoked.returncode == 0
        assert "last admin key" in revoked.stderr
        assert f"revoked  api key {key.split('_')[1]} (" in revoked.stdout
        again = re.search(r"to make another: scrubjay (.*)$", revoked.stderr, re.MULTILINE)[1]
        assert again == f"key issue --admin --path {server.path}"
        assert run_text("key", "list", "--path", server.path).stdout == ""
        assert status(server) == status(server, key) == status(server, "nonsense") == 401
    with serving(tmp_path / "db") as server:
        assert "every key is revoked" in server.banner
        assert status(server) == status(server, key) == 401
        assert status(server, issue(server.path, "--admin")) == 200
        assert status(server) == status(server, key) == 401


def test_a_server_issues_no_key_after_one_was_revoked(tmp_path):
    key = issue(tmp_path / "db", "--admin")
    assert run_text("key", "revoke", key.split("_")[1], "--path", tmp_path / "db").returncode == 0
    with serving(tmp_path / "db", "--require-key") as server:
        assert "api key  sj_" not in server.banner
        assert "every key is revoked" in server.banner
        assert status(server) == 401


def test_the_last_admin_key_is_not_revoked_over_http(guarded):
    admin = {"SCRUBJAY_URL": guarded.url, "SCRUBJAY_API_KEY": guarded.keys["admin"]}
    for made in run_text("key", "list", **admin).stdout.splitlines():
        identity, may, *_ = made.split()
        if may == "admin" and identity not in guarded.keys["admin"]:
            assert run_text("key", "revoke", identity, **admin).returncode == 0
    own = guarded.keys["admin"].split("_")[1]
    refused = run_text("key", "revoke", own, **admin)
    assert refused.returncode == 1
    assert f"scrubjay key revoke {own} --path FILE" in refused.stderr
    assert status(guarded, guarded.keys["admin"], "/v1/apikeys") == 200
    other = issue(guarded.path, "--admin", **admin)
    assert run_text("key", "revoke", own, **admin).returncode == 0
    assert status(guarded, guarded.keys["admin"]) == 401
    assert status(guarded, other, "/v1/apikeys") == 200


class Keys(RuleBasedStateMachine):
    """After the first key was issued, only requests with a key in force are admitted."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = SqliteStore(f"{self.folder.name}/db", durability="fast")
        self.known: dict[str, str] = {}
        """The id of every key that was ever issued, by its secret."""
        self.in_force: dict[str, bool] = {}
        """The ids of the keys in force, with whether they are admin keys."""

    @rule(admin=st.booleans(), read_only=st.booleans())
    def issue(self, admin: bool, read_only: bool) -> None:
        was_empty = not self.in_force
        issued = self.store.run(api_keys.issue("any", ("*",), read_only and not admin, admin))
        assert (issued.admin_secret is not None) is (was_empty and not admin)
        for secret, is_admin in ((issued.secret, admin), (issued.admin_secret, True)):
            if secret:
                self.known[secret] = secret.split("_")[1]
                self.in_force[self.known[secret]] = is_admin

    @rule(pick=st.randoms(use_true_random=False), forget=st.booleans(), keep_admin=st.booleans())
    def revoke(self, pick, forget: bool, keep_admin: bool) -> None:
        if not self.known:
            return
        identity = pick.choice(list(self.known.values()))
        if keep_admin and [one for one, admin in self.in_force.items() if admin] == [identity]:
            with pytest.raises(Forbidden):
                self.store.run(api_keys.revoke(identity, forget, True))
        else:
            found = self.store.run(api_keys.revoke(identity, forget, keep_admin))
            assert found is (forget or identity in self.in_force)
            self.in_force.pop(identity, None)

    @invariant()
    def admitted_are_those_in_force(self) -> None:
        for secret in (None, "", "nonsense"):
            assert self.store.run(api_keys.admit(secret)) == (None if self.known else api_keys.EVERYTHING)
        for secret, identity in self.known.items():
            access = self.store.run(api_keys.admit(secret))
            assert (access is not None) is (identity in self.in_force)
            assert access is None or access.admin is self.in_force[identity]
        assert {made.id for made in self.store.run(api_keys.list_all())} == set(self.in_force)

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


Keys.TestCase.settings = settings(max_examples=20, stateful_step_count=12)
TestKeys = Keys.TestCase


# ---------------------------------------------------------------- patterns of namespaces


@pytest.mark.parametrize(
    "words",
    [
        ("--namespaces", "team-*,x-*"),
        ("--namespaces", "team-*, x-*"),
        ("--namespaces", "team-*", "x-*"),
        ("--namespaces", "team-*", "--namespaces", "x-*"),
    ],
)
def test_several_patterns_are_accepted_in_any_form(tmp_path, words):
    secret = issue(tmp_path / "db", *words)
    store = SqliteStore(tmp_path / "db")
    access = store.run(api_keys.admit(secret))
    store.close()
    assert access.patterns == ("team-*", "x-*")
    assert access.sees("team-1")
    assert access.sees("x-1")
    assert not access.sees("y-1")


@pytest.mark.parametrize(
    ("words", "patterns", "listed"),
    [
        (["user-a b"], ("user-a b",), "'user-a b'"),
        ([" user-x"], (" user-x",), "' user-x'"),
        (["user-a b , c"], ("user-a b", "c"), "'user-a b,c'"),
        (["a*", "b*"], ("a*", "b*"), "a*,b*"),
    ],
)
def test_a_space_in_a_pattern_is_part_of_it_and_is_listed_in_quotes(tmp_path, words, patterns, listed):
    secret = issue(tmp_path / "db", "--namespaces", *words)
    store = SqliteStore(tmp_path / "db")
    assert store.run(api_keys.admit(secret)).patterns == patterns
    store.close()
    keys = run_text("key", "list", "--path", tmp_path / "db").stdout
    assert re.search(rf"read-write +{re.escape(listed)} +\d{{4}}-", keys), keys


def test_a_pattern_with_a_comma_is_refused_over_http(server):
    body = {"name": "bot", "namespaces": ["team-*,x-*"]}
    answer = requests.post(f"{server.url}/v1/apikeys", json=body, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input")
    assert '["team-*", "x-*"]' in answer.json()["detail"]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("user-*", ["user-", "user-ann", "user-*", "user-a\nb"], ["user", "a-user-x"]),
        ("*-user", ["x-user", "-user"], ["x-users"]),
        ("user-?", ["user-?"], ["user-a"]),
        ("user-[a-z]", ["user-[a-z]"], ["user-a"]),
        ("user-[!x]", ["user-[!x]"], ["user-a"]),
        ("user-[*]", ["user-*"], ["user-a", "user-[*]"]),
        ("[*]-*", ["*-", "*-a"], ["a-a"]),
        ("a[[*]]", ["a[*]"], ["a*", "a[b]"]),
    ],
)
def test_only_an_asterisk_is_special_in_a_pattern(pattern, matching, others):
    access = Access("bot", patterns=(pattern,))
    assert [name for name in matching + others if access.sees(name)] == matching


@pytest.fixture(scope="module")
def keys_store(tmp_path_factory):
    store = SqliteStore(tmp_path_factory.mktemp("keys") / "db", durability="fast")
    yield store
    store.close()


@given(st.text("*?[]!,-a", min_size=1, max_size=6), st.text("*?[]!,-a", min_size=1, max_size=6))
def test_a_key_for_an_exact_name_is_for_no_other_namespace(keys_store, name, other):
    secret = keys_store.run(api_keys.issue("one user", (name,), False, False, {}, True)).secret
    access = keys_store.run(api_keys.admit(secret))
    assert access.sees(name)
    assert access.sees(other) == (name == other)


@pytest.mark.parametrize("user", ["*", "?", "[a-z]", "a,*", " "])
def test_a_program_can_issue_a_key_for_a_name_that_a_user_chose(guarded, user):
    over_http = requests.post(
        f"{guarded.url}/v1/apikeys",
        json={"name": "one user", "namespaces": [f"user-{user}"], "exact": True},
        auth=(guarded.keys["admin"], ""),
        timeout=60,
    ).json()["key"]
    by_command = issue(guarded.path, "--exact", f"--namespaces=user-{user}")
    for key in (over_http, by_command):
        with Memory(f"user-{user}", url=guarded.url, api_key=key) as memory:
            memory.set("k", 1)
            assert memory.namespaces() == [f"user-{user}"]
        with Memory("user-b", url=guarded.url, api_key=key) as memory, pytest.raises(Forbidden):
            memory.set("k", 1)


def test_exact_names_have_to_be_named(tmp_path):
    with closing(SqliteStore(tmp_path / "db")) as store:
        done = run_text("key", "issue", "--exact", "--path", str(tmp_path / "db"))
        assert (done.returncode, "--namespaces NAME" in done.stderr) == (1, True)
        assert store.run(api_keys.list_all()) == []


def test_the_pattern_in_the_documentation_matches_an_agents_namespace():
    page = (Path(__file__).parents[2] / "docs" / "hosting.md").read_text()
    (patterns,) = re.findall(r"^scrubjay key issue .*--namespaces '([^']+)'", page, re.MULTILINE)
    (namespace,) = re.findall(r'memory="(\w+)"\)` keeps its memory in the namespace', page)
    assert Access("bot", patterns=tuple(patterns.split(","))).sees(namespace)


# ---------------------------------------------------------------- proxies


@pytest.mark.parametrize(
    "name", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Anything", "X-Real-IP", "Via"]
)
def test_without_keys_a_proxied_request_is_refused(server, name):
    answer = requests.get(f"{server.url}/v1/namespaces", headers={name: "10.1.2.3"}, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert name.lower() in answer.json()["detail"]
    assert "--require-key" in answer.json()["detail"]


def test_without_keys_a_request_in_the_form_of_a_plain_nginx_proxy_is_refused(server):
    """`proxy_pass http://127.0.0.1:8787;` alone sends a local Host and no header of a proxy, but HTTP/1.0."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        head = f"GET /v1/backup HTTP/1.0\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert answer.startswith("HTTP/1.1 401")
    assert "HTTP/1.0" in answer
    assert "--require-key" in answer


def test_with_a_key_a_proxied_request_is_answered(guarded):
    headers = {"X-Forwarded-For": "10.1.2.3", "Via": "1.1 proxy", "Host": "memory.example"}
    assert status(guarded, guarded.keys["reader"], headers=headers) == 200


def test_without_keys_a_host_name_that_is_not_local_is_refused(tmp_path, monkeypatch):
    """Even if the server listens on it."""
    monkeypatch.setenv("SCRUBJAY_PATH", str(tmp_path / "db"))
    monkeypatch.setenv("SCRUBJAY_HOST", "memory.example")
    with TestClient(
        scrubjay_server.create_app(), base_url="http://memory.example", client=("127.0.0.1", 50_000)
    ) as client:
        assert client.get("/v1/namespaces").status_code in (401, 403)


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_require_key_issues_the_first_key_and_is_never_open(tmp_path, monkeypatch, how):
    """With a plain proxy_pass nginx sends nothing that a local program does not send."""
    if how == "variable":
        monkeypatch.setenv("SCRUBJAY_PATH", str(tmp_path / "db"))
        monkeypatch.setenv("SCRUBJAY_REQUIRE_KEY", "1")
        with TestClient(
            scrubjay_server.create_app(), base_url="http://127.0.0.1:8787", client=("127.0.0.1", 50_000)
        ) as client:
            assert client.get("/v1/namespaces").status_code == 401, "there has never been a key"
        return
    with serving(tmp_path / "db", "--require-key") as server:
        secret = server.banner.split("api key")[1].split()[0]
        assert status(server) == 401
        assert status(server, secret, "/v1/apikeys") == 200
    with serving(tmp_path / "db", "--require-key") as server:
        assert "sj_" not in server.banner
        assert status(server, secret) == 200


def test_the_line_to_try_in_the_banner_works_when_it_is_pasted(tmp_path):
    with serving(tmp_path / "db", "--require-key") as server:
        line = re.search(r"^ +try +(.*)$", server.banner, re.MULTILINE)[1]
        environment = clean_environment(HOME=str(tmp_path), PATH="/usr/bin:/bin")
        tried = subprocess.run(
            line, shell=True, env=environment, cwd="/", capture_output=True, text=True, timeout=300, check=False
        )
        assert (tried.returncode, tried.stderr) == (0, "")
    with Memory("my-agent", path=tmp_path / "db") as memory:
        assert memory.get("greeting") == "hello"
    with serving(tmp_path / "db", "--require-key") as server:
        assert re.search(r"^ +try +SCRUBJAY_URL=\S+ SCRUBJAY_API_KEY=\.\.\. ", server.banner, re.MULTILINE)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_that_is_stopped_as_soon_as_it_has_issued_its_first_key_prints_it(tmp_path, workers):
    path = tmp_path / "db"

    def has_issued() -> bool:
        with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
            return bool(db.execute("SELECT 1 FROM api_keys").fetchall())
        return False

    arguments = ["--require-key", "--port", "0", "--path", str(path), "--workers", str(workers)]
    process = ForkedServer(arguments, clean_environment(), {})
    eventually(has_issued)
    process.send_signal(signal.SIGTERM)
    with process.stdout, process.stderr:
        assert "sj_" in process.stdout.read()
    assert process.wait(60) == 0


def test_the_banner_names_the_command_for_the_keys_of_its_own_database(tmp_path):
    path = tmp_path / "its own" / "db"
    with serving(path, "--require-key") as server:
        first = server.banner.split("sj_")[1].split("_")[0]
    issue_key(path, "bot")
    for expected in ("scrubjay key list", "scrubjay key issue --admin"):
        with serving(path) as server:
            line = re.search(r"^ +access .*: (scrubjay .*)$", server.banner, re.MULTILINE)[1]
        assert line.startswith(expected)
        assert run_text(*shlex.split(line)[1:]).returncode == 0
        run_text("key", "revoke", first, "--path", path)


def test_the_banner_says_that_a_server_is_open(server):
    assert "every user and program of this machine" in server.banner
    assert "--require-key" in server.banner


# ---------------------------------------------------------------- Basic authentication


def test_a_key_is_accepted_as_user_name_or_password(guarded):
    key = guarded.keys["reader"]
    for auth in ((key, ""), ("", key), ("anyone", key), (key, "x")):
        assert status(guarded, auth=auth) == 200
    for auth in ((key + "x", ""), ("anyone", "password"), ("anyone", key[:-1]), ("", "")):
        assert status(guarded, auth=auth) == 401
    for credentials in ("Basic", "Basic !", "Basic \xff", "Basic c2o"):
        assert status(guarded, headers={"Authorization": credentials.encode("latin-1")}) == 401
    assert status(guarded, key, auth=("user of", "a proxy")) == 200, "Basic may be meant for a proxy"
    assert status(guarded, "sj_wrong", auth=(key, "")) == 401


def test_a_401_makes_a_browser_ask_for_the_key(guarded):
    answer = requests.get(f"{guarded.url}/v1/namespaces", timeout=60)
    assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")
    with_key = requests.get(f"{guarded.url}/v1/namespaces", auth=(guarded.keys["reader"], ""), timeout=60)
    assert "WWW-Authenticate" not in with_key.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_site_cannot_use_a_browsers_stored_key(guarded, headers):
    item, auth = f"{guarded.url}/v1/namespaces/support-eu/items/k", (guarded.keys["support"], "")
    refused = requests.put(item, json={"value": "evil"}, headers=headers, auth=auth, timeout=60)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    own = {"Origin": guarded.url, "Sec-Fetch-Site": "same-origin"}
    assert requests.put(item, json={"value": "mine"}, headers=own, auth=auth, timeout=60).status_code == 200
    sent = {**headers, "X-API-Key": guarded.keys["support"]}
    assert requests.put(item, json={"value": "theirs"}, headers=sent, timeout=60).status_code == 200, "it has the key"


def test_basic_authentication_reads_the_same_memories_in_the_compat_apis(guarded):
    key = issue(guarded.path)
    url = f"{guarded.url}/v1/memory"
    body = {"content": "the deal is secret"}
    assert requests.post(f"{url}/remember", json=body, headers={"X-API-Key": key}, timeout=60).status_code == 200
    assert len(requests.get(f"{url}/recall?q=deal", auth=(key, ""), timeout=60).json()["memories"]) == 1
