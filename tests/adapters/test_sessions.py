"""Sessions, state, records and tools, without a framework."""

from __future__ import annotations

import socket
import sqlite3
import threading
from contextlib import closing
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness import serving
from scrubjay import InvalidInput, Memory, Unavailable
from scrubjay.adapters import _records
from scrubjay.adapters._names import join_names, namespace_of, quote_name
from scrubjay.adapters._records import Elsewhere, GroupMessages, SavedMessages
from scrubjay.adapters._sessions import Session
from scrubjay.adapters._state import State
from scrubjay.adapters._tools import UNREACHABLE, memory_tools
from scrubjay.conversations import HISTORY, MESSAGES, entry, new_id, time_of
from scrubjay.outbox import queue
from scrubjay.validation import MAX_MESSAGES_PAGE, check_key, check_namespace


@pytest.fixture
def memory(tmp_path):
    with Memory("agent", path=tmp_path / "memory.db", durability="fast") as memory:
        yield memory


def test_a_namespace_can_be_made_of_any_names():
    assert namespace_of("autogen", "writer") == "autogen-writer"
    odd = [namespace_of(name) for name in ("a/b", "a\nb", "a_b", "x" * 300, "y\ud800")]
    assert len(set(odd)) == 5
    assert [check_namespace(name) for name in odd] == odd


def test_the_error_for_a_session_without_a_name_says_what_the_default_is(memory):
    with pytest.raises(InvalidInput, match="not None; use 'default'"):
        Session(memory, None)


def test_names_of_any_length_make_keys():
    for name in ("名" * 200, "😀" * 130, "a:b%", "\ud800"):
        check_key(f"with:{quote_name(name)}:{quote_name(name)}")
    assert quote_name("名" * 200) != quote_name("名" * 199)
    assert join_names(["a+b", "c"]) != join_names(["a", "b+c"])
    assert join_names(["a-b", "c"]) != join_names(["a", "b-c"])


def test_ids_are_in_the_order_of_time():
    ids = [new_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert [time_of(each) for each in ids] == sorted(time_of(each) for each in ids)
    assert time_of("") is None


class TwoProcesses:
    """A record and the list of a framework, compared with what should be stored and shown."""

    STEPS = ("say", "say", "say", "clear_view", "erase", "restart", "refresh", "resume", "read", "elsewhere")

    def __init__(self, memory):
        self.memory = memory
        self.session = Session(memory, "default")
        self.stored, self.start = [], 0
        """The view has the stored messages from `start` on, as far as they have been read."""
        self.restart()

    def _append(self, record, view):
        view.append({"role": "user", "content": f"message {len(self.stored)}"})
        with self.session.transaction() as t:
            assert len(record.sync(t, view)) == 1
        self.stored.append(view[-1])

    def check(self):
        assert [row["message"] for row in self.memory.get("log", [])] == self.stored
        shown = self.stored[self.start :]
        assert self.view == shown[len(shown) - len(self.view) :]

    def say(self):
        self._append(self.record, self.view)
        assert self.record.elsewhere is Elsewhere.NOTHING

    def clear_view(self):
        self.record.hide()
        self.view.clear()
        self.start = len(self.stored)

    def erase(self):
        self.view.clear()
        with self.session.transaction() as t:
            self.record.replace(t, [])
        self.stored, self.start = [], 0

    def restart(self):
        self.record = SavedMessages(self.session, "log")
        self.view, self.start = list(self.record.visible), 0

    def read(self):
        self.record.read_last(self.view, 2, None)
        self.record.read_earlier(self.view)
        assert not self.record.has_earlier
        assert self.view == self.stored[self.start :]

    def refresh(self):
        self._append(SavedMessages(self.session, "log"), [])
        assert self.record.refresh(self.view) >= 1
        assert self.view[-1] == self.stored[-1]

    def elsewhere(self):
        with pytest.MonkeyPatch.context() as other:
            other.setattr(_records._ids, "_process", "0d1e2f")
            self._append(SavedMessages(self.session, "log"), [])
        is_length_known = self.record._length is not None
        self._append(self.record, self.view)
        assert (self.record.notice(self.view) > 0) == is_length_known
        self.record.refresh(self.view)

    def resume(self):
        self.record.replay()
        self.view.clear()
        self.start = 0
        for message in [dict(message) for message in self.stored]:
            self.view.append(message)
            with self.session.transaction() as t:
                assert self.record.sync(t, self.view) == []


@pytest.mark.parametrize("sizes", [(200, 2000), (2, 3)])
@settings(max_examples=60)
@given(steps=st.lists(st.sampled_from(TwoProcesses.STEPS), max_size=20))
@example(steps=["clear_view", "elsewhere", "read"])
@example(steps=["elsewhere", "say", "restart", "say", "elsewhere"])
def test_a_record_has_each_message_once_whatever_happens_to_the_view(sizes, steps):
    """Two processes that say something, clear their views, erase, restart, refresh, resume, and read the end first."""
    with (
        TemporaryDirectory() as folder,
        Memory("agent", path=f"{folder}/m.db", durability="fast") as memory,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(_records, "FIRST_MESSAGES", sizes[0])
        patch.setattr(_records, "PAGE_MESSAGES", sizes[1])
        processes = TwoProcesses(memory)
        for step in steps:
            getattr(processes, step)()
            processes.check()


def test_a_state_writes_what_has_changed_and_raises_for_what_json_cannot_represent(memory):
    state = State(Session(memory, "default"), "owner")
    state["a"] = {"n": [1]}
    state["b"] = 2
    assert memory.keys() == ["state:owner:a", "state:owner:b"]
    state["a"]["n"].append(2)
    state.save()
    assert dict(State(Session(memory, "default"), "owner")) == {"a": {"n": [1, 2]}, "b": 2}
    with pytest.raises(InvalidInput):
        state["c"] = print
    del state["b"]
    assert list(state) == ["a"]


def test_agents_on_one_namespace_share_a_handle_that_the_user_cannot_close(tmp_path):
    path = tmp_path / "memory.db"
    with Memory("agent", path=path) as lasting:
        session = Session(lasting, "default")
        with Memory("agent", path=path) as brief:
            assert Session(brief, "default").is_same_as(session)
        with session.transaction() as t:
            t.append("log", "still there")
        assert lasting.get("log") == ["still there"]


def test_a_value_of_the_users_in_the_way_of_one_write_does_not_stop_the_others(memory, caplog):
    memory.set("mine", "text")
    session = Session(memory, "default")
    with session.transaction() as t:
        t.append("mine", 1)
        t.append("log", 1)
    assert (memory.get("mine"), memory.get("log")) == ("text", [1])
    assert "not saved" in caplog.text


def test_tools_say_when_the_memory_is_unreachable(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    memory = Memory("agent", url=f"http://127.0.0.1:{port}")
    tools = {tool.__name__: tool for tool in memory_tools(memory)}
    assert tools["get"]("k") == UNREACHABLE
    assert tools["recall"]("k") == UNREACHABLE
    tools["set"]("k", "1")
    assert tools["get"]("k") == "1"
    with serving(tmp_path / "served.db", port=port):
        memory.flush()
        assert (memory.get("k"), tools["get"]("k")) == (1, "1")


def test_the_queued_writes_of_a_session_are_forgotten_with_it(tmp_path):
    with serving(tmp_path / "served.db") as server, Memory("agent", url=server.url) as memory:
        session = Session(memory, "s")
        memory.set("k", 1)
        memory.set_quota(writes_per_day=1)
        with session.transaction() as t:
            t.remember("Sarah likes tea", session="s")
        other = Session(memory, "other")
        with other.transaction() as t:
            t.remember("Bob likes coffee", session="other")
        session.forget("s")
        memory.set_quota(writes_per_day=0)
        memory.flush()
        assert [note.content for note in memory.notes()] == ["Bob likes coffee"]


def test_while_the_memory_cannot_be_read_a_session_has_what_is_queued_for_it(tmp_path, caplog):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    first = Session(Memory("agent", url=url, outbox=tmp_path / "outbox.db"), "s")
    with first.transaction() as t:
        record = SavedMessages(first, "with:a:b")
        record.sync(t, [{"role": "user", "content": "one"}])
    State(first, "a")["seen"] = [1]
    later = Session(Memory("agent", url=url, outbox=tmp_path / "outbox.db"), "s")
    record, state = SavedMessages(later, "with:a:b"), State(later, "a")
    assert [message["content"] for message in record.visible] == ["one"]
    assert not record.is_complete
    assert dict(state) == {"seen": [1]}
    assert not state.is_complete
    assert SavedMessages(Session(later.memory, "other"), "with:a:b").rows == []
    assert "WITHOUT their stored history and state" in caplog.text


@pytest.mark.parametrize("kind", [SavedMessages, GroupMessages])
def test_the_log_names_the_conversation_of_a_message_that_json_cannot_represent(memory, kind, caplog):
    session = Session(memory, "s")
    with session.transaction() as t:
        kind(session, MESSAGES).sync(t, [{"role": "user", "content": "hi", "extra": print}])
    assert f"a message of 'session:s:messages' of {memory!r} is saved without extra, which JSON" in caplog.text


def test_a_history_of_many_pages_reads_the_queued_writes_once(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    session = Session(Memory("agent", url=url, outbox=tmp_path / "outbox.db"), "s")
    ids = []
    for size in (1, 2 * MAX_MESSAGES_PAGE):
        with session.transaction() as t:
            entries = [entry("hi", sender="user") for _ in range(size)]
            t.set(session.key(HISTORY), entries) if not ids else t.append(session.key(HISTORY), *entries)
            ids += [each["id"] for each in entries]
    read, readers = queue._queued_write, []
    monkeypatch.setattr(queue, "_queued_write", lambda row: readers.append(threading.get_ident()) or read(row))
    history = session.history(HISTORY)
    assert readers.count(threading.get_ident()) == 2, "sender threads read queues as well"
    assert [(line["id"], line["position"]) for line in history] == [(id_, i) for i, id_ in enumerate(ids)]


def test_a_message_that_is_sent_while_a_history_is_read_is_in_it_once(tmp_path, monkeypatch):
    with serving(tmp_path / "served.db", "--durability", "fast") as server, Memory("a", url=server.url) as memory:
        session, ids = Session(memory, "s"), []
        for i in range(4):
            memory.set_quota(writes_per_day=2)  # so the last two are queued
            with session.transaction() as t:
                t.append(session.key(HISTORY), line := entry(i, sender="user"))
                ids.append(line["id"])
        executor = session._memory._executor
        assert len(executor.pending("a")) == 2
        ask = executor._ask

        def send_the_first_then_ask(command, *rest):
            with executor._sender._sending:
                first, _ = executor._sender.queued("a")
                memory.set_quota(writes_per_day=3)
                executor._inner.run(first.command, first.idempotency_key)
            return ask(command, *rest)

        monkeypatch.setattr(executor, "_ask", send_the_first_then_ask)
        history = session.history(HISTORY)
        assert [(line["id"], line["position"]) for line in history] == [(id_, i) for i, id_ in enumerate(ids)]


@pytest.fixture
def outage(tmp_path):
    """A memory with a state whose server is stopped, and a function that starts it again."""
    with serving(tmp_path / "served.db", "--durability", "fast") as server:
        memory = Memory("agent", url=server.url, outbox=tmp_path / "outbox.db")
        State(Session(memory, "s"), "a")["basket"] = ["apple"]
        server.stop()
        yield memory, lambda: serving(tmp_path / "served.db", "--durability", "fast", port=server.port)


def test_state_that_could_not_be_read_is_never_replaced(outage, caplog):
    memory, serving_again = outage
    state = State(Session(memory, "s"), "a")
    state.setdefault("basket", []).append("plum")
    state["new"] = state["read"] = {"n": 1}
    state.save()
    state["new"]["n"] = 2
    state.save()
    later = State(Session(memory, "s"), "a")
    assert dict(later) == {"basket": ["plum"], "new": {"n": 2}, "read": {"n": 2}}, "queued on this machine"
    del later["read"]
    assert "stay" not in caplog.text
    with serving_again():
        memory.flush(60)
        expected = {"basket": ["apple"], "new": {"n": 2}}
        assert dict(State(Session(memory, "s"), "a")) == expected
        assert "'session:s:state:a:basket' stay" in caplog.text
        assert dict(memory.items()) == {"session:s:state:a:basket": ["apple"], "session:s:state:a:new": {"n": 2}}


def test_a_running_program_takes_over_state_when_it_can_be_read(outage, caplog):
    memory, serving_again = outage
    state = State(Session(memory, "s"), "a")
    state["count"] = 1
    state["open"] = opened = [1]
    state["basket"] = basket = ["plum"]
    with serving_again():
        memory.flush(60)
        basket.append("pear")
        opened.append(2)
        state.save()
        assert "'session:s:state:a:basket' stay" in caplog.text
        assert dict(state) == {"basket": ["apple"], "count": 1, "open": [1, 2]}
        state["count"] += 1
        state["basket"].append("pear")
        opened.append(3)
        state.save()
        expected = {"basket": ["apple", "pear"], "count": 2, "open": [1, 2, 3]}
        assert dict(state) == dict(State(Session(memory, "s"), "a")) == expected


def test_state_that_is_queued_is_known_and_may_be_replaced(outage, caplog):
    memory, serving_again = outage
    with serving_again():
        memory.flush(60)
        reader = State(Session(memory, "s"), "a")
        assert dict(reader) == {"basket": ["apple"]}
    reader["basket"] = ["fig"]
    blind, other = State(Session(memory, "s"), "a"), State(Session(memory, "s"), "a")
    blind["basket"].append("kiwi")
    basket = other["basket"]
    with serving_again():
        memory.flush(60)
        blind.save()
        assert dict(State(Session(memory, "s"), "a")) == {"basket": ["fig", "kiwi"]}
        blind["basket"].pop()
        blind.save()
        assert other["basket"] is basket
        basket.append("lime")
        other.save()
        assert dict(State(Session(memory, "s"), "a")) == {"basket": ["fig", "lime"]}
    assert "stay" not in caplog.text


def test_an_assignment_that_first_reads_the_state_leaves_what_is_stored(outage, caplog):
    memory, serving_again = outage
    state = State(Session(memory, "s"), "a")
    count = len(state.get("basket", []))
    with serving_again():
        memory.flush(60)
        state["basket"] = count + 1
        assert (state["basket"], memory.get("session:s:state:a:basket")) == (["apple"], ["apple"])
        assert "stay" in caplog.text
        state["basket"] = "mine"
        assert memory.get("session:s:state:a:basket") == "mine"
        State(Session(memory, "s"), "a")["basket"] = "unread, but readable"
        assert memory.get("session:s:state:a:basket") == "unread, but readable"


def test_a_strict_memory_raises_when_state_cannot_be_read(outage):
    memory, _ = outage
    strict = Session(Memory("agent", url=memory.location, strict=True), "s")
    with pytest.raises(Unavailable):
        State(strict, "a").get("basket")
    with pytest.raises(Unavailable):
        State(strict, "a")["basket"] = []
    assert strict.unsaved == 0


@pytest.mark.parametrize("kind", [SavedMessages, GroupMessages])
def test_a_record_starts_empty_while_neither_the_memory_nor_the_queue_can_be_read(tmp_path, kind, caplog):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    session = Session(Memory("agent", url=url, outbox=tmp_path / "outbox.db"), "s")
    with session.transaction() as t:
        kind(session, MESSAGES).sync(t, [{"role": "user", "content": "one"}])
    assert len(kind(session, MESSAGES).rows) == 1
    with closing(sqlite3.connect(tmp_path / "outbox.db", isolation_level=None)) as damaging:
        damaging.execute("ALTER TABLE writes RENAME TO damaged")
    record = kind(session, MESSAGES)
    assert record.rows == []
    assert not record.is_complete
