"""Fairness between processes that write to one file."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing

import pytest

from scrubjay.store import items
from scrubjay.store.sqlite.turnstile import Turnstile

pytest.importorskip("fcntl")


def test_one_process_waits_at_a_time(tmp_path):
    first, second = Turnstile(tmp_path), Turnstile(tmp_path)
    assert first.try_enter()
    assert not second.try_enter()
    first.leave()
    assert second.try_enter()
    second.close()
    assert first.try_enter(), "a closed turnstile is free"
    first.close()


def test_a_folder_that_cannot_be_locked_does_not_stop_writers(tmp_path):
    missing = Turnstile(tmp_path / "missing")
    assert missing.try_enter()
    missing.enter()
    missing.leave()


@pytest.mark.sqlite_file
def test_a_writer_keeps_the_turnstile_until_it_has_the_write_lock(open_driver, tmp_path):
    driver, other = open_driver(), Turnstile(tmp_path)
    driver.run(items.set_item("ns", "k", "1"))
    with closing(sqlite3.connect(tmp_path / "scrubjay.db", isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        writing = threading.Thread(target=driver.run, args=(items.set_item("ns", "k", "2"),))
        writing.start()
        give_up_at = time.monotonic() + 60
        while other.try_enter():
            other.leave()
            assert time.monotonic() < give_up_at, "the writer waits without the turnstile"
            time.sleep(0.001)
        blocker.execute("COMMIT")
        writing.join(timeout=60)
    assert driver.run(items.read_text("ns", "k")) == "2"
    assert other.try_enter(), "a writer that has the lock has left the turnstile"
    other.close()


@pytest.mark.sqlite_file
def test_a_writer_goes_on_when_another_program_keeps_the_turnstile(open_driver, tmp_path):
    driver, other = open_driver(), Turnstile(tmp_path)
    assert other.try_enter()
    driver.run(items.set_item("ns", "k", "1"))
    other.close()
