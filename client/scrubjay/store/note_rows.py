"""A note as it lies in the store, and how it leaves it."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from scrubjay.recall.words import count_beginnings, count_words, split
from scrubjay.records import Note, to_time
from scrubjay.values import decode

from .operation import Many, Steps
from .sealing import PLAIN, Cipher, note_place

if TYPE_CHECKING:
    from .quotas import Account

COLUMNS = """id, content, type, tags, session, metadata, pinned, times, created_at, updated_at, expires_at, bytes,
words"""
MAX_SPEAKER_CHARS = 200
"""Where "Name:" may stand in a text."""
_SPEAKER = re.compile(r"\s*(?:[\[(][^\])]{0,60}[\])]\s*)?([^\W\d_][\w .'’-]{0,40}?)\s*:\s")
_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_SPEAKER_FIELDS = ("speaker", "sender", "name", "role")


Packed = bytes


class Row(NamedTuple):
    id: int
    content: str
    type: str | None
    tags: str
    session: str | None
    metadata: str
    pinned: int
    times: int
    created_at: int
    updated_at: int
    expires_at: int | None
    bytes: int
    words: Packed
    """What the index has of it, so that all of it is found again, by whatever version of this program."""

    def sealed(self, cipher: Cipher, namespace: str) -> Row:
        """As it is stored."""
        if cipher is PLAIN:
            return self
        place = note_place(namespace, self.id)
        return self._replace(content=cipher.seal(self.content, place), metadata=cipher.seal(self.metadata, place))

    def opened(self, cipher: Cipher, namespace: str) -> Row:
        """As it was before it was stored."""
        if cipher is PLAIN:
            return self
        place = note_place(namespace, self.id)
        return self._replace(content=cipher.open(self.content, place), metadata=cipher.open(self.metadata, place))

    def to_note(self, score: float | None = None) -> Note:
        return Note(
            id=str(self.id),
            content=self.content,
            type=self.type,
            tags=tuple(decode(self.tags)),
            session=self.session,
            metadata=decode(self.metadata),
            pinned=bool(self.pinned),
            times=self.times,
            created_at=to_time(self.created_at),
            updated_at=to_time(self.updated_at),
            expires_at=None if self.expires_at is None else to_time(self.expires_at),
            score=score,
        )

    def hidden_words(self, cipher: Cipher) -> dict[int, int]:
        """How often each word of it occurs, by the number that stands for it in the index."""
        counts = self.count_words()
        return {number: counts[word] for word, number in cipher.hide(counts).items()}

    def count_words(self) -> Counter[int]:
        """What it is found by: its text, tags, type, the texts in its metadata, and the day it was written."""
        made = to_time(self.created_at)
        day = f"{made.day} {_MONTHS[made.month - 1]} {made.year}"
        labels = " ".join([*decode(self.tags), self.type or "", *_texts(decode(self.metadata)), day])
        counts = count_words(self.content)
        for more in (count_words(labels), count_beginnings(f"{self.content} {labels}")):
            counts.update(more)
        return counts

    def speaker(self) -> str | None:
        """Who said it, by its metadata or by "Name: …" at its start; as words to look for in a question."""
        metadata = decode(self.metadata)
        named = next((metadata[field] for field in _SPEAKER_FIELDS if isinstance(metadata.get(field), str)), None)
        match = _SPEAKER.match(self.content[:MAX_SPEAKER_CHARS])
        said_by = named or (match and match[1])
        return " ".join(split(said_by)) or None if said_by else None


def erase_note(account: Account, verb: str, row: Row) -> Steps[None]:
    """Remove a note, its words and its vector, and take it off the account, which the caller saves."""
    yield from remove_words(account.namespace, row)
    yield "DELETE FROM note_vectors WHERE namespace = ? AND note = ?", (account.namespace, row.id)
    yield "DELETE FROM notes WHERE namespace = ? AND id = ?", (account.namespace, row.id)
    account.release(notes=1, size=row.bytes)
    account.record(verb, str(row.id), row.bytes)


def remove_words(namespace: str, row: Row) -> Steps[None]:
    words = struct.unpack(f"<{len(row.words) // 8}q", row.words)
    yield Many(
        "DELETE FROM note_words WHERE namespace = ? AND word = ? AND note = ?",
        [(namespace, word, row.id) for word in words],
    )


def pack_words(words: Iterable[int]) -> Packed:
    known = sorted(words)
    return struct.pack(f"<{len(known)}q", *known)


def _texts(value: Any) -> Iterable[str]:
    """Every text inside a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)
