"""Changes over HTTP: the event stream, long polling and the audit."""

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

from harness import eventually, fresh_name, serving
from scrubjay import Memory
from scrubjay.models import Change
from scrubjay.store import api_keys, changes, items
from scrubjay.store.sqlite import SqliteStore
from scrubjay.store.sqlite.asyncio import AsyncStore
from scrubjay_watch import MAX_REFUSALS, Watchers

EVENTS = {"Accept": "text/event-stream"}


def issue(server, name: str, pattern: str = "*", *, admin: bool = False) -> str:
    store = SqliteStore(server.path)
    issued = store.run(api_keys.issue(name, (pattern,), False, admin))
    store.close()
    return issued.secret


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


def audit(server, key: str | None = None) -> dict:
    """The first page of the audit."""
    return requests.get(f"{server.url}/v1/audit", headers={"X-API-Key": key}, timeout=60).json()


def refusals(audit: dict) -> list[dict]:
    """The refusals in a page of the audit; the server writes them once a second."""
    return [change for change in audit["changes"] if change["refusal"]]


def test_changes_stream_as_events_and_resume_from_the_last_id(own):
    with Memory("ns", url=own.url) as memory:
        stream = requests.get(url(own), headers=EVENTS, stream=True, timeout=60)
        assert stream.headers["content-type"].startswith("text/event-stream")
        memory.set("a", 1)
        memory.set("b", 2)
        first, second = events(stream, 2)
        assert json.loads(first["data"])["key"] == "a"
        assert first["id"] == str(json.loads(first["data"])["id"])
        memory.set("c", 3)
        for resumed in ({"headers": {**EVENTS, "Last-Event-ID": second["id"]}}, {"params": {"after": second["id"]}}):
            (third,) = events(requests.get(url(own), stream=True, timeout=60, **resumed), 1)
            assert json.loads(third["data"])["key"] == "c"


def test_json_waits_for_a_change_for_the_requested_time(own):
    asked = {"headers": {"Accept": "application/json"}, "timeout": 30}
    present = requests.get(url(own), **asked).json()
    assert present == {"changes": [], "cursor": 0}
    with Memory("ns", url=own.url) as memory:
        timer = threading.Timer(0.3, memory.set, ("k", 1))
        timer.start()
        answer = requests.get(url(own), params={"after": 0, "wait": 60}, **asked).json()
        timer.join()
    assert [change["key"] for change in answer["changes"]] == ["k"]
    assert answer["cursor"] == 1


@pytest.mark.parametrize("query", ["after=x", "after=-1", "wait=61", "wait=nan", "wait=x", "after=99999999999"])
def test_an_invalid_query_is_refused_with_a_reason(server, query):
    answer = requests.get(f"{url(server, fresh_name())}?{query}", timeout=60)
    assert answer.status_code in (400, 409)
    assert answer.json()["detail"]


@pytest.mark.parametrize("last", ["junk", "-1", "", "1.0", "9" * 16, "9" * 400, "\xb2"])
def test_an_invalid_last_event_id_is_refused(server, last):
    for accepts in (EVENTS, {"Accept": "application/json"}):
        headers = {**accepts, "Last-Event-ID": last.encode("latin-1")}
        answer = requests.get(url(server, fresh_name()), headers=headers, stream=True, timeout=60)
        assert answer.status_code == 400
        assert answer.json()["code"] == "invalid_input"
        assert answer.json()["detail"].startswith("Last-Event-ID is ")


def test_the_openapi_document_has_the_last_event_id(server):
    document = requests.get(f"{server.url}/openapi.json", timeout=60).json()
    operation = document["paths"]["/v1/namespaces/{namespace}/changes"]["get"]
    (parameter,) = [given for given in operation["parameters"] if given["in"] == "header"]
    assert (parameter["name"], parameter["schema"]["minimum"]) == ("Last-Event-ID", 0)
    assert "open watches" in operation["responses"]["429"]["description"]


def test_an_open_stream_does_not_delay_shutdown(own):
    stream = requests.get(url(own), headers=EVENTS, stream=True, timeout=60)
    own.process.send_signal(signal.SIGTERM)
    _, said = own.process.communicate(timeout=30)
    assert said == "", "it waited for the stream until its timeout"
    stream.close()


def test_a_key_watches_only_its_namespaces_and_only_until_it_is_revoked(own):
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
        (made,) = [made for made in store.run(api_keys.list_all()) if made.name == "bot"]
        store.run(api_keys.revoke(made.id))
        store.close()
        theirs.set("more", 1)
    assert "data" not in hidden.text, "the stream ends by itself once its key is revoked"


def test_a_watcher_is_woken_only_by_its_own_namespace(tmp_path):
    async def watch() -> None:
        async with AsyncStore(SqliteStore(tmp_path / "db", durability="fast")) as store:
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


def test_idle_watchers_share_one_look_at_the_log(tmp_path, monkeypatch):
    async def watch(count: int) -> tuple[int, int]:
        async with AsyncStore(SqliteStore(tmp_path / "db", durability="fast")) as store:
            await store.run(items.set_item("ns", "k", "1"))
            looks, polls = [], []
            run_now = store.run_now
            monkeypatch.setattr(store, "run_now", lambda operation: (looks.append(operation), run_now(operation))[1])
            watchers = Watchers(store)
            waiting = [asyncio.ensure_future(watchers.wait(f"idle-{n}", watchers._last(), 60)) for n in range(count)]
            await asyncio.sleep(0)
            looks.clear()
            last = watchers._last
            monkeypatch.setattr(watchers, "_last", lambda: (polls.append(1), last())[1])
            while len(polls) < 5:  # noqa: ASYNC110 - it counts what another task does
                await asyncio.sleep(0.01)
            result = len(looks), len(polls)
            watchers.close()
            await asyncio.gather(*waiting)
            return result

    for count in (1, 300):
        looks, polls = asyncio.run(watch(count))
        assert looks == polls, "one short query at each interval, however many watch"


def test_a_stream_whose_cursor_is_gone_ends_and_the_next_request_gets_the_reason(own):
    with Memory("ns", url=own.url) as memory:
        memory.set("k", 1)
        memory.set("k", 2)
    stream = requests.get(url(own), headers=EVENTS, stream=True, timeout=60)
    with contextlib.closing(sqlite3.connect(own.path)) as file:  # as an older backup has it
        file.execute("DELETE FROM changes WHERE id = 2")
        file.commit()
    assert "id: 2" in stream.text, "the stream ended and was not cut off"
    answer = requests.get(url(own), headers={**EVENTS, "Last-Event-ID": "2"}, timeout=60)
    assert answer.status_code == 409
    assert "read the values again" in answer.json()["detail"]


def test_the_audit_has_changes_and_refusals_with_their_api_key(own):
    key = issue(own, "bot", "mine")
    admin = issue(own, "boss", admin=True)
    headers = {"X-API-Key": key}
    requests.put(f"{own.url}/v1/namespaces/mine/items/k", json={"value": 1}, headers=headers, timeout=60)
    requests.put(f"{own.url}/v1/namespaces/theirs/items/k", json={"value": 1}, headers=headers, timeout=60)
    requests.put(f"{own.url}/v1/namespaces/mine/items/k", json={"valu": 1}, headers=headers, timeout=60)
    requests.get(f"{own.url}/v1/namespaces/mine/items/k", headers={"X-API-Key": "guess"}, timeout=60)
    assert requests.get(f"{own.url}/v1/audit", headers=headers, timeout=60).status_code == 403
    eventually(lambda: len(refusals(audit(own, admin))) == 4)
    answer = audit(own, admin)
    logged = [
        (change["who"], change["verb"], change["namespace"], change["refusal"])
        for change in answer["changes"]
        if change["verb"] != "issue_key"
    ]
    assert logged == [
        ("bot", "set", "mine", None),
        ("bot", "set", "theirs", "forbidden"),
        ("bot", "set", "mine", "invalid_input"),
        ("bot", "audit", "", "forbidden"),
        ("nobody at 127.0.0.1", "get", "mine", "unauthenticated"),
    ]
    one = requests.get(
        f"{own.url}/v1/audit", params={"namespace": "theirs"}, headers={"X-API-Key": admin}, timeout=60
    ).json()
    assert [change["refusal"] for change in one["changes"]] == ["forbidden"]


def test_the_audit_has_the_api_key_that_erased(own):
    with Memory("ns", url=own.url) as memory:
        memory.set("k", 1)
    headers = {"X-API-Key": issue(own, "boss", admin=True)}
    requests.post(f"{own.url}/v1/namespaces/ns/erase", headers=headers, timeout=60).raise_for_status()
    answer = requests.get(f"{own.url}/v1/audit", headers=headers, timeout=60).json()
    assert [(change["who"], change["verb"]) for change in answer["changes"]] == [
        ("local", "issue_key"),
        ("boss", "erase"),
    ]


def refusals_of(server) -> list[Change]:
    """The refusals that a stopped server has logged."""
    store = SqliteStore(server.path)
    found, _ = store.run(changes.read_audit(None, 0))
    store.close()
    return [change for change in found if change.refusal]


def test_equal_refusals_are_counted_in_one_row(own):
    issue(own, "bot")
    started = time.monotonic()
    with requests.Session() as session:
        for n in range(600):
            session.get(f"{own.url}/v1/namespaces/ns/items/k{n}", timeout=60)
    own.stop()
    rounds = time.monotonic() - started + 2  # one row a second, and what is written at the end
    logged = refusals_of(own)
    assert {(change.verb, change.namespace, change.refusal) for change in logged} == {("get", "ns", "unauthenticated")}
    assert sum(change.times for change in logged) == 600
    assert len(logged) <= rounds


def test_different_refusals_are_limited_and_counted(own):
    issue(own, "bot")
    started = time.monotonic()
    with requests.Session() as session:
        for n in range(600):
            session.get(f"{own.url}/v1/namespaces/ns{n}/items/k", timeout=60)
    own.stop()
    rounds = time.monotonic() - started + 2
    logged = refusals_of(own)
    assert sum(change.times for change in logged) == 600
    assert len(logged) <= rounds * (MAX_REFUSALS + 1)


def test_the_audit_is_read_in_pages(own):
    with Memory("ns", url=own.url) as memory:
        for n in range(3):
            memory.set("k", n)
            requests.put(f"{own.url}/v1/namespaces/ns/items/k", json={"valu": 1}, timeout=60)
            eventually(lambda: len(refusals(audit(own))) == n + 1)  # noqa: B023 - it is called here
    logged, cursor = [], "0"
    for _ in range(6):
        answer = requests.get(f"{own.url}/v1/audit", params={"after": cursor, "limit": 1}, timeout=60).json()
        logged += [change["refusal"] for change in answer["changes"]]
        cursor = answer["cursor"]
    assert logged == [None, "invalid_input"] * 3
    assert requests.get(f"{own.url}/v1/audit", params={"after": cursor}, timeout=60).json() == {
        "changes": [],
        "cursor": cursor,
    }
    for wrong in ("x", "-1", "1.", "1.2.3", "9" * 17):
        assert requests.get(f"{own.url}/v1/audit", params={"after": wrong}, timeout=60).status_code == 400


WRITES = [
    ("PUT", "/v1/namespaces/theirs/items/k", "set"),
    ("DELETE", "/v1/namespaces/theirs/items/k", "delete"),
    ("POST", "/v1/namespaces/theirs/lists/k", "append"),
    ("POST", "/v1/namespaces/theirs/counters/k", "incr"),
    ("PATCH", "/v1/namespaces/theirs/items", "update"),
    ("POST", "/v1/namespaces/theirs/notes", "remember"),
    ("PUT", "/memory/theirs/k", "set"),
    ("DELETE", "/memory/theirs/k", "delete"),
]


def test_a_refused_write_is_logged_under_its_verb_in_every_api(own):
    headers = {"X-API-Key": issue(own, "bot", "mine")}
    for method, path, _ in WRITES:
        assert requests.request(method, own.url + path, json={}, headers=headers, timeout=60).status_code == 403
    assert requests.put(f"{own.url}/memory/mine/k", json={}, headers=headers, timeout=60).status_code == 400
    own.stop()
    logged = {(change.verb, change.namespace, change.refusal): change.times for change in refusals_of(own)}
    verbs = [verb for *_, verb in WRITES]
    assert logged == {
        **{(verb, "theirs", "forbidden"): verbs.count(verb) for verb in verbs},
        ("set", "mine", "invalid_input"): 1,
    }
