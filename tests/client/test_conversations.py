"""Conversations: one form for the messages of every framework, and reading and erasing them on a file and a server."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import serving
from scrubjay import AsyncMemory, Conflict, InvalidInput, Memory
from scrubjay.adapters._copies import unattended_copy
from scrubjay.conversations import IDS, entry, is_message, new_id, session_key, split_key, time_of, to_message

CALL = {"id": "c1", "name": "weather", "arguments": {"city": "Paris"}}
RESULT = {"id": "c1", "name": "weather", "content": "21 °C"}
FUNCTION = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}

FORMS = {
    "OpenAI text": ({"role": "user", "content": "Hi", "name": "Sarah"}, "user", "Sarah", "Hi"),
    "OpenAI parts": (
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {}}]},
        "user", "user", "Hi\n[image_url]",
    ),
    "OpenAI developer": ({"role": "developer", "content": "Hi"}, "system", "system", "Hi"),
    "OpenAI response": (
        {"type": "message", "role": "assistant", "id": "m1", "content": [{"type": "output_text", "text": "Hi"}]},
        "assistant", "assistant", "Hi",
    ),
    "AutoGen line": ({"sender": "Sarah", "message": "Hi"}, "", "Sarah", "Hi"),
    "entry": (entry({"role": "user", "content": "Hi"}, sender="Sarah"), "user", "Sarah", "Hi"),
    "LangChain dict": ({"type": "human", "data": {"content": "Hi", "type": "human"}}, "user", "user", "Hi"),
    "LangChain dump": ({"type": "ai", "content": "Hi", "tool_calls": [], "name": "bot"}, "assistant", "bot", "Hi"),
    "LangChain constructor": (
        {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "AIMessage"], "kwargs": {"content": "Hi"}},
        "assistant", "assistant", "Hi",
    ),
    "Pydantic AI": (
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hi"}]}, "user", "user", "Hi",
    ),
    "Pydantic AI response": (
        {"kind": "response",
         "parts": [{"part_kind": "thinking", "content": "Hm"}, {"part_kind": "text", "content": "Hi"}]},
        "assistant", "assistant", "Hi",
    ),
    "Anthropic": (
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Hi"}]},
        "assistant", "assistant", "Hi",
    ),
    "Agent Framework": (
        {"type": "chat_message", "role": {"type": "role", "value": "user"}, "author_name": "Sarah",
         "contents": [{"type": "text", "text": "Hi"}]},
        "user", "Sarah", "Hi",
    ),
    "AutoGen 0.4": ({"type": "UserMessage", "content": "Hi", "source": "Sarah"}, "user", "Sarah", "Hi"),
    "Google ADK": (
        {"author": "bot", "content": {"role": "model", "parts": [{"text": "Hi"}]}, "timestamp": 1794942910.5},
        "assistant", "bot", "Hi",
    ),
    "Strands": ({"role": "user", "content": [{"text": "Hi"}]}, "user", "user", "Hi"),
    "LlamaIndex": ({"role": "user", "blocks": [{"block_type": "text", "text": "Hi"}]}, "user", "user", "Hi"),
    "ag2 request": (
        {"__event__": "ag2.events.input_events.ModelRequest",
         "parts": [{"__event__": "ag2.events.input_events.TextInput", "content": "Hi"}]},
        "user", "user", "Hi",
    ),
    "ag2 response": (
        {"__event__": "ag2.events.types.ModelResponse", "message": {"content": "Hi"}, "tool_calls": {"calls": []}},
        "assistant", "assistant", "Hi",
    ),
}  # fmt: skip

CALLS = {
    "OpenAI": {"role": "assistant", "content": None, "tool_calls": [FUNCTION]},
    "OpenAI response": {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Paris"}'},
    "AutoGen line": {"sender": "bot", "message": {"role": "assistant", "content": "", "tool_calls": [FUNCTION]}},
    "LangChain": {
        "type": "ai", "content": "", "tool_calls": [{"name": "weather", "args": {"city": "Paris"}, "id": "c1"}],
    },
    "Pydantic AI": {
        "kind": "response",
        "parts": [
            {"part_kind": "tool-call", "tool_name": "weather", "args": '{"city": "Paris"}', "tool_call_id": "c1"}
        ],
    },
    "Anthropic": {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Paris"}}],
    },
    "Agent Framework": {
        "role": "assistant",
        "contents": [
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Paris"}'}
        ],
    },
    "AutoGen 0.4": {
        "type": "AssistantMessage",
        "content": [{"id": "c1", "name": "weather", "arguments": '{"city": "Paris"}'}],
        "source": "bot",
    },
    "Google ADK": {
        "author": "bot",
        "content": {
            "role": "model",
            "parts": [{"function_call": {"id": "c1", "name": "weather", "args": {"city": "Paris"}}}],
        },
    },
    "Strands": {
        "role": "assistant",
        "content": [{"toolUse": {"toolUseId": "c1", "name": "weather", "input": {"city": "Paris"}}}],
    },
    "ag2": {
        "__event__": "ag2.events.types.ModelResponse",
        "message": None,
        "tool_calls": {"calls": [{"id": "c1", "name": "weather", "arguments": '{"city": "Paris"}'}]},
    },
}  # fmt: skip

RESULTS = {
    "OpenAI": {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "21 °C"},
    "OpenAI response": {"type": "function_call_output", "call_id": "c1", "name": "weather", "output": "21 °C"},
    "AutoGen": {
        "role": "tool",
        "content": "21 °C",
        "tool_responses": [{"tool_call_id": "c1", "role": "tool", "name": "weather", "content": "21 °C"}],
    },
    "LangChain": {"type": "tool", "content": "21 °C", "tool_call_id": "c1", "name": "weather"},
    "Pydantic AI": {
        "kind": "request",
        "parts": [{"part_kind": "tool-return", "tool_name": "weather", "content": "21 °C", "tool_call_id": "c1"}],
    },
    "Anthropic": {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c1", "name": "weather",
             "content": [{"type": "text", "text": "21 °C"}]}
        ],
    },
    "AutoGen 0.4": {
        "type": "FunctionExecutionResultMessage",
        "content": [{"content": "21 °C", "name": "weather", "call_id": "c1", "is_error": False}],
    },
    "Google ADK": {
        "author": "bot",
        "content": {
            "role": "user",
            "parts": [{"function_response": {"id": "c1", "name": "weather", "response": "21 °C"}}],
        },
    },
    "Strands": {
        "role": "user",
        "content": [{"toolResult": {"toolUseId": "c1", "name": "weather", "content": [{"text": "21 °C"}]}}],
    },
    "ag2": {
        "__event__": "ag2.events.tool_events.ToolResultsEvent",
        "results": [
            {"parent_id": "c1", "name": "weather", "result": {"data": {"parts": [{"data": "21 °C"}]}}},
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_message_of_every_framework_has_one_form(form):
    item, role, sender, text = FORMS[form]
    message = to_message(item, 7)
    assert (message.role, message.sender, message.message) == (role, sender, text)
    assert (message.position, message.tool_calls, message.tool_results) == (7, (), ())
    assert is_message(item)


@pytest.mark.parametrize("form", CALLS)
def test_a_tool_call_of_every_framework_has_one_form(form):
    message = to_message(CALLS[form], 0)
    assert (message.role or "assistant", message.message, message.tool_calls) == ("assistant", "", (CALL,))
    assert is_message(CALLS[form])


@pytest.mark.parametrize("form", RESULTS)
def test_a_tool_result_of_every_framework_has_one_form(form):
    message = to_message(RESULTS[form], 0)
    assert (message.message, message.tool_results, message.tool_calls) == ("", (RESULT,), ())
    assert is_message(RESULTS[form])


@pytest.mark.parametrize("item", ["text", 1, None, [], {}, {"role": "admin"}, {"type": "human"}, {"message": 5}])
def test_other_values_are_not_messages(item):
    assert not is_message(item)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9)
    | st.sampled_from(["ModelRequest", "ModelResponse", "ToolResultsEvent", "ai", "request", "tool"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["role", "content", "message", "id", "sender", "type", "kind", "parts", "tool_calls", "function",
             "data", "time",
             "__event__", "results", "result", "calls", "name", "arguments", "call_id", "kwargs", "function_call"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(values)
def test_any_value_can_be_shown_as_a_message(item):
    is_message(item)
    message = to_message(item, 3)
    if message is not None:
        assert isinstance(message.message, str)
        assert message.to_json()
        assert message.from_json(message.to_json())._replace(time=None) == message._replace(time=None)


def test_an_entry_has_an_id_a_time_and_the_message_as_it_is():
    message = {"role": "user", "content": "Hi"}
    stored = entry(message, sender="Sarah")
    assert stored["message"] is message
    assert datetime.fromisoformat(stored["time"]) == time_of(stored["id"])
    assert to_message(stored, 0).time == time_of(stored["id"])
    assert abs((time_of(new_id()) - datetime.now(UTC)).total_seconds()) < 60


@pytest.mark.parametrize("session", ["sarah", "a:b", "50%", "%3A", "default", "ü"])
def test_a_key_gives_back_its_session(session):
    assert split_key(session_key(session)) == (session, "messages")


@pytest.mark.parametrize("session", ["", "x" * 129, "%" * 43, None])
def test_a_wrong_name_of_a_session_is_refused_in_the_words_of_every_adapter(session):
    with pytest.raises(InvalidInput, match="the name of a session is text of 1 to 128 bytes"):
        session_key(session)


def test_a_session_has_a_name_of_some_length():
    for name in ("", "x" * 129, None):
        with pytest.raises(InvalidInput, match="1 to 128 bytes"):
            session_key(name)


# ------------------------------------------------------------ on a file and on a server


def said(messages):
    return [message.message for message in messages]


def test_a_list_of_chat_messages_is_a_conversation(memory):
    memory.append("history", {"role": "user", "content": "Hi"})
    memory.append("history", {"role": "assistant", "content": "Hello Sarah"})
    memory.append("numbers", 1, 2)
    memory.set("user", {"role": "admin"})
    (found,) = memory.conversations()
    assert (found.session, found.key, found.messages) == ("history", "history", 2)
    assert (found.participants, found.preview) == (("user", "assistant"), "Hello Sarah")
    assert said(memory.conversation("history")) == said(memory.conversation()) == ["Hi", "Hello Sarah"]
    memory.set("history", [{"role": "user", "content": "Start again"}])
    assert said(memory.conversation("history")) == ["Start again"]


def test_conversations_come_with_the_latest_first_and_page_by_page(memory, monkeypatch):
    monkeypatch.setattr("scrubjay.memory.MAX_MESSAGES_PAGE", 3)
    for number in range(8):
        memory.append(session_key(f"s{number}"), entry({"role": "user", "content": str(number)}))
    time.sleep(0.01)  # times are in milliseconds
    memory.append(session_key("s4"), entry({"role": "user", "content": "again"}))
    found = memory.conversations()
    assert {each.session for each in found} == {f"s{number}" for number in range(8)}
    assert len(found) == 8
    assert [each.updated_at for each in found] == sorted((each.updated_at for each in found), reverse=True)
    assert found[0].session == "s4"
    assert [each.key for each in memory.conversations(session="s2")] == ["session:s2:messages"]
    assert memory.conversations(session="nobody") == []


def test_a_conversation_is_read_from_its_end_page_by_page(memory):
    memory.append("history", *({"role": "user", "content": f"m{number}"} for number in range(250)))
    pages = [memory.conversation("history")]
    while page := memory.conversation("history", before=pages[0][0].position):
        pages.insert(0, page)
    assert [len(page) for page in pages] == [50, 100, 100]
    assert [text for page in pages for text in said(page)] == [f"m{number}" for number in range(250)]
    assert said(memory.conversation("history", after=247)) == ["m248", "m249"]
    assert said(memory.conversation("history", after=5, limit=2)) == ["m6", "m7"]
    assert said(memory.conversation("history", after=-1, limit=1)) == ["m0"]
    assert memory.conversation("history", after=249) == memory.conversation("history", before=0) == []


def test_a_conversation_can_be_searched(memory):
    memory.append("history", *({"role": "user", "content": f"Message {number}"} for number in range(1200)))
    memory.append("history", CALLS["OpenAI"], RESULTS["OpenAI"])
    assert said(memory.conversation("history", search="MESSAGE 7", limit=2)) == ["Message 798", "Message 799"]
    assert said(memory.conversation("history", search="message 7", before=700)) == [
        "Message 7", *(f"Message {number}" for number in range(70, 80))
    ]  # fmt: skip
    assert said(memory.conversation("history", search="message 3", after=2, limit=2)) == ["Message 3", "Message 30"]
    assert [message.role for message in memory.conversation("history", search="weather")] == ["assistant", "tool"]
    assert memory.conversation("history", search="nothing") == []


@pytest.mark.parametrize(
    ("search", "position"),
    [("straße", 0), ("STRASSE", 0), ('say "no"', 1), ("two\nlines", 2), ('{"city": "paris"}', 3), ("Ana", 4)],
)
def test_a_search_finds_what_a_message_shows_whatever_its_json_is(memory, search, position):
    texts = ["In der Straße", 'They say "no"', "two\nlines"]
    memory.append("messages", *({"role": "user", "content": text} for text in texts))
    memory.append("messages", CALLS["Anthropic"], {"role": "user", "content": "Hi"})
    memory.append("speaker_history", "x", "x", "x", "x", "Ana")
    assert [message.position for message in memory.conversation("default", search=search)] == [position]


def test_lists_beside_a_conversation_give_ids_times_and_speakers(memory):
    ids = [new_id() for _ in range(3)]
    memory.append("session:s:conversation_history", {"sender": "by hand", "message": "older"})
    for number, each in enumerate(ids):
        with memory.transaction() as t:
            t.append("session:s:conversation_history", {"sender": "Sarah", "message": str(number)})
            t.append("session:s:conversation_history:ids", each)
    messages = memory.conversation("s")
    assert [message.id for message in messages] == ["0", *ids]
    assert [message.time for message in messages] == [None, *map(time_of, ids)]
    assert [message.id for message in memory.conversation("s", limit=2, before=3)] == ids[:2]
    with memory.transaction() as t:
        t.append("messages", {"role": "user", "content": "Hi"})
        t.append("speaker_history", "Ana")
    assert memory.conversation("default")[0].sender == "Ana"


def test_a_group_chat_and_the_lines_of_its_members_are_one_conversation(memory):
    def say(text, *lists, prefix=""):
        with memory.transaction() as t:
            id_ = new_id()
            for key in lists:
                line = {"role": "user", "content": text} if key == "messages" else {"sender": "Ana", "message": text}
                t.append(f"{prefix}{key}", line)
                t.append(f"{prefix}{key}:ids", id_)

    def listed():
        return {(each.key, each.messages) for each in memory.conversations()}

    both = ("messages", "conversation_history")
    say("one", *both)
    say("one", *both, prefix="session:s:")
    assert listed() == {("conversation_history", 1), ("session:s:conversation_history", 1)}
    say("two", "messages")
    assert listed() == {("messages", 2), ("conversation_history", 1), ("session:s:conversation_history", 1)}
    say("three", *both)
    assert listed() == {("messages", 3), ("session:s:conversation_history", 1)}, "a member has joined later"
    memory.delete("messages:ids")
    assert {key for key, _ in listed()} == {"messages", "conversation_history", "session:s:conversation_history"}
    memory.delete("conversation_history")
    assert said(memory.conversation("default")) == ["one", "two", "three"]


def test_positions_stay_when_the_first_messages_are_taken_away(memory):
    ids = [new_id() for _ in range(4)]
    memory.append("history", *({"role": "user", "content": str(number)} for number in range(5)))
    memory.append("history:ids", *ids)
    memory.pop("history", 2, first=True)
    messages = memory.conversation("history")
    assert [(message.position, message.message) for message in messages] == [(2, "2"), (3, "3"), (4, "4")]
    assert [message.id for message in messages] == ids[1:]
    assert said(memory.conversation("history", before=4, limit=1)) == ["3"]


def test_a_tool_result_gets_the_name_of_its_call(memory):
    memory.append("history", CALLS["OpenAI"], {"role": "tool", "tool_call_id": "c1", "content": "21 °C"})
    assert memory.conversation("history")[1].tool_results == (RESULT,)


def test_a_tool_is_not_a_participant(memory):
    memory.append("history", CALLS["OpenAI"], {"role": "tool", "tool_call_id": "c1", "content": "21 °C"})
    memory.append("history", {"role": "user", "content": "Thanks", "name": "Sarah"})
    assert memory.conversations()[0].participants == ("Sarah", "assistant")


def test_participants_keep_their_order_as_a_conversation_grows(memory):
    for role in ("user", "assistant") * 6:
        memory.append("history", {"role": role, "content": "Hi"})
        assert memory.conversations()[0].participants in (("user",), ("user", "assistant"))


def test_a_conversation_of_ones_own_that_is_named_default_can_be_forgotten(memory):
    memory.append("default", {"role": "user", "content": "Hi"})
    memory.append("messages", {"role": "user", "content": "of an adapter"})
    assert {each.session for each in memory.conversations()} == {"default"}
    assert memory.forget_session("default") == 2
    assert memory.keys() == []
    memory.set("default", "a setting")
    assert memory.forget_session("default") == 0
    assert memory.get("default") == "a setting"


def test_forgetting_a_session_erases_its_items_and_notes_and_nothing_else(memory):
    for session in ("sarah", "sarah2", "a:b"):
        memory.append(session_key(session), entry({"role": "user", "content": session}))
        memory.append(session_key(session) + IDS, "1")  # not counted
        memory.set(session_key(session, "state:bot:seen"), 1)
        memory.remember(f"a note of {session}", session=session)
    memory.append("messages", entry({"role": "user", "content": "default"}))
    memory.append("history", {"role": "user", "content": "Hi"})
    memory.set("sarah", "a value of that name")
    assert memory.forget_session("sarah") == 3
    assert memory.forget_session("sarah") == 0
    assert {each.session for each in memory.conversations()} == {"sarah2", "a:b", "default", "history"}
    assert {note.session for note in memory.notes()} == {"sarah2", "a:b"}
    assert memory.get("sarah") == "a value of that name"
    assert memory.forget_session("a:b") == 3
    assert memory.forget_session("default") == 1
    assert memory.forget_session("history") == 1
    assert [each.session for each in memory.conversations()] == ["sarah2"]
    assert memory.usage().keys == len(memory.keys()) == 4


def test_reading_what_is_not_a_conversation_says_so(memory):
    memory.set("k", "text")
    assert memory.conversation("nobody") == memory.conversation(key="missing") == memory.conversation() == []
    with pytest.raises(Conflict, match="not a list"):
        memory.conversation(key="k")
    for wrong in ({"limit": 0}, {"limit": 1001}, {"before": -1}, {"after": "x"}, {"before": 1, "after": 1}):
        with pytest.raises(InvalidInput):
            memory.conversation("nobody", **wrong)


def test_an_expired_conversation_is_not_listed(open_memory):
    memory = open_memory()
    memory.set("history", [{"role": "user", "content": "Hi"}], ttl=0.001)
    time.sleep(0.01)  # times are in milliseconds
    assert memory.conversations() == memory.conversation("history") == []


def test_conversations_of_an_encrypted_file_are_listed(tmp_path):
    with Memory("ns", path=tmp_path / "db", secret="s" * 32) as memory:
        memory.append("rows", {"role": "user", "content": "Hi"})
        memory.set("value", [{"role": "user", "content": "Hello"}])
        memory.set("other", "text")
        assert {each.key for each in memory.conversations()} == {"rows", "value"}
        assert said(memory.conversation("rows", search="hi")) == ["Hi"]
        assert said(memory.conversation("value")) == ["Hello"]


def test_async_memory_reads_and_erases_conversations(open_memory):
    async def run() -> None:
        memory = AsyncMemory("async-conversations", **open_memory.where)
        await memory.append("history", {"role": "user", "content": "Hi"})
        assert [each.session for each in await memory.conversations()] == ["history"]
        assert said(await memory.conversation("history", limit=1)) == ["Hi"]
        assert await memory.forget_session("history") == 1
        await memory.close()

    asyncio.run(run())


# ------------------------------------------------------------ queued writes


def test_queued_messages_are_read_after_those_that_are_stored(tmp_path):
    with serving(tmp_path / "served.db") as server, Memory("ns", url=server.url, outbox=tmp_path / "o.db") as memory:
        memory.append("history", *({"role": "user", "content": str(number)} for number in range(3)))
        memory.set_quota(writes_per_day=1)
        copy = unattended_copy(memory)  # queues what a quota refuses
        copy.append("history", CALLS["OpenAI"], {"role": "tool", "tool_call_id": "c1", "content": "21 °C"})
        assert len(copy.pending()) == 1
        found = copy.conversation(key="history")
        assert [message.position for message in found] == [0, 1, 2, 3, 4]
        assert found[-1].tool_results == (RESULT,)
        assert [message.position for message in copy.conversation(key="history", limit=2)] == [3, 4]
        assert [message.position for message in copy.conversation(key="history", limit=2, before=3)] == [1, 2]
        assert [message.position for message in copy.conversation(key="history", after=1)] == [2, 3, 4]
        assert [message.position for message in copy.conversation(key="history", search="weather")] == [3, 4]
        copy.set("history", [{"role": "user", "content": "again"}])
        assert said(copy.conversation(key="history")) == ["again"]
        assert copy.forget_session("history") == 1
        assert copy.pending() == []


@pytest.mark.parametrize("options", [{}, {"after": 1}, {"search": "sent"}])
def test_a_message_that_is_sent_while_a_conversation_is_read_is_in_it_once(tmp_path, monkeypatch, options):
    message = {"id": "m", "role": "user", "content": "sent"}
    with (
        serving(tmp_path / "served.db") as server,
        Memory("ns", url=server.url, outbox=tmp_path / "o.db") as memory,
        Memory("ns", url=server.url, outbox=tmp_path / "other.db") as sender,
    ):
        memory.append("history", *({"role": "user", "content": f"sent {number}"} for number in range(3)))
        memory.set_quota(writes_per_day=1)
        copy = unattended_copy(memory)
        copy.append("history", message)  # is queued
        ask = copy._executor._ask

        def ask_and_send(command):
            answer = ask(command)
            if sender.usage().writes_per_day:
                sender.set_quota(writes_per_day=0)
                sender.append("history", message)  # as the thread that sends queued writes does
            return answer

        monkeypatch.setattr(copy._executor, "_ask", ask_and_send)
        expected = ["sent 0", "sent 1", "sent 2", "sent"]
        assert said(copy.conversation(key="history", **options)) == expected[options.get("after", -1) + 1 :]
