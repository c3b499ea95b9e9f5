"""PersistentGroupChat: a GroupChat that continues in the next process."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from autogen import GroupChat, GroupChatManager

from scrubjay.adapters._messages import Message, for_model, new_messages, with_results
from scrubjay.adapters._names import join_names
from scrubjay.adapters._records import Elsewhere, GroupMessages, Row
from scrubjay.adapters._sessions import Writes, is_on_event_loop, saving
from scrubjay.adapters.autogen._agent_part import AgentPart, agent_part
from scrubjay.adapters.autogen._caller import (
    Caller,
    find_caller,
    is_group_reset,
    is_group_summary,
    is_of_autogen,
    is_outside,
)
from scrubjay.adapters.autogen._conversations import member_names
from scrubjay.adapters.autogen._limits import Limits, check_limits, limits_for, needed_by
from scrubjay.adapters.autogen._persistent import (
    PersistentMixin,
    SessionPart,
    add_signature,
    is_persistent,
    owns_record,
    warn_of_own_attributes,
)
from scrubjay.conversations import DEFAULT, MESSAGES, WITH
from scrubjay.errors import InvalidInput, repr_short
from scrubjay.memory import Memory

log = logging.getLogger("scrubjay")

_MEMBERS = f"{WITH}members"
"""The key of the names of the members; keys of conversations have another colon."""


class GroupPart(SessionPart):
    """What a group chat has in a session.

    AutoGen's manager works on a shallow copy of the chat: what changes is in here, or in the lists that both share.
    """

    __slots__ = (
        "_given",
        "_given_count",
        "_is_introduced",
        "_replaces_views",
        "_start",
        "limits",
        "manager",
        "members",
        "record",
        "save_beside",
        "unseen",
    )

    def __init__(
        self,
        memory: Memory | str | None,
        session: str,
        members: list[str],
        limits: Limits,
        *,
        is_open: bool,
    ) -> None:
        super().__init__(memory, f"groupchat:{join_names(members)}", session, MESSAGES, state_owner="groupchat:")
        self.members = members
        self.limits = limits
        stored = (self.session.get_many(_MEMBERS) or {}).get(_MEMBERS)
        self._check_members(stored, is_open=is_open)
        self._is_introduced = stored == members
        self.record = GroupMessages(self.session, MESSAGES, self.first_length)
        self._given: dict[str, list[Message]] = {}
        """The earlier messages that each member was given, by its name."""
        self._given_count = 0
        """How many messages of the chat these are."""
        self.unseen = 0
        """How many messages, from the first, the members do not have in this process."""
        self._replaces_views = False
        """Whether the members have messages that another process has changed."""
        self._start = 0
        """How many messages there were when this chat started."""
        self.manager: Any = None
        """The manager of the last selection of a speaker."""
        self.save_beside: Callable[[Writes], None] | None = None
        """What else is saved with each message."""

    def _check_members(self, stored: Any, *, is_open: bool) -> None:
        """Raise InvalidInput if the memory has another chat; an open one may change all members but one at once."""
        before, here = set(stored) if isinstance(stored, list) else set(), set(self.members)
        if not (before <= here or before >= here or (is_open and before & here)):
            raise InvalidInput(
                f"{self.memory!r} has the group chat of {repr_short(stored)} in its session {self.session.name!r};"
                " give this one a session= of its own, or, to replace a member, let the new one join before the old one"
                " leaves"
            )

    def history(self) -> list[dict[str, Any]]:
        return self.session.history(MESSAGES)

    def save(self, group: Any, speaker: Any) -> None:
        """Save the last message and its speaker, for the members, too: they write no line of their own for it."""
        messages = group.messages
        self.unseen = min(self.unseen, len(messages) - 1)
        if not is_on_event_loop():
            self.catch_up(messages)
        with saving(self.session) as transaction_of:
            rows = self.save_messages(transaction_of(self.session), messages, str(speaker.name))
            for part in _parts([speaker, *group.agents]) if rows else ():
                t = transaction_of(part.session)
                row = rows[-1]._replace(message=_as_member(part.name, messages[-1]), saved=None)
                part.save_line(t, row, str(speaker.name))
                part.state.save_changes(t)

    def catch_up(self, messages: list[Message]) -> None:
        """Put stored messages before the others if they could not be read at first."""
        self.unseen += self.record.catch_up(messages)

    def save_messages(self, t: Writes, messages: list[Message], speaker: str) -> list[Row]:
        """Save the messages at the end of the chat that are not saved yet."""
        self._save_members(t)
        rows = self.record.sync(t, messages, speaker)
        self.state.save_changes(t)
        if self.save_beside is not None:
            self.save_beside(t)
        return rows

    def has_saved(self, message: Message) -> bool:
        """Whether a message that a member has is the last of the chat."""
        last = self.record.rows[-1].message if self.record.rows else {}
        return all(last.get(part) == message.get(part) for part in ("content", "name"))

    def _save_members(self, t: Writes) -> None:
        if not self._is_introduced:
            self._is_introduced = True
            t.set(self.session.key(_MEMBERS), self.members)

    def clear(self, caller: Caller) -> None:
        """Called when the messages of the chat are about to be cleared."""
        self.unseen = 0
        if caller is Caller.RESUME:  # which hands over the old messages again, one by one
            self.record.replay()
        elif caller is Caller.USER:
            self._is_introduced = False
            with self.session.transaction() as t:
                self.record.replace(t, [])
        else:
            self.record.hide()

    def start_empty(self, owner: Any) -> None:
        owner.messages.clear()
        self.record = GroupMessages(self.session, MESSAGES)
        self._is_introduced = False
        self.unseen = 0
        self.state.reset()

    def refresh(self, owner: Any) -> int:
        count = self.record.refresh(owner.messages)
        if count:
            self._replace_views(owner)
        return count

    @property
    def is_changed_elsewhere(self) -> bool:
        """Whether another process has written to the chat, or erased it."""
        return self.record.elsewhere is not Elsewhere.NOTHING

    def notice(self, group: Any) -> None:
        """Do to the chat of this process what another one has done to it."""
        if self.record.elsewhere is Elsewhere.ERASED:
            self._is_introduced = False
            self._start = 0
            self.state.reset()
        before = len(group.messages)
        if self.record.notice(group.messages) or len(group.messages) != before:
            self._replace_views(group)

    def _replace_views(self, group: Any) -> None:
        """Let `inform_members` give every member all messages, in place of those that it has."""
        self.unseen = len(group.messages)
        self._replaces_views = True

    def start_chat(self, count: int) -> None:
        """Note how many messages there are when a chat starts."""
        self.unseen = self._start = count
        self._given.clear()
        self._replaces_views = False  # AutoGen has cleared what the members had

    # ------------------------------------------------------------ a long chat

    def read_earlier(self, group: Any) -> None:
        """Read the messages that have not been read yet."""
        self._shift(group, self.record.read_earlier(group.messages))

    def lacks_for_turn(self, group: Any, manager: Any) -> bool:
        return self.record.has_earlier and any(limits != (0, None) for limits in self._needed(group, manager))

    def read_for_turn(self, group: Any, manager: Any) -> None:
        """Read as many messages as the models of the manager and of the members need, and the user's functions."""
        for limits in self._needed(group, manager) if self.record.has_earlier else ():
            if limits is None:
                self.read_earlier(group)
            elif limits != (0, None):
                self._shift(group, self.record.read_last(group.messages, *limits))

    def _needed(self, group: Any, manager: Any) -> Iterator[Limits | None]:
        """What each of them needs, as `needed_by` says."""
        method = group.speaker_selection_method
        if callable(method):
            yield (0, None) if is_of_autogen(method) else None
        elif str(method).lower() == "auto":  # by a model that may be another than the manager's
            bounds = limits_for(getattr(manager, "client", None), self.limits)
            yield None if bounds == (None, None) else bounds
        for agent in group.agents:
            part = agent_part(agent)
            yield needed_by(agent, self.limits if part is None else part.limits)

    def _shift(self, group: Any, count: int) -> None:
        """Correct positions, and what the members were given, after so many messages were put before the others."""
        if not count:
            return
        self._start += count
        if self.unseen:
            self.unseen += count
            return
        self._given_count += count
        for agent in filter(is_persistent, group.agents):
            given = self._given.get(agent.name)
            view = next((view for view in _views(agent) if given and view and view[0] is given[0]), None)
            if given and view is not None:
                self._given[agent.name] = earlier = _answered(
                    _as_members(agent.name, group.messages[: self._given_count])
                )
                view[: len(given)] = earlier

    def unseen_by(self, group: Any, name: str) -> list[Message]:
        """The messages from before this chat as the member of that name has them."""
        return _as_members(name, group.messages[: self.unseen])

    def inform_members(self, group: Any, manager: Any) -> None:
        """Give every member its own view of the messages from before this chat, as soon as the manager is known."""
        for agent in group.agents if self.unseen else ():
            has_own = is_persistent(agent) and not owns_record(manager)
            if hasattr(agent, "_oai_messages") and not has_own:
                view = agent._oai_messages[manager]
                self._given[agent.name] = earlier = self._earlier(group, agent)
                view[: len(view) if self._replaces_views else 0] = earlier
        if self.unseen:
            self._given_count = self.unseen
        self.unseen = 0
        self._replaces_views = False

    def _earlier(self, group: Any, agent: Any) -> list[Message]:
        """The messages from before this chat for a member; for one that does not bound what its model is sent itself,
        as many as fit.
        """
        earlier = _answered(self.unseen_by(group, agent.name))
        if is_persistent(agent):
            return earlier
        return for_model(earlier, *limits_for(getattr(agent, "client", None), self.limits))

    def for_manager(self, messages: list[Message]) -> list[Message]:
        """The messages for the model of the manager, which selects the next speaker."""
        return for_model(messages, *limits_for(getattr(self.manager, "client", None), self.limits))

    def for_summary(self, messages: list[Message]) -> list[Message]:
        """The messages of this chat, not those of earlier ones, within the limits."""
        start = self._start if self._start < len(messages) else 0
        return self.for_manager(messages[start:])


class PersistentGroupChat(GroupChat, PersistentMixin):
    """A GroupChat that continues, in another process as in the same one.

    It takes the arguments of GroupChat, and these:

    :param memory: a Memory, or the name of a namespace; by default a namespace made of the project (the folder of the
        program, or SCRUBJAY_PROJECT) and the members' names. Then one more member makes another chat, which starts
        empty. With a memory a chat continues when members join, who get all messages from the first one, or leave.
    :param session: keeps several chats in one memory apart.
    :param max_messages: how many messages a model that selects the next speaker is sent at most, and how many of the
        earlier messages a member starts with that is not persistent itself.
    :param max_tokens: the same in tokens, estimated; by default three quarters of the model's context window, if
        AutoGen knows the model.
    :raises Unauthenticated, Forbidden: if the api key of the memory may not write to it.
    :raises InvalidInput: if the memory has the chat of other members, or a value of your own under `messages`.
    """

    agents: list[Any]
    _scrubjay: GroupPart

    @add_signature(GroupChat)
    def __init__(
        self,
        agents: list[Any],
        messages: list[Message] | None = None,
        *args: Any,
        memory: Memory | str | None = None,
        session: str = DEFAULT,
        max_messages: int | None = None,
        max_tokens: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(agents, [] if messages is None else messages, *args, **kwargs)
        start_group_chat(self, memory, session, max_messages=max_messages, max_tokens=max_tokens)
        warn_of_own_attributes(self)

    @property
    def speaker_history(self) -> list[str]:
        """The names of the speakers, in order, of this process and of earlier ones."""
        self._scrubjay.read_earlier(self)
        return self._scrubjay.record.speakers

    @property
    def last_speaker(self) -> Any:
        """The member who spoke last; None if nobody has."""
        rows = self._scrubjay.record.rows
        return self.agent_by_name(rows[-1].speaker) if rows else None

    def append(self, message: Message, speaker: Any) -> None:
        super().append(message, speaker)
        try:
            self._scrubjay.save(self, speaker)
        except Exception:  # saving never breaks a chat, and a defect of ours least of all
            log.exception("a message of a group chat is not saved")

    def reset(self) -> None:
        """Clear the chat, and erase it from the memory.

        AutoGen itself calls this, too. At the start of a chat that does nothing; elsewhere it clears the messages in
        this process, and what is stored stays.
        """
        caller, manager = find_caller(sys._getframe(1))
        if caller is not Caller.START_OF_CHAT:
            super().reset()
        if caller in (Caller.START_OF_CHAT, Caller.START_OF_EMPTY_CHAT):
            attach_manager(manager, self)
            self._scrubjay.start_chat(len(self.messages))

    @property
    def messages(self) -> list[Message]:
        """The messages; for a summary those of this chat.

        A manager's reset calls GroupChat.reset past the method above, and is noticed here.
        """
        frame = sys._getframe(1)
        found: list[Message] = self.__dict__["messages"]
        if is_group_reset(frame):
            self._scrubjay.clear(find_caller(frame)[0])
        elif is_group_summary(frame):
            return self._scrubjay.for_summary(found)
        elif "_scrubjay" in self.__dict__ and self._scrubjay.record.has_earlier and is_outside(frame):
            self._scrubjay.read_earlier(self)
        return found

    @messages.setter
    def messages(self, messages: list[Message]) -> None:
        self.__dict__["messages"] = messages

    def select_speaker(self, last_speaker: Any, selector: Any) -> Any:
        self._scrubjay.session.wait()
        if self._scrubjay.is_changed_elsewhere:
            self._scrubjay.notice(self)
        self._scrubjay.manager = selector
        self._scrubjay.read_for_turn(self, selector)
        self._scrubjay.inform_members(self, selector)
        return super().select_speaker(last_speaker, selector)

    async def a_select_speaker(self, last_speaker: Any, selector: Any) -> Any:
        await self._scrubjay.session.wait_async()
        if not self._scrubjay.record.is_complete:
            await asyncio.to_thread(self._scrubjay.catch_up, self.messages)
        if self._scrubjay.is_changed_elsewhere:
            await asyncio.to_thread(self._scrubjay.notice, self)
        self._scrubjay.manager = selector
        if self._scrubjay.lacks_for_turn(self, selector):
            await asyncio.to_thread(self._scrubjay.read_for_turn, self, selector)
        self._scrubjay.inform_members(self, selector)
        return await super().a_select_speaker(last_speaker, selector)

    def _prepare_and_select_agents(self, last_speaker: Any) -> tuple[Any, list[Any], list[Message] | None]:
        """The messages are those that a model sees which selects the next speaker."""
        selected, agents, messages = super()._prepare_and_select_agents(last_speaker)
        return selected, agents, messages and self._scrubjay.for_manager(messages)


def start_group_chat(
    group: Any,
    memory: Memory | str | None,
    session: str,
    *,
    max_messages: int | None = None,
    max_tokens: int | None = None,
    members: list[str] | None = None,
) -> None:
    """Give a group chat its session; `group` is a PersistentGroupChat that has none so far.

    `members` are the names of those that a pattern was given; AutoGen adds agents of its own to the chat.
    """
    limits = check_limits(max_messages, max_tokens)
    names = member_names(group)
    if len(set(names)) < len(names):
        log.warning("members of a group chat are told apart by name after a restart; rename some of %s", names)
    part = GroupPart(memory, session, members or names, limits, is_open=members is not None)
    part.attach(group)
    # People write messages=["A group chat"], too: AutoGen drops it when the first chat begins.
    given = [message for message in group.messages if isinstance(message, dict)]
    if given:
        part.record.read_earlier()
    stored = part.record.visible
    new = list(new_messages(stored, given))
    group.messages[:] = [*stored, *new]
    if new:
        with part.session.transaction() as t:
            part.save_messages(t, group.messages, str(new[-1].get("name", "")))
    part.unseen = len(group.messages)


def attach_manager(manager: Any, group: PersistentGroupChat) -> None:
    """Let a manager work on the chat, not on the copy that it made before the chat was persistent.

    An async chat ends only when it is saved.
    """
    for reply in manager._reply_func_list:
        copy = reply["config"]
        if isinstance(copy, GroupChat) and not is_persistent(copy):
            reply["config"] = group
        if reply["reply_func"] is GroupChatManager.a_run_chat:
            reply["reply_func"] = _run_chat_and_save


@wraps(GroupChatManager.a_run_chat)
async def _run_chat_and_save(manager: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return await GroupChatManager.a_run_chat(manager, *args, **kwargs)
    finally:
        if is_persistent(manager.groupchat):
            await manager.groupchat._scrubjay.session.wait_async()


def _parts(agents: list[Any]) -> list[AgentPart]:
    """The persistent ones of the agents, the first of each session: it writes the lines of that session."""
    parts: list[AgentPart] = []
    for part in filter(None, map(agent_part, agents)):
        if not any(part.session.is_same_as(other.session) for other in parts):
            parts.append(part)
    return parts


def _answered(messages: list[Message]) -> list[Message]:
    """The messages as they are, unless a tool call among them has no result or a result has no call."""
    complete = with_results(messages)
    return messages if len(complete) == len(messages) else complete


def _as_members(name: str, messages: list[Message]) -> list[Message]:
    return [_as_member(name, message) for message in messages]


def _views(agent: Any) -> list[list[Message]]:
    """The lists of messages that an agent has; nothing is read."""
    return list(dict.values(agent._oai_messages))


def _as_member(name: str, message: Message) -> Message:
    """A message of a group chat as the member of that name has it: its own have the role of an assistant."""
    if message.get("name") != name or message.get("role") in ("tool", "function"):
        return dict(message)
    if message.get("tool_calls") or message.get("function_call"):  # GroupChat.append made text of the None
        content = message["content"] if message["content"] not in ("", "None") else None
        return {**{key: part for key, part in message.items() if key != "name"}, "content": content}
    return {**message, "role": "assistant"}
