"""LangGraph's own tests of its SQLite store, on ScrubjayStore in place of it."""

from __future__ import annotations

import contextlib
import itertools
import tempfile

import langgraph.store.sqlite
import langgraph.store.sqlite.aio
import langgraph.store.sqlite.base
import pytest
from swapped import expect_failures

from scrubjay import Memory
from scrubjay.adapters.langgraph import ScrubjayStore

FOLDER = tempfile.TemporaryDirectory()
_numbers = itertools.count()


class _Store(ScrubjayStore):
    """With the methods that the tests call beside those of the interface."""

    is_setup = True

    def __init__(self, path, ttl=None):
        name = f"{FOLDER.name}/{next(_numbers)}.db" if path == ":memory:" else f"{path}.scrubjay"
        super().__init__(Memory("tests", path=name, durability="fast"), ttl=ttl)

    @classmethod
    def open(cls, path, *, index=None, ttl=None):
        if index is not None:
            pytest.skip("vectors of the caller's own: ScrubjayStore finds words, and needs none")
        return cls(path, ttl)


class SqliteStore(_Store):
    @classmethod
    @contextlib.contextmanager
    def from_conn_string(cls, path, **options):
        yield cls.open(path, **options)

    def setup(self):
        """There is nothing to set up."""

    def sweep_ttl(self):
        """Expired items are never seen, and removed without being asked."""
        return 0

    def start_ttl_sweeper(self, *_):
        """See sweep_ttl."""

    def stop_ttl_sweeper(self, *_):
        return True


class AsyncSqliteStore(_Store):
    @classmethod
    @contextlib.asynccontextmanager
    async def from_conn_string(cls, path, **options):
        yield cls.open(path, **options)

    async def setup(self):
        """There is nothing to set up."""

    async def sweep_ttl(self):
        return 0

    async def start_ttl_sweeper(self, *_):
        """See sweep_ttl."""

    async def stop_ttl_sweeper(self, *_):
        return True


for module in (langgraph.store.sqlite, langgraph.store.sqlite.base):
    module.SqliteStore = SqliteStore
for module in (langgraph.store.sqlite, langgraph.store.sqlite.aio):
    module.AsyncSqliteStore = AsyncSqliteStore

REASONS = {
    "test_nonnull_migrations": "about the migrations of the SQLite store",
    "test_no_running_loop": "its async store refuses sync calls; ScrubjayStore takes both",
    "test_ttl_refresh": "counts the rows that the SQLite store sweeps",
}


def pytest_collection_modifyitems(items):
    expect_failures(items, REASONS)
