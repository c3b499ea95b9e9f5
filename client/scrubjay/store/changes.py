"""The log of changes, for the audit and for watchers, and the log of refused writes, for the audit.

`changes` grows at its end only. In SQLite the id of a row follows the order of commits, so that it is a cursor that
misses nothing; in PostgreSQL each namespace numbers its changes for that.
`refusals` is a table of its own: any client can cause refusals, and they must neither push changes out of the log
nor make a cursor invalid. Both hold keys and sizes, never values.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from scrubjay.errors import Conflict
from scrubjay.models import Change, to_time
from scrubjay.store.operation import (
    DAY_MS,
    READ,
    SNAPSHOT,
    WRITE,
    Context,
    ExecuteMany,
    SlowQuery,
    Statements,
    operation,
)
from scrubjay.validation import MAX_PAGE, prefix_upper_bound

REFUSAL_SHARE = 20
"""The log keeps one refusal for so many changes (SCRUBJAY_AUDIT_ROWS): with 5 %, a flood of refused requests is
visible for minutes, and cannot let the file grow by more than that."""


class LogEntry(NamedTuple):
    """A change that is about to be logged."""

    verb: str
    namespace: str
    key: str = ""
    bytes: int = 0


class Refusal(NamedTuple):
    """A refused call that is about to be logged."""

    verb: str
    namespace: str
    key: str
    code: str
    """The code of the error."""
    times: int = 1


class AuditCursor(NamedTuple):
    """The last entry that a reader of the audit has seen: a change, and a refusal after it, if there is one."""

    change: int = 0
    refusal: int = 0

    def __str__(self) -> str:
        return f"{self.change}.{self.refusal}" if self.refusal else str(self.change)

    @classmethod
    def parse(cls, text: str) -> AuditCursor:
        change, _, refusal = text.partition(".")
        return cls(int(change), int(refusal or 0))


AUDIT_START = AuditCursor()


def append_changes(context: Context, entries: Sequence[LogEntry]) -> Statements[None]:
    """Log changes in the transaction that makes them; the query gives each the next cursor."""
    if context.records_changes and entries:
        at, actor = context.now, context.actor.name
        if len(entries) == 1:
            yield "append_change", (at, actor, *entries[0])
        else:
            yield ExecuteMany("append_change", [(at, actor, *entry) for entry in entries])


@operation("refuse", WRITE)
def refuse(context: Context, *refusals: Refusal) -> Statements[None]:
    """Log calls that were refused."""
    if context.records_changes and refusals:
        yield ExecuteMany("append_refusal", [(context.now, context.actor.name, *refusal) for refusal in refusals])


@operation("changes", SNAPSHOT)
def read_changes(
    context: Context, namespace: str, prefix: str, after: int | None, limit: int = MAX_PAGE
) -> Statements[tuple[list[Change], int]]:
    """The changes of a namespace after a cursor, and the cursor to continue from; None is the present.

    Changes that concern all keys are part of it whatever the prefix.
    """
    if not context.records_changes:
        raise Conflict("changes are not recorded here: SCRUBJAY_AUDIT_ROWS is 0; set it to more, or unset it")
    ((first, last),) = yield SlowQuery("find_change_bounds", _log_of(context, namespace))
    if after is None or after == last:
        return [], last
    if not first - 1 <= after < last:
        raise Conflict(
            f"the cursor {after} is not among the changes in the log, {first - 1} to {last};"
            " read the values again and watch from the present"
        )
    end = prefix_upper_bound(prefix)
    rows = yield SlowQuery("read_changes", (after, last, namespace, prefix, end, end, limit))
    return [to_change(row) for row in rows], rows[-1][0] if len(rows) == limit else last


@operation("audit", SNAPSHOT)
def read_audit(
    _context: Context, namespace: str | None, since: int, after: AuditCursor = AUDIT_START, limit: int = MAX_PAGE
) -> Statements[tuple[list[Change], AuditCursor]]:
    """Changes and refusals of one namespace or of all since a time, oldest first, and the cursor to continue from."""
    chosen = (since, namespace, namespace, limit)
    changed = yield SlowQuery("audit_changes", (after.change, *chosen))
    refused = yield SlowQuery("audit_refusals", (*after, *chosen))
    found = heapq.merge(
        ((AuditCursor(row[0]), to_change(row)) for row in changed),
        ((AuditCursor(*row[:2]), to_change(row[1:])) for row in refused),
    )
    page = list(islice(found, limit))
    return [change for _, change in page], page[-1][0] if page else after


@operation("last_change", READ)
def last_change(context: Context, namespace: str = "") -> Statements[int]:
    """The cursor of the present in a namespace; in SQLite it is the same in all."""
    rows = yield "find_last_change", _log_of(context, namespace)
    return rows[0][0] or 0


@operation("changed_since", READ)
def changed_since(_context: Context, after: int) -> Statements[set[str]]:
    """The namespaces that have changed after a recent cursor."""
    rows = yield "list_changed_namespaces", (after,)
    return {namespace for (namespace,) in rows}


def _log_of(context: Context, namespace: str) -> tuple[str, ...]:
    """The parameters of a query about the ends of the log: one log for all, or one for each namespace."""
    return (namespace,) if context.numbers_by_namespace else ()


def rotate(context: Context, days: int, max_rows: int, limit: int) -> Statements[bool]:
    """Remove some of the oldest changes and refusals, by age and by number; True when there may be more.

    The last change stays: its id is the cursor of the present. So does the last refusal.
    """
    oldest = context.now - days * DAY_MS
    changed = yield "rotate_changes", (limit, oldest, max_rows)
    refused = yield "rotate_refusals", (limit, oldest, max_rows // REFUSAL_SHARE)
    return limit in (len(changed), len(refused))


def to_change(row: tuple[Any, ...]) -> Change:
    """The record of a row: a change, or a refusal with its code and times."""
    id_, at, *rest = row
    return Change(id_, to_time(at), *rest)
