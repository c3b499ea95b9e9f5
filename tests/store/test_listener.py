"""The thread that wakes the watchers of a file."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from harness import eventually
from scrubjay.store import changes, items
from scrubjay.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path):
    with closing(SqliteStore(tmp_path / "db", durability="fast")) as store:
        yield store


def listening_threads() -> int:
    return [thread.name for thread in threading.enumerate()].count("scrubjay-listener")


def test_all_watchers_of_a_file_share_one_thread_that_ends_with_the_last(store):
    eventually(lambda: not listening_threads())
    with ExitStack() as watching:
        for number in range(10):
            watching.enter_context(store.listener.watching(f"ns{number}"))
        assert listening_threads() == 1
    eventually(lambda: not listening_threads())


def test_a_change_by_another_process_wakes_the_watchers_of_its_namespace_alone(store):
    with (
        closing(SqliteStore(store.path, durability="fast")) as other,
        store.listener.watching("changed") as wait,
        store.listener.watching("quiet"),
    ):
        other.run(items.set_item("changed", "k", "1"))
        wait(120)
        assert [woken.is_set() for woken in store.listener._watched] == [False, False]
        other.run(items.set_item("changed", "k", "2"))
        eventually(lambda: any(woken.is_set() for woken in store.listener._watched))
        assert [woken.is_set() for woken in store.listener._watched] == [True, False]


def test_no_change_is_missed_however_watchers_come_and_go(store):
    def follow(namespace: str) -> list[str]:
        found, cursor = [], 0
        while len(found) < 50:
            with store.listener.watching(namespace) as wait:
                while store.run(changes.last_change()) == cursor:
                    wait(3600)
            page, cursor = store.run(changes.read_changes(namespace, "", cursor))
            found += [change.key for change in page]
        return found

    with ThreadPoolExecutor(3) as threads, closing(SqliteStore(store.path, durability="fast")) as other:
        followed = [threads.submit(follow, f"ns{number}") for number in range(3)]
        for key in range(50):
            for number in range(3):
                (store if key % 2 else other).run(items.set_item(f"ns{number}", str(key), "1"))
        assert [each.result(300) for each in followed] == [[str(key) for key in range(50)]] * 3
