"""Sessions of the OpenAI Agents SDK."""

from __future__ import annotations

import asyncio
import threading

import pytest

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed")

from agents import Agent, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.models.interface import Model
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from scrubjay import AsyncMemory, InvalidInput, Memory, Unavailable
from scrubjay.adapters.openai_agents import ScrubjaySession


def item(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_history_is_read_from_its_end_and_by_another_session(home):
    async def use() -> None:
        session = ScrubjaySession("sarah")
        await session.add_items([item("a"), item("b"), item("c")])
        again = ScrubjaySession("sarah", AsyncMemory("openai-agents"))
        assert await again.get_items() == [item("a"), item("b"), item("c")]
        assert await again.get_items(limit=2) == [item("b"), item("c")]
        assert await again.get_items(limit=0) == []
        assert await ScrubjaySession("tom").get_items() == []
        limited = ScrubjaySession("sarah", session_settings={"limit": 1})
        assert await limited.get_items() == [item("c")]
        await session.clear_session()
        assert await again.get_items() == []

    asyncio.run(use())


@pytest.mark.parametrize("items", ["hi", b"hi", {"role": "user", "content": "hi"}, 5])
def test_what_is_no_list_of_items_is_refused(home, items):
    session = ScrubjaySession("sarah")
    with pytest.raises(InvalidInput, match=r"^add_items takes a list of items, not "):
        asyncio.run(session.add_items(items))
    assert asyncio.run(session.get_items()) == []


def test_a_popped_item_goes_to_one_caller(home):
    async def use() -> None:
        session = ScrubjaySession("sarah")
        await session.add_items([item(str(n)) for n in range(20)])
        popped = await asyncio.gather(*(session.pop_item() for _ in range(25)))
        assert sorted(int(each["content"]) for each in popped if each) == list(range(20))
        assert await session.pop_item() is None
        await session.clear_session()

    asyncio.run(use())
    assert Memory("openai-agents").usage().writes_today == 1


def test_the_history_is_a_conversation(home):
    asyncio.run(ScrubjaySession("sarah").add_items([item("Hello"), {"role": "assistant", "content": "Hi, Sarah"}]))
    memory = Memory("openai-agents")
    (conversation,) = memory.conversations()
    assert (conversation.session, conversation.messages, conversation.preview) == ("sarah", 2, "Hi, Sarah")
    assert [message.message for message in memory.conversation("sarah")] == ["Hello", "Hi, Sarah"]
    assert memory.search("hello")[0].position == 0


def test_an_unreachable_server_is_not_an_empty_history(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1)
    session = ScrubjaySession("sarah", memory)
    for read in (session.get_items(), session.get_items(5), session.pop_item()):
        with pytest.raises(Unavailable):
            asyncio.run(read)


def test_a_cancelled_write_has_happened_when_the_caller_goes_on(home):
    started, go_on = threading.Event(), threading.Event()

    async def use() -> None:
        session = ScrubjaySession("sarah")
        append = session._memory.append

        def slow(*args):
            started.set()
            go_on.wait(60)
            return append(*args)

        session._memory.append = slow
        task = asyncio.create_task(session.add_items([item("a")]))
        await asyncio.to_thread(started.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await session.get_items() == [item("a")]

    asyncio.run(use())


def test_a_name_that_is_too_long_is_refused_at_once(home):
    with pytest.raises(InvalidInput, match="128 bytes"):
        ScrubjaySession("x" * 200)


def test_another_process_goes_on_after_kill_9(script):
    writer = script.start("""
        import asyncio, itertools
        from scrubjay.adapters.openai_agents import ScrubjaySession
        async def main():
            session = ScrubjaySession("sarah")
            for number in itertools.count():
                await session.add_items([{"role": "user", "content": str(number)}])
                print(number, flush=True)
        asyncio.run(main())
    """)
    seen = [int(writer.stdout.readline()) for _ in range(20)]
    writer.kill()
    writer.communicate(timeout=60)
    found = script("""
        import asyncio
        from scrubjay.adapters.openai_agents import ScrubjaySession
        session = ScrubjaySession("sarah")
        asyncio.run(session.add_items([{"role": "user", "content": "again"}]))
        print(*(item["content"] for item in asyncio.run(session.get_items())))
    """).split()
    assert found[:20] == [str(number) for number in seen]
    assert found[-1] == "again"
    assert found[:-1] == [str(number) for number in range(len(found) - 1)]


class Echo(Model):
    """Answers with how many items it was given."""

    async def get_response(self, system_instructions, input, *args, **kwargs):  # noqa: A002
        text = ResponseOutputText(type="output_text", text=f"{len(input)} items", annotations=[])
        message = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


def test_an_agent_remembers_what_was_said_in_another_run(home):
    async def use() -> None:
        set_tracing_disabled(disabled=True)
        agent = Agent(name="Assistant", model=Echo())
        for expected in ("1 items", "3 items"):
            result = await Runner.run(agent, "Hi", session=ScrubjaySession("sarah"))
            assert result.final_output == expected

    asyncio.run(use())
