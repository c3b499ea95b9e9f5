"""A whole store sealed anew: for the first time, under another secret, or under none."""

from __future__ import annotations

from .note_rows import COLUMNS, Row, pack_words
from .notes import add_words, digest_of, seal_speaker
from .operation import LONG_WRITE, Context, Many, Rows, Steps, operation
from .sealing import Cipher, Keyring, item_place, note_place

CHUNK = 500
"""Rows that are held in memory at once."""

_ITEMS = """SELECT namespace, key, value FROM items WHERE value IS NOT NULL AND (namespace, key) > (?, ?)
ORDER BY namespace, key LIMIT ?"""
_LIST_ITEMS = """SELECT namespace, key, position, value FROM list_items WHERE (namespace, key, position) > (?, ?, ?)
ORDER BY namespace, key, position LIMIT ?"""
_NOTES = f"""SELECT namespace, {COLUMNS} FROM notes WHERE (namespace, id) > (?, ?)
ORDER BY namespace, id LIMIT ?"""  # noqa: S608
_VECTORS = """SELECT namespace, note, vector FROM note_vectors WHERE (namespace, note) > (?, ?)
ORDER BY namespace, note LIMIT ?"""


@operation(LONG_WRITE)
def reseal(context: Context, ring: Keyring | None, cipher: Cipher) -> Steps[None]:
    """Everything that is sealed, under another cipher, whose ring replaces the one that is there."""
    before = context.cipher
    last: tuple[object, ...] = ("", "")
    while rows := (yield _ITEMS, (*last, CHUNK)):
        yield Many("UPDATE items SET value = ? WHERE namespace = ? AND key = ?", _resealed(before, cipher, rows))
        last = rows[-1][:2]
    last = ("", "", -1)
    while rows := (yield _LIST_ITEMS, (*last, CHUNK)):
        update = "UPDATE list_items SET value = ? WHERE namespace = ? AND key = ? AND position = ?"
        yield Many(update, _resealed(before, cipher, rows))
        last = rows[-1][:3]
    yield from _reseal_notes(before, cipher)
    yield "DELETE FROM keyring", ()
    if ring:
        yield "INSERT INTO keyring (id, salt, sealed) VALUES (1, ?, ?)", ring


def _resealed(before: Cipher, cipher: Cipher, rows: Rows) -> Rows:
    """Of rows that start with namespace and key and end with the value, the value anew and where it goes."""
    made: Rows = []
    for *at, stored in rows:
        place = item_place(at[0], at[1])
        made.append((cipher.seal(before.open(stored, place), place), *at))
    return made


def _reseal_notes(before: Cipher, cipher: Cipher) -> Steps[None]:
    yield "DELETE FROM note_words", ()
    last: tuple[object, ...] = ("", -1)
    while rows := (yield _NOTES, (*last, CHUNK)):
        for namespace, *columns in rows:
            yield from _reseal_note(cipher, namespace, Row._make(columns).opened(before, namespace))
        last = rows[-1][:2]
    last = ("", -1)
    while rows := (yield _VECTORS, (*last, CHUNK)):
        places = [note_place(namespace, note) for namespace, note, _ in rows]
        vectors = [
            cipher.seal_bytes(before.open_bytes(row[2], place), place) for row, place in zip(rows, places, strict=True)
        ]
        update = "UPDATE note_vectors SET vector = ? WHERE namespace = ? AND note = ?"
        yield Many(update, [(vector, *row[:2]) for vector, row in zip(vectors, rows, strict=True)])
        last = rows[-1][:2]


def _reseal_note(cipher: Cipher, namespace: str, row: Row) -> Steps[None]:
    counts = row.hidden_words(cipher)
    sealed = row.sealed(cipher, namespace)
    yield (
        """UPDATE notes SET content = ?, metadata = ?, speaker = ?, digest = ?, words = ?
        WHERE namespace = ? AND id = ?""",
        (
            sealed.content,
            sealed.metadata,
            seal_speaker(cipher, namespace, row),
            digest_of(cipher, row.content, row.session),
            pack_words(counts),
            namespace,
            row.id,
        ),
    )
    yield from add_words(namespace, row.id, counts)
