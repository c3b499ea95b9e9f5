"""A transaction on PostgreSQL, with the locks that make its writes the only ones to their namespaces."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, TypeVar

import psycopg

from scrubjay.store.operation import Context, ExecuteMany, Operation, Rows, Statement
from scrubjay.store.postgres.queries import locked_by, text_of

T = TypeVar("T")


class Transaction:
    """A write transaction.

    A namespace is locked by an advisory lock on its name, before anything of it is read: a row lock would need a row,
    which a namespace has only when something was written to it, and a query that locks and joins sees old rows of the
    other table. Each statement sees what was committed when it begins (READ COMMITTED), and so all that the last owner
    of the lock has written.
    """

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self.connection = connection
        self._schema = schema
        self._locked: set[str] = set()
        self.has_written = False
        self.changed: set[str] = set()
        """The namespaces that have new changes."""
        self.id = ""
        """The id by which PostgreSQL can be asked whether it was committed."""

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
        self.has_written = self.has_written or not text_of(query).startswith("SELECT")
        return execute(self.connection, statement)

    def commit(self) -> None:
        self.connection.execute("COMMIT", prepare=False)


def execute(connection: psycopg.Connection[Any], statement: Statement) -> Rows:
    """Execute one statement, and return its rows."""
    query, params = statement
    text = text_of(query).encode()
    if not text:
        return []
    if type(statement) is ExecuteMany:
        if params:
            connection.cursor().executemany(text, params)
        return []
    cursor = connection.execute(text, params)
    return cursor.fetchall() if cursor.description else []
