"""Rows with texts of any length: one call writes at most 16 MiB, so that a longer text is stored in parts."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from scrubjay.conversations import STATE, split_key
from scrubjay.errors import Conflict, NotFound
from scrubjay.exact_json import MAX_READ_BYTES, byte_size, encode
from scrubjay.memory import Memory
from scrubjay.models import Item
from scrubjay.validation import MAX_KEY_BYTES

CALL_BYTES = 12 * 2**20
"""Bytes of texts that the call writes which stores the rows; the rest of the 16 MiB is for what is beside them."""
PART_CHARS = 2 * 2**20
"""Characters of a part: at most 12 MiB of JSON, whatever the characters are."""
MAX_BYTES_OF_A_CHAR = 6
"""Bytes of JSON that a character takes at most, as \\u0001 does."""
UNFINISHED_SECONDS = 3600
"""Seconds after which the parts of a save that did not come to its end expire; a save has to be faster."""
NAME_BYTES = 400
"""Bytes that the keys of parts start with, which repeat their key; the token alone makes them unique."""
DELETED_KEYS = 10_000
"""Keys that one call deletes: with 5 MiB of the longest keys it is far below what a call may have."""
READ_KEYS = MAX_READ_BYTES // MAX_KEY_BYTES
"""Keys that one call reads, however long they are."""
PARTS = "part/"
"""In the keys of parts, before the key that they belong to, but behind the prefix of its session, with which they are
erased."""

NOTHING: Mapping[str, Any] = {}

Row = Mapping[str, Any]


def save_rows(
    memory: Memory, rows: Mapping[str, Any], new: Collection[str] = (), appended: Mapping[str, Sequence[Any]] = NOTHING
) -> None:
    """Store rows in place of those stored, all or none; the text in a row's field `data` may have any length.

    What is too long for one call is written first, in parts under keys that no other text has, with an expiry. The call
    that stores the rows also removes the expiry, and deletes the parts of the rows that are replaced. So a process that
    is killed before has changed nothing, and what it leaves behind expires.

    The first call expects that no row is there: then there is nothing to read.

    :param rows: by key; None deletes a key.
    :param new: those of the keys that must not exist.
    :param appended: items for the ends of lists, by key, in the same call; at most 2 MiB of them.
    :raises Conflict: if one of `new` exists, or the save took longer than UNFINISHED_SECONDS.
    """
    _replace(memory, rows, lambda: dict.fromkeys(rows), new=new, appended=appended)


def save_text(
    memory: Memory,
    key: str,
    text: str,
    fields: Row,
    beside: Callable[[Row | None], Mapping[str, Any]] = lambda _: {},
) -> None:
    """Store a text with a few fields, and rows beside it, as `save_rows` does, but expect that there is one already.

    :param beside: given the row that is replaced, returns more keys and values for the same write.
    """
    rows = {key: {**fields, "data": text}}
    _replace(memory, rows, lambda: {key: memory.item(key)}, lambda old: beside(old[key]))


def load_text(memory: Memory, key: str, row: Row | None = None) -> str | None:
    """The text under a key; None if there is none. `row` is what the caller has read of it already."""
    found = memory.get(key) if row is None else row
    while found is not None:
        names = _part_names(key, found)
        if not names:
            return str(found["data"])
        parts = memory.get_many(names)
        if len(parts) == len(names):
            return "".join(parts[name] for name in names)
        latest = memory.get(key)  # another process has replaced it meanwhile
        if latest == found:
            raise NotFound(f"parts of the value of {key!r} are missing; delete it")
        found = latest
    return None


def delete_text(memory: Memory, key: str, beside: Callable[[Row], Mapping[str, None]] = lambda _: {}) -> bool:
    """Delete a text with its parts and what is beside it; returns whether there was one."""
    while (found := memory.item(key)) is not None:
        rows = {key: None, **_without_parts(key, found.value), **beside(found.value)}
        try:
            memory.update(rows, if_versions={key: found.version})
        except Conflict:
            continue
        return True
    return False


def delete_keys(memory: Memory, keys: Sequence[str]) -> None:
    """Delete any number of keys, in as many calls as they need."""
    for start in range(0, len(keys), DELETED_KEYS):
        memory.update(dict.fromkeys(keys[start : start + DELETED_KEYS]))


def read_keys(memory: Memory, keys: Sequence[str]) -> dict[str, Any]:
    """The values of any number of keys, read in as many calls as they need."""
    found: dict[str, Any] = {}
    for start in range(0, len(keys), READ_KEYS):
        found |= memory.get_many(keys[start : start + READ_KEYS])
    return found


def parts_prefix(key: str) -> str:
    """The start of the keys of the parts of a key's text: they say whose they are, as far as a key has room for it."""
    start = parts_below(key).encode()
    return (start if len(start) <= NAME_BYTES else start[: NAME_BYTES - 1] + b"/").decode(errors="ignore")


def parts_below(key: str) -> str:
    """The same for a key and all below it; parts of keys that are too long for that are not found."""
    name = split_key(key)[1].removeprefix(STATE)
    return f"{key.removesuffix(name)}{PARTS}{name}/"


def _part_names(key: str, row: Row) -> list[str]:
    if not row.get("parts"):
        return []
    return [f"{parts_prefix(key)}{row['token']}/{number:04}" for number in range(row["parts"])]


def _replace(
    memory: Memory,
    rows: Mapping[str, Any],
    expected: Callable[[], dict[str, Item | None]],
    beside: Callable[[Mapping[str, Row | None]], Mapping[str, Any]] = lambda _: {},
    new: Collection[str] = (),
    appended: Mapping[str, Sequence[Any]] = NOTHING,
) -> None:
    """Store rows in place of the expected ones, or of those that are stored instead."""
    shortened, parts = _split(rows)
    written = _write_parts(memory, parts)
    before = expected()
    while True:
        old = {key: item.value if item else None for key, item in before.items()}
        removed = {name: None for key, row in old.items() for name in _without_parts(key, row)}
        versions = {key: item.version if item else 0 for key, item in before.items()}
        try:
            return _finish(memory, {**removed, **beside(old), **shortened}, versions, written, appended)
        except Conflict:
            latest = {key: None if key in new else memory.item(key) for key in rows}
            if latest == before:  # one of `new` exists, or the save took too long
                raise
            before = latest  # another row is there, or another writer was faster: that is replaced


def _finish(
    memory: Memory,
    rows: Mapping[str, Any],
    if_versions: Mapping[str, int],
    parts: Mapping[str, int | None],
    appended: Mapping[str, Sequence[Any]],
) -> None:
    """Store rows in one call, with which their parts stay, and append items to lists."""
    if not parts and not appended:
        return memory.update(rows, if_versions=if_versions)
    written = {name: version for name, version in parts.items() if version is not None}
    with memory.transaction() as transaction:
        transaction.update(rows, if_versions={**if_versions, **written})
        for name in parts:
            transaction.touch(name, None)
        for key, items in appended.items():
            transaction.append(key, *items)
    return None


def _split(rows: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The rows, those that do not fit into one call without their texts, and the parts of these texts."""
    texts = {key: row["data"] for key, row in rows.items() if row and "data" in row}
    if sum(map(len, texts.values())) * MAX_BYTES_OF_A_CHAR <= CALL_BYTES:
        return dict(rows), {}
    shortened, left = dict(rows), CALL_BYTES
    parts: dict[str, str] = {}
    for key, text in texts.items():
        size = byte_size(encode(text))
        if size <= left:
            left -= size
            continue
        pieces = [text[start : start + PART_CHARS] for start in range(0, len(text), PART_CHARS)]
        row = {**rows[key], "data": "", "parts": len(pieces), "token": secrets.token_hex(8)}
        shortened[key] = row
        parts |= zip(_part_names(key, row), pieces, strict=True)
    return shortened, parts


def _write_parts(memory: Memory, parts: Mapping[str, str]) -> dict[str, int | None]:
    """The versions of the parts; None for a queued one."""
    return {name: memory.set(name, text, ttl=UNFINISHED_SECONDS) for name, text in parts.items()}


def _without_parts(key: str, row: Row | None) -> dict[str, None]:
    return dict.fromkeys(_part_names(key, row) if row else ())
