"""Expiry: which items and notes are over, and their removal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scrubjay.settings import SETTINGS
from scrubjay.store.changes import rotate
from scrubjay.store.operation import DAY_MS, LONG_WRITE, Context, SlowQuery, Statements, operation
from scrubjay.store.usage import NamespaceUsage, open_namespace

AUDIT_DAYS: int = SETTINGS["audit_days"].default
"""Days that the log of changes is kept."""
AUDIT_ROWS: int = SETTINGS["audit_rows"].default
"""Rows of that log at most; with 0 rows changes are not recorded."""
SWEEP_SECONDS = 60.0
"""Seconds after which a process that writes removes what has expired."""
SWEEP_BATCH = 500
"""Expired items, and notes, removed in one transaction: few enough that no other writer waits long."""
LONG_LIST = 1000
"""Rows. A server removes longer lists in a thread; for shorter ones, switching to a thread takes longer."""

KEY_DAYS = 7
"""Days that an idempotency key is stored after its last use: longer than a client retries."""


def is_expired(expires_at: int | None, now: int) -> bool:
    return expires_at is not None and expires_at <= now


def expiry_of(now: int, ttl: float | None) -> int | None:
    """When something expires that lives for `ttl` seconds from now; None is never."""
    return None if ttl is None else now + max(round(ttl * 1000), 1)


def charge(usage: NamespaceUsage, *, writes: int = 0, keys: int = 0, notes: int = 0, size: int = 0) -> Statements[None]:
    """Count what an operation is about to write, or raise QuotaExceeded.

    A namespace that is full is swept first: what has expired must not cause a refusal.
    """
    if usage.lacks_room(size):
        usage.charge(writes=writes)
        yield from _sweep_namespace(usage)
        writes = 0
    usage.charge(writes=writes, keys=keys, notes=notes, size=size)


def delete_list_rows(namespace: str, key: str, length: int) -> Statements[None]:
    at = (namespace, key)
    yield SlowQuery("delete_list_rows", at) if length > LONG_LIST else ("delete_list_rows", at)


def remove_item(
    usage: NamespaceUsage, key: str, version: int, size: int, length: int | None, *, verb: str | None = None
) -> Statements[None]:
    """Delete one item, subtract it from the usage, which the caller saves, and log it."""
    if length is not None:
        yield from delete_list_rows(usage.namespace, key, length)
    yield "delete_item", (usage.namespace, key)
    usage.release(keys=1, size=size, version=version)
    usage.record(key, size, verb)


def _sweep_namespace(usage: NamespaceUsage) -> Statements[None]:
    """Remove a namespace's expired items and notes from its usage, which the caller saves."""
    at = (usage.namespace, usage.now)
    for item in (yield "find_expired_items_of", at):
        yield from remove_item(usage, *item, verb="expire")
    for note in (yield "find_expired_notes_of", at):
        yield from _expire_note(usage, note)


@operation("sweep", LONG_WRITE)
def sweep(context: Context, audit_days: int, audit_rows: int) -> Statements[tuple[int, bool]]:
    """Remove one batch of expired items, notes, idempotency keys and log entries.

    Returns how many items and notes there were, and whether there may be more of anything.
    """
    items = yield "find_expired_items", (context.now, SWEEP_BATCH)
    notes = yield "find_expired_notes", (context.now, SWEEP_BATCH)
    has_more = SWEEP_BATCH in (len(items), len(notes))
    usages: dict[str, NamespaceUsage] = {}
    for namespace in sorted({namespace for namespace, *_ in (*items, *notes)}):  # sorted: no two sweeps deadlock
        usages[namespace] = yield from open_namespace(context, namespace)
    if usages:  # again, now that no other writer can change them
        items = [item for item in (yield "find_expired_items", (context.now, SWEEP_BATCH)) if item[0] in usages]
        notes = [note for note in (yield "find_expired_notes", (context.now, SWEEP_BATCH)) if note[0] in usages]
    for namespace, *item in items:
        yield from remove_item(usages[namespace], *item, verb="expire")
    for namespace, *note in notes:
        yield from _expire_note(usages[namespace], note)
    for usage in usages.values():
        yield from usage.save()
    keys = yield "delete_old_idempotency_keys", (context.now // DAY_MS - KEY_DAYS, SWEEP_BATCH)
    has_older = yield from rotate(context, audit_days, audit_rows, SWEEP_BATCH)
    return len(items) + len(notes), has_more or has_older or len(keys) == SWEEP_BATCH


def _expire_note(usage: NamespaceUsage, note: Sequence[Any]) -> Statements[None]:
    from scrubjay.store.note_rows import erase_note  # noqa: PLC0415 - most programs have no notes, and start sooner

    yield from erase_note(usage, note, "expire")
