"""`persist` and `register_memory_tools`: memory for AutoGen objects that exist already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict, Unpack, overload

from autogen import ConversableAgent, GroupChat, GroupChatManager, register_function

from scrubjay.adapters._sessions import Session
from scrubjay.adapters._tools import memory_tools
from scrubjay.adapters.autogen._agent import PersistentAgent, start_agent
from scrubjay.adapters.autogen._group_chat import PersistentGroupChat, attach_manager, start_group_chat
from scrubjay.adapters.autogen._pattern import Pattern, PersistentPattern, start_pattern
from scrubjay.adapters.autogen._persistent import change_class, is_persistent, open_memory
from scrubjay.adapters.autogen._swarm import PersistentSwarm, is_swarm_function, persist_swarm
from scrubjay.conversations import DEFAULT
from scrubjay.errors import InvalidInput, repr_short
from scrubjay.memory import Memory


class Options(TypedDict, total=False):
    """The arguments of persist."""

    memory: Memory | str | None
    session: str
    max_messages: int | None
    max_tokens: int | None
    recall: bool
    remember: bool
    learn: bool | Callable[[str], str]
    resume: bool


# For editors, which see AutoGen's classes; mypy does not.
@overload
def persist(thing: GroupChatManager, **options: Unpack[Options]) -> GroupChatManager: ...
@overload
def persist(thing: GroupChat, **options: Unpack[Options]) -> PersistentGroupChat: ...  # type: ignore[overload-cannot-match]
@overload
def persist(thing: ConversableAgent, **options: Unpack[Options]) -> PersistentAgent: ...  # type: ignore[overload-cannot-match]
@overload
def persist(thing: Callable[..., Any], **options: Unpack[Options]) -> PersistentSwarm: ...  # type: ignore[overload-cannot-match]
@overload
def persist(thing: Any, **options: Unpack[Options]) -> PersistentPattern: ...  # type: ignore[overload-cannot-match]
def persist(
    thing: Any,
    *,
    memory: Memory | str | None = None,
    session: str = DEFAULT,
    max_messages: int | None = None,
    max_tokens: int | None = None,
    recall: bool = False,
    remember: bool = False,
    learn: bool | Callable[[str], str] = False,
    resume: bool = True,
) -> Any:
    """Make an agent, a group chat or a pattern that exists already persistent, and return it; of a manager, its chat.

    The arguments are those of PersistentAgent and PersistentGroupChat; `recall`, `remember`, `learn` and `resume` are
    for agents only. A pattern (AG2's DefaultPattern, AutoPattern, RoundRobinPattern, …) continues with its messages,
    its context variables and the agent that was active, and agents may join and leave; without a memory it is known by
    the name of its initial agent.
    A swarm function of pyautogen 0.9 (`initiate_swarm_chat`, `a_initiate_swarm_chat`, `run_swarm`, `a_run_swarm`)
    stays as it is: the function that is returned, which takes the same arguments, does the same for its chats as for
    those of a pattern. It needs a memory.
    An attribute of the object that has the name of one of ours (`memory`, `state`, `history`, …) stays, and a warning
    says where ours is.
    """
    options: dict[str, Any] = {"max_messages": max_messages, "max_tokens": max_tokens}
    if is_persistent(thing):
        raise _already(thing)
    notes = {"recall": recall, "remember": remember, "learn": learn}
    kind, start = _kind_of(thing)
    if kind is PersistentAgent and not isinstance(thing, GroupChatManager):
        return change_class(thing, kind, start, memory, session, {**options, **notes, "resume": resume})
    wrong = [f"{name}=" for name, value in {**notes, "resume": not resume}.items() if value]
    if wrong:
        raise InvalidInput(
            f"{', '.join(wrong)} is for agents, not for a {type(thing).__name__}; persist its members with it"
        )
    if kind is PersistentSwarm:
        return persist_swarm(thing, memory, session, options)
    if isinstance(thing, GroupChatManager):
        group: Any = thing.groupchat
        if not is_persistent(group):
            persist(group, memory=memory, session=session, **options)
        elif not _is_same(group, memory, session, options):
            raise _already(group)
        attach_manager(thing, group)
        thing._last_speaker = group.last_speaker
        return thing
    return change_class(thing, kind, start, memory, session, options)


def _is_same(group: Any, memory: Memory | str | None, session: str, options: dict[str, Any]) -> bool:
    """Whether a persistent group chat is what persist would make with these arguments, if there are any."""
    if (memory, session, *options.values()) == (None, DEFAULT, None, None):
        return True
    given = Session(open_memory(group.memory if memory is None else memory, ""), session)
    return given.is_same_as(group._scrubjay.session) and not any(options.values())


def _already(thing: Any) -> InvalidInput:
    part = thing._scrubjay
    name = f"chat of {repr_short(part.members)}" if isinstance(thing, GroupChat) else getattr(thing, "name", "")
    return InvalidInput(
        f"the {type(thing).__name__} {name} is persistent already, with the session {part.session.name!r} of"
        f" {part.memory!r}; give memory=, session= and limits where it is made"
    )


def _kind_of(thing: Any) -> tuple[type, Any]:
    """The persistent class for an object of AutoGen, and the function that starts one that exists already."""
    if is_swarm_function(thing):
        return PersistentSwarm, None
    own: Any = type(thing)
    kinds: list[tuple[Any, type, Any]] = [
        (ConversableAgent, PersistentAgent, start_agent),
        (GroupChat, PersistentGroupChat, start_group_chat),
        (Pattern, PersistentPattern, start_pattern),
    ]
    for base, kind, start in kinds:
        if base in own.__mro__:
            return kind, start
    raise InvalidInput(
        f"persist takes a ConversableAgent, a GroupChat, a GroupChatManager, a Pattern or a swarm function, not a"
        f" {own.__name__}"
    )


def register_memory_tools(memory: Memory | str, *, caller: Any, executor: Any) -> None:
    """Give a model tools to remember, recall, get and set, which `caller` proposes and `executor` runs.

    Agents that get tools for the same memory share it.
    """
    for tool in memory_tools(open_memory(memory, "")):
        register_function(tool, caller=caller, executor=executor, name=tool.__name__, description=str(tool.__doc__))
