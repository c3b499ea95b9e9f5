"""PersistentSwarm: a swarm function of pyautogen 0.9 whose chats continue.

`initiate_swarm_chat` makes a group chat and its manager for each call, and hands neither out. It tells every member the
manager, though, when all is made and before the chat starts: it sets `_swarm_manager`. The initial agent has a property
of that name until then, and there the chat is made persistent, as that of a pattern is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, update_wrapper
from typing import Any, NamedTuple

from scrubjay.adapters.autogen._pattern import PatternPart
from scrubjay.adapters.autogen._persistent import PersistentMixin, SessionPart
from scrubjay.conversations import MESSAGES
from scrubjay.errors import InvalidInput
from scrubjay.memory import Memory

_MODULE = "autogen.agentchat.contrib.swarm_agent"
_FUNCTIONS = ("initiate_swarm_chat", "a_initiate_swarm_chat", "run_swarm", "a_run_swarm")
_WAITING = "_scrubjay_when_linked"
"""The attribute of an initial agent that has the function to call when it is told its manager."""


def is_swarm_function(thing: Any) -> bool:
    """Whether it is one of the functions of AutoGen that run a swarm."""
    return getattr(thing, "__module__", "") == _MODULE and getattr(thing, "__name__", "") in _FUNCTIONS


class Swarm(NamedTuple):
    """The arguments of a call that a PatternPart takes from a pattern."""

    initial_agent: Any
    agents: list[Any]
    user_agent: Any
    context_variables: Any


class SwarmPart(SessionPart):
    """What a swarm has in a session."""

    __slots__ = ("_last", "_options")

    def __init__(self, memory: Memory | str, session: str, options: dict[str, Any]) -> None:
        super().__init__(memory, "swarm", session, MESSAGES, state_owner="groupchat:")
        self._options = options
        self._last: tuple[Any, PatternPart] | None = None
        """The context variables of the last call, which a program may give to the next, and what has saved them."""

    def history(self) -> list[dict[str, Any]]:
        return self.session.history(MESSAGES)

    def start_chat(self, swarm: Swarm, manager: Any) -> None:
        """Make the chat of a manager persistent. Context variables that are given again are not restored again."""
        if self._last is None or self._last[0] is not swarm.context_variables:
            part = PatternPart(swarm, self.memory, self.session.name, self._options)
            self._last = swarm.context_variables, part
        self._last[1].attach_chat(swarm, manager)

    def start_empty(self, _owner: Any) -> None:
        self._last = None
        self.state.reset()

    def refresh(self, _owner: Any) -> int:
        """The next call reads the messages anyway, and now the context variables, too."""
        self._last = None
        return 0


class PersistentSwarm(PersistentMixin):
    """A swarm function whose chats continue; `persist(initiate_swarm_chat, memory=...)` makes one."""

    _scrubjay: SwarmPart

    def __init__(self, function: Callable[..., Any], memory: Memory | str, session: str, options: Any) -> None:
        update_wrapper(self, function)
        self._function = function
        self._signature = inspect.signature(function)
        SwarmPart(memory, session, options).attach(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; the chat that it makes goes on with what is stored."""
        given = self._signature.bind(*args, **kwargs).arguments
        if inspect.iscoroutinefunction(self._function):
            return self._run_async(given, args, kwargs)
        with self._waiting(given):
            return self._function(*args, **kwargs)

    async def _run_async(self, given: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._waiting(given):  # from the await on, in which errors are raised
            return await self._function(*args, **kwargs)

    @contextmanager
    def _waiting(self, given: dict[str, Any]) -> Iterator[None]:
        """Let the initial agent wait for its manager, until it is told or the block fails."""
        agent: Any = given["initial_agent"]
        own: Any = type(agent)

        def when_linked(manager: Any) -> None:
            swarm = Swarm(agent, given["agents"], given.get("user_agent"), manager.context_variables)
            self._scrubjay.start_chat(swarm, manager)

        if _WAITING not in vars(agent):
            agent.__class__ = _waiting_class(own)
        vars(agent)[_WAITING] = when_linked
        try:
            yield
        except BaseException:
            _stop_waiting(agent)
            raise


@cache
def _waiting_class(own: Any) -> type:
    """A class with a property that is used once: the object then has its own class again."""

    def link(agent: Any, manager: Any) -> None:
        when_linked = _stop_waiting(agent)
        agent._swarm_manager = manager
        if when_linked is not None:
            when_linked(manager)

    body = {"__module__": own.__module__, "__qualname__": own.__qualname__, "_swarm_manager": property(None, link)}
    return type(own.__name__, (own,), body)


def _stop_waiting(agent: Any) -> Callable[[Any], None] | None:
    """Give an agent its own class back; the function that waits for its manager, if one does."""
    when_linked: Callable[[Any], None] | None = vars(agent).pop(_WAITING, None)
    if when_linked is not None:
        agent.__class__ = type(agent).__bases__[0]
    return when_linked


def persist_swarm(
    function: Callable[..., Any], memory: Memory | str | None, session: str, options: dict[str, Any]
) -> PersistentSwarm:
    """The persistent form of a swarm function, which has no name of its own to be saved under."""
    if memory is None:
        raise InvalidInput(f"persist({function.__name__}) needs memory=, which says which swarm it is")
    return PersistentSwarm(function, memory, session, options)
