"""Watching a namespace: changes as they happen, from a cursor on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from .backends import Backend
from .errors import QuotaExceeded, Unavailable
from .records import Change

WAIT_SECONDS = 30.0
"""How long one question for changes waits for an answer."""
ASK_AGAIN = 0.5
"""Seconds until a server that was not there is asked again."""


class Watch:
    """What someone has seen of a namespace, from the moment this is made."""

    def __init__(
        self, backend: Callable[[], Backend], namespace: str, prefix: str, after: int | None, timeout: float | None
    ) -> None:
        self._backend = backend
        self._namespace = namespace
        self._prefix = prefix
        self._timeout = math.inf if timeout is None else timeout
        self._ends_at = time.monotonic() + self._timeout
        self._has_looked = False
        self.first, self._cursor = backend().changes(namespace, prefix, after, 0)

    def __iter__(self) -> Iterator[Change]:
        yield from self.first
        while not self.is_over():
            yield from self.look(WAIT_SECONDS)

    def is_over(self) -> bool:
        """Whether nothing has happened for as long as was said."""
        return time.monotonic() >= self._ends_at

    def look(self, seconds: float) -> list[Change]:
        """What has changed since the last look; waits up to so many seconds for something."""
        wait = max(min(seconds, self._ends_at - time.monotonic()), 0)
        ask = self._backend().changes  # of a Memory that is closed by now this is raised, and ends the watch
        try:
            found, self._cursor = ask(self._namespace, self._prefix, self._cursor, wait)
        except Unavailable:  # a server that is being started anew; the cursor knows where to go on
            time.sleep(min(wait, ASK_AGAIN))
            return []
        except QuotaExceeded as error:
            if not self._has_looked:
                raise
            time.sleep(min(wait, error.retry_after or ASK_AGAIN))  # somebody took the place between two looks
            return []
        self._has_looked = True
        if found:
            self._ends_at = time.monotonic() + self._timeout
        return found
