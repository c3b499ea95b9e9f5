"""The turnstile in front of the write lock: processes that write to one file take turns.

SQLite gives its write lock to whichever process asks at the right moment. A process that writes in a loop asks again
within microseconds, while the others sleep between two tries, so that they rarely get it. Each process therefore passes
a turnstile first, and keeps it until it has the write lock: who has just written waits there behind who waits for the
lock.

The turnstile is an advisory lock (flock) on the folder of the file: it leaves nothing behind, ends with its process,
and does not touch SQLite's own locks, which a process would lose by opening and closing the file itself. Where a system
has no such locks, or a program holds it for too long, writers go on without it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
else:
    _LOCK, _UNLOCK = fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_UN

POLL_SECONDS = 0.0001
"""Seconds between two tries. A process that gets the write lock at once has the turnstile for some ten microseconds."""
MAX_WAIT_SECONDS = 1.0
"""Seconds after which a writer goes on without the turnstile: fairness is not worth a failed write."""


class Turnstile:
    """A lock that a process holds while it waits for the write lock of a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None
        self._is_usable = fcntl is not None

    def try_enter(self) -> bool:
        """Take the turnstile, if no other process waits for the write lock. True where there is none to take."""
        if not self._is_usable:
            return True
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, _LOCK)
        except BlockingIOError:
            return False
        except OSError:  # a file system without such locks, or a folder that may not be read
            self._is_usable = False
        return True

    def enter(self) -> None:
        """Wait for the turnstile, but not for long."""
        if self.try_enter():
            return
        give_up_at = time.monotonic() + MAX_WAIT_SECONDS
        while not self.try_enter() and time.monotonic() < give_up_at:
            time.sleep(POLL_SECONDS)

    def leave(self) -> None:
        """Let the next process wait for the write lock."""
        if self._descriptor is not None:
            try:  # noqa: SIM105 - contextlib.suppress takes nearly as long as the system call
                fcntl.flock(self._descriptor, _UNLOCK)
            except OSError:
                pass

    def close(self) -> None:
        """Give up the descriptor; it is opened again when it is needed."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
