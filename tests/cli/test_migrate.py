"""Migrating: the real packages of BotWire and Kronvex write to a server, and the command copies from it."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import botwire
import kronvex
import pytest
import requests

from harness import fresh_name, run_command
from scrubjay import Memory


@pytest.fixture
def migrate(tmp_path):
    """The command, which copies into a new file."""

    def run(*words: object, **variables: str):
        done = run_command("migrate", *words, "--path", tmp_path / "target.db", **variables)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    run.open = lambda namespace: Memory(namespace, path=tmp_path / "target.db")
    return run


class Fake:
    """A server that answers as the test says; its paths are in `seen`."""

    def __init__(self, answer) -> None:
        self.seen: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.seen.append(self.path)
                status, body = answer(unquote(urlsplit(self.path).path), dict(self.headers))
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                if status == 429:
                    self.send_header("Retry-After", "30")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def fake():
    made = []

    def make(answer) -> Fake:
        made.append(Fake(answer))
        return made[-1]

    yield make
    for server in made:
        server.close()


# ------------------------------------------------------------ BotWire


def test_what_botwires_package_wrote_is_copied_and_a_second_run_copies_nothing(server, migrate):
    namespace = fresh_name()
    source = botwire.Memory(namespace, base_url=server.url)
    for key, value in {"user": {"name": "Sarah"}, "list": [1, 2], "text": "[no json", "a b/c": "x"}.items():
        source.set(key, value)
    assert migrate("botwire", "--from", server.url, namespace) == (0, f"{namespace}: 4 keys copied\n", "")
    with migrate.open(namespace) as memory:
        assert memory.get_many(memory.keys()) == {
            "user": {"name": "Sarah"}, "list": [1, 2], "text": "[no json", "a b/c": "x",
        }  # fmt: skip
        memory.set("user", "changed here")
    source.set("new", "1")
    source._client.close()
    code, printed, _ = migrate("botwire", "--from", server.url, namespace)
    assert (code, printed) == (0, f"{namespace}: 1 key copied, 4 were already there\n")
    with migrate.open(namespace) as memory:
        assert memory.get("user") == "changed here", "what is in the target is not overwritten"


def test_botwires_own_server_lists_records_and_only_a_hundred(fake, migrate, tmp_path):
    values = {f"k{number:03}": str(number) for number in range(150)}

    def answer(path: str, _headers: object):
        key = path.removeprefix("/memory/ns").lstrip("/")
        if key:
            return (200, {"key": key, "value": values[key]}) if key in values else (404, {"detail": "Not found"})
        return 200, {"namespace": "ns", "keys": [{"key": each, "version": 1} for each in list(values)[:100]]}

    source = fake(answer)
    code, printed, remark = migrate("botwire", "--from", source.url, "ns")
    assert (code, printed) == (0, "ns: 100 keys copied\n")
    assert "at most 100 keys" in remark
    (tmp_path / "names").write_text("\n".join(values))
    source.seen.clear()
    code, printed, _ = migrate("botwire", "--from", source.url, "--keys", tmp_path / "names", "ns")
    assert (code, printed) == (0, "ns: 50 keys copied, 100 were already there\n")
    assert len(source.seen) == 50, "only what is missing is read again"


def test_a_migration_that_was_interrupted_continues(fake, migrate):
    values, limit = {f"k{number}": str(number) for number in range(10)}, [5]

    def answer(path: str, _headers: object):
        key = path.removeprefix("/memory/ns").lstrip("/")
        if not key:
            return 200, {"keys": list(values)}
        limit[0] -= 1
        return (200, {"value": values[key]}) if limit[0] >= 0 else (429, {"detail": "rate limit"})

    source = fake(answer)
    code, _, error = migrate("botwire", "--from", source.url, "ns")
    assert code == 3
    assert "answered 429" in error
    assert "run the command again in 30 seconds to continue" in error
    limit[0] = 5
    assert migrate("botwire", "--from", source.url, "ns")[:2] == (0, "ns: 5 keys copied, 5 were already there\n")
    with migrate.open("ns") as memory:
        assert memory.get_many(memory.keys()) == values


def test_a_value_that_is_refused_is_named_and_the_others_are_copied(fake, migrate):
    def answer(path: str, _headers: object):
        key = path.removeprefix("/memory/ns").lstrip("/")
        return 200, {"value": f"value of {key}"} if key else {"keys": ["good", "x" * 600, "better"]}

    code, printed, error = migrate("botwire", "--from", fake(answer).url, "ns")
    assert (code, printed) == (1, "ns: 2 keys copied\n")
    assert error.startswith("scrubjay: not copied: 'xxx")


# ------------------------------------------------------------ Kronvex


def test_the_memories_of_every_agent_are_copied_with_their_fields(server, migrate):
    secret = fresh_name("key")
    with kronvex.Kronvex(secret, base_url=server.url) as client:
        agent = client.agent("assistant")
        agent.remember("User prefers concise answers", memory_type="semantic", session_id="s-1", metadata={"by": "me"})
        agent.remember("The office is in Berlin", pinned=True)
        agent.remember("A trial", ttl_days=2)
        for number in range(120):
            client.agent("reader").remember(f"book {number}")
    code, printed, error = migrate("kronvex", "--from", server.url, "--prefix", "kx-", KRONVEX_API_KEY=secret)
    assert (code, error) == (0, "")
    assert sorted(printed.splitlines()) == ["kx-assistant: 3 notes copied", "kx-reader: 120 notes copied"]
    with migrate.open("kx-assistant") as memory:
        first, second, third = memory.notes()
        assert (first.content, first.type, first.session) == ("User prefers concise answers", "semantic", "s-1")
        assert first.metadata["by"] == "me"
        assert datetime.fromisoformat(first.metadata["created_at"]) <= first.created_at
        assert (second.pinned, second.expires_at) == (True, None)
        assert timedelta(days=1) < third.expires_at - datetime.now(UTC) < timedelta(days=2)
        assert memory.recall("which answers?")[0].content == first.content
    code, printed, _ = migrate("kronvex", "--from", server.url, "--from-key", secret, "--prefix", "kx-", "reader")
    assert (code, printed) == (0, "kx-reader: 0 notes copied, 120 were already there\n")
    with migrate.open("kx-reader") as memory:
        assert {each.times for each in memory.notes()} == {1}


def test_kronvex_needs_its_api_key(migrate):
    code, _, error = migrate("kronvex", "--from", "http://127.0.0.1:9")
    assert code == 1
    assert "KRONVEX_API_KEY" in error


def test_kronvexs_own_server_returns_fewer_than_asked_and_calls_them_results(fake, migrate):
    memories = [{"id": str(n), "content": f"memory {n}", "memory_type": "episodic"} for n in range(25)]
    offsets = iter((0, 10, 20, 25))

    def answer(path: str, headers: dict[str, str]):
        assert headers["X-API-Key"] == "kv-1"
        if path == "/api/v1/agents":
            return 200, {"agents": [{"id": "a1", "name": "one"}]}
        start = next(offsets)
        return 200, {"results": memories[start : start + 10], "total": 25}

    code, printed, _ = migrate("kronvex", "--from", fake(answer).url, "--from-key", "kv-1")
    assert (code, printed) == (0, "a1: 25 notes copied\n")


# ------------------------------------------------------------ Memstore


def test_the_memories_of_a_memstore_are_copied_into_a_namespace(server, migrate):
    key = fresh_name("key")
    headers = {"Authorization": f"Bearer {key}"}
    for content, tags in (("Alice likes green tea", ["alice", "drinks"]), ("Bob likes coffee", [])):
        body = {"content": content, "tags": tags, "session": "s-2", "metadata": {"n": 1}}
        assert requests.post(f"{server.url}/v1/memory/remember", json=body, headers=headers, timeout=60).ok
    code, printed, _ = migrate("memstore", "--from", server.url, "drinks", "--json", MEMSTORE_API_KEY=key)
    assert code == 0
    assert json.loads(printed)["migrated"] == [{"namespace": "drinks", "copied": 2, "skipped": 0, "refused": []}]
    with migrate.open("drinks") as memory:
        first, _ = memory.notes(session="s-2")
        assert (first.content, first.tags, first.metadata["n"]) == ("Alice likes green tea", ("alice", "drinks"), 1)


def test_a_source_that_does_not_answer_is_one_sentence(migrate):
    code, _, error = migrate("botwire", "--from", "http://127.0.0.1:9", "ns")
    assert (code, error.count("\n")) == (3, 1)
    assert "cannot read from http://127.0.0.1:9" in error
