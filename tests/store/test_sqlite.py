"""The SQLite drivers: transactions, group commit, quotas, expiry, and many processes on one file."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from harness import DAY, AioDriver, Clock, SyncDriver, clean_environment
from scrubjay.errors import Conflict, InvalidInput, QuotaExceeded, Unavailable
from scrubjay.store import changes, expiry, items, lists, notes, usage
from scrubjay.store.expiry import SWEEP_SECONDS
from scrubjay.store.idempotency import IdempotencyKey, run_once
from scrubjay.store.operation import WRITE, EngineSql, Quota, operation
from scrubjay.store.sqlite import SqliteStore, schema
from scrubjay.store.sqlite import connection as sqlite
from scrubjay.store.sqlite.asyncio import SLOW_READERS, AsyncStore
from scrubjay.validation import NewNote


def test_one_refused_write_in_a_batch_leaves_the_others_alone(tmp_path):
    driver = AioDriver(tmp_path / "db", durability="fast")
    driver.run(items.set_item("ns", "text", '"no list"'))
    driver.run(items.set_item("ns", "gone", "1", 0.001))
    time.sleep(0.01)
    outcomes = driver.gather(
        items.set_item("ns", "a", "1"),
        lists.append_items("ns", "text", ["1"]),
        # Refused after it has already removed the expired item: this one spoils the shared transaction.
        items.set_item("ns", "gone", "2", None, 7),
        items.set_item("ns", "b", "2"),
    )
    assert [outcome[0] if isinstance(outcome, tuple) else type(outcome) for outcome in outcomes] == [
        1, Conflict, Conflict, 1,
    ]  # fmt: skip
    assert driver.run(items.list_keys("ns")) == ["a", "b", "text"]
    assert driver.run(usage.read_usage("ns")).writes_today == 4
    assert driver.store.find_problems() == []
    driver.close()


INSERT_HALF = EngineSql("""INSERT INTO items (namespace, key, value, bytes, version, created_at, updated_at)
VALUES ('ns', 'half', '1', 5, 1, 0, 0)""")


@operation("test", WRITE)
def _write_then_fail(_context):
    yield INSERT_HALF, ()
    yield EngineSql("INSERT INTO no_such_table VALUES (1)"), ()


@operation("test", WRITE)
def _bug(_context):
    yield INSERT_HALF, ()
    raise ZeroDivisionError


@pytest.mark.parametrize(("broken", "error"), [(_write_then_fail, Unavailable), (_bug, ZeroDivisionError)])
def test_a_write_that_fails_halfway_leaves_nothing(driver, broken, error):
    with pytest.raises(error):
        driver.run(broken())
    assert driver.run(items.list_keys("ns")) == []
    driver.run(items.set_item("ns", "k", "1"))
    assert driver.store.find_problems() == []


def test_many_writers_share_commits(tmp_path):
    """Group commit: a burst of writes takes far fewer transactions than writes."""
    driver = AioDriver(tmp_path / "db", durability="full")
    begun = []
    driver._aio._writer.set_trace_callback(lambda sql: begun.append(sql) if sql.startswith("BEGIN") else None)
    driver.gather(*(items.set_item("ns", f"k{i}", "1") for i in range(200)))
    assert 1 <= len(begun) < 20
    assert len(driver.run(items.list_keys("ns"))) == 200
    driver.close()


def test_a_write_of_many_rows_runs_in_a_thread(tmp_path, monkeypatch):
    driver = AioDriver(tmp_path / "db", durability="fast")
    threads = set()
    real = driver.store.writer.commit
    monkeypatch.setattr(
        driver.store.writer, "commit", lambda jobs: (threads.add(threading.current_thread().name), real(jobs))
    )
    driver.run(items.set_item("ns", "short", "1"))
    driver.run(lists.append_items("ns", "l", ["1"]))
    assert threads == set(), "short writes run on the loop"
    assert driver.run(lists.append_items("ns", "l", ["1"] * 1000))[0] == 1001
    assert threads == {"scrubjay-writer_0"}
    driver.close()


@pytest.mark.parametrize("remove", [items.delete_item, lambda *at: items.set_item(*at, "1")], ids=["delete", "replace"])
def test_a_long_list_is_removed_in_a_thread_and_a_short_one_on_the_loop(tmp_path, monkeypatch, remove):
    driver = AioDriver(tmp_path / "db", durability="fast")
    for key, length in (("short", 3), ("long", expiry.LONG_LIST + 1)):
        driver.run(lists.append_items("ns", key, ["1"] * length))
    in_thread, real = [], driver.store.writer.commit
    monkeypatch.setattr(driver.store.writer, "commit", lambda jobs: (in_thread.append(len(jobs)), real(jobs)))
    driver.run(remove("ns", "short"))
    assert in_thread == []
    driver.run(remove("ns", "long"))
    assert in_thread == [1]
    assert driver.store.find_problems() == []
    driver.close()


def test_threads_share_commits_in_embedded_mode(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "db")
    store.run(items.set_item("other", "k", "1"))  # which also sweeps
    sizes = []
    real = store.writer.commit
    monkeypatch.setattr(store.writer, "commit", lambda jobs: (sizes.append(len(jobs)), real(jobs)))
    threads = [
        threading.Thread(target=lambda n=n: [store.run(items.set_item("ns", f"{n}-{i}", "1")) for i in range(30)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(sizes) == 240
    assert max(sizes) > 1, "no two threads ever shared a commit"
    assert len(store.run(items.list_keys("ns"))) == 240
    store.close()


def test_durability_sets_the_synchronous_mode(tmp_path):
    for durability, level in (("full", 2), ("fast", 1)):
        store = SqliteStore(tmp_path / durability, durability=durability)
        connection = store.take()
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        store.put_back(connection)
        store.close()
    with pytest.raises(InvalidInput, match="durability"):
        SqliteStore(tmp_path / "x", durability="maybe")


@pytest.mark.parametrize("length", [300, 252])  # 252 is short enough for the file, and too long for its log
def test_a_path_that_is_too_long_is_unavailable_not_a_raw_error(tmp_path, length):
    path = tmp_path / ("x" * length)
    with pytest.raises(Unavailable, match=r"cannot write .*: File name too long; name another file with --path or set"):
        SqliteStore(path)


def test_a_file_that_may_not_be_read_is_said_to_be_so(tmp_path, monkeypatch):
    path, real = tmp_path / "db", os.access
    SqliteStore(path).close()
    monkeypatch.setattr(os, "access", lambda name, mode: real(name, mode) and (name, mode) != (path, os.R_OK))
    with pytest.raises(Unavailable, match=f"cannot read {path}: its permissions .* with --path or set SCRUBJAY_PATH"):
        SqliteStore(path)


def test_only_its_user_can_read_the_file(tmp_path):
    store = SqliteStore(tmp_path / "new" / "folder" / "db")
    store.run(items.set_item("ns", "k", "1"))
    for part in store.path.parent.iterdir():
        assert part.stat().st_mode & 0o077 == 0
    store.close()


WRITER = """
import sys
from scrubjay import Memory
where, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
memory = Memory("shared", **{"url" if "://" in where else "path": where}, durability="fast")
lengths = []
for i in range(count):
    lengths.append(memory.append("list", [who, i]))
    memory.incr("total")
assert lengths == sorted(set(lengths)), "two appends got the same position"
"""


def test_no_append_of_four_processes_is_lost_or_doubled(open_driver):
    driver = open_driver()
    count = 100 if open_driver.kind == "postgres" else 500
    command = [sys.executable, "-c", WRITER, driver.where]
    writers = [
        subprocess.Popen([*command, str(n), str(count)], env=clean_environment(), stderr=subprocess.PIPE)
        for n in range(4)
    ]
    while any(writer.poll() is None for writer in writers):  # the driver under test writes and reads meanwhile
        driver.run(items.increment("shared", "mine", 1))
        driver.run(items.list_keys("shared"))
        time.sleep(0.01)
    errors = [writer.stderr.read().decode() for writer in writers]
    assert [(writer.wait(timeout=60), writer.stderr.close()) for writer in writers] == [(0, None)] * 4, errors
    stored = driver.run(items.read_item("shared", "list")).text
    found = [tuple(part) for part in json.loads(stored)]
    assert sorted(found) == sorted((str(who), i) for who in range(4) for i in range(count))
    for who in "0123":
        assert [i for name, i in found if name == who] == list(range(count)), "the order of a process is not kept"
    assert driver.run(items.read_text("shared", "total")) == str(4 * count)
    assert driver.store.find_problems() == []


@pytest.mark.sqlite_file
def test_a_writer_waits_for_another_process(open_driver):
    driver = open_driver()
    other = sqlite3.connect(driver.store.path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.3, other.execute, ("COMMIT",))
    release.start()
    driver.run(items.set_item("ns", "k", "1"))
    release.join()
    other.close()
    assert driver.run(items.read_text("ns", "k")) == "1"


@pytest.mark.sqlite_file
def test_a_lock_that_is_never_released_is_unavailable_not_a_raw_error(open_driver, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    monkeypatch.setitem(SqliteStore.connect.__kwdefaults__, "busy_seconds", 0.2)
    driver = open_driver()
    other = sqlite3.connect(driver.store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="another process"):
        driver.run(items.set_item("ns", "k", "1"))
    assert driver.run(items.read_text("ns", "k")) is None, "readers never wait for writers"
    other.execute("COMMIT")
    other.close()
    driver.run(items.set_item("ns", "k", "1"))


def test_quotas_are_exact_under_both_drivers(open_driver):
    driver = open_driver(quota=Quota(writes_per_day=3))
    for i in range(3):
        driver.run(items.set_item("ns", f"k{i}", "1"))
    for refused in (
        items.set_item("ns", "k", "1"),
        lists.append_items("ns", "l", ["1"]),
        items.increment("ns", "k0", 1),
        items.update_items("ns", {"a": "1"}),
    ):
        with pytest.raises(QuotaExceeded) as error:
            driver.run(refused)
        assert error.value.status == 429
        assert 0 < error.value.retry_after <= DAY
    assert driver.run(items.delete_item("ns", "k0"))[0] is True, "deleting is always allowed"
    assert driver.run(items.list_keys("ns")) == ["k1", "k2"]
    assert driver.run(usage.read_usage("ns")).writes_today == 3
    driver.run(items.set_item("another", "k", "1"))


def test_storage_is_counted_to_the_byte(open_driver):
    driver = open_driver(quota=Quota(max_bytes=100))
    driver.run(items.set_item("ns", "k", f'"{"x" * 97}"'))
    assert driver.run(usage.read_usage("ns")).bytes == 100
    with pytest.raises(QuotaExceeded) as error:
        driver.run(lists.append_items("ns", "l", ["1"]))
    assert (error.value.status, error.value.retry_after) == (507, None)
    driver.run(items.set_item("ns", "k", '"smaller"'))
    driver.run(lists.append_items("ns", "l", ["1"]))


def test_an_update_over_the_quota_leaves_nothing_behind(open_driver):
    driver = open_driver(quota=Quota(writes_per_day=1, max_bytes=4))
    with pytest.raises(QuotaExceeded):
        driver.run(items.update_items("ns", {"a": "1", "b": "2", "c": "3"}))
    assert driver.run(items.list_keys("ns")) == []
    assert driver.run(usage.read_usage("ns")).writes_today == 0
    driver.run(items.update_items("ns", {"a": "1", "b": "2"}))
    with pytest.raises(QuotaExceeded, match="1 write a day"):
        driver.run(items.update_items("ns", {"a": "3", "b": "3"}))
    assert driver.run(items.read_text("ns", "a")) == "1"


def test_expired_items_do_not_count_against_the_storage_limit(open_driver):
    clock = Clock()
    driver = open_driver(quota=Quota(max_bytes=100), clock=clock)
    driver.run(items.set_item("ns", "old", f'"{"x" * 90}"', 10))
    clock.now += 11
    driver.run(items.set_item("ns", "new", f'"{"x" * 90}"'))
    assert driver.run(items.list_keys("ns")) == ["new"]
    assert driver.store.find_problems() == []


def test_a_namespace_can_have_its_own_quota(open_driver):
    driver = open_driver(quota=Quota(writes_per_day=1, max_bytes=1000))
    used = driver.run(usage.set_quota("ns", {"writes_per_day": 2}))
    assert (used.writes_per_day, used.max_bytes) == (2, 1000)
    driver.run(items.set_item("ns", "a", "1"))
    driver.run(items.set_item("ns", "a", "2"))
    with pytest.raises(QuotaExceeded):
        driver.run(items.set_item("ns", "a", "3"))
    driver.run(usage.set_quota("ns", {"writes_per_day": 0}))
    driver.run(items.set_item("ns", "a", "3"))
    assert driver.run(usage.set_quota("ns", {"writes_per_day": None})).writes_per_day == 1


def test_writes_start_again_at_midnight_and_a_clock_set_back_gives_none_twice(open_driver):
    clock = Clock(20_000 * DAY + DAY - 1)
    driver = open_driver(quota=Quota(writes_per_day=1), clock=clock)
    driver.run(items.set_item("ns", "k", "1"))
    with pytest.raises(QuotaExceeded) as error:
        driver.run(items.set_item("ns", "k", "2"))
    assert error.value.retry_after == 1
    clock.now += 1
    driver.run(items.set_item("ns", "k", "2"))
    clock.now -= 3600
    with pytest.raises(QuotaExceeded):
        driver.run(items.set_item("ns", "k", "3"))
    clock.now -= 400 * DAY  # it had been far ahead; no client should wait a year for that
    driver.run(items.set_item("ns", "k", "3"))


@pytest.mark.parametrize(("durability", "megabytes"), [("full", 4), ("fast", 16)])
def test_the_log_stops_growing(tmp_path, durability, megabytes):
    store = SqliteStore(tmp_path / "db", durability=durability, clock=Clock())  # no sweep empties the log
    for i in range(50):
        store.run(items.set_item("ns", "k", json.dumps(str(i) * 250_000)))
    assert megabytes <= (tmp_path / "db-wal").stat().st_size / 1e6 < megabytes + 2
    store.close()


def test_expired_items_are_swept_with_their_rows(open_driver):
    clock = Clock()
    driver = open_driver(clock=clock)
    for i in range(1200):
        driver.run(items.set_item("ns", f"k{i}", "1", 5))
    driver.run(items.set_item("ns", "l", "[1]", 5))
    driver.run(lists.append_items("ns", "l", ["2"]))
    driver.run(items.set_item("other", "stays", "1"))
    clock.now += 6
    driver.store.sweep()
    connection = driver.store.take()
    assert connection.execute("SELECT namespace, key FROM items").fetchall() == [("other", "stays")]
    assert connection.execute("SELECT count(*) FROM list_items").fetchone() == (0,)
    driver.store.put_back(connection)
    assert driver.store.find_problems() == []
    assert driver.run(items.set_item("ns", "k1", "1"))[0] == 3, "versions go on above what was swept"


def test_idempotency_keys_are_deleted_after_a_week(open_driver):
    clock = Clock()
    driver = open_driver(clock=clock)
    for i in range(600):
        driver.run(run_once(lists.append_items("ns", "l", ["1"]), IdempotencyKey(f"id-{i}")))
    clock.now += 7 * DAY
    driver.store.sweep()
    assert driver.run(run_once(lists.append_items("ns", "l", ["1"]), IdempotencyKey("id-0")))[0] == 1
    clock.now += DAY
    driver.store.sweep()
    connection = driver.store.take()
    assert connection.execute("SELECT count(*) FROM idempotency_keys").fetchone() == (0,)
    driver.store.put_back(connection)


def test_a_process_that_writes_sweeps_every_minute(tmp_path):
    clock = Clock()
    driver = SyncDriver(tmp_path / "db", clock=clock)
    driver.run(items.set_item("ns", "k", "1", 5))
    clock.now += SWEEP_SECONDS + 1
    driver.run(items.set_item("ns", "other", "1"))
    connection = driver.store.take()
    assert connection.execute("SELECT key FROM items").fetchall() == [("other",)]
    driver.store.put_back(connection)
    driver.close()


def test_a_newer_file_is_refused_with_advice(tmp_path):
    path = tmp_path / "db"
    SqliteStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    connection.close()
    with pytest.raises(Unavailable, match=r"has format \d+.* newer Scrubjay.* or a build from before .*pip install -U"):
        SqliteStore(path)


def test_an_older_file_is_migrated_and_keeps_its_data(tmp_path, monkeypatch):
    path = tmp_path / "db"
    store = SqliteStore(path)
    store.run(items.set_item("ns", "k", "1"))
    store.close()
    monkeypatch.setattr(sqlite, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE later (namespace TEXT)",)))
    monkeypatch.setattr(sqlite, "VERSION", schema.VERSION + 1)
    store = SqliteStore(path)
    assert store.run(items.read_text("ns", "k")) == "1"
    connection = store.take()
    assert connection.execute("SELECT count(*) FROM later").fetchone() == (0,)
    assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION + 1,)
    store.put_back(connection)
    store.close()


def test_a_migration_that_fails_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "db"
    SqliteStore(path).close()
    broken = (*schema.MIGRATIONS, ("CREATE TABLE later (namespace TEXT)", "nonsense"))
    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "MIGRATIONS", broken)
        patch.setattr(sqlite, "VERSION", len(broken))
        with pytest.raises(Unavailable):
            SqliteStore(path)
    store = SqliteStore(path)
    assert store.find_problems() == []
    store.close()


def test_another_programs_database_is_not_changed(tmp_path):
    path = tmp_path / "db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Unavailable, match="another program's"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_opened_is_refused_with_advice(tmp_path):
    (tmp_path / "text").write_text("this is a text file, and a rather long one at that" * 50)
    with pytest.raises(Unavailable, match=r"not a SQLite file.*SCRUBJAY_PATH"):
        SqliteStore(tmp_path / "text")
    with pytest.raises(Unavailable, match="SCRUBJAY_PATH"):
        SqliteStore(tmp_path)
    with pytest.raises(Unavailable, match="SCRUBJAY_PATH"):
        SqliteStore(tmp_path / "text" / "db")


def test_many_processes_can_create_the_file_at_once(tmp_path):
    program = "import sys; from scrubjay import Memory; Memory('ns', path=sys.argv[1]).incr('n')"
    command = [sys.executable, "-c", program, str(tmp_path / "db")]
    started = [subprocess.Popen(command, env=clean_environment(), stderr=subprocess.PIPE) for _ in range(6)]
    errors = [process.communicate(timeout=60)[1].decode() for process in started]
    assert errors == [""] * 6
    store = SqliteStore(tmp_path / "db")
    assert store.run(items.read_text("ns", "n")) == "6"
    store.close()


def test_opening_a_file_again_does_not_give_up_the_locks_on_it(tmp_path):
    """A process that closes any descriptor of a file loses its locks, and others then delete its log under it."""
    program = "import sys; from scrubjay import Memory; Memory('ns', path=sys.argv[1]).incr(sys.argv[2])"
    first = SqliteStore(tmp_path / "db")
    first.run(items.set_item("ns", "mine", "1"))
    for i in range(3):
        SqliteStore(tmp_path / "db", durability="fast").close()
        command = [sys.executable, "-c", program, str(tmp_path / "db"), f"theirs-{i}"]
        subprocess.run(command, env=clean_environment(), check=True, timeout=60)
        assert (tmp_path / "db-wal").exists(), "the log was deleted while it was in use"
        first.run(items.set_item("ns", f"mine-{i}", "1"))
    first.close()
    again = SqliteStore(tmp_path / "db")
    assert len(again.run(items.list_keys("ns"))) == 7
    again.close()


def test_expiry_versions_and_ids_hold_when_the_clock_is_set_back(open_driver):
    clock = Clock()
    driver = open_driver(clock=clock)
    driver.run(items.set_item("ns", "lives", "1", 100))
    first, _ = driver.run(notes.remember("ns", NewNote.check("first", ttl=100)))
    version = driver.run(items.set_item("ns", "k", "1"))[0]
    driver.run(run_once(lists.append_items("ns", "l", ["1"]), IdempotencyKey("once")))
    for back in (3600, 3 * DAY, 400 * DAY):
        clock.now -= back
        driver.store.sweep()
        assert driver.run(items.read_text("ns", "lives")) == "1", "nothing expires before its time"
        version, seen = driver.run(items.set_item("ns", "k", "2"))[0], version
        assert version > seen
        driver.run(items.delete_item("ns", "k"))
        version, seen = driver.run(items.set_item("ns", "k", "3"))[0], version
        assert version > seen
        assert driver.run(run_once(lists.append_items("ns", "l", ["1"]), IdempotencyKey("once")))[0] == 1
        note, _ = driver.run(notes.remember("ns", NewNote.check(f"after {back}")))
        assert int(note.id) > int(first.id)
        first = note
    clock.now = Clock().now + 101
    driver.store.sweep()
    assert driver.run(items.read_text("ns", "lives")) is None
    assert "first" not in {note.content for note in driver.run(notes.list_notes("ns"))}
    assert driver.store.find_problems() == []


def test_every_inconsistency_is_found_and_named(tmp_path):
    store = SqliteStore(tmp_path / "db")
    store.run(items.set_item("ns", "k", "1"))
    store.run(lists.append_items("ns", "l", ["1", "2"]))
    assert store.find_problems() == []
    connection = store.take()
    for harm, word in (
        ("UPDATE namespaces SET keys = keys + 1", "counts 3 keys"),
        ("UPDATE namespaces SET keys = keys - 1, bytes = bytes + 5", "bytes, but holds"),
        ("UPDATE namespaces SET bytes = bytes - 5; DELETE FROM list_items WHERE position = 0", "has 1 items"),
        ("DELETE FROM items WHERE key = 'l'", "belong to no list"),
        ("UPDATE items SET value = '123' WHERE key = 'k'", "says 2 bytes"),
        ("DELETE FROM namespaces", "not counted anywhere"),
    ):
        connection.executescript(harm)
        assert any(word in fault for fault in store.find_problems()), word
    store.put_back(connection)
    store.close()


def test_a_closed_store_is_unavailable(driver):
    driver.store.close()
    with pytest.raises(Unavailable, match="closed"):
        driver.run(items.read_text("ns", "k"))


def test_the_end_of_a_list_is_read_while_every_reader_thread_is_busy(tmp_path):
    async def read_ends() -> list[list[str]]:
        readers = [await driver._aio._readers.get() for _ in range(SLOW_READERS)]
        slow = asyncio.ensure_future(driver._aio.run(changes.read_audit(None, 0)))  # waits for one of them
        ends = [await driver._aio.run(lists.read_tail("ns", "l", count)) for count in (1, 100)]
        assert not slow.done()
        for reader in readers:
            driver._aio._readers.put_nowait(reader)
        await slow
        return ends

    driver = AioDriver(tmp_path / "db", durability="fast")
    driver.run(lists.append_items("ns", "l", [str(i) for i in range(5000)]))
    assert driver._runner.run(read_ends()) == [["4999"], [str(i) for i in range(4900, 5000)]]
    driver.close()


def test_a_cancelled_read_leaves_no_transaction_to_the_next_one(tmp_path):
    """Like a stream whose client disconnects."""

    async def read_after(turns: int) -> object:
        reading = asyncio.ensure_future(driver._aio.run(changes.read_audit(None, 0)))
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        return await asyncio.gather(*(driver._aio.run(changes.read_audit(None, 0)) for _ in range(4)))

    driver = AioDriver(tmp_path / "db")
    try:
        for turns in range(60):
            assert driver._runner.run(read_after(turns % 6)) == [([], changes.AUDIT_START)] * 4
    finally:
        driver.close()


def test_a_store_that_was_closed_under_asyncio_holds_up_no_fork(tmp_path):
    store = SqliteStore(tmp_path / "db")

    async def open_and_close() -> None:
        async with AsyncStore(store):
            pass

    asyncio.run(open_and_close())
    assert not store._opened, "a fork waits for connections that are in use"
