"""The user's verbs, on a file and on a server."""

from __future__ import annotations

import gc
import math
import os
import pickle
import subprocess
import sys
import threading
import time
from enum import IntEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import clean_environment, fresh_name
from scrubjay import Conflict, InvalidInput, Item, Memory, Unavailable, ValueTooLarge, local
from scrubjay.exact_json import MAX_WRITE_BYTES, MAX_WRITE_ROWS

texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = (
    st.integers()
    | st.integers(min_value=-(10**60), max_value=10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
)
json_values = st.recursive(
    st.booleans() | numbers | texts,
    lambda inner: st.lists(inner | st.none()) | st.dictionaries(texts, inner | st.none()),
    max_leaves=20,
)
keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda key: len(key.encode()) <= 512)
namespaces = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=128)
same_fixture = settings(max_examples=60)


def identical(one, other) -> bool:
    """Equal, and of the same type all the way down: 1 is not 1.0 and not True."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return one == other


@same_fixture
@given(value=json_values)
def test_any_json_comes_back_exactly(memory, value):
    memory.set("k", value)
    assert identical(memory.get("k"), value)
    assert identical(memory.item("k").value, value)
    assert identical(memory.get_many(["k"])["k"], value)
    memory.set("list", [])
    memory.append("list", value, None)
    assert identical(memory.get("list"), [value, None])
    assert identical(memory.tail("list", 2), [value, None])


@pytest.mark.parametrize(
    "value", [42, 1.0, -0.0, True, "42", "[1]", '{"a": 1}', "null", "", [], {}, 10**400, "\x00é🦜\u2028"]
)
def test_what_other_stores_change_stays_as_it_is(memory, value):
    memory.set("k", value)
    assert identical(memory.get("k"), value)


def test_key_order_is_kept_and_a_tuple_becomes_a_list(memory):
    memory.set("k", {"z": 1, "a": (1, (2, None))})
    assert list(memory.get("k")) == ["z", "a"]
    assert memory.get("k")["a"] == [1, [2, None]]


class Colour(IntEnum):
    RED = 1


class Own:
    pass


cycle: list = []
cycle.append(cycle)


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, math.nan]}, "value['a'][1]"),
        (math.inf, "value is inf"),
        ({"raw": b"x"}, "value['raw']"),
        ({"a": {1: 2}}, "the key 1"),
        ({"a": {None: 2}}, "the key None"),
        (["ok", "\ud800"], "value[1]"),
        ({"\udfff": 1}, "\\udfff"),
        ({"own": Own()}, "value['own']"),
        ({"colour": Colour.RED}, "value['colour']"),
        ({1, 2}, "builtins.set"),
        (cycle, "contains itself"),
        (nested(300), "nests deeper"),
        ([10**5000], "value[0]"),
    ],
)
def test_what_json_cannot_carry_is_refused_with_its_place(memory, value, place):
    memory.set("k", "before")
    with pytest.raises(InvalidInput) as refused:
        memory.set("k", value)
    assert place in str(refused.value)
    with pytest.raises(InvalidInput):
        memory.append("list", 1, value)
    with pytest.raises(InvalidInput):
        memory.update({"other": 1, "k": value})
    assert memory.get("k") == "before"
    assert memory.keys() == ["k"]


def test_nesting_up_to_the_limit_is_stored(memory):
    memory.set("k", nested(200))
    assert memory.get("k") == nested(200)


@same_fixture
@given(key=keys)
def test_every_key_arrives_intact(memory, key):
    memory.clear()
    memory.set(key, 1)
    assert memory.get(key) == 1
    assert key in memory
    assert memory.keys() == [key]
    assert memory.append(f"{key}"[:100] + "-list", "x") == 1
    assert memory.incr(key) == 2
    assert memory.delete(key) is True


@pytest.mark.parametrize(
    "key",
    ["..", ".", "a/../b", "/", "//", "a/", "/a", "a?b=c", "a#b", "a%2Fb", "%", "+ +", "a\nb", "\x00", "ключ", "🦜"],
)
def test_keys_that_urls_mangle_are_different_keys(memory, key):
    memory.set("a", "another")
    memory.set(key, "this one")
    assert memory.get(key) == "this one"
    assert memory.get("a") == "another"
    assert memory.tail(key + "!", 1) == []
    assert sorted(memory.keys()) == sorted(["a", key])


@same_fixture
@given(namespace=namespaces)
def test_every_namespace_arrives_intact(open_memory, namespace):
    memory = open_memory(namespace)
    memory.set("whose", namespace)
    assert memory.get("whose") == namespace
    assert memory.usage().namespace == namespace
    memory.clear()
    memory.close()


@pytest.mark.parametrize("key", ["", "x" * 513, "é" * 257, "\ud800", 3, None, b"k"])
def test_a_bad_key_is_refused(memory, key):
    for verb in (memory.get, memory.item, memory.delete, memory.__contains__, memory.incr, memory.append):
        with pytest.raises(InvalidInput):
            verb(key)
    with pytest.raises(InvalidInput):
        memory.set(key, 1)
    with pytest.raises(InvalidInput):
        memory.get_many(["ok", key])
    with pytest.raises(InvalidInput):
        memory.update({"ok": 1, key: 2})
    assert len(memory) == 0


@pytest.mark.parametrize("namespace", ["", "a/b", "x" * 129, "a\nb", "a\n", "\x00", "\x7f", "\x85", "\ud800", 3, None])
def test_a_bad_namespace_is_refused(open_memory, namespace):
    with pytest.raises(InvalidInput):
        Memory(namespace, **open_memory.where)


@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf, "5", True, 1e12])
def test_a_bad_ttl_is_refused(memory, ttl):
    with pytest.raises(InvalidInput, match="ttl"):
        memory.set("k", 1, ttl=ttl)
    assert "k" not in memory


def test_a_missing_key_gives_the_default(memory):
    assert memory.get("nope") is None
    assert memory.get("nope", 5) == 5
    assert memory.item("nope") is None
    assert memory.delete("nope") is False
    assert "nope" not in memory
    assert memory.tail("nope", 3) == []
    assert memory.get_many(["nope"]) == {}


def test_setting_none_deletes(memory):
    memory.set("k", 1)
    assert memory.set("k", None) == 0
    assert "k" not in memory
    memory.update({"a": 1, "b": 2})
    memory.update({"a": None, "c": 3})
    assert memory.keys() == ["b", "c"]


def test_an_item_tells_its_story(memory):
    before = time.time() - 1
    memory.set("k", {"a": 1})
    first = memory.item("k")
    assert isinstance(first, Item)
    assert (first.key, first.value, first.version, first.expires_at) == ("k", {"a": 1}, 1, None)
    assert before < first.created_at.timestamp() < time.time() + 1
    assert first.bytes == len('k{"a":1}')
    memory.set("k", 2, ttl=60)
    second = memory.item("k")
    assert second.version == 2
    assert second.created_at == first.created_at <= second.updated_at
    assert 50 < (second.expires_at - second.updated_at).total_seconds() <= 60


def test_a_version_is_never_used_twice(memory):
    seen = [memory.set("k", 1), memory.set("k", 2)]
    memory.delete("k")
    seen.append(memory.set("k", 3))
    memory.clear()
    seen.append(memory.set("k", 4))
    memory.append("k2", 1)
    assert seen == sorted(set(seen))


def test_if_version_writes_only_over_that_version(memory):
    assert memory.set("k", "first", if_version=0) == 1
    with pytest.raises(Conflict, match="version 1"):
        memory.set("k", "other", if_version=0)
    assert memory.set("k", "second", if_version=1) == 2
    with pytest.raises(Conflict):
        memory.set("k", "other", if_version=1)
    with pytest.raises(Conflict):
        memory.set("k", None, if_version=1)
    with pytest.raises(Conflict):
        memory.delete("k", if_version=7)
    assert memory.get("k") == "second"
    assert memory.delete("k", if_version=2) is True
    with pytest.raises(Conflict, match="does not exist"):
        memory.set("k", 1, if_version=2)
    with pytest.raises(InvalidInput):
        memory.set("k", 1, if_version=-1)


def test_lists_grow_in_place(memory):
    assert memory.append("l", 1, "two", None) == 3
    assert memory.append("l", {"three": 3}) == 4
    assert memory.append("l") == 4
    assert memory.get("l") == [1, "two", None, {"three": 3}]
    assert memory.tail("l", 2) == [None, {"three": 3}]
    assert memory.tail("l", 0) == []
    assert memory.tail("l", 99) == memory.get("l")
    assert memory.item("l").bytes == len('l[1,"two",null,{"three":3}]')


def test_a_list_that_was_set_can_grow_and_be_replaced(memory):
    memory.set("l", ["a", "b"])
    before = memory.item("l")
    assert memory.tail("l", 1) == ["b"]
    assert memory.append("l", "c") == 3
    assert memory.get("l") == ["a", "b", "c"]
    assert memory.item("l").bytes == before.bytes + len(',"c"')
    memory.set("l", [])
    assert memory.get("l") == []
    assert memory.append("l", 1) == 1
    assert memory.get("l") == [1]
    assert memory.item("l").bytes == len("l[1]")
    memory.set("l", "no list")
    assert memory.get("l") == "no list"


def test_an_id_that_was_used_for_another_call_is_a_conflict(memory):
    assert memory.append("x", 1, once="m") == 1
    for call in (
        lambda: memory.append("y", 2, once="m"),
        lambda: memory.append("x", 2, once="m"),
        lambda: memory.incr("x", once="m"),
    ):
        with pytest.raises(Conflict, match="'m' was used for append of 'x', and this is"):
            call()
    assert memory.append("x", 1, once="m") == 1
    assert (memory.keys(), memory.get("x")) == (["x"], [1])


def test_what_is_sent_again_with_the_same_id_happens_once(memory):
    for _ in range(3):
        assert memory.append("l", "a", "b", once="message-1") == 2
        assert memory.incr("n", 5, once="count-1") == 5
    assert memory.append("l", "c", once="message-2") == 3
    assert memory.append("l", "c") == 4
    assert memory.append("l", "a", "b", once="message-1") == 2
    assert memory.get("l") == ["a", "b", "c", "c"]
    assert memory.get("n") == 5
    assert memory.usage().writes_today == 4
    for bad in ("", "x" * 513, 5):
        with pytest.raises(InvalidInput):
            memory.append("l", 1, once=bad)
    memory.set("text", "no list")
    for _ in range(2):
        with pytest.raises(Conflict):
            memory.append("text", 1, once="refused")
    memory.set("text", [])
    assert memory.append("text", 1, once="refused") == 1, "what was refused has not happened"


def test_a_call_that_is_repeated_after_a_deletion_brings_nothing_back(memory):
    for delete in (lambda: memory.delete("orders"), lambda: memory.clear("or"), memory.clear):
        assert memory.append("orders", "tea", once=str(delete)) == 1
        delete()
        assert memory.append("orders", "tea", once=str(delete)) == 1
        assert memory.keys() == []


@pytest.mark.parametrize("value", [1, "text", {"a": 1}, True])
def test_appending_to_what_is_no_list_is_a_conflict(memory, value):
    memory.set("k", value)
    with pytest.raises(Conflict, match="is not a list"):
        memory.append("k", 1)
    with pytest.raises(Conflict, match="is not a list"):
        memory.tail("k", 1)
    assert memory.get("k") == value


@pytest.mark.parametrize("by", [float("nan"), float("inf"), "1", True, None])
def test_incr_takes_finite_numbers_only(memory, by):
    with pytest.raises(InvalidInput, match="by is a finite number, not"):
        memory.incr("n", by)


def test_incr_counts_from_zero_and_needs_a_number(memory):
    assert memory.incr("n") == 1
    assert memory.incr("n", 10**30) == 10**30 + 1
    assert memory.incr("n", -(10**30)) == 1
    assert memory.incr("n", 0.5) == 1.5
    for value in ("1", True, [1]):
        memory.set("k", value)
        with pytest.raises(Conflict, match="not a number"):
            memory.incr("k")
    for by in ("1", True, None, math.nan):
        with pytest.raises(InvalidInput):
            memory.incr("n", by)
    memory.set("big", 1e308)
    with pytest.raises(InvalidInput, match="largest"):
        memory.incr("big", 1e308)
    assert memory.get("big") == 1e308


def test_get_many_and_update_take_one_trip(memory):
    memory.update({"a": 1, "b": [1, 2], "c": None})
    memory.append("b", 3)
    assert memory.get_many(["b", "nope", "a", "a"]) == {"b": [1, 2, 3], "a": 1}
    many = {f"k{i:04}": i for i in range(1500)}
    memory.update(many)
    assert memory.get_many(many) == many
    memory.update({})
    memory.update({}, if_versions={"a": 1, "nope": 0})
    with pytest.raises(Conflict):
        memory.update({}, if_versions={"nope": 1})
    assert memory.get_many([]) == {}
    with pytest.raises(InvalidInput):
        memory.get_many("abc")


def test_keys_are_all_keys_in_order(memory):
    memory.update({f"user:{i:05}": i for i in range(12_345)})
    memory.update({"user;": 1, "usez": 2, "\U0010ffff": 3, "\U0010ffffx": 4, "\ud7ff": 5, "\ud7ff!": 6, "\ue000": 7})
    assert memory.keys("user:") == [f"user:{i:05}" for i in range(12_345)]
    assert memory.keys("use") == [*memory.keys("user:"), "user;", "usez"]
    assert memory.keys("\U0010ffff") == ["\U0010ffff", "\U0010ffffx"]
    assert memory.keys("\ud7ff") == ["\ud7ff", "\ud7ff!"]
    assert memory.keys() == sorted(memory.keys()) == list(memory)
    assert len(memory) == len(memory.keys()) == 12_352
    assert memory.clear() == 12_352
    assert memory.keys() == []


def test_a_page_of_keys_that_is_exactly_full_is_not_the_end(memory):
    memory.update({f"k{i:05}": 0 for i in range(10_000)})
    assert len(memory.keys()) == 10_000
    memory.set("z", 0)
    assert len(memory.keys()) == 10_001


def test_what_has_expired_is_gone_at_once(memory):
    ttl = 0.05
    while memory.set("l", [1], ttl=ttl) and memory.append("l", 2) != 2:  # it was over before the append
        memory.delete("l")
        ttl *= 2
    memory.set("k", 1, ttl=ttl)
    memory.set("stays", 1, ttl=600)
    time.sleep(1.5 * ttl)
    assert memory.get("k") is None
    assert memory.item("l") is None
    assert "k" not in memory
    assert memory.tail("l", 5) == []
    assert memory.get_many(["k", "l", "stays"]) == {"stays": 1}
    assert memory.keys() == ["stays"]
    assert len(memory) == 1
    assert memory.usage().bytes == memory.item("stays").bytes
    assert memory.delete("k") is False
    assert memory.append("l", "new") == 1
    assert memory.incr("k") == 1
    memory.set("stays", 2)
    assert memory.item("stays").expires_at is None


def test_append_and_incr_leave_the_expiry_and_set_and_update_replace_it(memory):
    memory.update({"l": [1], "n": 1, "s": 1, "u": 1}, ttl=1000)
    ends = {key: memory.item(key).expires_at for key in "ln"}
    memory.append("l", 2)
    memory.incr("n")
    memory.set("s", 2)
    memory.update({"u": 2})
    assert {key: memory.item(key).expires_at for key in "ln"} == ends
    assert [memory.item(key).expires_at for key in "su"] == [None, None]


def test_a_call_is_one_write_and_reads_and_deletes_are_none(memory):
    before = memory.usage().writes_today
    memory.append("l", *range(50))
    memory.update({f"k{i}": i for i in range(20)})
    with memory.transaction() as t:
        t.set("a", 1)
        t.append("l", 51)
    assert memory.usage().writes_today == before + 3
    memory.get("l")
    memory.tail("l", 5)
    memory.keys()
    memory.delete("l")
    memory.clear()
    assert memory.usage().writes_today == before + 3


def test_usage_adds_up(memory):
    memory.set("a", "x" * 100)
    memory.append("l", 1, 2, 3)
    memory.update({"b": 1, "c": 2})
    memory.delete("b")
    used = memory.usage()
    assert used.bytes == sum(memory.item(key).bytes for key in memory)
    assert used.keys == 3
    assert used.writes_today == 3
    assert used.writes_per_day == used.max_bytes == 0
    assert used.writes_remaining is used.bytes_remaining is None
    memory.clear()
    assert (memory.usage().keys, memory.usage().bytes) == (0, 0)


def test_more_than_one_call_may_carry_is_refused(memory):
    for write in (
        lambda: memory.set("k", "x" * MAX_WRITE_BYTES),
        lambda: memory.append("k", *["x" * 2**20] * 16),
        lambda: memory.update({f"k{i}": "é" * 2**19 for i in range(16)}),
    ):
        with pytest.raises(ValueTooLarge, match="at most"):
            write()
    memory.set("k", "x" * (MAX_WRITE_BYTES - 2))
    assert len(memory.get("k")) == MAX_WRITE_BYTES - 2
    assert memory.keys() == ["k"]
    memory.clear()


def test_more_rows_than_one_call_may_write_are_refused(memory):
    many = dict.fromkeys(map(str, range(MAX_WRITE_ROWS + 1)), 1)
    half = list(many)[: MAX_WRITE_ROWS // 2 + 1]

    def transact():
        with memory.transaction() as t:
            t.append("k", *half)
            t.append("k", *half)

    for write in (
        lambda: memory.append("k", *many),
        lambda: memory.update(many),
        lambda: memory.update({"k": 1}, if_versions=dict.fromkeys(many, 0)),
        transact,
    ):
        with pytest.raises(ValueTooLarge, match="so split it"):
            write()
    assert memory.keys() == []


def test_a_list_that_was_set_with_more_items_than_one_call_may_write_is_not_turned_into_rows(memory):
    memory.set("k", [1] * (MAX_WRITE_ROWS + 1))
    for write in (lambda: memory.append("k", 1), lambda: memory.pop("k")):
        with pytest.raises(Conflict, match="in several calls"):
            write()
    assert memory.length("k") == MAX_WRITE_ROWS + 1
    memory.clear()


def test_namespaces_do_not_see_each_other(open_memory):
    one, other = open_memory(), open_memory()
    one.set("k", 1)
    one.append("history", {"role": "user", "content": "a walnut"})
    assert other.get("k") is other.item("k") is None
    assert other.keys() == list(other.items()) == other.tail("history", 5) == other.pop("history") == []
    assert other.search("walnut") == other.conversations() == []
    assert (other.length("history"), other.delete("k"), other.touch("k", 1)) == (0, False, False)
    other.clear()
    assert one.get("k") == 1
    assert {one.namespace, other.namespace} >= {one.namespace} & set(one.namespaces())


def test_the_next_process_has_it(open_memory):
    memory = open_memory()
    memory.set("user", {"name": "Sarah"})
    memory.append("l", 1)
    memory.close()
    program = (
        "import sys, json; from scrubjay import Memory; memory = Memory(sys.argv[1], **json.loads(sys.argv[2]));"
        "print(memory.get('user')['name'], memory.append('l', 2))"
    )
    import json

    done = subprocess.run(
        [sys.executable, "-c", program, memory.namespace, json.dumps(open_memory.where)],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(),
        timeout=60,
    )
    assert done.stdout == "Sarah 2\n"
    assert done.stderr == ""


def test_threads_share_a_handle(memory):
    def work(number: int) -> None:
        for i in range(50):
            memory.append("l", [number, i])
            memory.incr("n")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.get("n") == 400
    found = memory.get("l")
    for number in range(8):
        assert [i for who, i in found if who == number] == list(range(50))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_forked_child_has_connections_of_its_own(memory):
    memory.set("k", "parent")
    child = os.fork()
    if not child:
        fine = memory.get("k") == "parent" and memory.append("l", "child") == 1
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert memory.get("l") == ["child"]
    memory.set("k", "still works")
    assert memory.get("k") == "still works"


OUTSIDER = "import sys; from scrubjay import Memory; print(Memory('fork', path=sys.argv[1]).get('log'))"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_write_of_a_forked_child_is_stored_whichever_process_closes_first(tmp_path):
    """A child that shares SQLite's locks with its parent writes into a log that others delete under it."""
    path = str(tmp_path / "db")
    memory = Memory("fork", path=path)
    memory.set("start", 1)
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        for i in range(5):
            memory.append("log", i)
        os.read(told, 1)  # the parent has closed the file meanwhile
        for i in range(5, 10):
            memory.append("log", i)
        os._exit(0)
    memory.append("parent", 1)
    memory.close()
    look = [sys.executable, "-c", OUTSIDER, path]
    subprocess.run(look, check=True, capture_output=True, timeout=60, env=clean_environment())
    os.write(tell, b"x")
    assert os.waitpid(child, 0)[1] == 0
    done = subprocess.run(look, check=True, capture_output=True, text=True, timeout=60, env=clean_environment())
    assert done.stdout == f"{list(range(10))}\n"
    os.close(told)
    os.close(tell)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_fork_while_other_threads_write_disturbs_neither_side(tmp_path):
    memory = Memory("fork", path=str(tmp_path / "db"), durability="fast")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            memory.incr("parent")

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    children = []
    for _ in range(4):
        child = os.fork()
        if not child:
            for _ in range(50):
                memory.incr("children")
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    stop.set()
    for thread in threads:
        thread.join()
    assert memory.get("children") == 200
    assert memory.get("parent") > 0
    memory.close()


@pytest.mark.timeout(300)
def test_ctrl_c_in_one_thread_repeats_nobodys_write(tmp_path):
    program = """
import sys, threading, time, signal, os
from scrubjay import Memory
memory = Memory("ctrl-c", path=sys.argv[1], durability="fast")
done, stop = [], threading.Event()
def work(number):
    i = 0
    while not stop.is_set():
        memory.append("list", [number, i])
        done.append([number, i])
        i += 1
threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads: thread.start()
def interrupt():
    for _ in range(500):
        time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGINT)
armed = False
def interrupted(*_):
    global armed
    if armed:  # only inside of the try below, and once each time
        armed = False
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupted)
interrupter = threading.Thread(target=interrupt)
interrupter.start()
while interrupter.is_alive():
    try:
        armed = True
        while interrupter.is_alive():
            memory.append("mine", 1)
        armed = False
    except KeyboardInterrupt:
        pass
stop.set()
for thread in threads: thread.join()
assert sorted(memory.get("list")) == sorted(done), (len(memory.get("list")), len(done))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "db")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280, env=clean_environment())
    assert done.returncode == 0, done.stderr


def test_the_attributes_of_a_memory_hold_no_api_key_in_clear_text(tmp_path):
    assert vars(Memory("a", path=tmp_path / "a.db", api_key="secret")) == {"namespace": "a"}


def test_a_closed_memory_says_so_and_a_copy_opens_its_own(open_memory):
    memory = open_memory()
    memory.set("k", 1)
    copy = pickle.loads(pickle.dumps(memory))
    memory.close()
    memory.close()
    for call in (lambda: memory.get("k"), lambda: memory.set("k", 2), memory.keys, lambda: len(memory)):
        with pytest.raises(Unavailable, match="closed"):
            call()
    assert copy.get("k") == 1
    copy.close()


def test_a_memory_is_a_context_manager_and_true_while_empty(open_memory):
    with Memory(fresh_name(), **open_memory.where) as memory:
        assert memory
        assert len(memory) == 0
        memory.set("k", 1)
        assert memory.namespace in repr(memory)


def test_a_memory_may_be_collected_while_another_is_opened(tmp_path, monkeypatch):
    """Agents are full of reference cycles, so a memory ends whenever the collector happens to run."""

    class Agent:
        def __init__(self):
            self.itself, self.memory = self, Memory("a", path=str(tmp_path / "a.db"))

    def collect_and_open(*args, **options):
        gc.collect()
        return open_store(*args, **options)

    Agent()
    open_store = local.open_store
    monkeypatch.setattr(local, "open_store", collect_and_open)
    memory = Memory("b", path=str(tmp_path / "b.db"))
    memory.set("k", 1)
    assert memory.get("k") == 1


@pytest.mark.parametrize("prefix", [None, 0, False, []])
def test_a_prefix_that_is_no_text_clears_nothing(tmp_path, prefix):
    with Memory("ns", path=tmp_path / "db") as memory:
        memory["kept"] = 1
        with pytest.raises(InvalidInput, match="a prefix is text"):
            memory.clear(prefix)
        assert memory["kept"] == 1
