"""Writes whose response was lost: they never overwrite a later one."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import pytest
import requests

import scrubjay_server
from harness import AsgiTransport, fresh_name, serving
from scrubjay import Memory, Unavailable
from scrubjay.fencing import FencedExecutor
from scrubjay.http import HttpExecutor
from scrubjay.memory import memory_on
from scrubjay.outbox.executor import OutboxExecutor
from scrubjay.settings import memory_settings
from scrubjay.transport import Response, ResponseLost


class LateNetwork:
    """A transport that delivers some requests long after the client has given up."""

    def __init__(self, inner: AsgiTransport) -> None:
        self._inner = inner
        self.is_late = False
        self.error: BaseException = ResponseLost("timed out")
        """What the client gets in place of a late response."""
        self._late: list[tuple] = []

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        if self.is_late:
            self._late.append((method, path, body, headers))
            raise self.error
        return self._inner.send(method, path, body, headers)

    def deliver(self) -> list[int]:
        return [self._inner.send(*request).status for request in self._late]

    def close(self) -> None:
        self._inner.close()


@pytest.fixture
def network(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRUBJAY_PATH", str(tmp_path / "db"))
    made = LateNetwork(AsgiTransport(scrubjay_server.create_app()))
    yield made
    made.close()


def strict_memory(network: LateNetwork, namespace: str) -> Memory:
    settings = memory_settings(url=f"http://{namespace}")
    return memory_on(FencedExecutor(HttpExecutor(settings, network)), namespace, settings)


LOST = {
    "set": lambda memory: memory.set("k", "old"),
    "delete": lambda memory: memory.delete("k"),
    "update": lambda memory: memory.update({"k": "old"}),
    "clear": lambda memory: memory.clear(),
    "touch": lambda memory: memory.touch("k", 0.001),
}


@pytest.mark.parametrize("verb", LOST)
def test_a_write_that_arrives_late_does_not_undo_a_later_one(network, verb):
    memory = strict_memory(network, fresh_name())
    memory.set("k", "first")
    network.is_late = True
    with pytest.raises(Unavailable, match="may have been carried out or not"):
        LOST[verb](memory)
    network.is_late = False
    other = strict_memory(network, memory.namespace)
    other.set("k", "new")
    assert network.deliver() == [409]
    assert memory.get("k") == "new"


@pytest.mark.parametrize("has_outbox", [False, True])
def test_a_write_that_ctrl_c_interrupts_does_not_undo_a_later_one(network, tmp_path, has_outbox):
    namespace = fresh_name()
    memory = strict_memory(network, namespace)
    if has_outbox:
        fenced = memory._executor
        outbox = OutboxExecutor(lambda: fenced, tmp_path / "outbox.db", None)
        memory = memory_on(outbox, namespace, memory._settings)
    network.is_late, network.error = True, KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        memory.set("k", "old")
    network.is_late = False
    memory.set("k", "new")
    assert network.deliver() == [409]
    assert memory.get("k") == "new"


def test_a_lost_write_that_has_happened_is_followed_by_the_next(network):
    memory = strict_memory(network, fresh_name())
    network.is_late = True
    with pytest.raises(Unavailable):
        memory.append("l", "old")
    network.is_late = False
    assert network.deliver() == [200]
    assert memory.append("l", "new") == 2
    assert memory.tail("l", 2) == ["old", "new"]


def test_a_write_waits_until_earlier_ones_are_known_to_have_happened_or_not(network):
    memory = strict_memory(network, fresh_name())
    network.is_late = True
    with pytest.raises(Unavailable):
        memory.set("k", "old")
    with pytest.raises(Unavailable):
        memory.set("k", "new")
    network.is_late = False
    memory.set("other", 1)
    network.deliver()
    assert memory.get("k") is None


def test_a_server_does_not_make_the_write_of_a_client_that_has_hung_up(tmp_path):
    """The next write may come from another process, which knows of no lost write: `scrubjay set`, run twice."""
    with serving(tmp_path / "db") as server:
        item = f"{server.url}/v1/namespaces/ns/items/k"
        server.process.send_signal(signal.SIGSTOP)
        try:
            for _ in range(5):
                with pytest.raises(requests.Timeout):
                    requests.put(item, json={"value": "old"}, timeout=(60, 0.2))
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert requests.put(item, json={"value": "new"}, timeout=60).status_code == 200
        changes = requests.get(f"{server.url}/v1/audit", timeout=60).json()["changes"]
        assert [change["verb"] for change in changes] == ["set"]
        assert requests.get(item, timeout=60).json()["value"] == "new"
