"""Kronvex's own package from PyPI, unmodified, against this server."""

from __future__ import annotations

import asyncio

import kronvex
import pytest
import requests
from kronvex.async_client import AsyncKronvex
from kronvex.exceptions import AgentNotFoundError, KronvexError

from harness import fresh_name, issue_key, run_command, serving
from scrubjay import Memory


@pytest.fixture
def client(server):
    with kronvex.Kronvex(fresh_name("kv"), base_url=server.url) as client:
        yield client


@pytest.fixture
def agent(client):
    return client.agent("autogen-assistant-user123")


def contents(memories):
    return [memory["content"] for memory in memories]


def test_a_memory_is_recalled(agent):
    made = agent.remember("User prefers concise answers", memory_type="preference", session_id="conv-42", ttl_days=30)
    agent.remember("The cat sleeps", metadata={"k": [1]})
    assert made["memory_type"] == "preference"
    (memory,) = agent.recall("which answers does the user prefer?", top_k=3)
    assert memory["content"] == "User prefers concise answers"
    assert 0 < memory["score"] <= 1
    assert memory["id"] == made["id"]
    assert memory["session_id"] == "conv-42"


def test_recall_filters_by_type_and_session(agent):
    agent.remember("tea one", memory_type="semantic", session_id="a")
    agent.remember("tea two", memory_type="episodic", session_id="b")
    assert contents(agent.recall("tea", memory_type="semantic")) == ["tea one"]
    assert contents(agent.recall("tea", session_id="b")) == ["tea two"]
    assert agent.recall("tea and many other things nobody said", threshold=0.9) == []


def test_remembering_again_without_options_keeps_the_options(agent):
    """Kronvex's package sends "episodic", no ttl and empty metadata by default."""
    agent.remember("tea", memory_type="preference", ttl_days=30, metadata={"k": 1})
    again = agent.remember("tea")
    assert (again["memory_type"], again["metadata"]) == ("preference", {"k": 1})
    assert again["expires_at"] is not None
    assert agent.remember("tea", memory_type="semantic")["memory_type"] == "semantic"
    assert agent.remember("coffee")["memory_type"] == "episodic"
    assert contents(agent.recall("tea coffee", memory_type="episodic")) == ["coffee"]


def test_inject_context_is_text(agent):
    assert agent.inject_context("anything") == ""
    agent.remember("User is from Paris")
    assert "User is from Paris" in agent.inject_context("where is the user from?")


def test_sessions_and_memories_are_listed(agent):
    for i in range(3):
        agent.remember(f"note {i}", session_id="s" if i else None, memory_type="episodic")
    (session,) = agent.sessions()
    assert (session["session_id"], session["memory_count"]) == ("s", 2)
    assert contents(agent.memories()) == ["note 0", "note 1", "note 2"]
    assert contents(agent.memories(limit=1, offset=1)) == ["note 1"]
    assert contents(agent.memories(session_id="s", memory_type="episodic")) == ["note 1", "note 2"]


def test_one_or_all_memories_are_deleted(agent):
    memory = agent.remember("secret")
    agent.remember("other")
    agent.delete_memory(memory["id"])
    with pytest.raises(AgentNotFoundError):
        agent.delete_memory(memory["id"])
    assert contents(agent.memories()) == ["other"]
    assert agent.clear()["deleted"] == 1
    assert agent.memories() == []


def test_agents_are_made_listed_and_deleted(client):
    made = client.create_agent("support", description="helps")
    assert made.name == "support"
    made.remember("x")
    client.agent("from first use").remember("y")
    assert {agent["id"]: agent["name"] for agent in client.list_agents()} == {
        made.id: "support",
        "from first use": "from first use",
    }
    client.delete_agent(made.id)
    assert made.memories() == []
    assert [agent["id"] for agent in client.list_agents()] == ["from first use"]
    with pytest.raises(AgentNotFoundError):
        client.delete_agent(made.id)


@pytest.mark.parametrize("name", ["a b", "ünï/cödé", "x" * 400, "~tilde", "a:b", "日本", "..a", "a%2Fb"])
def test_an_agent_id_may_have_any_characters(client, name):
    client.agent(name).remember("mine")
    client.agent(name + "2").remember("not mine")
    assert contents(client.agent(name).recall("mine")) == ["mine"]


def test_two_keys_have_separate_memories(server):
    keys = [fresh_name("key"), fresh_name("key")]
    one, two = (kronvex.Kronvex(key, base_url=server.url) for key in keys)
    memory = one.agent("shared").remember("the secret of one")
    assert two.agent("shared").memories() == two.agent("shared").recall("secret") == two.list_agents() == []
    with pytest.raises(AgentNotFoundError):
        two.agent("shared").delete_memory(memory["id"])
    nobody = requests.get(f"{server.url}/api/v1/agents/shared/memories", timeout=60).json()
    assert nobody["memories"] == []
    assert len(one.agent("shared").memories()) == 1
    assert not any(key in name for key in keys for name in Memory("x", url=server.url).namespaces())
    one.close()
    two.close()


def test_memories_of_a_server_without_keys_are_copied_to_the_id_of_a_new_key(tmp_path):
    path = tmp_path / "db"
    with serving(path) as server, kronvex.Kronvex("any-key", base_url=server.url) as client:
        client.create_agent("support").remember("User is from Paris")
        client.agent("bot").remember("User likes tea")
    key = issue_key(path, "new")
    with Memory("x", path=path) as memory:
        names = memory.namespaces()
    for name in names:
        kind, _, rest = name.partition(":")
        _, colon, agent = rest.partition(":")
        target = f"{kind}:{key.split('_')[1]}{colon}{agent}"
        exported = run_command("export", name, "--path", path).stdout
        run_command("import", target, "--path", path, stdin=exported).check_returncode()
    with serving(path) as server, kronvex.Kronvex(key, base_url=server.url) as client:
        agents = {agent["name"]: agent["id"] for agent in client.list_agents()}
        assert set(agents) == {"support", "bot"}
        assert contents(client.agent(agents["support"]).recall("Paris")) == ["User is from Paris"]
        assert contents(client.agent("bot").recall("what tea?")) == ["User likes tea"]


def test_an_agent_named_like_a_hash_does_not_share_memories(client):
    client.agent("with/slash").remember("mine")
    hashed = next(name for name in Memory("x", url=client._base_url).namespaces() if ":~" in name)
    assert client.agent(hashed.rpartition(":")[2]).memories() == []


def test_an_invalid_memory_is_refused_with_a_reason(agent):
    with pytest.raises(KronvexError, match="at least one character"):
        agent.remember("")


def test_requests_without_the_package_work(server):
    headers = {"X-API-Key": fresh_name("key")}
    base = f"{server.url}/api/v1/agents/content-pipeline-team-projectA"

    def post(path, body):
        answer = requests.post(f"{base}/{path}", json=body, headers=headers, timeout=60)
        answer.raise_for_status()
        return answer.json()

    post("remember", {"content": "Tone of voice: dry", "memory_type": "preference", "ttl_days": 90})
    found = post("recall", {"query": "voice", "limit": 5})
    assert contents(found["memories"]) == contents(found["results"]) == ["Tone of voice: dry"]
    injected = post("inject-context", {"query": "voice", "limit": 3})
    assert injected["context"] == injected["context_block"] != ""


def test_the_async_client_works(server):
    async def scenario():
        async with AsyncKronvex(fresh_name("kv"), base_url=server.url) as client:
            agent = await client.create_agent("a")
            await asyncio.gather(*(agent.remember(f"fact {i}", session_id="s") for i in range(5)))
            found = await asyncio.gather(agent.recall("fact 1"), agent.recall("fact 2", top_k=1))
            assert [contents(part)[0] for part in found] == ["fact 1", "fact 2"]
            assert "fact 3" in await agent.inject_context("fact 3")
            assert len(await agent.sessions()) == 1
            assert len(await agent.memories(limit=3)) == 3
            assert (await agent.clear())["deleted"] == 5
            assert len(await client.list_agents()) == 1

    asyncio.run(scenario())
