"""The engine under the service: a SQLite file, or a PostgreSQL database that several servers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrubjay.errors import InvalidInput
from scrubjay.store.engine import ServedStore, Store
from scrubjay.store.operation import Actor
from scrubjay.store.sqlite import SqliteStore
from scrubjay.store.sqlite import erase as sqlite_erase
from scrubjay.store.sqlite.asyncio import AsyncStore
from scrubjay_auth import ApiKeyCache
from scrubjay_watch import Watchers

if TYPE_CHECKING:
    from scrubjay_postgres import NotifiedWatchers, SharedKeyCache


def open_async(store: Store) -> ServedStore:
    """The driver that runs operations of a store under asyncio."""
    if isinstance(store, SqliteStore):
        return AsyncStore(store)
    from scrubjay.store.postgres.asyncio import AsyncPostgresStore  # noqa: PLC0415 - an optional package

    return AsyncPostgresStore(store)


def open_key_cache(store: ServedStore) -> ApiKeyCache | SharedKeyCache:
    if isinstance(store, AsyncStore):
        return ApiKeyCache(store.store)
    from scrubjay_postgres import SharedKeyCache  # noqa: PLC0415 - an optional package

    return SharedKeyCache(store)


def open_watchers(store: ServedStore) -> Watchers | NotifiedWatchers:
    if isinstance(store, AsyncStore):
        return Watchers(store)
    from scrubjay_postgres import NotifiedWatchers  # noqa: PLC0415 - an optional package

    return NotifiedWatchers(store)


def erase(store: Store, namespace: str, actor: Actor) -> sqlite_erase.Erasure:
    """Erase a namespace by the means of the engine."""
    if isinstance(store, SqliteStore):
        return sqlite_erase.erase(store, namespace, actor)
    from scrubjay.store.postgres import erase as postgres_erase  # noqa: PLC0415 - an optional package

    return postgres_erase.erase(store, namespace, actor)


def require_file(store: ServedStore) -> None:
    """Raise InvalidInput if there is no file that could be copied."""
    if not isinstance(store, AsyncStore):
        raise InvalidInput(
            "this server's data is in PostgreSQL: back it up with pg_dump or pg_basebackup, or a namespace with export"
        )
