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
logging.getLogger("scrubjay").setLevel(logging.CRITICAL)


def _persistent(base, kind):
    """The class of AutoGen with ours in front of it, under its own name."""
    bases = (kind,) if kind.__mro__[1] is base else (kind, base)

    class Swapped(*bases):
        @add_signature(base)
        def __init__(self, *args, **kwargs):
            next(_made)
            super().__init__(*args, **kwargs)

    Swapped.__name__ = Swapped.__qualname__ = base.__name__
    return Swapped


SWAPPED = {
    getattr(autogen, name): _persistent(getattr(autogen, name), kind)
    for name, kind in {
        "ConversableAgent": PersistentAgent,
        "AssistantAgent": PersistentAgent,
        "UserProxyAgent": PersistentAgent,
        "GroupChat": PersistentGroupChat,
    }.items()
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
