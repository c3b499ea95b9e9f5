"""The adapters beside the SQLite classes of their frameworks, for `make bench ARGS=frameworks`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents import SQLiteSession
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore

from scrubjay import Memory
from scrubjay.adapters.langgraph import ScrubjaySaver, ScrubjayStore
from scrubjay.adapters.openai_agents import ScrubjaySession

_numbers = itertools.count()


def bench(folder: Path, microseconds: Callable[..., dict[str, float]], show: Callable[..., None]) -> None:
    _bench_sessions(folder, microseconds, show)
    _bench_checkpoints(folder, microseconds, show)
    _bench_store(folder, microseconds, show)


def _compare(
    title: str,
    ours: Callable[[int], Any],
    theirs: Callable[[int], Any],
    aim: float,
    tools: tuple[Callable[..., dict[str, float]], Callable[..., None]],
    calls: int = 20,
) -> None:
    microseconds, show = tools
    times = microseconds({"Scrubjay": ours, "the framework's SQLite class": theirs}, rounds=15, calls=calls)
    us, them = times.values()
    show(title, times, [("the time of the SQLite class", us / them, aim, "at most")])


def _item() -> dict[str, str]:
    return {"role": "user", "content": f"message {next(_numbers)} about the weather and the work of the day"}


def _bench_sessions(folder: Path, *tools: Any) -> None:
    ours = ScrubjaySession("bench", Memory("openai", path=folder / "session.db"))
    theirs = SQLiteSession("bench", folder / "sqlite.db")
    with asyncio.Runner() as runner:
        run = runner.run
        for session in (ours, theirs):
            for _ in range(5):
                run(session.add_items([_item() for _ in range(1000)]))
        _compare(
            "OpenAI session of 5,000 items: read all",
            lambda _: run(ours.get_items()),
            lambda _: run(theirs.get_items()),
            1.2,
            tools,
            calls=1,
        )
        for session in (ours, theirs):
            for _ in range(5):
                run(session.add_items([_item() for _ in range(1000)]))
        for title, call in {
            "add": lambda session: session.add_items([_item()]),
            "the last 20": lambda session: session.get_items(20),
            "pop": lambda session: session.pop_item(),
        }.items():
            _compare(
                f"OpenAI session of 10,000 items: {title}",
                lambda _, call=call: run(call(ours)),
                lambda _, call=call: run(call(theirs)),
                1.2,
                tools,
            )
    theirs.close()


def _bench_checkpoints(folder: Path, *tools: Any) -> None:
    ours = ScrubjaySaver(Memory("langgraph", path=folder / "saver.db"))
    config = {"configurable": {"thread_id": "sarah", "checkpoint_ns": ""}}
    with SqliteSaver.from_conn_string(str(folder / "saver-sqlite.db")) as theirs:

        def put(saver: Any) -> None:
            number = next(_numbers)
            checkpoint = {**empty_checkpoint(), "channel_values": {"n": number}, "channel_versions": {"n": str(number)}}
            saver.put(config, checkpoint, {"step": number}, {"n": str(number)})

        for saver in (ours, theirs):
            for _ in range(3000):
                put(saver)
        _compare("LangGraph: put a checkpoint", lambda _: put(ours), lambda _: put(theirs), 1.5, tools)
        _compare(
            "LangGraph: the latest of 3,000 checkpoints",
            lambda _: ours.get_tuple(config),
            lambda _: theirs.get_tuple(config),
            1.5,
            tools,
        )


def _bench_store(folder: Path, *tools: Any) -> None:
    ours = ScrubjayStore(Memory("store", path=folder / "store.db"))
    with SqliteStore.from_conn_string(str(folder / "store-sqlite.db")) as theirs:
        theirs.setup()
        for store in (ours, theirs):
            for number in range(2000):
                store.put(("users", f"u{number % 20}"), str(number), {"n": number, "text": "likes walnuts"})
        _compare(
            "LangGraph store of 2,000 items: search with a filter",
            lambda _: ours.search(("users",), filter={"n": 1234}),
            lambda _: theirs.search(("users",), filter={"n": 1234}),
            2,
            tools,
            calls=1,
        )
        _compare(
            "LangGraph store: get",
            lambda i: ours.get(("users", "u1"), str(20 * i + 1)),
            lambda i: theirs.get(("users", "u1"), str(20 * i + 1)),
            1.5,
            tools,
        )
