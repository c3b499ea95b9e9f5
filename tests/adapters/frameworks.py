"""Run the tests of the adapters for frameworks other than AutoGen, in one environment that holds all of them.

python tests/adapters/frameworks.py                        # the adapters' own short tests
python tests/adapters/frameworks.py --upstream             # and the frameworks' own tests, on the adapters
python tests/adapters/frameworks.py --upstream openai -x   # of one of them, with arguments for pytest
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

from environments import ROOT, environment

TESTS = Path(__file__).parent
EXTRAS = "ag2,agent-framework,agentchat,anthropic,langchain,langgraph,mcp,openai-agents,pydantic-ai,server"
SUITES_NEED = [
    "autogen-ext>=0.7.5",
    "langchain-tests>=1.1.9",
    "langgraph>=1.2",
    "langgraph-checkpoint-conformance>=0.0.2",
    "langgraph-checkpoint-sqlite>=3.1",
    "pytest-asyncio>=1.3",
]


class Suite(NamedTuple):
    """Tests of a framework that run on our class in place of its own."""

    distribution: str
    """Whose source distribution has the tests; empty if they are installed."""
    plugin: str
    """In tests/adapters/upstream: it exchanges the class, and lists the tests that reach into the exchanged one. Empty
    if the tests are given our class."""
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()


SUITES = {
    "langchain": Suite("", "", (str(TESTS / "upstream/standard_langchain.py"),), ("-o", "asyncio_mode=auto")),
    "anthropic": Suite(
        "anthropic",
        "swap_anthropic",
        ("tests/lib/tools/memory_tools/test_filesystem.py",),
        ("--noconftest", "-o", "asyncio_mode=auto"),
    ),
    "openai": Suite(
        "openai-agents",
        "swap_openai_agents",
        tuple(
            f"tests/memory/test_session{name}.py"
            for name in ("", "_limit", "_context_wrapper", "_persistence_sanitize")
        ),
    ),
    "langgraph-store": Suite(
        "langgraph-checkpoint-sqlite",
        "swap_langgraph_store",
        ("tests/test_store.py", "tests/test_async_store.py", "tests/test_ttl.py"),
        ("-o", "markers=flaky", "-o", "asyncio_mode=auto"),
    ),
}


def source_of(python: Path, distribution: str) -> Path:
    """The unpacked source distribution of the version that is installed."""
    show = f"import importlib.metadata; print(importlib.metadata.version({distribution!r}))"
    version = subprocess.run([python, "-c", show], capture_output=True, text=True, check=True).stdout.strip()
    home = python.parents[1] / "sources"
    folder = home / f"{distribution.replace('-', '_')}-{version}"
    if not folder.exists():
        pip = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", home]
        subprocess.run([*pip, f"{distribution}=={version}"], check=True)
        with tarfile.open(home / f"{folder.name}.tar.gz") as archive:
            archive.extractall(home, filter="data")
    return folder


def run_upstream(python: Path, suite: Suite, options: list[str]) -> int:
    paths = os.pathsep.join(map(str, (TESTS / "upstream", TESTS.parent)))
    pytest = [python, "-m", "pytest", "-q", "-o", "addopts=", "-o", "filterwarnings=default"]
    pytest += ["-p", suite.plugin] if suite.plugin else []
    command = [*pytest, *suite.options, *options, *suite.tests]
    variables = {**os.environ, "PYTHONPATH": paths, "OPENAI_API_KEY": "none"}
    folder = source_of(python, suite.distribution) if suite.distribution else TESTS / "upstream"
    return subprocess.run(command, cwd=folder, env=variables, check=False).returncode


def main(arguments: list[str]) -> int:
    chosen = [argument for argument in arguments if argument in SUITES]
    options = [argument for argument in arguments if argument not in (*SUITES, "--upstream")]
    python = environment("frameworks", SUITES_NEED, EXTRAS)
    failed = []
    if not chosen:
        files = sorted(str(path) for path in TESTS.glob("test_framework_*.py"))
        own = [python, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", *options, *files]
        failed += ["the adapters' own tests"] if subprocess.run(own, cwd=ROOT, check=False).returncode else []
    if "--upstream" in arguments:
        for name in chosen or SUITES:
            print(f"the tests of {name}", flush=True)
            failed += [name] if run_upstream(python, SUITES[name], options) else []
    print(f"failed: {', '.join(failed)}" if failed else "passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
