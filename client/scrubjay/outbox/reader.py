"""Reads that see queued writes: what the target answers, as it will be when they have been sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any

from scrubjay.commands import (
    CONTAINS,
    CONVERSATION,
    GET,
    GET_MANY,
    ITEM,
    ITEMS,
    KEYS,
    LENGTH,
    MISSING,
    SCAN,
    SLICE,
    TAIL,
    Command,
)
from scrubjay.conversations import matches, with_tool_names
from scrubjay.errors import Conflict, Unavailable
from scrubjay.models import Item, Message
from scrubjay.outbox.overlay import UNKNOWN, keys_written, messages_behind, overlaid
from scrubjay.outbox.queue import QueuedWrite
from scrubjay.validation import ABOVE_ALL_KEYS, MAX_MESSAGES_PAGE


class OverlayReader:
    """Runs the reads of OVERLAID on a target and on the writes that are queued for it.

    :param ask: runs a command on the target alone.
    :param queued: the queued writes of a namespace.
    :param exclusive: the same for the time in which the target is asked, when no thread sends any.
    :param send_now: sends queued writes of a namespace, if they can be sent at once.
    """

    def __init__(
        self,
        ask: Callable[[Command], Any],
        queued: Callable[[str], list[QueuedWrite]],
        exclusive: Callable[[str], AbstractContextManager[list[QueuedWrite]]],
        send_now: Callable[[str], None],
    ) -> None:
        self._ask = ask
        self._queued = queued
        self._exclusive = exclusive
        self._send_now = send_now

    def run(self, command: Command) -> Any:
        return OVERLAID[command.verb](self, command)

    def _get(self, command: Command) -> Any:
        return self._overlay(command.namespace, [command.key])[command.key]

    def _contains(self, command: Command) -> bool:
        return self._get(command) is not MISSING

    def _get_many(self, command: Command) -> dict[str, Any]:
        values = self._overlay(command.namespace, command.argument("keys"))
        return {key: value for key, value in values.items() if value is not MISSING}

    def _tail(self, command: Command) -> list[Any]:
        key, count = command.arguments
        value = self._overlay(command.namespace, [key], lambda _: {key: self._ask(command)}, enough=count)[key]
        items = _as_list(key, value)
        return items[max(len(items) - count, 0) :]

    def _slice(self, command: Command) -> list[Any]:
        key, start, stop = command.arguments
        queued = self._queued(command.namespace)
        if start < 0 or stop is None or stop < 0 or overlaid(queued, key, UNKNOWN) is not UNKNOWN:
            return _as_list(key, self._overlay(command.namespace, [key])[key])[start:stop]
        with self._exclusive(command.namespace) as queued:
            found: list[Any] = self._ask(command)
            if len(found) >= stop - start:
                return found
            end = start + len(found)
            if start and not found:
                end = self._ask(LENGTH(command.namespace, key))
        added = _as_list(key, overlaid(queued, key, []))
        return [*found, *added[max(start - end, 0) :]][: max(stop - start, 0)]

    def _length(self, command: Command) -> int:
        """The target tells a number, which stands for a list of so many items."""
        key = command.key
        value = self._overlay(command.namespace, [key], lambda _: {key: [None] * self._ask(command)})[key]
        return len(_as_list(key, value))

    def _conversation(self, command: Command) -> list[Message]:
        key, limit, before, after, search = command.arguments
        with self._exclusive(command.namespace) as queued:
            if key not in keys_written(queued):
                return self._ask(command)  # type: ignore[no-any-return]
            is_known = overlaid(queued, key, UNKNOWN) is not UNKNOWN  # replaced or deleted by a queued write
            end = CONVERSATION(command.namespace, key, limit, None, None, None)
            # The end first: a message that is sent between the two reads is then in the second, and not in neither.
            last = [] if is_known else self._ask(end)
            stored = last if is_known or command.arguments == end.arguments else self._ask(command)
        seen = {message.id for message in stored}
        added = [
            message
            for message in messages_behind(queued, key, last)
            if message.id not in seen
            and (before is None or message.position < before)
            and (after is None or message.position > after)
            and matches(message, search)
        ]
        found = with_tool_names([*stored, *added])
        return found[-limit:] if after is None else found[:limit]

    def whole_conversation(self, namespace: str, key: str) -> list[Message]:
        """All messages of a conversation, oldest first: page by page from the target, and the queue once.

        The queue is read first: a message that is sent meanwhile is then in both, and not in neither.
        """
        queued = self._queued(namespace)
        is_known = overlaid(queued, key, UNKNOWN) is not UNKNOWN  # replaced or deleted by a queued write
        stored = [] if is_known else self._stored_conversation(namespace, key)
        return with_tool_names([*stored, *messages_behind(queued, key, stored)])

    def _stored_conversation(self, namespace: str, key: str) -> list[Message]:
        found: list[Message] = []
        before = None
        while True:
            page = self._ask(CONVERSATION(namespace, key, MAX_MESSAGES_PAGE, before, None, None))
            found[:0] = page
            if len(page) < MAX_MESSAGES_PAGE:
                return found
            before = page[0].position

    def _item(self, command: Command) -> Any:
        with self._exclusive(command.namespace) as queued:
            if command.key in keys_written(queued):
                raise _no_version(command.key, "get() reads its value")
            return self._ask(command)

    def _keys(self, command: Command) -> list[str]:
        """All keys at once: queued writes add and remove some, so there are no pages to count by."""
        prefix, after, limit = command.arguments
        with self._exclusive(command.namespace) as queued:
            found = set(page := self._ask(command))
            while len(page) == limit:
                found |= set(page := self._ask(KEYS(command.namespace, prefix, page[-1], limit)))
        written = {key for key in keys_written(queued) if key.startswith(prefix) and key > after}
        there = {key for key in written if overlaid(queued, key, "" if key in found else MISSING) is not MISSING}
        return sorted(found - written | there)

    def _items(self, command: Command) -> tuple[list[tuple[str, Any]], str | None]:
        """A page of the target, with the changes that queued writes make to keys in its range."""
        with self._exclusive(command.namespace) as queued:
            page, cursor = self._ask(command)
        values = dict(page)
        for key in _keys_on_page(queued, command, cursor):
            values[key] = overlaid(queued, key, values.get(key, MISSING))
        found = [(key, value) for key, value in values.items() if value is not MISSING]
        return sorted(found, reverse=command.argument("reverse"), key=itemgetter(0)), cursor

    def _scan(self, command: Command) -> tuple[list[Item], str | None]:
        with self._exclusive(command.namespace) as queued:
            page, cursor = self._ask(command)
        for key in _keys_on_page(queued, command, cursor):
            raise _no_version(key, "items() reads its value")
        return page, cursor

    def _overlay(
        self,
        namespace: str,
        keys: Sequence[str],
        ask: Callable[[list[str]], dict[str, Any]] | None = None,
        enough: int | None = None,
    ) -> dict[str, Any]:
        """The values of keys once everything is sent; the target is asked only for those that it decides.

        With `enough`, so many queued items are enough to stand for a list: the caller needs no more of its end.
        """
        self._send_now(namespace)
        queued = self._queued(namespace)
        values = {key: overlaid(queued, key, UNKNOWN) for key in keys}
        if enough is not None:
            values |= {
                key: added
                for key, value in values.items()
                if value is UNKNOWN and len(added := overlaid(queued, key, [])) >= enough
            }
        unknown = [key for key, value in values.items() if value is UNKNOWN]
        if unknown:
            with self._exclusive(namespace) as queued:
                found = ask(unknown) if ask else self._ask(GET_MANY(namespace, unknown))
            values |= {key: overlaid(queued, key, found.get(key, MISSING)) for key in unknown}
        return values


def _as_list(key: str, value: Any) -> list[Any]:
    if value is MISSING:
        return []
    if not isinstance(value, list):
        raise Conflict(f"the value of {key!r} is not a list; delete it, or use another key")
    return value


def _no_version(key: str, instead: str) -> Unavailable:
    return Unavailable(f"{key!r} is queued, so it has no version yet; {instead}")


def _keys_on_page(queued: Sequence[QueuedWrite], command: Command, cursor: str | None) -> set[str]:
    """The keys that queued writes change, of those between the start of a page and its cursor."""
    prefix, after, _, reverse = command.arguments
    first, last = (cursor or "", after or ABOVE_ALL_KEYS) if reverse else (after, cursor or ABOVE_ALL_KEYS)
    return {key for key in keys_written(queued) if key.startswith(prefix) and first <= key <= last and key != after}


OVERLAID: dict[Any, Callable[[OverlayReader, Command], Any]] = {
    GET: OverlayReader._get,  # noqa: SLF001
    CONTAINS: OverlayReader._contains,  # noqa: SLF001
    GET_MANY: OverlayReader._get_many,  # noqa: SLF001
    TAIL: OverlayReader._tail,  # noqa: SLF001
    CONVERSATION: OverlayReader._conversation,  # noqa: SLF001
    ITEM: OverlayReader._item,  # noqa: SLF001
    KEYS: OverlayReader._keys,  # noqa: SLF001
    ITEMS: OverlayReader._items,  # noqa: SLF001
    SCAN: OverlayReader._scan,  # noqa: SLF001
    SLICE: OverlayReader._slice,  # noqa: SLF001
    LENGTH: OverlayReader._length,  # noqa: SLF001
}
"""Reads that see queued writes; the others (`recall`, `notes`, `usage`) answer from the target alone."""
