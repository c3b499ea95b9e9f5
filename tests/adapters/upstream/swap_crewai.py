"""CrewAI's own tests of flow persistence, on ScrubjayFlowPersistence in place of its SQLite class."""

from __future__ import annotations

import itertools
import tempfile

import crewai.flow.persistence
import crewai.flow.persistence.sqlite
import pytest

from scrubjay import Memory
from scrubjay.adapters.crewai import ScrubjayFlowPersistence

FOLDER = tempfile.TemporaryDirectory()
_numbers = itertools.count()
_flows = set()
"""The flows whose states were stored: empty if the tests use another class."""


class SQLiteFlowPersistence(ScrubjayFlowPersistence):
    """With the arguments, and the name, of the class that it replaces."""

    def __init__(self, db_path=None, /, **fields):
        path = f"{FOLDER.name}/{next(_numbers)}.db" if db_path is None else f"{db_path}.scrubjay"
        super().__init__(Memory("tests", path=path, durability="fast"), **fields)

    def save_state(self, flow_uuid, method_name, state_data):
        super().save_state(flow_uuid, method_name, state_data)
        _flows.add(flow_uuid)


for module in (crewai.flow.persistence, crewai.flow.persistence.sqlite):
    module.SQLiteFlowPersistence = SQLiteFlowPersistence


def pytest_collection_modifyitems(items):
    """No test reaches into the class, so that none has to fail: here it is checked that the tests have ours."""
    if any(item.module.SQLiteFlowPersistence is not SQLiteFlowPersistence for item in items):
        raise pytest.UsageError("the tests do not use the class that was exchanged")


def pytest_sessionfinish(session):
    if session.testscollected > 1 and not _flows:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
