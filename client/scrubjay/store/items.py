"""Values under keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scrubjay.errors import Conflict, InvalidInput
from scrubjay.names import MAX_PAGE, shown, successor
from scrubjay.records import Item, to_time
from scrubjay.values import byte_size, decode, encode

from .operation import ERASE, LONG_WRITE, READ, SNAPSHOT, WRITE, Context, Long, Steps, operation
from .quotas import Account, drop, drop_rows, open_account
from .sealing import PLAIN, item_place

_FIND = "SELECT version, bytes, length, expires_at, created_at FROM items WHERE namespace = ? AND key = ?"
# Every write begins with both; asking for them together saves a tenth of its time.
_OPEN = """SELECT i.version, i.bytes, i.length, i.expires_at, i.created_at,
n.keys, n.notes, n.bytes, n.day, n.writes, n.writes_per_day, n.max_bytes, n.version_floor
FROM namespaces n LEFT JOIN items i ON i.namespace = n.namespace AND i.key = ? WHERE n.namespace = ?"""
_READ_TEXT = "SELECT value, expires_at FROM items WHERE namespace = ? AND key = ?"
_READ = """SELECT value, version, created_at, updated_at, expires_at, bytes
FROM items WHERE namespace = ? AND key = ?"""
# One statement sees one state, so a list and its rows always belong together.
_READ_LIST = """SELECT l.value, i.value, i.version, i.created_at, i.updated_at, i.expires_at, i.bytes
FROM items i LEFT JOIN list_items l ON l.namespace = i.namespace AND l.key = i.key
WHERE i.namespace = ? AND i.key = ? ORDER BY l.position"""
_WRITE = """INSERT INTO items (namespace, key, value, length, bytes, version, created_at, updated_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value, length = excluded.length,
bytes = excluded.bytes, version = excluded.version, created_at = excluded.created_at,
updated_at = excluded.updated_at, expires_at = excluded.expires_at"""
_LIVE = "(expires_at IS NULL OR expires_at > ?)"
ANY_VERSION = -1
"""What a write expects that only wants something to be there."""
_CHUNK = 500
"""Keys in one IN (…); SQLite allows 32,766 variables, older ones 999."""


class Stored(NamedTuple):
    """An item as it lies in the store: JSON text and milliseconds."""

    text: str
    version: int
    created_at: int
    updated_at: int
    expires_at: int | None
    bytes: int

    def to_item(self, key: str) -> Item:
        return Item(
            key=key,
            value=decode(self.text),
            version=self.version,
            created_at=to_time(self.created_at),
            updated_at=to_time(self.updated_at),
            expires_at=None if self.expires_at is None else to_time(self.expires_at),
            bytes=self.bytes,
        )


class Found(NamedTuple):
    """What a write needs to know of the item that is there now."""

    version: int
    bytes: int
    length: int | None
    expires_at: int | None
    created_at: int


@operation(READ)
def read_item(context: Context, namespace: str, key: str) -> Steps[Stored | None]:
    rows = yield _READ, (namespace, key)
    if not rows:
        return None
    stored = Stored._make(rows[0])
    if stored.text is None:  # a list
        return (yield from _read_list(context, namespace, key))
    if is_over(stored.expires_at, context.now):
        return None
    if context.cipher is PLAIN:
        return stored
    return stored._replace(text=context.cipher.open(stored.text, item_place(namespace, key)))


@operation(READ)
def read_text(context: Context, namespace: str, key: str) -> Steps[str | None]:
    """Only the JSON text: what `get` needs, in the least time."""
    rows = yield _READ_TEXT, (namespace, key)
    if not rows:
        return None
    text, expires_at = rows[0]
    if text is None:  # a list
        stored = yield from _read_list(context, namespace, key)
        return stored and stored.text
    if expires_at is not None and expires_at <= context.now:
        return None
    if context.cipher is PLAIN:  # the path of every get
        return text  # type: ignore[no-any-return]
    return context.cipher.open(text, item_place(namespace, key))


@operation(READ)
def find_version(context: Context, namespace: str, key: str) -> Steps[int | None]:
    """The version, without the value: whether the key is there."""
    rows = yield _FIND, (namespace, key)
    if not rows or is_over(rows[0][3], context.now):
        return None
    return int(rows[0][0])


@operation(SNAPSHOT)
def read_many(context: Context, namespace: str, keys: Iterable[str]) -> Steps[dict[str, str]]:
    """The JSON text of each key that is there, in the order asked."""
    wanted = list(dict.fromkeys(keys))
    found: dict[str, str] = {}
    for start in range(0, len(wanted), _CHUNK):
        chunk = wanted[start : start + _CHUNK]
        marks = ", ".join("?" * len(chunk))
        rows = yield Long(
            f"SELECT key, value FROM items WHERE namespace = ? AND {_LIVE} AND key IN ({marks})",  # noqa: S608
            (namespace, context.now, *chunk),
        )
        for key, stored in rows:
            place = item_place(namespace, key)
            if stored is None:
                found[key] = _joined(context, (yield Long(_READ_LIST, (namespace, key))), place)
            else:
                found[key] = context.cipher.open(stored, place)
    return {key: found[key] for key in wanted if key in found}


@operation(READ)
def list_keys(
    context: Context, namespace: str, prefix: str = "", after: str = "", limit: int = MAX_PAGE
) -> Steps[list[str]]:
    """Keys in code point order, those after `after`; fewer than `limit` means there are no more."""
    where, bounds = (
        f"namespace = ? AND {_LIVE} AND key >= ? AND key > ?",
        [namespace, context.now, prefix, after],
    )
    end = successor(prefix)
    if end:
        where += " AND key < ?"
        bounds.append(end)
    rows = yield Long(f"SELECT key FROM items WHERE {where} ORDER BY key LIMIT ?", (*bounds, limit))  # noqa: S608
    return [key for (key,) in rows]


@operation(WRITE)
def set_item(
    context: Context,
    namespace: str,
    key: str,
    text: str | None,
    ttl: float | None = None,
    if_version: int | None = None,
) -> Steps[tuple[int, Account]]:
    """Store JSON text and return its version; None deletes, and is version 0."""
    account, found = yield from open_item(context, namespace, key)
    _expect_version(key, found, if_version)
    version = 0
    if text is not None:
        yield from account.charge(writes=1)
        expires_at = None if ttl is None else context.now + max(round(ttl * 1000), 1)
        version = yield from _write(context, account, key, text, found, expires_at)
    elif found:
        yield from _remove(account, "delete", key, found)
    yield from account.save()
    return version, account


@operation(LONG_WRITE)
def update_items(context: Context, namespace: str, texts: Mapping[str, str | None]) -> Steps[tuple[None, Account]]:
    """Several items at once, all or none; None deletes."""
    account = yield from open_account(context, namespace)
    yield from account.charge(writes=sum(text is not None for text in texts.values()))
    for key, text in sorted(texts.items(), key=lambda pair: pair[1] is not None):  # deletes first: they make room
        found = yield from find_live(context, account, key)
        if text is not None:
            yield from _write(context, account, key, text, found, None)
        elif found:
            yield from _remove(account, "delete", key, found)
    yield from account.save()
    return None, account


@operation(WRITE)
def delete_item(
    context: Context, namespace: str, key: str, if_version: int | None = None
) -> Steps[tuple[bool, Account]]:
    """Whether it was there. Deleting is never counted: whoever is over a limit must be able to get below it."""
    account, found = yield from open_item(context, namespace, key)
    _expect_version(key, found, if_version)
    if found:
        yield from _remove(account, "delete", key, found)
    yield from account.save()
    return found is not None, account


@operation(ERASE)
def clear_items(context: Context, namespace: str) -> Steps[tuple[int, Account]]:
    """Delete all items of a namespace; how many there were."""
    account = yield from open_account(context, namespace)
    count = yield from clear_into(account, context.now)
    account.record_clear()
    yield from account.save()
    return count, account


@operation(WRITE)
def increment(context: Context, namespace: str, key: str, by: float) -> Steps[tuple[float, Account]]:
    """Add to a number, which starts at 0; an expiry stays."""
    account, found = yield from open_item(context, namespace, key)
    value: Any = 0
    if found:
        ((stored,),) = yield "SELECT value FROM items WHERE namespace = ? AND key = ?", (namespace, key)
        value = None if stored is None else decode(context.cipher.open(stored, item_place(namespace, key)))
        if type(value) not in (int, float):
            raise Conflict(f"the value of {key!r} is not a number, so it cannot be incremented; set it first")
    try:
        total = value + by
    except OverflowError:
        total = math.inf
    if isinstance(total, float) and not math.isfinite(total):
        raise InvalidInput(f"{shown(value)} + {shown(by)} is beyond the largest number; store a smaller one")
    yield from account.charge(writes=1)
    yield from _write(context, account, key, encode(total), found, found and found.expires_at, "incr")
    yield from account.save()
    return total, account


def clear_into(account: Account, now: int) -> Steps[int]:
    """Delete all items and take them off the account, which the caller saves; how many there were."""
    at = (account.namespace,)
    ((count, size, version, live),) = yield (
        (
            f"SELECT count(*), coalesce(sum(bytes), 0), coalesce(max(version), 0),"  # noqa: S608
            f" coalesce(sum({_LIVE}), 0) FROM items WHERE namespace = ?"
        ),
        (now, *at),
    )
    yield "DELETE FROM list_items WHERE namespace = ?", at
    yield "DELETE FROM items WHERE namespace = ?", at
    if count:
        account.release(keys=count, size=size, version=version)
    return int(live)


def _read_list(context: Context, namespace: str, key: str) -> Steps[Stored | None]:
    """The item again, now with its rows; by now it may be gone, or be no list any more."""
    rows = yield Long(_READ_LIST, (namespace, key))
    if not rows:
        return None
    stored, place = Stored._make(rows[0][1:]), item_place(namespace, key)
    if is_over(stored.expires_at, context.now):
        return None
    text = _joined(context, rows, place) if stored.text is None else context.cipher.open(stored.text, place)
    return stored._replace(text=text)


def is_over(expires_at: int | None, now: int) -> bool:
    return expires_at is not None and expires_at <= now


def open_item(context: Context, namespace: str, key: str) -> Steps[tuple[Account, Found | None]]:
    """The namespace's account, and the item under the key; one that has expired is removed on the way."""
    rows = yield _OPEN, (key, namespace)
    account = Account(context, namespace, rows and rows[0][5:])
    if not rows or rows[0][0] is None:
        return account, None
    found = Found._make(rows[0][:5])
    return account, (yield from _unless_over(context, account, key, found))


def find_live(context: Context, account: Account, key: str) -> Steps[Found | None]:
    """The item under the key; one that has expired is removed on the way."""
    rows = yield _FIND, (account.namespace, key)
    if not rows:
        return None
    return (yield from _unless_over(context, account, key, Found._make(rows[0])))


def _unless_over(context: Context, account: Account, key: str, found: Found) -> Steps[Found | None]:
    if is_over(found.expires_at, context.now):
        yield from _remove(account, "expire", key, found)
        return None
    return found


def _write(
    context: Context,
    account: Account,
    key: str,
    text: str,
    found: Found | None,
    expires_at: int | None,
    verb: str = "set",
) -> Steps[int]:
    size = byte_size(key) + byte_size(text)
    if found is None:
        yield from account.charge(keys=1, size=size)
        version, created_at = int(account.version_floor) + 1, context.now
    else:
        yield from account.charge(size=size - found.bytes)
        version, created_at = found.version + 1, found.created_at
        if found.length is not None:
            yield from drop_rows(account, key, found.length)
    sealed = context.cipher.seal(text, item_place(account.namespace, key))
    yield (
        _WRITE,
        (account.namespace, key, sealed, None, size, version, created_at, context.now, expires_at),
    )
    account.record(verb, key, size)
    return version


def _remove(account: Account, verb: str, key: str, found: Found) -> Steps[None]:
    return drop(account, verb, key, found.version, found.bytes, found.length)


def _expect_version(key: str, found: Found | None, expected: int | None) -> None:
    if expected is None:
        return
    version = found.version if found else 0
    if version == expected or (version and expected == ANY_VERSION):
        return
    there = f"is at version {version}" if version else "does not exist"
    wanted = "any version" if expected == ANY_VERSION else f"version {expected}"
    raise Conflict(f"{key!r} {there}, not at {wanted}; read it again and retry", status=412)


def _joined(context: Context, rows: list[tuple[Any, ...]], place: str) -> str:
    """A list's rows as one JSON text; a LEFT JOIN gives an empty list one row of NULL."""
    return f"[{','.join(context.cipher.open_all([row[0] for row in rows if row[0] is not None], place))}]"
