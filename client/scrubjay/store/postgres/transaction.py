"""A transaction on PostgreSQL, with the locks that make its writes the only ones to their namespaces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeVar

import psycopg

from scrubjay.store.operation import Context, ExecuteMany, Operation, Rows, Statement
from scrubjay.store.postgres.queries import locked_by, text_of

T = TypeVar("T")

_END_IDLE = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = $1 AND backend_xid = $2::text::xid8::xid AND wait_event = 'ClientRead'"""


class Transaction:
    """A write transaction.

    A namespace is locked by an advisory lock on its name, before anything of it is read: a row lock would need a row,
    which a namespace has only when something was written to it, and a query that locks and joins sees old rows of the
    other table. Each statement sees what was committed when it begins (READ COMMITTED), and so all that the last owner
    of the lock has written.
    """

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self.connection = connection
        self._pid = connection.info.backend_pid
        self._schema = schema
        self._locked: set[str] = set()
        self.has_written = False
        self.changed: set[str] = set()
        """The namespaces that have new changes."""
        self.id = ""
        """The id by which PostgreSQL can be asked whether it was committed."""
        self._pending: list[Statement] = []
        """Statements without rows, which are sent together with the next one that has some, in one round trip."""

    def begin(self, namespace: str) -> None:
        """BEGIN, and lock a namespace, in one round trip."""
        lock = f"pg_advisory_xact_lock({self._lock_of(namespace)}), " if namespace else ""
        cursor = self.connection.execute(f"BEGIN; SELECT {lock}pg_current_xact_id()::text".encode(), prepare=False)
        cursor.nextset()
        self.id = (cursor.fetchone() or ("",))[-1]
        self._locked.add(namespace)
        if not namespace:
            self._locked.clear()

    def _lock_of(self, namespace: str) -> int:
        digest = blake2b(f"{self._schema}\0{namespace}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, signed=True)

    def run(self, operation: Operation[T], context: Context) -> T:
        """Run the statements of an operation."""
        statements = operation.start(context)
        try:
            statement: Statement = next(statements)
            while True:
                statement = statements.send(self._execute(statement))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def _execute(self, statement: Statement) -> Rows:
        query, params = statement
        rows: Sequence[Sequence[Any]] = params if type(statement) is ExecuteMany else (params,)
        for namespace in sorted(locked_by(query, rows) - self._locked):
            self.connection.execute(f"SELECT pg_advisory_xact_lock({self._lock_of(namespace)})".encode(), prepare=False)
            self._locked.add(namespace)
        if query == "append_change":
            self.changed |= {row[3] for row in rows}
        text = text_of(query)
        if not text:
            return []
        self.has_written = self.has_written or not text.startswith("SELECT")
        if not has_rows(text):
            self._pending.append(statement)
            return []
        with self._sending_pending():
            return execute(self.connection, statement)

    def commit(self) -> None:
        """COMMIT, with the statements that were not sent yet."""
        with self._sending_pending():
            self.connection.execute("COMMIT", prepare=False)

    def status_on(self, connection: psycopg.Connection[Any]) -> str:
        """What became of it, asked on another connection: "committed", "aborted" or "in progress".

        PostgreSQL may not have noticed yet that its connection was lost. If it waits for the client it is ended, not
        if the COMMIT has arrived and waits for a standby.
        """
        connection.execute(_END_IDLE, (self._pid, self.id))
        (status,) = connection.execute("SELECT pg_xact_status($1::text::xid8)", (self.id,)).fetchone() or ("",)
        return str(status)

    @contextlib.contextmanager
    def _sending_pending(self) -> Iterator[None]:
        """Send the statements that wait before those of the block, without waiting for the answer to each."""
        pending, self._pending = self._pending, []
        if not pending:
            yield
            return
        with self.connection.pipeline():
            for statement in pending:
                execute(self.connection, statement)
            yield


def execute(connection: psycopg.Connection[Any], statement: Statement) -> Rows:
    """Execute one statement, and return its rows."""
    query, params = statement
    text = text_of(query)
    if not text:
        return []
    if type(statement) is ExecuteMany:
        if params:
            connection.cursor().executemany(text.encode(), params)
        return []
    cursor = connection.execute(text.encode(), params)
    return cursor.fetchall() if has_rows(text) else []


@lru_cache(1000)
def has_rows(text: str) -> bool:
    """Whether a statement returns rows."""
    return text.startswith(("SELECT", "WITH")) or "RETURNING" in text
