"""The usage of an api key and its limits, counted in the transaction of each write.

A write counts for the key that makes it. The bytes of a namespace count for its owner: the key that wrote into it
while it was empty, whichever key or program writes to it later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scrubjay.errors import QuotaExceeded, pluralize
from scrubjay.store.operation import DAY_MS, Context, KeyQuota, Statements


def counted_today(context: Context, day: int, writes: int) -> tuple[int, int]:
    """The day that writes count for, and the writes of that day so far.

    A clock that is set back by less than a day must not allow the same day's writes twice. One that is set back
    further was wrong before: waiting until that day comes would block the writer.
    """
    today = context.now // DAY_MS
    return (today, 0) if today > day or today < day - 1 else (day, writes)


def seconds_left(context: Context, day: int) -> int:
    """Seconds until the writes of a day start again at 0."""
    return max(((day + 1) * DAY_MS - context.now + 999) // 1000, 1)


class KeyUsage:
    """The row of an api key while an operation works on it."""

    __slots__ = ("_context", "_is_changed", "bytes", "day", "id", "name", "namespaces", "quota", "writes")

    def __init__(self, context: Context, row: Sequence[Any]) -> None:
        self.id, self.name, writes_per_day, max_bytes, max_namespaces, day, writes, self.bytes, self.namespaces = row
        default = context.actor.key_quota
        self.quota = KeyQuota(
            default.writes_per_day if writes_per_day is None else writes_per_day,
            default.max_bytes if max_bytes is None else max_bytes,
            default.max_namespaces if max_namespaces is None else max_namespaces,
        )
        """The limits in force."""
        self.day, self.writes = counted_today(context, day, writes)
        self._context = context
        self._is_changed = False

    def lacks_room(self, size: int) -> bool:
        """Whether so many more bytes exceed the limit of storage."""
        return size > 0 and 0 < self.quota.max_bytes < self.bytes + size

    def check_writes(self, writes: int) -> None:
        limit = self.quota.writes_per_day
        if writes and limit and self.writes + writes > limit:
            wait = seconds_left(self._context, self.day)
            raise QuotaExceeded(
                f"{self} has used its {pluralize(limit, 'write')} a day; the counter resets in"
                f" {pluralize(wait, 'second')} (midnight UTC), or an administrator raises the limit:"
                f" scrubjay key quota {self.id} --writes-per-day N",
                retry_after=wait,
            )

    def check_content(self, size: int, namespaces: int) -> None:
        if self.lacks_room(size):
            raise QuotaExceeded(
                f"the namespaces of {self} hold {self.bytes:,} of {pluralize(self.quota.max_bytes, 'byte')}, and this"
                f" needs {size:,} more; delete something, or an administrator raises the limit:"
                f" scrubjay key quota {self.id} --max-bytes N"
            )
        limit = self.quota.max_namespaces
        if namespaces and limit and self.namespaces + namespaces > limit:
            raise QuotaExceeded(
                f"{self} has its {pluralize(limit, 'namespace')} in use; clear one of them, or an administrator raises"
                f" the limit: scrubjay key quota {self.id} --max-namespaces N"
            )

    def count(self, *, writes: int = 0, size: int = 0, namespaces: int = 0) -> None:
        """Count what is written; less than nothing for what is deleted."""
        if writes or size or namespaces:
            self.writes += writes
            self.bytes += size
            self.namespaces += namespaces
            self._is_changed = True

    def save(self) -> Statements[None]:
        if self._is_changed:
            self._is_changed = False
            yield "save_key_usage", (self.day, self.writes, self.bytes, self.namespaces, self.id)

    def __str__(self) -> str:
        return f"the api key {self.name!r} ({self.id})"


def open_key(context: Context, key_id: str) -> Statements[KeyUsage | None]:
    """Open an api key for update; None if the id is empty, or its row was lost."""
    rows = (yield "read_key_usage", (key_id,)) if key_id else []
    return KeyUsage(context, rows[0]) if rows else None
