"""A database that is deleted or replaced while processes have it open: no acknowledged write is lost."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness import clean_environment
from scrubjay import Memory
from scrubjay.errors import Unavailable
from scrubjay.store import items
from scrubjay.store.sqlite import SqliteStore, backup, file_identity

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a file that is open cannot be deleted there")

WRITER = """
import json, sys
from scrubjay.errors import Unavailable
from scrubjay.store import items
from scrubjay.store.sqlite import SqliteStore
path = sys.argv[1]
store = SqliteStore(path, durability="fast")
print("open", flush=True)
for line in sys.stdin:
    words = line.split()
    try:
        if words[0] == "set":
            store.run(items.set_item("ns", words[1], words[2]))
        elif words[0] == "reopen":
            store.close()
            store = SqliteStore(path, durability="fast")
        elif words[0] == "close":
            store.close()
        print("done", flush=True)
    except Unavailable as error:
        print(error, flush=True)
"""


class Process:
    """Another process that has the database open and executes commands."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment(),
        )  # fmt: skip
        self.pid = self._process.pid
        assert self._read() == "open"

    def send(self, *words: object) -> str:
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> str:
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture
def start():
    with contextlib.ExitStack() as stack:

        def start(path: Path) -> Process:
            process = Process(path)
            stack.callback(process.end)
            return process

        yield start


def doctor(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scrubjay", "doctor", "--path", str(path)],
        capture_output=True, text=True, check=False, timeout=60, env=clean_environment(),
    )  # fmt: skip


def put(store: SqliteStore, key: str, value: object = 1) -> None:
    store.run(items.set_item("ns", key, json.dumps(value)))


def read(path: Path) -> dict[str, str]:
    with contextlib.closing(SqliteStore(path)) as store:
        assert store.find_problems() == []
        return store.run(items.read_many("ns", store.run(items.list_keys("ns"))))


def back_up(store: SqliteStore, target: Path) -> Path:
    with backup.atomic_write(target) as partial:
        backup.back_up(store, partial, lambda *_: None)
    return target


def fill(store: SqliteStore, count: int = 300) -> None:
    """Write enough that a log of another file would damage it."""
    for i in range(count):
        put(store, f"later{i:04}", "x" * 500)


def test_writes_after_the_file_was_deleted_are_refused(tmp_path):
    path = tmp_path / "db"
    memory = Memory("ns", path=str(path))
    memory.set("before", 1)
    path.unlink()
    for i in range(20):
        with pytest.raises(Unavailable, match="moved, deleted, emptied or replaced while this process had it open"):
            memory.set(f"after{i}", i)
    assert not path.exists()
    memory.close()
    with Memory("ns", path=str(path)) as memory:
        memory.set("new", 1)
    assert read(path) == {"new": "1"}


def test_reads_detect_a_deleted_file(tmp_path, monkeypatch):
    monkeypatch.setattr(file_identity, "CHECK_SECONDS", 0)
    with contextlib.closing(SqliteStore(tmp_path / "db")) as store:
        put(store, "k")
        assert store.run(items.read_text("ns", "k")) == "1"
        (tmp_path / "db").unlink()
        with pytest.raises(Unavailable, match="moved, deleted"):
            store.run(items.read_text("ns", "k"))


def test_a_moved_file_has_every_acknowledged_write_and_works_again_when_it_is_back(tmp_path, monkeypatch):
    monkeypatch.setattr(file_identity, "WRITE_CHECK_SECONDS", 0)
    path, moved = tmp_path / "db", tmp_path / "moved"
    store = SqliteStore(path)
    put(store, "k")
    path.rename(moved)
    with pytest.raises(Unavailable, match="put it back"):
        put(store, "k", 2)
    shutil.copyfile(moved, tmp_path / "copy")  # without a log
    assert read(tmp_path / "copy") == {"k": "1"}
    moved.rename(path)
    put(store, "k", 3)
    store.close()
    assert read(path) == {"k": "3"}


def test_of_writes_right_after_a_check_one_at_most_reaches_a_moved_file_and_none_is_acknowledged(tmp_path, monkeypatch):
    monkeypatch.setattr(file_identity, "WRITE_CHECK_SECONDS", 3600)
    path, moved = tmp_path / "db", tmp_path / "moved"
    store = SqliteStore(path)
    put(store, "k")
    path.rename(moved)
    with pytest.raises(Unavailable, match="this write went into the file that was open"):
        put(store, "k", 2)
    with pytest.raises(Unavailable, match="put it back"):
        put(store, "k", 3)
    shutil.copyfile(moved, tmp_path / "copy")  # without a log
    assert read(tmp_path / "copy") == {"k": "2"}
    moved.rename(path)
    put(store, "k", 4)
    store.close()
    assert read(path) == {"k": "4"}


def test_a_write_during_which_the_file_is_deleted_is_not_acknowledged(tmp_path, monkeypatch):
    """Deleted between BEGIN and COMMIT."""
    store = SqliteStore(tmp_path / "db")
    attempt = store.writer.attempt

    def deleting(*args):
        (tmp_path / "db").unlink(missing_ok=True)
        return attempt(*args)

    monkeypatch.setattr(store.writer, "attempt", deleting)
    with pytest.raises(Unavailable, match="went into the file that was open"):
        put(store, "k")
    store.close()


def test_a_backup_that_replaces_an_open_file_stays_intact(tmp_path, start):
    path = tmp_path / "db"
    store = SqliteStore(path, durability="fast")
    put(store, "kept")
    backup = back_up(store, tmp_path / "backup")
    fill(store)
    assert Path(f"{path}-wal").stat().st_size
    backup.replace(path)
    ended = doctor(path)
    assert (ended.returncode, f"process {os.getpid()} still has it open" in ended.stdout) == (1, True), ended.stdout
    with pytest.raises(Unavailable, match="replaced"):
        put(store, "lost")
    store.close()
    process = start(path)
    assert process.send("set", "after", 2) == "done"
    process.end()
    assert read(path) == {"kept": "1", "after": "2"}
    assert doctor(path).returncode == 0


def test_closing_a_store_after_its_file_was_replaced_leaves_no_log_beside_the_new_one(tmp_path):
    path = tmp_path / "db"
    store = SqliteStore(path, durability="fast")
    put(store, "kept")
    backup = back_up(store, tmp_path / "backup")
    fill(store)
    backup.replace(path)
    store.close()
    assert read(path) == {"kept": "1"}


def test_a_replaced_file_is_refused_while_a_store_of_this_process_has_the_old_one_open(tmp_path):
    path = tmp_path / "db"
    with contextlib.closing(SqliteStore(path)) as first:
        put(first, "k")
        back_up(first, tmp_path / "backup").replace(path)
        with pytest.raises(Unavailable, match="close every Memory that uses it"):
            SqliteStore(path)
    assert read(path) == {"k": "1"}


def test_a_restore_is_refused_beside_the_log_of_another_file(tmp_path, start):
    path = tmp_path / "db"
    store = SqliteStore(path)
    put(store, "k")
    copy_of = back_up(store, tmp_path / "backup")
    store.close()
    process = start(path)
    assert process.send("set", "k", 2) == "done"
    shutil.copyfile(copy_of, tmp_path / "copy")
    (tmp_path / "copy").replace(path)
    with pytest.raises(Unavailable, match=f"process {process.pid} still has it open"):
        backup.restore(copy_of, path, lambda *_: None)
    process.end()
    backup.restore(copy_of, path, lambda *_: None)
    assert read(path) == {"k": "1"}


def test_acknowledged_writes_survive_when_the_log_is_deleted(tmp_path):
    path = tmp_path / "db"
    store = SqliteStore(path)
    put(store, "before")
    Path(f"{path}-wal").unlink()
    ended = doctor(path)
    assert (ended.returncode, "log" in ended.stdout) == (1, True)
    with pytest.raises(Unavailable, match=r"the log of .* was deleted"):
        put(store, "after")
    store.close()
    assert read(path) == {"before": "1"}


def test_a_folder_that_was_deleted_is_printed(tmp_path):
    store = SqliteStore(tmp_path / "folder" / "db")
    put(store, "k")
    shutil.rmtree(tmp_path / "folder")
    with pytest.raises(Unavailable, match=r"the folder of .* was moved or deleted"):
        put(store, "k", 2)
    store.close()
    assert not (tmp_path / "folder").exists()


def test_doctor_reports_that_the_file_of_a_running_process_was_deleted(tmp_path, start):
    path = tmp_path / "db"
    process = start(path)
    process.send("set", "k", 1)
    path.unlink()
    ended = doctor(path)
    assert (ended.returncode, f"process {process.pid} still has it open" in ended.stdout) == (1, True), ended.stdout
    assert not path.exists()


def test_a_file_that_was_emptied_while_a_process_has_it_open_is_refused_at_once(tmp_path, start):
    path = tmp_path / "db"
    process = start(path)
    assert process.send("set", "k", 1) == "done"
    path.write_bytes(b"")
    Path(f"{path}-wal").write_bytes(b"")
    with pytest.raises(Unavailable, match=f"is empty: it was truncated while process {process.pid} has it open"):
        SqliteStore(path)


def test_a_log_without_its_file_is_not_deleted_and_can_be_recovered(tmp_path):
    path = tmp_path / "db"
    with contextlib.closing(SqliteStore(path)) as store:
        put(store, "k")
        shutil.copyfile(f"{path}-wal", tmp_path / "left-wal")
    with pytest.raises(Unavailable, match="was moved or deleted: put it back"):
        SqliteStore(tmp_path / "left")
    assert not (tmp_path / "left").exists()
    assert (tmp_path / "left-wal").stat().st_size
    done = subprocess.run(
        [sys.executable, "-m", "scrubjay", "recover", str(tmp_path / "left")],
        capture_output=True, check=False, timeout=60, env=clean_environment(),
    )  # fmt: skip
    assert read(tmp_path / "left.recovered") == {"k": "1"}, done


def test_chdir_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(SqliteStore("db")) as store:
        monkeypatch.chdir("/")
        put(store, "k")
        store.put_back(store.connect())
    assert read(tmp_path / "db") == {"k": "1"}


def write_on(process: Process, mine: dict[str, str], name: str, changed: threading.Event) -> None:
    """Write until 30 writes were acknowledged after the change; `mine` has those since the last time it reopened."""
    give_up_at = time.monotonic() + 100
    number = after = 0
    while after < 30 and time.monotonic() < give_up_at:
        number += 1
        answer = process.send("set", f"{name}-{number}", number)
        if answer == "done":
            mine[f"{name}-{number}"] = str(number)
            after += changed.is_set()
            continue
        assert "while this process had" in answer, answer
        after = 0
        mine.clear()
        while process.send("reopen") != "done" and time.monotonic() < give_up_at:
            pass


def test_many_processes_write_while_the_file_is_removed_and_replaced(tmp_path, start):
    """After each change every process gets an error and reopens; writes acknowledged from then on are in the file."""
    path = tmp_path / "db"
    with contextlib.closing(SqliteStore(path)) as store:
        put(store, "kept")
        backup = back_up(store, tmp_path / "backup")
    processes = [start(path) for _ in range(3)]
    for turn in range(4):
        acknowledged: list[dict[str, str]] = [{} for _ in processes]
        changed = threading.Event()
        threads = [
            threading.Thread(target=write_on, args=(process, mine, f"t{turn}p{i}", changed))
            for i, (process, mine) in enumerate(zip(processes, acknowledged, strict=True))
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        if turn % 2:
            path.unlink()
        else:
            shutil.copyfile(backup, tmp_path / "copy")
            (tmp_path / "copy").replace(path)
        changed.set()
        for thread in threads:
            thread.join(120)
        found = read(path)
        assert ("kept" in found) == (turn % 2 == 0)
        for mine in acknowledged:
            assert len(mine) >= 30
            assert mine.items() <= found.items()
    for process in processes:
        process.end()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
