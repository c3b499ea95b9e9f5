"""The store in a PostgreSQL database: for a program that uses it directly, and under the server."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

from scrubjay.errors import InvalidInput, QuotaExceeded, ScrubjayError
from scrubjay.store import changes, expiry
from scrubjay.store.encryption import NO_ENCRYPTION, Cipher, KeyEnvelope, open_envelope
from scrubjay.store.expiry import AUDIT_DAYS, AUDIT_ROWS, SWEEP_SECONDS
from scrubjay.store.operation import NO_QUOTA, WRITES, Context, Operation, Quota
from scrubjay.store.postgres.cipher import as_text
from scrubjay.store.postgres.connection import BUSY_SECONDS, Connections, is_temporary, lock_schema
from scrubjay.store.postgres.listener import Listener
from scrubjay.store.postgres.queries import text_of
from scrubjay.store.postgres.session import Session
from scrubjay.store.postgres.transaction import Reading
from scrubjay.store.postgres.writer import Writer

T = TypeVar("T")


class PostgresStore(Connections):
    """A schema of a PostgreSQL database. Safe to use from many threads, processes and machines at once.

    Arguments:
        url: `postgresql://user@host,host/database`; the schema is "scrubjay", or that of `?schema=`.
        durability: "full": as the database is set to; "fast": a crash of the database may lose the last writes.
        quota: the limits of namespaces that have no limits of their own.
        busy_seconds: how long an operation waits for a lock, and for a database that restarts or fails over.
        clock: seconds since 1970, for tests.
        secret: encrypts values; the schema must have been created with it.
        audit_days, audit_rows: how much of the log of changes is kept.

    Raises InvalidInput for a wrong secret or argument, and Unavailable when the database cannot be used.

    """

    def __init__(
        self,
        url: str,
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
        self._cipher: Cipher = NO_ENCRYPTION
        self._audit = (audit_days, audit_rows)
        self._swept_at = -math.inf  # the first write sweeps: a program that runs for less than a minute does, too
        super().__init__(url, durability=durability, busy_seconds=busy_seconds)
        try:
            self.open_database()
        except BaseException:
            self.close()
            raise
        self.register_at_fork()

    def reset(self) -> None:
        super().reset()
        self.listener = Listener(self)
        self.writer = Writer(self, self.context, self.listener)

    def locks(self) -> list[Any]:
        return [*self.writer.locks(), *super().locks()]

    def close(self) -> None:
        self.listener.close()
        super().close()

    def before_fork(self) -> None:
        self.listener.close()
        super().before_fork()

    def after_fork(self, *, in_child: bool) -> None:
        super().after_fork(in_child=in_child)
        if not in_child:
            self.listener.reopen()

    def context(self, operation: Operation[Any]) -> Context:
        """What an operation knows while it runs in this store."""
        now, actor = int(self._clock() * 1000), operation.actor
        quota = self.quota if actor.quota is None else actor.quota
        return Context(now, quota, self._cipher, self._audit[1] > 0, operation.verb, actor, numbers_by_namespace=True)

    only_reads = False
    """A database that cannot be written is not opened."""

    @property
    def cipher(self) -> Cipher:
        return self._cipher

    def run(self, operation: Operation[T]) -> T:
        """Run an operation in a transaction of its mode, and return its result."""
        if operation.mode not in WRITES:
            return self.read(operation)
        error = None
        try:
            return self.write(operation)
        except QuotaExceeded as refused:
            error = refused
            raise
        finally:
            self._after_write(operation, error)

    def write(self, operation: Operation[T]) -> T:
        """Run a write, and do nothing else."""
        return self.writer.run(operation).outcome()

    def _after_write(self, operation: Operation[Any], error: QuotaExceeded | None) -> None:
        """Sweep, if it is time, and log a refusal; the caller gets the outcome of the write whatever happens here."""
        with contextlib.suppress(ScrubjayError):
            if self._clock() - self._swept_at > SWEEP_SECONDS:
                self.sweep()
        if error is not None:
            refusal = changes.Refusal(operation.verb, operation.namespace, operation.key, error.code)
            with contextlib.suppress(ScrubjayError):
                self.write(changes.refuse(refusal))

    def read(self, operation: Operation[T], seconds: float | None = None) -> T:
        """Run an operation that reads; it is started again if its connection is lost before its first rows."""
        for _ in self.retry_while_busy(seconds):
            session, reading = None, Reading(operation, self.context(operation))
            try:
                session = self.take()
                return session.run_blocking(reading.run(session))
            except psycopg.Error as error:
                if reading.has_rows or not is_temporary(error):
                    raise self.explained(error) from error
                self.failed(error)
            finally:
                if session is not None:
                    self.end(session)
        raise AssertionError  # retry_while_busy() ends with an error

    # ------------------------------------------------------------ encryption

    def prepare(self, connection: Session) -> None:
        self._cipher = as_text(self._open_cipher(connection))

    def _open_cipher(self, connection: Session) -> Cipher:
        """The cipher of the schema; a new schema with a secret gets its keys now."""
        find = "SELECT salt, ciphertext FROM key_envelope"
        rows = connection.execute(find).fetchall()
        if self._secret is None or rows:
            return open_envelope(rows, self._secret)
        with connection.transaction():
            lock_schema(connection)
            if not (rows := connection.execute(find).fetchall()):  # another process may have been faster
                if connection.execute("SELECT 1 FROM namespaces LIMIT 1").fetchall():
                    raise InvalidInput(
                        f"{self.name} holds values that are not encrypted: export them, and import them into another"
                        " schema (?schema=NAME) that is opened with the secret from the start"
                    )
                envelope, _ = KeyEnvelope.make(self._secret)
                connection.execute(text_of("insert_key_envelope").encode(), envelope)
                rows = [envelope]
        return open_envelope(rows, self._secret)

    # ------------------------------------------------------------ maintenance

    def sweep(self) -> None:
        """Remove what has expired."""
        self._swept_at = self._clock()
        has_more = True
        while has_more:
            _, has_more = self.write(expiry.sweep(*self._audit))

    def find_problems(self) -> list[str]:
        """What is wrong with the contents; PostgreSQL checks its own pages."""
        from scrubjay.store import consistency  # noqa: PLC0415 - only `scrubjay doctor` needs it

        try:
            return self.run(consistency.find_problems())
        except ScrubjayError as error:
            return [str(error)]
