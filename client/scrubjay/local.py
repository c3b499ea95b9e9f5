"""The executor of commands on a database file, or on a PostgreSQL database, in this process."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from scrubjay.commands import AUDIT, CHANGES, RECALL, TRANSACTION, Command, Verb
from scrubjay.executor import Executor
from scrubjay.fork_safety import ForkSafe
from scrubjay.models import Change, Note
from scrubjay.operations import notes_stored, operation_for, operation_of
from scrubjay.settings import Settings
from scrubjay.store import changes
from scrubjay.store.engine import Store, location_of, open_store
from scrubjay.store.operation import Operation
from scrubjay.store.sqlite.connection import BUSY_SECONDS

if TYPE_CHECKING:
    from scrubjay.semantic.index import SemanticIndex

T = TypeVar("T")


class LocalExecutor(Executor):
    """Runs commands on a store in this process, which all executors of the same file share."""

    def __init__(self, settings: Settings, busy_seconds: float = BUSY_SECONDS) -> None:
        self._store = _stores.borrow(settings, busy_seconds)
        self.timeout = busy_seconds
        self.location = location_of(self._store)
        self._index = _stores.index_of(self._store, settings.embedder, settings.embedder_key)
        # Programs of three lines never call close(): garbage collection and exit do it too.
        self._finalizer = weakref.finalize(self, _stores.give_back, self._store)

    def run(self, command: Command, idempotency_key: str | None = None) -> Any:
        verb, namespace, arguments, once = command
        if (own_method := _OWN_METHODS.get(verb)) is not None:
            return own_method(self, namespace, *arguments)
        if verb is TRANSACTION or not namespace:
            operation = operation_for(command)
        else:
            operation = operation_of(verb)(namespace, *arguments)
        if once is not None or idempotency_key is not None:
            operation = _run_once(operation, command, idempotency_key)
        result = verb.from_store(self._store.run(operation))
        if self._index is not None:
            for number in notes_stored(command, result):
                self._index.add(namespace, number)
        return result

    def close(self) -> None:
        self._finalizer()

    def _recall(self, namespace: str, query: Any) -> list[Note]:
        nearest = self._index.nearest(namespace, query) if self._index else {}
        found: list[Note] = self._store.run(operation_of(RECALL)(namespace, query, nearest))
        return found

    def _audit(self, _namespace: str, namespace: str | None, since: float, after: str) -> tuple[list[Change], str]:
        start = changes.AuditCursor.parse(after)
        found, cursor = self._store.run(changes.read_audit(namespace, int(since * 1000), start))
        return found, str(cursor)

    def _wait_for_changes(
        self, namespace: str, prefix: str, after: int | None, wait: float
    ) -> tuple[list[Change], int]:
        give_up_at = time.monotonic() + wait
        while True:
            found, cursor = self._run_in_turn(changes.read_changes(namespace, prefix, after))
            if found or after is None or time.monotonic() >= give_up_at:
                return found, cursor
            after = cursor
            with self._store.listener.watching(namespace) as pause:
                while self._run_in_turn(changes.last_change(namespace)) == cursor and time.monotonic() < give_up_at:
                    pause(give_up_at - time.monotonic())

    def _run_in_turn(self, operation: Operation[T]) -> T:
        with self._store.watcher_turns:
            return self._store.run(operation)


_OWN_METHODS: dict[Verb, Callable[..., Any]] = {
    RECALL: LocalExecutor._recall,  # noqa: SLF001
    CHANGES: LocalExecutor._wait_for_changes,  # noqa: SLF001
    AUDIT: LocalExecutor._audit,  # noqa: SLF001
}
"""Verbs that are more than one operation here."""


def _run_once(operation: Operation[Any], command: Command, idempotency_key: str | None) -> Operation[Any]:
    from scrubjay.store import idempotency  # noqa: PLC0415 - few embedded programs need it

    if command.once is not None:
        return idempotency.run_once(operation, idempotency.IdempotencyKey(command.once))
    return idempotency.run_once(operation, idempotency.IdempotencyKey.parse(idempotency_key or ""))


def open_index(store: Store, embedder: str, key: str | None) -> SemanticIndex:
    from scrubjay.semantic.index import SemanticIndex  # noqa: PLC0415 - only with an embedder

    index = SemanticIndex(store, embedder, key)
    index.catch_up()
    return index


class _StoreKey(NamedTuple):
    """What two executors must agree on to share a store."""

    location: str
    durability: str
    secret: str | None
    audit_rows: int
    busy_seconds: float


class _Stores(ForkSafe):
    """The open stores of this process: a web handler that makes a Memory for each request shares connections, and
    threads share commits.
    """

    def __init__(self) -> None:
        self._open: dict[_StoreKey, Store] = {}
        self._borrowers: dict[_StoreKey, int] = {}
        self._keys: dict[Store, _StoreKey] = {}
        self._indexes: dict[tuple[Store, str, str | None], SemanticIndex] = {}
        self.reset()
        self.register_at_fork()

    def reset(self) -> None:
        # Reentrant: the garbage collector may close another Memory, and so give its store back, during a borrow.
        self._lock = threading.RLock()

    def borrow(self, settings: Settings, busy_seconds: float) -> Store:
        """The store for these settings; it is closed when every borrower has given it back."""
        path = str(Path(settings.path).expanduser().resolve())
        settings = settings._replace(path=path)
        key = _StoreKey(
            settings.store or path, settings.durability, settings.secret or None, settings.audit_rows, busy_seconds
        )
        with self._lock:
            self._borrowers[key] = self._borrowers.get(key, 0) + 1  # first, so that no other thread closes it
            try:
                if key not in self._open:
                    store = open_store(settings, busy_seconds=busy_seconds)
                    self._open[key] = store
                    self._keys[store] = key
                return self._open[key]
            except BaseException:
                self._return(key)
                raise

    def give_back(self, store: Store) -> None:
        with self._lock:
            self._return(self._keys[store])

    def index_of(self, store: Store, embedder: str | None, key: str | None) -> SemanticIndex | None:
        """The semantic index of a store; None without an embedder: then notes are found by words alone."""
        if not embedder:
            return None
        with self._lock:
            if (store, embedder, key) not in self._indexes:
                self._indexes[store, embedder, key] = open_index(store, embedder, key)
            return self._indexes[store, embedder, key]

    def _return(self, key: _StoreKey) -> None:
        self._borrowers[key] -= 1
        if self._borrowers[key]:
            return
        del self._borrowers[key]
        store = self._open.pop(key, None)
        if store is not None:  # else it could not be opened
            del self._keys[store]
            store.close()
            self._indexes = {at: index for at, index in self._indexes.items() if at[0] is not store}


_stores = _Stores()
