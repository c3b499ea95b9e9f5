"""The choice of the engine: a PostgreSQL database if the settings name one, else a SQLite file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from scrubjay.errors import InvalidInput
from scrubjay.settings import Settings
from scrubjay.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from scrubjay.store.postgres import PostgresStore
    from scrubjay.store.postgres.asyncio import AsyncPostgresStore
    from scrubjay.store.sqlite.asyncio import AsyncStore

Store: TypeAlias = "SqliteStore | PostgresStore"
ServedStore: TypeAlias = "AsyncStore | AsyncPostgresStore"
"""A store under asyncio, as the server uses it."""


def open_store(settings: Settings, **options: Any) -> Store:
    """Open the store of these settings; `options` are those of SqliteStore and PostgresStore."""
    options = {
        "durability": settings.durability,
        "secret": settings.secret,
        "audit_days": settings.audit_days,
        "audit_rows": settings.audit_rows,
        **options,
    }
    if not settings.store:
        return SqliteStore(settings.path, **options)
    from scrubjay.store.postgres import PostgresStore  # noqa: PLC0415 - an optional package

    return PostgresStore(settings.store, **options)


def location_of(store: Store) -> str:
    """Where a store is, as messages show it: an absolute path, or a URL without its password."""
    return str(store.path.absolute()) if isinstance(store, SqliteStore) else store.name


def flags_of(settings: Settings) -> str:
    """The flags with which a command works on this store itself: a path, or a URL without its password."""
    if not settings.store:
        return f"--path {shlex.quote(str(Path(settings.path).expanduser().absolute()))}"
    from scrubjay.store.postgres.connection import Address  # noqa: PLC0415 - an optional package

    return f"--url {shlex.quote(Address(settings.store).without_password)}"


def require_file(settings: Settings, instead: str) -> None:
    """Raise InvalidInput if the store is not a file; `instead` says what to do with a PostgreSQL database."""
    if settings.store:
        raise InvalidInput(f"this command works on a SQLite file, and the data is in PostgreSQL: {instead}")
