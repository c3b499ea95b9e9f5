"""The routes for notes over plain HTTP; their behaviour is tested through the client."""

from __future__ import annotations

import pytest
import requests

from harness import fresh_name, serving


@pytest.fixture
def call(server):
    base = f"{server.url}/v1/namespaces/{fresh_name()}"

    def call(method: str, path: str, body=None):
        return requests.request(method, base + path, json=body, timeout=60)

    return call


def test_the_server_formats_a_context(call):
    assert call("POST", "/notes/context", {"query": "Oslo"}).json() == {"context": ""}
    call("POST", "/notes", {"content": "Caroline moved to Oslo", "type": "fact"})
    context = call("POST", "/notes/context", {"query": "Oslo", "max_tokens": 100, "limit": 1}).json()["context"]
    assert context.endswith("] Caroline moved to Oslo")
    assert call("POST", "/notes/context", {"query": "Oslo", "max_tokens": 3}).json() == {"context": ""}


def test_clearing_notes_keeps_values_and_clearing_all_does_not(call):
    call("PUT", "/items/key", {"value": 1})
    call("POST", "/notes", {"content": "x"})
    assert call("DELETE", "/notes").json() == {"deleted": 1}
    assert call("GET", "/items/key").status_code == 200
    call("POST", "/notes", {"content": "x"})
    assert call("DELETE", "").json() == {"deleted": 2}
    assert call("GET", "/items/key").status_code == 404


def test_forgetting_a_missing_note_is_404(call):
    answer = call("DELETE", "/notes/17")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.json()["detail"].endswith("; GET /v1/namespaces/{namespace}/notes lists the ids")


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/notes", {"text": "x"}, "content"),
        ("/notes", {"content": "x", "tag": "y"}, "'tag'"),
        ("/notes", {"content": None}, "text"),
        ("/notes/recall", {"q": "x"}, "query"),
        ("/notes/recall", {"query": "x", "limit": 1001}, "limit"),
        ("/notes/context", {"query": "x", "max_tokens": "many"}, "max_tokens"),
    ],
)
def test_an_invalid_body_is_refused_with_a_reason(call, path, body, named):
    answer = call("POST", path, body)
    assert answer.status_code == 400
    assert named in answer.json()["detail"]


def test_remembering_returns_the_remaining_quota(tmp_path):
    with serving(tmp_path / "scrubjay.db", "--writes-per-day", "2", "--max-bytes", "1000") as server:
        url = f"{server.url}/v1/namespaces/ns/notes"
        first = requests.post(url, json={"content": "x" * 96}, timeout=60)
        assert (first.headers["RateLimit-Remaining"], first.headers["Storage-Remaining"]) == ("1", "900")
        assert requests.post(url, json={"content": "y" * 1000}, timeout=60).status_code == 507
        requests.post(url, json={"content": "z"}, timeout=60)
        refused = requests.post(url, json={"content": "more"}, timeout=60)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) > 0


def test_every_route_is_in_the_openapi_document(server):
    paths = requests.get(f"{server.url}/openapi.json", timeout=60).json()["paths"]
    note_routes = {path: set(methods) for path, methods in paths.items() if "/notes" in path}
    root = "/v1/namespaces/{namespace}/notes"
    assert note_routes == {
        root: {"get", "post", "delete"},
        f"{root}/recall": {"post"},
        f"{root}/context": {"post"},
        f"{root}/{{key}}": {"delete"},
    }
