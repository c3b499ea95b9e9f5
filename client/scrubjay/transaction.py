"""Transactions of Memory and AsyncMemory: writes that are collected, then run together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from scrubjay.calls import (
    append_call,
    delete_call,
    merge_call,
    remember_call,
    set_call,
    touch_call,
    transaction_call,
    update_call,
)
from scrubjay.commands import Command
from scrubjay.errors import InvalidInput


class NoteFields(TypedDict, total=False):
    """The arguments of `remember`, beside the content."""

    type: str | None
    tags: Iterable[str]
    session: str | None
    ttl: float | None
    ttl_days: float | None
    pinned: bool
    metadata: Mapping[str, Any] | None
    supersedes: Iterable[str]
    id: str | None


class Transaction:
    """`with memory.transaction() as t:` runs the writes of the block together, all of them or none, when it ends.

    The verbs have the arguments of Memory and return nothing; outside of the block they raise InvalidInput. A block
    that raises an exception runs nothing.
    """

    results: Sequence[Any] | None = None
    """What each verb returned, a note as its number; None until the block has ended, and when it is queued."""

    def __init__(self, namespace: str, execute: Callable[[Command], Any], once: str | None) -> None:
        self._namespace = namespace
        self._execute = execute
        self._once = once
        self._is_open = False
        self.commands: list[Command] = []

    def set(self, key: str, value: Any, *, ttl: float | None = None) -> None:
        """Store a value under a key; None deletes the key."""
        self._add(set_call(self._namespace, key, value, ttl))

    def delete(self, key: str) -> None:
        """Delete a key."""
        self._add(delete_call(self._namespace, key))

    def update(
        self, mapping: Mapping[str, Any], *, if_versions: Mapping[str, int] | None = None, ttl: float | None = None
    ) -> None:
        """Store several values; None deletes a key."""
        command = update_call(self._namespace, mapping, if_versions, ttl)
        if command:
            self._add(command)

    def merge(self, key: str, mapping: Mapping[str, Any]) -> None:
        """Replace fields of an object; None removes a field."""
        self._add(merge_call(self._namespace, key, mapping))

    def touch(self, key: str, ttl: float | None) -> None:
        """Replace the expiry of a key; a transaction with this verb is never queued."""
        self._add(touch_call(self._namespace, key, ttl))

    def append(self, key: str, *items: Any) -> None:
        """Add items to the end of a list."""
        command = append_call(self._namespace, key, items)
        if items:
            self._add(command)

    def remember(self, content: str, **fields: Unpack[NoteFields]) -> None:
        """Store a note."""
        self._add(remember_call(self._namespace, content, **fields))

    def _add(self, command: Command) -> None:
        if not self._is_open:
            raise InvalidInput(
                "the writes of a transaction run when its block ends, so they have to be inside of it:"
                " with memory.transaction() as t: …"
            )
        self.commands.append(command)

    def __enter__(self) -> Self:
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        if kind is None:
            self.run(self.commands)

    def run(self, parts: Sequence[Command]) -> None:
        """Run these commands now, as one transaction.

        :raises ValueTooLarge: if they have more bytes than one call may.
        """
        if parts:
            self.results = self._execute(transaction_call(self._namespace, parts, self._once))
