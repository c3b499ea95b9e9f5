"""A note as it lies in the store, and how it leaves it.

All that was said is in a drawer: the content, its labels, its metadata. Its row has only numbers that stand for
them, by which it is found.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from scrubjay.errors import Unavailable
from scrubjay.recall.words import MONTHS, count_beginnings, count_words, number, only_asks, split
from scrubjay.records import Note, to_time
from scrubjay.values import byte_size, decode, encode, to_text

from . import drawers
from .operation import Many, Steps
from .sealing import Cipher, note_place

if TYPE_CHECKING:
    from .quotas import Account

MAX_SPEAKER_CHARS = 200
"""Where "Name:" may stand in a text."""
MAX_ASKING_CHARS = 1000
"""What is longer does not only ask."""
_SPEAKER = re.compile(r"\s*(?:[\[(][^\])]{0,60}[\])]\s*)?([^\W\d_][\w .'’-]{0,40}?)\s*:\s")
_SPEAKER_FIELDS = ("speaker", "sender", "name", "role")
_COUNT = struct.Struct(">I")
_DAMAGED = "a note is damaged; run `scrubjay doctor`, restore a backup"

SOURCE = "notes n JOIN drawers d USING (drawer)"
COLUMNS = "id, held, pinned, times, created_at, updated_at, expires_at, bytes, drawer"
"""What is needed to read one."""
LEAVING = "n.id, n.bytes, n.drawer, d.held FROM notes n LEFT JOIN drawers d ON d.drawer = n.drawer"
"""What is needed to erase one, be it damaged."""
KEPT = (
    *("drawer", "digest", "type", "session", "speaker", "tags", "asks"),
    *("pinned", "times", "bytes", "created_at", "updated_at", "expires_at"),
)
"""The columns of its row, beside namespace and id, in the order of `Row.kept`."""

Packed = bytes


class Row(NamedTuple):
    id: int
    content: str
    type: str | None
    tags: Sequence[str]
    session: str | None
    metadata: dict[str, Any]
    pinned: int
    times: int
    created_at: int
    updated_at: int
    expires_at: int | None
    bytes: int = 0
    drawer: int = 0
    words: tuple[int, ...] = ()
    """What the index has of it, so that all of it is found again, by whatever version of this program."""

    @classmethod
    def read(cls, cipher: Cipher, namespace: str, columns: Sequence[Any]) -> Row:
        """From COLUMNS."""
        id_, held, *known = columns
        sealed, words = _unpack(held)
        said = cipher.open_bytes(sealed, note_place(namespace, id_))
        try:
            content, type_, tags, session, metadata = decode(said.decode())
        except (ValueError, TypeError) as error:
            raise Unavailable(_DAMAGED) from error
        return cls(id_, content, type_, tags, session, metadata, *known, words)  # type: ignore[call-arg]

    def pack(self, cipher: Cipher, namespace: str) -> Packed:
        """What goes into its drawer: what was said, sealed if need be, and the words of the index, to erase them by."""
        said = to_text([self.content, self.type, self.tags, self.session, self.metadata]).encode()
        words = struct.pack(f">{len(self.words)}q", *self.words)
        return cipher.seal_bytes(said, note_place(namespace, self.id)) + words + _COUNT.pack(len(self.words))

    def kept(self, cipher: Cipher) -> tuple[Any, ...]:
        """The values of KEPT."""
        speaker = hide_words(cipher, self.speaker())
        return (
            self.drawer,
            digest_of(cipher, self.content, self.session),
            hide_label(cipher, self.type),
            hide_label(cipher, self.session),
            json.dumps(speaker) if speaker else None,
            "".join(f",{hide_label(cipher, tag)}," for tag in self.tags),
            int(self.session is not None and len(self.content) < MAX_ASKING_CHARS and only_asks(self.content)),
            self.pinned,
            self.times,
            self.bytes,
            self.created_at,
            self.updated_at,
            self.expires_at,
        )

    def to_note(self, score: float | None = None) -> Note:
        return Note(
            id=str(self.id),
            content=self.content,
            type=self.type,
            tags=tuple(self.tags),
            session=self.session,
            metadata=self.metadata,
            pinned=bool(self.pinned),
            times=self.times,
            created_at=to_time(self.created_at),
            updated_at=to_time(self.updated_at),
            expires_at=None if self.expires_at is None else to_time(self.expires_at),
            score=score,
        )

    def measured(self) -> Row:
        """With what it takes of the namespace's storage."""
        texts = (self.content, self.type, encode(self.tags), self.session, encode(self.metadata))
        return self._replace(bytes=sum(map(byte_size, filter(None, texts))))

    def hidden_words(self, cipher: Cipher) -> dict[int, int]:
        """How often each word of it occurs, by the number that stands for it in the index."""
        counts = self.count_words()
        return {number: counts[word] for word, number in cipher.hide(counts).items()}

    def count_words(self) -> Counter[int]:
        """What it is found by: its text, tags, type, the texts in its metadata, and the day it was written."""
        made = to_time(self.created_at)
        day = f"{made.day} {MONTHS[made.month - 1]} {made.year}"
        labels = " ".join([*self.tags, self.type or "", *_texts(self.metadata), day])
        counts = count_words(self.content)
        for more in (count_words(labels), count_beginnings(f"{self.content} {labels}")):
            counts.update(more)
        return counts

    def speaker(self) -> str:
        """Who said it, by its metadata or by "Name: …" at its start."""
        named = next(
            (self.metadata[field] for field in _SPEAKER_FIELDS if isinstance(self.metadata.get(field), str)), ""
        )
        match = _SPEAKER.match(self.content[:MAX_SPEAKER_CHARS])
        return named or (match[1] if match else "")


def digest_of(cipher: Cipher, content: str, session: str | None) -> bytes:
    """What makes two notes the same: the content, in the same session. Two people may say the same thing."""
    person = blake2b((session or "").encode(), digest_size=16).digest()
    return cipher.hide_digest(blake2b(content.encode(), digest_size=16, key=person).digest())


def hide_label(cipher: Cipher, label: str | None) -> int | None:
    """The number that stands for a type, a tag or a session."""
    if label is None:
        return None
    known = int.from_bytes(blake2b(label.encode(), digest_size=7).digest()) or 1
    return cipher.hide([known])[known]


def hide_words(cipher: Cipher, text: str) -> list[int]:
    """The numbers that stand for the words of a name, or for those in which one is looked for."""
    return list(cipher.hide(map(number, split(text))).values())


def erase_note(account: Account, verb: str, leaving: Sequence[Any]) -> Steps[None]:
    """Remove a note, of which LEAVING was read, its words and its vector; the caller saves the account."""
    id_, size, drawer, held = leaving
    at = (account.namespace, id_)
    try:
        yield from remove_words(*at, _unpack(held)[1])
    except Unavailable:
        yield "DELETE FROM note_words WHERE namespace = ? AND note = ?", at
    vectors = yield "DELETE FROM note_vectors WHERE namespace = ? AND note = ? RETURNING drawer", at
    yield "DELETE FROM notes WHERE namespace = ? AND id = ?", at
    yield from drawers.erase([drawer, *(vector for (vector,) in vectors)])
    account.release(notes=1, size=size)
    account.record(verb, str(id_), size)


def remove_words(namespace: str, note: int, words: Iterable[int]) -> Steps[None]:
    yield Many(
        "DELETE FROM note_words WHERE namespace = ? AND word = ? AND note = ?",
        [(namespace, word, note) for word in words],
    )


def _unpack(held: bytes | None) -> tuple[bytes, tuple[int, ...]]:
    """What was said, and the words."""
    data = drawers.data_of(held or b"")
    try:
        (count,) = _COUNT.unpack(data[-_COUNT.size :])
        words = data[-_COUNT.size - 8 * count : -_COUNT.size]
        return data[: -_COUNT.size - len(words)], struct.unpack(f">{count}q", words)
    except struct.error as error:
        raise Unavailable(_DAMAGED) from error


def _texts(value: Any) -> Iterable[str]:
    """Every text inside a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)
