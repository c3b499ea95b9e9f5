"""The queue file: writes that wait to be sent, in the order in which they were made."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from scrubjay.commands import Command
from scrubjay.errors import Unavailable, advice_if_out_of_files
from scrubjay.fork_safety import ForkSafe
from scrubjay.models import Pending, to_time
from scrubjay.store.api_keys import PREFIX
from scrubjay.store.expiry import KEY_DAYS
from scrubjay.store.sqlite.connection import retry_while_busy

_API_KEY = re.compile(rf"{PREFIX}[0-9a-f]{{8}}(?=_)")
"""The part of an api key that names it."""
APPLICATION_ID = 0x5C4A4F42
"""Marks an SQLite file as an outbox of Scrubjay's."""
FORMAT = 4
"""Version of the tables; there is no migration from the unreleased formats before it."""
_COLUMNS = "id, namespace, verb, arguments, idempotency_key, queued_at, first_sent_at, reason, is_refused"
MAX_UNCERTAIN_SECONDS = KEY_DAYS * 86_400 - 60
"""Seconds after which a write that may have happened is not sent again: the target may have forgotten its idempotency
key. Less than a server keeps it by a minute, the longest that a request takes."""
_CHOSEN = "target = coalesce(?, target) AND namespace = coalesce(?, namespace)"
_TABLES = (
    # target and key_digest say where a write goes and with which api key; the key itself is not stored.
    """CREATE TABLE IF NOT EXISTS writes (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        target TEXT NOT NULL,
        key_digest TEXT NOT NULL,
        namespace TEXT NOT NULL,
        verb TEXT NOT NULL,
        arguments TEXT NOT NULL,
        idempotency_key TEXT NOT NULL,
        queued_at INTEGER NOT NULL,
        first_sent_at INTEGER,
        tried_at INTEGER NOT NULL,
        reason TEXT NOT NULL,
        is_refused INTEGER NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS writes_in_order ON writes (target, key_digest, is_refused, namespace, id)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)


class Target(NamedTuple):
    """Where queued writes go: a server or a file, and the digest of the credentials that they were made with."""

    location: str
    key_digest: str

    @classmethod
    def of(cls, location: str, credentials: str | None) -> Target:
        key = _API_KEY.match(credentials or "")
        identity = key[0] if key else credentials  # a key that is rotated has the same id
        digest = blake2b(identity.encode(), digest_size=12).hexdigest() if identity else ""
        return cls(location.rstrip("/"), digest)


class Summary(NamedTuple):
    """How many writes to a namespace are queued for a target, or were refused by it."""

    target: Target
    namespace: str
    is_refused: bool
    writes: int
    queued_at: int
    """Milliseconds since 1970, of the oldest; `tried_at` and `reason` are its, too."""
    tried_at: int
    """When an attempt to send it failed for this reason."""
    reason: str
    """Empty if it was queued behind others, which were sent, and was not tried yet."""

    @property
    def age(self) -> float:
        return _age(self.queued_at)

    @property
    def seconds_since_tried(self) -> float:
        return _age(self.tried_at)


class QueuedWrite(NamedTuple):
    """A row of the queue."""

    id: int
    command: Command
    idempotency_key: str
    queued_at: int
    first_sent_at: int | None
    """Milliseconds since 1970; None while no attempt to send it can have reached the target."""
    reason: str
    is_refused: bool

    @property
    def age(self) -> float:
        return _age(self.queued_at)

    @property
    def is_uncertain(self) -> bool:
        """Whether it may have happened so long ago that the target has forgotten its idempotency key."""
        return self.first_sent_at is not None and _age(self.first_sent_at) > MAX_UNCERTAIN_SECONDS

    def to_pending(self) -> Pending:
        command = self.command
        return Pending(
            id=self.id,
            namespace=command.namespace,
            verb=command.verb.name,
            key=command.key,
            queued_at=to_time(self.queued_at),
            reason=self.reason,
            refused=self.is_refused,
        )


def _chosen(location: str | None, namespace: str | None) -> tuple[str | None, str | None]:
    """The parameters of _CHOSEN; None matches every location, or every namespace."""
    return location and location.rstrip("/"), namespace


def _age(queued_at: int) -> float:
    """Seconds; 0 at least, because the clock may have been set back."""
    return max(time.time() - queued_at / 1000, 0.0)


def _queued_write(row: Sequence[Any]) -> QueuedWrite:
    id_, namespace, verb, arguments, key, queued_at, first_sent_at, reason, is_refused = row
    command = Command.from_json(verb, namespace, arguments)
    return QueuedWrite(id_, command, key, queued_at, first_sent_at, reason, bool(is_refused))


def _with_reason_of_first(writes: Sequence[QueuedWrite]) -> list[QueuedWrite]:
    """The writes of a target, each with the reason why it is not sent: that of the first one of its namespace, which
    alone is tried.
    """
    reasons: dict[str, str] = {}
    for write in writes:
        if not write.is_refused:
            reasons.setdefault(write.command.namespace, write.reason)
    return [write if write.is_refused else write._replace(reason=reasons[write.command.namespace]) for write in writes]


class QueueFile(ForkSafe):
    """The file, opened when something is queued and closed when nothing is: closing empties its log, and so erases
    what was sent.

    Adding syncs to disk. Removing does not: a row that a power failure brings back is sent again under the same
    idempotency key.
    """

    def __init__(self, path: Path, target: Target) -> None:
        self.path = path
        self.target = target
        self.reset()
        self.register_at_fork()

    def reset(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.RLock()

    def before_fork(self) -> None:
        self._lock.acquire()
        self.close()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self.reset()
        else:
            self._lock.release()

    def fingerprint(self) -> tuple[int, ...] | None:
        """A value that changes with the file, at a hundredth of the cost of a query; None if there is no file."""
        found: tuple[int, ...] = ()
        for path in (self.path, Path(f"{self.path}-wal")):
            try:
                state = path.stat()
            except OSError:
                return found or None
            found += (state.st_mtime_ns, state.st_size)
        return found

    # ------------------------------------------------------------ writes of one target

    def add(self, command: Command, idempotency_key: str, reason: str, *, is_sent: bool = False) -> None:
        """Store a write; it is on disk when this returns. `is_sent` if it may have reached the target already.

        The reason is that of the first write of its namespace, which alone is tried. One behind it gets its own when it
        is tried: else the reason that it was queued for would be told when that is long over.
        """
        now = int(time.time() * 1000)
        write = (command.namespace, command.verb.name, command.to_json(), idempotency_key)
        first = (*self.target, command.namespace)
        row = (*self.target, *write, now, now if is_sent else None, now, *first, reason)
        with self._lock:
            self._run("PRAGMA synchronous = FULL")
            self._run(
                """INSERT INTO writes (target, key_digest, namespace, verb, arguments, idempotency_key, queued_at,
                first_sent_at, tried_at, reason, is_refused) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, CASE WHEN EXISTS
                (SELECT 1 FROM writes WHERE target = ? AND key_digest = ? AND is_refused = 0 AND namespace = ?)
                THEN '' ELSE ? END, 0)""",
                row,
            )
            self._run("PRAGMA synchronous = NORMAL")

    def unsent(self, namespace: str, limit: int = -1) -> list[QueuedWrite]:
        """Writes of a namespace that were not refused, oldest first."""
        return self._select("is_refused = 0 AND namespace = ?", (namespace,), limit)

    def all(self, namespace: str | None) -> list[QueuedWrite]:
        """Unsent and refused writes of a namespace, or of every one, oldest first."""
        found = self._select("1", ()) if namespace is None else self._select("namespace = ?", (namespace,))
        return _with_reason_of_first(found)

    def unsent_ids(self, namespace: str | None) -> set[int]:
        """The ids of the writes of a namespace, or of every one, that were not refused."""
        sql = """SELECT id FROM writes
        WHERE target = ? AND key_digest = ? AND is_refused = 0 AND namespace = coalesce(?, namespace)"""
        return {id_ for (id_,) in self._run(sql, (*self.target, namespace))}

    def namespaces(self) -> set[str]:
        """The namespaces that have unsent writes."""
        rows = self._run(
            "SELECT DISTINCT namespace FROM writes WHERE target = ? AND key_digest = ? AND is_refused = 0", self.target
        )
        return {namespace for (namespace,) in rows}

    def of_other_keys(self) -> dict[str, int]:
        """How many writes for the same target were made with other api keys and were not refused, by namespace."""
        sql = """SELECT namespace, count(*) FROM writes
        WHERE target = ? AND key_digest <> ? AND is_refused = 0 GROUP BY namespace"""
        return dict(self._run(sql, self.target))

    def has(self, id_: int) -> bool:
        """False when another process has sent or dropped the write."""
        return bool(self._run("SELECT 1 FROM writes WHERE id = ?", (id_,)))

    def remove(self, *ids: int) -> None:
        for id_ in ids:
            self._run("DELETE FROM writes WHERE id = ?", (id_,))

    def mark_refused(self, id_: int, reason: str) -> None:
        """Keep a write that the target will never accept; it is not sent again."""
        self._run("UPDATE writes SET is_refused = 1, reason = ? WHERE id = ?", (reason, id_))

    def set_reason(self, id_: int, reason: str) -> None:
        """Note why an attempt to send it has failed, now."""
        self._run("UPDATE writes SET reason = ?, tried_at = ? WHERE id = ?", (reason, int(time.time() * 1000), id_))

    def mark_sent(self, id_: int) -> None:
        """Note that an attempt to send it may have reached the target."""
        now = int(time.time() * 1000)
        self._run("UPDATE writes SET first_sent_at = ? WHERE id = ? AND first_sent_at IS NULL", (now, id_))

    def retry_refused(self) -> None:
        """Let the refused writes of this target be sent again, whatever may have happened to them before."""
        self._run(
            """UPDATE writes SET is_refused = 0, first_sent_at = NULL
            WHERE target = ? AND key_digest = ? AND is_refused = 1""",
            self.target,
        )

    def take_over_other_keys(self) -> None:
        """Send with this api key what is queued for the same server under others, which may have been revoked."""
        self._run("UPDATE writes SET key_digest = ? WHERE target = ?", (self.target.key_digest, self.target.location))

    # ------------------------------------------------------------ writes of every target

    def summaries(self, location: str | None = None, namespace: str | None = None) -> list[Summary]:
        """Counts for every target: the rows themselves may be too many to read."""
        if not self.path.exists():
            return []
        # Beside min() SQLite takes the other columns from the row that has the minimum.
        sql = f"""SELECT target, key_digest, namespace, is_refused, count(*), queued_at, tried_at, reason, min(id)
        FROM writes WHERE {_CHOSEN} GROUP BY target, key_digest, namespace, is_refused ORDER BY min(id)"""  # noqa: S608
        return [
            Summary(Target(target, digest), name, bool(refused), *rest)
            for target, digest, name, refused, *rest, _ in self._run(sql, _chosen(location, namespace))
        ]

    def everything(self, location: str | None = None, namespace: str | None = None) -> dict[Target, list[QueuedWrite]]:
        """All rows, by the target that they are for."""
        found: dict[Target, list[QueuedWrite]] = {}
        if not self.path.exists():
            return found
        sql = f"SELECT target, key_digest, {_COLUMNS} FROM writes WHERE {_CHOSEN} ORDER BY id"  # noqa: S608
        for target, digest, *row in self._run(sql, _chosen(location, namespace)):
            found.setdefault(Target(target, digest), []).append(_queued_write(row))
        return {target: _with_reason_of_first(writes) for target, writes in found.items()}

    def drop(self, *, location: str | None = None, namespace: str | None = None, only_refused: bool = False) -> int:
        """Erase rows, whatever api key they were made with; returns how many."""
        if not self.path.exists():
            return 0
        sql = f"DELETE FROM writes WHERE {_CHOSEN} AND is_refused >= ? RETURNING 1"  # noqa: S608
        dropped = len(self._run(sql, (*_chosen(location, namespace), int(only_refused))))
        self._run("PRAGMA wal_checkpoint(TRUNCATE)")  # the log still has them if another process has it open
        return dropped

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _select(self, where: str, params: Sequence[Any], limit: int = -1) -> list[QueuedWrite]:
        rows = self._run(
            f"SELECT {_COLUMNS} FROM writes WHERE target = ? AND key_digest = ? AND {where} ORDER BY id LIMIT ?",  # noqa: S608
            (*self.target, *params, limit),
        )
        return [_queued_write(row) for row in rows]

    def _run(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open()
                return self._connection.execute(sql, params).fetchall()
            except (sqlite3.Error, OSError) as error:
                advice = advice_if_out_of_files(error) or (
                    "check the file and the disk, or set SCRUBJAY_OUTBOX to another file"
                )
                raise QueueUnavailable(f"the outbox {self.path} cannot be used: {error}; {advice}") from error

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # it holds conversations
        connection = sqlite3.connect(self.path, timeout=5.0, isolation_level=None, check_same_thread=False)
        try:
            retry_while_busy(connection, "PRAGMA journal_mode = WAL")
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
        connection.execute("BEGIN IMMEDIATE")  # then look again: another process may have been first
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if _format(connection) not in ((0, 0), (APPLICATION_ID, FORMAT)) or (tables and not _format(connection)[0]):
            raise sqlite3.DatabaseError("it belongs to another program or to another version of Scrubjay")
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute("COMMIT")


class QueueUnavailable(Unavailable):
    """The queue file cannot be read or written; the target may well be reachable."""


def _format(connection: sqlite3.Connection) -> tuple[int, int]:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return application, version
