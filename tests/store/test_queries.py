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
from scrubjay.store.operation import WRITE, operation
from scrubjay.store.sqlite.queries import CONDITIONS, FILTERED, QUERIES, REPEATED
from scrubjay.store.sqlite.schema import MIGRATIONS

STORE = Path(scrubjay.store.__file__).parent
OPERATIONS = sorted(STORE.glob("*.py"))
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|DROP|ALTER)\s")
BUILT = [f"{name} where {' and '.join(CONDITIONS)}" for name in FILTERED] + [f"{name} * 2" for name in REPEATED]
"""Queries whose names say what their texts are built of."""
NAMES = QUERIES.keys() | FILTERED.keys() | REPEATED.keys()


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
    assert not {query.removesuffix(" * ") for query in yielded_queries(path)} - NAMES
    texts = strings(ast.parse(path.read_text()))
    assert not [text for text in texts if SQL.match(text) or re.search(r"\b(FROM|WHERE) ", text)]


def test_a_query_that_has_no_name_fails(driver):
    for text in ("SELECT 1", "no_such_query", "list_notes", "list_notes where", "list_notes where 1", "read_note * 2"):

        @operation("test", WRITE)
        def execute(_context, text=text):
            yield text, ()

        with pytest.raises(LookupError):
            driver.run(execute())


def test_every_query_is_used():
    paths = [path for path in STORE.rglob("*.py") if path.name != "queries.py"]
    used = {text.removesuffix(" * ") for path in paths for text in strings(ast.parse(path.read_text()))}
    assert not NAMES - used


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
        for name, text in {**QUERIES, **{name: QUERIES[name] for name in BUILT}}.items():
            if not name.startswith(("rename_", "create_blob")):
                explain(connection, "EXPLAIN", text)


@pytest.mark.parametrize("name", [name for name in QUERIES if name.startswith("page_")])
def test_every_page_of_the_store_begins_where_the_last_one_ended_and_is_not_sorted(name):
    with empty_database() as connection:
        plan = [step for *_, step in explain(connection, "EXPLAIN QUERY PLAN", QUERIES[name])]
    assert not [step for step in plan if step.startswith(("SCAN", "USE TEMP B-TREE"))]
    notes = [step for step in plan if "namespace_id=?" in step]
    assert all("AND id>?" in step or "AND note>?" in step for step in notes)
