"""The connections of a process to a SQLite file: opening it, settings, a pool, and what SQLite's errors mean.

Idle connections are reused last in, first out, so that a single thread always gets the same warm one.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sqlite3
import time
import weakref
from pathlib import Path
from typing import TypeVar

from scrubjay.errors import InvalidInput, ScrubjayError, Unavailable
from scrubjay.store.operation import Context, ExecuteMany, Operation, Rows, SlowQuery, Statement, WouldBlock
from scrubjay.store.pool import ConnectionPool, unknown_format
from scrubjay.store.sqlite.file_identity import FileIdentity
from scrubjay.store.sqlite.queries import QUERIES
from scrubjay.store.sqlite.schema import APPLICATION_ID, MIGRATIONS, VERSION
from scrubjay.store.sqlite.turnstile import Turnstile

T = TypeVar("T")

BUSY_SECONDS = 30.0
"""Seconds that a writer waits for the lock of another process before it raises Unavailable."""
CACHE_KIB = 8000
"""KiB of the file that a connection caches; with SQLite's default of 2 MB, a recall among 100,000 notes takes twice as
long."""
SYNCHRONOUS = {"full": "FULL", "fast": "NORMAL"}
"""full: an acknowledged write is on disk. fast: a power cut may lose the last writes, but never damages the file."""
CHECKPOINT_PAGES = {"full": 1000, "fast": 4000}
"""Pages of 4 KiB in the write-ahead log, by durability, at which SQLite copies it into the file, and starts it again.
This costs two fsyncs, the only ones with "fast". With "full" each commit has one, which takes up to twice as long while
the log still grows, because the file's new size has to reach the disk too."""

_open_stores: weakref.WeakSet[Connections] = weakref.WeakSet()
"""The open files of this process: SQLite's locks only show which files other processes have open."""
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Connections(ConnectionPool[sqlite3.Connection]):
    """A SQLite file, which is created if it does not exist, and the connections to it."""

    def __init__(self, path: str | os.PathLike[str], *, durability: str, busy_seconds: float) -> None:
        if durability not in SYNCHRONOUS:
            raise InvalidInput(f"durability is 'full' or 'fast', not {durability!r}")
        self.path = Path(path).expanduser()
        self.name = str(self.path)
        """The file's name in error messages."""
        self.durability = durability
        self._busy_seconds = busy_seconds
        self._identity = FileIdentity(self.path)
        self._mode = ""
        self.damage = ""
        """SQLite's first error about a damaged file, since this was opened."""
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.turnstile = Turnstile(self.path.parent)

    def close(self) -> None:
        """Close the connections; the last one to close copies the write-ahead log into the file."""
        super().close()
        self.turnstile.close()

    def discard(self, connection: sqlite3.Connection) -> None:
        self._save_log(connection)
        super().discard(connection)

    def connect(self, *, busy_seconds: float | None = None) -> sqlite3.Connection:
        """A new connection that waits so many seconds for the locks of other processes."""
        if self.is_closed:
            raise Unavailable(f"the store {self.path} is closed; open it again")
        wait = self._busy_seconds if busy_seconds is None else busy_seconds
        with self._opening:
            self._check_file()
            try:
                connection = sqlite3.connect(
                    self.uri, timeout=wait, isolation_level=None, check_same_thread=False, uri=True
                )
            except sqlite3.Error as error:
                raise self.explained(error) from error
            try:
                self._configure(connection)
            except BaseException as error:
                connection.close()
                if isinstance(error, sqlite3.Error):
                    raise self.explained(error) from error
                raise
            self._opened.add(connection)
        return connection

    def _configure(self, connection: sqlite3.Connection) -> None:
        self._check_file()  # again: it may have been replaced before it was opened
        if not self._opened:
            self._identity.refuse_foreign_log()
        for pragma in self.pragmas():
            connection.execute(pragma)
        if not self._opened:
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()  # this opens the log
            self._identity.remember_log()

    @property
    def uri(self) -> str:
        """The file as SQLite takes it; a path may contain characters that have a meaning in a URI."""
        return f"{self._identity.uri}{self._mode}"

    def pragmas(self) -> tuple[str, ...]:
        """The settings of every connection, here and under aiosqlite."""
        return (
            f"PRAGMA synchronous = {SYNCHRONOUS[self.durability]}",
            f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES[self.durability]}",
            f"PRAGMA cache_size = -{CACHE_KIB}",
            "PRAGMA secure_delete = ON",  # deleted data is overwritten
            "PRAGMA fullfsync = ON",  # macOS: fsync alone does not reach the disk there
        )

    def explained(self, error: sqlite3.Error) -> ScrubjayError:
        explanation = explain(error, self.name, self._busy_seconds)
        if _code_of(error) in _DAMAGED:
            self.damage = self.damage or str(explanation)
        return explanation

    def checkpoint(self, connection: sqlite3.Connection, wait_ms: int = 0) -> bool:
        """Copy the write-ahead log into the file and empty it, so that it has no copy of erased data.

        False when another connection that reads or writes needs the log for longer than `wait_ms`.
        """
        try:
            connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
            (is_blocked, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error:  # nothing is lost: committed data is in the log
            return False
        finally:
            connection.execute(f"PRAGMA busy_timeout = {int(self._busy_seconds * 1000)}")
        return not is_blocked

    def before_fork(self) -> None:
        super().before_fork()
        self.turnstile.close()  # a child would share its lock

    # ------------------------------------------------------------ the file

    def open_file(self) -> None:
        """Create the file if it does not exist, and bring its tables up to this program's version."""
        try:
            self._identity.refuse_lost_file()
        except OSError as error:  # such as a name that is too long
            raise self._unusable("write", error.strerror) from error
        self._create_file()
        self._mode = self._find_mode()
        if not self._mode:
            self._make_log_writable()
        self._identity.remember_file()
        for other in list(_open_stores):
            if other is not self:
                other.refuse_replacement(self._identity)
        connection = self.take()
        try:
            self._migrate(connection)
            self.prepare(connection)
        except sqlite3.Error as error:
            raise self.explained(error) from error
        finally:
            roll_back(connection)
            self.put_back(connection)
        self._identity.remember_content()
        _open_stores.add(self)

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Read what is needed of a file that was opened."""

    def _create_file(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Readable for its user alone; SQLite gives the log the file's mode.
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            # Not opened and closed: that would give up every lock of this process on it, those of other stores too.
            if not self.path.is_file():
                raise self._unusable("write", "it is not a file") from None
            if not os.access(self.path, os.R_OK):
                raise self._unusable("read", "its permissions do not allow it to this user") from None
        except OSError as error:
            raise self._unusable("write", error.strerror) from error

    def _unusable(self, verb: str, reason: str | None) -> Unavailable:
        return Unavailable(f"cannot {verb} {self.path}: {reason}; name another file with --path or set SCRUBJAY_PATH")

    def _find_mode(self) -> str:
        """The URI parameters that open the file: one that may not be written can still be read.

        Beside a file in WAL mode SQLite creates two more, which the folder may forbid. Without a log no process has
        the file open, and it can be read as immutable.
        """
        if not os.access(self.path.parent, os.W_OK) and not Path(f"{self.path}-wal").exists():
            return "?mode=ro&immutable=1"
        return "" if os.access(self.path, os.W_OK) else "?mode=ro"

    def _make_log_writable(self) -> None:
        """Give the log the mode of the file, as SQLite does when it creates one.

        A reader of a file that could not be written has created a log that cannot be written either, and leaves it.
        """
        file = os.path.realpath(self.path)
        for log in (f"{file}-shm", f"{file}-wal"):
            if _is_unwritable(log):
                with contextlib.suppress(OSError):  # it is another user's
                    Path(log).chmod(self.path.stat().st_mode & 0o777)

    @property
    def only_reads(self) -> bool:
        """Whether the file, or its folder, may not be written."""
        return bool(self._mode)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        if self._format(connection) == VERSION and (self._mode or _journal_mode(connection) == "wal"):
            return
        retry_while_busy(connection, "PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        for migration in MIGRATIONS[self._format(connection) :]:  # again: another process may have been faster
            for statement in migration:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")

    def _format(self, connection: sqlite3.Connection) -> int:
        """The file's version; 0 for a new one, and an error for a file that this program must not change."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != APPLICATION_ID and (tables or version):
            raise Unavailable(f"{self.path} is another program's database; name another file with SCRUBJAY_PATH")
        if version < VERSION and self._mode:
            raise Unavailable(
                f"{self.path} is of an older format and cannot be written; open it once where it can, or copy it"
            )
        if version > VERSION:
            raise unknown_format(self.path, version, VERSION)
        return int(version)

    # ------------------------------------------------------------ whether the file is still at its path

    def check_file_identity(self) -> None:
        """Raise Unavailable if the file or its log was moved, emptied, deleted or replaced."""
        if not self._identity.is_unchanged():
            raise Unavailable(self.describe_loss())

    def check_recently(self) -> None:
        """The same for reads, which rely on the last check for a moment."""
        if not self._identity.was_file_recently():
            raise Unavailable(self.describe_loss())

    def check_before_write(self, connection: sqlite3.Connection) -> None:
        """The same for a connection that has begun to write, which relies on the last check for a millisecond."""
        if not self._identity.may_write():
            self.refuse_lost_file(connection)

    def refuse_lost_file(self, connection: sqlite3.Connection) -> None:
        """The same for a connection that is about to read or write."""
        if self._identity.is_unchanged():
            return
        reason = self.describe_loss()
        roll_back(connection)
        self._save_log(connection)
        raise Unavailable(reason)

    def has_file(self, connection: sqlite3.Connection) -> bool:
        """Whether the file is still at its path after a commit; if not, the file gets what its log has."""
        if self._identity.has_written():
            return True
        self._save_log(connection)
        return False

    def _check_file(self) -> None:
        if not self._identity.is_file():
            raise Unavailable(self.describe_loss())

    def describe_loss(self) -> str:
        return f"{self._identity.describe_loss(self.name)}; put it back, or stop this process and start it again"

    def _save_log(self, connection: sqlite3.Connection) -> None:
        """If the file is not at its path, copy the log into it, wherever it is now, and empty the log.

        SQLite leaves the log of a moved file at the old path, and would apply it to any file that is put there; an
        empty log does no harm. No process opens that other file with this log: see FileIdentity.refuse_foreign_log.
        """
        if self._opened and not self._identity.is_unchanged() and self._identity.takes_log():
            self.checkpoint(connection)

    def refuse_replacement(self, identity: FileIdentity) -> None:
        """Refuse that another store of this process opens a file that replaced this one's.

        FileIdentity.refuse_foreign_log cannot see that: a process does not see its own locks.
        """
        is_same_path = self._opened and not self.is_closed and self._identity.has_path_of(identity)
        if is_same_path and not self._identity.is_unchanged():
            raise Unavailable(f"{self.describe_loss()}; or close every Memory that uses it")


def run_statements(
    connection: sqlite3.Connection, operation: Operation[T], context: Context, max_rows: float = math.inf
) -> T:
    """Run an operation's statements on a connection."""
    statements = operation.start(context)
    execute, text_of = connection.execute, QUERIES.__getitem__
    rows: Rows
    try:
        statement: Statement = next(statements)
        while True:
            query, params = statement
            if type(statement) is tuple or (type(statement) is SlowQuery and max_rows is math.inf):
                rows = execute(text_of(query), params).fetchall()
            elif type(statement) is ExecuteMany and len(params) <= max_rows:
                connection.executemany(text_of(query), params)
                rows = []
            else:
                raise WouldBlock
            statement = statements.send(rows)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def explain(error: sqlite3.Error, path: Path | str, busy_seconds: float = BUSY_SECONDS) -> ScrubjayError:
    """SQLite's error as a cause and a fix."""
    code = _code_of(error)
    if code in _BUSY:
        return Unavailable(f"another process has been writing to {path} for {busy_seconds:g} s; try again")
    file = shlex.quote(str(path)) if Path(path).is_absolute() else "FILE"
    rescue = f"restore a backup with `scrubjay restore`, or save what can be read: scrubjay recover {file}"
    advice = {
        sqlite3.SQLITE_FULL: "the disk is full: free some space; nothing was half-written",
        sqlite3.SQLITE_IOERR: "the disk reports an error: it may be full or over a limit; nothing was half-written",
        sqlite3.SQLITE_READONLY: (
            f"{find_unwritable(path) or 'the file'} cannot be written: check its permissions, or set SCRUBJAY_PATH"
        ),
        sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: check the folder's permissions, or set SCRUBJAY_PATH",
        sqlite3.SQLITE_CORRUPT: f"the file is damaged: {rescue}",
        sqlite3.SQLITE_NOTADB: (
            f"this is not a SQLite file, or its first page is damaged: name another with SCRUBJAY_PATH; or {rescue}"
        ),
    }.get(code, "run `scrubjay doctor`")
    return Unavailable(f"{path}: {error}; {advice}")


def _code_of(error: Exception) -> int:
    """SQLite's primary result code; 0 for an error that has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def find_unwritable(path: Path | str) -> Path | None:
    """The first that this user may not write of a file, its log, and their folder; None if a write needs no more."""
    file = os.path.realpath(path)  # SQLite follows symbolic links before it adds to the name
    parts = (file, f"{file}-shm", f"{file}-wal", Path(file).parent)
    return next((Path(part) for part in parts if _is_unwritable(part)), None)


def _is_unwritable(path: Path | str) -> bool:
    """Whether a file or folder exists, and this user may not write it."""
    return os.access(path, os.F_OK) and not os.access(path, os.W_OK)


def is_busy(error: Exception) -> bool:
    """Whether a statement failed because another connection has a lock."""
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode in _BUSY


def roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def retry_while_busy(connection: sqlite3.Connection, statement: str) -> None:
    """Execute a statement that fails at once when another process has a lock, such as the switch to WAL mode."""
    give_up_at = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute(statement)
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)
        else:
            return


def _journal_mode(connection: sqlite3.Connection) -> str:
    """Not "wal" if a process was killed while it had the file for itself."""
    return str(connection.execute("PRAGMA journal_mode").fetchone()[0])
