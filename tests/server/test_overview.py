"""Routes for people who look at a server: signing in, all namespaces with their usage, activity."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import pytest

import scrubjay_server
from harness import AsgiTransport
from scrubjay.settings import server_settings
from scrubjay.store import api_keys, sign_ins
from scrubjay.store.sqlite import SqliteStore

ORIGIN = {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}


class Service:
    """The service in this process, and its file."""

    def __init__(self, path):
        self.path = path
        self._transport = AsgiTransport(scrubjay_server.create_app(server_settings(path=str(path), durability="fast")))
        self.close = self._transport.close

    def send(self, method, path, body=None, **headers):
        data = b"" if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._transport.send(method, path, data, named)

    def json(self, path, **headers):
        response = self.send("GET", path, **headers)
        assert response.status == 200, response.data
        return json.loads(response.data)

    def put(self, namespace, key="k", value=1, **headers):
        assert self.send("PUT", f"/v1/namespaces/{namespace}/items/{key}", {"value": value}, **headers).status == 200

    def issue(self, name, *patterns, **options):
        store = SqliteStore(self.path)
        try:
            return store.run(api_keys.issue(name, patterns or ("*",), *options.values()))
        finally:
            store.close()


@pytest.fixture
def service(tmp_path):
    made = Service(tmp_path / "db")
    yield made
    made.close()


def names(found):
    return [each["namespace"] for each in found["namespaces"]]


# ------------------------------------------------------------ namespaces with their usage


def test_namespaces_are_searched_sorted_and_paged_by_the_server(service):
    for number in range(5):
        service.put(f"Agent-{number}", value="x" * number)
    service.put("other")
    service.send("POST", "/v1/namespaces/other/notes", {"content": "a note"})
    assert names(service.json("/v1/usage?search=aGENT&limit=2")) == ["Agent-0", "Agent-1"]
    assert names(service.json("/v1/usage?search=agent&limit=2&offset=4")) == ["Agent-4"]
    assert names(service.json("/v1/usage?namespace=Agent-3")) == ["Agent-3"]
    assert names(service.json("/v1/usage?sort=bytes&reverse=true&search=agent"))[0] == "Agent-4"
    assert names(service.json("/v1/usage?sort=changed&reverse=true"))[0] == "other"
    found = service.json("/v1/usage?search=other")
    assert found["totals"] == {"namespaces": 1, "keys": 1, "notes": 1, "bytes": found["namespaces"][0]["bytes"]}
    assert found["namespaces"][0]["writes_today"] == 2
    assert found["namespaces"][0]["changed_at"].startswith("20")
    assert service.send("GET", "/v1/usage?sort=colour").status == 400


def test_an_api_key_gets_only_the_namespaces_that_it_may_see(service):
    service.put("team-1")
    service.put("secret")
    key = service.issue("team", "team-*").secret
    found = service.json("/v1/usage", Authorization=f"Bearer {key}")
    assert (names(found), found["totals"]["namespaces"]) == (["team-1"], 1)
    assert service.send("GET", "/v1/activity", X_API_Key=key).status == 403


# ------------------------------------------------------------ activity


def test_activity_counts_requests_changes_and_refusals_and_names_the_latest(service):
    service.put("one", "a", "text")
    service.put("two", "b")
    service.send("POST", "/v1/namespaces/one/notes/recall", {"query": "what?"})
    found = service.json("/v1/activity?minutes=120&points=2")
    assert found["step"] == 60
    for name, expected in (("changes", 2), ("writes", 2), ("recalls", 1)):
        assert sum(point[name] for point in found["points"]) == expected
    for point in found["points"]:
        assert point["requests"] == point["reads"] + point["writes"] + point["recalls"]
        assert not point["recalls"] or 0 < point["recall_ms"] <= point["max_recall_ms"]
    assert [(each["verb"], each["namespace"]) for each in found["recent"]] == [("set", "two"), ("set", "one")]
    one = service.json("/v1/namespaces/one/activity")
    assert sum(point["changes"] for point in one["points"]) == 1
    assert [each["key"] for each in one["recent"]] == ["a"]
    assert service.send("GET", "/v1/activity?minutes=0").status == 400


def test_requests_are_counted_in_the_file_and_outlive_the_process(service, tmp_path):
    service.put("one")
    service.close()
    again = Service(tmp_path / "db")
    try:
        points = again.json("/v1/activity")["points"]
        assert sum(point["writes"] for point in points) == 1
    finally:
        again.close()


# ------------------------------------------------------------ signing in


def test_keys_are_found_by_a_part_in_whatever_case(service):
    for key in ("user:Bob", "bob", "bobby:2", "alice", "note:é"):
        service.put("ns", quote(key, safe=""))

    def found(query):
        return [each["key"] for each in service.json(f"/v1/namespaces/ns/entries?{query}")["entries"]]

    assert found("search=BOB") == ["bob", "bobby:2", "user:Bob"]
    assert found("search=bob&limit=2") == ["bob", "bobby:2"]
    assert found("search=bob&after=bobby:2") == ["user:Bob"]
    assert found("search=bob&prefix=u") == ["user:Bob"]
    assert found("search=%C3%89") == ["note:é"]
    assert found("search=zed") == []


def test_labels_of_notes_are_those_of_a_namespace_that_the_key_may_see(service):
    note = {"content": "Bob likes tea", "type": "fact", "tags": ["drinks"], "session": "bob"}
    assert service.send("POST", "/v1/namespaces/team/notes", note).status == 200
    key = service.issue("reader", "team").secret
    other = service.issue("other", "elsewhere").secret
    one = {"types": "fact", "tags": "drinks", "sessions": "bob"}
    found = service.json("/v1/namespaces/team/labels", X_API_Key=key)
    assert found == {name: [{"label": label, "notes": 1}] for name, label in one.items()}
    assert service.json("/v1/namespaces/team/labels", X_API_Key=other) == {name: [] for name in one}


@pytest.fixture
def signed_in(service):
    """A service with an admin key, and the cookie of a browser that has signed in with it."""
    service.apikey = service.issue("me", admin_last=False, admin=True).secret
    answer = service.send("POST", "/v1/sign-in", Authorization=f"Bearer {service.apikey}", **ORIGIN)
    assert answer.status == 204
    service.set_cookie = answer.headers["set-cookie"]
    service.cookie = service.set_cookie.split(";")[0]
    return service


def test_the_cookie_is_hidden_from_scripts_and_from_other_sites(signed_in):
    assert {"HttpOnly", "SameSite=Strict", "Path=/v1/", "Max-Age=28800"} <= set(signed_in.set_cookie.split("; "))
    assert signed_in.apikey not in signed_in.set_cookie
    secure = signed_in.send("POST", "/v1/sign-in", X_API_Key=signed_in.apikey, X_Forwarded_Proto="https")
    assert "Secure" in secure.headers["set-cookie"].split("; ")


def test_the_cookie_stands_for_the_api_key_until_signing_out(signed_in):
    assert signed_in.json("/v1/sign-in", Cookie=signed_in.cookie)["name"] == "me"
    signed_in.put("ns", Cookie=signed_in.cookie, **ORIGIN)
    change = signed_in.json("/v1/activity", Cookie=signed_in.cookie)["recent"][0]
    assert change["who"] == "me"
    out = signed_in.send("DELETE", "/v1/sign-in", Cookie=signed_in.cookie, **ORIGIN)
    assert (out.status, "Max-Age=0" in out.headers["set-cookie"]) == (204, True)
    assert signed_in.send("GET", "/v1/usage", Cookie=signed_in.cookie).status == 401


def test_asking_who_one_is_is_no_refusal_but_a_wrong_key_is(signed_in):
    for headers in ({}, {"Cookie": "scrubjay_sign_in=ended"}):
        nobody = signed_in.json("/v1/sign-in", **headers, **ORIGIN)
        assert (nobody["name"], nobody["needs_key"], nobody["admin"], nobody["namespaces"]) == (None, True, False, [])
    signed_in.close()  # which writes the refusals
    again = Service(signed_in.path)
    assert signed_in_refusals(again, signed_in.apikey) == []
    assert again.send("GET", "/v1/sign-in", X_API_Key="sj_wrong").status == 401
    again.close()
    again = Service(signed_in.path)
    assert signed_in_refusals(again, signed_in.apikey) == [("who", "unauthenticated")]
    again.close()


def signed_in_refusals(service, apikey):
    recent = service.json("/v1/activity", X_API_Key=apikey)["recent"]
    return [(change["verb"], change["refusal"]) for change in recent if change["refusal"]]


def test_a_write_with_the_cookie_must_come_from_this_origin(signed_in):
    path, body = "/v1/namespaces/ns/items/k", {"value": 1}
    for headers in (
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:9999", "Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        assert signed_in.send("PUT", path, body, Cookie=signed_in.cookie, **headers).status == 403
    assert signed_in.send("PUT", path, body, Cookie=signed_in.cookie, **ORIGIN).status == 200


def test_a_revoked_key_an_expired_sign_in_and_an_invented_token_are_out(signed_in, monkeypatch):
    cookie = signed_in.cookie
    monkeypatch.setattr(sign_ins, "SIGN_IN_SECONDS", -1)
    expired = signed_in.send("POST", "/v1/sign-in", X_API_Key=signed_in.apikey)
    for bad in (f"{cookie}x", "scrubjay_sign_in=", 'scrubjay_sign_in="', expired.headers["set-cookie"].split(";")[0]):
        assert signed_in.send("GET", "/v1/usage", Cookie=bad).status == 401
    identity = signed_in.apikey.split("_")[1]
    signed_in.issue("second", admin_last=False, admin=True)
    assert signed_in.send("DELETE", f"/v1/apikeys/{identity}", Cookie=cookie, **ORIGIN).status == 204
    assert signed_in.send("GET", "/v1/usage", Cookie=cookie).status == 401


def test_replacing_the_secret_of_a_key_ends_its_sign_ins(signed_in):
    identity = signed_in.apikey.split("_")[1]
    store = SqliteStore(signed_in.path)
    assert store.run(api_keys.rotate(identity))
    store.close()
    assert signed_in.send("GET", "/v1/usage", Cookie=signed_in.cookie).status == 401


def test_one_key_has_so_many_sign_ins_and_one_more_ends_the_oldest(signed_in, monkeypatch):
    monkeypatch.setattr(sign_ins, "MAX_SIGN_INS", 3)
    other = signed_in.issue("other").secret
    theirs = signed_in.send("POST", "/v1/sign-in", X_API_Key=other).headers["set-cookie"].split(";")[0]
    cookies = [signed_in.cookie]
    for _ in range(3):
        time.sleep(0.002)  # the order of two sign-ins in one millisecond is not known
        answer = signed_in.send("POST", "/v1/sign-in", X_API_Key=signed_in.apikey)
        cookies.append(answer.headers["set-cookie"].split(";")[0])
    statuses = [signed_in.send("GET", "/v1/usage", Cookie=cookie).status for cookie in [*cookies, theirs]]
    assert statuses == [401, 200, 200, 200, 200]


def test_the_cookie_counts_on_the_api_of_scrubjay_alone(signed_in):
    for path in ("/memory/ns/k", "/metrics"):
        assert signed_in.send("GET", path, Cookie=signed_in.cookie).status == 401


def test_a_browser_is_asked_for_a_password_only_when_a_person_opens_the_url(signed_in):
    opened = signed_in.send("GET", "/v1/usage", Sec_Fetch_Mode="navigate")
    by_script = signed_in.send("GET", "/v1/usage", **ORIGIN)
    assert opened.headers["www-authenticate"].startswith("Basic")
    assert by_script.headers["www-authenticate"] == "Bearer"


def test_without_keys_there_is_nothing_to_sign_in_to(service):
    assert service.json("/v1/sign-in")["needs_key"] is False
    answer = service.send("POST", "/v1/sign-in", **ORIGIN)
    assert (answer.status, "set-cookie" in answer.headers) == (204, False)
