"""Several conversations in one memory, each under keys of its own.

The session "default" has the plain keys that people expect in a memory (conversation_history);
those of any other stand behind `session:<name>:`. Other keys in the same memory are the user's own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import unquote
from uuid import uuid4
from weakref import WeakValueDictionary

from scrubjay.errors import Conflict, InvalidInput, Unavailable
from scrubjay.memory import Memory, is_remote
from scrubjay.names import MAX_NAMESPACE_CHARS, MAX_RECALL, check_key, shown
from scrubjay.recall.context import as_context
from scrubjay.values import decode, encode

from ._messages import snapshot
from ._saving import BEFORE, Write, saver_of

DEFAULT = "default"
MAX_SESSION_BYTES = 128
"""Which leaves room for the rest of the key."""
MAX_NAME_BYTES = 120
"""Of an agent's name in a key, which may hold two of them and a session's."""
HISTORY, MESSAGES, SPEAKERS = "conversation_history", "messages", "speaker_history"
"""What people read. The rest of what is kept stands behind the prefixes below."""
WITH, STATE = "with:", "state:"
_MARK = "session:"
_NOTES = 8
"""Notes that are put into a prompt, if they fit."""

T = TypeVar("T")

log = logging.getLogger("scrubjay")


def is_reserved(key: str) -> bool:
    """Whether conversations are kept there."""
    return key in (HISTORY, MESSAGES, SPEAKERS) or key.startswith((WITH, STATE, _MARK))


class Session:
    """One conversation's part of a memory, read and written without ever failing the agent."""

    __slots__ = ("__dict__", "_saver")  # out of vars(), which AutoGen's logger follows to the end

    def __init__(self, memory: Memory, name: str) -> None:
        self.memory = memory
        self.name = name
        self._prefix = _prefix(name)
        self._saver = saver_of(memory)

    def __deepcopy__(self, _memo: object) -> Session:
        """The copy of an agent is another agent in the same session."""
        return self

    def is_same_as(self, other: Session, name: str | None = None) -> bool:
        """Whether it is the other one, or the one of that name in the other's memory."""
        return self._saver is other._saver and self.name == (name or other.name)

    @property
    def unsaved(self) -> int:
        """How many writes wait for it."""
        return self._saver.unsaved

    def get(self, key: str) -> Any:
        return self._saver.get(self._prefix + key)

    def look(self, key: str) -> tuple[bool, Any]:
        """Whether the memory could be read, and the value."""
        return self._saver.look(self._prefix + key)

    def look_all(self, prefix: str) -> dict[str, Any] | None:
        """All values whose keys start like this, by the rest of the key; None when the memory cannot be read."""
        start = self._prefix + prefix
        found = self._saver.look_all(start)
        return None if found is None else {key.removeprefix(start): value for key, value in found.items()}

    def parts(self, key: str, stored: Any, kind: type[T]) -> list[T]:
        """The items of a list that is stored; what else is there is no reason to fail in the middle of a chat."""
        parts = [part for part in stored if isinstance(part, kind)] if isinstance(stored, list) else []
        if stored is not None and parts != stored:
            log.error("%r holds something that is not ours under %r; delete it", self.memory, self._prefix + key)
        return parts

    def check_list(self, key: str) -> None:
        """A value of somebody else's where messages are to be appended is better told of before the first one."""

        def is_list() -> bool:
            try:
                self._saver.memory.tail(self._prefix + key, 1)
            except Conflict:
                return False
            return True

        if not self._saver.read(is_list, otherwise=True):
            raise InvalidInput(
                f"{self._prefix + key!r} in {self.memory!r} is no list, so no messages can be kept there;"
                " delete it, or give another memory= or session="
            )

    def write(self, *writes: Write) -> None:
        """Save in this order; the makers of writes are below."""
        self._saver.write(*writes)

    def appended(self, key: str, item: Any) -> Write:
        # A server's answer can be lost, and the append is then sent again; a file's cannot.
        return Write("append", self._prefix + key, item, uuid4().hex if is_remote(self.memory.place) else None)

    def merged(self, key: str, value: Any) -> Write:
        """For a value that was assigned before the stored one could be read."""
        return Write("merge", self._prefix + key, value)

    def replaced(self, key: str, value: Any) -> Write:
        return Write("set", self._prefix + key, value)

    def dropped(self, prefix: str) -> Write:
        return Write("drop", self._prefix + prefix)

    def remembered(self, text: str, sender: str) -> Write:
        note = {"content": text, "type": "interaction", "session": self.name, "metadata": {"sender": sender}}
        return Write("remember", self._prefix + WITH, note)  # a key that nothing has, and that is forgotten along

    def context(self, query: str, seen: set[str], max_tokens: int) -> str:
        """What is remembered about this and not seen anyway: in this session, or in none, for all to know."""

        def ask() -> str:
            limit = min(_NOTES + len(seen), MAX_RECALL)
            memory = self._saver.memory
            own = memory.recall(query, limit=limit, session=self.name)
            common = [note for note in memory.recall(query, limit=limit) if note.session is None]
            best = sorted(own + common, key=lambda note: note.score or 0, reverse=True)
            return as_context([note for note in best if note.content not in seen][:_NOTES], max_tokens)

        return self._saver.read(ask, "")

    def names(self) -> list[str]:
        """Every session of the memory that holds something, this one or not."""
        keys = list(filter(is_reserved, self._saver.memory.keys()))
        return sorted({_name(key) if key.startswith(_MARK) else DEFAULT for key in keys})

    def forget(self, name: str) -> int:
        """Erase a session for good, notes included; how many keys it had. What else is in the memory stays."""
        prefix = _prefix(name)

        def is_meant(key: str) -> bool:
            return key.startswith(prefix) if prefix else is_reserved(key) and not key.startswith(_MARK)

        keys = self._saver.erase(prefix, is_meant)
        memory = self._saver.memory
        for note in memory.notes(session=name):
            memory.forget(note.id)
        if any(write.verb == "remember" for write in memory.pending()):  # and nobody can say yet which they become
            raise Unavailable(
                f"notes wait to be sent to {memory.place}, and can be forgotten only then; see memory.pending()"
            )
        return keys


class Kept:
    """What agents and group chats have in common: a session of a memory."""

    memory: Memory
    session: str
    state: State
    _session: Session

    def _open(self, memory: Memory | str | None, session: str, name: str, owner: str | None = None) -> None:
        """`name` makes the namespace unless a memory is given; `owner`, by default the same, is whose the state is."""
        self.memory = open_memory(memory, namespace_of("autogen", name))
        self.session = session
        self._session = Session(self.memory, session)
        self.state = State(self._session, owner or name)
        _kept[id(self)] = self

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy is one more that has to be told when the session is forgotten."""
        self.__dict__.update(state)
        _kept[id(self)] = self

    @property
    def unsaved(self) -> int:
        """How many writes wait because the memory cannot be reached; 0 is the normal state."""
        return self._session.unsaved

    def sessions(self) -> list[str]:
        """The sessions that this memory holds."""
        return self._session.names()

    def forget(self, session: str | None = None) -> int:
        """Erase a session for good, this one unless another is named; how many keys it had.

        Whoever else is in that session in this process starts anew as well. What you have stored
        in the same memory under keys of your own stays.
        """
        name = self.session if session is None else session
        erased = self._session.forget(name)
        for reference in _kept.valuerefs():  # a list of its own, whatever other threads do
            kept = reference()
            if kept is not None and kept._session.is_same_as(self._session, name):
                kept._start_anew()
                kept.state.start_anew()
        return erased

    def _start_anew(self) -> None:
        raise NotImplementedError


_kept: WeakValueDictionary[int, Kept] = WeakValueDictionary()  # by identity: a group chat has no hash


class Record:
    """A list of messages as it is stored, which follows the framework's own list."""

    def __init__(self, session: Session, key: str) -> None:
        self._session = session
        self._key = key
        self._complete, stored = session.look(key)
        self.rows: list[Any] = session.parts(key, stored, dict)

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
        self._complete, value = self._session.look(self._key)
        if not self._complete:
            return []
        stored = self._session.parts(self._key, value, dict)
        earlier = stored[: len(stored) - len(self.rows)]
        messages[:0] = earlier
        self.rows[:0] = earlier
        return earlier


class State(MutableMapping[str, Any]):
    """An agent's values by name, such as preferences and counts. What is assigned is saved:

        agent.state["preferences"] = {"language": "Python"}

    What is changed inside a value, as by agent.state["seen"].append(1), is saved with the agent's
    next message, or by agent.state.save().

    While the memory cannot be read the values of earlier are not there. What is assigned meanwhile
    is saved later: a dict is merged into the stored one. A stored value that gives way to another
    without ever having been read is kept beside it, as "<name> (before)".
    """

    def __init__(self, session: Session, owner: str) -> None:
        self._session = session
        self._prefix = f"{STATE}{quoted(owner)}:"
        self.start_anew()

    def start_anew(self) -> None:
        """Read what is stored."""
        self._values: dict[str, Any] = {}
        self._saved: dict[str, str] = {}
        """The JSON text, as saved, of values that others hold and may change."""
        self._complete = False
        self._known()

    def _known(self) -> dict[str, Any]:
        """The values; read now if they could not be read so far."""
        if not self._complete:
            found = self._session.look_all(self._prefix)
            if found is not None:
                self._values, self._complete = found, True
                self._saved.clear()
        return self._values

    def __getitem__(self, name: str) -> Any:
        value = self._known()[name]
        if isinstance(value, dict | list) and name not in self._saved:
            self._saved[name] = encode(value)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        text = encode(value)
        values = self._known()
        make = self._session.replaced if self._complete else self._session.merged
        write = make(self._prefix + name, decode(text))
        check_key(write.key + BEFORE)
        values[name], self._saved[name] = value, text
        self._session.write(write)

    def __delitem__(self, name: str) -> None:
        del self._known()[name]
        self._saved.pop(name, None)
        self._session.write(self._session.replaced(self._prefix + name, None))

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def __repr__(self) -> str:
        return f"State({self._known()!r})"

    def save(self) -> None:
        """Save what has been changed inside a value."""
        for name, text in list(self._saved.items()):
            value = self._values.get(name)
            try:
                if isinstance(value, dict | list) and encode(value) != text:
                    self[name] = value
            except (InvalidInput, RuntimeError) as error:  # the latter when another thread is changing it just now
                log.error("state[%r] of %r is not saved: %s", name, self._session.memory, error)  # noqa: TRY400


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
