"""Storage, sessions and memory stores for Strands Agents.

    agent = Agent(session_manager=RepositorySessionManager("sarah", ScrubjaySessionRepository()))
    agent = Agent(plugins=[MemoryManager(stores=[ScrubjayMemoryStore()])])

Tested with strands-agents 1.62.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scrubjay.adapters._framework import missing, open_memory, read, write
from scrubjay.adapters._large import delete_text, load_text, save_text
from scrubjay.adapters._plain import plain
from scrubjay.adapters._recall import first_bytes
from scrubjay.async_memory import AsyncMemory
from scrubjay.conversations import MESSAGES, STATE, entry, session_key
from scrubjay.errors import Conflict, ScrubjayError
from scrubjay.memory import Memory

try:
    from strands.memory.extraction.types import ExtractionConfig
    from strands.memory.types import MemoryEntry, MemoryStore, SearchOptions
    from strands.session.session_repository import SessionRepository
    from strands.storage.search.keyword import KeywordSearchStrategy
    from strands.storage.storage import StorageSearchResult, _normalize_key, _normalize_prefix
    from strands.types.exceptions import SessionException, StorageError
    from strands.types.session import Session, SessionAgent, SessionMessage
except ImportError as error:
    raise missing("strands", "Strands Agents 1.62 or newer", error) from error

if TYPE_CHECKING:
    from strands.multiagent import MultiAgentBase

Names = list[str]
Found = list[StorageSearchResult]
"""Types of results, outside of the class that has a method `list`."""
NOTES = 5
"""Notes that a search returns, unless the call says how many."""


class ScrubjayStorage:
    """A Storage: bytes under keys, in a Memory, for SnapshotSessionManager and whatever else takes one.

    :param memory: a Memory or AsyncMemory, or the name of a namespace. Open it with `strict=True`: a write is never
        queued.
    """

    def __init__(self, memory: Memory | AsyncMemory | str = "strands-storage") -> None:
        self._memory = open_memory(memory, strict=True)

    async def write(self, key: str, data: bytes) -> None:
        """Store bytes of any length, in place of those under the key; a reader sees either all of them or none.

        :raises StorageError: if the key is not valid, or the bytes cannot be stored.
        """
        name = _file_key(key)
        try:
            await write(save_text, self._memory, name, *_encode(data))
        except ScrubjayError as error:
            raise StorageError(f"cannot write {key!r}: {error}") from error

    async def read(self, key: str) -> bytes | None:
        """Return the bytes under a key; None if there are none.

        :raises StorageError: if the key is not valid, or the server is unreachable.
        """
        name = _file_key(key)
        try:
            found: bytes | None = await read(self._load, name)
        except ScrubjayError as error:
            raise StorageError(f"cannot read {key!r}: {error}") from error
        return found

    async def delete(self, key: str) -> None:
        """Delete the bytes under a key, if there are any.

        :raises StorageError: if the key is not valid, or the server is unreachable.
        """
        name = _file_key(key)
        try:
            await write(delete_text, self._memory, name)
        except ScrubjayError as error:
            raise StorageError(f"cannot delete {key!r}: {error}") from error

    async def list(self, query: str = "") -> Names:
        """Return the keys that start with a prefix, in order.

        :raises StorageError: if the prefix is not valid, or the server is unreachable.
        """
        prefix = _FILES + _normalize_prefix(query)
        try:
            keys = await read(self._memory.keys, prefix)
        except ScrubjayError as error:
            raise StorageError(f"cannot list {query!r}: {error}") from error
        return [key.removeprefix(_FILES) for key in keys]

    async def search(self, query: str) -> Found:
        """Return what contains words of a query, as the storage classes of Strands do, the best first."""
        found: Found = await KeywordSearchStrategy().search(self, query)
        return found

    def _load(self, name: str) -> bytes | None:
        row = self._memory.get(name)
        text = load_text(self._memory, name, row) if row else None
        return None if text is None else _decode(text, row["encoding"])


_FILES = "file/"
"""Before the keys of a storage, so that the parts of long values are not among them."""


def _file_key(key: str) -> str:
    return _FILES + str(_normalize_key(key))


def _encode(data: bytes) -> tuple[str, dict[str, str]]:
    """Bytes as text, which people can read if the bytes are text, and how they are encoded."""
    try:
        return bytes(data).decode(), {"encoding": "utf-8"}
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), {"encoding": "base64"}


def _decode(text: str, encoding: str) -> bytes:
    return base64.b64decode(text) if encoding == "base64" else text.encode()


# ------------------------------------------------------------ sessions


class ScrubjaySessionRepository(SessionRepository):
    """A SessionRepository: the messages of each agent, in a list of a Memory that `scrubjay chat` shows.

        agent = Agent(session_manager=RepositorySessionManager("sarah", ScrubjaySessionRepository()))

    :param memory: a Memory or AsyncMemory, or the name of a namespace. Open it with `strict=True`: a message that is
        queued would be missing when the agent is made again.
    """

    def __init__(self, memory: Memory | AsyncMemory | str = "strands") -> None:
        self._memory = open_memory(memory, strict=True)

    # Strands passes arguments by these names.

    def create_session(self, session: Session, **_: Any) -> Session:
        """Store a new session.

        :raises SessionException: if it exists.
        """
        self._create(_state_key(session.session_id), session.to_dict(), f"session {session.session_id!r}")
        return session

    def read_session(self, session_id: str, **_: Any) -> Session | None:
        """Return a session; None if it does not exist."""
        found = self._memory.get(_state_key(session_id))
        return Session.from_dict(found) if found else None

    def create_agent(self, session_id: str, session_agent: SessionAgent, **_: Any) -> None:
        """Store a new agent of a session.

        :raises SessionException: if it exists, or the session does not.
        """
        self._check_exists(session_id)
        key = _state_key(session_id, "agent", session_agent.agent_id)
        self._create(key, session_agent.to_dict(), f"agent {session_agent.agent_id!r}")

    def read_agent(self, session_id: str, agent_id: str, **_: Any) -> SessionAgent | None:
        """Return an agent of a session; None if it does not exist."""
        found = self._memory.get(_state_key(session_id, "agent", agent_id))
        return SessionAgent.from_dict(found) if found else None

    def update_agent(self, session_id: str, session_agent: SessionAgent, **_: Any) -> None:
        """Replace the state of an agent; the time of its creation stays.

        :raises SessionException: if it does not exist.
        """
        key = _state_key(session_id, "agent", session_agent.agent_id)
        before = self._existing(key, f"agent {session_agent.agent_id!r}")
        self._memory.set(key, plain({**session_agent.to_dict(), "created_at": before["created_at"]}))

    def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **_: Any) -> None:
        """Append a message to those of an agent.

        :raises SessionException: if the agent does not exist, or another message has the same id: then another process
            goes on with the same session.
        """
        self._existing(_state_key(session_id, "agent", agent_id), f"agent {agent_id!r}")
        number, key = session_message.message_id, _list_key(session_id, agent_id)
        last_key = _state_key(session_id, "last_message", agent_id)
        last = self._memory.item(last_key)
        name = f"message {number} of agent {agent_id!r} in session {session_id!r}"
        if last and last.value >= number and self._position(key, number) is not None:
            raise SessionException(f"{name} exists already")
        try:
            with self._memory.transaction() as t:
                t.append(key, _to_item(session_message))
                t.update({last_key: number}, if_versions={last_key: last.version if last else 0})
        except Conflict as error:
            raise SessionException(f"{name} was stored by another process at the same time") from error

    def read_message(self, session_id: str, agent_id: str, message_id: int, **_: Any) -> SessionMessage | None:
        """Return a message; None if it does not exist."""
        key = _list_key(session_id, agent_id)
        at = self._position(key, message_id)
        found = self._memory.slice(key, at, at + 1) if at is not None else []
        return _to_message(found[0]) if found else None

    def update_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **_: Any) -> None:
        """Replace a message, as when a guardrail redacts it; the time of its creation stays.

        :raises SessionException: if it does not exist.
        """
        key = _list_key(session_id, agent_id)
        while True:
            stored = self._memory.item(key)
            items = stored.value if stored else []
            numbers = [item["message_id"] for item in items]
            if stored is None or session_message.message_id not in numbers:
                raise SessionException(f"message {session_message.message_id} does not exist in {session_id!r}")
            at = numbers.index(session_message.message_id)
            items[at] = {**_to_item(session_message), "created_at": items[at]["created_at"]}
            try:
                self._memory.set(key, items, if_version=stored.version)
            except Conflict:  # another process has appended meanwhile
                continue
            return

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **_: Any
    ) -> list[SessionMessage]:
        """Return messages of an agent, oldest first; the cost does not depend on how many there are before them.

        :raises Unavailable: if the server is unreachable: an empty history would look like a new conversation.
        """
        stop = None if limit is None else offset + limit
        return [_to_message(item) for item in self._memory.slice(_list_key(session_id, agent_id), offset, stop)]

    def create_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **_: Any) -> None:
        """Store the state of a graph or a swarm.

        :raises SessionException: if the session does not exist.
        """
        self._check_exists(session_id)
        self._memory.set(_state_key(session_id, "multi_agent", multi_agent.id), plain(multi_agent.serialize_state()))

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **_: Any) -> dict[str, Any] | None:
        """Return the state of a graph or a swarm; None if there is none."""
        found: dict[str, Any] | None = self._memory.get(_state_key(session_id, "multi_agent", multi_agent_id))
        return found

    def update_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **_: Any) -> None:
        """Replace the state of a graph or a swarm.

        :raises SessionException: if there is none.
        """
        key = _state_key(session_id, "multi_agent", multi_agent.id)
        self._existing(key, f"multi-agent {multi_agent.id!r}")
        self._memory.set(key, plain(multi_agent.serialize_state()))

    def _create(self, key: str, value: Mapping[str, Any], name: str) -> None:
        try:
            self._memory.set(key, plain(value), if_version=0)
        except Conflict as error:
            raise SessionException(f"{name} exists already") from error

    def _existing(self, key: str, name: str) -> Any:
        found = self._memory.get(key)
        if found is None:
            raise SessionException(f"{name} does not exist")
        return found

    def _check_exists(self, session_id: str) -> None:
        self._existing(_state_key(session_id), f"session {session_id!r}")

    def _position(self, key: str, number: int) -> int | None:
        """Where a message is in its list: mostly at its number."""
        if number >= 0 and [item["message_id"] for item in self._memory.slice(key, number, number + 1)] == [number]:
            return number
        numbers = [item["message_id"] for item in self._memory.get(key, [])]
        return numbers.index(number) if number in numbers else None


def _state_key(session_id: str, *names: str) -> str:
    return session_key(session_id, STATE + ":".join(["strands", *names]))


def _list_key(session_id: str, agent_id: str) -> str:
    return session_key(session_id, f"{MESSAGES}:{agent_id}")


def _to_item(message: SessionMessage) -> dict[str, Any]:
    """A message as an item of a conversation, which shows the text that replaces a redacted one."""
    fields: dict[str, Any] = plain(message.to_dict())
    original, redacted = fields.pop("message"), fields.pop("redact_message")
    shown = redacted or original
    return entry(shown, sender=shown["role"]) | fields | ({"original": original} if redacted else {})


def _to_message(item: Mapping[str, Any]) -> SessionMessage:
    redacted = {"message": item["original"], "redact_message": item["message"]} if "original" in item else {}
    return SessionMessage.from_dict({**item, **redacted})


# ------------------------------------------------------------ notes


class ScrubjayMemoryStore(MemoryStore):
    """A MemoryStore: notes of a Memory that are found by their words, without a model.

        agent = Agent(plugins=[MemoryManager(stores=[ScrubjayMemoryStore()], add_tool_config=True)])

    :param name: the name of the store, by which tools choose it.
    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    :param session: only notes of this session; without it, all of the namespace.
    :param description: what the model is told about the store.
    :param max_search_results: notes that a search returns at most.
    :param writable: whether the agent may add notes.
    :param extraction: Strands' configuration for notes that are taken from the conversation by a model.
    """

    def __init__(
        self,
        name: str = "memory",
        memory: Memory | AsyncMemory | str = "strands",
        *,
        session: str | None = None,
        description: str | None = None,
        max_search_results: int | None = None,
        writable: bool = True,
        extraction: ExtractionConfig | bool | None = None,
    ) -> None:
        self.name = name
        self.description = description
        self.max_search_results = max_search_results
        self.writable = writable
        self.extraction = extraction
        self._session = session
        self._memory = open_memory(memory)

    async def search(self, query: str, options: SearchOptions | None = None) -> list[MemoryEntry]:
        """Return the notes that fit a query best, best first.

        :raises Unavailable: if the server is unreachable.
        """
        about = first_bytes(query)
        limit = (options or {}).get("max_search_results") or self.max_search_results or NOTES
        if not about.strip():
            return []
        notes = await read(self._memory.recall, about, limit=limit, session=self._session)
        return [
            MemoryEntry(note.content, metadata={**note.metadata, "id": note.id, "score": note.score}) for note in notes
        ]

    async def add(self, content: str, metadata: Mapping[str, Any] | None = None) -> str | None:
        """Store a note, and return its id; None when it is queued. The same content twice is one note."""
        note = await write(
            self._memory.remember, content, session=self._session, metadata=plain(metadata) if metadata else None
        )
        return note.id if note else None
