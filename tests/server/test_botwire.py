"""BotWire's own package from PyPI, unmodified, against this server."""

from __future__ import annotations

import botwire
import botwire.memory
import httpx
import pytest
import requests
from botwire import BotWireChatHistory
from langchain_core.messages import AIMessage, HumanMessage

from harness import fresh_name
from scrubjay import Memory


@pytest.fixture
def theirs(server) -> botwire.Memory:
    memory = botwire.Memory(fresh_name("botwire"), base_url=server.url)
    yield memory
    memory._client.close()  # it has no close() of its own


def test_values_come_back_as_botwire_returns_them(theirs):
    theirs.set("name", "Pedro")
    theirs.set("profile", {"likes": ["tea"], "age": 42})
    theirs.set("list", [1, {"a": None}])
    assert theirs.get("name") == "Pedro"
    assert theirs.get("profile") == {"likes": ["tea"], "age": 42}
    assert theirs.get("list") == [1, {"a": None}]
    assert theirs.get("nope") is None
    assert theirs.get("nope", 5) == 5
    assert "name" in theirs
    assert "nope" not in theirs
    assert theirs.delete("name") is True
    assert theirs.delete("name") is False


def test_text_that_is_almost_json_stays_text(theirs):
    for text in ("[not json", "{", "{'a': 1}", "", "null and void"):
        theirs.set("k", text)
        assert theirs.get("k") == text


def test_setting_none_deletes_as_botwire_documents(theirs):
    theirs.set("k", "x")
    theirs.set("k", None)
    assert theirs.get("k") is None
    assert theirs.keys() == []


def test_keys_returns_all_keys_as_strings(theirs, server):
    Memory(theirs.namespace, url=server.url).update({f"k{i:05}": i for i in range(10_500)})
    assert theirs.keys() == [f"k{i:05}" for i in range(10_500)]


def test_a_question_mark_is_part_of_the_key(theirs):
    theirs.set("a", "plain")
    theirs.set("a?b", "question")
    theirs.set("who/what is it? a/b&c=d", "both")
    assert theirs.get("a") == "plain"
    assert theirs.get("a?b") == "question"
    assert theirs.keys() == ["a", "a?b", "who/what is it? a/b&c=d"]


def test_botwire_and_scrubjay_share_a_namespace(theirs, server):
    with Memory(theirs.namespace, url=server.url) as ours:
        theirs.set("history", [{"role": "user"}])
        assert ours.get("history") == [{"role": "user"}]
        ours.append("history", {"role": "assistant"})
        assert theirs.get("history") == [{"role": "user"}, {"role": "assistant"}]
        ours.set("n", 42)
        assert theirs.get("n") == 42


def test_botwires_langchain_history_holds_two_thousand_messages(server, monkeypatch):
    # BOTWIRE_URL is read when its package is imported, and becomes this default.
    monkeypatch.setattr(botwire.memory.Memory.__init__, "__defaults__", (server.url, 10.0))
    history = BotWireChatHistory(session_id=fresh_name("session"), namespace=fresh_name("langchain"))
    # BotWire rewrites the whole list for each message, so most are stored in one write and the last by its history.
    text = "What was said, at about the length that people say it. "
    first = [HumanMessage(f"{i} {text}") if i % 2 else AIMessage(f"{i} {text}") for i in range(1980)]
    history._mem.set(history.session_id, botwire.memory.messages_to_dict(first))
    for i in range(1980, 2000):
        history.add_message(HumanMessage(f"{i} {text}") if i % 2 else AIMessage(f"{i} {text}"))
    again = BotWireChatHistory(session_id=history.session_id, namespace=history._mem.namespace)
    messages = again.messages
    assert [message.content for message in messages] == [f"{i} {text}" for i in range(2000)]
    assert [message.type for message in messages[:2]] == ["ai", "human"]
    history.clear()
    assert history.messages == []
    history._mem._client.close()
    again._mem._client.close()


def test_botwire_sends_an_api_key_that_is_in_the_url(guarded):
    theirs = botwire.Memory(fresh_name("botwire"), base_url=guarded.url.replace("://", f"://{guarded.apikey}@"))
    theirs.set("name", "Pedro")
    assert theirs.get("name") == "Pedro"
    assert theirs.keys() == ["name"]
    assert theirs.delete("name")
    assert theirs.get("name") is None
    theirs._client.close()
    without = botwire.Memory(theirs.namespace, base_url=guarded.url)
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        without.get("name")
    without._client.close()


def test_both_names_of_ttl_are_accepted(server):
    key = f"{server.url}/memory/{fresh_name()}/k"
    for field in ("ttl", "ttl_seconds"):
        requests.put(key, json={"value": "v", field: 60}, timeout=60)
        assert requests.get(key, timeout=60).json()["expires_at"] is not None


def test_errors_of_botwires_api_have_scrubjays_form(server):
    answer = requests.put(f"{server.url}/memory/ns/k", json={"vlaue": 1}, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input")
    assert requests.get(f"{server.url}/memory/ns/nope", timeout=60).json()["code"] == "not_found"
