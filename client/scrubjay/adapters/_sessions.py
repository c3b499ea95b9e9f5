"""Several conversations in one memory, each under keys of its own.

The session "default" has the plain keys that people expect in a memory (conversation_history);
those of any other stand behind `session:<name>:`.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from hashlib import sha256
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from scrubjay.errors import InvalidInput
from scrubjay.memory import Memory
from scrubjay.names import MAX_NAMESPACE_CHARS, MAX_RECALL, check_key, shown
from scrubjay.recall.context import as_context
from scrubjay.values import decode, encode

from ._messages import snapshot
from ._saving import Write, is_remote, saver_of

DEFAULT = "default"
MAX_SESSION_BYTES = 128
"""Which leaves room for the rest of the key."""
MAX_NAME_BYTES = 120
"""Of an agent's name in a key, which may hold two of them and a session's."""
_MARK = "session:"
_NOTES = 8
"""Notes that are put into a prompt, if they fit."""


class Session:
    """One conversation's part of a memory, read and written without ever failing the agent."""

    def __init__(self, memory: Memory, name: str) -> None:
        self.memory = memory
        self.name = name
        self._prefix = _prefix(name)
        self._saver = saver_of(memory)

    def is_same_as(self, other: Session) -> bool:
        return self._saver is other._saver and self.name == other.name

    @property
    def down(self) -> bool:
        """Whether the memory cannot be reached just now."""
        return self._saver.down

    @property
    def unsaved(self) -> int:
        """How many writes wait for it."""
        return self._saver.unsaved

    def get(self, key: str) -> Any:
        return self._saver.get(self._prefix + key)

    def keys(self, prefix: str) -> list[str]:
        start = self._prefix + prefix
        found: list[str] = self._saver.read(lambda: self.memory.keys(start), [])
        return [key.removeprefix(self._prefix) for key in found]

    def write(self, *writes: Write) -> None:
        """Save in this order; the makers of writes are below."""
        self._saver.write(*writes)

    def appended(self, key: str, item: Any) -> Write:
        # A server's answer can be lost, and the append is then sent again; a file's cannot.
        return Write("append", self._prefix + key, item, uuid4().hex if is_remote(self.memory) else None)

    def replaced(self, key: str, value: Any) -> Write:
        return Write("set", self._prefix + key, value)

    def dropped(self, prefix: str) -> Write:
        return Write("drop", self._prefix + prefix)

    def remembered(self, text: str, sender: str) -> Write:
        note = {"content": text, "type": "interaction", "session": self.name, "metadata": {"sender": sender}}
        return Write("remember", f"{self._prefix}notes", note)

    def context(self, query: str, seen: set[str], max_tokens: int) -> str:
        """What is remembered about this and not seen anyway: in this session, or in none, for all to know."""

        def ask() -> str:
            limit = min(_NOTES + len(seen), MAX_RECALL)
            own = self.memory.recall(query, limit=limit, session=self.name)
            common = [note for note in self.memory.recall(query, limit=limit) if note.session is None]
            best = sorted(own + common, key=lambda note: note.score or 0, reverse=True)
            return as_context([note for note in best if note.content not in seen][:_NOTES], max_tokens)

        return self._saver.read(ask, "")

    def names(self) -> list[str]:
        """Every session of the memory that holds something, this one or not."""
        keys = self.memory.keys()
        others = {_name(key) for key in keys if key.startswith(_MARK)}
        return sorted(others | {DEFAULT for key in keys if not key.startswith(_MARK)})

    def forget(self, name: str | None) -> int:
        """Erase a session for good, notes included; how many keys it had."""
        name = self.name if name is None else name
        prefix = _prefix(name)
        keys = self._saver.erase(prefix, but=None if prefix else _MARK)
        for note in self.memory.notes(session=name):
            self.memory.forget(note.id)
        return keys


class Record:
    """A list of messages as it is stored, which follows the framework's own list."""

    def __init__(self, session: Session, key: str) -> None:
        self._session = session
        self._key = key
        self.rows: list[Any] = session.get(key) or []
        self._complete = not session.down

    def follow(self, messages: list[Any], **parallel: list[Any]) -> list[Write]:
        """What to write now that `messages` has a new last one; `parallel` lists, by key, go along.

        A framework that starts from an old list hands over all its messages again, one by one: as
        long as they are the stored ones there is nothing to write. The first that differs begins
        a new course, and what was stored from there on gives way to it.
        """
        self.catch_up(messages)
        if repeats(self.rows, messages):
            return []
        count = len(messages)
        lists = {self._key: messages, **parallel}
        if count <= len(self.rows):
            del self.rows[count - 1 :]
            writes = [self._session.replaced(key, _copies(items[:-1])) for key, items in lists.items()]
        else:
            writes = []
        new = range(len(self.rows), count)
        writes += [self._session.appended(key, snapshot(items[i])) for i in new for key, items in lists.items()]
        self.rows += messages[len(self.rows) :]
        return writes

    def replace(self, messages: list[Any]) -> Write:
        """What to write now that `messages` is another list."""
        self.rows = list(messages)
        return self._session.replaced(self._key, _copies(messages))

    def catch_up(self, messages: list[Any]) -> list[Any]:
        """Put what could not be read at first before what has been said since; what that is."""
        if self._complete:
            return []
        stored = self._session.get(self._key) or []
        if self._session.down:
            return []
        self._complete = True
        earlier: list[Any] = stored[: len(stored) - len(self.rows)]
        messages[:0] = earlier
        self.rows[:0] = earlier
        return earlier


class State(MutableMapping[str, Any]):
    """An agent's values by name, such as preferences and counts. What is assigned is saved:

    agent.state["preferences"] = {"language": "Python"}
    """

    def __init__(self, session: Session, owner: str) -> None:
        self._session = session
        self._prefix = f"state:{quoted(owner)}:"
        self._values = {key.removeprefix(self._prefix): session.get(key) for key in session.keys(self._prefix)}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        write = self._session.replaced(self._prefix + name, decode(encode(value)))
        check_key(write.key)
        self._values[name] = value
        self._session.write(write)

    def __delitem__(self, name: str) -> None:
        del self._values[name]
        self._session.write(self._session.replaced(self._prefix + name, None))

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"State({self._values!r})"


def repeats(rows: list[Any], messages: list[Any]) -> bool:
    """Whether the last of `messages` is the row that stands at its place already."""
    return len(messages) <= len(rows) and bool(messages[-1] == rows[len(messages) - 1])


def open_memory(memory: Memory | str | None, namespace: str) -> Memory:
    """What a user may give as `memory=`: one, the name of one, or nothing."""
    if isinstance(memory, Memory):
        return memory
    if memory is None or isinstance(memory, str):
        return Memory(memory or namespace)
    raise InvalidInput(f"memory= takes a Memory or a namespace, not {shown(memory)}")


def namespace_of(*names: str) -> str:
    """A namespace made of foreign names; what it cannot carry or hold is replaced by a digest."""
    plain = "-".join(names)
    safe = "".join(character if character.isprintable() and character != "/" else "_" for character in plain)
    if safe == plain and len(plain) <= MAX_NAMESPACE_CHARS:
        return plain
    digest = sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{safe[: MAX_NAMESPACE_CHARS - 17]}-{digest}"


def together(names: list[str]) -> str:
    """Several names as one that no other names make."""
    return "+".join(name.replace("%", "%25").replace("+", "%2B") for name in names)


def quoted(name: str) -> str:
    """A name as a part of a key, whose parts are separated by colons; a long one by its beginning and a digest."""
    safe = name.encode(errors="replace").decode().replace("%", "%25").replace(":", "%3A")
    if len(safe.encode()) <= MAX_NAME_BYTES:
        return safe
    return f"{safe[:20]}%{sha256(name.encode(errors='surrogatepass')).hexdigest()[:16]}"


def _copies(messages: list[Any]) -> list[Any] | None:
    return [snapshot(message) for message in messages] or None


def _prefix(session: Any) -> str:
    if not isinstance(session, str) or not 0 < len(session.encode(errors="replace")) <= MAX_SESSION_BYTES:
        raise InvalidInput(f"a session is named by 1 to {MAX_SESSION_BYTES} bytes of text, not {shown(session)}")
    return "" if session == DEFAULT else f"{_MARK}{quoted(session)}:"


def _name(key: str) -> str:
    return unquote(key.removeprefix(_MARK).partition(":")[0])
