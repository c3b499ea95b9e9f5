"""The pool of a store's connections, whichever engine it has: last in, first out, and none open during a fork."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Generic, TypeVar

from scrubjay.errors import Unavailable
from scrubjay.fork_safety import ForkSafe
from scrubjay.version import __version__

C = TypeVar("C")

FORK_SECONDS = 5.0
"""Seconds that a fork waits for calls in other threads to end."""
MAX_WATCHER_CONNECTIONS = 4
"""Connections that all watchers of a store use together: many wake at once, and each would open one."""


def unknown_format(name: object, version: int, known: int) -> Unavailable:
    """The error for a database whose format has a higher number than this program knows."""
    return Unavailable(
        f"{name} has format {version}, and Scrubjay {__version__} knows {known}: a newer Scrubjay wrote it, or a build"
        " from before the first release; upgrade with: pip install -U scrubjay, or `scrubjay export` its namespaces"
        " with the Scrubjay that wrote it, and import them here"
    )


class ConnectionPool(ForkSafe, Generic[C]):
    """Idle connections, and what happens to them when the process forks."""

    is_closed = False

    def reset(self) -> None:
        self._idle: list[C] = []
        self._opened: set[C] = set()
        self._opening = threading.RLock()  # held while a connection is added, and during a fork
        self._is_forking = False
        self.watcher_turns = threading.BoundedSemaphore(MAX_WATCHER_CONNECTIONS)

    def connect(self) -> C:
        """A new connection, which has to be added to `_opened`."""
        raise NotImplementedError

    def discard(self, connection: C) -> None:
        """Close a connection that is not put back."""
        connection.close()  # type: ignore[attr-defined]
        self._opened.discard(connection)

    def take(self) -> C:
        """A connection for the caller alone, to be passed to `put_back`."""
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect()

    def put_back(self, connection: C) -> None:
        """Keep a connection for the next caller."""
        self._idle.append(connection)
        if self.is_closed or self._is_forking:
            self.close_idle()

    def close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self.discard(self._idle.pop())

    def close(self) -> None:
        self.is_closed = True
        self.close_idle()

    def locks(self) -> list[Any]:
        """The locks that a fork holds, in the order in which a call takes them."""
        return [self._opening]

    def before_fork(self) -> None:
        """Close every connection, and wait for those in use: a child must not inherit one.

        It would end the session of a connection to a server by closing its copy. And SQLite's locks belong to a
        process, while a fork copies its tables of them: a child that opens the file while it inherits a connection
        believes that it has locks which it has not, and another process deletes its log.
        """
        give_up_at = time.monotonic() + FORK_SECONDS
        self._fork_locks = [lock for lock in self.locks() if lock.acquire(timeout=FORK_SECONDS)]
        self._is_forking = True
        self.close_idle()
        while self._opened and time.monotonic() < give_up_at:
            time.sleep(0.001)

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self.reset()
            return
        self._is_forking = False
        for lock in self._fork_locks:
            lock.release()
