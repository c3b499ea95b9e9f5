"""AutoGen agents that remember. Each test runs on every AutoGen of versions.py, without a model and without a key."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import logging
import re
import signal
import socket
import threading
from pathlib import Path
from typing import get_overloads, get_type_hints
from unittest.mock import MagicMock

import pytest

autogen = pytest.importorskip("autogen")

from autogen import (  # noqa: E402
    AssistantAgent,
    ConversableAgent,
    GroupChat,
    GroupChatManager,
    UserProxyAgent,
    runtime_logging,
)

from adapters.models import call_of, quiet, says, serving_model  # noqa: E402
from scrubjay import (  # noqa: E402
    InvalidInput,
    Memory,
    PersistentAgent,
    PersistentGroupChat,
    persist,
    register_memory_tools,
    transport,
)

EXAMPLES = Path(__file__).parents[2] / "examples" / "autogen"
NOISE = re.compile(r"$|>>>>>>>>|.*\[autogen|The model `|Next speaker")  # AutoGen's own, with times and ids in it
VERSION = tuple(map(int, autogen.__version__.split(".")[:2]))
pytestmark = [
    pytest.mark.usefixtures("home"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # AutoGen's own, which differ by version
]


def assistant(*lines, name="assistant", **options):
    return says(quiet(PersistentAgent, name, **options), *lines)


def user(*lines, name="user"):
    return says(quiet(ConversableAgent, name), *lines)


def talk(someone, other, message="hello", **options):
    return someone.initiate_chat(other, message=message, silent=True, **{"max_turns": 1, **options})


def texts(messages):
    return [message["content"] for message in messages]


# One agent


def test_messages_sent_and_received_are_saved_in_the_order_said():
    agent = assistant("Noted.", "Rust.")
    talk(user(), agent, "I like Rust.")
    talk(user(), agent, "What do I like?")
    assert Memory("autogen-tests-assistant").get("conversation_history") == [
        {"sender": "user", "message": "I like Rust."},
        {"sender": "assistant", "message": "Noted."},
        {"sender": "user", "message": "What do I like?"},
        {"sender": "assistant", "message": "Rust."},
    ]


def test_a_tool_call_is_a_line_with_the_message_of_autogen():
    agent, call = assistant(), call_of("look", {})
    for message in (call, "Found."):
        agent.receive(message, user(), request_reply=False)
    first, second = Memory("autogen-tests-assistant").get("conversation_history")
    assert (first["message"]["content"], first["message"]["tool_calls"]) == (None, call["tool_calls"])
    assert second["message"] == "Found."
    found = agent.memory.conversation(key="conversation_history")
    assert [type(message.message) for message in found] == [str, str]


def test_a_message_is_saved_before_it_is_answered():
    stored = []
    agent = quiet(PersistentAgent, "assistant")

    def reply(recipient, messages=None, sender=None, config=None):
        stored.append(recipient.memory.get("conversation_history")[-1]["message"])
        return True, "yes"

    agent.register_reply([ConversableAgent, None], reply)
    talk(user(), agent, "saved?")
    assert stored == ["saved?"]


def test_a_new_object_of_the_name_goes_on_with_an_ordinary_initiate_chat():
    talk(user(), assistant("Noted."), "I like Rust.")
    with serving_model("Rust.") as model:
        agent = PersistentAgent("assistant", "Be brief.", llm_config=model.config)
        talk(user(), agent, "What do I like?")
    assert model.last_texts() == ["I like Rust.", "Noted.", "What do I like?"]
    assert [message["role"] for message in model.seen[-1]] == ["system", "user", "assistant", "user"]


def test_a_second_chat_in_the_same_process_continues_the_first():
    agent, person = assistant(), user()
    talk(person, agent, "one")
    talk(person, agent, "two")
    assert texts(agent.chat_messages[person]) == ["one", "assistant 1", "two", "assistant 2"]


def test_an_initiator_continues_too():
    talk(assistant(), user("yes"), "one")
    agent, person = assistant(), user("no")
    result = talk(agent, person, "two")
    assert texts(agent.chat_messages[person]) == ["one", "yes", "two", "no"]
    assert texts(result.chat_history) == ["one", "yes", "two", "no"]


def test_messages_come_back_exactly():
    agent, person = assistant("[1] é🦜"), user()
    talk(person, agent, {"content": "hi", "context": {"n": 1.0, "none": None}})
    before = agent.chat_messages[person]
    assert assistant().chat_messages[user()] == before
    assert list(map(list, assistant().chat_messages[user()])) == list(map(list, before))


def test_each_peer_has_a_conversation_of_its_own():
    agent = assistant()
    talk(user(name="alice"), agent, "I am Alice")
    talk(user(name="bob"), agent, "I am Bob")
    again = assistant()
    assert texts(again.chat_messages[user(name="alice")]) == ["I am Alice", "assistant 1"]
    assert texts(again.chat_messages[user(name="bob")]) == ["I am Bob", "assistant 2"]


def test_two_objects_of_one_name_have_one_conversation():
    agent = assistant()
    talk(user(), agent, "one")
    talk(user(), agent, "two")
    assert texts(agent.chat_messages[user()]) == ["one", "assistant 1", "two", "assistant 2"]


def test_a_handler_that_makes_its_agents_per_request_has_its_memory_back():
    for number in range(5):
        agent, person = assistant(), user()
        talk(person, agent, f"request {number}")
        assert len(agent.chat_messages[person]) == 2 * number + 2


@pytest.mark.parametrize("name", ["assistant", "somebody"])
def test_a_mock_of_an_agent_is_talked_to_like_one(name):
    mock = MagicMock(spec=PersistentAgent, silent=False)
    mock.name = name
    agent = assistant()
    agent.receive("hello", mock, request_reply=True)
    assert texts(agent.chat_messages[mock]) == ["hello", "assistant 1"]
    assert [line["sender"] for line in agent.memory.get("conversation_history")] == [name, "assistant"]
    mock.receive.assert_called_once()


@pytest.mark.parametrize("kind", [ConversableAgent, PersistentAgent])
def test_mocks_of_agents_may_be_the_members_of_a_group_chat(kind):
    members = [MagicMock(spec=kind) for _ in "AB"]
    members[0].name, members[1].name = "A", "B"
    for _ in range(2):
        group = PersistentGroupChat(members, [], speaker_selection_method="round_robin")
        group.append({"role": "user", "content": "hi"}, members[0])
        assert group.select_speaker(*members) is members[1]
    assert texts(group.messages) == ["hi", "hi"]


def test_what_is_said_by_nobody_is_said_by_user():
    agent = PersistentAgent("assistant", llm_config=False)
    agent.receive("Remember: I like tea.")
    assert agent.memory.get("conversation_history") == [{"sender": "user", "message": "Remember: I like tea."}]
    assert texts(assistant().chat_messages[user()]) == ["Remember: I like tea."]


def test_an_answer_to_nobody_is_kept_too():
    agent = assistant("Tea it is.")
    agent.receive("I like tea.", request_reply=True)
    asyncio.run(agent.a_receive("And cake."))
    assert [line["sender"] for line in agent.memory.get("conversation_history")] == ["user", "assistant", "user"]


def test_async_chats_are_saved_and_continued():
    async def chat(agent, message):
        await user().a_initiate_chat(agent, message=message, max_turns=1, silent=True)

    asyncio.run(chat(assistant("Noted."), "I like Rust."))
    agent = assistant("Rust.")
    asyncio.run(chat(agent, "What do I like?"))
    assert texts(agent.chat_messages[user()]) == ["I like Rust.", "Noted.", "What do I like?", "Rust."]


def test_an_exception_in_the_middle_of_a_chat_loses_nothing():
    def fail(recipient, messages=None, sender=None, config=None):
        raise RuntimeError("the model is gone")

    agent = quiet(PersistentAgent, "assistant")
    agent.register_reply([ConversableAgent, None], fail)
    with pytest.raises(RuntimeError):
        talk(user(), agent, "important")
    assert texts(assistant().chat_messages[user()]) == ["important"]


def test_tool_calls_and_results_come_back_verbatim_and_in_pairs():
    def weather(city: str) -> str:
        return f"sunny in {city}"

    def pair(model):
        agent = PersistentAgent("assistant", llm_config=model.config)
        person = quiet(UserProxyAgent, "user", max_consecutive_auto_reply=3)
        autogen.register_function(weather, caller=agent, executor=person, description="the weather")
        return agent, person

    with serving_model(call_of("weather", {"city": "Rome"}), "Sunny!") as model:
        agent, person = pair(model)
        talk(person, agent, "Rome?", max_turns=2)
        before = agent.chat_messages[person]
    with serving_model("As I said.") as model:
        agent, person = pair(model)
        assert agent.chat_messages[person] == before
        talk(person, agent, "Again?")
    seen = model.seen[-1]
    assert [message["role"] for message in seen] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert seen[2]["tool_calls"][0]["id"] == seen[3]["tool_call_id"] == "call_1"
    assert seen[3]["content"] == "sunny in Rome"
    history = agent.memory.get("conversation_history")
    assert [line["sender"] for line in history] == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert history[1]["message"]["tool_calls"][0]["function"]["name"] == "weather"


def test_nested_chats_are_saved_once_and_continued():
    def ask_twice():
        writer, critic, person = quiet(ConversableAgent, "writer"), assistant(name="critic"), user()
        nested = [{"recipient": critic, "message": "review this", "max_turns": 1, "summary_method": "last_msg"}]
        writer.register_nested_chats(nested, trigger=person)
        talk(person, writer, "write")
        return critic, writer

    ask_twice()
    critic, writer = ask_twice()
    assert texts(critic.chat_messages[writer]) == ["review this", "critic 1", "review this", "critic 1"]
    assert len(critic.memory.get("conversation_history")) == 4


def test_chats_in_a_row_are_saved():
    first, second, person = assistant(name="first"), assistant(name="second"), user()
    chats = [{"recipient": agent, "message": "go", "max_turns": 1, "silent": True} for agent in (first, second)]
    person.initiate_chats(chats)
    assert first.memory.get("conversation_history")[0] == {"sender": "user", "message": "go"}
    assert [line["sender"] for line in second.memory.get("conversation_history")] == ["user", "second"]


def test_what_json_cannot_carry_is_left_out_and_logged(caplog):
    agent, person = assistant(), user()
    context = {"greeting": "hi", "make": lambda context: "x", "deep": {"keys": {1: 2}, "list": [1, object()]}}
    talk(person, agent, {"content": lambda context: context["greeting"], "context": context})
    assert "without content, context.make, context.deep.keys, context.deep.list.1" in caplog.text
    saved = assistant().chat_messages[user()][0]
    assert saved["content"] == ""
    assert saved["context"] == {"greeting": "hi", "deep": {"list": [1]}}
    assert agent.chat_messages[person][0]["context"] is context


# Sessions, and what is forgotten


def test_sessions_keep_conversations_apart():
    for who, drink in (("alice", "tea"), ("bob:1%", "milk"), ("default", "water")):
        talk(user(), assistant(session=who), f"I like {drink}")
    agent = assistant(session="alice")
    assert texts(agent.chat_messages[user()]) == ["I like tea", "assistant 1"]
    assert agent.sessions() == ["alice", "bob:1%", "default"]
    assert agent.memory.get("conversation_history")[0]["message"] == "I like water"


def test_one_session_is_deleted_in_one_call():
    for who in ("alice", "alice2", "default"):
        agent = assistant(session=who)
        agent.state["seen"] = 1
        talk(user(), agent, f"I am {who}")
    agent = assistant()
    assert agent.forget("alice") == 3
    assert agent.sessions() == ["alice2", "default"]
    assert assistant(session="alice").chat_messages[user()] == []
    assert agent.forget() == 3
    assert agent.chat_messages[user()] == []
    assert agent.state == {}
    assert agent.sessions() == ["alice2"]
    assert Memory("autogen-tests-assistant").keys("session:alice:") == []


def test_two_users_with_memories_of_their_own_are_isolated():
    talk(user(), assistant(memory="app-alice"), "I am Alice")
    talk(user(), assistant(memory=Memory("app-bob")), "I am Bob")
    assert texts(assistant(memory="app-alice").chat_messages[user()])[0] == "I am Alice"
    assert texts(assistant(memory="app-bob").chat_messages[user()])[0] == "I am Bob"
    assert "autogen-assistant" not in Memory("any").namespaces()


def test_clearing_by_the_user_clears_also_for_the_time_after_a_restart():
    agent, alice, bob = assistant(), user(name="alice"), user(name="bob")
    talk(alice, agent, "one")
    talk(bob, agent, "two")
    agent.clear_history(alice)
    assert agent.chat_messages[alice] == []
    assert assistant().chat_messages[alice] == []
    assert len(assistant().chat_messages[bob]) == 2
    assert len(agent.memory.get("conversation_history")) == 4
    talk(alice, agent, "three")
    assert texts(assistant().chat_messages[alice]) == ["three", "assistant 3"]


def test_clearing_all_reaches_peers_that_have_not_been_seen_since_the_restart():
    talk(user(), assistant(), "one")
    assistant().clear_history()
    assert assistant().chat_messages[user()] == []
    talk(user(), assistant(), "two")
    assistant().reset()
    assert assistant().chat_messages[user()] == []


def test_clearing_all_but_the_last_messages():
    agent, person = assistant(), user()
    for message in ("one", "two"):
        talk(person, agent, message)
    agent.clear_history(nr_messages_to_preserve=2)
    assert texts(assistant().chat_messages[user()]) == ["two", "assistant 2"]
    talk(person, agent, "three")
    assert texts(assistant().chat_messages[user()]) == ["two", "assistant 2", "three", "assistant 3"]


def test_what_is_to_be_preserved_is_preserved_after_a_restart_too():
    talk(user(), assistant(), "one")
    agent = assistant()
    agent.clear_history(nr_messages_to_preserve=1)
    assert texts(agent.chat_messages[user()])[-1] == "assistant 1"
    assert texts(assistant().chat_messages[user()])[-1] == "assistant 1"


def test_state_is_restored_and_belongs_to_the_session():
    agent = assistant(session="alice")
    agent.state["preferences"] = {"language": "Python"}
    agent.state["count"] = agent.state.get("count", 0) + 1
    del assistant(session="alice").state["count"]
    assert dict(assistant(session="alice").state) == {"preferences": {"language": "Python"}}
    assert not assistant().state
    with pytest.raises(InvalidInput):
        agent.state["tools"] = print


def test_what_is_changed_inside_a_state_is_saved_with_the_next_message_or_by_hand():
    agent = assistant()
    agent.state["seen"] = seen = {"cities": ["Rome"]}
    seen["cities"].append("Oslo")
    assert assistant().state["seen"] == {"cities": ["Rome"]}
    talk(user(), agent)
    again = assistant()
    assert again.state["seen"] == {"cities": ["Rome", "Oslo"]}
    again.state["seen"]["cities"].append("Bern")
    again.state.save()
    assert assistant().state["seen"]["cities"] == ["Rome", "Oslo", "Bern"]


def test_what_json_cannot_carry_inside_a_state_does_not_break_the_chat(caplog):
    agent = assistant()
    agent.state["tools"] = {}
    agent.state["tools"]["print"] = print
    talk(user(), agent, "one")
    assert "state['tools']" in caplog.text
    assert len(assistant().chat_messages[user()]) == 2


def test_forgetting_reaches_every_agent_of_the_session_in_the_process():
    agent, same, other = assistant(), assistant(), assistant(session="other")
    for each in (agent, same, other):
        each.state["seen"] = 1
        talk(user(), each, "secret")
    copied = copy.deepcopy(same)
    assistant().forget()
    for each in (agent, same, copied):
        assert (each.chat_messages[user()], dict(each.state)) == ([], {})
    for each in (agent, same, copied):
        talk(user(), each, "hello")
    assert len(other.chat_messages[user()]) == 2
    assert "secret" not in json.dumps(agent.memory.get("conversation_history"))
    assert "secret" not in texts(assistant().chat_messages[user()])


def test_a_group_chat_whose_members_share_its_memory_is_listed_once():
    agents = [says(quiet(PersistentAgent, name, memory="team")) for name in "AB"]
    group = PersistentGroupChat(agents, [], memory="team", max_round=2, speaker_selection_method="round_robin")
    talk(agents[0], GroupChatManager(groupchat=group, llm_config=False), "go", max_turns=None)
    (listed,) = Memory("team").conversations()
    assert (listed.session, listed.messages, listed.participants) == ("default", 2, ("A", "B"))
    talk(user(), agents[0], "hello")
    assert [each.messages for each in Memory("team").conversations()] == [4, 2], "the lines have another end"


def test_forgetting_leaves_what_the_user_has_stored():
    agent = assistant()
    agent.memory.update({"preferences": {"a": 1}, "notes": "mine", "messages_per_day": 3})
    assert agent.sessions() == []
    talk(user(), agent)
    agent.forget()
    assert agent.sessions() == []
    assert agent.memory.keys() == ["messages_per_day", "notes", "preferences"]


@pytest.mark.parametrize("value", ["text", {"a": 1}, 7])
def test_a_value_of_somebody_else_where_messages_belong_is_told_before_the_chat(value):
    agents = [quiet(ConversableAgent, name) for name in "AB"]
    memory = Memory("team")
    memory.update({"conversation_history": value, "messages": value})
    with pytest.raises(InvalidInput, match="delete it, or give another memory= or session="):
        assistant(memory=memory)
    with pytest.raises(InvalidInput, match=r"'messages' in .* is not a list"):
        PersistentGroupChat(agents, [], memory=memory)
    agent = assistant(memory=memory, session="mine")
    talk(user(), agent, "one")
    assert len(assistant(memory=memory, session="mine").chat_messages[user()]) == 2


@pytest.mark.parametrize("value", ["text", {"a": 1}, [1, {"role": "user", "content": "x"}]])
def test_a_value_of_somebody_else_does_not_break_a_chat(value, caplog):
    Memory("autogen-tests-assistant").update({"with:assistant:user": value, "session:x:speaker_history": value})
    agent = assistant()
    talk(user(), agent, "one")
    assert "not ours under 'with:assistant:user'" in caplog.text
    assert "delete it" in caplog.text
    assert Memory("autogen-tests-assistant").tail("conversation_history", 1)[0]["message"] == "assistant 1"
    agents = [says(quiet(ConversableAgent, name)) for name in "AB"]
    options = {"max_round": 2, "speaker_selection_method": "round_robin"}
    group = PersistentGroupChat(agents, [], memory="autogen-assistant", session="x", **options)
    talk(agents[0], GroupChatManager(groupchat=group, llm_config=False), "go")
    assert group.speaker_history == ["A", "B"]


def test_a_text_that_is_too_long_for_a_memory_is_kept_as_far_as_it_can_be(caplog):
    agent = assistant("ok")
    talk(user(), agent, "é" * 12_000_000)
    saved = assistant().chat_messages[user()]
    assert saved[0]["content"].startswith("é" * 1_000_000)
    assert "more characters were too much to be saved]" in saved[0]["content"]
    assert saved[1]["content"] == "ok"
    assert "without all of its text" in caplog.text


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "3"])
def test_a_limit_that_lets_nothing_through_is_refused(wrong):
    for name in ("max_messages", "max_tokens"):
        with pytest.raises(InvalidInput, match=name):
            assistant(**{name: wrong})


def test_a_memory_that_is_none_is_refused():
    with pytest.raises(InvalidInput, match="a Memory or a namespace"):
        assistant(memory=42)
    with pytest.raises(InvalidInput, match="session"):
        assistant(session=7)


def test_agents_that_share_a_memory_have_conversations_of_their_own():
    team_memory = Memory("team")
    sales, support = (assistant(name=name, memory=team_memory) for name in ("sales", "support"))
    talk(user(), sales, "one")
    talk(user(), support, "two")
    talk(sales, support, "three")
    sales.state["count"] = 1
    again = assistant(name="support", memory="team")
    assert texts(again.chat_messages[user()]) == ["two", "support 1"]
    assert texts(again.chat_messages[sales]) == ["three", "support 2"]
    assert not again.state
    history = team_memory.get("conversation_history")
    assert [line["message"] for line in history] == ["one", "sales 1", "two", "support 1", "three", "support 2"]
    again.clear_history()
    assert len(assistant(name="sales", memory="team").chat_messages[user()]) == 2


def test_a_team_that_shares_a_memory_writes_one_history():
    agents = [says(quiet(PersistentAgent, name, memory="team")) for name in "ABC"]
    group = PersistentGroupChat(agents, [], max_round=3, speaker_selection_method="round_robin", memory="team")
    talk(agents[0], GroupChatManager(groupchat=group, llm_config=False), "go")
    history = Memory("team").get("conversation_history")
    assert history == [
        {"sender": "A", "message": "go"},
        {"sender": "B", "message": "B 1"},
        {"sender": "C", "message": "C 1"},
    ]


def test_two_agents_of_one_name_that_talk_to_each_other_are_saved_once():
    def meet(number):
        first, second = assistant(f"{number}.3"), assistant(f"{number}.2")
        talk(first, second, f"{number}.1", max_turns=2)
        return first, second

    meet(1)
    first, second = meet(2)
    said = ["1.1", "1.2", "1.3", "assistant 2", "2.1", "2.2", "2.3", "assistant 2"]
    assert texts(first.chat_messages[second]) == texts(second.chat_messages[first]) == said
    roles = [[message["role"] for message in one.chat_messages[two]] for one, two in ((first, second), (second, first))]
    assert roles == [["assistant", "user"] * 4, ["user", "assistant"] * 4]
    assert texts(row["message"] for row in first.memory.get("with:assistant:assistant")) == said
    assert [line["message"] for line in first.memory.get("conversation_history")] == said


# Copies


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_is_an_agent_in_its_own_right_on_the_same_memory(duplicate):
    person = user()
    agent = assistant(max_messages=50, recall=True, remember=True)
    talk(person, agent, "one")
    agent.state["count"] = 1
    other = duplicate(agent)
    talk(person, other, "two")
    other.state["count"] = 2
    assert texts(other.chat_messages[person])[:3] == ["one", "assistant 1", "two"]
    assert texts(assistant().chat_messages[user()])[::2] == ["one", "two"]
    assert assistant().state["count"] == 2
    assert len(agent.memory.get("conversation_history")) == 4


def test_a_deep_copy_has_its_own_view():
    agent = assistant()
    talk(user(), agent, "one")
    other = copy.deepcopy(agent)
    talk(user(), other, "two")
    assert len(agent.chat_messages[user()]) == 2
    assert len(other.chat_messages[user()]) == 4


def test_a_group_chat_that_was_forgotten_still_saves_what_changes_inside_its_state():
    agents, group, manager = team(rounds=2)
    group.forget()
    group.state["topics"] = []
    talk(agents[0], manager, "birds")
    group.state["topics"].append("birds")
    talk(agents[0], manager, "trees")
    assert team()[1].state["topics"] == ["birds"]


def test_a_group_chat_can_be_copied():
    agents, group, manager = team(kind=PersistentAgent)
    talk(agents[0], manager, "one")
    other = copy.deepcopy(group)
    talk(other.agents[0], GroupChatManager(groupchat=other, llm_config=False), "two")
    assert texts(other.messages)[4] == "two"
    assert len(group.messages) == 4
    assert len(team()[1].messages) == 8


# What the model is handed


def test_the_model_gets_the_latest_messages_and_the_memory_keeps_all():
    agent = assistant()
    for number in range(5):
        talk(user(), agent, f"message {number}")
    with serving_model() as model:
        bounded = PersistentAgent("assistant", llm_config=model.config, max_messages=3)
        talk(user(), bounded, "now")
    assert model.last_texts() == ["message 4", "assistant 5", "now"]
    assert len(bounded.memory.get("conversation_history")) == 12
    with serving_model() as model:
        talk(user(), PersistentAgent("assistant", llm_config=model.config, max_tokens=12), "then")
    assert model.last_texts() == ["ok", "then"]


def test_what_is_remembered_is_put_before_the_messages_and_never_piles_up():
    memory = Memory("autogen-tests-assistant")
    memory.remember("The user's favourite language is Rust.")
    with serving_model() as model:
        agent, person = PersistentAgent("assistant", llm_config=model.config, recall=True), user()
        for _ in range(3):
            talk(person, agent, "Which language is my favourite?")
    assert [message["role"] for message in model.seen[-1][:3]] == ["system", "system", "user"]
    assert "favourite language is Rust." in model.seen[-1][1]["content"]
    assert sum("Rust" in str(message["content"]) for message in model.seen[-1]) == 1
    assert "Rust" not in agent.system_message
    assert "Rust" not in json.dumps(agent.chat_messages[person])


def test_messages_are_remembered_and_recalled_in_another_conversation_of_the_session():
    talk(user(name="alice"), assistant("Noted.", remember=True), "I keep my bicycle in the cellar.")
    talk(user(name="alice"), assistant("Yes.", remember=True, session="other"), "My bicycle was stolen.")
    with serving_model() as model:
        talk(
            user(name="bob"),
            PersistentAgent("assistant", llm_config=model.config, recall=True),
            "Where is the bicycle?",
        )
    context = model.seen[-1][1]["content"]
    assert "I keep my bicycle in the cellar." in context
    assert "stolen" not in context
    assert "Where is the bicycle?" not in context
    note = assistant().memory.notes()[0]
    assert (note.session, note.metadata) == ("default", {"sender": "alice"})


def test_the_text_of_a_message_with_images_is_remembered_and_asked_about():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    parts = [{"type": "text", "text": "My bicycle is red."}, image, {"type": "text", "text": "It is in the cellar."}]
    agent = assistant(remember=True)
    agent.receive({"role": "user", "content": parts}, user(name="alice"), request_reply=False)
    assert [note.content for note in agent.memory.notes()] == ["My bicycle is red.\nIt is in the cellar."]
    asking = assistant(recall=True)
    question = [{"role": "user", "content": [{"type": "text", "text": "Where is the bicycle?"}, image]}]
    assert "in the cellar" in asking.process_all_messages_before_reply(question)[0]["content"]


def test_forgetting_a_session_erases_its_notes():
    agent = assistant(remember=True, session="alice")
    talk(user(), agent, "I keep my bicycle in the cellar.")
    agent.memory.remember("known to all")
    agent.forget()
    assert [note.content for note in agent.memory.notes()] == ["known to all"]


def test_a_model_uses_the_memory_as_tools():
    memory = Memory("team")
    calls = [
        call_of("remember", {"content": "The deadline is Friday."}),
        call_of("set", {"key": "budget", "value": "[1, 2]"}),
        call_of("recall", {"query": "deadline"}),
        call_of("get", {"key": "budget"}),
        call_of("get", {"key": ""}),
        call_of("set", {"key": "conversation_history", "value": "gone"}),
        call_of("set", {"key": "session:alice:messages", "value": "gone"}),
        "Done.",
    ]
    with serving_model(*calls) as model:
        agent = ConversableAgent("planner", llm_config=model.config)
        person = quiet(UserProxyAgent, "user", max_consecutive_auto_reply=9)
        register_memory_tools(memory, caller=agent, executor=person)
        talk(person, agent, "go", max_turns=8)
    results = [message["content"] for message in model.seen[-1] if message["role"] == "tool"]
    assert results[:4] == ["remembered", "stored under 'budget'", "The deadline is Friday.", "[1,2]"]
    assert "a key has at least one character" in results[4]
    assert "choose another key" in results[5]
    assert "choose another key" in results[6]
    assert memory.keys() == ["budget"]
    assert [note.content for note in memory.recall("deadline")] == ["The deadline is Friday."]
    assert memory.get("budget") == [1, 2]


# Objects that exist already


class Poet(AssistantAgent):
    def __init__(self, verse, **options):
        super().__init__("poet", **options)
        self.verse = verse


def test_persist_makes_any_agent_persistent():
    for make in (lambda: quiet(AssistantAgent, "a"), lambda: quiet(UserProxyAgent, "b"), lambda: quiet(Poet, "verse")):
        agent = persist(says(make()))
        talk(user(), agent, "one")
        again = persist(says(make()), max_messages=10)
        assert isinstance(again, type(make()))
        talk(user(), again, "two")
        assert texts(again.chat_messages[user()])[::2] == ["one", "two"]
    assert again.verse == "verse"


def test_persist_takes_over_what_was_said_before():
    agent, person = says(quiet(AssistantAgent, "assistant")), user()
    talk(person, agent, "one")
    persist(agent)
    assert texts(assistant().chat_messages[user()]) == ["one", "assistant 1"]
    restored = quiet(AssistantAgent, "assistant", chat_messages={person: list(agent.chat_messages[person])})
    assert texts(persist(restored).chat_messages[person]) == ["one", "assistant 1"]
    assert len(agent.memory.get("conversation_history")) == 2


def test_persist_says_what_it_does_not_take():
    with pytest.raises(InvalidInput, match="persistent already"):
        persist(assistant())
    with pytest.raises(InvalidInput, match="not a dict"):
        persist({})
    agent = quiet(AssistantAgent, "assistant")
    with pytest.raises(InvalidInput):
        persist(agent, memory=3)
    with pytest.raises(TypeError, match=r"persist\(\) got an unexpected keyword argument 'bogus'"):
        persist(agent, bogus=1)
    assert type(agent) is AssistantAgent
    _, group, manager = team(chat=GroupChat)
    for thing in (group, manager):
        with pytest.raises(InvalidInput, match="recall= is for agents"):
            persist(thing, recall=True)


# Group chats


def team(*, kind=ConversableAgent, names="ABC", rounds=4, chat=PersistentGroupChat, **options):
    agents = [says(quiet(kind, name)) for name in names]
    group = chat(agents, [], max_round=rounds, speaker_selection_method="round_robin", **options)
    return agents, group, GroupChatManager(groupchat=group, llm_config=False, silent=True)


def view(agent, manager):
    return [(message["role"], message["name"], message["content"]) for message in agent.chat_messages[manager]]


@pytest.mark.parametrize("kind", [ConversableAgent, PersistentAgent])
def test_a_group_chat_resumed_twice_gives_everybody_their_own_view(kind):
    said = []
    for number in range(3):
        agents, group, manager = team(kind=kind)
        assert texts(group.messages) == said
        talk(agents[0], manager, f"start {number}")
        said += [f"start {number}", "B 1", "C 1", "A 1"]
        for agent in agents:
            seen = view(agent, manager)
            assert [text for _, _, text in seen] == said
            assert {role for role, name, _ in seen if name == agent.name} == {"assistant"}
            assert {role for role, name, _ in seen if name != agent.name} == {"user"}
    assert group.memory.get("messages") == group.messages
    assert group.memory.get("speaker_history") == group.speaker_history == ["A", "B", "C", "A"] * 3
    assert team()[1].last_speaker.name == "A"


def test_a_view_after_a_restart_is_what_it_would_have_been_without():
    agents, _, manager = team(chat=GroupChat)
    for number in range(2):
        talk(agents[0], manager, f"start {number}", clear_history=False)
    without = [agent.chat_messages[manager] for agent in agents]
    for number in range(2):
        agents, _, manager = team()
        for agent in agents:
            says(agent, f"{agent.name} {number + 1}")
        talk(agents[0], manager, f"start {number}", clear_history=number == 0)
    assert [agent.chat_messages[manager] for agent in agents] == without


def test_a_group_chat_continues_in_the_same_process_and_asynchronously():
    agents, group, manager = team()
    talk(agents[0], manager, "one")
    asyncio.run(agents[0].a_initiate_chat(manager, message="two", silent=True, max_turns=1))
    assert texts(group.messages)[4] == "two"
    assert [text for _, _, text in view(agents[1], manager)] == texts(group.messages)


def test_the_model_of_a_member_sees_the_earlier_chat():
    agents, _, manager = team()
    talk(agents[0], manager, "start")
    with serving_model("C again") as model:
        a, b = says(quiet(ConversableAgent, "A")), says(quiet(ConversableAgent, "B"))
        c = ConversableAgent("C", llm_config=model.config)
        group = PersistentGroupChat(agents=[a, c, b], max_round=2, speaker_selection_method="round_robin")
        talk(a, GroupChatManager(groupchat=group, llm_config=False), "go on")
    assert model.last_texts() == ["start", "B 1", "C 1", "A 1", "go on"]
    assert [message["role"] for message in model.seen[-1][1:]] == ["user", "user", "assistant", "user", "user"]


def test_tool_calls_in_a_group_chat_come_back_to_their_caller_and_to_others():
    def weather(city: str) -> str:
        return f"sunny in {city}"

    def make(model):
        caller = ConversableAgent("caller", llm_config=model.config)
        runner = quiet(ConversableAgent, "runner")
        autogen.register_function(weather, caller=caller, executor=runner, description="the weather")
        group = PersistentGroupChat([runner, caller], [], max_round=4, speaker_selection_method="round_robin")
        return runner, group, GroupChatManager(groupchat=group, llm_config=False)

    with serving_model(call_of("weather", {"city": "Rome"}), "Sunny!") as model:
        runner, _, manager = make(model)
        talk(runner, manager, "Rome?")
    with serving_model("As I said.") as model:
        runner, _, manager = make(model)
        talk(runner, manager, "Again?")
    seen = model.seen[-2 if len(model.seen) > 1 else -1]
    assert [message["role"] for message in seen[:5]] == ["system", "user", "assistant", "tool", "assistant"]
    assert seen[2]["content"] is None
    assert seen[3]["tool_call_id"] == seen[2]["tool_calls"][0]["id"]


def test_two_group_chats_never_share_by_accident():
    agents, _, manager = team(names="ABC")
    talk(agents[0], manager, "secret")
    assert team(names="ABD")[1].messages == []
    assert team(names="ABC", session="other")[1].messages == []
    assert len(team(names="CAB")[1].messages) == 4


def test_group_chats_of_other_members_do_not_mix_in_one_memory():
    agents, _, manager = team(names="ABC", memory="team")
    talk(agents[0], manager, "secret")
    for others in ("DEF", "ABD"):
        with pytest.raises(InvalidInput, match="give this one a session= of its own"):
            team(names=others, memory="team")
        assert team(names=others, memory="team", session=others)[1].messages == []


def test_a_group_chat_in_a_memory_goes_on_when_members_join_and_leave():
    agents, group, manager = team(names="AB", rounds=2, memory="team")
    talk(agents[0], manager, "one")
    group.state["topic"] = "birds"
    agents, group, manager = team(names="ABC", rounds=3, memory="team")
    assert group.state["topic"] == "birds"
    talk(agents[0], manager, "two")
    assert [text for _, _, text in view(agents[2], manager)] == ["one", "B 1", "two", "B 1", "C 1"]
    agents, group, manager = team(names="BC", rounds=2, memory="team")
    talk(agents[0], manager, "three")
    assert texts(team(names="BC", memory="team")[1].messages) == [*texts(group.messages[:5]), "three", "C 1"]


def test_a_persistent_agent_keeps_ordinary_group_chats_apart_too():
    agents, _, manager = team(kind=PersistentAgent, names="AB", chat=GroupChat)
    talk(agents[0], manager, "secret")
    agents, _, manager = team(kind=PersistentAgent, names="AC", chat=GroupChat)
    talk(agents[0], manager, "hello")
    assert next(text for _, _, text in view(agents[0], manager)) == "hello"
    agents, _, manager = team(kind=PersistentAgent, names="AB", chat=GroupChat)
    assert agents[0].chat_messages[manager][0]["content"] == "secret"


@pytest.mark.skipif(VERSION >= (0, 14), reason="AutoGen refuses them itself")
def test_members_of_one_name_are_warned_about(caplog):
    team(names="ABA")
    assert "rename some of ['A', 'A', 'B']" in caplog.text


def test_an_agent_of_another_kind_may_manage_the_chat():
    for number in range(2):
        agents, group, _ = team(kind=PersistentAgent, rounds=2)
        deputy = quiet(ConversableAgent, "deputy")
        deputy.register_reply(ConversableAgent, GroupChatManager.run_chat, config=group)
        talk(agents[0], deputy, f"start {number}")
    assert texts(agents[1].chat_messages[deputy]) == ["start 0", "B 1", "start 1", "B 1"]


def test_resetting_by_the_user_starts_anew():
    agents, group, manager = team()
    talk(agents[0], manager, "one")
    group.reset()
    assert team()[1].messages == []
    talk(agents[0], manager, "two")
    assert texts(team()[1].messages)[0] == "two"


def test_a_forgotten_group_chat_is_gone_and_can_be_held_again():
    agents, group, manager = team()
    talk(agents[0], manager, "one")
    assert group.forget() == 3
    assert group.messages == group.speaker_history == group.sessions() == []
    agents, group, manager = team()
    group.forget()
    talk(agents[0], manager, "one")
    assert texts(team()[1].messages) == texts(group.messages) == ["one", "B 1", "C 1", "A 1"]
    group.forget()
    talk(agents[0], manager, "one")
    assert len(team()[1].messages) == len(team()[1].speaker_history) == 4


@pytest.mark.parametrize("how", ["a chat of this process", "a chat of an earlier one", "persist"])
def test_resetting_the_manager_starts_anew_at_once(how):
    agents, group, manager = team(rounds=2)
    talk(agents[0], manager, "one")
    if how != "a chat of this process":
        agents, group, manager = team(rounds=2, chat=GroupChat if how == "persist" else PersistentGroupChat)
    if how == "persist":
        persist(manager)
    manager.reset()
    assert group.messages == team()[1].messages == team()[1].speaker_history == []
    talk(agents[0], manager, "two")
    again = team()[1]
    assert texts(again.messages)[0] == "two"
    assert again.speaker_history == group.speaker_history == ["A", "B"]


def test_the_messages_of_a_group_chat_are_a_plain_list_that_people_may_store():
    group = team()[1]
    assert type(group.messages) is list
    group.messages = [{"role": "user", "name": "A", "content": "given"}]
    group.memory.set("backup", group.messages)
    assert group.memory.get("backup") == group.messages


def test_messages_that_are_deleted_from_the_list_by_hand_stay_stored():
    agents, group, manager = team()
    talk(agents[0], manager, "one")
    del group.messages[:2]
    group.append({"role": "user", "content": "new"}, agents[1])
    assert texts(group.messages) == ["C 1", "A 1", "new"]
    assert texts(group.memory.get("messages")) == ["one", "B 1", "C 1", "A 1", "new"]
    assert group.memory.get("speaker_history") == group.speaker_history == ["A", "B", "C", "A", "B"]


@pytest.mark.parametrize("kind", [ConversableAgent, PersistentAgent])
@pytest.mark.parametrize("chat", [GroupChat, PersistentGroupChat])
def test_resuming_by_hand_saves_nothing_twice(kind, chat):
    agents, group, manager = team(kind=kind, chat=chat)
    talk(agents[0], manager, "one")
    said = texts(group.messages)
    last, message = manager.resume(messages=[dict(message) for message in group.messages], silent=True)
    last.initiate_chat(manager, message=message, clear_history=False, silent=True)
    if chat is PersistentGroupChat:
        assert texts(group.messages)[:4] == said
        assert texts(team()[1].messages) == texts(group.messages)
        assert len(group.memory.get("speaker_history")) == len(group.messages)
    if kind is PersistentAgent and VERSION > (0, 2):  # where resume leaves own messages out
        lines = [line["message"] for line in agents[1].memory.get("conversation_history")]
        assert lines.count("one") == 1
        assert lines.count("C 1") == 1


@pytest.mark.parametrize("chat", [GroupChat, PersistentGroupChat])
def test_resuming_by_hand_after_a_restart_doubles_nothing(chat):
    agents, group, manager = team(kind=PersistentAgent, chat=chat)
    talk(agents[0], manager, "one")
    said = [dict(message) for message in group.messages]
    agents, group, manager = team(kind=PersistentAgent, chat=chat)
    last, message = manager.resume(messages=said, silent=True)
    last.initiate_chat(manager, message=message, clear_history=False, silent=True, max_turns=1)
    assert texts(group.messages)[:4] == texts(said)
    for agent in agents:
        lines = [line["message"] for line in agent.memory.get("conversation_history")]
        if VERSION > (0, 2):  # where resume leaves own messages out
            assert texts(agent.chat_messages[manager])[:4] == texts(said)
            assert lines[:4] == texts(said)
        assert texts(agent.chat_messages[manager]).count("one") <= 1
        assert lines.count("one") == 1


def test_other_conversations_stay_when_a_group_chat_is_resumed_by_hand():
    agents, group, manager = team(kind=PersistentAgent, chat=GroupChat)
    pair = GroupChat(agents[1:], [], max_round=2, speaker_selection_method="round_robin")
    other = GroupChatManager(groupchat=pair, llm_config=False, silent=True)
    talk(agents[0], manager, "one")
    talk(agents[1], agents[0], "just us")
    talk(agents[1], other, "elsewhere")
    manager.resume(messages=[dict(message) for message in group.messages], silent=True)
    assert texts(agents[1].chat_messages[agents[0]])[0] == "just us"
    assert texts(agents[1].chat_messages[other])[0] == "elsewhere"


def test_resuming_from_an_earlier_point_is_a_new_course():
    agents, group, manager = team()
    talk(agents[0], manager, "one")
    manager.resume(messages=[dict(message) for message in group.messages[:2]], silent=True)
    agents[0].initiate_chat(manager, message="instead", clear_history=False, silent=True)
    assert texts(group.messages)[:2] == ["one", "instead"]
    again = team()[1]
    assert again.messages == group.messages
    assert again.speaker_history == group.speaker_history


def test_a_long_group_chat_costs_the_same_at_its_end():
    agents, _, manager = team(rounds=2_000)
    talk(agents[0], manager, "start")
    agents, group, manager = team(rounds=3)
    assert len(group.messages) == 2_000
    talk(agents[0], manager, "go on")
    assert len(agents[2].chat_messages[manager]) == 2_003
    assert len(group.memory.get("speaker_history")) == 2_003


def test_persist_takes_a_group_chat_or_its_manager():
    agents, group, manager = team(chat=GroupChat)
    assert persist(manager) is manager
    talk(agents[0], manager, "one")
    agents, group, manager = team(chat=GroupChat)
    assert persist(manager).last_speaker is agents[0]
    assert texts(group.messages) == ["one", "B 1", "C 1", "A 1"]
    group = team(chat=GroupChat)[1]
    assert persist(group).messages == manager.groupchat.messages
    manager = GroupChatManager(groupchat=group, llm_config=False)
    talk(group.agents[0], manager, "two")
    assert texts(team()[1].messages)[4] == "two"


def test_persist_takes_a_group_chat_whose_manager_has_copied_it():
    for number in range(2):
        agents, group, manager = team(chat=GroupChat)
        persist(group)
        talk(agents[0], manager, f"start {number}")
    assert texts(team()[1].messages) == ["start 0", "B 1", "C 1", "A 1", "start 1", "B 1", "C 1", "A 1"]
    assert len(agents[1].chat_messages[manager]) == 8


def test_messages_that_a_group_chat_is_given_are_saved_and_seen():
    given = [{"role": "user", "name": "A", "content": "earlier"}]
    agents = [says(quiet(ConversableAgent, name)) for name in "AB"]
    group = PersistentGroupChat(agents, given, max_round=2, speaker_selection_method="round_robin")
    assert group.memory.get("messages") == given
    again = PersistentGroupChat(agents, list(given), max_round=2, speaker_selection_method="round_robin")
    assert again.messages == given
    manager = GroupChatManager(groupchat=again, llm_config=False)
    talk(agents[0], manager, "go on")
    assert [text for _, _, text in view(agents[1], manager)][:2] == ["earlier", "go on"]


def test_mere_text_that_a_group_chat_is_given_is_forgotten_as_autogen_does():
    agents = [says(quiet(ConversableAgent, name)) for name in "AB"]
    for said in (["go", "B 1"], ["go", "B 1", "go", "B 2"]):
        group = PersistentGroupChat(agents, ["A group chat"], max_round=2, speaker_selection_method="round_robin")
        talk(agents[0], GroupChatManager(groupchat=group, llm_config=False), "go")
        assert texts(group.messages) == texts(group.memory.get("messages")) == said


# Processes that end, and memories that are away

CHAT = """
    import sys
    from adapters.models import quiet, says
    from autogen import ConversableAgent
    from scrubjay import PersistentAgent
    agent = says(quiet(PersistentAgent, "assistant"))
    person = quiet(ConversableAgent, "user")
    person.initiate_chat(agent, message=sys.argv[1], max_turns=1, silent=True)
    print(len(agent.chat_messages[person]))
"""


def test_another_process_goes_on(script):
    assert script(CHAT, "one").split()[-1] == "2"
    assert script(CHAT, "two").split()[-1] == "4"
    assert texts(assistant().chat_messages[user()]) == ["one", "assistant 1", "two", "assistant 1"]


def test_a_group_chat_goes_on_in_another_process(script):
    code = """
        import sys
        sys.path.insert(0, sys.argv[2])
        from test_autogen import talk, team
        agents, group, manager = team()
        talk(agents[0], manager, sys.argv[1])
        print(len(group.messages), *[len(agent.chat_messages[manager]) for agent in agents])
    """
    here = Path(__file__).parent
    assert [script(code, f"start {n}", here).splitlines()[-1] for n in range(3)] == [
        "4 4 4 4",
        "8 8 8 8",
        "12 12 12 12",
    ]


def test_a_killed_process_loses_no_appended_message(script):
    process = script.start("""
        from adapters.models import quiet
        from autogen import ConversableAgent
        from scrubjay import PersistentAgent
        agent = quiet(PersistentAgent, "assistant")
        def reply(recipient, messages=None, sender=None, config=None):
            print("appended", len(messages), flush=True)
            return True, f"reply {len(messages)}"
        agent.register_reply([ConversableAgent, None], reply)
        person = quiet(ConversableAgent, "user", default_auto_reply="more")
        person.initiate_chat(agent, message="go", max_turns=100_000, silent=True)
    """)
    for line in process.stdout:
        if line.startswith("appended 51"):
            break
    process.send_signal(signal.SIGKILL)
    rest = process.communicate()[0].splitlines()
    appended = int(([line.strip(), *rest][-1]).split()[-1])
    saved = assistant().chat_messages[user()]
    assert len(saved) >= appended > 40
    assert texts(saved)[:3] == ["go", "reply 1", "more"]


def test_an_agent_goes_on_without_its_memory_and_saves_later(tmp_path, caplog):
    from harness import Server

    flags = ("--writes-per-day", "0", "--durability", "fast")
    server = Server(tmp_path / "served.db", *flags)
    try:
        memory = Memory("team", url=server.url)
        agent, person = assistant(memory=memory), user()
        talk(person, agent, "before")
        server.stop()
        with caplog.at_level(logging.WARNING, logger="scrubjay"):
            for number in range(3):
                talk(person, agent, f"without {number}")
        assert len([record for record in caplog.records if record.name == "scrubjay"]) == 1
        assert agent.unsaved == 6, "one write for each message"
        talk(user(), assistant(memory=memory, name="other"), "hi")
        server = Server(tmp_path / "served.db", *flags, port=server.port)
        memory.flush(30)
        assert agent.unsaved == 0
        assert texts(assistant(memory=memory).chat_messages[user()])[:6:2] == ["before", "without 0", "without 1"]
        assert len(memory.get("conversation_history")) == 10
    finally:
        server.stop()


def test_a_group_chat_waits_once_for_a_server_that_never_answers(monkeypatch, caplog):
    asked_by = []

    class Counted(transport.PooledTransport):
        def send(self, *args):
            asked_by.append(threading.current_thread().name)
            return super().send(*args)

    monkeypatch.setattr(transport, "PooledTransport", Counted)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("SCRUBJAY_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        agents, group, manager = team(kind=PersistentAgent, names="ABCDE", rounds=10)
        talk(agents[0], manager, "start")
        assert len(group.messages) == 10
        assert all(agent.unsaved == 10 for agent in agents)
    assert asked_by.count("MainThread") <= 6, "while nothing is queued each agent may look for its history"
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_a_group_chat_that_began_without_its_memory_catches_up(tmp_path):
    from harness import Server

    flags = ("--writes-per-day", "0", "--durability", "fast")
    server = Server(tmp_path / "served.db", *flags)
    try:
        memory = Memory("team", url=server.url)
        agents, group, manager = team(memory=memory, rounds=2)
        talk(agents[0], manager, "one")
        server.stop()
        agents, group, manager = team(memory=memory, rounds=2)
        assert group.messages == []
        talk(agents[0], manager, "two")
        server = Server(tmp_path / "served.db", *flags, port=server.port)
        memory.flush(30)
        talk(agents[0], manager, "three")
        assert texts(group.messages) == ["one", "B 1", "two", "B 1", "three", "B 2"]
        again = team(memory=memory)[1]
        assert again.messages == group.messages
        assert again.speaker_history == group.speaker_history == ["A", "B"] * 3
    finally:
        server.stop()


@pytest.mark.parametrize("kind", [ConversableAgent, PersistentAgent])
def test_autogen_logs_a_group_chat_without_the_api_key(kind, tmp_path):
    runtime_logging.start(config={"dbname": str(tmp_path / "log.db")})
    try:
        agents, group, manager = team(kind=kind, memory=Memory("group", api_key="sj_secret"))
        talk(agents[0], manager, "one")
        rows = runtime_logging.get_connection().execute("SELECT name, init_args FROM agents").fetchall()
    finally:
        runtime_logging.stop()
    logged = dict(rows)
    assert set(logged) == {"A", "B", "C", "chat_manager"}
    assert json.loads(logged["chat_manager"])["groupchat"]["_scrubjay"] == {}
    assert not [name for name, arguments in rows if "sj_secret" in arguments]
    assert len(group.messages) == 4


# The call forms of the articles


def test_a_class_of_the_users_own_keeps_its_preferences():
    class Learner(ConversableAgent):
        def __init__(self, name):
            super().__init__(name, llm_config=False)
            self.memory = Memory(f"autogen-{name}")
            self.preferences = self.memory.get("preferences") or {}
            self.patterns = self.memory.get("patterns") or []
            self.message_count = self.memory.get("message_count") or 0

        def learn(self, name, value):
            self.preferences[name] = value
            self.memory.set("preferences", self.preferences)
            self.memory.set("message_count", self.message_count + 1)

    Learner("researcher").learn("style", "brief")
    again = Learner("researcher")
    assert (again.preferences, again.patterns, again.message_count) == ({"style": "brief"}, [], 1)
    assert Memory("autogen-researcher").get("preferences") == {"style": "brief"}


def test_the_group_of_the_article_runs_as_written():
    agents = [says(quiet(PersistentAgent, name)) for name in ("planner", "writer")]
    chat = PersistentGroupChat(agents=agents)
    chat.max_round, chat.speaker_selection_method = 3, "round_robin"
    manager = GroupChatManager(groupchat=chat)
    talk(agents[0], manager, "plan")
    assert texts(chat.memory.get("messages")) == ["plan", "writer 1", "planner 1"]
    assert chat.memory.get("speaker_history") == ["planner", "writer", "planner"]
    assert agents[1].memory.get("conversation_history")[0] == {"sender": "planner", "message": "plan"}


def test_help_shows_the_arguments_of_autogen_and_ours():
    ours = {"memory", "session"}
    limits = {"max_messages", "max_tokens"}
    agents = limits | {"recall", "remember", "learn", "resume"}
    for own, base, more in (
        (PersistentAgent, ConversableAgent, ours | agents),
        (PersistentGroupChat, GroupChat, ours | limits),
    ):
        shown = inspect.signature(own)
        assert set(shown.parameters) == set(inspect.signature(base).parameters) | more
        assert {name for name in more if shown.parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY} == set()
        assert {name for name in more if f":param {name}:" not in own.__doc__} == set()
    assert (
        inspect.signature(PersistentAgent).bind("a", "You help.", memory="m").arguments["system_message"] == "You help."
    )


def test_editors_are_told_what_persist_returns():
    hints = [get_type_hints(overload) for overload in get_overloads(persist)]
    told = {hint["thing"]: hint["return"] for hint in hints}
    assert told[ConversableAgent] is PersistentAgent
    assert told[GroupChat] is PersistentGroupChat
    assert told[GroupChatManager] is GroupChatManager


def test_debugging_as_people_do_it():
    agent, person = assistant(), user()
    talk(person, agent)
    assert json.loads(json.dumps({peer.name: messages for peer, messages in agent._oai_messages.items()}))
    assert agent._oai_messages[person] is agent.chat_messages[person]
    assert agent.last_message(person)["content"] == "assistant 1"
    agent.update_system_message("Known: the user likes tea.")
    agent.register_hook("process_message_before_send", lambda sender, message, recipient, silent: message)
    talk(person, agent, "again")
    assert len(agent.memory.get("conversation_history")) == 4


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_is_short_and_says_the_same_whenever_it_is_run(path, script):
    text = path.read_text()
    assert len(text.splitlines()) <= 40
    first, second = ([line for line in script(text).splitlines() if not NOISE.match(line)] for _ in range(2))
    assert first
    assert [line.replace("run 1: You have told me 1", "run 2: You have told me 2") for line in first] == second
