"""Saving what can be read of a damaged file into a new one.

Every page is looked at for itself: a damaged page costs what was on it, and what only led to others costs
nothing. Which table a row belongs to is told by its shape. Rows that cannot be as they were written (their
JSON, their size, a note's digest say so) are left out; counters and the index of words are made anew.
Where values are sealed, the secret has to open them, and then tells whether they are whole.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from scrubjay.errors import InvalidInput, ScrubjayError, Unavailable
from scrubjay.names import check_count, check_key, check_namespace
from scrubjay.values import byte_size, decode_body

from . import drawers
from .note_rows import COLUMNS, Row, digest_of
from .notes import keep_note
from .operation import LONG_WRITE, Context, Many, Steps, operation
from .pages import Cell, Damaged, Pages
from .quotas import Account
from .schema import APPLICATION_ID, MIGRATIONS
from .sealing import OVERHEAD, PLAIN, Cipher, Keyring, item_place
from .sqlite import SqliteStore

BATCH, ROW_BYTES = 1000, 4096
"""Rows that are saved at once; one that is longer counts as several."""
MADE_ANEW = ("note_words", "keyring")
SEALED = ("value",)
"""Columns that hold bytes where they are sealed."""
FIRST = "drawers"
"""The table that is saved before all others: notes are checked by what lies there."""

Progress = Callable[[int, int], object]


class Shape(NamedTuple):
    """What a row of a table, or an entry of an index, looks like."""

    name: str
    is_index: bool
    """Whether it only leads to rows, and is none itself."""
    in_table: bool
    """Whether it lies in a table's tree; tables WITHOUT ROWID lie in one like an index's."""
    columns: tuple[str, ...]
    types: tuple[tuple[type, ...], ...]
    """What each of its values may be."""
    least: int
    """How many values a row has at least: those of older rows end where later columns began."""
    alias: int | None
    """Which column is only another name for the row's number."""

    def fits(self, cell: Cell) -> bool:
        if cell.in_table is not self.in_table or not self.least <= len(cell.values) <= len(self.columns):
            return False
        return all(map(isinstance, cell.values, self.types))


class Report(NamedTuple):
    """What was saved, and what could not be."""

    saved: dict[str, int]
    """Rows, by table."""
    pages: int
    unreadable_pages: int
    unreadable_rows: int
    missing: list[str]
    """What is known to have been there and is not, a sentence each."""

    @property
    def is_whole(self) -> bool:
        return not (self.unreadable_pages or self.unreadable_rows or self.missing)


def recover(path: Path, target: Path, progress: Progress) -> Report:
    """Save what can be read of the file into a new one, which must not be there yet; the file is only read."""
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}; name the damaged database")
    try:
        with contextlib.closing(Pages(path)) as pages, contextlib.closing(_new_store(target, pages)) as store:
            if pages.application_id not in (None, 0, APPLICATION_ID) and not _is_ours(pages):
                raise Unavailable(f"{path} is another program's database; name one of Scrubjay's")
            salvage = _Salvage(store)
            for is_first in (True, False):
                salvage.begin(is_first=is_first)
                for number in range(1, pages.count + 1):
                    salvage.take_page(pages, number)
                    progress(number + (not is_first) * pages.count, 2 * pages.count)
            return salvage.end(pages)
    except OSError as error:
        raise Unavailable(
            f"cannot read {path}: {error.strerror}; copy it to a disk that is well, and try that"
        ) from error


def _new_store(target: Path, pages: Pages) -> SqliteStore:
    """With the keys of the damaged file, if it has any; until it is whole, nobody relies on it."""
    store = SqliteStore(target, durability="fast", secret="")
    ring = _find_ring(pages)
    if ring is None:
        return store
    store.run(save_rows("keyring", [{"id": 1, **ring._asdict()}]))
    store.close()
    return SqliteStore(target, durability="fast")


def _find_ring(pages: Pages) -> Keyring | None:
    (shape,) = (shape for shape in shapes() if shape.name == "keyring")
    for number in range(2, pages.count + 1):
        with contextlib.suppress(Damaged):
            for cell in pages.cells(number):
                if cell and shape.fits(cell) and Keyring(*cell.values[1:]).is_one():
                    return Keyring(*cell.values[1:])
    return None


def _is_ours(pages: Pages) -> bool:
    """Whether the names of our tables are on the first page, whatever became of the mark."""
    return b"CREATE TABLE namespaces" in pages.read(1)


class _Salvage:
    """Rows on their way from the damaged pages into the new file."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._cipher = store.context().cipher
        self._shapes = shapes()
        self._waiting: dict[str, list[dict[str, Any]]] = {}
        self._tables: set[str] = set()
        self.begin(is_first=True)

    def begin(self, *, is_first: bool) -> None:
        """Each page is looked at twice: for what lies in drawers, and then for all else."""
        if not is_first:
            self._save()
        self._is_first = is_first
        self._held = self._unreadable_pages = self._unreadable_rows = 0

    def take_page(self, pages: Pages, number: int) -> None:
        try:
            for cell in pages.cells(number):
                if cell is None:
                    self._unreadable_rows += 1
                elif number > 1:  # the first page has the definitions of tables, which the new file has already
                    self._take(cell)
        except Damaged:
            self._unreadable_pages += 1

    def _take(self, cell: Cell) -> None:
        fitting = [shape for shape in self._shapes if shape.fits(cell)]
        fitting = [shape for shape in fitting if len(shape.columns) == len(cell.values)] or fitting
        if fitting and all(shape.is_index or shape.name in MADE_ANEW for shape in fitting):
            return
        row = _checked(fitting[0], cell, self._cipher) if len(fitting) == 1 else None
        if row is None:
            self._unreadable_rows += not _is_definition(cell)
            return
        if (fitting[0].name == FIRST) is not self._is_first:
            return
        self._waiting.setdefault(fitting[0].name, []).append(row)
        self._held += 1 + sum(len(value) for value in cell.values if isinstance(value, str | bytes)) // ROW_BYTES
        if self._held >= BATCH:
            self._save()

    def _save(self) -> None:
        for table, rows in self._waiting.items():
            if table == "notes":
                self._unreadable_rows += len(rows) - self._store.run(save_notes(rows))
            else:
                self._store.run(save_rows(table, rows))
        self._tables |= self._waiting.keys()
        self._waiting, self._held = {}, 0

    def end(self, pages: Pages) -> Report:
        self._save()
        if not self._tables:
            raise Unavailable("nothing of Scrubjay's was found in it; is it the right file? a backup may help")
        saved = self._store.run(count_rows(sorted(self._tables - {FIRST})))
        missing = self._store.run(settle())
        if pages.cut_off:
            missing.append(f"the file is cut off: {pages.cut_off} of its pages are not there")
        return Report(saved, pages.count, self._unreadable_pages, self._unreadable_rows, missing)


# ---------------------------------------------------------------- what rows look like


def shapes() -> list[Shape]:
    """Those of all tables and indexes that this program makes."""
    with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
        for migration in MIGRATIONS:
            for statement in migration:
                fresh.execute(statement)
        tables = fresh.execute("SELECT name, wr FROM pragma_table_list WHERE name NOT LIKE 'sqlite_%'").fetchall()
        return [shape for table, wr in tables for shape in _shapes_of(fresh, table, bool(wr))]


def _shapes_of(fresh: sqlite3.Connection, table: str, without_rowid: bool) -> Iterator[Shape]:
    info = fresh.execute('SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', (table,)).fetchall()
    types = {
        name: _types(name, type_, nullable=not (notnull or (without_rowid and pk)))
        for name, type_, notnull, _, pk in info
    }
    keys = [name for name, _, _, _, pk in sorted(info, key=lambda column: column[4]) if pk]
    declared = [name for name, *_ in info]
    if without_rowid:
        declared = [*keys, *(name for name in declared if name not in keys)]
    alias = None
    if not without_rowid and len(keys) == 1 and types[keys[0]][0] is int:
        alias = declared.index(keys[0])
        types[keys[0]] = (NoneType,)
    defaults = {name: default for name, _, _, default, _ in info}
    needed = [i for i, name in enumerate(declared, 1) if NoneType not in types[name] and defaults[name] is None]
    kinds = tuple(types[name] for name in declared)
    yield Shape(table, False, not without_rowid, tuple(declared), kinds, max(needed, default=1), alias)
    own = "SELECT name FROM pragma_index_list(?) WHERE NOT (? AND origin = 'pk')"
    for (index,) in fresh.execute(own, (table, without_rowid)).fetchall():
        parts = fresh.execute("SELECT name FROM pragma_index_xinfo(?)", (index,)).fetchall()
        columns = tuple(name or "rowid" for (name,) in parts)
        kinds = tuple(types.get(name, (int,)) for name in columns)
        yield Shape(index, True, False, columns, kinds, len(columns), None)


def _types(name: str, type_: str, *, nullable: bool) -> tuple[type, ...]:
    """What a column may hold."""
    sealed = (bytes,) if name in SEALED else ()
    return (_PYTHON.get(type_, object), *sealed, *((NoneType,) if nullable else ()))


_PYTHON = {"TEXT": str, "INTEGER": int, "BLOB": bytes}


def _is_definition(cell: Cell) -> bool:
    """A row of sqlite_master."""
    return cell.in_table and len(cell.values) == 5 and cell.values[0] in ("table", "index")


# ---------------------------------------------------------------- what rows must be


def _checked(shape: Shape, cell: Cell, cipher: Cipher) -> dict[str, Any] | None:
    """The row by its columns; None when it cannot be what was written."""
    row = dict(zip(shape.columns, cell.values, strict=False))
    if shape.alias is not None:
        row[shape.columns[shape.alias]] = cell.rowid
    try:
        if shape.name in _CHECKS:
            _CHECKS[shape.name](row, cipher)
    except (ScrubjayError, KeyError, TypeError):
        return None
    return row


def _check_namespace_row(row: dict[str, Any], _cipher: Cipher) -> None:
    check_namespace(row["namespace"])
    for name in ("keys", "bytes", "day", "writes", "version_floor"):
        check_count(name, row[name])
    for name in ("writes_per_day", "max_bytes"):
        if row[name] is not None:
            check_count(name, row[name])


def _check_item(row: dict[str, Any], cipher: Cipher) -> None:
    _check_place(row)
    check_count("version", row["version"], least=1)
    _check_times(row)
    if (row["value"] is None) == (row["length"] is None):
        raise InvalidInput("neither a value nor a list")
    if row["length"] is not None:
        check_count("length", row["length"])
    elif _check_json(_opened(row, "value", cipher)) + byte_size(row["key"]) != row["bytes"]:
        raise InvalidInput("it says another size")


def _check_entry(row: dict[str, Any], cipher: Cipher) -> None:
    _check_place(row)
    check_count("position", row["position"])
    _check_json(_opened(row, "value", cipher))


def _check_note(row: dict[str, Any], _cipher: Cipher) -> None:
    check_namespace(row["namespace"])
    check_count("id", row["id"], least=1, most=10**18)
    check_count("times", row["times"], least=1)
    _check_times(row)


def _check_drawer(row: dict[str, Any], _cipher: Cipher) -> None:
    if len(row["held"]) != row["size"] or row["is_free"] not in (0, 1):
        raise InvalidInput("it says another size")


def _check_delivery(row: dict[str, Any], _cipher: Cipher) -> None:
    check_namespace(row["namespace"])
    check_key(row["slot"])
    check_count("number", row["number"])
    check_count("used_on", row["used_on"])
    _check_json(row["result"])


def _check_apikey(row: dict[str, Any], _cipher: Cipher) -> None:
    check_count("created_at", row["created_at"])
    _check_json(row["namespaces"])
    if len(row["hash"]) != 64 or row["read_only"] not in (0, 1) or row["admin"] not in (0, 1):
        raise InvalidInput("it is no api key")


def _opened(row: dict[str, Any], column: str, cipher: Cipher) -> str:
    """A text that may be sealed."""
    if isinstance(row[column], bytes) is (cipher is PLAIN):
        raise InvalidInput("it is sealed where nothing is, or the other way round")
    return cipher.open(row[column], item_place(row["namespace"], row["key"]))


def _check_place(row: dict[str, Any]) -> None:
    check_namespace(row["namespace"])
    check_key(row["key"])


def _check_times(row: dict[str, Any]) -> None:
    for name in ("created_at", "updated_at", "expires_at"):
        if row[name] is not None:
            check_count(name, row[name])


def _check_json(text: str) -> int:
    """Its size; an error when it is none."""
    decode_body(text)
    return byte_size(text)


_CHECKS: dict[str, Callable[[dict[str, Any], Cipher], None]] = {
    "namespaces": _check_namespace_row,
    "items": _check_item,
    "list_items": _check_entry,
    "drawers": _check_drawer,
    "notes": _check_note,
    "deliveries": _check_delivery,
    "apikeys": _check_apikey,
}


# ---------------------------------------------------------------- into the new file


@operation(LONG_WRITE)
def save_rows(_context: Context, table: str, rows: list[dict[str, Any]]) -> Steps[None]:
    """Rows as they were."""
    for columns in {tuple(row) for row in rows}:
        names, marks = ", ".join(f'"{name}"' for name in columns), ", ".join("?" * len(columns))
        yield Many(
            f'INSERT OR IGNORE INTO "{table}" ({names}) VALUES ({marks})',  # noqa: S608
            [tuple(row.values()) for row in rows if tuple(row) == columns],
        )


@operation(LONG_WRITE)
def save_notes(context: Context, rows: list[dict[str, Any]]) -> Steps[int]:
    """Notes whose drawer holds what they said, with their words counted anew; how many."""
    saved = 0
    for row in rows:
        held = yield "SELECT held FROM drawers WHERE drawer = ? AND is_free = 0", (row["drawer"],)
        note = _read_note(context.cipher, row, held[0][0]) if held else None
        if note is not None:
            account = Account(context, row["namespace"], ())  # without limits: what is there, was allowed
            saved += yield from keep_note(context, account, note)
    return saved


def _read_note(cipher: Cipher, row: dict[str, Any], held: bytes) -> Row | None:
    """The note by its row and what its drawer holds; None when they do not belong together."""
    columns = [{**row, "held": held}[name] for name in COLUMNS.split(", ")]
    try:
        note = Row.read(cipher, row["namespace"], columns)
    except (ScrubjayError, TypeError):
        return None
    return note if digest_of(cipher, note.content, note.session) == row["digest"] else None


@operation(LONG_WRITE)
def count_rows(_context: Context, tables: Iterable[str]) -> Steps[dict[str, int]]:
    counts = {}
    for table in tables:
        ((counts[table],),) = yield f'SELECT count(*) FROM "{table}"', ()  # noqa: S608
    return counts


@operation(LONG_WRITE)
def settle(context: Context) -> Steps[list[str]]:
    """Make lists and counters say what is there; a sentence for each thing that was there and is not."""
    yield (
        """INSERT OR IGNORE INTO namespaces (namespace, keys, notes, bytes, day, writes, version_floor)
    SELECT namespace, 0, 0, 0, 0, 0, 0 FROM
    (SELECT namespace FROM items UNION SELECT namespace FROM list_items UNION SELECT namespace FROM notes)""",
        (),
    )
    # What was lost had a version, too, which must not come back with another value.
    yield (
        """UPDATE namespaces SET version_floor = max(version_floor,
    coalesce((SELECT max(version) FROM items i WHERE i.namespace = namespaces.namespace), 0))""",
        (),
    )
    missing = yield from _settle_lists(context)
    yield (
        """DELETE FROM note_vectors WHERE drawer IN (SELECT drawer FROM notes)
    OR drawer NOT IN (SELECT drawer FROM drawers WHERE is_free = 0)
    OR NOT EXISTS (SELECT 1 FROM notes n WHERE n.namespace = note_vectors.namespace AND n.id = note)""",
        (),
    )
    lost = yield (
        """SELECT drawer FROM drawers WHERE is_free = 0
    AND drawer NOT IN (SELECT drawer FROM notes UNION ALL SELECT drawer FROM note_vectors)""",
        (),
    )
    yield from drawers.erase(drawer for (drawer,) in lost)
    rows = yield (
        """SELECT n.namespace, n.keys, n.bytes, coalesce(sum(h.keys), 0), coalesce(sum(h.bytes), 0)
    FROM namespaces n LEFT JOIN (SELECT namespace, 1 AS keys, bytes FROM items
    UNION ALL SELECT namespace, 0, bytes FROM notes) h ON h.namespace = n.namespace GROUP BY n.namespace""",
        (),
    )
    yield "UPDATE namespaces SET notes = (SELECT count(*) FROM notes n WHERE n.namespace = namespaces.namespace)", ()
    for namespace, keys, size, found_keys, found_size in rows:
        if (found_keys, found_size) < (keys, size):
            missing.append(
                f"the namespace {namespace!r} held {keys} keys and {size} bytes;"
                f" {found_keys} keys and {found_size} bytes are saved"
            )
    yield Many(
        "UPDATE namespaces SET keys = ?, bytes = ? WHERE namespace = ?",
        [(found_keys, found_size, namespace) for namespace, _, _, found_keys, found_size in rows],
    )
    return missing


def _settle_lists(context: Context) -> Steps[list[str]]:
    """Close the gaps in lists, and give those that lost theirs a row in `items` again.

    Both tables are read once, and joined here: finding one row among large values takes SQLite very long.
    """
    missing: list[str] = []
    known = yield "SELECT namespace, key, length FROM items WHERE length IS NOT NULL", ()
    lengths = {(namespace, key): length for namespace, key, length in known}
    rows = yield (
        """SELECT namespace, key, count(*), max(position) + 1,
        sum(length(CAST(value AS BLOB)) + 1 - CASE typeof(value) WHEN 'blob' THEN ? ELSE 0 END)
        FROM list_items GROUP BY namespace, key""",
        (OVERHEAD,),
    )
    found = {(namespace, key): figures for namespace, key, *figures in rows}
    for place in sorted(found.keys() | lengths.keys()):
        count, end, size = found.get(place, (0, 0, 1))
        had = max(end, lengths.get(place, 0))
        if had > count:
            missing.append(f"the list {place[1]!r} in {place[0]!r} had {had} items; {count} are saved")
        if end > count:
            yield from _close_gaps(*place)
        size += byte_size(place[1]) + 1
        if place in lengths:
            yield "UPDATE items SET length = ?, bytes = ? WHERE namespace = ? AND key = ?", (count, size, *place)
        elif (yield _MAKE_LIST, (place[1], count, size, context.now, context.now, place[0])):
            missing.append(f"the list {place[1]!r} in {place[0]!r} lost its version, times and expiry; they start anew")
        else:  # a value has its name: what there is of the list is older
            yield "DELETE FROM list_items WHERE namespace = ? AND key = ?", place
    return missing


_MAKE_LIST = """INSERT INTO items (namespace, key, length, bytes, version, created_at, updated_at)
SELECT namespace, ?, ?, ?, version_floor + 1, ?, ? FROM namespaces WHERE namespace = ?
ON CONFLICT DO NOTHING RETURNING 1"""


def _close_gaps(namespace: str, key: str) -> Steps[None]:
    """Number the items of a list from 0 again, in order, so that no two ever have the same place."""
    at = (namespace, key)
    rows = yield "SELECT position FROM list_items WHERE namespace = ? AND key = ? ORDER BY position", at
    yield Many(
        "UPDATE list_items SET position = ? WHERE namespace = ? AND key = ? AND position = ?",
        [(place, *at, position) for place, (position,) in enumerate(rows) if place != position],
    )
