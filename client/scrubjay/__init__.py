"""Scrubjay: persistent memory for AI agents.

from scrubjay import Memory
memory = Memory("my-agent")
memory.set("user", {"name": "Sarah"})
memory.get("user")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scrubjay.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    MissingExtra,
    NotFound,
    OutcomeUnknown,
    QuotaExceeded,
    ScrubjayError,
    Unauthenticated,
    Unavailable,
    ValueTooLarge,
)
from scrubjay.memory import Memory
from scrubjay.models import Change, Conversation, Item, Learned, Match, Message, Note, Pending, Usage
from scrubjay.version import __version__

if TYPE_CHECKING:
    from scrubjay.adapters.autogen import PersistentAgent as PersistentAgent
    from scrubjay.adapters.autogen import PersistentGroupChat as PersistentGroupChat
    from scrubjay.adapters.autogen import persist as persist
    from scrubjay.adapters.autogen import register_memory_tools as register_memory_tools
    from scrubjay.async_memory import AsyncMemory

__all__ = [
    "AsyncMemory",
    "Change",
    "Conflict",
    "Conversation",
    "Forbidden",
    "InvalidInput",
    "Item",
    "Learned",
    "Match",
    "Memory",
    "Message",
    "MissingExtra",
    "NotFound",
    "Note",
    "OutcomeUnknown",
    "Pending",
    "QuotaExceeded",
    "ScrubjayError",
    "Unauthenticated",
    "Unavailable",
    "Usage",
    "ValueTooLarge",
    "__version__",
]

# Loaded when first asked for: asyncio alone would double the time of `import scrubjay`, AutoGen takes seconds.
_LAZY = {
    "AsyncMemory": ".async_memory",
    "PersistentAgent": ".adapters.autogen",
    "PersistentGroupChat": ".adapters.autogen",
    "persist": ".adapters.autogen",
    "register_memory_tools": ".adapters.autogen",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'scrubjay' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LAZY[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
