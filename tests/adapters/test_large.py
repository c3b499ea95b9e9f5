"""Texts of any length: stored in parts, whole or not at all, and nothing stays of a save that was killed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness import eventually, fresh_name
from scrubjay import Conflict, Memory
from scrubjay.adapters import _large
from scrubjay.adapters._large import delete_text, load_text, save_rows, save_text
from scrubjay.exact_json import byte_size, encode

KILLED = """
import os, signal, sys
from scrubjay import Memory
from scrubjay.adapters import _large

_large.CALL_BYTES, _large.PART_CHARS, _large.UNFINISHED_SECONDS = 60, 10, float(sys.argv[3])
memory = Memory("ns", path=sys.argv[1], strict=True)
set_ = memory.set
left = int(sys.argv[2])

def set_or_die(*args, **kwargs):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return set_(*args, **kwargs)

memory.set = set_or_die
if left == 10:  # all parts are written, and the row is not
    memory.transaction = lambda: os.kill(os.getpid(), signal.SIGKILL)
_large.save_text(memory, "k", "b" * 100, {})
"""


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(_large, "CALL_BYTES", 60)
    monkeypatch.setattr(_large, "PART_CHARS", 10)


@settings(max_examples=20)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=4))
def test_a_text_comes_back_as_it_was_and_leaves_nothing_when_it_is_replaced_or_deleted(small, memory, texts):
    name = fresh_name()
    for text in texts:
        save_text(memory, name, text, {"field": 1})
        assert load_text(memory, name) == text
        assert memory[name]["field"] == 1
        pieces = -(-len(text) // 10) if 6 * len(text) > 60 and byte_size(encode(text)) > 60 else 0
        parts = list(memory.scan(f"part/{name}/"))
        assert len(parts) == pieces
        assert all(part.expires_at is None for part in parts)
    assert delete_text(memory, name)
    assert not delete_text(memory, name)
    assert memory.keys(f"part/{name}/") == memory.keys(name) == []


def test_rows_that_fit_into_one_call_together_have_no_parts(small, memory):
    save_rows(memory, {"a": {"data": "x" * 50}, "b": {"data": "y" * 40}, "c": {"other": "z" * 100}, "d": None})
    assert memory.get("a") == {"data": "x" * 50}
    assert (load_text(memory, "b"), memory.get("c")) == ("y" * 40, {"other": "z" * 100})
    assert len(memory.keys("part/b/")) == 4
    save_rows(memory, {"b": {"data": "y" * 70}})
    assert len(memory.keys("part/")) == 7


def test_rows_that_must_be_new_are_stored_with_the_others_or_not_at_all(small, memory):
    save_rows(memory, {"a": {"data": "x" * 100}}, new=["a"])
    save_rows(memory, {"c": {"data": "z" * 100}})
    with pytest.raises(Conflict):
        save_rows(memory, {"a": {"data": "y" * 100}, "b": {"n": 1}, "c": {"data": "short"}}, new=["a"])
    assert (load_text(memory, "a"), load_text(memory, "c")) == ("x" * 100, "z" * 100)
    assert "b" not in memory


SHORT, LONG = {"data": "x" * 5}, {"data": "x" * 100}


@settings(max_examples=20)
@example([{"a": LONG}, {"a": SHORT}])
@example([{"a": LONG}, {"a": None}])
@example([{"a": LONG}, {"a": SHORT, "b": LONG}])
@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.sampled_from([SHORT, LONG, None]), min_size=1), max_size=4))
def test_rows_that_are_replaced_or_deleted_leave_no_parts(small, memory, saves):
    place = fresh_name()
    stored: dict[str, str] = {}
    for rows in saves:
        save_rows(memory, {f"{place}/{key}": row for key, row in rows.items()})
        stored |= {key: row and row["data"] for key, row in rows.items()}
        assert {key: load_text(memory, f"{place}/{key}") for key in stored} == stored
        wanted = sum(row.get("parts", 0) for row in memory.values(f"{place}/"))
        assert [part.expires_at for part in memory.scan(f"part/{place}/")] == [None] * wanted


@pytest.mark.parametrize("lengths", [(100, 100), (100, 5), (5, 100)])
def test_of_two_writers_at_once_the_last_one_replaces_the_parts_of_the_other(small, tmp_path, monkeypatch, lengths):
    barrier = threading.Barrier(2)
    write_parts = _large._write_parts

    def write_parts_together(*args):
        written = write_parts(*args)
        barrier.wait(60)
        return written

    monkeypatch.setattr(_large, "_write_parts", write_parts_together)
    texts = [letter * length for letter, length in zip("xy", lengths, strict=True)]
    with (
        ThreadPoolExecutor() as pool,
        Memory("ns", path=tmp_path / "db", strict=True) as one,
        Memory("ns", path=tmp_path / "db", strict=True) as other,
    ):
        list(pool.map(lambda memory, text: save_rows(memory, {"a": {"data": text}}), (one, other), texts))
        assert load_text(one, "a") in texts
        assert len(one.keys("part/")) == one["a"].get("parts", 0)


def test_new_rows_that_fit_into_one_call_take_one_call(memory, monkeypatch):
    calls = []
    run = memory._executor.run
    monkeypatch.setattr(memory._executor, "run", lambda command: calls.append(command.verb.name) or run(command))
    save_rows(memory, {"a": {"data": "x"}, "b": {"n": 1}}, new=["b"])
    assert calls == ["update"]


def test_a_save_that_takes_longer_than_its_parts_live_is_refused(small, memory, monkeypatch):
    save_text(memory, "k", "a" * 100, {})
    monkeypatch.setattr(_large, "UNFINISHED_SECONDS", 0.001)
    item = memory.item
    memory.item = lambda key: time.sleep(0.05) or item(key)
    with pytest.raises(Conflict):
        save_text(memory, "k", "b" * 100, {})
    assert load_text(memory, "k") == "a" * 100


@pytest.mark.parametrize("parts", [3, 10])
def test_the_parts_of_a_save_that_is_killed_expire(small, tmp_path, parts):
    memory = Memory("ns", path=tmp_path / "db", strict=True)
    save_text(memory, "k", "a" * 100, {})
    before = set(memory.keys())
    for seconds in ("3600", "0.001"):
        command = [sys.executable, "-c", KILLED, tmp_path / "db", str(parts), seconds]
        assert subprocess.run(command, timeout=100, check=False).returncode == -9
        assert load_text(memory, "k") == "a" * 100
    eventually(lambda: len(memory) == len(before) + parts)  # those of the second process have expired
    assert all(item.expires_at for item in memory.scan() if item.key not in before)
    save_text(memory, "k", "c" * 100, {})
    assert load_text(memory, "k") == "c" * 100
