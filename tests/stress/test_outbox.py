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

import pytest

from harness import Server, clean_environment
from scrubjay import Memory
from scrubjay.store import items
from scrubjay.store.sqlite import SqliteStore

LONG = "SCRUBJAY_STRESS" in os.environ
KILLS = 40 if LONG else 4
WRITERS = 3
FLAGS = ("--writes-per-day", "0", "--max-bytes", "0")

pytestmark = pytest.mark.timeout(900 if LONG else 120)

# Two threads with lists of their own in one namespace. A number is printed when append has returned, whether it was
# sent or kept; whoever starts again goes on above the last that may have been written.
WRITER = """
import itertools, os, sys, threading, time
from scrubjay import Memory, outbox
outbox.LAST_RETRY = 0.5

def write(name, start):
    with Memory(sys.argv[2], url=sys.argv[1], timeout=2) as memory:
        for number in itertools.count(start):
            memory.append(name, number)
            os.write(1, f"{name} {number}\\n".encode())
            time.sleep(0.002)

for name, start in zip("ab", sys.argv[3:]):
    threading.Thread(target=write, args=(name, int(start))).start()
"""


class Client:
    """A process that writes to a namespace of its own, is killed, and begins again above what it wrote."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url, self.namespace = url, namespace
        self.returned: dict[str, list[int]] = {"a": [], "b": []}
        self.begin()

    def begin(self) -> None:
        # What was under way when it was killed may have been kept: the next one leaves a number out.
        starts = [str(numbers[-1] + 2 if numbers else 0) for numbers in self.returned.values()]
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
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


def test_servers_and_clients_that_are_killed_lose_nothing_and_double_nothing(tmp_path):
    rng = random.Random(5)
    server = Server(tmp_path / "db", *FLAGS)
    clients = [Client(server.url, f"client-{number}") for number in range(WRITERS)]
    for kill in range(KILLS):
        time.sleep(rng.uniform(0.3, 0.8))
        if kill % 2:
            victim = rng.choice(clients)
            victim.kill()
            victim.begin()
        else:
            server.stop(signal.SIGKILL)
            time.sleep(rng.uniform(0.0, 0.8))
            server = Server(tmp_path / "db", *FLAGS, port=server.port)
    time.sleep(1.0)
    for client in clients:
        client.kill()
    left = 0
    for client in clients:  # the next process, which finds what is left
        with Memory(client.namespace, url=server.url) as memory:
            left += len(memory.pending())
            memory.flush(60)
    server.stop()
    store = SqliteStore(tmp_path / "db")
    assert store.find_faults() == []
    total = 0
    for client, name in itertools.product(clients, "ab"):
        returned = client.returned[name]
        stored = json.loads(store.run(items.read_text(client.namespace, name)) or "[]")
        assert stored == sorted(set(stored)), "something is there twice, or out of order"
        assert set(returned) <= set(stored), "something is lost"
        assert len(set(stored) - set(returned)) <= KILLS + 1, "more came than was under way at a kill"
        total += len(returned)
    store.close()
    assert total > KILLS
    print(f"\noutbox: {KILLS} kills of servers and clients, {total} appends returned, {left} left to the next process")
