"""Migrating: the real packages of BotWire and Kronvex write to a server, and the command copies from it."""

from __future__ import annotations

import base64
import json
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import botwire
import kronvex
import pytest
import requests

from harness import fresh_name, run_command, run_text, serving
from scrubjay import Memory


@pytest.fixture
def migrate(tmp_path):
    """The command, which copies into a new file."""

    def run(*words: object, to: str = "", **variables: str):
        target = ("--url", to) if to else ("--path", tmp_path / "target.db")
        done = run_command("migrate", *words, *target, **variables)
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
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                if status == 429:
                    self.send_header("Retry-After", "30")
                if status == 308:
                    self.send_header("Location", "https://user:secret@elsewhere.test/memory?key=secret")
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


def basic(user: str, password: str = "") -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.mark.parametrize("written", ["sj_key@", "sj_key:@", ":sj_key@", "sj%5Fkey@"])
def test_an_api_key_in_the_url_is_sent_and_not_shown(fake, migrate, written):
    seen = []

    def answer(_path: str, headers: dict[str, str]):
        seen.append(headers["Authorization"])
        return 401, {"detail": "this api key is not known to the server: check SCRUBJAY_API_KEY"}

    source = fake(answer)
    code, _, error = migrate("botwire", "--from", source.url.replace("//", f"//{written}"), "ns")
    assert seen == [basic("", "sj_key") if written.startswith(":") else basic("sj_key")]
    assert code == 1
    assert error == (
        f"scrubjay: the source {source.url} refused access (401); write an api key of that server into the URL:"
        f" --from {source.url.replace('//', '//KEY@')}\n"
    )


def test_a_url_with_an_api_key_copies_from_a_server_that_requires_one(tmp_path, migrate):
    with serving(tmp_path / "source.db", "--require-key") as server:
        key = run_text("key", "issue", "--namespaces", "mine", "--path", server.path).stdout.strip()
        url = server.url.replace("//", f"//{key}@")
        source = botwire.Memory("mine", base_url=url)
        source.set("a", "1")
        source._client.close()
        assert migrate("botwire", "--from", url, "mine") == (0, "mine: 1 key copied\n", "")
        code, _, error = migrate("botwire", "--from", url, "mine", to=server.url)
        assert (code, error.split(":")[:3]) == (1, ["scrubjay", " the target", " no api key was sent, and this server needs an api key"])  # noqa: E501 # fmt: skip


@pytest.mark.parametrize("key", ["", "sj_key@", "sj_key:@"])
@pytest.mark.parametrize(
    ("written", "code", "sentence"),
    [
        ("http://{}127.0.0.1:9", 3, "cannot read from http://127.0.0.1:9: [Errno"),
        ("{}127.0.0.1:9", 1, "'127.0.0.1:9' is not the URL of a server; write it as http://127.0.0.1:9"),
        ("http://{}127.0.0.1:nine", 1, "--from: the url 'http://127.0.0.1:nine' is not the URL of a server"),
        ("ftp://{}127.0.0.1", 1, "--from: the url 'ftp://127.0.0.1' is not the URL of a server"),
    ],
)
def test_a_url_that_cannot_be_used_is_one_sentence_without_its_key(migrate, written, key, code, sentence):
    given, _, error = migrate("botwire", "--from", written.format(key), "ns")
    assert (given, error.count("\n")) == (code, 1)
    assert sentence in error
    assert "sj_key" not in error
    assert "HTTPConnection" not in error


@pytest.mark.parametrize(
    ("status", "body", "code", "sentence"),
    [
        (503, {"detail": "the disk\nis full"}, 3, "answered 503: the disk is full; run the command again to continue"),
        (500, b"<html>" * 1000, 3, "answered 500; run the command again to continue"),
        (400, {"detail": "a bad name"}, 1, "answered 400: a bad name; check the URL and the names"),
        (308, {}, 1, "redirects to https://elsewhere.test/memory; pass the URL of that server with --from"),
        (404, {}, 1, "has no namespace 'ns'; check both"),
        (200, {"keys": []}, 1, "the namespace 'ns' of {url} has no keys, so nothing was copied; check its name"),
        (200, {}, 1, "{url} does not serve BotWire's API at /memory/ns (the response has no keys)"),
        (200, b"<html>", 1, "{url} does not serve BotWire's API at /memory/ns (the response has no keys)"),
    ],
)
def test_an_answer_without_keys_is_an_error(fake, migrate, status, body, code, sentence):
    source = fake(lambda *_: (status, body))
    given, printed, error = migrate("botwire", "--from", source.url, "ns")
    assert (given, printed, error.count("\n")) == (code, "", 1)
    assert sentence.format(url=source.url) in error


def test_a_value_that_the_source_does_not_return_is_named_and_null_is_copied(fake, migrate, tmp_path):
    (tmp_path / "names").write_text("a\nb\nc\n")
    answers = {"/memory/ns/a": (200, {"value": None}), "/memory/ns/b": (200, {"other": 1})}
    source = fake(lambda path, _headers: answers.get(path, (404, {})))
    code, printed, error = migrate("botwire", "--from", source.url, "--keys", tmp_path / "names", "ns")
    assert (code, printed) == (1, "ns: 1 key copied\n")
    assert "not copied: 'b': " in error
    assert "not copied: 'c': the source has no such key" in error


# ------------------------------------------------------------ Kronvex and Memstore


MIGRATIONS = {
    "kronvex": ("Kronvex", "/api/v1", "/agents", ()),
    "memstore": ("Memstore", "/v1/memory", "/list", ("ns",)),
}


@pytest.mark.parametrize("kind", MIGRATIONS)
@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, {"detail": "Not Found"}, "404"),
        (200, b"<html>", "the response has no"),
        (200, {"status": "ok"}, "the response has no"),
        (200, ["a"], "are not a list of objects with"),
    ],
)
def test_a_server_without_the_api_is_an_error(fake, migrate, kind, status, body, why):
    name, root, path, words = MIGRATIONS[kind]
    source = fake(lambda *_: (status, body))
    code, printed, error = migrate(kind, "--from", source.url, "--from-key", "key", *words)
    assert (code, printed, error.count("\n")) == (1, "", 1)
    assert error.startswith(f"scrubjay: {source.url} does not serve {name}'s API at {root}{path} (")
    assert why in error


@pytest.mark.parametrize("kind", MIGRATIONS)
def test_a_source_with_nothing_is_an_error_and_no_target_is_made(fake, migrate, kind, tmp_path):
    *_, words = MIGRATIONS[kind]
    source = fake(lambda *_: (200, []))
    code, printed, error = migrate(kind, "--from", source.url, "--from-key", "key", *words)
    what = "agents" if kind == "kronvex" else "memories"
    assert (code, printed) == (1, "")
    assert f"no {what} were found at {source.url} with this key, so nothing was copied; check the key" in error
    assert not (tmp_path / "target.db").exists()


@pytest.mark.parametrize("kind", MIGRATIONS)
@pytest.mark.parametrize("ending", ["", "/", "{root}", "{root}/"])
def test_the_url_may_end_with_the_root_of_the_api(fake, migrate, kind, ending):
    _, root, _, words = MIGRATIONS[kind]
    pages = {f"{root}/agents": [[{"id": "ns"}]]}

    def answer(path: str, _headers: object):
        found = pages.setdefault(path, [[{"content": "x"}], []]).pop(0)
        return 200, found

    code, printed, error = migrate(
        kind, "--from", fake(answer).url + ending.format(root=root), "--from-key", "k", *words
    )
    assert (code, printed, error) == (0, "ns: 1 note copied\n", "")


@pytest.mark.parametrize("kind", MIGRATIONS)
def test_a_source_that_refuses_the_key_names_where_its_key_is_set(fake, migrate, kind):
    *_, words = MIGRATIONS[kind]
    source = fake(lambda *_: (403, {"detail": "check SCRUBJAY_API_KEY"}))
    code, _, error = migrate(kind, "--from", source.url, "--from-key", "key", *words)
    variable = f"{kind.upper()}_API_KEY"
    assert code == 1
    assert f"the source {source.url} refused access (403); set {variable} to an api key of that server" in error


@pytest.mark.parametrize("asked", ["nosuch", "assistent"])
def test_an_agent_that_the_key_does_not_have_is_an_error(fake, migrate, asked):
    source = fake(lambda *_: (200, [{"id": "assistant"}, {"id": "reader"}]))
    code, printed, error = migrate("kronvex", "--from", source.url, "--from-key", "key", "reader", asked)
    hint = "this key has 'assistant', 'reader'" if asked == "nosuch" else "did you mean 'assistant'?"
    assert (code, printed, error) == (1, "", f"scrubjay: there is no agent {asked!r}; {hint}\n")


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
