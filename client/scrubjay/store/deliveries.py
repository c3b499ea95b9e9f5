"""Writes that must happen once, however often they are sent.

Whoever gets no answer cannot know whether a write happened, and has to send it again. With an id of
the sender's own the second one finds what the first one came to, in the same transaction.

A client that sends many writes gives each the next number of a slot, on which it never has two under way:
then only the last of a slot needs to be kept, and its row stays warm.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from scrubjay.errors import Conflict, InvalidInput
from scrubjay.names import check_key, shown
from scrubjay.values import decode, encode

from .operation import Context, Operation, Steps
from .quotas import DAY, Account, open_account

T = TypeVar("T")

KEPT_DAYS = 7
"""How long an id is remembered after it was last used."""

HEADER = r'^"?([A-Za-z0-9_.:-]{1,128})"?(?:;seq=([0-9]{1,15}))?$'
"""How an id is written in a header."""
_FIND = "SELECT number, verb, result, used_on FROM deliveries WHERE namespace = ? AND slot = ?"
_RECORD = """INSERT OR REPLACE INTO deliveries (namespace, slot, number, verb, result, used_on)
VALUES (?, ?, ?, ?, ?, ?)"""
# Without used_on, whose index then stays as it is.
_RENUMBER = "UPDATE deliveries SET number = ?, verb = ?, result = ? WHERE namespace = ? AND slot = ?"


class Delivery(NamedTuple):
    """The id of a write: alone, or as the number of a write in its slot."""

    slot: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.slot};seq={self.number}"

    @classmethod
    def parse(cls, text: str) -> Delivery:
        """As it is written in a header: `id` or `id;seq=17`, with quotes around the id or without."""
        match = re.fullmatch(HEADER, text)
        if not match:
            raise InvalidInput(
                "Idempotency-Key is an id of up to 128 letters, digits and -_.:, or with a number: abc;seq=17,"
                f" not {shown(text)}"
            )
        return cls(match[1], int(match[2] or 0))


def once(
    operation: Operation[tuple[T, Account]],
    namespace: str,
    delivery: Delivery | None,
    keep: Callable[[T], Any] = lambda result: result,
    again: Callable[[Any], Operation[T]] | None = None,
) -> Operation[tuple[T, Account]]:
    """The operation, which does nothing a second time, and then gives what it gave the first time.

    What it gave is kept as JSON. Where that would be a second copy of what somebody may want to erase, `keep`
    says what is kept of it, and `again` finds it from there.
    """
    if delivery is None:
        return operation
    check_key(delivery.slot)
    return Operation(operation.mode, _once, (operation, namespace, delivery, keep, again))


def _once(
    context: Context,
    operation: Operation[tuple[T, Account]],
    namespace: str,
    delivery: Delivery,
    keep: Callable[[T], Any],
    again: Callable[[Any], Operation[T]] | None,
) -> Steps[tuple[T, Account]]:
    today = context.now // DAY
    rows = yield _FIND, (namespace, delivery.slot)
    if rows and rows[0][0] >= delivery.number:
        kept = _kept(delivery, operation.name, *rows[0][:3])
        result = (yield from again(kept).start(context)) if again else kept
        return result, (yield from open_account(context, namespace))
    result, account = yield from operation.start(context)
    told = (delivery.number, operation.name, _text(keep(result)))
    if rows and rows[0][3] == today:
        yield _RENUMBER, (*told, namespace, delivery.slot)
    else:
        yield _RECORD, (namespace, delivery.slot, *told, today)
    return result, account


def _text(result: Any) -> str:
    """As JSON; most are whole numbers, which need no encoder."""
    return str(result) if type(result) is int else encode(result)


def _kept(delivery: Delivery, verb: str, number: int, before: str, result: str) -> Any:
    if number != delivery.number:
        raise Conflict(f"{delivery} was followed by number {number} of its slot; nobody waits for its answer any more")
    if before != verb:
        raise Conflict(f"the id {shown(delivery.slot)} was used for {before}; give each call an id of its own")
    return decode(result)


def forget_old(context: Context, limit: int) -> Steps[bool]:
    """Remove some ids that nobody will send again; True when there may be more."""
    rows = yield (
        """DELETE FROM deliveries WHERE (namespace, slot) IN
        (SELECT namespace, slot FROM deliveries WHERE used_on < ? LIMIT ?) RETURNING 1""",
        (context.now // DAY - KEPT_DAYS, limit),
    )
    return len(rows) == limit
