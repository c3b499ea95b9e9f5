"""The identity of a database file and its write-ahead log: whether they are still the ones that were opened.

SQLite finds a log by its name alone. When a database is deleted or replaced while a process has it open, the log of
the old file stays beside the new one, and a process that opens the new one would apply it to the wrong pages.
"""

# ruff: noqa: PTH116 - os.stat takes half the time of Path.stat, and every write calls it
from __future__ import annotations

import os
import shlex
import struct
import sys
import time
from os import stat
from pathlib import Path

from scrubjay.errors import Unavailable

CHECK_SECONDS = 0.1
"""Seconds that reads rely on the last check, which would take a quarter of the time of a get: for so long they may
still see a file that was replaced."""
WRITE_CHECK_SECONDS = 0.001
"""Seconds that the start of a write relies on the last check: less than an fsync takes, during which the file may be
moved as well. A program that writes in a loop with durability "fast" calls stat once instead of three times."""
_SHARED_LOCKS = (0x40000002, 510)
"""The bytes of the database, start and count, on which every connection in WAL mode has a shared lock."""
OPEN_LOCK = (128, 1)
"""The byte of the -shm file, start and count, on which every connection in WAL mode has a shared lock."""
_CHECKS = 3
"""How often a log must seem to belong to another file: while a process closes the file it seems so once."""
_RETRY_SECONDS = 0.01

DeviceAndInode = tuple[int, int]


class FileIdentity:
    """The file that a store has opened, and its log."""

    def __init__(self, path: Path) -> None:
        self._file = str(path.absolute())
        self._log = f"{os.path.realpath(path)}-wal"  # SQLite follows symbolic links before it adds to the name
        self._opened_file: DeviceAndInode | None = None
        self._opened_log: DeviceAndInode | None = None
        self._min_size = 0
        self._check_at = 0.0
        self._write_check_at = 0.0

    @property
    def uri(self) -> str:
        return Path(self._file).as_uri()

    def has_path_of(self, other: FileIdentity) -> bool:
        return self._log == other._log

    def remember_file(self) -> None:
        """Call this before the first connection opens the file."""
        self._opened_file = _find(self._file)

    def remember_content(self) -> None:
        """Call this when the file has tables: from now on an empty file is another one."""
        self._min_size = 1
        self.remember_log()

    def remember_log(self) -> None:
        """Call this when a connection has read something; while one is open, no process deletes the log."""
        self._opened_log = _find(self._log)

    def was_file_recently(self) -> bool:
        """Whether the file was at its path at most CHECK_SECONDS ago: the check of every read."""
        now = time.monotonic()
        if now < self._check_at:
            return True
        if not self.is_file():
            return False
        self._check_at = now + CHECK_SECONDS
        return True

    def is_file(self) -> bool:
        """Whether the file is at its path, and not empty."""
        try:
            found = stat(self._file)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._opened_file and found.st_size >= self._min_size

    def may_write(self) -> bool:
        """Whether file and log were at their paths at most WRITE_CHECK_SECONDS ago: the check of every write."""
        now = time.monotonic()
        if now < self._write_check_at:
            return True
        if not self.is_unchanged():
            return False
        self._write_check_at = now + WRITE_CHECK_SECONDS
        return True

    def has_written(self) -> bool:
        """Whether the file is at its path after a commit; if not, the next write is checked in full."""
        is_file = self.is_file()
        if not is_file:
            self._write_check_at = 0.0
        return is_file

    def is_unchanged(self) -> bool:
        """Whether the file and its log are at their paths."""
        try:
            file = stat(self._file)
            log = file if self._opened_log is None else stat(self._log)
        except OSError:
            return False
        return (
            (file.st_dev, file.st_ino) == self._opened_file
            and file.st_size >= self._min_size
            and (log is file or (log.st_dev, log.st_ino) == self._opened_log)
        )

    def takes_log(self) -> bool:
        """Whether the log can be copied into the file that was opened; one that was emptied would be damaged more."""
        return self.is_file() or _find(self._file) != self._opened_file

    def describe_loss(self, name: str) -> str:
        if not Path(self._file).parent.is_dir():
            return f"the folder of {name} was moved or deleted while this process had the database open"
        if self.is_file():
            return f"the log of {name} ({Path(self._log).name}) was deleted or replaced while this process had it open"
        return f"{name} was moved, deleted, emptied or replaced while this process had it open"

    def refuse_lost_file(self) -> None:
        """Refuse to open a log without its file: SQLite would create a new database, and delete the log."""
        size = size_of(self._log)  # first: a process that creates the file just now writes it before the log
        if size_of(self._file):
            return
        self.refuse_foreign_log()
        self._refuse_emptied_file()
        if size:
            state = "is empty: it was truncated" if Path(self._file).exists() else "was moved or deleted: put it back"
            raise Unavailable(
                f"{self._file} has a log of {size:,} bytes, but the database itself {state}; restore a backup with"
                f" `scrubjay restore`, or save what the log has: scrubjay recover {shlex.quote(str(self._file))};"
                f" to start with an empty database, delete {self._log}"
            )

    def _refuse_emptied_file(self) -> None:
        """Refuse an empty file that a process has open in WAL mode: a new database gets its first page before that."""
        holder = find_holder(f"{self._log.removesuffix('-wal')}-shm", OPEN_LOCK)
        if holder is not None and not size_of(self._file):
            raise Unavailable(
                f"{self._file} is empty: it was truncated while {holder} has it open; stop that process, then restore"
                " a backup with `scrubjay restore`, or save what the log has: scrubjay recover"
                f" {shlex.quote(self._file)}"
            )

    def refuse_foreign_log(self) -> None:
        """Refuse to open a file beside the log of another file, which a process still has open.

        Call this when the file is open but nothing was read, not even by a PRAGMA: SQLite opens the log with the
        first read, and a connection that is closed before that changes nothing.
        """
        for _ in range(_CHECKS):
            if not (reason := self._find_foreign_log()):
                return
            time.sleep(_RETRY_SECONDS)
        raise Unavailable(reason)

    def _find_foreign_log(self) -> str:
        index = self._log.removesuffix("-wal") + "-shm"
        if not Path(index).exists():
            return ""
        is_open = find_holder(self._file, _SHARED_LOCKS)
        holder = find_holder(index, OPEN_LOCK)
        if holder is None:
            return ""
        if not is_open and not find_holder(self._file, _SHARED_LOCKS):
            return (
                f"the database at {self._file} was moved, deleted or replaced, but {holder} still has it open and"
                " uses its log; stop that process, then try again"
            )
        if not Path(self._log).exists():
            return f"the log of {self._file} was deleted while {holder} has it open; stop that process, then try again"
        return ""


def find_holder(path: str, lock: tuple[int, int]) -> str | None:
    """The other process that has a lock on these bytes of a file, for a message; None when there is none."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows, where a file that is open cannot be replaced
    except ImportError:
        return None
    start, count = lock
    try:
        descriptor = descriptor_of(path)
        if sys.platform == "darwin":
            wanted = struct.pack("qqihh", start, count, 0, fcntl.F_WRLCK, os.SEEK_SET)
            _, _, pid, kind, _ = struct.unpack("qqihh", fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
        else:
            wanted = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, start, count, 0)
            kind, _, _, _, pid = struct.unpack("hhqqi", fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    except OSError:
        return None
    if kind == fcntl.F_UNLCK:
        return None
    return f"process {pid}" if pid > 0 else "a process on another machine"


_descriptors: dict[DeviceAndInode, int] = {}


def descriptor_of(path: str | Path) -> int:
    """A descriptor to read the file with, opened once and never closed.

    A process that closes a file gives up all its locks on it, those of SQLite too: then another process believes that
    it is the last one with the file open, and deletes the log that this process still writes to.
    """
    status = Path(path).stat()
    file = (status.st_dev, status.st_ino)
    if file not in _descriptors:
        _descriptors[file] = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    return _descriptors[file]


def size_of(path: str | Path) -> int:
    """In bytes; 0 for a file that does not exist."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _find(path: str) -> DeviceAndInode | None:
    try:
        found = stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
