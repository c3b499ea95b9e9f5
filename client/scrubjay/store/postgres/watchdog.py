"""The thread that finds out when a primary was replaced that does not answer any more.

A PostgreSQL that is frozen, or whose disk hangs, ends no connection: its system still acknowledges packets, and an
operation would never end. While connections wait for an answer, this thread opens another one, which finds
the new primary; that cuts the connections to the old one (`Connections.connect`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from psycopg.pq import TransactionStatus

from scrubjay.store.postgres.session import Session

CHECK_SECONDS = 3.0
"""Seconds between two looks at the connections. One that waits for an answer at both may be busy, or stuck; looking for
another primary costs one connection."""


class Watchdog:
    """A thread for the open connections of a process, and a function that looks for another primary."""

    def __init__(self, opened: Callable[[], list[Session]], find_primary: Callable[[], object]) -> None:
        self._opened = opened
        self._find_primary = find_primary
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if it does not run."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="scrubjay-watchdog", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        waited = set[Session]()
        while not self._closed.wait(CHECK_SECONDS):
            waiting = {connection for connection in self._opened() if _is_waiting(connection)}
            if waiting & waited:
                self._find_primary()
            waited = waiting


def _is_waiting(connection: Session) -> bool:
    """Whether a thread or a coroutine waits for an answer on a connection."""
    return connection.is_waiting or connection.pgconn.transaction_status == TransactionStatus.ACTIVE
