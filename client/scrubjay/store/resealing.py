"""A whole store sealed anew: for the first time, under another secret, or under none."""

from __future__ import annotations

from . import drawers
from .note_rows import COLUMNS, SOURCE, Row
from .notes import change_note
from .operation import LONG_WRITE, Context, Many, Rows, Steps, operation
from .sealing import Cipher, Keyring, item_place, note_place

CHUNK = 500
"""Rows that are held in memory at once."""

_ITEMS = """SELECT namespace, key, value FROM items WHERE value IS NOT NULL AND (namespace, key) > (?, ?)
ORDER BY namespace, key LIMIT ?"""
_LIST_ITEMS = """SELECT namespace, key, position, value FROM list_items WHERE (namespace, key, position) > (?, ?, ?)
ORDER BY namespace, key, position LIMIT ?"""
_NOTES = f"""SELECT n.namespace, {COLUMNS} FROM {SOURCE} WHERE (n.namespace, n.id) > (?, ?)
ORDER BY n.namespace, n.id LIMIT ?"""  # noqa: S608
_VECTORS = """SELECT v.namespace, v.note, v.drawer, d.held FROM note_vectors v JOIN drawers d ON d.drawer = v.drawer
WHERE (v.namespace, v.note) > (?, ?) ORDER BY v.namespace, v.note LIMIT ?"""


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
    last: tuple[object, ...] = ("", -1)
    while rows := (yield _NOTES, (*last, CHUNK)):
        for namespace, *columns in rows:
            row = Row.read(before, namespace, columns)
            yield from change_note(cipher, namespace, row, row, is_sealed_anew=True)
        last = rows[-1][:2]
    last = ("", -1)
    while rows := (yield _VECTORS, (*last, CHUNK)):
        for namespace, note, drawer, held in rows:
            place = note_place(namespace, note)
            sealed = cipher.seal_bytes(before.open_bytes(drawers.data_of(held), place), place)
            moved = yield from drawers.replace(drawer, sealed)
            yield "UPDATE note_vectors SET drawer = ? WHERE namespace = ? AND note = ?", (moved, namespace, note)
        last = rows[-1][:2]
