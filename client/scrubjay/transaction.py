"""Transactions of Memory and AsyncMemory: writes that are collected, then run together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self

from scrubjay import calls
from scrubjay.commands import Command
from scrubjay.errors import InvalidInput
from scrubjay.validation import check_key

P = ParamSpec("P")


def _collected(call: Callable[Concatenate[str, P], Command]) -> Callable[Concatenate[CollectedWrites, P], None]:
    """The method of a transaction that adds the command of a call."""

    def add(self: CollectedWrites, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.add(call(self.namespace, *args, **kwargs))

    update_wrapper(add, call)  # with its arguments, its namespace in the place of self
    return add


class CollectedWrites:
    """The writes of the block of a transaction, which run together when it ends.

    The verbs have the arguments of Memory, without `once`, and return nothing: `results` has what they return, after
    the block. Outside of the block they raise InvalidInput. A block that raises an exception runs nothing.
    A transaction has one block: another one needs another call of `memory.transaction()`.
    """

    results: Sequence[Any] | None = None
    """What the verbs returned, one result for each call in the block, a note as its number. None until the block has
    ended, and when the transaction is queued."""

    def __init__(self, namespace: str, execute: Callable[[Command], Any], once: str | None) -> None:
        self.namespace = namespace
        self._execute = execute
        self._once = None if once is None else check_key(once, "once id")
        self._is_open = self._is_used = False
        self.commands: list[Command] = []

    set = _collected(calls.set_call)
    delete = _collected(calls.delete_call)
    update = _collected(calls.update_call)
    merge = _collected(calls.merge_call)
    touch = _collected(calls.touch_call)
    incr = _collected(calls.incr_call)
    clear = _collected(calls.clear_call)
    append = _collected(calls.append_call)
    pop = _collected(calls.pop_call)
    remember = _collected(calls.remember_call)
    forget = _collected(calls.forget_call)
    forget_session = _collected(calls.forget_session_call)

    def add(self, command: Command) -> None:
        """Add a command to those that run when the block ends.

        :raises InvalidInput: outside of the block.
        """
        if not self._is_open:
            raise InvalidInput(
                "the writes of a transaction run when its block ends, so they have to be inside of it:"
                " with memory.transaction() as t: …"
            )
        self.commands.append(command)

    def begin(self) -> Self:
        """Begin the block."""
        if self._is_used:
            raise InvalidInput("a transaction has one block; start another with memory.transaction()")
        self._is_open = self._is_used = True
        return self

    def end(self, error: type[BaseException] | None) -> None:
        """End the block, and run its writes if it has raised no error."""
        self._is_open = False
        if error is None:
            self.run(self.commands)

    def run(self, parts: Sequence[Command]) -> None:
        """Run these commands now, as one transaction.

        :raises ValueTooLarge: if they have more bytes than one call may.
        """
        self.results = self._execute(calls.transaction_call(self.namespace, parts, self._once)) if parts else []


class Transaction(CollectedWrites):
    """`with memory.transaction() as t:` runs the writes of the block together, all of them or none, when it ends."""

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(kind)
