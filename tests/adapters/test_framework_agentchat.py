"""AutoGen 0.4 and newer: contexts and teams are compared with the framework's own, in memory."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("autogen_agentchat", reason="autogen-agentchat is not installed")
pytest.importorskip("autogen_ext", reason="autogen-ext, which has a model for tests, is not installed")

from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import HandoffMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_core import FunctionCall, Image
from autogen_core.memory import MemoryContent
from autogen_core.model_context import BufferedChatCompletionContext, UnboundedChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    RequestUsage,
    SystemMessage,
    UserMessage,
)
from autogen_ext.models.replay import ReplayChatCompletionClient
from hypothesis import given, settings
from hypothesis import strategies as st

from scrubjay import AsyncMemory, Conflict, InvalidInput, Memory, Unavailable
from scrubjay.adapters.agentchat import ScrubjayMemory, ScrubjayModelContext, ScrubjayTeam

INFO = {"vision": True, "function_calling": True, "json_output": False, "family": "unknown", "structured_output": False}
CALL = FunctionCall(id="1", name="weather", arguments='{"city": "Ulm"}')
RESULT = FunctionExecutionResult(content="rain in Ulm", name="weather", call_id="1", is_error=False)


class Model(ReplayChatCompletionClient):
    """Says how many messages it was given, and what the last one says."""

    def __init__(self, name: str = "model"):
        super().__init__([name], model_info=INFO)
        self.seen: list = []

    async def create(self, messages, **_):
        self.seen.append(list(messages))
        text = f"{len(messages)} after {str(messages[-1].content)[:20]}"
        return CreateResult(
            finish_reason="stop", content=text, usage=RequestUsage(prompt_tokens=1, completion_tokens=1), cached=False
        )


def said(text: str) -> UserMessage:
    return UserMessage(content=text, source="user")


async def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


# ------------------------------------------------------------ contexts

MESSAGES = st.one_of(
    st.builds(said, st.text("ab", max_size=2)),
    st.builds(AssistantMessage, content=st.just("a") | st.just([CALL]), source=st.just("assistant")),
    st.just(FunctionExecutionResultMessage(content=[RESULT])),
)


@settings(max_examples=50, deadline=None)
@given(messages=st.lists(MESSAGES, max_size=6), limit=st.none() | st.integers(1, 4))
def test_a_context_gives_what_the_one_in_memory_gives(tmp_path_factory, messages, limit):
    memory = Memory("ns", path=tmp_path_factory.getbasetemp() / "contexts.db", durability="fast")

    async def use() -> None:
        own = UnboundedChatCompletionContext() if limit is None else BufferedChatCompletionContext(limit)
        stored = ScrubjayModelContext("sarah", memory, limit=limit)
        await stored.clear()
        for message in messages:
            await own.add_message(message)
            await stored.add_message(message)
        assert await ScrubjayModelContext("sarah", memory, limit=limit).get_messages() == await own.get_messages()
        state = await stored.save_state()
        assert state == await own.save_state()
        await stored.add_message(said("more"))
        await stored.load_state(state)
        assert await stored.get_messages() == await own.get_messages()

    asyncio.run(use())


def test_an_image_is_stored(home):
    async def use() -> None:
        pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        await ScrubjayModelContext("sarah").add_message(
            UserMessage(content=["look", Image.from_base64(pixel)], source="user")
        )
        (found,) = await ScrubjayModelContext("sarah").get_messages()
        assert found.content[1].image.size == (1, 1)

    asyncio.run(use())


def test_an_agent_goes_on_and_its_history_is_a_conversation(home):
    async def use() -> None:
        call = CreateResult(
            finish_reason="function_calls",
            content=[CALL],
            usage=RequestUsage(prompt_tokens=1, completion_tokens=1),
            cached=False,
        )
        client = ReplayChatCompletionClient([call, "It rains"], model_info=INFO)
        context = ScrubjayModelContext("sarah", AsyncMemory("agentchat"))
        options = {"tools": [weather], "reflect_on_tool_use": True}
        await AssistantAgent("Forecast", client, model_context=context, **options).run(task="Will it rain?")
        model = Model()
        await AssistantAgent("Forecast", model, model_context=ScrubjayModelContext("sarah")).run(task="Sure?")
        assert len(model.seen[0]) == 6

    asyncio.run(use())
    memory = Memory("agentchat")
    (conversation,) = memory.conversations()
    assert (conversation.session, conversation.messages) == ("sarah", 6)
    assert memory.usage().writes_today == 6  # for two turns: 2 each, and 2 for the tool
    found = memory.conversation("sarah")
    assert [message.sender for message in found] == ["user", "Forecast", "tool", "Forecast", "user", "Forecast"]
    assert found[1].tool_calls[0]["arguments"] == {"city": "Ulm"}
    assert found[2].tool_results[0]["content"] == "rain in Ulm"


def test_an_unreachable_server_is_not_an_empty_history(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1)
    context = ScrubjayModelContext("sarah", memory)
    for call in (
        context.get_messages(),
        AssistantAgent("a", Model(), model_context=context).run(task="Hi"),
        ScrubjayMemory("sarah", memory).query("Hi"),
        ScrubjayTeam("sarah", memory).load(RoundRobinGroupChat([AssistantAgent("a", Model())])),
    ):
        with pytest.raises(Unavailable):
            asyncio.run(call)


def test_processes_that_write_at_once_lose_nothing(script):
    code = """
        import asyncio, sys
        from autogen_core.models import UserMessage
        from scrubjay.adapters.agentchat import ScrubjayModelContext
        async def main():
            for number in range(40):
                message = UserMessage(content=f"{sys.argv[1]}{number}", source="user")
                await ScrubjayModelContext("sarah").add_message(message)
        asyncio.run(main())
    """
    for process in [script.start(code, name) for name in "ab"]:
        assert process.communicate(timeout=200)[1] == ""
    found = [message.content for message in asyncio.run(ScrubjayModelContext("sarah").get_messages())]
    assert sorted(found) == sorted(f"{name}{number}" for name in "ab" for number in range(40))
    assert [each for each in found if each.startswith("a")] == [f"a{number}" for number in range(40)]


def test_another_process_goes_on_after_kill_9(script):
    code = """
        import asyncio, itertools, sys
        from autogen_agentchat.agents import AssistantAgent
        from autogen_ext.models.replay import ReplayChatCompletionClient
        from scrubjay.adapters.agentchat import ScrubjayModelContext
        async def main():
            context = ScrubjayModelContext("sarah")
            for number in itertools.count() if sys.argv[1] == "write" else ["again"]:
                agent = AssistantAgent("Echo", ReplayChatCompletionClient(["yes"]), model_context=context)
                await agent.run(task=str(number))
                print(number, flush=True)
            print(*(message.content for message in await context.get_messages()))
        asyncio.run(main())
    """
    writer = script.start(code, "write")
    assert [writer.stdout.readline().strip() for _ in range(10)] == [str(number) for number in range(10)]
    writer.kill()
    writer.communicate(timeout=60)
    found = [each for each in script(code, "read").splitlines()[-1].split() if each != "yes"]
    assert len(found) > 10
    assert found == [*(str(number) for number in range(len(found) - 1)), "again"]


# ------------------------------------------------------------ notes


def test_notes_are_added_queried_and_cleared(home):
    async def use() -> None:
        sarah, tom, all_of_them = ScrubjayMemory("sarah"), ScrubjayMemory("tom"), ScrubjayMemory()
        await sarah.add(MemoryContent(content="likes green tea", mime_type="text/plain", metadata={"source": "chat"}))
        await tom.add(MemoryContent(content={"likes": "black tea"}, mime_type="application/json"))
        await all_of_them.add(MemoryContent(content="tea is in the kitchen", mime_type="text/markdown"))
        found = (await sarah.query("tea")).results
        assert {each.content for each in found} == {"likes green tea", "tea is in the kitchen"}
        assert next(each.metadata["source"] for each in found if "green" in each.content) == "chat"
        assert {"likes": "black tea"} in [each.content for each in (await tom.query("tea")).results]
        assert len((await tom.query("tea", limit=1)).results) == 1
        assert (await sarah.query("")).results == []
        with pytest.raises(InvalidInput, match="not bytes"):
            await sarah.add(MemoryContent(content=b"tea", mime_type="application/octet-stream"))
        await sarah.clear()
        assert [each.content for each in (await sarah.query("tea")).results] == ["tea is in the kitchen"]
        await all_of_them.clear()
        assert len((await tom.query("tea")).results) == 1
        await tom.close()

    asyncio.run(use())


def test_what_is_recalled_is_given_to_the_model_for_one_turn_and_not_stored(home):
    Memory("agentchat").remember("Sarah likes green tea")
    model = Model()

    async def use() -> None:
        context = ScrubjayModelContext("sarah")
        agent = AssistantAgent("a", model, model_context=context, memory=[ScrubjayMemory("sarah")])
        for task in ("Which tea does Sarah like?", "12345"):
            await agent.run(task=task)
        assert [type(message) for message in await context.get_messages()] == [UserMessage, AssistantMessage] * 2

    asyncio.run(use())
    assert isinstance(model.seen[0][-1], SystemMessage)
    assert "green tea" in model.seen[0][-1].content
    assert model.seen[1][-1].content == "12345"
    assert "green tea" not in str(model.seen[1])


def test_an_agent_with_both_is_dumped_and_loaded_as_a_component(home):
    context = ScrubjayModelContext("sarah", "chats", agent="a", limit=5)
    memory = ScrubjayMemory("sarah", "facts", limit=3, max_tokens=100)
    for component in (context, memory):
        again = type(component).load_component(component.dump_component())
        assert again.dump_component() == component.dump_component()
        assert again._memory.namespace == component._memory.namespace


# ------------------------------------------------------------ teams

TURNS = 5


def members(session: str | None = None) -> list[AssistantAgent]:
    """Three agents, whose answers depend on everything that they have seen."""
    contexts = {name: ScrubjayModelContext(session, agent=name) if session else None for name in "ABC"}
    return [AssistantAgent(name, Model(name), model_context=context) for name, context in contexts.items()]


def round_robin(agents, **options):
    return RoundRobinGroupChat(agents, max_turns=TURNS, **options)


def selector(agents, **options):
    def next_speaker(thread):
        return "ABCA"[len(thread) % 4]

    return SelectorGroupChat(agents, Model(), max_turns=TURNS, selector_func=next_speaker, **options)


async def texts_of(team) -> list[str]:
    state = await team.save_state()
    return [message["content"] for message in state["agent_states"][team._group_chat_manager_name]["message_thread"]]


class Passing(BaseChatAgent):
    """Hands over to the next agent, and says what it was told."""

    produced_message_types = (HandoffMessage,)

    async def on_messages(self, messages, cancellation_token):
        target = "ABC"["CAB".index(self.name)]
        heard = "+".join(message.content for message in messages)[-20:]
        return Response(chat_message=HandoffMessage(content=f"{target} {heard}", target=target, source=self.name))

    async def on_reset(self, cancellation_token):
        """It remembers nothing."""


def swarm(agents, **options):
    return Swarm([Passing(agent.name, "passes on") for agent in agents], max_turns=TURNS, **options)


async def run_team(make_team, session, saved=None, task=None) -> list[str]:
    """Run a team, from its stored state if it has one; the texts of its messages."""
    team = make_team(members(session), runtime=saved.runtime if saved else None)
    if saved:
        await saved.load(team)
        saved.runtime.start()
    await team.run(task=task)
    if saved:
        await saved.runtime.stop_when_idle()
    return await texts_of(team)


@pytest.mark.parametrize("make_team", [round_robin, selector, swarm])
@pytest.mark.parametrize("session", [None, "sarah"])
def test_a_team_goes_on_from_every_response_as_if_it_had_not_stopped(home, make_team, session):
    memory = Memory("agentchat")
    states = []

    class Recorded(ScrubjayTeam):
        def _write(self, messages, state):
            states.append(state)
            return super()._write(messages, state)

    async def use() -> None:
        expected = await run_team(make_team, None, task="go")
        assert len(expected) == TURNS + 1
        assert await run_team(make_team, session, Recorded("sarah", memory), "go") == expected
        *responses, _, _ = list(states)  # the last response, and the end of the run
        assert len(responses) == TURNS - 1
        for state in responses:
            memory.set("session:sarah:state:team", state)
            assert await run_team(make_team, session, ScrubjayTeam("sarah", memory)) == expected

    asyncio.run(use())


def test_a_run_after_one_that_ended_is_the_same_in_another_process(home):
    async def use() -> None:
        own = round_robin(members())
        await own.run(task="go")
        await own.run(task="again")
        await run_team(round_robin, None, ScrubjayTeam("sarah"), "go")
        assert await run_team(round_robin, None, ScrubjayTeam("sarah"), "again") == await texts_of(own)

    asyncio.run(use())


def test_the_messages_of_a_team_are_a_conversation(home):
    async def use() -> None:
        for number in range(2):
            saved = ScrubjayTeam("sarah")
            team = round_robin(members("sarah"), runtime=saved.runtime)
            assert await saved.load(team) is bool(number)
            saved.runtime.start()
            await team.run(task="go")
            await saved.runtime.stop_when_idle()

    asyncio.run(use())
    memory = Memory("agentchat")
    found = memory.conversation(key="session:sarah:messages")
    assert [message.sender for message in found] == ["user", *"ABCAB", "user", *"CABCA"]
    assert len({message.id for message in found}) == 12
    assert len(memory.conversations(session="sarah")) == 4


def test_a_team_of_another_kind_is_saved_when_its_run_has_ended(home):
    def graph(runtime=None):
        first, second, _ = members()
        flow = DiGraphBuilder().add_node(first).add_node(second).add_edge(first, second).build()
        return GraphFlow([first, second], flow, runtime=runtime)

    async def use() -> None:
        saved = ScrubjayTeam("sarah")
        team = graph(saved.runtime)
        await saved.load(team)
        versions = []
        write = saved._write
        saved._write = lambda *parts: versions.append(parts) or write(*parts)
        saved.runtime.start()
        await team.run(task="go")
        await saved.runtime.stop_when_idle()
        assert len(versions) == 1
        again = graph()
        assert await ScrubjayTeam("sarah").load(again)
        assert await texts_of(again) == await texts_of(team)

    asyncio.run(use())


def test_of_two_processes_that_run_one_team_the_second_is_refused(home):
    async def use() -> None:
        first, second = ScrubjayTeam("sarah"), ScrubjayTeam("sarah")
        teams = [round_robin(members(), runtime=saved.runtime) for saved in (first, second)]
        for saved, team in zip((first, second), teams, strict=True):
            await saved.load(team)
            saved.runtime.start()
        await teams[0].run(task="go")
        with pytest.raises(RuntimeError, match="Conflict"):
            await teams[1].run(task="go")
        with pytest.raises(Conflict):
            await second.save(teams[1])
        await first.save(teams[0])
        await first.runtime.stop_when_idle()
        assert len(Memory("agentchat").conversation("sarah")) == TURNS + 1

    asyncio.run(use())


def test_a_version_that_another_process_stores_after_the_first_save_is_not_taken_for_ones_own(home):
    memory = Memory("agentchat")

    async def use() -> None:
        saved = ScrubjayTeam("sarah", memory)
        team = round_robin(members())
        await saved.load(team)
        run = memory._executor.run

        def interrupted(command, *rest):
            result = run(command, *rest)
            if command.verb.name == "transaction":  # another process is faster than whatever comes next
                key = "session:sarah:state:team"
                Memory("agentchat").set(key, memory.get(key))
            return result

        memory._executor.run = interrupted
        await saved.save(team)
        memory._executor.run = run
        with pytest.raises(Conflict):
            await saved.save(team)

    asyncio.run(use())


TEAM = """
    import asyncio, os, sys
    from autogen_agentchat.agents import AssistantAgent
    from autogen_agentchat.teams import RoundRobinGroupChat
    from autogen_ext.models.replay import ReplayChatCompletionClient
    from scrubjay.adapters.agentchat import ScrubjayModelContext, ScrubjayTeam

    class Model(ReplayChatCompletionClient):
        async def create(self, messages, **options):
            if sys.argv[1] == "killed" and len(messages) == 5:  # with a system message, a task and three responses
                os.kill(os.getpid(), 9)
            return await super().create(messages, **options)

    async def main():
        saved = ScrubjayTeam("sarah")
        agents = [
            AssistantAgent(name, Model([f"{name} says"] * 9), model_context=ScrubjayModelContext("sarah", agent=name))
            for name in "ABC"
        ]
        team = RoundRobinGroupChat(agents, runtime=saved.runtime, max_turns=5)
        saved.runtime.start()
        result = await (team.run() if await saved.load(team) else team.run(task="go"))
        print(*(message.source for message in result.messages))
        for agent in agents:
            print(*(message.source for message in await agent.model_context.get_messages()))

    asyncio.run(main())
"""


def test_a_team_is_continued_after_kill_9(script):
    killed = script.start(TEAM, "killed")
    killed.communicate(timeout=200)
    assert killed.returncode == -9
    assert script(TEAM, "continued").splitlines() == ["A B", "user A B C A", "user A B C A B", "user A B C"]
