"""Strands' own tests of storage and of session managers, on the classes of scrubjay.adapters.strands."""

from __future__ import annotations

import itertools
import sys
import tempfile
import types

import strands.session.snapshot_session_manager
import strands.storage
import strands.storage.in_memory_storage
from swapped import expect_failures

from scrubjay import Memory
from scrubjay.adapters.strands import ScrubjaySessionRepository, ScrubjayStorage

# The conftest imports it for fixtures that these tests do not use.
sys.modules.setdefault("moto", types.ModuleType("moto"))

FOLDER = tempfile.TemporaryDirectory()
_numbers = itertools.count()


def memory():
    return Memory("tests", path=f"{FOLDER.name}/{next(_numbers)}.db", durability="fast", strict=True)


class InMemoryStorage(ScrubjayStorage):
    """With the arguments, and the name, of the class that it replaces."""

    def __init__(self, **_):
        super().__init__(memory())


class MockedSessionRepository(ScrubjaySessionRepository):
    def __init__(self):
        super().__init__(memory())


for module in (strands.storage, strands.storage.in_memory_storage, strands.session.snapshot_session_manager):
    module.InMemoryStorage = InMemoryStorage

_SCOPED = "about `namespace` of the in-memory class; others are wrapped by Strands"
_STRATEGY = "about `search_strategy` of the in-memory class"
_STASH = "about the stash of a storage that does not survive the process"
REASONS = {
    "test_returns_as_is_when_already_namespaced": _SCOPED,
    "test_clear": "about `clear` of the in-memory class",
    "test_namespace": _SCOPED,
    "test_namespace_returns_scoped_instance": _SCOPED,
    "test_namespace_composes": _SCOPED,
    "test_namespace_search_is_scoped": _SCOPED,
    "test_namespace_passes_scoped_instance_to_strategy": _SCOPED,
    "test_namespace_keeps_subclass_overrides_and_attributes": _SCOPED,
    "test_namespace_clear_only_clears_prefix": _SCOPED,
    "test_write_indexes_with_search_strategy": _STRATEGY,
    "test_search_delegates_to_strategy": _STRATEGY,
    "test_save_includes_inline_stash_for_ephemeral_storage": _STASH,
    "test_save_omits_stash_when_empty": _STASH,
    "test_delete_session_keeps_shared_stash": _STASH,
    "test_immutable_snapshot_includes_stash": _STASH,
    "test_ephemeral_detection_survives_namespacing": _STASH,
}


def pytest_configure(config):
    sys.path.insert(0, ".")
    import tests.fixtures.mock_session_repository as fixtures

    fixtures.MockedSessionRepository = MockedSessionRepository


def pytest_collection_modifyitems(items):
    expect_failures(items, REASONS)
