"""The fast paths give the same responses as FastAPI's router does for the same requests."""

from __future__ import annotations

import socket

import pytest
import requests
from starlette.testclient import TestClient

import scrubjay_server
from scrubjay.settings import server_settings

ITEM = "/v1/namespaces/ns/items/k"
REQUESTS = [
    ("PUT", ITEM, {}, b'{"value": {"a": [1, 2.50, 12345678901234567890123]}}'),
    ("GET", ITEM, {}, b""),
    ("GET", ITEM, {"If-None-Match": '"1"'}, b""),
    ("GET", f"{ITEM}/missing", {}, b""),
    ("GET", "/v1/namespaces/ns/items/a%2Fb", {}, b""),
    ("GET", "/v1/namespaces/n%2Fs/items/k", {}, b""),
    ("GET", "/v1/namespaces/n%0As/items/k", {}, b""),
    ("GET", f"{ITEM}{'x' * 600}", {}, b""),
    ("GET", "/v1/namespaces/ns/items/%FF", {}, b""),
    ("GET", "/v1/namespaces/ns/items/a%2Fb", {"Scrubjay-Path": "/v1/namespaces/ns/items/a%2fb"}, b""),
    ("GET", ITEM, {"Scrubjay-Path": "/v1/namespaces/other/items/..%2F..%2Fns%2Fitems%2Fk"}, b""),
    ("PUT", ITEM, {"Scrubjay-Path": "/v1/namespaces/other/items/..%2F..%2Fns%2Fitems%2Fk"}, b'{"value": 1}'),
    ("PUT", ITEM, {"If-Match": '"7"'}, b'{"value": 1}'),
    ("PUT", ITEM, {"If-Match": "seven"}, b'{"value": 1}'),
    ("PUT", ITEM, {"If-Match": "*", "If-None-Match": "*"}, b'{"value": 1}'),
    ("PUT", ITEM, {"If-Unmodified-Since": "Thu, 01 Jan 2026 00:00:00 GMT"}, b'{"value": 1}'),
    ("PUT", ITEM, {"Idempotency-Key": "a b"}, b'{"value": 1}'),
    ("PUT", ITEM, {"Idempotency-Key": "id;seq=1"}, b'{"value": 1}'),
    ("PUT", ITEM, {"Idempotency-Key": "id;seq=1"}, b'{"value": 1}'),
    ("PUT", ITEM, {}, b'{"value": 1, "valeu": 2}'),
    ("PUT", ITEM, {}, b'{"value": 1, "value": 2}'),
    ("PUT", ITEM, {}, b'{"value": "\\ud800"}'),
    ("PUT", ITEM, {}, b'{"value": 1, "ttl": -1}'),
    ("PUT", ITEM, {}, b"[]"),
    ("PUT", ITEM, {"Host": "evil.example"}, b'{"value": 1}'),
    ("GET", ITEM, {"X-Forwarded-For": "10.1.2.3"}, b""),
    ("POST", "/v1/namespaces/ns/lists/l", {}, b'{"items": [1, "two"]}'),
    ("POST", "/v1/namespaces/ns/lists/l", {}, b'{"items": "two"}'),
    ("POST", "/v1/namespaces/ns/lists/l", {"Idempotency-Key": "x"}, b'{"items": [3], "once": "y"}'),
    ("POST", "/v1/namespaces/ns/lists/k", {}, b'{"items": [3]}'),
    ("POST", "/v1/namespaces/ns/lists/l", {"If-Match": '"1"'}, b'{"items": [3]}'),
    ("PUT", "/memory/ns/b", {"If-Match": '"7"'}, b'{"value": "[1]"}'),
    ("GET", "/v1/namespaces/ns/lists/l?tail=2", {}, b""),
    ("GET", "/v1/namespaces/ns/lists/l", {}, b""),
    ("GET", "/v1/namespaces/ns/lists/l?tail=-1", {}, b""),
    ("GET", "/v1/namespaces/ns/lists/l?tial=1", {}, b""),
    ("GET", f"{ITEM}?version=1", {}, b""),
    ("PUT", f"{ITEM}?ttl=1", {}, b'{"value": 1}'),
    ("PUT", "/memory/ns/b?c=d%20e", {}, b'{"value": "[1]", "ttl_seconds": 60}'),
    ("GET", "/memory/ns/b?c=d%20e", {}, b""),
    ("GET", "/memory/ns/b", {}, b""),
]


def responses(path, monkeypatch, *, fast: bool) -> list[tuple]:
    if not fast:
        monkeypatch.setattr(scrubjay_server, "find_fast_path", lambda _scope: None)
    app = scrubjay_server.create_app(server_settings(path=str(path), durability="fast"))
    with TestClient(app, base_url="http://localhost", client=("127.0.0.1", 50_000)) as client:
        return [seen(client.request(method, url, headers=h, content=body)) for method, url, h, body in REQUESTS]


def seen(response) -> tuple:
    """Everything but times."""
    headers = {name: value for name, value in response.headers.items() if name != "ratelimit-reset"}
    text = response.text
    if response.status_code == 200 and '"created_at"' in text:
        text = text.partition(',"created_at"')[0]
    return str(response.request.url), response.status_code, headers, text


def test_fast_paths_answer_like_the_router(tmp_path, monkeypatch):
    fast = responses(tmp_path / "fast.db", monkeypatch, fast=True)
    assert fast == responses(tmp_path / "router.db", monkeypatch, fast=False)
    assert [status for _, status, *_ in fast[:3]] == [200, 200, 304]


@pytest.mark.parametrize("url", ["/v1/namespaces/ns/items/", "/v1/namespaces//items/k", "/memory/ns/", "/memory//k"])
def test_a_path_without_a_name_has_no_fast_path(url):
    assert scrubjay_server.find_fast_path({"path": url, "method": "GET"}) is None


CHANGED = {"Scrubjay-Path": "/v1/namespaces/other/items/..%2F..%2Fns"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ITEM),
        ("HEAD", ITEM),
        ("PUT", ITEM),
        ("DELETE", "/v1/namespaces/ns"),
        ("POST", "/v1/namespaces/ns/erase"),
        ("POST", "/v1/namespaces/ns/import"),
        ("GET", "/v1/namespaces/ns/export"),
        ("GET", "/v1/backup"),
        ("GET", "/v1/no/such/path"),
        ("PUT", "/memory/ns/k"),
        ("GET", "/health"),
    ],
)
def test_a_request_whose_path_was_changed_on_its_way_is_refused_on_every_route(server, method, path):
    requests.put(f"{server.url}{ITEM}", json={"value": "kept"}, timeout=60).raise_for_status()
    refused = requests.request(method, f"{server.url}{path}", headers=CHANGED, json={"value": 1}, timeout=60)
    assert refused.status_code == 400
    assert method == "HEAD" or "proxy_pass" in refused.json()["detail"]
    assert requests.get(f"{server.url}{ITEM}", timeout=60).json()["value"] == "kept"


def test_requests_in_one_piece_are_answered_in_their_order(server):
    """A read that need not wait is answered without a task; behind a write, or after one, it still has its turn."""
    item = "/v1/namespaces/pipeline/items"
    expected = []
    pieces = []
    for number in range(300):
        body = b'{"value": %d}' % number
        if number % 100 == 50:
            pieces.append(b"PUT %b/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (
                item.encode(), len(body), body))  # fmt: skip
            expected.append(f'{{"version":{number // 100 + 1}}}')
        pieces.append(b"GET %b/k HTTP/1.1\r\nHost: localhost\r\n\r\n" % item.encode())
        expected.append(f'"value":{(number - 50) // 100 * 100 + 50},' if number >= 50 else '"code":"not_found"')
    pieces.append(b"GET %b/k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % item.encode())
    expected.append('"value":250,')
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"".join(pieces))
        with connection.makefile("rb") as responses_:
            received = responses_.read().decode()
    found = received.split("HTTP/1.1 ")[1:]
    assert len(found) == len(expected)
    for response, part in zip(found, expected, strict=True):
        assert part in response.replace(": ", ":"), response


def test_a_read_that_has_to_wait_is_answered_by_a_task(server):
    """The rows of a list are read in a thread."""
    url = f"{server.url}/v1/namespaces/waiting"
    requests.post(f"{url}/lists/l", json={"items": list(range(300))}, timeout=60).raise_for_status()
    assert requests.get(f"{url}/items/l", timeout=60).json()["value"] == list(range(300))
    assert requests.get(f"{url}/lists/l?tail=200", timeout=60).json()["items"] == list(range(100, 300))


def test_a_request_for_another_protocol_is_answered_and_its_connection_closed(server):
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    answer = requests.get(f"{server.url}/v1/namespaces/ns/items/missing", headers=upgrade, timeout=60)
    assert (answer.status_code, answer.headers["Connection"]) == (404, "close")
