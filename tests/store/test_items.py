"""The cost of items: of the last page of keys, and of those beside a large value."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import SyncDriver, work_of
from scrubjay.store import items, lists, overview
from scrubjay.store.operation import LONG_WRITE, NO_QUOTA, READ, Context, operation
from scrubjay.store.sqlite.store import SqliteStore


@pytest.fixture
def store(tmp_path):
    driver = SyncDriver(tmp_path / "db", durability="fast")
    yield driver.store
    driver.close()


@pytest.mark.parametrize("prefix", ["", "k"])
def test_the_last_page_of_keys_costs_no_more_than_the_first(store, prefix):
    for start in range(0, 5000, 1000):
        store.run(items.update_items("ns", {f"k{n:05}": "1" for n in range(start, start + 1000)}))
    first, last = (work_of(store.path, items.list_keys("ns", prefix, after, 50)) for after in ("", "k04900"))
    assert last < 2 * first


@operation("update", LONG_WRITE)
def update_and_record(context, statements, *arguments):
    steps = items.update_items(*arguments).start(context)
    answer = None
    while True:
        try:
            statements.append(steps.send(answer))
        except StopIteration as end:
            return end.value
        answer = yield statements[-1]


def test_a_key_whose_version_is_expected_is_read_once(store):
    for version in (0, 1):
        statements = []
        store.run(update_and_record(statements, "ns", {"a": "1", "b": "1"}, {"a": version, "c": 0}))
        assert [params[1] for name, params in statements if name == "find_item"] == ["a", "c", "b"]


keys = st.text(st.sampled_from("ab\ud7ff\ue000\U0010ffff"), min_size=1, max_size=3)


@settings(max_examples=50)
@given(held=st.sets(keys, max_size=8), prefix=st.just("") | keys, after=st.just("") | keys, limit=st.integers(1, 4))
def test_a_page_holds_the_next_keys_with_the_prefix(store, held, prefix, after, limit):
    store.run(items.update_items("ns", dict.fromkeys(store.run(items.list_keys("ns")))))
    store.run(items.update_items("ns", dict.fromkeys(held, "1")))
    expected = sorted(key for key in held if key.startswith(prefix) and key > after)
    assert store.run(items.list_keys("ns", prefix, after, limit)) == expected[:limit]


LARGE = "x" * 2**23


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts the bytes that a process reads")
@pytest.mark.parametrize("holder", ["value", "list"])
def test_a_large_value_is_not_read_by_operations_on_other_keys(tmp_path, holder):
    """Every key is compared with those of its neighbours; each operation starts without a cache."""
    text = f'"{LARGE}"'
    with _opened(tmp_path) as store:
        for name in ("a", "c"):
            store.run(items.set_item("ns", name, "1"))
            store.run(lists.append_items("ns", f"{name}-list", ["1", "2"]))
        large = items.set_item("ns", "b", text) if holder == "value" else lists.append_items("ns", "b", [text])
        store.run(large)
    for each in (
        items.read_text("ns", "a"),
        items.read_text("ns", "c"),
        items.set_item("ns", "a", "2"),
        items.set_item("ns", "new", "2"),
        lists.append_items("ns", "a-list", ["3"]),
        lists.read_tail("ns", "c-list", 2),
        items.delete_item("ns", "c"),
        items.list_keys("ns"),
        overview.list_entries("ns", "", "", 100),
        items.set_item("another", "a", "1"),
    ):
        with _opened(tmp_path) as store:
            before = _bytes_read()
            store.run(each)
            assert _bytes_read() - before < len(LARGE) // 4, each.verb


def _opened(folder: Path) -> closing[SqliteStore]:
    return closing(SqliteStore(folder / "db", durability="fast"))


def _bytes_read() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_one_item_is_read_in_one_statement_and_a_list_that_was_deleted_meanwhile_is_passed_over(open_driver):
    driver = open_driver()
    driver.run(items.set_item("ns", "a", "1"))
    driver.run(lists.append_items("ns", "b", ["2"]))
    (found,), cursor = driver.run(items.list_items("ns", "", "", 1, True))
    assert (found.key, found.text, cursor) == ("b", "[2]", "b")
    operation = items.list_items("ns", "", "", 1, True)
    assert operation.mode is READ
    statements = operation.start(Context(0, NO_QUOTA))
    next(statements)
    statements.send([("b", None, 1, 0, 0, None, 3)])  # it asks for the items of the list
    with pytest.raises(StopIteration) as stopped:
        statements.send([])
    assert stopped.value.value == ([], "b")
