"""The files of the dashboard as the server sends them, and the examples of the page of the API."""

from __future__ import annotations

import re

import pytest
from fastapi.routing import APIRoute

import scrubjay_dashboard
import scrubjay_docs
import scrubjay_server
from harness import AsgiTransport
from scrubjay import Memory
from scrubjay.settings import server_settings
from scrubjay_http import JsonBody

FILES = sorted(path.name for path in scrubjay_dashboard.FILES.iterdir())
OWN_ROUTES = [
    route
    for route in scrubjay_server.create_app().routes
    if isinstance(route, APIRoute) and route.include_in_schema and not route.tags
]


@pytest.fixture(scope="module")
def get(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "db"
    transport = AsgiTransport(scrubjay_server.create_app(server_settings(path=str(path))))
    yield lambda path, **headers: transport.send(
        "GET", path, b"", {name.replace("_", "-"): value for name, value in headers.items()}
    )
    transport.close()


@pytest.mark.parametrize("path", ["/", "/docs", "/favicon.ico", *(f"/dashboard/{name}" for name in FILES)])
def test_a_file_has_its_type_a_strict_policy_and_an_etag(get, path):
    answer = get(path)
    suffix = {"/": ".html", "/docs": ".html", "/favicon.ico": ".svg"}.get(path, f".{path.rpartition('.')[2]}")
    assert answer.status == 200
    assert answer.headers["content-type"].partition(";")[0] == scrubjay_dashboard.TYPES[suffix]
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert get(path, If_None_Match=answer.headers["etag"]).status == 304


@pytest.mark.parametrize("path", ["/dashboard/nothing.js", "/dashboard/..%2fscrubjay_auth.py", "/dashboard/"])
def test_no_other_file_is_sent(get, path):
    assert get(path).status == 404


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_small_and_has_no_markup_from_text_and_no_other_server(name):
    text = (scrubjay_dashboard.FILES / name).read_text()
    assert len(text) < 32_000
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)|@import|style=\"", text)


def test_the_page_loads_its_modules_at_once_and_not_one_after_the_other():
    page = (scrubjay_dashboard.FILES / "index.html").read_text()
    used = {name for name in FILES if name.endswith(".js")} - {"docs.js", "theme.js", "app.js"}
    assert set(re.findall(r'modulepreload" href="/dashboard/([^"]+)"', page)) == used


# ------------------------------------------------------------ examples


def test_every_example_in_python_runs(tmp_path):
    with Memory("demo", path=str(tmp_path / "db"), durability="fast") as memory:
        for name, source in scrubjay_docs.PYTHON.items():
            if name != "changes":  # waits for the next change
                exec(source, {"memory": memory})


def test_every_verb_of_memory_has_an_example():
    named = {route.name for route in OWN_ROUTES}
    assert set(scrubjay_docs.PYTHON) <= named
    assert {name for name in named if hasattr(Memory, name)} <= set(scrubjay_docs.PYTHON)


def test_every_body_has_an_example_that_is_valid():
    bodies = {
        route.name: body.model
        for route in OWN_ROUTES
        for dependency in route.dependant.dependencies
        if isinstance(body := getattr(dependency.call, "__self__", None), JsonBody)
    }
    assert bodies.keys() == scrubjay_docs.BODIES.keys()
    for name, model in bodies.items():
        model.model_validate(scrubjay_docs.BODIES[name])


def test_every_route_has_a_group_and_a_sentence():
    for path, methods in scrubjay_server.create_app().openapi()["paths"].items():
        for operation in methods.values():
            assert operation["tags"][0] != "Server" or path in ("/health", "/ready", "/metrics")
            assert operation["description"]
