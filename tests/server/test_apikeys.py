"""Who may do what: api keys, what each sees, and a server that is open only to its own machine."""

from __future__ import annotations

import subprocess
import sys

import pytest
import requests
from starlette.testclient import TestClient

import scrubjay_server
from harness import clean_environment, serving
from scrubjay import AsyncMemory, Forbidden, InvalidInput, Memory, Unauthenticated
from scrubjay.store import apikeys
from scrubjay.store.sqlite import SqliteStore


def issue(path, *words: str, **variables: str) -> str:
    command = [sys.executable, "-m", "scrubjay.cli", "key", "issue", *words]
    where = [] if "SCRUBJAY_URL" in variables else ["--path", str(path)]
    done = subprocess.run(
        [*command, *where], capture_output=True, text=True, check=True, timeout=60, env=clean_environment(**variables)
    )
    assert "shown only now" in done.stderr
    return done.stdout.strip()


@pytest.fixture
def guarded(tmp_path):
    """A server with some data, and three keys to it."""
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
            answer = requests.get(guarded.url + path, headers=headers, timeout=5)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    with Memory("support-eu", url=guarded.url) as memory:
        for call in (lambda: memory.get("k"), lambda: memory.set("k", 1), memory.keys, memory.usage, memory.clear):
            with pytest.raises(Unauthenticated, match="SCRUBJAY_API_KEY"):
                call()
        with pytest.raises(Unauthenticated):
            assert "k" in memory
    assert requests.get(f"{guarded.url}/health", timeout=5).status_code == 200
    assert requests.get(f"{guarded.url}/ready", timeout=5).status_code == 200


def test_a_key_is_taken_in_both_headers_and_from_the_environment(guarded, monkeypatch):
    key = guarded.keys["support"]
    for headers in ({"Authorization": f"Bearer {key}"}, {"authorization": f"bearer  {key} "}, {"x-api-key": key}):
        answer = requests.get(f"{guarded.url}/v1/namespaces/support-eu/items/k", headers=headers, timeout=5)
        assert answer.json()["value"] == "eu"
    monkeypatch.setenv("SCRUBJAY_API_KEY", key)
    assert Memory("support-eu", url=guarded.url).get("k") == "eu"
    assert Memory("support-eu", url=guarded.url, api_key=guarded.keys["reader"]).get("k") == "eu"
    assert AsyncMemory("support-eu", url=guarded.url, api_key=key)
    with pytest.raises(InvalidInput, match="line break"):
        Memory("ns", url=guarded.url, api_key=key + "\n")


def test_what_a_key_may_not_see_answers_like_what_does_not_exist(guarded):
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
            timeout=5,
        )
        for namespace in ("sales", "nowhere")
    ]
    assert answers[0].status_code == answers[1].status_code == 404
    assert answers[0].text.replace("sales", "nowhere") == answers[1].text
    assert {name.lower() for name in answers[0].headers} == {name.lower() for name in answers[1].headers}


def test_a_key_writes_only_where_it_may(guarded):
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


def test_quotas_and_keys_take_an_admin(guarded):
    for name in ("support", "reader"):
        headers = {"X-API-Key": guarded.keys[name]}
        for method, path in (
            ("GET", "/v1/apikeys"),
            ("POST", "/v1/apikeys"),
            ("DELETE", "/v1/apikeys/x"),
            ("PATCH", "/v1/namespaces/support-eu/quota"),
        ):
            answer = requests.request(method, guarded.url + path, json={}, headers=headers, timeout=5)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    with Memory("sales", url=guarded.url, api_key=guarded.keys["admin"]) as memory:
        assert memory.set_quota(writes_per_day=7).writes_per_day == 7


def test_keys_are_listed_without_themselves_and_revoked_at_once(guarded):
    admin = {"SCRUBJAY_URL": guarded.url, "SCRUBJAY_API_KEY": guarded.keys["admin"]}
    fresh = issue(guarded.path, "--name", "for a day", "--namespaces", "a-*", "--namespaces", "b", **admin)
    run = lambda *words: subprocess.run(  # noqa: E731
        [sys.executable, "-m", "scrubjay.cli", "key", *words],
        capture_output=True, text=True, check=False, timeout=60, env=clean_environment(**admin),
    )  # fmt: skip
    listed = run("list").stdout
    (line,) = [line for line in listed.splitlines() if "for a day" in line]
    assert "a-* b" in line
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


def test_only_the_hash_of_a_key_is_in_the_file(tmp_path):
    secret = issue(tmp_path / "db")
    store = SqliteStore(tmp_path / "db")
    assert store.run(apikeys.admit(secret)).patterns == ("*",)
    store.close()
    stored = b"".join(part.read_bytes() for part in tmp_path.glob("db*"))
    assert secret.rpartition("_")[2].encode() not in stored
    assert secret.split("_")[1].encode() in stored


def test_without_keys_only_this_machine_is_answered(server):
    url = f"{server.url}/v1/namespaces"
    ask = lambda **headers: requests.get(url, headers=headers, timeout=5).status_code  # noqa: E731
    assert ask() == 200
    assert ask(Host="localhost:8787") == ask(Host="127.0.0.1") == ask(Host="[::1]:8787") == 200
    assert ask(Host="evil.example") == ask(Host="127.0.0.1.evil.example") == ask(Host="") == ask(Host="[") == 403
    assert ask(Origin="http://evil.example") == ask(Origin="null") == ask(Origin="http://[x") == 403
    assert ask(Origin=server.url) == 200
    assert "access-control-allow-origin" not in requests.options(url, headers={"Origin": server.url}, timeout=5).headers


def test_a_server_that_others_can_reach_makes_its_first_key(tmp_path):
    with serving(tmp_path / "db", "--host", "0.0.0.0") as server:
        secret = server.banner.split("api key")[1].split()[0]
        url = f"http://127.0.0.1:{server.port}"
        assert requests.get(f"{url}/v1/namespaces", timeout=5).status_code == 401
        with Memory("ns", url=url, api_key=secret) as memory:
            memory.set("k", 1)
            assert memory.set_quota(writes_per_day=5).writes_per_day == 5
    with serving(tmp_path / "db", "--host", "0.0.0.0") as server:
        assert "api key" not in server.banner


def test_without_any_key_left_others_are_still_kept_out(tmp_path, monkeypatch):
    """Whoever is not on this machine is told by the address that a connection comes from, not by a header."""
    monkeypatch.setenv("SCRUBJAY_PATH", str(tmp_path / "db"))
    for address, status in (("127.0.0.1", 200), ("::1", 200), ("10.1.2.3", 401)):
        app = scrubjay_server.create_app()
        with TestClient(app, base_url="http://localhost", client=(address, 50_000)) as client:
            assert client.get("/v1/namespaces").status_code == status


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost", "127.1.2.3:80", "[::1]:8787"])
def test_addresses_of_this_machine_are_known(address):
    assert scrubjay_server.is_here(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "::2", "localhost.evil.example", "", "127.0.0.1.nip.io", "["])
def test_other_addresses_are_not(address):
    assert not scrubjay_server.is_here(address)


def test_what_one_key_keeps_on_another_wire_no_other_reads(guarded):
    mine, other = issue(guarded.path), issue(guarded.path)
    body = {"content": "the deal is secret"}
    requests.post(f"{guarded.url}/v1/memory/remember", json=body, headers={"X-API-Key": mine}, timeout=5)
    with Memory("x", url=guarded.url, api_key=guarded.keys["admin"]) as memory:
        (private,) = [name for name in memory.namespaces() if name.startswith("memstore:")]
    with Memory(private, url=guarded.url, api_key=other) as memory:
        assert private not in memory.namespaces()
        assert memory.notes() == []
    both = {"Authorization": f"Bearer {other}", "X-API-Key": mine}
    asked = requests.get(f"{guarded.url}/v1/memory/recall?q=deal", headers=both, timeout=5)
    assert asked.json()["memories"] == [], "the key that is checked is the key whose memories are read"


def test_an_admin_key_has_every_namespace(tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        issue(tmp_path / "db", "--admin", "--namespaces", "support-*")


@pytest.mark.parametrize(
    "words", [("--name", ""), ("--namespaces", "a/b"), ("--admin", "--read-only"), ("--name", "x" * 200)]
)
def test_a_key_that_makes_no_sense_is_refused(tmp_path, words):
    done = subprocess.run(
        [sys.executable, "-m", "scrubjay.cli", "key", "issue", "--path", str(tmp_path / "db"), *words],
        capture_output=True, text=True, check=False, timeout=60, env=clean_environment(),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("scrubjay: ")


def test_the_other_wires_keep_to_the_keys_too(guarded):
    """On Kronvex's and Memstore's wires a key has memories of its own; a read-only one cannot make any."""
    url = guarded.url
    for path, body in (
        ("/api/v1/agents/bot/remember", {"content": "the deal is secret"}),
        ("/v1/memory/remember", {"content": "the deal is secret"}),
    ):
        send = lambda path, body, name: requests.post(  # noqa: E731
            url + path, json=body, headers={"X-API-Key": guarded.keys[name]} if name else {}, timeout=5
        )
        assert send(path, body, None).status_code == 401
        assert send(path, body, "reader").status_code == 403
        assert send(path, body, "support").status_code == 200
    for name, found in (("support", 1), ("reader", 0), ("admin", 0)):
        headers = {"X-API-Key": guarded.keys[name]}
        asked = {"query": "which deal?", "limit": 5}
        recalled = requests.post(f"{url}/api/v1/agents/bot/recall", json=asked, headers=headers, timeout=5)
        assert len(recalled.json()["memories"]) == found
        recalled = requests.get(f"{url}/v1/memory/recall", params={"q": "deal"}, headers=headers, timeout=5)
        assert len(recalled.json()["memories"]) == found


def test_notes_keep_to_the_keys(guarded):
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
