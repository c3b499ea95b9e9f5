"""The driver for SQLite in this process: embedded mode, and the writer under the server.

Connections wait in a pool, last used first, so a single thread always gets the same warm one back.
Writers line up: whoever holds the lock runs everybody's operations in one transaction, so that
many threads share one fsync and a lone one pays nothing for it.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from scrubjay.errors import InvalidInput, QuotaExceeded, ScrubjayError, Unavailable
from scrubjay.forks import Forkable
from scrubjay.lazy import Lazy
from scrubjay.settings import resolve

from . import changes, drawers, quotas
from .operation import ERASE, NO_QUOTA, READ, WRITES, Context, Long, Many, Operation, Quota, Rows, Statement
from .schema import APPLICATION_ID, MIGRATIONS, VERSION
from .sealing import PLAIN, Cipher, Keyring, open_ring

if TYPE_CHECKING:
    from . import checks
else:
    checks = Lazy("scrubjay.store.checks")  # only `doctor` pays for it

T = TypeVar("T")

BUSY_SECONDS = 30.0
"""How long a writer waits for other processes before it gives up."""
MAX_BATCH = 256
"""Operations in one transaction, so that other processes get their turn."""
SWEEP_SECONDS = 60.0
"""How often a process that writes also removes what has expired."""
CHECKPOINT_PAGES = 4000
"""When the write-ahead log is folded into the file: 16 MB, because each time costs two fsyncs."""
CACHE_KIB = 8000
"""What a connection keeps of the file; with SQLite's own 2 MB, a recall among 100,000 notes takes twice as long."""
FOLD_MILLISECONDS = 100
"""How long an erasure waits for others who still need the log."""
FOLD_AGAIN_SECONDS = 1.0
"""When it is tried again, in the background."""
SYNCHRONOUS = {"full": "FULL", "fast": "NORMAL"}
"""full: acknowledged is on disk. fast: a power cut may take the last moments, and never the file."""

FORK_SECONDS = 5.0
"""How long a fork waits for calls under way in other threads."""

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class Batch:
    """Jobs that are done together: one assignment ends them all, which Ctrl-C cannot cut in two."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False


class Job(Generic[T]):
    """One write operation on its way through a batch."""

    __slots__ = ("batch", "error", "operation", "result")

    def __init__(self, operation: Operation[T]) -> None:
        self.operation = operation
        self.batch = Batch()
        self.error: Exception | None = None
        self.result: T | None = None

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


class SqliteStore(Forkable):
    """A database file. Safe to use from many threads and processes at once."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: str = "full",
        quota: Quota = NO_QUOTA,
        patience: float = BUSY_SECONDS,
        clock: Callable[[], float] = time.time,
        secret: str | None = None,
    ) -> None:
        if durability not in SYNCHRONOUS:
            raise InvalidInput(f"durability is 'full' or 'fast', not {durability!r}")
        self.path = Path(path).expanduser()
        self.name = str(self.path)
        """What messages call it."""
        self.durability = durability
        self.quota = quota
        self._clock = clock
        self._patience = patience
        self._swept_at = -math.inf  # the first write sweeps: what runs for a minute only would never do it otherwise
        self._closed = False
        self._secret: str | None = resolve("secret", secret) or None
        self._cipher = PLAIN
        self._records = resolve("audit_rows") > 0
        self._mode = ""
        self.start_anew()
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise
        self.watch_forks()

    def start_anew(self) -> None:
        self._idle: list[sqlite3.Connection] = []
        self._jobs: deque[Job[Any]] = deque()
        self._writing = threading.Lock()
        self._gate = threading.RLock()  # whoever opens or closes a connection; a fork holds it
        self._opened: set[sqlite3.Connection] = set()
        self._held: list[Any] = []
        self._forking = False
        self._fold_is_due = False

    def run(self, operation: Operation[T]) -> T:
        """Run an operation in a transaction of its kind and return what it returns."""
        if operation.mode in WRITES:
            return self._write(operation)
        try:
            connection = self._idle.pop()  # take(), written out: this is the path of every get
        except IndexError:
            connection = self.connect()
        try:
            if operation.mode is READ:
                return steps_through(connection, operation, self.context())
            connection.execute("BEGIN")
            try:
                return steps_through(connection, operation, self.context())
            finally:
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self.explained(error) from error
        finally:
            self.put_back(connection)

    def commit(self, jobs: list[Job[Any]]) -> None:
        """Run write operations in one transaction; each has its own outcome, and none a half one."""
        batch = Batch()
        for job in jobs:
            job.batch = batch
        connection = None
        try:
            connection = self.take()
            connection.execute("BEGIN IMMEDIATE")
            if self.attempt(connection, jobs):
                _end(connection, batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome of these jobs
            # A lock that was waited for in vain would be waited for once more by each.
            if len(jobs) == 1 or _is_busy(error):
                for job in jobs:
                    job.error = self.explained(error) if isinstance(error, sqlite3.Error) else error
                batch.done = True
        finally:
            if connection is not None:
                self._leave(connection, jobs if batch.done else ())
        if not batch.done and len(jobs) == 1:  # refused after it had written something
            batch.done = True
        elif not batch.done:  # one of them spoilt the transaction: each gets its own
            for job in jobs:
                self.commit([job])

    def _leave(self, connection: sqlite3.Connection, done: Iterable[Job[Any]]) -> None:
        try:
            roll_back(connection)
            if any(job.operation.mode is ERASE for job in done):
                self._fold_now_or_later(connection)
        finally:
            self.put_back(connection)

    def context(self) -> Context:
        return Context(int(self._clock() * 1000), self.quota, self._cipher, self._records)

    def close(self) -> None:
        """Close the connections; SQLite then folds the write-ahead log into the file."""
        self._closed = True
        self._close_idle()

    def before_fork(self) -> None:
        """Close every connection, and wait for those in use.

        SQLite's locks belong to a process and its tables of them are copied by a fork: a child that
        opens the file while it inherits a connection believes to have locks that it has not, and others
        then delete the log under it.
        """
        give_up_at = time.monotonic() + FORK_SECONDS
        self._held = [lock for lock in (self._writing, self._gate) if lock.acquire(timeout=FORK_SECONDS)]
        self._forking = True
        self._close_idle()
        while self._opened and time.monotonic() < give_up_at:
            time.sleep(0.001)

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self.start_anew()
            return
        self._forking = False
        for lock in self._held:
            lock.release()

    def take(self) -> sqlite3.Connection:
        """A connection of one's own, to be put back."""
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect()

    def put_back(self, connection: sqlite3.Connection) -> None:
        self._idle.append(connection)
        if self._closed or self._forking:
            self._close_idle()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                connection.close()
                self._opened.discard(connection)

    def connect(self, *, patience: float | None = None) -> sqlite3.Connection:
        """A new connection that waits so many seconds for other processes."""
        if self._closed:
            raise Unavailable(f"the store {self.path} is closed; open it again")
        wait = self._patience if patience is None else patience
        with self._gate:
            try:
                connection = sqlite3.connect(
                    self.uri, timeout=wait, isolation_level=None, check_same_thread=False, uri=True
                )
            except sqlite3.Error as error:
                raise self.explained(error) from error
            try:
                for pragma in self.pragmas():
                    connection.execute(pragma)
            except sqlite3.Error as error:
                connection.close()
                raise self.explained(error) from error
            self._opened.add(connection)
        return connection

    @property
    def uri(self) -> str:
        """The file as SQLite is told of it; a name may hold what means something in a URI."""
        return f"{self.path.absolute().as_uri()}{self._mode}"

    def pragmas(self) -> tuple[str, ...]:
        """What every connection is set to, here and under aiosqlite."""
        return (
            f"PRAGMA synchronous = {SYNCHRONOUS[self.durability]}",
            f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}",
            f"PRAGMA cache_size = -{CACHE_KIB}",
            "PRAGMA secure_delete = ON",  # what is deleted is overwritten: erased means erased
            "PRAGMA fullfsync = ON",  # macOS: fsync alone does not reach the disk there
        )

    def explained(self, error: sqlite3.Error) -> ScrubjayError:
        return explain(error, self.name, self._patience)

    def _write(self, operation: Operation[T]) -> T:
        job = Job(operation)
        self._jobs.append(job)
        try:
            while not job.batch.done:
                with self._writing:
                    if not job.batch.done:
                        self._lead()
        except BaseException:  # Ctrl-C while waiting: what was not acknowledged must not happen later
            with contextlib.suppress(ValueError):
                self._jobs.remove(job)
            raise
        if operation.mode is ERASE:
            with self._writing:  # whoever led the batch is emptying the log
                pass
        if self._clock() - self._swept_at > SWEEP_SECONDS:
            with contextlib.suppress(ScrubjayError):  # the next round does it; this write is done
                self.sweep(folds=self._swept_at > -math.inf)
        if isinstance(job.error, QuotaExceeded):
            with contextlib.suppress(ScrubjayError):  # it is refused all the same
                self.run(changes.refuse(changes.Entry(*operation.described, refusal=job.error.code)))
        return job.outcome()

    def _lead(self) -> None:
        """Run what has lined up; called by whoever holds the lock. Jobs leave the line only when they are done."""
        try:
            self.commit(list(islice(self._jobs, MAX_BATCH)))
        finally:
            while self._jobs and self._jobs[0].batch.done:
                self._jobs.popleft()

    def find_faults(self) -> list[str]:
        """What is wrong with the file: its pages first, then what the counters say."""
        damage = self.find_damage()
        try:
            return damage or self.run(checks.find_faults())
        except ScrubjayError as error:
            return [str(error)]

    def find_damage(self) -> list[str]:
        """What is wrong with the file's pages, and what to do about it."""
        connection = self.take()
        try:
            found = [row[0] for row in connection.execute("PRAGMA integrity_check").fetchall()]
        except sqlite3.Error as error:
            return [str(self.explained(error))]
        finally:
            self.put_back(connection)
        if found == ["ok"]:
            return []
        return [*found, f"save what can be read: scrubjay recover {self.path}"]

    def compact(self) -> None:
        """Write the file anew: smaller, and without a trace of what was ever erased.

        secure_delete overwrites what is deleted, but now and then SQLite rebuilds a page and leaves an
        old copy of a row between its cells; only this ends it for rows that are in no drawer.
        """
        connection = self.connect(patience=BUSY_SECONDS)  # a server's own patience is too short for this
        try:
            connection.execute("BEGIN IMMEDIATE")
            steps_through(connection, drawers.renew(), self.context())
            connection.execute("COMMIT")
            connection.execute("VACUUM")
            (blocked, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            raise self.explained(error) from error
        finally:
            roll_back(connection)
            self.put_back(connection)
        if blocked:
            raise Unavailable(
                f"another process has been reading {self.path} for {BUSY_SECONDS:g} s, so old pages are still there;"
                " run it again"
            )

    def reseal(self, secret: str | None) -> None:
        """Seal everything under another secret, or under none; this store is closed then.

        Nobody else may have the file open: they would go on with the old keys. SQLite leaves its log only
        when it is alone, and with locking_mode it stays alone until this connection closes.
        """
        from .resealing import reseal  # noqa: PLC0415 - nobody else needs it

        ring, cipher = Keyring.make(secret) if secret else (None, PLAIN)
        self._close_idle()
        connection = self.connect()
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("BEGIN EXCLUSIVE")
            steps_through(connection, reseal(ring, cipher), self.context())
            steps_through(connection, drawers.renew(), self.context())
            connection.execute("COMMIT")
            connection.execute("VACUUM")  # pages that are free now hold what was there before
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.Error as error:
            if _is_busy(error):
                raise Unavailable(
                    f"{self.path} is open elsewhere: stop the server and all programs that use it, then try again"
                ) from error
            raise self.explained(error) from error
        finally:
            roll_back(connection)
            connection.close()
            self._opened.discard(connection)
            self.close()

    def sweep(self, *, folds: bool = True) -> None:
        """Remove what has expired, and fold the log, at least if anything had."""
        self._swept_at = self._clock()
        erased, more = 0, True
        while more:
            count, more = self.run(quotas.sweep(resolve("audit_days"), resolve("audit_rows")))
            erased += count
        if not folds and not erased:
            return
        connection = self.take()
        try:
            self._fold_now_or_later(connection)
        finally:
            self.put_back(connection)

    def _fold_now_or_later(self, connection: sqlite3.Connection) -> None:
        if not self._fold_log(connection) and not self._fold_is_due:
            self._fold_is_due = True
            threading.Thread(target=self._keep_folding, name="scrubjay-log", daemon=True).start()

    def _fold_log(self, connection: sqlite3.Connection) -> bool:
        """Bring the log into the file and empty it: pages from before an erasure lie in it.

        Whoever is reading or writing keeps it as it is; then False.
        """
        try:
            connection.execute(f"PRAGMA busy_timeout = {0 if self._fold_is_due else FOLD_MILLISECONDS}")
            (blocked, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error:  # nothing is lost: what was committed is in the log
            return False
        finally:
            connection.execute(f"PRAGMA busy_timeout = {int(self._patience * 1000)}")
        return not blocked

    def _keep_folding(self) -> None:
        """Fold the log as soon as nobody needs it any more."""
        is_folded = False
        while not is_folded and not self._closed:
            time.sleep(FOLD_AGAIN_SECONDS)
            with contextlib.suppress(ScrubjayError):  # the store may have been closed just now
                connection = self.take()
                try:
                    is_folded = self._fold_log(connection)
                finally:
                    self.put_back(connection)
        self._fold_is_due = False

    def attempt(self, connection: sqlite3.Connection, jobs: list[Job[Any]], most_rows: float = math.inf) -> bool:
        """Run jobs in the open transaction; False when one spoilt it by being refused after it had written."""
        context = self.context()
        for job in jobs:
            job.error, changes = None, connection.total_changes
            try:
                job.result = steps_through(connection, job.operation, context, most_rows)
            except ScrubjayError as error:
                job.error = error
                if connection.total_changes != changes:
                    return False
        return True

    def _prepare(self) -> None:
        """Make the file if there is none, and bring its tables up to this program's version."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # What agents remember is nobody else's business; SQLite gives the log the file's mode.
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            # Not even opened and closed: that would give up every lock of this process on it, other stores' included.
            if not self.path.is_file() or not os.access(self.path, os.R_OK):
                raise self._unwritable("it is a folder, or belongs to somebody else") from None
        except OSError as error:
            raise self._unwritable(error.strerror) from error
        self._mode = self._find_mode()
        self._refuse_lost_file()
        connection = self.take()
        try:
            self._migrate(connection)
            self._cipher = self.open_keyring(connection)
        except sqlite3.Error as error:
            raise self.explained(error) from error
        finally:
            roll_back(connection)
            self.put_back(connection)
        self._identity = self._look()

    @property
    def only_reads(self) -> bool:
        """Whether the file, or its folder, may not be written."""
        return bool(self._mode)

    def check_place(self) -> None:
        """Refuse a file that was moved, emptied or deleted: it would take writes that nobody finds again."""
        try:
            if self._look() == self._identity:
                return
        except OSError:
            pass
        raise Unavailable(
            f"{self.name} was moved, deleted, emptied or replaced while in use; put it back, or start anew"
        )

    def _look(self) -> tuple[int, int, bool]:
        """What stays the same of the file; one that was emptied is another one."""
        found = self.path.stat()
        return found.st_dev, found.st_ino, found.st_size > 0

    def _unwritable(self, reason: str | None) -> Unavailable:
        return Unavailable(f"cannot write {self.path}: {reason}; set SCRUBJAY_PATH to a file that can be written")

    def _find_mode(self) -> str:
        """How the file is opened: what may not be written can still be read.

        Beside a file in WAL mode SQLite wants to make two more, which a folder may forbid. Without a log
        nobody has it open, and it can be read as what will not change.
        """
        if not os.access(self.path.parent, os.W_OK) and not Path(f"{self.path}-wal").exists():
            return "?mode=ro&immutable=1"
        return "" if os.access(self.path, os.W_OK) else "?mode=ro"

    def _refuse_lost_file(self) -> None:
        """SQLite takes an empty file for a new database, and deletes the log of what it was before."""
        log = Path(f"{self.path}-wal")
        if self.path.stat().st_size == 0 and log.exists() and log.stat().st_size:
            raise Unavailable(
                f"{self.path} is empty, but beside it is its log of {log.stat().st_size:,} bytes: it was cut off;"
                f" restore a backup with `scrubjay restore`, or save what the log has: scrubjay recover {self.path}"
            )

    def _migrate(self, connection: sqlite3.Connection) -> None:
        if self._format(connection) == VERSION and (self._mode or _journal(connection) == "wal"):
            return
        patiently(connection, "PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        for migration in MIGRATIONS[self._format(connection) :]:  # another process may have been faster
            for statement in migration:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")

    def open_keyring(self, connection: sqlite3.Connection) -> Cipher:
        """How values are stored here; a new file with a secret gets its keys now."""
        ring = "SELECT salt, sealed FROM keyring"
        rows = connection.execute(ring).fetchall()
        if self._secret is None or rows:
            return open_ring(rows, self._secret)
        connection.execute("BEGIN IMMEDIATE")
        if not (rows := connection.execute(ring).fetchall()):  # another process may have been faster
            if connection.execute("SELECT 1 FROM namespaces LIMIT 1").fetchall():
                raise InvalidInput(f"{self.path} holds values that are not sealed: run `scrubjay encrypt` first")
            made, _ = Keyring.make(self._secret)
            connection.execute("INSERT INTO keyring (id, salt, sealed) VALUES (1, ?, ?)", made)
            rows = [made]
        connection.execute("COMMIT")
        return open_ring(rows, self._secret)

    def _format(self, connection: sqlite3.Connection) -> int:
        """The file's version; 0 for a new one, and an error for what is not ours to touch."""
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
            raise Unavailable(
                f"{self.path} was written by a newer Scrubjay (format {version}, this one knows {VERSION});"
                " upgrade with: pip install -U scrubjay"
            )
        return int(version)


def explain(error: sqlite3.Error, path: Path | str, patience: float = BUSY_SECONDS) -> ScrubjayError:
    """SQLite's error as a cause and a fix."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _BUSY:
        return Unavailable(f"another process has been writing to {path} for {patience:g} s; try again")
    file = path if Path(path).is_absolute() else "FILE"
    saved = f"restore a backup with `scrubjay restore`, or save what can be read: scrubjay recover {file}"
    advice = {
        sqlite3.SQLITE_FULL: "the disk is full: free some space; nothing was half-written",
        sqlite3.SQLITE_IOERR: "the disk refuses: it may be full or over a limit; nothing was half-written",
        sqlite3.SQLITE_READONLY: "the file cannot be written: check its permissions, or set SCRUBJAY_PATH",
        sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: check the folder's permissions, or set SCRUBJAY_PATH",
        sqlite3.SQLITE_CORRUPT: f"the file is damaged: {saved}",
        sqlite3.SQLITE_NOTADB: (
            f"this is no SQLite file, or its first page is damaged: name another with SCRUBJAY_PATH; or {saved}"
        ),
    }.get(code, "run `scrubjay doctor`")
    return Unavailable(f"{path}: {error}; {advice}")


class TooLong(Exception):
    """An operation turned out to be more work than may be done here."""


def steps_through(
    connection: sqlite3.Connection, operation: Operation[T], context: Context, most_rows: float = math.inf
) -> T:
    """Run an operation's statements on a connection."""
    steps = operation.start(context)
    execute = connection.execute
    try:
        statement: Statement = next(steps)
        while True:
            if type(statement) is Many:
                if len(statement.rows) > most_rows:
                    raise TooLong
                connection.executemany(*statement)
                rows: Rows = []
            elif type(statement) is Long and most_rows is not math.inf:
                raise TooLong
            else:
                rows = execute(*statement).fetchall()
            statement = steps.send(rows)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _end(connection: sqlite3.Connection, batch: Batch) -> None:
    """COMMIT, and say so even when Ctrl-C comes at its end."""
    failed = False
    try:
        connection.execute("COMMIT")
    except sqlite3.Error:
        failed = True
        raise
    finally:
        batch.done = not failed and not connection.in_transaction


def _is_busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode in _BUSY


def roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _journal(connection: sqlite3.Connection) -> str:
    """Another one than the log is left behind by whoever was killed while it was alone with the file."""
    return str(connection.execute("PRAGMA journal_mode").fetchone()[0])


def patiently(connection: sqlite3.Connection, statement: str) -> None:
    """Switching to WAL fails at once when another process does the same; SQLite's own timeout skips it."""
    give_up_at = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute(statement)
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)
        else:
            return
