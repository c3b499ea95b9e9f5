"""Lists that grow in place: one row an item, so the 100,000th costs what the first did."""

from __future__ import annotations

from collections.abc import Sequence

from scrubjay.errors import Conflict
from scrubjay.values import byte_size, decode, encode

from .items import is_over, open_item
from .operation import READ, WRITE, Context, Long, Many, Steps, operation
from .quotas import Account
from .sealing import item_place

_ROW = "INSERT INTO list_items (namespace, key, position, value) VALUES (?, ?, ?, ?)"
_NEW = """INSERT INTO items (namespace, key, value, length, bytes, version, created_at, updated_at)
VALUES (?, ?, NULL, ?, ?, ?, ?, ?)"""
_GROW = """UPDATE items SET value = NULL, length = ?, bytes = ?, version = ?, updated_at = ?
WHERE namespace = ? AND key = ?"""
_TAIL = """SELECT l.value, i.value, i.length, i.expires_at
FROM items i LEFT JOIN list_items l ON l.namespace = i.namespace AND l.key = i.key
WHERE i.namespace = ? AND i.key = ? ORDER BY l.position DESC LIMIT ?"""


@operation(WRITE)
def append_items(context: Context, namespace: str, key: str, texts: Sequence[str]) -> Steps[tuple[int, Account]]:
    """Add to the end of a list, which starts empty, and return its length; an expiry stays."""
    account, found = yield from open_item(context, namespace, key)
    length = 0
    if found:
        length = (yield from _as_rows(context, account, key)) if found.length is None else found.length
    if not texts:
        yield from account.save()
        return length, account
    # The JSON text of the list: brackets (2), its items, and a comma before each but the first.
    grown = sum(byte_size(text) for text in texts) + len(texts) - (length == 0)
    if found:
        yield from account.charge(writes=1, size=grown)
        yield (
            _GROW,
            (length + len(texts), found.bytes + grown, found.version + 1, context.now, namespace, key),
        )
    else:
        size = byte_size(key) + 2 + grown
        yield from account.charge(writes=1, keys=1, size=size)
        version = account.version_floor + 1
        yield _NEW, (namespace, key, len(texts), size, version, context.now, context.now)
    place = item_place(namespace, key)
    if len(texts) == 1:
        yield _ROW, (namespace, key, length, context.cipher.seal(texts[0], place))
    else:
        sealed = [context.cipher.seal(text, place) for text in texts]
        yield Many(_ROW, [(namespace, key, length + i, value) for i, value in enumerate(sealed)])
    account.record("append", key, grown)
    yield from account.save()
    return length + len(texts), account


@operation(READ)
def read_tail(context: Context, namespace: str, key: str, count: int) -> Steps[list[str]]:
    """The JSON text of the last `count` items, oldest first."""
    rows = yield Long(_TAIL, (namespace, key, max(count, 1)))
    if not rows or is_over(rows[0][3], context.now):
        return []
    _, stored, length, _ = rows[0]
    place = item_place(namespace, key)
    if length is None:
        texts = [encode(part) for part in _parts(key, context.cipher.open(stored, place))]
        return texts[max(len(texts) - count, 0) :]
    return context.cipher.open_all([row[0] for row in reversed(rows) if row[0] is not None][:count], place)


def _as_rows(context: Context, account: Account, key: str) -> Steps[int]:
    """A list that was set as one value, spread over rows; its bytes stay what they were."""
    namespace, seal, place = account.namespace, context.cipher.seal, item_place(account.namespace, key)
    ((stored,),) = yield "SELECT value FROM items WHERE namespace = ? AND key = ?", (namespace, key)
    parts = _parts(key, context.cipher.open(stored, place))
    yield Many(_ROW, [(namespace, key, i, seal(encode(part), place)) for i, part in enumerate(parts)])
    yield (
        "UPDATE items SET value = NULL, length = ? WHERE namespace = ? AND key = ?",
        (len(parts), namespace, key),
    )
    return len(parts)


def _parts(key: str, text: str) -> list[object]:
    parts = decode(text)
    if not isinstance(parts, list):
        raise Conflict(
            f"the value of {key!r} is no list, so it has no end to append to or to read; delete it, or use another key"
        )
    return parts
