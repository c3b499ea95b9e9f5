"""Idempotency keys for writes that are sent for the first time."""

from __future__ import annotations

import os

from scrubjay.fork_safety import ForkSafe
from scrubjay.store.idempotency import IdempotencyKey


class KeyPool(ForkSafe):
    """Sender ids, used like connections: each has one write under way at a time, numbered in sequence, so that the
    server keeps one row for each sender and not one for each write.
    """

    def __init__(self) -> None:
        self.reset()
        self.register_at_fork()

    def reset(self) -> None:
        self._idle: list[IdempotencyKey] = []

    def take(self) -> IdempotencyKey:
        """The next key of an idle sender, or the first of a new one."""
        try:
            sender, sequence = self._idle.pop()
        except IndexError:
            return new_key()
        return IdempotencyKey(sender, sequence + 1)

    def put_back(self, key: IdempotencyKey) -> None:
        """Call this after a response. Without one the sender is not used again: its last key asks what happened."""
        self._idle.append(key)


def new_key() -> IdempotencyKey:
    """The first key of a new sender."""
    return IdempotencyKey(os.urandom(12).hex(), 1)


pool = KeyPool()
