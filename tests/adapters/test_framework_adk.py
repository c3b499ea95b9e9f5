"""Google ADK: sessions are compared with the framework's own, in memory."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("google.adk", reason="Google ADK is not installed")

from google.adk.agents import BaseAgent
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai.types import Blob, Content, Part
from hypothesis import given, settings
from hypothesis import strategies as st

from scrubjay import InvalidInput, Memory, Unavailable
from scrubjay.adapters.adk import ScrubjayMemoryService, ScrubjaySessionService

HERE = {"app_name": "app", "user_id": "sarah"}


def event(text: str, at: float = 1.0, *, author: str = "user", **changes) -> Event:
    content = Content(role="user" if author == "user" else "model", parts=[Part(text=text)])
    return Event(
        author=author, content=content, timestamp=at, actions=EventActions(state_delta=changes.get("delta", {}))
    )


def texts(session) -> list[str]:
    return [each.content.parts[0].text for each in session.events]


@pytest.fixture(params=[InMemorySessionService, ScrubjaySessionService])
def service(request, home):
    return request.param()


def test_a_session_is_created_read_listed_and_deleted(service):
    async def use() -> None:
        made = await service.create_session(**HERE, session_id="  s1 ", state={"n": 1, "user:name": "Sarah"})
        assert (made.id, made.state) == ("s1", {"n": 1, "user:name": "Sarah"})
        with pytest.raises(AlreadyExistsError):
            await service.create_session(**HERE, session_id="s1")
        other = await service.create_session(app_name="app", user_id="tom", state={"app:motto": "x"})
        await service.create_session(app_name="app2", user_id="tom")
        for text, at in (("a", 5e9), ("b", 6e9)):
            await service.append_event(made, event(text, at))
        found = await service.get_session(**HERE, session_id="s1")
        assert (texts(found), found.last_update_time) == (["a", "b"], 6e9)
        assert found.state == {"n": 1, "user:name": "Sarah", "app:motto": "x"}
        listed = (await service.list_sessions(app_name="app")).sessions
        assert [(each.id, each.events) for each in listed] == [(other.id, []), ("s1", [])]
        assert [each.id for each in (await service.list_sessions(**HERE)).sessions] == ["s1"]
        assert await service.get_user_state(**HERE) == {"name": "Sarah"}
        assert await service.get_session(**HERE, session_id="none") is None
        await service.delete_session(**HERE, session_id="s1")
        assert await service.get_session(**HERE, session_id="s1") is None
        again = await service.create_session(**HERE, session_id="s1")
        assert (again.state, (await service.get_session(**HERE, session_id="s1")).events) == (
            {"user:name": "Sarah", "app:motto": "x"},
            [],
        )

    asyncio.run(use())


def test_state_is_kept_where_its_prefix_says(service):
    async def use() -> None:
        session = await service.create_session(**HERE, session_id="s")
        delta = {"n": 1, "user:city": "Ulm", "app:motto": "x", "temp:now": True}
        await service.append_event(session, event("a", delta=delta))
        assert session.state == delta
        found = await service.get_session(**HERE, session_id="s")
        assert found.state == {name: delta[name] for name in ("n", "user:city", "app:motto")}
        assert found.events[0].actions.state_delta == found.state
        other = await service.create_session(**HERE, session_id="t")
        assert other.state == {"user:city": "Ulm", "app:motto": "x"}
        assert (await service.create_session(app_name="app", user_id="tom")).state == {"app:motto": "x"}

    asyncio.run(use())


def test_an_event_with_all_its_changes_is_one_write_and_none_removes_shared_state(home):
    async def use() -> None:
        service, memory = ScrubjaySessionService(), Memory("adk")
        session = await service.create_session(**HERE, session_id="s")
        before = memory.usage().writes_today
        await service.append_event(session, event("a", delta={"n": 1, "user:city": "Ulm", "app:motto": "x"}))
        assert memory.usage().writes_today == before + 1
        await service.append_event(session, event("b", delta={"user:city": None, "app:motto": None}))
        assert (await service.get_session(**HERE, session_id="s")).state == {"n": 1}

    asyncio.run(use())


def test_an_event_is_known_among_the_last_20(home):
    async def use() -> None:
        service = ScrubjaySessionService()
        session = await service.create_session(**HERE, session_id="s")
        first = event("first")
        for each in (first, *(event(str(number)) for number in range(19)), first.model_copy(deep=True)):
            await service.append_event(session, each)
        assert len((await service.get_session(**HERE, session_id="s")).events) == 20

    asyncio.run(use())


def test_an_event_that_is_appended_twice_is_stored_once(service):
    async def use() -> None:
        session = await service.create_session(**HERE, session_id="s")
        first = event("a", delta={"n": 1})
        await service.append_event(session, first)
        await service.append_event(session, first.model_copy(deep=True))
        partial = event("b")
        partial.partial = True
        await service.append_event(session, partial)
        assert texts(session) == texts(await service.get_session(**HERE, session_id="s")) == ["a"]
        await service.delete_session(**HERE, session_id="s")
        with pytest.raises(SessionNotFoundError):
            await service.append_event(session, event("c"))

    asyncio.run(use())


def test_bytes_and_calls_come_back(service):
    async def use() -> None:
        session = await service.create_session(**HERE, session_id="s")
        parts = [
            Part(inline_data=Blob(mime_type="image/png", data=b"\x89PNG\xff")),
            Part.from_function_call(name="weather", args={"city": "Ulm"}),
            Part.from_function_response(name="weather", response={"rain": True}),
        ]
        stored = Event(author="bot", content=Content(role="model", parts=parts), timestamp=2.0)
        await service.append_event(session, stored)
        assert (await service.get_session(**HERE, session_id="s")).events == [stored]

    asyncio.run(use())


configs = st.builds(
    GetSessionConfig,
    num_recent_events=st.none() | st.integers(0, 6),
    after_timestamp=st.none() | st.integers(0, 6).map(float),
)


@given(st.lists(st.integers(0, 6), max_size=6), configs)
@settings(max_examples=40, deadline=None)
def test_the_latest_events_are_those_of_the_service_in_memory(tmp_path_factory, times, config):
    memory = Memory("ns", path=tmp_path_factory.mktemp("s") / "db", durability="fast", strict=True)

    async def use(service) -> list[str]:
        session = await service.create_session(**HERE, session_id="s")
        for number, at in enumerate(times):
            await service.append_event(session, event(str(number), float(at)))
        return texts(await service.get_session(**HERE, session_id="s", config=config))

    assert asyncio.run(use(ScrubjaySessionService(memory))) == asyncio.run(use(InMemorySessionService()))
    memory.close()


def test_two_processes_that_go_on_with_one_session_lose_nothing(home):
    async def use() -> None:
        services = [ScrubjaySessionService() for _ in range(3)]
        await services[0].create_session(**HERE, session_id="s")
        sessions = [await service.get_session(**HERE, session_id="s") for service in services]
        await asyncio.gather(
            *(
                service.append_event(session, event(f"{number}-{index}", delta={f"n{number}": index}))
                for index in range(5)
                for number, (service, session) in enumerate(zip(services, sessions, strict=True))
            )
        )
        found = await services[0].get_session(**HERE, session_id="s")
        assert sorted(texts(found)) == sorted(f"{number}-{index}" for number in range(3) for index in range(5))
        assert set(found.state) == {"n0", "n1", "n2"}

    asyncio.run(use())


def test_the_events_of_a_session_are_a_conversation(home):
    async def use() -> None:
        service = ScrubjaySessionService()
        session = await service.create_session(**HERE, session_id="s")
        await service.append_event(session, event("Hello"))
        await service.append_event(session, event("Hi, Sarah", author="bot"))

    asyncio.run(use())
    memory = Memory("adk")
    (conversation,) = memory.conversations()
    assert (conversation.session, conversation.messages) == ("app/sarah/s", 2)
    assert [message.message for message in memory.conversation("app/sarah/s")] == ["Hello", "Hi, Sarah"]
    assert memory.forget_session("app/sarah/s")
    assert asyncio.run(ScrubjaySessionService().list_sessions(app_name="app")).sessions == []


def test_what_was_said_is_found_by_its_words_and_only_by_its_user(home):
    async def use() -> None:
        sessions, memory = ScrubjaySessionService(), ScrubjayMemoryService()
        session = await sessions.create_session(**HERE, session_id="s")
        for text in ("I like walnuts", "We decided on PostgreSQL"):
            await sessions.append_event(session, event(text, 1e9))
        await memory.add_session_to_memory(session)
        await memory.add_session_to_memory(session)
        assert len(Memory("adk").notes()) == 2
        found, *_ = (await memory.search_memory(**HERE, query="Which nut, a walnut?")).memories
        assert (found.content.parts[0].text, found.author) == ("I like walnuts", "user")
        assert found.timestamp == "2001-09-09T01:46:40+00:00"
        assert (await memory.search_memory(app_name="app", user_id="tom", query="walnut")).memories == []
        await memory.delete_memory(app_name="app", user_id="tom", memory_id=found.id)
        assert len(Memory("adk").notes()) == 2
        await memory.delete_memory(**HERE, memory_id=found.id)
        await memory.add_session_to_memory(session)
        assert (await memory.search_memory(**HERE, query="walnut")).memories == []
        await memory.add_events_to_memory(**HERE, events=[event("Walnut trees are tall")], session_id="t")
        entry = MemoryEntry(content=Content(parts=[Part(text="A walnut is a drupe")]), custom_metadata={"k": 1})
        await memory.add_memory(**HERE, memories=[entry])
        found = (await memory.search_memory(**HERE, query="walnut drupe")).memories
        assert [each.content.parts[0].text for each in found[:2]] == ["A walnut is a drupe", "Walnut trees are tall"]
        assert found[0].custom_metadata == {"k": 1}
        assert (await memory.search_memory(**HERE, query=" ")).memories == []

    asyncio.run(use())


class Counting(BaseAgent):
    """Says how many events its session has."""

    async def _run_async_impl(self, context):
        text = f"{len(context.session.events)} events"
        yield Event(author=self.name, content=Content(role="model", parts=[Part(text=text)]))


def test_a_runner_goes_on_with_another_service(home):
    async def ask() -> str:
        service = ScrubjaySessionService()
        if await service.get_session(**HERE, session_id="s") is None:
            await service.create_session(**HERE, session_id="s")
        runner = Runner(app_name="app", agent=Counting(name="bot"), session_service=service)
        message = Content(role="user", parts=[Part(text="Hi")])
        return [
            each.content.parts[0].text
            async for each in runner.run_async(user_id="sarah", session_id="s", new_message=message)
        ]

    assert [asyncio.run(ask()) for _ in range(2)] == [["1 events"], ["3 events"]]


def test_an_unreachable_server_is_not_an_empty_session(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1, strict=True)
    service = ScrubjaySessionService(memory)
    for call in (
        service.get_session(**HERE, session_id="s"),
        service.list_sessions(**HERE),
        service.create_session(**HERE, session_id="s"),
    ):
        with pytest.raises(Unavailable):
            asyncio.run(call)


def test_another_process_goes_on_after_kill_9(script):
    code = """
        import asyncio, itertools, sys
        from google.adk.events.event import Event
        from google.adk.events.event_actions import EventActions
        from google.genai.types import Content, Part
        from scrubjay.adapters.adk import ScrubjaySessionService
        here = {"app_name": "app", "user_id": "sarah", "session_id": "s"}
        async def main():
            service = ScrubjaySessionService()
            session = await service.get_session(**here) or await service.create_session(**here)
            print(*(each.content.parts[0].text for each in session.events), session.state.get("n"), flush=True)
            for number in itertools.count(len(session.events)) if sys.argv[1] == "write" else []:
                event = Event(author="user", content=Content(parts=[Part(text=str(number))]))
                event.actions = EventActions(state_delta={"n": number})
                await service.append_event(session, event)
                print(number, flush=True)
        asyncio.run(main())
    """
    writer = script.start(code, "write")
    seen = [writer.stdout.readline().strip() for _ in range(21)][1:]
    writer.kill()
    writer.communicate(timeout=60)
    *found, state = script(code, "read").split()
    assert found[:20] == seen == [str(number) for number in range(20)]
    assert state == found[-1]


def test_the_names_of_a_session_have_at_most_126_bytes_together(home):
    async def run():
        service = ScrubjaySessionService()
        await service.create_session(app_name="app", user_id="u", session_id="s" * 122)
        with pytest.raises(InvalidInput, match="128 bytes"):
            await service.create_session(app_name="app", user_id="u", session_id="s" * 123)

    asyncio.run(run())
