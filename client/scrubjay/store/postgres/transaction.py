"""A transaction on PostgreSQL, with the locks that make its writes the only ones to their namespaces.

It waits as rarely as it can. The locks and the first reads of all its operations are one round trip; statements without
rows are sent with the next one that has some, or with the COMMIT; and what it knows it does not read (rows.py).
"""

# ruff: noqa: S608 - texts are joined from constants only
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import psycopg

from scrubjay.errors import Unavailable
from scrubjay.store.operation import SNAPSHOT, Context, ExecuteMany, Operation, Rows, Statement
from scrubjay.store.postgres.queries import APPEND_CHANGES, joined, locked_by, text_of
from scrubjay.store.postgres.rows import KnownRows
from scrubjay.store.postgres.session import NO_SESSION, Bound, Session, Waits

T = TypeVar("T")

SHORT_WAIT = "100ms"
"""How long a transaction of several namespaces waits for the row of an api key: the others wait with it."""

_LOCK = "SELECT pg_advisory_xact_lock($1)"
# $1 is the lock that listeners share: a transaction gets it only while no listener and no other writer has it.
_BEGUN = """current_setting('scrubjay.session', true), NOT pg_try_advisory_xact_lock($1), pg_backend_pid(),
pg_current_xact_id()::text"""
_BEGIN_ALONE = f"SELECT pg_advisory_xact_lock($2), {_BEGUN}"
_BEGIN_UNLOCKED = f"SELECT '', {_BEGUN}"
_BEGIN_TOGETHER = f"""SELECT set_config('lock_timeout', $3, true),
array_to_string(ARRAY(SELECT pg_try_advisory_xact_lock(n)::int FROM unnest($2::bigint[]) n), ''), {_BEGUN}"""
_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_END_IDLE = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = $1 AND backend_xid = $2::text::xid8::xid AND wait_event = 'ClientRead'"""


class Transaction:
    """A write transaction.

    A namespace is locked by an advisory lock on its name, before anything of it is read: a row lock would need a row,
    which a namespace has only when something was written to it, and a query that locks and joins sees old rows of the
    other table. Each statement sees what was committed when it begins (READ COMMITTED), and so all that the last owner
    of the lock has written.
    """

    def __init__(self, session: Session, schema: str) -> None:
        self.session = session
        self._schema = schema
        self._locked: set[str] = set()
        self._known = KnownRows()
        self.has_written = False
        self.changed: set[str] = set()
        """The namespaces that have new changes."""
        self.has_listeners = True
        """Whether a process may listen for them; one that begins to listen later waits for the commit."""
        self.is_committing = False
        """Whether COMMIT was sent, and not answered."""
        self.id = ""
        """The id by which PostgreSQL can be asked whether it was committed."""
        self._pid = 0  # of PostgreSQL's process; the one that libpq knows is a pooler's, if there is one
        self._pending: list[Bound] = []
        """Statements without rows, in their order."""
        self._saves: dict[tuple[str, Any], Statement] = {}
        """The last state of each row of usage, which is written once."""
        self._changes: dict[str, list[Sequence[Any]]] = {}
        """The changes of each namespace, which are logged together."""

    def begin(self, namespace: str, operations: Collection[Operation[Any]] = ()) -> Waits[None]:
        """BEGIN, lock a namespace, and read what these operations on it read first."""
        listeners = listeners_lock(self._schema)
        if namespace:
            lock: Bound = (_BEGIN_ALONE, (listeners, lock_of(self._schema, namespace)))
            yield from self._begin(lock, [namespace], operations)
        else:
            yield from self._begin((_BEGIN_UNLOCKED, (listeners,)), [], operations)

    def begin_together(self, namespaces: Sequence[str], operations: Collection[Operation[Any]]) -> Waits[set[str]]:
        """The same for several namespaces; those that another transaction has locked are returned, and not waited for.

        Two transactions that wait for one another's locks would never end.
        """
        locks = [lock_of(self._schema, namespace) for namespace in namespaces]
        lock = (_BEGIN_TOGETHER, (listeners_lock(self._schema), locks, SHORT_WAIT))
        yield from self._begin(lock, namespaces, operations)
        return set(namespaces) - self._locked

    def _begin(self, lock: Bound, namespaces: Sequence[str], operations: Collection[Operation[Any]]) -> Waits[None]:
        reads = list(dict.fromkeys(read for each in operations if each.namespace for read in _first_reads(each)))
        bound = [(text_of(query), params) for query, params in reads]
        _, (begun,), *answers = yield from self.session.exchange([("BEGIN", ()), lock, *bound])
        *_, locked, session, self.has_listeners, self._pid, self.id = begun
        if session != self.session.mark:
            raise Unavailable(f"nothing was written: {NO_SESSION}")
        is_locked = locked if isinstance(locked, str) and locked else "1" * len(namespaces)
        self._locked |= {name for name, mark in zip(namespaces, is_locked, strict=True) if mark == "1"}
        for (query, params), rows in zip(reads, answers, strict=True):
            if (params[1] if query == "open_namespace" else params[0]) in self._locked:
                self._known.read(query, params, rows)

    def has_locked(self, namespace: str) -> bool:
        """Whether the operations of a namespace run in this transaction; those without one need no lock to begin."""
        return not namespace or namespace in self._locked

    def run(self, operation: Operation[T], context: Context) -> Waits[T]:
        """Run the statements of an operation."""
        statements = operation.start(context)
        try:
            statement: Statement = next(statements)
            while True:
                query, params = statement
                rows = self._known.answer(query, params)
                if rows is None:
                    rows = yield from self._execute(statement)
                statement = statements.send(rows)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def _execute(self, statement: Statement) -> Waits[Rows]:
        query, params = statement
        many: Sequence[Sequence[Any]] = params if type(statement) is ExecuteMany else (params,)
        if unlocked := locked_by(query, many) - self._locked:
            yield from self._lock(unlocked)
        text = text_of(query)
        if not text:
            return []
        if text.startswith("SELECT"):
            (rows,) = yield from self._ask([(text, params)])
            self._known.read(query, params, rows)
            return rows
        self.has_written = True
        if has_rows(text):
            self._known.forget()
            (rows,) = yield from self._ask([(text, params)])
            return rows
        self._write(statement, many)
        return []

    def _write(self, statement: Statement, many: Sequence[Sequence[Any]]) -> None:
        """Write later, at the COMMIT or before the next statement that has rows."""
        query, params = statement
        if not self._known.knows(query):  # it may depend on what would be sent after it
            self._pending = self._unsent()
        for each in many:
            self._known.written(query, each)
        if query == "append_change":
            for at, actor, verb, namespace, key, size in many:
                self._changes.setdefault(namespace, []).append((at, actor, verb, key, size))
        elif query == "save_namespace":
            self._saves[query, params[0]] = statement
        elif query == "save_key_usage":
            self._saves[query, params[-1]] = statement
        else:
            self._pending += bind(statement)

    def _lock(self, namespaces: set[str]) -> Waits[None]:
        yield from self._ask([(_LOCK, (lock_of(self._schema, namespace),)) for namespace in sorted(namespaces)])
        self._locked |= namespaces

    def _ask(self, statements: list[Bound]) -> Waits[list[Rows]]:
        """Send what was not sent yet, and statements whose rows are returned."""
        unsent = join(self._unsent())
        answers = yield from self.session.exchange([*unsent, *statements])
        return answers[len(unsent) :]

    def _unsent(self) -> list[Bound]:
        """The statements that were not sent yet; they are, from now on."""
        bound = [*self._pending, *(each for statement in self._saves.values() for each in bind(statement))]
        for namespace, entries in self._changes.items():
            self.changed.add(namespace)
            if len(entries) == 1:
                at, actor, verb, key, size = entries[0]
                bound.append((text_of("append_change"), (at, actor, verb, namespace, key, size)))
            else:
                bound.append((text_of(APPEND_CHANGES), (namespace, *map(list, zip(*entries, strict=True)))))
        self._pending, self._saves, self._changes = [], {}, {}
        return bound

    def commit(self, notifications: Callable[[set[str]], list[Bound]] | None = None) -> Waits[None]:
        """COMMIT, and then notify listeners, if there are any, of the namespaces that have changed."""
        statements = [*join(self._unsent()), ("COMMIT", ())]
        after = notifications(self.changed) if notifications and self.has_listeners else []
        self.is_committing = True
        try:
            yield from self.session.exchange(statements, after)
        except psycopg.Error:
            self.is_committing = self.session.closed  # else PostgreSQL has refused the COMMIT, and rolled back
            raise
        self.is_committing = False

    def status_on(self, session: Session) -> str:
        """What became of it, asked on another connection: "committed", "aborted" or "in progress".

        PostgreSQL may not have noticed yet that its connection was lost. If it waits for the client it is ended, not
        if the COMMIT has arrived and waits for a standby.
        """
        session.execute(_END_IDLE, (self._pid, self.id))
        (status,) = session.execute("SELECT pg_xact_status($1::text::xid8)", (self.id,)).fetchone() or ("",)
        return str(status)


class Reading(Generic[T]):
    """An operation that reads, on one connection."""

    def __init__(self, operation: Operation[T], context: Context) -> None:
        self._is_snapshot = operation.mode is SNAPSHOT
        self._statements = operation.start(context)
        self.has_rows = False
        """Whether it has got rows, so that it cannot be started again elsewhere."""

    def run(self, session: Session, *, on_loop: bool = False) -> Waits[T]:
        """Run its statements. With `on_loop`, raises TooSlow instead of a query that may touch many rows."""
        before: list[Bound] = [(_SNAPSHOT, ())] if self._is_snapshot else []
        try:
            statement: Statement = next(self._statements)
            while True:
                if on_loop and type(statement) is not tuple:
                    raise TooSlow
                rows: Rows = []
                if bound := bind(statement):
                    *_, rows = yield from session.exchange([*before, *bound])
                    before = []
                self.has_rows = True
                statement = self._statements.send(rows)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


class TooSlow(Exception):
    """An operation has a query that an event loop should not wait for."""


def _first_reads(operation: Operation[Any]) -> list[Statement]:
    """What a write reads before it writes, known before it has started: rows of its namespace."""
    reads: list[Statement] = [("open_namespace", (operation.key or None, operation.namespace))]
    if operation.sender:
        reads.append(("find_idempotency_key", (operation.namespace, operation.sender)))
    return reads


@lru_cache(1000)
def lock_of(schema: str, namespace: str) -> int:
    """The number of the advisory lock of a namespace."""
    digest = blake2b(f"{schema}\0{namespace}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def listeners_lock(schema: str) -> int:
    """The number of the advisory lock that the listeners of a schema share; no schema has an empty name."""
    return lock_of("", schema)


def bind(statement: Statement) -> list[Bound]:
    """The texts and parameters of a statement."""
    query, params = statement
    text = text_of(query)
    if not text:
        return []
    return [(text, each) for each in params] if type(statement) is ExecuteMany else [(text, params)]


def join(writes: list[Bound]) -> list[Bound]:
    """Writes as one statement, if there are few and none depends on another: PostgreSQL takes less time for it."""
    if len(writes) < 2 or (text := joined(tuple(text for text, _ in writes))) is None:
        return writes
    return [(text, [value for _, params in writes for value in params])]


@lru_cache(1000)
def has_rows(text: str) -> bool:
    """Whether a statement returns rows."""
    return text.startswith(("SELECT", "WITH")) or "RETURNING" in text
