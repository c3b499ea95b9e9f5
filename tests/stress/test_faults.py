"""Kills, full disks and races: what was acknowledged is there, once, and the counters are true.

A short form runs with the other tests; `make stress` sets SCRUBJAY_STRESS for the long one.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness import Server, clean_environment, eventually, fresh_name, serving
from scrubjay import Memory, ScrubjayError, Unavailable
from scrubjay.store import items
from scrubjay.store.sqlite import SqliteStore
from stress.linearizability import Call, is_linearizable

LONG = "SCRUBJAY_STRESS" in os.environ
KILLS = 50 if LONG else 4
WRITERS = 8

pytestmark = pytest.mark.timeout(900)


class Writer(threading.Thread):
    """Appends 0, 1, 2, … to a list of its own, and notes which were acknowledged and which it cannot know."""

    def __init__(self, url: str, number: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)  # a test that fails does not stop it, and pytest would wait for it
        self.url, self.number, self.stop = url, number, stop
        self.acknowledged: list[int] = []
        self.unknown: list[int] = []
        self.total = 0

    def run(self) -> None:
        with Memory("stress", url=self.url, timeout=5, strict=True) as memory:
            for i in itertools.count():
                if self.stop.is_set():
                    return
                try:
                    memory.append(f"list-{self.number}", i)
                    self.acknowledged.append(i)
                    self.total = memory.incr("total")
                except Unavailable:
                    if not self.acknowledged or self.acknowledged[-1] != i:
                        self.unknown.append(i)
                    time.sleep(0.01)


def report(what: str, **figures: object) -> None:
    print(f"\n{what}: " + ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in figures.items()))


def test_a_server_killed_again_and_again_loses_nothing_acknowledged(tmp_path):
    rng = random.Random(1)
    flags = ("--writes-per-day", "0", "--max-bytes", "0")
    server = Server(tmp_path / "db", *flags)
    stop = threading.Event()
    writers = [Writer(server.url, number, stop) for number in range(WRITERS)]
    for writer in writers:
        writer.start()

    def count() -> int:
        return sum(len(writer.acknowledged) for writer in writers)

    for _ in range(KILLS):
        before = count()
        eventually(lambda before=before: count() > before)  # a busy machine needs longer to start a server
        time.sleep(rng.uniform(0.0, 0.3))
        server.stop(signal.SIGKILL)
        server = Server(tmp_path / "db", *flags, port=server.port)
    time.sleep(0.3)
    stop.set()
    for writer in writers:
        writer.join()
    server.stop()
    store = SqliteStore(tmp_path / "db")
    assert store.find_problems() == []
    for writer in writers:
        stored = json.loads(store.run(items.read_text("stress", f"list-{writer.number}")) or "[]")
        assert stored == sorted(set(stored)), "an item is there twice, or out of order"
        assert set(writer.acknowledged) <= set(stored), "an acknowledged item is lost"
        assert set(stored) <= set(writer.acknowledged) | set(writer.unknown), "an item came from nowhere"
    assert int(store.run(items.read_text("stress", "total"))) >= max(writer.total for writer in writers)
    store.close()
    assert count() >= KILLS
    report("server", kills=KILLS, writes_acknowledged=count(), lost=0)


EMBEDDED = """
import sys
from scrubjay import Memory
memory = Memory("stress", path=sys.argv[1])
start = len(memory.get("list", []))
for i in range(start, 10**9):
    memory.append("list", i, i)          # two rows in one call: never one of them alone
    memory.update({"a": i, "b": i})
    print(i, flush=True)
"""


def test_an_embedded_writer_killed_again_and_again_loses_nothing_acknowledged(tmp_path):
    rng = random.Random(2)
    acknowledged: list[int] = []
    for _ in range(KILLS):
        command = [sys.executable, "-c", EMBEDDED, str(tmp_path / "db")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment())
        first = process.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.1))
        process.kill()
        rest = process.stdout.read().splitlines()
        process.wait()
        process.stdout.close()
        # The last line may be cut short by the kill itself.
        acknowledged += [int(line) for line in [first, *rest[:-1]]]
        with Memory("stress", path=str(tmp_path / "db")) as memory:
            stored = memory.get("list")
            assert set(acknowledged) <= set(stored)
            assert stored[0::2] == stored[1::2], "half a call was stored"
            assert memory.get("a") == memory.get("b")
            assert memory.get("a") in (stored[-1], stored[-3] if len(stored) > 2 else None)
        store = SqliteStore(tmp_path / "db")
        assert store.find_problems() == []
        store.close()
    report("embedded", kills=KILLS, writes_acknowledged=len(acknowledged), lost=0)


def test_two_workers_dying_in_turn_lose_nothing_acknowledged(tmp_path):
    """The supervisor starts a new worker for each that dies; the other goes on."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("workers are found in /proc, which this system does not have")
    with serving(tmp_path / "db", "--workers", "2", "--writes-per-day", "0", "--max-bytes", "0") as server:
        stop = threading.Event()
        writers = [Writer(server.url, number, stop) for number in range(4)]
        for writer in writers:
            writer.start()
        for _ in range(10 if LONG else 2):
            wait_for_progress(writers)
            os.kill(random.choice(workers_of(server)), signal.SIGKILL)
        wait_for_progress(writers)
        stop.set()
        for writer in writers:
            writer.join()
        with Memory("stress", url=server.url) as memory:
            for writer in writers:
                stored = memory.get(f"list-{writer.number}")
                assert stored == sorted(set(stored))
                assert set(writer.acknowledged) <= set(stored)
    store = SqliteStore(tmp_path / "db")
    assert store.find_problems() == []
    store.close()


def wait_for_progress(writers: list[Writer]) -> None:
    """Return when each writer has had one more write acknowledged: workers are starting, or have taken over."""
    before = [len(writer.acknowledged) for writer in writers]
    while any(len(writer.acknowledged) == count for writer, count in zip(writers, before, strict=True)):
        time.sleep(0.05)


def workers_of(server: Server) -> list[int]:
    """The process ids of a server's workers, as the system knows them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == server.process.pid and b"multiprocessing.spawn" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it ended while we looked
            continue
    return found


LIMITED = """
import resource, signal, sys
from scrubjay import Memory, Unavailable
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
memory = Memory("stress", path=sys.argv[1])
memory.set("before", "x" * 1000)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
done = 0
try:
    while True:
        memory.append("list", "y" * 2000)
        done += 1
except Unavailable as error:
    print(done, "SCRUBJAY" not in str(error), str(error))
assert memory.get("before") == "x" * 1000
"""


def test_a_full_disk_is_said_and_nothing_is_half_written(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "db")],
        capture_output=True, text=True, check=True, timeout=60, env=clean_environment(),
    )  # fmt: skip
    acknowledged = int(done.stdout.split()[0])
    assert acknowledged > 5
    assert str(tmp_path / "db") in done.stdout
    with Memory("stress", path=str(tmp_path / "db")) as memory:
        assert memory.get("list") == ["y" * 2000] * acknowledged
        memory.append("list", "there is room again")
    store = SqliteStore(tmp_path / "db")
    assert store.find_problems() == []
    store.close()
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_log_that_is_cut_short_loses_only_its_end(tmp_path):
    """A torn write-ahead log is what a power cut leaves: what comes before the tear is whole."""
    path = tmp_path / "db"
    program = (
        "import os, sys; from scrubjay import Memory; memory = Memory('stress', path=sys.argv[1]);"
        "[memory.append('list', i) for i in range(200)]; os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=60, env=clean_environment())
    log = Path(f"{path}-wal")
    for cut in (log.stat().st_size * 2 // 3 + 17, 4096 + 7, 40):
        log_bytes = log.read_bytes() if log.exists() else b""
        log.write_bytes(log_bytes[:cut])
        store = SqliteStore(path)
        assert store.find_problems() == []
        stored = json.loads(store.run(items.read_text("stress", "list")) or "[]")
        assert stored == list(range(len(stored)))
        store.close()


VERBS = {"register": ("set", "get", "delete"), "list": ("append", "get"), "counter": ("incr", "get")}


@pytest.mark.parametrize("seed", range(20 if LONG else 3))
def test_concurrent_histories_have_an_order(tmp_path_factory, seed):
    """Linearizability: every answer fits one order of all calls that respects their times."""
    path = tmp_path_factory.mktemp("linear") / "db"
    flags = ("--workers", "2", "--writes-per-day", "0", "--durability", "fast")
    with serving(path, *flags) as server:
        namespace = fresh_name()
        Memory(namespace, url=server.url, timeout=30).get("wait until it is up")
        histories: dict[str, list[Call]] = {key: [] for key in VERBS}

        def client(number: int) -> None:
            rng = random.Random(seed * 100 + number)
            where = {"path": str(path), "durability": "fast"} if number == 0 else {"url": server.url, "timeout": 30}
            with Memory(namespace, **where, strict=True) as memory:
                for i in range(25):
                    key = rng.choice(list(histories))
                    verbs = {
                        "register": ("set", "get", "delete"),
                        "list": ("append", "get"),
                        "counter": ("incr", "get"),
                    }
                    verb = rng.choice(verbs[key])
                    argument = {"set": [number, i], "append": [number, i], "incr": rng.randint(1, 9)}.get(verb)
                    began = time.monotonic()
                    call = getattr(memory, verb)
                    result = call(key) if argument is None else call(key, argument)
                    ended = time.monotonic()
                    histories[key].append(Call(began, ended, verb, frozen(argument), frozen(result)))

        threads = [threading.Thread(target=client, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for key, history in histories.items():
        assert is_linearizable(history), key


def frozen(value):
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def test_the_checker_itself_can_say_no():
    lost = [Call(0, 1, "incr", 1, 1), Call(2, 3, "incr", 1, 1)]
    stale = [Call(0, 1, "set", "a", None), Call(2, 3, "set", "b", None), Call(4, 5, "get", None, "a")]
    overlapping = [Call(0, 9, "set", "a", None), Call(1, 8, "set", "b", None), Call(10, 11, "get", None, "a")]
    unanswered = [Call(0, float("inf"), "set", "a", None), Call(1, 2, "get", None, None), Call(3, 4, "get", None, "a")]
    assert [is_linearizable(history) for history in (lost, stale, overlapping, unanswered)] == [
        False,
        False,
        True,
        True,
    ]


def test_a_server_error_never_reaches_a_client_as_something_foreign(tmp_path):
    """Whatever a kill does to a call, the client sees a ScrubjayError or a result."""
    server = Server(tmp_path / "db", "--writes-per-day", "0")
    errors = []

    def call() -> None:
        with Memory("ns", url=server.url, timeout=2, strict=True) as memory:
            for i in range(2000):
                try:
                    memory.set("k", i)
                    memory.get("k")
                except ScrubjayError:
                    return
                except BaseException as error:
                    errors.append(error)
                    return

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    server.stop(signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert errors == []
