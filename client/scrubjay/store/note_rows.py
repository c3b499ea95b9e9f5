"""The stored form of a note: its row, its erasable blob and its index terms.

Content, labels and metadata are in an erasable blob. The row has only hashes of them, by which the note is found.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from scrubjay.errors import Unavailable
from scrubjay.exact_json import byte_size, decode, encode, to_text
from scrubjay.models import Note, to_time
from scrubjay.recall.documents import strings_in
from scrubjay.recall.terms import (
    Asks,
    asks,
    count_affixes,
    count_terms,
    is_change,
    split_words,
    term_of,
    time_term,
)
from scrubjay.recall.times import labels_of_note
from scrubjay.store import erasable
from scrubjay.store.encryption import Cipher, note_associated_data
from scrubjay.store.operation import Statements
from scrubjay.store.usage import NamespaceUsage
from scrubjay.store.word_index import remove_terms

MAX_SPEAKER_CHARS = 200
"""Characters at the start of a text in which "Name:" is looked for."""
MAX_QUESTION_CHARS = 1000
"""Characters from which a note counts as more than a question."""
_SPEAKER = re.compile(r"\s*(?:[\[(][^\])]{0,60}[\])]\s*)?([^\W\d_][\w .'’-]{0,40}?)\s*:\s")
_SPEAKER_FIELDS = ("speaker", "sender", "name", "role")
_COUNT = struct.Struct(">I")
_DAMAGED = "a note is damaged; run `scrubjay doctor`, restore a backup"

Blob = bytes
"""In Row the name bytes is a field."""


class Row(NamedTuple):
    """A note with all that the store has of it."""

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
    blob_id: int = 0
    superseded_by: int | None = None
    number: int = 0
    """What the index calls it; it grows with each note of the store."""
    term_count: int = 0
    """How many terms it has in the index: another version of this program may derive others from its text."""
    own_id: str | None = None
    """The id that the caller gave it."""

    @classmethod
    def read(cls, cipher: Cipher, namespace: str, columns: Sequence[Any]) -> Row:
        """From the columns that the queries of notes have."""
        id_, blob, *rest = columns
        encrypted, term_count = _unpack(blob)
        body = cipher.decrypt_bytes(encrypted, note_associated_data(namespace, id_))
        try:
            content, type_, tags, session, metadata, *own_ids = decode(body.decode())
        except (ValueError, TypeError) as error:
            raise Unavailable(_DAMAGED) from error
        row = cls(id_, content, type_, tags, session, metadata, *rest, term_count)  # type: ignore[call-arg]
        return row._replace(own_id=own_ids[0]) if own_ids else row

    def pack(self, cipher: Cipher, namespace: str) -> Blob:
        """The data of its blob: its texts, encrypted if the store is, and how many terms it has."""
        own_ids = [] if self.own_id is None else [self.own_id]
        body = to_text([self.content, self.type, self.tags, self.session, self.metadata, *own_ids]).encode()
        encrypted = cipher.encrypt_bytes(body, note_associated_data(namespace, self.id))
        return encrypted + _COUNT.pack(self.term_count)

    def column_values(self, cipher: Cipher) -> tuple[Any, ...]:
        """The values for the columns that `insert_note` and `update_note` write."""
        speaker = hash_words(cipher, self.speaker())
        return (
            self.blob_id,
            self.digest(cipher),
            hash_label(cipher, self.type),
            hash_label(cipher, self.session),
            json.dumps(speaker) if speaker else None,
            "".join(f",{hash_label(cipher, tag)}," for tag in self.tags),
            int(asks(self.content) if len(self.content) < MAX_QUESTION_CHARS else Asks.NO),
            int(is_change(self.content[:MAX_QUESTION_CHARS])),
            self.pinned,
            self.times,
            self.bytes,
            self.created_at,
            self.updated_at,
            self.expires_at,
            self.superseded_by,
        )

    def to_note(self, score: float | None = None) -> Note:
        return Note(
            id=str(self.id) if self.own_id is None else self.own_id,
            number=None if self.own_id is None else str(self.id),
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
            superseded_by=None if self.superseded_by is None else str(self.superseded_by),
            score=score,
        )

    def measured(self) -> Row:
        """The same note with the bytes that it takes of the namespace's quota."""
        texts = (self.content, self.type, encode(self.tags), self.session, encode(self.metadata), self.own_id)
        return self._replace(bytes=sum(map(byte_size, filter(None, texts))))

    def digest(self, cipher: Cipher) -> Blob:
        """Its identity: the id that the caller gave it, or else its content in its session."""
        if self.own_id is not None:
            return own_id_digest(cipher, self.own_id)
        return content_digest(cipher, self.content, self.session)

    def hashed_terms(self, cipher: Cipher) -> dict[int, int]:
        """How often each of its terms occurs, with the terms as the index stores them."""
        counts = self.count_terms()
        return {hashed: counts[term] for term, hashed in cipher.keyed_hash(counts).items()}

    def count_terms(self) -> Counter[int]:
        """The terms of its text, tags, type, the texts in its metadata, and its times."""
        labels = " ".join([*self.tags, self.type or "", *strings_in(self.metadata)])
        counts = count_terms(self.content)
        counts.update(map(time_term, labels_of_note(self.content, to_time(self.created_at))))
        for more in (count_terms(labels), count_affixes(f"{self.content} {labels}")):
            counts.update(more)
        return counts

    def speaker(self) -> str:
        """The name of its speaker, from its metadata or from "Name: …" at its start."""
        named = next(
            (self.metadata[field] for field in _SPEAKER_FIELDS if isinstance(self.metadata.get(field), str)), ""
        )
        match = _SPEAKER.match(self.content[:MAX_SPEAKER_CHARS])
        return named or (match[1] if match else "")


def content_digest(cipher: Cipher, content: str, session: str | None) -> bytes:
    """The identity of a note without an id of the caller's: its content in its session, because two people may say the
    same.
    """
    key = blake2b((session or "").encode(), digest_size=16).digest()
    return cipher.keyed_digest(blake2b(content.encode(), digest_size=16, key=key).digest())


def own_id_digest(cipher: Cipher, own_id: str) -> bytes:
    """The identity of a note with an id of the caller's; never equal to that of a content."""
    return cipher.keyed_digest(blake2b(own_id.encode(), digest_size=16, person=b"note id").digest())


def hash_label(cipher: Cipher, label: str | None) -> int | None:
    """The hash of a type, a tag or a session that the note's row has."""
    if label is None:
        return None
    plain = int.from_bytes(blake2b(label.encode(), digest_size=7).digest()) or 1
    return cipher.keyed_hash([plain])[plain]


def hash_words(cipher: Cipher, text: str) -> list[int]:
    """The terms of all words of a text, stop words too, as the index stores them: to compare names."""
    return list(cipher.keyed_hash(map(term_of, split_words(text))).values())


def erase_note(usage: NamespaceUsage, columns: Sequence[Any], verb: str | None = None) -> Statements[None]:
    """Erase the note with these columns, its terms and its vector; the caller saves the usage."""
    id_, _, *_, size, blob_id, _, number = columns
    at = (usage.namespace, id_)
    try:
        row = Row.read(usage.cipher, usage.namespace, columns)
        yield from remove_terms(usage.namespace, number, row.hashed_terms(usage.cipher), row.term_count)
    except Unavailable:
        yield from remove_terms(usage.namespace, number, (), 1)
    yield from erase_vector(*at)
    yield "delete_note", at
    yield from erasable.erase([blob_id])
    usage.release(notes=1, size=size)
    usage.record(str(id_), size, verb)


def erase_vector(namespace: str, note: int) -> Statements[None]:
    """Erase the vector of a note, if it has one."""
    vectors = yield "delete_vector", (namespace, note)
    if vectors:
        yield "count_removed_vector", (namespace,)
        yield from erasable.erase([blob_id for (blob_id,) in vectors])


def _unpack(blob: bytes | None) -> tuple[bytes, int]:
    """The encrypted texts, and how many terms the note has in the index."""
    data = erasable.data_of(blob or b"")
    try:
        return data[: -_COUNT.size], _COUNT.unpack(data[-_COUNT.size :])[0]
    except struct.error as error:
        raise Unavailable(_DAMAGED) from error
