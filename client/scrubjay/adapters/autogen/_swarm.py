"""PersistentSwarm: a swarm function of pyautogen 0.9 whose chats continue.

`initiate_swarm_chat` makes a group chat and its manager for each call, and hands neither out. It calls functions of its
module that find the agent which starts the chat, and that tell every member the manager. Each call runs a copy of
AutoGen's function with other globals, in which these make the chat persistent when it is started, as that of a pattern.
So nothing of AutoGen and no agent is changed that a failing call could leave so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from types import FunctionType
from typing import Any, NamedTuple

from scrubjay.adapters.autogen._pattern import ChatStarter, PatternPart, attach_before_resume
from scrubjay.adapters.autogen._persistent import PersistentMixin, SessionPart
from scrubjay.conversations import MESSAGES
from scrubjay.errors import InvalidInput
from scrubjay.memory import Memory

_MODULE = "autogen.agentchat.contrib.swarm_agent"
_FUNCTIONS = ("initiate_swarm_chat", "a_initiate_swarm_chat", "run_swarm", "a_run_swarm")
_LINK = "_link_agents_to_swarm_manager"
"""The function that these call with the members and the manager, last before the chat starts."""
_PROCESS = "_process_initial_messages"
"""The function that returns messages, the agent that starts the chat, names and users."""


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

    def attach_chat(self, swarm: Swarm, manager: Any) -> None:
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

        def attach(manager: Any) -> None:
            swarm = Swarm(given["initial_agent"], given["agents"], given.get("user_agent"), manager.context_variables)
            self._scrubjay.attach_chat(swarm, manager)

        return _attaching(self._function, attach)(*args, **kwargs)


def _attaching(function: Callable[..., Any], attach: Callable[[Any], None]) -> Callable[..., Any]:
    """A copy of a swarm function that calls `attach` with the manager of its chat when the chat starts."""
    module = inspect.unwrap(function).__globals__

    def link(agents: Any, manager: Any) -> None:
        module[_LINK](agents, manager)
        attach_before_resume(manager, attach)

    def process(*args: Any) -> Any:
        messages, starter, names, users = module[_PROCESS](*args)
        return messages, starter and ChatStarter(starter, attach), names, users

    own = {**module, _LINK: link, _PROCESS: process}
    own |= {name: _with_globals(module[name], own) for name in _FUNCTIONS}  # they call each other
    copied: Callable[..., Any] = own[function.__name__]
    return copied


def _with_globals(function: Any, own: dict[str, Any]) -> Any:
    plain = inspect.unwrap(function)
    copied = FunctionType(plain.__code__, own, plain.__name__, plain.__defaults__, plain.__closure__)
    copied.__kwdefaults__ = plain.__kwdefaults__
    return copied


def persist_swarm(
    function: Callable[..., Any], memory: Memory | str | None, session: str, options: dict[str, Any]
) -> PersistentSwarm:
    """The persistent form of a swarm function, which has no name of its own to be saved under."""
    if memory is None:
        raise InvalidInput(f"persist({function.__name__}) needs memory=, which says which swarm it is")
    return PersistentSwarm(function, memory, session, options)
