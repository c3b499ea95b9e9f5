"""A namespace as lines of JSON: out of one store and into another, exactly as it was.

The first line says what follows, the last how many lines there were, so that a file that was cut off is
told from a whole one before anything is written. Times are milliseconds, as they lie in the store.
A list that grows is a line of its own and one for each of its entries, so no list is too long for memory.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from scrubjay.drafts import Draft
from scrubjay.errors import Conflict, InvalidInput, NotFound
from scrubjay.names import MAX_COUNT, MAX_WRITE_BYTES, check_count, check_key, check_namespace, shown
from scrubjay.values import byte_size, decode_body, encode

from .items import clear_into
from .note_rows import COLUMNS, SOURCE, Row
from .notes import clear_notes_into, keep_note
from .operation import ERASE, SNAPSHOT, Context, Long, Many, Steps, operation
from .quotas import Account, open_account
from .sealing import item_place

FORMAT = "scrubjay-export"
FORMAT_VERSION = 1
MAX_LINE_BYTES = 3 * MAX_WRITE_BYTES
"""The largest value there is, with room for escapes and its fields."""
PAGE_ROWS = 1000
PAGE_BYTES = 4 * 2**20
"""What is held in memory at a time, but for one value that is larger."""
MAX_TIME = 253_402_300_799_999
"""The last millisecond of the year 9999, beyond which Python has no dates."""
_LAST_BYTES = 200
"""Where the last line begins, at the latest."""

_HEAD = "SELECT version_floor, writes_per_day, max_bytes FROM namespaces WHERE namespace = ?"
_LIVE = "(expires_at IS NULL OR expires_at > ?)"
_ITEM_SIZES = f"SELECT key, bytes, length FROM items WHERE namespace = ? AND {_LIVE} AND key > ? ORDER BY key LIMIT ?"  # noqa: S608
_ITEMS = f"""SELECT key, length, version, created_at, updated_at, expires_at, value FROM items
WHERE namespace = ? AND {_LIVE} AND key BETWEEN ? AND ? ORDER BY key"""  # noqa: S608
_ENTRY_SIZES = """SELECT position, length(CAST(value AS BLOB)) FROM list_items
WHERE namespace = ? AND key = ? AND position > ? ORDER BY position LIMIT ?"""
_ENTRIES = """SELECT value FROM list_items
WHERE namespace = ? AND key = ? AND position BETWEEN ? AND ? ORDER BY position"""
_NOTE_SIZES = f"SELECT id, bytes FROM notes WHERE namespace = ? AND {_LIVE} AND id > ? ORDER BY id LIMIT ?"  # noqa: S608
_NOTES = f"SELECT {COLUMNS} FROM {SOURCE} WHERE namespace = ? AND {_LIVE} AND id BETWEEN ? AND ? ORDER BY id"  # noqa: S608
_NOTE_FIELDS = ("content", "type", "session", "times", "created_at", "updated_at", "expires_at", "tags", "metadata")
_DELIVERIES = """SELECT slot, number, verb, used_on, result FROM deliveries
WHERE namespace = ? AND slot > ? ORDER BY slot LIMIT ?"""

_ADD_ITEM = """INSERT INTO items (namespace, key, value, length, bytes, version, created_at, updated_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1"""
_ADD_ENTRY = "INSERT INTO list_items (namespace, key, position, value) VALUES (?, ?, ?, ?)"
_SIZE_LIST = "UPDATE items SET bytes = bytes + ? WHERE namespace = ? AND key = ?"
_ADD_DELIVERY = """INSERT INTO deliveries (namespace, slot, number, verb, used_on, result)
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1"""


class Moved(NamedTuple):
    """What an export held, or an import brought."""

    namespace: str
    keys: int
    notes: int


# ---------------------------------------------------------------- out


@operation(SNAPSHOT)
def export_namespace(context: Context, namespace: str, write: Callable[[bytes], object]) -> Steps[Moved]:
    """Hand all lines of a namespace to `write`, as they were at one moment; what has expired is left out."""
    rows = yield Long(_HEAD, (namespace,))
    if not rows:
        raise NotFound(f"there is no namespace {namespace!r}; `scrubjay namespaces` lists them")
    export = _Export(context, namespace, write)
    export.add_header(*rows[0])
    yield from export.items()
    yield from export.notes()
    yield from export.deliveries()
    return export.end()


class _Export:
    """Lines on their way out, counted."""

    def __init__(self, context: Context, namespace: str, write: Callable[[bytes], object]) -> None:
        self._now = context.now
        self._cipher = context.cipher
        self._namespace = namespace
        self._write = write
        self._lines = self._keys = self._notes = 0

    def add_header(self, version_floor: int, writes_per_day: int | None, max_bytes: int | None) -> None:
        self._add(
            {
                "format": FORMAT,
                "version": FORMAT_VERSION,
                "namespace": self._namespace,
                "exported_at": self._now,
                "version_floor": version_floor,
                "writes_per_day": writes_per_day,
                "max_bytes": max_bytes,
            }
        )

    def items(self) -> Steps[None]:
        at = (self._namespace, self._now)
        last = ""
        while sizes := (yield Long(_ITEM_SIZES, (*at, last, PAGE_ROWS))):
            last = sizes[-1][0]
            for bounds in _pages([(key, 0 if length is not None else size) for key, size, length in sizes]):
                for row in (yield Long(_ITEMS, (*at, *bounds))):
                    yield from self._item(*row)

    def _item(self, key: str, length: int | None, *row: Any) -> Steps[None]:
        *numbers, stored = row
        fields = {"key": key, **dict(zip(("version", "created_at", "updated_at", "expires_at"), numbers, strict=True))}
        self._keys += 1
        if length is None:
            text = self._cipher.open(stored, item_place(self._namespace, key))
            self._add({"kind": "item", **fields}, ("value", text))
        else:
            self._add({"kind": "list", **fields, "length": length})
            yield from self._entries(key)

    def _entries(self, key: str) -> Steps[None]:
        at = (self._namespace, key)
        last = -1
        while sizes := (yield Long(_ENTRY_SIZES, (*at, last, PAGE_ROWS))):
            last = sizes[-1][0]
            for bounds in _pages(sizes):
                for (stored,) in (yield Long(_ENTRIES, (*at, *bounds))):
                    self._add({"kind": "entry"}, ("value", self._cipher.open(stored, item_place(*at))))

    def notes(self) -> Steps[None]:
        at = (self._namespace, self._now)
        last = 0
        while sizes := (yield Long(_NOTE_SIZES, (*at, last, PAGE_ROWS))):
            last = sizes[-1][0]
            for bounds in _pages(sizes):
                for row in (yield Long(_NOTES, (*at, *bounds))):
                    self._note(Row.read(self._cipher, self._namespace, row))

    def _note(self, row: Row) -> None:
        fields = {name: getattr(row, name) for name in _NOTE_FIELDS}
        self._notes += 1
        self._add({"kind": "note", "id": str(row.id), "pinned": bool(row.pinned), **fields})

    def deliveries(self) -> Steps[None]:
        """What was sent with an id: after a move, too, sending it again must not make it happen twice."""
        last = ""
        while rows := (yield Long(_DELIVERIES, (self._namespace, last, PAGE_ROWS))):
            last = rows[-1][0]
            for slot, number, verb, used_on, result in rows:
                fields = {"slot": slot, "number": number, "verb": verb, "used_on": used_on}
                self._add({"kind": "delivery", **fields}, ("result", result))

    def end(self) -> Moved:
        self._add({"kind": "end", "lines": self._lines + 1})
        return Moved(self._namespace, self._keys, self._notes)

    def _add(self, fields: dict[str, Any], *texts: tuple[str, str]) -> None:
        """One line; what is JSON text already is put in its place as it is."""
        line = encode(fields)[:-1] + "".join(f',"{name}":{text}' for name, text in texts) + "}\n"
        self._lines += 1
        self._write(line.encode())


def _pages(sizes: list[tuple[Any, ...]]) -> Iterator[tuple[Any, Any]]:
    """First and last of neighbours that fit into memory together."""
    first, held = None, 0
    for i, (name, size, *_) in enumerate(sizes):
        first = name if first is None else first
        held += size
        if i + 1 == len(sizes) or held + sizes[i + 1][1] > PAGE_BYTES:
            yield first, name
            first, held = None, 0


# ---------------------------------------------------------------- in


def read_header(path: Path) -> dict[str, Any]:
    """The first line of an export that is whole; a file that was cut off is refused here."""
    with path.open("rb") as file:
        _, header = next(_numbered(file), (1, {}))
        with _at_line(1):
            _check_header(header)
        count, last = _count_lines(file)
    if last.get("kind") != "end" or last.get("lines") != count:
        raise InvalidInput(
            f"this export was cut off: it has {count} lines, and the last does not say so; make it again; nothing was"
            " changed"
        )
    return header


def _check_header(header: dict[str, Any]) -> None:
    if header.get("format") != FORMAT:
        raise InvalidInput("this is no export of Scrubjay: the first line does not say so")
    if header.get("version") != FORMAT_VERSION:
        raise InvalidInput(
            f"this export has the format {shown(header.get('version'))}, and this Scrubjay knows {FORMAT_VERSION};"
            " upgrade with: pip install -U scrubjay"
        )
    check_namespace(header.get("namespace"))
    _count(header, "version_floor")
    for name in ("writes_per_day", "max_bytes"):
        if header.get(name) is not None:
            _count(header, name)


def _count_lines(file: BinaryIO) -> tuple[int, dict[str, Any]]:
    """How many lines there are, and what the last one says."""
    file.seek(0)
    count = sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
    file.seek(max(file.tell() - _LAST_BYTES, 0))
    end = file.read()
    try:
        last = json.loads(end.splitlines()[-1]) if end.endswith(b"\n") else {}
    except ValueError:
        last = {}
    return count, last if isinstance(last, dict) else {}


def _numbered(
    file: BinaryIO, progress: Callable[[int], object] = lambda _: None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line with its number, as what it says."""
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1):
        with _at_line(number):
            if not line.endswith(b"\n") and len(line) == MAX_LINE_BYTES:
                raise InvalidInput(f"it is longer than {MAX_LINE_BYTES} bytes, which no line of an export is")
            fields = decode_body(line)
            if not isinstance(fields, dict):
                raise InvalidInput("it is no JSON object")
        progress(len(line))
        yield number, fields


@contextlib.contextmanager
def _at_line(number: int) -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        raise type(error)(f"line {number}: {error}") from None


@operation(ERASE)
def import_namespace(
    context: Context,
    namespace: str,
    path: Path,
    replace: bool = False,
    progress: Callable[[int], object] = lambda _: None,
) -> Steps[tuple[Moved, Account]]:
    """Bring an export in, all of it or nothing.

    The limit of storage holds. Nothing is counted as today's writes: it is an administrator who moves what
    was counted when it was written, and a namespace of a year would not fit into a day.
    """
    header = read_header(path)
    account = yield from open_account(context, namespace)
    yield from _make_room(context, account, replace)
    arrival = _Import(context, account, header)
    with path.open("rb") as file:
        lines = _numbered(file, progress)
        next(lines)
        for number, fields in lines:
            with _at_line(number):
                yield from arrival.take(fields)
    account.record("import", size=account.bytes)
    yield from account.save()
    return arrival.moved(), account


def _make_room(context: Context, account: Account, replace: bool) -> Steps[None]:
    at = (account.namespace,)
    held = yield (
        "SELECT 1 FROM items WHERE namespace = ?1 UNION ALL SELECT 1 FROM notes WHERE namespace = ?1 LIMIT 1",
        at,
    )
    if held and not replace:
        raise Conflict(
            f"the namespace {account.namespace!r} holds something already; import into another,"
            " or say --replace to put this in the place of all it holds"
        )
    yield from clear_into(account, context.now)
    yield from clear_notes_into(account, context.now)
    yield "DELETE FROM deliveries WHERE namespace = ?", at


class _Import:
    """Lines on their way in.

    Into a namespace that was never written to, versions come exactly as they were. Where there have been
    others, they go on above those: a version that somebody has seen must never mean another value.
    """

    def __init__(self, context: Context, account: Account, header: dict[str, Any]) -> None:
        self._context = context
        self._account = account
        self._lift = account.version_floor
        account.version_floor += header["version_floor"]
        account.limit({name: header.get(name) for name in ("writes_per_day", "max_bytes")})
        self._list: dict[str, Any] | None = None
        self._entries: list[str] = []
        self._held = self._length = self._list_bytes = 0
        self._keys = self._notes = 0

    def take(self, fields: dict[str, Any]) -> Steps[None]:
        kind = fields.get("kind")
        if kind == "entry":
            yield from self._entry(fields)
            return
        yield from self._end_list()
        if kind == "item":
            text = encode(_known(fields, "value"))
            yield from self._add_item(fields, text, None, byte_size(text))
        elif kind == "list":
            yield from self._add_item(fields, None, _count(fields, "length"), 0)
            self._list, self._length, self._list_bytes = fields, 0, 0
        elif kind == "note":
            yield from self._note(fields)
        elif kind == "delivery":
            yield from self._delivery(fields)
        elif kind != "end":
            raise InvalidInput(f"its kind is {shown(kind)}, which means nothing here")

    def moved(self) -> Moved:
        return Moved(self._account.namespace, self._keys, self._notes)

    def _entry(self, fields: dict[str, Any]) -> Steps[None]:
        if self._list is None:
            raise InvalidInput("an entry follows the list that it belongs to, and here is none")
        text = encode(_known(fields, "value"))
        self._entries.append(text)
        self._held += byte_size(text)
        if len(self._entries) == PAGE_ROWS or self._held > PAGE_BYTES:
            yield from self._store_entries(self._list["key"])

    def _store_entries(self, key: str) -> Steps[None]:
        size = self._held + len(self._entries)  # with a comma after each; the last has none, and there are brackets
        yield from self._account.charge(size=size)
        at = (self._account.namespace, key)
        sealed = [self._context.cipher.seal(text, item_place(*at)) for text in self._entries]
        yield Many(_ADD_ENTRY, [(*at, self._length + i, value) for i, value in enumerate(sealed)])
        self._length += len(self._entries)
        self._list_bytes += size
        self._entries, self._held = [], 0

    def _end_list(self) -> Steps[None]:
        if self._list is None:
            return
        fields, key = self._list, self._list["key"]
        yield from self._store_entries(key)
        if self._length != fields["length"]:
            raise InvalidInput(f"the list before it should have {fields['length']} entries, and has {self._length}")
        brackets = 2 - bool(self._length)
        yield from self._account.charge(size=brackets)
        at = (self._account.namespace, key)
        yield _SIZE_LIST, (self._list_bytes + brackets, *at)
        self._list = None

    def _add_item(self, fields: dict[str, Any], text: str | None, length: int | None, size: int) -> Steps[None]:
        key = check_key(fields.get("key"))
        size += byte_size(key)
        yield from self._account.charge(keys=1, size=size)
        version = self._lift + _count(fields, "version", least=1)
        at = (self._account.namespace, key)
        sealed = None if text is None else self._context.cipher.seal(text, item_place(*at))
        added = yield _ADD_ITEM, (*at, sealed, length, size, version, *_times(fields))
        if not added:
            raise InvalidInput(f"the key {shown(key)} is there twice")
        self._keys += 1

    def _note(self, fields: dict[str, Any]) -> Steps[None]:
        draft = Draft.check(
            **{name: fields.get(name) for name in ("content", "type", "tags", "session", "pinned", "metadata")}
        )
        id_ = fields.get("id")
        if not isinstance(id_, str) or not id_.isascii() or not id_.isdecimal() or not 0 < len(id_) < 19:
            raise InvalidInput(f"the id of a note is a number as text, not {shown(id_)}")
        row = Row(
            id=int(id_),
            content=draft.content,
            type=draft.type,
            tags=draft.tags or (),
            session=draft.session,
            metadata=draft.metadata or {},
            pinned=int(draft.pinned),
            times=_count(fields, "times", least=1),
            **dict(zip(("created_at", "updated_at", "expires_at"), _times(fields), strict=True)),  # type: ignore[arg-type]
        )
        if not (yield from keep_note(self._context, self._account, row)):
            raise InvalidInput("this note is there twice: the same id, or the same content in the same session")
        self._notes += 1

    def _delivery(self, fields: dict[str, Any]) -> Steps[None]:
        numbers = _count(fields, "number"), check_key(fields.get("verb")), _count(fields, "used_on")
        row = (check_key(fields.get("slot")), *numbers, encode(_known(fields, "result")))
        if not (yield _ADD_DELIVERY, (self._account.namespace, *row)):
            raise InvalidInput(f"the delivery {shown(row[0])} is there twice")


def _known(fields: dict[str, Any], name: str) -> Any:
    if name not in fields:
        raise InvalidInput(f'it lacks the field "{name}"')
    return fields[name]


def _count(fields: dict[str, Any], name: str, *, least: int = 0, most: int = MAX_COUNT) -> int:
    return check_count(name, _known(fields, name), least=least, most=most)


def _times(fields: dict[str, Any]) -> tuple[int, int, int | None]:
    """When it was made, changed, and expires."""
    expires_at = None if fields.get("expires_at") is None else _count(fields, "expires_at", most=MAX_TIME)
    return _count(fields, "created_at", most=MAX_TIME), _count(fields, "updated_at", most=MAX_TIME), expires_at
