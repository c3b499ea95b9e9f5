"""What other processes do to a conversation while an agent runs, and what a peer sees before a message is saved."""

from __future__ import annotations

import asyncio
import time

import pytest

pytest.importorskip("autogen")

from autogen import ConversableAgent, GroupChatManager

from adapters.models import quiet, says, serving_model
from harness import serving
from scrubjay import Memory, PersistentAgent, PersistentGroupChat
from scrubjay.adapters import _sessions

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SAY = """
    import sys
    from adapters.models import quiet, says
    from autogen import ConversableAgent
    from scrubjay import Memory, PersistentAgent
    agent = says(quiet(PersistentAgent, "assistant", memory=Memory("bot", **eval(sys.argv[1]))), "I am the other one.")
    quiet(ConversableAgent, "user").initiate_chat(agent, message=sys.argv[2], max_turns=1, silent=True)
"""
SAY_IN_GROUP = """
    import sys
    from adapters.test_elsewhere import team
    agents, group, manager = team()
    agents[0].initiate_chat(manager, message=sys.argv[1], silent=True)
"""


@pytest.fixture(params=["file", "server"])
def where(request, tmp_path):
    """The arguments of a Memory in a file or on a server."""
    if request.param == "file":
        yield {}
        return
    with serving(tmp_path / "served.db", "--durability", "fast") as server:
        yield {"url": server.url}


def talk(starter, other, message, *, is_async=False, **options):
    options = {"message": message, "max_turns": 1, "silent": True, **options}
    if is_async:
        return asyncio.run(starter.a_initiate_chat(other, **options))
    return starter.initiate_chat(other, **options)


def team(kind=ConversableAgent):
    agents = [says(quiet(kind, name)) for name in "AB"]
    group = PersistentGroupChat(agents, [], memory="team", max_round=3, speaker_selection_method="round_robin")
    return agents, group, GroupChatManager(groupchat=group, llm_config=False)


# Other processes that write


@pytest.mark.parametrize("is_async", [False, True])
def test_the_model_sees_what_another_process_has_added(script, where, is_async):
    with serving_model("one", "two") as model:
        agent = PersistentAgent("assistant", llm_config=model.config, memory=Memory("bot", **where))
        person = quiet(ConversableAgent, "user")
        talk(person, agent, "first", is_async=is_async)
        script(SAY, where, "meanwhile")
        talk(person, agent, "second", is_async=is_async)
    assert model.last_texts() == ["first", "one", "meanwhile", "I am the other one.", "second"]
    assert [line["message"] for line in agent.history()] == [*model.last_texts(), "two"]


@pytest.mark.parametrize("is_async", [False, True])
def test_the_message_that_is_answered_is_the_last_one_whatever_others_have_added_after_it(script, where, is_async):
    with serving_model("one", "two") as model:
        agent = PersistentAgent("assistant", llm_config=model.config, memory=Memory("bot", **where))
        person = quiet(ConversableAgent, "user")
        talk(person, agent, "first", is_async=is_async)
        script(SAY, where, "before")
        agent.receive("second", person, request_reply=False)
        script(SAY, where, "after")
        if is_async:
            asyncio.run(agent.a_generate_reply(sender=person))
        else:
            agent.generate_reply(sender=person)
    other = "I am the other one."
    assert model.last_texts() == ["first", "one", "before", other, "after", other, "second"]
    assert [line["message"] for line in agent.history()] == ["first", "one", "before", other, "second", "after", other]


def test_nothing_is_read_while_no_other_process_writes(where, monkeypatch):
    agent, person = (
        says(quiet(PersistentAgent, "assistant", memory=Memory("bot", **where))),
        quiet(ConversableAgent, "user"),
    )
    talk(person, agent, "first")
    reads = []
    original = _sessions.Session.read
    monkeypatch.setattr(_sessions.Session, "read", lambda *args: reads.append(args) or original(*args))
    for number in range(5):
        talk(person, agent, f"message {number}")
    assert reads == []


def test_agents_of_one_process_that_share_a_conversation_see_each_other_after_refresh():
    """A handler may serve two people at once with agents of one name: their words stay out of each other's prompts."""
    first, second = (quiet(PersistentAgent, "assistant", memory="bot") for _ in "ab")
    person = quiet(ConversableAgent, "user")
    second.receive("one", person, request_reply=False)
    first.receive("two", person, request_reply=False)
    second.receive("three", person, request_reply=False)
    second.generate_reply(sender=person)
    assert [message["content"] for message in second.chat_messages[person]] == ["one", "three"]
    assert second.refresh() == 1
    assert [message["content"] for message in second.chat_messages[person]] == ["one", "two", "three"]


@pytest.mark.parametrize("kind", [ConversableAgent, PersistentAgent])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_group_chat_sees_what_another_process_has_added(script, kind, is_async):
    agents, group, manager = team(kind)
    talk(agents[0], manager, "first", is_async=is_async, max_turns=None)
    script(SAY_IN_GROUP, "meanwhile")
    talk(agents[0], manager, "second", is_async=is_async, max_turns=None)
    expected = ["first", "B 1", "A 1", "meanwhile", "B 1", "A 1", "second", "B 2", "A 2"]
    assert [message["content"] for message in group.messages] == expected
    assert [message["content"] for message in Memory("team").get("messages")] == expected
    for agent in agents:
        seen = [message["content"] for message in agent.chat_messages[manager]]
        assert seen[: len(expected) - 1] == expected[:-1]


# Other processes that erase


@pytest.mark.parametrize("is_async", [False, True])
def test_a_session_that_another_process_erases_is_gone_from_a_running_agent(where, is_async, caplog):
    with serving_model("one", "two", "three") as model:
        agent = PersistentAgent("assistant", llm_config=model.config, memory=Memory("bot", **where))
        person = quiet(ConversableAgent, "user")
        agent.state["secret"] = {"word": "swordfish"}
        talk(person, agent, "the word is swordfish", is_async=is_async)
        Memory("bot", **where).forget_session("default")
        talk(person, agent, "hello", is_async=is_async)
        assert model.last_texts() == ["hello"]
        assert "erased by another process" in caplog.text
        assert "secret" not in agent.state
        talk(person, agent, "again", is_async=is_async)
        assert model.last_texts() == ["hello", "two", "again"]
    memory = Memory("bot", **where)
    assert "swordfish" not in str(dict(memory.items()))
    assert [line["message"] for line in memory.get("conversation_history")] == ["hello", "two", "again", "three"]
    assert [row["message"]["content"] for row in memory.get("with:assistant:user")] == [
        "hello",
        "two",
        "again",
        "three",
    ]


def test_a_group_chat_that_another_process_erases_starts_anew(caplog):
    agents, group, manager = team()
    talk(agents[0], manager, "first", max_turns=None)
    Memory("team").forget_session("default")
    talk(agents[0], manager, "second", max_turns=None)
    expected = ["second", "B 2", "A 2"]
    assert [message["content"] for message in group.messages] == expected
    assert [message["content"] for message in Memory("team").get("messages")] == expected
    assert group.speaker_history == ["A", "B", "A"]
    assert Memory("team").get("with:members") == ["A", "B"]
    assert "erased by another process" in caplog.text


# Saving before going on


@pytest.mark.parametrize("is_async", [True, False])
def test_a_peer_answers_a_message_that_is_saved(monkeypatch, is_async):
    original = _sessions.Session._save

    def save_slowly(self, writes):
        time.sleep(0.2)
        original(self, writes)

    monkeypatch.setattr(_sessions.Session, "_save", save_slowly)
    found, beats = [], []

    def reply(recipient, messages=None, sender=None, config=None):
        found.append([line["message"] for line in Memory("bot").get("conversation_history", [])])
        return True, f"answer {len(found)}"

    peer = quiet(ConversableAgent, "peer")
    peer.register_reply([ConversableAgent, None], reply)
    agent = says(quiet(PersistentAgent, "assistant", memory="bot"), "question 2")

    async def beat():
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def main():
        beating = asyncio.create_task(beat())
        if is_async:
            await agent.a_initiate_chat(peer, message="question 1", max_turns=2, silent=True)
        else:  # as in a notebook, whose event loop runs
            agent.initiate_chat(peer, message="question 1", max_turns=2, silent=True)
        beating.cancel()

    asyncio.run(main())
    assert found == [["question 1"], ["question 1", "answer 1", "question 2"]]
    if is_async:
        assert len(beats) > 20, "the event loop goes on meanwhile"
