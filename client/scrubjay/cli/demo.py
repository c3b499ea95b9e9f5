"""The command `demo`: an agent that is killed during a conversation and remembers it when it is started again."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scrubjay.cli.parser import Commands
from scrubjay.errors import ScrubjayError

PROGRAM = """\
import sys, time
from scrubjay import Memory

memory = Memory("demo", path=sys.argv[1])
user = memory.get("user")
if user is None:
    for role, text in (
        ("user", "Hi, I am Sarah. Please keep your answers short."),
        ("agent", "Hello Sarah."),
        ("user", "We decided on PostgreSQL instead of MongoDB."),
        ("agent", "Noted."),
    ):
        memory.append("history", {"role": role, "content": text})
        print(f"{role}: {text}", flush=True)
    memory.set("user", {"name": "Sarah"})
    memory.remember("We decided on PostgreSQL instead of MongoDB", type="decision")
    print("ready to be killed", flush=True)
    time.sleep(600)
else:
    print(f"agent: Welcome back, {user['name']}. I have our {len(memory.get('history'))} messages.")
    print("user: Which database did we choose?")
    print(f"agent: {memory.recall('Which database did we choose?')[0].content}.")
"""
"""Run twice: what it does depends only on what it finds in its memory."""
LINE_SECONDS = 0.6
"""Seconds between two lines on a terminal, so that they can be read."""


def demo(_arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="scrubjay-demo-") as folder:
        program, database = Path(folder) / "chat.py", Path(folder) / "demo.db"
        program.write_text(PROGRAM, encoding="utf-8")
        _say("One program, run twice. Its memory is a temporary file, and nothing leaves this machine.\n")
        for number in (1, 2):
            _say(f"process {number}")
            _run(program, database)
    _say(
        "The second process knew what the first one had stored before it was killed. This is the part that remembers:\n"
    )
    _say('  from scrubjay import Memory\n  memory = Memory("demo")\n  memory.append("history", message)\n')
    _say("Next: scrubjay set my-agent greeting hello")
    return 0


def _run(program: Path, database: Path) -> None:
    """Print the lines of the program; kill it when it says that it is ready."""
    command = [sys.executable, str(program), str(database)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:  # noqa: S603
        assert process.stdout is not None  # noqa: S101 - for the type checker
        for line in process.stdout:
            if line.startswith("ready"):
                process.kill()
                _say("  (killed, without a chance to save anything)\n")
                return
            role, text = line.rstrip("\n").split(": ", 1)
            _say(f"  {role:5}  {text}")
    if process.returncode:
        raise ScrubjayError("the demo failed; `scrubjay doctor` may say why")
    _say("")


def _say(text: str) -> None:
    print(text, flush=True)
    if sys.stdout.isatty():
        time.sleep(LINE_SECONDS)


def add_commands(command: Commands) -> None:
    command(
        "demo", demo, "show an agent that remembers after it was killed; offline, in a temporary file",
        example="scrubjay demo", flags=None, json=False,
    )  # fmt: skip
