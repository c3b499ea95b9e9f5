"""The store in one SQLite file: embedded mode, and the writer under the server."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Callable
from typing import Any, TypeVar

from scrubjay.errors import InvalidInput, QuotaExceeded, ScrubjayError
from scrubjay.store import changes, expiry
from scrubjay.store.encryption import NO_ENCRYPTION, Cipher, KeyEnvelope, open_envelope
from scrubjay.store.expiry import AUDIT_DAYS, AUDIT_ROWS, SWEEP_SECONDS
from scrubjay.store.operation import NO_QUOTA, READ, WRITES, Context, Operation, Quota
from scrubjay.store.sqlite import maintenance
from scrubjay.store.sqlite.connection import BUSY_SECONDS, Connections, run_statements
from scrubjay.store.sqlite.listener import Listener
from scrubjay.store.sqlite.queries import QUERIES
from scrubjay.store.sqlite.writer import Writer

T = TypeVar("T")


class SqliteStore(Connections):
    """A database file. Safe to use from many threads and processes at once.

    Arguments:
        path: the file, which is created if it does not exist.
        durability: "full": an acknowledged write is on disk; "fast": a power cut may lose the last writes.
        quota: the limits of namespaces that have no limits of their own.
        busy_seconds: how long a write waits for the lock of another process.
        clock: seconds since 1970, for tests.
        secret: encrypts values; the file must have been created or encrypted with it.
        audit_days, audit_rows: how much of the log of changes is kept.

    Raises InvalidInput for a wrong secret or argument, and Unavailable when the file cannot be used.

    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: str = "full",
        quota: Quota = NO_QUOTA,
        busy_seconds: float = BUSY_SECONDS,
        clock: Callable[[], float] = time.time,
        secret: str | None = None,
        audit_days: int = AUDIT_DAYS,
        audit_rows: int = AUDIT_ROWS,
    ) -> None:
        self.quota = quota
        self._clock = clock
        self._secret: str | None = secret or None
        self._cipher = NO_ENCRYPTION
        self._audit = (audit_days, audit_rows)
        self._records_changes = audit_rows > 0
        self._swept_at = -math.inf  # the first write sweeps: a program that runs for less than a minute does, too
        super().__init__(path, durability=durability, busy_seconds=busy_seconds)
        try:
            self.open_file()
        except BaseException:
            self.close()
            raise
        self.register_at_fork()

    def reset(self) -> None:
        super().reset()
        self._checkpointer = maintenance.Checkpointer(self)
        self.writer = Writer(self, self.context, self._checkpointer.run)
        self.listener = Listener(self.run)

    def locks(self) -> list[Any]:
        return [self.writer.lock, *super().locks()]

    def context(self, operation: Operation[Any]) -> Context:
        """What an operation knows while it runs in this store."""
        now, actor = int(self._clock() * 1000), operation.actor
        quota = self.quota if actor.quota is None else actor.quota
        return Context(now, quota, self._cipher, self._records_changes, operation.verb, actor)

    @property
    def cipher(self) -> Cipher:
        return self._cipher

    def run(self, operation: Operation[T], max_rows: float = math.inf) -> T:
        """Run an operation in a transaction of its mode, and return its result.

        With `max_rows`, a read that has a slow statement raises WouldBlock.
        """
        mode = operation.mode
        if mode is not READ and mode in WRITES:
            return self._write(operation)
        try:
            connection = self._idle.pop()  # take(), inlined: this is the path of every get
        except IndexError:
            connection = self.connect()
        try:
            if not self._identity.was_file_recently():
                self.refuse_lost_file(connection)
            if mode is READ:
                return run_statements(connection, operation, self.context(operation), max_rows)
            connection.execute("BEGIN")
            try:
                return run_statements(connection, operation, self.context(operation))
            finally:
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self.explained(error) from error
        finally:
            self._idle.append(connection)  # put_back(), inlined
            if self.is_closed or self._is_forking:
                self.close_idle()

    def _write(self, operation: Operation[T]) -> T:
        job = self.writer.run(operation)
        if self._clock() - self._swept_at > SWEEP_SECONDS:
            with contextlib.suppress(ScrubjayError):  # the next sweep does it; this write is done
                self.sweep(checkpoints=self._swept_at > -math.inf)
        if isinstance(job.error, QuotaExceeded):
            refusal = changes.Refusal(operation.verb, operation.namespace, operation.key, job.error.code)
            with contextlib.suppress(ScrubjayError):  # the caller gets the QuotaExceeded anyway
                self.run(changes.refuse(refusal))
        return job.outcome()

    def prepare(self, connection: sqlite3.Connection) -> None:
        self._cipher = self._open_cipher(connection)

    def _open_cipher(self, connection: sqlite3.Connection) -> Cipher:
        """The cipher of the file; a new file with a secret gets its keys now."""
        find = "SELECT salt, ciphertext FROM key_envelope"
        rows = connection.execute(find).fetchall()
        if self._secret is None or rows:
            return open_envelope(rows, self._secret)
        connection.execute("BEGIN IMMEDIATE")
        if not (rows := connection.execute(find).fetchall()):  # another process may have been faster
            if connection.execute("SELECT 1 FROM namespaces LIMIT 1").fetchall():
                raise InvalidInput(f"{self.path} holds values that are not encrypted: run `scrubjay encrypt` first")
            envelope, _ = KeyEnvelope.make(self._secret)
            connection.execute(QUERIES["insert_key_envelope"], envelope)
            rows = [envelope]
        connection.execute("COMMIT")
        return open_envelope(rows, self._secret)

    # ------------------------------------------------------------ maintenance

    def sweep(self, *, checkpoints: bool = True) -> None:
        """Remove what has expired, and empty the log if anything had, or if `checkpoints`."""
        self._swept_at = self._clock()
        removed, has_more = 0, True
        while has_more:
            count, has_more = self.run(expiry.sweep(*self._audit))
            removed += count
        if checkpoints or removed:
            connection = self.take()
            try:
                self._checkpointer.run(connection)
            finally:
                self.put_back(connection)

    def find_damage(self) -> list[str]:
        """What is wrong with the file's pages, and what to do about it."""
        return maintenance.find_damage(self)

    def find_problems(self) -> list[str]:
        """What is wrong with the file: its pages, or else the consistency of its contents."""
        from scrubjay.store import consistency  # noqa: PLC0415 - only `scrubjay doctor` needs it

        try:
            return self.find_damage() or self.run(consistency.find_problems())
        except ScrubjayError as error:
            return [str(error)]

    def compact(self) -> None:
        """Rewrite the file: smaller, and without a trace of what was erased."""
        maintenance.compact(self, self.context)

    def reencrypt(self, secret: str | None) -> None:
        """Encrypt everything with another secret, or with none, and close this store."""
        maintenance.reencrypt(self, self.context, secret)
