"""The cost of a turn and of a start of persistent AutoGen agents, beside AutoGen alone.

    make bench ARGS=autogen

It runs in the environment of the adapter's tests with the newest AutoGen. Agents answer at once with a fixed text, so
the difference to AutoGen's own time is what persistence costs. The server is reached over a link with a delay.
"""

from __future__ import annotations

import itertools
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from autogen import ConversableAgent, GroupChat, GroupChatManager
from autogen.io import IOConsole, IOStream

from scrubjay import Memory, PersistentAgent, PersistentGroupChat

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness import serving
from slow_link import SlowLink

LONG = 5000
"""Messages of the long conversation."""
DELAYS = (0, 50, 100)
"""Milliseconds that a round trip takes."""
NAMES = ("planner", "writer", "critic", "editor", "reader")

numbers = itertools.count()


def agent(kind: Any, name: str, **options: Any) -> Any:
    return kind(name, llm_config=False, human_input_mode="NEVER", default_auto_reply=f"{name} agrees.", **options)


class Silent(IOConsole):
    """Takes what AutoGen prints even in silent chats, such as why each ended."""

    def print(self, *_objects: Any, **_options: Any) -> None:
        pass

    def send(self, message: Any) -> None:
        pass


class Cost(NamedTuple):
    """Milliseconds of one call."""

    wall: float
    cpu: float
    """Of this process; a busy machine disturbs it less."""

    def __truediv__(self, count: int) -> Cost:
        return Cost(self.wall / count, self.cpu / count)


def milliseconds(call: Callable[[], object], count: int) -> Cost:
    times = []
    for _ in range(count):
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return Cost(*(statistics.median(each) * 1000 for each in zip(*times, strict=True)))


def turn(assistant: Any, count: int) -> Cost:
    """One question and its answer: two messages."""
    user = agent(ConversableAgent, "user")
    ask = lambda: user.initiate_chat(assistant, message="Well?", max_turns=1, silent=True, clear_history=False)  # noqa: E731
    ask()
    return milliseconds(ask, count)


def group_message(members: list[Any], kind: Any, rounds: int, **options: Any) -> Cost:
    """One message of a group chat of five."""
    group = kind(members, [], max_round=rounds, speaker_selection_method="round_robin", **options)
    manager = GroupChatManager(groupchat=group, llm_config=False, silent=True)
    return milliseconds(lambda: members[0].initiate_chat(manager, message="Go.", silent=True), 3) / rounds


def begin(memory: Memory) -> Cost:
    """Until the end of the long conversation is there, which a prompt needs."""
    user = agent(ConversableAgent, "user")
    return milliseconds(lambda: agent(PersistentAgent, "old", memory=memory).last_message(user), 3)


def start(memory: Memory) -> Cost:
    """Until all messages of the long conversation are there."""
    user = agent(ConversableAgent, "user")

    def restore() -> None:
        assert len(agent(PersistentAgent, "old", memory=memory).chat_messages[user]) == LONG

    return milliseconds(restore, 3)


def fill(memory: Memory) -> None:
    rows = [
        {"id": f"{n:012x}-{n}", "message": {"role": "user", "content": f"message {n} " + "x" * 100, "name": "user"}}
        for n in range(LONG)
    ]
    for i in range(0, LONG, 500):
        memory.append("with:old:user", *rows[i : i + 500])


def measure(label: str, open_memory: Callable[[str], Memory], count: int) -> None:
    fill(open_memory(f"long-{label}"))
    number = next(numbers)
    own = [agent(PersistentAgent, name, memory=open_memory(f"{name}-{number}")) for name in NAMES]
    plain = [agent(ConversableAgent, name) for name in NAMES]
    team = open_memory(f"team-{number}")
    shared = [agent(PersistentAgent, name, memory=team) for name in NAMES]
    rounds = max(10, count // 10)
    figures = (
        turn(agent(PersistentAgent, "assistant", memory=open_memory(f"turn-{number}")), count),
        group_message(plain, PersistentGroupChat, rounds, memory=open_memory(f"group-{number}")),
        group_message(shared, PersistentGroupChat, rounds, memory=team),
        group_message(own, PersistentGroupChat, rounds, memory=open_memory(f"mixed-{number}")),
        begin(open_memory(f"long-{label}")),
        start(open_memory(f"long-{label}")),
    )
    show(label, figures)


def show(label: str, figures: tuple[Cost, ...]) -> None:
    for name, part in ((label, 0), (f"{label}, CPU", 1)):
        print(f"{name:24}" + "".join(f"{figure[part]:14,.2f}" for figure in figures), flush=True)


def main() -> None:
    logging.getLogger("scrubjay").setLevel(logging.CRITICAL)
    IOStream.set_global_default(Silent())
    heads = ("turn", "group", "group, shared", "group, own", "end of 5,000", f"start, {LONG:,}")
    print(f"milliseconds            {''.join(f'{head:>14}' for head in heads)}")
    plain = [agent(ConversableAgent, name) for name in NAMES]
    alone = group_message(plain, GroupChat, 30)
    show("AutoGen alone", (turn(agent(ConversableAgent, "assistant"), 300), alone, alone, alone))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SCRUBJAY_OUTBOX"] = str(Path(folder) / "outbox.db")
        for durability in ("fast", "full"):
            open_memory = partial(Memory, path=Path(folder) / f"{durability}.db", durability=durability)
            measure(f"file, {durability}", open_memory, 200)
        limits = ("--writes-per-day", "0", "--max-bytes", "0", "--durability", "fast")
        with serving(Path(folder) / "served.db", *limits) as server:
            for delay in DELAYS:
                with closing(SlowLink(server.port, delay=delay / 1000)) as link:
                    open_memory = partial(Memory, url=link.url)
                    measure(f"server, {delay} ms", open_memory, 200 if not delay else 10)


if __name__ == "__main__":
    main()
