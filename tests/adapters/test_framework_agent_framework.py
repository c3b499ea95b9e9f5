"""Microsoft Agent Framework: history and checkpoints are compared with the framework's own, in memory."""

from __future__ import annotations

import asyncio
import uuid

import pytest

pytest.importorskip("agent_framework", reason="Microsoft Agent Framework is not installed")

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    InMemoryCheckpointStorage,
    InMemoryHistoryProvider,
    Message,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    tool,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from scrubjay import AsyncMemory, Memory, Unavailable
from scrubjay.adapters import _large
from scrubjay.adapters.agent_framework import ScrubjayCheckpoints, ScrubjayHistory, ScrubjayRecall


class Model(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Calls the tool when asked for the weather; otherwise says how many messages it was given."""

    def __init__(self):
        super().__init__(middleware=[])
        self.instructions = []

    def _inner_get_response(self, *, messages, stream, options, **_):
        async def respond():
            self.instructions.append(options.get("instructions"))
            asked = messages[-1].text == "weather" and messages[-1].role == "user"
            call = Content.from_function_call(
                call_id=f"call {len(messages)}", name="weather", arguments={"city": "Ulm"}
            )
            return ChatResponse(messages=[Message("assistant", [call if asked else f"{len(messages)} messages"])])

        return respond()


@tool(approval_mode="never_require")
def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def say(role: str, text: str, **fields) -> Message:
    return Message(role, [text], **fields)


def texts(messages) -> list[str]:
    return [message.text for message in messages]


async def run_turns(history, **options) -> list:
    """What is stored after two turns, the first with a tool, in a new agent and a restored session each."""
    state = {}
    for text in ("weather", "hello"):
        session = AgentSession(session_id="sarah")
        session.state = state
        agent = Agent(client=Model(), tools=[weather], context_providers=[history()], name="Forecast", **options)
        await agent.run(text, session=session)
        state = session.state
    found = await history().get_messages("sarah", state=state.get(history().source_id))
    return [(message.role, [parts_of(each) for each in message.contents]) for message in found]


def parts_of(content) -> dict:
    """The fields of a content without its id, which is random."""
    return {name: part for name, part in content.to_dict().items() if name != "id"}


# ------------------------------------------------------------ history


@pytest.mark.parametrize("each_call", [False, True])
def test_an_agent_stores_what_it_stores_in_memory(home, each_call):
    options = {"require_per_service_call_history_persistence": each_call}
    stored = asyncio.run(run_turns(ScrubjayHistory, **options))
    assert Memory("agent-framework").usage().writes_today == (3 if each_call else 2)
    assert stored == asyncio.run(run_turns(InMemoryHistoryProvider, **options))
    assert [role for role, _ in stored] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert stored[-1][1][0]["text"] == "5 messages"


def test_the_history_is_a_conversation(home):
    asyncio.run(run_turns(ScrubjayHistory))
    memory = Memory("agent-framework")
    (conversation,) = memory.conversations()
    assert (conversation.session, conversation.messages, conversation.preview) == ("sarah", 6, "5 messages")
    found = memory.conversation("sarah")
    assert found[1].tool_calls[0]["arguments"] == {"city": "Ulm"}
    assert (found[2].tool_results[0]["name"], found[2].tool_results[0]["content"]) == ("weather", "rain in Ulm")
    assert found[5].sender == "Forecast"


def test_sessions_and_sources_have_histories_of_their_own(home):
    async def use() -> None:
        memory = AsyncMemory("chats")
        await ScrubjayHistory(memory).save_messages("sarah", [say("user", "a")])
        await ScrubjayHistory(memory, source_id="audit").save_messages("sarah", [say("user", "b")])
        await ScrubjayHistory(memory).save_messages(None, [say("user", "c")])
        assert texts(await ScrubjayHistory("chats").get_messages("sarah")) == ["a"]
        assert texts(await ScrubjayHistory("chats", source_id="audit").get_messages("sarah")) == ["b"]
        assert texts(await ScrubjayHistory("chats").get_messages(None)) == ["c"]
        assert await ScrubjayHistory("chats").get_messages("tom") == []

    asyncio.run(use())


MESSAGES = st.builds(
    say,
    st.sampled_from(["user", "assistant"]),
    st.sampled_from("ab"),
    message_id=st.sampled_from([None, None, "1", "2"]),
)


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(st.tuples(st.booleans(), st.lists(MESSAGES, max_size=4)), max_size=5))
def test_repeated_messages_are_stored_as_often_as_in_memory(tmp_path_factory, batches):
    memory = Memory("ns", path=tmp_path_factory.getbasetemp() / "repeated.db", durability="fast")
    session, state = uuid.uuid4().hex, {}

    async def use() -> None:
        own, stored = InMemoryHistoryProvider(), ScrubjayHistory(memory)
        for replays, batch in batches:
            messages = [*state.get("messages", []), *batch] if replays else batch
            await own.save_messages(session, messages, state=state)
            await stored.save_messages(session, messages)
        found = await stored.get_messages(session)
        assert [each.to_dict() for each in found] == [each.to_dict() for each in state.get("messages", [])]

    asyncio.run(use())


def test_an_unreachable_server_is_not_an_empty_history(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1)
    agent = Agent(client=Model(), context_providers=[ScrubjayHistory(memory)])
    with pytest.raises(Unavailable):
        asyncio.run(agent.run("hello", session=AgentSession(session_id="sarah")))
    asyncio.run(ScrubjayHistory(memory).save_messages("sarah", [say("user", "a")]))
    assert len(memory.pending()) == 1


def test_processes_that_write_at_once_lose_nothing(script):
    code = """
        import asyncio, sys
        from agent_framework import Message
        from scrubjay.adapters.agent_framework import ScrubjayHistory
        async def main():
            for number in range(40):
                await ScrubjayHistory().save_messages("sarah", [Message("user", [f"{sys.argv[1]} {number}"])])
        asyncio.run(main())
    """
    for process in [script.start(code, name) for name in "ab"]:
        assert process.communicate(timeout=100)[1] == ""
    found = texts(asyncio.run(ScrubjayHistory().get_messages("sarah")))
    assert sorted(found) == sorted(f"{name} {number}" for name in "ab" for number in range(40))
    assert [each for each in found if each.startswith("a")] == [f"a {number}" for number in range(40)]


def test_another_process_goes_on_after_kill_9(script):
    code = """
        import asyncio, itertools, sys
        from agent_framework import Message
        from scrubjay.adapters.agent_framework import ScrubjayHistory
        async def main():
            history = ScrubjayHistory()
            for number in itertools.count() if sys.argv[1] == "write" else ["again"]:
                await history.save_messages("sarah", [Message("user", [str(number)])])
                print(number, flush=True)
            print(*(message.text for message in await history.get_messages("sarah")))
        asyncio.run(main())
    """
    writer = script.start(code, "write")
    assert [writer.stdout.readline().strip() for _ in range(20)] == [str(number) for number in range(20)]
    writer.kill()
    writer.communicate(timeout=60)
    found = script(code, "read").splitlines()[-1].split()
    assert found[:20] == [str(number) for number in range(20)]
    assert found == [*(str(number) for number in range(len(found) - 1)), "again"]


# ------------------------------------------------------------ recall


def test_a_run_is_given_the_notes_of_its_session_and_of_none(home):
    memory = Memory("facts")
    memory.remember("Everybody's favourite colour is on the wall")
    memory.remember("Tom's favourite colour is green", session="tom")
    model = Model()

    async def use() -> None:
        agent = Agent(client=model, context_providers=[ScrubjayRecall(memory, remember=True)])
        session = AgentSession(session_id="sarah")
        for text in ("My favourite colour is blue", "What is my favourite colour?", "12345"):
            await agent.run(text, session=session)

    asyncio.run(use())
    assert "wall" in model.instructions[0]
    assert "wall" in model.instructions[1]
    assert "blue" in model.instructions[1]
    assert "green" not in model.instructions[1]
    assert model.instructions[2] is None
    assert {note.content for note in memory.notes(session="sarah")} >= {"My favourite colour is blue", "1 messages"}


def test_without_remember_nothing_is_stored(home):
    agent = Agent(client=Model(), context_providers=[ScrubjayRecall("facts")])
    asyncio.run(agent.run("hello", session=AgentSession(session_id="sarah")))
    assert Memory("facts").notes() == []


def test_recall_from_an_unreachable_server_raises(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1)
    agent = Agent(client=Model(), context_providers=[ScrubjayRecall(memory)])
    with pytest.raises(Unavailable):
        asyncio.run(agent.run("hello"))


# ------------------------------------------------------------ workflow checkpoints


@pytest.fixture(params=["memory", "scrubjay"])
def storage(request, home):
    return InMemoryCheckpointStorage() if request.param == "memory" else ScrubjayCheckpoints()


def checkpoint(name: str = "flow", **fields) -> WorkflowCheckpoint:
    return WorkflowCheckpoint(workflow_name=name, graph_signature_hash="hash", **fields)


def test_checkpoints_are_listed_by_workflow_and_the_latest_is_found(storage):
    async def use() -> None:
        first = checkpoint(timestamp="2026-01-01T10:00:00+00:00", state={"n": (1, {2})})
        second = checkpoint(timestamp="2026-01-01T10:30:00+02:00")
        other = checkpoint("flow/b", checkpoint_id="a/b", timestamp="2026-01-02T00:00:00+00:00")
        for each in (first, second, other):
            assert await storage.save(each) == each.checkpoint_id
        assert await storage.load(first.checkpoint_id) == first
        assert {each.checkpoint_id for each in await storage.list_checkpoints(workflow_name="flow")} == {
            first.checkpoint_id,
            second.checkpoint_id,
        }
        assert await storage.list_checkpoint_ids(workflow_name="flow/b") == ["a/b"]
        assert await storage.get_latest(workflow_name="flow") == first
        assert await storage.get_latest(workflow_name="flo") is None
        assert await storage.delete("a/b") is True
        assert await storage.delete("a/b") is False
        with pytest.raises(WorkflowCheckpointException, match="a/b"):
            await storage.load("a/b")

    asyncio.run(use())


def test_a_checkpoint_that_is_saved_again_replaces_the_first(storage):
    async def use() -> None:
        await storage.save(checkpoint(checkpoint_id="1", timestamp="2026-01-01T10:00:00", state={"n": 1}))
        await storage.save(checkpoint(checkpoint_id="1", timestamp="2026-01-01T11:00:00", state={"n": 2}))
        assert await storage.list_checkpoint_ids(workflow_name="flow") == ["1"]
        assert (await storage.load("1")).state == {"n": 2}

    asyncio.run(use())


def test_a_long_checkpoint_is_split(home, monkeypatch):
    monkeypatch.setattr(_large, "PART_CHARS", 100)
    monkeypatch.setattr(_large, "CALL_BYTES", 500)

    async def use() -> None:
        storage = ScrubjayCheckpoints()
        long = checkpoint(state={"text": "é" * 1000, "float": float("inf")})
        await storage.save(long)
        assert await storage.load(long.checkpoint_id) == long
        assert await storage.get_latest(workflow_name="flow") == long
        assert await storage.list_checkpoint_ids(workflow_name="flow") == [long.checkpoint_id]
        await storage.delete(long.checkpoint_id)

    asyncio.run(use())
    assert len(Memory("agent-framework-workflows")) == 0


def test_a_long_checkpoint_that_is_saved_again_is_replaced_whole_or_not_at_all(home, monkeypatch):
    monkeypatch.setattr(_large, "PART_CHARS", 100)
    monkeypatch.setattr(_large, "CALL_BYTES", 500)
    memory = Memory("ns", strict=True)
    storage = ScrubjayCheckpoints(memory)
    first, second = (checkpoint(checkpoint_id="1", state={"text": letter * 1000}) for letter in "ab")
    asyncio.run(storage.save(first))
    stored, set_ = len(memory), memory.set

    def fail_at(count):
        left = iter(range(count))

        def set_or_fail(*args, **kwargs):
            if next(left, None) is None:
                raise Unavailable("the process is killed here")
            return set_(*args, **kwargs)

        return set_or_fail

    for count in (0, 1, 5):
        memory.set = fail_at(count)
        with pytest.raises(Unavailable):
            asyncio.run(storage.save(second))
        assert asyncio.run(storage.load("1")) == first
    memory.set = set_
    asyncio.run(storage.save(second))
    assert asyncio.run(storage.load("1")) == second
    assert asyncio.run(storage.list_checkpoints(workflow_name="flow")) == [second]
    expiring = [item for item in memory.scan() if item.expires_at]
    assert len(expiring) == 1 + 5  # the parts of the saves that were killed
    assert len(memory) == stored + len(expiring)


class Own:
    """A class that the framework does not know."""

    def __eq__(self, other):
        return isinstance(other, Own)

    __hash__ = None


def test_a_class_that_is_not_allowed_is_refused_when_it_is_saved(home):
    async def use() -> None:
        own = checkpoint(state={"own": Own()})
        with pytest.raises(WorkflowCheckpointException, match="Own"):
            await ScrubjayCheckpoints().save(own)
        allowed = ScrubjayCheckpoints(allowed_checkpoint_types=[f"{Own.__module__}:Own"])
        await allowed.save(own)
        assert (await allowed.load(own.checkpoint_id)).state == {"own": Own()}
        with pytest.raises(WorkflowCheckpointException, match="ISO 8601"):
            await allowed.save(checkpoint(timestamp="yesterday"))

    asyncio.run(use())


def test_checkpoints_on_an_unreachable_server_raise(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1, strict=True)
    storage = ScrubjayCheckpoints(memory)
    for call in (storage.save(checkpoint()), storage.load("1"), storage.get_latest(workflow_name="flow")):
        with pytest.raises(Unavailable):
            asyncio.run(call)


WORKFLOW = """
    import asyncio, os, sys
    from agent_framework import WorkflowBuilder, WorkflowContext, executor
    from scrubjay.adapters.agent_framework import ScrubjayCheckpoints

    @executor(id="first")
    async def first(text: str, ctx: WorkflowContext[str]) -> None:
        print("first", flush=True)
        await ctx.send_message(text + " one")

    @executor(id="second")
    async def second(text: str, ctx: WorkflowContext[None, str]) -> None:
        if sys.argv[1] == "killed":
            print("second", flush=True)
            os.kill(os.getpid(), 9)
        await ctx.yield_output(text + " two")

    async def main():
        storage = ScrubjayCheckpoints()
        builder = WorkflowBuilder(start_executor=first, checkpoint_storage=storage, name="flow", output_from=[second])
        workflow = builder.add_edge(first, second).build()
        if sys.argv[1] == "killed":
            await workflow.run("text")
        latest = await storage.get_latest(workflow_name="flow")
        result = await workflow.run(checkpoint_id=latest.checkpoint_id)
        print(result.get_outputs())

    asyncio.run(main())
"""


def test_a_workflow_is_continued_after_kill_9(script):
    killed = script.start(WORKFLOW, "killed")
    assert killed.communicate(timeout=100)[0].split() == ["first", "second"]
    assert killed.returncode == -9
    assert script(WORKFLOW, "continued").strip() == "['text one two']"
