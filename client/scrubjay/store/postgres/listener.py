"""Waking watchers: a write tells every process that listens which namespaces have changed (LISTEN and NOTIFY).

NOTIFY is sent together with the COMMIT, but runs after it in a transaction of its own, which waits for no disk: inside
of it, PostgreSQL would let only one transaction of the whole database commit at a time. A notification may be lost when
a connection breaks; watchers therefore look by themselves as well, once a second.

Listeners share an advisory lock. A writer tries to take it exclusively: if it can, there is no listener, and the writer
sends no NOTIFY. It holds the lock until its commit; a listener that starts meanwhile waits for it, and then looks for
changes. If another writer has the lock, the NOTIFY is sent, too.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from hashlib import blake2b

import psycopg

from scrubjay.errors import ScrubjayError
from scrubjay.store.postgres.connection import Connections
from scrubjay.store.postgres.session import Bound
from scrubjay.store.postgres.transaction import listeners_lock

log = logging.getLogger("scrubjay")

CHANNEL = "scrubjay"
_NOTIFY = "SELECT pg_notify($1, token) FROM unnest($2::text[]) token"
CHECK_SECONDS = 0.5
"""Seconds after which the thread looks whether it should end."""
RETRY_SECONDS = 0.5
"""Seconds until a lost connection is opened again."""

FALLBACK_SECONDS = 1.0
"""Seconds after which a watcher looks for changes without a notification."""

Callback = Callable[[str | None], object]
"""Called with the token of a namespace that has changed; with None when any may have, after a lost connection."""


class Listener:
    """The thread of a store that listens, while it has callbacks."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._lock_number = listeners_lock(connections.address.schema)
        self._callbacks: list[Callback] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def token_of(self, namespace: str) -> str:
        """What a notification says instead of the namespace: short, and no secret."""
        return blake2b(f"{self._connections.address.schema}\0{namespace}".encode(), digest_size=16).hexdigest()

    def notifications(self, namespaces: Collection[str]) -> list[Bound]:
        """The statements that tell every listener that namespaces have changed."""
        if not namespaces:
            return []
        return [(_NOTIFY, (CHANNEL, [self.token_of(namespace) for namespace in namespaces]))]

    def changed(self, namespaces: Collection[str]) -> None:
        """Call the callbacks of this process at once."""
        if self._callbacks:
            for namespace in namespaces:
                self._call(self.token_of(namespace))

    def subscribe(self, callback: Callback) -> None:
        with self._lock:
            self._callbacks.append(callback)
            self._start()

    def _start(self) -> None:
        if self._thread is None and self._callbacks and not self._is_closed:
            self._thread = threading.Thread(target=self._listen, name="scrubjay-listener", daemon=True)
            self._thread.start()

    def unsubscribe(self, callback: Callback) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._callbacks.remove(callback)

    @contextlib.contextmanager
    def watching(self, namespace: str) -> Iterator[Callable[[float], object]]:
        """A function that waits until a namespace may have changed, or for so many seconds, but not for long."""
        token, woken = self.token_of(namespace), threading.Event()

        def wake(changed: str | None) -> None:
            if changed in (None, token):
                woken.set()

        def wait(seconds: float) -> None:
            woken.wait(min(seconds, FALLBACK_SECONDS))
            woken.clear()

        self.subscribe(wake)
        try:
            yield wait
        finally:
            self.unsubscribe(wake)

    def reopen(self) -> None:
        """Listen again after `close`, for the same callbacks."""
        with self._lock:
            self._is_closed = False
            self._start()

    def close(self) -> None:
        self._is_closed = True
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10 * CHECK_SECONDS)

    def _listen(self) -> None:
        while not self._should_end():
            try:
                connection = self._connections.connect()
            except (psycopg.Error, ScrubjayError):
                time.sleep(RETRY_SECONDS)
                continue
            try:
                connection.execute(f"LISTEN {CHANNEL}")
                connection.execute("SELECT pg_advisory_lock_shared($1)", (self._lock_number,))
                self._call(None)  # what was notified before is lost
                while not self._should_end():
                    for notification in connection.notifies(timeout=CHECK_SECONDS, stop_after=1):
                        self._call(notification.payload)
            except psycopg.Error:
                time.sleep(RETRY_SECONDS)
            finally:
                self._connections.discard(connection)

    def _should_end(self) -> bool:
        with self._lock:
            if self._is_closed or self._connections.is_closed or not self._callbacks:
                self._thread = None
                return True
        return False

    def _call(self, token: str | None) -> None:
        for callback in list(self._callbacks):
            try:
                callback(token)
            except Exception:  # one watcher must not keep the others asleep
                log.exception("a watcher could not be woken")
