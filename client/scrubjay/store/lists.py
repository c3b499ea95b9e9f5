"""Lists that grow in place: each item is a row, so that the 100,000th append costs what the first did."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from scrubjay.errors import Conflict
from scrubjay.exact_json import MAX_WRITE_ROWS, byte_size, decode, encode
from scrubjay.store.encryption import item_associated_data
from scrubjay.store.expiry import charge, is_expired
from scrubjay.store.items import SLOW_CHARS, CurrentItem, open_item
from scrubjay.store.operation import READ, SNAPSHOT, WRITE, Context, ExecuteMany, Rows, SlowQuery, Statements, operation
from scrubjay.store.usage import NamespaceUsage

SLOW_ROWS = 100
"""Items that a server appends or reads on its event loop; more go to a thread."""
SHORT_TAIL_BYTES = 2**16
"""Bytes of items that a server reads on its event loop, which takes 0.1 ms; more go to a thread."""


def _is_slow(_namespace: str, _key: str, texts: Sequence[str]) -> bool:
    return len(texts) > SLOW_ROWS or sum(map(len, texts)) > SLOW_CHARS


@operation("append", WRITE, is_slow=_is_slow)
def append_items(
    context: Context, namespace: str, key: str, texts: Sequence[str]
) -> Statements[tuple[int, NamespaceUsage]]:
    """Add to the end of a list, which starts empty, and return its length; its expiry stays."""
    usage, current = yield from open_item(context, namespace, key)
    length = 0
    if current:
        length = yield from _length(context, usage, key, current)
    if not texts:
        yield from usage.save()
        return length, usage
    # The JSON text of the list: brackets (2), its items, and a comma before each but the first.
    added = sum(byte_size(text) for text in texts) + len(texts) - (length == 0)
    total = length + len(texts)
    if current:
        yield from charge(usage, writes=1, size=added)
        yield "resize_list", (total, current.bytes + added, current.version + 1, context.now, namespace, key)
    else:
        size = byte_size(key) + 2 + added
        yield from charge(usage, writes=1, keys=1, size=size)
        yield "create_list", (namespace, key, total, size, usage.version_floor + 1, context.now, context.now)
    yield from _append_rows(context, namespace, key, texts)
    usage.record(key, added)
    yield from usage.save()
    return total, usage


def _append_rows(context: Context, namespace: str, key: str, texts: Sequence[str]) -> Statements[None]:
    encrypt, at, associated = context.cipher.encrypt, (namespace, key), item_associated_data(namespace, key)
    rows = [(*at, *at, encrypt(text, associated)) for text in texts]
    yield ("append_list_row", rows[0]) if len(rows) == 1 else ExecuteMany("append_list_row", rows)


@operation("pop", WRITE, is_slow=lambda _namespace, _key, count, _first: count > SLOW_ROWS)
def pop_items(
    context: Context, namespace: str, key: str, count: int, first: bool
) -> Statements[tuple[list[str], NamespaceUsage]]:
    """Remove up to `count` items from the end of a list, or from its start, and return their JSON text in order.

    Like a delete, it is not counted as a write. Its expiry stays, and a list without items remains.
    """
    usage, current = yield from open_item(context, namespace, key)
    length = (yield from _length(context, usage, key, current)) if current else 0
    taken = min(count, length)
    texts: list[str] = []
    if current and taken:
        query = "take_first_rows" if first else "take_last_rows"
        rows = yield query, (namespace, key, taken, namespace, key)
        values = [value for _, value in sorted(rows, key=itemgetter(0))]
        texts = context.cipher.decrypt_all(values, item_associated_data(namespace, key))
        size = sum(map(byte_size, texts)) + taken - (taken == length)
        resized = (length - taken, current.bytes - size, current.version + 1)
        yield "resize_list", (*resized, context.now, namespace, key)
        usage.release(size=size)
        usage.record(key, size)
    yield from usage.save()
    return texts, usage


@operation("length", SNAPSHOT)
def find_length(context: Context, namespace: str, key: str) -> Statements[int]:
    """How many items a list has; 0 if it does not exist."""
    found = yield from _find_list(context, namespace, key)
    return len(found) if isinstance(found, list) else found


@operation("slice", SNAPSHOT)
def read_slice(context: Context, namespace: str, key: str, start: int, stop: int | None) -> Statements[list[str]]:
    """The JSON text of items, counted as Python counts those of a slice."""
    found = yield from _find_list(context, namespace, key)
    if isinstance(found, list):
        return [encode(part) for part in found[start:stop]]
    start, stop, _ = slice(start, stop).indices(found)
    if start >= stop:
        return []
    base = yield from _first_position(namespace, key)
    return (yield from _read_rows(context, namespace, key, base + start, base + stop))


def _find_list(context: Context, namespace: str, key: str) -> Statements[int | list[object]]:
    """The length of a list in rows, or the items of one that was set as one value; 0 if it does not exist."""
    rows = yield "find_item", (namespace, key)
    if not rows or is_expired(rows[0][3], context.now):
        return 0
    if rows[0][2] is not None:
        return int(rows[0][2])
    ((text, _),) = yield "read_value", (namespace, key)
    return _parse_list(key, context.cipher.decrypt(text, item_associated_data(namespace, key)))


def _first_position(namespace: str, key: str) -> Statements[int]:
    """The position of the first row; the others follow without a gap."""
    ((position,),) = yield "find_first_position", (namespace, key)
    return int(position)


def _read_rows(context: Context, namespace: str, key: str, start: int, stop: int) -> Statements[list[str]]:
    params = (namespace, key, start, stop)
    rows = yield SlowQuery("read_rows_between", params) if stop - start > SLOW_ROWS else ("read_rows_between", params)
    return context.cipher.decrypt_all([value for (value,) in rows], item_associated_data(namespace, key))


@operation("tail", READ)
def read_tail(context: Context, namespace: str, key: str, count: int) -> Statements[list[str]]:
    """The JSON text of the last `count` items, oldest first."""
    wanted = max(count, 1)
    rows: Rows = []
    if wanted <= SLOW_ROWS:
        rows = yield "read_short_tail", (namespace, key, wanted, SHORT_TAIL_BYTES, wanted)
    if not rows:
        rows = yield SlowQuery("read_tail", (namespace, key, wanted))
    if not rows or is_expired(rows[0][3], context.now):
        return []
    _, stored, length, _ = rows[0]
    associated = item_associated_data(namespace, key)
    if length is None:
        texts = [encode(part) for part in _parse_list(key, context.cipher.decrypt(stored, associated))]
        return texts[max(len(texts) - count, 0) :]
    return context.cipher.decrypt_all([row[0] for row in reversed(rows) if row[0] is not None][:count], associated)


def _length(context: Context, usage: NamespaceUsage, key: str, current: CurrentItem) -> Statements[int]:
    """The length of a list that exists, which is in rows from now on."""
    return (yield from _split_into_rows(context, usage, key)) if current.length is None else current.length


def _split_into_rows(context: Context, usage: NamespaceUsage, key: str) -> Statements[int]:
    """Turn a list that was set as one value into rows; its size stays. Returns its length."""
    at = (usage.namespace, key)
    ((stored, _),) = yield "read_value", at
    parts = _parse_list(key, context.cipher.decrypt(stored, item_associated_data(*at)))
    if len(parts) > MAX_WRITE_ROWS:
        raise Conflict(
            f"the list {key!r} was set as one value of {len(parts)} items, and at most {MAX_WRITE_ROWS} can be turned"
            " into rows; read it, delete it, and append its items in several calls"
        )
    yield from _append_rows(context, *at, [encode(part) for part in parts])
    yield "turn_into_list", (len(parts), *at)
    return len(parts)


def _parse_list(key: str, text: str) -> list[object]:
    parts = decode(text)
    if not isinstance(parts, list):
        raise Conflict(f"the value of {key!r} is not a list, so it has no end; delete it, or use another key")
    return parts
