"""The rows that a transaction knows: it has locked them, and has read or written them itself.

The operations of a batch read the same rows again and again: the usage of their namespace and of their api key, and the
item under their key. Nobody else can change these before the commit, so that the first answer holds, with what was
written since. A query that is not known here is always sent, and a write that is not known here makes the transaction
forget everything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from scrubjay.store.operation import Rows
from scrubjay.store.sqlite.queries import QUERIES

Row = tuple[Any, ...]
_NO_ITEM: Row = (None,) * 5
_USAGE = ("keys", "notes", "bytes", "day", "writes", "writes_per_day", "max_bytes", "version_floor", "owner")
_OTHER_TABLES = {"append_change", "append_list_row", "delete_list_rows", "take_first_rows", "take_last_rows"}
"""Writes to rows that are not known here."""


@lru_cache(16)
def _columns(query: str, *names: str) -> itemgetter[Any]:
    """What takes the parameters of these columns from those of an INSERT."""
    columns = [name.strip() for name in re.split(r"[(),]", QUERIES[query].partition("VALUES")[0])[1:]]
    return itemgetter(*(columns.index(name) for name in names))


class KnownRows:
    """The rows of a transaction that its next queries need not read again."""

    def __init__(self) -> None:
        self._namespaces: dict[str, Row | None] = {}
        self._items: dict[tuple[str, str], Row | None] = {}
        self._key_usages: dict[str, Row] = {}
        self._idempotency_keys: dict[Sequence[Any], Rows] = {}

    def forget(self) -> None:
        self.__init__()  # type: ignore[misc]

    def answer(self, query: str, params: Sequence[Any]) -> Rows | None:
        """The rows of a query; None if they are not known."""
        if query == "open_namespace":
            return self._answer_open(*params)
        if query == "read_key_usage":
            row = self._key_usages.get(params[0])
            return None if row is None else [row]
        if query == "find_idempotency_key":
            return self._idempotency_keys.get(tuple(params))
        return None

    def _answer_open(self, key: str | None, namespace: str) -> Rows | None:
        if namespace not in self._namespaces:
            return None
        usage, item = self._namespaces[namespace], _NO_ITEM
        if usage is None:
            return []
        if key is not None:
            if (namespace, key) not in self._items:
                return None
            item = self._items[namespace, key] or _NO_ITEM
        return [(*item, *usage)]

    def read(self, query: str, params: Sequence[Any], rows: Rows) -> None:
        """Learn from the answer to a query."""
        if query == "open_namespace":
            key, namespace = params
            if key is not None:
                self._items[namespace, key] = rows[0][:5] if rows and rows[0][0] is not None else None
            self._namespaces[namespace] = rows[0][5:] if rows else None
        elif query == "read_key_usage" and rows:
            self._key_usages[params[0]] = rows[0]
        elif query == "find_idempotency_key":
            self._idempotency_keys[tuple(params)] = rows

    def knows(self, query: str) -> bool:
        """Whether it is known what a write changes."""
        return query in _OTHER_TABLES or hasattr(self, f"_learn_{query}")

    def written(self, query: str, params: Sequence[Any]) -> None:
        """Learn from a write."""
        if not self.knows(query):
            self.forget()
        elif query not in _OTHER_TABLES:
            getattr(self, f"_learn_{query}")(params)

    def _learn_save_namespace(self, params: Sequence[Any]) -> None:
        self._namespaces[params[0]] = _columns("save_namespace", *_USAGE)(params)

    def _learn_write_item(self, params: Sequence[Any]) -> None:
        item = _columns("write_item", "version", "bytes", "length", "expires_at", "created_at")(params)
        self._items[params[0], params[1]] = item

    def _learn_delete_item(self, params: Sequence[Any]) -> None:
        self._items[params[0], params[1]] = None

    def _learn_resize_list(self, params: Sequence[Any]) -> None:
        length, size, version, _, namespace, key = params
        if before := self._items.get((namespace, key)):
            self._items[namespace, key] = (version, size, length, *before[3:])

    def _learn_create_list(self, params: Sequence[Any]) -> None:
        namespace, key, length, size, version, created_at, _ = params
        self._items[namespace, key] = (version, size, length, None, created_at)

    def _learn_save_key_usage(self, params: Sequence[Any]) -> None:
        *usage, identity = params
        if before := self._key_usages.get(identity):
            self._key_usages[identity] = (*before[:5], *usage)

    def _learn_save_idempotency_key(self, params: Sequence[Any]) -> None:
        self._idempotency_keys.pop((params[0], params[1]), None)

    def _learn_advance_idempotency_key(self, params: Sequence[Any]) -> None:
        self._idempotency_keys.pop((params[-2], params[-1]), None)
