"""Every adapter beside the class that its framework has for the same purpose: a file, SQLite, or a list in memory.

`make bench ARGS=frameworks` runs it in the environments of the adapters' tests. A case is a function that fills a store
with 5,000 messages and returns what to measure of it; it is called twice, for the adapter and for the other class.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from scrubjay import Memory

COUNT, LAST = 5000, 20
_numbers = itertools.count()
CASES: dict[str, tuple[str, Callable[..., Awaitable[Calls]]]] = {}
"""By adapter: the name of the other class, and the case."""


class Calls(NamedTuple):
    """What is measured: functions, or functions that return an awaitable."""

    add: Callable[[], Any]
    """Add one message."""
    last: Callable[[], Any] | None
    """Read the last 20; None if the framework always reads all of them."""
    start: Callable[[], Any]
    """Open it again, and read what the framework reads before the first turn."""


class Place:
    """Where a case stores its messages: for the adapter, or for the other class."""

    def __init__(self, folder: Path, is_ours: bool, stack: AsyncExitStack) -> None:
        self.folder, self.is_ours, self.stack = folder, is_ours, stack
        self.durability: str | None = None
        """`fast` while messages are stored one by one that are not measured."""

    def memory(self) -> Memory:
        return Memory("bench", path=self.folder / "scrubjay.db", durability=self.durability, strict=True)

    def file(self) -> str:
        return str(self.folder / "other.db")


def beside(other: str) -> Callable[[Callable[..., Awaitable[Calls]]], Callable[..., Awaitable[Calls]]]:
    def register(case: Callable[..., Awaitable[Calls]]) -> Callable[..., Awaitable[Calls]]:
        CASES[case.__name__] = other, case
        return case

    return register


def text() -> str:
    return f"message {next(_numbers)} about the weather and the work of the day"


def same(make: Callable[[], Any], *, only_if: bool) -> Callable[[], Any]:
    """The same object again: a list in memory cannot be opened again."""
    made = make()
    return make if only_if else lambda: made


# ------------------------------------------------------------ the cases


@beside("SQLiteSession")
async def openai_agents(place: Place) -> Calls:
    from agents import SQLiteSession

    from scrubjay.adapters.openai_agents import ScrubjaySession

    def make() -> Any:
        return ScrubjaySession("b", place.memory()) if place.is_ours else SQLiteSession("b", place.file())

    def items(count: int) -> list[Any]:
        return [{"role": "user", "content": text()} for _ in range(count)]

    session = make()
    await session.add_items(items(COUNT))
    return Calls(lambda: session.add_items(items(1)), lambda: session.get_items(LAST), lambda: make().get_items())


@beside("SqliteSaver")
async def langgraph_checkpoints(place: Place) -> Calls:
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite import SqliteSaver

    from scrubjay.adapters.langgraph import ScrubjaySaver

    config: Any = {"configurable": {"thread_id": "b", "checkpoint_ns": ""}}

    def make() -> Any:
        if place.is_ours:
            return ScrubjaySaver(place.memory())
        return SqliteSaver(sqlite3.connect(place.file(), check_same_thread=False))

    def add() -> None:
        version, message = str(next(_numbers)), text()
        checkpoint = {**empty_checkpoint(), "channel_values": {"m": message}, "channel_versions": {"m": version}}
        saver.put(config, checkpoint, {"step": 1}, {"m": version})

    place.durability = "fast"
    saver = make()
    for _ in range(COUNT):
        add()
    place.durability = None
    saver = make()
    return Calls(add, lambda: list(saver.list(config, limit=LAST)), lambda: make().get_tuple(config))


@beside("SqliteStore")
async def langgraph_store(place: Place) -> Calls:
    from langgraph.store.base import PutOp
    from langgraph.store.sqlite import SqliteStore

    from scrubjay.adapters.langgraph import ScrubjayStore

    def make() -> Any:
        if place.is_ours:
            return ScrubjayStore(place.memory())
        store = SqliteStore(sqlite3.connect(place.file(), check_same_thread=False, isolation_level=None))
        store.setup()
        return store

    store = make()
    for _ in range(COUNT // 100):
        store.batch([PutOp(("b",), str(next(_numbers)), {"text": text()}) for _ in range(100)])
    return Calls(
        lambda: store.put(("b",), str(next(_numbers)), {"text": text()}),
        lambda: store.search(("b",), limit=LAST),
        lambda: make().search(("b",), limit=COUNT),
    )


@beside("InMemoryByteStore, in memory")
async def langchain(place: Place) -> Calls:
    from langchain_core.stores import InMemoryByteStore

    from scrubjay.adapters.langchain import ScrubjayByteStore

    make = same(
        lambda: ScrubjayByteStore(place.memory()) if place.is_ours else InMemoryByteStore(), only_if=place.is_ours
    )
    store, keys = make(), [f"k{number:04}" for number in range(COUNT)]
    store.mset([(key, text().encode()) for key in keys])
    return Calls(
        lambda: store.mset([(f"n{next(_numbers)}", text().encode())]),
        lambda: store.mget(keys[-LAST:]),
        lambda: make().mget(keys),
    )


@beside("InMemoryConversationStore, in memory")
async def pydantic_ai(place: Place) -> Calls:
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.conversation_store import InMemoryConversationStore
    from pydantic_ai.messages import ModelRequest

    from scrubjay.adapters.pydantic_ai import ScrubjayConversations

    make = same(
        lambda: ScrubjayConversations(place.memory()) if place.is_ours else InMemoryConversationStore(),
        only_if=place.is_ours,
    )
    store = make()
    messages = [ModelRequest.user_text_prompt(text()) for _ in range(COUNT)]
    await store.save(Conversation(conversation_id="b", messages=messages))
    conversation = await store.load("b")

    async def add() -> None:
        conversation.messages.append(ModelRequest.user_text_prompt(text()))
        await store.save(conversation)

    async def last() -> None:
        await store.read_history((await store.read_record("b")).head_id, limit=LAST)

    return Calls(add, last, lambda: make().load("b"))


@beside("FileHistoryProvider")
async def agent_framework(place: Place) -> Calls:
    from agent_framework import FileHistoryProvider, Message

    from scrubjay.adapters.agent_framework import ScrubjayHistory

    def make() -> Any:
        return ScrubjayHistory(place.memory()) if place.is_ours else FileHistoryProvider(place.folder)

    def messages(count: int) -> list[Message]:
        return [Message("user", [text()]) for _ in range(count)]

    history = make()
    await history.save_messages("b", messages(COUNT), state={})
    return Calls(
        lambda: history.save_messages("b", messages(1), state={}), None, lambda: make().get_messages("b", state={})
    )


@beside("MemoryStorage, in memory")
async def ag2(place: Place) -> Calls:
    from ag2.events import ModelRequest, TextInput
    from ag2.history import MemoryStorage

    from scrubjay.adapters.ag2 import ScrubjayStorage

    make = same(lambda: ScrubjayStorage(place.memory()) if place.is_ours else MemoryStorage(), only_if=place.is_ours)
    storage, context = make(), SimpleNamespace(stream=SimpleNamespace(id="b"))
    await storage.set_history("b", [ModelRequest([TextInput(text())]) for _ in range(COUNT)])
    return Calls(
        lambda: storage.save_event(ModelRequest([TextInput(text())]), context), None, lambda: make().get_history("b")
    )


@beside("UnboundedChatCompletionContext, in memory")
async def agentchat(place: Place) -> Calls:
    from autogen_core.model_context import BufferedChatCompletionContext, UnboundedChatCompletionContext
    from autogen_core.models import UserMessage

    from scrubjay.adapters.agentchat import ScrubjayModelContext

    messages = [UserMessage(content=text(), source="user") for _ in range(COUNT)]
    if place.is_ours:
        context = ScrubjayModelContext("b", place.memory())
        await context.load_state({"messages": [message.model_dump() for message in messages]})
        return Calls(
            lambda: context.add_message(UserMessage(content=text(), source="user")),
            ScrubjayModelContext("b", place.memory(), limit=LAST).get_messages,
            lambda: ScrubjayModelContext("b", place.memory()).get_messages(),
        )
    other = UnboundedChatCompletionContext(messages)
    return Calls(
        lambda: other.add_message(UserMessage(content=text(), source="user")),
        BufferedChatCompletionContext(LAST, messages).get_messages,
        other.get_messages,
    )


@beside("BetaLocalFilesystemMemoryTool")
async def anthropic(place: Place) -> Calls:
    from anthropic.tools.memory import BetaLocalFilesystemMemoryTool

    from scrubjay.adapters.anthropic import ScrubjayMemoryTool

    def make() -> Any:
        return ScrubjayMemoryTool(place.memory()) if place.is_ours else BetaLocalFilesystemMemoryTool(str(place.folder))

    tool, here = make(), {"path": "/memories/log.md"}
    tool.call({"command": "create", **here, "file_text": "".join(f"{text()}\n" for _ in range(COUNT))})
    return Calls(
        lambda: tool.call({"command": "insert", **here, "insert_line": COUNT, "insert_text": text()}),
        lambda: tool.call({"command": "view", **here, "view_range": [COUNT - LAST + 1, COUNT]}),
        lambda: make().call({"command": "view", **here}),
    )


@beside("tools on a dict, in memory")
async def mcp(place: Place) -> Calls:
    from mcp.client import Client
    from mcp.server.mcpserver import MCPServer

    from scrubjay.adapters.mcp import make_server

    values = {f"k{number}": text() for number in range(COUNT)}

    def make() -> Any:
        if place.is_ours:
            return make_server(["bench"], path=place.folder / "scrubjay.db")
        server: Any = MCPServer("other", log_level="WARNING")
        server.tool("get", structured_output=False)(lambda key: str(values[key]))
        server.tool("set", structured_output=False)(lambda key, value: str(values.update({key: value})))
        return server

    place.memory().update(values)
    client = await place.stack.enter_async_context(Client(make()))

    async def last() -> None:
        for number in range(LAST):
            await client.call_tool("get", {"key": f"k{COUNT - 1 - number}"})

    async def start() -> None:
        async with Client(make()) as other:
            await other.call_tool("get", {"key": "k0"})

    return Calls(lambda: client.call_tool("set", {"key": f"n{next(_numbers)}", "value": text()}), last, start)


@beside("FileSessionManager")
async def strands(place: Place) -> Calls:
    from strands.session import FileSessionManager
    from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

    from scrubjay.adapters.strands import ScrubjaySessionRepository

    def make() -> Any:
        if place.is_ours:
            return ScrubjaySessionRepository(place.memory())
        return FileSessionManager("b", storage_dir=str(place.folder))

    def add() -> None:
        message = SessionMessage({"role": "user", "content": [{"text": text()}]}, next(positions))
        repository.create_message("b", "a", message)

    place.durability, positions = "fast", itertools.count()
    repository = make()
    if place.is_ours:
        repository.create_session(Session("b", SessionType.AGENT))
    repository.create_agent("b", SessionAgent("a", {}, {}))
    for _ in range(COUNT):
        add()
    place.durability = None
    repository = make()
    return Calls(
        add,
        lambda: repository.list_messages("b", "a", limit=LAST, offset=COUNT - LAST),
        lambda: make().list_messages("b", "a"),
    )


@beside("SqliteSessionService")
async def adk(place: Place) -> Calls:
    from google.adk.events.event import Event
    from google.adk.sessions.base_session_service import GetSessionConfig
    from google.adk.sessions.sqlite_session_service import SqliteSessionService
    from google.genai.types import Content, Part

    from scrubjay.adapters.adk import ScrubjaySessionService

    here = {"app_name": "app", "user_id": "sarah", "session_id": "b"}

    def make() -> Any:
        return ScrubjaySessionService(place.memory()) if place.is_ours else SqliteSessionService(place.file())

    def add() -> Any:
        return service.append_event(
            session, Event(author="user", content=Content(role="user", parts=[Part(text=text())]))
        )

    place.durability = "fast"
    service = make()
    session = await service.create_session(**here)
    for _ in range(COUNT):
        await add()
    place.durability = None
    service = make()
    return Calls(
        add,
        lambda: service.get_session(**here, config=GetSessionConfig(num_recent_events=LAST)),
        lambda: make().get_session(**here),
    )


@beside("SQLAlchemyChatStore on SQLite")
async def llama_index(place: Place) -> Calls:
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore

    from scrubjay.adapters.llama_index import ScrubjayChatStore

    def make() -> Any:
        if place.is_ours:
            return ScrubjayChatStore(place.memory())
        return SQLAlchemyChatStore("messages", f"sqlite+aiosqlite:///{place.file()}")

    store = make()
    await store.add_messages("b", [ChatMessage(content=text()) for _ in range(COUNT)])
    return Calls(
        lambda: store.add_message("b", ChatMessage(content=text())),
        lambda: store.get_messages("b", limit=LAST, offset=COUNT - LAST),
        lambda: make().get_messages("b"),
    )


@beside("SQLiteFlowPersistence")
async def crewai(place: Place) -> Calls:
    from crewai.flow.persistence.sqlite import SQLiteFlowPersistence

    from scrubjay.adapters.crewai import ScrubjayFlowPersistence

    def make() -> Any:
        return ScrubjayFlowPersistence(place.memory()) if place.is_ours else SQLiteFlowPersistence(place.file())

    flows, states = (
        make(),
        {count: {"id": str(count), "messages": [text() for _ in range(count)]} for count in (LAST, COUNT)},
    )
    for count, state in states.items():
        flows.save_state(str(count), "step", state)
    return Calls(
        lambda: flows.save_state(str(LAST), "step", {**states[LAST], "step": next(_numbers)}),
        lambda: flows.load_state(str(LAST)),
        lambda: make().load_state(str(COUNT)),
    )


# ------------------------------------------------------------ measuring


async def call(function: Callable[[], Any]) -> None:
    result = function()
    if inspect.isawaitable(result):
        await result


async def measure(pair: list[Callable[[], Any]], rounds: int, calls: int) -> list[tuple[float, float]]:
    """Microseconds of a call, elapsed and of CPU time: the median of rounds in which both take turns."""
    times: list[list[tuple[float, float]]] = [[], []]
    for _ in range(rounds):
        for function, found in zip(pair, times, strict=True):
            elapsed, cpu = time.perf_counter(), time.process_time()
            for _ in range(calls):
                await call(function)
            elapsed, cpu = time.perf_counter() - elapsed, time.process_time() - cpu
            found.append((elapsed / calls * 1e6, cpu / calls * 1e6))
    return [
        (statistics.median(each[0] for each in found), statistics.median(each[1] for each in found)) for found in times
    ]


async def run(name: str, folder: Path) -> dict[str, Any]:
    other, case = CASES[name]
    async with AsyncExitStack() as stack:
        both = []
        for kind, is_ours in (("ours", True), ("other", False)):
            place = folder / f"{name}-{kind}"
            place.mkdir()
            both.append(await case(Place(place, is_ours, stack)))
        gc.collect()
        gc.freeze()  # what the frameworks and other cases hold is not what a start has to search for garbage
        figures = {}
        for field, rounds, calls in (("add", 15, 10), ("last", 15, 5), ("start", 5, 1)):
            pair = [getattr(each, field) for each in both]
            figures[field] = await measure(pair, rounds, calls) if all(pair) else None
    return {"adapter": name, "beside": other, **figures}


def row(found: dict[str, Any]) -> str:
    """The figures of a case as a row of a table."""
    cells = [found["adapter"], found["beside"]]
    for field in ("add", "last", "start"):
        if found[field] is None:
            cells.append("–")
            continue
        (elapsed, cpu), (other_elapsed, other_cpu) = found[field]
        cells.append(f"{_ratio(cpu / other_cpu)} ({cpu:,.0f} µs); {_ratio(elapsed / other_elapsed)}")
    return f"| {' | '.join(cells)} |"


def _ratio(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2f}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".", ignore_cleanup_errors=True) as home:
        for chosen in sys.argv[1:]:
            print(json.dumps(asyncio.run(run(chosen, Path(home).absolute()))), flush=True)
