"""Real parts for the tests: a server process on loopback, and both drivers behind one `run`."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scrubjay.store.aio import AioStore
from scrubjay.store.operation import Operation
from scrubjay.store.sqlite import SqliteStore

DAY = 86_400
_numbers = itertools.count(1)


def fresh_name(prefix: str = "ns") -> str:
    """A namespace that no other test uses."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


def clean_environment(**variables: str) -> dict[str, str]:
    """The environment without any SCRUBJAY_* setting of the developer's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SCRUBJAY_")}
    return {**kept, **variables}


class Clock:
    """Time that stands still until a test moves it."""

    def __init__(self, now: float = 20_000 * DAY + 3600.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


# What takes twenty seconds by default can be seen in one.
WITH_LIMITS = """
import json, sys, scrubjay_limits, scrubjay_server
vars(scrubjay_limits).update(json.loads(sys.argv[1]))
raise SystemExit(scrubjay_server.main(sys.argv[2:]))
"""


class Server:
    """`scrubjay serve` as a process of its own."""

    def __init__(self, path: Path, *flags: str, port: int = 0, limits: Mapping[str, float] | None = None) -> None:
        self.path = path
        program = ("-c", WITH_LIMITS, json.dumps(limits)) if limits else ("-m", "scrubjay.cli", "serve")
        command = [sys.executable, *program, "--port", str(port), "--path", str(path), *flags]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
        )
        self.banner = ""
        for line in self.process.stdout:
            self.banner += line
            if "stop" in line:
                break
        else:
            raise AssertionError(f"the server did not start: {self.process.stderr.read()}")
        self.url = re.search(r"http://\S+", self.banner)[0]
        self.port = int(self.url.rpartition(":")[2])

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop it by its process id and say how it ended."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(timeout=30)
        self.process.stdout.close()
        self.process.stderr.close()
        return code


def issue_key(path: Path, name: str, *flags: str) -> str:
    """An api key, made by the command as an administrator would."""
    command = [sys.executable, "-m", "scrubjay.cli", "key", "issue", "--name", name, "--path", str(path), *flags]
    issued = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=clean_environment())
    return issued.stdout.split()[0]


@contextmanager
def serving(path: Path, *flags: str, port: int = 0, limits: Mapping[str, float] | None = None) -> Iterator[Server]:
    server = Server(path, *flags, port=port, limits=limits)
    try:
        yield server
    finally:
        server.stop()


class SyncDriver:
    """The store as embedded clients use it."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.store = SqliteStore(path, **options)

    def run(self, operation: Operation[Any]) -> Any:
        return self.store.run(operation)

    def close(self) -> None:
        self.store.close()


class AioDriver:
    """The store as the server uses it, driven from outside its loop."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.store = SqliteStore(path, **options)
        self._runner = asyncio.Runner()
        self._aio = self._runner.run(AioStore(self.store).__aenter__())

    def run(self, operation: Operation[Any]) -> Any:
        return self._runner.run(self._aio.run(operation))

    def gather(self, *operations: Operation[Any]) -> list[Any]:
        async def together() -> list[Any]:
            return await asyncio.gather(*map(self._aio.run, operations), return_exceptions=True)

        return self._runner.run(together())

    def close(self) -> None:
        self._runner.run(self._aio.__aexit__())
        self._runner.close()


DRIVERS = {"sqlite": SyncDriver, "aio": AioDriver}
