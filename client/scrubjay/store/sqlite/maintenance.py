"""Maintenance of a SQLite file: checkpoints, integrity, compaction and re-encryption."""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

from scrubjay.errors import ScrubjayError, Unavailable
from scrubjay.store import erasable
from scrubjay.store.encryption import NO_ENCRYPTION, KeyEnvelope
from scrubjay.store.operation import Context, Operation
from scrubjay.store.sqlite.connection import BUSY_SECONDS, Connections, is_busy, roll_back, run_statements

ContextOf = Callable[[Operation[Any]], Context]

MAX_MESSAGES = 10
"""Messages of SQLite's integrity check that are shown: a damaged file may have one for each page."""
CHECKPOINT_MS = 100
"""Milliseconds that a checkpoint after an erasure waits for readers of the log."""
RETRY_SECONDS = 1.0
"""Seconds after which a checkpoint is tried again in the background."""


class Checkpointer:
    """Empties the write-ahead log after an erasure, in a background thread if a reader needs the log longer."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._is_due = False

    def run(self, connection: sqlite3.Connection) -> None:
        if self._connections.checkpoint(connection, 0 if self._is_due else CHECKPOINT_MS) or self._is_due:
            return
        self._is_due = True
        threading.Thread(target=self._retry, name="scrubjay-log", daemon=True).start()

    def _retry(self) -> None:
        is_empty = False
        while not is_empty and not self._connections.is_closed:
            time.sleep(RETRY_SECONDS)
            with contextlib.suppress(ScrubjayError):  # the store may have been closed just now
                connection = self._connections.take()
                try:
                    is_empty = self._connections.checkpoint(connection)
                finally:
                    self._connections.put_back(connection)
        self._is_due = False


def find_damage(connections: Connections) -> list[str]:
    """What is wrong with the file's pages, and what to do about it."""
    try:
        found = check_pages(connections)
    except sqlite3.Error as error:
        return [str(connections.explained(error))]
    if not found:
        return []
    return [*found, f"save what can be read: scrubjay recover {shlex.quote(str(connections.path))}"]


def check_pages(connections: Connections) -> list[str]:
    """What SQLite finds wrong with the file's pages; raises sqlite3.Error if it cannot read them."""
    connection = connections.take()
    try:
        texts = [row[0] for row in connection.execute(f"PRAGMA integrity_check({MAX_MESSAGES})").fetchall()]
    finally:
        connections.put_back(connection)
    if texts == ["ok"]:
        return []
    found = [line for text in texts for line in text.splitlines() if not line.startswith("***")]
    return found[:MAX_MESSAGES]


def compact(connections: Connections, context_of: ContextOf) -> None:
    """Rewrite the file: smaller, and without a trace of what was erased.

    secure_delete overwrites deleted rows, but when SQLite rebuilds a page it may leave a copy of a row between the
    cells of the old one; except for erasable blobs, only this removes it.
    """
    connection = connections.connect(busy_seconds=BUSY_SECONDS)  # a server's own timeout is too short for this
    try:
        connection.execute("BEGIN IMMEDIATE")
        _run(connection, erasable.rebuild(), context_of)
        connection.execute("COMMIT")
        connection.execute("VACUUM")
        is_blocked = _is_log_in_use(connection)
    except sqlite3.Error as error:
        raise connections.explained(error) from error
    finally:
        roll_back(connection)
        connections.put_back(connection)
    if is_blocked:
        raise Unavailable(
            f"another process has been reading {connections.path} for {BUSY_SECONDS:g} s, so old pages remain in its"
            " log; run `scrubjay compact`"
        )


def _is_log_in_use(connection: sqlite3.Connection) -> bool:
    """Empty the log; True if that has failed for BUSY_SECONDS. For another checkpoint SQLite itself does not wait."""
    give_up_at = time.monotonic() + BUSY_SECONDS
    while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() > give_up_at:
            return True
        time.sleep(0.05)
    return False


def reencrypt(connections: Connections, context_of: ContextOf, secret: str | None) -> None:
    """Encrypt everything with another secret, or with none, and close the connections.

    No other process may have the file open: it would continue with the old keys. SQLite leaves WAL mode only for the
    one process that has the file open, and with locking_mode no other can open it until this connection closes.
    """
    from scrubjay.store.reencrypt import reencrypt as encrypt_all  # noqa: PLC0415 - only this command needs notes

    envelope, cipher = KeyEnvelope.make(secret) if secret else (None, NO_ENCRYPTION)
    connections.close_idle()
    connection = connections.connect()
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("BEGIN EXCLUSIVE")
        _run(connection, encrypt_all(envelope, cipher), context_of)
        _run(connection, erasable.rebuild(), context_of)
        connection.execute("COMMIT")
        connection.execute("VACUUM")  # free pages still have the old data
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.Error as error:
        if is_busy(error):
            raise Unavailable(
                f"{connections.path} is open in another process: stop the server and all programs that use it, then"
                " try again"
            ) from error
        raise connections.explained(error) from error
    finally:
        roll_back(connection)
        connections.discard(connection)
        connections.close()


def _run(connection: sqlite3.Connection, operation: Operation[None], context_of: ContextOf) -> None:
    run_statements(connection, operation, context_of(operation))
