"""Named queries: operations yield names, and the engine has the SQL text of each."""

from __future__ import annotations

import ast
import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scrubjay.store
from scrubjay.store.sqlite.queries import QUERIES
from scrubjay.store.sqlite.schema import MIGRATIONS

STORE = Path(scrubjay.store.__file__).parent
WITH_SQL = {"notes.py", "note_rows.py", "vectors.py", "word_index.py", "candidates.py"}
"""Modules whose queries have no names yet."""
OPERATIONS = sorted(path for path in STORE.glob("*.py") if path.name not in WITH_SQL)


def strings(node: ast.AST) -> Iterator[str]:
    return (
        each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )  # fmt: skip


def yielded_queries(path: Path) -> Iterator[str]:
    """The first part of each statement: of a tuple that is yielded, or of a SlowQuery or ExecuteMany."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Yield) and node.value is not None:
            for part in ast.walk(node.value):
                if isinstance(part, ast.Tuple) and part.elts and isinstance(part.elts[0], ast.Constant):
                    yield part.elts[0].value
                elif isinstance(part, ast.Call) and getattr(part.func, "id", "") in ("SlowQuery", "ExecuteMany"):
                    yield from strings(part.args[0])


@pytest.mark.parametrize("path", OPERATIONS, ids=lambda path: path.name)
def test_operations_yield_names_of_queries_and_no_sql(path):
    unknown = {query for query in yielded_queries(path) if query not in QUERIES}
    assert not unknown
    assert not [text for text in strings(ast.parse(path.read_text())) if text.startswith(("SELECT ", "INSERT INTO "))]


def test_every_query_is_used():
    paths = [path for path in STORE.rglob("*.py") if path.name != "queries.py"]
    used = {text for path in paths for text in strings(ast.parse(path.read_text()))}
    assert not QUERIES.keys() - used


@contextlib.contextmanager
def empty_database() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for statement in (statement for migration in MIGRATIONS for statement in migration):
            connection.execute(statement)
        yield connection


def explain(connection: sqlite3.Connection, how: str, text: str) -> list[tuple[Any, ...]]:
    marks = set(re.findall(r"\?\d", text)) or text.count("?") * [None]
    return connection.execute(f"{how} {text}", (None,) * len(marks)).fetchall()


def test_every_query_is_valid_in_the_schema():
    with empty_database() as connection:
        connection.execute("CREATE TABLE old_blobs AS SELECT * FROM erasable_blobs")
        for name, text in QUERIES.items():
            if not name.startswith(("rename_", "create_blob")):
                explain(connection, "EXPLAIN", text)


@pytest.mark.parametrize("name", [name for name in QUERIES if name.startswith("page_")])
def test_every_page_of_the_store_begins_where_the_last_one_ended_and_is_not_sorted(name):
    with empty_database() as connection:
        plan = [step for *_, step in explain(connection, "EXPLAIN QUERY PLAN", QUERIES[name])]
    assert not [step for step in plan if step.startswith(("SCAN", "USE TEMP B-TREE"))]
    notes = [step for step in plan if "namespace_id=?" in step]
    assert all("AND id>?" in step or "AND note>?" in step for step in notes)
