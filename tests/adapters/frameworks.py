"""Run the tests of the adapters for frameworks other than AutoGen, in one environment that holds all of them.

python tests/adapters/frameworks.py                        # the adapters' own short tests
python tests/adapters/frameworks.py --upstream             # and the frameworks' own tests, on the adapters
python tests/adapters/frameworks.py --upstream openai -x   # of one of them, with arguments for pytest
python tests/adapters/frameworks.py --install              # only the environment of the short tests
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

from environments import ROOT, environment

TESTS = Path(__file__).parent
EXTRAS = (
    "ag2,agent-framework,agentchat,anthropic,langchain,langgraph,llama-index,mcp,openai-agents,pydantic-ai,"
    "server,strands"
)
QUIET = {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "OTEL_SDK_DISABLED": "true"}
"""No framework reports its use to anybody from a test."""
SUITES_NEED = [
    "autogen-ext>=0.7.5",
    "langchain>=1.3",
    "langchain-classic>=1.0",
    "langchain-tests>=1.1.9",
    "langgraph>=1.2",
    "langgraph-checkpoint-conformance>=0.0.2",
    "langgraph-checkpoint-sqlite>=3.1",
    "pytest-asyncio>=1.3",
]


class Suite(NamedTuple):
    """Tests of a framework that run on our class in place of its own."""

    source: str
    """Where the tests are: in the source distribution of this package, or at a commit of a git repository (URL@commit).
    Empty if they are installed."""
    plugin: str
    """In tests/adapters/upstream: it exchanges the class, and lists the tests that reach into the exchanged one. Empty
    if the tests are given our class."""
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()
    environment: str = "frameworks"
    folder: str = ""
    """Of the source, in which pytest runs."""


OWN = {"crewai": (["pytest-asyncio>=1.3"], "crewai"), "adk": ([], "adk,server")}
"""Frameworks in an environment of their own, because of what they require: packages and extras."""

SUITES = {
    "crewai": Suite(
        "crewai",
        "swap_crewai",
        ("tests/test_flow_persistence.py", "tests/test_flow_persistence_factory.py"),
        ("--noconftest", "-o", "asyncio_mode=auto"),
        "crewai",
    ),
    "strands": Suite(
        "strands-agents",
        "swap_strands",
        (
            "tests/strands/storage/test_storage.py",
            "tests/strands/storage/test_in_memory_storage.py",
            "tests/strands/session/test_snapshot_session_manager.py",
            "tests/strands/session/test_repository_session_manager.py",
        ),
        ("-o", "asyncio_mode=auto"),
    ),
    "langchain": Suite("", "", (str(TESTS / "upstream/standard_langchain.py"),), ("-o", "asyncio_mode=auto")),
    "mcp": Suite("", "", (str(TESTS / "upstream/standard_mcp.py"),), ("-rs",)),
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
    "langgraph": Suite(
        "https://github.com/langchain-ai/langgraph@f09cfe8ffc1eeffd68f4b628ed69c30f7cad229f",
        "",
        (str(TESTS / "test_framework_langgraph.py"),),
        ("-k", "conformance", "-p", "no:asyncio"),
        folder="libs/checkpoint-conformance",
    ),
    "ag2": Suite(
        "https://github.com/ag2ai/ag2@f69ea61de436026f3fe7218da5a9d1b413258e5f",
        "swap_ag2",
        (
            "test/knowledge",
            "test/test_history.py",
            *(f"test/stream/test_{name}.py" for name in ("iter", "stream", "transient")),
        ),
        ("-o", "asyncio_mode=auto"),
    ),
    "langgraph-store": Suite(
        "langgraph-checkpoint-sqlite",
        "swap_langgraph_store",
        ("tests/test_store.py", "tests/test_async_store.py", "tests/test_ttl.py"),
        ("-o", "markers=flaky", "-o", "asyncio_mode=auto"),
    ),
}


def source_of(python: Path, source: str) -> Path:
    """The folder with the source of a suite, fetched if it is not there yet."""
    home = python.parents[1] / "sources"
    home.mkdir(exist_ok=True)
    return _checked_out(home, *source.split("@")) if "@" in source else _unpacked(home, python, source)


def _checked_out(home: Path, url: str, commit: str) -> Path:
    folder = home / f"{url.rsplit('/', 1)[1]}-{commit}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=home) as partial:
            for command in (["init"], ["fetch", "--depth", "1", url, commit], ["checkout", "FETCH_HEAD"]):
                subprocess.run(["git", "-C", partial, command[0], "--quiet", *command[1:]], check=True)
            shutil.copytree(partial, folder, symlinks=True)
    return folder


def _unpacked(home: Path, python: Path, distribution: str) -> Path:
    """The source distribution of the version that is installed."""
    show = f"import importlib.metadata; print(importlib.metadata.version({distribution!r}))"
    version = subprocess.run([python, "-c", show], capture_output=True, text=True, check=True).stdout.strip()
    folder = home / f"{distribution.replace('-', '_')}-{version}"
    if not folder.exists():
        pip = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", home]
        subprocess.run([*pip, f"{distribution}=={version}"], check=True)
        with tarfile.open(home / f"{folder.name}.tar.gz") as archive:
            archive.extractall(home, filter="data")
    return folder


def run_upstream(python: Path, suite: Suite, folder: Path, options: list[str]) -> int:
    paths = os.pathsep.join(map(str, (TESTS / "upstream", TESTS.parent)))
    pytest = [python, "-m", "pytest", "-q", "-o", "addopts=", "-o", "filterwarnings=default"]
    pytest += ["-p", suite.plugin] if suite.plugin else []
    command = [*pytest, *suite.options, *options, *suite.tests]
    variables = {**os.environ, **QUIET, "PYTHONPATH": paths, "OPENAI_API_KEY": "none"}
    return subprocess.run(command, cwd=folder / suite.folder, env=variables, check=False).returncode


def run_own(python: Path, files: list[str], options: list[str]) -> list[str]:
    """Run the short tests of adapters; their name if they fail."""
    in_parallel = ["-n", "auto", "--dist", "loadfile"]  # a file is one framework, which takes seconds to import
    own = [python, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", *in_parallel, *options, *files]
    failed = subprocess.run(own, cwd=ROOT, env={**os.environ, **QUIET}, check=False).returncode
    return [f"the adapters' own tests in {python.parents[1].name}"] if failed else []


def main(arguments: list[str]) -> int:
    chosen = [argument for argument in arguments if argument in SUITES]
    options = [argument for argument in arguments if argument not in (*SUITES, "--upstream")]
    pythons = {"frameworks": environment("frameworks", SUITES_NEED, EXTRAS)}
    if "--install" in arguments:
        return 0
    failed: list[str] = []
    not_fetched: list[str] = []
    if not chosen:
        apart = {TESTS / f"test_framework_{name}.py" for name in OWN}
        files = [str(path) for path in sorted(TESTS.glob("test_framework_*.py")) if path not in apart]
        if "--upstream" not in arguments:
            print(f"not tested here, but by make test-frameworks: {', '.join(OWN)}", flush=True)
        failed += run_own(pythons["frameworks"], files, options)
    if "--upstream" in arguments:
        for name, (packages, extras) in OWN.items():
            if not chosen or name in chosen:
                pythons[name] = environment(name, packages, extras)
                files = [str(TESTS / f"test_framework_{which}.py") for which in (name, "examples", "pages")]
                failed += run_own(pythons[name], files, options)
        for name in chosen or SUITES:
            print(f"the tests of {name}", flush=True)
            suite, python = SUITES[name], pythons[SUITES[name].environment]
            try:
                folder = source_of(python, suite.source) if suite.source else TESTS / "upstream"
            except subprocess.CalledProcessError:
                not_fetched.append(name)
                continue
            failed += [name] if run_upstream(python, suite, folder, options) else []
    if not_fetched:
        print(f"not run, because their source could not be fetched: {', '.join(not_fetched)}")
    print(f"failed: {', '.join(failed)}" if failed else "passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
