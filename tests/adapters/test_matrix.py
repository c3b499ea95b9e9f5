"""After every ending of a chat the model of the next process is sent all of it, in a form that it accepts."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from contextlib import closing
from functools import partial

import pytest

pytest.importorskip("autogen")

from autogen import ConversableAgent

from adapters.chats import Broken, chat
from adapters.models import CallsAndTexts, call_of, quiet, serving_model
from harness import fresh_name, serving
from scrubjay import Memory, PersistentAgent
from slow_link import SlowLink

pytestmark = [
    pytest.mark.usefixtures("home"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]

FLAGS = ("--durability", "fast", "--writes-per-day", "0")
ENDINGS = {
    "max turns, before a tool's result": ([call_of("weather", {"city": "Rome"})], {"max_turns": 1}),
    "a termination message": (["It is sunny. TERMINATE"], {}),
    "an exception": (["Which one?"], {"breaks": True}),
    "a kill inside a tool": ([call_of("weather", {"city": "kill"})], {}),
    "the last round": (["Sunny."], {"max_turns": 1}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served") / "served.db", *FLAGS) as server:
        yield server


def forked(work):
    """Start a function in a child process, which has imported AutoGen already; its pid, and a file with what it prints.

    It exits with 1 if the chat breaks.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, os.fdopen(read)
    code = 2
    try:
        os.dup2(write, 1)
        work()
        code = 0
    except Broken:
        code = 1
    finally:
        os._exit(code)


def in_another_process(model, message, **options):
    """Run a chat in a child process; its exit code, negative if it was killed."""
    pid, printed = forked(lambda: chat(model.config, message, **options))
    with printed:
        printed.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def texts(messages):
    return [message["content"] for message in messages if message["role"] != "system"]


STRESS = bool(os.environ.get("SCRUBJAY_STRESS"))
SETTINGS = [
    setting
    for setting in itertools.product((False, True), (False, True), ("file", "server"))
    if STRESS or (setting[0] ^ setting[1] ^ (setting[2] == "server")) == 0
]
"""Whether five agents, whether async, and where: all eight, or the four in which each pair of these occurs once."""


def named(setting):
    team, is_async, place = setting
    return f"{'five' if team else 'two'}-{'async' if is_async else 'sync'}-{place}"


in_every_setting = pytest.mark.parametrize("setting", SETTINGS, ids=named)


def common_options(setting, server):
    team, is_async, place = setting
    where = {"url": server.url} if place == "server" else {}
    return {"namespace": fresh_name(), "team": team, "is_async": is_async, "where": where}


@in_every_setting
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_next_process_continues_after(ending, setting, server):
    replies, options = ENDINGS[ending]
    common = common_options(setting, server)
    with serving_model(*replies) as model:
        code = in_another_process(model, "Rome?", **common, **options)
        assert code == {"an exception": 1, "a kill inside a tool": -signal.SIGKILL}.get(ending, 0)
        assert len(model.seen) == 1
        chat(model.config, "Well?", **common, max_turns=1)
    assert model.refused == []
    sent = texts(model.seen[-1])
    assert [text for text in sent if text in ("Rome?", "Well?")] == ["Rome?", "Well?"]
    said = replies[0] if isinstance(replies[0], str) else "interrupted"
    assert any(said in str(text) for text in sent), sent


@pytest.mark.parametrize(("team", "is_async"), [(False, False), (True, True)])
def test_the_next_process_continues_after_an_outage(tmp_path, team, is_async):
    with serving(tmp_path / "served.db", *FLAGS) as server:
        common = {"where": {"url": server.url}, "team": team, "is_async": is_async, "max_turns": 1}
        with serving_model("Sunny.", "Still sunny.", "Yes.") as model:
            assert in_another_process(model, "Rome?", **common) == 0
            server.stop()
            assert in_another_process(model, "And now?", **common) == 0
            assert in_another_process(model, "Really?", **common) == 0
            assert texts(model.seen[-1]) == ["And now?", "Still sunny.", "Really?"], "what is queued on this machine"
            with serving(tmp_path / "served.db", *FLAGS, port=server.port):
                chat(model.config, "Well?", **common)
    assert texts(model.seen[-1]) == ["Rome?", "Sunny.", "And now?", "Still sunny.", "Really?", "Yes.", "Well?"]


@pytest.mark.parametrize(("team", "is_async"), [(False, True), (True, False)])
def test_the_next_process_continues_over_a_slow_link(server, tmp_path, team, is_async):
    with serving_model(*(f"answer {n} " + "x" * 8000 for n in range(20))) as model:
        common = {"namespace": fresh_name(), "team": team, "is_async": is_async, "max_turns": 1}
        where = {"url": server.url, "outbox": tmp_path / "outbox.db"}
        assert in_another_process(model, "start", where=where, **common) == 0
        for number in range(19):
            chat(model.config, f"question {number}", where=where, **common)
        with closing(SlowLink(server.port, bytes_per_second=100_000, delay=0.1)) as link:
            chat(model.config, "Well?", where={"url": link.url}, **common)
    sent = texts(model.seen[-1])
    assert [text for text in sent if text.startswith("question")] == [f"question {n}" for n in range(19)]
    assert sum(text.startswith("answer") for text in sent) == 20


def ask_several(model, process, namespace, where, is_async):
    """Let one agent answer one message after the other."""
    agent = quiet(PersistentAgent, "assistant", llm_config=model.config, memory=Memory(namespace, **where))
    person = quiet(ConversableAgent, "user")
    for number in range(8):
        options = {"message": f"question {number} of {process}", "max_turns": 1, "silent": True}
        if is_async:
            asyncio.run(person.a_initiate_chat(agent, **options))
        else:
            person.initiate_chat(agent, **options)


@pytest.mark.parametrize(("is_async", "place"), [(False, "server"), (True, "file")])
def test_processes_that_share_a_session_are_each_answered_what_they_asked(server, is_async, place):
    namespace, where = fresh_name(), {"url": server.url} if place == "server" else {}
    with serving_model() as model:
        model.echoes = True
        work = [partial(ask_several, model, process, namespace, where, is_async) for process in range(3)]
        for pid, printed in list(map(forked, work)):
            with printed:
                printed.read()
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    said = [line["message"] for line in Memory(namespace, **where).get("conversation_history")]
    assert sorted(said) == sorted(
        2 * [f"question {number} of {process}" for number in range(8) for process in range(3)]
    )


def ask_for_ever(model, start, common):
    for number in range(start, start + 1000):
        chat(model.config, f"question {number}", max_turns=2, **common)
        os.write(1, f"{number}\n".encode())


@pytest.mark.parametrize(
    "setting", SETTINGS if STRESS else [(False, False, "file"), (True, True, "server")], ids=named
)  # fmt: skip
def test_a_process_that_is_killed_at_any_point_loses_no_answered_message(setting, server):
    answered = []
    common = common_options(setting, server)
    with serving_model() as model:
        model.replies = CallsAndTexts()
        for start in range(0, 20_000 if STRESS else 3000, 1000):
            pid, printed = forked(lambda start=start: ask_for_ever(model, start, common))
            with printed:
                answered += [int(printed.readline()) for _ in range(random.randint(1, 4))]
                time.sleep(random.uniform(0, 0.1))
                os.kill(pid, signal.SIGKILL)
                answered += [int(line) for line in printed.read().splitlines()]
            os.waitpid(pid, 0)
        chat(model.config, "Well?", **common, max_turns=1)
    assert model.refused == []
    asked = [int(text.removeprefix("question ")) for text in texts(model.seen[-1]) if str(text).startswith("question")]
    assert asked == sorted(set(asked)), "each once, in order"
    assert set(answered) <= set(asked)
