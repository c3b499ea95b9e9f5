"""What notes mean, as vectors of a model, beside the notes and erased with them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from . import drawers
from .note_rows import COLUMNS, SOURCE, Row, hide_words
from .operation import LONG_WRITE, SNAPSHOT, Context, Long, Steps, operation
from .sealing import note_place

_NAMES = "SELECT DISTINCT speaker FROM notes WHERE namespace = ? AND speaker IS NOT NULL"


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
    shown = yield from _without_names(context, namespace, [note.content for note in notes])
    return list(zip((note.id for note in notes), shown, strict=True))


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
            "INSERT OR REPLACE INTO note_vectors (namespace, note, model, drawer) VALUES (?, ?, ?, ?)",
            (*at, model, drawer),
        )


@operation(SNAPSHOT)
def read_vectors(
    context: Context, namespace: str, model: str, query: str
) -> Steps[tuple[list[tuple[int, bytes]], str]]:
    """All vectors of this model in the namespace, and what is asked for, as it shall see it."""
    rows = yield Long(
        """SELECT v.note, d.held FROM note_vectors v JOIN drawers d ON d.drawer = v.drawer
        WHERE v.namespace = ? AND v.model = ?""",
        (namespace, model),
    )
    opened = context.cipher.open_bytes
    known = [(note, opened(drawers.data_of(held), note_place(namespace, note))) for note, held in rows]
    (shown,) = yield from _without_names(context, namespace, [query])
    return known, shown


def _without_names(context: Context, namespace: str, texts: Sequence[str]) -> Steps[list[str]]:
    """The texts without the people in them: names swamp a vector, and words find them better."""
    rows = yield Long(_NAMES, (namespace,))
    people = {word for (speaker,) in rows for word in json.loads(speaker)}
    if not people:
        return list(texts)
    return [
        " ".join(word for word in text.split() if people.isdisjoint(hide_words(context.cipher, word))) or text
        for text in texts
    ]
