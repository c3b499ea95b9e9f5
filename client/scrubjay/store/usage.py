"""The usage of a namespace and its limits, counted in the transaction of each write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scrubjay.errors import QuotaExceeded, operand, pluralize
from scrubjay.models import Usage, to_time
from scrubjay.store.changes import LogEntry, append_changes
from scrubjay.store.encryption import Cipher
from scrubjay.store.key_usage import KeyUsage, counted_today, open_key, seconds_left
from scrubjay.store.operation import DAY_MS, READ, SNAPSHOT, WRITE, Context, Quota, SlowQuery, Statements, operation

_ITEM_COLUMNS = 5
"""Columns of the item that come before those of its namespace in the row that `open_with_item` reads."""
_UNUSED = (0, 0, 0, 0, 0, None, None, 0, "")
"""The row of a namespace that does not exist yet."""


class NamespaceUsage:
    """The row of a namespace while an operation works on it."""

    __slots__ = (
        "_context",
        "_entries",
        "_found",
        "_is_changed",
        "bytes",
        "day",
        "keys",
        "namespace",
        "notes",
        "overrides",
        "owner",
        "owner_id",
        "quota",
        "version_floor",
        "writer",
        "writes",
    )

    def __init__(self, context: Context, namespace: str, row: Sequence[Any] = _UNUSED) -> None:
        self._context = context
        self._is_changed = False
        self._entries: list[LogEntry] = []
        self.namespace = namespace
        self.keys, self.notes, self.bytes, day, writes, writes_per_day, max_bytes, self.version_floor, owner_id = row
        self.owner_id: str = owner_id
        """The api key that the bytes count for; empty if none."""
        self.owner: KeyUsage | None = None
        self.writer: KeyUsage | None = None
        """The api key that the writes of this operation count for."""
        self.overrides: tuple[int | None, int | None] = (None, None)
        """The namespace's own limits; None means the default of the store."""
        self.quota = context.quota
        """The limits in force."""
        if writes_per_day is not None or max_bytes is not None:
            self._override(writes_per_day, max_bytes)
        self.day, self.writes = counted_today(context, day, writes)
        self._found = (self.keys, self.notes, self.bytes, self.writes)

    def _override(self, writes_per_day: int | None, max_bytes: int | None) -> None:
        self.overrides = (writes_per_day, max_bytes)
        default = self._context.quota
        self.quota = Quota(
            default.writes_per_day if writes_per_day is None else writes_per_day,
            default.max_bytes if max_bytes is None else max_bytes,
        )

    def open_keys(self) -> Statements[None]:
        """Read the usage of the api keys that the operation counts for."""
        self.writer = yield from open_key(self._context, self._context.actor.key_id)
        is_same = self.writer is not None and self.owner_id == self.writer.id
        self.owner = self.writer if is_same else (yield from open_key(self._context, self.owner_id))

    @property
    def now(self) -> int:
        return self._context.now

    @property
    def cipher(self) -> Cipher:
        return self._context.cipher

    @property
    def has_counted_writes(self) -> bool:
        """Whether this operation has counted against the daily quota."""
        return self.writes > self._found[3]

    @property
    def is_empty(self) -> bool:
        return not self.keys and not self.notes

    def summary(self) -> Usage:
        return self._summarize(self.keys, self.notes, self.bytes, self.writes)

    def _summary_before(self) -> Usage:
        """The usage without this operation: what remains when it is refused."""
        return self._summarize(*self._found)

    def _summarize(self, keys: int, notes: int, size: int, writes: int) -> Usage:
        return Usage(
            namespace=self.namespace,
            keys=keys,
            notes=notes,
            bytes=size,
            max_bytes=self.quota.max_bytes,
            writes_today=writes,
            writes_per_day=self.quota.writes_per_day,
            resets_at=to_time((self.day + 1) * DAY_MS),
        )

    def lacks_room(self, size: int) -> bool:
        """Whether so many more bytes exceed the limit of storage."""
        if size > 0 and 0 < self.quota.max_bytes < self.bytes + size:
            return True
        return self.owner is not None and self.owner.lacks_room(size)

    def charge(self, *, writes: int = 0, keys: int = 0, notes: int = 0, size: int = 0) -> None:
        """Count what the operation is about to write, or raise QuotaExceeded. Use `expiry.charge`."""
        writes = writes if self._context.counts_writes else 0
        limit = self.quota.writes_per_day
        if writes and limit and self.writes + writes > limit:
            raise self._too_many_writes(writes, limit)
        if size > 0 and 0 < self.quota.max_bytes < self.bytes + size:
            raise self._too_large(size, self.quota.max_bytes)
        if self.writer:
            self.writer.check_writes(writes)
        self._count_content(keys, notes, size)
        self.writes += writes
        if self.writer:
            self.writer.count(writes=writes)
        if writes:
            self._is_changed = True

    def _count_content(self, keys: int, notes: int, size: int) -> None:
        """Count content for the namespace and for its owner; an empty namespace gets the writer as its owner."""
        was_empty = not self.keys and not self.notes
        if was_empty:
            self.owner = self.writer
        if self.owner:
            begins = was_empty and keys + notes > 0
            self.owner.check_content(size, int(begins))
        self.keys += keys
        self.notes += notes
        self.bytes += size
        if self.owner:
            self.owner.count(size=size, namespaces=was_empty - self.is_empty)
        if keys or notes or size:
            self._is_changed = True

    def _too_many_writes(self, writes: int, limit: int) -> QuotaExceeded:
        wait = seconds_left(self._context, self.day)
        allowed, left = pluralize(limit, "write"), max(limit - self.writes, 0)
        return QuotaExceeded(
            f"the namespace {self.namespace!r} has {left:,} of its {allowed} a day left, and this takes {writes:,};"
            f" the counter resets in {pluralize(wait, 'second')} (midnight UTC), or raise the limit:"
            f" scrubjay quota --writes-per-day N {operand(self.namespace)}",
            retry_after=wait,
            usage=self._summary_before(),
        )

    def _too_large(self, size: int, limit: int) -> QuotaExceeded:
        used = min(self._found[2], self.bytes)
        needed = self.bytes + size - used
        return QuotaExceeded(
            f"the namespace {self.namespace!r} holds {used:,} of {pluralize(limit, 'byte')}, and this needs {needed:,}"
            f" more; delete something, or raise the limit: scrubjay quota --max-bytes N {operand(self.namespace)}",
            usage=self._summary_before(),
        )

    def release(self, *, size: int, keys: int = 0, notes: int = 0, version: int = 0) -> None:
        """Subtract what was deleted; `version` is the highest version of its items."""
        self._count_content(-keys, -notes, -size)
        self.version_floor = max(self.version_floor, version)
        self._is_changed = True

    def override_limits(self, changes: Mapping[str, int | None]) -> None:
        """Change the limits named in `changes`; None restores the default."""
        writes_per_day, max_bytes = self.overrides
        self._override(changes.get("writes_per_day", writes_per_day), changes.get("max_bytes", max_bytes))
        self._is_changed = True

    def record(self, key: str = "", size: int = 0, verb: str | None = None) -> None:
        """Add an entry to the log of changes, which `save` writes; the verb is that of the running operation."""
        self._entries.append(LogEntry(verb or self._context.verb, self.namespace, key, size))

    def record_clear(self) -> None:
        """Log one entry for all that was deleted, if there was anything."""
        if self._is_changed:
            self.record(size=self._found[2] - self.bytes)

    def save(self) -> Statements[None]:
        """Write the row, and the log of changes."""
        if self._is_changed:
            yield (
                "save_namespace",
                (
                    self.namespace,
                    self.keys,
                    self.notes,
                    self.bytes,
                    self.day,
                    self.writes,
                    *self.overrides,
                    self.version_floor,
                    self.owner.id if self.owner else "",
                    self._context.now,
                ),
            )
            if self.writer:
                yield from self.writer.save()
            if self.owner:
                yield from self.owner.save()
        yield from append_changes(self._context, self._entries)


def open_with_item(
    context: Context, namespace: str, key: str | None
) -> Statements[tuple[NamespaceUsage, tuple[Any, ...] | None]]:
    """Open a namespace for update, and read the columns of the item under `key`, if there is one.

    Every write begins here, so an engine with locks on rows locks the namespace in this query until the commit. One
    query for both rows saves a tenth of the time of a write.
    """
    rows = yield "open_namespace", (key, namespace)
    row = rows[0] if rows else None
    usage = NamespaceUsage(context, namespace, row[_ITEM_COLUMNS:] if row else _UNUSED)
    if usage.owner_id or context.actor.key_id:
        yield from usage.open_keys()
    return usage, None if row is None or row[0] is None else row[:_ITEM_COLUMNS]


def open_namespace(context: Context, namespace: str) -> Statements[NamespaceUsage]:
    """Open a namespace for update."""
    usage, _ = yield from open_with_item(context, namespace, None)
    return usage


@operation("usage", READ)
def read_usage(context: Context, namespace: str) -> Statements[Usage]:
    """The usage of a namespace, without what has expired and is not yet removed."""
    rows = yield "read_namespace", (namespace,)
    usage = NamespaceUsage(context, namespace, *rows)
    if usage.bytes:
        at = (namespace, context.now)
        ((keys, notes, size),) = yield "sum_expired", (*at, *at)
        usage.keys -= keys
        usage.notes -= notes
        usage.bytes -= size
    return usage.summary()


@operation("set_quota", WRITE)
def set_quota(context: Context, namespace: str, changes: Mapping[str, int | None]) -> Statements[Usage]:
    """Change the limits named in `changes`; None restores the default."""
    usage = yield from open_namespace(context, namespace)
    usage.override_limits(changes)
    usage.record()
    yield from usage.save()
    return usage.summary()


@operation("namespaces", READ)
def list_namespaces(_context: Context) -> Statements[list[str]]:
    rows = yield "list_namespaces", ()
    return [namespace for (namespace,) in rows]


class Totals(NamedTuple):
    """Sums over namespaces."""

    namespaces: int
    keys: int
    notes: int
    bytes: int


@operation("count", SNAPSHOT)
def count_all(_context: Context) -> Statements[Totals]:
    """How many namespaces, items, notes and bytes the store has."""
    (row,) = yield SlowQuery("count_store", ())
    return Totals(*row)
