"""Erasing a namespace for good, and looking for what is left of it.

Rows are deleted from every table that has a namespace, the file is written anew, and then its bytes are
searched for pieces of what was there. The pieces are found by their windows of eight bytes: all windows
of a piece are known, so it is enough to look at every eighth byte of the file, whichever way a piece lies there.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

from scrubjay.errors import Unavailable

from . import drawers
from .changes import Entry, record
from .operation import LONG_WRITE, Context, Steps, operation
from .sqlite import SqliteStore

WINDOW = 8
PIECE_BYTES = 32
LEAST_BYTES = 2 * WINDOW - 1
"""What is shorter says too little, and has too few windows to be met at every eighth byte."""
EVERY_BYTES = 2000
"""How far apart the pieces of a long text are: a page that was left behind holds at least one."""
MAX_PIECES = 10_000
"""Of more, so many are drawn by lot."""
MAX_SHARING = 8
"""A window that more pieces have in common tells nothing of any."""
BLOCK_BYTES = 2**20
_PARTS = ("", "-wal", "-journal")

_TABLES = """SELECT m.name, max(c.name = 'drawer') FROM sqlite_master m, pragma_table_info(m.name) c
WHERE m.type = 'table' GROUP BY m.name HAVING max(c.name = 'namespace') ORDER BY m.name"""


class Erasure(NamedTuple):
    """What was erased, and what the search for it came to."""

    namespace: str
    rows: dict[str, int]
    """How many, by table."""
    pieces: int
    """Of what was there, how many were looked for; and how many say too little to be looked for."""
    common: int
    shared: int
    """Pieces that were found because what remains holds the same."""
    files: list[str]
    bytes: int
    traces: list[str]
    """Where something was found that should be gone."""

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def erase(store: SqliteStore, namespace: str, who: str | None = None) -> Erasure:
    """Erase a namespace, in this file, for good; `who` wants it, if it is not the program itself."""
    pieces = _with_connection(store, lambda connection: draw(_pieces_of(connection, namespace)))
    deletion = delete_rows(namespace)
    deletion.who = who
    rows = store.run(deletion)
    try:
        store.compact()
    except Unavailable as error:
        raise Unavailable(f"the rows of {namespace!r} are deleted, but their old pages may remain: {error}") from error
    search = Search(pieces)
    files = [part for suffix in _PARTS if (part := Path(f"{store.path}{suffix}")).exists()]
    met = {number: f"{path} at byte {at:,}" for path in files for number, at in search.look_through(path)}
    shared = _with_connection(store, lambda connection: _held(connection, search, met.keys())) if met else set()
    return Erasure(
        namespace,
        rows,
        len(search.pieces),
        len(pieces) - len(search.pieces),
        len(shared),
        [str(path) for path in files],
        sum(path.stat().st_size for path in files),
        [place for number, place in met.items() if number not in shared],
    )


@operation(LONG_WRITE)
def delete_rows(context: Context, namespace: str) -> Steps[dict[str, int]]:
    """Every row about a namespace, in whatever table; how many each had.

    The log tells that something was erased, by a digest that says what to whoever knows the name.
    """
    yield from record(context, [Entry("erase", "", blake2b(namespace.encode(), digest_size=8).hexdigest())])
    tables = yield _TABLES, ()
    deleted: dict[str, int] = {}
    for _ in range(2):  # a second time for what a table may have noted of the first
        for table, has_drawers in tables:
            if has_drawers:
                yield from drawers.erase_all(table, namespace)
            ((count,),) = yield f'SELECT count(*) FROM "{table}" WHERE namespace = ?', (namespace,)  # noqa: S608
            if count:
                deleted[table] = deleted.get(table, 0) + count
                yield f'DELETE FROM "{table}" WHERE namespace = ?', (namespace,)  # noqa: S608
    return deleted


def draw(pieces: Iterable[bytes]) -> list[bytes]:
    """Some of them, each with the same chance, however many there are."""
    drawn: list[bytes] = []
    lot = random.Random()  # noqa: S311 - a sample, not a secret
    for n, piece in enumerate(pieces):
        if n < MAX_PIECES:
            drawn.append(piece)
        elif (place := lot.randrange(n + 1)) < MAX_PIECES:
            drawn[place] = piece
    return list(dict.fromkeys(drawn))


class Search:
    """Looks for many pieces at once."""

    def __init__(self, pieces: list[bytes]) -> None:
        shared = Counter(window for piece in pieces for window in _windows(piece))
        own = {window for window, count in shared.items() if count <= MAX_SHARING}
        self.pieces = [piece for piece in pieces if _is_met_anywhere(piece, own)]
        """Those that have enough windows of their own to be met, however they lie."""
        self._windows: dict[int, list[tuple[int, int]]] = {}
        for number, piece in enumerate(self.pieces):
            for offset, window in enumerate(_windows(piece)):
                if window in own:
                    self._windows.setdefault(window, []).append((number, offset))

    def look_through(self, path: Path) -> Iterator[tuple[int, int]]:
        """The number of each piece that is in the file, and where."""
        for start, block in _blocks(_descriptor(path)):
            yield from ((number, start + at) for number, at in self.look_at(block))

    def look_at(self, block: bytes) -> Iterator[tuple[int, int]]:
        words = memoryview(block[: len(block) // WINDOW * WINDOW]).cast("Q")
        if self._windows.keys().isdisjoint(words):
            return
        for i, word in enumerate(words):
            for number, offset in self._windows.get(word, ()):
                at = i * WINDOW - offset
                if at >= 0 and block.startswith(self.pieces[number], at):
                    yield number, at


def _is_met_anywhere(piece: bytes, own: set[int]) -> bool:
    """Whether one of its own windows lies at an eighth byte, wherever the piece begins."""
    in_a_row = 0
    for window in _windows(piece):
        in_a_row = in_a_row + 1 if window in own else 0
        if in_a_row == WINDOW:
            return True
    return False


def _windows(piece: bytes) -> Iterator[int]:
    for offset in range(len(piece) - WINDOW + 1):
        yield int.from_bytes(piece[offset : offset + WINDOW], sys.byteorder)


_descriptors: dict[tuple[int, int], int] = {}


def _descriptor(path: Path) -> int:
    """The file to read from, opened once and never closed.

    A process that closes a file gives up all its locks on it, also those that SQLite has taken: then another
    process takes itself for the last one, and deletes the log that this one still writes to.
    """
    status = path.stat()
    place = (status.st_dev, status.st_ino)
    if place not in _descriptors:
        _descriptors[place] = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    return _descriptors[place]


def _blocks(descriptor: int) -> Iterator[tuple[int, bytes]]:
    """The file in blocks that overlap by more than a piece, and begin at a whole window."""
    start = 0
    while block := _read_at(descriptor, start, BLOCK_BYTES + 2 * PIECE_BYTES):
        yield start, block
        start += BLOCK_BYTES


def _read_at(descriptor: int, start: int, size: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, start)
    os.lseek(descriptor, start, os.SEEK_SET)  # Windows, where locks belong to the descriptor
    return os.read(descriptor, size)


def _pieces_of(connection: Connection, namespace: str) -> Iterator[bytes]:
    for table, has_drawers in connection.execute(_TABLES).fetchall():
        for row in connection.execute(f'SELECT * FROM "{table}" WHERE namespace = ?', (namespace,)):  # noqa: S608
            for text in _texts(row):
                yield from _cut(text)
        if has_drawers:
            held = f'SELECT held FROM "{table}" JOIN drawers USING (drawer) WHERE namespace = ?'  # noqa: S608
            for (text,) in connection.execute(held, (namespace,)):
                yield from _cut(drawers.data_of(text))


def _texts(row: tuple[Any, ...]) -> Iterator[bytes]:
    """What a row has of texts: each, and those that stand side by side together, as they lie in the file.

    So short ones are searched for, too: not "Sarah", which may be anywhere, but the name of the namespace,
    the key and "Sarah" in a row.
    """
    together = b""
    for value in (*row, 0):
        if isinstance(value, str | bytes):
            text = value.encode() if isinstance(value, str) else value
            together += text
            if text != together:
                yield text
        elif value is not None:
            yield together
            together = b""


def _cut(text: bytes) -> Iterator[bytes]:
    for start in range(0, len(text), EVERY_BYTES):
        piece = text[start : start + PIECE_BYTES]
        if len(piece) >= LEAST_BYTES:
            yield piece


def _held(connection: Connection, search: Search, met: Collection[int]) -> set[int]:
    """Those that are in a row of what remains: another namespace may hold the same text."""
    unexplained = set(met)
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in [*tables, ("sqlite_master",)]:
        for row in connection.execute(f'SELECT * FROM "{table}"'):  # noqa: S608
            for text in _texts(row):
                unexplained.difference_update(number for number, _ in search.look_at(text))
            if not unexplained:
                break
    return set(met) - unexplained


def _with_connection(store: SqliteStore, call: Any) -> Any:
    connection = store.take()
    try:
        return call(connection)
    finally:
        store.put_back(connection)
