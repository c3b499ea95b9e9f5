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
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer

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
    assert bool(Memory("langgraph").keys("session:sarah:state:langgraph/b//document/")) is has_own_row


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
    parts = Memory("langgraph").keys("session:sarah:state:part/langgraph/b//document/")
    assert any(key.endswith("/0003") for key in parts)
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
    assert Memory("langgraph").keys("session:sarah:state:part/")
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


@pytest.mark.parametrize("name", ["", "x" * 200])
def test_a_thread_whose_name_is_none_for_a_session_is_listed_by_its_start_and_a_digest(home, name):
    place = {"configurable": {"thread_id": name}}
    agent = make_chat(AIMessage("ok"))
    say(agent, "one", place)
    assert len(say(agent, "two", place)["messages"]) == 4
    (conversation,) = Memory("langgraph").conversations()
    assert conversation.session.startswith(f"{name[:20]}~")
    assert said(conversation.session) == ["one", "ok", "two", "ok"]
    assert {each.config["configurable"]["thread_id"] for each in agent.checkpointer.list(None)} == {name}
    agent.checkpointer.delete_thread(name)
    assert Memory("langgraph").keys() == []


@pytest.mark.parametrize("name", ["default", "sarah", "a/b:c%", "state"])
def test_forget_session_erases_a_thread_and_no_other(home, monkeypatch, name):
    monkeypatch.setattr(_large, "PART_CHARS", 1000)
    monkeypatch.setattr(_large, "CALL_BYTES", 3000)
    agent = make_chat(AIMessage("ok"))
    say(agent, "Hi", {"configurable": {"thread_id": f"{name}2"}})
    memory = Memory("langgraph")
    others = memory.keys()
    place = {"configurable": {"thread_id": name}}
    say(agent, "x" * 5000, place)
    agent.checkpointer.put_writes(agent.get_state(place).config, [("log", "x" * 5000)], "task")
    assert [key for key in memory if "part/" in key]
    assert memory.forget_session(name) > 2
    assert memory.keys() == others
    assert agent.get_state(place).values == {}
    assert len(say(agent, "Hi", place)["messages"]) == 2
    assert {each.config["configurable"]["thread_id"] for each in agent.checkpointer.list(None)} == {name, f"{name}2"}


class DeltaState(TypedDict):
    messages: Annotated[list, DeltaChannel(_messages_delta_reducer, snapshot_frequency=5)]
    notes: Annotated[list, DeltaChannel(lambda notes, new: [*notes, *new])]
    never: Annotated[list, DeltaChannel(lambda notes, new: [*notes, *new])]


def make_delta_chat(saver=None):
    graph = StateGraph(DeltaState)
    graph.add_node("answer", lambda state: {"messages": ("ai", f"{len(state['messages'])} said"), "notes": "n" * 600})
    graph.set_entry_point("answer")
    return graph.compile(checkpointer=saver or ScrubjaySaver())


def texts(state):
    return [message.content for message in state["messages"]]


def talk(count):
    return [text for number in range(count) for text in (f"turn {number}", f"{2 * number + 1} said")]


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_the_messages_of_a_delta_channel_are_restored_and_listed(home, durability):
    for number in range(8):
        agent = make_delta_chat()
        agent.invoke({"messages": [("user", f"turn {number}")]}, THREAD, durability=durability)
    state = make_delta_chat().get_state(THREAD).values
    assert (texts(state), len(state["notes"])) == (talk(8), 8)
    assert asyncio.run(make_delta_chat().aget_state(THREAD)).values == state
    assert said() == talk(8)


def test_a_message_of_a_delta_channel_that_is_edited_is_listed_once(home):
    agent = make_delta_chat()
    say(agent, "turn 0")
    question = agent.get_state(THREAD).values["messages"][0]
    agent.update_state(THREAD, {"messages": [HumanMessage("edited", id=question.id)]})
    assert texts(agent.get_state(THREAD).values) == ["edited", "1 said"]
    assert said() == talk(1)


def test_the_branches_of_a_delta_channel_are_apart_and_their_messages_in_one_list(home):
    agent = make_delta_chat()
    say(agent, "turn 0")
    earlier = agent.get_state(THREAD).config
    say(agent, "left")
    left = agent.get_state(THREAD).config
    say(agent, "right", earlier)
    assert texts(agent.get_state(THREAD).values) == [*talk(1), "right", "3 said"]
    assert texts(agent.get_state(left).values) == [*talk(1), "left", "3 said"]
    assert said() == [*talk(1), "left", "3 said", "right", "3 said"]


def test_prune_keeps_what_the_delta_channels_of_the_latest_checkpoint_are_made_of(home):
    agent = make_delta_chat()
    for number in range(8):
        say(agent, f"turn {number}")
    state = agent.get_state(THREAD).values
    for _ in range(2):
        agent.checkpointer.prune(["sarah"])
        assert agent.get_state(THREAD).values == state
    agent.checkpointer.copy_thread("sarah", "anna")
    assert agent.get_state({"configurable": {"thread_id": "anna"}}).values == state


def test_prune_drops_what_is_before_the_snapshots_of_delta_channels(home):
    class State(TypedDict):
        log: Annotated[list, DeltaChannel(lambda log, new: [*log, *new], snapshot_frequency=4)]
        never: Annotated[list, DeltaChannel(lambda log, new: [*log, *new])]

    graph = StateGraph(State)
    graph.add_node("one", lambda state: {"log": len(state["log"])})
    graph.set_entry_point("one")
    agent = graph.compile(checkpointer=ScrubjaySaver())
    for _ in range(10):
        agent.invoke({"log": "in"}, THREAD)
    state = agent.get_state(THREAD).values
    agent.checkpointer.prune(["sarah"])
    assert agent.get_state(THREAD).values == state
    assert len(list(agent.checkpointer.list(THREAD))) < 8


def test_deleting_a_run_keeps_what_later_ones_need_of_its_delta_channels(home):
    agent = make_delta_chat()
    for number in range(3):
        say(agent, f"turn {number}", {**THREAD, "metadata": {"run_id": str(number)}})
    agent.checkpointer.delete_for_runs(["1"])
    assert texts(agent.get_state(THREAD).values) == said() == talk(3)
    agent.checkpointer.delete_for_runs(["2"])
    assert texts(agent.get_state(THREAD).values) == said() == talk(2)


def test_the_history_of_a_delta_channel_is_read_page_by_page(home):
    agent = make_delta_chat()
    for number in range(12):
        say(agent, f"turn {number}")
    saver = ScrubjaySaver()
    items, calls = saver._memory.items, []
    saver._memory.items = lambda *args, **options: calls.append(args) or items(*args, **options)
    assert len(make_delta_chat(saver).get_state(THREAD).values["notes"]) == 12
    assert len(calls) <= 5


def put_branch(saver, names, value):
    """Store checkpoints, each the parent of the next, and the value in the first; return the config of the last."""
    config = {"configurable": {"thread_id": "sarah", "checkpoint_ns": ""}}
    for name in names:
        values = {"log": value} if value and name == names[0] else {}
        checkpoint = {**empty_checkpoint(), "id": name, "channel_values": values, "channel_versions": {"log": "1"}}
        config = saver.put(config, checkpoint, {}, {"log": "1"})
        saver.put_writes(config, [("log", name)], "task")
    return config


@pytest.mark.parametrize("is_latest", [True, False])
def test_the_history_of_a_delta_channel_is_that_of_its_branch(home, is_latest):
    saver = ScrubjaySaver()
    put_branch(saver, ["1"], [0])
    config = put_branch(saver, ["5", "6", "9"], None)
    if is_latest:
        del config["configurable"]["checkpoint_id"]
    found = saver.get_delta_channel_history(config=config, channels=["log"])
    assert found == {"log": {"writes": [("task", "log", "5"), ("task", "log", "6")]}}
    assert saver.get_delta_channel_history(config=config, channels=[]) == {}
    other = {"configurable": {"thread_id": "nobody", "checkpoint_ns": ""}}
    assert saver.get_delta_channel_history(config=other, channels=["log"]) == {"log": {"writes": []}}


def test_a_parent_with_a_later_id_is_found(home):
    saver = ScrubjaySaver()
    config = put_branch(saver, ["5", "9", "7"], [0])
    found = saver.get_delta_channel_history(config=config, channels=["log"])
    assert found == {"log": {"seed": [0], "writes": [("task", "log", "5"), ("task", "log", "9")]}}


def test_a_checkpoint_that_is_its_own_ancestor_ends_the_history_of_a_delta_channel(home):
    saver = ScrubjaySaver()
    config = put_branch(saver, ["1", "2", "1"], None)
    found = saver.get_delta_channel_history(config=config, channels=["log"])
    assert found == {"log": {"writes": [("task", "log", "2")]}}
    saver.prune(["sarah"])


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


def test_a_search_for_no_items_finds_none(home):
    store = ScrubjayStore()
    store.put(("facts",), "1", {"text": "She likes walnuts"})
    assert store.search(("facts",), limit=0) == []


def test_a_search_for_words_below_too_many_bytes_is_refused(home, monkeypatch):
    store = ScrubjayStore()
    store.put(("facts", "sarah"), "1", {"text": "She decided to use PostgreSQL"})
    monkeypatch.setattr(search, "MAX_SEARCH_BYTES", 20)
    assert store.search(("facts",))
    with pytest.raises(InvalidInput, match="longer prefix"):
        store.search(("facts",), query="PostgreSQL")


@pytest.mark.parametrize("options", [{}, {"offset": 3}, {"filter": {"even": True}}, {"filter": {"n": {"$gt": 4}}}])
def test_a_search_finds_the_same_whether_the_store_or_the_client_sorts(home, monkeypatch, options):
    store = ScrubjayStore()
    for number in (3, 1, 9, 5, 4, 2, 8, 6, 7, 0):
        store.put(("facts",), str(number), {"n": number, "even": number % 2 == 0})
    expected = store.search(("facts",), limit=6, **options)
    monkeypatch.setattr(adapter, "MAX_RECALL", 5)
    assert len(expected) >= 5
    assert store.search(("facts",), limit=6, **options) == expected


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
