"""Waking watchers: one thread of a store looks, while it has watchers, for what any process has written."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from scrubjay.errors import ScrubjayError
from scrubjay.store import changes
from scrubjay.store.operation import Operation

POLL_SECONDS = 0.02
"""Seconds between two looks: a watcher sees a change of another process that much later at most, and any number of idle
watchers cost 50 index reads a second, about 1 ms of CPU."""


class Listener:
    """The thread of a store that looks for changes, while it has watchers."""

    def __init__(self, run: Callable[[Operation[Any]], Any]) -> None:
        self._run = run
        self._watched: dict[threading.Event, str] = {}
        """The namespace that each event stands for."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watching(self, namespace: str) -> Iterator[Callable[[float], object]]:
        """A function that waits until a namespace may have changed since this call, or for so many seconds."""
        woken = threading.Event()

        def wait(seconds: float) -> None:
            woken.wait(seconds)
            woken.clear()

        with self._lock:
            self._start()
            self._watched[woken] = namespace
        try:
            yield wait
        finally:
            with self._lock:
                del self._watched[woken]

    def _start(self) -> None:
        if self._thread is None:
            # The cursor is read here, so that the thread misses nothing that happens before it runs.
            thread = threading.Thread(target=self._listen, args=(self._last(),), name="scrubjay-listener", daemon=True)
            thread.start()
            self._thread = thread

    def _listen(self, seen: int) -> None:
        while not self._should_end():
            time.sleep(POLL_SECONDS)
            try:
                last = self._last()
                if last != seen:
                    self._wake(self._changed(seen, last))
                    seen = last
            except ScrubjayError:
                self._wake(None)  # each watcher looks itself, and raises the error

    def _should_end(self) -> bool:
        with self._lock:
            if not self._watched:
                self._thread = None
                return True
        return False

    def _last(self) -> int:
        last: int = self._run(changes.last_change())
        return last

    def _changed(self, seen: int, last: int) -> Collection[str] | None:
        """The namespaces that have changed; None is any, because an older log has replaced this one."""
        return None if last < seen else self._run(changes.changed_since(seen))

    def _wake(self, namespaces: Collection[str] | None) -> None:
        with self._lock:
            for woken, namespace in self._watched.items():
                if namespaces is None or namespace in namespaces:
                    woken.set()
