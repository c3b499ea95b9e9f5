"""Backup and restore of a database file while it is in use."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from scrubjay.errors import InvalidInput, ScrubjayError, Unavailable
from scrubjay.store.sqlite import maintenance
from scrubjay.store.sqlite.connection import BUSY_SECONDS, explain, roll_back
from scrubjay.store.sqlite.file_identity import OPEN_LOCK, FileIdentity, size_of
from scrubjay.store.sqlite.store import SqliteStore

Progress = Callable[[int, int], object]
"""Called with how many are done, and of how many."""

COPY_PAGES = 1000
"""Pages that are copied between two reports of progress."""
RESTORE_PAGES = 8
"""Fewer than the smallest database has, so that a restore always pauses once before its end."""
LEFT_OVER_SECONDS = 3600
"""Seconds since the last write to a temporary copy after which it is removed, even if a process has its number."""
_OWNER = re.compile(r"(\d+)@([0-9a-f]{8})")
_LEFT_OVER = re.compile(r"\.scrubjay-|.*\.partial-\d+@[0-9a-f]{8}(-wal|-shm|-journal)?$", re.DOTALL)
_SIDE_FILES = ("-wal", "-shm", "-journal")


def copy_database(source: sqlite3.Connection, target: Path, progress: Progress) -> None:
    """Copy a snapshot of a database, while other connections continue to write."""
    try:
        # In a transaction: without it, every write by another process would restart the copy.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
            source.backup(copy, pages=COPY_PAGES, progress=_reporting(progress))
    except sqlite3.Error as error:
        raise explain(error, target) from error
    finally:
        roll_back(source)


def back_up(store: SqliteStore, target: Path, progress: Progress) -> None:
    """Copy the store's file; `check_copy` checks it."""
    source = store.take()
    try:
        copy_database(source, target, progress)
    finally:
        store.put_back(source)


class Copy(SqliteStore):
    """A store whose values are not read, so that it can be opened without its secret."""

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Leave the key envelope alone."""


def check_copy(path: Path) -> None:
    """Refuse a copy with damaged pages, another program's database, or that of a newer Scrubjay."""
    damage = _find_damage(path)
    if damage:
        raise Unavailable(
            f"the copy is damaged, and the database may be, too: {damage[0]}; on its own machine, run:"
            " scrubjay doctor --path FILE"
        )


def _find_damage(copy: Path) -> list[str]:
    """What is wrong with the pages of a copy, without advice: the copy is deleted."""
    with contextlib.closing(Copy(copy)) as store:
        try:
            return maintenance.check_pages(store)
        except sqlite3.Error as error:
            return [str(error)]


def refuse_same(one: Path, other: Path) -> None:
    if one.exists() and other.exists() and one.samefile(other):
        raise InvalidInput(f"{one} is the database itself; name another file")


@contextlib.contextmanager
def atomic_write(target: Path, *, force: bool | None = None) -> Iterator[Path]:
    """A path to write to, which is renamed to `target` once it is complete and on disk, and else deleted.

    `force` replaces an existing file, but never a database that another process has open; None for callers that do not
    offer it. A file that is replaced keeps its permissions. Of a symbolic link, the file that it points to is replaced.
    """
    final = Path(os.path.realpath(target))
    if final.name.endswith(_SIDE_FILES):
        raise InvalidInput(f"{target} has the name of a database's log; name another file")
    if target.is_dir():
        raise InvalidInput(f"{target} is a folder; name a file in it")
    if target.exists() and not target.is_file():
        raise InvalidInput(f"{target} is a device or a pipe, which a file cannot replace; name a file")
    if target.exists() and not force:
        advice = "" if force is None else ", or pass --force to replace it"
        raise InvalidInput(f"{target} already exists; name another file{advice}")
    if target.exists() and _is_open(final):
        raise InvalidInput(f"{target} is a database that another process has open; name another file")
    partial = final.with_name(f"{final.name}.partial-{owner()}")
    try:
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield partial
        if final.exists():
            shutil.copymode(final, partial)
        _sync(partial)
        partial.replace(final)
        _sync(final.parent)
    except OSError as error:
        raise Unavailable(f"cannot write {target}: {error.strerror}; name a folder that can be written") from error
    finally:
        _remove(partial)


class Restored(NamedTuple):
    """What a restore has done."""

    previous: Path | None
    """Where the previous database was copied to; None if there was none."""
    before: Contents | None
    """Nothing if there was no database; None if it could not be read."""
    after: Contents


def restore(backup: Path, path: Path, progress: Progress) -> Restored:
    """Replace a database by a backup; the previous one is copied.

    SQLite writes the pages into the existing file in one transaction: other processes that have it open, a server
    included, see the old state until the commit and the new one after it. Before the first page is changed, and while
    no other process can write, the previous state is copied.
    """
    refuse_same(backup, path)
    FileIdentity(path).refuse_foreign_log()
    remove_left_over(path.parent)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    size, log = (size_of(f"{path}{suffix}") for suffix in ("", "-wal"))
    previous = path.with_name(f"{path.name}.before-restore-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}")
    with _staged(backup, path.parent) as copy:
        after = read_contents(copy) or Contents()
        try:
            if log and not size:  # SQLite would delete the log, which is all that is left
                _swap(copy, path, previous)
            else:
                if size and _read_envelope(copy) != _read_envelope(path):
                    _refuse_open(path, "has another encryption key than the backup")
                _write_through(copy, path, previous if size else None, progress)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise explain(error, path) from error
            _swap(copy, path, previous)
    kept = previous if size or log else None
    return Restored(kept, read_contents(kept) if kept else Contents(), after)


class Contents(NamedTuple):
    """What a restore can bring back or remove unnoticed."""

    namespaces: frozenset[str] = frozenset()
    """Those that hold something."""
    api_keys: frozenset[tuple[str, str, str]] = frozenset()
    """Id, hash and name of the api keys in force; a key that is rotated has another hash."""


def is_empty(path: Path) -> bool:
    """Whether there is no database at a path: no file, or an empty one without a log."""
    return not any(size_of(f"{path}{suffix}") for suffix in ("", "-wal"))


def read_contents(path: Path) -> Contents | None:
    """The contents of a database that no process has open, which is not changed; None if it cannot be read."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as file:
            namespaces = file.execute("SELECT namespace FROM namespaces WHERE keys > 0 OR notes > 0")
            api_keys = file.execute("SELECT id, hash, name FROM api_keys WHERE revoked_at IS NULL")
            return Contents(frozenset(name for (name,) in namespaces), frozenset(api_keys.fetchall()))
    except sqlite3.Error:
        return None


@contextlib.contextmanager
def _staged(backup: Path, folder: Path) -> Iterator[Path]:
    """A checked copy of the backup in this program's format; the backup itself is not changed."""
    if not backup.is_file():
        raise InvalidInput(f"there is no file {backup}; name the backup to restore")
    with tempfile.TemporaryDirectory(prefix=f".scrubjay-restore-{owner()}-", dir=folder) as temporary:
        copy = Path(temporary) / backup.name
        try:
            for suffix in ("", "-wal"):
                if Path(f"{backup}{suffix}").exists():
                    shutil.copyfile(f"{backup}{suffix}", f"{copy}{suffix}")
        except OSError as error:
            raise Unavailable(f"cannot copy {backup}: {error.strerror}; is the disk full?") from error
        if not copy.stat().st_size:
            raise InvalidInput(f"{backup} is empty, so it is not a backup; name another")
        _check_backup(copy, backup)
        with contextlib.closing(_open(copy)) as file:
            _refuse_foreign_code(file, backup)
            file.execute("DELETE FROM sign_ins")  # a browser that signed out after the backup stays signed out
        yield copy


def _check_backup(copy: Path, backup: Path) -> None:
    """Refuse a backup with damaged pages, another program's database, or that of a newer Scrubjay."""
    try:
        damage = _find_damage(copy)
    except ScrubjayError as error:
        if not _is_damage(error.__cause__):
            raise Unavailable(error.detail.replace(str(copy), str(backup))) from error
        damage = [str(error.__cause__)]
    if damage:
        raise Unavailable(
            f"{backup} is damaged or not a backup: {damage[0]}; nothing was restored; name another backup, or save what"
            f" can be read of this one: scrubjay recover {shlex.quote(str(backup))}"
        )


def _refuse_foreign_code(file: sqlite3.Connection, backup: Path) -> None:
    """Refuse triggers and views: Scrubjay makes none, and they could undo writes that were acknowledged."""
    found = file.execute("SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchone()
    if found:
        kind, name = found
        raise InvalidInput(
            f"{backup} has the {kind} {name!r}, which Scrubjay did not make and which could change what is stored;"
            f" nothing was restored; if you trust the file, remove the {kind} with sqlite3 and restore again"
        )


def _write_through(copy: Path, path: Path, previous: Path | None, progress: Progress) -> None:
    give_up_at = time.monotonic() + BUSY_SECONDS
    to_copy: list[Path] = [previous] if previous else []
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))

    def step(status: int, remaining: int, total: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            if time.monotonic() > give_up_at:
                raise Unavailable(f"another process has been writing to {path} for {BUSY_SECONDS:g} s; try again")
            return
        while to_copy:  # since the first step no other process can write, and nothing is changed yet
            _copy(path, to_copy.pop())
        progress(total - remaining, total)

    with contextlib.closing(_open(copy)) as source, contextlib.closing(_open(path)) as live:
        live.execute("PRAGMA user_version").fetchone()
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        source.backup(live, pages=RESTORE_PAGES, progress=step, sleep=0.05)
        source.execute("COMMIT")
        live.execute("PRAGMA journal_mode = WAL")
        live.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS)


def _copy(path: Path, previous: Path) -> None:
    with atomic_write(previous) as partial, contextlib.closing(_open(path)) as old:
        copy_database(old, partial, lambda *_: None)


def _swap(copy: Path, path: Path, previous: Path) -> None:
    """Rename files: for a database that SQLite cannot open, and that no process has open."""
    _refuse_open(path, "is damaged")
    for suffix in ("", "-wal"):
        if Path(f"{path}{suffix}").exists():
            Path(f"{path}{suffix}").replace(f"{previous}{suffix}")
    _remove(path)  # the index of the old log must not be used for the new one
    _sync(copy)
    copy.replace(path)
    _sync(path.parent)


def _read_envelope(path: Path) -> list[Any]:
    """The key envelope of a file; empty if it is not encrypted."""
    with contextlib.closing(_open(path)) as file:
        return file.execute("SELECT salt, ciphertext FROM key_envelope").fetchall()


def _refuse_open(path: Path, why: str) -> None:
    if _is_open(path):
        raise Unavailable(
            f"{path} {why}, and another process has it open; stop that process (such as `scrubjay serve`) first"
        )


def _is_open(path: Path) -> bool:
    """Whether another process has the database open: then SQLite has a lock on its -shm file."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows, where a file that is open cannot be renamed
    except ImportError:
        return False
    start, length = OPEN_LOCK
    try:
        with Path(f"{path}-shm").open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _is_damage(error: BaseException | None) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _remove(path: Path) -> None:
    for suffix in ("", *_SIDE_FILES):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _sync(path: Path) -> None:
    with contextlib.suppress(PermissionError):  # Windows cannot open folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _reporting(progress: Progress) -> Callable[[int, int, int], None]:
    def report(_status: int, remaining: int, total: int) -> None:
        progress(total - remaining, total)

    return report


def owner() -> str:
    """The process and its host, for the names of its temporary copies."""
    return f"{os.getpid()}@{_host()}"


def remove_left_over(folder: Path) -> list[Path]:
    """Delete the temporary copies of killed processes in a folder; returns those that cannot be deleted."""
    remaining = []
    for path in folder.glob("*"):
        if _LEFT_OVER.match(path.name) and _is_left_over(path):
            try:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            except OSError:
                remaining.append(path)
    return remaining


def _is_left_over(path: Path) -> bool:
    """Whether the process that created it has ended, or has not written to it for long."""
    owned_by = _OWNER.search(path.name)
    if owned_by and owned_by[2] == _host() and not _is_alive(int(owned_by[1])):
        return True
    if not path.name.startswith(".scrubjay-"):
        return False
    try:
        written_at = max(part.stat().st_mtime for part in (path, *path.glob("*")))
    except OSError:  # it was removed just now
        return False
    return time.time() - written_at > LEFT_OVER_SECONDS


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":  # where the signal 0 is Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _host() -> str:
    return blake2b(platform.node().encode(), digest_size=4).hexdigest()
