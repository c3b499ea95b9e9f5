"""Saving to a memory that is slow, away, full, or gone for good."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from functools import partial
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import Server, serving
from scrubjay import Forbidden, Memory, Unavailable, wire
from scrubjay.adapters import _saving
from scrubjay.adapters._messages import snapshot
from scrubjay.adapters._saving import Saver, Write, saver_of
from scrubjay.adapters._sessions import Record, Session, namespace_of, quoted, together
from scrubjay.adapters._tools import UNREACHED, memory_tools
from scrubjay.names import check_key, check_namespace
from scrubjay.wire import _DirectWire


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """The first retry comes at once."""
    monkeypatch.setattr(_saving, "FIRST_RETRY", 0.01)


@pytest.fixture
def memory(tmp_path):
    with Memory("agent", path=str(tmp_path / "memory.db"), durability="fast") as memory:
        yield memory


def eventually(holds) -> None:
    give_up_at = time.monotonic() + 20
    while not holds():  # asked once more it might not hold again
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


class Failing:
    """A memory that fails until it is told otherwise."""

    namespace, place, api_key = "agent", "http://away", None

    def __init__(self, memory, error=None, seconds=0.0):
        self.memory, self.error, self.seconds = memory, error or Unavailable("away"), seconds
        self.away = True

    def __getattr__(self, verb):
        def call(*args, **options):
            if self.away:
                time.sleep(self.seconds)
                raise self.error
            return getattr(self.memory, verb)(*args, **options)

        return call


def settled(saver):
    saver.flush(10)
    return not saver.unsaved


class LosingAnswers:
    """Stands before a server: passes requests on, and swallows the first answers."""

    def __init__(self, port: int, losses: int) -> None:
        self._port, self._losses = port, losses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            while request := client.recv(65536):
                server.sendall(request)
                answer = b""
                while b"\r\n\r\n{" not in answer:  # head and body come one after the other
                    answer += server.recv(65536)
                if request.startswith(b"POST") and self._losses:
                    self._losses -= 1
                    return
                client.sendall(answer)

    def close(self) -> None:
        self._listener.close()


def test_an_answer_that_was_lost_does_not_double_a_message(server):
    with (
        closing(LosingAnswers(server.port, losses=3)) as between,
        Memory("lossy", url=between.url, strict=True) as memory,
    ):
        session = Session(memory, "default")
        for i in range(5):
            session.write(session.appended("log", i))
        assert settled(saver_of(memory))
        assert memory.get("log") == [0, 1, 2, 3, 4]


def test_a_write_is_stored_when_it_returns(memory):
    saver = Saver(memory)
    saver.write(Write("append", "log", 1), Write("set", "k", "v"))
    assert (memory.get("log"), memory.get("k")) == ([1], "v")
    saver.write(Write("set", "k", None), Write("drop", "lo"))
    assert memory.keys() == []


def test_what_could_not_be_written_is_written_later_and_in_order(memory, caplog):
    failing = Failing(memory)
    saver = Saver(failing)
    with caplog.at_level(logging.INFO):
        for number in range(100):
            saver.write(Write("append", "log", number))
        assert saver.down
        assert len(caplog.records) == 1
        assert saver.get("log") == list(range(100))
        failing.away = False
        assert settled(saver)
    assert memory.get("log") == list(range(100))
    assert [(record.levelname, record.getMessage().split(": ")[1][:10]) for record in caplog.records] == [
        ("WARNING", "away. The "),
        ("INFO", "everything"),
    ]
    saver.write(Write("append", "log", 100))
    assert memory.tail("log", 1) == [100]


WRITES = st.one_of(
    st.builds(partial(Write, "append", id=None), st.sampled_from(["log", "log:2"]), st.integers()),
    st.builds(partial(Write, "set", id=None), st.sampled_from(["k", "log"]), st.none() | st.lists(st.integers())),
    st.sampled_from([Write("drop", "lo"), Write("drop", "log:")]),
)


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(st.tuples(WRITES, st.booleans()), max_size=15))
def test_whatever_fails_meanwhile_the_memory_ends_as_it_was_written(steps):
    with TemporaryDirectory() as folder, Memory("agent", path=f"{folder}/memory.db", durability="fast") as memory:
        failing = Failing(memory)
        saver = Saver(failing)
        expected = dict.fromkeys(("k", "log", "log:2"))
        for write, failing.away in steps:
            saver.write(write)
            expected = {key: write.applied(key, value) for key, value in expected.items()}
            for key, value in expected.items():
                known, seen = saver.look(key)
                assert seen == value or not known
        failing.away = False
        assert settled(saver)
        assert {key: memory.get(key) for key in expected} == expected


def waits_in_vain(monkeypatch) -> list[str]:
    """What the agent, which is the main thread, was told when it had waited and got nothing."""
    told, went_away = [], Saver._went_away

    def tell(self: Saver, why: str) -> None:
        if threading.current_thread() is threading.main_thread():
            told.append(why)
        went_away(self, why)

    monkeypatch.setattr(Saver, "_went_away", tell)
    return told


def test_a_memory_that_hangs_is_waited_for_once(memory, monkeypatch):
    monkeypatch.setattr(_saving, "PATIENCE", 0.2)
    failing = Failing(memory, seconds=1.0)
    saver = Saver(failing)
    in_vain = waits_in_vain(monkeypatch)
    for number in range(50):
        saver.write(Write("append", "log", number))
        assert saver.get("other") is None
    assert len(in_vain) == 1
    assert saver.unsaved == 50
    failing.away = False
    assert settled(saver)
    assert memory.get("log") == list(range(50))


def test_a_memory_that_answers_but_always_late_is_waited_for_once(memory, monkeypatch, caplog):
    monkeypatch.setattr(_saving, "PATIENCE", 0.05)
    in_vain = []

    class Counting(Saver):
        def _went_away(self, why):
            in_vain.append(why)
            super()._went_away(why)

    class Late:
        namespace, place, api_key = "agent", "http://far", None
        seconds = 0.1

        def append(self, *args, **options):
            time.sleep(self.seconds)
            return memory.append(*args, **options)

    late = Late()
    saver = Counting(late)
    for number in range(5):
        saver.write(Write("append", "log", number))
        assert settled(saver)
    assert memory.get("log") == list(range(5))
    assert len(in_vain) == len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    late.seconds = 0
    monkeypatch.setattr(_saving, "PATIENCE", 10)
    saver.write(Write("append", "log", 5))
    assert settled(saver)
    assert not saver.down


def test_a_server_that_accepts_and_never_answers_is_waited_for_once(memory, monkeypatch):
    monkeypatch.setattr(_saving, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        session = Session(
            Memory("agent", url=f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=1, strict=True), "default"
        )
        in_vain = waits_in_vain(monkeypatch)
        record, messages = Record(session, "log"), []
        for number in range(50):
            messages.append({"content": number})
            session.write(*record.follow(messages))
        assert len(in_vain) == 1
    session._saver.memory = memory
    assert settled(session._saver)
    assert memory.get("log") == messages


def test_a_server_that_never_answers_is_waited_for_once_by_all_who_save_there(monkeypatch, caplog):
    asked_by = []

    class Counted(_DirectWire):
        def send(self, *args):
            asked_by.append(threading.current_thread().name)
            return super().send(*args)

    monkeypatch.setattr(wire, "_DirectWire", Counted)
    monkeypatch.setattr(_saving, "ASK_AGAIN", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        sessions = [Session(Memory(f"agent-{i}", url=url), "default") for i in range(5)]
        for number in range(10):
            for session in sessions:
                session.write(session.appended("log", number))
                assert session.get("other") is None
            time.sleep(0.02)  # so that it is asked again and again, on the side
    assert asked_by.count("scrubjay-saver") == 1, "the first write alone waited for an answer"
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    assert [(session._saver.is_busy, session.unsaved) for session in sessions] == [(False, 10)] * 5, (
        "all is in the outbox"
    )


def test_a_file_that_another_program_has_locked_is_waited_for_once(memory, monkeypatch):
    monkeypatch.setattr(_saving, "PATIENCE", 0.2)
    saver = Saver(memory)
    with closing(sqlite3.connect(memory.place, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        in_vain = waits_in_vain(monkeypatch)
        for number in range(50):
            saver.write(Write("append", "log", number))
        assert len(in_vain) == 1
        other.execute("COMMIT")
    assert settled(saver)
    assert memory.get("log") == list(range(50))


def test_a_quota_is_waited_for_like_an_outage(tmp_path):
    with serving(tmp_path / "s.db", "--writes-per-day", "3") as server:
        memory = Memory("agent", url=server.url)
        saver = Saver(memory)
        for number in range(6):
            saver.write(Write("append", "log", number))
        assert memory.get("log") == [0, 1, 2]
        assert saver.unsaved == 3
        memory.set_quota(writes_per_day=0)
        assert settled(saver)
        assert memory.get("log") == [0, 1, 2, 3, 4, 5]


def full(memory, room):
    """A namespace with that much room left."""
    memory.set("ballast", "x" * 100_000)
    memory.set_quota(max_bytes=memory.usage().bytes + room)


TOLD_IN_AN_OUTAGE = """
import os, signal, sys
from scrubjay import Memory
from scrubjay.adapters._saving import Write, saver_of
saver = saver_of(Memory("agent", url=sys.argv[1]))
for n in range(20):
    saver.write(Write("append", "messages", n, f"id-{n}"))
print(saver.unsaved, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_told_in_an_outage_survives_the_death_of_the_process(tmp_path, caplog):
    with serving(tmp_path / "db") as server, Memory("agent", url=server.url) as before:
        before.append("messages", "first")
    told = subprocess.run(
        [sys.executable, "-c", TOLD_IN_AN_OUTAGE, server.url], capture_output=True, text=True, check=False, timeout=60
    )
    assert told.returncode == -signal.SIGKILL
    assert told.stdout == "20\n"
    assert told.stderr.count("The agent goes on") == 1
    assert len(told.stderr.splitlines()) == 1, "one warning"
    with serving(tmp_path / "db", port=server.port), Memory("agent", url=server.url) as after:
        after.flush()
        assert after.get("messages") == ["first", *range(20)]


TOLD_WITHOUT_PAUSE = """
import itertools, sys
from scrubjay import Memory
from scrubjay.adapters._saving import Write, saver_of
saver = saver_of(Memory("agent", url=sys.argv[1]))
for n in itertools.count():
    saver.write(Write("append", "messages", n, f"id-{n}"))
    print(n, flush=True)
"""


def test_an_agent_that_never_pauses_loses_nothing_when_the_server_is_killed_and_then_itself(tmp_path):
    server = Server(tmp_path / "db", "--writes-per-day", "0")
    command = [sys.executable, "-c", TOLD_WITHOUT_PAUSE, server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as agent:
        told = [int(next(agent.stdout)) for _ in range(100)]
        server.stop(signal.SIGKILL)
        told += [int(next(agent.stdout)) for _ in range(300)]
        agent.kill()
        told += [int(line) for line in agent.stdout]
    with serving(tmp_path / "db", "--writes-per-day", "0", port=server.port), Memory("agent", url=server.url) as after:
        after.flush(60)
        stored = after.get("messages")
    assert stored[: len(told)] == told
    assert stored == list(range(len(stored)))


def test_what_a_server_refuses_for_a_quota_survives_the_death_of_the_process(tmp_path):
    with serving(tmp_path / "db", "--writes-per-day", "5") as server:
        told = subprocess.run(
            [sys.executable, "-c", TOLD_IN_AN_OUTAGE, server.url],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert told.stdout == "15\n"
        assert told.stderr.count("The agent goes on") == 1
        with Memory("agent", url=server.url) as after:
            assert after.get("messages") == list(range(20)), "what waits is seen"
            after.set_quota(writes_per_day=0)
            after.flush()
            assert after.usage().writes_today == 20


def test_a_message_too_large_for_the_room_left_is_saved_whole_once_there_is_room(memory):
    full(memory, room=50_000)
    saver = Saver(memory)
    for message in ("before", "x" * 100_000, "after"):
        saver.write(Write("append", "log", message))
    assert memory.get("log") == ["before"]
    assert saver.get("log") == ["before", "x" * 100_000, "after"]
    memory.set_quota(max_bytes=0)
    assert settled(saver)
    assert memory.get("log") == ["before", "x" * 100_000, "after"]


@pytest.mark.parametrize("ends", [False, True], ids=["the process goes on", "the process ends"])
def test_a_message_too_large_for_the_room_left_does_not_hold_up_the_others_for_ever(memory, monkeypatch, caplog, ends):
    full(memory, room=50_000)
    monkeypatch.setattr(_saving, "HOLD_UP", 600 if ends else 0)
    saver = Saver(memory)
    saver.write(Write("append", "log", {"content": "x" * 100_000}))
    saver.write(Write("set", "large", ["y" * 100_000]), Write("remember", "notes", {"content": "z" * 100_000}))
    saver.write(Write("append", "log", {"content": "after"}))
    if not ends:
        with saver._changed:
            assert saver._changed.wait_for(lambda: not saver.unsaved, 30)
    assert settled(saver)
    excerpt, after = memory.get("log")
    assert excerpt["content"].startswith("x" * 1_000 + "… [99,000 more characters")
    assert after == {"content": "after"}
    assert memory.notes()[0].content.startswith("zzz")
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "an excerpt of what was to be saved under 'log'" in errors[0]
    assert "nothing of what was to be saved under 'large'" in errors[1]
    assert "an excerpt of a note" in errors[2]
    assert len(errors) == 3


def test_a_full_namespace_is_waited_for_and_loses_nothing(memory, monkeypatch):
    monkeypatch.setattr(_saving, "HOLD_UP", 0)
    full(memory, room=100)
    saver = Saver(memory)
    for message in ("x" * 5_000, "y" * 200):
        saver.write(Write("append", "log", message))
    saver.write(Write("set", "k", "v" * 200))
    saver._hurry.set()
    time.sleep(0.2)
    assert (saver.unsaved, memory.get("log")) == (3, None)
    memory.delete("ballast")
    assert settled(saver)
    assert memory.get("log") == ["x" * 5_000, "y" * 200]


def test_a_message_that_the_server_never_takes_is_saved_as_an_excerpt(memory, caplog):
    saver = Saver(memory)
    saver.write(Write("append", "log", {"content": "é" * 20_000_000}), Write("append", "log", "next"))
    assert settled(saver)
    excerpt, following = memory.get("log")
    assert excerpt["content"].endswith("[19,999,000 more characters were too much to be saved]")
    assert following == "next"
    assert "saved an excerpt" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_child_that_is_forked_while_a_saver_is_looked_up_saves_too(memory):
    with _saving._savers._lock:
        child = os.fork()
        if not child:
            signal.alarm(20)
            saver_of(memory).write(Write("append", "log", "child"))
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert memory.get("log") == ["child"]


def test_a_memory_that_may_only_be_read_is_warned_about_once(memory, caplog):
    class ReadOnly:
        namespace, place, api_key = memory.namespace, memory.place, None
        get = memory.get

        def append(self, *_, **__):
            raise Forbidden("this api key may only read")

    saver = Saver(ReadOnly())
    for number in range(20):
        saver.write(Write("append", "log", number))
        saver.get("other")
        time.sleep(0.01)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert saver.get("log") == list(range(20))
    saver.memory = memory
    assert settled(saver)
    assert memory.get("log") == list(range(20))


def test_a_write_that_can_never_succeed_does_not_stop_the_others(memory, caplog):
    memory.set("log", "no list")
    saver = Saver(memory)
    saver.write(Write("append", "log", 1), Write("set", "k", 1))
    assert memory.get("k") == 1
    assert "is no list" in caplog.text
    assert not saver.down


def test_erasing_that_fails_loses_nothing(memory):
    away = Failing(memory)
    saver = Saver(away)
    saver.write(Write("append", "log", 1))
    with pytest.raises(Unavailable):
        saver.erase("", lambda _key: True)
    away.away = False
    assert settled(saver)
    assert memory.get("log") == [1]


def test_erasing_takes_the_waiting_writes_along(memory):
    memory.update({"a:1": 1, "a:2": 2, "b:1": 3})
    failing = Failing(memory)
    saver = Saver(failing)

    def is_a(key):
        return key.startswith("a:")

    saver.write(Write("append", "a:3", 1), Write("append", "b:2", 1))
    with pytest.raises(Unavailable):
        saver.erase("a:", is_a)
    failing.away = False
    assert saver.erase("a:", is_a) == 2
    assert settled(saver)
    assert memory.keys() == ["b:1", "b:2"]


def test_a_write_on_its_way_is_seen_once(memory):
    written, go_on = threading.Event(), threading.Event()

    class Slow:
        namespace, place, api_key = memory.namespace, memory.place, None
        get = memory.get

        def append(self, *args, **options):
            length = memory.append(*args, **options)
            written.set()
            go_on.wait(30)
            return length

    saver = Saver(Slow())
    writer = threading.Thread(target=saver.write, args=(Write("append", "log", 1),))
    writer.start()
    written.wait(30)
    threading.Timer(0.1, go_on.set).start()
    assert saver.get("log") == [1]
    writer.join()


def test_a_long_read_holds_up_no_write_and_sees_it(memory):
    reading, go_on = threading.Event(), threading.Event()

    class Slow:
        namespace, place, api_key = memory.namespace, memory.place, None
        append = memory.append

        def get(self, key):
            value = memory.get(key)
            reading.set()
            go_on.wait(30)
            return value

    saver, seen = Saver(Slow()), []
    reader = threading.Thread(target=lambda: seen.append(saver.get("log")))
    reader.start()
    reading.wait(30)
    saver.write(Write("append", "log", 1))
    assert memory.get("log") == [1]
    go_on.set()
    reader.join()
    assert seen == [[1]]


def test_all_handles_on_a_namespace_share_one_line(memory):
    other = Memory("agent", path=memory.place, durability="fast")
    assert saver_of(memory) is saver_of(other)
    assert saver_of(memory) is not saver_of(Memory("agent2", path=memory.place))


def test_a_conversation_that_could_not_be_read_is_caught_up_with(memory):
    old, new = ([{"content": f"{when} {number}"} for number in (1, 2)] for when in ("old", "new"))
    memory.append("log", *old)
    failing = Failing(memory)
    session = Session(memory, "default")
    session._saver.memory = failing
    record = Record(session, "log")
    messages = new[:1]
    session.write(*record.follow(messages))
    failing.away = False
    assert settled(session._saver)
    messages.append(new[1])
    session.write(*record.follow(messages))
    assert messages == record.rows == memory.get("log") == [*old, *new]


def test_a_namespace_can_be_made_of_any_names():
    assert namespace_of("autogen", "writer") == "autogen-writer"
    odd = [
        namespace_of("a/b"),
        namespace_of("a\nb"),
        namespace_of("a_b"),
        namespace_of("x" * 300),
        namespace_of("y\ud800"),
    ]
    assert len(set(odd)) == 5
    assert [check_namespace(name) for name in odd] == odd


def test_a_refused_write_does_not_stop_reading(tmp_path):
    memory = Memory("agent", path=str(tmp_path / "memory.db"))
    memory.set("known", "before")
    memory.set_quota(writes_per_day=1)
    saver = saver_of(memory)
    saver.write(Write("append", "log", 1))
    assert (saver.unsaved, saver.down, saver.refused) == (1, False, True)
    assert saver.get("known") == "before"
    assert saver.get("log") == [1], "what waits is seen, too"
    memory.set_quota(writes_per_day=0)
    assert settled(saver)
    memory.close()


def test_a_handle_that_its_user_closes_takes_no_other_agent_along(tmp_path):
    path = str(tmp_path / "memory.db")
    with Memory("agent", path=path) as lasting:
        saver = saver_of(lasting)
        with Memory("agent", path=path) as brief:
            assert saver_of(brief) is saver
        saver.write(Write("append", "log", "still there"))
        assert lasting.get("log") == ["still there"]


def test_tools_say_when_the_memory_is_away(memory):
    tools = {tool.__name__: tool for tool in memory_tools(memory)}
    saver = saver_of(memory)
    saver.memory = Failing(memory)
    assert tools["get"]("k") == UNREACHED
    assert tools["recall"]("k") == UNREACHED
    tools["set"]("k", "1")
    assert tools["get"]("k") == "1"
    saver.memory = memory
    assert settled(saver)
    assert (memory.get("k"), tools["get"]("other")) == (1, "nothing is stored under 'other'")


def test_names_of_any_length_make_keys():
    for name in ("名" * 200, "😀" * 130, "a:b%", "\ud800"):
        check_key(f"with:{quoted(name)}:{quoted(name)}")
    assert quoted("名" * 200) != quoted("名" * 199)
    assert together(["a+b", "c"]) != together(["a", "b+c"])
    assert together(["a-b", "c"]) != together(["a", "b-c"])


def test_half_an_emoji_does_not_cost_a_message():
    assert snapshot({"content": "well \ud83d done"}) == {"content": "well ? done"}


def test_a_session_is_not_called_forgotten_while_its_notes_wait_to_be_sent(tmp_path):
    with serving(tmp_path / "db") as server, Memory("agent", url=server.url) as memory:
        session = Session(memory, "s")
        memory.set("k", 1)
        memory.set_quota(writes_per_day=1)
        session.write(session.remembered("Sarah likes tea", "user"))
        eventually(lambda: not session._saver.is_busy)
        with pytest.raises(Unavailable, match="notes wait to be sent"):
            session.forget("s")
        memory.set_quota(writes_per_day=0)
        memory.flush()
        session.forget("s")
        assert memory.notes() == []
