"""The pages of adapters: their code runs as it is written, with a model that needs no key."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from pathlib import Path

import pytest

from scrubjay import Memory

DOCS = Path(__file__).parents[2] / "docs"
BEFORE = {
    "adk": """
        from google.adk.agents import Agent
        from google.adk.models import BaseLlm, LlmResponse
        from google.genai.types import Content, Part

        class Model(BaseLlm):
            async def generate_content_async(self, request, stream=False):
                yield LlmResponse(content=Content(role="model", parts=[Part(text="Hello")]))

        agent = Agent(name="assistant", model=Model(model="scripted"))
    """,
    "ag2": """
        from ag2 import Agent
        from ag2.testing import TestConfig

        config = TestConfig("Hello", "Hello")
        agent = Agent("Assistant", config=config)
    """,
    "agent-framework": """
        from agent_framework import WorkflowBuilder, WorkflowContext, executor
        from adapters.test_framework_agent_framework import Model

        client = Model()

        @executor(id="first")
        async def first(text: str, ctx: WorkflowContext[str]) -> None:
            await ctx.send_message(text)

        @executor(id="second")
        async def second(text: str, ctx: WorkflowContext[None, str]) -> None:
            await ctx.yield_output(text)
    """,
    "agentchat": """
        from autogen_agentchat.agents import AssistantAgent
        from autogen_agentchat.teams import RoundRobinGroupChat
        from adapters.test_framework_agentchat import Model

        model_client = Model()
        writer, critic = (AssistantAgent(name, model_client) for name in ("writer", "critic"))
    """,
    "anthropic": """
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    """,
    "crewai": """
        from crewai import Agent, Task
        from crewai.flow import Flow
        from adapters.test_framework_crewai import Echo

        agents = [Agent(role="Writer", goal="write", backstory="writes", llm=Echo())]
        tasks = [Task(description="Write", expected_output="a text", agent=agents[0])]
    """,
    "langchain": """
        from langchain_core.embeddings import DeterministicFakeEmbedding

        embeddings = DeterministicFakeEmbedding(size=4)
    """,
    "langgraph": """
        from langchain_core.language_models import FakeListChatModel

        model, tools = FakeListChatModel(responses=["Hello"]), []
    """,
    "llama-index": """
        from llama_index.core.agent.workflow import ReActAgent
        from llama_index.core.base.llms.types import ChatMessage, ChatResponse
        from llama_index.core.llms import MockLLM

        class Model(MockLLM):
            async def achat(self, messages, **options):
                answer = "Thought: I can answer.\\nAnswer: Hello"
                return ChatResponse(message=ChatMessage(role="assistant", content=answer))

        agent = ReActAgent(llm=Model(), streaming=False)
    """,
    "openai-agents": """
        from agents import set_tracing_disabled
        from agents.models.multi_provider import MultiProvider
        from adapters.test_framework_openai_agents import Echo

        set_tracing_disabled(disabled=True)
        monkeypatch.setattr(MultiProvider, "get_model", lambda self, name: Echo())
    """,
    "pydantic-ai": """
        from pydantic_ai import Agent
        from pydantic_ai.models.test import TestModel

        agent = Agent(TestModel())
    """,
    "strands": """
        from adapters.test_framework_strands import Counting

        monkeypatch.setattr("strands.agent.agent.BedrockModel", Counting)
    """,
}
"""What the code of a page takes for granted, as far as the page does not say how it is made."""
AFTER = {
    "adk": """
        here = {"user_id": "sarah", "session_id": "today"}
        await runner.session_service.create_session(app_name="app", **here)
        async for event in runner.run_async(new_message=Content(role="user", parts=[Part(text="Hi")]), **here):
            print(event)
    """,
    "crewai": "crew.kickoff()",
    "langchain": "embedder.embed_documents(['Hi'])",
}
"""What uses the objects of a page whose code only makes them."""
NEEDS = {
    "adk": "google.adk",
    "ag2": "ag2",
    "agent-framework": "agent_framework",
    "agentchat": "autogen_ext",
    "anthropic": "anthropic",
    "crewai": "crewai",
    "langchain": "langchain_classic",
    "langgraph": "langchain.agents",
    "llama-index": "llama_index.core",
    "openai-agents": "agents",
    "pydantic-ai": "pydantic_ai",
    "strands": "strands",
}
"""The module without which the code of a page cannot run."""
WITHOUT_HISTORY = ("anthropic", "crewai", "langchain")


def run(code: str, names: dict) -> None:
    """Run code that may await at its top, as in a notebook."""
    done = eval(compile(textwrap.dedent(code), "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.iscoroutine(done):
        asyncio.run(done)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", BEFORE)
def test_the_code_of_a_page_runs_and_its_history_is_a_conversation(page, home, monkeypatch):
    pytest.importorskip(NEEDS[page], exc_type=ImportError)
    blocks = re.findall(r"^```text\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)
    code = [block for block in blocks if not block.startswith("pip install")]
    assert code
    names = {"__name__": page, "monkeypatch": monkeypatch}
    for part in (BEFORE[page], *code, AFTER.get(page, "")):
        run(part, names)
    if page not in WITHOUT_HISTORY:
        conversations = Memory(page).conversations()
        assert conversations
        assert all("sarah" in each.session and each.messages >= 2 for each in conversations)
