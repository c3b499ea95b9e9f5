"""No message of an agent is lost: memories that are locked, unreachable, full, or closed to the api key."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("autogen")

from autogen import ConversableAgent, GroupChat, GroupChatManager

from adapters.models import quiet, says, serving_model
from harness import eventually, issue_key, serving
from scrubjay import Forbidden, Memory, PersistentAgent, PersistentGroupChat, Unauthenticated, Unavailable, transport
from scrubjay.adapters.autogen import _limits
from slow_link import SlowLink

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TELL = """
    import os, signal, sys, time
    from adapters.models import quiet
    from scrubjay import Memory, PersistentAgent
    memory = Memory("agent", **eval(sys.argv[1]))
    agent = quiet(PersistentAgent, "assistant", memory=memory)
    print("built", flush=True)
    while sys.argv[3:] and not os.path.exists(sys.argv[3]):
        time.sleep(0.02)
    slowest = 0
    for number in range(int(sys.argv[2])):
        started = time.monotonic()
        agent.receive(f"message {number}", request_reply=False)
        slowest = max(slowest, time.monotonic() - started)
    print(f"{slowest:.2f}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def tell(script, where, count):
    """Tell an agent in a process of its own so many messages and kill it; how many seconds the slowest took."""
    process = script.start(TELL, where, count)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, errors
    return float(output.split()[-1])


def stored(memory):
    """The messages as an agent of a later process has them."""
    agent = quiet(PersistentAgent, "assistant", memory=memory)
    user = quiet(PersistentAgent, "user", memory="other")
    return [message["content"] for message in agent.chat_messages[user]]


def pending():
    command = [sys.executable, "-m", "scrubjay", "pending", "--all"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ}).stdout


def test_a_locked_file_loses_nothing_when_the_process_is_killed(script, home):
    with Memory("agent"):  # the file exists
        pass
    with closing(sqlite3.connect(home, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        slowest = tell(script, {}, 5)
        assert "agent" in pending()
        other.execute("ROLLBACK")
    assert slowest < 20, "another process may hold the lock for minutes"
    assert stored("agent") == [f"message {number}" for number in range(5)], "queued messages are part of the history"
    eventually(lambda: len(Memory("agent").get("conversation_history", [])) == 5)


def test_a_silent_server_loses_nothing_and_is_waited_for_once(script):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        slowest = tell(script, {"url": url}, 20)
        assert slowest < 20, "a silent server is not waited for for minutes"
        with Memory("agent", url=url) as memory:
            assert len(memory.pending()) == 20


def test_a_used_up_quota_loses_nothing(script, tmp_path):
    with serving(tmp_path / "served.db", "--writes-per-day", "5", "--durability", "fast") as server:
        tell(script, {"url": server.url}, 12)
        with Memory("agent", url=server.url) as memory:
            assert memory.usage().writes_today == 5, "one write for each message"
            assert len(memory.pending()) == 7
            assert stored(memory) == [f"message {number}" for number in range(12)]
            memory.set_quota(writes_per_day=0)
            memory.flush()
            assert len(memory.get("conversation_history")) == 12


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that wants api keys."""
    path = tmp_path_factory.mktemp("guarded") / "served.db"
    issue_key(path, "admin", "--admin")
    with serving(path, "--durability", "fast") as server:
        server.make_key = lambda name, *flags: issue_key(path, name, *flags)
        command = [sys.executable, "-m", "scrubjay", "key"]

        def revoke(name):
            listed = subprocess.run([*command, "list", "--path", path], capture_output=True, text=True, check=True)
            (line,) = [line for line in listed.stdout.splitlines() if line.endswith(name)]
            subprocess.run([*command, "revoke", line.split()[0], "--path", path], check=True)

        server.revoke = revoke
        yield server


def test_a_missing_or_unknown_key_is_an_error_when_the_agent_is_built(guarded):
    for key in (None, "sj_wrong"):
        memory = Memory("agent", url=guarded.url, api_key=key)
        with pytest.raises(Unauthenticated):
            quiet(PersistentAgent, "assistant", memory=memory)
        with pytest.raises(Unauthenticated):
            PersistentGroupChat(
                [quiet(PersistentAgent, "a", memory="x"), quiet(PersistentAgent, "b", memory="x")], memory=memory
            )


@pytest.mark.parametrize("flags", [("--namespaces", "other"), ("--read-only",)])
def test_a_key_that_may_not_write_is_an_error_when_the_agent_is_built(guarded, flags):
    key = guarded.make_key("narrow" + flags[0], *flags)
    with pytest.raises(Forbidden):
        quiet(PersistentAgent, "assistant", memory=Memory("agent", url=guarded.url, api_key=key))


def test_messages_after_a_key_was_revoked_are_in_the_outbox(guarded, script, tmp_path):
    key = guarded.make_key("leaver")
    where = {"url": guarded.url, "api_key": key}
    mark = tmp_path / "revoked"
    process = script.start(TELL, where, 5, mark)
    assert process.stdout.readline() == "built\n"
    guarded.revoke("leaver")
    mark.touch()
    _, errors = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, errors
    assert "agent" in pending()
    with Memory("agent", **where) as memory:
        assert len(memory.pending()) == 5


def test_a_program_that_makes_an_agent_for_each_request_survives_the_end_of_its_key(guarded, tmp_path, caplog):
    key = guarded.make_key("handler")
    memory = Memory("handled", url=guarded.url, api_key=key, outbox=tmp_path / "outbox.db")

    def handle(message):
        agent, person = says(quiet(PersistentAgent, "assistant", memory=memory)), quiet(ConversableAgent, "user")
        person.initiate_chat(agent, message=message, max_turns=1, silent=True)
        return person.last_message(agent)["content"]

    for number in range(4):
        if number == 2:
            guarded.revoke("handler")
        assert handle(f"message {number}") == "assistant 1"
        gc.collect()  # agents refer to themselves
    assert len(memory.pending()) == 4, "two messages and their replies"
    assert "no longer accepts the api key" in caplog.text
    with pytest.raises(Unauthenticated):
        quiet(PersistentAgent, "assistant", memory=Memory("unknown", url=guarded.url, api_key=key))


def test_a_message_that_can_neither_be_stored_nor_queued_is_logged_and_saved_with_the_next(home, caplog, tmp_path):
    outbox = tmp_path / "folder"
    outbox.mkdir()
    memory = Memory("agent", outbox=outbox)  # not a file
    agent = quiet(PersistentAgent, "assistant", memory=memory)
    with closing(sqlite3.connect(home, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        agent.receive("one", request_reply=False)
        agent.receive("two", request_reply=False)
        other.execute("ROLLBACK")
    assert "neither stored nor queued" in caplog.text
    assert agent.unsaved == 2, "messages, each of which is several writes"
    time.sleep(0.3)  # the first retry
    agent.receive("three", request_reply=False)
    assert [line["message"] for line in memory.get("conversation_history")] == ["one", "two", "three"]
    assert agent.unsaved == 0


def test_a_strict_memory_raises_when_the_history_cannot_be_read(caplog):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unavailable):
            quiet(PersistentAgent, "assistant", memory=Memory("agent", url=url, strict=True))
        quiet(PersistentAgent, "assistant", memory=Memory("agent", url=url))
    assert "WITHOUT their stored history" in caplog.text


LONG = 5000


@pytest.fixture
def long_history(tmp_path):
    """A server with a conversation of 5,000 messages, about a megabyte."""
    with serving(tmp_path / "served.db", "--writes-per-day", "0", "--max-bytes", "0", "--durability", "fast") as server:
        with Memory("agent", url=server.url) as memory:
            for start in range(0, LONG, 1000):
                memory.append("with:assistant:user", *map(long_row, range(start, start + 1000)))
        yield server


def long_row(number):
    message = {"role": "user", "content": f"message {number} " + "x" * 100, "name": "user"}
    return {"id": f"{number:012x}-{number:012x}", "message": message}


@pytest.mark.parametrize("is_async", [False, True])
def test_of_a_long_history_a_slow_link_brings_first_what_the_model_needs(long_history, is_async):
    with (
        serving_model() as model,
        closing(SlowLink(long_history.port, 300_000)) as link,
    ):
        agent = PersistentAgent(
            "assistant", llm_config=model.config, max_messages=20, memory=Memory("agent", url=link.url)
        )
        person = quiet(ConversableAgent, "user")
        if is_async:
            asyncio.run(person.a_initiate_chat(agent, message="hello", max_turns=1, silent=True))
        else:
            person.initiate_chat(agent, message="hello", max_turns=1, silent=True)
        assert [text.split(" x")[0] for text in model.last_texts()] == [
            *(f"message {number}" for number in range(LONG - 19, LONG)),
            "hello",
        ]
        assert link.answered_bytes < 200_000, "a part of the history"
        messages = agent.chat_messages[person]
        assert link.answered_bytes > 800_000
    numbers = [int(message["content"].split()[1]) for message in messages[:LONG]]
    assert numbers == list(range(LONG))
    assert [message["content"] for message in messages[LONG:]] == ["hello", "ok"]
    assert agent.refresh() == 0


def test_whoever_reads_the_messages_gets_all_of_a_long_history(long_history, monkeypatch):
    memory, person = Memory("agent", url=long_history.url), quiet(ConversableAgent, "user")

    def built(**options):
        return quiet(PersistentAgent, "assistant", memory=memory, **options)

    requests, send, agent = [], transport.PooledTransport.send, built()
    with monkeypatch.context() as counting:
        counting.setattr(transport.PooledTransport, "send", lambda *args: requests.append(args) or send(*args))
        assert len(agent.chat_messages[person]) == LONG
    assert len(requests) == 1, "all in one request"
    assert len(next(iter(built().chat_messages.values()))) == LONG
    assert len(built()._oai_messages[person]) == LONG
    assert len(built().chat_messages.get(person)) == LONG
    assert built().last_message(person)["content"].startswith(f"message {LONG - 1} ")
    said = len(built().initiate_chat(person, message="one", max_turns=1, silent=True).chat_history)
    assert said == LONG + 2, "the message, and an empty answer"
    seen = []
    agent = built()

    def reply(recipient, messages=None, sender=None, config=None):
        seen.append(len(messages))
        return True, "noted"

    agent.register_reply([ConversableAgent, None], reply)
    agent.receive("two", person, request_reply=True)
    hooked = built()
    hooked.register_hook("process_all_messages_before_reply", lambda messages: seen.append(len(messages)) or messages)
    hooked.receive("three", person, request_reply=True)
    assert seen[0] == said + 1
    assert seen[1] > said + 1
    agent = built()
    agent.clear_history(nr_messages_to_preserve=LONG - 1)
    assert len(built().chat_messages[person]) == LONG - 1


def test_a_prompt_without_a_known_bound_gets_all_of_a_long_history(long_history, monkeypatch):
    memory, person = Memory("agent", url=long_history.url), quiet(ConversableAgent, "user")
    with serving_model() as model:
        for max_tokens, expected in ((None, LONG + 1), (20_000, range(350, 2000))):
            monkeypatch.setattr(_limits, "_default_max_tokens", lambda _client, given=max_tokens: given)
            agent = PersistentAgent("assistant", llm_config=model.config, memory=memory, resume=True)
            agent.receive("hello", person, request_reply=True)
            count = len(model.last_texts())
            assert count == expected if isinstance(expected, int) else count in expected
            agent.clear_history(nr_messages_to_preserve=LONG)


def test_a_history_whose_start_cannot_be_read_is_said_to_be_missing(long_history, caplog):
    person = quiet(ConversableAgent, "user")
    for strict in (False, True):
        link = SlowLink(long_history.port)
        agent = quiet(PersistentAgent, "assistant", memory=Memory("agent", url=link.url, strict=strict))
        agent.receive("hello", person, request_reply=False)
        link.cut()
        if strict:
            with pytest.raises(Unavailable):
                agent.chat_messages[person]
        else:
            assert 100 < len(agent.chat_messages[person]) < LONG
            assert "WITHOUT their stored history" in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [ConversableAgent, PersistentAgent])
def test_of_a_long_group_chat_a_slow_link_brings_first_what_the_models_need(long_history, kind, is_async):
    names = ("planner", "writer")
    with Memory("team", url=long_history.url) as memory:
        for start in range(0, LONG, 1000):
            rows = [long_row(number) for number in range(start, start + 1000)]
            spoken = [names[number % 2] for number in range(start, start + 1000)]
            lines = [{**row["message"], "name": name} for row, name in zip(rows, spoken, strict=True)]
            memory.append("messages", *lines)
            memory.append("messages:ids", *(row["id"] for row in rows))
            memory.append("speaker_history", *spoken)
    with serving_model() as model, closing(SlowLink(long_history.port, 300_000)) as link:
        memory = Memory("team", url=link.url)
        own = {"memory": memory, "max_messages": 20} if kind is PersistentAgent else {}
        members = [quiet(kind, name, llm_config=model.config, **own) for name in names]
        options = {"max_round": 2, "speaker_selection_method": "round_robin", "max_messages": 20}
        group = PersistentGroupChat(members, [], memory=memory, **options)
        manager = GroupChatManager(groupchat=group, llm_config=False)
        assert group.last_speaker is members[1]
        person = quiet(ConversableAgent, "planner")
        if is_async:
            asyncio.run(person.a_send("hello", manager, request_reply=True, silent=True))
        else:
            person.send("hello", manager, request_reply=True, silent=True)
        assert link.answered_bytes < 200_000, "a part of the chat"
        sent = [text.split(" x")[0] for text in model.last_texts()]
        assert sent[-2:] == [f"message {LONG - 1}", "hello"]
        assert len(sent) in (20, 21), "what is new comes on top for a member that is not persistent"
        numbers = [int(line["content"].split()[1]) for line in group.messages[:LONG]]
        assert numbers == list(range(LONG))
        assert [line["content"] for line in group.messages[LONG:]] == ["hello", "ok"]
        assert link.answered_bytes > 800_000
        assert len(group.speaker_history) == LONG + 2
        if kind is PersistentAgent:
            seen = members[1].chat_messages[manager]
            assert len(seen) == LONG + 2
            assert [int(line["content"].split()[1]) for line in seen[:LONG]] == numbers
            assert [line["role"] for line in seen[:4]] == ["user", "assistant"] * 2
            assert [line["content"] for line in seen[LONG:]] == ["hello", "ok"]
    assert len(PersistentGroupChat(members, [], memory=Memory("team", url=long_history.url)).messages) == LONG + 2


@pytest.mark.parametrize("options", [{}, {"recall": True, "remember": True}])
def test_no_request_is_made_on_the_event_loop(tmp_path, monkeypatch, options):
    """Agents and chats are made before it runs: a constructor cannot wait without holding it up."""
    on_the_loop = []

    class Watched(transport.PooledTransport):
        def send(self, method, path, *rest):
            if asyncio._get_running_loop():
                on_the_loop.append((method, path))
            return super().send(method, path, *rest)

    monkeypatch.setattr(transport, "PooledTransport", Watched)
    with serving(tmp_path / "served.db", "--durability", "fast") as server:
        memory = Memory("agent", url=server.url)
        for _ in range(2):
            agent = says(quiet(PersistentAgent, "assistant", memory=memory, **options))
            person = says(quiet(PersistentAgent, "person", memory=Memory("person", url=server.url), **options))
            agents = [says(quiet(PersistentAgent, name, memory=memory, **options)) for name in "AB"]
            team = Memory("team", url=server.url)
            group = PersistentGroupChat(agents, [], max_round=3, speaker_selection_method="round_robin", memory=team)
            manager = GroupChatManager(groupchat=group, llm_config=False)
            plain = GroupChatManager(
                groupchat=GroupChat(agents, [], max_round=3, speaker_selection_method="round_robin"), llm_config=False
            )

            async def main(agent=agent, person=person, agents=agents, managers=(manager, plain)):
                await person.a_initiate_chat(agent, message="hello there", max_turns=2, silent=True)
                await agent.a_initiate_chat(person, message="again", max_turns=1, silent=True, clear_history=True)
                for each in managers:
                    await agents[0].a_initiate_chat(each, message="go on", silent=True)

            asyncio.run(main())
        assert on_the_loop == []
        texts = [message["content"] for message in team.get("messages")]
        assert texts == ["go on", "B 1", "A 1", "go on", "B 1", "A 1"]
        history = [line["message"] for line in Memory("person", url=server.url).get("conversation_history")]
        assert history.count("hello there") == 2


@pytest.mark.parametrize("is_async", [False, True])
def test_a_message_of_a_group_of_five_is_one_request(tmp_path, monkeypatch, is_async):
    with serving(tmp_path / "served.db", "--durability", "fast") as server:
        memory = Memory("team", url=server.url)
        agents = [says(quiet(PersistentAgent, name, memory=memory)) for name in "ABCDE"]
        options = {"max_round": 11, "speaker_selection_method": "round_robin", "memory": memory}
        manager = GroupChatManager(groupchat=PersistentGroupChat(agents, [], **options), llm_config=False)
        requests, send = [], transport.PooledTransport.send
        monkeypatch.setattr(transport.PooledTransport, "send", lambda *args: requests.append(args[1]) or send(*args))
        if is_async:
            asyncio.run(agents[0].a_initiate_chat(manager, message="go", silent=True))
        else:
            agents[0].initiate_chat(manager, message="go", silent=True)
        assert requests == ["POST"] * 11
        assert len(memory.get("messages")) == 11


def test_the_history_includes_an_outage_with_many_queued_messages(script, tmp_path):
    with serving(tmp_path / "served.db", "--durability", "fast") as server:
        tell(script, {"url": server.url}, 3)
    tell(script, {"url": server.url}, 100)
    with serving(tmp_path / "served.db", "--durability", "fast", "--writes-per-day", "0", port=server.port):
        memory = Memory("agent", url=server.url)
        assert stored(memory) == [f"message {n}" for n in range(3)] + [f"message {n}" for n in range(100)]
        memory.flush(60)
        assert len(memory.get("conversation_history")) == 103
        assert len(stored(memory)) == 103


def test_lists_that_people_read_lose_nothing_at_any_kill(script):
    code = """
        import random, sys, threading, os, signal, time
        sys.path.insert(0, sys.argv[1])
        from test_autogen import talk, team
        from scrubjay import PersistentAgent
        agents, group, manager = team(kind=PersistentAgent, rounds=100000, memory="team")
        threading.Timer(random.uniform(0.2, 0.6), os.kill, (os.getpid(), signal.SIGKILL)).start()
        talk(agents[0], manager, "go")
    """
    for _ in range(4):
        script.start(code, Path(__file__).parent).communicate(timeout=60)
        memory = Memory("team")
        messages, speakers, ids = (memory.get(key) for key in ("messages", "speaker_history", "messages:ids"))
        assert len(messages) == len(speakers) == len(ids)
        assert [message["name"] for message in messages] == speakers
        for name in "ABC":
            own = Memory(f"autogen-tests-{name}")
            assert len(own.get("conversation_history")) == len(own.get("conversation_history:ids"))
            assert abs(len(own.get("conversation_history")) - len(messages)) <= 4, (
                "each kill may come between two agents"
            )


def test_ids_of_messages_are_times():
    agent = quiet(PersistentAgent, "assistant")
    before = time.time()
    agent.receive("one", request_reply=False)
    (line,) = agent.history()
    assert json.loads(json.dumps(line["id"]))
    assert before - 1 < line["time"].timestamp() < time.time() + 1
