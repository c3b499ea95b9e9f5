"""The executor that keeps a write whose response was lost from overwriting a later one.

A write that has timed out may still be on its way, and the server may run it after the next one. It carries an
idempotency key with a number in the sequence of its sender, and a server refuses a number below the last one that it
knows. So before the next write to the same namespace a higher number is sent with a command that changes nothing:
after its response the lost write either has happened or never will.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from scrubjay.commands import DELETE, Command
from scrubjay.errors import OutcomeUnknown, ScrubjayError
from scrubjay.executor import Executor
from scrubjay.store.idempotency import IdempotencyKey
from scrubjay.write_keys import pool

NO_SUCH_KEY = "scrubjay:no-such-key"
"""A key that is never stored: deleting it needs the permission to write, and changes and counts nothing."""


class LostWrites:
    """The idempotency keys of writes that raised OutcomeUnknown, by server and namespace, for the whole process."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], set[IdempotencyKey]] = {}

    def add(self, location: str, namespace: str, key: IdempotencyKey) -> None:
        self._keys.setdefault((location, namespace), set()).add(key)

    def fence(self, executor: Executor, namespace: str) -> None:
        """Return when none of the lost writes can happen any more."""
        lost = self._keys.get((executor.location, namespace), set())
        for key in tuple(lost):  # a copy: other threads add to it and remove from it
            executor.run(no_op(namespace), str(key._replace(sequence=key.sequence + 1)))
            lost.discard(key)


lost_writes = LostWrites()


def no_op(namespace: str) -> Command:
    """A write that changes nothing and counts as none."""
    return DELETE(namespace, NO_SUCH_KEY, None)


@contextlib.contextmanager
def key_of_a_write(
    location: str, namespace: str, keeps: Callable[[ScrubjayError], bool] = lambda _: False
) -> Iterator[IdempotencyKey]:
    """The idempotency key of a write that the block sends for the first time.

    If its response is lost, the write is fenced; else its sender is used again. After an error that `keeps` is true
    for, the caller goes on with the key.
    """
    key = pool.take()
    try:
        yield key
    except ScrubjayError as error:
        if keeps(error):
            raise
        if isinstance(error, OutcomeUnknown):
            lost_writes.add(location, namespace, key)
        else:
            pool.put_back(key)
        raise
    except BaseException:  # Ctrl-C loses a response, too
        lost_writes.add(location, namespace, key)
        raise
    pool.put_back(key)


class FencedExecutor(Executor):
    """Runs commands on a server, and each write after those that were lost before it."""

    results_can_be_lost = True

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.location = inner.location
        self.timeout = inner.timeout

    def run(self, command: Command, idempotency_key: str | None = None) -> Any:
        if not command.verb.writes or not command.namespace:
            return self._inner.run(command, idempotency_key)
        lost_writes.fence(self._inner, command.namespace)
        if idempotency_key is not None:  # the outbox sends it again until it has a response
            return self._inner.run(command, idempotency_key)
        with key_of_a_write(self.location, command.namespace) as key:
            return self._inner.run(command, str(key))

    def close(self) -> None:
        self._inner.close()
