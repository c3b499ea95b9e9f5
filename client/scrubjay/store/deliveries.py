"""Writes that must happen once, however often they are sent.

Whoever gets no answer cannot know whether a write happened, and has to send it again. With an id of
the sender's own the second one finds what the first one came to, in the same transaction.
"""

from __future__ import annotations

from scrubjay.names import check_key
from scrubjay.values import decode, encode

from .operation import Context, Steps

KEPT = 7 * 86_400_000
"""Milliseconds that an id is remembered."""


def delivered(namespace: str, once: str | None) -> Steps[float | None]:
    """What a write with this id came to; None if it has not happened."""
    if once is None:
        return None
    check_key(once)
    rows = yield "SELECT result FROM deliveries WHERE namespace = ? AND id = ?", (namespace, once)
    return decode(rows[0][0]) if rows else None


def record(context: Context, namespace: str, once: str | None, result: float) -> Steps[None]:
    if once is not None:
        yield (
            "INSERT INTO deliveries (namespace, id, result, delivered_at) VALUES (?, ?, ?, ?)",
            (namespace, once, encode(result), context.now),
        )


def forget_old(context: Context, limit: int) -> Steps[bool]:
    """Remove some ids that nobody will send again; True when there may be more."""
    rows = yield (
        """DELETE FROM deliveries WHERE (namespace, id) IN
        (SELECT namespace, id FROM deliveries WHERE delivered_at <= ? LIMIT ?) RETURNING 1""",
        (context.now - KEPT, limit),
    )
    return len(rows) == limit
