"""Vectors of notes: what an embedding model makes of their texts, stored beside the notes and erased with them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from scrubjay.store import erasable
from scrubjay.store.encryption import Cipher, note_associated_data
from scrubjay.store.note_rows import Row, hash_words
from scrubjay.store.operation import LONG_WRITE, SNAPSHOT, Context, Rows, SlowQuery, Statements, operation

Fingerprint = tuple[int, int]
"""How many vectors of a namespace were ever stored, and how many removed: equal while they are the same vectors."""

_ANY_CONTENT: Mapping[int, str] = {}


class TextToEmbed(NamedTuple):
    """A note, its content, and the text of it that is embedded."""

    note: int
    content: str
    text: str


@operation("list_unindexed", SNAPSHOT)
def list_unindexed(_context: Context, model: str | None) -> Statements[list[tuple[str, int]]]:
    """Namespace and id of each note that has no vector of this model, in order; None is any model."""
    rows = yield SlowQuery("list_unindexed_notes", (model,))
    return [(namespace, note) for namespace, note in rows]


@operation("read_texts", SNAPSHOT)
def read_texts(context: Context, namespace: str, ids: Sequence[int], model: str) -> Statements[list[TextToEmbed]]:
    """Those of the notes that have no vector of this model."""
    rows = yield SlowQuery("read_unindexed_notes", (namespace, json.dumps(ids), model))
    notes = [Row.read(context.cipher, namespace, row) for row in rows]
    speakers = _speaker_terms((yield SlowQuery("list_speakers", (namespace,))))
    return [TextToEmbed(note.id, note.content, without_names(context.cipher, note.content, speakers)) for note in notes]


@operation("add_vectors", LONG_WRITE)
def add_vectors(
    context: Context,
    namespace: str,
    model: str,
    vectors: Sequence[tuple[int, bytes]],
    contents: Mapping[int, str] = _ANY_CONTENT,
) -> Statements[None]:
    """Store the vectors of those notes that still exist and, if `contents` has them, still have that content."""
    for note, vector in vectors:
        at = (namespace, note)
        rows = yield "read_note", at
        if not rows or (note in contents and Row.read(context.cipher, namespace, rows[0]).content != contents[note]):
            continue
        data = context.cipher.encrypt_bytes(vector, note_associated_data(*at))
        stored = yield "find_vector_blob", at
        blob_id = yield from (erasable.replace(stored[0][0], data) if stored else erasable.store(data))
        ((mark,),) = yield "count_stored_vector", (len(stored), namespace)
        yield "put_vector", (*at, model, blob_id, mark)


class VectorChanges(NamedTuple):
    """The difference between cached vectors of a namespace and the stored ones."""

    fingerprint: Fingerprint
    marks: list[int] | None
    """The marks of all stored vectors; None if vectors were only added."""
    new: list[tuple[int, int, bytes]]
    """Mark, note and vector of each that is not cached."""
    speakers: set[int]
    """The terms of the names of all speakers in the namespace, or only of the new notes if vectors were only added."""


@operation("read_vectors", SNAPSHOT)
def read_changes(
    context: Context, namespace: str, model: str, fingerprint: Fingerprint | None, cached: Iterable[int]
) -> Statements[VectorChanges | None]:
    """How a namespace's vectors differ from the cached ones, given by their marks; None if they do not."""
    rows = yield "read_fingerprint", (namespace,)
    current = rows[0] if rows else (0, 0)
    if current == fingerprint:
        return None
    if fingerprint is not None and fingerprint[1] == current[1]:
        added: list[int] = [note for _, note in (yield SlowQuery("list_new_marks", (namespace, model, fingerprint[0])))]
        speakers = yield SlowQuery("list_speakers_of", (namespace, json.dumps(added)))
        new = yield from _read_vectors(context.cipher, namespace, added)
        return VectorChanges(current, None, new, _speaker_terms(speakers))
    notes: dict[int, int] = dict((yield SlowQuery("list_marks", (namespace, model))))
    missing = [notes[mark] for mark in notes.keys() - set(map(int, cached))]
    new = yield from _read_vectors(context.cipher, namespace, missing)
    return VectorChanges(current, list(notes), new, _speaker_terms((yield SlowQuery("list_speakers", (namespace,)))))


def _read_vectors(cipher: Cipher, namespace: str, ids: list[int]) -> Statements[list[tuple[int, int, bytes]]]:
    rows = yield SlowQuery("read_vectors", (namespace, json.dumps(sorted(ids))))
    return [
        (mark, note, cipher.decrypt_bytes(erasable.data_of(blob), note_associated_data(namespace, note)))
        for mark, note, blob in rows
    ]


def without_names(cipher: Cipher, text: str, speakers: Collection[int]) -> str:
    """The text without the names of speakers: they dominate a vector, and the lexical index finds them better."""
    kept = (word for word in text.split() if not any(term in speakers for term in hash_words(cipher, word)))
    return " ".join(kept) or text


def _speaker_terms(speakers: Rows) -> set[int]:
    return {term for (speaker,) in speakers if speaker for term in json.loads(speaker)}
