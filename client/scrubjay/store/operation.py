"""Operations: calls on the store, as generators that a driver runs in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from enum import Enum
from functools import wraps
from typing import Any, Generic, NamedTuple, TypeVar

from scrubjay.store.encryption import NO_ENCRYPTION, Cipher

T = TypeVar("T")

DAY_MS = 86_400_000
"""A day in milliseconds."""
IDS_PER_SECOND = 1_000_000
"""Ids of notes are microseconds, the last three digits of which are random."""


class Mode(Enum):
    """The kind of transaction that an operation needs."""

    READ = "read"
    """Statements that need not see the same state; a driver may run them on different connections."""
    SNAPSHOT = "snapshot"
    """Statements that must all see the same state."""
    WRITE = "write"
    """One transaction that holds the write lock; all of it happens, or nothing."""
    LONG_WRITE = "long write"
    """A write that may touch many rows, which a server must not run on its event loop."""
    ERASE = "erase"
    """A long write, after which the driver removes the deleted data from its log as well."""


READ, SNAPSHOT, WRITE, LONG_WRITE, ERASE = Mode
WRITES = (WRITE, LONG_WRITE, ERASE)


class EngineSql(str):
    """SQL itself instead of the name of a query, for code of one engine alone: erasure, recovery."""

    __slots__ = ()


class ExecuteMany(NamedTuple):
    """One query, executed once for each row of parameters."""

    query: str
    rows: Sequence[Sequence[Any]]


class SlowQuery(NamedTuple):
    """A query that may touch many rows, which a server must not run on its event loop."""

    query: str
    params: Sequence[Any]


class WouldBlock(Exception):
    """An operation has a statement that is too slow for an event loop, or waits for the network."""


Statement = tuple[str, Sequence[Any]] | ExecuteMany | SlowQuery
"""What an operation yields: the name of a query, which each engine has the SQL text of, and its parameters."""
Rows = list[tuple[Any, ...]]
Statements = Generator[Statement, Rows, T]


class Quota(NamedTuple):
    """The limits of a namespace; 0 means no limit."""

    writes_per_day: int = 0
    max_bytes: int = 0


NO_QUOTA = Quota()


class KeyQuota(NamedTuple):
    """The limits of an api key, over all namespaces that it writes to; 0 means no limit."""

    writes_per_day: int = 0
    max_bytes: int = 0
    max_namespaces: int = 0


NO_KEY_QUOTA = KeyQuota()


class Actor(NamedTuple):
    """In whose name an operation runs, and the limits that this implies."""

    name: str
    """What the log of changes stores: the name of an api key, or "local"."""
    key_id: str = ""
    """The api key that the writes count for; empty for administrators and for programs that opened the file."""
    quota: Quota | None = None
    """The limits of namespaces that have no limits of their own; None for those of the store."""
    key_quota: KeyQuota = NO_KEY_QUOTA
    """The limits of api keys that have no limits of their own."""


LOCAL = Actor("local")
"""A program that opened the file itself."""


class Context(NamedTuple):
    """What an operation knows about the store it runs in and about its own call."""

    now: int
    """Milliseconds since 1970, UTC."""
    quota: Quota
    """The limits of namespaces that have no limits of their own."""
    cipher: Cipher = NO_ENCRYPTION
    records_changes: bool = True
    """Whether the store keeps a log of changes."""
    verb: str = ""
    """The verb of the operation that runs: what the log of changes stores."""
    actor: Actor = LOCAL
    numbers_by_namespace: bool = False
    """Whether the engine numbers the changes of each namespace on its own, so that a cursor belongs to one."""
    counts_writes: bool = True
    """Whether each write counts against the daily quota; False once a transaction has counted, which it does once."""


class Replay(NamedTuple):
    """How an operation is repeated under the same idempotency key."""

    content: Callable[..., Any]
    """Makes of the arguments what two calls must have in common to be the same call."""
    summarize: Callable[[Any], Any] = lambda result: result
    """Makes of the result what is stored: as little as possible of what a user may want to erase."""
    reload: Callable[..., Operation[Any]] | None = None
    """The operation that returns the result again, from the namespace and the summary; None if that is the result."""


class Operation(Generic[T]):
    """A call that a driver can start, and start again when the database was busy."""

    __slots__ = ("_arguments", "_statements", "actor", "is_wanted", "mode", "replay", "sender", "verb")

    def __init__(
        self,
        verb: str,
        mode: Mode,
        statements: Callable[..., Statements[T]],
        arguments: tuple[Any, ...],
        replay: Replay | None = None,
    ) -> None:
        self.verb = verb
        self.mode = mode
        self._statements = statements
        self._arguments = arguments
        self.replay = replay
        self.actor = LOCAL
        self.sender = ""
        """The sender of its idempotency key, with which it does nothing if it has happened before; empty without."""
        self.is_wanted: Callable[[], bool] | None = None
        """Asked when its transaction has begun; if it says False, a write is not made. None means that it is wanted."""

    @property
    def namespace(self) -> str:
        """The namespace that it works on; empty if it works on none."""
        first = self._arguments[0] if self._arguments else ""
        return first if isinstance(first, str) else ""

    @property
    def key(self) -> str:
        """The key that it works on; empty if it names none."""
        second = self._arguments[1] if len(self._arguments) > 1 else ""
        return second if isinstance(second, str) else ""

    @property
    def characters(self) -> int:
        """The length of the texts in its arguments."""
        return _count_characters(self._arguments)

    @property
    def content(self) -> Any:
        """What two calls under one idempotency key must have in common: what the Replay says, or the two arguments
        after the namespace.

        Of a time to live that is only whether there is one: a call that is sent again later has less of it left.
        """
        if self.replay is not None:
            return self.replay.content(*self._arguments)
        return self._arguments[1:3]

    def start(self, context: Context) -> Statements[T]:
        return self._statements(context, *self._arguments)


def _count_characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return sum(map(_count_characters, parts))


def operation(
    verb: str, mode: Mode, *, is_slow: Callable[..., bool] | None = None, replay: Replay | None = None
) -> Callable[[Callable[..., Statements[T]]], Callable[..., Operation[T]]]:
    """Turn a generator function that takes a Context first into a function that returns an Operation.

    `is_slow` decides from the arguments whether a WRITE is a LONG_WRITE.
    """

    def decorate(statements: Callable[..., Statements[T]]) -> Callable[..., Operation[T]]:
        @wraps(statements)
        def make(*arguments: Any) -> Operation[T]:
            actual = LONG_WRITE if is_slow is not None and is_slow(*arguments) else mode
            return Operation(verb, actual, statements, arguments, replay)

        return make

    return decorate
