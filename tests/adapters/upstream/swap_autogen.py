"""AutoGen's own tests, on our classes in place of ConversableAgent, AssistantAgent, UserProxyAgent and GroupChat."""

from __future__ import annotations

import itertools
import logging

import autogen
import autogen.agentchat
import pytest

from scrubjay import PersistentAgent, PersistentGroupChat
from scrubjay.adapters.autogen._persistent import add_signature

_made = itertools.count()
ORIGINALS = {}
"""The classes of AutoGen, by those in their place."""
logging.getLogger("scrubjay").setLevel(logging.CRITICAL)


class Kin(type(autogen.ConversableAgent)):
    """The class of the exchanged classes: objects that AutoGen makes itself, of its own classes, are of them, too."""

    def __instancecheck__(cls, thing):
        original = ORIGINALS.get(cls)
        return super().__instancecheck__(thing) if original is None else isinstance(thing, original)


def _swap(original, *bases):
    """A persistent class in place of one of AutoGen, under its name."""

    class Swapped(*bases, metaclass=Kin):
        @add_signature(original)
        def __init__(self, *args, **kwargs):
            next(_made)
            super().__init__(*args, **kwargs)

    Swapped.__name__ = Swapped.__qualname__ = original.__name__
    ORIGINALS[Swapped] = original
    return Swapped


_agent = _swap(autogen.ConversableAgent, PersistentAgent)
SWAPPED = {
    autogen.ConversableAgent: _agent,
    autogen.AssistantAgent: _swap(autogen.AssistantAgent, _agent, autogen.AssistantAgent),
    autogen.UserProxyAgent: _swap(autogen.UserProxyAgent, _agent, autogen.UserProxyAgent),
    autogen.GroupChat: _swap(autogen.GroupChat, PersistentGroupChat),
}


def _swap_in(module):
    for name, value in list(vars(module).items()):
        if isinstance(value, type) and value in SWAPPED:
            setattr(module, name, SWAPPED[value])


_swap_in(autogen)
_swap_in(autogen.agentchat)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Tests import from the modules of AutoGen, too, which go on with their own classes."""
    for module in {item.module for item in items}:
        _swap_in(module)


@pytest.fixture(autouse=True)
def _memory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRUBJAY_PATH", str(tmp_path / "scrubjay.db"))
    monkeypatch.setenv("SCRUBJAY_DURABILITY", "fast")


def pytest_sessionfinish(session):
    if session.testscollected > 1 and next(_made) == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
