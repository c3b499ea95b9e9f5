"""Reports about the store as a whole: namespaces with their usage, and activity over time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from scrubjay.models import Change, Entry, NamespaceSummary, to_time
from scrubjay.store.changes import to_change
from scrubjay.store.conversations import list_conversations
from scrubjay.store.encryption import NO_ENCRYPTION, item_associated_data
from scrubjay.store.items import key_range, list_keys
from scrubjay.store.operation import (
    DAY_MS,
    SNAPSHOT,
    WRITE,
    Context,
    ExecuteMany,
    SlowQuery,
    Statements,
    operation,
)
from scrubjay.store.usage import Totals
from scrubjay.validation import MAX_PAGE

MAX_RECENT = 100
"""Changes and refusals in a report of activity: a page to read. The audit has all of them."""
REQUEST_DAYS = 30
"""Days that the counts of requests are kept: at most 130,000 short rows."""
MINUTE_MS = 60_000
PREVIEW_CHARS = 200
"""Characters of an item's JSON text in a list of entries: a line of a table."""


class RequestCount(NamedTuple):
    """Requests of one kind in one minute."""

    minute: int
    """Minutes since 1970."""
    kind: str
    """read, write or recall."""
    requests: int
    refused: int
    failed: int
    total_ms: float
    max_ms: float


class Activity(NamedTuple):
    """What happened since a time: in steps of equal length, and the latest changes and refusals, newest first."""

    points: list[dict[str, Any]]
    recent: list[Change]


class _Row(NamedTuple):
    """A row of the query `read_namespaces`."""

    namespace: str
    keys: int
    notes: int
    bytes: int
    day: int
    writes: int
    writes_per_day: int | None
    max_bytes: int | None
    changed_at: int

    def writes_on(self, day: int) -> int:
        return self.writes if self.day == day else 0


@operation("overview", SNAPSHOT)
def list_usage(
    context: Context,
    search: str = "",
    sort: str = "name",
    reverse: bool = False,
    offset: int = 0,
    limit: int = MAX_PAGE,
    is_visible: Callable[[str], bool] | None = None,
) -> Statements[tuple[list[NamespaceSummary], Totals]]:
    """A page of the namespaces whose name contains `search`, and the sums over all of them.

    Usage includes what has expired and is not yet removed, which takes at most a minute. Names are filtered here
    because the patterns of an api key are not those of SQL.
    """
    wanted = search.casefold()
    rows = yield SlowQuery("read_namespaces", ())
    found = [
        _Row._make(row)
        for row in rows
        if (not wanted or wanted in row[0].casefold()) and (is_visible is None or is_visible(row[0]))
    ]
    found.sort(key=_sort_key(sort, context.now // DAY_MS), reverse=reverse)
    page: list[NamespaceSummary] = []
    for row in found[offset : offset + limit]:
        page += [(yield from _summarize(context, row))]
    return page, Totals(len(found), *(sum(map(attrgetter(name), found)) for name in ("keys", "notes", "bytes")))


def _sort_key(sort: str, today: int) -> Callable[[_Row], Any]:
    """Namespaces that are equal otherwise are in the order of their names: the query returns them so."""
    if sort == "writes":
        return lambda row: row.writes_on(today)
    return attrgetter({"name": "namespace", "changed": "changed_at"}.get(sort, sort))


def _summarize(context: Context, row: _Row) -> Statements[NamespaceSummary]:
    conversations, _ = yield from list_conversations(row.namespace, None, "", 1).start(context)
    return NamespaceSummary(
        namespace=row.namespace,
        keys=row.keys,
        notes=row.notes,
        bytes=row.bytes,
        max_bytes=context.quota.max_bytes if row.max_bytes is None else row.max_bytes,
        writes_today=row.writes_on(context.now // DAY_MS),
        writes_per_day=context.quota.writes_per_day if row.writes_per_day is None else row.writes_per_day,
        changed_at=to_time(row.changed_at) if row.changed_at else None,
        has_conversation=bool(conversations),
    )


@operation("entries", SNAPSHOT)
def list_entries(
    context: Context, namespace: str, prefix: str = "", after: str = "", limit: int = MAX_PAGE, search: str = ""
) -> Statements[list[Entry]]:
    """Items in the order of their keys, without their values: as quick for large values as for small ones.

    With `search`, those whose keys contain a text in whatever case. All keys are read for that, a page at a time.
    """
    if not search:
        return (yield from _entries_between(context, namespace, *key_range(prefix, after), limit))
    wanted = search.casefold()
    found: list[Entry] = []
    page = [after]
    while page and len(found) < limit:
        page = yield from list_keys(namespace, prefix, page[-1], MAX_PAGE).start(context)
        for key in [key for key in page if wanted in key.casefold()][: limit - len(found)]:
            found += yield from _entries_between(context, namespace, *key_range(key), 1)
    return found


def _entries_between(context: Context, namespace: str, start: str, end: str, limit: int) -> Statements[list[Entry]]:
    rows = yield SlowQuery("list_entries", (namespace, context.now, start, end, limit))
    return [_entry(context, namespace, *row) for row in rows]


def _entry(
    context: Context,
    namespace: str,
    key: str,
    length: int | None,
    size: int,
    version: int,
    updated_at: int,
    expires_at: int | None,
    start: Any,
) -> Entry:
    if start is not None and context.cipher is not NO_ENCRYPTION:
        start = context.cipher.decrypt(start, item_associated_data(namespace, key))[:PREVIEW_CHARS]
    expires = None if expires_at is None else to_time(expires_at)
    return Entry(key, length, size, version, to_time(updated_at), expires, start or "")


# ------------------------------------------------------------ activity


@operation("activity", SNAPSHOT)
def read_activity(context: Context, namespace: str | None, minutes: int, step_minutes: int) -> Statements[Activity]:
    """Changes and refusals of a namespace, or of all with the requests, of the last minutes, in steps."""
    step = step_minutes * MINUTE_MS
    since = context.now - minutes * MINUTE_MS
    points = {
        at: {"at": to_time(at * step), "changes": 0, "bytes": 0, "refused": 0} for at in _steps(context, since, step)
    }
    first = yield from _find_first_change(since)
    for at, count, size in (yield SlowQuery("count_changes", (step, first, since, namespace, namespace))):
        if at in points:
            points[at] |= {"changes": count, "bytes": size}
    for at, count in (yield SlowQuery("count_refusals", (step, since, namespace, namespace))):
        if at in points:
            points[at]["refused"] = count
    if namespace is None:
        yield from _add_requests(points, since, step)
    changed = yield SlowQuery("latest_changes", (first, since, namespace, namespace, MAX_RECENT))
    refused = yield SlowQuery("latest_refusals", (since, namespace, namespace, MAX_RECENT))
    recent = heapq.nlargest(MAX_RECENT, map(to_change, (*changed, *refused)), key=attrgetter("at"))
    return Activity(list(points.values()), recent)


def _steps(context: Context, since: int, step: int) -> range:
    return range(since // step, context.now // step + 1)


def _find_first_change(since: int) -> Statements[int]:
    """The id of the first change since a time, by bisection: `at` grows with the id and has no index."""
    ((low, high),) = yield "find_id_bounds", ()
    while low < high:
        middle = (low + high) // 2
        ((found, at),) = yield "find_change_from", (middle,)
        if at < since:
            low = found + 1
        else:
            high = middle
    return int(low)


def _add_requests(points: Mapping[int, dict[str, Any]], since: int, step: int) -> Statements[None]:
    for point in points.values():
        point |= {
            "requests": 0,
            "failed": 0,
            "reads": 0,
            "writes": 0,
            "recalls": 0,
            "recall_ms": None,
            "max_recall_ms": None,
        }
    rows = yield SlowQuery("count_requests", (step // MINUTE_MS, since // MINUTE_MS))
    for at, kind, count, _refused, failed, total_ms, max_ms in rows:
        if at not in points:
            continue
        point = points[at]
        point["requests"] += count
        point["failed"] += failed
        point[f"{kind}s"] += count
        if kind == "recall":
            point |= {"recall_ms": round(total_ms / count, 3), "max_recall_ms": round(max_ms, 3)}


@operation("count_requests", WRITE)
def add_requests(context: Context, counts: tuple[RequestCount, ...]) -> Statements[None]:
    """Add to the counts of requests, and remove old ones."""
    yield ExecuteMany("add_requests", counts)
    yield "delete_old_requests", (context.now // MINUTE_MS - REQUEST_DAYS * 1440,)
