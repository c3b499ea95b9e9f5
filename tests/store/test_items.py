"""Listing keys: page by page, in order, at a cost that does not depend on which page it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import SyncDriver, work_of
from scrubjay.store import items


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


keys = st.text(st.sampled_from("ab\ud7ff\ue000\U0010ffff"), min_size=1, max_size=3)


@settings(max_examples=50)
@given(held=st.sets(keys, max_size=8), prefix=st.just("") | keys, after=st.just("") | keys, limit=st.integers(1, 4))
def test_a_page_holds_the_next_keys_with_the_prefix(store, held, prefix, after, limit):
    store.run(items.update_items("ns", dict.fromkeys(store.run(items.list_keys("ns")))))
    store.run(items.update_items("ns", dict.fromkeys(held, "1")))
    expected = sorted(key for key in held if key.startswith(prefix) and key > after)
    assert store.run(items.list_keys("ns", prefix, after, limit)) == expected[:limit]
