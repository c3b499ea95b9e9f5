"""What an operation is, and what it may ask of a driver."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import wraps
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

from .sealing import PLAIN, Cipher

T = TypeVar("T")
P = ParamSpec("P")

READ = "read"
"""Each statement stands alone; a driver may run them on different connections."""
SNAPSHOT = "snapshot"
"""Several statements that must see the same state."""
WRITE = "write"
"""One transaction that holds the write lock; all of it happens, or nothing."""
LONG_WRITE = "long write"
"""A write that may touch many rows, which a server must not do on its event loop."""
ERASE = "erase"
"""A long write after which what it removed is in no file any more, the log included."""
WRITES = (WRITE, LONG_WRITE, ERASE)


class Many(NamedTuple):
    """One statement for many rows of parameters."""

    sql: str
    rows: Sequence[Sequence[Any]]


class Long(NamedTuple):
    """A statement that may touch many rows, which a server must not do on its event loop."""

    sql: str
    params: Sequence[Any]


Statement = tuple[str, Sequence[Any]] | Many | Long
Rows = list[tuple[Any, ...]]
Steps = Generator[Statement, Rows, T]


class Quota(NamedTuple):
    """The limits of a namespace; 0 is none."""

    writes_per_day: int = 0
    max_bytes: int = 0


NO_QUOTA = Quota()


class Context(NamedTuple):
    """What an operation may know of the world."""

    now: int
    """Milliseconds since 1970, UTC."""
    quota: Quota
    """For namespaces that have none of their own."""
    cipher: Cipher = PLAIN
    """How values are stored."""
    records: bool = True
    """Whether changes are recorded."""
    who: str = "local"
    """Who asks: the name of an api key, or whoever may open the file."""


class Operation(Generic[T]):
    """A call that a driver can start, and start again when the database was busy."""

    __slots__ = ("_args", "_steps", "mode", "who")

    def __init__(self, mode: str, steps: Callable[..., Steps[T]], args: tuple[Any, ...]) -> None:
        self.mode = mode
        self._steps = steps
        self._args = args
        self.who: str | None = None
        """On whose behalf, if it is not the program's own."""

    @property
    def name(self) -> str:
        return self._steps.__name__

    @property
    def described(self) -> tuple[str, str, str]:
        """Its verb, and the namespace and the key that it works on, if it names one."""
        first, second, *_ = (*self._args, "", "")
        if isinstance(first, Operation):  # wrapped, as in deliveries
            return first.described
        return self.name.strip("_").partition("_")[0], first, second if isinstance(second, str) else ""

    def start(self, context: Context) -> Steps[T]:
        if self.who is not None:
            context = context._replace(who=self.who)
        return self._steps(context, *self._args)


def operation(
    mode: str,
) -> Callable[[Callable[..., Steps[T]]], Callable[..., Operation[T]]]:
    """Turn a generator function that takes a Context first into a maker of Operations."""

    def decorate(steps: Callable[..., Steps[T]]) -> Callable[..., Operation[T]]:
        @wraps(steps)
        def make(*args: Any) -> Operation[T]:
            return Operation(mode, steps, args)

        return make

    return decorate
