"""The PostgreSQL engine: connections, locks, group commit, queries and notifications."""

from scrubjay.errors import MissingExtra

try:
    import psycopg  # noqa: F401 - before the modules that need it, for a better error
except ImportError as error:
    raise MissingExtra(f'PostgreSQL is not installed ({error}); run: pip install "scrubjay[postgres]"') from error

from scrubjay.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
