"""Whole database files: copied while they are in use, checked, and put back."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scrubjay.errors import InvalidInput, ScrubjayError, Unavailable

from .sealing import PLAIN, Cipher
from .sqlite import BUSY_SECONDS, SqliteStore, explain, roll_back

Progress = Callable[[int, int], object]
"""Told how many are done, and of how many."""

COPY_PAGES = 1000
"""Pages that are copied between two reports of progress."""
RESTORE_PAGES = 8
"""Fewer than the smallest database has, so that a restore always stops once before its end."""
LEFT_OVER_SECONDS = 3600
"""How old a file of an import or a restore is that nobody works on any more."""
_BESIDE = ("-wal", "-shm", "-journal")
_LOCK_OF_THE_OPEN = 128
"""The byte of the -shm file of which every connection in WAL mode holds a shared lock."""


def copy_database(source: sqlite3.Connection, target: Path, progress: Progress) -> None:
    """The database as it is at one moment, while others go on writing."""
    try:
        # A transaction of our own: without it, every write by another process would start the copy over.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
            source.backup(copy, pages=COPY_PAGES, progress=_reporting(progress))
    except sqlite3.Error as error:
        raise explain(error, target) from error
    finally:
        roll_back(source)


def back_up(store: SqliteStore, target: Path, progress: Progress) -> None:
    """A copy of the store's file, not yet checked."""
    source = store.take()
    try:
        copy_database(source, target, progress)
    finally:
        store.put_back(source)


class _Copy(SqliteStore):
    """A file of which no value is read: whoever keeps it need not know its secret, nor have the same."""

    def open_keyring(self, _connection: sqlite3.Connection) -> Cipher:
        return PLAIN


def check_copy(path: Path) -> None:
    """Refuse a copy with damaged pages, another program's database, or that of a newer Scrubjay."""
    with contextlib.closing(_Copy(path)) as store:
        damage = store.find_damage()
    if damage:
        raise Unavailable(f"the copy is damaged, and so may be what it was made of: {damage[0]}; run `scrubjay doctor`")


def refuse_same(one: Path, other: Path) -> None:
    if one.exists() and other.exists() and one.samefile(other):
        raise InvalidInput(f"{one} is the database itself; name another file")


@contextlib.contextmanager
def arriving(target: Path, *, force: bool | None = None) -> Iterator[Path]:
    """A path to write to, which becomes `target` once it is whole and on disk; else nothing of it remains.

    A file that is there is replaced by force, where a user can ask for that, but never one that is in use.
    """
    if target.name.endswith(_BESIDE):
        raise InvalidInput(f"{target} has the name of a database's log; name another file")
    if target.exists() and not force:
        advice = "" if force is None else ", or say --force to replace it"
        raise InvalidInput(f"{target} is there already; name another file{advice}")
    if target.exists() and _is_open(target):
        raise InvalidInput(f"{target} is a database that another process has open; name another file")
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield partial
        _sync(partial)
        partial.replace(target)
        _sync(target.parent)
    except OSError as error:
        raise Unavailable(f"cannot write {target}: {error.strerror}; name a place that can be written") from error
    finally:
        _remove(partial)


def restore(backup: Path, path: Path, progress: Progress) -> Path | None:
    """Put a backup in the place of the database, and say where the one that was there is kept.

    The pages go through SQLite into the file that is there, in one transaction: whoever has it open, a server
    included, sees the old state until then and the new one from then on. Before the first is changed, and
    while nobody else can write, the old state is copied aside.
    """
    refuse_same(backup, path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    size, log = (_size(Path(f"{path}{suffix}")) for suffix in ("", "-wal"))
    aside = path.with_name(f"{path.name}.before-restore-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}")
    with _staged(backup, path.parent) as copy:
        try:
            if log and not size:  # SQLite would delete the log, which is all that is left
                _swap(copy, path, aside)
            else:
                if size and _ring(copy) != _ring(path):
                    _refuse_open(path, "has other keys than the backup, with which others would go on")
                _write_through(copy, path, aside if size else None, progress)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise explain(error, path) from error
            _swap(copy, path, aside)
    return aside if size or log else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextlib.contextmanager
def _staged(backup: Path, folder: Path) -> Iterator[Path]:
    """A copy of the backup that is checked and brought to this program's format; the backup stays as it is."""
    if not backup.is_file():
        raise InvalidInput(f"there is no file {backup}; name the backup to restore")
    with tempfile.TemporaryDirectory(prefix=".scrubjay-restore-", dir=folder) as place:
        copy = Path(place) / backup.name
        try:
            for suffix in ("", "-wal"):
                if Path(f"{backup}{suffix}").exists():
                    shutil.copyfile(f"{backup}{suffix}", f"{copy}{suffix}")
        except OSError as error:
            raise Unavailable(f"cannot copy {backup}: {error.strerror}; is the disk full?") from error
        if not copy.stat().st_size:
            raise InvalidInput(f"{backup} is empty, so it is no backup; name another")
        try:
            check_copy(copy)
        except ScrubjayError as error:
            raise Unavailable(error.detail.replace(str(copy), str(backup))) from error
        yield copy


def _write_through(copy: Path, path: Path, aside: Path | None, progress: Progress) -> None:
    give_up_at = time.monotonic() + BUSY_SECONDS
    waiting: list[Path] = [aside] if aside else []
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))

    def step(status: int, remaining: int, total: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            if time.monotonic() > give_up_at:
                raise Unavailable(f"another process has been writing to {path} for {BUSY_SECONDS:g} s; try again")
            return
        while waiting:  # from the first step on nobody else can write, and nothing is changed yet
            _keep(path, waiting.pop())
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


def _keep(path: Path, aside: Path) -> None:
    with arriving(aside) as partial, contextlib.closing(_open(path)) as old:
        copy_database(old, partial, lambda *_: None)


def _swap(copy: Path, path: Path, aside: Path) -> None:
    """What SQLite cannot even open is moved aside as it is; whoever had it open would go on with that one."""
    _refuse_open(path, "is damaged")
    for suffix in ("", "-wal"):
        if Path(f"{path}{suffix}").exists():
            Path(f"{path}{suffix}").replace(f"{aside}{suffix}")
    _remove(path)  # an index of the old log must not be taken for one of the new
    _sync(copy)
    copy.replace(path)
    _sync(path.parent)


def _ring(path: Path) -> list[Any]:
    """What a file keeps of the keys that its values are sealed with; nothing if they are not."""
    with contextlib.closing(_open(path)) as file:
        if not file.execute("SELECT 1 FROM sqlite_master WHERE name = 'keyring'").fetchall():  # an older format
            return []
        return file.execute("SELECT salt, sealed FROM keyring").fetchall()


def _refuse_open(path: Path, why: str) -> None:
    if _is_open(path):
        raise Unavailable(
            f"{path} {why}, and another process has it open; stop that one (such as `scrubjay serve`) first"
        )


def _is_open(path: Path) -> bool:
    """Whether a process has the database open, by the lock that SQLite then holds on its -shm file."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows, which keeps files that are open from being renamed anyway
    except ImportError:
        return False
    try:
        with Path(f"{path}-shm").open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LOCK_OF_THE_OPEN)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _remove(path: Path) -> None:
    for suffix in ("", *_BESIDE):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _sync(path: Path) -> None:
    with contextlib.suppress(PermissionError):  # Windows opens no folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _reporting(progress: Progress) -> Callable[[int, int, int], None]:
    def report(_status: int, remaining: int, total: int) -> None:
        progress(total - remaining, total)

    return report


def remove_left_over(folder: Path) -> None:
    """Delete what an import or a restore has left beside the database because it was killed."""
    for path in folder.glob(".scrubjay-*"):
        with contextlib.suppress(OSError):
            if path.is_file() and time.time() - path.stat().st_mtime > LEFT_OVER_SECONDS:
                path.unlink()
