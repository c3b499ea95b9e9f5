"""What the verbs return beside plain values: records that cannot change, to and from JSON.

Named tuples: dataclasses take a fifth of the time of `import scrubjay`, and twice as long to make.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple


def to_time(milliseconds: int) -> datetime:
    """The store counts milliseconds since 1970; people get UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds")


class Item(NamedTuple):
    """A value with what is known about it."""

    key: str
    value: Any
    version: int
    """Grows with every write and is never used twice for a key, not even after a delete."""
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    bytes: int
    """What it takes of the namespace's storage: the key and the JSON text."""

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

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "namespaces": list(self.namespaces),
            "read_only": self.read_only,
            "admin": self.admin,
            "created_at": iso(self.created_at),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ApiKey:
        created_at = datetime.fromisoformat(data["created_at"])
        return cls(**{**data, "namespaces": tuple(data["namespaces"]), "created_at": created_at})


class Note(NamedTuple):
    """A remembered text with what is known about it."""

    id: str
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
    score: float | None = None
    """How well it answers the question it was recalled for, from 0 to 1."""

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self._fields}
        return {**fields, **{name: iso(fields[name]) for name in _NOTE_TIMES}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Note:
        times = {name: data[name] and datetime.fromisoformat(data[name]) for name in _NOTE_TIMES}
        return cls(**{**data, **times, "tags": tuple(data["tags"])})


_NOTE_TIMES = ("created_at", "updated_at", "expires_at")


class Change(NamedTuple):
    """Something that was changed, or was refused to be."""

    id: int
    """Grows with each change in the store: the cursor to go on from."""
    at: datetime
    who: str
    """The name of the api key; "local" for a program that opened the file itself."""
    verb: str
    """set, delete, expire, append, incr, remember, forget, clear, quota …"""
    namespace: str
    key: str
    """The key, or the id of a note; empty when it concerns them all."""
    bytes: int
    refusal: str | None = None
    """The code of the error if it was refused."""

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "at": iso(self.at)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Change:
        return cls(**{**data, "at": datetime.fromisoformat(data["at"])})


class Pending(NamedTuple):
    """A write that could not be sent yet."""

    id: int
    namespace: str
    verb: str
    key: str
    """Empty for an update or a remember."""
    queued_at: datetime
    why: str
    """What stood in its way when it was last tried, or when it was queued."""
    refused: bool
    """Whether the server will never take it: it is kept, and not tried again."""


class Usage(NamedTuple):
    """What a namespace has used, and what it may use; a limit of 0 is none."""

    namespace: str
    keys: int
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
        return {
            "namespace": self.namespace,
            "keys": self.keys,
            "bytes": self.bytes,
            "max_bytes": self.max_bytes,
            "writes_today": self.writes_today,
            "writes_per_day": self.writes_per_day,
            "resets_at": iso(self.resets_at),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Usage:
        return cls(**{**data, "resets_at": datetime.fromisoformat(data["resets_at"])})
