"""Erasure of a namespace, with a search for traces of it.

Rows are deleted from every table that has a namespace, the file is rewritten, and then the file and its log are
searched for random samples of the erased data. What is searched is bytes, so nothing depends on how SQLite stores it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

from scrubjay.errors import Unavailable
from scrubjay.store import erasable
from scrubjay.store.api_keys import find_named
from scrubjay.store.changes import LogEntry, append_changes
from scrubjay.store.operation import LOCAL, LONG_WRITE, Actor, Context, EngineSql, Statements, operation
from scrubjay.store.sqlite.backup import remove_left_over
from scrubjay.store.sqlite.file_identity import descriptor_of
from scrubjay.store.sqlite.queries import IN_NAMESPACE, QUERIES
from scrubjay.store.sqlite.store import SqliteStore
from scrubjay.store.word_index import space_of

MAX_SAMPLES = 300
"""Samples that are searched for: a copy of a hundredth of the data is found with a probability of 95 %, one of a
tenth practically always. Searching 20 MB for them takes one to two seconds."""
SAMPLE_BYTES = 32
"""Bytes of a sample, at most."""
MIN_SAMPLE_BYTES = 15
"""Bytes of a sample, at least: shorter ones occur by chance, or in other data."""
BLOCK_BYTES = 2**22
_SUFFIXES = ("", "-wal", "-journal")

# Each table with rows of namespaces, whether they have blobs, and the condition on the rows of one namespace. Tables
# with ids of namespaces come before the table that says whose they are.
_TABLES = EngineSql(f"""SELECT m.name, max(c.name = 'blob_id'),
iif(max(c.name = 'namespace_id'), '{IN_NAMESPACE}', 'namespace = ?')
FROM sqlite_master m, pragma_table_info(m.name) c
WHERE m.type = 'table' GROUP BY m.name HAVING max(c.name IN ('namespace', 'namespace_id'))
ORDER BY max(c.name = 'namespace_id') DESC, m.name""")  # noqa: S608

_ERASE_BLOBS = "UPDATE erasable_blobs SET is_free = 1, data = zeroblob(size) WHERE id"
_DELETE_WORDS = EngineSql(f"{QUERIES['delete_words']} RETURNING 1")


class Erasure(NamedTuple):
    """What was erased, and the result of the search for it."""

    namespace: str
    rows: dict[str, int]
    """Deleted rows, by table."""
    samples: int
    """Samples of the erased data that were searched for."""
    shared: int
    """Samples that were found because another namespace has the same data."""
    files: list[str]
    bytes: int
    """Bytes that were searched."""
    traces: list[str]
    """Where erased data was found; empty if all of it is gone."""
    limits: str = ""
    """What the engine cannot promise about copies that it keeps itself; empty for a SQLite file."""
    keys: Sequence[Mapping[str, Any]] = ()
    """The api keys that still have the name: their id, name and whether they are revoked."""

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def erase(store: SqliteStore, namespace: str, actor: Actor = LOCAL) -> Erasure:
    """Erase a namespace from this file, in the name of `actor`."""
    with _connection(store) as connection:
        samples = draw_samples(connection, namespace)
    deletion = delete_rows(namespace)
    deletion.actor = actor
    rows = store.run(deletion)
    try:
        store.compact()
    except Unavailable as error:
        raise Unavailable(f"the rows of {namespace!r} are deleted, but their old pages may remain: {error}") from error
    copies = remove_left_over(store.path.parent)
    files = [part for suffix in _SUFFIXES if (part := Path(f"{store.path}{suffix}")).exists()]
    found = {sample: f"{path} at byte {at:,}" for path in files for sample, at in find_samples(path, samples)}
    with _connection(store) as connection:
        shared = _find_in_rows(connection, set(found)) if found else set()
    keys = store.run(find_named(namespace))
    return Erasure(
        namespace,
        rows,
        len(samples),
        len(shared),
        [str(path) for path in files],
        sum(path.stat().st_size for path in files),
        [
            *(trace for sample, trace in found.items() if sample not in shared),
            *(f"{path}: a temporary copy of a killed process, which cannot be deleted; delete it" for path in copies),
        ],
        keys=keys,
    )


@operation("erase", LONG_WRITE)
def delete_rows(context: Context, namespace: str) -> Statements[dict[str, int]]:
    """Delete every row of a namespace, in whatever table; how many each had.

    The log records an erasure with a digest instead of the name: a person who knows the name can verify it.
    """
    digest = blake2b(namespace.encode(), digest_size=8).hexdigest()
    yield from append_changes(context, [LogEntry(context.verb, "", digest)])
    tables = yield _TABLES, ()
    words = yield _DELETE_WORDS, (space_of(namespace),)
    deleted = {"note_words": len(words)} if words else {}
    for _ in range(2):  # again, for rows that triggers have added to other tables
        for table, has_blobs, where in tables:
            if has_blobs:
                blobs = f'SELECT blob_id FROM "{table}" WHERE {where}'  # noqa: S608
                yield EngineSql(f"{_ERASE_BLOBS} IN ({blobs})"), (namespace,)
            ((count,),) = yield EngineSql(f'SELECT count(*) FROM "{table}" WHERE {where}'), (namespace,)  # noqa: S608
            if count:
                deleted[table] = deleted.get(table, 0) + count
                yield EngineSql(f'DELETE FROM "{table}" WHERE {where}'), (namespace,)  # noqa: S608
    yield "recount_key_usage", ()
    return deleted


def draw_samples(connection: Connection, namespace: str) -> list[bytes]:
    """Random parts of what is stored under a namespace, with the same chance for each row."""
    rng = random.Random()  # noqa: S311 - a sample, not a secret
    drawn: list[bytes] = []
    for n, text in enumerate(_texts_of(connection, namespace)):
        index = n if n < MAX_SAMPLES else rng.randrange(n + 1)
        if index < MAX_SAMPLES:
            start = rng.randrange(max(len(text) - SAMPLE_BYTES, 0) + 1)
            drawn[index : index + 1] = [text[start : start + SAMPLE_BYTES]]
    return list(dict.fromkeys(drawn))


def find_samples(path: Path, samples: list[bytes]) -> Iterator[tuple[bytes, int]]:
    """The samples that a file contains, and where."""
    descriptor, start = descriptor_of(path), 0
    while block := _read_at(descriptor, start, BLOCK_BYTES + SAMPLE_BYTES):
        yield from ((sample, start + block.index(sample)) for sample in samples if sample in block)
        start += BLOCK_BYTES


def _read_at(descriptor: int, start: int, size: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, start)
    os.lseek(descriptor, start, os.SEEK_SET)  # Windows, where locks belong to the descriptor
    return os.read(descriptor, size)


def _texts_of(connection: Connection, namespace: str) -> Iterator[bytes]:
    for table, has_blobs, where in connection.execute(_TABLES).fetchall():
        query = f'SELECT * FROM "{table}" t WHERE {where}'  # noqa: S608
        if has_blobs:
            query = f'SELECT b.data FROM "{table}" t JOIN erasable_blobs b ON b.id = t.blob_id WHERE {where}'  # noqa: S608
        for row in connection.execute(query, (namespace,)):
            yield from _texts(tuple(map(erasable.data_of, row)) if has_blobs else row)


def _texts(row: tuple[Any, ...]) -> Iterator[bytes]:
    """The texts of a row that are long enough, where texts side by side count as one, as they are in the file.

    So a short text is found, too: not "Sarah", which may be anywhere, but the namespace, the key and "Sarah".
    """
    joined = b""
    for value in (*row, 0):
        if isinstance(value, str | bytes):
            joined += value.encode() if isinstance(value, str) else value
        elif value is not None:
            if len(joined) >= MIN_SAMPLE_BYTES:
                yield joined
            joined = b""


def _find_in_rows(connection: Connection, samples: set[bytes]) -> set[bytes]:
    """The samples that are part of a row: another namespace may have the same text."""
    found: set[bytes] = set()
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in [*tables, ("sqlite_master",)]:
        for row in connection.execute(f'SELECT * FROM "{table}"'):  # noqa: S608
            for text in _texts(row):
                found |= {sample for sample in samples if sample in text}
    return found


@contextmanager
def _connection(store: SqliteStore) -> Iterator[Connection]:
    connection = store.take()
    try:
        yield connection
    finally:
        store.put_back(connection)
