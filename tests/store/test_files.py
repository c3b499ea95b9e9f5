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
from scrubjay.store import files, items, lists, schema
from scrubjay.store.sqlite import SqliteStore


def quiet(*_: int) -> None:
    """Nobody watches."""


def make(path: Path, **values: int) -> SqliteStore:
    store = SqliteStore(path, durability="fast")
    for key, value in values.items():
        store.run(items.set_item("ns", key, json.dumps(value)))
    return store


def keep(store: SqliteStore, target: Path) -> Path:
    with files.arriving(target) as partial:
        files.back_up(store, partial, quiet)
        files.check_copy(partial)
    return target


def read(path: Path) -> dict[str, str]:
    store = SqliteStore(path)
    found = store.run(items.read_many("ns", store.run(items.list_keys("ns"))))
    assert store.find_faults() == []
    store.close()
    return found


def test_what_a_killed_import_left_is_deleted_once_it_is_old(tmp_path):
    old, young, other = (tmp_path / name for name in (".scrubjay-import-a", ".scrubjay-import-b", "mine"))
    for path in (old, young, other):
        path.write_text("secret")
    for path in (old, other):
        os.utime(path, (0, 0))
    files.remove_left_over(tmp_path)
    assert [path.exists() for path in (old, young, other)] == [False, True, True]


def test_a_backup_is_one_file_for_its_user_alone_and_as_it_was(tmp_path):
    store = make(tmp_path / "db", a=1)
    keep(store, tmp_path / "copy")
    store.run(items.set_item("ns", "a", "2"))
    assert read(tmp_path / "copy") == {"a": "1"}
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600
    assert sorted(part.name for part in tmp_path.iterdir() if "copy" in part.name) == ["copy"]
    store.close()


def test_a_backup_is_of_one_moment_while_others_write(tmp_path, monkeypatch):
    """Two lists grow together; a copy made meanwhile never has one without the other, and comes to an end."""
    monkeypatch.setattr(files, "COPY_PAGES", 1)
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
        with files.arriving(tmp_path / f"copy-{i}") as partial:
            files.back_up(store, partial, lambda done, total: steps.append((done, total)))
        found = read(tmp_path / f"copy-{i}")
        assert found.get("a") == found.get("b")
        assert len(found) >= 200
    stop.set()
    writer.join()
    assert len(writes) > 5
    assert any(done < total for done, total in steps), "progress is told on the way"
    store.close()


def test_a_file_that_is_there_is_replaced_only_when_asked_and_nothing_half_made_remains(tmp_path):
    (tmp_path / "there").write_text("mine")
    with pytest.raises(InvalidInput, match="--force"), files.arriving(tmp_path / "there", force=False):
        pass
    with pytest.raises(ZeroDivisionError), files.arriving(tmp_path / "there", force=True) as partial:
        partial.write_text(str(1 / 0))
    assert [part.name for part in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").read_text() == "mine"
    with pytest.raises(Unavailable, match="cannot write"), files.arriving(tmp_path / "nowhere" / "copy"):
        pass


def test_a_damaged_copy_is_not_called_a_backup(tmp_path):
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
        keep(store, tmp_path / "copy")
    store.close()
    assert not (tmp_path / "copy").exists()


def test_restoring_keeps_what_was_there_and_others_see_it_at_once(tmp_path):
    store = make(tmp_path / "db", a=1)
    keep(store, tmp_path / "copy")
    store.run(items.set_item("ns", "a", "2"))
    store.run(lists.append_items("ns", "l", ["1"] * 5000))
    steps: list[int] = []
    aside = files.restore(tmp_path / "copy", tmp_path / "db", lambda done, _: steps.append(done))
    assert store.run(items.read_text("ns", "a")) == "1", "the store was open all the while"
    store.run(items.set_item("ns", "b", "3"))
    assert store.find_faults() == []
    store.close()
    assert read(tmp_path / "db") == {"a": "1", "b": "3"}
    assert read(aside)["a"] == "2"
    assert len(json.loads(read(aside)["l"])) == 5000
    assert read(tmp_path / "copy") == {"a": "1"}
    assert steps
    again = files.restore(aside, tmp_path / "db", quiet)
    assert read(again) == {"a": "1", "b": "3"}, "each is kept under a name of its own"


def test_no_write_is_lost_from_both_the_old_and_the_new_file(tmp_path):
    """Whatever was acknowledged before the restore is in the file kept aside, and all after it in the new one."""
    store = make(tmp_path / "db", start=0)
    store.run(items.update_items("ns", {f"k{i}": json.dumps("x" * 3000) for i in range(300)}))
    keep(store, tmp_path / "copy")
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
    aside = files.restore(tmp_path / "copy", tmp_path / "db", quiet)
    target = len(acknowledged) + 20
    while len(acknowledged) < target:
        pass
    stop.set()
    writer.join()
    after = set(store.run(items.list_keys("log")))
    assert store.find_faults() == []
    store.close()
    old = SqliteStore(aside)
    before = set(old.run(items.list_keys("log")))
    old.close()
    assert set(acknowledged) == before | after
    assert not before & after


def test_what_is_no_backup_changes_nothing(tmp_path):
    store = make(tmp_path / "db", a=1)
    keep(store, tmp_path / "newer")
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
            files.restore(tmp_path / name, tmp_path / "db", quiet)
        assert read(tmp_path / "db") == {"a": "1"}
        assert not list(tmp_path.glob("*before-restore*")), name


@pytest.mark.parametrize("harm", ["header", "cut", "empty", "gone"])
def test_a_backup_can_be_restored_over_what_is_no_database_any_more(tmp_path, harm):
    store = make(tmp_path / "db", **{f"k{i}": i for i in range(300)})
    keep(store, tmp_path / "copy")
    store.close()
    raw = (tmp_path / "db").read_bytes()
    lost = {"header": b"\xff" * 4096 + raw[4096:], "cut": raw[: len(raw) // 2], "empty": b""}
    if harm == "gone":
        (tmp_path / "db").unlink()
    else:
        (tmp_path / "db").write_bytes(lost[harm])
    aside = files.restore(tmp_path / "copy", tmp_path / "db", quiet)
    assert len(read(tmp_path / "db")) == 300
    assert (aside is None) == (harm in ("empty", "gone"))
    if aside:
        assert aside.stat().st_size > 0
    with sqlite3.connect(tmp_path / "db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_the_log_of_an_empty_file_is_kept_aside(tmp_path):
    store = make(tmp_path / "db", a=1)
    keep(store, tmp_path / "copy")
    store.run(items.set_item("ns", "a", "2"))
    log = Path(f"{store.path}-wal").read_bytes()
    store.close()
    (tmp_path / "db").write_bytes(b"")
    (tmp_path / "db-wal").write_bytes(log)
    aside = files.restore(tmp_path / "copy", tmp_path / "db", quiet)
    assert Path(f"{aside}-wal").read_bytes() == log
    assert read(tmp_path / "db") == {"a": "1"}


def test_a_backup_of_itself_is_refused(tmp_path):
    make(tmp_path / "db", a=1).close()
    with pytest.raises(InvalidInput, match="the database itself"):
        files.restore(tmp_path / "db", tmp_path / "db", quiet)


HOLDER = """
import sys, time
from scrubjay.store.sqlite import SqliteStore
from scrubjay.store import items
store = SqliteStore(sys.argv[1])
store.run(items.set_item("ns", "held", "1"))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_file_that_cannot_be_opened_is_not_taken_from_a_process_that_has_it_open(tmp_path):
    store = make(tmp_path / "db", a=1)
    keep(store, tmp_path / "copy")
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
        with pytest.raises(Unavailable, match="stop that one"):
            files.restore(tmp_path / "copy", tmp_path / "db", quiet)
    finally:
        holder.communicate(timeout=30)
    files.restore(tmp_path / "copy", tmp_path / "db", quiet)
    assert read(tmp_path / "db") == {"a": "1"}


def test_a_sealed_backup_needs_no_secret_but_nobody_goes_on_with_other_keys(tmp_path):
    sealed = SqliteStore(tmp_path / "sealed", durability="fast", secret="s")
    sealed.run(items.set_item("ns", "a", "2"))
    keep(sealed, tmp_path / "copy")
    sealed.close()
    make(tmp_path / "db", a=1).close()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "db")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment(),
    )  # fmt: skip
    assert holder.stdout.readline() == b"open\n"
    try:
        with pytest.raises(Unavailable, match="other keys than the backup"):
            files.restore(tmp_path / "copy", tmp_path / "db", quiet)
    finally:
        holder.communicate(timeout=30)
    assert read(tmp_path / "db") == {"a": "1", "held": "1"}
    files.restore(tmp_path / "copy", tmp_path / "db", quiet)
    with pytest.raises(InvalidInput, match="sealed"):
        SqliteStore(tmp_path / "db")
    with contextlib.closing(SqliteStore(tmp_path / "db", secret="s")) as store:
        assert store.run(items.read_text("ns", "a")) == "2"


def test_a_secret_of_ones_own_does_not_seal_a_backup(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "db")
    monkeypatch.setenv("SCRUBJAY_SECRET", "of another file")
    keep(store, tmp_path / "copy")
    store.close()
    monkeypatch.delenv("SCRUBJAY_SECRET")
    assert read(tmp_path / "copy") == {}


def test_an_older_backup_is_brought_to_this_format_before_anyone_sees_it(tmp_path, monkeypatch):
    store = make(tmp_path / "db", a=1)
    keep(store, tmp_path / "copy")
    store.close()
    before = (tmp_path / "copy").read_bytes()
    from scrubjay.store import sqlite

    monkeypatch.setattr(sqlite, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE later (namespace TEXT)",)))
    monkeypatch.setattr(sqlite, "VERSION", schema.VERSION + 1)
    files.restore(tmp_path / "copy", tmp_path / "db", quiet)
    with sqlite3.connect(tmp_path / "db") as connection:
        assert connection.execute("SELECT count(*) FROM later").fetchone() == (0,)
    connection.close()
    assert (tmp_path / "copy").read_bytes() == before, "the backup itself stays as it is"


READER = """
import os, sys, urllib.parse
import scrubjay.memory, scrubjay.recall.synonyms, scrubjay.store.notes  # what is imported late, while it can be
from scrubjay import Memory, Unavailable
if os.geteuid() == 0:  # to root no mode forbids anything
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
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


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o755), (0o444, 0o777), (0o666, 0o555)])
def test_what_may_not_be_written_can_be_read_and_says_so(file_mode, folder_mode):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "data"
        folder.mkdir()
        make(folder / "db", a=1).close()
        (folder / "db").chmod(file_mode)
        folder.chmod(folder_mode)
        Path(name).chmod(0o755)
        ended = subprocess.run(
            [sys.executable, "-c", READER, str(folder / "db")],
            capture_output=True, text=True, check=False, timeout=60, env=clean_environment(),
        )  # fmt: skip
        folder.chmod(0o755)
    assert ended.returncode == 0, ended.stderr
    assert "cannot be written: check its permissions" in ended.stdout
