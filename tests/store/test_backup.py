"""Backups, restores, and files that may not be written."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from harness import clean_environment
from scrubjay.errors import InvalidInput, Unavailable
from scrubjay.store import api_keys, items, lists, sign_ins
from scrubjay.store.sqlite import SqliteStore, backup, erase, schema


def quiet(*_: int) -> None:
    """A progress callback that does nothing."""


def make(path: Path, **values: int) -> SqliteStore:
    store = SqliteStore(path, durability="fast")
    for key, value in values.items():
        store.run(items.set_item("ns", key, json.dumps(value)))
    return store


def copy_of(store: SqliteStore, target: Path) -> Path:
    with backup.atomic_write(target) as partial:
        backup.back_up(store, partial, quiet)
        backup.check_copy(partial)
    return target


def read(path: Path) -> dict[str, str]:
    store = SqliteStore(path)
    found = store.run(items.read_many("ns", store.run(items.list_keys("ns"))))
    assert store.find_problems() == []
    store.close()
    return found


def test_an_old_temporary_file_of_a_killed_import_is_deleted(tmp_path):
    old, young, other = (tmp_path / name for name in (".scrubjay-import-a", ".scrubjay-import-b", "mine"))
    for path in (old, young, other):
        path.write_text("secret")
    for path in (old, other):
        os.utime(path, (0, 0))
    backup.remove_left_over(tmp_path)
    assert [path.exists() for path in (old, young, other)] == [False, True, True]


def test_temporary_copies_of_ended_processes_are_deleted(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", "from scrubjay.store.sqlite.backup import owner; print(owner())"],
        capture_output=True, text=True, check=True, env=clean_environment(),
    )  # fmt: skip
    gone, here = process.stdout.strip(), backup.owner()
    elsewhere = f"{gone.partition('@')[0]}@00000000"
    names = ("b.partial-{}", "b.partial-{}-journal", ".scrubjay-restore-{}-x", ".scrubjay-import-{}-x")
    for owner in (gone, here, elsewhere):
        for name in names:
            (tmp_path / name.format(owner)).write_text("secret")
        (tmp_path / f".scrubjay-backup-{owner}-x").mkdir()
        (tmp_path / f".scrubjay-backup-{owner}-x" / "copy").write_text("secret")
    assert backup.remove_left_over(tmp_path) == []
    left = [path.name for path in tmp_path.iterdir()]
    assert not [name for name in left if gone in name]
    assert len(left) == 2 * (len(names) + 1)


def test_an_erasure_deletes_the_copy_of_a_killed_process_or_reports_it(tmp_path, monkeypatch):
    store = make(tmp_path / "db", a=1)
    monkeypatch.setattr(backup, "_is_alive", lambda _pid: False)
    copy = tmp_path / f".scrubjay-backup-{backup.owner()}-x"
    copy.mkdir()
    backup.back_up(store, copy / "copy", quiet)

    def refuse(*_):
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", refuse)
        assert [str(copy) in trace for trace in erase.erase(store, "ns").traces] == [True]
    assert erase.erase(store, "ns").traces == []
    assert not copy.exists()
    store.close()


def test_a_backup_is_one_file_that_only_its_user_can_read(tmp_path):
    store = make(tmp_path / "db", a=1)
    copy_of(store, tmp_path / "copy")
    store.run(items.set_item("ns", "a", "2"))
    assert read(tmp_path / "copy") == {"a": "1"}
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600
    assert sorted(part.name for part in tmp_path.iterdir() if "copy" in part.name) == ["copy"]
    store.close()


def test_a_backup_is_a_snapshot_while_another_store_writes(tmp_path, monkeypatch):
    """Two values change together; no copy has one without the other, and every copy ends."""
    monkeypatch.setattr(backup, "COPY_PAGES", 1)
    store, stop = make(tmp_path / "db"), threading.Event()
    store.run(items.update_items("ns", {f"k{i}": json.dumps("x" * 3000) for i in range(200)}))

    def write() -> None:
        other = SqliteStore(tmp_path / "db", durability="fast")
        while not stop.is_set():
            other.run(items.update_items("ns", {"a": json.dumps(writes), "b": json.dumps(writes)}))
            writes.append(0)
        other.close()

    writes: list[int] = []
    writer = threading.Thread(target=write)
    writer.start()
    steps = []
    for i in range(5):
        with backup.atomic_write(tmp_path / f"copy-{i}") as partial:
            backup.back_up(store, partial, lambda done, total: steps.append((done, total)))
        found = read(tmp_path / f"copy-{i}")
        assert found.get("a") == found.get("b")
        assert len(found) >= 200
    stop.set()
    writer.join()
    assert len(writes) > 5
    assert any(done < total for done, total in steps), "progress is reported before the end"
    store.close()


def test_an_existing_file_is_replaced_only_with_force_and_no_partial_file_remains(tmp_path):
    (tmp_path / "there").write_text("mine")
    with pytest.raises(InvalidInput, match="--force"), backup.atomic_write(tmp_path / "there", force=False):
        pass
    with pytest.raises(ZeroDivisionError), backup.atomic_write(tmp_path / "there", force=True) as partial:
        partial.write_text(str(1 / 0))
    assert [part.name for part in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").read_text() == "mine"
    for force in (True, False, None):
        with pytest.raises(InvalidInput, match="is a folder; name a file in it"):
            backup.atomic_write(tmp_path, force=force).__enter__()
    with pytest.raises(Unavailable, match="cannot write"), backup.atomic_write(tmp_path / "nowhere" / "copy"):
        pass


def test_a_damaged_copy_is_refused_as_a_backup(tmp_path):
    store = make(tmp_path / "db", **{f"k{i}": i for i in range(500)})
    store.close()
    with sqlite3.connect(tmp_path / "db") as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'items'").fetchone()
    connection.close()
    with (tmp_path / "db").open("r+b") as file:
        file.seek((page - 1) * 4096 + 8)
        file.write(b"\xff" * 2000)
    store = SqliteStore(tmp_path / "db")
    with pytest.raises(Unavailable, match=r"damaged.*scrubjay doctor"):
        copy_of(store, tmp_path / "copy")
    store.close()
    assert not (tmp_path / "copy").exists()


def test_a_restore_copies_the_previous_database_and_open_stores_see_the_new_one(tmp_path):
    store = make(tmp_path / "db", a=1)
    copy_of(store, tmp_path / "copy")
    store.run(items.set_item("ns", "a", "2"))
    store.run(lists.append_items("ns", "l", ["1"] * 5000))
    steps: list[int] = []
    previous = backup.restore(tmp_path / "copy", tmp_path / "db", lambda done, _: steps.append(done)).previous
    assert store.run(items.read_text("ns", "a")) == "1", "the store was open all the while"
    store.run(items.set_item("ns", "b", "3"))
    assert store.find_problems() == []
    store.close()
    assert read(tmp_path / "db") == {"a": "1", "b": "3"}
    assert read(previous)["a"] == "2"
    assert len(json.loads(read(previous)["l"])) == 5000
    assert read(tmp_path / "copy") == {"a": "1"}
    assert steps
    again = backup.restore(previous, tmp_path / "db", quiet).previous
    assert read(again) == {"a": "1", "b": "3"}, "each previous database has its own name"


def test_a_restore_ends_every_sign_in_of_the_backup(tmp_path):
    store = make(tmp_path / "db", a=1)
    secret = store.run(api_keys.issue("a", ("*",), False, True)).secret
    token, _ = store.run(sign_ins.start(secret))
    copy_of(store, tmp_path / "copy")
    store.run(sign_ins.end(token))
    backup.restore(tmp_path / "copy", tmp_path / "db", quiet)
    assert store.run(sign_ins.find(token)) is None
    assert store.run(sign_ins.start(secret))
    store.close()


@pytest.mark.parametrize(
    "code",
    [
        "CREATE TRIGGER undo AFTER INSERT ON items BEGIN DELETE FROM items; END",
        "ALTER TABLE items RENAME TO real; CREATE VIEW items AS SELECT * FROM real",
    ],
    ids=["trigger", "view"],
)
def test_a_backup_that_would_change_what_is_written_is_not_restored(tmp_path, code):
    make(tmp_path / "db", a=1).close()
    make(tmp_path / "copy", a=2).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "copy")) as file:
        file.executescript(code)
    with pytest.raises(InvalidInput, match="which Scrubjay did not make"):
        backup.restore(tmp_path / "copy", tmp_path / "db", quiet)
    assert read(tmp_path / "db") == {"a": "1"}


def test_every_write_during_a_restore_is_in_the_previous_or_the_new_database(tmp_path):
    """Acknowledged before the restore: in the previous database. After it: in the new one."""
    store = make(tmp_path / "db", start=0)
    store.run(items.update_items("ns", {f"k{i}": json.dumps("x" * 3000) for i in range(300)}))
    copy_of(store, tmp_path / "copy")
    acknowledged, stop = [], threading.Event()

    def write() -> None:
        i = 0
        while not stop.is_set():
            store.run(items.set_item("log", f"{i:06}", "1"))
            acknowledged.append(f"{i:06}")
            i += 1

    writer = threading.Thread(target=write)
    writer.start()
    while len(acknowledged) < 20:
        pass
    previous = backup.restore(tmp_path / "copy", tmp_path / "db", quiet).previous
    target = len(acknowledged) + 20
    while len(acknowledged) < target:
        pass
    stop.set()
    writer.join()
    after = set(store.run(items.list_keys("log")))
    assert store.find_problems() == []
    store.close()
    old = SqliteStore(previous)
    before = set(old.run(items.list_keys("log")))
    old.close()
    assert set(acknowledged) == before | after
    assert not before & after


def test_a_file_that_is_not_a_backup_changes_nothing(tmp_path):
    store = make(tmp_path / "db", a=1)
    copy_of(store, tmp_path / "newer")
    store.close()
    with sqlite3.connect(tmp_path / "newer") as connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    connection.close()
    with sqlite3.connect(tmp_path / "theirs") as connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    (tmp_path / "text").write_text("no database" * 1000)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "cut").write_bytes((tmp_path / "db").read_bytes()[:-4096])
    for name in ("newer", "theirs", "text", "empty", "cut", "nowhere"):
        with pytest.raises((Unavailable, InvalidInput)):
            backup.restore(tmp_path / name, tmp_path / "db", quiet)
        assert read(tmp_path / "db") == {"a": "1"}
        assert not list(tmp_path.glob("*before-restore*")), name


@pytest.mark.parametrize("harm", ["header", "cut", "empty", "gone"])
def test_a_backup_can_be_restored_over_a_damaged_or_missing_database(tmp_path, harm):
    store = make(tmp_path / "db", **{f"k{i}": i for i in range(300)})
    copy_of(store, tmp_path / "copy")
    store.close()
    raw = (tmp_path / "db").read_bytes()
    lost = {"header": b"\xff" * 4096 + raw[4096:], "cut": raw[: len(raw) // 2], "empty": b""}
    if harm == "gone":
        (tmp_path / "db").unlink()
    else:
        (tmp_path / "db").write_bytes(lost[harm])
    previous = backup.restore(tmp_path / "copy", tmp_path / "db", quiet).previous
    assert len(read(tmp_path / "db")) == 300
    assert (previous is None) == (harm in ("empty", "gone"))
    if previous:
        assert previous.stat().st_size > 0
    with sqlite3.connect(tmp_path / "db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_the_log_of_an_empty_file_is_kept_previous(tmp_path):
    store = make(tmp_path / "db", a=1)
    copy_of(store, tmp_path / "copy")
    store.run(items.set_item("ns", "a", "2"))
    log = Path(f"{store.path}-wal").read_bytes()
    store.close()
    (tmp_path / "db").write_bytes(b"")
    (tmp_path / "db-wal").write_bytes(log)
    previous = backup.restore(tmp_path / "copy", tmp_path / "db", quiet).previous
    assert Path(f"{previous}-wal").read_bytes() == log
    assert read(tmp_path / "db") == {"a": "1"}


def test_a_backup_of_itself_is_refused(tmp_path):
    make(tmp_path / "db", a=1).close()
    with pytest.raises(InvalidInput, match="the database itself"):
        backup.restore(tmp_path / "db", tmp_path / "db", quiet)


HOLDER = """
import sys, time
from scrubjay.store.sqlite import SqliteStore
from scrubjay.store import items
store = SqliteStore(sys.argv[1])
store.run(items.set_item("ns", "held", "1"))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_damaged_file_is_not_replaced_while_another_process_has_it_open(tmp_path):
    store = make(tmp_path / "db", a=1)
    copy_of(store, tmp_path / "copy")
    store.close()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "db")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment(),
    )  # fmt: skip
    assert holder.stdout.readline() == b"open\n"
    shutil.copyfile(tmp_path / "db", tmp_path / "before")
    with (tmp_path / "db").open("r+b") as file:
        file.write(b"\xff" * 4096)
    Path(f"{tmp_path / 'db'}-wal").write_bytes(b"")
    try:
        with pytest.raises(Unavailable, match="stop that process"):
            backup.restore(tmp_path / "copy", tmp_path / "db", quiet)
    finally:
        holder.communicate(timeout=30)
    backup.restore(tmp_path / "copy", tmp_path / "db", quiet)
    assert read(tmp_path / "db") == {"a": "1"}


def test_a_encrypted_backup_needs_no_secret_but_nobody_goes_on_with_other_keys(tmp_path):
    encrypted = SqliteStore(tmp_path / "encrypted", durability="fast", secret="s")
    encrypted.run(items.set_item("ns", "a", "2"))
    copy_of(encrypted, tmp_path / "copy")
    encrypted.close()
    make(tmp_path / "db", a=1).close()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "db")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment(),
    )  # fmt: skip
    assert holder.stdout.readline() == b"open\n"
    try:
        with pytest.raises(Unavailable, match="another encryption key than the backup"):
            backup.restore(tmp_path / "copy", tmp_path / "db", quiet)
    finally:
        holder.communicate(timeout=30)
    assert read(tmp_path / "db") == {"a": "1", "held": "1"}
    backup.restore(tmp_path / "copy", tmp_path / "db", quiet)
    with pytest.raises(InvalidInput, match="encrypted"):
        SqliteStore(tmp_path / "db")
    with contextlib.closing(SqliteStore(tmp_path / "db", secret="s")) as store:
        assert store.run(items.read_text("ns", "a")) == "2"


def test_a_secret_in_the_environment_does_not_encrypt_a_backup(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "db")
    monkeypatch.setenv("SCRUBJAY_SECRET", "of another file")
    copy_of(store, tmp_path / "copy")
    store.close()
    monkeypatch.delenv("SCRUBJAY_SECRET")
    assert read(tmp_path / "copy") == {}


def test_an_older_backup_is_migrated_before_it_replaces_the_database(tmp_path, monkeypatch):
    store = make(tmp_path / "db", a=1)
    copy_of(store, tmp_path / "copy")
    store.close()
    before = (tmp_path / "copy").read_bytes()
    from scrubjay.store.sqlite import connection as sqlite

    monkeypatch.setattr(sqlite, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE later (namespace TEXT)",)))
    monkeypatch.setattr(sqlite, "VERSION", schema.VERSION + 1)
    backup.restore(tmp_path / "copy", tmp_path / "db", quiet)
    with sqlite3.connect(tmp_path / "db") as connection:
        assert connection.execute("SELECT count(*) FROM later").fetchone() == (0,)
    connection.close()
    assert (tmp_path / "copy").read_bytes() == before, "the backup itself stays as it is"


AS_NOBODY = """
import os, sys, tempfile, urllib.parse
import scrubjay.memory, scrubjay.store.notes
from scrubjay import Memory, Unavailable
from scrubjay.recall.query import analyze, widen
widen(analyze("reads the word lists"))  # what is loaded late, while it can be
with tempfile.TemporaryDirectory() as folder, Memory("ns", path=f"{folder}/db") as memory:
    memory.set("a", 1)
if os.geteuid() == 0:  # to root no mode forbids anything
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""
READER = """
memory = Memory("ns", path=sys.argv[1])
assert memory.get("a") == 1, memory.get("a")
assert memory.keys() == ["a"]
assert memory.recall("anything") == []
try:
    memory.set("b", 2)
except Unavailable as error:
    print(error)
else:
    sys.exit("it was written")
memory.close()
"""
OWNER = """
with Memory("ns", path=sys.argv[1]) as memory:
    memory.set("a", 1)
os.chmod(sys.argv[1], 0o400)
with Memory("ns", path=sys.argv[1]) as memory:
    assert memory.get("a") == 1
assert not os.access(f"{sys.argv[1]}-shm", os.W_OK), "SQLite has left a log of the same mode"
os.chmod(sys.argv[1], 0o600)
"""
OTHER_USER = """
def refuse(*_, **__):
    raise PermissionError(1, "Operation not permitted")
os.chmod = refuse
"""
WRITER = """
try:
    with Memory("ns", path=sys.argv[1]) as memory:
        memory.set("a", 2)
        print(memory.get("a"))
except Unavailable as error:
    print(error)
"""


def run_as_nobody(program: str, path: Path) -> str:
    """What a program prints as a user that is not root."""
    ended = subprocess.run(
        [sys.executable, "-c", AS_NOBODY + program, str(path)],
        capture_output=True, text=True, check=False, timeout=60, env=clean_environment(),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "named"),
    [(0o444, 0o755, "data/db"), (0o444, 0o777, "data/db"), (0o666, 0o555, "data")],
)
def test_a_read_only_file_can_be_read_and_a_write_is_refused(file_mode, folder_mode, named):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "data"
        folder.mkdir()
        make(folder / "db", a=1).close()
        (folder / "db").chmod(file_mode)
        folder.chmod(folder_mode)
        Path(name).chmod(0o755)
        printed = run_as_nobody(READER, folder / "db")
        folder.chmod(0o755)
    assert f"{name}/{named} cannot be written: check its permissions" in printed


@pytest.mark.parametrize(
    ("program", "printed"),
    [(OWNER + WRITER, "2"), (OWNER + OTHER_USER + WRITER, "/db-shm cannot be written: check its permissions")],
)
def test_a_file_that_can_be_written_again_is_written_or_what_forbids_it_is_named(program, printed):
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        assert printed in run_as_nobody(program, Path(name) / "db").partition(", or")[0]
