"""ag2 1.x: streams and knowledge are compared with the framework's own, in memory."""

from __future__ import annotations

import asyncio
import uuid

import pytest

pytest.importorskip("ag2.knowledge", reason="ag2 1.2 or newer is not installed")

from ag2 import Agent, tool
from ag2.events import ModelRequest, TextInput, ToolCallEvent
from ag2.events._serialization import serialize_value
from ag2.history import MemoryStorage
from ag2.knowledge import KnowledgeStore, MemoryKnowledgeStore
from ag2.stream import MemoryStream
from ag2.testing import TestConfig
from hypothesis import given, settings
from hypothesis import strategies as st

from scrubjay import AsyncMemory, InvalidInput, Memory, Unavailable
from scrubjay.adapters.ag2 import ScrubjayKnowledgeStore, ScrubjayStorage


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def request(text: str) -> ModelRequest:
    return ModelRequest([TextInput(text)])


def texts(events) -> list[str]:
    return [event.parts[0].content for event in events]


async def run_turns(open_storage, **options) -> list:
    """What is stored after two turns, each with a tool, by a new agent each."""
    for text in ("weather?", "again?"):
        answers = TestConfig(ToolCallEvent(id="1", name="weather", arguments='{"city": "Ulm"}'), "It rains")
        stream = MemoryStream(open_storage(), id="sarah", **options)
        await Agent("Forecast", config=answers, tools=[weather]).ask(text, stream=stream)
    return [without_times(serialize_value(event)) for event in await open_storage().get_history("sarah")]


def without_times(value):
    if isinstance(value, dict):
        return {name: without_times(part) for name, part in value.items() if name != "created_at"}
    return [without_times(part) for part in value] if isinstance(value, list) else value


async def save(storage, *words: str) -> None:
    class Context:
        stream = MemoryStream(storage, id="sarah")

    for word in words:
        await storage.save_event(request(word), Context)


# ------------------------------------------------------------ streams


@pytest.mark.parametrize("persist_all", [False, True])
def test_a_stream_stores_what_it_stores_in_memory(home, persist_all):
    own = MemoryStorage()
    stored = asyncio.run(run_turns(ScrubjayStorage, persist_all=persist_all))
    assert stored == asyncio.run(run_turns(lambda: own, persist_all=persist_all))
    assert len(stored) == (16 if persist_all else 14)


def test_the_history_is_a_conversation(home):
    asyncio.run(run_turns(ScrubjayStorage))
    memory = Memory("ag2")
    assert memory.usage().writes_today == 14  # for two turns: 2 each, and 5 for the tool
    (conversation,) = memory.conversations()
    assert (conversation.session, conversation.preview) == ("sarah", "It rains")
    found = memory.conversation("sarah")
    assert [message.role for message in found] == ["user", "assistant", "tool", "assistant"] * 2
    assert found[1].tool_calls[0]["arguments"] == {"city": "Ulm"}
    assert found[2].tool_results[0]["content"] == "rain in Ulm"


def test_a_history_is_replaced_and_dropped(home):
    async def use() -> None:
        storage = ScrubjayStorage(AsyncMemory("ag2"))
        await save(storage, "a", "b")
        await storage.set_history("sarah", [request("c")])
        assert texts(await ScrubjayStorage().get_history("sarah")) == ["c"]
        await save(storage, "d")
        assert texts(await storage.get_history("sarah")) == ["c", "d"]
        await storage.drop_history("sarah")
        assert await storage.get_history("sarah") == []
        assert await storage.get_history(uuid.uuid4()) == []

    asyncio.run(use())


def test_a_replaced_history_keeps_what_another_process_has_added_meanwhile(home):
    async def use() -> None:
        storage, other = ScrubjayStorage(), ScrubjayStorage()
        await save(storage, "a", "b")
        assert texts(await storage.get_history("sarah")) == ["a", "b"]
        await save(storage, "c")
        await save(other, "d")
        await storage.set_history("sarah", [request("a to c")])
        assert texts(await storage.get_history("sarah")) == ["a to c", "d"]
        await storage.set_history("sarah", [request("all")])
        assert texts(await other.get_history("sarah")) == ["all"]

    asyncio.run(use())


def test_an_unreachable_server_is_not_an_empty_history(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1)
    storage = ScrubjayStorage(memory)
    agent = Agent("Forecast", config=TestConfig("It rains"))
    for call in (
        storage.get_history("sarah"),
        storage.set_history("sarah", []),
        agent.ask("Hi", stream=MemoryStream(storage, id="sarah")),
    ):
        with pytest.raises(Unavailable):
            asyncio.run(call)


# ------------------------------------------------------------ knowledge

PATHS = st.sampled_from(["/", "/a", "a/", "/a/b", "/a//b.txt", "/ab", "/c_/d", "/c%/d", ""])
TEXTS = st.text("aé\n", max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("write"), PATHS, TEXTS),
    st.tuples(st.just("append"), PATHS, TEXTS),
    st.tuples(st.sampled_from(["read", "list", "exists", "delete"]), PATHS),
    st.tuples(st.just("read_range"), PATHS, st.integers(0, 8), st.none() | st.integers(0, 8)),
)


async def outcome(store, step):
    try:
        return await getattr(store, step[0])(*step[1:])
    except UnicodeDecodeError:
        return "inside of a character"


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEPS, max_size=12))
def test_a_knowledge_store_answers_as_the_one_in_memory(tmp_path_factory, steps):
    path = tmp_path_factory.getbasetemp() / "knowledge.db"

    async def use() -> None:
        own = MemoryKnowledgeStore()
        stored = ScrubjayKnowledgeStore(Memory(uuid.uuid4().hex, path=path, durability="fast"))
        assert isinstance(stored, KnowledgeStore)
        for step in steps:
            assert await outcome(stored, step) == await outcome(own, step), step

    asyncio.run(use())


def test_the_end_of_a_long_text_is_read_without_its_start(home):
    async def use() -> None:
        store = ScrubjayKnowledgeStore()
        positions = [await store.append("/log", f"line {number}\n") for number in range(200)]
        counts = []
        tail = store._memory.tail
        store._memory.tail = lambda key, count: counts.append(count) or tail(key, count)
        assert await store.read_range("/log", positions[198]) == "line 198\nline 199\n"
        assert counts == [16]
        assert await store.read_range("/log", positions[3], positions[5]) == "line 3\nline 4\n"
        assert len(await store.read("/log")) == positions[199] + len("line 199\n")

    asyncio.run(use())


def test_changes_of_other_stores_are_told_until_the_subscription_is_closed(home):
    async def use() -> None:
        seen: asyncio.Queue[str] = asyncio.Queue()

        async def tell(path: str) -> None:
            await seen.put(path)
            if path == "/a/bad":
                raise RuntimeError("a callback may fail")

        store, other = ScrubjayKnowledgeStore(), ScrubjayKnowledgeStore()
        subscription = await store.on_change("/a", tell)
        await other.write("/ab", "not below")
        await other.write("/a/bad", "1")
        await other.append("/a/b", "2")
        await other.delete("/a/b")
        assert [await asyncio.wait_for(seen.get(), 60) for _ in range(3)] == ["/a/bad", "/a/b", "/a/b"]
        await subscription.close()
        await other.write("/a/b", "3")
        later = await store.on_change("/c", tell)
        await other.write("/c", "4")
        assert await asyncio.wait_for(seen.get(), 60) == "/c"
        store._memory.close()
        await later.close()

    asyncio.run(use())


def test_knowledge_on_an_unreachable_server_raises(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1, strict=True)
    store = ScrubjayKnowledgeStore(memory)
    for call in (
        store.read("/a"),
        store.write("/a", "b"),
        store.append("/a", "b"),
        store.list("/"),
        store.delete("/a"),
    ):
        with pytest.raises(Unavailable):
            asyncio.run(call)


# ------------------------------------------------------------ both, in several processes

PROGRAM = """
    import asyncio, itertools, sys
    from ag2 import Agent
    from ag2.events import ModelRequest
    from ag2.stream import MemoryStream
    from ag2.testing import TestConfig
    from scrubjay.adapters.ag2 import ScrubjayKnowledgeStore, ScrubjayStorage

    async def main(name, count):
        storage, store = ScrubjayStorage(), ScrubjayKnowledgeStore()
        for number in itertools.count() if count == "all" else range(int(count)):
            agent = Agent("Echo", config=TestConfig("yes"))
            await agent.ask(f"{name}{number}", stream=MemoryStream(storage, id="sarah"))
            print(f"{name}{number};", await store.append("/log", f"{name}{number};"), flush=True)

    asyncio.run(main(*sys.argv[1:]))
"""


def stored() -> tuple[list[str], str]:
    """What was asked, and the text."""
    asked = [message.message for message in Memory("ag2").conversation("sarah", limit=1000) if message.role == "user"]
    return asked, asyncio.run(ScrubjayKnowledgeStore().read("/log"))


def test_processes_that_write_at_once_lose_nothing(script):
    outputs = [process.communicate(timeout=200) for process in [script.start(PROGRAM, name, 20) for name in "ab"]]
    assert [errors for _, errors in outputs] == ["", ""]
    asked, text = stored()
    assert sorted(asked) == sorted(f"{name}{number}" for name in "ab" for number in range(20))
    assert [each for each in asked if each.startswith("a")] == [f"a{number}" for number in range(20)]
    places = [line.split() for output, _ in outputs for line in output.splitlines()]
    assert all(text[int(at) :].startswith(piece) for piece, at in places)
    assert len(text) == sum(len(piece) for piece, _ in places)


def test_another_process_goes_on_after_kill_9(script):
    writer = script.start(PROGRAM, "a", "all")
    assert [writer.stdout.readline().split()[0] for _ in range(10)] == [f"a{number};" for number in range(10)]
    writer.kill()
    writer.communicate(timeout=60)
    asked, text = stored()
    assert len(asked) >= 10
    assert asked == [f"a{number}" for number in range(len(asked))]
    assert text in ("".join(f"{each};" for each in asked), "".join(f"{each};" for each in asked[:-1]))
    assert script(PROGRAM, "b", 1).split() == ["b0;", str(len(text))]
    assert stored() == ([*asked, "b0"], f"{text}b0;")


def test_a_path_has_at_most_508_bytes(home):
    async def run():
        store = ScrubjayKnowledgeStore()
        longest = "/" + "x" * 507
        await store.write(longest, "tea")
        await store.append(longest, " and cake")
        assert await store.read(longest) == "tea and cake"
        with pytest.raises(InvalidInput, match="at most 512"):
            await store.write(f"{longest}x", "tea")

    asyncio.run(run())
