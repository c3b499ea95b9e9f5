"""LangChain's standard tests of stores and caches, on the classes of scrubjay.adapters.langchain."""

from __future__ import annotations

import pytest
from langchain_tests.integration_tests import (
    AsyncCacheTestSuite,
    BaseStoreAsyncTests,
    BaseStoreSyncTests,
    SyncCacheTestSuite,
)

from scrubjay import Memory
from scrubjay.adapters.langchain import ScrubjayByteStore, ScrubjayCache, ScrubjayJsonStore


@pytest.fixture
def memory(tmp_path):
    with Memory("tests", path=tmp_path / "scrubjay.db", durability="fast") as memory:
        yield memory


class _Bytes:
    @pytest.fixture
    def kv_store(self, memory):
        return ScrubjayByteStore(memory)

    @pytest.fixture
    def three_values(self):
        return b"foo", b"", bytes(range(256))


class TestByteStore(_Bytes, BaseStoreSyncTests):
    pass


class TestByteStoreAsync(_Bytes, BaseStoreAsyncTests):
    pass


class TestJsonStore(BaseStoreSyncTests):
    @pytest.fixture
    def kv_store(self, memory):
        return ScrubjayJsonStore(memory)

    @pytest.fixture
    def three_values(self):
        return {"a": [1]}, "text", 2.5


class _Cache:
    @pytest.fixture
    def cache(self, memory):
        return ScrubjayCache(memory)


class TestCache(_Cache, SyncCacheTestSuite):
    pass


class TestCacheAsync(_Cache, AsyncCacheTestSuite):
    pass
