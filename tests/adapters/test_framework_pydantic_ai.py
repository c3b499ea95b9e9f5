"""Conversations of Pydantic AI, compared with the framework's own store in memory."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("pydantic_ai.conversation_store", reason="Pydantic AI 2.66 or newer is not installed")

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, InMemoryConversationStore
from pydantic_ai.models.test import TestModel

from scrubjay import Memory, Unavailable
from scrubjay.adapters.pydantic_ai import ScrubjayConversations


@pytest.fixture(params=["memory", "scrubjay"])
def open_store(request, home):
    """A maker of stores that share their data; each test runs on the framework's own store as well."""
    own = InMemoryConversationStore()
    return lambda: own if request.param == "memory" else ScrubjayConversations()


async def turn(store, name: str, text: str, **options) -> None:
    conversation = await store.load(name) or Conversation(conversation_id=name)
    result = await Agent(TestModel(custom_output_text=f"heard {text}")).run(text, conversation=conversation)
    await store.save(result, **options)


def texts(conversation) -> list[str]:
    return [part.content for message in conversation.messages for part in message.parts]


def test_a_conversation_goes_on(open_store):
    async def use() -> None:
        assert await open_store().load("sarah") is None
        await turn(open_store(), "sarah", "one")
        await turn(open_store(), "sarah", "two")
        assert texts(await open_store().load("sarah")) == ["one", "heard one", "two", "heard two"]
        assert texts(await open_store().load("sarah", limit=2)) == ["two", "heard two"]

    asyncio.run(use())


def test_of_two_writers_the_second_is_told(open_store):
    async def use() -> None:
        store = open_store()
        await turn(store, "sarah", "one")
        stale = await store.load("sarah")
        await turn(store, "sarah", "two")
        result = await Agent(TestModel()).run("late", conversation=stale)
        with pytest.raises(ConversationConflict):
            await store.save(result)
        assert len(texts(await store.load("sarah"))) == 4

    asyncio.run(use())


def test_a_fork_keeps_its_history_when_the_first_is_deleted(open_store):
    async def use() -> None:
        store = open_store()
        await turn(store, "sarah", "one")
        fork = await store.fork("sarah")
        await turn(store, fork.conversation_id, "two")
        await store.delete("sarah")
        assert await store.load("sarah") is None
        assert texts(await store.load(fork.conversation_id)) == ["one", "heard one", "two", "heard two"]
        await store.delete(fork.conversation_id)
        assert await store.list_conversations() == []

    asyncio.run(use())


def test_conversations_are_listed_by_scope_the_latest_first(open_store):
    async def use() -> None:
        store = open_store()
        for name, scope in (("a", "x"), ("b", "y"), ("c", "x")):
            await turn(store, name, "hi", scope=scope)
        found = await store.list_conversations(scope="x")
        assert [record.conversation_id for record in found] == ["c", "a"]
        assert len(await store.list_conversations(limit=1)) == 1

    asyncio.run(use())


def test_the_messages_are_a_conversation_and_a_save_is_one_write(home):
    asyncio.run(turn(ScrubjayConversations(), "sarah", "one"))
    memory = Memory("pydantic-ai")
    assert memory.usage().writes_today == 1
    (conversation,) = memory.conversations()
    assert (conversation.session, conversation.messages) == ("sarah", 2)
    assert [message.message for message in memory.conversation("sarah")] == ["one", "heard one"]


def test_deleting_leaves_nothing(home):
    async def use() -> None:
        store = ScrubjayConversations()
        await turn(store, "sarah", "one")
        await store.delete("sarah")

    asyncio.run(use())
    assert Memory("pydantic-ai").keys() == []


@pytest.mark.parametrize("name", ["sarah", "default"])
def test_a_conversation_starts_anew_after_forget_session(home, name):
    async def use() -> None:
        store, memory = ScrubjayConversations(), Memory("pydantic-ai")
        await turn(store, name, "one")
        await turn(store, "anna", "one")
        assert memory.forget_session(name) == 2
        assert await store.load(name) is None
        assert [record.conversation_id for record in await store.read_records()] == ["anna"]
        await turn(store, name, "two")
        assert texts(await store.load(name)) == ["two", "heard two"]
        assert {record.conversation_id for record in await store.read_records()} == {name, "anna"}

    asyncio.run(use())


def test_an_unreachable_server_is_not_a_new_conversation(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1)
    store = ScrubjayConversations(memory)

    async def save() -> None:
        await store.save(await Agent(TestModel()).run("Hi", conversation=Conversation(conversation_id="sarah")))

    for call in (store.load("sarah"), save()):
        with pytest.raises(Unavailable):
            asyncio.run(call)


def test_another_process_goes_on_after_kill_9(script):
    code = """
        import asyncio, itertools, sys
        from pydantic_ai import Agent
        from pydantic_ai.conversation import Conversation
        from pydantic_ai.models.test import TestModel
        from scrubjay.adapters.pydantic_ai import ScrubjayConversations
        async def main():
            store = ScrubjayConversations()
            for number in itertools.count() if sys.argv[1] == "write" else ["again"]:
                conversation = await store.load("sarah") or Conversation(conversation_id="sarah")
                await store.save(await Agent(TestModel()).run(str(number), conversation=conversation))
                print(number, flush=True)
            found = await store.load("sarah")
            print(*(message.parts[0].content for message in found.messages[::2]))
        asyncio.run(main())
    """
    writer = script.start(code, "write")
    for _ in range(5):
        assert writer.stdout.readline()
    writer.kill()
    writer.communicate(timeout=60)
    found = script(code, "read").splitlines()[-1].split()
    assert found[-1] == "again"
    assert len(found) > 5
    assert found[:-1] == [str(number) for number in range(len(found) - 1)]
