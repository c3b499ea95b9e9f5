"""What notes mean, as vectors of a model, beside the notes and erased with them."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from . import drawers
from .note_rows import COLUMNS, SOURCE, Row, hide_words
from .operation import LONG_WRITE, SNAPSHOT, Context, Long, Rows, Steps, operation
from .sealing import Cipher, note_place

Stamp = tuple[int, int]
"""How many vectors there are, and a sum that tells whether they are the same ones."""
_STAMP = "SELECT count(*), coalesce(sum(mark & 0xffffffff), 0) FROM note_vectors WHERE namespace = ? AND model = ?"
_MARKS = "SELECT mark, note FROM note_vectors WHERE namespace = ? AND model = ?"
_VECTORS = """SELECT v.mark, v.note, d.held FROM note_vectors v JOIN drawers d ON d.drawer = v.drawer AND d.is_free = 0
WHERE v.namespace = ? AND v.note IN (SELECT value FROM json_each(?))"""
_SPEAKERS = "SELECT DISTINCT speaker FROM notes WHERE namespace = ?"


@operation(SNAPSHOT)
def list_unindexed(_context: Context, model: str | None) -> Steps[list[tuple[str, int]]]:
    """Namespace and id of each note that this model has not seen, in order; None is any model."""
    rows = yield Long(
        """SELECT n.namespace, n.id FROM notes n WHERE NOT EXISTS (SELECT 1 FROM note_vectors v
        WHERE v.namespace = n.namespace AND v.note = n.id AND v.model = coalesce(?, v.model))
        ORDER BY n.namespace, n.id""",
        (model,),
    )
    return [(namespace, note) for namespace, note in rows]


@operation(SNAPSHOT)
def read_texts(context: Context, namespace: str, ids: Sequence[int], model: str) -> Steps[list[tuple[int, str]]]:
    """Those notes that this model has not seen, with their texts as it shall see them."""
    rows = yield Long(
        f"""SELECT {COLUMNS} FROM {SOURCE} WHERE n.namespace = ?1 AND n.id IN (SELECT value FROM json_each(?2))
        AND NOT EXISTS (SELECT 1 FROM note_vectors v WHERE v.namespace = ?1 AND v.note = n.id AND v.model = ?3)""",  # noqa: S608
        (namespace, json.dumps(ids), model),
    )
    notes = [Row.read(context.cipher, namespace, row) for row in rows]
    people = _people((yield Long(_SPEAKERS, (namespace,))))
    return [(note.id, without_names(context.cipher, note.content, people)) for note in notes]


@operation(LONG_WRITE)
def add_vectors(context: Context, namespace: str, model: str, vectors: Sequence[tuple[int, bytes]]) -> Steps[None]:
    """Keep the vectors of those notes that are still there."""
    for note, vector in vectors:
        at = (namespace, note)
        if not (yield "SELECT 1 FROM notes WHERE namespace = ? AND id = ?", at):
            continue
        data = context.cipher.seal_bytes(vector, note_place(*at))
        known = yield "SELECT drawer FROM note_vectors WHERE namespace = ? AND note = ?", at
        drawer = yield from (drawers.replace(known[0][0], data) if known else drawers.keep(data))
        yield (
            "INSERT OR REPLACE INTO note_vectors (namespace, note, model, drawer, mark) VALUES (?, ?, ?, ?, ?)",
            (*at, model, drawer, int.from_bytes(os.urandom(7))),
        )


class Changes(NamedTuple):
    """What is to be known of a namespace's vectors by whoever knows some of them."""

    stamp: Stamp
    there: list[int]
    """The marks of all that are there."""
    new: list[tuple[int, int, bytes]]
    """Those that were not known: mark, note and vector."""
    people: set[int]
    """The words of the names of all who speak in the namespace."""


@operation(SNAPSHOT)
def read_changes(
    context: Context, namespace: str, model: str, stamp: Stamp | None, known: Iterable[int]
) -> Steps[Changes | None]:
    """What became of a namespace's vectors since the stamp was read; None if nothing did."""
    at = (namespace, model)
    (now,) = yield Long(_STAMP, at)
    if now == stamp:
        return None
    there: dict[int, int] = dict((yield Long(_MARKS, at)))
    missing = [there[mark] for mark in there.keys() - set(map(int, known))]
    rows = yield Long(_VECTORS, (namespace, json.dumps(sorted(missing))))
    opened = context.cipher.open_bytes
    new = [(mark, note, opened(drawers.data_of(held), note_place(namespace, note))) for mark, note, held in rows]
    return Changes(now, list(there), new, _people((yield Long(_SPEAKERS, (namespace,)))))


def without_names(cipher: Cipher, text: str, people: Collection[int]) -> str:
    """The text without the people in it: names swamp a vector, and words find them better."""
    return " ".join(word for word in text.split() if not any(one in people for one in hide_words(cipher, word))) or text


def _people(speakers: Rows) -> set[int]:
    return {word for (speaker,) in speakers if speaker for word in json.loads(speaker)}
