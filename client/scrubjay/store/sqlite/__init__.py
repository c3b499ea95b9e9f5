"""The SQLite engine: connections, group commit, queries, maintenance, backup and erasure."""

from scrubjay.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
