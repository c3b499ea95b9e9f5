"""The server with an outbox in front: a write that cannot be sent now is kept, and reads see what is kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .backends import MISSING
from .errors import Conflict, QuotaExceeded, ScrubjayError, Unavailable
from .http_backend import HttpBackend, Write
from .names import MAX_PAGE, counted
from .outbox import Entry, open_outbox, slots
from .records import Item, Pending, Usage
from .wire import Answer

log = logging.getLogger("scrubjay")

_UNKNOWN: Any = object()
"""What only the server can say."""


class OutboxBackend(HttpBackend):
    """Writes that make sense without their answer wait for the server; all others need it, and go in their order."""

    def __init__(
        self, url: str, timeout: float, api_key: str | None, outbox: str, *, keep_refused: bool = False
    ) -> None:
        super().__init__(url, timeout, api_key)
        self._keep_refused = keep_refused
        self._outbox = open_outbox(outbox, url, timeout, api_key)
        try:
            self._outbox.look()
        except Unavailable as error:  # the server may well be there; a write that needs the outbox says so again
            log.error("%s. What waits in it is not sent", error)  # noqa: TRY400 - the cause is in the message

    # ------------------------------------------------------------ writes

    def write(self, write: Write, headers: Mapping[str, str] | None = None, age: float = 0.0) -> Any:
        """The answer, or None when the write is kept."""
        outbox = self._outbox
        if headers:  # a version is expected, and only the server knows it
            self._in_order(write.namespace)
            return super().write(write, headers, age)
        if self._must_wait(write):
            if not self._keep_refused and (refusal := outbox.refusal(write.namespace)):
                raise refusal  # of what waits before it, and so of this one
            return outbox.add(write, quietly=self._keep_refused)
        delivery = slots.take()
        try:
            answer = super().write(write, {"Idempotency-Key": str(delivery)})
        except ScrubjayError as error:
            if self._keeps(error):
                return outbox.add(write, error, str(delivery), quietly=self._keep_refused)
            if not isinstance(error, Unavailable):
                slots.put_back(delivery)
            raise
        slots.put_back(delivery)
        return answer

    def incr(self, namespace: str, key: str, by: float, once: str | None) -> Any:
        self._in_order(namespace)
        return super().incr(namespace, key, by, once)

    def forget(self, namespace: str, note_id: str) -> bool:
        self._outbox.settle(namespace)
        return super().forget(namespace, note_id)

    def clear(self, namespace: str) -> int:
        """What waits was written before, so it is cleared as well."""
        if namespace not in self._outbox.waiting:
            return super().clear(namespace)
        with self._outbox.reached(namespace) as entries:
            count = super().clear(namespace)
            self._outbox.drop(entries)
        return count

    def set_quota(self, namespace: str, changes: Mapping[str, int | None]) -> Usage:
        usage = super().set_quota(namespace, changes)
        self._outbox.hurry()  # it may be what was waited for
        return usage

    def _send(
        self, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """What one call finds out about the server, the others need not."""
        try:
            answer = super()._send(method, path, body, headers)
        except Unavailable as error:
            self._outbox.went_away(error)
            raise
        if answer.status < 500:
            self._outbox.came_back()
        return answer

    @property
    def is_away(self) -> bool:
        return self._outbox.is_away()

    def _must_wait(self, write: Write) -> bool:
        """Whether it goes into the outbox at once. Who keeps everything never waits for another attempt."""
        outbox = self._outbox
        if not self._keep_refused:
            outbox.settle(write.namespace)
        is_down = outbox.is_away() if self._keep_refused else outbox.is_down()
        return is_down or (write.namespace in outbox.waiting and not self._may_overtake(write))

    def _keeps(self, error: ScrubjayError) -> bool:
        if isinstance(error, QuotaExceeded):
            return self._keep_refused
        return isinstance(error, Unavailable) and error.status >= 500

    def _in_order(self, namespace: str) -> None:
        """For what needs the server's answer: it must not overtake what was written before."""
        if namespace not in self._outbox.waiting:
            return
        with self._outbox.reached(namespace) as entries:
            if entries:
                before = counted(len(entries), "write")
                raise Unavailable(
                    f"this needs an answer, and {before} to {namespace!r} must go before it: {entries[0].why}"
                )

    def _may_overtake(self, write: Write) -> bool:
        """Whoever is over a quota must be able to delete, and what nothing that waits is about may go first."""
        keys = deleted_by(write)
        return bool(keys) and not keys & touched_by(self._outbox.entries(write.namespace))

    # ------------------------------------------------------------ reads

    def get(self, namespace: str, key: str) -> Any:
        if namespace not in self._outbox.waiting:
            return super().get(namespace, key)
        return self.get_many(namespace, [key]).get(key, MISSING)

    def contains(self, namespace: str, key: str) -> bool:
        if namespace not in self._outbox.waiting:
            return super().contains(namespace, key)
        return key in self.get_many(namespace, [key])

    def get_many(self, namespace: str, keys: Sequence[str]) -> dict[str, Any]:
        ask = super().get_many
        if namespace not in self._outbox.waiting:
            return ask(namespace, keys)
        values = self._with_pending(namespace, keys, lambda unknown: ask(namespace, unknown))
        return {key: value for key, value in values.items() if value is not MISSING}

    def tail(self, namespace: str, key: str, count: int) -> list[Any]:
        ask = super().tail
        if namespace not in self._outbox.waiting:
            return ask(namespace, key, count)
        value = self._with_pending(namespace, [key], lambda _: {key: ask(namespace, key, count)})[key]
        if value is MISSING:
            return []
        if not isinstance(value, list):
            raise Conflict(f"the value of {key!r} is no list, so it has no end to read")
        return value[max(len(value) - count, 0) :]

    def item(self, namespace: str, key: str) -> Item | None:
        ask = super().item
        if namespace not in self._outbox.waiting:
            return ask(namespace, key)
        with self._outbox.reached(namespace) as entries:
            if key in touched_by(entries):
                raise Unavailable(f"{key!r} waits to be sent, so it has no version yet; get() reads its value")
            return ask(namespace, key)

    def keys(self, namespace: str, prefix: str, after: str) -> list[str]:
        """While something waits, all of them at once: what is added and taken away leaves no pages to count by."""
        ask = super().keys
        if namespace not in self._outbox.waiting:
            return ask(namespace, prefix, after)
        with self._outbox.reached(namespace) as entries:
            found = set(page := ask(namespace, prefix, after))
            while len(page) == MAX_PAGE:
                found |= set(page := ask(namespace, prefix, page[-1]))
        touched = {key for key in touched_by(entries) if key.startswith(prefix) and key > after}
        there = {key for key in touched if overlaid(entries, key, "" if key in found else MISSING) is not MISSING}
        return sorted(found - touched | there)

    def adopt(self) -> None:
        """Take over what waits for this server under other api keys."""
        self._outbox.adopt()

    def pending(self, namespace: str | None) -> list[Pending]:
        return [entry.to_pending() for entry in self._outbox.pending(namespace)]

    def flush(self, namespace: str | None, timeout: float) -> None:
        self._outbox.flush(namespace, timeout)

    def _with_pending(
        self, namespace: str, keys: Sequence[str], ask: Callable[[list[str]], dict[str, Any]]
    ) -> dict[str, Any]:
        """The values of keys as they will be when everything is sent; `ask` the server only for what it decides."""
        self._outbox.settle(namespace)
        entries = self._outbox.entries(namespace)
        values = {key: overlaid(entries, key, _UNKNOWN) for key in keys}
        unknown = [key for key, value in values.items() if value is _UNKNOWN]
        if unknown:
            with self._outbox.reached(namespace) as entries:
                found = ask(unknown)
            values |= {key: overlaid(entries, key, found.get(key, MISSING)) for key in unknown}
        return values


def overlaid(entries: Iterable[Entry], key: str, value: Any) -> Any:
    """What the value under a key will be once these are sent; MISSING and _UNKNOWN are values, too."""
    for entry in entries:
        value = _applied(entry, key, value)
    return value


def _applied(entry: Entry, key: str, value: Any) -> Any:
    write = entry.write
    if write.verb == "update":
        new = json.loads(write.body)["values"].get(key, value)
        return MISSING if new is None else new
    if write.key != key:
        return value
    if write.verb == "append":
        items = json.loads(write.body)["items"]
        if value is MISSING:
            return items or MISSING
        return [*value, *items] if isinstance(value, list) else value
    if write.verb == "delete" or (write.ttl is not None and entry.age >= write.ttl):
        return MISSING
    return json.loads(write.body)["value"]


def touched_by(entries: Iterable[Entry]) -> set[str]:
    """The keys that these change."""
    keys: set[str] = set()
    for entry in entries:
        write = entry.write
        keys |= set(json.loads(write.body)["values"]) if write.verb == "update" else {write.key}
    return keys - {""}


def deleted_by(write: Write) -> set[str]:
    """The keys that a write deletes, if that is all it does."""
    if write.verb == "delete":
        return {write.key}
    values = json.loads(write.body)["values"] if write.verb == "update" else {}
    return set(values) if all(value is None for value in values.values()) else set()
