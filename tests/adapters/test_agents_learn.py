"""Agents with learn=: what is said becomes notes, in the background and once, and no chat is held up or broken."""

from __future__ import annotations

import asyncio
import json
import signal
import threading

import pytest

pytest.importorskip("autogen")

import autogen
from autogen import ConversableAgent, GroupChatManager

from adapters.models import quiet, says, serving_model
from harness import eventually
from scripted_model import Script, lesson
from scrubjay import InvalidInput, Memory, PersistentAgent, PersistentGroupChat, persist
from scrubjay.adapters.autogen import _agent_part
from scrubjay.learning import EVERY_MESSAGES, background

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


PARIS = json.dumps([lesson("Sarah lives in Paris")])
BERLIN = json.dumps([lesson("Sarah lives in Berlin", replaces=[1])])


def tell(agent, *messages):
    user = quiet(ConversableAgent, "sarah")
    for message in messages:
        user.initiate_chat(agent, message=message, max_turns=1, silent=True)


def learned(memory):
    return [note.content for note in Memory(memory).notes(tags=["learned"]) if not note.superseded_by]


def test_the_model_of_an_agent_learns_facts_once_and_replaces_what_is_no_longer_true():
    replies = ["Noted.", PARIS, "Noted.", BERLIN, "You live in Berlin.", "[]"]
    with serving_model(*replies) as model:
        for message in ("I live in Paris", "I moved to Berlin", "Where do I live?"):
            agent = quiet(PersistentAgent, "a", llm_config=model.config, memory="m", learn=True, recall=True)
            tell(agent, message)
            assert background.wait(60)
    assert model.refused == []
    assert len(model.seen) == 6, "each message was learned from once"
    assert learned("m") == ["Sarah lives in Berlin"]
    superseded = [note.content for note in Memory("m").notes(tags=["learned"]) if note.superseded_by]
    assert superseded == ["Sarah lives in Paris"]
    asked = model.seen[4]
    assert any("Sarah lives in Berlin" in str(message["content"]) for message in asked)
    assert not any("Sarah lives in Paris" in str(message["content"]) for message in asked)
    note = next(note for note in Memory("m").notes(tags=["learned"]) if not note.superseded_by)
    assert note.metadata["sources"] == [agent.history()[2]["id"]]


def test_a_chat_that_goes_on_is_learned_from_on_the_way(monkeypatch):
    monkeypatch.setattr(_agent_part, "QUIET_SECONDS", 3600)
    model = Script(PARIS)
    agent = says(quiet(PersistentAgent, "a", memory="m", learn=model))
    other = says(quiet(ConversableAgent, "sarah"))
    seen = []

    def look(messages):
        if len(messages) > EVERY_MESSAGES + 4:
            eventually(lambda: learned("m"))
        seen.append(learned("m"))
        return messages

    agent.register_hook("process_all_messages_before_reply", look)
    other.initiate_chat(agent, message="I live in Paris", max_turns=EVERY_MESSAGES, silent=True)
    assert seen[0] == []
    assert seen[-1] == ["Sarah lives in Paris"]
    assert len(model.prompts) <= 3, "not after every message"


@pytest.mark.parametrize("is_async", [False, True])
def test_an_agent_that_starts_the_chat_learns_when_it_ends(is_async):
    agent = says(quiet(PersistentAgent, "a", memory="m", learn=Script(PARIS)))
    user = says(quiet(ConversableAgent, "sarah"), "In Paris.")
    options = {"message": "Where do you live?", "max_turns": 1, "silent": True}
    if is_async:
        asyncio.run(agent.a_initiate_chat(user, **options))
    else:
        agent.initiate_chat(user, **options)
    assert background.wait(60)
    assert learned("m") == ["Sarah lives in Paris"]


@pytest.mark.parametrize("answer", ["I have no idea", '[{"content": 7}]', "", '[{"content": "x", "messages": [99]}]'])
def test_an_answer_that_is_rubbish_changes_nothing(answer):
    agent = says(quiet(PersistentAgent, "a", memory="m", learn=Script(answer)))
    tell(agent, "I live in Paris")
    assert background.wait(60)
    assert Memory("m").notes() == []
    assert [line["message"] for line in agent.history()] == ["I live in Paris", "a 1"]


def test_a_model_that_hangs_or_fails_does_not_hold_up_the_chat(caplog):
    waiting, go_on = threading.Event(), threading.Event()

    def model(prompt):
        waiting.set()
        assert go_on.wait(60)
        raise TimeoutError("the model is away")

    agent = says(quiet(PersistentAgent, "a", memory="m", learn=model))
    agent.initiate_chat(quiet(ConversableAgent, "sarah"), message="Hi", max_turns=1, silent=True)
    assert waiting.wait(60)
    tell(agent, "I live in Paris")  # while the model has not answered
    assert agent.history()[-1]["message"] == "a 1"
    go_on.set()
    assert background.wait(60)
    assert "the model is away" in caplog.text


ENDING = """
    import json, os, signal, sys
    from autogen import ConversableAgent
    from adapters.models import quiet, says
    from scrubjay import PersistentAgent

    def model(prompt):
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return sys.argv[2]

    agent = says(quiet(PersistentAgent, "a", memory="m", learn=model))
    quiet(ConversableAgent, "sarah").initiate_chat(agent, message=sys.argv[3], max_turns=1, silent=True)
"""


def test_a_program_that_ends_has_learned_and_one_that_was_killed_is_continued_by_the_next(script):
    with script.start(ENDING, "kill", "", "I live in Paris") as process:
        process.communicate(timeout=100)
    assert process.returncode == -signal.SIGKILL
    assert learned("m") == []
    script(ENDING, "end", PARIS, "Hello again")
    assert learned("m") == ["Sarah lives in Paris"]
    model = Script()
    tell(says(quiet(PersistentAgent, "a", memory="m", learn=model)), "Bye")
    assert background.wait(60)
    assert "Paris" not in model.prompts[0].partition("New messages:")[2], "nothing is learned twice"


def test_members_of_a_group_chat_learn():
    model = Script(PARIS)
    members = [says(quiet(PersistentAgent, name, memory="m", learn=model)) for name in ("a", "b")]
    group = PersistentGroupChat(members, [], memory="g", max_round=4, speaker_selection_method="round_robin")
    members[0].initiate_chat(GroupChatManager(groupchat=group, llm_config=False), message="Go", silent=True)
    assert background.wait(60)
    assert learned("m") == ["Sarah lives in Paris"]
    assert len(model.prompts) == 1, "agents of one session have one conversation"


def test_the_tools_of_an_agent_are_not_for_learning():
    with serving_model("Noted.", PARIS) as served:
        agent = quiet(PersistentAgent, "a", llm_config=served.config, memory="m", learn=True)
        user = quiet(ConversableAgent, "sarah")
        autogen.register_function(lambda: "noon", caller=agent, executor=user, name="clock", description="the time")
        requests, create = [], agent.client.create
        agent.client.create = lambda **request: requests.append(request) or create(**request)
        user.initiate_chat(agent, message="I live in Paris", max_turns=1, silent=True)
        assert background.wait(60)
    assert [request.get("tool_choice") for request in requests] == [None, "none"]
    assert learned("m") == ["Sarah lives in Paris"]


def test_learning_needs_a_model():
    for make in (
        lambda: quiet(PersistentAgent, "a", learn=True),
        lambda: persist(quiet(ConversableAgent, "a"), learn=True),
    ):
        with pytest.raises(InvalidInput, match="llm_config"):
            make()
    persist(quiet(ConversableAgent, "a"), learn=str)


def test_an_async_model_is_refused():
    async def model(prompt):
        return "[]"

    with pytest.raises(InvalidInput, match="async"):
        quiet(PersistentAgent, "a", memory="m", learn=model)
    with pytest.raises(InvalidInput, match="async"):
        persist(quiet(ConversableAgent, "a"), memory="m", learn=model)
