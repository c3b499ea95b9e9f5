"""The table of commands: every verb is complete, and a command survives its JSON form."""

from __future__ import annotations

import inspect
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scrubjay_server
from harness import AsgiTransport
from scrubjay import AsyncMemory, Memory, commands
from scrubjay.commands import VERBS, Command
from scrubjay.exact_json import encode
from scrubjay.http import HttpExecutor
from scrubjay.memory import memory_on
from scrubjay.operations import operation_of
from scrubjay.settings import memory_settings
from scrubjay.validation import NewNote

METHODS = {"contains": "__contains__", "changes": "watch"}
"""Methods of Memory that have another name than their verb."""
ADMINISTRATION = {"audit", "issue_key", "api_keys", "set_key_quota", "rotate_key", "revoke_key"}
"""Verbs of the command line alone: they are about the whole store."""
ROUTES = {
    (method, re.sub(r":\w+}", "}", route.path)): route.name
    for route in scrubjay_server.create_app().routes
    for method in getattr(route, "methods", None) or ()
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_every_verb_has_an_operation_a_method_and_a_route(verb):
    assert inspect.isfunction(inspect.unwrap(operation_of(verb)))
    if verb.name not in ADMINISTRATION:
        method = METHODS.get(verb.name, verb.name)
        assert inspect.getdoc(getattr(Memory, method)) or method == "__contains__"
        assert hasattr(AsyncMemory, "contains" if method == "__contains__" else method)
    assert (verb.method, verb.path) in ROUTES


@pytest.mark.parametrize("verb", [verb for verb in VERBS.values() if verb.writes], ids=lambda verb: verb.name)
def test_a_write_that_is_carried_out_is_logged_under_the_verb_of_one_that_is_refused(verb):
    carried_out = inspect.getclosurevars(operation_of(verb)).nonlocals.get("verb", verb.name)
    assert (ROUTES[verb.method, verb.path], carried_out) == (verb.name, verb.name)


def test_async_memory_has_the_methods_and_arguments_of_memory():
    for name, method in vars(Memory).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        there = inspect.signature(getattr(AsyncMemory, name))
        assert list(there.parameters) == list(inspect.signature(method).parameters), name
        assert inspect.getdoc(method) in inspect.getdoc(getattr(AsyncMemory, name))
    assert list(inspect.signature(AsyncMemory).parameters) == list(inspect.signature(Memory).parameters)


@pytest.mark.parametrize("made", [Memory, AsyncMemory], ids=lambda made: made.__name__)
def test_every_method_says_what_its_arguments_are_and_what_it_returns(made):
    for name, method in vars(made).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        text, signature = inspect.getdoc(method), inspect.signature(method)
        for argument in list(signature.parameters)[1:]:
            assert f":param {argument}:" in text, f"{name}({argument})"
        assert signature.return_annotation == "None" or re.search("^(:return:|Return |Yield )", text, re.MULTILINE), (
            name
        )


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=5,
)
writes = st.one_of(
    st.builds(commands.SET, texts, texts, values.map(encode), st.none() | st.floats(1, 1e6), st.none()),
    st.builds(commands.APPEND, texts, texts, st.lists(values.map(encode))),
    st.builds(commands.DELETE, texts, texts, st.none()),
    st.builds(
        commands.UPDATE,
        texts,
        st.dictionaries(texts, st.none() | values.filter(lambda value: value is not None).map(encode)),
        st.none(),
        st.none() | st.floats(1, 1e6),
    ),
    st.builds(commands.MERGE, texts, texts, st.dictionaries(texts, values).map(encode)),
    st.builds(
        commands.REMEMBER,
        texts,
        st.builds(
            NewNote,
            texts,
            st.none() | texts,
            st.none() | st.lists(texts, min_size=1).map(tuple),
            st.none() | texts,
            st.none() | st.floats(1, 1e6),
            st.booleans(),
            st.none() | st.dictionaries(texts, values, min_size=1),
        ),
    ),
)


@given(writes)
def test_a_command_comes_back_from_json_as_it_was(command):
    assert not command.needs_result
    assert Command.from_json(command.verb.name, command.namespace, command.to_json()) == command


def test_every_queueable_verb_is_covered_above():
    assert {name for name, verb in VERBS.items() if verb.queueable} == {
        "set", "append", "delete", "update", "merge", "remember", "transaction",
    }  # fmt: skip


def test_the_service_can_be_called_in_this_process(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRUBJAY_PATH", str(tmp_path / "db"))
    transport = AsgiTransport(scrubjay_server.create_app())
    try:
        settings = memory_settings(url="http://in-process")
        memory = memory_on(HttpExecutor(settings, transport), "ns", settings)
        assert memory.set("k", {"a": [1, None]}) == 1
        assert memory.get("k") == {"a": [1, None]}
        assert memory.append("l", 1, 2) == 2
        assert memory.tail("l", 1) == [2]
        assert "k" in memory
        assert memory.keys() == ["k", "l"]
    finally:
        transport.close()
