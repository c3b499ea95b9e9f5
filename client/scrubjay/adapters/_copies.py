"""Unattended copies of memories: handles on the same namespaces that queue what cannot be stored at once."""

from __future__ import annotations

import logging
import threading
from typing import Any, cast
from weakref import WeakValueDictionary

from scrubjay.errors import Forbidden, Unauthenticated
from scrubjay.memory import Memory, memory_on
from scrubjay.models import Message
from scrubjay.opening import open_executor
from scrubjay.outbox.executor import OutboxExecutor

log = logging.getLogger("scrubjay")


def unattended_copy(memory: Memory) -> Memory:
    """Another handle on the same namespace, for an adapter; see `unattended` of OutboxExecutor."""
    settings = memory._settings
    return memory_on(open_executor(settings, strict=False, unattended=True), memory.namespace, settings)


def queued_copy(copy: Memory) -> Memory:
    """A handle that reads what is queued on this machine for the namespace of an unattended copy, and nothing else."""
    return memory_on(_outbox_of(copy).queued_alone(), copy.namespace, copy._settings)


def _outbox_of(copy: Memory) -> OutboxExecutor:
    return cast(OutboxExecutor, copy._executor)


def whole_conversation(copy: Memory, key: str) -> list[Message]:
    """All messages of a conversation, oldest first; raises what the memory raises."""
    return _outbox_of(copy).whole_conversation(copy.namespace, key)


class _Copies:
    """The unattended copies of this process: all agents on a namespace share one, and so its connections."""

    def __init__(self) -> None:
        self._open: WeakValueDictionary[tuple[Any, ...], Memory] = WeakValueDictionary()
        self._accepted: set[int] = set()
        """Hashes of the keys of memories that have accepted writes in this process."""
        self._lock = threading.Lock()

    def copy_of(self, memory: Memory) -> Memory:
        """The copy of a memory; raises Unauthenticated or Forbidden if its api key may not write there.

        A program that makes its agents for each request goes on when the key is revoked: its messages are queued.
        """
        key = (memory.namespace, memory.location, memory._settings)
        with self._lock:
            copy = self._open.get(key)
            if copy is None:
                copy = unattended_copy(memory)
                self._check_access(copy, hash(key))
                self._open[key] = copy
            return copy

    def _check_access(self, copy: Memory, key: int) -> None:
        try:
            if _outbox_of(copy).check_access(copy.namespace):
                self._accepted.add(key)
        except (Unauthenticated, Forbidden) as error:
            if key not in self._accepted:
                raise
            log.error(  # noqa: TRY400 - the message has the cause
                "%r no longer accepts the api key: %s. Messages are queued on this machine until it does", copy, error
            )


copies = _Copies()
