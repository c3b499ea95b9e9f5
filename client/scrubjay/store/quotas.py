"""What a namespace has used and may use, counted in the transaction of the write itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scrubjay.errors import QuotaExceeded
from scrubjay.lazy import Lazy
from scrubjay.names import counted
from scrubjay.records import Usage, to_time

from .changes import Entry, record, rotate
from .operation import LONG_WRITE, READ, WRITE, Context, Long, Quota, Steps, operation

if TYPE_CHECKING:
    from . import deliveries, note_rows
else:
    deliveries = Lazy("scrubjay.store.deliveries")
    note_rows = Lazy("scrubjay.store.note_rows")

DAY = 86_400_000
"""Milliseconds."""
SWEEP_BATCH = 500
"""Expired items, and notes, removed in one transaction: small enough that no writer waits long."""
LONG_LIST = 1000
"""Rows of a list that are removed in less time than a hop to a thread and back is worth."""

_DROP_ROWS = "DELETE FROM list_items WHERE namespace = ? AND key = ?"
_SELECT = """SELECT keys, notes, bytes, day, writes, writes_per_day, max_bytes, version_floor
FROM namespaces WHERE namespace = ?"""
_SAVE = """INSERT INTO namespaces
(namespace, keys, notes, bytes, day, writes, writes_per_day, max_bytes, version_floor)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace) DO UPDATE SET keys = excluded.keys, notes = excluded.notes, bytes = excluded.bytes,
day = excluded.day, writes = excluded.writes, writes_per_day = excluded.writes_per_day, max_bytes = excluded.max_bytes,
version_floor = excluded.version_floor"""
# The + keeps SQLite from reading the whole namespace: what has expired is few, and has an index of its own.
_EXPIRED = """SELECT coalesce(sum(keys), 0), coalesce(sum(bytes), 0) FROM (
SELECT 1 AS keys, bytes FROM items WHERE +namespace = ?1 AND expires_at <= ?2
UNION ALL SELECT 0, bytes FROM notes WHERE +namespace = ?1 AND expires_at <= ?2)"""


class Account:
    """A namespace's row while an operation works on it."""

    __slots__ = (
        "_changed",
        "_context",
        "_entries",
        "_found",
        "bytes",
        "day",
        "keys",
        "namespace",
        "notes",
        "own",
        "version_floor",
        "writes",
    )

    def __init__(self, context: Context, namespace: str, row: Sequence[Any]) -> None:
        self._context = context
        self._changed = False
        self._entries: list[Entry] = []
        self.namespace = namespace
        if row:
            self.keys, self.notes, self.bytes, self.day, self.writes, *own, self.version_floor = row
            self.own: tuple[int | None, ...] = tuple(own)
        else:
            self.keys = self.notes = self.bytes = self.day = self.writes = self.version_floor = 0
            self.own = (None, None)
        today = context.now // DAY
        # A clock set back by less than a day must not hand out the same day's writes twice;
        # one set back further was wrong before, and waiting for that future would lock the namespace.
        if today > self.day or today < self.day - 1:
            self.day = today
            self.writes = 0
        self._found = (self.keys, self.bytes, self.writes)

    @property
    def quota(self) -> Quota:
        """The limits in force: the namespace's own, else the default."""
        writes_per_day, max_bytes = self.own
        default = self._context.quota
        return Quota(
            default.writes_per_day if writes_per_day is None else writes_per_day,
            default.max_bytes if max_bytes is None else max_bytes,
        )

    def usage(self) -> Usage:
        return self._usage(self.keys, self.bytes, self.writes)

    @property
    def _before(self) -> Usage:
        """What a refused operation leaves behind: nothing new."""
        return self._usage(*self._found)

    def _usage(self, keys: int, size: int, writes: int) -> Usage:
        quota = self.quota
        return Usage(
            namespace=self.namespace,
            keys=keys,
            bytes=size,
            max_bytes=quota.max_bytes,
            writes_today=writes,
            writes_per_day=quota.writes_per_day,
            resets_at=to_time((self.day + 1) * DAY),
        )

    def charge(self, *, writes: int = 0, keys: int = 0, notes: int = 0, size: int = 0) -> Steps[None]:
        """Count what the operation is about to do, or refuse it; nothing of it is written yet."""
        quota = self.quota
        if writes and quota.writes_per_day and self.writes + writes > quota.writes_per_day:
            raise self._too_many(writes, quota.writes_per_day)
        if size > 0 and quota.max_bytes and self.bytes + size > quota.max_bytes:
            yield from sweep_into(self, self._context.now)  # what has expired must not stand in the way
            if self.bytes + size > quota.max_bytes:
                raise self._too_large(size, quota.max_bytes)
        self.writes += writes
        self.keys += keys
        self.notes += notes
        self.bytes += size
        self._changed = self._changed or bool(writes or keys or notes or size)

    def _too_many(self, writes: int, limit: int) -> QuotaExceeded:
        wait = max(((self.day + 1) * DAY - self._context.now + 999) // 1000, 1)
        allowed, left = counted(limit, "write"), max(limit - self.writes, 0)
        return QuotaExceeded(
            f"the namespace {self.namespace!r} has {left:,} of its {allowed} a day left, and this takes {writes:,};"
            f" they start again in {counted(wait, 'second')} (midnight UTC), or raise it:"
            " scrubjay quota NAMESPACE --writes-per-day N",
            retry_after=wait,
            usage=self._before,
        )

    def _too_large(self, size: int, limit: int) -> QuotaExceeded:
        held = min(self._before.bytes, self.bytes)
        needed = self.bytes + size - held
        return QuotaExceeded(
            f"the namespace {self.namespace!r} holds {held:,} of {counted(limit, 'byte')}, and this needs {needed:,}"
            " more; delete something, or raise it: scrubjay quota NAMESPACE --max-bytes N",
            usage=self._before,
        )

    def release(self, *, size: int, keys: int = 0, notes: int = 0, version: int = 0) -> None:
        """Take off what was deleted; the highest version of its items was `version`."""
        self.keys -= keys
        self.notes -= notes
        self.bytes -= size
        self.version_floor = max(self.version_floor, version)
        self._changed = True

    def limit(self, changes: Mapping[str, int | None]) -> None:
        writes_per_day, max_bytes = self.own
        self.own = (changes.get("writes_per_day", writes_per_day), changes.get("max_bytes", max_bytes))
        self._changed = True
        self.record("quota")

    def record(self, verb: str, key: str = "", size: int = 0) -> None:
        """What `save` will write into the log of changes."""
        self._entries.append(Entry(verb, self.namespace, key, size))

    def record_clear(self) -> None:
        """One entry for all that is gone, if there was anything."""
        if self._changed:
            self.record("clear", size=self._found[1] - self.bytes)

    def save(self) -> Steps[None]:
        if self._changed:
            yield (
                _SAVE,
                (
                    *(self.namespace, self.keys, self.notes, self.bytes),
                    *(self.day, self.writes, *self.own, self.version_floor),
                ),
            )
        yield from record(self._context, self._entries)


def open_account(context: Context, namespace: str) -> Steps[Account]:
    rows = yield _SELECT, (namespace,)
    return Account(context, namespace, rows[0] if rows else ())


@operation(READ)
def read_usage(context: Context, namespace: str) -> Steps[Usage]:
    """What the namespace has used; what has expired is gone, swept or not."""
    account = yield from open_account(context, namespace)
    if account.bytes:
        ((keys, size),) = yield _EXPIRED, (namespace, context.now)
        account.keys -= keys
        account.bytes -= size
    return account.usage()


@operation(WRITE)
def set_quota(context: Context, namespace: str, changes: Mapping[str, int | None]) -> Steps[Usage]:
    """Change the limits named in `changes`; None goes back to the default."""
    account = yield from open_account(context, namespace)
    account.limit(changes)
    yield from account.save()
    return account.usage()


@operation(READ)
def list_namespaces(_context: Context) -> Steps[list[str]]:
    rows = yield "SELECT namespace FROM namespaces ORDER BY namespace", ()
    return [namespace for (namespace,) in rows]


def sweep_into(account: Account, now: int) -> Steps[None]:
    """Remove a namespace's expired items and notes and take them off its account, which the caller saves."""
    expired = yield (
        "SELECT key, version, bytes, length FROM items WHERE +namespace = ? AND expires_at <= ?",
        (account.namespace, now),
    )
    for key, version, size, length in expired:
        yield from drop(account, "expire", key, version, size, length)
    old = yield (
        f"SELECT {note_rows.LEAVING} WHERE +n.namespace = ? AND n.expires_at <= ?",
        (account.namespace, now),
    )
    for leaving in old:
        yield from note_rows.erase_note(account, "expire", leaving)


def drop_rows(account: Account, key: str, length: int) -> Steps[None]:
    """Remove the rows of a list."""
    at = (account.namespace, key)
    yield Long(_DROP_ROWS, at) if length > LONG_LIST else (_DROP_ROWS, at)


def drop(account: Account, verb: str, key: str, version: int, size: int, length: int | None) -> Steps[None]:
    """Remove one item for good and take it off the account, which the caller saves."""
    at: tuple[Any, ...] = (account.namespace, key)
    if length is not None:
        yield from drop_rows(account, key, length)
    yield "DELETE FROM items WHERE namespace = ? AND key = ?", at
    account.release(keys=1, size=size, version=version)
    account.record(verb, key, size)


@operation(LONG_WRITE)
def sweep(context: Context, audit_days: int, audit_rows: int) -> Steps[tuple[int, bool]]:
    """Remove some of what is over: items, notes, ids of deliveries, the log.

    How many items and notes there were, and whether there may be more of anything.
    """
    items = yield (
        "SELECT namespace, key, version, bytes, length FROM items WHERE expires_at <= ? LIMIT ?",
        (context.now, SWEEP_BATCH),
    )
    notes = yield (
        f"SELECT n.namespace, {note_rows.LEAVING} WHERE n.expires_at <= ? LIMIT ?",
        (context.now, SWEEP_BATCH),
    )
    accounts: dict[str, Account] = {}
    for namespace, *_ in (*items, *notes):
        if namespace not in accounts:
            accounts[namespace] = yield from open_account(context, namespace)
    for namespace, *item in items:
        yield from drop(accounts[namespace], "expire", *item)
    for namespace, *leaving in notes:
        yield from note_rows.erase_note(accounts[namespace], "expire", leaving)
    for account in accounts.values():
        yield from account.save()
    more = yield from deliveries.forget_old(context, SWEEP_BATCH)
    older = yield from rotate(context, audit_days, audit_rows, SWEEP_BATCH)
    return len(items) + len(notes), more or older or SWEEP_BATCH in (len(items), len(notes))
