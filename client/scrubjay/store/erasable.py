"""Erasable storage: blobs that leave no copy behind when they are erased.

When SQLite moves a row to another page it may leave a copy between the rows of the old page, where secure_delete
does not reach. So rows of this table are only added at its end, never deleted, and never change their size. To erase
a blob is to overwrite it with zeros; its row is then free for data of about the same size, and `rebuild` removes
the rows that are still free.
"""

from __future__ import annotations

from collections.abc import Iterable

from scrubjay.store.operation import LONG_WRITE, Context, ExecuteMany, Statements, operation

SIZE_STEP = 32
"""Bytes. Sizes are multiples of it, so that free rows fit more of the data that comes later."""
MAX_SLACK = 2
"""A row may be at most so many times larger than its data needs, so that little space is wasted."""
_LENGTH_BYTES = 4
"""Bytes before the data that hold its length."""


def store(data: bytes) -> Statements[int]:
    """Store data in a free row or in a new one; its id."""
    needed = _size(data)
    free = yield "find_free_blob", (needed, needed * MAX_SLACK)
    if not free:
        ((blob_id,),) = yield "insert_blob", (needed, _padded(data, needed))
        return int(blob_id)
    ((blob_id, size),) = free
    yield "fill_blob", (_padded(data, size), blob_id)
    return int(blob_id)


def replace(blob_id: int, data: bytes) -> Statements[int]:
    """Overwrite a blob with other data, or move it to another row if it does not fit; its id."""
    sizes = yield "find_blob_size", (blob_id,)
    size = sizes[0][0] if sizes else 0
    if not _size(data) <= size <= _size(data) * MAX_SLACK:
        yield from erase([blob_id])
        return (yield from store(data))
    yield "fill_blob", (_padded(data, size), blob_id)
    return blob_id


def erase(blob_ids: Iterable[int]) -> Statements[None]:
    """Overwrite blobs with zeros."""
    yield ExecuteMany("erase_blob", [(blob_id,) for blob_id in blob_ids])


def erase_all(table: str, namespace: str) -> Statements[None]:
    """Overwrite the blobs that a namespace's rows in `notes` or `note_vectors` refer to."""
    yield "erase_note_blobs" if table == "notes" else "erase_vector_blobs", (namespace,)


@operation("compact", LONG_WRITE)
def rebuild(_context: Context) -> Statements[None]:
    """Copy the blobs in use into a new table: deleting the free rows would move the rows beside them."""
    for step in ("rename_blobs", "drop_blob_index", "create_blobs", "create_blob_index", "copy_blobs", "drop_blobs"):
        yield step, ()


def data_of(blob: bytes) -> bytes:
    """The data in a blob as it is stored, without its length and padding."""
    return blob[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(blob[:_LENGTH_BYTES])]


def _size(data: bytes) -> int:
    return -(-(_LENGTH_BYTES + len(data)) // SIZE_STEP) * SIZE_STEP


def _padded(data: bytes, size: int) -> bytes:
    return (len(data).to_bytes(_LENGTH_BYTES) + data).ljust(size, b"\0")
