"""LlamaIndex: the chat store is compared with the framework's own, in SQLite."""

from __future__ import annotations

import asyncio
from datetime import date
from enum import StrEnum

import pytest

pytest.importorskip("llama_index.core", reason="LlamaIndex is not installed", exc_type=ImportError)

from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import Memory as AgentMemory
from llama_index.core.schema import TextNode
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from llama_index.core.storage.docstore.keyval_docstore import KVDocumentStore

from scrubjay import Memory, Unavailable
from scrubjay.adapters.llama_index import ScrubjayBlock, ScrubjayChatStore, ScrubjayKVStore

ACTIVE, ARCHIVED = MessageStatus.ACTIVE, MessageStatus.ARCHIVED


def said(text: str, role: MessageRole = MessageRole.USER) -> ChatMessage:
    return ChatMessage(role=role, content=text)


def contents(messages) -> list[str]:
    return [message.content for message in messages]


statuses = st.sampled_from([ACTIVE, ARCHIVED])
counts = st.integers(0, 4)
calls = st.one_of(
    st.tuples(st.just("add_messages"), st.lists(st.sampled_from("abc"), min_size=1, max_size=3), statuses),
    st.tuples(st.just("set_messages"), st.lists(st.sampled_from("xyz"), max_size=3), statuses),
    st.tuples(st.just("delete_messages"), st.none() | statuses),
    st.tuples(st.just("delete_oldest_messages"), counts),
    st.tuples(st.just("archive_oldest_messages"), counts),
    st.tuples(st.just("get_messages"), st.none() | statuses, st.none() | counts, st.none() | counts),
)


async def run(store, steps) -> list:
    seen = []
    for verb, *arguments in steps:
        if verb == "get_messages" and arguments[2] is not None and arguments[1] is None:
            arguments[1] = 100  # SQLite takes no offset without a limit
        if isinstance(arguments[0], list):
            arguments[0] = [said(text) for text in arguments[0]]
        result = await getattr(store, verb)("sarah", *arguments)
        seen.append(contents(result) if isinstance(result, list) else result)
        seen += [contents(await store.get_messages("sarah", status)) for status in (ACTIVE, ARCHIVED)]
        seen.append(await store.count_messages("sarah", None))
    return [*seen, await store.get_keys()]


async def run_in_sqlite(steps) -> list:
    store = SQLAlchemyChatStore("messages")
    try:
        return await run(store, steps)
    finally:
        await store._initialize()
        await store._async_engine.dispose()


@given(st.lists(calls, max_size=8))
@settings(max_examples=25, deadline=None)
def test_a_chat_store_behaves_as_the_one_in_sqlite(tmp_path_factory, steps):
    pytest.importorskip("aiosqlite")
    # There the order is always that in which messages were added. Here archived ones come first, in the order in which
    # they were archived, which is another one only if some are added as archived while others are active.
    steps = [step for step in steps if step[:2] != ("get_messages", None)]
    if any(step[0] == "archive_oldest_messages" for step in steps):
        steps = [step for step in steps if step[0] != "add_messages" or step[2] is ACTIVE]
    memory = Memory("ns", path=tmp_path_factory.mktemp("s") / "db", durability="fast", strict=True)
    expected = asyncio.run(run_in_sqlite(steps))
    found = asyncio.run(run(ScrubjayChatStore(memory), steps))
    memory.close()
    assert found[:-1] == expected[:-1]
    assert set(expected[-1]) <= set(found[-1])  # a session that has become empty may still be named


def test_archived_messages_come_before_active_ones(home):
    async def use() -> None:
        store = ScrubjayChatStore()
        await store.add_messages("sarah", [said(text) for text in "abcd"])
        assert contents(await store.archive_oldest_messages("sarah", 2)) == ["a", "b"]
        await store.add_message("sarah", said("e"))
        assert contents(await store.get_messages("sarah", None)) == list("abcde")
        assert contents(await store.get_messages("sarah", None, limit=2, offset=1)) == ["b", "c"]
        assert await store.count_messages("sarah", None) == 5
        assert contents([await store.delete_message("sarah", 1)]) == ["d"]
        assert await store.delete_message("sarah", 7) is None
        assert await store.get_keys() == ["sarah"]

    asyncio.run(use())
    memory = Memory("llama-index")
    assert memory.usage().writes_today == 4  # two calls that add, one that archives, one that deletes from a list
    (conversation, *_) = memory.conversations(session="sarah")
    assert conversation.preview == "e"


def test_of_several_processes_that_archive_each_message_is_moved_once(home):
    async def use() -> None:
        stores = [ScrubjayChatStore() for _ in range(4)]
        await stores[0].add_messages("sarah", [said(str(number)) for number in range(40)])
        moved = await asyncio.gather(*(store.archive_oldest_messages("sarah", 5) for store in stores * 2))
        assert sorted(int(text) for each in moved for text in contents(each)) == list(range(40))
        assert await stores[0].count_messages("sarah") == 0
        assert await stores[0].count_messages("sarah", ARCHIVED) == 40

    asyncio.run(use())


def test_a_memory_goes_on_with_another_store_and_recalls_what_has_left_the_queue(home):
    def open_memory():
        return AgentMemory.from_defaults(
            session_id="sarah",
            chat_store=ScrubjayChatStore(),
            memory_blocks=[ScrubjayBlock(session="sarah")],
            token_limit=60,
            chat_history_token_ratio=0.5,
            token_flush_size=20,
        )

    async def use() -> None:
        memory = open_memory()
        await memory.aput(said("My favourite nut is the walnut"))
        for number in range(12):
            await memory.aput(said(f"Something else, number {number}"))
        again = open_memory()
        await again.aput(said("Which nut do I like, the walnut?"))
        messages = await again.aget()
        assert "Which nut do I like, the walnut?" in contents(messages)
        assert "My favourite nut is the walnut" not in contents(messages)
        assert "My favourite nut is the walnut" in str(messages)

    asyncio.run(use())


def test_a_block_gives_notes_about_the_last_message_of_the_user(home):
    Memory("llama-index").remember("Sarah likes walnuts")

    async def use() -> None:
        block = ScrubjayBlock()
        assert "walnuts" in await block.aget([said("What does Sarah like?"), said("Hm", MessageRole.ASSISTANT)])
        assert await block.aget([]) == ""

    asyncio.run(use())


class Colour(StrEnum):
    BLUE = "blue"


def test_documents_and_values_of_frameworks_are_kept(home):
    store = ScrubjayKVStore()
    store.put("a/b", {"colour": Colour.BLUE, "day": date(2026, 1, 2)})
    assert ScrubjayKVStore().get("a/b") == {"colour": "blue", "day": "2026-01-02"}
    store.put_all([(f"k{number}", {"n": number}) for number in range(1200)], collection="many")
    assert len(store.get_all("many")) == 1200
    assert asyncio.run(store.aget_all()) == {"a/b": {"colour": "blue", "day": "2026-01-02"}}
    assert [store.delete("a/b"), store.delete("a/b"), store.get("a/b")] == [True, False, None]
    docstore = KVDocumentStore(ScrubjayKVStore())
    docstore.add_documents([TextNode(id_="1", text="walnuts", metadata={"page": 3})])
    again = KVDocumentStore(ScrubjayKVStore()).get_document("1")
    assert (again.text, again.metadata) == ("walnuts", {"page": 3})


def test_an_unreachable_server_is_not_an_empty_history(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1)
    store = ScrubjayChatStore(memory)
    for call in (store.get_messages("s"), store.get_messages("s", None), store.archive_oldest_messages("s", 1)):
        with pytest.raises(Unavailable):
            asyncio.run(call)


def test_another_process_goes_on_after_kill_9(script):
    code = """
        import asyncio, itertools, sys
        from llama_index.core.base.llms.types import ChatMessage
        from scrubjay.adapters.llama_index import ScrubjayChatStore
        async def main():
            store = ScrubjayChatStore()
            found = [message.content for message in await store.get_messages("sarah", None)]
            print(*found, flush=True)
            for number in itertools.count(len(found)) if sys.argv[1] == "write" else []:
                await store.add_message("sarah", ChatMessage(content=str(number)))
                if number % 3 == 0:
                    await store.archive_oldest_messages("sarah", 2)
                print(number, flush=True)
        asyncio.run(main())
    """
    writer = script.start(code, "write")
    seen = [writer.stdout.readline().strip() for _ in range(21)][1:]
    writer.kill()
    writer.communicate(timeout=60)
    found = script(code, "read").split()
    assert found[:20] == seen == [str(number) for number in range(20)]
    assert found == [str(number) for number in range(len(found))]
