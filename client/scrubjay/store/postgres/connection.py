"""The connections of a process to a PostgreSQL database: opening it, types, a pool, and what PostgreSQL's errors mean.

Idle connections are reused last in, first out. A connection that fails is closed; the operation gets a new one.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from secrets import token_hex
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumper

from scrubjay.errors import InvalidInput, ScrubjayError, Unavailable, repr_short
from scrubjay.store.pool import ConnectionPool, unknown_format
from scrubjay.store.postgres.schema import MIGRATIONS, VERSION, VERSION_TABLE
from scrubjay.store.postgres.session import NO_SESSION, History, Session
from scrubjay.store.postgres.watchdog import Watchdog

SCHEMES = ("postgresql", "postgres")
BUSY_SECONDS = 30.0
"""Seconds that an operation waits for a lock, or for a database that restarts or fails over, before Unavailable."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.01, 0.5
"""Seconds before an operation is tried again, the first time and after many; each pause is twice the one before."""
MIN_VERSION = 160_000
"""The oldest release that is supported, as libpq counts them: 16, the first that takes subqueries without a name."""
DURABILITY = {"full": "", "fast": "SET synchronous_commit = off;"}
"""full: what the database is set to. fast: a crash of the database may lose the last writes, but never damages it."""
DEFAULT_SCHEMA = "scrubjay"
_SCHEMA_LOCK = 0x5C4A4159
"""The advisory lock of migrations and of the first key envelope: a number that no other program is likely to use."""
_DEFAULTS = {
    "application_name": "scrubjay",
    "connect_timeout": "5",
    "target_session_attrs": "read-write",  # of several hosts, the primary
    "keepalives_idle": "5",  # seconds: a primary that lost its power does not close its connections
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
"""Parameters of a connection that the URL does not set."""
_ENCODING = "write special characters of a password as %XX, such as %25 for %"
_SECRET = re.compile("password|secret")
"""What names the parameters that are not shown."""
_REFUSALS = {
    "28000": 'role ".*" (does not exist|is not permitted to log in)|no pg_hba.conf entry',
    "28P01": "authentication failed|no password supplied",
    "3D000": 'database ".*" does not exist',
    "53300": "too many (clients|connections)|remaining connection slots",
}
"""Codes of errors at connection, and patterns of their texts: libpq gives no code for them."""
_READ_VERSION = f"SELECT version FROM {VERSION_TABLE}".encode()  # noqa: S608
_RETRIED = (
    *("40001", "40P01"),  # serialization failure, deadlock
    *("25006", "57P01", "57P02", "57P03", "57P05"),  # not the primary, shutting down, crashed, starting, idle for long
)
_OTHER_SESSION = ("26000", "42P05", "42P01")  # no such prepared statement, one too many, no such table


class TextDumper(StrDumper):
    """Texts, in which PostgreSQL allows no NUL: it is written as two characters, and so is the escape itself.

    Two texts keep their order, and the escape of a prefix is a prefix of the escape.
    """

    def dump(self, obj: str) -> Buffer | None:
        return escape(obj).encode()


class TextLoader(Loader):
    """Texts as they were before TextDumper."""

    format = Format.TEXT

    def load(self, data: Buffer) -> str:
        text = bytes(data).decode()
        return unescape(text) if "\1" in text else text


class NumericLoader(Loader):
    """Sums of whole numbers, which PostgreSQL gives another type."""

    format = Format.TEXT

    def load(self, data: Buffer) -> int | float:
        text = bytes(data).decode()
        return float(text) if "." in text else int(text)


def escape(text: str) -> str:
    if "\0" not in text and "\1" not in text:
        return text
    return text.replace("\1", "\1\2").replace("\0", "\1\1")


def unescape(text: str) -> str:
    return text.replace("\1\1", "\0").replace("\1\2", "\1")


def _adapters() -> psycopg.adapt.AdaptersMap:
    adapters = psycopg.adapt.AdaptersMap(psycopg.adapters)
    adapters.register_dumper(str, TextDumper)
    adapters.register_dumper(int, Int8Dumper)  # one type for all numbers, so that a query is prepared once
    adapters.register_loader("text", TextLoader)
    adapters.register_loader("numeric", NumericLoader)
    return adapters


_ADAPTERS = _adapters()


class Address:
    """The URL of a database: `postgresql://user:password@host,host/database?schema=name`."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:  # its text may have a part of the password
            raise InvalidInput(
                f"the PostgreSQL URL is not valid; write an IPv6 address in brackets, and {_ENCODING}"
            ) from None
        if parts.scheme not in SCHEMES:
            shown = repr_short(url.rpartition("@")[2].partition("?")[0])  # without a password
            raise InvalidInput(
                f"{shown} is not the URL of a PostgreSQL database; write it as postgresql://host/database, or name"
                " a file with --path or SCRUBJAY_PATH"
            )
        credentials, _, netloc = parts.netloc.rpartition("@")
        if "@" in credentials or parts.fragment or ("@" in url and not credentials and _ends_early(parts)):
            raise InvalidInput(
                f"the password in the PostgreSQL URL has a '/', '?', '#' or '@', which ends it; {_ENCODING}"
            )
        split = (pair.partition("=") for pair in parts.query.split("&") if pair)
        pairs = [(unquote(name), unquote(value)) for name, _, value in split]
        given = dict(pairs)
        self.schema = given.pop("schema", DEFAULT_SCHEMA)
        """The schema that has the tables: no other program's tables are in it."""
        query = urlencode({**_DEFAULTS, **given}, quote_via=quote)  # with %20: libpq takes a + as it is
        self.conninfo = f"{parts.scheme}://{parts.netloc}{parts.path}?{query}"  # urlunsplit drops the // before no host
        _check_conninfo(self.conninfo, "" if "@" in parts.query else f"{parts.scheme}://{netloc}{parts.path}", given)
        hosts = netloc or given.get("host", "localhost")
        named = "" if self.schema == DEFAULT_SCHEMA else f"?schema={self.schema}"
        self.name = f"{parts.scheme}://{hosts}{parts.path}{named}"
        """The URL as messages show it: without a user and a password."""
        user, at = credentials.partition(":")[0], "@" if credentials else ""
        shown = urlencode([pair for pair in pairs if not _SECRET.search(pair[0])], quote_via=quote, safe="/,:")
        self.without_password = f"{parts.scheme}://{user}{at}{netloc}{parts.path}{shown and f'?{shown}'}"
        """The URL as a command can be given it, where libpq finds the password elsewhere or needs none."""


class Connections(ConnectionPool[Session]):
    """A schema of a PostgreSQL database, which is created if it does not exist, and the connections to it."""

    def __init__(self, url: str, *, durability: str, busy_seconds: float) -> None:
        if durability not in DURABILITY:
            raise InvalidInput(f"durability is 'full' or 'fast', not {durability!r}")
        self.address = Address(url)
        self.name = self.address.name
        """What error messages call the database."""
        self.durability = durability
        self.busy_seconds = busy_seconds
        self._failure: psycopg.Error | None = None
        self.reset()

    def reset(self) -> None:
        super().reset()
        self._timeline = 0  # the newest that was seen
        self._watchdog = Watchdog(lambda: list(self._opened), self._find_primary)

    def take_idle(self) -> Session | None:
        """The connection that was used last; None if all are in use."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def put_back(self, connection: Session) -> None:
        """Keep a connection for the next caller, unless it was lost or a transaction on it has not ended."""
        if connection.is_idle:
            super().put_back(connection)
        else:
            self.discard(connection)

    def close(self) -> None:
        self._watchdog.close()
        super().close()

    def connect(self) -> Session:
        """A new connection; raises psycopg.Error if no host can be used now."""
        if self.is_closed:
            raise Unavailable(f"the store {self.name} is closed; open it again")
        # Without a lock: a host that does not answer must not hold up the threads that would try the next one.
        # psycopg must prepare nothing of its own: it would then deallocate all of a session's statements at a ROLLBACK.
        connection = Session.connect(
            self.address.conninfo,
            autocommit=True,
            context=_Context(),
            cursor_factory=psycopg.RawCursor,
            prepare_threshold=None,
        )
        try:
            self._configure(connection)
            connection.use_types()
            connection.history = _read_history(connection)
            with self._opening:
                self._leave_old_primary(connection.history.timeline)
                self._opened.add(connection)
        except BaseException:
            connection.close()
            raise
        self._watchdog.start()
        return connection

    def _leave_old_primary(self, timeline: int) -> None:
        """Cut the connections to a primary that has been replaced, and refuse new ones.

        It may be frozen, and never answer; or go on, and not know yet that it was replaced.
        """
        if timeline < self._timeline:
            raise psycopg.OperationalError(
                f"the host was the primary before another one took over (timeline {timeline}, and {self._timeline} was"
                " seen); if the database was replaced by an older one, start this program again"
            )
        self._timeline = timeline
        for connection in list(self._opened):
            if connection.history.timeline < timeline:
                _cut(connection)

    def _find_primary(self) -> None:
        with contextlib.suppress(psycopg.Error, ScrubjayError):
            self.discard(self.connect())

    def _configure(self, connection: Session) -> None:
        if connection.info.server_version < MIN_VERSION:
            raise Unavailable(
                f"{self.name} is PostgreSQL {connection.info.server_version // 10_000}, and Scrubjay needs"
                f" {MIN_VERSION // 10_000} or newer; upgrade it"
            )
        schema = sql.Identifier(self.address.schema).as_string(connection)
        connection.mark = token_hex(8)
        connection.execute(
            f"SET scrubjay.session = '{connection.mark}'; SET search_path = {schema};"
            f"SET lock_timeout = {int(self.busy_seconds * 1000)};"
            # The rows of a UNION ALL come in its order only if one process reads them.
            f"SET max_parallel_workers_per_gather = 0; SET client_min_messages = warning;"
            # A query reads few rows by their keys. Without statistics PostgreSQL guesses more, reads a whole table to
            # join it, and compiles the plan.
            f"SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off;"
            # A writer whose process was stopped must not keep the lock of its namespace.
            f"SET idle_in_transaction_session_timeout = '60s'; {DURABILITY[self.durability]}".encode()
        )

    # ------------------------------------------------------------ attempts

    def end(self, connection: Session) -> None:
        """End the transaction of a connection, if there is one, and put it back."""
        with contextlib.suppress(psycopg.Error):
            if not (connection.closed or connection.is_waiting or connection.is_idle):
                connection.execute("ROLLBACK")
        self.put_back(connection)

    def retry_while_busy(self, seconds: float | None = None) -> Iterator[None]:
        """Attempts, with pauses between them, until `busy_seconds` are over; then the last failure is raised."""
        give_up_at = time.monotonic() + (self.busy_seconds if seconds is None else seconds)
        pause = FIRST_PAUSE_SECONDS
        while True:
            yield
            if time.monotonic() + pause > give_up_at or self.is_closed:
                failure = self._failure or psycopg.OperationalError("no host answers")
                raise self.explained(failure) from failure
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    def failed(self, error: psycopg.Error) -> None:
        """Remember why an attempt failed; the idle connections were probably lost for the same reason."""
        self._failure = error
        self.close_idle()

    # ------------------------------------------------------------ the schema

    def open_database(self) -> None:
        """Create the schema if it does not exist, and bring its tables up to this program's version."""
        try:
            connection = self.take()
        except psycopg.Error as error:
            raise self.explained(error) from error
        try:
            if self._version(connection) != VERSION:
                with connection.transaction():
                    self._migrate(connection)
            self.prepare(connection)
        except psycopg.Error as error:
            raise self.explained(error) from error
        finally:
            self.put_back(connection)

    def prepare(self, connection: Session) -> None:
        """Read what is needed of a database that was opened."""

    def _migrate(self, connection: Session) -> None:
        lock_schema(connection)  # several servers start at the same time
        schema = sql.Identifier(self.address.schema).as_string(connection)
        (exists,) = connection.execute("SELECT to_regnamespace($1) IS NOT NULL", (schema,)).fetchone() or (False,)
        if not exists:
            connection.execute(f"CREATE SCHEMA {schema}".encode())
        version = self._version(connection)
        if not version:
            connection.execute(f"CREATE TABLE {VERSION_TABLE} (version BIGINT NOT NULL)".encode())
            connection.execute(f"INSERT INTO {VERSION_TABLE} VALUES (0)".encode())  # noqa: S608
        for migration in MIGRATIONS[version:]:
            for statement in migration:
                connection.execute(statement.encode())
        connection.execute(f"UPDATE {VERSION_TABLE} SET version = $1".encode(), (VERSION,))  # noqa: S608

    def _version(self, connection: Session) -> int:
        """The version of the schema; 0 for a new one, and an error for one that this program must not change."""
        (found,) = connection.execute("SELECT to_regclass($1) IS NOT NULL", (VERSION_TABLE,)).fetchone() or (False,)
        if not found:
            self._refuse_other_tables(connection)
            return 0
        (version,) = connection.execute(_READ_VERSION).fetchone() or (0,)
        if version > VERSION:
            raise unknown_format(self.name, version, VERSION)
        return int(version)

    def _refuse_other_tables(self, connection: Session) -> None:
        tables = connection.execute("SELECT 1 FROM pg_tables WHERE schemaname = $1 LIMIT 1", (self.address.schema,))
        if tables.fetchone():
            raise Unavailable(
                f"the schema {self.address.schema!r} of {self.name} has another program's tables; name another with"
                " ?schema=NAME at the end of the URL"
            )

    # ------------------------------------------------------------ errors

    def explained(self, error: psycopg.Error) -> ScrubjayError:
        """PostgreSQL's error as a cause and a fix."""
        text = (error.diag.message_primary or str(error)).strip().partition("\n")[0]
        code = error.sqlstate or _code_of(text)
        if code in _OTHER_SESSION:
            return Unavailable(f"{self.name}: {text}; the schema was removed, or {NO_SESSION}")
        if code == "55P03":
            return Unavailable(f"another client has been writing to {self.name} for {self.busy_seconds:g} s; try again")
        if code.startswith("28"):
            return Unavailable(f"{self.name}: {text}; check the user and the password in the URL, or set PGPASSWORD")
        if code == "3D000":
            return Unavailable(f"{self.name}: {text}; check its name in the URL, or create the database")
        if code == "42501":
            return Unavailable(f"{self.name}: {text}; grant the user CREATE on the database")
        if code.startswith("53"):
            return Unavailable(f"{self.name}: {text}; free some space, or allow more connections; nothing was written")
        if is_temporary(error):
            return Unavailable(
                f"cannot reach {self.name}: {text}; check the URL, that it is running, and that one of its hosts is the"
                " primary"
            )
        if not code:  # psycopg's, of a parameter
            return Unavailable(f"{self.name}: {text}; check the parameters in the URL")
        return Unavailable(f"{self.name}: {text} ({code}); run `scrubjay doctor`")


class _Context:
    """Gives a connection its types."""

    adapters = _ADAPTERS
    connection = None


def is_temporary(error: BaseException) -> bool:
    """Whether an operation may succeed when it is started again: on a new connection, on another host, or later."""
    if not isinstance(error, psycopg.Error):
        return False
    code = error.sqlstate
    if code is None:  # the connection was lost, or none could be opened
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return code in _RETRIED or code.startswith("08")


def _read_history(connection: Session) -> History:
    query = """SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8),
        (SELECT stats_reset::text FROM pg_stat_archiver)"""
    timeline, reset_at = connection.execute(query).fetchone() or ("0", "")
    return History(int(timeline, 16), reset_at)


def _cut(connection: Session) -> None:
    """End a connection under the thread that uses it, which sees that it was lost."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as copy:
        if not connection.closed:  # else the number may have been another file's by the time it was copied
            copy.shutdown(socket.SHUT_RDWR)


def _code_of(text: str) -> str:
    """The code of an error at connection, which libpq gives as a text alone; empty if it is not a known one."""
    return next((code for code, pattern in _REFUSALS.items() if re.search(pattern, text)), "")


def _check_conninfo(conninfo: str, location: str, given: Mapping[str, str]) -> None:
    """Refuse a URL that libpq cannot parse.

    libpq's text repeats what it cannot parse, so it is shown only for the location without credentials, and for the
    names of parameters.
    """
    with contextlib.suppress(psycopg.ProgrammingError):
        conninfo_to_dict(conninfo)
        return
    if location and "password" not in given:
        try:
            conninfo_to_dict(f"{location}?{urlencode(dict.fromkeys(given, ''))}")
        except psycopg.ProgrammingError as error:
            raise InvalidInput(
                f"the PostgreSQL URL is not valid: {str(error).strip()}; correct it: its parameters are those of"
                " libpq, and schema"
            ) from None
    raise InvalidInput(f"the PostgreSQL URL is not valid; {_ENCODING}")


def _ends_early(parts: SplitResult) -> bool:
    """Whether the host of a URL without credentials may be a user and the start of a password."""
    return not _has_ports(parts.netloc) or (":" in parts.netloc and "@" in parts.path)


def _has_ports(hosts: str) -> bool:
    """Whether a port stands behind each colon, but for those of IPv6 addresses, which are in brackets."""
    return not re.search(r":\d*[^\d,]", re.sub(r"\[.*?\]", "", hosts))


def lock_schema(connection: Session) -> None:
    connection.execute(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})".encode())
