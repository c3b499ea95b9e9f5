"""AutoGen agents and group chats that go on where they stopped, in another process as in the same one.

    assistant = PersistentAgent("assistant", llm_config=...)
    user.initiate_chat(assistant, message="What is my preferred language?")

AutoGen calls `_append_oai_message` for every message on every path, sync and async, so that is
where an agent's messages are saved. It clears histories on its way into each chat; only what the
user clears is cleared here. Tested with pyautogen 0.2.35 and 0.9, and with autogen 0.14.1.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from functools import cache, cached_property, partial
from importlib import metadata
from types import FrameType
from typing import Any, TypeVar

from scrubjay.errors import InvalidInput, MissingExtra
from scrubjay.memory import Memory
from scrubjay.names import check_count, shown

from ._messages import Message, fitted, snapshot, text_of
from ._saving import Write
from ._sessions import (
    DEFAULT,
    HISTORY,
    MESSAGES,
    SPEAKERS,
    WITH,
    Kept,
    Record,
    Session,
    open_memory,
    quoted,
    repeats,
    together,
)
from ._tools import memory_tools

T = TypeVar("T")
Init = TypeVar("Init", bound=Callable[..., None])

log = logging.getLogger("scrubjay")


def _missing(error: ImportError) -> MissingExtra:
    """The sentence for whoever has no AutoGen, or another package that goes by its name."""
    names = ("pyautogen", "autogen", "ag2", "autogen-agentchat")
    installed = [f"{name} {version}" for name in names if (version := _version(name))]
    have = f"{' and '.join(installed)} installed, without a ConversableAgent" if installed else "none installed"
    return MissingExtra(
        f"this needs AutoGen's ConversableAgent, and there is {have} ({error});"
        ' install one that has it with: pip install "scrubjay[autogen]"'
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


try:
    from autogen import ConversableAgent, GroupChat, GroupChatManager, register_function
except ImportError as error:
    raise _missing(error) from error

CONTEXT_TOKENS = 400
"""What `recall=True` may add to a prompt."""

_MEMBERS = f"{WITH}members"
"""Where the names of a group chat's members are; conversations of agents have another colon in their keys."""
_RESUMING = ("resume", "a_resume")
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Conversations(dict[Any, list[Message]]):
    """An agent's messages by peer, as AutoGen keeps them; a peer is handed what is stored for its name."""

    def __init__(self, restored: Callable[[Any], list[Message]]) -> None:
        super().__init__()
        self._restored = restored

    def __missing__(self, peer: Any) -> list[Message]:
        self[peer] = self._restored(peer)
        return self[peer]


def _shown_with(base: Any) -> Callable[[Init], Init]:
    """Let help() and editors that ask Python show AutoGen's own arguments too, whichever its version has."""

    def decorate(init: Init) -> Init:
        theirs, own = inspect.signature(base.__init__), inspect.signature(init)
        named = {name: given for name, given in own.parameters.items() if given.kind not in _REST}
        parameters = sorted((theirs.parameters | named).values(), key=lambda given: given.kind)
        vars(init)["__signature__"] = own.replace(parameters=parameters)
        return init

    return decorate


class PersistentAgent(ConversableAgent, Kept):
    """A ConversableAgent that remembers: the same arguments, and those of `persist`."""

    name: str
    _oai_messages: dict[Any, list[Message]]

    @_shown_with(ConversableAgent)
    def __init__(
        self,
        name: str,
        *args: Any,
        memory: Memory | str | None = None,
        session: str = DEFAULT,
        max_messages: int | None = None,
        max_tokens: int | None = None,
        recall: bool = False,
        remember: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, *args, **kwargs)
        self._start(memory, session, max_messages=max_messages, max_tokens=max_tokens, recall=recall, remember=remember)

    def _start(
        self,
        memory: Memory | str | None,
        session: str,
        *,
        max_messages: int | None,
        max_tokens: int | None,
        recall: bool,
        remember: bool,
    ) -> None:
        for name, limit in (("max_messages", max_messages), ("max_tokens", max_tokens)):
            if limit is not None:
                check_count(name, limit, least=1)
        self._open(memory, session, self.name)
        self._session.check_list(HISTORY)
        self._remembers = remember
        self._records: dict[str, Record] = {}
        self._resent: dict[Any, list[Message]] = {}
        said, self._oai_messages = self._oai_messages, Conversations(self._restored)
        for peer, messages in said.items():
            self._take_over(peer, messages)
        if max_messages is not None or max_tokens is not None:
            hook = partial(fitted, max_messages=max_messages, max_tokens=max_tokens)
            self.register_hook("process_all_messages_before_reply", hook)
        if recall:
            self.register_hook("process_all_messages_before_reply", self._with_context)

    def _restored(self, peer: Any) -> list[Message]:
        if _keeps_itself(peer):
            return []
        if self._is_mirrored_by(peer):
            return [_mirrored(message) for message in peer._oai_messages[self]]
        name = _peer_name(peer)
        known = next((other for other in self._oai_messages if _peer_name(other) == name), None)
        # Two objects of one name have one conversation, whichever of them speaks.
        view = list(self._record(peer).rows) if known is None else self._oai_messages[known]
        if self._is_twin_of(peer) and self not in peer._oai_messages:
            peer._oai_messages[self] = [_mirrored(message) for message in view]
        return view

    def _record(self, peer: Any) -> Record:
        name = _peer_name(peer)
        if name not in self._records:
            self._records[name] = Record(self._session, self._key(name))
        return self._records[name]

    def _key(self, peer: str = "") -> str:
        """Agents that share a memory have conversations of their own in it."""
        return f"{WITH}{quoted(self.name)}:{quoted(peer)}"

    def _take_over(self, peer: Any, messages: list[Message]) -> None:
        """Messages from before the agent was persistent, unless they are the stored ones."""
        view = self._oai_messages[peer]
        for message in messages[_overlap(view, messages) :]:
            view.append(message)
            self._save(peer, sending=message.get("role") == "assistant")

    def _append_oai_message(self, *args: Any, **kwargs: Any) -> bool:
        appended: bool = super()._append_oai_message(*args, **kwargs)
        if appended:
            peer, sending = _direction(args, kwargs)
            self._save(peer, sending=sending)
        return appended

    def _save(self, peer: Any, *, sending: bool) -> None:
        """Save the last message of a conversation, as it is and as people read it."""
        view = self._oai_messages[peer]
        sender = self.name if sending else _author(view[-1], peer)
        if _keeps_itself(peer) or self._is_mirrored_by(peer):
            writes, saved = [], None if repeats(self._resent.get(peer, []), view) else snapshot(view[-1])
        else:
            writes = self._record(peer).follow(view)
            saved = writes[-1].value if writes else None
        if saved is not None and (sending or not self._is_told_by(sender, peer)):
            line = {"sender": sender, "message": _readable(saved)}
            writes.append(self._session.appended(HISTORY, line))
            if self._remembers and not _uses_tools(saved) and text_of(saved).strip():
                writes.append(self._session.remembered(text_of(saved), sender))
        self._session.write(*writes)
        self.state.save()

    def _is_told_by(self, sender: str, peer: Any) -> bool:
        """Whether the sender has put it into the same conversation_history itself: agents may share a memory."""
        who = peer.groupchat.agent_by_name(sender) if isinstance(peer, GroupChatManager) else peer
        return self._is_beside(who)

    def _is_twin_of(self, peer: Any) -> bool:
        """Whether the peer is another agent of the same name in the same session: they have one record for both."""
        return peer is not self and peer.name == self.name and self._is_beside(peer)

    def _is_beside(self, other: Any) -> bool:
        """Whether the other is an agent in the same session; not one that is mocked, whatever isinstance says."""
        return issubclass(type(other), PersistentAgent) and other._session.is_same_as(self._session)

    def _is_mirrored_by(self, peer: Any) -> bool:
        """Whether the peer keeps this very conversation already; of twins, who looks first does."""
        return self.name not in self._records and self._is_twin_of(peer) and self.name in peer._records

    def _with_context(self, messages: list[Message]) -> list[Message]:
        """What the model is handed, with what is remembered about the last thing said; nothing of it is kept."""
        said = [text for message in messages if (text := text_of(message)).strip()]
        context = self._session.context(said[-1], set(said), CONTEXT_TOKENS) if said else ""
        return [{"role": "system", "content": context}, *messages] if context else messages

    def receive(self, message: Any, sender: Any = None, *args: Any, **kwargs: Any) -> Any:
        return super().receive(message, sender or self._somebody, *args, **kwargs)

    async def a_receive(self, message: Any, sender: Any = None, *args: Any, **kwargs: Any) -> Any:
        return await super().a_receive(message, sender or self._somebody, *args, **kwargs)

    @cached_property
    def _somebody(self) -> Any:
        """Whoever speaks without being an agent: listens, and never answers."""
        return ConversableAgent("user", llm_config=False, human_input_mode="NEVER", max_consecutive_auto_reply=0)

    def clear_history(self, recipient: Any = None, *args: Any, **kwargs: Any) -> None:
        """Clear what the agent knows of its conversations, for the time after a restart too.

        `conversation_history` still tells what was said; `forget` erases that as well. On its way
        into a chat AutoGen calls this for every agent, and then nothing is cleared.
        """
        caller, manager = _autogen_caller(sys._getframe(1))
        if caller in _RESUMING:
            self._await_resending(manager)
        elif caller != "_prepare_chat" or _keeps_itself(recipient):
            super().clear_history(recipient, *args, **kwargs)
            self._save_cleared(recipient, keeps_some=any((*args, *kwargs.values())))

    def _await_resending(self, manager: Any) -> None:
        """The manager is about to hand over the old messages of its chat again, one by one."""
        view = self._oai_messages[manager]  # after a restart only now restored
        unseen = manager.groupchat._unseen_by(self.name) if _keeps_itself(manager) else []
        self._resent[manager] = [*unseen, *view]
        view.clear()

    def _save_cleared(self, recipient: Any, *, keeps_some: bool) -> None:
        self._resent.clear()
        if recipient is None and not keeps_some:  # also with peers that have not been seen since the restart
            self._start_anew()
            self._session.write(self._session.dropped(self._key()))
        for peer in list(self._oai_messages) if recipient is None else [recipient]:
            if not _keeps_itself(peer):
                self._session.write(self._record(peer).replace(self._oai_messages[peer]))

    def _start_anew(self) -> None:
        self._oai_messages.clear()
        self._records.clear()
        self._resent.clear()


class GroupRecord(Record):
    """What a group chat keeps besides its messages.

    AutoGen's manager works on a shallow copy of the chat that it was given: what changes is in
    here, or in the lists, which both have in common.
    """

    def __init__(self, session: Session, members: list[str]) -> None:
        session.check_list(MESSAGES)
        before = session.get(_MEMBERS)
        if isinstance(before, list) and not (set(before) <= set(members) or set(before) >= set(members)):
            raise InvalidInput(
                f"{session.memory!r} holds the group chat of {shown(before)} in its session {session.name!r}; give this"
                " one a session= of its own, or, to replace a member, let the new one join before the old one leaves"
            )
        super().__init__(session, MESSAGES)
        self.members = members
        self._members_saved = before == members
        self.speakers: list[str] = session.parts(SPEAKERS, session.get(SPEAKERS), str)
        self.unseen = 0
        """How many messages, from the first, the members have not been told in this process."""

    def introduce(self) -> list[Write]:
        """Tell the memory once whose chat this is."""
        told, self._members_saved = self._members_saved, True
        return [] if told else [self._session.replaced(_MEMBERS, self.members)]

    def catch_up(self, messages: list[Message]) -> list[Message]:
        earlier = super().catch_up(messages)
        self.speakers[:0] = [message.get("name", "") for message in earlier]
        self.unseen += len(earlier)
        return earlier

    def start_anew(self, rows: list[Message]) -> None:
        """`rows` are what is stored still, if anything is."""
        self.rows = rows
        self._members_saved = False
        self.speakers.clear()
        self.unseen = 0


class PersistentGroupChat(GroupChat, Kept):
    """A GroupChat that goes on: the same arguments, and `memory` and `session`.

    Without `memory` it is known by its members: with one more it is another chat, which starts empty, so that no
    two share anything by accident. Given a `memory`, a chat goes on with what is there when members join, who are
    then told everything from the first message, or leave.
    """

    agents: list[Any]
    _record: GroupRecord

    @_shown_with(GroupChat)
    def __init__(
        self,
        agents: list[Any],
        messages: list[Message] | None = None,
        *args: Any,
        memory: Memory | str | None = None,
        session: str = DEFAULT,
        **kwargs: Any,
    ) -> None:
        super().__init__(agents, [] if messages is None else messages, *args, **kwargs)
        self._start(memory, session)

    def _start(self, memory: Memory | str | None, session: str) -> None:
        names = _names(self)
        if len(set(names)) < len(names):
            log.warning("members of a group chat are told apart by name after a restart; rename some of %s", names)
        self._open(memory, session, f"groupchat:{together(names)}", "groupchat:")
        self._record = record = GroupRecord(self._session, names)
        # People write messages=["A group chat"] too: AutoGen forgets it when the first chat begins.
        self.messages[:] = [message for message in self.messages if isinstance(message, dict)]
        if not _overlap(record.rows, self.messages):
            self.messages[:0] = record.rows
        if len(self.messages) > len(record.rows):
            self._save(self.messages[-1].get("name", ""))
        record.unseen = len(self.messages)

    @property
    def speaker_history(self) -> list[str]:
        """Who spoke, in order, in this process and before."""
        return self._record.speakers

    @property
    def last_speaker(self) -> Any:
        """The member who spoke last; None when nobody has."""
        return self.agent_by_name(self._record.speakers[-1]) if self._record.speakers else None

    def append(self, message: Message, speaker: Any) -> None:
        super().append(message, speaker)
        self._save(speaker.name)

    def _save(self, speaker: str) -> None:
        record, count = self._record, len(self.messages)
        record.unseen = min(record.unseen, count - 1)
        if len(record.speakers) >= count:  # some messages were cleared by hand
            record.speakers[:] = [message.get("name", "") for message in self.messages[:-1]]
        unnoticed = self.messages[len(record.speakers) : -1]
        record.speakers += [*(message.get("name", "") for message in unnoticed), speaker]
        self._session.write(*record.introduce(), *record.follow(self.messages, speaker_history=record.speakers))
        self.state.save()

    def reset(self) -> None:
        """Start the chat anew, for the time after a restart too; on AutoGen's way into a chat this changes nothing."""
        caller, manager = _autogen_caller(sys._getframe(1))
        if caller == "_prepare_chat":
            _replace_copy(manager, self)
            self._record.unseen = len(self.messages)
        else:
            super().reset()

    @property
    def messages(self) -> list[Message]:
        """What was said. A manager that is reset calls GroupChat.reset past the method above: it shows only here."""
        asker = sys._getframe(1)
        if asker.f_code is GroupChat.reset.__code__:
            self._save_reset(resuming=_autogen_caller(asker)[0] in _RESUMING)
        said: list[Message] = self.__dict__["messages"]
        return said

    @messages.setter
    def messages(self, messages: list[Message]) -> None:
        self.__dict__["messages"] = messages

    def _save_reset(self, *, resuming: bool) -> None:
        if resuming:  # which hands over the old messages again, one by one
            self._record.start_anew(self._record.rows)
        else:
            self._record.start_anew([])
            self._session.write(self._record.replace([]), self._session.replaced(SPEAKERS, None))

    def _start_anew(self) -> None:
        self.messages.clear()
        self._record.start_anew([])

    def select_speaker(self, last_speaker: Any, selector: Any) -> Any:
        self._tell_members(selector)
        return super().select_speaker(last_speaker, selector)

    async def a_select_speaker(self, last_speaker: Any, selector: Any) -> Any:
        self._tell_members(selector)
        return await super().a_select_speaker(last_speaker, selector)

    def _tell_members(self, manager: Any) -> None:
        """Give every member its own view of what was said before this chat; the first moment the manager is known."""
        for agent in self.agents if self._record.unseen else ():
            knows = isinstance(agent, PersistentAgent) and not _keeps_itself(manager)  # it has come with its own view
            if hasattr(agent, "_oai_messages") and not knows:
                agent._oai_messages[manager][:0] = self._unseen_by(agent.name)
        self._record.unseen = 0

    def _unseen_by(self, name: str) -> list[Message]:
        """What was said before this chat as the member of that name has it, who has not been told of it yet."""
        return [_seen_by(name, message) for message in self.messages[: self._record.unseen]]


def persist(
    thing: T,
    *,
    memory: Memory | str | None = None,
    session: str = DEFAULT,
    max_messages: int | None = None,
    max_tokens: int | None = None,
    recall: bool = False,
    remember: bool = False,
) -> T:
    """Make an agent or group chat that exists already persistent, and return it; a manager stands for its chat.

    `memory` is a Memory or a namespace, by default one of the name's own; `session` keeps several
    conversations apart. For agents, `max_messages` and `max_tokens` bound what the model is handed,
    `recall` puts what is remembered about a message before it, and `remember` keeps messages as notes.
    """
    made: Any = thing
    if isinstance(thing, Kept):
        raise InvalidInput(f"{thing!r} is persistent already; give memory= and session= where it is made")
    own: Any = type(thing)
    options = {"max_messages": max_messages, "max_tokens": max_tokens, "recall": recall, "remember": remember}
    if isinstance(thing, GroupChat | GroupChatManager):
        wrong = [f"{name}=" for name, value in options.items() if value]
        if wrong:
            raise InvalidInput(
                f"{', '.join(wrong)} is for agents, not for a {own.__name__}; persist its members with it"
            )
        options = {}
    if isinstance(thing, GroupChatManager):
        group = persist(made.groupchat, memory=memory, session=session)
        _replace_copy(made, group)
        made._last_speaker = group.last_speaker
        return thing
    made.__class__ = _persistent(own)
    try:
        made._start(memory, session, **options)
    except BaseException:
        made.__class__ = own
        raise
    return thing


def _replace_copy(manager: Any, group: PersistentGroupChat) -> None:
    """Let a manager that was made before its chat was persistent work on the chat, and not on its copy from then."""
    for reply in manager._reply_func_list:
        copy = reply["config"]
        if isinstance(copy, GroupChat) and not isinstance(copy, PersistentGroupChat):
            reply["config"] = group


def register_memory_tools(memory: Memory | str, *, caller: Any, executor: Any) -> None:
    """Let a model use a memory by itself: tools to remember, recall, get and set, proposed by `caller` and
    run by `executor`. Agents that are given the same memory share it.
    """
    for tool in memory_tools(open_memory(memory, "")):
        register_function(tool, caller=caller, executor=executor, name=tool.__name__, description=str(tool.__doc__))


@cache
def _persistent(own: Any) -> type:
    """The persistent kind of someone's class."""
    for kind, base in ((PersistentAgent, ConversableAgent), (PersistentGroupChat, GroupChat)):
        if issubclass(own, base):
            return type(f"Persistent{own.__name__}", (kind, own), {"__module__": own.__module__})
    raise InvalidInput(f"persist takes a ConversableAgent, a GroupChat or a GroupChatManager, not a {own.__name__}")


def _autogen_caller(frame: FrameType) -> tuple[str | None, Any]:
    """Which method of AutoGen's clears, and whose: an overridden method is told in no other way why it is called."""
    while frame.f_back and frame.f_code.co_name in ("clear_history", "reset"):
        frame = frame.f_back
    if str(frame.f_globals.get("__name__")).partition(".")[0] != "autogen":
        return None, None
    return frame.f_code.co_name, frame.f_locals.get("self")


def _direction(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """The peer, and whether the message goes to it, from any of the signatures of _append_oai_message:

    (message, role, peer), (message, role, peer, is_sending) and (message, peer, role, name); in all of them
    the role is that of a sender or of a receiver, whatever the message's own is.
    """
    rest = args[1:]
    peer = (
        kwargs["conversation_id"] if "conversation_id" in kwargs else next(arg for arg in rest if hasattr(arg, "name"))
    )
    role = kwargs.get("role") or next((arg for arg in rest if isinstance(arg, str)), "assistant")
    return peer, role == "assistant"


def _peer_name(peer: Any) -> str:
    """What a conversation is kept under. All managers are called chat_manager: a group is known by its members."""
    name = str(peer.name)
    return f"{name}:{together(_names(peer.groupchat))}" if isinstance(peer, GroupChatManager) else name


def _names(group: Any) -> list[str]:
    return sorted(str(agent.name) for agent in group.agents)


def _keeps_itself(peer: Any) -> bool:
    """Whether the conversation with the peer is a persistent group chat, which gives it back by itself."""
    return isinstance(peer, GroupChatManager) and isinstance(peer.groupchat, PersistentGroupChat)


def _author(message: Message, peer: Any) -> str:
    """Who said it: in a group chat the manager passes on what others say, under their names."""
    return str(peer.name if message.get("role") == "function" else message.get("name") or peer.name)


def _readable(message: Message) -> Any:
    """The text alone, where there is nothing else."""
    return message if _uses_tools(message) else message["content"]


def _uses_tools(message: Message) -> bool:
    return any(message.get(part) for part in ("tool_calls", "function_call", "tool_responses"))


def _seen_by(name: str, message: Message) -> Message:
    """A message of a group chat as the member of that name has it: its own are an assistant's."""
    if message.get("name") != name or message.get("role") in ("tool", "function"):
        return dict(message)
    if message.get("tool_calls") or message.get("function_call"):  # GroupChat.append made text of the None
        content = message["content"] if message["content"] not in ("", "None") else None
        return {**{key: part for key, part in message.items() if key != "name"}, "content": content}
    return {**message, "role": "assistant"}


def _mirrored(message: Message) -> Message:
    """A message between two agents as the other one has it."""
    roles = {"user": "assistant", "assistant": "user"}
    role = message.get("role", "")
    return {**message, "role": role if _uses_tools(message) else roles.get(role, role)}


def _overlap(stored: list[Message], given: list[Message]) -> int:
    """How many of the given messages are the stored ones, given back by the user's own hand."""
    return len(stored) if given[: len(stored)] == stored else 0
