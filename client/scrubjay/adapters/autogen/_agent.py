"""PersistentAgent: a ConversableAgent whose conversations continue in the next process.

AutoGen calls `_append_oai_message` for every message on every path, sync and async: there an agent's messages are
saved, each in one transaction. It calls `_generate_oai_reply_from_client` for every request to a model: there the
messages are bounded, and tool calls get the results that they lack.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, KeysView
from typing import Any, NamedTuple
from urllib.parse import unquote

from autogen import ConversableAgent

from scrubjay.adapters._messages import Message, for_model, new_messages, snapshot, text_of, uses_tools
from scrubjay.adapters._names import join_names, quote_name
from scrubjay.adapters._records import Elsewhere, Replay, Row, SavedMessages, new_id
from scrubjay.adapters._sessions import Session, Writes, is_on_event_loop
from scrubjay.adapters.autogen._caller import Caller, find_caller, is_of_autogen, is_outside, read_append
from scrubjay.adapters.autogen._persistent import (
    PersistentMixin,
    SessionPart,
    add_signature,
    is_manager,
    is_persistent,
    owns_record,
    warn_of_own_attributes,
)
from scrubjay.conversations import DEFAULT, HISTORY, IDS, WITH
from scrubjay.errors import InvalidInput
from scrubjay.learning import EVERY_MESSAGES, QUIET_SECONDS, check_model
from scrubjay.memory import Memory
from scrubjay.validation import MAX_NOTE_BYTES, check_count

CONTEXT_TOKENS = 400
"""Tokens that `recall=True` may add to a prompt."""
WINDOW_SHARE = 0.75
"""The part of a model's context window that messages may fill by default: tokens are estimated, and the reply, the
system message and the tools need the rest."""

log = logging.getLogger("scrubjay")


class SavedPeer:
    """Stands for an agent of an earlier process in `chat_messages`, until an agent of that name is used."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<SavedPeer {self.name!r}>"


class Conversations(dict[Any, list[Message]]):
    """An agent's messages by peer, as AutoGen has them, and those that are stored.

    A peer gets the messages that are stored for its name. Iterating includes stored conversations whose peer is not
    known in this process, under a SavedPeer.

    Of a long conversation AutoGen gets the end, as much as a prompt needs; code outside AutoGen gets all of it. Both
    get the same list.
    """

    def __init__(self, agent: Any) -> None:
        super().__init__()
        self._agent = agent

    @property
    def _part(self) -> AgentPart:
        part: AgentPart = self._agent._scrubjay
        return part

    def __getitem__(self, peer: Any) -> list[Message]:
        if not self.knows(peer):
            self._restore(peer, is_whole=is_outside(sys._getframe(1)))
        elif self._part.has_earlier(peer) and is_outside(sys._getframe(1)):
            self._part.read_earlier(self, peer)
        return super().__getitem__(peer)

    def _restore(self, peer: Any, *, is_whole: bool) -> None:
        with self._part.session.restoring:
            if not self.knows(peer):
                view = self._part.restore(self._agent, peer, is_whole=is_whole)
                for other in self.known_peers():
                    if isinstance(other, SavedPeer) and other.name == peer_name(peer):
                        del self[other]
                self[peer] = view

    def knows(self, peer: Any) -> bool:
        """Whether this process has the messages for a peer; nothing is read."""
        return super().__contains__(peer)

    def known_peers(self) -> list[Any]:
        return list(super().__iter__())

    def restore_all(self, *, is_whole: bool = False) -> None:
        """Restore the conversations with peers that this process has not used, or the ends of them."""
        known = {peer_name(peer) for peer in self.known_peers()}
        for name in self._part.stored_peers():
            if name not in known:
                self._restore(SavedPeer(name), is_whole=is_whole)

    def read_all(self) -> None:
        """Read all that is stored."""
        self.restore_all(is_whole=True)
        for peer in self.known_peers():
            self._part.read_earlier(self, peer)

    def __contains__(self, peer: object) -> bool:
        if not self.knows(peer) and hasattr(peer, "name") and peer_name(peer) in self._part.stored_peers():
            self[peer]
        return self.knows(peer)

    def get(self, peer: Any, default: Any = None) -> Any:
        if peer not in self:
            return default
        if is_outside(sys._getframe(1)):
            self._part.read_earlier(self, peer)
        return self[peer]

    def __iter__(self) -> Iterator[Any]:
        self.restore_all()
        return super().__iter__()

    def __len__(self) -> int:
        self.restore_all()
        return super().__len__()

    def __bool__(self) -> bool:
        return len(self) > 0

    def keys(self) -> Any:
        return KeysView(self)

    def values(self) -> Any:
        self.read_all()
        return super().values()

    def items(self) -> Any:
        self.read_all()
        return super().items()

    def __repr__(self) -> str:
        self.read_all()
        return super().__repr__()


class Talk(NamedTuple):
    """A peer from which the agent has received a message that it is working on."""

    peer: Any
    view: list[Message]
    start: int
    """How many messages the view had before."""


class AfterSaving:
    """Stands for the recipient of a message that is being saved while an event loop runs.

    AutoGen appends a message to its history and hands it over in one step. The recipient gets it when it is saved, so
    that nobody answers a message that a killed process loses.
    """

    def __init__(self, recipient: Any, session: Session) -> None:
        self.recipient = recipient
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self.recipient, name)

    def receive(self, *args: Any, **kwargs: Any) -> Any:
        self._session.wait()
        return self.recipient.receive(*args, **kwargs)

    async def a_receive(self, *args: Any, **kwargs: Any) -> Any:
        await self._session.wait_async()
        return await self.recipient.a_receive(*args, **kwargs)


class AgentPart(SessionPart):
    """What an agent has in a session: a record for each peer, and how its messages are saved and restored."""

    __slots__ = ("_anonymous_user", "_hidden_peers", "_hides_stored", "_learn_with", "_may_have_earlier", "_peers",
                 "_recalled", "_records", "_remembers", "_replays", "_starts", "_talks", "_unlearned", "_warned",
                 "limits", "name")  # fmt: skip

    def __init__(
        self,
        name: str,
        memory: Memory | str | None,
        session: str,
        *,
        max_messages: int | None = None,
        max_tokens: int | None = None,
        remember: bool,
        resume: bool,
        learn_with: Callable[[str], str] | None = None,
    ) -> None:
        for option, limit in (("max_messages", max_messages), ("max_tokens", max_tokens)):
            if limit is not None:
                check_count(option, limit, least=1)
        super().__init__(memory, name, session, HISTORY, state_owner=name)
        self.name = name
        self.limits = (max_messages, max_tokens)
        self._remembers = remember
        self._learn_with = learn_with
        self._unlearned = 0
        """How many lines were saved since the conversation was last learned from."""
        self._hides_stored = not resume
        self._hidden_peers: set[str] = set()
        """Names of peers whose stored messages stay out of the views in this process."""
        self._records: dict[str, SavedMessages] = {}
        self._may_have_earlier = False
        """Whether a record was ever read in part, or could not be read; most never are."""
        self._replays: dict[Any, Replay] = {}
        self._peers: set[str] | None = None
        self._starts: dict[Any, int | None] = {}
        """How many messages the views had when the last chat with a peer started; None: all that are restored."""
        self._talks: list[Talk] = []
        self._warned = False
        self._recalled: dict[str, str] = {}
        """Notes that were recalled ahead, by the text that they are about."""
        self._anonymous_user: Any = None

    # ------------------------------------------------------------ restoring

    def restore(self, agent: Any, peer: Any, *, is_whole: bool) -> list[Message]:
        """The list of messages for a peer that this process has not used so far: all that are stored, or the end."""
        if is_whole and not owns_record(peer) and not self._peer_has_record(peer):
            self.record(peer, is_whole=True)
        view = self._restored(agent, peer)
        if peer in self._starts:
            self._starts[peer] = len(view)
        return view

    def _restored(self, agent: Any, peer: Any) -> list[Message]:
        conversations: Conversations = agent._oai_messages
        if owns_record(peer):
            return []
        if self._peer_has_record(peer):
            peer._scrubjay.read_earlier(_conversations(peer), agent)
            return [_as_peer(message) for message in _conversations(peer)[agent]]
        name = peer_name(peer)
        known = (other for other in conversations.known_peers() if not owns_record(other))
        same = next((other for other in known if peer_name(other) == name), None)
        # Two objects of one name have one conversation, unless they talk at the same time: see `talk`.
        view = list(self.record(peer).visible) if same is None else conversations[same]
        if self._is_same_name_and_session(peer):
            self.record(peer).read_earlier(view)
        if self._is_same_name_and_session(peer) and agent not in _conversations(peer).known_peers():
            _conversations(peer)[agent] = [_as_peer(message) for message in view]
        return view

    def has_earlier(self, peer: Any) -> bool:
        """Whether the list of messages for a peer lacks some at its start that have not been read yet."""
        if owns_record(peer):
            return bool(peer.groupchat._scrubjay.record.has_earlier)
        record = self._records.get(peer_name(peer)) if self._may_have_earlier else None
        return record is not None and record.has_earlier

    def read_earlier(self, conversations: Conversations, peer: Any) -> None:
        """Read the messages for a peer that have not been read yet."""
        if not self.has_earlier(peer):
            return
        if owns_record(peer):
            peer.groupchat._scrubjay.read_earlier(peer.groupchat)
        else:
            with self.session.restoring:
                view = conversations[peer]
                self._shift(conversations, view, self.record(peer).read_earlier(view))

    def read_for_reply(self, agent: Any, peer: Any) -> None:
        """Read as many messages for a peer as a reply needs; a group chat reads for all its members."""
        if owns_record(peer) or not self.has_earlier(peer):
            return
        conversations, limits = _conversations(agent), needed_by(agent, self.limits)
        if limits is None:
            self.read_earlier(conversations, peer)
        elif limits != (0, None):
            with self.session.restoring:
                view = conversations[peer]
                self._shift(conversations, view, self.record(peer).read_last(view, *limits))

    def _shift(self, conversations: Conversations, view: list[Message], count: int) -> None:
        """Correct positions in a list of messages after so many were put before them."""
        self._talks = [talk._replace(start=talk.start + count) if talk.view is view else talk for talk in self._talks]
        for peer, start in self._starts.items():
            if start is not None and conversations.knows(peer) and conversations[peer] is view:
                self._starts[peer] = start + count

    def is_changed_elsewhere(self, peer: Any) -> bool:
        """Whether another process has written to the conversation with a peer, or erased it."""
        record = self._records.get(peer_name(peer))
        return record is not None and record.elsewhere is not Elsewhere.NOTHING

    def notice(self, agent: Any, peer: Any) -> None:
        """Put what another process has done to the conversation with a peer into the list of messages.

        The message that is to be answered stays the last one, even if others were stored after it.
        """
        with self.session.restoring:
            record = self.record(peer)
            if record.elsewhere is Elsewhere.ERASED:
                self._starts.pop(peer, None)
                self._peers = None
                self.state.reset()
            view = _conversations(agent)[peer]
            answered = view[-1] if view else None
            record.notice(view)
            at = next((i for i, message in enumerate(view) if message is answered), None)
            if at is not None:
                view.append(view.pop(at))

    def lacks_stored(self, peer: Any) -> bool:
        """Whether the stored messages for a peer could not be read so far."""
        record = self._records.get(peer_name(peer))
        return record is not None and not record.is_complete

    def record(self, peer: Any, *, is_whole: bool = False) -> SavedMessages:
        name = peer_name(peer)
        if name not in self._records:
            is_hidden = self._hides_stored or name in self._hidden_peers
            options = {"is_hidden": is_hidden, "is_whole": is_whole}
            record = SavedMessages(self.session, self._key(name), **options)
            self._may_have_earlier |= record.has_earlier or not record.is_complete
            self._records[name] = record
        return self._records[name]

    def _key(self, peer: str = "") -> str:
        """Agents that share a memory have conversations of their own in it."""
        return f"{WITH}{quote_name(self.name)}:{quote_name(peer)}"

    def stored_peers(self) -> set[str]:
        """The names of the peers of stored conversations; read once."""
        if self._hides_stored:
            return set()
        if self._peers is None:
            names = self.session.names(self._key())
            if names is None:
                return _peers_of(self.session.queued().names(self._key()))
            self._peers = _peers_of(names)
        return self._peers

    def take_over(self, conversations: Conversations, peer: Any, given: list[Message]) -> None:
        """Save messages from before the agent was persistent, except those that are stored already."""
        view = conversations[peer]
        self.read_earlier(conversations, peer)
        for message in list(new_messages(list(view), given)):
            view.append(message)
            self.save(view, peer, sending=message.get("role") == "assistant")

    def refresh(self, agent: Any) -> int:
        conversations = agent._oai_messages
        self._peers = None
        peers = [peer for peer in conversations.known_peers() if peer_name(peer) in self._records]
        return sum(self.record(peer).refresh(conversations[peer]) for peer in peers)

    def history(self) -> list[dict[str, Any]]:
        return self.session.history(HISTORY)

    # ------------------------------------------------------------ saving

    def save(self, view: list[Message], peer: Any, *, sending: bool) -> None:
        """Save the last message of a conversation: verbatim, as people read it, and as a note if asked for."""
        if self._is_saved_elsewhere(view, peer, sending=sending):
            return
        with self.session.transaction() as t:
            rows = self._new_rows(t, view, peer)
            for row in rows:
                is_own = sending if row.message is view[-1] else row.message.get("role") == "assistant"
                sender = self.name if is_own else _author(row.message, peer)
                if is_own or not self._has_written(sender, peer):
                    self.save_line(t, row, sender)
            self.state.save_changes(t)

    def _is_saved_elsewhere(self, view: list[Message], peer: Any, *, sending: bool) -> bool:
        """Whether the message is handed over again, or is one of a group chat, which saves it for all its members."""
        replay = self._replays.get(peer)
        if replay is not None and replay.take(view) is not None:
            return True
        self._replays.pop(peer, None)
        return owns_record(peer) and (sending or peer.groupchat._scrubjay.has_saved(view[-1]))

    def _new_rows(self, t: Writes, view: list[Message], peer: Any) -> list[Row]:
        if owns_record(peer) or self._peer_has_record(peer):
            return [Row(new_id(), view[-1])]
        return self.record(peer).sync(t, view)

    def save_line(self, t: Writes, row: Row, sender: str) -> None:
        """Save a message as people read it, and as a note if asked for."""
        saved = snapshot(row.message) if row.saved is None else row.saved
        t.append(self.session.key(HISTORY), {"sender": sender, "message": _readable(saved)})
        t.append(self.session.key(HISTORY + IDS), row.id)
        self._unlearned += 1
        text = text_of(saved)
        if self._remembers and not uses_tools(saved) and text.strip():
            t.remember(
                _first_bytes(text, MAX_NOTE_BYTES),
                type="interaction",
                session=self.session.name,
                metadata={"sender": sender},
            )

    def _has_written(self, sender: str, peer: Any) -> bool:
        """Whether the sender has put the message into the same conversation_history: agents may share a memory."""
        author = peer.groupchat.agent_by_name(sender) if is_manager(peer) else peer
        return self._is_in_session(author)

    def _is_in_session(self, other: Any) -> bool:
        """Whether another agent is in the same session."""
        part = agent_part(other)
        return part is not None and part.session.is_same_as(self.session)

    def _is_same_name_and_session(self, peer: Any) -> bool:
        """Whether the peer is another agent with the same name and session: the two have one record."""
        return self._is_in_session(peer) and peer._scrubjay is not self and peer.name == self.name

    def _peer_has_record(self, peer: Any) -> bool:
        """Whether the peer owns the record of this very conversation; of two agents, the one that used it first."""
        same = self.name not in self._records and self._is_same_name_and_session(peer)
        return same and self.name in peer._scrubjay._records

    # ------------------------------------------------------------ peers that talk at the same time

    @contextlib.contextmanager
    def talk(self, conversations: Conversations, peer: Any) -> Iterator[None]:
        """The time that the agent takes for a message of a peer, its reply and what follows included.

        Another object of the same name that talks to the agent meanwhile is another person: it gets a list of its own.
        """
        name = peer_name(peer)
        other = next((talk for talk in self._talks if talk.peer is not peer and peer_name(talk.peer) == name), None)
        if other is not None and not owns_record(peer) and not self._peer_has_record(peer):
            self._keep_apart(conversations, peer, other)
        view = conversations[peer]
        talk = Talk(peer, view, len(view))
        self._talks.append(talk)
        if self._unlearned >= EVERY_MESSAGES:
            self.learn()
        try:
            yield
        finally:
            self._talks = [each for each in self._talks if each is not talk]
            if not self._talks:
                self.learn(QUIET_SECONDS)

    def _keep_apart(self, conversations: Conversations, peer: Any, other: Talk) -> None:
        if peer in conversations.known_peers() and conversations[peer] is not other.view:
            return
        conversations[peer] = list(other.view[: other.start])
        if not self._warned:
            self._warned = True
            log.warning(
                "two agents named %r talk to %r at the same time; they are kept apart in this process, but saved as one"
                " conversation. Give each person an agent with a session= of their own",
                peer.name, self.name,
            )  # fmt: skip

    def learn(self, delay: float = 0) -> None:
        """Let the model learn from what is new, if it is to, in the background and after so many seconds."""
        if self._learn_with is not None and self._unlearned:
            if not delay:
                self._unlearned = 0
            self.session.learn(HISTORY, self._learn_with, delay)

    # ------------------------------------------------------------ clearing

    def await_replay(self, conversations: Conversations, manager: Any) -> None:
        """Expect the manager to hand over the old messages of its chat again, one by one."""
        view = conversations[manager]  # after a restart it is read only now
        if owns_record(manager):
            seen = [*manager.groupchat._scrubjay.unseen_by(manager.groupchat, self.name), *view]
            self._replays[manager] = Replay(seen, leaves_out_own=True)
        else:
            self.record(manager).replay(leaves_out_own=True)
        view.clear()

    def hide(self, peer: Any = None) -> None:
        """Leave stored messages out of the views from now on, in this process."""
        if peer is None:
            self._hides_stored = True
        elif not owns_record(peer):
            self._hidden_peers.add(peer_name(peer))
        for name, record in self._records.items():
            if peer is None or name == peer_name(peer):
                record.hide()

    def empty(self, conversations: Conversations, peer: Any) -> None:
        """Empty the view of a peer in this process, without reading what is stored, which stays."""
        self.hide(peer)
        if conversations.knows(peer):
            conversations[peer].clear()

    def erase(self, conversations: Conversations, peer: Any, *, keeps_some: bool) -> None:
        """Erase what the user has cleared: the views have what remains."""
        self._replays.clear()
        with self.session.transaction() as t:
            if peer is None and not keeps_some:  # also with peers that this process has not used
                for name in self.session.names(self._key()) or ():
                    t.delete(self.session.key(name))
                self._drop(conversations)
            for other in [peer] if peer is not None else conversations.known_peers():
                if not owns_record(other):
                    self.record(other).replace(t, conversations[other])

    def _drop(self, conversations: Conversations) -> None:
        conversations.clear()
        self._records.clear()
        self._replays.clear()
        self._hidden_peers.clear()
        self._peers = None

    def start_empty(self, owner: Any) -> None:
        self._drop(owner._oai_messages)
        self.state.reset()

    # ------------------------------------------------------------ what the model is sent

    def for_model(self, messages: list[Message], client: Any) -> list[Message]:
        return for_model(messages, *limits_for(client, self.limits))

    def start_chat(self, conversations: Conversations, peer: Any) -> None:
        """Note where a chat starts, for its summary."""
        if peer is not None:
            self._starts[peer] = len(conversations[peer]) if conversations.knows(peer) else None

    def for_summary(self, view: list[Message], peer: Any, client: Any) -> list[Message]:
        """The messages of the last chat with a peer, within the limits."""
        start = self._starts.get(peer) or 0
        return self.for_model(view[start if start < len(view) else 0 :], client)

    def with_context(self, messages: list[Message]) -> list[Message]:
        """The messages behind a system message with notes about the last of them; it is not stored."""
        said = _texts(messages)
        if said and said[-1] not in self._recalled:
            self.recall_ahead(messages)
        context = self._recalled.pop(said[-1], "") if said else ""  # another thread may have taken it
        return [{"role": "system", "content": context}, *messages] if context else messages

    def recall_ahead(self, messages: list[Message]) -> None:
        """Recall what `with_context` will need for these messages."""
        said = _texts(messages)
        if said:
            self._recalled = {said[-1]: self.session.context(said[-1], set(said), CONTEXT_TOKENS)}

    @property
    def anonymous_user(self) -> Any:
        """The sender of messages that come without one; it never answers."""
        if self._anonymous_user is None:
            options: dict[str, Any] = {"llm_config": False, "human_input_mode": "NEVER"}
            self._anonymous_user = ConversableAgent("user", max_consecutive_auto_reply=0, **options)
        return self._anonymous_user


def agent_part(thing: Any) -> AgentPart | None:
    """What an agent has in its session; None if it is not a persistent agent."""
    part = vars(thing).get("_scrubjay") if is_persistent(thing) else None
    return part if isinstance(part, AgentPart) else None


class PersistentAgent(ConversableAgent, PersistentMixin):
    """A ConversableAgent that continues its conversations, in another process as in the same one.

    It takes the arguments of ConversableAgent, and these:

    :param memory: a Memory, or the name of a namespace; by default a namespace made of the project (the
        folder of the program, or SCRUBJAY_PROJECT) and the agent's name.
    :param session: keeps several conversations in one memory apart, such as those of several users.
    :param max_messages: how many messages the model is sent at most; all are stored.
    :param max_tokens: the same in tokens, estimated; by default three quarters of the model's context window, if
        AutoGen knows the model.
    :param recall: before each reply, put notes of the memory about the last message into the prompt.
    :param remember: store each message as a note, too, for `recall`.
    :param learn: True to let the agent's own model turn what is new in the conversation into notes, for `recall`, or a
        function that is given a prompt and returns a model's answer. That is done in the background when a chat ends
        and every 20 messages, and costs at most SCRUBJAY_LEARN_TOKENS a day.
    :param resume: start with the stored conversations; with False they stay stored, and the agent starts empty.
    :raises Unauthenticated, Forbidden: if the api key of the memory may not write to it.
    :raises InvalidInput: if `conversation_history` in the memory is a value of your own, or `learn=True` is given
        without an `llm_config`.

    What cannot be stored at once is queued in a file on this machine and sent later (see `Memory`); an error is logged
    if that fails, too. With a Memory that is `strict`, a history that cannot be read raises Unavailable.
    """

    name: str
    _oai_messages: dict[Any, list[Message]]
    _scrubjay: AgentPart

    @add_signature(ConversableAgent)
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
        learn: bool | Callable[[str], str] = False,
        resume: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, *args, **kwargs)
        limits = {"max_messages": max_messages, "max_tokens": max_tokens}
        start_agent(self, memory, session, recall=recall, remember=remember, learn=learn, resume=resume, **limits)
        warn_of_own_attributes(self)

    def _append_oai_message(self, *args: Any, **kwargs: Any) -> bool:
        args, kwargs = _with_recipient(args, kwargs)
        appended: bool = super()._append_oai_message(*args, **kwargs)
        if appended and "_scrubjay" in vars(self):
            peer, sending = read_append(args, kwargs)
            try:
                self._scrubjay.save(self._oai_messages[peer], peer, sending=sending)
            except Exception:  # saving never breaks a chat, and a defect of ours least of all
                log.exception("a message of %r is not saved", self.name)
        return appended

    def _process_message_before_send(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = _with_recipient(args, kwargs)
        return super()._process_message_before_send(*args, **kwargs)

    def _generate_oai_reply_from_client(self, llm_client: Any, messages: Any, cache: Any, **kwargs: Any) -> Any:
        sent = self._scrubjay.for_model(messages, llm_client)
        return super()._generate_oai_reply_from_client(llm_client, sent, cache, **kwargs)

    def chat_messages_for_summary(self, agent: Any) -> list[Message]:
        """The messages of this chat, for a summary by a model; earlier chats are not part of it."""
        return self._scrubjay.for_summary(self._oai_messages[agent], agent, getattr(self, "client", None))

    def receive(self, message: Any, sender: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Receive a message; without a sender it is from an anonymous agent named "user"."""
        sender = sender or self._scrubjay.anonymous_user
        with self._scrubjay.talk(_conversations(self), sender):
            self._scrubjay.read_for_reply(self, sender)
            return super().receive(message, sender, *args, **kwargs)

    async def a_receive(self, message: Any, sender: Any = None, *args: Any, **kwargs: Any) -> Any:
        sender = sender or self._scrubjay.anonymous_user
        await self._scrubjay_restore(sender)
        with self._scrubjay.talk(_conversations(self), sender):
            if self._scrubjay.has_earlier(sender):
                await asyncio.to_thread(self._scrubjay.read_for_reply, self, sender)
            result = await super().a_receive(message, sender, *args, **kwargs)
        await self._scrubjay.session.wait_async()
        return result

    def send(self, message: Any, recipient: Any, *args: Any, **kwargs: Any) -> Any:
        """Send a message; the recipient gets it when it is saved."""
        if is_on_event_loop():
            recipient = AfterSaving(recipient, self._scrubjay.session)
        return super().send(message, recipient, *args, **kwargs)

    async def a_send(self, message: Any, recipient: Any, *args: Any, **kwargs: Any) -> Any:
        await self._scrubjay_restore(recipient)
        waiting = AfterSaving(recipient, self._scrubjay.session)
        return await super().a_send(message, waiting, *args, **kwargs)

    async def _scrubjay_restore(self, peer: Any) -> None:
        """Read the messages for a peer without holding up the event loop: they may come from a server."""
        conversations, part = _conversations(self), self._scrubjay
        if not conversations.knows(peer):
            await asyncio.to_thread(lambda: conversations[peer])
        elif part.lacks_stored(peer):
            await asyncio.to_thread(part.record(peer).catch_up, conversations[peer])

    def generate_reply(self, messages: Any = None, sender: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Generate a reply; the message is saved before."""
        part = self._scrubjay
        part.session.wait()
        if sender is not None:
            if part.is_changed_elsewhere(sender):
                part.notice(self, sender)
            part.read_for_reply(self, sender)
        return super().generate_reply(messages, sender, *args, **kwargs)

    async def a_generate_reply(self, messages: Any = None, sender: Any = None, *args: Any, **kwargs: Any) -> Any:
        part = self._scrubjay
        await part.session.wait_async()
        if sender is not None and part.is_changed_elsewhere(sender):
            await asyncio.to_thread(part.notice, self, sender)
        if sender is not None and part.has_earlier(sender):
            await asyncio.to_thread(part.read_for_reply, self, sender)
        if part.with_context in self.hook_lists["process_all_messages_before_reply"]:
            about = messages if messages is not None else self._oai_messages[sender]
            await asyncio.to_thread(part.recall_ahead, about)
        return await super().a_generate_reply(messages, sender, *args, **kwargs)

    def initiate_chat(self, recipient: Any, *args: Any, **kwargs: Any) -> Any:
        """Start a chat. With `clear_history=True` written out, it starts empty; what is stored stays."""
        result = super().initiate_chat(recipient, *args, **kwargs)
        self._scrubjay.learn()
        self._scrubjay.read_earlier(_conversations(self), recipient)  # the list is result.chat_history
        return result

    async def a_initiate_chat(self, recipient: Any, *args: Any, **kwargs: Any) -> Any:
        result = await super().a_initiate_chat(recipient, *args, **kwargs)
        await self._scrubjay.session.wait_async()
        self._scrubjay.learn()
        await asyncio.to_thread(self._scrubjay.read_earlier, _conversations(self), recipient)
        return result

    def clear_history(self, recipient: Any = None, *args: Any, **kwargs: Any) -> None:
        """Clear the agent's conversations with the recipient, or all: no model is sent them again, in any process.

        `conversation_history` and `history()` keep them until `forget`. AutoGen itself calls this, too. At the start of
        a chat that does nothing; elsewhere it clears the messages in this process, and what is stored stays.
        """
        caller, manager = find_caller(sys._getframe(1))
        if caller is Caller.RESUME:
            self._scrubjay.await_replay(_conversations(self), manager)
        elif caller in _STARTS_OF_CHATS and not owns_record(recipient):
            if caller is Caller.START_OF_EMPTY_CHAT:
                self._scrubjay.empty(_conversations(self), recipient)
            self._scrubjay.start_chat(_conversations(self), recipient)
        else:
            keeps_some = any((*args, *kwargs.values()))
            if keeps_some:
                _conversations(self).read_all()
            super().clear_history(recipient, *args, **kwargs)
            if caller is Caller.USER:
                self._scrubjay.erase(_conversations(self), recipient, keeps_some=keeps_some)
            elif caller is Caller.AUTOGEN:
                self._scrubjay.hide(recipient)


def start_agent(
    agent: Any,
    memory: Memory | str | None,
    session: str,
    *,
    recall: bool = False,
    remember: bool = False,
    learn: bool | Callable[[str], str] = False,
    resume: bool = True,
    **limits: int | None,
) -> None:
    """Give an agent its session; `agent` is a PersistentAgent that has none so far."""
    model = model_of(agent) if learn is True else learn or None
    if model is not None:
        check_model(model)
    part = AgentPart(agent.name, memory, session, remember=remember, resume=resume, learn_with=model, **limits)
    said, agent._oai_messages = agent._oai_messages, Conversations(agent)
    part.attach(agent)
    for peer, messages in said.items():
        part.take_over(agent._oai_messages, peer, list(messages))
    if recall:
        agent.register_hook("process_all_messages_before_reply", part.with_context)


def model_of(agent: Any) -> Callable[[str], str]:
    """A function that asks the model of an agent."""
    if getattr(agent, "client", None) is None:
        raise InvalidInput(
            f"learn=True asks the model of {agent.name!r}, which has no llm_config; give it one, or learn=f with a"
            " function that is given a prompt and returns a model's answer"
        )

    def ask(prompt: str) -> str:
        config = agent.llm_config or {}
        # The agent's tools are sent with every request of its client; none is to be called here.
        without = {"tool_choice": "none"} if config.get("tools") else {}
        without |= {"function_call": "none"} if config.get("functions") else {}
        client = agent.client
        answer = client.create(messages=[{"role": "user", "content": prompt}], cache=None, **without)
        found = client.extract_text_or_completion_object(answer)
        return str(found[0]) if found else ""

    return ask


def _with_recipient(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with the recipient itself in place of an AfterSaving."""
    if not any(type(arg) is AfterSaving for arg in (*args, *kwargs.values())):
        return args, kwargs
    given = tuple(arg.recipient if type(arg) is AfterSaving else arg for arg in args)
    return given, {name: arg.recipient if type(arg) is AfterSaving else arg for name, arg in kwargs.items()}


def needed_by(agent: Any, limits: Limits) -> Limits | None:
    """How many messages a reply of an agent needs at most; None: all, for a program or for a model without a bound.

    An agent without a model whose messages only AutoGen reads needs none.
    """
    if _has_readers(agent):
        return None
    client = getattr(agent, "client", None)
    if client is None:
        return 0, None
    bounds = limits_for(client, limits)
    return None if bounds == (None, None) else bounds


def _has_readers(agent: Any) -> bool:
    """Whether code of the user's reads the messages before a reply: a hook, a reply function or a method."""
    if not isinstance(agent, ConversableAgent):
        return True
    hooks = [hook for name in _READING_HOOKS for hook in agent.hook_lists.get(name, ())]
    functions = [reply["reply_func"] for reply in agent._reply_func_list]
    own = [vars(kind)[name] for kind in type(agent).__mro__ for name in _REPLYING if name in vars(kind)]
    own_part = vars(agent).get("_scrubjay", agent)
    return any(getattr(hook, "__self__", None) is not own_part for hook in hooks) or not all(
        is_of_autogen(function) for function in [*functions, *own]
    )


_STARTS_OF_CHATS = (Caller.START_OF_CHAT, Caller.START_OF_EMPTY_CHAT)
_READING_HOOKS = ("process_all_messages_before_reply", "update_agent_state")
_REPLYING = ("generate_reply", "a_generate_reply")


def _texts(messages: list[Message]) -> list[str]:
    return [text for message in messages if (text := text_of(message)).strip()]


def _conversations(agent: Any) -> Conversations:
    found: Any = agent._oai_messages
    return found  # type: ignore[no-any-return]


def peer_name(peer: Any) -> str:
    """The name that a conversation is stored under. Every manager is named chat_manager, so a group chat goes by its
    members.
    """
    name = str(peer.name)
    return f"{name}:{join_names(member_names(peer.groupchat))}" if is_manager(peer) else name


def _peers_of(keys: list[str] | None) -> set[str]:
    """The names of the peers of the conversations with these keys."""
    return {unquote(key.rpartition(":")[2]) for key in keys or ()}


def member_names(group: Any) -> list[str]:
    return sorted(str(agent.name) for agent in group.agents)


def _author(message: Message, peer: Any) -> str:
    """The sender of a message: a manager passes on the messages of others, under their names."""
    return str(peer.name if message.get("role") == "function" else message.get("name") or peer.name)


def _readable(message: Message) -> Any:
    """The text alone if there is nothing else."""
    return message if uses_tools(message) else message["content"]


def _first_bytes(text: str, count: int) -> str:
    encoded = text.encode(errors="replace")
    return text if len(encoded) <= count else encoded[:count].decode(errors="ignore")


def _as_peer(message: Message) -> Message:
    """A message between two agents as the other one has it."""
    roles = {"user": "assistant", "assistant": "user"}
    role = message.get("role", "")
    return {**message, "role": role if uses_tools(message) else roles.get(role, role)}


Limits = tuple[int | None, int | None]
"""How many messages, and how many tokens, a model is sent at most."""


def limits_for(client: Any, limits: Limits) -> Limits:
    """The limits that a user has given, or that of the model's context window."""
    return limits if limits != (None, None) else (None, _default_max_tokens(client))


def _default_max_tokens(client: Any) -> int | None:
    """A bound from the context window of the client's model; None if AutoGen does not know the model."""
    try:
        from autogen.token_count_utils import get_max_token_limit  # noqa: PLC0415 - it loads tiktoken

        return int(get_max_token_limit(client._config_list[0]["model"]) * WINDOW_SHARE)
    except Exception:  # noqa: BLE001 - each version raises errors of its own for a model that it does not know
        return None
