"""Reading conversations: the cost of a page does not depend on the length of the conversation."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pytest

from harness import SyncDriver, work_of
from scrubjay.errors import InvalidInput
from scrubjay.exact_json import encode
from scrubjay.store import conversations, items, lists


@pytest.fixture
def store(tmp_path):
    driver = SyncDriver(tmp_path / "db", durability="fast")
    yield driver.store
    driver.close()


def grow(store, key, count):
    texts = [encode({"role": "user", "content": f"m{number}"}) for number in range(count)]
    store.run(lists.append_items("ns", key, texts))


def test_the_last_page_of_a_long_conversation_costs_no_more_than_that_of_a_short_one(store):
    grow(store, "short", 60)
    grow(store, "long", 20_000)
    for bounds in ((50,), (50, 40), (50, None, 5)):
        short, long = (
            work_of(store.path, conversations.read_conversation("ns", key, *bounds)) for key in ("short", "long")
        )
        assert long < 1.5 * short


def test_a_page_of_conversations_does_not_read_all_their_messages(store):
    grow(store, "short", 20)
    few = work_of(store.path, conversations.list_conversations("ns"))
    grow(store, "long", 20_000)
    assert work_of(store.path, conversations.list_conversations("ns")) < 3 * few


def test_forgetting_a_session_erases_what_has_expired_too(store):
    store.run(items.set_item("ns", "session:s:state:a", "1", 0.05))
    store.run(items.set_item("ns", "session:s:state:b", "1"))
    time.sleep(0.1)
    count, usage = store.run(conversations.forget_session("ns", "s"))
    assert (count, usage.keys, usage.bytes) == (1, 0, 0)
    with closing(sqlite3.connect(store.path)) as file:
        assert file.execute("SELECT count(*) FROM items").fetchone() == (0,)


def test_a_cursor_is_that_of_a_page():
    for text in ("x", "1", "1 ", "-1 k", "9" * 30 + " k"):
        with pytest.raises(InvalidInput, match="cursor"):
            conversations.Cursor.parse(text)
    assert str(conversations.Cursor.parse("12 a b")) == "12 a b"
