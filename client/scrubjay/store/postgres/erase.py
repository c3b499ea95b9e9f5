"""Erasure of a namespace in PostgreSQL: its rows are deleted, and VACUUM makes their space free.

What is not proven here, and what the report therefore says: copies of deleted rows remain on the pages until other rows
are written over them, in the write-ahead log and its archive until they are recycled, on replicas until they have
followed, and in backups.
"""

from __future__ import annotations

from hashlib import blake2b

import psycopg

from scrubjay.errors import Unavailable
from scrubjay.store.api_keys import find_named
from scrubjay.store.changes import LogEntry, append_changes
from scrubjay.store.operation import LOCAL, LONG_WRITE, Actor, Context, EngineSql, Statements, operation
from scrubjay.store.postgres.store import PostgresStore
from scrubjay.store.sqlite.erase import Erasure
from scrubjay.store.sqlite.queries import QUERIES
from scrubjay.store.word_index import space_of

TABLES = (
    *("changes", "idempotency_keys", "items", "list_items", "namespaces"),
    *("note_vectors", "notes", "refusals"),
)
"""The tables with a namespace, in the order in which they are counted."""
LIMITS = (
    "the rows are deleted and vacuumed, but PostgreSQL keeps older copies on its pages, in its write-ahead log, on"
    " replicas and in backups until these are reused, and its files were not searched"
)

_KEEP_NUMBER = EngineSql("""INSERT INTO change_floors (namespace_hash, number)
SELECT sha256(convert_to(?1, 'UTF8')), max(number) FROM changes WHERE namespace = ?1 HAVING max(number) IS NOT NULL
ON CONFLICT (namespace_hash) DO UPDATE SET number = greatest(change_floors.number, excluded.number)""")
_DELETE_WORDS = EngineSql(f"{QUERIES['delete_words']} RETURNING 1")


def erase(store: PostgresStore, namespace: str, actor: Actor = LOCAL) -> Erasure:
    """Erase a namespace from the database, in the name of `actor`."""
    deletion = delete_rows(namespace)
    deletion.actor = actor
    rows = store.run(deletion)
    try:
        _vacuum(store)
    except psycopg.Error as error:
        raise Unavailable(f"the rows are deleted, but VACUUM failed: {error}; run VACUUM in the database") from error
    keys = store.run(find_named(namespace))
    return Erasure(namespace, rows, samples=0, shared=0, files=[], bytes=0, traces=[], limits=LIMITS, keys=keys)


def _vacuum(store: PostgresStore) -> None:
    connection = store.take()
    try:
        for table in (*TABLES, "api_keys", "note_words", "erasable_blobs"):
            connection.execute(f"VACUUM {table}".encode())
    finally:
        store.put_back(connection)


@operation("erase", LONG_WRITE)
def delete_rows(context: Context, namespace: str) -> Statements[dict[str, int]]:
    """Delete every row of a namespace; how many each table had.

    The log records an erasure with a digest instead of the name: a person who knows the name can verify it. The numbers
    of its changes go on, so that no watcher takes a new change for one that it has seen.
    """
    digest = blake2b(namespace.encode(), digest_size=8).hexdigest()
    yield from append_changes(context, [LogEntry(context.verb, "", digest)])
    yield _KEEP_NUMBER, (namespace,)
    for table in ("note_vectors", "notes"):
        yield "erase_note_blobs" if table == "notes" else "erase_vector_blobs", (namespace,)
    deleted: dict[str, int] = {}
    rows = yield _DELETE_WORDS, (space_of(namespace),)
    if rows:
        deleted["note_words"] = len(rows)
    for table in TABLES:
        rows = yield EngineSql(f"DELETE FROM {table} WHERE namespace = ? RETURNING 1"), (namespace,)  # noqa: S608
        if rows:
            deleted[table] = len(rows)
    yield "recount_key_usage", ()
    return deleted
