"""The threads that run the calls of AsyncMemory: a pool for each target, so that one does not hold up another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from scrubjay.errors import Unavailable
from scrubjay.fork_safety import ForkSafe

T = TypeVar("T")
P = ParamSpec("P")

MAX_THREADS = 16
"""Threads for one target: enough for writes that share a commit."""


class Threads(ForkSafe):
    """Threads for one target or one purpose; a forked child makes its own."""

    def __init__(self, name: str = "scrubjay") -> None:
        self._name = name
        self.reset()
        self.register_at_fork()

    def reset(self) -> None:
        self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=self._name)
        self._answered_at = 0.0
        self._last_failure = ""  # its text: an exception would keep the arguments of its call in memory

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a call as soon as a thread is free."""
        return self._pool.submit(call, *args, **kwargs)

    def submit_within(self, timeout: float, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The same for a call that raises Unavailable if the target does not answer for so many seconds.

        If it had to wait half of them for a thread, the last call failed, and the target answered none meanwhile, it
        raises at once: calls to a target that is silent would otherwise wait for it one after the other.
        """
        submitted_at = time.monotonic()

        def run() -> T:
            self._refuse_if_silent(submitted_at, timeout)
            try:
                result = call(*args, **kwargs)
            except Unavailable as error:
                self._last_failure = str(error)
                raise
            self._answered_at, self._last_failure = time.monotonic(), ""
            return result

        return self._pool.submit(run)

    def _refuse_if_silent(self, submitted_at: float, timeout: float) -> None:
        waited = time.monotonic() - max(submitted_at, self._answered_at)
        if self._last_failure and waited >= timeout / 2:
            raise Unavailable(
                f"this call was not sent: it waited for one of {MAX_THREADS} threads, all of which waited for the same"
                f" target, and the last call failed: {self._last_failure}"
            )


class _Targets(ForkSafe):
    """The threads of every target that an AsyncMemory of this process has."""

    def __init__(self) -> None:
        self._threads: WeakValueDictionary[str, Threads] = WeakValueDictionary()
        self.reset()
        self.register_at_fork()

    def reset(self) -> None:
        self._lock = threading.Lock()

    def threads_of(self, location: str) -> Threads:
        with self._lock:
            threads = self._threads.get(location)
            if threads is None:
                threads = self._threads[location] = Threads()
            return threads


threads_of = _Targets().threads_of
"""The threads of a target: the path of a file, or the URL of a server or a database."""
