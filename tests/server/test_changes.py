"""Changes over HTTP: the stream of events, and who may read what of the log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import threading
import time

import pytest
import requests

from harness import serving
from scrubjay import Memory
from scrubjay.store import apikeys, changes, items
from scrubjay.store.aio import AioStore
from scrubjay.store.sqlite import SqliteStore
from scrubjay_server import Watchers

EVENTS = {"Accept": "text/event-stream"}


def issue(server, name: str, pattern: str = "*", *, admin: bool = False) -> str:
    store = SqliteStore(server.path)
    identity, secret = apikeys.make()
    store.run(apikeys.issue(identity, secret, name, (pattern,), False, admin))
    store.close()
    return secret


def events(answer: requests.Response, count: int) -> list[dict[str, str]]:
    """The first events that carry data, each with its id."""
    found, event = [], {}
    for line in answer.iter_lines(chunk_size=1, decode_unicode=True):
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
            continue
        if "data" in event:
            found.append(event)
        event = {}
        if len(found) == count:
            break
    answer.close()
    return found


@pytest.fixture
def own(tmp_path):
    with serving(tmp_path / "db", "--writes-per-day", "0") as server:
        yield server


def url(server, namespace: str = "ns") -> str:
    return f"{server.url}/v1/namespaces/{namespace}/changes"


def test_changes_stream_as_events_and_go_on_from_the_last_id(own):
    with Memory("ns", url=own.url) as memory:
        stream = requests.get(url(own), headers=EVENTS, stream=True, timeout=20)
        assert stream.headers["content-type"].startswith("text/event-stream")
        memory.set("a", 1)
        memory.set("b", 2)
        first, second = events(stream, 2)
        assert json.loads(first["data"])["key"] == "a"
        assert first["id"] == str(json.loads(first["data"])["id"])
        memory.set("c", 3)
        for resumed in ({"headers": {**EVENTS, "Last-Event-ID": second["id"]}}, {"params": {"after": second["id"]}}):
            (third,) = events(requests.get(url(own), stream=True, timeout=20, **resumed), 1)
            assert json.loads(third["data"])["key"] == "c"


def test_json_waits_for_a_change_as_long_as_asked(own):
    asked = {"headers": {"Accept": "application/json"}, "timeout": 30}
    present = requests.get(url(own), **asked).json()
    assert present == {"changes": [], "cursor": 0}
    with Memory("ns", url=own.url) as memory:
        timer = threading.Timer(0.3, memory.set, ("k", 1))
        timer.start()
        answer = requests.get(url(own), params={"after": 0, "wait": 20}, **asked).json()
        timer.join()
    assert [change["key"] for change in answer["changes"]] == ["k"]
    assert answer["cursor"] == 1


@pytest.mark.parametrize("query", ["after=x", "after=-1", "wait=61", "wait=nan", "wait=x", "after=99"])
def test_a_wrong_question_gets_its_cause(own, query):
    answer = requests.get(f"{url(own)}?{query}", timeout=20)
    assert answer.status_code in (400, 409)
    assert answer.json()["detail"]


@pytest.mark.parametrize("last", ["junk", "-1", "", "1.0", "9" * 16, "9" * 400, "\xb2"])
def test_a_last_event_id_that_is_no_cursor_is_refused(own, last):
    for accepts in (EVENTS, {"Accept": "application/json"}):
        headers = {**accepts, "Last-Event-ID": last.encode("latin-1")}
        answer = requests.get(url(own), headers=headers, stream=True, timeout=20)
        assert answer.status_code == 400
        assert answer.json()["code"] == "invalid_input"
        assert answer.json()["detail"].startswith("Last-Event-ID is ")


def test_the_document_tells_of_the_last_event_id(own):
    document = requests.get(f"{own.url}/openapi.json", timeout=20).json()
    operation = document["paths"]["/v1/namespaces/{namespace}/changes"]["get"]
    (told,) = [given for given in operation["parameters"] if given["in"] == "header"]
    assert (told["name"], told["schema"]["minimum"]) == ("Last-Event-ID", 0)
    assert "watches at once" in operation["responses"]["429"]["description"]


def test_a_stream_does_not_keep_the_server_from_stopping(own):
    stream = requests.get(url(own), headers=EVENTS, stream=True, timeout=30)
    own.process.send_signal(signal.SIGTERM)
    _, said = own.process.communicate(timeout=30)
    assert said == "", "it waited for the stream until it lost patience"
    stream.close()


def test_a_key_watches_only_its_own_and_only_while_it_is_valid(own):
    key = issue(own, "bot", "mine-*")
    asked = {"headers": {"X-API-Key": key, **EVENTS}, "stream": True, "timeout": 30}
    hidden = requests.get(url(own, "theirs"), **asked)
    stream = requests.get(url(own, "mine-1"), **asked)
    admin = issue(own, "boss", admin=True)
    with Memory("theirs", url=own.url, api_key=admin) as theirs, Memory("mine-1", url=own.url, api_key=key) as mine:
        theirs.set("secret", 1)
        mine.set("k", 1)
        (seen,) = events(stream, 1)
        assert json.loads(seen["data"])["who"] == "bot"
        store = SqliteStore(own.path)
        (made,) = [made for made in store.run(apikeys.list_all()) if made.name == "bot"]
        store.run(apikeys.revoke(made.id))
        store.close()
        theirs.set("more", 1)
    assert "data" not in hidden.text, "the stream ends by itself once its key is revoked"


def test_whoever_watches_is_woken_by_the_own_namespace_alone(tmp_path):
    async def watch() -> None:
        async with AioStore(SqliteStore(tmp_path / "db", durability="fast")) as store:
            watchers = Watchers(store)
            mine, theirs = (asyncio.ensure_future(watchers.wait(name, 0, 60)) for name in ("mine", "theirs"))
            await asyncio.sleep(0)
            await store.run(items.set_item("theirs", "k", "1"))
            await theirs
            assert not mine.done()
            await watchers.wait("theirs", 0, 60)  # at once: it has changed since
            await store.run(items.set_item("mine", "k", "1"))
            await mine

    asyncio.run(watch())


def test_a_stream_whose_cursor_is_gone_ends_and_the_next_says_why(own):
    with Memory("ns", url=own.url) as memory:
        memory.set("k", 1)
        memory.set("k", 2)
    stream = requests.get(url(own), headers=EVENTS, stream=True, timeout=30)
    with contextlib.closing(sqlite3.connect(own.path)) as file:  # as an older backup has it
        file.execute("DELETE FROM changes WHERE id = 2")
        file.commit()
    assert "id: 2" in stream.text, "it came to an end, and did not break off"
    answer = requests.get(url(own), headers={**EVENTS, "Last-Event-ID": "2"}, timeout=30)
    assert answer.status_code == 409
    assert "read anew" in answer.json()["detail"]


def test_the_audit_tells_who_did_what_and_who_was_refused(own):
    key = issue(own, "bot", "mine")
    admin = issue(own, "boss", admin=True)
    headers = {"X-API-Key": key}
    requests.put(f"{own.url}/v1/namespaces/mine/items/k", json={"value": 1}, headers=headers, timeout=20)
    requests.put(f"{own.url}/v1/namespaces/theirs/items/k", json={"value": 1}, headers=headers, timeout=20)
    requests.put(f"{own.url}/v1/namespaces/mine/items/k", json={"valu": 1}, headers=headers, timeout=20)
    requests.get(f"{own.url}/v1/namespaces/mine/items/k", headers={"X-API-Key": "guess"}, timeout=20)
    assert requests.get(f"{own.url}/v1/audit", headers=headers, timeout=20).status_code == 403
    time.sleep(1.5)  # refusals are written down once a second
    answer = requests.get(f"{own.url}/v1/audit", headers={"X-API-Key": admin}, timeout=20).json()
    told = [
        (change["who"], change["verb"], change["namespace"], change["refusal"])
        for change in answer["changes"]
        if change["verb"] != "issue"
    ]
    assert told == [
        ("bot", "set", "mine", None),
        ("bot", "set", "theirs", "forbidden"),
        ("bot", "set", "mine", "invalid_input"),
        ("bot", "read", "", "forbidden"),
        ("nobody at 127.0.0.1", "get", "mine", "unauthenticated"),
    ]
    one = requests.get(
        f"{own.url}/v1/audit", params={"namespace": "theirs"}, headers={"X-API-Key": admin}, timeout=20
    ).json()
    assert [change["refusal"] for change in one["changes"]] == ["forbidden"]


def test_the_audit_tells_who_erased(own):
    with Memory("ns", url=own.url) as memory:
        memory.set("k", 1)
    headers = {"X-API-Key": issue(own, "boss", admin=True)}
    requests.post(f"{own.url}/v1/namespaces/ns/erase", headers=headers, timeout=20).raise_for_status()
    answer = requests.get(f"{own.url}/v1/audit", headers=headers, timeout=20).json()
    assert [(change["who"], change["verb"]) for change in answer["changes"]] == [("local", "issue"), ("boss", "erase")]


def test_a_storm_of_refusals_is_counted_and_not_kept(own):
    issue(own, "bot")
    with requests.Session() as session:
        for _ in range(1200):
            session.get(f"{own.url}/v1/namespaces/ns/items/k", timeout=20)
    own.stop()
    store = SqliteStore(own.path)
    found = store.run(changes.read_audit(None, 0, 0, 10_000))
    store.close()
    told = [change for change in found if change.refusal]
    counted = sum(int(change.key.split()[0]) for change in told if change.verb == "other")
    assert sum(change.verb == "get" for change in told) + counted == 1200
