"""A PostgreSQL cluster whose primary is lost under two servers and eight writers: nothing acknowledged is lost.

The short form runs with the other tests: a machine is lost, a primary is demoted on purpose, connections are cut in the
middle of commits, and all servers start again. `make stress` runs the long one, and prints for how long no write was
acknowledged in each event.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster import NODES, WAIT_SECONDS, Cluster, fixed_port
from commit_proxy import CommitProxy
from harness import Server
from scrubjay import Memory, QuotaExceeded, Unavailable
from scrubjay.outbox import sender
from scrubjay.store import changes, items, usage
from scrubjay.store.postgres import PostgresStore

LONG = "SCRUBJAY_STRESS" in os.environ
NAMESPACES = 4
WRITERS = 8
"""Two for each namespace, through different servers."""
MAX_QUEUED = 20
FLAGS = ("--writes-per-day", "0", "--max-bytes", "0")
DISK_MEGABYTES = 400

pytestmark = [
    pytest.mark.timeout(3600 if LONG else 900),
    pytest.mark.skipif(sys.platform != "linux", reason="etcd is installed by pip on Linux only"),
]


class Service:
    """One of the servers, which is started again on its port."""

    def __init__(self, store: str) -> None:
        self._store, self._port = store, fixed_port()
        self.start()

    def start(self) -> None:
        self._server = Server(Path("unused"), "--store", self._store, *FLAGS, port=self._port)
        self.url = self._server.url
        threading.Thread(target=self._drain, args=(self._server.process.stderr,), daemon=True).start()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self._server.stop(how)

    def _drain(self, log) -> None:
        """A server whose log nobody reads would stop at a full pipe."""
        with contextlib.suppress(ValueError), log:  # it is closed as soon as the server has ended
            for _ in log:
                pass


class Writer(threading.Thread):
    """Appends 0, 1, 2, … to a list of its own and sets keys, through the outbox of the client."""

    def __init__(self, number: int, url: str) -> None:
        super().__init__(daemon=True)  # a test that fails does not stop it, and pytest would wait for it
        self.number, self.namespace = number, f"agent-{number % NAMESPACES}"
        self.memory = Memory(self.namespace, url=url)
        self.list, self.values = f"list-{number}", dict[str, int]()
        self.appended = self.writes = self.answered = 0
        self.error: BaseException | None = None
        self.should_stop = False

    def run(self) -> None:
        try:
            while not self.should_stop:
                if self._write():
                    time.sleep(0.01)
                else:
                    self._wait_for_queue()
            self.memory.flush(WAIT_SECONDS)
        except BaseException as error:
            self.error = error

    def _wait_for_queue(self) -> None:
        """Wait while many writes are queued: they are sent more slowly than they are made."""
        time.sleep(0.2)
        while len(self.memory.pending()) > MAX_QUEUED and not self.should_stop:
            time.sleep(0.2)

    def _write(self) -> bool:
        """Whether a server has acknowledged it."""
        number = self.appended
        is_answered = self.memory.append(self.list, number) is not None  # None: it is queued
        self.answered += is_answered
        self.appended += 1
        self.writes += 1
        if number % 4 == 0:
            key = f"key-{self.number}-{number % 40}"
            self.memory.set(key, number)
            self.values[key] = number
            self.writes += 1
        return is_answered


class Probe(threading.Thread):
    """Writes through one server without an outbox, and notes when a write was acknowledged."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self._url, self._number = url, number
        self.acknowledged_at: list[float] = []
        self.should_stop = False

    def run(self) -> None:
        with Memory("probe", url=self._url, strict=True) as memory:
            while not self.should_stop:
                try:
                    memory.set(f"probe-{self._number}", len(self.acknowledged_at))
                    self.acknowledged_at.append(time.monotonic())
                except Unavailable:
                    pass
                time.sleep(0.02)

    def longest_gap(self, since: float) -> float:
        """The longest time without an acknowledged write, of those that ended after a moment."""
        pairs = itertools.pairwise(self.acknowledged_at)
        return max((after - before for before, after in pairs if after >= since), default=0.0)


class World:
    """The cluster, the servers and the clients."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.proxies = [CommitProxy(port) for port in cluster.ports]
        through_proxies = cluster.url_through([proxy.port for proxy in self.proxies])
        self.services = [Service(through_proxies), Service(cluster.url)]
        self.writers = [Writer(n, self.services[n // NAMESPACES].url) for n in range(WRITERS)]
        self.probes = [Probe(service.url, n) for n, service in enumerate(self.services)]
        for thread in (*self.writers, *self.probes):
            thread.start()
        self.wait_for_answers()

    @contextmanager
    def event(self, name: str, *, starts_whole: bool = True) -> Iterator[int | None]:
        """What happens to the primary in the block; it ends when all writes are acknowledged by a server again."""
        leader = self.cluster.wait_until_whole() if starts_whole else self.cluster.leader()
        began = time.monotonic()
        before = sum(writer.appended - writer.answered for writer in self.writers)
        yield leader
        self.wait_for_answers()
        gap = max(probe.longest_gap(began) for probe in self.probes)
        queued = sum(writer.appended - writer.answered for writer in self.writers) - before
        print(
            f"\n{name}: {gap:.1f} s without an acknowledged write, {queued} appends queued by the clients", flush=True
        )

    def wait_for_answers(self) -> None:
        """Return when servers have acknowledged a new append of every writer and a new write of every probe."""
        writers = [writer.answered for writer in self.writers]
        probes = [len(probe.acknowledged_at) for probe in self.probes]
        give_up_at = time.monotonic() + WAIT_SECONDS
        while any(writer.answered == count for writer, count in zip(self.writers, writers, strict=True)) or any(
            len(probe.acknowledged_at) == count for probe, count in zip(self.probes, probes, strict=True)
        ):
            assert [writer.error for writer in self.writers if writer.error] == []
            assert time.monotonic() < give_up_at, f"{self._progress()}\n{self.cluster.logs()}"
            time.sleep(0.05)

    def wait_for_queued_writes(self) -> None:
        """Return when every writer has queued an append."""
        before = [writer.appended - writer.answered for writer in self.writers]
        give_up_at = time.monotonic() + WAIT_SECONDS
        while any(each.appended - each.answered == count for each, count in zip(self.writers, before, strict=True)):
            assert time.monotonic() < give_up_at, f"{self._progress()}\n{self.cluster.logs()}"
            time.sleep(0.05)

    def _progress(self) -> str:
        writers = [(writer.appended, writer.answered, len(writer.memory.pending())) for writer in self.writers]
        return f"{writers} {[len(probe.acknowledged_at) for probe in self.probes]}"

    def finish(self) -> None:
        """Stop the writers, which send what they have queued."""
        for thread in (*self.writers, *self.probes):
            thread.should_stop = True
        for thread in (*self.writers, *self.probes):
            thread.join(2 * WAIT_SECONDS)
            assert not thread.is_alive()
        assert [writer.error for writer in self.writers if writer.error] == []

    def close(self) -> None:
        for thread in (*self.writers, *self.probes):
            thread.should_stop = True
        for service in self.services:
            service.stop(signal.SIGKILL)
        for proxy in self.proxies:
            proxy.close()


@pytest.fixture
def world(tmp_path, monkeypatch) -> Iterator[World]:
    monkeypatch.setattr(sender, "MAX_RETRY_SECONDS", 1.0)
    folder = tmp_path / "cluster"
    folder.mkdir()
    cluster = Cluster(folder)
    world = None
    try:
        if LONG:
            for node in range(NODES):
                cluster.limit_disk(node, DISK_MEGABYTES)
        cluster.start()
        world = World(cluster)
        yield world
    finally:
        if world is not None:
            world.close()
        cluster.stop()


# ------------------------------------------------------------ events


def lose_machine(world: World) -> None:
    with world.event("machine of the primary lost (kill -9)") as leader:
        world.cluster.kill(leader)
        world.cluster.wait_for_other_leader(leader)
    world.cluster.start_node(leader)


def crash_postgres(world: World) -> None:
    with world.event("PostgreSQL of the primary crashed (kill -9)") as leader:
        world.cluster.kill_postgres(leader)
        world.cluster.wait_for_other_leader(leader)


def freeze_machine(world: World) -> None:
    with world.event("machine of the primary frozen (SIGSTOP)") as leader:
        world.cluster.send(leader, signal.SIGSTOP)
        world.cluster.wait_for_other_leader(leader)
    with world.event("machine goes on that was the primary (SIGCONT)", starts_whole=False):
        world.cluster.send(leader, signal.SIGCONT)
        world.cluster.wait_until_whole()


def switch_over(world: World) -> None:
    with world.event("primary demoted on purpose (switchover)") as leader:
        world.cluster.switch_over(leader)
        world.cluster.wait_for_other_leader(leader)


def restart_servers(world: World) -> None:
    with world.event("all servers killed (kill -9) and started again"):
        for service in world.services:
            service.stop(signal.SIGKILL)
        for service in world.services:
            service.start()
    with world.event("all servers stopped and started again, one after the other"):
        for service in world.services:
            service.stop()
            service.start()


def cut_commits(world: World) -> None:
    with world.event("connections cut in the middle of 20 commits") as leader:
        proxy = world.proxies[leader]
        proxy.cuts = [True, False] * 10
        give_up_at = time.monotonic() + WAIT_SECONDS
        while proxy.cuts:
            assert time.monotonic() < give_up_at
            time.sleep(0.05)


def fill_disk(world: World) -> None:
    """PostgreSQL refuses writes, and Patroni lets it, unless it cannot write its log: then it crashes."""
    with world.event("disk of the primary full, until clients have queued writes") as leader:
        ballast = world.cluster.fill_disk(leader)
        world.wait_for_queued_writes()
        ballast.unlink()


EVENTS: list[Callable[[World], None]] = [lose_machine, switch_over, cut_commits, restart_servers]
if LONG:
    EVENTS += [freeze_machine, crash_postgres, fill_disk, lose_machine, lose_machine]


def test_a_lost_primary_loses_nothing_acknowledged_and_doubles_nothing(world):
    for event in EVENTS:
        event(world)
    world.cluster.wait_until_whole()
    world.finish()
    store = PostgresStore(world.cluster.url)
    try:
        for writer in world.writers:
            assert store.run(items.read_text(writer.namespace, writer.list)) == _as_list(range(writer.appended))
            for key, number in writer.values.items():
                assert store.run(items.read_text(writer.namespace, key)) == str(number)
        for namespace in {writer.namespace for writer in world.writers}:
            check_counters(store, namespace, [each for each in world.writers if each.namespace == namespace])
        assert store.find_problems() == []
    finally:
        store.close()
    check_quota(world)
    print(f"\n{len(EVENTS)} events, {sum(writer.writes for writer in world.writers)} writes, 0 lost, 0 twice")


def _as_list(numbers: range) -> str:
    return f"[{','.join(map(str, numbers))}]"


def check_counters(store: PostgresStore, namespace: str, writers: list[Writer]) -> None:
    """Every write was counted once, and is in the log of changes once, without a gap in the numbers."""
    writes = sum(writer.writes for writer in writers)
    used = store.run(usage.read_usage(namespace))
    assert used.keys == sum(1 + len(writer.values) for writer in writers)
    assert used.writes_today == writes, "or this test ran over midnight, UTC"
    log, cursor = [], 0
    while page := store.run(changes.read_changes(namespace, "", cursor))[0]:
        log += page
        cursor = page[-1].id
    assert [change.id for change in log] == list(range(1, writes + 1))
    for writer in writers:
        assert sum(change.key == writer.list for change in log) == writer.appended


def check_quota(world: World) -> None:
    """Ten more writes are allowed, and ten are made, by two clients through both servers."""
    namespace = world.writers[0].namespace
    memories = [Memory(namespace, url=service.url, timeout=60, strict=True) for service in world.services]
    memories[0].set_quota(writes_per_day=memories[0].usage().writes_today + 10)
    refused: list[int] = []

    def write(memory: Memory, name: str) -> None:
        for n in range(10):
            try:
                memory.set(f"quota-{name}-{n}", n)
            except QuotaExceeded:
                refused.append(n)

    threads = [threading.Thread(target=write, args=each) for each in zip(memories, "ab", strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 10
    for memory in memories:
        assert memory.usage().writes_remaining == 0
        memory.close()
