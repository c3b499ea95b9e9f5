"""A reader of SQLite's file format, page by page, for files that SQLite itself cannot open.

It knows pages, records and the write-ahead log, as in https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from scrubjay.store.sqlite.file_identity import size_of

DEFAULT_SIZE = 4096
"""Bytes of a page, unless the header says otherwise: SQLite's default, and so that of every Scrubjay file."""
TABLE_LEAF, INDEX_LEAF, INDEX_INNER, TABLE_INNER = 13, 10, 2, 5
_MAGIC = b"SQLite format 3\x00"
_LOG_MAGIC = (0x377F0682, 0x377F0683)


class Damaged(Exception):
    """The bytes cannot be what SQLite wrote."""


class Cell(NamedTuple):
    """A row of a table or an index."""

    in_table: bool
    rowid: int | None
    values: tuple[Any, ...]


class Pages:
    """The pages of a file, or their newer versions in its log."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("rb") if path.exists() else io.BytesIO()
        head = self._file.read(100)
        self.has_header = head.startswith(_MAGIC)
        self.size, self._usable = _sizes(head)
        self.application_id = int.from_bytes(head[68:72]) if self.has_header else None
        on_disk = -(-size_of(path) // self.size)
        log = Path(f"{path}-wal")
        self._log: BinaryIO = log.open("rb") if log.exists() else io.BytesIO()
        self._newer, in_log = _read_log(self._log, self.size)
        expected = int.from_bytes(head[28:32]) if self.has_header else 0
        self.count = in_log or on_disk
        self.missing = max(expected - on_disk, 0) if not in_log else 0
        """Pages that the header counts, and that are not in the file."""

    def close(self) -> None:
        self._file.close()
        self._log.close()

    def read(self, number: int) -> bytes:
        if not 1 <= number <= self.count:
            raise Damaged
        file, at = self._file, (number - 1) * self.size
        if number in self._newer:
            file, at = self._log, self._newer[number]
        file.seek(at)
        return file.read(self.size).ljust(self.size, b"\0")

    def cells(self, number: int) -> Iterator[Cell | None]:
        """The rows on a page; None for a row that cannot be read. Raises Damaged for what is not a page."""
        page = self.read(number)
        start = 100 if number == 1 else 0
        kind = page[start]
        if kind not in (TABLE_LEAF, INDEX_LEAF, INDEX_INNER, TABLE_INNER):
            if page[start] == 0 and int.from_bytes(page[:4]) <= self.count:
                return  # part of a long value, or free
            raise Damaged
        if kind == TABLE_INNER:
            return
        (count,) = struct.unpack_from(">H", page, start + 3)
        first = start + (12 if kind == INDEX_INNER else 8)
        if first + 2 * count > self._usable:
            raise Damaged
        for at in struct.unpack_from(f">{count}H", page, first):
            try:
                yield self._cell(page, kind, at)
            except (Damaged, IndexError, ValueError, struct.error, OverflowError):
                yield None

    def _cell(self, page: bytes, kind: int, at: int) -> Cell:
        if at < 8:
            raise Damaged
        rowid = None
        size, at = _varint(page, at + (4 if kind == INDEX_INNER else 0))
        if kind == TABLE_LEAF:
            rowid, at = _varint(page, at)
        return Cell(kind == TABLE_LEAF, rowid, _record(self._payload(page, kind, at, size)))

    def _payload(self, page: bytes, kind: int, at: int, size: int) -> bytes:
        """All bytes of a row, from this page and its overflow pages."""
        if size > self.count * self.size:
            raise Damaged
        local = self._local(size, kind)
        payload = bytearray(page[at : at + local])
        if at + local > self._usable:
            raise Damaged
        if local < size:
            (following,) = struct.unpack_from(">I", page, at + local)
            while len(payload) < size:
                if not following:
                    raise Damaged
                more = self.read(following)
                payload += more[4 : min(self._usable, 4 + size - len(payload))]
                (following,) = struct.unpack_from(">I", more)
            if following:
                raise Damaged
        return bytes(payload)

    def _local(self, size: int, kind: int) -> int:
        """How many bytes of a row of this size are on its own page."""
        usable = self._usable
        most = usable - 35 if kind == TABLE_LEAF else (usable - 12) * 64 // 255 - 23
        if size <= most:
            return size
        least = (usable - 12) * 32 // 255 - 23
        fitting = least + (size - least) % (usable - 4)
        return fitting if fitting <= most else least


def _sizes(head: bytes) -> tuple[int, int]:
    """The size of a page, and its usable bytes."""
    if not head.startswith(_MAGIC):
        return DEFAULT_SIZE, DEFAULT_SIZE
    size = int.from_bytes(head[16:18])
    size = 65536 if size == 1 else size
    if size < 512 or size & (size - 1):
        return DEFAULT_SIZE, DEFAULT_SIZE
    return size, size - (head[20] if head[20] <= size - 480 else 0)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and the offset after it."""
    value = 0
    for i in range(8):
        byte = data[at + i]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + i + 1
    value = value << 8 | data[at + 8]
    return value - (1 << 64) if value >> 63 else value, at + 9


_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


def _record(payload: bytes) -> tuple[Any, ...]:
    end, at = _varint(payload, 0)
    if not 0 < end <= len(payload):
        raise Damaged
    body, values = end, []
    while at < end:
        kind, at = _varint(payload, at)
        value, body = _value(payload, kind, body)
        values.append(value)
    if at != end or body != len(payload):
        raise Damaged
    return tuple(values)


def _value(payload: bytes, kind: int, at: int) -> tuple[Any, int]:
    """A value of a record, and the offset after it."""
    if kind == 0:
        return None, at
    if kind in (8, 9):
        return kind - 8, at
    size = _INTEGERS.get(kind) or (8 if kind == 7 else (kind - 12) // 2)
    data = payload[at : at + size]
    if kind in (10, 11) or kind < 0 or len(data) < size:
        raise Damaged
    if kind in _INTEGERS:
        return int.from_bytes(data, signed=True), at + size
    if kind == 7:
        return struct.unpack(">d", data)[0], at + size
    return data.decode() if kind % 2 else data, at + size


def _read_log(file: BinaryIO, size: int) -> tuple[dict[int, int], int]:
    """The offsets of committed pages in the log, and the number of pages of the database since.

    The checksum of a frame covers all frames before it, so the first damaged frame ends the log.
    """
    head = file.read(32)
    if len(head) < 32:
        return {}, 0
    magic, _, log_size = struct.unpack_from(">III", head)
    order = ">" if magic & 1 else "<"
    sums = _checksum(order, head[:24], (0, 0))
    if magic not in _LOG_MAGIC or log_size != size or sums != struct.unpack_from(">II", head, 24):
        return {}, 0
    pages: dict[int, int] = {}
    pending: dict[int, int] = {}
    count = 0
    while len(frame := file.read(24 + size)) == 24 + size:
        number, commit = struct.unpack_from(">II", frame)
        sums = _checksum(order, frame[24:], _checksum(order, frame[:8], sums))
        if frame[8:16] != head[16:24] or sums != struct.unpack_from(">II", frame, 16):
            break
        pending[number] = file.tell() - size
        if commit:
            pages.update(pending)
            pending, count = {}, commit
    return pages, count


def _checksum(order: str, data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for one, two in zip(words, words, strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second
