"""What the next chat starts from: after every ordinary ending, and whatever the user's own code looks like."""

from __future__ import annotations

import asyncio
import copy
import json

import pytest

autogen = pytest.importorskip("autogen")

from autogen import ConversableAgent, GroupChat, GroupChatManager, UserProxyAgent  # noqa: E402

from adapters.models import CallsAndTexts, call_of, quiet, says, serving_model  # noqa: E402
from scrubjay import InvalidInput, Memory, PersistentAgent, PersistentGroupChat, persist  # noqa: E402
from scrubjay.adapters.autogen import _agent_part, _limits  # noqa: E402

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def assistant(*lines, name="assistant", **options):
    return says(quiet(PersistentAgent, name, **options), *lines)


def user(*lines, name="user"):
    return says(quiet(ConversableAgent, name), *lines)


def talk(someone, other, message="hello", **options):
    return someone.initiate_chat(other, message=message, silent=True, **{"max_turns": 1, **options})


def texts(messages):
    return [message["content"] for message in messages]


def weather(city: str) -> str:
    return f"sunny in {city}"


def with_tool(model, *, agent_kind=PersistentAgent, replies=3, **options):
    agent = agent_kind("assistant", llm_config=model.config, **options)
    person = quiet(UserProxyAgent, "user", max_consecutive_auto_reply=replies)
    autogen.register_function(weather, caller=agent, executor=person, description="the weather")
    return agent, person


# Tool calls without results


def test_a_chat_that_ended_before_the_result_of_a_tool_call_can_be_continued():
    with serving_model(call_of("weather", {"city": "Rome"}), "As I said.") as model:
        agent, person = with_tool(model)
        talk(person, agent, "Rome?")
        agent, person = with_tool(model)
        talk(person, agent, "Well?")
    assert model.refused == []
    assert [message["role"] for message in model.seen[-1]] == ["system", "user", "assistant", "tool", "user"]
    assert "interrupted" in model.seen[-1][3]["content"]
    stored = agent.memory.get("with:assistant:user")
    assert [row["message"]["role"] for row in stored] == ["user", "assistant", "user", "assistant"], "verbatim"


def test_a_function_call_of_the_old_style_can_be_continued():
    calling = {"content": None, "function_call": {"name": "weather", "arguments": "{}"}}
    with serving_model(calling, "As I said.") as model:
        for message in ("Rome?", "Well?"):
            agent = PersistentAgent("assistant", llm_config=model.config)
            talk(user(), agent, message)
    assert model.refused == []
    assert [message["role"] for message in model.seen[-1]] == ["system", "user", "assistant", "function", "user"]


def test_a_chat_whose_tool_never_ran_for_want_of_replies_can_be_continued():
    with serving_model(call_of("weather", {"city": "Rome"}), "As I said.") as model:
        agent, person = with_tool(model, replies=0)
        talk(person, agent, "Rome?", max_turns=None)
        agent, person = with_tool(model)
        talk(person, agent, "Well?")
    assert model.refused == []
    assert [message["role"] for message in model.seen[-1]] == ["system", "user", "assistant", "tool", "user"]


@pytest.mark.skipif(not hasattr(ConversableAgent, "run_iter"), reason="this AutoGen has no run_iter")
def test_a_chat_that_is_left_in_the_middle_of_run_iter_can_be_continued():
    with serving_model(call_of("weather", {"city": "Rome"}), "As I said.", "Sunny.") as model:
        agent, person = with_tool(model)
        run = person.run_iter(agent, message="Rome?", max_turns=3)
        events = iter(run)
        next(event for event in events if model.seen)
        agent, person = with_tool(model)
        talk(person, agent, "Well?")
        events.close()
        run._thread.join()  # AutoGen lets it go on to the end
        agent, person = with_tool(model)
        talk(person, agent, "And now?")
    assert model.refused == []
    assert [text for text in texts(model.seen[-1]) if str(text).endswith("?")] == ["Rome?", "Well?", "And now?"]


@pytest.mark.parametrize("is_async", [False, True])
def test_requests_at_the_same_time_in_one_session_leave_what_a_model_accepts(is_async):
    async def ask(number):
        agent, person = with_tool(model)
        options = {"message": f"question {number}", "max_turns": 2, "silent": True}
        if is_async:
            await person.a_initiate_chat(agent, **options)
        else:
            await asyncio.to_thread(person.initiate_chat, agent, **options)

    async def main():
        for first in (0, 4, 8):
            await asyncio.gather(*map(ask, range(first, first + 4)))

    with serving_model() as model:
        model.replies = CallsAndTexts()
        asyncio.run(main())
        agent, person = with_tool(model)
        talk(person, agent, "Well?")
    assert model.refused == []
    asked = [text for text in texts(model.seen[-1]) if str(text).startswith("question")]
    assert sorted(asked) == sorted(f"question {number}" for number in range(12))


@pytest.mark.parametrize("kind", [ConversableAgent, PersistentAgent])
def test_a_group_chat_that_ended_before_the_result_of_a_tool_call_can_be_continued(kind):
    with serving_model(call_of("weather", {"city": "Rome"}), "As I said.") as model:
        for message in ("Rome?", "Well?"):
            caller = kind("caller", llm_config=model.config)
            runner = quiet(kind, "runner")
            autogen.register_function(weather, caller=caller, executor=runner, description="the weather")
            group = PersistentGroupChat([runner, caller], [], max_round=2, speaker_selection_method="round_robin")
            talk(runner, GroupChatManager(groupchat=group, llm_config=False), message)
    assert model.refused == []
    assert [message["role"] for message in model.seen[-1]] == ["system", "user", "assistant", "tool", "user"]


# Reading the conversation


def test_history_is_that_of_the_session():
    talk(user(), assistant("I am for all."), "I am nobody.")
    agent = assistant("Hello Alice.", session="alice")
    talk(user(), agent, "I am Alice.")
    lines = agent.history()
    assert [(line["sender"], line["message"]) for line in lines] == [
        ("user", "I am Alice."),
        ("assistant", "Hello Alice."),
    ]
    assert all(line["id"] and line["time"] for line in lines)
    assert len({line["id"] for line in lines}) == 2
    assert agent.sessions() == ["alice", "default"]
    assert agent.forget("default") > 0
    assert assistant().history() == []
    assert len(agent.history()) == 2


def test_the_history_of_a_group_chat_names_the_speakers():
    agents = [says(quiet(ConversableAgent, name)) for name in "AB"]
    group = PersistentGroupChat(agents, [], max_round=2, speaker_selection_method="round_robin")
    talk(agents[0], GroupChatManager(groupchat=group, llm_config=False), "go")
    assert [(line["sender"], line["message"]) for line in group.history()] == [("A", "go"), ("B", "B 1")]


def test_accessors_of_autogen_see_restored_conversations_at_once():
    talk(user(), assistant("Noted."), "one")
    talk(user(name="bob"), assistant("Noted, Bob."), "two")
    person = user()
    assert assistant().last_message(person)["content"] == "Noted."
    assert person in assistant().chat_messages
    assert user(name="stranger") not in assistant().chat_messages
    assert len(assistant().chat_messages) == 2
    assert "Noted, Bob." in repr(assistant()._oai_messages)
    found = {peer.name: texts(messages) for peer, messages in assistant().chat_messages.items()}
    assert found == {"user": ["one", "Noted."], "bob": ["two", "Noted, Bob."]}
    agent = assistant()
    assert len(list(agent.chat_messages)) == 2
    talk(person, agent, "three")
    assert texts(agent.chat_messages[person])[:3] == ["one", "Noted.", "three"]
    assert len(agent.chat_messages) == 2, "the agent takes the place of its name"


def test_messages_of_another_process_are_seen_after_refresh():
    first, second, person = assistant(), assistant(), user()
    talk(person, first, "one")
    talk(person, second, "two")
    talk(person, first, "three")
    assert second.refresh() == 2
    assert texts(second.chat_messages[person])[::2] == ["one", "two", "three"]
    assert second.refresh() == 0
    assert texts(assistant().chat_messages[user()])[::2] == ["one", "two", "three"]


# People who are kept apart


def test_the_first_use_says_once_where_conversations_are_saved(script):
    code = """
        import logging
        logging.basicConfig(format="%(name)s %(message)s")
        from adapters.models import quiet
        from scrubjay import PersistentAgent
        for name in ("assistant", "other"):
            quiet(PersistentAgent, name).receive("hello", request_reply=False)
        quiet(PersistentAgent, "third", memory="chosen")
    """
    for expected in (1, 0):
        process = script.start(code)
        _, errors = process.communicate(timeout=100)
        lines = [line for line in errors.splitlines() if line.startswith("scrubjay ")]
        assert len(lines) == expected, errors
        assert all("autogen-tests-assistant" in line and "memory=" in line for line in lines)


def test_two_people_of_one_name_who_talk_at_the_same_time_are_kept_apart(caplog):
    seen = {}
    both_are_here = asyncio.Event()

    async def reply(recipient, messages=None, sender=None, config=None):
        seen[messages[-1]["content"]] = texts(messages)
        if len(seen) == 2:
            both_are_here.set()
        await both_are_here.wait()
        return True, f"hello, {messages[-1]['content']}"

    agent = quiet(PersistentAgent, "assistant")
    agent.register_reply([ConversableAgent, None], reply, ignore_async_in_sync_chat=True)

    async def main():
        requests = [user().a_initiate_chat(agent, message=name, max_turns=1, silent=True) for name in ("Alice", "Bob")]
        await asyncio.wait_for(asyncio.gather(*requests), 30)

    asyncio.run(main())
    assert seen == {"Alice": ["Alice"], "Bob": ["Bob"]}
    assert len([record for record in caplog.records if "session=" in record.getMessage()]) == 1
    lines = [line["message"] for line in agent.history()]
    assert sorted(lines) == ["Alice", "Bob", "hello, Alice", "hello, Bob"], "nothing is lost"


# Erasing


def test_a_call_from_inside_autogen_never_erases():
    namespace = {"__name__": "autogen.agentchat.contrib.some_agent"}
    exec("def ask(agent):\n    agent.reset()\n    agent.clear_history()", namespace)
    agent, person = assistant(), user()
    talk(person, agent, "one")
    namespace["ask"](agent)
    assert agent.chat_messages[person] == []
    talk(person, agent, "two")
    assert texts(agent.chat_messages[person]) == ["two", "assistant 2"]
    assert texts(assistant().chat_messages[user()]) == ["one", "assistant 1", "two", "assistant 2"]


def test_a_group_chat_that_is_reset_inside_autogen_stays_stored():
    namespace = {"__name__": "autogen.agentchat.contrib.society_of_mind_agent"}
    exec("def ask(manager):\n    manager.reset()", namespace)
    agents = [says(quiet(ConversableAgent, name)) for name in "AB"]
    group = PersistentGroupChat(agents, [], max_round=2, speaker_selection_method="round_robin")
    manager = GroupChatManager(groupchat=group, llm_config=False)
    talk(agents[0], manager, "one")
    namespace["ask"](manager)
    assert group.messages == []
    talk(agents[0], manager, "two")
    assert texts(group.memory.get("messages")) == ["one", "B 1", "two", "B 2"]
    assert group.speaker_history == ["A", "B", "A", "B"]


def test_the_inner_chat_of_a_society_of_mind_stays_stored():
    mind = pytest.importorskip("autogen.agentchat.contrib.society_of_mind_agent", reason="this AutoGen has none")
    with serving_model() as model:
        for first in (0, 2):
            agents = [assistant(name=name, memory="mind") for name in "AB"]
            options = {"max_round": 2, "speaker_selection_method": "round_robin"}
            group = PersistentGroupChat(agents, [], memory="mind", **options)
            inner = GroupChatManager(groupchat=group, llm_config=False)
            society = mind.SocietyOfMindAgent("society", chat_manager=inner, llm_config=model.config)
            for number in (first, first + 1):
                talk(user(), society, f"question {number}")
    said = [text for text in texts(Memory("mind").get("messages")) if text.startswith("question")]
    assert said == [f"question {number}" for number in range(4)]


def test_clear_history_that_is_written_out_starts_an_empty_chat_and_erases_nothing():
    agent, person = assistant(), user()
    talk(agent, person, "one")
    result = talk(agent, person, "two", clear_history=True)
    assert texts(result.chat_history) == ["two", "user 2"]
    assert len(assistant().chat_messages[user()]) == 4


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_clear_history_that_a_plain_agent_writes_out_starts_an_empty_chat_too(is_async, restarts):
    agent, person = assistant(), user()
    talk(person, agent, "one")
    agent = assistant() if restarts else agent
    options = {"message": "two", "max_turns": 1, "silent": True, "clear_history": True}
    if is_async:
        asyncio.run(person.a_initiate_chat(agent, **options))
    else:
        person.initiate_chat(agent, **options)
    assert texts(agent.chat_messages[person])[0] == "two"
    talk(person, agent, "three")
    assert texts(agent.chat_messages[person])[::2] == ["two", "three"]
    assert texts(assistant().chat_messages[user()])[::2] == ["one", "two", "three"]


@pytest.mark.parametrize("kind", [ConversableAgent, PersistentAgent])
def test_clear_history_that_is_written_out_starts_an_empty_group_chat(kind):
    agents = [says(quiet(kind, name)) for name in "AB"]
    group = PersistentGroupChat(agents, [], memory="team", max_round=2, speaker_selection_method="round_robin")
    manager = GroupChatManager(groupchat=group, llm_config=False)
    talk(agents[0], manager, "one")
    talk(agents[0], manager, "two", clear_history=True)
    assert texts(group.messages) == texts(agents[1].chat_messages[manager]) == ["two", "B 2"]
    assert texts(group.memory.get("messages")) == ["one", "B 1", "two", "B 2"]


async def arun(name, starter, peer, options):
    """Start a chat with an async function of AutoGen, and wait for its end."""
    if name == "a_initiate_chats":
        await starter.a_initiate_chats([{"recipient": peer, "chat_id": 1, **options}])
    elif name == "a_sequential_run":
        for response in await starter.a_sequential_run([{"recipient": peer, **options}]):
            await response.process()
    elif name == "a_run":
        response = await starter.a_run(peer, **options)
        await response.process()
    else:
        async for _ in starter.a_run_iter(peer, **options):
            pass


def run(name, starter, peer, options):
    """Start a chat with any function of AutoGen that hands `clear_history` on, and wait for its end."""
    if name.startswith("a_"):
        asyncio.run(arun(name, starter, peer, options))
    elif name == "nested":
        outer, host = quiet(ConversableAgent, "outer"), quiet(ConversableAgent, "host")
        host.register_nested_chats([{"sender": starter, "recipient": peer, **options}], trigger=outer)
        outer.initiate_chat(host, message="go", max_turns=1, silent=True)
    elif name == "initiate_chats":
        starter.initiate_chats([{"recipient": peer, **options}])
    elif name == "sequential_run":
        for response in starter.sequential_run([{"recipient": peer, **options}]):
            response.process()
    elif name == "run":
        starter.run(peer, **options).process()
    else:
        list(starter.run_iter(peer, **options))


@pytest.mark.parametrize("name", ["run", "a_run", "run_iter", "a_run_iter", "initiate_chats", "a_initiate_chats",
                                  "sequential_run", "a_sequential_run", "nested"])  # fmt: skip
@pytest.mark.parametrize("starts", ["ours", "theirs"])
@pytest.mark.parametrize("written", [{}, {"clear_history": True}, {"clear_history": False}], ids=str)
def test_a_chat_that_is_started_in_another_way_starts_empty_only_if_that_is_written_out(name, starts, written):
    if name != "nested" and not hasattr(ConversableAgent, name):
        pytest.skip(f"this AutoGen has no {name}")
    talk(user(), assistant(), "one")
    agent, person = assistant(), user()
    starter, peer = (agent, person) if starts == "ours" else (person, agent)
    run(name, starter, peer, {"message": "two", "max_turns": 1, "silent": True, **written})
    expected = ["two"] if written.get("clear_history") else ["one", "two"]
    assert texts(agent.chat_messages[person])[::2] == expected
    assert texts(assistant().chat_messages[user()])[::2] == ["one", "two"]


@pytest.mark.parametrize(("is_visible", "after_true"), [(True, ["three"]), (False, ["one", "two", "three"])])
def test_chats_continue_if_a_tracer_has_wrapped_initiate_chat_before(script, is_visible, after_true):
    """Written out, True starts an empty chat only if the default can be told from it."""
    code = """
        import asyncio, functools, json, sys
        from autogen import ConversableAgent

        def trace(inner):
            def traced(self, *args, **kwargs):
                return inner(self, *args, **kwargs)
            return functools.wraps(inner)(traced) if sys.argv[1] == "True" else traced

        ConversableAgent.initiate_chat = trace(ConversableAgent.initiate_chat)
        ConversableAgent.a_initiate_chat = trace(ConversableAgent.a_initiate_chat)

        from adapters.models import quiet
        from scrubjay import PersistentAgent

        def talk(message, name, **options):
            agent, person = quiet(PersistentAgent, name, default_auto_reply="ok"), quiet(ConversableAgent, "user")
            options |= {"message": message, "max_turns": 1, "silent": True}
            if name == "async":
                asyncio.run(person.a_initiate_chat(agent, **options))
            else:
                person.initiate_chat(agent, **options)
            return [line["content"] for line in agent.chat_messages[person]][::2]

        found = []
        for name in ("sync", "async"):
            talk("one", name)
            found += [talk("two", name), talk("three", name, clear_history=True)]
        print(json.dumps(found))
        """
    found = json.loads(script(code, is_visible).splitlines()[-1])
    assert found == [["one", "two"], after_true] * 2


def test_an_agent_that_does_not_resume_starts_empty_and_saves():
    talk(user(), assistant(), "one")
    agent = assistant(resume=False)
    talk(user(), agent, "two")
    assert texts(agent.chat_messages[user()]) == ["two", "assistant 1"]
    assert texts(assistant().chat_messages[user()])[::2] == ["one", "two"]


# Copies that users give back


@pytest.mark.parametrize("part", [slice(0, 2), slice(2, None), slice(1, 3), slice(None)])
def test_an_older_copy_of_the_messages_is_not_saved_twice(part):
    agents = [says(quiet(ConversableAgent, name)) for name in "AB"]
    options = {"max_round": 2, "speaker_selection_method": "round_robin"}
    for message in ("one", "two"):
        group = PersistentGroupChat(agents, [], **options)
        talk(agents[0], GroupChatManager(groupchat=group, llm_config=False), message)
    kept = copy.deepcopy(group.messages)
    again = PersistentGroupChat(agents, copy.deepcopy(kept[part]), **options)
    assert again.messages == again.memory.get("messages") == kept

    agent, person = assistant(), user()
    for message in ("one", "two"):
        talk(person, agent, message)
    said = copy.deepcopy(agent.chat_messages[person])
    given = quiet(ConversableAgent, "assistant", chat_messages={person: copy.deepcopy(said[part])})
    assert persist(given).chat_messages[person] == said
    assert len(agent.history()) == 4


# Attributes of the user's own


class Clerk(PersistentAgent):
    """A subclass that uses our names for its own things."""

    def __init__(self, name, **options):
        super().__init__(name, **options)
        self.state = {"open": True}
        self.memory = ["mine"]
        self.session = 7

    def history(self):
        return "mine"


class Cook(PersistentAgent):
    """A subclass whose names are taken before it is persistent."""

    def __init__(self, name, **options):
        self.state = self.memory = {}
        super().__init__(name, **options)


class Grocer(PersistentAgent):
    def __init__(self, name, **options):
        super().__init__(name, **options)
        if not self.state:
            self.state = {"basket": []}


def test_a_mapping_that_is_assigned_to_the_state_replaces_what_is_saved():
    agent = quiet(Grocer, "grocer")
    agent.state["basket"].append("pear")
    talk(user(), agent, "one")
    again = quiet(Grocer, "grocer")
    assert again.state == {"basket": ["pear"]}
    again.state = given = {"basket": ["pear"], "count": 1}
    given["basket"].append("plum")
    talk(user(), again, "two")
    assert quiet(Grocer, "grocer").state == {"basket": ["pear", "plum"], "count": 1}
    with pytest.raises(InvalidInput):
        again.state = {"tool": print}
    again.state = {"count": 2}
    assert quiet(PersistentAgent, "grocer").state == {"count": 2}
    again.state = again.state
    assert again.state == {"count": 2}
    group = PersistentGroupChat([again, user()], [])
    group.state = {"topic": "birds"}
    assert PersistentGroupChat([again, user()], []).state == {"topic": "birds"}


def test_an_attribute_from_before_an_agent_is_persistent_stays_and_the_log_says_so(caplog):
    agent = says(quiet(Cook, "cook"))
    assert "Cook has attributes of its own with the names memory, state" in caplog.text
    agent.state = agent.memory = {"soup": 1}
    talk(user(), agent, "one")
    assert (agent.state, agent._scrubjay.state) == ({"soup": 1}, {})
    del agent.state
    agent.state = {"soup": 2}
    assert quiet(PersistentAgent, "cook").state == {"soup": 2}


def test_what_is_no_mapping_is_no_state_and_the_log_says_so(caplog):
    agent = quiet(PersistentAgent, "assistant")
    agent.state["n"] = 1
    with pytest.raises(AttributeError):
        del agent.state
    agent.state = "sleepy"
    assert "names state; those of Scrubjay are in its attribute _scrubjay" in caplog.text
    assert (agent.state, agent._scrubjay.state) == ("sleepy", {"n": 1})


def test_a_subclass_may_use_our_names():
    agent = says(quiet(Clerk, "clerk"))
    talk(user(), agent, "one")
    assert (agent.state, agent.memory, agent.session, agent.history()) == ({"open": True}, ["mine"], 7, "mine")
    assert texts(says(quiet(Clerk, "clerk")).chat_messages[user()]) == ["one", "clerk 1"]


class Poet(ConversableAgent):
    memory = "a verse"

    def __init__(self, name, **options):
        super().__init__(name, **options)
        self.state = "sleepy"

    def forget(self):
        return "never"


def test_persist_leaves_attributes_of_the_user_and_says_so(caplog):
    agent = persist(says(quiet(Poet, "poet")))
    assert (agent.memory, agent.state, agent.forget()) == ("a verse", "sleepy", "never")
    assert "memory, state, forget" in caplog.text
    talk(user(), agent, "one")
    assert len(persist(quiet(Poet, "poet")).chat_messages[user()]) == 2


def test_the_manager_of_a_chat_that_is_persistent_already_may_be_persisted_as_well():
    def managed(**options):
        agents = [says(quiet(ConversableAgent, name)) for name in "AB"]
        group = PersistentGroupChat(agents, [], max_round=2, speaker_selection_method="round_robin", **options)
        return agents, group, GroupChatManager(groupchat=group, llm_config=False)

    for message in ("one", "two"):
        agents, group, manager = managed(memory="team", session="x")
        assert persist(persist(manager), memory="team", session="x") is manager
        assert manager.groupchat is group
        talk(agents[0], manager, message, max_turns=None)
    assert texts(group.messages) == ["one", "B 1", "two", "B 1"]
    for options in ({"memory": "other", "session": "x"}, {"memory": "team"}, {"session": "y"}, {"max_messages": 3}):
        with pytest.raises(InvalidInput, match=r"chat of \['A', 'B'\] is persistent already") as refused:
            persist(manager, **options)
        assert len(str(refused.value)) < 300
    for already in (group, quiet(PersistentAgent, "assistant")):
        with pytest.raises(InvalidInput, match="is persistent already") as refused:
            persist(already)
        assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "make",
    [
        lambda: quiet(PersistentAgent, "assistant", memory=""),
        lambda: PersistentGroupChat([quiet(ConversableAgent, "A")], [], memory=""),
        lambda: persist(quiet(ConversableAgent, "assistant"), memory=""),
        lambda: persist(GroupChatManager(groupchat=PersistentGroupChat([user()], []), llm_config=False), memory=""),
    ],
    ids=["agent", "group chat", "persist", "manager"],
)
def test_an_empty_name_is_no_namespace_and_not_the_one_of_everybody(make):
    with pytest.raises(InvalidInput, match="namespace"):
        make()


def test_an_exception_of_ours_does_not_break_a_chat(monkeypatch, caplog):
    agent, person = assistant(), user()
    monkeypatch.setattr(_agent_part.AgentPart, "save", lambda *_, **__: 1 / 0)
    talk(person, agent, "one")
    assert agent.last_message(person)["content"] == "assistant 1"
    assert "is not saved" in caplog.text


def test_a_misspelt_argument_is_an_error():
    with pytest.raises(TypeError, match="sesion"):
        PersistentAgent("a", sesion="u")


# Bounds


def test_limits_bound_summaries_and_the_selection_of_speakers():
    with serving_model(*["ok"] * 40) as model:
        agent, person = PersistentAgent("assistant", llm_config=model.config, max_messages=4), user()
        for number in range(10):
            talk(person, agent, f"message {number}")
        talk(person, agent, "sum up", summary_method="reflection_with_llm")
        assert [message["role"] for message in model.seen[-1]][-1] == "system"
        assert texts(model.seen[-1])[:-1] == ["sum up", "ok"], "the summary is of this chat alone"
        talk(person, agent, "on", max_turns=4, summary_method="reflection_with_llm")
        assert len(model.seen[-1]) <= 5
        model.seen.clear()
        agents = [says(quiet(ConversableAgent, name)) for name in "ABC"]
        group = PersistentGroupChat(agents, [], max_round=12, speaker_selection_method="auto", max_messages=3)
        model.replies[:] = ["A", "B", "C"] * 20
        talk(agents[0], GroupChatManager(groupchat=group, llm_config=model.config), "go")
    assert len(group.messages) == 12
    assert max(map(len, model.seen)) <= 3 + 3, "three messages, and those of the selection itself"


def test_every_prompt_is_bounded_by_the_window_of_the_model(monkeypatch):
    monkeypatch.setattr(_limits, "_default_max_tokens", lambda _client: 50)
    with serving_model() as model:
        agent, person = PersistentAgent("assistant", llm_config=model.config), user()
        talk(person, agent, "start", max_turns=20, summary_method="reflection_with_llm")
        assert max(map(len, model.seen)) <= 12
        assert len(agent.history()) == 40
        model.seen.clear()
        model.replies[:] = ["A", "B"] * 40
        agents = [says(quiet(ConversableAgent, name)) for name in "AB"]
        group = PersistentGroupChat(agents, [], max_round=20, speaker_selection_method="auto")
        manager = GroupChatManager(groupchat=group, llm_config=model.config)
        talk(agents[0], manager, "go", summary_method="reflection_with_llm")
    assert len(group.messages) == 20
    assert len(model.seen) >= 20, "19 selections and a summary"
    assert max(map(len, model.seen)) <= 14, "the messages that fit, and those of the selection itself"


def test_a_plain_member_starts_with_as_much_of_the_earlier_chat_as_fits():
    with serving_model() as model:
        for message in ("one", "two", "three", "four"):
            agents = [says(quiet(ConversableAgent, "A")), ConversableAgent("B", llm_config=model.config)]
            options = {"max_round": 2, "speaker_selection_method": "round_robin", "max_messages": 2}
            group = PersistentGroupChat(agents, [], **options)
            talk(agents[0], GroupChatManager(groupchat=group, llm_config=False), message)
    assert texts(model.seen[-1])[1:] == ["three", "ok", "four"]
    assert len(group.messages) == 8


def test_the_summary_of_a_group_chat_is_of_this_chat_alone():
    with serving_model(*["ok"] * 10) as model:
        for message in ("one", "two"):
            agents = [says(quiet(ConversableAgent, name)) for name in "AB"]
            group = PersistentGroupChat(agents, [], max_round=2, speaker_selection_method="round_robin")
            manager = GroupChatManager(groupchat=group, llm_config=model.config)
            talk(agents[0], manager, message, summary_method="reflection_with_llm")
    assert texts(model.seen[-1])[:-1] == ["two", "B 1"]


def test_the_window_of_a_known_model_is_known():
    class Client:
        _config_list = ({"model": "gpt-4o"},)

    class Unknown:
        _config_list = ({"model": "nobody-knows"},)

    assert _limits._default_max_tokens(Client()) == 96_000
    assert _limits._default_max_tokens(Unknown()) is None


# State


def test_state_that_has_not_changed_is_not_written_again():
    agent, person = assistant(), user()
    agent.state["large"] = {"x": "y" * 1000}
    version = agent.memory.item("state:assistant:large").version
    talk(person, agent, "one")
    assert agent.memory.item("state:assistant:large").version == version
    agent.state["large"]["x"] = "z"
    talk(person, agent, "two")
    assert agent.memory.item("state:assistant:large").version == version + 1


def test_a_message_is_one_write():
    agent, person = assistant(remember=True), user()
    agent.state["n"] = 1
    before = agent.memory.usage().writes_today
    agent.receive("a message about bicycles", person, request_reply=False)
    assert agent.memory.usage().writes_today == before + 1
    assert json.dumps(agent.memory.get("conversation_history:ids"))
    group = GroupChat([agent, person], [])
    assert persist(group).messages == []
    before = group.memory.usage().writes_today
    group.append({"role": "user", "content": "hi"}, agent)
    assert group.memory.usage().writes_today == before + 1
    assert Memory("autogen-tests-assistant").notes()[0].content == "a message about bicycles"
