"""Checkpoints and the store of LangGraph."""

from __future__ import annotations

import asyncio
import math
import operator
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, TypedDict
from uuid import UUID

import pytest

pytest.importorskip("langgraph.graph", reason="LangGraph is not installed")

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.graph import MessagesState, StateGraph

from scrubjay import InvalidInput, Memory, Unavailable
from scrubjay.adapters import _large
from scrubjay.adapters import langgraph as adapter
from scrubjay.adapters.langgraph import ScrubjaySaver, ScrubjayStore
from scrubjay.store import search

THREAD = {"configurable": {"thread_id": "sarah"}}


class State(TypedDict):
    log: Annotated[list[str], operator.add]
    document: str


def make_graph(**options):
    graph = StateGraph(State)
    graph.add_node("one", lambda state: {"log": ["one"]})
    graph.add_node("two", lambda state: {"log": ["two"]})
    graph.set_entry_point("one")
    graph.add_edge("one", "two")
    return graph.compile(**options)


@pytest.mark.parametrize("where", ["file", "server"])
def test_the_saver_passes_the_conformance_tests(where, tmp_path, request):
    from langgraph.checkpoint.conformance import checkpointer_test, validate

    from harness import fresh_name

    place = {"path": tmp_path / "db", "durability": "fast"}
    if where == "server":
        place = {"url": request.getfixturevalue("server").url, "timeout": 60}

    @checkpointer_test(name="ScrubjaySaver")
    async def saver():
        with Memory(fresh_name(), **place, strict=True) as memory:
            yield ScrubjaySaver(memory)

    report = asyncio.run(validate(saver))
    results = report.to_dict()["results"]
    assert report.passed_all()
    expected = 89 if "delta_channel_history" in results else 81  # the repository has 8 that are not released
    assert sum(result["tests_passed"] for result in results.values()) >= expected
    assert sum(result["tests_skipped"] for result in results.values()) == 0


def test_a_thread_goes_on_with_sync_and_async_calls_mixed(home):
    agent = make_graph(checkpointer=ScrubjaySaver())
    agent.invoke({"log": ["hi"], "document": "x"}, THREAD)
    again = make_graph(checkpointer=ScrubjaySaver())
    found = asyncio.run(again.ainvoke({"log": ["again"]}, THREAD))
    assert found == {"log": ["hi", "one", "two", "again", "one", "two"], "document": "x"}
    assert len(list(again.get_state_history(THREAD))) == 8


def test_a_channel_that_does_not_change_is_stored_once(home):
    agent = make_graph(checkpointer=ScrubjaySaver())
    agent.invoke({"log": ["hi"], "document": "x" * 100_000}, THREAD)
    first = Memory("langgraph").usage().bytes
    for _ in range(5):
        agent.invoke({"log": ["hi"]}, THREAD)
    assert Memory("langgraph").usage().bytes < first + 100_000


@pytest.mark.parametrize(("size", "has_own_row"), [(500, False), (600, True)])
def test_a_small_value_is_in_the_row_of_its_checkpoint(home, size, has_own_row):
    agent = make_graph(checkpointer=ScrubjaySaver())
    agent.invoke({"log": ["hi"], "document": "x" * size}, THREAD)
    assert bool(Memory("langgraph").keys("b/sarah//document/")) is has_own_row


@pytest.mark.parametrize("turns", [1, 30])
def test_the_latest_checkpoint_is_read_without_the_others(home, turns):
    saver = ScrubjaySaver()
    agent = make_graph(checkpointer=saver)
    for _ in range(turns):
        agent.invoke({"log": ["hi"], "document": ""}, THREAD)
    items, read = saver._memory.items, []
    saver._memory.items = lambda *args, **options: (read.append(each) or each for each in items(*args, **options))
    assert saver.get_tuple(THREAD)
    assert len(read) == 1


def test_a_value_larger_than_one_call_is_split(home, monkeypatch):
    monkeypatch.setattr(_large, "PART_CHARS", 1000)
    monkeypatch.setattr(_large, "CALL_BYTES", 3000)
    agent = make_graph(checkpointer=ScrubjaySaver())
    text = "".join(map(str, range(5000)))
    agent.invoke({"log": ["hi"], "document": text}, THREAD)
    assert agent.get_state(THREAD).values["document"] == text
    assert any(key.endswith("/0003") for key in Memory("langgraph").keys("part/b/sarah/"))
    agent.checkpointer.copy_thread("sarah", "anna")
    other = {"configurable": {"thread_id": "anna"}}
    assert agent.get_state(other).values["document"] == text
    agent.checkpointer.delete_thread("anna")
    agent.checkpointer.prune(["sarah"])
    assert agent.get_state(THREAD).values["document"] == text
    agent.checkpointer.delete_thread("sarah")
    assert Memory("langgraph").keys() == []


def test_a_long_error_that_a_short_one_replaces_leaves_nothing(home, monkeypatch):
    monkeypatch.setattr(_large, "PART_CHARS", 1000)
    monkeypatch.setattr(_large, "CALL_BYTES", 3000)
    saver = ScrubjaySaver()
    place = {"configurable": {"thread_id": "sarah", "checkpoint_ns": "", "checkpoint_id": "1"}}
    saver.put_writes(place, [("__error__", "x" * 5000)], "task")
    assert Memory("langgraph").keys("part/")
    saver.put_writes(place, [("__error__", "x")], "task")
    assert len(Memory("langgraph").keys()) == 1


def test_a_turn_takes_few_writes(home):
    memory = Memory("langgraph")
    make_graph(checkpointer=ScrubjaySaver(memory)).invoke({"log": ["hi"], "document": ""}, THREAD)
    assert memory.usage().writes_today <= 8


def make_chat(*answers):
    """A graph that adds these messages."""
    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [answer.model_copy() for answer in answers]})
    graph.set_entry_point("answer")
    return graph.compile(checkpointer=ScrubjaySaver())


def say(agent, text, config=THREAD):
    return agent.invoke({"messages": [("user", text)]}, config)


def said(session="sarah"):
    return [message.message for message in Memory("langgraph").conversation(session)]


def test_the_messages_of_a_thread_are_a_conversation(home):
    call = AIMessage("", tool_calls=[{"name": "weather", "args": {"city": "Ulm"}, "id": "1"}])
    agent = make_chat(call, ToolMessage("rain in Ulm", tool_call_id="1"), AIMessage("It rains", name="bot"))
    say(agent, "Hi")
    say(make_chat(AIMessage("Bye, Sarah")), "Bye")
    memory = Memory("langgraph")
    (conversation,) = memory.conversations()
    assert (conversation.session, conversation.messages, conversation.preview) == ("sarah", 6, "Bye, Sarah")
    found = memory.conversation("sarah")
    assert [message.role for message in found] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert found[1].tool_calls == ({"id": "1", "name": "weather", "arguments": {"city": "Ulm"}},)
    assert found[2].tool_results == ({"id": "1", "name": "weather", "content": "rain in Ulm"},)
    assert found[3].sender == "bot"
    assert memory.search("rains")[0].position == 3
    agent.checkpointer.copy_thread("sarah", "anna")
    assert said("anna") == said()
    agent.checkpointer.delete_thread("sarah")
    assert [each.session for each in memory.conversations()] == ["anna"]


def test_the_branches_of_a_thread_are_listed_once_in_the_order_in_which_they_were_stored(home):
    agent = make_chat(AIMessage("ok"))
    say(agent, "one")
    earlier = agent.get_state(THREAD).config
    say(agent, "two")
    say(agent, "three", earlier)
    say(agent, "four")
    assert said() == ["one", "ok", "two", "ok", "three", "ok", "four", "ok"]


def test_the_messages_of_deleted_runs_are_deleted(home):
    agent = make_chat(AIMessage("ok"))
    for number in (1, 2):
        config = {**THREAD, "run_id": UUID(int=number), "metadata": {"run_id": str(UUID(int=number))}}
        say(agent, f"run {number}", config)
    agent.checkpointer.delete_for_runs([str(UUID(int=2))])
    assert said() == ["run 1", "ok"]
    agent.checkpointer.delete_for_runs([str(UUID(int=1))])
    assert Memory("langgraph").conversations() == []


def test_deleting_a_run_keeps_the_messages_that_an_earlier_one_removed_from_the_state(home):
    def say_in_run(agent, number):
        say(agent, f"run {number}", {**THREAD, "metadata": {"run_id": str(number)}})

    agent = make_chat(AIMessage("ok"))
    say_in_run(agent, 1)
    graph = StateGraph(MessagesState)
    graph.add_node("trim", lambda state: {"messages": [RemoveMessage(each.id) for each in state["messages"][:-1]]})
    graph.set_entry_point("trim")
    say_in_run(graph.compile(checkpointer=agent.checkpointer), 2)
    say_in_run(agent, 3)
    agent.checkpointer.delete_for_runs(["3"])
    assert said() == ["run 1", "ok", "run 2"]
    agent.checkpointer.prune(["sarah"])
    say_in_run(agent, 4)
    agent.checkpointer.delete_for_runs(["4"])
    assert said() == ["run 1", "ok", "run 2"]


def test_a_message_that_cannot_be_listed_whole_is_listed_as_text(home, monkeypatch):
    monkeypatch.setattr(adapter, "MESSAGE_BYTES", 1000)
    monkeypatch.setattr(adapter, "APPEND_BYTES", 2000)
    strange = AIMessage(
        [{"type": "text", "text": "see"}], tool_calls=[{"name": "t", "args": {"x": math.nan}, "id": "1"}]
    )
    agent = make_chat(AIMessage("x" * 5000), strange, *(AIMessage(str(number) * 900) for number in range(5)))
    say(agent, "Hi")
    assert [text[:3] for text in said()] == ["Hi", "xxx", "see", "000", "111", "222", "333", "444"]


def test_items_that_others_have_appended_to_the_list_of_a_thread_stay(home):
    items = ["text", {"role": "user", "content": "no id"}]
    Memory("langgraph").append("session:sarah:messages", *items)
    say(make_chat(AIMessage("ok")), "Hi")
    assert Memory("langgraph").get("session:sarah:messages")[:2] == items
    assert said()[2:] == ["Hi", "ok"]


def test_a_thread_whose_name_is_too_long_for_a_session_is_not_listed(home):
    place = {"configurable": {"thread_id": "x" * 200}}
    agent = make_chat(AIMessage("ok"))
    say(agent, "one", place)
    assert len(say(agent, "two", place)["messages"]) == 4
    assert Memory("langgraph").conversations() == []
    agent.checkpointer.delete_thread("x" * 200)


def test_a_thread_whose_name_is_too_long_for_a_key_is_named(home):
    place = {"configurable": {"thread_id": "/" * 100}}
    for call in (lambda: say(make_chat(AIMessage("ok")), "one", place), lambda: ScrubjaySaver().get_tuple(place)):
        with pytest.raises(InvalidInput, match=r"the thread_id '/+.* has 300 bytes"):
            call()
    assert len(say(make_chat(AIMessage("ok")), "one", {"configurable": {"thread_id": "x" * 256}})["messages"]) == 2


def test_messages_without_an_id_are_listed_once(home):
    class Plain(TypedDict):
        messages: Annotated[list, operator.add]

    graph = StateGraph(Plain)
    graph.add_node("answer", lambda state: {"messages": [AIMessage("ok")]})
    graph.set_entry_point("answer")
    agent = graph.compile(checkpointer=ScrubjaySaver())
    for _ in range(2):
        agent.invoke({"messages": [HumanMessage("Hi")]}, THREAD)
    assert said() == ["Hi", "ok", "Hi", "ok"]


def test_an_unreachable_server_is_not_an_empty_thread(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1, strict=True)
    with pytest.raises(Unavailable):
        make_graph(checkpointer=ScrubjaySaver(memory)).invoke({"log": ["hi"], "document": ""}, THREAD)
    with pytest.raises(Unavailable):
        ScrubjayStore(memory).search(("users",))


class Colour(Enum):
    BLUE = "blue"


def test_the_store_keeps_the_values_of_frameworks(home):
    store = ScrubjayStore()
    value = {"at": datetime(2026, 1, 2, tzinfo=UTC), "id": UUID(int=1), "colour": Colour.BLUE, "set": {1}}
    store.put(("users", "sarah/tom"), "a//b", value)
    found = store.get(("users", "sarah/tom"), "a//b")
    assert found.value == {
        "at": "2026-01-02T00:00:00+00:00", "id": str(UUID(int=1)), "colour": "blue", "set": [1],
    }  # fmt: skip
    assert (found.namespace, found.key) == (("users", "sarah/tom"), "a//b")
    assert store.list_namespaces() == [("users", "sarah/tom")]


def test_the_store_finds_words_without_a_model(home):
    store = ScrubjayStore()
    store.put(("facts", "sarah"), "1", {"text": "She decided to use PostgreSQL"})
    store.put(("facts", "sarah"), "2", {"text": "She likes walnuts"})
    store.put(("facts", "tom"), "1", {"text": "He likes PostgreSQL, too"})
    (found,) = store.search(("facts", "sarah"), query="Which database, PostgreSQL?")
    postgresql = {"query": "PostgreSQL", "filter": {"text": {"$ne": "He likes PostgreSQL, too"}}}
    assert [item.namespace for item in store.search(("facts",), **postgresql)] == [("facts", "sarah")]
    assert (found.key, found.namespace) == ("1", ("facts", "sarah"))
    assert found.score > 0
    assert [item.key for item in asyncio.run(store.asearch(("facts",), query="walnut"))] == ["2"]


def test_a_search_for_words_below_too_many_bytes_is_refused(home, monkeypatch):
    store = ScrubjayStore()
    store.put(("facts", "sarah"), "1", {"text": "She decided to use PostgreSQL"})
    monkeypatch.setattr(search, "MAX_SEARCH_BYTES", 20)
    assert store.search(("facts",))
    with pytest.raises(InvalidInput, match="longer prefix"):
        store.search(("facts",), query="PostgreSQL")


def test_a_put_keeps_the_time_of_creation(home):
    store = ScrubjayStore()
    store.put(("a",), "k", {"n": 1})
    first = store.get(("a",), "k")
    store.put(("a",), "k", {"n": 2})
    assert store.get(("a",), "k").created_at == first.created_at


def test_another_process_goes_on_after_kill_9(script):
    code = """
        import itertools, operator, sys
        from typing import Annotated, TypedDict
        from langgraph.graph import StateGraph
        from scrubjay.adapters.langgraph import ScrubjaySaver
        class State(TypedDict):
            log: Annotated[list, operator.add]
        graph = StateGraph(State)
        graph.add_node("one", lambda state: {"log": ["one"]})
        graph.set_entry_point("one")
        agent = graph.compile(checkpointer=ScrubjaySaver())
        thread = {"configurable": {"thread_id": "sarah"}}
        for number in itertools.count() if sys.argv[1] == "write" else ["again"]:
            found = agent.invoke({"log": [str(number)]}, thread)
            print(number if sys.argv[1] == "write" else " ".join(found["log"]), flush=True)
    """
    writer = script.start(code, "write")
    for _ in range(5):
        assert writer.stdout.readline()
    writer.kill()
    writer.communicate(timeout=60)
    found = [word for word in script(code, "read").split() if word != "one"]
    assert found[:5] == ["0", "1", "2", "3", "4"]
    assert found[-1] == "again"
    assert found[:-1] == [str(number) for number in range(len(found) - 1)]
