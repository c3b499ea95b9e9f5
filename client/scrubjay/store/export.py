"""Export and import of a namespace, as lines of JSON that restore it exactly.

The first line is a header, the last has the number of lines, so that an incomplete file is detected before anything
is written. Times are milliseconds since 1970, as in the store. A list in rows is one line, followed by a line for
each of its entries, so that no list is too long for memory.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from scrubjay.errors import Conflict, InvalidInput, NotFound, repr_short
from scrubjay.exact_json import MAX_WRITE_BYTES, byte_size, decode_body, encode
from scrubjay.store.encryption import NO_ENCRYPTION, item_associated_data
from scrubjay.store.expiry import charge
from scrubjay.store.idempotency import DIGEST_BYTES
from scrubjay.store.items import clear_into
from scrubjay.store.note_rows import Row
from scrubjay.store.notes import clear_notes_into, insert_note
from scrubjay.store.operation import ERASE, SNAPSHOT, Context, ExecuteMany, SlowQuery, Statements, operation
from scrubjay.store.usage import NamespaceUsage, open_namespace
from scrubjay.store.word_index import NoteTerms, add_terms
from scrubjay.validation import MAX_COUNT, NewNote, check_count, check_key, check_namespace

FORMAT = "scrubjay-export"
FORMAT_VERSION = 1
MAX_LINE_BYTES = 3 * MAX_WRITE_BYTES
"""The largest value, with room for escapes and its fields."""
PAGE_ROWS = 1000
PAGE_BYTES = 4 * 2**20
"""Rows and bytes that are in memory at a time, except for one value that is larger."""
MAX_TIME = 253_402_300_799_999
"""The last millisecond of the year 9999, beyond which Python has no dates."""
_LAST_LINE = b'{"kind":"end",'
"""How the last line of an export starts, and no other line."""
_LAST_BYTES = 200
"""Bytes at the end of the file that contain the last line."""

_NOTE_FIELDS = ("content", "type", "session", "times", "created_at", "updated_at", "expires_at", "tags", "metadata")


class TransferSummary(NamedTuple):
    """What was exported or imported."""

    namespace: str
    keys: int
    notes: int


# ---------------------------------------------------------------- export


@operation("export", SNAPSHOT)
def export_namespace(
    context: Context, namespace: str, write: Callable[[bytes], object], is_whole: bool = True
) -> Statements[TransferSummary]:
    """Pass all lines of a namespace to `write`, from one snapshot and without what has expired.

    Unless it is to be whole, without the idempotency keys: they have results of other clients' writes.
    """
    rows = yield SlowQuery("read_limits", (namespace,))
    if not rows:
        raise NotFound(f"there is no namespace {namespace!r}; `scrubjay namespaces` lists them")
    export = _Export(context, namespace, write)
    export.add_header(*rows[0])
    yield from export.items()
    yield from export.notes()
    if is_whole:
        yield from export.idempotency_keys()
    return export.end()


class _Export:
    """An export in progress."""

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

    def items(self) -> Statements[None]:
        at = (self._namespace, self._now)
        last = ""
        while sizes := (yield SlowQuery("list_item_sizes", (*at, last, PAGE_ROWS))):
            last = sizes[-1][0]
            for bounds in _pages([(key, 0 if length is not None else size) for key, size, length in sizes]):
                for row in (yield SlowQuery("export_items", (*at, *bounds))):
                    yield from self._item(*row)

    def _item(self, key: str, length: int | None, *row: Any) -> Statements[None]:
        *numbers, stored = row
        fields = {"key": key, **dict(zip(("version", "created_at", "updated_at", "expires_at"), numbers, strict=True))}
        self._keys += 1
        if length is None:
            text = self._cipher.decrypt(stored, item_associated_data(self._namespace, key))
            self._add({"kind": "item", **fields}, ("value", text))
        else:
            self._add({"kind": "list", **fields, "length": length})
            yield from self._entries(key)

    def _entries(self, key: str) -> Statements[None]:
        at = (self._namespace, key)
        last = -1
        while sizes := (yield SlowQuery("list_row_sizes", (*at, last, PAGE_ROWS))):
            last = sizes[-1][0]
            for bounds in _pages(sizes):
                for (stored,) in (yield SlowQuery("export_list_rows", (*at, *bounds))):
                    self._add({"kind": "entry"}, ("value", self._cipher.decrypt(stored, item_associated_data(*at))))

    def notes(self) -> Statements[None]:
        at = (self._namespace, self._now)
        last = 0
        while sizes := (yield SlowQuery("list_note_sizes", (*at, last, PAGE_ROWS))):
            last = sizes[-1][0]
            for bounds in _pages(sizes):
                for row in (yield SlowQuery("export_notes", (*at, *bounds))):
                    self._note(Row.read(self._cipher, self._namespace, row))

    def _note(self, row: Row) -> None:
        fields = {name: getattr(row, name) for name in _NOTE_FIELDS}
        self._notes += 1
        newer = None if row.superseded_by is None else str(row.superseded_by)
        if row.own_id is not None:
            fields["own_id"] = row.own_id
        self._add({"kind": "note", "id": str(row.id), "pinned": bool(row.pinned), "superseded_by": newer, **fields})

    def idempotency_keys(self) -> Statements[None]:
        """A client may send a write again after the import, which must not happen twice."""
        last = ""
        while rows := (yield SlowQuery("list_idempotency_keys", (self._namespace, last, PAGE_ROWS))):
            last = rows[-1][0]
            for *values, digest, result in rows:
                known = digest if self._cipher is NO_ENCRYPTION else ""  # a keyed digest is useless in another file
                fields = dict(zip(("sender", "sequence", "verb", "used_on", "key"), values, strict=True))
                self._add({"kind": "idempotency_key", **fields, "digest": known}, ("result", result))

    def end(self) -> TransferSummary:
        self._add({"kind": "end", "lines": self._lines + 1})
        return TransferSummary(self._namespace, self._keys, self._notes)

    def _add(self, fields: dict[str, Any], *texts: tuple[str, str]) -> None:
        """Write one line; `texts` are fields that are JSON text already."""
        line = encode(fields)[:-1] + "".join(f',"{name}":{text}' for name, text in texts) + "}\n"
        self._lines += 1
        self._write(line.encode())


def _pages(sizes: list[tuple[Any, ...]]) -> Iterator[tuple[Any, Any]]:
    """First and last name of each run of rows that fits into a page of memory."""
    first, total = None, 0
    for i, (name, size, *_) in enumerate(sizes):
        first = name if first is None else first
        total += size
        if i + 1 == len(sizes) or total + sizes[i + 1][1] > PAGE_BYTES:
            yield first, name
            first, total = None, 0


# ---------------------------------------------------------------- import


def count_exports(path: Path) -> int:
    """How many exports a file has, one after the other; raises InvalidInput if the last one is incomplete."""
    ends = list(_ends(path))
    if len(ends) > 1 and ends[-1] != path.stat().st_size:
        raise InvalidInput("the last export of this file is incomplete; export again; nothing was changed")
    return len(ends)


def split_exports(path: Path) -> Iterator[Path]:
    """A file for each export in a file, which exists until the next one is asked for."""
    ends = list(_ends(path))
    if len(ends) <= 1:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="scrubjay-") as folder, path.open("rb") as file:
        part = Path(folder) / "part"
        for start, end in itertools.pairwise([0, *ends]):
            with part.open("wb") as copy:
                for position in range(start, end, PAGE_BYTES):
                    copy.write(file.read(min(PAGE_BYTES, end - position)))
            yield part


def _ends(path: Path) -> Iterator[int]:
    """Where each export in a file ends."""
    with path.open("rb") as file:
        for line in iter(lambda: file.readline(MAX_LINE_BYTES), b""):
            if line.startswith(_LAST_LINE):
                yield file.tell()


def read_header(path: Path) -> dict[str, Any]:
    """The first line of a complete export; raises InvalidInput for an incomplete one."""
    with path.open("rb") as file:
        _, header = next(_numbered(file), (1, {}))
        with _at_line(1):
            _check_header(header)
        count, last = _count_lines(file)
    if last.get("kind") != "end" or last.get("lines") != count:
        raise InvalidInput(
            f"this export is incomplete: it has {count} lines, and the last one does not confirm that number; export"
            " again; nothing was changed"
        )
    return header


def _check_header(header: dict[str, Any]) -> None:
    if header.get("format") != FORMAT:
        raise InvalidInput("this is not an export of Scrubjay: the first line is not its header")
    if header.get("version") != FORMAT_VERSION:
        raise InvalidInput(
            f"this export has the format {repr_short(header.get('version'))}, and this Scrubjay knows {FORMAT_VERSION};"
            " upgrade with: pip install -U scrubjay"
        )
    check_namespace(header.get("namespace"))
    _count(header, "version_floor")
    for name in ("writes_per_day", "max_bytes"):
        if header.get(name) is not None:
            _count(header, name)


def _count_lines(file: BinaryIO) -> tuple[int, dict[str, Any]]:
    """The number of lines, and the fields of the last one."""
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
    """The number and the fields of each line."""
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1):
        with _at_line(number):
            if not line.endswith(b"\n") and len(line) == MAX_LINE_BYTES:
                raise InvalidInput(f"it is longer than {MAX_LINE_BYTES} bytes, the most that a line of an export has")
            fields = decode_body(line)
            if not isinstance(fields, dict):
                raise InvalidInput("it is not a JSON object")
        progress(len(line))
        yield number, fields


@contextlib.contextmanager
def _at_line(number: int) -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        raise type(error)(f"line {number}: {error}") from None


@operation("import", ERASE)
def import_namespace(
    context: Context,
    namespace: str,
    path: Path,
    replace: bool = False,
    progress: Callable[[int], object] = lambda _: None,
) -> Statements[tuple[TransferSummary, NamespaceUsage]]:
    """Import an export, all of it or nothing.

    The storage limit applies. Nothing is counted as today's writes: they were counted when they were written, and a
    year's writes would exceed a day's limit.
    """
    header = read_header(path)
    usage = yield from open_namespace(context, namespace)
    yield from _clear(context, usage, replace)
    importer = _Import(context, usage, header)
    with path.open("rb") as file:
        lines = _numbered(file, progress)
        next(lines)
        for number, fields in lines:
            with _at_line(number):
                yield from importer.add(fields)
    yield from importer.end_notes()
    usage.record(size=usage.bytes)
    yield from usage.save()
    return importer.summary(), usage


def _clear(context: Context, usage: NamespaceUsage, replace: bool) -> Statements[None]:
    found = yield "find_content", (usage.namespace, usage.namespace)
    if found and not replace:
        raise Conflict(
            f"the namespace {usage.namespace!r} is not empty; import into another, or pass --replace to replace"
            " its contents"
        )
    yield from clear_into(usage, context.now)
    yield from clear_notes_into(usage, context.now)
    yield "delete_idempotency_keys", (usage.namespace,)


class _Import:
    """An import in progress.

    A namespace that was never written to gets exactly the versions of the export. In another one they continue above
    its own: a version that a client has read must never belong to another value. It keeps limits of its own.
    """

    def __init__(self, context: Context, usage: NamespaceUsage, header: dict[str, Any]) -> None:
        self._context = context
        self._usage = usage
        self._version_offset = usage.version_floor
        usage.version_floor += header["version_floor"]
        own = zip(("writes_per_day", "max_bytes"), usage.overrides, strict=True)
        usage.override_limits({name: header.get(name) for name, limit in own if limit is None})
        self._list: dict[str, Any] | None = None
        self._entries: list[str] = []
        self._entry_bytes = self._length = self._list_bytes = 0
        self._keys = self._notes = 0
        self._terms: list[NoteTerms] = []
        """Of notes that are stored, but not in the index yet."""

    def add(self, fields: dict[str, Any]) -> Statements[None]:
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
        elif kind == "idempotency_key":
            yield from self._idempotency_key(fields)
        elif kind != "end":
            raise InvalidInput(f"its kind is {repr_short(kind)}, which an export does not have")

    def summary(self) -> TransferSummary:
        return TransferSummary(self._usage.namespace, self._keys, self._notes)

    def _entry(self, fields: dict[str, Any]) -> Statements[None]:
        if self._list is None:
            raise InvalidInput("an entry must follow its list, and there is no list before it")
        text = encode(_known(fields, "value"))
        self._entries.append(text)
        self._entry_bytes += byte_size(text)
        if len(self._entries) == PAGE_ROWS or self._entry_bytes > PAGE_BYTES:
            yield from self._store_entries(self._list["key"])

    def _store_entries(self, key: str) -> Statements[None]:
        size = self._entry_bytes + len(self._entries)  # a comma after each; _end_list corrects the last one
        yield from self._charge(size)
        at = (self._usage.namespace, key)
        values = [self._context.cipher.encrypt(text, item_associated_data(*at)) for text in self._entries]
        yield ExecuteMany("append_list_row", [(*at, *at, value) for value in values])
        self._length += len(self._entries)
        self._list_bytes += size
        self._entries, self._entry_bytes = [], 0

    def _end_list(self) -> Statements[None]:
        if self._list is None:
            return
        fields, key = self._list, self._list["key"]
        yield from self._store_entries(key)
        if self._length != fields["length"]:
            raise InvalidInput(f"the list before it should have {fields['length']} entries, and has {self._length}")
        brackets = 2 - bool(self._length)
        yield from self._charge(brackets)
        at = (self._usage.namespace, key)
        yield "add_item_bytes", (self._list_bytes + brackets, *at)
        self._list = None

    def _add_item(self, fields: dict[str, Any], text: str | None, length: int | None, size: int) -> Statements[None]:
        key = check_key(fields.get("key"))
        size += byte_size(key)
        yield from self._charge(size, keys=1)
        version = self._version_offset + _count(fields, "version", least=1)
        at = (self._usage.namespace, key)
        value = None if text is None else self._context.cipher.encrypt(text, item_associated_data(*at))
        added = yield "insert_item", (*at, value, length, size, version, *_times(fields))
        if not added:
            raise InvalidInput(f"the key {repr_short(key)} occurs twice; remove one of the two lines")
        self._keys += 1

    def _note(self, fields: dict[str, Any]) -> Statements[None]:
        note = NewNote.check(
            **{name: fields.get(name) for name in ("content", "type", "tags", "session", "pinned", "metadata")},
            id=fields.get("own_id"),
        )
        newer = fields.get("superseded_by")
        row = Row(
            id=_note_id(fields.get("id")),
            content=note.content,
            type=note.type,
            tags=note.tags or (),
            session=note.session,
            metadata=note.metadata or {},
            pinned=int(note.pinned),
            times=_count(fields, "times", least=1),
            superseded_by=None if newer is None else _note_id(newer),
            own_id=note.id,
            **dict(zip(("created_at", "updated_at", "expires_at"), _times(fields), strict=True)),  # type: ignore[arg-type]
        )
        yield from self._make_room(row.measured().bytes)
        terms = yield from insert_note(self._context, self._usage, row)
        if terms is None:
            raise InvalidInput(
                "this note occurs twice: the same id, or the same content in the same session; remove one of the lines"
            )
        self._notes += 1
        self._terms.append(terms)
        if len(self._terms) == PAGE_ROWS or len(note.content) > PAGE_BYTES // PAGE_ROWS:
            yield from self.end_notes()

    def _charge(self, size: int, keys: int = 0) -> Statements[None]:
        yield from self._make_room(size)
        yield from charge(self._usage, keys=keys, size=size)

    def _make_room(self, size: int) -> Statements[None]:
        """If there is no room, notes that have expired are removed next, also from the index: add them to it now."""
        if self._usage.lacks_room(size):
            yield from self.end_notes()

    def end_notes(self) -> Statements[None]:
        """Add the notes that were stored to the index of words."""
        if self._terms:
            yield from add_terms(self._usage.namespace, self._terms, is_last=True)
            self._terms = []

    def _idempotency_key(self, fields: dict[str, Any]) -> Statements[None]:
        numbers = _count(fields, "sequence"), check_key(fields.get("verb")), _count(fields, "used_on")
        key = fields.get("key") or ""  # an update and a note have none
        call = key and check_key(key), self._digest(fields)
        row = (check_key(fields.get("sender")), *numbers, *call, encode(_known(fields, "result")))
        if not (yield "insert_idempotency_key", (self._usage.namespace, *row)):
            raise InvalidInput(f"the idempotency key {repr_short(row[0])} occurs twice; remove one of the two lines")

    def _digest(self, fields: dict[str, Any]) -> str:
        """The digest as this database stores it."""
        digest = fields.get("digest") or ""
        if not isinstance(digest, str) or not re.fullmatch(f"([0-9a-f]{{{2 * DIGEST_BYTES}}})?", digest):
            raise InvalidInput(f'"digest" is {2 * DIGEST_BYTES} hexadecimal digits or empty, not {repr_short(digest)}')
        return self._context.cipher.keyed_digest(bytes.fromhex(digest)).hex() if digest else ""


def _known(fields: dict[str, Any], name: str) -> Any:
    if name not in fields:
        raise InvalidInput(f'it lacks the field "{name}"; add it, or export the namespace again')
    return fields[name]


def _note_id(text: Any) -> int:
    if not isinstance(text, str) or not text.isascii() or not text.isdecimal() or not 0 < len(text) < 19:
        raise InvalidInput(f"the id of a note is a number as text, not {repr_short(text)}")
    return int(text)


def _count(fields: dict[str, Any], name: str, *, least: int = 0, most: int = MAX_COUNT) -> int:
    return check_count(name, _known(fields, name), least=least, most=most)


def _times(fields: dict[str, Any]) -> tuple[int, int, int | None]:
    """created_at, updated_at and expires_at."""
    expires_at = None if fields.get("expires_at") is None else _count(fields, "expires_at", most=MAX_TIME)
    return _count(fields, "created_at", most=MAX_TIME), _count(fields, "updated_at", most=MAX_TIME), expires_at
