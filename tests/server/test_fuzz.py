"""Random and hostile requests: each gets a response, which is not a 5xx and shows no internals."""

from __future__ import annotations

import json
import re
import socket
from urllib.parse import quote

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import Server
from scrubjay.store.sqlite import SqliteStore

FUZZ = settings(max_examples=150)
INTERNALS = re.compile(r'Traceback|File "|site-packages|sqlite3|OperationalError|object at 0x|scrubjay_|guarded\w*/db')

HOSTILE = [
    "",
    " ",
    ".",
    "..",
    "../../../../etc/passwd",
    "a/../b",
    "a//b",
    "%2F",
    "%00",
    "\x00",
    "a\x00b",
    "\r\nX-Injected: 1",
    "\ud800",
    "\udfff\ud800",
    "\U0010ffff",
    "\u202eabc\u2066",
    "e\u0301" * 50,
    "ﷺ" * 100,
    "x" * 513,
    "x" * 5000,
    "' OR 1=1 --",
    "'; DROP TABLE items; --",
    '"; DELETE FROM namespaces; --',
    "') UNION SELECT hash FROM apikeys --",
    "%' ESCAPE '\\",
    "[a-z]*?",
    "a* AND NOT b",
    'NEAR("a" "b", 5)',
    '"unbalanced',
    "^content: - x",
    "{a b} : c OR",
    "(((",
    "*",
    "-1",
    "1e999",
    "NaN",
    "null",
    "{{7*7}}${7*7}",
    "<script>alert(1)</script>",
]
WRONG_KINDS = [None, True, 0, -1, 0.5, 1e308, 2**53 + 1, 10**400, [], [[]], {}, {"a": {"$ne": None}}, [None] * 100, ""]
NOT_JSON = [
    b" ",
    b"{",
    b'{"value": ',
    b'{"value": 1}}',
    b"\xef\xbb\xbf{}",
    b'{"value": NaN}',
    b'{"value": -Infinity}',
    b'{"value": ' + b"9" * 5000 + b"}",
    b'{"value": 1, "value": 2}',
    b'{"items": [{"a": 1, "a": 2}]}',
    b'{"value": "\xe4"}',
    '{"value": 1}'.encode("utf-16"),
    '{"value": 1}'.encode("utf-32"),
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"value=1&x=2",
    b"<xml/>",
    b"\x00" * 1000,
    b"\x1f\x8b\x08\x00",
    b"0",
    b'"text"',
    b"[]",
    b"true",
]
ODD_JSON = [
    b'{"value": ' + b"[" * 990 + b"]" * 990 + b"}",  # which newer Pythons read
    b"",
    b"{}",
    b'{"value": 1e999}',
    b'{"value": "\\ud800"}',
    b'{"\\ud800": 1}',
    b'{"value": [1e-999, -0.0]}',
]


@pytest.fixture(scope="module")
def target(guarded):
    """A server with a stored value, and its OpenAPI document."""
    guarded.document = requests.get(f"{guarded.url}/openapi.json", timeout=60).json()
    headers = {"X-API-Key": guarded.apikey}
    kept = f"{guarded.url}/v1/namespaces/kept/items/k"
    requests.put(kept, json={"value": "still here"}, headers=headers, timeout=60)
    yield guarded
    assert requests.get(kept, headers=headers, timeout=60).json()["value"] == "still here"
    guarded.stop()
    assert_intact(guarded.path)


def assert_intact(path) -> None:
    store = SqliteStore(path)
    assert store.find_problems() == []
    store.close()


def send(server: Server, request: bytes, *, hang_up: bool = False) -> tuple[int, bytes]:
    """Send bytes; return the status and body of the response, 0 if the connection was closed without one."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        try:
            client.sendall(request)
            if hang_up:
                client.shutdown(socket.SHUT_WR)
            while piece := client.recv(65_536):
                received += piece
        except ConnectionError:
            pass
    head, _, body = received.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    return (int(head.split()[1]), body) if received else (0, b"")


def ask(server: Server, method: str, path: str, body: bytes = b"", headers: bytes = b"") -> tuple[int, bytes]:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {server.apikey}\r\nConnection: close\r\n"
    head += "Accept: application/json\r\n"  # without it changes are a stream of events, which does not end
    return send(server, head.encode() + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def assert_safe(status: int, body: bytes, *, method: str = "GET") -> None:
    """A response that is not a 5xx and shows no internals."""
    assert 200 <= status < 500, body
    if status >= 400 and method != "HEAD":
        error = json.loads(body)
        assert set(error) == {"code", "detail"}
        assert error["code"]
        assert error["detail"]
        assert not INTERNALS.search(error["detail"]), error


def encoded(text: str) -> str:
    return quote(text.encode(errors="surrogatepass"), safe="")


def operations(server: Server) -> list[tuple[str, str, dict]]:
    return [
        (method.upper(), path, operation)
        for path, methods in server.document["paths"].items()
        for method, operation in methods.items()
    ]


def filled(path: str, name: str) -> str:
    return re.sub(r"{\w+}", lambda _: encoded(name), path)


def test_hostile_names_in_paths_and_queries_are_answered_safely(target):
    for method, path, operation in operations(target):
        query = [given["name"] for given in operation.get("parameters", ()) if given["in"] == "query"]
        for text in HOSTILE:
            if "{" in path:
                assert_safe(*ask(target, method, filled(path, text)), method=method)
            for name in query:
                asked = f"{filled(path, 'n')}?{name}={encoded(text)}"
                assert_safe(*ask(target, method, asked), method=method)


def test_hostile_values_in_body_fields_are_answered_safely(target):
    for method, path, operation in operations(target):
        if "requestBody" not in operation:
            continue
        if "application/json" not in operation["requestBody"]["content"]:
            continue  # an export: tests/store/test_transfer.py changes every line of it
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        schema = target.document["components"]["schemas"][reference.rpartition("/")[2]]
        usual = {name: USUAL.get(name) for name in schema.get("required", ())}
        for name in schema["properties"]:
            inside = [{text: text} for text in HOSTILE] if name in ("values", "metadata") else [[x] for x in HOSTILE]
            for value in (*HOSTILE, *inside, *WRONG_KINDS):
                body = json.dumps({**usual, name: value}).encode()
                assert_safe(*ask(target, method, filled(path, "fields"), body))


FOREIGN_WORDS = re.compile(r"\b(None|True|False|NoneType|dict|str|int|should|validation|parse)\b")
"""Words of Python and Pydantic, which a client in another language cannot know."""
WRONG_JSON = [None, True, 0, 0.5, -1, "", "x" * 600, [], [None], [1] * 100, list("abcdefgh" * 10), {}, {"a": True}]
WRONG_TEXTS = ["", "-1", "1.5", "x", "x" * 600, "null", "true", "9" * 30, "nan", "\x00"]


def test_errors_about_fields_of_bodies_are_in_the_words_of_json(target):
    for method, path, operation in operations(target):
        reference = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if reference is None:
            continue
        schema = target.document["components"]["schemas"][reference["schema"]["$ref"].rpartition("/")[2]]
        usual = {name: USUAL.get(name) for name in schema.get("required", ())}
        for body in (
            b"",
            *(json.dumps({**usual, name: value}).encode() for name in schema["properties"] for value in WRONG_JSON),
        ):
            assert_in_words_of_json(*ask(target, method, filled(path, "words"), body))


def test_errors_about_parameters_are_in_the_words_of_http(target):
    for method, path, operation in operations(target):
        if method == "HEAD":
            continue
        assert_in_words_of_json(*ask(target, method, filled(path, "words")))
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "query":
                for text in WRONG_TEXTS:
                    asked = f"{filled(path, 'words')}?{parameter['name']}={encoded(text)}"
                    assert_in_words_of_json(*ask(target, method, asked))


def assert_in_words_of_json(status: int, body: bytes) -> None:
    if status == 400:
        detail = json.loads(body)["detail"]
        assert not FOREIGN_WORDS.search(detail), detail


def test_what_was_given_is_repeated_as_it_is(target):
    for value, said in (("'None'", "\"'None'\""), (["None", None, True], "['None', null, true]"), (None, "null")):
        body = json.dumps({"values": value}).encode()
        status, answer = ask(target, "PATCH", "/v1/namespaces/words/items", body)
        detail = json.loads(answer)["detail"]
        assert (status, detail) == (400, f"values is an object of keys and values, not {said}")


def test_a_method_that_a_path_does_not_take_is_told_those_that_it_takes(target):
    status, answer = ask(target, "POST", "/v1/namespaces/words/items/k")
    assert status == 405
    detail = "this path does not take POST; it takes DELETE, GET, HEAD, PATCH, PUT"
    assert json.loads(answer) == {"code": "method_not_allowed", "detail": detail}


USUAL = {"value": 1, "values": {"a": 1}, "items": [1], "keys": ["a"], "content": "text", "query": "text", "name": "n"}


@pytest.mark.parametrize("body", [*NOT_JSON, *ODD_JSON], ids=lambda body: ascii(body[:20]))
def test_a_body_that_is_not_a_json_object_is_refused_by_every_route(target, body):
    for method, path, operation in operations(target):
        if "requestBody" in operation:
            status, answer = ask(target, method, filled(path, "bodies"), body)
            assert_safe(status, answer)
            if body in NOT_JSON:
                assert status == 400, (method, path)


names = st.text(st.characters(codec=None), max_size=40) | st.sampled_from(HOSTILE)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | names,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)


@FUZZ
@given(data=st.data(), name=names, other=names)
def test_random_names_and_values_are_answered_safely(target, data, name, other):
    method, path, operation = data.draw(st.sampled_from(operations(target)))
    body = b""
    if "requestBody" in operation:
        body = json.dumps(data.draw(st.dictionaries(st.sampled_from(list(USUAL)), values)), default=str).encode()
    asked = f"{filled(path, name)}?{encoded(other)}={encoded(name)}"
    assert_safe(*ask(target, method, asked, body), method=method)


printable = st.binary(max_size=200).map(lambda raw: bytes(byte for byte in raw if byte >= 32 and byte != 127))


@FUZZ
@given(
    name=st.sampled_from(
        [b"If-Match", b"If-None-Match", b"Content-Type", b"Authorization", b"Origin", b"Expect", b"X"]
    ),
    value=printable
    | st.sampled_from([b"*", b'"1"', b'W/"1"', b"1, 2", b"Bearer", b"Bearer  ", b"100-continue", b"\xff"]),
    times=st.sampled_from([1, 2, 500]),
)
def test_random_headers_are_answered_safely(target, name, value, times):
    for method in ("GET", "PUT"):
        line = name + b": " + value + b"\r\n"
        assert_safe(*ask(target, method, "/v1/namespaces/headers/items/k", b'{"value":1}', line * times))


@FUZZ
@given(
    noise=st.binary(max_size=400), start=st.sampled_from([b"", b"GET / HTTP/1.1\r\n", b"POST /v1/", b"\x16\x03\x01"])
)
def test_random_bytes_are_answered_with_400_or_nothing(target, noise, start):
    status, body = send(target, start + noise + b"\r\n\r\n", hang_up=True)
    assert 0 <= status < 500
    assert not INTERNALS.search(body.decode())
    assert ask(target, "GET", "/health")[0] == 200
