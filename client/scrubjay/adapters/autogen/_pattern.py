"""PersistentPattern: a pattern of AG2 whose group chats continue, with their context variables and the active agent.

A pattern makes a new GroupChat for each call of `initiate_group_chat`. That chat becomes persistent when it is started,
and each of its messages is saved together with the context variables that have changed and with a hand-off that nobody
has followed yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from autogen import Agent

from scrubjay.adapters._sessions import Writes
from scrubjay.adapters._state import State, fingerprint
from scrubjay.adapters.autogen._group_chat import (
    GroupPart,
    PersistentGroupChat,
    attach_manager,
    start_group_chat,
)
from scrubjay.adapters.autogen._persistent import PersistentMixin, SessionPart, change_class
from scrubjay.conversations import MESSAGES
from scrubjay.memory import Memory

try:
    from autogen.agentchat.group.patterns.pattern import Pattern as Pattern  # noqa: PLC0414 - for _persist
except ImportError:  # pyautogen 0.2.35 has none

    class Pattern:  # type: ignore[no-redef]
        """Stands for the class that this AutoGen does not have."""


_NEXT = "next"
"""The name of the agent that a hand-off has named, and that has not spoken since."""


class PatternPart(SessionPart):
    """What a pattern has in a session, beside the group chat: context variables, and who speaks next."""

    __slots__ = ("_first_variables", "_handed_to", "_is_restored", "_options", "_unchanged", "_variables")

    def __init__(self, pattern: Any, memory: Memory | str | None, session: str, options: dict[str, Any]) -> None:
        name = f"pattern:{pattern.initial_agent.name}"
        super().__init__(memory, name, session, MESSAGES, state_owner="groupchat:")
        self._options = options
        self._variables = State(self.session, "context:")
        self._handed_to = State(self.session, "pattern:")
        self._is_restored = False
        self._first_variables = dict(pattern.context_variables.data)
        self._unchanged = {name: fingerprint(value) for name, value in self._first_variables.items()}
        """Fingerprints of the context variables as they were restored or, before that, as the pattern was made."""
        self.restore(pattern)

    def history(self) -> list[dict[str, Any]]:
        return self.session.history(MESSAGES)

    def restore(self, pattern: Any) -> None:
        """Give the pattern the stored context variables; once, because they are live from then on.

        If they can be read only later, those that the program has assigned meanwhile stay where none is stored.
        """
        if not self._is_restored:
            changed = self._changed(pattern)
            self._variables.hold(changed)
            known = self._variables.copy()
            self._is_restored = self._variables.is_complete
            given = {name: value for name, value in known.items() if self._is_restored or name not in changed}
            pattern.context_variables.update(given)
            self._unchanged |= {name: fingerprint(value) for name, value in given.items()}

    def _changed(self, pattern: Any) -> dict[str, Any]:
        """The context variables that the program has changed since they were restored or the pattern was made."""
        variables = pattern.context_variables.data
        return {name: value for name, value in variables.items() if fingerprint(value) != self._unchanged.get(name)}

    def start_empty(self, owner: Any) -> None:
        self.state.reset()
        self._variables.reset()
        self._handed_to.reset()
        owner.context_variables.data.clear()
        owner.context_variables.update(self._first_variables)

    def refresh(self, owner: Any) -> int:
        """The next chat reads the messages anyway; the context variables are read again now."""
        self.restore(owner)
        self._variables.refresh()
        if self._is_restored:
            owner.context_variables.update(self._variables.copy())
        return 0

    def attach_chat(self, pattern: Any, manager: Any) -> None:
        """Make the chat of a manager persistent, with all that is saved beside its messages."""
        self.restore(pattern)
        members = [str(agent.name) for agent in pattern.agents]
        options = {**self._options, "members": members}
        group = change_class(
            manager.groupchat, PersistentGroupChat, start_group_chat, self.memory, self.session.name, options
        )
        attach_manager(manager, group)
        manager._last_speaker = group.last_speaker
        part: GroupPart = group._scrubjay
        part.save_beside = lambda t: self._save(t, pattern, manager)
        group.speaker_selection_method = self._continue(pattern, group, group.speaker_selection_method)

    def _continue(self, pattern: Any, group: Any, select: Callable[..., Any]) -> Callable[..., Any]:
        """A function that selects speakers as AutoGen does in the middle of a chat, if there are earlier messages.

        AutoGen's own starts each chat with the initial agent.
        """
        names = {agent.name for agent in pattern.agents}
        record = group._scrubjay.record
        active = _last_of(names, record.speakers) or _last_of(names, group.speaker_history)
        handed_to = self._handed_to.get(_NEXT)
        agent = group.agent_by_name(handed_to or active) if handed_to or active else None
        is_first = agent is not None

        def select_speaker(last_speaker: Any, chat: Any) -> Any:
            nonlocal is_first
            if not is_first:
                return select(last_speaker, chat)
            is_first = False
            initial = select(last_speaker, chat)  # which names the initial agent the first time that it is called
            if handed_to is None and active not in record.speakers and not record.has_earlier:
                return initial  # the user resumed from a message before the first one of an agent
            is_natural = handed_to is None and pattern.user_agent is not None and last_speaker is pattern.user_agent
            return select(last_speaker, chat) if is_natural else agent

        return select_speaker

    def _save(self, t: Writes, pattern: Any, manager: Any) -> None:
        self.restore(pattern)
        if self._is_restored:
            self._variables.replace(t, pattern.context_variables.data)
        else:
            self._variables.add_changes(t)
        self._handed_to.replace(t, {_NEXT: name} if (name := _handed_to(manager)) else {})


def _last_of(names: set[str], speakers: list[str]) -> str | None:
    return next((name for name in reversed(speakers) if name in names), None)


def _handed_to(manager: Any) -> str | None:
    """The name of the agent that a tool has handed the chat to and that has not been selected yet."""
    for agent in manager.groupchat.agents:
        target = getattr(agent, "_group_next_target", None)
        if target is not None:
            return getattr(target, "agent_name", None)
        target = getattr(agent, "_swarm_next_agent", None)  # an agent, its name, or an option of a swarm
        if target is not None:
            return str(target.name) if isinstance(target, Agent) else target if isinstance(target, str) else None
    return None


class ChatStarter:
    """Stands for the agent that starts the chat of a manager, and makes the chat persistent before.

    AutoGen makes a chat in a synchronous call, also under an event loop, which must not wait for what is stored. It
    awaits the start.
    """

    def __init__(self, agent: Any, attach: Callable[[Any], None]) -> None:
        """`attach` makes the chat of a manager persistent."""
        self._agent = agent
        self._attach = attach

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def initiate_chat(self, manager: Any, *args: Any, **kwargs: Any) -> Any:
        self._attach(manager)
        return self._agent.initiate_chat(manager, *args, **kwargs)

    async def a_initiate_chat(self, manager: Any, *args: Any, **kwargs: Any) -> Any:
        await asyncio.to_thread(self._attach, manager)
        return await self._agent.a_initiate_chat(manager, *args, **kwargs)


def attach_before_resume(manager: Any, attach: Callable[[Any], None]) -> None:
    """Make the chat of a manager persistent before AutoGen resumes it, which it does if several messages are given."""
    own_resume, own_a_resume = manager.resume, manager.a_resume

    def resume(*args: Any, **kwargs: Any) -> Any:
        attach(manager)
        return own_resume(*args, **kwargs)

    async def a_resume(*args: Any, **kwargs: Any) -> Any:
        await asyncio.to_thread(attach, manager)
        return await own_a_resume(*args, **kwargs)

    manager.resume, manager.a_resume = resume, a_resume


class PersistentPattern(Pattern, PersistentMixin):
    """A pattern whose group chats continue; `persist(pattern)` makes one."""

    _scrubjay: PatternPart

    def prepare_group_chat(self, *args: Any, **kwargs: Any) -> Any:
        """Prepare a group chat, as the pattern does, that becomes persistent when it is started."""
        *others, manager, messages, starter, names, users = super().prepare_group_chat(*args, **kwargs)
        attach = partial(self._scrubjay.attach_chat, self)
        attach_before_resume(manager, attach)
        return *others, manager, messages, starter and ChatStarter(starter, attach), names, users


def start_pattern(pattern: Any, memory: Memory | str | None, session: str, **options: Any) -> None:
    """Give a pattern its session; `pattern` is a PersistentPattern that has none so far."""
    PatternPart(pattern, memory, session, options).attach(pattern)
