"""Idempotency: writes that happen once, however often a client sends them.

A client that gets no response cannot know whether its write happened, and has to send it again. Under the same
idempotency key the second call returns the result of the first, in the same transaction. A key belongs to one call
on a namespace: the same verb, item and content, the same expected version, and a time to live or none. Another call
under it is a Conflict and changes nothing.

A sender of many writes numbers them in sequence and sends one at a time: then only its last key has to be stored.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from scrubjay.errors import Conflict, InvalidInput, repr_short
from scrubjay.exact_json import decode, encode, to_text
from scrubjay.store.operation import DAY_MS, Context, Operation, Statements
from scrubjay.store.usage import NamespaceUsage, open_namespace
from scrubjay.validation import check_key

T = TypeVar("T")

HEADER = r'^"?([A-Za-z0-9_.:-]{1,128})"?(?:;seq=([0-9]{1,15}))?$'
"""The Idempotency-Key header."""
DIGEST_BYTES = 8
"""Bytes of the digest of a call: another call under a key is taken for the same one once in 2**64."""


class IdempotencyKey(NamedTuple):
    """The id of a write: alone, or with its number in the sequence of a sender."""

    sender: str
    sequence: int = 0

    def __str__(self) -> str:
        return f"{self.sender};seq={self.sequence}"

    @classmethod
    def parse(cls, text: str) -> IdempotencyKey:
        """Parse a header: `id` or `id;seq=17`, with quotes around the id or without."""
        match = re.fullmatch(HEADER, text)
        if not match:
            raise InvalidInput(
                "Idempotency-Key is an id of up to 128 letters, digits and -_.:, or with a number: abc;seq=17,"
                f" not {repr_short(text)}"
            )
        return cls(match[1], int(match[2] or 0))


class Call(NamedTuple):
    """The call that an idempotency key belongs to."""

    verb: str
    key: str
    """Empty if the call names none, like an update or a note."""
    digest: str
    """Of verb and arguments; empty when it is not known, because the file was encrypted with another key since."""

    def __str__(self) -> str:
        return f"{self.verb} of {repr_short(self.key)}" if self.key else self.verb


def run_once(
    operation: Operation[tuple[T, NamespaceUsage]], key: IdempotencyKey | None
) -> Operation[tuple[T, NamespaceUsage]]:
    """The operation, which does nothing if it has run under this key before, and returns its first result."""
    if key is None:
        return operation
    check_key(key.sender)
    once = Operation(operation.verb, operation.mode, _run_once, (operation.namespace, operation.key, operation, key))
    once.sender = key.sender
    return once


def _run_once(
    context: Context, namespace: str, item: str, operation: Operation[tuple[T, NamespaceUsage]], key: IdempotencyKey
) -> Statements[tuple[T, NamespaceUsage]]:
    today = context.now // DAY_MS
    call = Call(operation.verb, item, _digest(context, (operation.verb, operation.content)))
    rows = yield "find_idempotency_key", (namespace, key.sender)
    replay = operation.replay
    if rows and rows[0][1] >= key.sequence:
        stored = _stored_result(key, call, *rows[0][1:])
        reload = replay and replay.reload
        result = (yield from reload(namespace, stored).start(context)) if reload else stored
        return result, (yield from open_namespace(context, namespace))
    result, usage = yield from operation.start(context)
    row = (key.sequence, *call, _to_json(replay.summarize(result) if replay else result))
    if rows and rows[0][0] == today:
        yield "advance_idempotency_key", (*row, namespace, key.sender)
    else:
        yield "save_idempotency_key", (namespace, key.sender, today, *row)
    return result, usage


def _digest(context: Context, call: tuple[Any, ...]) -> str:
    """Keyed in an encrypted database, so that it tells nothing without the secret."""
    digest = blake2b(to_text(call).encode(), digest_size=DIGEST_BYTES).digest()
    return context.cipher.keyed_digest(digest).hex()


def _to_json(result: Any) -> str:
    """Most results are whole numbers, which need no encoder."""
    return str(result) if type(result) is int else encode(result)


def _stored_result(
    given: IdempotencyKey, call: Call, sequence: int, verb: str, key: str, digest: str, result: str
) -> Any:
    before = Call(verb, key, digest or call.digest)
    if sequence != given.sequence:
        raise Conflict(
            f"the idempotency key {given} is older than the last of its sender, {sequence}; use the next one"
        )
    if (before.verb, before.digest) != (call.verb, call.digest):
        other = " with other arguments" if before[:2] == call[:2] else ""
        raise Conflict(
            f"the idempotency key {repr_short(given.sender)} was used for {before}, and this is {call}{other};"
            " give each call its own key"
        )
    return decode(result)
