"""Strands Agents: storage, sessions and memory stores."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("strands.storage", reason="Strands Agents 1.62 or newer is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st
from strands import Agent
from strands.memory import MemoryManager
from strands.models import Model
from strands.session import RepositorySessionManager
from strands.session.snapshot_session_manager import SnapshotSessionManager
from strands.storage import InMemoryStorage
from strands.types.exceptions import SessionException, StorageError
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

from scrubjay import Memory, Unavailable
from scrubjay.adapters import _large
from scrubjay.adapters.strands import ScrubjayMemoryStore, ScrubjaySessionRepository, ScrubjayStorage


class Counting(Model):
    """Says how many messages it was given."""

    def __init__(self):
        self.given = []

    def update_config(self, **_):
        """There is none."""

    def get_config(self):
        return {}

    def structured_output(self, *_, **__):
        raise NotImplementedError

    async def stream(self, messages, *_, **__):
        self.given.append(messages)
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": f"{len(messages)} messages"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def open_agent(**options) -> Agent:
    return Agent(model=Counting(), callback_handler=None, agent_id="assistant", **options)


def open_repository(memory="strands") -> RepositorySessionManager:
    return RepositorySessionManager("sarah", ScrubjaySessionRepository(memory))


@pytest.mark.parametrize(
    "open_manager",
    [open_repository, lambda: SnapshotSessionManager("sarah", storage=ScrubjayStorage(), save_latest_on="message")],
)
@pytest.mark.filterwarnings("ignore:context_window_limit", "ignore:Agent-level storage")
def test_an_agent_goes_on_where_another_one_stopped(home, open_manager):
    assert str(open_agent(session_manager=open_manager())("Hi")).strip() == "1 messages"
    agent = open_agent(session_manager=open_manager())
    agent.state.set("city", "Ulm")
    assert str(agent("Again")).strip() == "3 messages"
    again = open_agent(session_manager=open_manager())
    assert len(again.messages) == 4
    assert again.state.get("city") == "Ulm"


@pytest.mark.filterwarnings("ignore:context_window_limit", "ignore:Agent-level storage")
def test_the_messages_of_an_agent_are_a_conversation(home):
    agent = open_agent(session_manager=open_repository())
    memory = Memory("strands")
    agent("Hello")
    (conversation,) = memory.conversations()
    assert (conversation.session, conversation.messages) == ("sarah", 2)
    before = memory.usage().writes_today
    agent("Again")
    assert memory.usage().writes_today == before + 2
    open_agent(session_manager=open_repository())("Hello again")
    assert memory.usage().writes_today == before + 2 + 3
    found = memory.conversation("sarah")[:2]
    assert [(message.role, message.message) for message in found] == [("user", "Hello"), ("assistant", "1 messages")]


def message(number: int, text: str) -> SessionMessage:
    return SessionMessage({"role": "user", "content": [{"text": text}]}, number)


@pytest.fixture
def repository(home):
    made = ScrubjaySessionRepository()
    made.create_session(Session("s", SessionType.AGENT))
    made.create_agent("s", SessionAgent("a", {}, {}))
    return made


def test_messages_are_read_by_number_and_redacted(repository):
    for number in range(5):
        repository.create_message("s", "a", message(number * 2, f"text {number}"))
    assert [each.message_id for each in repository.list_messages("s", "a", limit=2, offset=1)] == [2, 4]
    assert repository.read_message("s", "a", 6).message["content"] == [{"text": "text 3"}]
    assert repository.read_message("s", "a", 5) is None
    redacted = repository.read_message("s", "a", 6)
    redacted.redact_message = {"role": "user", "content": [{"text": "[redacted]"}]}
    repository.update_message("s", "a", redacted)
    found = repository.read_message("s", "a", 6)
    assert (found.to_message(), found.created_at) == (redacted.redact_message, redacted.created_at)
    assert found.message["content"] == [{"text": "text 3"}]
    assert [each.message for each in Memory("strands").conversation("s")][3] == "[redacted]"
    with pytest.raises(SessionException, match="does not exist"):
        repository.update_message("s", "a", message(99, "x"))


def test_bytes_in_a_message_come_back(repository):
    picture = {"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": b"\x89PNG\xff"}}}]}
    repository.create_message("s", "a", SessionMessage(picture, 0))
    assert repository.read_message("s", "a", 0).message == picture


def test_of_two_processes_that_store_the_same_message_one_is_refused(repository):
    other = ScrubjaySessionRepository()
    repository.create_message("s", "a", message(0, "mine"))
    with pytest.raises(SessionException, match="exists already"):
        other.create_message("s", "a", message(0, "theirs"))
    item = repository._memory.item

    def late(key):
        found = item(key)
        repository._memory.item = item
        other.create_message("s", "a", message(1, "theirs"))
        return found

    repository._memory.item = late
    with pytest.raises(SessionException, match="another process"):
        repository.create_message("s", "a", message(1, "mine"))
    assert [each.message["content"][0]["text"] for each in other.list_messages("s", "a")] == ["mine", "theirs"]


def test_what_does_not_exist_is_an_error_or_none(repository):
    assert repository.read_session("none") is None
    assert repository.read_agent("s", "none") is None
    for wrong in (
        lambda: repository.create_session(Session("s", SessionType.AGENT)),
        lambda: repository.create_agent("none", SessionAgent("a", {}, {})),
        lambda: repository.create_agent("s", SessionAgent("a", {}, {})),
        lambda: repository.update_agent("s", SessionAgent("none", {}, {})),
        lambda: repository.create_message("s", "none", message(0, "x")),
    ):
        with pytest.raises(SessionException):
            wrong()


names = st.lists(st.sampled_from(["a", "b", "a b", "é", "x.json"]), min_size=1, max_size=3).map("/".join)
steps = st.lists(st.tuples(st.sampled_from(["write", "delete", "read"]), names, st.binary(max_size=40)), max_size=20)


@given(steps)
@settings(max_examples=30, deadline=None)
def test_a_storage_behaves_as_the_one_in_memory(tmp_path_factory, steps):
    memory = Memory("ns", path=tmp_path_factory.mktemp("s") / "db", durability="fast", strict=True)
    storages = (InMemoryStorage(), ScrubjayStorage(memory))

    async def use(storage) -> list:
        seen = []
        for verb, key, data in steps:
            arguments = (key, data) if verb == "write" else (key,)
            seen += [await getattr(storage, verb)(*arguments), await storage.list(""), await storage.list(key[:1])]
        return seen

    expected, found = (asyncio.run(use(storage)) for storage in storages)
    assert found == expected
    memory.close()


def test_long_bytes_are_split_and_leave_nothing_behind(home, monkeypatch):
    monkeypatch.setattr(_large, "PART_CHARS", 10)
    monkeypatch.setattr(_large, "CALL_BYTES", 30)
    memory = Memory("ns", strict=True)
    storage = ScrubjayStorage(memory)

    async def use() -> None:
        for data in (b"x" * 95, bytes(range(256)), b"", "é".encode() * 30):
            await storage.write("k", data)
            assert await storage.read("k") == data
            assert await storage.list("") == ["k"]
        await storage.delete("k")

    asyncio.run(use())
    assert memory.keys() == []


def test_the_agent_is_given_notes_and_may_add_some(home):
    store = ScrubjayMemoryStore("facts", "notes", max_search_results=3)

    async def use() -> None:
        note = await store.add("Sarah likes walnuts", {"source": "chat"})
        await store.add("The office is in Ulm")
        (first, *_) = await store.search("What does Sarah like?")
        assert (first.content, first.metadata["source"], first.metadata["id"]) == ("Sarah likes walnuts", "chat", note)
        assert len(await store.search("office", {"max_search_results": 1})) == 1
        assert await store.search(" ") == []

    asyncio.run(use())
    agent = open_agent(plugins=[MemoryManager(stores=[store])])
    agent("What does Sarah like?")
    assert "Sarah likes walnuts" in str(agent.model.given[0])


def test_an_unreachable_server_is_not_an_empty_history(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1, strict=True)
    repository = ScrubjaySessionRepository(memory)
    for read in (lambda: repository.list_messages("s", "a"), lambda: repository.read_session("s")):
        with pytest.raises(Unavailable):
            read()
    with pytest.raises(StorageError, match="cannot read"):
        asyncio.run(ScrubjayStorage(memory).read("k"))


def test_another_process_goes_on_after_kill_9(script):
    code = """
        import itertools, sys
        from strands.types.session import Session, SessionAgent, SessionMessage, SessionType
        from scrubjay.adapters.strands import ScrubjaySessionRepository
        repository = ScrubjaySessionRepository()
        if repository.read_session("s") is None:
            repository.create_session(Session("s", SessionType.AGENT))
            repository.create_agent("s", SessionAgent("a", {}, {}))
        found = repository.list_messages("s", "a")
        print(*(each.message["content"][0]["text"] for each in found), flush=True)
        for number in itertools.count(len(found)) if sys.argv[1] == "write" else [len(found)]:
            text = {"role": "user", "content": [{"text": str(number)}]}
            repository.create_message("s", "a", SessionMessage(text, number))
            print(number, flush=True)
    """
    writer = script.start(code, "write")
    seen = [writer.stdout.readline().strip() for _ in range(21)][1:]
    writer.kill()
    writer.communicate(timeout=60)
    found, added = script(code, "read").splitlines()
    assert found.split()[:20] == seen == [str(number) for number in range(20)]
    assert int(added) == len(found.split())
