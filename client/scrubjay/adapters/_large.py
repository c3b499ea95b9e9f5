"""Texts of any length under one key: one call writes at most 16 MiB, so that a longer one is stored in parts."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from scrubjay.errors import Conflict, NotFound
from scrubjay.memory import Memory

PART_CHARS = 4 * 2**20
"""Characters of a text under one key; a longer one is split."""
NAME_BYTES = 400
"""Bytes of a key that are repeated in the keys of its parts; the token alone makes them unique."""

Row = Mapping[str, Any]


def save_text(
    memory: Memory,
    key: str,
    text: str,
    fields: Row,
    beside: Callable[[Row | None], Mapping[str, Any]] = lambda _: {},
) -> None:
    """Store a text with a few fields, and rows beside it, in place of what is there.

    Parts get keys that no other text has. The row that names them replaces the one before and its parts in one write,
    so that a reader gets the one text or the other, and a process that is killed has changed nothing.

    :param beside: given the row that is replaced, returns more keys and values for the same write.
    """
    token = secrets.token_hex(8)
    first, *rest = [text[start : start + PART_CHARS] for start in range(0, len(text), PART_CHARS)] or [""]
    row = {**fields, "data": first, "parts": len(rest), "token": token}
    for name, part in zip(_names(key, row), rest, strict=True):
        memory.set(name, part)
    while True:
        before = memory.item(key)
        old = before.value if before else None
        gone = dict.fromkeys(_names(key, old) if old else ())
        try:
            memory.update({**gone, **beside(old), key: row}, if_versions={key: before.version if before else 0})
        except Conflict:  # another writer was faster, and its text is replaced
            continue
        return


def load_text(memory: Memory, key: str, row: Row | None = None) -> str | None:
    """The text under a key; None if there is none. `row` is what the caller has read of it already."""
    found = memory.get(key) if row is None else row
    while found is not None:
        names = _names(key, found)
        parts = memory.get_many(names) if names else {}
        if len(parts) == len(names):
            return "".join([found["data"], *(parts[name] for name in names)])
        latest = memory.get(key)  # another process has replaced it meanwhile
        if latest == found:
            raise NotFound(f"parts of the value of {key!r} are missing; delete it")
        found = latest
    return None


def delete_text(memory: Memory, key: str, beside: Callable[[Row], Mapping[str, None]] = lambda _: {}) -> bool:
    """Delete a text with its parts and what is beside it; returns whether there was one."""
    while (found := memory.item(key)) is not None:
        rows = {**dict.fromkeys([key, *_names(key, found.value)]), **beside(found.value)}
        try:
            memory.update(rows, if_versions={key: found.version})
        except Conflict:
            continue
        return True
    return False


def _names(key: str, row: Row) -> list[str]:
    """The keys of the parts after the first; they say whose they are, as far as a key has room for it."""
    whose = key.encode()[:NAME_BYTES].decode(errors="ignore")
    return [f"part/{whose}/{row['token']}/{number:04}" for number in range(row["parts"])]
