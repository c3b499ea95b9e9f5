"""Why AutoGen calls a method: the only thing that AutoGen does not pass as an argument.

Read from the source of pyautogen 0.2.35 and 0.9 and of autogen 0.14.1, and tested with them:

- `_prepare_chat` clears the history of both sides at the start of every chat, unless told otherwise.
- `resume` and `a_resume` clear every member, then hand over the messages that they were given, one by one.
- SocietyOfMindAgent, ReasoningAgent, WebSurfer, RetrieveUserProxyAgent and "CLEAR HISTORY" in a group chat clear
  agents that they use, each in a method of its own.
- GroupChatManager.reset calls `GroupChat.reset` as a function, past any method of a subclass.
"""

from __future__ import annotations

import inspect
from enum import Enum
from types import FrameType, FunctionType
from typing import Any

from autogen import ConversableAgent, GroupChat, GroupChatManager

_CLEARING = ("clear_history", "reset")
"""Methods that call each other; the one that called the first of them decides."""


class Caller(Enum):
    """Who clears a history."""

    USER = "code outside AutoGen"
    START_OF_CHAT = "AutoGen at the start of a chat"
    START_OF_EMPTY_CHAT = "AutoGen at the start of a chat for which a user has written clear_history=True"
    RESUME = "AutoGen in resume()"
    AUTOGEN = "AutoGen elsewhere"


_STARTING = ("initiate_chat", "a_initiate_chat", "run", "a_run", "run_iter", "a_run_iter")
"""Methods of ConversableAgent that take `clear_history` and hand it on; older versions have only the first two."""
_TAKING_DICTS = ("initiate_chats", "ConversableAgent.sequential_run", "ConversableAgent.a_sequential_run")
"""Functions that are given the arguments of chats as dicts, and add no `clear_history` of their own."""
_KNOWN = {"_prepare_chat": Caller.START_OF_CHAT, "resume": Caller.RESUME, "a_resume": Caller.RESUME}


def find_caller(frame: FrameType) -> tuple[Caller, Any]:
    """Who called the clearing method that runs below this frame, and the object whose method that is."""
    while frame.f_back and frame.f_code.co_name in _CLEARING:
        frame = frame.f_back
    if not is_autogen(frame):
        return Caller.USER, None
    caller = _KNOWN.get(frame.f_code.co_name, Caller.AUTOGEN)
    if caller is Caller.START_OF_CHAT and frame.f_locals.get("clear_history") is True and _is_written_out(frame):
        caller = Caller.START_OF_EMPTY_CHAT
    return caller, frame.f_locals.get("self")


def _is_written_out(frame: FrameType | None) -> bool:
    """Whether code outside AutoGen has written the True that the `_prepare_chat` of this frame was given.

    AutoGen writes it, too, in `initiate_group_chat`. False as well if the default of a method that hands it on could
    not be marked, because any True may be the default then.
    """
    while frame is not None and not is_outside(frame):
        method = frame.f_code.co_qualname.partition(".<locals>")[0]
        if method in _TAKING_DICTS:
            return True
        if is_autogen(frame) and method not in _marked and frame.f_code.co_name != "_prepare_chat":
            return False
        frame = frame.f_back
    return True


class _Default(int):
    """The default of `clear_history`, which AutoGen takes for True: a user who writes True asks for an empty chat."""

    def __repr__(self) -> str:
        return "True"


_marked: set[str] = set()
"""Qualified names of methods whose default of `clear_history` is not the True that users write."""


def _mark_default(method: Any) -> None:
    """Put a _Default in place of the default of `clear_history`, in the function that a tracer may have wrapped."""
    function = inspect.unwrap(method)
    if not isinstance(function, FunctionType):
        return
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    defaults = list(function.__defaults__ or ())
    at = names.index("clear_history") - len(names) if "clear_history" in names else 0
    if -len(defaults) <= at < 0:
        if defaults[at] is True:
            defaults[at] = _Default(True)
            function.__defaults__ = tuple(defaults)
        _marked.add(function.__qualname__)


for _name in _STARTING:
    if hasattr(ConversableAgent, _name):
        _mark_default(getattr(ConversableAgent, _name))


def is_autogen(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "autogen"


def is_outside(frame: FrameType) -> bool:
    """Whether the frame is code neither of AutoGen nor of its adapter."""
    name = str(frame.f_globals.get("__name__"))
    return name.partition(".")[0] != "autogen" and not name.startswith("scrubjay.adapters.")


def is_of_autogen(function: Any) -> bool:
    """Whether a function is one of AutoGen or of its adapter, not one of the user's."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in ("autogen", "scrubjay")


def is_group_reset(frame: FrameType) -> bool:
    """Whether the frame is GroupChat.reset itself, called as a method or as a function."""
    return frame.f_code is GroupChat.reset.__code__


def is_group_summary(frame: FrameType) -> bool:
    """Whether the frame is the method of a manager that takes the messages for a summary."""
    return frame.f_code is GroupChatManager.chat_messages_for_summary.__code__


def read_append(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """The peer and whether the message goes to it, from any of the signatures of `_append_oai_message`.

    These are (message, role, peer), (message, role, peer, is_sending) and (message, peer, role, name). In all of them
    the role is that of a sender or of a receiver, whatever the message's own is.
    """
    rest = args[1:]
    given = "conversation_id" in kwargs
    peer = kwargs["conversation_id"] if given else next(arg for arg in rest if hasattr(arg, "name"))
    role = kwargs.get("role") or next((arg for arg in rest if isinstance(arg, str)), "assistant")
    return peer, role == "assistant"
