"""The candidates of a query: which notes SQLite reads to find them."""

from __future__ import annotations

import contextlib
import sqlite3

from scrubjay.store.sqlite import SqliteStore
from scrubjay.store.sqlite.queries import QUERIES


def test_filters_read_the_candidates_and_not_all_notes_of_the_namespace(tmp_path):
    SqliteStore(tmp_path / "db").close()
    sql = QUERIES["find_allowed_notes where is_live and is_current"]
    with contextlib.closing(sqlite3.connect(tmp_path / "db")) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", ("ns", 0, "[1]"))]
    assert plan[0] == "SEARCH n USING INTEGER PRIMARY KEY (rowid=?)"
