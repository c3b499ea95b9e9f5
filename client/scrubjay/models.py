"""The records that verbs return: immutable, and convertible to and from JSON.

Named tuples: dataclasses take a fifth of the time of `import scrubjay`, and twice as long to make.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple


def to_time(milliseconds: int) -> datetime:
    """The UTC time of milliseconds since 1970, as the store has it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds")


class Item(NamedTuple):
    """A value with its key, version, times and size."""

    key: str
    value: Any
    version: int
    """Grows with every write and is never used twice for a key, not even after a delete."""
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    bytes: int
    """Bytes of key and JSON text: what counts against the storage quota."""

    def to_json(self) -> dict[str, Any]:
        times = {name: iso(getattr(self, name)) for name in ("created_at", "updated_at", "expires_at")}
        return {**self._asdict(), **times}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Item:
        expires_at = data["expires_at"]
        return cls(
            key=data["key"],
            value=data["value"],
            version=data["version"],
            created_at=datetime.fromisoformat(data["created_at"]),
            updated_at=datetime.fromisoformat(data["updated_at"]),
            expires_at=expires_at and datetime.fromisoformat(expires_at),
            bytes=data["bytes"],
        )


class ApiKey(NamedTuple):
    """An api key as it is listed: everything but the key itself."""

    id: str
    name: str
    namespaces: tuple[str, ...]
    """Patterns, such as support-*; a key sees nothing else."""
    read_only: bool
    admin: bool
    """Whether it may change quotas and api keys."""
    created_at: datetime
    writes_per_day: int | None = None
    """Limits over all its namespaces; 0 means no limit, None the server's default. An admin key has no limits."""
    max_bytes: int | None = None
    max_namespaces: int | None = None
    writes_today: int = 0
    bytes: int = 0
    """Of the namespaces that it owns: those that were empty when it wrote to them."""
    namespaces_in_use: int = 0
    """How many of these there are."""

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "namespaces": list(self.namespaces), "created_at": iso(self.created_at)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ApiKey:
        created_at = datetime.fromisoformat(data["created_at"])
        return cls(**{**data, "namespaces": tuple(data["namespaces"]), "created_at": created_at})


class IssuedKey(NamedTuple):
    """A new api key with its secret, which is shown only once."""

    apikey: ApiKey
    secret: str
    """The key itself."""
    admin_secret: str | None = None
    """An admin key that was issued with it, because no other key was in force; None otherwise."""
    is_first: bool = False
    """True if no other key was in force: from now on every request needs one, and the default quotas apply."""

    def to_json(self) -> dict[str, Any]:
        key = {"key": self.secret, "admin_key": self.admin_secret, "first": self.is_first}
        return {**self.apikey.to_json(), **key}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> IssuedKey:
        fields = dict(data)
        secret, admin_secret, is_first = (fields.pop(name) for name in ("key", "admin_key", "first"))
        return cls(ApiKey.from_json(fields), secret, admin_secret, is_first)


class Note(NamedTuple):
    """A note: a text with its labels, times and, after a recall, its score."""

    id: str
    """The id that the caller gave it, or else its number."""
    content: str
    type: str | None
    tags: tuple[str, ...]
    session: str | None
    metadata: dict[str, Any]
    pinned: bool
    times: int
    """How often it was remembered: the same content again refreshes the note."""
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    superseded_by: str | None = None
    """The number of the note that replaced it: it is kept, and no longer recalled."""
    score: float | None = None
    """How well it fits the query it was recalled for, from 0 to 1, on the same scale for every query: 1 is a short note
    with every word of the query, 0.5 one with half of them; a semantic index alone gives at most 0.35."""
    explanation: dict[str, Any] | None = None
    """How the score came about, if `explain` was asked for: `parts` add up to the score, `words` are the words of
    `passage`, the part of the query that the note fits best, with what each adds."""
    number: str | None = None
    """The store's number of a note with an id of the caller's own; None if its id is the number. Verbs take either, and
    the log of changes has the number."""

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self._fields}
        for name in ("explanation", "number"):
            if fields[name] is None:
                del fields[name]
        return {**fields, **{name: iso(fields[name]) for name in _NOTE_TIMES}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Note:
        times = {name: data[name] and datetime.fromisoformat(data[name]) for name in _NOTE_TIMES}
        return cls(**{**data, **times, "tags": tuple(data["tags"])})

    @property
    def cursor(self) -> str:
        """Its number, from which a list of notes continues even when the note is gone."""
        return self.number or self.id


_NOTE_TIMES = ("created_at", "updated_at", "expires_at")


class Conversation(NamedTuple):
    """A list of messages that is stored in a namespace."""

    session: str
    """Whose conversation it is: the name given as `session=`, "default", or the key of a list of your own."""
    key: str
    """The key of the list."""
    messages: int
    """How many there are."""
    updated_at: datetime
    participants: tuple[str, ...]
    """Who has sent the last messages."""
    preview: str
    """The start of the last message that has a text."""

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "participants": list(self.participants), "updated_at": iso(self.updated_at)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Conversation:
        updated_at = datetime.fromisoformat(data["updated_at"])
        return cls(**{**data, "participants": tuple(data["participants"]), "updated_at": updated_at})


class Message(NamedTuple):
    """A message of a conversation, in one form for every framework."""

    id: str
    """Its id; the position as text if it was stored without one."""
    position: int
    """Where it is in the list, from 0: the cursor for `before=` and `after=`."""
    sender: str
    """The name of the agent or person; the role if no name is known."""
    role: str
    """user, assistant, system or tool; another name of the framework's, or empty if it has none."""
    message: str
    """The text."""
    time: datetime | None
    """When it was said; None if it was stored without a time."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """Each has `id`, `name` and `arguments`."""
    tool_results: tuple[dict[str, Any], ...] = ()
    """Each has `id`, that of its call, `name` and `content`."""

    def to_json(self) -> dict[str, Any]:
        calls, results = list(self.tool_calls), list(self.tool_results)
        return {**self._asdict(), "time": iso(self.time), "tool_calls": calls, "tool_results": results}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Message:
        said_at = data["time"] and datetime.fromisoformat(data["time"])
        calls, results = tuple(data["tool_calls"]), tuple(data["tool_results"])
        return cls(**{**data, "time": said_at, "tool_calls": calls, "tool_results": results})


class Match(NamedTuple):
    """What a search has found: a value, or an item of a list."""

    key: str
    position: int | None
    """The number of the item in its list, from 0; None for a value that is not a list."""
    value: Any
    """The value, or the item."""
    score: float
    """How well it fits the query, from 0 to 1, on the scale of `recall`."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Match:
        return cls(data["key"], data["position"], data["value"], data["score"])


class Learned(NamedTuple):
    """What `distill` has done."""

    notes: int
    """How many notes it has stored."""
    superseded: int
    """How many older notes they have replaced."""
    messages: int
    """How many messages it has read."""
    tokens: int
    """How many tokens it has spent, estimated."""
    is_complete: bool
    """False if messages are left, because the day's tokens are spent or the model's answer could not be used."""


class Change(NamedTuple):
    """A change, or a refused attempt to make one."""

    id: int
    """Grows with each change in the store: the cursor to go on from. Refusals have numbers of their own."""
    at: datetime
    who: str
    """The name of the api key; "local" for a program that opened the file itself."""
    verb: str
    """set, delete, expire, append, incr, remember, forget, clear, set_quota …"""
    namespace: str
    key: str
    """The key, or the id of a note; empty when it concerns them all."""
    bytes: int
    refusal: str | None = None
    """The code of the error if it was refused."""
    times: int = 1
    """How often it was refused in that second, with this key or another."""

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "at": iso(self.at)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Change:
        return cls(**{**data, "at": datetime.fromisoformat(data["at"])})


class Pending(NamedTuple):
    """A queued write."""

    id: int
    namespace: str
    verb: str
    key: str
    """Empty for `update` and `remember`."""
    queued_at: datetime
    reason: str
    """The last error that has held up the queued writes of its namespace; empty if one of them was sent since."""
    refused: bool
    """True if the server will never accept it: it is kept, but not sent again."""


class Usage(NamedTuple):
    """Current usage and limits of a namespace; a limit of 0 means no limit."""

    namespace: str
    keys: int
    notes: int
    bytes: int
    max_bytes: int
    writes_today: int
    writes_per_day: int
    resets_at: datetime
    """When writes_today starts again at 0: the next midnight, UTC."""

    @property
    def writes_remaining(self) -> int | None:
        """None when there is no limit."""
        return max(self.writes_per_day - self.writes_today, 0) if self.writes_per_day else None

    @property
    def bytes_remaining(self) -> int | None:
        """None when there is no limit."""
        return max(self.max_bytes - self.bytes, 0) if self.max_bytes else None

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "resets_at": iso(self.resets_at)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Usage:
        return cls(**{**data, "resets_at": datetime.fromisoformat(data["resets_at"])})


class NamespaceSummary(NamedTuple):
    """A namespace in a list of them: its usage, limits, and last change; a limit of 0 means no limit."""

    namespace: str
    keys: int
    notes: int
    bytes: int
    max_bytes: int
    writes_today: int
    writes_per_day: int
    changed_at: datetime | None
    """When it last changed; None if that is not known."""
    has_conversation: bool = False
    """Whether it holds a conversation: a list whose last item is a message."""

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "changed_at": iso(self.changed_at)}


class Entry(NamedTuple):
    """An item in a list of them: everything but the value, of which it has the start."""

    key: str
    length: int | None
    """How many items it has, if it is a list; None otherwise."""
    bytes: int
    version: int
    updated_at: datetime
    expires_at: datetime | None
    preview: str
    """The start of its JSON text; empty for a list that grows in place, and for a large encrypted value."""

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "updated_at": iso(self.updated_at), "expires_at": iso(self.expires_at)}
