"""Transactions: several writes to one namespace, all of them or none, counted as one write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scrubjay.errors import Conflict, InvalidInput
from scrubjay.exact_json import decode
from scrubjay.models import Note
from scrubjay.store.items import SLOW_CHARS
from scrubjay.store.operation import ERASE, LONG_WRITE, READ, WRITE, Context, Operation, Replay, Statements, operation
from scrubjay.store.usage import NamespaceUsage

Parts = Sequence[Operation[tuple[Any, NamespaceUsage]]]

SLOW_PARTS = 100
"""Writes that a server runs together on its event loop, which takes 1 to 2 ms; more go to a thread."""


def run_all(namespace: str, parts: Parts) -> Operation[tuple[list[Any], NamespaceUsage]]:
    """Run write operations on a namespace in one transaction.

    It returns their results in order as JSON values: a note is its number, and popped items are values. Together they
    count as one write of the daily quota, if one of them counts at all.
    """
    modes = {part.mode for part in parts}
    is_short = modes <= {WRITE} and len(parts) <= SLOW_PARTS and sum(part.characters for part in parts) <= SLOW_CHARS
    mode = ERASE if ERASE in modes else WRITE if is_short else LONG_WRITE
    return Operation("transaction", mode, _run_all, (namespace, parts), _REPLAY)


def _run_all(context: Context, namespace: str, parts: Parts) -> Statements[tuple[list[Any], NamespaceUsage]]:
    usage = NamespaceUsage(context, namespace)
    results: list[Any] = []
    for number, part in enumerate(parts):
        try:
            result, usage = yield from part.start(context._replace(verb=part.verb))
        except (Conflict, InvalidInput) as error:
            raise error.within(f"commands[{number}]")  # noqa: B904 - it is the same error
        results.append(_to_json(result))
        if usage.has_counted_writes:
            context = context._replace(counts_writes=False)
    return results, usage


def _to_json(result: Any) -> Any:
    """A result of an operation, which has values as JSON text, as a JSON value."""
    if isinstance(result, Note):
        return result.cursor
    return [decode(text) for text in result] if isinstance(result, list) else result


def _without_items(results: Sequence[Any]) -> list[Any]:
    """What is stored to answer a repeated transaction: popped items are content, and would outlive their deletion."""
    return [None if isinstance(result, list) else result for result in results]


@operation("transaction", READ)
def _results(_context: Context, _namespace: str, results: list[Any]) -> Statements[list[Any]]:
    yield from ()
    return results


_REPLAY = Replay(
    content=lambda _namespace, parts: [(part.verb, part.content) for part in parts],
    summarize=_without_items,
    reload=_results,
)
