"""Requests of Memstore's tutorial, with only the URL changed."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
import requests

from harness import fresh_name


class Client:
    """The calls of Memstore's tutorial."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.base = f"{url}/v1/memory"
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}

    def call(self, method: str, path: str, **options):
        return requests.request(method, f"{self.base}/{path}", headers=self.headers, timeout=60, **options)

    def remember(self, content, **fields):
        return self.call("POST", "remember", json={"content": content, **fields}).json()

    def recall(self, q, **params):
        return self.call("GET", "recall", params={"q": q, **params}).json()["memories"]

    def list(self, **params):
        return self.call("GET", "list", params=params).json()["memories"]


@pytest.fixture
def client(server):
    return Client(server.url, fresh_name("key"))


def contents(memories):
    return [memory["content"] for memory in memories]


def test_a_memory_is_recalled_listed_and_forgotten(client):
    made = client.remember(
        "Alice likes green tea", tags=["user:alice", "preference"], session="s", metadata={"a": 1}, ttl=3600
    )
    client.remember("Bob plays chess", tags=["user:bob"])
    (found,) = client.recall("green tea?", limit=5)
    assert {name: found[name] for name in ("id", "content", "tags", "session", "metadata")} == {
        "id": made["id"],
        "content": "Alice likes green tea",
        "tags": ["user:alice", "preference"],
        "session": "s",
        "metadata": {"a": 1},
    }
    assert 0 < found["score"] <= 1
    assert found["expires_at"]
    assert contents(client.list()) == ["Alice likes green tea", "Bob plays chess"]
    assert client.call("DELETE", f"forget/{made['id']}").status_code == 200
    gone = client.call("DELETE", f"forget/{made['id']}")
    assert (gone.status_code, "list the memories to get their ids" in gone.text) == (404, True)
    assert contents(client.list()) == ["Bob plays chess"]


def test_recall_and_list_filter_by_tags_and_session(client):
    client.remember("likes tea", tags=["user:alice", "preference"], session="one")
    client.remember("likes tea too", tags=["user:bob", "preference"], session="two")
    assert contents(client.recall("likes", tags="user:alice,preference")) == ["likes tea"]
    assert contents(client.recall("likes", tags=["user:bob", "preference"])) == ["likes tea too"]
    assert contents(client.recall("likes", session="two")) == ["likes tea too"]
    assert len(client.recall("likes", top_k=1)) == 1
    assert client.recall("likes and other things nobody said", threshold=0.95) == []
    assert contents(client.list(session="one")) == ["likes tea"]
    assert contents(client.list(limit=1, offset=1)) == ["likes tea too"]


def test_two_keys_have_separate_memories(server):
    clients = [Client(server.url, fresh_name("key")), Client(server.url, fresh_name("key")), Client(server.url)]
    for number, client in enumerate(clients):
        client.remember(f"the secret of {number}")
    for number, client in enumerate(clients):
        assert f"the secret of {number}" in contents(client.recall("secret", limit=100))
        assert not {f"the secret of {other}" for other in range(3) if other != number} & set(contents(client.list()))


@pytest.mark.parametrize(
    ("path", "named"),
    [("recall", "query"), ("recall?q=x&limit=many", "limit"), ("recall?q=x&threshold=high", "threshold")],
)
def test_an_invalid_query_is_refused_with_a_reason(client, path, named):
    answer = client.call("GET", path)
    assert answer.status_code == 400
    assert named in answer.json()["detail"]


def test_a_memory_may_be_pinned_or_expire_after_days(client):
    assert client.remember("for ever", pinned=True, ttl=1)["expires_at"] is None
    kept = client.remember("for two days", ttl_days=2)
    lives = datetime.fromisoformat(kept["expires_at"]) - datetime.fromisoformat(kept["updated_at"])
    assert lives == timedelta(days=2)
    assert client.call("POST", "remember", json={"content": "x", "ttl": 1, "ttl_days": 1}).status_code == 400
