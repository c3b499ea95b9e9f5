"""An address where something else than a Scrubjay server answers: nothing is taken for an acknowledgement."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading

import pytest
import requests

from harness import fresh_name
from scrubjay import Memory, OutcomeUnknown, ScrubjayError, Unavailable, commands
from scrubjay.adapters._copies import unattended_copy
from scrubjay.cli import main
from scrubjay.http import HttpExecutor
from scrubjay.opening import open_executor
from scrubjay.outbox import sender
from scrubjay.settings import memory_settings

HTML = b"<html>Welcome to the hotel</html>"
STRANGERS = {
    "an empty 200": (200, {}, b""),
    "a 204": (204, {}, b""),
    "a list": (200, {}, b"[1, 2]"),
    "another service's JSON": (200, {}, b'{"status":"ok"}'),
    "every field there is": (200, {}, b'{"version":1,"length":1,"updated":1,"id":"1","value":1,"keys":[],"deleted":1}'),
    "a page": (200, {}, HTML),
    "a page that is not found": (404, {}, HTML),
    "another service's not_found": (404, {}, b'{"code":"not_found","detail":"no such user"}'),
    "a redirect": (302, {"Location": "http://127.0.0.1:1/login"}, b""),
    "half of some JSON": (200, {}, b'{"version": 1, "len'),
    "another kind of error": (422, {}, b'{"detail":[{"loc":["body"]}]}'),
}
OURS = {"Scrubjay-Version": "9.9.9"}
ODD = {
    "an empty 200": (200, OURS, b""),
    "a list": (200, OURS, b"[1, 2]"),
    "an object without the fields": (200, OURS, b'{"status":"ok"}'),
    "null": (200, OURS, b"null"),
    "fields of other types": (200, OURS, b'{"version":"1","length":null,"updated":[],"keys":{},"notes":5}'),
    "half of some JSON": (200, OURS, b'{"version": 1, "len'),
    "deep JSON": (200, OURS, b"[" * 200_000),
    "an error without a code": (404, OURS, b'{"detail":"x"}'),
    "an error whose code is a list": (404, OURS, b'{"code":[],"detail":"x"}'),
}


class Stranger(http.server.ThreadingHTTPServer):
    """Gives one answer to whatever it is asked."""

    daemon_threads = True

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.given = status, headers, body
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class _Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_words) -> None: ...

    def handle_request(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, headers, body = self.server.given
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = do_HEAD = handle_request  # noqa: N815


@pytest.fixture
def stranger():
    with contextlib.ExitStack() as stack:

        def make(status: int, headers: dict[str, str], body: bytes) -> Stranger:
            made = stack.enter_context(Stranger(status, headers, body))
            stack.callback(made.shutdown)
            return made

        yield make


WRITES = {
    "set": lambda memory: memory.set("k", 1),
    "set None": lambda memory: memory.set("k", None),
    "delete": lambda memory: memory.delete("k"),
    "append": lambda memory: memory.append("l", 1),
    "append once": lambda memory: memory.append("l", 1, once="id"),
    "update": lambda memory: memory.update({"a": 1, "b": None}),
    "remember": lambda memory: memory.remember("Sarah prefers short answers"),
}
VERBS = WRITES | {
    "set if_version": lambda memory: memory.set("k", 1, if_version=0),
    "delete if_version": lambda memory: memory.delete("k", if_version=1),
    "get": lambda memory: memory.get("k"),
    "item": lambda memory: memory.item("k"),
    "in": lambda memory: "k" in memory,
    "keys": lambda memory: memory.keys(),
    "iter": list,
    "len": len,
    "clear": lambda memory: memory.clear(),
    "tail": lambda memory: memory.tail("l", 1),
    "incr": lambda memory: memory.incr("n"),
    "get_many": lambda memory: memory.get_many(["a"]),
    "recall": lambda memory: memory.recall("answers"),
    "inject_context": lambda memory: memory.inject_context("answers"),
    "forget": lambda memory: memory.forget("1"),
    "notes": lambda memory: memory.notes(),
    "watch": lambda memory: next(memory.watch(timeout=0.1)),
    "usage": lambda memory: memory.usage(),
    "set_quota": lambda memory: memory.set_quota(max_bytes=1),
    "namespaces": lambda memory: memory.namespaces(),
}
ADMIN = {
    "health": lambda executor: executor.health(),
    "audit": lambda executor: executor.run(commands.AUDIT("", None, 0.0, "0")),
    "api_keys": lambda executor: executor.run(commands.API_KEYS("")),
    "issue_key": lambda executor: executor.run(commands.ISSUE_KEY("", "n", ("*",), False, False, {}, False)),
    "revoke_key": lambda executor: executor.run(commands.REVOKE_KEY("", "x", False)),
    "export": lambda executor: executor.export("ns", lambda _: None, lambda *_: None),
    "backup": lambda executor: executor.backup(lambda _: None, lambda *_: None),
    "erase": lambda executor: executor.erase("ns", dict),
}
COMMANDS = [
    ["get", "ns", "k"], ["set", "ns", "k", "1"], ["keys", "ns"], ["rm", "ns", "k"], ["append", "ns", "l", "1"],
    ["tail", "ns", "l"], ["remember", "ns", "text"], ["recall", "ns", "text"], ["notes", "ns"], ["forget", "ns", "1"],
    ["namespaces"], ["usage", "ns"], ["quota", "ns", "--max-bytes", "1"], ["key", "list"], ["key", "issue"],
    ["key", "revoke", "x"], ["watch", "ns", "--timeout", "0.1"], ["audit"], ["export", "ns"], ["erase", "ns", "--yes"],
]  # fmt: skip


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("kind", STRANGERS)
def test_every_verb_says_that_it_is_not_a_scrubjay_server(stranger, kind, strict):
    url = stranger(*STRANGERS[kind]).url
    with Memory("ns", url=url, strict=strict) as memory:
        for name, verb in VERBS.items():
            with pytest.raises(Unavailable, match=rf"{url} answered .*not as a Scrubjay server; check SCRUBJAY_URL"):
                pytest.fail(f"{name} gave {verb(memory)!r}")
        assert memory.pending() == []
    with contextlib.closing(HttpExecutor(memory_settings(url=url))) as executor:
        for name, call in ADMIN.items():
            with pytest.raises(Unavailable, match="not as a Scrubjay server"):
                pytest.fail(f"{name} gave {call(executor)!r}")


@pytest.mark.parametrize("kind", STRANGERS)
def test_every_command_says_so_too(stranger, kind, capsys):
    url = stranger(*STRANGERS[kind]).url
    for command in COMMANDS:
        assert main([*command, "--url", url]) == 3, command
        assert "not as a Scrubjay server; check SCRUBJAY_URL" in capsys.readouterr().err, command
    assert main(["open", "--url", url]) == 3
    assert "not as a Scrubjay server; check SCRUBJAY_URL" in (told := capsys.readouterr().err)
    assert "start it" not in told
    assert main(["doctor", "--url", url]) == 1
    assert "not as a Scrubjay server" in capsys.readouterr().out


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("root", ["https://memory.example.org", "https://example.org:8443/base"])
def test_a_redirect_names_the_url_to_use_and_a_write_to_it_is_known_not_to_have_happened(stranger, root, strict):
    there = stranger(301, {"Location": f"{root}/v1/namespaces/ns/items/k"}, b"")
    with Memory("ns", url=there.url, strict=strict) as memory:
        for call in VERBS.values():
            with pytest.raises(Unavailable) as raised:
                call(memory)
            assert not isinstance(raised.value, OutcomeUnknown)
            assert f"it redirects to '{root}', so set that URL" in str(raised.value)
        assert memory.pending() == []
    there.given = 302, {"Location": "http://user:secret@hotel/?to=\x1b[31m"}, b""
    with Memory("ns", url=there.url, strict=strict) as memory, pytest.raises(Unavailable) as raised:
        memory.set("k", 1)
    assert "redirects to 'http://hotel', so" in str(raised.value)


@pytest.mark.parametrize("kind", ODD)
def test_a_body_that_the_verb_does_not_have_is_an_error_that_names_both_versions(stranger, kind):
    url = stranger(*ODD[kind]).url
    with Memory("ns", url=url, strict=True) as memory:
        for name, verb in VERBS.items():
            if name == "in" and "code" not in kind:
                continue  # a HEAD has no body
            with pytest.raises(ScrubjayError):
                pytest.fail(f"{name} gave {verb(memory)!r}")
        with pytest.raises(Unavailable, match=r"Scrubjay 9\.9\.9"):
            memory.set("k", 1)


@pytest.mark.parametrize("kind", [*STRANGERS, *(f"ours: {kind}" for kind in ODD)])
def test_what_waits_is_not_acknowledged_by_a_stranger(stranger, kind, monkeypatch):
    for name in ("FIRST_RETRY_SECONDS", "MAX_RETRY_SECONDS"):
        monkeypatch.setattr(sender, name, 0.01)
    given = ODD[kind.removeprefix("ours: ")] if kind.startswith("ours: ") else STRANGERS[kind]
    there = stranger(503, {}, b"")
    with Memory("ns", url=there.url) as memory:
        for write in WRITES.values():
            assert write(memory) is None
        there.given = given
        with pytest.raises(Unavailable):
            memory.flush(0.1)
        waits = memory.pending()
        assert len(waits) == len(WRITES)
        assert not any(each.refused for each in waits)
        assert there.url in waits[0].reason


def test_what_waits_reaches_the_server_after_a_stranger_has_answered(stranger, server):
    name = fresh_name()
    write = commands.SET(name, "k", "1", None, None)
    wrong = open_executor(memory_settings(url=stranger(204, {}, b"").url))
    with contextlib.closing(wrong), pytest.raises(Unavailable):
        wrong.run(write)
    with contextlib.closing(open_executor(memory_settings(url=server.url))) as right:
        assert right.run(write) == 1


def test_an_agent_keeps_on_disk_what_a_stranger_answers_to(stranger):
    with unattended_copy(Memory("ns", url=stranger(200, {}, HTML).url)) as memory:
        assert memory.append("log", "message") is None
        assert [waits.key for waits in memory.pending()] == ["log"]


def test_every_response_of_the_server_says_what_it_is(server):
    at = f"{server.url}/v1/namespaces/{fresh_name()}/items/k"
    requests.put(at, json={"value": 1}, timeout=60)
    answers = [
        requests.request(method, url, data=body, timeout=60)
        for method, url, body in (
            ("GET", at, None), ("HEAD", at, None), ("DELETE", at, None), ("DELETE", at, None), ("PUT", at, "no JSON"),
            ("GET", f"{server.url}/nowhere", None), ("POST", at, None), ("GET", f"{server.url}/health", None),
            ("GET", f"{server.url}/docs", None), ("GET", f"{at}?{'x' * 70_000}", None),
        )
    ]  # fmt: skip
    assert [answer.status_code for answer in answers] == [200, 200, 204, 404, 400, 404, 405, 200, 200, 431]
    version = json.loads(answers[7].text)["version"]
    assert {answer.headers.get("Scrubjay-Version") for answer in answers} == {version}
