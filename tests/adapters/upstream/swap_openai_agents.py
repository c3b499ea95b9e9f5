"""The OpenAI Agents SDK's own session tests, on ScrubjaySession in place of SQLiteSession."""

from __future__ import annotations

import itertools
import tempfile

import agents
import agents.memory
import agents.memory.sqlite_session
from swapped import expect_failures

from scrubjay import Memory
from scrubjay.adapters.openai_agents import ScrubjaySession

FOLDER = tempfile.TemporaryDirectory()
_numbers = itertools.count()


class SQLiteSession(ScrubjaySession):
    """With the arguments, and the name, of the class that it replaces."""

    def __init__(self, session_id, db_path=":memory:", *_tables, session_settings=None, **_names):
        is_private = str(db_path) == ":memory:"
        path = f"{FOLDER.name}/{next(_numbers)}.db" if is_private else f"{db_path}.scrubjay"
        memory = Memory("tests", path=path, durability="fast")
        super().__init__(session_id, memory, session_settings=session_settings)


for module in (agents, agents.memory, agents.memory.sqlite_session):
    module.SQLiteSession = SQLiteSession

_CONNECTIONS = "about SQLite connections of threads"
_CORRUPT = "writes damaged rows into SQLite's table"
_ROLLBACK = "replaces the SQLite connection by one that fails"
REASONS = {
    "test_sqlite_session_close_closes_worker_thread_connections": _CONNECTIONS,
    "test_sqlite_session_reaps_connections_from_exited_worker_threads": _CONNECTIONS,
    "test_sqlite_session_closes_retired_connections_before_the_next_allocation": _CONNECTIONS,
    "test_sqlite_session_keeps_connections_of_live_worker_threads": _CONNECTIONS,
    "test_sqlite_session_file_lock_is_shared_across_instances": "about a lock of SQLiteSession",
    "test_sqlite_session_pop_item_skips_corrupt_most_recent": _CORRUPT,
    "test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows": _CORRUPT,
    "test_sqlite_session_get_items_limit_skips_corrupt_newest_rows": _CORRUPT,
    "test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows": _CORRUPT,
    "test_sqlite_session_failed_add_items_releases_write_lock": _ROLLBACK,
    "test_sqlite_session_failed_clear_session_rolls_back": _ROLLBACK,
    "test_sqlite_session_failed_pop_item_releases_write_lock": _ROLLBACK,
    "test_sqlite_session_rollback_failure_evicts_connection": _ROLLBACK,
    "test_sqlite_session_close_retries_quarantined_connection": _ROLLBACK,
    "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome": _ROLLBACK,
}


def pytest_collection_modifyitems(items):
    expect_failures(items, REASONS)
