"""Counting requests: how many of each kind, how many refused, and how long they took, by the minute."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from starlette.types import Scope

from scrubjay.errors import ScrubjayError
from scrubjay.store.engine import ServedStore
from scrubjay.store.overview import RequestCount, add_requests

RECALLS = ("recall", "inject_context")
"""Names of the routes that recall notes."""
REFUSED = (401, 403, 413, 429, 507)
"""Statuses of requests that were refused for want of a key, of a permission or of a quota."""
WRITE_SECONDS = 60.0
"""Seconds between two writes of the counts, so that they cost one small transaction a minute at most."""


class RequestCounter:
    """The requests that this process has answered, added to the database once a minute."""

    def __init__(self, store: ServedStore) -> None:
        self._store = store
        self._counts: dict[tuple[int, str], list[Any]] = {}
        """By minute and kind: the other fields of a RequestCount, in a list that can be changed."""

    def add(self, scope: Scope, seconds: float) -> None:
        """Count a request that has been answered, if it was one to the API."""
        if "access" not in scope and scope.get("status") not in REFUSED:
            return
        minute, kind, status = int(time.time() // 60), kind_of(scope), scope.get("status", 500)
        count = self._counts.get((minute, kind))
        if count is None:
            count = self._counts[minute, kind] = [0, 0, 0, 0.0, 0.0]
        milliseconds = seconds * 1000
        count[0] += 1
        if status in REFUSED:
            count[1] += 1
        if status >= 500:
            count[2] += 1
        count[3] += milliseconds
        count[4] = max(count[4], milliseconds)

    async def write(self) -> None:
        """Add the counts to the database."""
        counts, self._counts = self._counts, {}
        if counts:
            with contextlib.suppress(ScrubjayError):  # a file that cannot be written; nothing depends on the counts
                requests = (RequestCount(*kind, *count) for kind, count in counts.items())
                await self._store.run(add_requests(tuple(requests)))

    async def write_forever(self) -> None:
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            await self.write()


def kind_of(scope: Scope) -> str:
    """read, write or recall."""
    if getattr(scope.get("route"), "name", "") in RECALLS:
        return "recall"
    return "write" if scope.get("writes") else "read"
