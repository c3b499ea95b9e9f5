"""Items: JSON values under keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import accumulate, chain
from typing import Any, NamedTuple

from scrubjay.errors import Conflict, InvalidInput, repr_short
from scrubjay.exact_json import byte_size, decode, encode
from scrubjay.models import Item, to_time
from scrubjay.store.encryption import NO_ENCRYPTION, item_associated_data
from scrubjay.store.expiry import charge, delete_list_rows, expiry_of, is_expired, remove_item
from scrubjay.store.operation import (
    ERASE,
    LONG_WRITE,
    READ,
    SNAPSHOT,
    WRITE,
    Context,
    Operation,
    Replay,
    Rows,
    SlowQuery,
    Statements,
    operation,
)
from scrubjay.store.usage import NamespaceUsage, open_namespace, open_with_item
from scrubjay.validation import ABOVE_ALL_KEYS, MAX_PAGE, prefix_upper_bound

ANY_VERSION = -1
"""As `if_version`: the key must exist, at whatever version."""
SLOW_CHARS = 2**18
"""Characters of JSON that a server writes on its event loop, which takes a millisecond; more go to a thread."""

PAGE_BYTES = 4 * 2**20
"""Bytes of items on one page of `list_items`, from which on it ends: a page has to fit into memory several times."""
KEYS_PER_QUERY = 100
"""Parameters of the query `read_values`; fewer keys are padded with NULL. Not json_each: it cuts texts at a NUL."""


class StoredItem(NamedTuple):
    """An item as it is stored: JSON text, and times in milliseconds since 1970."""

    key: str
    text: str
    version: int
    created_at: int
    updated_at: int
    expires_at: int | None
    bytes: int

    def to_item(self) -> Item:
        return Item(
            key=self.key,
            value=decode(self.text),
            version=self.version,
            created_at=to_time(self.created_at),
            updated_at=to_time(self.updated_at),
            expires_at=None if self.expires_at is None else to_time(self.expires_at),
            bytes=self.bytes,
        )


class CurrentItem(NamedTuple):
    """What a write needs to know of the item that it replaces."""

    version: int
    bytes: int
    length: int | None
    expires_at: int | None
    created_at: int


@operation("item", READ)
def read_item(context: Context, namespace: str, key: str) -> Statements[StoredItem | None]:
    rows = yield "read_item", (namespace, key)
    return (yield from _complete(context, namespace, StoredItem(key, *rows[0]))) if rows else None


def _complete(context: Context, namespace: str, stored: StoredItem) -> Statements[StoredItem | None]:
    """An item that was read without the items of its list, with them; None if it has expired or was deleted since."""
    if stored.text is None:  # a list
        return (yield from _read_list(context, namespace, stored.key))
    if is_expired(stored.expires_at, context.now):
        return None
    if context.cipher is NO_ENCRYPTION:
        return stored
    return stored._replace(text=context.cipher.decrypt(stored.text, item_associated_data(namespace, stored.key)))


@operation("get", READ)
def read_text(context: Context, namespace: str, key: str) -> Statements[str | None]:
    """Only the JSON text: what `get` needs, in the least time."""
    rows = yield "read_value", (namespace, key)
    if not rows:
        return None
    text, expires_at = rows[0]
    if text is None:  # a list
        stored = yield from _read_list(context, namespace, key)
        return stored and stored.text
    if expires_at is not None and expires_at <= context.now:
        return None
    if context.cipher is NO_ENCRYPTION:  # the path of every get
        return text  # type: ignore[no-any-return]
    return context.cipher.decrypt(text, item_associated_data(namespace, key))


@operation("contains", READ)
def find_version(context: Context, namespace: str, key: str) -> Statements[int | None]:
    """The version of the item under the key; None when there is none."""
    rows = yield "find_item", (namespace, key)
    if not rows or is_expired(rows[0][3], context.now):
        return None
    return int(rows[0][0])


@operation("get_many", SNAPSHOT)
def read_many(context: Context, namespace: str, keys: Iterable[str]) -> Statements[dict[str, str]]:
    """The JSON text of each key that exists, in the order of `keys`."""
    wanted = list(dict.fromkeys(keys))
    found: dict[str, str] = {}
    for start in range(0, len(wanted), KEYS_PER_QUERY):
        chunk = wanted[start : start + KEYS_PER_QUERY]
        padding = [None] * (KEYS_PER_QUERY - len(chunk))
        for key, stored in (yield SlowQuery("read_values", (namespace, context.now, *chunk, *padding))):
            associated = item_associated_data(namespace, key)
            if stored is None:
                found[key] = _join_rows(context, (yield SlowQuery("read_list", (namespace, key))), associated)
            else:
                found[key] = context.cipher.decrypt(stored, associated)
    return {key: found[key] for key in wanted if key in found}


@operation("keys", READ)
def list_keys(
    context: Context, namespace: str, prefix: str = "", after: str = "", limit: int = MAX_PAGE
) -> Statements[list[str]]:
    """Keys in code point order, those after `after`; fewer than `limit` means there are no more."""
    rows = yield SlowQuery("list_keys", (namespace, context.now, *key_range(prefix, after), limit))
    return [key for (key,) in rows]


def list_items(
    namespace: str, prefix: str = "", after: str = "", limit: int = MAX_PAGE, reverse: bool = False
) -> Operation[tuple[list[StoredItem], str | None]]:
    """Items in the order of their keys, or in reverse, and the key to continue after; None if there are no more."""
    if limit == 1:
        return _list_one(namespace, prefix, after, reverse)
    return _list_several(namespace, prefix, after, limit, reverse)


@operation("items", READ)
def _list_one(
    context: Context, namespace: str, prefix: str, after: str, reverse: bool
) -> Statements[tuple[list[StoredItem], str | None]]:
    """One item whatever its size, in one statement, which needs no transaction: a tenth of the time of the call."""
    at = (namespace, context.now, *key_range(prefix, after, reverse=reverse))
    rows = yield SlowQuery("last_items" if reverse else "first_items", (*at, 1))
    if not rows:
        return [], None
    found = yield from _complete(context, namespace, StoredItem._make(rows[0]))
    return [found] if found else [], rows[0][0]


@operation("items", SNAPSHOT)
def _list_several(
    context: Context, namespace: str, prefix: str, after: str, limit: int, reverse: bool
) -> Statements[tuple[list[StoredItem], str | None]]:
    at = (namespace, context.now, *key_range(prefix, after, reverse=reverse))
    ((size,),) = yield SlowQuery("sum_last_items" if reverse else "sum_first_items", (*at, limit))
    if size is None:
        return [], None
    if size > PAGE_BYTES:
        return (yield from _list_first_bytes(context, at, limit, reverse))
    rows = yield SlowQuery("last_items" if reverse else "first_items", (*at, limit))
    items = yield from _stored_items(context, namespace, rows)
    return items, items[-1].key if len(items) == limit else None


def _list_first_bytes(
    context: Context, at: tuple[Any, ...], limit: int, reverse: bool
) -> Statements[tuple[list[StoredItem], str | None]]:
    """The same for a page that is too large for memory: its first items, until their sizes add up to PAGE_BYTES."""
    sizes, values = ("page_items_reversed", "list_items_reversed") if reverse else ("page_items", "list_items")
    rows = yield SlowQuery(sizes, (*at, limit))
    page = _first_bytes(rows, PAGE_BYTES)
    found = yield SlowQuery(values, (*at[:2], min(page[0], page[-1]), max(page[0], page[-1])))
    items = yield from _stored_items(context, at[0], found)
    is_last = len(page) == len(rows) < limit
    return items, None if is_last else page[-1]


def _stored_items(context: Context, namespace: str, rows: Rows) -> Statements[list[StoredItem]]:
    is_plain = context.cipher is NO_ENCRYPTION
    items = list(map(StoredItem._make, rows))
    for i, item in enumerate(items):
        if item.text is None:  # a list
            associated = item_associated_data(namespace, item.key)
            lines = yield SlowQuery("read_list", (namespace, item.key))
            items[i] = item._replace(text=_join_rows(context, lines, associated))
        elif not is_plain:
            text = context.cipher.decrypt(item.text, item_associated_data(namespace, item.key))
            items[i] = item._replace(text=text)
    return items


def key_range(prefix: str, after: str = "", *, reverse: bool = False) -> tuple[str, str]:
    """The first key of a range, and the first beyond it: of those with the prefix, the ones that come after `after`.

    One lower bound: given two, SQLite may start at the prefix, and read all earlier pages again for each page.
    """
    end = prefix_upper_bound(prefix) or ABOVE_ALL_KEYS
    if reverse:
        return prefix, min(after, end) if after else end
    return f"{after}\0" if after >= prefix else prefix, end


def _first_bytes(rows: Rows, limit: int) -> list[str]:
    """The first of these keys, until their sizes add up to `limit`; one at least, if there is one."""
    sizes = accumulate(size for _, size in rows)
    return [key for (key, _), total in zip(rows, chain((0,), sizes), strict=False) if total < limit]


_REPLAY_SET = Replay(
    content=lambda _namespace, key, text, ttl=None, if_version=None: (key, text, ttl is not None, if_version)
)
_REPLAY_UPDATE = Replay(
    content=lambda _namespace, texts, if_versions=None, ttl=None: (texts, if_versions, ttl is not None)
)


@operation("set", WRITE, is_slow=lambda _namespace, _key, text, *_: len(text or "") > SLOW_CHARS, replay=_REPLAY_SET)
def set_item(
    context: Context,
    namespace: str,
    key: str,
    text: str | None,
    ttl: float | None = None,
    if_version: int | None = None,
) -> Statements[tuple[int, NamespaceUsage]]:
    """Store JSON text and return its version; None deletes, and is version 0."""
    usage, current = yield from open_item(context, namespace, key)
    _expect_version(key, current, if_version)
    version = 0
    if text is not None:
        version = yield from _write(context, usage, key, text, current, expiry_of(context.now, ttl), writes=1)
    elif current:
        yield from _remove(usage, key, current, "delete")
    yield from usage.save()
    return version, usage


@operation("update", LONG_WRITE, replay=_REPLAY_UPDATE)
def update_items(
    context: Context,
    namespace: str,
    texts: Mapping[str, str | None],
    if_versions: Mapping[str, int] | None = None,
    ttl: float | None = None,
) -> Statements[tuple[None, NamespaceUsage]]:
    """Several items at once, all or none, as one write; None deletes.

    Each key of `if_versions` must be at its version, whether it is in `texts` or not.
    """
    usage = yield from open_namespace(context, namespace)
    usage.charge(writes=int(any(text is not None for text in texts.values())))
    found: dict[str, CurrentItem | None] = {}
    for key, version in (if_versions or {}).items():
        found[key] = yield from _find_live(context, usage, key)
        _expect_version(key, found[key], version)
    for key in texts:
        if key not in found:
            found[key] = yield from _find_live(context, usage, key)
    expires_at = expiry_of(context.now, ttl)
    # What makes room comes first, so that only the sum has to fit.
    for key, text in sorted(texts.items(), key=lambda pair: _grows(pair[0], pair[1], found[pair[0]])):
        current = found[key]
        if text is not None:
            yield from _write(context, usage, key, text, current, expires_at, verb="set")
        elif current:
            yield from _remove(usage, key, current, "delete")
    yield from usage.save()
    return None, usage


def _grows(key: str, text: str | None, current: CurrentItem | None) -> bool:
    """Whether a key takes more bytes once it has this text."""
    return _size(key, text) > (current.bytes if current else 0)


def _size(key: str, text: str | None) -> int:
    return 0 if text is None else byte_size(key) + byte_size(text)


@operation("delete", WRITE)
def delete_item(
    context: Context, namespace: str, key: str, if_version: int | None = None
) -> Statements[tuple[bool, NamespaceUsage]]:
    """Whether it existed. Deletes are not counted as writes, so that a client over its quota can make room."""
    usage, current = yield from open_item(context, namespace, key)
    _expect_version(key, current, if_version)
    if current:
        yield from _remove(usage, key, current)
    yield from usage.save()
    return current is not None, usage


@operation("clear", ERASE)
def clear_items(context: Context, namespace: str) -> Statements[tuple[int, NamespaceUsage]]:
    """Delete all items of a namespace; how many there were."""
    usage = yield from open_namespace(context, namespace)
    count = yield from clear_into(usage, context.now)
    usage.record_clear()
    yield from usage.save()
    return count, usage


@operation("clear", LONG_WRITE)
def clear_prefix(context: Context, namespace: str, prefix: str) -> Statements[tuple[int, NamespaceUsage]]:
    """Delete the items whose keys start with `prefix`; how many had not expired."""
    usage = yield from open_namespace(context, namespace)
    live = yield from clear_below(usage, context.now, prefix)
    yield from usage.save()
    return len(live), usage


def clear_below(usage: NamespaceUsage, now: int, prefix: str) -> Statements[list[str]]:
    """Delete the items under a prefix, and subtract them from the usage, which the caller saves.

    Returns the keys of those that had not expired.
    """
    at = (usage.namespace, *key_range(prefix))
    found = yield "find_items_between", at
    yield "delete_list_rows_between", at
    yield "delete_items_between", at
    live: list[str] = []
    for key, version, size, expires_at in found:
        if is_live := not is_expired(expires_at, now):
            live.append(key)
        usage.release(keys=1, size=size, version=version)
        usage.record(key, size, "delete" if is_live else "expire")
    return live


@operation("touch", WRITE)
def touch_item(
    context: Context, namespace: str, key: str, ttl: float | None
) -> Statements[tuple[bool, NamespaceUsage]]:
    """Replace the expiry of an item and nothing else; whether it exists. Like a delete, it is not counted."""
    usage, current = yield from open_item(context, namespace, key)
    if current:
        yield "set_expiry", (expiry_of(context.now, ttl), namespace, key)
        usage.record(key)
    yield from usage.save()
    return current is not None, usage


@operation("merge", WRITE, is_slow=lambda _namespace, _key, text: len(text) > SLOW_CHARS)
def merge_item(context: Context, namespace: str, key: str, text: str) -> Statements[tuple[int, NamespaceUsage]]:
    """Replace fields of an object, which starts empty, and return its version; null removes one. Its expiry stays."""
    usage, current = yield from open_item(context, namespace, key)
    value = (yield from _read_value(context, namespace, key)) if current else {}
    if not isinstance(value, dict):
        raise Conflict(f"the value of {key!r} is not an object, so it has no fields; delete it, or use another key")
    merged = encode(merge_fields(value, decode(text)))
    version = yield from _write(context, usage, key, merged, current, current and current.expires_at, writes=1)
    yield from usage.save()
    return version, usage


def merge_fields(value: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """An object with these fields replaced, and those that are None removed."""
    removed = {name for name, part in fields.items() if part is None}
    return {name: part for name, part in {**value, **fields}.items() if name not in removed}


@operation("incr", WRITE)
def increment(context: Context, namespace: str, key: str, by: float) -> Statements[tuple[float, NamespaceUsage]]:
    """Add to a number, which starts at 0; its expiry stays."""
    usage, current = yield from open_item(context, namespace, key)
    value = (yield from _read_value(context, namespace, key)) if current else 0
    if type(value) not in (int, float):
        raise Conflict(f"the value of {key!r} is not a number, so it cannot be incremented; set it first")
    try:
        total = value + by
    except OverflowError:
        total = math.inf
    if isinstance(total, float) and not math.isfinite(total):
        raise InvalidInput(f"{repr_short(value)} + {repr_short(by)} is beyond the largest number; store a smaller one")
    yield from _write(context, usage, key, encode(total), current, current and current.expires_at, writes=1)
    yield from usage.save()
    return total, usage


def clear_into(usage: NamespaceUsage, now: int) -> Statements[int]:
    """Delete all items and subtract them from the usage, which the caller saves; how many had not expired."""
    at = (usage.namespace,)
    ((count, size, version, live),) = yield "sum_items", (now, *at)
    yield "delete_all_list_rows", at
    yield "delete_all_items", at
    if count:
        usage.release(keys=count, size=size, version=version)
    return int(live)


def _read_value(context: Context, namespace: str, key: str) -> Statements[Any]:
    """The value of an item that exists; None for a list in rows."""
    ((stored, _),) = yield "read_value", (namespace, key)
    return None if stored is None else decode(context.cipher.decrypt(stored, item_associated_data(namespace, key)))


def _read_list(context: Context, namespace: str, key: str) -> Statements[StoredItem | None]:
    """The item again, with its rows; since the first read it may have been deleted or replaced by a value."""
    rows = yield SlowQuery("read_list", (namespace, key))
    if not rows:
        return None
    stored, associated = StoredItem(key, *rows[0][1:]), item_associated_data(namespace, key)
    if is_expired(stored.expires_at, context.now):
        return None
    is_list = stored.text is None
    text = _join_rows(context, rows, associated) if is_list else context.cipher.decrypt(stored.text, associated)
    return stored._replace(text=text)


def open_item(context: Context, namespace: str, key: str) -> Statements[tuple[NamespaceUsage, CurrentItem | None]]:
    """Open a namespace for update, with the item under the key; one that has expired is removed."""
    usage, row = yield from open_with_item(context, namespace, key)
    if row is None:
        return usage, None
    current = CurrentItem(*row)
    if current.expires_at is None:
        return usage, current
    return usage, (yield from _unless_expired(context, usage, key, current))


def _find_live(context: Context, usage: NamespaceUsage, key: str) -> Statements[CurrentItem | None]:
    """The item under the key; one that has expired is removed."""
    rows = yield "find_item", (usage.namespace, key)
    if not rows:
        return None
    return (yield from _unless_expired(context, usage, key, CurrentItem._make(rows[0])))


def _unless_expired(
    context: Context, usage: NamespaceUsage, key: str, current: CurrentItem
) -> Statements[CurrentItem | None]:
    if is_expired(current.expires_at, context.now):
        yield from _remove(usage, key, current, "expire")
        return None
    return current


def _write(
    context: Context,
    usage: NamespaceUsage,
    key: str,
    text: str,
    current: CurrentItem | None,
    expires_at: int | None,
    *,
    writes: int = 0,
    verb: str | None = None,
) -> Statements[int]:
    size = _size(key, text)
    if current is None:
        yield from charge(usage, writes=writes, keys=1, size=size)
        version, created_at = int(usage.version_floor) + 1, context.now
    else:
        yield from charge(usage, writes=writes, size=size - current.bytes)
        version, created_at = current.version + 1, current.created_at
        if current.length is not None:
            yield from delete_list_rows(usage.namespace, key, current.length)
    value: Any = text
    if context.cipher is not NO_ENCRYPTION:
        value = context.cipher.encrypt(text, item_associated_data(usage.namespace, key))
    yield "write_item", (usage.namespace, key, value, None, size, version, created_at, context.now, expires_at)
    usage.record(key, size, verb)
    return version


def _remove(usage: NamespaceUsage, key: str, current: CurrentItem, verb: str | None = None) -> Statements[None]:
    return remove_item(usage, key, current.version, current.bytes, current.length, verb=verb)


def _expect_version(key: str, current: CurrentItem | None, expected: int | None) -> None:
    if expected is None:
        return
    version = current.version if current else 0
    if version == expected or (version and expected == ANY_VERSION):
        return
    state = f"is at version {version}" if version else "does not exist"
    wanted = "a value" if expected == ANY_VERSION else f"version {expected}" if expected else "no value"
    raise Conflict(f"{key!r} {state}, and the call expects {wanted}; read it again and retry", status=412)


def _join_rows(context: Context, rows: list[tuple[Any, ...]], associated: str) -> str:
    """The rows of a list as one JSON text; a LEFT JOIN gives an empty list one row of NULL."""
    return f"[{','.join(context.cipher.decrypt_all([row[0] for row in rows if row[0] is not None], associated))}]"
