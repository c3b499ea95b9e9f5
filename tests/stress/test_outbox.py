"""Servers and clients that are killed under writers: what was acknowledged or kept is there, once, in order."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness import Server, clean_environment
from scrubjay import Memory
from scrubjay.store import items
from scrubjay.store.sqlite import SqliteStore

LONG = "SCRUBJAY_STRESS" in os.environ
KILLS = 40 if LONG else 4
WRITERS = 3
FLAGS = ("--writes-per-day", "0", "--max-bytes", "0")

pytestmark = pytest.mark.timeout(900)

# Two threads with lists of their own in one namespace. A number is printed when append has returned, whether it was
# sent or kept; a process that starts again continues above the last that may have been written.
WRITER = """
import itertools, os, sys, threading, time
from scrubjay import Memory
from scrubjay.outbox import sender
sender.MAX_RETRY_SECONDS = 0.5

def write(name, start):
    with Memory(sys.argv[2], url=sys.argv[1], timeout=2) as memory:
        for number in itertools.count(start):
            memory.append(name, number)
            os.write(1, f"{name} {number}\\n".encode())
            time.sleep(0.01)

for name, start in zip("ab", sys.argv[3:]):
    threading.Thread(target=write, args=(name, int(start))).start()
"""


class Client:
    """A process that writes to a namespace of its own, is killed, and begins again above what it wrote."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url, self.namespace = url, namespace
        self.returned: dict[str, list[int]] = {"a": [], "b": []}
        self._started = {"a": -1, "b": -1}
        self.begin()

    def begin(self) -> None:
        # The number that was under way when it was killed, its first perhaps, may have been kept: it is left out.
        self._started = {name: max([self._started[name], *(n + 1 for n in self.returned[name])]) + 1 for name in "ab"}
        starts = map(str, self._started.values())
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, self.url, self.namespace, *starts],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=clean_environment(),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,))
        self._reader.start()

    def _read(self, printed) -> None:
        for line in printed:
            if line.endswith("\n"):
                name, number = line.split()
                self.returned[name].append(int(number))

    def kill(self) -> None:
        """Kill -9, after which killing it again does nothing."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


@pytest.fixture
def world(tmp_path):
    """A server and its clients, none of which outlives the test."""
    running = World(tmp_path / "db")
    yield running
    running.end()


class World:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.server = Server(path, *FLAGS)
        self.clients = [Client(self.server.url, f"client-{number}") for number in range(WRITERS)]

    def kill_server(self, seconds: float) -> None:
        self.server.stop(signal.SIGKILL)
        time.sleep(seconds)
        self.server = Server(self.path, *FLAGS, port=self.server.port)

    def end(self) -> None:
        for client in self.clients:
            client.kill()
        self.server.stop()


def test_servers_and_clients_that_are_killed_lose_nothing_and_double_nothing(world):
    rng = random.Random(5)
    for kill in range(KILLS):
        time.sleep(rng.uniform(0.3, 0.8))
        if kill % 2:
            victim = rng.choice(world.clients)
            victim.kill()
            victim.begin()
        else:
            world.kill_server(rng.uniform(0.0, 0.8))
    for client in world.clients:
        client.kill()
    left = 0
    for client in world.clients:  # the next process, which finds what is left
        with Memory(client.namespace, url=world.server.url) as memory:
            left += len(memory.pending())
            memory.flush(300)
    world.server.stop()
    store = SqliteStore(world.path)
    assert store.find_problems() == []
    total = 0
    for client, name in itertools.product(world.clients, "ab"):
        returned = client.returned[name]
        stored = json.loads(store.run(items.read_text(client.namespace, name)) or "[]")
        assert stored == sorted(set(stored)), "something is there twice, or out of order"
        assert set(returned) <= set(stored), "something is lost"
        assert len(set(stored) - set(returned)) <= KILLS + 1, "more came than was under way at a kill"
        total += len(returned)
    store.close()
    assert total > KILLS
    print(f"\noutbox: {KILLS} kills of servers and clients, {total} appends returned, {left} left to the next process")
