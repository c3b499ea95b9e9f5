"""A connection to PostgreSQL on which many statements are sent in one round trip, each prepared once.

It uses libpq's pipeline mode without psycopg's cursors, which take more Python for each statement.
Nothing here waits: `exchange` is a generator that yields what it waits for, as psycopg's own do. `run_blocking` waits
in a thread; asyncio.py waits on an event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import errors, waiting
from psycopg.abc import Params
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from scrubjay.store.operation import Rows

T = TypeVar("T")

Bound = tuple[str, Sequence[Any]]
"""The text of a statement, and its parameters."""
Waits = Generator[waiting.Wait, waiting.Ready | int, T]
"""A generator that yields what it waits for: that the socket can be read, or read or written."""

MAX_PREPARED = 500
"""Statements that one connection prepares; each takes some kilobytes in PostgreSQL. More are parsed each time."""
MAX_NAME = 40
"""Characters of its text in the name of a prepared statement, by which pg_prepared_statements and captures show it."""
MAX_SEEN = 1000
"""Texts that are remembered to prepare them when they come again: those of recall depend on the query."""
NO_SESSION = (
    "a pooler between this program and PostgreSQL gives each transaction another session; connect to PostgreSQL itself,"
    " or set the pooler to session mode (PgBouncer: pool_mode = session)"
)
"""What is wrong, and what to do, when a statement meets a session that was not set up for its connection."""
CHECK_SECONDS = 0.1
"""Seconds after which a thread that waits looks for Ctrl-C."""

_READ, _READ_OR_WRITE = waiting.Wait.R, waiting.Wait.RW
_ROWS, _DONE = ExecStatus.TUPLES_OK, (ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY)
_SYNC = ExecStatus.PIPELINE_SYNC


class History(NamedTuple):
    """What tells whether ids of transactions mean the same on two connections: after a failover or a crash they are
    used again.
    """

    timeline: int
    """How often a standby has become the primary."""
    statistics_reset_at: str
    """PostgreSQL loses its statistics in a crash."""


class Session(psycopg.Connection[Any]):
    """A connection; psycopg's own methods work on it, too."""

    history = History(0, "")
    """The history of the host when it was opened."""
    mark = ""
    """What `SHOW scrubjay.session` says on the session that was set up for this connection, and on no other."""
    is_waiting = False
    """Whether an exchange has begun and not ended: one that was given up leaves a connection that cannot be used."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._names: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self._seen: set[str] = set()
        self._count = 0
        self._sent: deque[bytes | None] = deque()  # of each answer that will come: the statement that it prepares

    def use_types(self) -> None:
        """Call this when the connection has its types."""
        self._types = Transformer.from_context(self)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open."""
        return not self.is_waiting and self.pgconn.transaction_status == TransactionStatus.IDLE

    def exchange(self, statements: Sequence[Bound], after: Sequence[Bound] = ()) -> Waits[list[Rows]]:
        """Send statements, and return the rows of each. An error of one is raised, and those behind it do not run.

        Those in `after` come behind them, and their errors are ignored.
        """
        connection, self.is_waiting = self.pgconn, True
        connection.enter_pipeline_mode()
        for text, params in (*statements, *after):
            self._send(text, params)
        connection.pipeline_sync()
        while connection.flush():
            if (yield _READ_OR_WRITE) & waiting.Ready.R:
                connection.consume_input()
        results, failure = yield from self._receive()
        connection.exit_pipeline_mode()
        self.is_waiting = False
        if failure is not None and len(results) < len(statements):
            raise failure
        return self._loaded(results[: len(statements)])

    def run_blocking(self, waits: Waits[T]) -> T:
        """Run a generator of this connection, and wait in this thread."""
        return waiting.wait(waits, self.pgconn.socket, CHECK_SECONDS)

    def _send(self, text: str, params: Params) -> None:
        types = self._types
        values = types.dump_sequence(params, [PyFormat.AUTO] * len(params))  # type: ignore[arg-type]
        oids = tuple(types.types or ())
        name = self._names.get((text, oids)) or self._prepare(text, oids)
        if name is None:
            self.pgconn.send_query_params(text.encode(), values, oids, types.formats)
        else:
            self.pgconn.send_query_prepared(name, values, types.formats)
        self._sent.append(None)

    def _prepare(self, text: str, oids: tuple[int, ...]) -> bytes | None:
        """The name of a statement that is prepared from now on; None the first time, and when there are too many."""
        if text not in self._seen:
            if len(self._seen) >= MAX_SEEN:
                self._seen.clear()
            self._seen.add(text)
            return None
        if len(self._names) >= MAX_PREPARED:
            return None
        self._count += 1
        name = b"%d %s" % (self._count, text[:MAX_NAME].encode("ascii", "ignore"))
        self.pgconn.send_prepare(name, text.encode(), oids)
        self._names[text, oids] = name
        self._sent.append(name)
        return name

    def _receive(self) -> Waits[tuple[list[PGresult], psycopg.Error | None]]:
        """The results of statements up to the next sync, and the error of the first that failed."""
        results: list[PGresult] = []
        failure: psycopg.Error | None = None
        while (result := (yield from self._next_result(failure))).status != _SYNC:
            prepared = self._sent.popleft()
            if result.status == _ROWS or result.status in _DONE:
                if prepared is None and failure is None:
                    results.append(result)
                continue
            if failure is None:
                failure = errors.error_from_result(result)
            if prepared is not None:  # or not, if it failed later: it gets another name
                self._names = {key: name for key, name in self._names.items() if name != prepared}
        return results, failure

    def _next_result(self, failure: psycopg.Error | None) -> Waits[PGresult]:
        """The next result; if the connection is lost before, the failure is raised, which probably says why."""
        connection = self.pgconn
        while True:
            while connection.is_busy():
                yield _READ
                connection.consume_input()
            result = connection.get_result()
            if result is not None:
                return result
            if connection.status == ConnStatus.BAD:
                raise failure or psycopg.OperationalError("the connection was lost")

    def _loaded(self, results: list[PGresult]) -> list[Rows]:
        types, loaded = self._types, []
        for result in results:
            count = result.ntuples
            if count:
                types.set_pgresult(result)
                loaded.append(types.load_rows(0, count, tuple))
            else:
                loaded.append([])
        return loaded
