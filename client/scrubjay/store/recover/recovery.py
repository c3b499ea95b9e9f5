"""Recovery: what can be read of a damaged file is saved into a new one.

Every page is read on its own: a damaged page costs the rows on it, and one that only points to others costs nothing.
The table of a row is recognised by the number and types of its columns. Rows that cannot be what was written, by
their JSON, their size or a note's digest, are left out; counters and the index of words are built again. The id of a
namespace, which its notes have, is in two places, and is used unless these disagree. In an encrypted file the secret
decrypts the values, which also shows whether they are intact.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from scrubjay.errors import InvalidInput, ScrubjayError, Unavailable, pluralize
from scrubjay.exact_json import byte_size, decode_body
from scrubjay.store import erasable
from scrubjay.store.encryption import NO_ENCRYPTION, OVERHEAD, Cipher, KeyEnvelope, item_associated_data
from scrubjay.store.note_rows import Row
from scrubjay.store.notes import insert_note
from scrubjay.store.operation import LONG_WRITE, Context, EngineSql, ExecuteMany, Statements, operation
from scrubjay.store.recover.pages import Cell, Damaged, Pages
from scrubjay.store.sqlite.schema import APPLICATION_ID, MIGRATIONS
from scrubjay.store.sqlite.store import SqliteStore
from scrubjay.store.usage import NamespaceUsage
from scrubjay.store.word_index import add_terms
from scrubjay.validation import check_count, check_key, check_namespace

BATCH, ROW_BYTES = 1000, 4096
"""Rows that are saved in one transaction; one of more bytes counts as several."""
NOT_COPIED = ("note_words", "key_envelope", "sign_ins")
"""Tables whose rows are rebuilt, or not needed: a browser signs in again. A row of sign_ins looks like one of the
index of items."""
ENCRYPTED = ("value",)
"""Columns that are bytes instead of text in an encrypted file."""
FIRST = ("erasable_blobs", "namespaces")
"""The tables that are saved before all others: notes are checked against their blobs, and belong to namespaces."""
NAMES = "namespaces_id"
"""The index that has the name and the id of each namespace once more."""

Progress = Callable[[int, int], object]


class Shape(NamedTuple):
    """The columns of a table, or of an index, by which its rows are recognised."""

    name: str
    is_index: bool
    """Whether it is an index."""
    in_table: bool
    """Whether it is stored as a table; SQLite stores tables WITHOUT ROWID as an index."""
    columns: tuple[str, ...]
    types: tuple[tuple[type, ...], ...]
    """The types that each column may have."""
    min_columns: int
    """Columns that every row has: rows that are older than a column that was added later lack it."""
    rowid_column: int | None
    """The column that is an alias of the rowid."""

    def fits(self, cell: Cell) -> bool:
        if cell.in_table is not self.in_table or not self.min_columns <= len(cell.values) <= len(self.columns):
            return False
        return all(map(isinstance, cell.values, self.types))


class Report(NamedTuple):
    """What was recovered, and what could not be."""

    saved: dict[str, int]
    """Recovered rows, by table."""
    pages: int
    unreadable_pages: int
    unreadable_rows: int
    missing: list[str]
    """A sentence for each thing that the file had and that is lost."""

    @property
    def is_complete(self) -> bool:
        return not (self.unreadable_pages or self.unreadable_rows or self.missing)


def recover(path: Path, target: Path, progress: Progress, secret: str | None = None) -> Report:
    """Save what can be read of a file into a new one; the damaged file is not changed."""
    if not path.is_file() and not Path(f"{path}-wal").is_file():
        raise InvalidInput(f"there is no file {path}; name the damaged database")
    try:
        with contextlib.closing(Pages(path)) as pages, contextlib.closing(_new_store(target, pages, secret)) as store:
            if pages.application_id not in (None, 0, APPLICATION_ID) and not _is_ours(pages):
                raise Unavailable(f"{path} is another program's database; name one of Scrubjay's")
            recovery = _Recovery(store)
            for is_first in (True, False):
                recovery.begin(is_first=is_first)
                for number in range(1, pages.count + 1):
                    recovery.add_page(pages, number)
                    progress(number + (not is_first) * pages.count, 2 * pages.count)
            return recovery.end(pages)
    except OSError as error:
        raise Unavailable(
            f"cannot read {path}: {error.strerror}; copy it to another disk, and recover the copy"
        ) from error


def _new_store(target: Path, pages: Pages, secret: str | None) -> SqliteStore:
    """A store with the key envelope of the damaged file, if it has one; not durable until it is complete."""
    store = SqliteStore(target, durability="fast")
    envelope = _find_envelope(pages)
    if envelope is None:
        return store
    store.run(save_rows("key_envelope", [{"id": 1, **envelope._asdict()}]))
    store.close()
    return SqliteStore(target, durability="fast", secret=secret)


def _find_envelope(pages: Pages) -> KeyEnvelope | None:
    (shape,) = (shape for shape in shapes() if shape.name == "key_envelope")
    for number in range(2, pages.count + 1):
        with contextlib.suppress(Damaged):
            for cell in pages.cells(number):
                if cell and shape.fits(cell) and KeyEnvelope(*cell.values[1:]).is_valid():
                    return KeyEnvelope(*cell.values[1:])
    return None


def _is_ours(pages: Pages) -> bool:
    """Whether the first page defines our tables, even if the application id is damaged."""
    return b"CREATE TABLE namespaces" in pages.read(1)


class _Recovery:
    """A recovery in progress: rows of the damaged pages, on their way into the new file."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._cipher = store.cipher
        self._shapes = shapes()
        self._pending: dict[str, list[dict[str, Any]]] = {}
        self._tables: set[str] = set()
        self._names: set[tuple[str, int]] = set()
        """Names of namespaces with their ids, from two places."""
        self._nameless: Counter[int] = Counter()
        """How many notes there are of each namespace whose name is lost."""
        self.begin(is_first=True)

    def begin(self, *, is_first: bool) -> None:
        """Start one of two passes over the pages: blobs and namespaces first, then all other tables."""
        if not is_first:
            self._save()
            self._store.run(save_ids(self._names))
        self._is_first = is_first
        self._pending_rows = self._unreadable_pages = self._unreadable_rows = 0

    def add_page(self, pages: Pages, number: int) -> None:
        try:
            for cell in pages.cells(number):
                if cell is None:
                    self._unreadable_rows += 1
                elif number > 1:  # the first page has the definitions of tables, which the new file has already
                    self._add(cell)
        except Damaged:
            self._unreadable_pages += 1

    def _add(self, cell: Cell) -> None:
        fitting = [shape for shape in self._shapes if shape.fits(cell)]
        fitting = [shape for shape in fitting if len(shape.columns) == len(cell.values)] or fitting
        if [shape.name for shape in fitting] == [NAMES]:
            self._names.add((cell.values[1], cell.values[0]))
        if fitting and all(shape.is_index or shape.name in NOT_COPIED for shape in fitting):
            return
        row = _checked(fitting[0], cell, self._cipher) if len(fitting) == 1 else None
        if row is None:
            self._unreadable_rows += not _is_definition(cell)
            return
        if (fitting[0].name in FIRST) is not self._is_first:
            return
        if fitting[0].name == "namespaces" and row["id"] is not None:
            self._names.add((row["namespace"], row.pop("id")))
        self._pending.setdefault(fitting[0].name, []).append(row)
        self._pending_rows += (
            1 + sum(len(value) for value in cell.values if isinstance(value, str | bytes)) // ROW_BYTES
        )
        if self._pending_rows >= BATCH:
            self._save()

    def _save(self) -> None:
        for table, rows in self._pending.items():
            if table == "notes":
                saved, nameless = self._store.run(save_notes(rows))
                self._unreadable_rows += len(rows) - saved
                self._nameless += nameless
            else:
                self._store.run(save_rows(table, rows))
        self._tables |= self._pending.keys()
        self._pending, self._pending_rows = {}, 0

    def end(self, pages: Pages) -> Report:
        self._save()
        if not self._tables:
            raise Unavailable(
                "no data of Scrubjay was found in it; is it the right file? restore a backup if you have one"
            )
        saved = self._store.run(count_rows(sorted(self._tables - {"erasable_blobs"})))
        missing = [*map(self._nameless_notes, self._nameless), *self._store.run(rebuild_counters())]
        if pages.missing:
            missing.append(f"the file is truncated: {pages.missing} of its pages are missing")
        return Report(saved, pages.count, self._unreadable_pages, self._unreadable_rows, missing)

    def _nameless_notes(self, number: int) -> str:
        notes = pluralize(self._nameless[number], "note")
        if self._cipher is NO_ENCRYPTION:
            return f"a namespace with {notes} lost its name; they are in {_substitute_name(number)!r}"
        return f"a namespace lost its name, without which its {notes} cannot be decrypted"


# ---------------------------------------------------------------- recognising rows


def shapes() -> list[Shape]:
    """The shapes of all tables and indexes of this program."""
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
    """The types that a column may have."""
    encrypted = (bytes,) if name in ENCRYPTED else ()
    return (_PYTHON.get(type_, object), *encrypted, *((NoneType,) if nullable else ()))


_PYTHON = {"TEXT": str, "INTEGER": int, "BLOB": bytes}


def _is_definition(cell: Cell) -> bool:
    """Whether it is a row of sqlite_master."""
    return cell.in_table and len(cell.values) == 5 and cell.values[0] in ("table", "index")


# ---------------------------------------------------------------- checking rows


def _checked(shape: Shape, cell: Cell, cipher: Cipher) -> dict[str, Any] | None:
    """The row as a dict; None when it cannot be what was written."""
    row = dict(zip(shape.columns, cell.values, strict=False))
    if shape.rowid_column is not None:
        row[shape.columns[shape.rowid_column]] = cell.rowid
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
    for name in ("id", "writes_per_day", "max_bytes"):
        if row[name] is not None:
            check_count(name, row[name])


def _check_item(row: dict[str, Any], cipher: Cipher) -> None:
    _check_key(row)
    check_count("version", row["version"], least=1)
    _check_times(row)
    if (row["value"] is None) == (row["length"] is None):
        raise InvalidInput("it is neither a value nor a list")
    if row["length"] is not None:
        check_count("length", row["length"])
    elif _check_json(_read_value(row, cipher)) + byte_size(row["key"]) != row["bytes"]:
        raise InvalidInput("it has another size than its row says")


def _check_entry(row: dict[str, Any], cipher: Cipher) -> None:
    _check_key(row)
    check_count("position", row["position"])
    _check_json(_read_value(row, cipher))


def _check_note(row: dict[str, Any], _cipher: Cipher) -> None:
    check_count("namespace_id", row["namespace_id"], least=1)
    check_count("id", row["id"], least=1, most=10**18)
    check_count("times", row["times"], least=1)
    _check_times(row)


def _check_blob(row: dict[str, Any], _cipher: Cipher) -> None:
    if len(row["data"]) != row["size"] or row["is_free"] not in (0, 1):
        raise InvalidInput("it has another size than its row says")


def _check_idempotency_key(row: dict[str, Any], _cipher: Cipher) -> None:
    check_namespace(row["namespace"])
    check_key(row["sender"])
    check_count("sequence", row["sequence"])
    check_count("used_on", row["used_on"])
    _check_json(row["result"])


def _check_api_key(row: dict[str, Any], _cipher: Cipher) -> None:
    check_count("created_at", row["created_at"])
    _check_json(row["namespaces"])
    if len(row["hash"]) != 64 or row["read_only"] not in (0, 1) or row["admin"] not in (0, 1):
        raise InvalidInput("it is not an api key")


def _read_value(row: dict[str, Any], cipher: Cipher) -> str:
    """The JSON text of a value, which may be encrypted."""
    if isinstance(row["value"], bytes) is (cipher is NO_ENCRYPTION):
        raise InvalidInput("it is encrypted in a file that is not, or the other way round")
    return cipher.decrypt(row["value"], item_associated_data(row["namespace"], row["key"]))


def _check_key(row: dict[str, Any]) -> None:
    check_namespace(row["namespace"])
    check_key(row["key"])


def _check_times(row: dict[str, Any]) -> None:
    for name in ("created_at", "updated_at", "expires_at"):
        if row[name] is not None:
            check_count(name, row[name])


def _check_json(text: str) -> int:
    """The size of a JSON text; InvalidInput when it is not JSON."""
    decode_body(text)
    return byte_size(text)


_CHECKS: dict[str, Callable[[dict[str, Any], Cipher], None]] = {
    "namespaces": _check_namespace_row,
    "items": _check_item,
    "list_items": _check_entry,
    "erasable_blobs": _check_blob,
    "notes": _check_note,
    "idempotency_keys": _check_idempotency_key,
    "api_keys": _check_api_key,
}


# ---------------------------------------------------------------- writing the new file


@operation("recover", LONG_WRITE)
def save_rows(_context: Context, table: str, rows: list[dict[str, Any]]) -> Statements[None]:
    """Insert rows as they were."""
    for columns in {tuple(row) for row in rows}:
        names, marks = ", ".join(f'"{name}"' for name in columns), ", ".join("?" * len(columns))
        yield ExecuteMany(
            EngineSql(f'INSERT OR IGNORE INTO "{table}" ({names}) VALUES ({marks})'),  # noqa: S608
            [tuple(row.values()) for row in rows if tuple(row) == columns],
        )


@operation("recover", LONG_WRITE)
def save_ids(_context: Context, names: set[tuple[str, int]]) -> Statements[None]:
    """Save the ids of namespaces, except those that are damaged in one of their two places: notes must not end up in
    a namespace that is not theirs.
    """
    named, numbered = (Counter(column) for column in zip(*names, strict=True)) if names else (Counter(), Counter())
    agreed = [(name, id_) for name, id_ in names if named[name] == numbered[id_] == 1 and _is_name(name)]
    yield ExecuteMany(_SAVE_ID, agreed)


_SAVE_ID = EngineSql("""INSERT INTO namespaces (namespace, id, keys, notes, bytes, day, writes, version_floor)
VALUES (?, ?, 0, 0, 0, 0, 0, 0) ON CONFLICT (namespace) DO UPDATE SET id = excluded.id""")


def _is_name(text: str) -> bool:
    try:
        return bool(check_namespace(text))
    except InvalidInput:
        return False


def _substitute_name(number: int) -> str:
    """The namespace in which notes are saved that lost the name of theirs."""
    return f"recovered-{number}"


@operation("recover", LONG_WRITE)
def save_notes(context: Context, rows: list[dict[str, Any]]) -> Statements[tuple[int, Counter[int]]]:
    """Insert notes whose blob has their text, and index their words.

    Returns how many were saved, and how many there were of each namespace whose name is lost.
    """
    saved, nameless = 0, Counter[int]()
    for row in rows:
        number = row["namespace_id"]
        names = yield EngineSql("SELECT namespace FROM namespaces WHERE id = ?"), (number,)
        namespace = names[0][0] if names else _substitute_name(number)
        nameless[number] += namespace == _substitute_name(number)
        blobs = yield EngineSql("SELECT data FROM erasable_blobs WHERE id = ? AND is_free = 0"), (row["blob_id"],)
        note = _read_note(context.cipher, namespace, row, blobs[0][0]) if blobs else None
        if note is not None:
            if not names:
                yield _SAVE_ID, (namespace, number)
            usage = NamespaceUsage(context, namespace)  # without limits: the note was within them once
            if terms := (yield from insert_note(context, usage, note)):
                yield from add_terms(usage.namespace, [terms], is_last=True)
                saved += 1
    return saved, +nameless


def _read_note(cipher: Cipher, namespace: str, row: dict[str, Any], blob: bytes) -> Row | None:
    """The note of a row and its blob; None when they do not belong together."""
    columns = [row["id"], blob, *(row[name] for name in _NOTE_COLUMNS)]
    try:
        note = Row.read(cipher, namespace, columns)
    except (ScrubjayError, TypeError):
        return None
    return note if note.digest(cipher) == row["digest"] else None


_NOTE_COLUMNS = (
    *("pinned", "times", "created_at", "updated_at", "expires_at", "bytes", "blob_id", "superseded_by", "number"),
)
"""The columns that note_rows.Row.read expects after the id and the blob."""


@operation("recover", LONG_WRITE)
def count_rows(_context: Context, tables: Iterable[str]) -> Statements[dict[str, int]]:
    counts = {}
    for table in tables:
        ((counts[table],),) = yield EngineSql(f'SELECT count(*) FROM "{table}"'), ()  # noqa: S608
    return counts


@operation("recover", LONG_WRITE)
def rebuild_counters(context: Context) -> Statements[list[str]]:
    """Make lists and counters agree with the rows; a sentence for each thing that is lost."""
    yield (
        EngineSql("""INSERT OR IGNORE INTO namespaces (namespace, keys, notes, bytes, day, writes, version_floor)
    SELECT namespace, 0, 0, 0, 0, 0, 0 FROM (SELECT namespace FROM items UNION SELECT namespace FROM list_items)"""),
        (),
    )
    # A version that was lost must not belong to another value later.
    yield (
        EngineSql("""UPDATE namespaces SET version_floor = max(version_floor,
    coalesce((SELECT max(version) FROM items i WHERE i.namespace = namespaces.namespace), 0))"""),
        (),
    )
    missing = yield from _repair_lists(context)
    yield (
        EngineSql("""DELETE FROM note_vectors WHERE blob_id IN (SELECT blob_id FROM notes)
    OR blob_id NOT IN (SELECT id FROM erasable_blobs WHERE is_free = 0)
    OR NOT EXISTS (SELECT 1 FROM notes n WHERE n.namespace_id = note_vectors.namespace_id AND n.id = note)"""),
        (),
    )
    unused = yield "check_unused_blobs", ()
    yield from erasable.erase(blob_id for (blob_id,) in unused)
    rows = yield (
        EngineSql("""SELECT n.namespace, n.keys, n.bytes, coalesce(sum(h.keys), 0), coalesce(sum(h.bytes), 0)
    FROM namespaces n LEFT JOIN (SELECT namespace, 1 AS keys, bytes FROM items
    UNION ALL SELECT s.namespace, 0, o.bytes FROM notes o JOIN namespaces s ON s.id = o.namespace_id) h
    ON h.namespace = n.namespace GROUP BY n.namespace"""),
        (),
    )
    yield (
        EngineSql("UPDATE namespaces SET notes = (SELECT count(*) FROM notes n WHERE n.namespace_id = namespaces.id)"),
        (),
    )
    for namespace, keys, size, found_keys, found_size in rows:
        if (found_keys, found_size) < (keys, size):
            missing.append(
                f"the namespace {namespace!r} had {keys} keys and {size} bytes;"
                f" {found_keys} keys and {found_size} bytes are recovered"
            )
    yield ExecuteMany(
        EngineSql("UPDATE namespaces SET keys = ?, bytes = ? WHERE namespace = ?"),
        [(found_keys, found_size, namespace) for namespace, _, _, found_keys, found_size in rows],
    )
    yield "recount_key_usage", ()
    return missing


def _repair_lists(context: Context) -> Statements[list[str]]:
    """Close the gaps in lists, and insert a row into `items` for lists that lost theirs.

    Both tables are read once, and joined here: finding one row among large values takes SQLite very long.
    """
    missing: list[str] = []
    known = yield EngineSql("SELECT namespace, key, length FROM items WHERE length IS NOT NULL"), ()
    lengths = {(namespace, key): length for namespace, key, length in known}
    rows = yield (
        EngineSql("""SELECT namespace, key, count(*), max(position) - min(position) + 1,
        sum(length(CAST(value AS BLOB)) + 1 - CASE typeof(value) WHEN 'blob' THEN ? ELSE 0 END)
        FROM list_items GROUP BY namespace, key"""),
        (OVERHEAD,),
    )
    found = {(namespace, key): figures for namespace, key, *figures in rows}
    for at in sorted(found.keys() | lengths.keys()):
        namespace, key = at
        count, end, size = found.get(at, (0, 0, 1))
        length = max(end, lengths.get(at, 0))
        if length > count:
            missing.append(f"the list {key!r} in {namespace!r} had {length} items; {count} are recovered")
        if end > count:
            yield from _close_gaps(*at)
        size += byte_size(key) + 1
        if at in lengths:
            yield (
                EngineSql("UPDATE items SET length = ?, bytes = ? WHERE namespace = ? AND key = ?"),
                (count, size, *at),
            )
        elif (yield _INSERT_LIST, (key, count, size, context.now, context.now, namespace)):
            missing.append(f"the list {key!r} in {namespace!r} lost its version, times and expiry, and has new ones")
        else:  # the key has a value, which is newer than the rows of the list
            yield "delete_list_rows", at
    return missing


_INSERT_LIST = EngineSql("""INSERT INTO items (namespace, key, length, bytes, version, created_at, updated_at)
SELECT namespace, ?, ?, ?, version_floor + 1, ?, ? FROM namespaces WHERE namespace = ?
ON CONFLICT DO NOTHING RETURNING 1""")


def _close_gaps(namespace: str, key: str) -> Statements[None]:
    """Number the items of a list from 0 again, so that appended ones get positions of their own."""
    at = (namespace, key)
    rows = yield EngineSql("SELECT position FROM list_items WHERE namespace = ? AND key = ? ORDER BY position"), at
    yield ExecuteMany(
        EngineSql("UPDATE list_items SET position = ? WHERE namespace = ? AND key = ? AND position = ?"),
        [(number, *at, position) for number, (position,) in enumerate(rows) if number != position],
    )
