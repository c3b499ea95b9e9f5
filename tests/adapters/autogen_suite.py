"""Run AutoGen's own tests, plain and on our classes, and name those that pass plain only.

python tests/adapters/autogen_suite.py 0.14.1 FOLDER

FOLDER is a checkout of the release: v0.2.35 of microsoft/autogen, v0.9.0 or the commit "Version bump to 0.14.1" of
ag2ai/ag2. Tests that need a model of a provider are left out, and those that fail plain, because a package or the
network is missing, do not count. Those that fail on our classes alone are run a third time, on our classes with every
chat starting empty (`upstream/forgetful_autogen.py`): each must pass then, which shows that it fails for nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET

from versions import python_of

UPSTREAM = Path(__file__).with_name("upstream")
OPTIONS = {"0.2.35": ["--skip-openai", "--skip-docker"]}
NEEDED = {"0.14.1": ["pytest-asyncio", "dirty-equals"]}
"""Packages that the tests need. Those of older releases mark fixtures, which pytest 9 refuses."""
OLDER = ["pytest<9", "iniconfig", "pluggy", "pytest-asyncio<1.2", "dirty-equals"]

_SECOND_CHAT = "it expects the second chat of agents of the same names to start empty"
EXPECTED = {  # by name, why they cannot pass on our classes
    "test_max_consecutive_auto_reply": _SECOND_CHAT,
    "test_max_consecutive_auto_reply_with_max_turns": _SECOND_CHAT,
    "test_speaker_selection_method": _SECOND_CHAT,
    "test_n_agents_less_than_3": _SECOND_CHAT,
    "test_termination": _SECOND_CHAT,
    "test_send_intros": _SECOND_CHAT,
    "test_clear_agents_history": _SECOND_CHAT,
    "test_string_agent_params_for_transfer": f"{_SECOND_CHAT}: the first has tool results without ids",
}


def run(
    python: Path, version: str, folder: Path, plugins: list[str], more: Path, only: Iterable[str] = ()
) -> dict[str, str]:
    """Run the tests, or only some; by name whether each passed, failed, or why not."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        command = [python, "-m", "pytest", "-q", "test/agentchat", "-o", "addopts=", "-o", "filterwarnings=default"]
        command += ["-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "-p", "no:logging", "--timeout=120", "--tb=no"]
        command += ["--continue-on-collection-errors", f"--junitxml={report}", *OPTIONS.get(version, [])]
        command += [part for plugin in plugins for part in ("-p", plugin)]
        command += ["-k", " or ".join(only)] if only else []
        paths = os.pathsep.join(map(str, (more, UPSTREAM)))
        variables = {
            **os.environ,
            "PYTHONPATH": paths,
            "HOME": place,
            "OPENAI_API_KEY": "none",
            "SCRUBJAY_PROJECT": "suite",
        }
        subprocess.run(command, cwd=folder, env=variables, check=False)
        cases = ET.parse(report).iter("testcase")
        return {f"{case.get('classname')}::{case.get('name')}": _outcome(case) for case in cases}


def _outcome(case: ET.Element) -> str:
    found = [case.find(kind) for kind in ("failure", "error", "skipped")]
    return next((str(part.get("message")).split("\n")[0] for part in found if part is not None), "passed")


def main(version: str, folder: str) -> int:
    python = python_of(version)
    more = python.parents[1] / "suite"
    if not more.exists():
        pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", more]
        subprocess.run([*pip, *NEEDED.get(version, OLDER)], check=True)
    plain = run(python, version, Path(folder), ["offline_autogen"], more)
    ours = ["offline_autogen", "swap_autogen"]
    swapped = run(python, version, Path(folder), ours, more)
    passed = [name for name, outcome in plain.items() if outcome == "passed"]
    lost = {name: swapped.get(name, "not run") for name in passed if swapped.get(name) != "passed"}
    short = {name: name.rpartition("::")[2].partition("[")[0] for name in lost}
    forgetful = run(python, version, Path(folder), [*ours, "forgetful_autogen"], more, short.values()) if lost else {}
    unexpected = 0
    for name, outcome in lost.items():
        reason = EXPECTED.get(short[name]) if forgetful.get(name) == "passed" else None
        unexpected += reason is None
        print(f"{name}: {reason or f'NOT EXPECTED: {outcome}'}")
    print(f"{len(passed)} of {len(plain)} tests pass plain; of these {len(passed) - len(lost)} pass on our classes")
    return bool(unexpected)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
