"""What adapters share: their parts, the error without a framework, and writes that come to their end."""

from __future__ import annotations

import asyncio
import threading
import tomllib
from pathlib import Path

import pytest

from scrubjay.adapters._framework import _threads, write

ROOT = Path(__file__).parents[2]
THREADS = 16
FRAMEWORKS = {
    "adk": "google.adk",
    "ag2": "ag2",
    "agent_framework": "agent_framework",
    "agentchat": "autogen_agentchat",
    "anthropic": "anthropic",
    "crewai": "crewai",
    "langchain": "langchain_core",
    "langgraph": "langgraph",
    "llama_index": "llama_index",
    "mcp": "mcp",
    "openai_agents": "agents",
    "pydantic_ai": "pydantic_ai",
    "strands": "strands",
}
"""The modules of adapters, and the package that each needs."""


def test_an_adapter_is_a_module_with_an_extra_tests_a_page_and_an_example():
    assert {path.stem for path in (ROOT / "client/scrubjay/adapters").glob("[a-z]*.py")} == set(FRAMEWORKS)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in FRAMEWORKS:
        extra = name.replace("_", "-")
        assert all(">=" in requirement for requirement in extras[extra])
        assert (ROOT / f"tests/adapters/test_framework_{name}.py").exists()
        (example,) = (ROOT / "examples/frameworks").glob(f"{name}_[a-z]*.py")
        page = (ROOT / f"docs/{extra}.md").read_text()
        assert f"scrubjay[{extra}]" in page
        assert f"examples/frameworks/{example.name}" in page


def test_without_its_framework_an_adapter_names_the_command_that_installs_it(script):
    said = script(f"""
        import importlib, sys
        from scrubjay import MissingExtra
        for name, package in {FRAMEWORKS}.items():
            sys.modules[package] = None
            try:
                importlib.import_module("scrubjay.adapters." + name)
            except MissingExtra as error:
                print(error)
    """).splitlines()
    for name, line in zip(FRAMEWORKS, said, strict=True):
        assert line.endswith(f'install it with: pip install "scrubjay[{name.replace("_", "-")}]"')


@pytest.mark.parametrize("has_started", [True, False])
@pytest.mark.parametrize("cancellations", [1, 3])
@pytest.mark.parametrize("fails", [True, False])
def test_a_cancelled_caller_goes_on_after_the_write_has_happened_once(has_started, cancellations, fails):
    gate, started, done = threading.Event(), threading.Event(), []

    def verb() -> None:
        started.set()
        gate.wait(100)
        done.append("written")
        if fails:
            raise ValueError

    async def use() -> None:
        others = [] if has_started else [_threads.submit(gate.wait, 100) for _ in range(THREADS)]
        task = asyncio.ensure_future(write(verb))
        await asyncio.sleep(0)
        if has_started:
            await asyncio.to_thread(started.wait, 100)
        for _ in range(cancellations):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["written"]
        assert all(other.result(100) for other in others)

    asyncio.run(use())


def test_a_result_and_an_error_reach_the_caller():
    assert asyncio.run(write(lambda: 5)) == 5
    with pytest.raises(ZeroDivisionError):
        asyncio.run(write(lambda: 1 // 0))
