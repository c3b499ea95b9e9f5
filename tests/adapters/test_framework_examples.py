"""The examples of adapters: short, and they run twice without a model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
NEEDS = {
    "adk_session.py": "google.adk",
    "agentchat_context.py": "autogen_ext",
    "ag2_stream.py": "ag2",
    "agent_framework_history.py": "agent_framework",
    "anthropic_memory_tool.py": "anthropic",
    "crewai_flow.py": "crewai",
    "langchain_cache.py": "langchain_core",
    "langgraph_thread.py": "langgraph.graph",
    "llama_index_memory.py": "llama_index.core",
    "mcp_client.py": "mcp.server.mcpserver",
    "openai_agents_session.py": "agents",
    "pydantic_ai_conversation.py": "pydantic_ai",
    "strands_session.py": "strands",
}
"""The module without which an example cannot run."""


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_runs_twice(path, home):
    pytest.importorskip(NEEDS[path.name], exc_type=ImportError)
    assert len(path.read_text().splitlines()) <= 15
    commands = str(Path(sys.executable).parent)  # where `scrubjay` is
    variables = {**os.environ, "PATH": os.pathsep.join([commands, os.environ["PATH"]])}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, path], capture_output=True, text=True, timeout=120, check=False, env=variables
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
