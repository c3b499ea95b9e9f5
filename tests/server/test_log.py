"""The log of the service: one line a request with --access-log, and never a key, a value or an api key."""

from __future__ import annotations

import json
import logging
import socket
import sys

import pytest
import requests

from harness import Server, issue_key
from scrubjay import Memory, NotFound, Unavailable
from scrubjay_log import FORMATTERS, FailureLog

SECRETS = ("secret-item", "secret-value", "secret-note", "secret-query")


def log_of(server: Server) -> list[str]:
    server.process.terminate()
    _, log = server.process.communicate(timeout=60)
    return log.splitlines()


def use(server: Server, api_key: str) -> int:
    """Send some requests with things that must not be logged; return how many."""
    with Memory("shop", url=server.url, api_key=api_key, strict=True, timeout=60) as memory:
        memory.set("secret-item", "secret-value")
        memory.get("secret-item")
        memory.remember("secret-note")
        memory.recall("secret-query")
    answers = [
        requests.get(f"{server.url}/v1/namespaces/shop/items/secret-item", headers=headers, timeout=60).status_code
        for headers in ({"X-API-Key": "sj_secret-unknown"}, {})
    ]
    assert answers == [401, 401]
    assert requests.get(f"{server.url}/secret-item?q=secret-value", timeout=60).status_code == 404
    return 7


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_request_is_one_line_without_keys_and_values(form, tmp_path):
    api_key = issue_key(tmp_path / "db", "the shop", "--admin")
    server = Server(tmp_path / "db", "--access-log", "--log-format", form, "--durability", "fast")
    try:
        count = use(server, api_key)
        log = log_of(server)
    finally:
        server.stop()
    assert len(log) == count
    for line in log:
        assert not any(secret in line for secret in (*SECRETS, api_key, "sj_secret-unknown"))
    if form == "json":
        first = json.loads(log[0])
        assert {name: first[name] for name in ("level", "status", "method", "route", "namespace", "client")} == {
            "level": "INFO", "status": 200, "method": "PUT", "route": "/v1/namespaces/{namespace}/items/{key}",
            "namespace": "shop", "client": "the shop",
        }  # fmt: skip
        assert first["ms"] > 0
    else:
        route = "/v1/namespaces/{namespace}/items/{key}"
        assert f' INFO 200 PUT {route} "shop" "the shop" ' in log[0]
        assert f' INFO 401 GET {route} "shop" "127.0.0.1" ' in log[-2]
        assert ' INFO 404 GET - "-" "127.0.0.1" ' in log[-1]


def test_a_request_that_cannot_be_read_is_logged_with_its_address(tmp_path):
    server = Server(tmp_path / "db", "--access-log")
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(b"secret-value\r\n\r\n")
            while connection.recv(4096):
                pass
        (line,) = [line for line in log_of(server) if " INFO " in line]  # beside Uvicorn's warning
    finally:
        server.stop()
    assert ' INFO 400 - - "-" "127.0.0.1" ' in line
    assert "secret" not in line


def test_without_the_flag_requests_are_not_logged(tmp_path):
    server = Server(tmp_path / "db")
    try:
        assert requests.get(f"{server.url}/health", timeout=60).status_code == 200
        assert log_of(server) == []
    finally:
        server.stop()


def test_an_error_is_logged_with_its_traceback_in_either_form():
    try:
        json.loads("for the log")
    except ValueError:
        record = logging.LogRecord("uvicorn.error", logging.ERROR, __file__, 1, "it failed", (), sys.exc_info())
    line = json.loads(FORMATTERS["json"]().format(record))
    assert (line["level"], line["message"]) == ("ERROR", "it failed")
    assert line["exception"].startswith("Traceback")
    text = FORMATTERS["text"]().format(record)
    assert " ERROR it failed\nTraceback" in text


def test_the_banner_says_that_a_database_is_new(tmp_path):
    for is_new in (True, False):
        server = Server(tmp_path / "db")
        server.stop()
        assert ("(new database)" in server.banner) is is_new


def test_each_reason_for_a_503_is_logged_once_a_minute(monkeypatch, caplog):
    now, failures = [5.0], FailureLog()
    monkeypatch.setattr("scrubjay_log.time.monotonic", lambda: now[0])
    for now[0] in (5.0, 64.0, 66.0):
        for error in (Unavailable("the disk is full"), Unavailable("locked"), NotFound("no key")) * 2:
            failures.log(error)
    assert caplog.messages == ["the disk is full", "locked"] * 2
