"""Runs the steps of the Dockerfile in a temporary folder, for machines without Docker: `make image-check`.

Folders of the image are folders below the temporary one. The steps that need root are skipped and named. Then the
entry point is started with the image's environment, and the health check has to succeed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
FOLDERS = ("/src", "/wheels", "/opt/scrubjay", "/data", "/backups")
"""The image's own folders, which the steps name."""
START_SECONDS = 120
"""Seconds that the server may take until its health check succeeds."""


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Each instruction with its arguments on one line."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    for line in filter(None, joined.splitlines()):
        name, _, rest = line.partition(" ")
        yield name, rest


class Image:
    """The folders and the environment that the instructions make; a method for each instruction that does something."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._where = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("SCRUBJAY_")}
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{self.environment['PATH']}"
        self.entry: list[str] = []
        self.health: list[str] = []

    def carry_out(self, name: str, rest: str) -> None:
        if method := getattr(self, f"_{name.lower()}", None):
            method(rest)

    def _inside(self, text: str) -> str:
        for each in FOLDERS:
            text = re.sub(rf"(?<![\w.]){each}\b", str(self._folder) + each, text)
        return text

    def _workdir(self, rest: str) -> None:
        self._where = Path(self._inside(rest))
        self._where.mkdir(parents=True, exist_ok=True)

    def _copy(self, rest: str) -> None:
        if rest.startswith("--from"):  # all stages are in one folder
            return
        *sources, target = rest.split()
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, self._where / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, self._where / target)

    def _run(self, rest: str) -> None:
        if "useradd" in rest:
            print(f"skipped, needs root: {rest}")
            return
        print(f"$ {rest}", flush=True)
        subprocess.run(["sh", "-euc", self._inside(rest)], cwd=self._where, env=self.environment, check=True)

    def _env(self, rest: str) -> None:
        for pair in shlex.split(self._inside(rest)):
            variable, _, value = pair.partition("=")
            self.environment[variable] = value.replace("$PATH", self.environment["PATH"])

    def _healthcheck(self, rest: str) -> None:
        self.health = json.loads(rest[rest.index("[") :])

    def _entrypoint(self, rest: str) -> None:
        self.entry += json.loads(rest)

    _cmd = _entrypoint

    def start(self) -> None:
        """Start the server and wait until the health check succeeds."""
        environment = {**self.environment, "SCRUBJAY_HOST": "127.0.0.1"}
        print(f"$ {shlex.join(self.entry)}", flush=True)
        command = [str(shutil.which(self.entry[0], path=environment["PATH"])), *self.entry[1:]]
        with subprocess.Popen(command, cwd=self._where, env=environment) as server:
            try:
                deadline = time.monotonic() + START_SECONDS
                while subprocess.run(self.health, env=environment, check=False, stderr=subprocess.DEVNULL).returncode:
                    if time.monotonic() > deadline or server.poll() is not None:
                        sys.exit("the health check did not succeed")
                    time.sleep(0.2)
                print("the health check succeeds")
            finally:
                server.terminate()
        if server.returncode:
            sys.exit(f"the server ended with {server.returncode}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="scrubjay-image-") as made:
        image = Image(Path(made))
        for each in instructions((HERE / "Dockerfile").read_text(encoding="utf-8")):
            image.carry_out(*each)
        image.start()
