"""What notes mean, as vectors of a model, beside the notes and erased with them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from .operation import LONG_WRITE, SNAPSHOT, Context, Long, Many, Rows, Steps, operation
from .sealing import PLAIN, note_place, speaker_place

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
def read_texts(
    context: Context, namespace: str, ids: Sequence[int], model: str
) -> Steps[tuple[list[tuple[int, str]], list[str]]]:
    """Those notes that this model has not seen, with their texts; and who speaks in the namespace."""
    texts = yield Long(
        """SELECT n.id, n.content FROM notes n WHERE n.namespace = ?1 AND n.id IN (SELECT value FROM json_each(?2))
        AND NOT EXISTS (SELECT 1 FROM note_vectors v WHERE v.namespace = ?1 AND v.note = n.id AND v.model = ?3)""",
        (namespace, json.dumps(ids), model),
    )
    names = yield Long(_NAMES, (namespace,))
    opened = [(note, context.cipher.open(text, note_place(namespace, note))) for note, text in texts]
    return opened, _opened_names(context, namespace, names)


@operation(LONG_WRITE)
def add_vectors(context: Context, namespace: str, model: str, vectors: Sequence[tuple[int, bytes]]) -> Steps[None]:
    """Keep the vectors of those notes that are still there."""
    yield Many(
        """INSERT OR REPLACE INTO note_vectors (namespace, note, model, vector)
        SELECT namespace, id, ?, ? FROM notes WHERE namespace = ? AND id = ?""",
        [
            (model, context.cipher.seal_bytes(vector, note_place(namespace, note)), namespace, note)
            for note, vector in vectors
        ],
    )


@operation(SNAPSHOT)
def read_vectors(context: Context, namespace: str, model: str) -> Steps[tuple[list[tuple[int, bytes]], list[str]]]:
    """All vectors of this model in the namespace, and who speaks there."""
    rows = yield Long("SELECT note, vector FROM note_vectors WHERE namespace = ? AND model = ?", (namespace, model))
    names = yield Long(_NAMES, (namespace,))
    if context.cipher is not PLAIN:
        rows = [(note, context.cipher.open_bytes(vector, note_place(namespace, note))) for note, vector in rows]
    return rows, _opened_names(context, namespace, names)


def _opened_names(context: Context, namespace: str, names: Rows) -> list[str]:
    return context.cipher.open_all([name for (name,) in names], speaker_place(namespace))
