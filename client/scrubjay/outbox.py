"""The outbox: writes that could not reach the server wait on disk, in order, until it takes them.

An entry keeps the id under which its write happens once. So it may be sent again after a lost answer,
by this process or the next, and even by two at a time: each sends an entry only after the one before it
was acknowledged. Order is kept within a namespace; what stops one namespace does not stop the others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from .errors import Forbidden, NotFound, QuotaExceeded, ScrubjayError, Unauthenticated, Unavailable
from .forks import Forkable
from .http_backend import HttpBackend, Write
from .names import counted
from .records import Pending, to_time
from .store.deliveries import Delivery
from .store.sqlite import patiently

FIRST_RETRY, LAST_RETRY = 0.2, 15.0
"""Seconds between attempts while the server cannot be reached: doubled from the first to the last."""
LONGEST_WAIT = 60.0
"""Seconds until a refused write is tried again, whatever the server says: a quota may be raised, a key be fixed."""
PAGE = 20
"""Entries that are sent in one go; also the most that a call sends before its own, so that none takes for ever."""
MOMENT = 0.05
"""Seconds that a call waits while others send: it slows whoever writes faster than the server takes it."""
APPLICATION_ID = 0x5C4A4F42
FORMAT = 1
_DOWN = (502, 503, 504)
"""What an answer says when the server, and not this write, is the matter; also an Unavailable without an answer."""
_LATER = (Unavailable, QuotaExceeded, Unauthenticated, Forbidden)
"""Errors that may pass. Any other can only repeat itself."""
_COLUMNS = "id, verb, namespace, key, body, ttl, delivery, queued_at, why, refused"
_SAME_SERVER = "rtrim(queue, '0123456789abcdef') = rtrim(?, '0123456789abcdef')"
"""Queues that differ at most in the digest of the api key."""
_TABLES = (
    # queue says for which server and api key; the key itself is kept nowhere.
    """CREATE TABLE IF NOT EXISTS writes (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        queue TEXT NOT NULL,
        namespace TEXT NOT NULL,
        verb TEXT NOT NULL,
        key TEXT NOT NULL,
        body TEXT NOT NULL,
        ttl REAL,
        delivery TEXT NOT NULL,
        queued_at INTEGER NOT NULL,
        why TEXT NOT NULL,
        refused INTEGER NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS writes_line ON writes (queue, refused, namespace, id)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)

log = logging.getLogger("scrubjay")


class Line(NamedTuple):
    """How many writes to a namespace wait for a server; or were refused, each for its own reason."""

    queue: str
    namespace: str
    refused: bool
    writes: int
    queued_at: int
    """Of the oldest, and so is the reason: the others wait behind it."""
    why: str

    @property
    def server(self) -> str:
        return self.queue.rpartition("#")[0]

    @property
    def age(self) -> float:
        return _age(self.queued_at)


class Entry(NamedTuple):
    """A write that waits."""

    id: int
    write: Write
    delivery: str
    queued_at: int
    why: str
    refused: bool

    @property
    def age(self) -> float:
        return _age(self.queued_at)

    def to_pending(self) -> Pending:
        write = self.write
        return Pending(
            self.id, write.namespace, write.verb, write.key, to_time(self.queued_at), self.why, bool(self.refused)
        )


def _age(queued_at: int) -> float:
    """Seconds; a clock that was set back makes nothing younger than new."""
    return max(time.time() - queued_at / 1000, 0.0)


def _entry(row: Sequence[Any]) -> Entry:
    return Entry(row[0], Write(*row[1:6]), *row[6:])


class OutboxFile(Forkable):
    """The file, which is open only while something waits: closing it folds the log in, and so erases what was sent.

    Adding syncs. Removing does not: what comes back after a power cut is sent again, and does not happen twice.
    """

    def __init__(self, path: Path, queue: str) -> None:
        self.path = path
        self._queue = queue
        self.at = str(path), queue
        self.start_anew()
        self.watch_forks()

    def start_anew(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.RLock()

    def before_fork(self) -> None:
        self._lock.acquire()
        self.close()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self.start_anew()
        else:
            self._lock.release()

    def stamp(self) -> tuple[int, ...] | None:
        """What changes with the file, at a hundredth of the cost of looking into it; None while there is none."""
        found: tuple[int, ...] = ()
        for path in (self.path, Path(f"{self.path}-wal")):
            try:
                state = path.stat()
            except OSError:
                return found or None
            found += (state.st_mtime_ns, state.st_size)
        return found

    def add(self, write: Write, delivery: str, why: str) -> None:
        now = int(time.time() * 1000)
        row = (self._queue, *write, delivery, now, why)
        with self._lock:
            self._run("PRAGMA synchronous = FULL")
            self._run(
                """INSERT INTO writes (queue, verb, namespace, key, body, ttl, delivery, queued_at, why, refused)
                VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0)""",
                row,
            )
            self._run("PRAGMA synchronous = NORMAL")

    def waiting(self, namespace: str, limit: int = -1) -> list[Entry]:
        return self._select("refused = 0 AND namespace = ?", (namespace,), limit)

    def all(self, namespace: str | None) -> list[Entry]:
        """What waits and what was refused, oldest first."""
        if namespace is None:
            return self._select("1", ())
        return self._select("namespace = ?", (namespace,))

    def namespaces(self) -> set[str]:
        rows = self._run("SELECT DISTINCT namespace FROM writes WHERE queue = ? AND refused = 0", (self._queue,))
        return {namespace for (namespace,) in rows}

    def remove(self, *ids: int) -> None:
        for id_ in ids:
            self._run("DELETE FROM writes WHERE id = ?", (id_,))

    def refuse(self, id_: int, why: str) -> None:
        self._run("UPDATE writes SET refused = 1, why = ? WHERE id = ?", (why, id_))

    def explain(self, id_: int, why: str) -> None:
        self._run("UPDATE writes SET why = ? WHERE id = ? AND why <> ?", (why, id_, why))

    def adopt(self) -> None:
        """Take over what waits for the same server under another api key, which may have been revoked."""
        self._run(f"UPDATE writes SET queue = ? WHERE {_SAME_SERVER}", (self._queue, self._queue))  # noqa: S608

    def drop(self, namespace: str) -> int:
        """Erase what waits for a namespace of the same server, under whichever api key; how much that was."""
        if not self.path.exists():
            return 0
        sql = f"DELETE FROM writes WHERE namespace = ? AND {_SAME_SERVER} RETURNING 1"  # noqa: S608
        dropped = len(self._run(sql, (namespace, self._queue)))
        self._run("PRAGMA wal_checkpoint(TRUNCATE)")  # others may have it open, and so keep its log
        return dropped

    def everything(self) -> dict[str, list[Entry]]:
        """What waits for any server, by its address."""
        found: dict[str, list[Entry]] = {}
        if not self.path.exists():
            return found
        for queue, *row in self._run(f"SELECT queue, {_COLUMNS} FROM writes ORDER BY id"):  # noqa: S608
            found.setdefault(queue.rpartition("#")[0], []).append(_entry(row))
        return found

    def lines(self) -> list[Line]:
        """What waits for any server, counted: there may be far too much to read it all."""
        if not self.path.exists():
            return []
        # Beside min() SQLite takes the other columns from the row that has the minimum.
        sql = """SELECT queue, namespace, refused, count(*), queued_at, why, min(id) FROM writes
        GROUP BY queue, namespace, refused ORDER BY min(id)"""
        return [Line(*row[:-1]) for row in self._run(sql)]

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _select(self, where: str, params: Sequence[Any], limit: int = -1) -> list[Entry]:
        rows = self._run(
            f"SELECT {_COLUMNS} FROM writes WHERE queue = ? AND {where} ORDER BY id LIMIT ?",  # noqa: S608
            (self._queue, *params, limit),
        )
        return [_entry(row) for row in rows]

    def _run(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open()
                return self._connection.execute(sql, params).fetchall()
            except (sqlite3.Error, OSError) as error:
                raise Unavailable(
                    f"the outbox {self.path} cannot be used: {error}; check the file, or set SCRUBJAY_OUTBOX to another"
                ) from error

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # conversations are in there
        connection = sqlite3.connect(self.path, timeout=5.0, isolation_level=None, check_same_thread=False)
        try:
            patiently(connection, "PRAGMA journal_mode = WAL")
            for setting in ("synchronous = NORMAL", "secure_delete = ON", "fullfsync = ON"):
                connection.execute(f"PRAGMA {setting}")
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if _format(connection) == (APPLICATION_ID, FORMAT):
            return
        connection.execute("BEGIN IMMEDIATE")  # and look again: another process may have been faster
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if _format(connection) not in ((0, 0), (APPLICATION_ID, FORMAT)) or (tables and not _format(connection)[0]):
            raise sqlite3.DatabaseError("it is another program's, or a newer Scrubjay's")
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute("COMMIT")


def _format(connection: sqlite3.Connection) -> tuple[int, int]:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return application, version


class Pause(NamedTuple):
    """Why nothing is sent for now, and until when."""

    until: float
    length: float
    error: ScrubjayError


class Outbox(Forkable):
    """What waits for one server, and the thread that sends it. One for all handles of a process."""

    def __init__(self, server: HttpBackend, file: OutboxFile) -> None:
        self._server = server
        self._file = file
        self.waiting: set[str] = set()
        """Namespaces of which something waits: all that is looked at while nothing does."""
        weakref.finalize(self, file.close)
        self.start_anew()
        self.watch_forks()

    def start_anew(self) -> None:
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pauses: dict[str | None, Pause] = {}  # by namespace; None is the server itself

    @property
    def path(self) -> Path:
        return self._file.path

    def look(self) -> None:
        """Find what an earlier process has left, and begin to send it."""
        if self._file.stamp() in (None, _empty.get(self._file.at)):
            return
        with self._changed:
            self.waiting |= self._file.namespaces()
            if self.waiting:
                self._start()
            else:
                self._file.close()
                _empty[self._file.at] = self._file.stamp()

    def add(
        self, write: Write, why: ScrubjayError | None = None, delivery: str | None = None, *, quietly: bool = False
    ) -> None:
        """Keep a write; `why` is what just happened to it, and without it there is a pause already.

        Quietly for those who tell of it themselves.
        """
        with self._changed:
            cause = why or self._cause(write.namespace)
            try:
                self._file.add(write, delivery or new_id(), str(cause))
            except Unavailable as broken:
                raise Unavailable(f"{cause}. It could not be kept for later either: {broken}") from cause
            if not self.waiting:
                level = logging.INFO if quietly else logging.WARNING
                log.log(level, "%s. What is written is kept in %s, and sent when it can be.", cause, self.path)
            self.waiting.add(write.namespace)
            if why is not None:
                self._pause(write.namespace, why)
            self._start()

    def went_away(self, why: Unavailable) -> None:
        with self._changed:
            self._pause(None, why)

    def came_back(self) -> None:
        if None in self._pauses:
            with self._changed:
                self._pauses.pop(None, None)
                self._changed.notify_all()

    def is_away(self) -> bool:
        """Whether the server was asked in vain, and nobody has reached it since."""
        return None in self._pauses

    def is_down(self) -> bool:
        """Whether the server was asked in vain just now, or is being asked: then nobody else needs to wait for it."""
        return None in self._pauses and (self._sending.locked() or not self._is_due(None))

    def refusal(self, namespace: str) -> QuotaExceeded | None:
        """The quota that what waits of a namespace has met, at a server that is there."""
        error = self._cause(namespace)
        return error if isinstance(error, QuotaExceeded) else None

    def settle(self, namespace: str) -> None:
        """Send some of what waits of a namespace, unless that was tried a moment ago."""
        if namespace not in self.waiting or self.is_down() or not self._is_due(namespace):
            return
        if self._sending.acquire(timeout=MOMENT):
            try:
                self._send_some(namespace)
            finally:
                self._sending.release()

    @contextlib.contextmanager
    def reached(self, namespace: str) -> Iterator[list[Entry]]:
        """For what needs the server: what it has refused to take of a namespace so far, and nobody sends meanwhile.

        What waits may have happened, so the server's state means nothing before it is sent again.
        """
        is_tried = self._sending.locked()
        with self._sending:
            if not (is_tried and None in self._pauses):
                while self._send_some(namespace, at_once=True):
                    pass
            entries = self.entries(namespace)
            if entries and not self._is_refused(namespace):
                raise Unavailable(f"{self._cause(namespace)}; what was written before waits in {self.path}")
            yield entries

    def entries(self, namespace: str) -> list[Entry]:
        return self._file.waiting(namespace) if namespace in self.waiting else []

    def drop(self, entries: Sequence[Entry]) -> None:
        """Remove what need not be sent any more, while the server is `reached`."""
        self._file.remove(*(entry.id for entry in entries))
        for namespace in {entry.write.namespace for entry in entries}:
            self._check_off(namespace)

    def pending(self, namespace: str | None) -> list[Entry]:
        if not self.path.exists():
            return []
        with self._changed:
            entries = self._file.all(namespace)
            if not self.waiting:
                self._file.close()
        return entries

    def flush(self, namespace: str | None, timeout: float) -> None:
        """Return when everything is sent; else raise with what is left, and why."""
        self.look()
        with self._changed:
            self.hurry()
            self._changed.wait_for(lambda: all(map(self._is_refused, self._unsent(namespace))), timeout)
        left = self.pending(namespace)
        if left:
            raise Unavailable(
                f"{counted(len(left), 'write')} could not be sent to {self._server.place}:"
                f" {left[0].why}; see memory.pending(), or run: scrubjay pending"
            )

    def hurry(self) -> None:
        """Try at once what was put off."""
        with self._changed:
            self._pauses.clear()
            self._changed.notify_all()

    def adopt(self) -> None:
        if self.path.exists():
            self._file.adopt()
            self.look()

    # ------------------------------------------------------------ sending

    def _start(self) -> None:
        """A thread while something waits, and none otherwise; it never keeps a process from ending."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="scrubjay-outbox", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                namespaces = sorted(self.waiting)
            try:
                for namespace in namespaces:
                    while self._send_page(namespace):
                        pass
            except ScrubjayError as error:  # the file: nothing is lost, and nothing can be done but to try again
                with self._changed:
                    self._pause(None, error)
            with self._changed:
                if not self.waiting:
                    self._thread = None
                    return
                self._changed.wait(self._idle_seconds())

    def _send_page(self, namespace: str) -> bool:
        with self._sending:  # let go of between pages, for those who wait
            return self._send_some(namespace)

    def _send_some(self, namespace: str, *, at_once: bool = False) -> bool:
        """Send the first of what waits of a namespace; True when there is more, and nothing in its way.

        `at_once` does not wait for a server that failed, only for one that said no.
        """
        is_due = self._is_due(namespace) and self._is_due(None)
        if not is_due and (not at_once or self._is_refused(namespace)):
            return False
        entries = self._file.waiting(namespace, PAGE)
        if not all(map(self._send, entries)):
            return False
        if len(entries) < PAGE:
            self._check_off(namespace)
        return namespace in self.waiting

    def _send(self, entry: Entry) -> bool:
        """Whether the next one may follow."""
        try:
            self._server.write(entry.write, {"Idempotency-Key": entry.delivery}, entry.age)
        except NotFound:  # nothing to delete, or a note that was forgotten after it had arrived
            pass
        except _LATER as error:
            with self._changed:
                self._pause(entry.write.namespace, error)
                self._changed.notify_all()
            self._file.explain(entry.id, str(error))
            return False
        except ScrubjayError as error:
            self._file.refuse(entry.id, str(error))
            pending = entry.to_pending()
            log.error(  # noqa: TRY400 - the cause is in the message
                "%s refuses for good: %s %r in %r, queued at %s: %s. It is kept in %s; see: scrubjay pending",
                self._server.place, pending.verb, pending.key, pending.namespace, pending.queued_at, error, self.path,
            )  # fmt: skip
            return True
        self._file.remove(entry.id)
        with self._changed:
            self._pauses.pop(None, None)
            self._pauses.pop(entry.write.namespace, None)
        return True

    def _check_off(self, namespace: str) -> None:
        with self._changed:
            if self._file.waiting(namespace, limit=1):  # came in meanwhile
                return
            self.waiting.discard(namespace)
            self._pauses.pop(namespace, None)
            if not self.waiting:
                self._pauses.clear()
                self._file.close()
                log.info("%s: everything that waited is sent", self._server.place)
            self._changed.notify_all()

    # ------------------------------------------------------------ pauses

    def _pause(self, namespace: str | None, error: ScrubjayError) -> None:
        is_down = isinstance(error, Unavailable) and error.status in _DOWN
        about = None if is_down else namespace
        if not is_down:  # the server answered
            self._pauses.pop(None, None)
        before, now = self._pauses.get(about), time.monotonic()
        if before and now < before.until:  # another thread found it out at the same time
            return
        length = min(before.length * 2, LAST_RETRY) if before else FIRST_RETRY
        if not isinstance(error, Unavailable):
            length = min(getattr(error, "retry_after", None) or LAST_RETRY, LONGEST_WAIT)
        self._pauses[about] = Pause(now + length, length, error)

    def _is_due(self, about: str | None) -> bool:
        return time.monotonic() >= self._end(about)

    def _is_refused(self, namespace: str) -> bool:
        """Whether it was the server's answer, and not its silence, that stopped a namespace."""
        pause = self._pauses.get(namespace)
        return pause is not None and not isinstance(pause.error, Unavailable)

    def _unsent(self, namespace: str | None) -> list[str]:
        return [name for name in self.waiting if namespace in (None, name)]

    def _cause(self, namespace: str | None) -> ScrubjayError:
        pause = self._pauses.get(None) or self._pauses.get(namespace)
        return pause.error if pause else Unavailable(f"{self._server.place} has not taken earlier writes yet")

    def _idle_seconds(self) -> float:
        """Until the next attempt makes sense, for the first namespace that may have one."""
        now = time.monotonic()
        ends = [max(self._end(None), self._end(namespace)) for namespace in self.waiting]
        return max(min(ends) - now, 0.0)

    def _end(self, about: str | None) -> float:
        pause = self._pauses.get(about)
        return pause.until if pause else 0.0


class Slots(Forkable):
    """Ids for writes, like connections: each carries one at a time, and the server keeps only the last of each."""

    def __init__(self) -> None:
        self.start_anew()
        self.watch_forks()

    def start_anew(self) -> None:
        self._idle: list[Delivery] = []

    def take(self) -> Delivery:
        try:
            slot, number = self._idle.pop()
        except IndexError:
            return Delivery(new_id(), 1)
        return Delivery(slot, number + 1)

    def put_back(self, delivery: Delivery) -> None:
        """After an answer: what became of a write without one is asked under its own number."""
        self._idle.append(delivery)


slots = Slots()


def new_id() -> str:
    return os.urandom(12).hex()


_outboxes: weakref.WeakValueDictionary[tuple[str, str], Outbox] = weakref.WeakValueDictionary()
_opening = threading.Lock()
_empty: dict[tuple[str, str], tuple[int, ...] | None] = {}
"""The stamps of files in which nothing was found, so that a Memory for each request need not look again."""


def queue_of(url: str, api_key: str | None) -> str:
    digest = blake2b((api_key or "").encode(), digest_size=12).hexdigest()
    return f"{url.rstrip('/')}#{digest}"


def open_outbox(path: str, url: str, timeout: float, api_key: str | None) -> Outbox:
    """The outbox of this process for a server and an api key; it sends with the time-out of whoever opened it first."""
    at = str(Path(path).expanduser().absolute()), queue_of(url, api_key)
    with _opening:
        outbox = _outboxes.get(at)
        if outbox is None:
            file = OutboxFile(Path(at[0]), at[1])
            outbox = _outboxes[at] = Outbox(HttpBackend(url, timeout, api_key), file)
    return outbox
