"""Patterns of AG2 continue: messages, context variables, the active agent, and members that join and leave."""

import asyncio
import threading
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("autogen.agentchat.group", reason="this AutoGen has no patterns")

from autogen import ConversableAgent, agentchat
from autogen.agentchat import a_initiate_group_chat, initiate_group_chat
from autogen.agentchat.group import AgentTarget, ContextVariables, ReplyResult
from autogen.agentchat.group.patterns import AutoPattern, DefaultPattern, RoundRobinPattern

from adapters.models import call_of, quiet, says, serving_model
from harness import serving
from scrubjay import InvalidInput, Memory, PersistentAgent, persist, transport
from slow_link import SlowLink

pytestmark = [
    pytest.mark.usefixtures("home"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


def desk(model, *more, kind=ConversableAgent, **options):
    """A pattern in which triage hands a customer over to billing."""
    billing = kind("billing", system_message="I am billing.", llm_config=model.config)

    def transfer(context_variables: ContextVariables) -> ReplyResult:
        """Hand the customer over to billing."""
        context_variables["topic"] = "invoice 17"
        context_variables["seen"] = [*context_variables["seen"], "triage"]
        return ReplyResult(message="to billing", target=AgentTarget(billing), context_variables=context_variables)

    triage = kind("triage", system_message="I am triage.", llm_config=model.config, functions=[transfer])
    others = [kind(name, llm_config=model.config) for name in more]
    pattern = DefaultPattern(
        initial_agent=triage,
        agents=[triage, billing, *others],
        user_agent=quiet(ConversableAgent, "customer"),
        context_variables=ContextVariables(data={"topic": "none", "seen": []}),
    )
    return persist(pattern, **options)


def ask(pattern, message, rounds=10):
    result, context, _ = initiate_group_chat(pattern, message, max_rounds=rounds)
    return [line["content"] for line in result.chat_history], context


def sent(messages):
    """What the model was sent: who it is, and the texts."""
    return [message["content"] for message in messages if message["role"] != "tool" and "tool_calls" not in message]


def test_messages_context_variables_and_the_active_agent_continue():
    with serving_model(call_of("transfer", {}), "Which invoice?", "Paid.") as model:
        ask(desk(model), "I have a question.")
        pattern = desk(model)
        assert pattern.context_variables.to_dict() == {"topic": "invoice 17", "seen": ["triage"]}
        _, context = ask(pattern, "The last one.")
    assert model.refused == []
    assert sent(model.seen[-1]) == ["I am billing.", "I have a question.", "Which invoice?", "The last one."]
    assert context.to_dict() == {"topic": "invoice 17", "seen": ["triage"]}
    lines = [(line["sender"], line["message"]) for line in desk(model).history() if line["message"]]
    assert lines[-3:] == [("billing", "Which invoice?"), ("customer", "The last one."), ("billing", "Paid.")]


def test_a_hand_off_that_a_chat_ended_on_is_followed_in_the_next():
    with serving_model(call_of("transfer", {}), "Here is billing.") as model:
        ask(desk(model), "I have a question.", rounds=3)  # customer, triage, tool
        assert len(model.seen) == 1
        ask(desk(model), "Well?")
    assert model.refused == []
    assert model.seen[-1][0]["content"] == "I am billing."


def test_context_variables_that_are_set_after_a_chat_are_saved_with_the_next():
    with serving_model() as model:
        pattern = desk(model)
        _, context = ask(pattern, "one")
        context["topic"] = "changed by hand"
        pattern.context_variables.remove("seen")
        assert desk(model).context_variables.get("topic") == "none"
        ask(pattern, "two")
        assert pattern.context_variables.to_dict() == {"topic": "changed by hand"}
        later = desk(model)
        assert later.context_variables.get("topic") == "changed by hand"


def test_a_context_variable_that_json_cannot_represent_does_not_break_the_chat(caplog):
    with serving_model() as model:
        pattern = desk(model)
        pattern.context_variables["handle"] = object()
        ask(pattern, "one")
        ask(pattern, "two")
        assert len([record for record in caplog.records if "'handle'" in record.getMessage()]) == 1
        assert desk(model).context_variables.get("topic") == "none"


@pytest.mark.parametrize("kind", [ConversableAgent, PersistentAgent])
def test_agents_may_join_and_leave(kind):
    with serving_model() as model:
        ask(desk(model, kind=kind), "one")
        ask(desk(model, "legal", kind=kind), "two")
        assert sent(model.seen[-1])[1:] == ["one", "ok", "two"]
        ask(desk(model, "press", kind=kind), "three")
        assert sent(model.seen[-1])[1:] == ["one", "ok", "two", "ok", "three"]


def test_another_pattern_in_the_same_memory_is_refused():
    with serving_model() as model:
        ask(desk(model, memory="desk"), "one")
        other = quiet(ConversableAgent, "other")
        pattern = persist(DefaultPattern(initial_agent=other, agents=[other]), memory="desk")
        with pytest.raises(InvalidInput, match="session= of its own"):
            ask(pattern, "one")


def test_sessions_keep_patterns_apart_and_can_be_forgotten():
    with serving_model(call_of("transfer", {}), "Hello Alice.") as model:
        ask(desk(model, memory="desk", session="alice"), "I am Alice.")
        bob = desk(model, memory="desk", session="bob")
        assert bob.context_variables.get("topic") == "none"
        ask(bob, "I am Bob.")
        assert "I am Alice." not in sent(model.seen[-1])
        assert bob.sessions() == ["alice", "bob"]
        alice = desk(model, memory="desk", session="alice")
        assert alice.forget() > 0
        assert alice.context_variables.to_dict() == {"topic": "none", "seen": []}
        assert desk(model, memory="desk", session="alice").history() == []
        assert all("alice" not in key for key in Memory("desk").keys())  # noqa: SIM118


def test_a_pattern_that_is_given_its_first_messages_again_starts_with_the_initial_agent():
    said = [{"role": "user", "name": "customer", "content": text} for text in ("one", "two")]
    with serving_model(call_of("transfer", {}), "Which invoice?", "Welcome.") as model:
        ask(desk(model), "one")
        ask(desk(model), said)
        assert sent(model.seen[-1]) == ["I am triage.", "one", "two"]
        assert [line["message"] for line in desk(model).history()] == ["one", "two", "Welcome."]


def test_a_round_robin_goes_on_with_the_agent_after_the_user():
    def chat(message):
        agents = [says(quiet(ConversableAgent, name)) for name in "ABC"]
        user = quiet(ConversableAgent, "user")
        pattern = persist(RoundRobinPattern(initial_agent=agents[0], agents=agents, user_agent=user), memory="round")
        initiate_group_chat(pattern, message, max_rounds=3)
        return [line["sender"] for line in pattern.history()]

    assert chat("one") == ["user", "A", "B"]
    assert chat("two")[3:] == ["user", "A", "B"], "after the user comes the first agent, as in a chat that goes on"


def test_the_model_that_selects_speakers_sees_the_earlier_chat():
    with serving_model(*["ok", "B"] * 20) as model:
        for message in ("one", "two"):
            agents = [ConversableAgent(name, llm_config=model.config) for name in "AB"]
            pattern = AutoPattern(
                initial_agent=agents[0],
                agents=agents,
                user_agent=quiet(ConversableAgent, "user"),
                group_manager_args={"llm_config": model.config},
            )
            initiate_group_chat(persist(pattern, memory="auto"), message, max_rounds=4)
    selecting = [messages for messages in model.seen if "select" in str(messages[-1]["content"]).lower()]
    assert selecting
    assert "one" in [message["content"] for message in selecting[-1]]


def test_patterns_continue_asynchronously():
    with serving_model(call_of("transfer", {}), "Which invoice?", "Paid.") as model:
        for message in ("one", "two"):
            asyncio.run(a_initiate_group_chat(desk(model, kind=PersistentAgent), message, max_rounds=10))
    assert sent(model.seen[-1]) == ["I am billing.", "one", "Which invoice?", "two"]
    assert model.refused == []


def test_a_pattern_goes_on_in_another_process(script):
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])
        from adapters.models import serving_model
        from test_patterns import ask, call_of, desk, sent
        with serving_model(*([call_of("transfer", {}), "Which invoice?"] if sys.argv[2] == "1" else [])) as model:
            pattern = desk(model)
            ask(pattern, f"message {sys.argv[2]}")
            print(sent(model.seen[-1]), pattern.context_variables.get("topic"))
    """
    script(code, Path(__file__).parent, 1)
    printed = script(code, Path(__file__).parent, 2).splitlines()[-1]
    assert printed == "['I am billing.', 'message 1', 'Which invoice?', 'message 2'] invoice 17"


@pytest.mark.parametrize("is_read_by_a_later_process", [False, True])
def test_context_variables_that_cannot_be_read_at_first_are_restored_later_and_never_overwritten(
    tmp_path, caplog, is_read_by_a_later_process
):
    with serving_model(call_of("transfer", {}), "Which invoice?") as model:
        with serving(tmp_path / "served.db", "--durability", "fast") as server:
            ask(desk(model, memory=Memory("desk", url=server.url)), "one")
        pattern = desk(model, memory=Memory("desk", url=server.url))
        ask(pattern, "two")
        assert pattern.context_variables.get("topic") == "none", "the server is gone"
        pattern.context_variables["seen"] = ["by hand"]
        pattern.context_variables["new"] = 1
        ask(pattern, "three")
        pattern.context_variables["new"] = 2
        ask(pattern, "more")
        with serving(tmp_path / "served.db", "--durability", "fast", port=server.port):
            Memory("desk", url=server.url).flush(60)
            expected = {"topic": "invoice 17", "seen": ["triage"], "new": 2}
            if is_read_by_a_later_process:
                assert desk(model, memory=Memory("desk", url=server.url)).context_variables.to_dict() == expected
            ask(pattern, "four")
            assert pattern.context_variables.to_dict() == expected
            assert desk(model, memory=Memory("desk", url=server.url)).context_variables.to_dict() == expected
    assert "'state:context%3A:seen' stay" in caplog.text


@pytest.fixture
def contrib():
    """The module of the swarm functions, which pyautogen 0.9 has beside patterns."""
    return pytest.importorskip("autogen.agentchat.contrib.swarm_agent", reason="this AutoGen has no swarms")


def swarm(contrib, model, message, *more, kind=ConversableAgent, variables=None, rounds=5, user=True):
    """The arguments of a swarm function, for a chat in which triage hands a customer over to billing."""
    billing = kind("billing", system_message="I am billing.", llm_config=model.config)
    triage = kind("triage", system_message="I am triage.", llm_config=model.config)

    def transfer(context_variables: ContextVariables) -> contrib.SwarmResult:
        """Hand the customer over to billing."""
        context_variables["topic"] = "invoice 17"
        return contrib.SwarmResult(values="to billing", agent=billing, context_variables=context_variables)

    transfer.__annotations__ = {"context_variables": ContextVariables, "return": contrib.SwarmResult}
    triage._add_single_function(transfer)
    return {
        "initial_agent": triage,
        "agents": [triage, billing, *(kind(name, llm_config=model.config) for name in more)],
        "user_agent": quiet(ConversableAgent, "customer") if user else None,
        "messages": message,
        "context_variables": ContextVariables(data={"topic": "none"}) if variables is None else variables,
        "max_rounds": rounds,
    }


@pytest.mark.parametrize("kind", [ConversableAgent, PersistentAgent])
@pytest.mark.parametrize("user", [True, False])
def test_a_swarm_continues_with_messages_context_variables_and_the_active_agent(contrib, kind, user):
    with serving_model(call_of("transfer", {}), "Which invoice?", "Paid.", "Bye.") as model:
        for message in ("I have a question.", "The last one.", "Thanks."):
            chat = persist(contrib.initiate_swarm_chat, memory="desk")
            options = swarm(contrib, model, message, kind=kind, user=user)
            _, context, last = chat(**options)
            assert type(options["initial_agent"]) is kind
            assert (context.to_dict(), last.name) == ({"topic": "invoice 17"}, "billing")
    assert model.refused == []
    said = ["I have a question.", "Which invoice?", "The last one.", "Paid.", "Thanks."]
    assert sent(model.seen[-1]) == ["I am billing.", *said]
    assert [line["message"] for line in chat.history() if line["message"]][-1] == "Bye."
    assert chat.sessions() == ["default"]


def test_members_of_a_swarm_may_join_and_leave_and_its_hand_off_is_followed_later(contrib):
    with serving_model(call_of("transfer", {}), "Here is billing.") as model:
        chat = persist(contrib.initiate_swarm_chat, memory="desk")
        chat(**swarm(contrib, model, "one", "legal", rounds=3))  # customer, triage, tool
        assert len(model.seen) == 1
        chat(**swarm(contrib, model, "two", "press"))
    assert model.refused == []
    assert sent(model.seen[-1]) == ["I am billing.", "one", "two"]


def test_context_variables_that_a_program_gives_again_win(contrib):
    with serving_model() as model:
        chat = persist(contrib.initiate_swarm_chat, memory="desk")
        _, context, _ = chat(**swarm(contrib, model, "one"))
        context["topic"] = "by hand"
        _, context, _ = chat(**swarm(contrib, model, "two", variables=context))
        assert context.to_dict() == {"topic": "by hand"}
        later = persist(contrib.initiate_swarm_chat, memory="desk")
        assert later(**swarm(contrib, model, "three"))[1].to_dict() == {"topic": "by hand"}
        assert later.forget() > 0
        assert later(**swarm(contrib, model, "four"))[1].to_dict() == {"topic": "none"}
        assert sent(model.seen[-1])[1:] == ["four"]


@pytest.mark.parametrize("name", ["a_initiate_swarm_chat", "run_swarm", "a_run_swarm"])
def test_the_other_swarm_functions_continue_as_well(contrib, name):
    async def run_async(chat, options):
        response = await chat(**options)
        if name == "a_run_swarm":
            await response.process()

    with serving_model(call_of("transfer", {}), "Which invoice?", "Paid.") as model:
        for message in ("one", "two"):
            chat = persist(getattr(contrib, name), memory="desk")
            options = swarm(contrib, model, message)
            if name == "run_swarm":
                chat(**options).process()
            else:
                asyncio.run(run_async(chat, options))
    assert model.refused == []
    assert sent(model.seen[-1]) == ["I am billing.", "one", "Which invoice?", "two"]


def test_a_swarm_needs_a_memory_and_takes_what_a_group_chat_takes(contrib):
    with pytest.raises(InvalidInput, match="needs memory="):
        persist(contrib.initiate_swarm_chat)
    with pytest.raises(InvalidInput, match="for agents"):
        persist(contrib.initiate_swarm_chat, memory="desk", recall=True)
    agent = quiet(ConversableAgent, "agent")
    with pytest.raises(ValueError, match="must be a list of ConversableAgents"):
        persist(contrib.initiate_swarm_chat, memory="desk")(agent, "one", ["not an agent"])
    assert type(agent) is ConversableAgent


@pytest.mark.parametrize("name", ["initiate_swarm_chat", "a_initiate_swarm_chat", "run_swarm", "a_run_swarm"])
def test_an_agent_is_as_before_when_a_swarm_fails_or_never_starts(contrib, name):
    async def process(running):
        await (await running).process()

    def run(*arguments):
        started = chat(*arguments)
        if name.startswith("a_"):
            asyncio.run(process(started))
        elif name == "run_swarm":
            started.process()

    chat = persist(getattr(contrib, name), memory="desk")
    agent = quiet(ConversableAgent, "agent")
    before = set(vars(agent))
    if name.startswith("a_"):
        chat(agent, "one", [agent]).close()
    with pytest.raises(ValueError, match="must be a list of ConversableAgents"):
        run(agent, "one", ["not an agent"])
    assert (type(agent), set(vars(agent))) == (ConversableAgent, before)


def test_a_swarm_that_is_not_persistent_is_as_autogen_makes_it(contrib):
    with serving_model(call_of("transfer", {}), "Which invoice?", "Paid.") as model:
        for message in ("one", "two"):
            result, context, _ = contrib.initiate_swarm_chat(**swarm(contrib, model, message, kind=PersistentAgent))
    assert sent(model.seen[-1]) == ["I am triage.", "one", "Which invoice?", "two"], "persistent agents have their past"
    assert [line["content"] for line in result.chat_history] == ["two", "Paid."]
    assert context.to_dict() == {"topic": "none"}


class Stalls:
    """Requests over a link with a delay during which the event loop that waits for them did not turn."""

    def __init__(self, monkeypatch):
        self.found = []
        self._turned = threading.Event()
        self._is_running = False
        stalls = self

        class Watched(transport.PooledTransport):
            def send(self, method, path, *rest):
                stalls._turned.clear()
                answer = super().send(method, path, *rest)
                # An answer takes until the loop has turned, however busy the machine is; a loop that waits never does.
                if stalls._is_running and not stalls._turned.wait(0 if asyncio._get_running_loop() else 60):
                    stalls.found.append((method, path))
                return answer

        monkeypatch.setattr(transport, "PooledTransport", Watched)

    async def watch(self, running):
        async def turn():
            while True:
                self._turned.set()
                await asyncio.sleep(0.005)

        turning = asyncio.create_task(turn())
        self._is_running = True
        try:
            response = await running
            if hasattr(response, "process"):
                await response.process()
        finally:
            self._is_running = False
            self._turned.set()  # a request that has not ended yet waits for no more turns
            turning.cancel()


@pytest.mark.parametrize("name", ["a_initiate_group_chat", "a_run_group_chat", "a_initiate_swarm_chat", "a_run_swarm"])
@pytest.mark.parametrize(("kind", "is_resumed"), [(PersistentAgent, False), (ConversableAgent, True)])
def test_the_event_loop_turns_while_what_is_stored_of_a_chat_is_read(monkeypatch, tmp_path, name, kind, is_resumed):
    module = agentchat if "group" in name else pytest.importorskip("autogen.agentchat.contrib.swarm_agent")
    if not hasattr(module, name):
        pytest.skip(f"this AutoGen has no {name}")
    stalls = Stalls(monkeypatch)
    lines = (("customer", "one"), ("billing", "Which invoice?"), ("customer", "two"))
    said = [{"role": "user", "name": name, "content": text} for name, text in lines]
    with (
        serving_model(call_of("transfer", {}), "Which invoice?", "Paid.") as model,
        serving(tmp_path / "served.db", "--durability", "fast") as server,
        closing(SlowLink(server.port, delay=0.05)) as link,
    ):
        memory = Memory("desk", url=link.url)
        members = {"kind": kind} if kind is ConversableAgent else {"kind": lambda *a, **o: kind(*a, memory=memory, **o)}
        for message in ("one", said if is_resumed else "two"):
            if module is agentchat:
                pattern = desk(model, memory=memory, **members)
                running = getattr(module, name)(pattern, message, max_rounds=5)
            else:
                running = persist(getattr(module, name), memory=memory)(**swarm(module, model, message, **members))
            asyncio.run(stalls.watch(running))
    assert stalls.found == []
    assert model.refused == []
    assert sent(model.seen[-1])[0] == "I am billing."
    assert sent(model.seen[-1])[-1] == "two"
