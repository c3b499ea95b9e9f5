"""What was changed, by whom and when: one table for the audit and for those who watch.

It grows at its end only, in the order of commits, so a row's number is a cursor that loses nothing.
It names keys and sizes, never values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from scrubjay.errors import Conflict
from scrubjay.names import MAX_PAGE, successor
from scrubjay.records import Change, to_time

from .operation import READ, SNAPSHOT, WRITE, Context, Long, Many, Steps, operation

DAY = 86_400_000
"""Milliseconds."""

_INSERT = """INSERT INTO changes (at, who, verb, namespace, key, bytes, refusal) VALUES (?, ?, ?, ?, ?, ?, ?)"""
_COLUMNS = "id, at, who, verb, namespace, key, bytes, refusal"
_BOUNDS = "SELECT coalesce(min(id), 1), coalesce(max(id), 0) FROM changes"


class Entry(NamedTuple):
    """A change that is about to be recorded."""

    verb: str
    namespace: str
    key: str = ""
    bytes: int = 0
    refusal: str | None = None
    """The code of the error, if it was refused."""


def record(context: Context, entries: Sequence[Entry]) -> Steps[None]:
    """Write them down, in the transaction of the change itself."""
    if context.records and entries:
        rows = [(context.now, context.who, *entry) for entry in entries]
        yield (_INSERT, rows[0]) if len(rows) == 1 else Many(_INSERT, rows)


@operation(WRITE)
def refuse(context: Context, *entries: Entry) -> Steps[None]:
    """Record what was not done."""
    yield from record(context, entries)


@operation(SNAPSHOT)
def read_changes(
    context: Context, namespace: str, prefix: str, after: int | None, limit: int = MAX_PAGE
) -> Steps[tuple[list[Change], int]]:
    """The changes of a namespace after a cursor, and the cursor to go on from; None is the present.

    What concerns all keys is seen whatever the prefix.
    """
    if not context.records:
        raise Conflict("changes are not recorded here: SCRUBJAY_AUDIT_ROWS is 0; set it to more, or unset it")
    ((first, last),) = yield Long(_BOUNDS, ())
    if after is None or after == last:
        return [], last
    if not first - 1 <= after < last:
        raise Conflict(
            f"the cursor {after} is not among the changes that are kept, {first - 1} to {last};"
            " read anew what you need and watch from the present"
        )
    end = successor(prefix)
    rows = yield Long(
        f"""SELECT {_COLUMNS} FROM changes WHERE id > ? AND id <= ? AND namespace = ? AND refusal IS NULL
        AND (key = '' OR (key >= ? {"AND key < ?" if end else ""})) ORDER BY id LIMIT ?""",  # noqa: S608
        (after, last, namespace, prefix, *([end] if end else []), limit),
    )
    return [_change(row) for row in rows], rows[-1][0] if len(rows) == limit else last


@operation(SNAPSHOT)
def read_audit(
    _context: Context, namespace: str | None, since: int, after: int, limit: int = MAX_PAGE
) -> Steps[list[Change]]:
    """Everything recorded, oldest first: of one namespace or of all, from a time on, after a cursor."""
    rows = yield Long(
        f"""SELECT {_COLUMNS} FROM changes WHERE id > ? AND at >= ? AND (?3 IS NULL OR namespace = ?3)
        ORDER BY id LIMIT ?""",  # noqa: S608
        (after, since, namespace, limit),
    )
    return [_change(row) for row in rows]


@operation(READ)
def last_change(_context: Context) -> Steps[int]:
    """The cursor of the present."""
    rows = yield "SELECT max(id) FROM changes", ()
    return rows[0][0] or 0


@operation(READ)
def changed_since(_context: Context, after: int) -> Steps[set[str]]:
    """The namespaces that have changed after a cursor, which is of a moment ago."""
    rows = yield "SELECT DISTINCT namespace FROM changes WHERE id > ? AND refusal IS NULL", (after,)
    return {namespace for (namespace,) in rows}


def rotate(context: Context, days: int, most: int, limit: int) -> Steps[bool]:
    """Remove some of the oldest, by age and by number; True when there may be more. The last one stays:
    its number is the cursor of the present.
    """
    rows = yield (
        """DELETE FROM changes WHERE id IN (SELECT id FROM (SELECT id, at FROM changes ORDER BY id LIMIT ?)
        WHERE id < (SELECT max(id) FROM changes) AND (at < ? OR id <= (SELECT max(id) FROM changes) - ?))
        RETURNING 1""",
        (limit, context.now - days * DAY, most),
    )
    return len(rows) == limit


def _change(row: tuple[Any, ...]) -> Change:
    id_, at, *rest = row
    return Change(id_, to_time(at), *rest)
