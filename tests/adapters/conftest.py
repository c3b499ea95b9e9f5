from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A file of the test's own for agents that are told nothing."""
    path = tmp_path / "memory.db"
    monkeypatch.setenv("SCRUBJAY_PATH", str(path))
    monkeypatch.setenv("SCRUBJAY_DURABILITY", "fast")
    monkeypatch.setenv("SCRUBJAY_PROJECT", "tests")
    return path


@pytest.fixture
def script(home):
    """Run code in a process of its own, with the same memory; what it printed."""

    def start(code, *arguments):
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
        return subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=home.parent
        )

    def run(code, *arguments):
        process = start(code, *arguments)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        return output

    run.start = start
    return run
