"""Counting requests: how many of each kind, how many refused, and how long they took.

A request is added to a tally of its second, which costs less than a microsecond. Once a second the tallies are added to
the metrics for Prometheus and to the counts of the minute, which are written to the database once a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import prometheus_client
import prometheus_client.multiprocess
from starlette.types import Scope

from scrubjay.errors import ScrubjayError
from scrubjay.store.engine import ServedStore
from scrubjay.store.overview import RequestCount, add_requests

RECALLS = ("recall", "inject_context")
"""Names of the routes that recall notes."""
REFUSED = (401, 403, 413, 429, 507)
"""Statuses of requests that were refused for want of a key, of a permission or of a quota."""
PUBLISH_SECONDS = 1.0
"""Seconds after which a request is in the metrics that another worker process answers with."""
WRITE_SECONDS = 60.0
"""Seconds between two writes of the counts, so that they cost one small transaction a minute at most."""


class Metric(prometheus_client.Histogram):
    """A histogram that takes many observations at once."""

    def add(self, buckets: Sequence[int], total: float) -> None:
        """Add so many observations to each bucket; `total` is their sum."""
        self._sum.inc(total)
        for bucket, count in zip(self._buckets, buckets, strict=True):
            if count:
                bucket.inc(count)


# A registry of its own: run as a script with workers, the server is loaded under two names in one process.
_REGISTRY = prometheus_client.CollectorRegistry()
_REQUESTS = prometheus_client.Counter(
    "scrubjay_requests", "Requests answered", ["method", "route", "status"], registry=_REGISTRY
)
_SECONDS = Metric("scrubjay_request_seconds", "Time to answer", ["route"], registry=_REGISTRY)
_BOUNDS = Metric.DEFAULT_BUCKETS


class Kind(NamedTuple):
    """What requests of one tally have in common."""

    method: str
    route: str
    """The path of the route, with the names of its parameters; "none" if no route matched."""
    name: str
    """The name of the route, its verb."""
    status: int
    writes: bool
    is_counted: bool
    """Whether it counts as activity: a request to the API that was admitted, or refused."""


class Tally:
    """How many requests there were in a second, and how long they took."""

    __slots__ = ("buckets", "count", "longest", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.longest = 0.0
        self.buckets = [0] * len(_BOUNDS)


class RequestCounter:
    """The requests that this process has answered."""

    def __init__(self, store: ServedStore) -> None:
        self._store = store
        self._recent: dict[tuple[Any, ...], Tally] = {}
        """By the fields of a Kind."""
        self._minutes: dict[tuple[int, str], list[Any]] = {}
        """By minute and kind: the other fields of a RequestCount, in a list that can be changed."""

    def add(self, scope: Scope, seconds: float) -> None:
        """Count a request that has been answered."""
        route = scope.get("route")
        status = scope.get("status", 500)
        kind = (
            scope["method"],
            getattr(route, "path_format", "none"),
            getattr(route, "name", ""),
            status,
            "writes" in scope,
            "access" in scope or status in REFUSED,
        )
        tally = self._recent.get(kind)
        if tally is None:
            tally = self._recent[kind] = Tally()
        tally.count += 1
        tally.seconds += seconds
        tally.longest = max(tally.longest, seconds)
        tally.buckets[bisect_left(_BOUNDS, seconds)] += 1

    def publish(self) -> None:
        """Add the tallies to the metrics, and to the counts of this minute."""
        recent, self._recent = self._recent, {}
        minute = int(time.time() // 60)
        for fields, tally in recent.items():
            kind = Kind(*fields)
            _REQUESTS.labels(kind.method, kind.route, kind.status).inc(tally.count)
            _SECONDS.labels(kind.route).add(tally.buckets, tally.seconds)
            if kind.is_counted:
                self._count(minute, kind, tally)

    def _count(self, minute: int, kind: Kind, tally: Tally) -> None:
        verb = "recall" if kind.name in RECALLS else "write" if kind.writes else "read"
        count = self._minutes.setdefault((minute, verb), [0, 0, 0, 0.0, 0.0])
        count[0] += tally.count
        if kind.status in REFUSED:
            count[1] += tally.count
        if kind.status >= 500:
            count[2] += tally.count
        count[3] += tally.seconds * 1000
        count[4] = max(count[4], tally.longest * 1000)

    def metrics(self) -> bytes:
        """All metrics of the server, as Prometheus reads them."""
        self.publish()
        registry = _REGISTRY
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = prometheus_client.CollectorRegistry()
            prometheus_client.multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return prometheus_client.generate_latest(registry)

    async def write(self) -> None:
        """Add the counts to the database."""
        self.publish()
        counts, self._minutes = self._minutes, {}
        if counts:
            with contextlib.suppress(ScrubjayError):  # a file that cannot be written; nothing depends on the counts
                requests = (RequestCount(*kind, *count) for kind, count in counts.items())
                await self._store.run(add_requests(tuple(requests)))

    async def write_forever(self) -> None:
        write_at = time.monotonic() + WRITE_SECONDS
        while True:
            await asyncio.sleep(PUBLISH_SECONDS)
            self.publish()
            if time.monotonic() >= write_at:
                write_at += WRITE_SECONDS
                await self.write()
