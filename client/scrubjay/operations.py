"""The store operations of commands."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from scrubjay.commands import REMEMBER, TRANSACTION, Command, Verb
from scrubjay.store.operation import Operation


@cache
def operation_of(verb: Verb) -> Callable[..., Operation[Any]]:
    """The operation of a verb, imported when it is first run, so that `import scrubjay` loads only what it needs."""
    module, _, name = verb.operation.partition(".")
    made: Callable[..., Operation[Any]] = getattr(import_module(f"scrubjay.store.{module}"), name)
    return made


def operation_for(command: Command) -> Operation[Any]:
    """The operation of a command; that of a transaction is made of the operations of its commands."""
    verb, namespace, arguments, _ = command
    if verb is TRANSACTION:
        parts = [operation_for(part._replace(namespace=namespace)) for part in command.argument("commands")]
        return operation_of(verb)(namespace, parts)
    return operation_of(verb)(namespace, *arguments) if namespace else operation_of(verb)(*arguments)


def notes_stored(command: Command, result: Any) -> list[str]:
    """The numbers of the notes that a command has stored."""
    if command.verb is REMEMBER:
        return [result.cursor]
    if command.verb is not TRANSACTION:
        return []
    parts = zip(command.argument("commands"), result, strict=True)
    return [number for part, number in parts if part.verb is REMEMBER]
