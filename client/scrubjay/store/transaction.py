"""Transactions: several writes to one namespace, all of them or none, counted as one write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scrubjay.models import Note
from scrubjay.store.operation import ERASE, LONG_WRITE, READ, WRITE, Context, Operation, Replay, Statements, operation
from scrubjay.store.usage import NamespaceUsage, open_namespace

Parts = Sequence[Operation[tuple[Any, NamespaceUsage]]]


def run_all(namespace: str, parts: Parts) -> Operation[tuple[list[Any], NamespaceUsage]]:
    """Run write operations on a namespace in one transaction.

    It returns their results in order, a note as its number. Together they count as one write of the daily quota;
    deletions and new expiries alone are not counted, as everywhere.
    """
    modes = {part.mode for part in parts}
    mode = ERASE if ERASE in modes else WRITE if modes <= {WRITE} else LONG_WRITE
    return Operation("transaction", mode, _run_all, (namespace, parts), _REPLAY)


def _run_all(context: Context, namespace: str, parts: Parts) -> Statements[tuple[list[Any], NamespaceUsage]]:
    usage = yield from open_namespace(context, namespace)
    if any(map(_is_counted, parts)):
        usage.charge(writes=1)
        yield from usage.save()
    results: list[Any] = []
    for part in parts:
        result, usage = yield from part.start(context._replace(counts_writes=False, verb=part.verb))
        results.append(result.cursor if isinstance(result, Note) else result)
    return results, usage


def _is_counted(part: Operation[Any]) -> bool:
    if part.verb == "update":
        texts, *_ = part.content
        return any(text is not None for text in texts.values())
    return part.verb not in ("delete", "touch")


@operation("transaction", READ)
def _results(_context: Context, _namespace: str, results: list[Any]) -> Statements[list[Any]]:
    yield from ()
    return results


_REPLAY = Replay(
    summarize=lambda results: results,
    reload=_results,
    content=lambda _namespace, parts: [(part.verb, part.content) for part in parts],
)
