"""What an agent has in a session: a record for each peer, what its model is sent, and what its user reads."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

from autogen import ConversableAgent

from scrubjay.adapters._messages import Message, for_model, new_messages, snapshot, text_of, uses_tools
from scrubjay.adapters._names import quote_name
from scrubjay.adapters._recall import first_bytes
from scrubjay.adapters._records import Elsewhere, Replay, Row, SavedMessages, new_id
from scrubjay.adapters._sessions import Writes
from scrubjay.adapters.autogen._conversations import Conversations, conversations_of, peer_name
from scrubjay.adapters.autogen._limits import check_limits, limits_for, needed_by
from scrubjay.adapters.autogen._persistent import SessionPart, is_manager, is_persistent, owns_record
from scrubjay.conversations import HISTORY, IDS, WITH
from scrubjay.learning import EVERY_MESSAGES, QUIET_SECONDS
from scrubjay.memory import Memory

CONTEXT_TOKENS = 400
"""Tokens that `recall=True` may add to a prompt."""
log = logging.getLogger("scrubjay")


class Talk(NamedTuple):
    """A peer from which the agent has received a message that it is working on."""

    peer: Any
    view: list[Message]
    start: int
    """How many messages the view had before."""


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
        self.limits = check_limits(max_messages, max_tokens)
        super().__init__(memory, name, session, HISTORY, state_owner=name)
        self.name = name
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
            peer._scrubjay.read_earlier(conversations_of(peer), agent)
            return [_as_peer(message) for message in conversations_of(peer)[agent]]
        name = peer_name(peer)
        known = (other for other in conversations.known_peers() if not owns_record(other))
        same = next((other for other in known if peer_name(other) == name), None)
        # Two objects of one name have one conversation, unless they talk at the same time: see `talk`.
        view = list(self.record(peer).visible) if same is None else conversations[same]
        if self._is_same_name_and_session(peer):
            self.record(peer).read_earlier(view)
        if self._is_same_name_and_session(peer) and agent not in conversations_of(peer).known_peers():
            conversations_of(peer)[agent] = [_as_peer(message) for message in view]
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
        conversations, limits = conversations_of(agent), needed_by(agent, self.limits)
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
            view = conversations_of(agent)[peer]
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
        saved = snapshot(row.message, self.session) if row.saved is None else row.saved
        t.append(self.session.key(HISTORY), {"sender": sender, "message": _readable(saved)})
        t.append(self.session.key(HISTORY + IDS), row.id)
        self._unlearned += 1
        text = text_of(saved)
        if self._remembers and not uses_tools(saved) and text.strip():
            t.remember(
                first_bytes(text),
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


def _texts(messages: list[Message]) -> list[str]:
    return [text for message in messages if (text := text_of(message)).strip()]


def _peers_of(keys: list[str] | None) -> set[str]:
    """The names of the peers of the conversations with these keys."""
    return {unquote(key.rpartition(":")[2]) for key in keys or ()}


def _author(message: Message, peer: Any) -> str:
    """The sender of a message: a manager passes on the messages of others, under their names."""
    return str(peer.name if message.get("role") == "function" else message.get("name") or peer.name)


def _readable(message: Message) -> Any:
    """The text alone if there is nothing else."""
    return message if uses_tools(message) else message["content"]


def _as_peer(message: Message) -> Message:
    """A message between two agents as the other one has it."""
    roles = {"user": "assistant", "assistant": "user"}
    role = message.get("role", "")
    return {**message, "role": role if uses_tools(message) else roles.get(role, role)}
