"""Drawers for what must be erased for good: rows that SQLite never moves.

A row that is moved to another page may leave a copy behind, between the rows of the old one, where secure_delete
does not reach. So rows here are only added at the end, never deleted, and never change their size. To erase
is to overwrite with zeros; a drawer that is free takes what fits into it next, and `compact` gives back the rest.
"""

from __future__ import annotations

from collections.abc import Iterable

from .operation import LONG_WRITE, Context, Many, Steps, operation

GRAIN = 32
"""Sizes are multiples of it, so that more of what comes fits what is free."""
MOST_SPARE = 2
"""How many times larger than what it holds a drawer may be."""
_HEAD = 4
"""Bytes before the data that say how long it is."""

_FREE = "SELECT drawer, size FROM drawers WHERE is_free = 1 AND size BETWEEN ? AND ? ORDER BY size LIMIT 1"
_ADD = "INSERT INTO drawers (is_free, size, held) VALUES (0, ?, ?) RETURNING drawer"
_FILL = "UPDATE drawers SET is_free = 0, held = ? WHERE drawer = ?"
_ERASE = "UPDATE drawers SET is_free = 1, held = zeroblob(size) WHERE drawer"
_DEFINITIONS = "SELECT sql FROM sqlite_master WHERE tbl_name = 'drawers' ORDER BY type DESC"


def keep(data: bytes) -> Steps[int]:
    """Store data; where."""
    least = _size(data)
    free = yield _FREE, (least, least * MOST_SPARE)
    if not free:
        ((drawer,),) = yield _ADD, (least, _padded(data, least))
        return int(drawer)
    ((drawer, size),) = free
    yield _FILL, (_padded(data, size), drawer)
    return int(drawer)


def replace(drawer: int, data: bytes) -> Steps[int]:
    """Store data in the place of what was there, or elsewhere if that does not fit; where."""
    sizes = yield "SELECT size FROM drawers WHERE drawer = ?", (drawer,)
    size = sizes[0][0] if sizes else 0
    if not _size(data) <= size <= _size(data) * MOST_SPARE:
        yield from erase([drawer])
        return (yield from keep(data))
    yield _FILL, (_padded(data, size), drawer)
    return drawer


def erase(drawers: Iterable[int]) -> Steps[None]:
    yield Many(f"{_ERASE} = ?", [(drawer,) for drawer in drawers])


def erase_all(table: str, namespace: str) -> Steps[None]:
    """All drawers that a table has for a namespace."""
    yield f"{_ERASE} IN (SELECT drawer FROM {table} WHERE namespace = ?)", (namespace,)  # noqa: S608


@operation(LONG_WRITE)
def renew(_context: Context) -> Steps[None]:
    """Leave out what is free: into a table of its own, because a row that goes would move those beside it."""
    definitions = yield _DEFINITIONS, ()
    yield "ALTER TABLE drawers RENAME TO drawers_before", ()
    yield "DROP INDEX drawers_free", ()
    for (definition,) in definitions:
        yield definition, ()
    yield "INSERT INTO drawers SELECT * FROM drawers_before WHERE is_free = 0 ORDER BY drawer", ()
    yield "DROP TABLE drawers_before", ()


def data_of(held: bytes) -> bytes:
    """What a drawer holds."""
    return held[_HEAD : _HEAD + int.from_bytes(held[:_HEAD])]


def _size(data: bytes) -> int:
    return -(-(_HEAD + len(data)) // GRAIN) * GRAIN


def _padded(data: bytes, size: int) -> bytes:
    return (len(data).to_bytes(_HEAD) + data).ljust(size, b"\0")
