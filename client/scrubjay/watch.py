"""A watch: the changes of a namespace as they happen, from a cursor on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from scrubjay.commands import CHANGES
from scrubjay.errors import QuotaExceeded, Unavailable
from scrubjay.executor import Executor
from scrubjay.models import Change

WAIT_SECONDS = 30.0
"""Seconds that one request waits for changes; a shorter wait would cost idle watchers more requests."""
RETRY_SECONDS = 0.5
"""Seconds until an unreachable server is asked again."""


class Watch:
    """How far a caller has seen the changes of a namespace, starting when this is made."""

    def __init__(
        self, executor: Callable[[], Executor], namespace: str, prefix: str, after: int | None, timeout: float | None
    ) -> None:
        self._executor = executor
        self._namespace = namespace
        self._prefix = prefix
        self._timeout = math.inf if timeout is None else timeout
        self._ends_at = time.monotonic() + self._timeout
        self._has_looked = False
        self.is_over = False
        """True after a look that began `timeout` seconds after the last change and found nothing."""
        self.first, self._cursor = executor().run(CHANGES(namespace, prefix, after, 0.0))

    def __iter__(self) -> Iterator[Change]:
        yield from self.first
        while not self.is_over:
            yield from self.look(WAIT_SECONDS)

    def look(self, seconds: float) -> list[Change]:
        """The changes since the last look; waits up to so many seconds for one."""
        left = self._ends_at - time.monotonic()
        wait = max(min(seconds, left), 0)
        self.is_over = left <= 0
        executor = self._executor()
        try:
            result = executor.run(CHANGES(self._namespace, self._prefix, self._cursor, wait))
        except Unavailable:
            if executor.is_closed:  # the Memory was closed: the watch ends
                raise
            time.sleep(min(wait, RETRY_SECONDS))  # a server that restarts; the cursor is still valid
            return []
        except QuotaExceeded as error:
            if not self._has_looked:
                raise
            # Other watches reached the limit between two looks.
            time.sleep(min(wait, error.retry_after or RETRY_SECONDS))
            return []
        self._has_looked = True
        found: list[Change] = result[0]
        self._cursor = result[1]
        if found:
            self._ends_at = time.monotonic() + self._timeout
            self.is_over = False
        return found
