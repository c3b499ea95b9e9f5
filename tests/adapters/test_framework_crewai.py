"""Flow states and the memory of crews, for CrewAI."""

from __future__ import annotations

import asyncio
import copy
from datetime import UTC, datetime
from decimal import Decimal

import pytest

pytest.importorskip("crewai", reason="CrewAI is not installed: make test-frameworks")

from crewai import Agent, BaseLLM, Crew, Task
from crewai.flow.flow import Flow, listen, start
from crewai.flow.persistence import persist

from scrubjay import Memory, Unavailable
from scrubjay.adapters.crewai import PendingFeedbackContext, ScrubjayCrewMemory, ScrubjayFlowPersistence
from scrubjay.conversations import split_key

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
"""CrewAI reads its own deprecated fields."""


def test_a_flow_goes_on_with_its_state(home):
    @persist(ScrubjayFlowPersistence())
    class Count(Flow[dict]):
        @start()
        def add(self):
            self.state["count"] = self.state.get("count", 0) + 1

        @listen(add)
        def report(self):
            return self.state["count"]

    first = Count()
    assert first.kickoff() == 1
    assert Count().kickoff(inputs={"id": first.flow_id}) == 2
    assert ScrubjayFlowPersistence("crewai").load_state(first.flow_id)["count"] == 2
    assert Memory("crewai").usage().writes_today == 4  # one for each of two steps, twice
    assert ScrubjayFlowPersistence().load_state("none") is None


@pytest.mark.parametrize("name", ["default", "f" * 600])
def test_forget_session_erases_a_flow_by_its_id(home, name):
    flows, memory = ScrubjayFlowPersistence(), Memory("crewai")
    waiting = PendingFeedbackContext(flow_id=name, flow_class="F", method_name="m", method_output="", message="?")
    flows.save_pending_feedback(name, waiting, {"id": name})
    assert flows.load_pending_feedback(name)[0] == flows.load_state(name) == {"id": name}
    (session,) = {split_key(key)[0] for key in memory}
    assert memory.forget_session(session) == 2
    assert flows.load_state(name) is flows.load_pending_feedback(name) is None


def test_a_state_may_hold_anything(home):
    state = {
        "at": datetime(2026, 1, 2, tzinfo=UTC),
        "price": Decimal("1.5"),
        7: {1},
        "nan": float("nan"),
        "any": object,
    }
    ScrubjayFlowPersistence().save_state("f", "m", state)
    assert ScrubjayFlowPersistence().load_state("f") == {
        "at": "2026-01-02T00:00:00+00:00",
        "price": "1.5",
        "7": [1],
        "nan": "nan",
        "any": "<class 'object'>",
    }


def test_an_unreachable_server_is_not_a_flow_without_a_state(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1)
    with pytest.raises(Unavailable):
        ScrubjayFlowPersistence(memory).load_state("f")
    with pytest.raises(Unavailable):
        ScrubjayCrewMemory(memory).recall("tea")


def test_memories_are_found_in_their_scope(home):
    memory = ScrubjayCrewMemory()
    for scope in ("/crew/a", "/crew/b", None):
        assert memory.remember("Sarah prefers short answers", scope=scope, categories=["style"]).content
    memory.remember("Sarah prefers tea", scope="/crew/a", source="tom", private=True)
    assert {match.record.scope for match in memory.recall("what does Sarah prefer?")} == {"/crew/a", "/crew/b", "/"}
    assert {match.record.scope for match in memory.recall("Sarah prefers", scope="/crew")} == {"/crew/a", "/crew/b"}
    assert len(memory.recall("Sarah prefers", scope="crew/a", source="tom")) == 2
    assert memory.recall("Sarah prefers", categories=["other"]) == []
    assert (memory.list_scopes(), memory.list_scopes("/crew")) == (["/crew"], ["/crew/a", "/crew/b"])
    assert memory.info("/crew").record_count == 3
    assert memory.list_categories() == {"style": 3}
    copy.deepcopy(memory).reset("/crew")
    assert [record.scope for record in memory.list_records()] == ["/"]


def test_a_memory_is_replaced_and_forgotten_by_its_id(home):
    memory = ScrubjayCrewMemory()
    record = memory.remember("Sarah lives in Paris", metadata={"by": "Ana"})
    assert memory.update(record.id, content="Sarah lives in Berlin").metadata == {"by": "Ana"}
    (found,) = asyncio.run(memory.arecall("where does Sarah live?"))
    assert (found.record.id, found.record.content) == (record.id, "Sarah lives in Berlin")
    with pytest.raises(ValueError, match="not found"):
        memory.update("none", content="text")
    assert memory.forget(record_ids=[record.id]) == 1
    assert memory.recall("Berlin") == []


def test_a_read_only_memory_stores_nothing(home):
    assert ScrubjayCrewMemory(read_only=True).remember("text") is None
    assert list(Memory("crewai").notes()) == []


class Echo(BaseLLM):
    """Answers "done", and keeps what it was asked."""

    def __init__(self):
        super().__init__(model="echo")
        self._asked = []

    def call(self, messages, *args, **kwargs):
        self._asked.append(str(messages))
        return "Thought: I know.\nFinal Answer: The report about walnuts is done"


def test_a_crew_remembers_without_a_key_a_model_or_an_embedder(home, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    memory = ScrubjayCrewMemory()
    memory.remember("The customer is allergic to walnuts")
    model = Echo()
    agent = Agent(role="Writer", goal="write", backstory="writes", llm=model)
    task = Task(description="Write about walnuts for the customer", expected_output="a text", agent=agent)
    before = Memory("crewai").usage().writes_today
    Crew(agents=[agent], tasks=[task], memory=memory).kickoff()
    assert Memory("crewai").usage().writes_today == before + 1
    assert "allergic to walnuts" in model._asked[0]
    assert any("The report about walnuts is done" in note.content for note in Memory("crewai").notes())


def test_another_process_goes_on_after_kill_9(script):
    writer = script.start("""
        import itertools
        from scrubjay.adapters.crewai import ScrubjayFlowPersistence
        persistence = ScrubjayFlowPersistence()
        for number in itertools.count():
            persistence.save_state("flow", "step", {"number": number})
            print(number, flush=True)
    """)
    seen = [int(writer.stdout.readline()) for _ in range(20)]
    writer.kill()
    writer.communicate(timeout=60)
    found = script("""
        from scrubjay.adapters.crewai import ScrubjayFlowPersistence
        print(ScrubjayFlowPersistence().load_state("flow")["number"])
    """)
    assert int(found) >= seen[-1]
