"""Which messages a model is sent, and what is stored of a message."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.models import refused_by_openai
from scrubjay.adapters._messages import INTERRUPTED, for_model, new_messages, snapshot, with_results


@st.composite
def conversations(draw):
    """Messages, calls of one or several tools, and their results right behind them; the last call may be open."""
    messages = []
    for number, results in enumerate(draw(st.lists(st.none() | st.integers(1, 3), max_size=12))):
        text = draw(st.text("ab ", max_size=40))
        if results is None:
            messages.append({"role": "user", "content": text})
            continue
        calls = [{"id": f"{number}-{i}", "function": {"name": "f", "arguments": text}} for i in range(results)]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        messages += [{"role": "tool", "content": text, "tool_call_id": call["id"]} for call in calls]
    return messages


limits = st.none() | st.integers(1, 60)


@given(messages=conversations(), max_messages=limits, max_tokens=limits)
def test_a_call_and_its_results_stay_together(messages, max_messages, max_tokens):
    kept = for_model(messages, max_messages, max_tokens)
    assert kept == messages[len(messages) - len(kept) :]
    calls = {call["id"] for message in kept for call in message.get("tool_calls", [])}
    assert {message["tool_call_id"] for message in kept if message["role"] == "tool"} == calls


@given(messages=conversations(), max_messages=st.integers(1, 60))
def test_as_many_as_fit_are_kept_and_at_least_the_last(messages, max_messages):
    kept = for_model(messages, max_messages, None)
    assert bool(kept) == bool(messages)
    whole_exchange = 4
    assert len(kept) <= max(max_messages, whole_exchange)
    assert len(kept) == len(messages) or len(kept) > max_messages - whole_exchange


@given(messages=conversations())
def test_without_limits_nothing_is_left_out(messages):
    assert for_model(messages, None, None) == messages


CALLS = st.sampled_from(["call 1", "call 2", "call 3"])
PARTS = st.one_of(
    st.just({"role": "user", "content": "hi"}),
    st.just({"role": "assistant", "content": "hello"}),
    st.builds(
        lambda ids: {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": id_, "type": "function", "function": {"name": "f", "arguments": ""}} for id_ in ids],
        },
        st.lists(CALLS, min_size=1, max_size=3, unique=True),
    ),
    st.builds(lambda id_: {"role": "tool", "tool_call_id": id_, "content": f"result of {id_}"}, CALLS),
    st.builds(
        lambda ids: {
            "role": "tool",
            "content": "all",
            "tool_responses": [{"role": "tool", "tool_call_id": id_, "content": f"result of {id_}"} for id_ in ids],
        },
        st.lists(CALLS, min_size=1, max_size=3, unique=True),
    ),
    st.just({"role": "assistant", "content": None, "function_call": {"name": "g", "arguments": ""}}),
    st.just({"role": "function", "name": "g", "content": "result of g"}),
)


@given(messages=st.lists(PARTS, max_size=15), max_messages=limits, max_tokens=limits)
def test_whatever_is_stored_a_model_is_sent_what_it_accepts(messages, max_messages, max_tokens):
    """Chats that are cut off anywhere, interleaved, or repeated make any order of calls and results."""
    sent = for_model([{"role": "system", "content": "help"}, *messages], max_messages, max_tokens)
    assert refused_by_openai(sent) is None
    assert sent[0]["role"] == "system"


@given(messages=st.lists(PARTS, max_size=15))
def test_every_call_has_a_result_and_no_text_is_lost(messages):
    complete = with_results(messages)
    kept = [message for message in complete if message["role"] not in ("tool", "function")]
    assert kept == [message for message in messages if message["role"] not in ("tool", "function")]
    assert with_results(complete) == complete


@given(messages=conversations(), cut=st.integers(0, 40))
def test_results_that_were_saved_are_sent_and_the_others_are_said_to_be_interrupted(messages, cut):
    complete = with_results(messages[:cut])
    results = [message for message in complete if message["role"] == "tool"]
    stored = [message for message in messages[:cut] if message["role"] == "tool"]
    assert [message for message in results if message["content"] != INTERRUPTED or message in stored] == stored


def test_a_result_that_comes_late_stands_behind_its_call():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    late = {"role": "tool", "tool_call_id": "1", "content": "42"}
    between = {"role": "user", "content": "are you there?"}
    assert with_results([calling, between, late]) == [calling, late, between]


@given(st.lists(st.integers(0, 3), max_size=8), st.integers(0, 8), st.integers(0, 8), st.integers(0, 3))
def test_a_copy_of_any_part_of_a_conversation_has_nothing_new_but_what_follows(numbers, start, count, more):
    stored = [{"content": i, "n": n} for i, n in enumerate(numbers)]
    later = [{"content": f"later {i}"} for i in range(more)]
    assert list(new_messages(stored, stored[start : start + count])) == []
    assert list(new_messages(stored, stored[start:] + later)) == later


def test_a_snapshot_does_not_change_with_the_message():
    message = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    taken = snapshot(message)
    message["content"][0]["text"] = "b"
    assert taken["content"][0]["text"] == "a"


def test_a_message_in_itself_is_represented_as_far_as_json_goes(caplog):
    message = {"role": "user", "content": "hello"}
    message["context"] = {"self": message}
    assert snapshot(message)["content"] == "hello"
    assert "JSON cannot represent" in caplog.text


def test_a_message_of_too_many_parts_leaves_a_mark_in_its_place(caplog):
    parts = [{"type": "text", "text": "x" * 100} for _ in range(150_000)]
    assert snapshot({"role": "user", "content": parts}) == {
        "content": "[a message of too many parts to be saved]",
        "role": "user",
    }
    assert "without all of its text" in caplog.text


def test_an_unpaired_surrogate_is_replaced(caplog):
    assert snapshot("half \ud83d") == "half ?"
    assert snapshot({"content": "well \ud83d done"}) == {"content": "well ? done"}
    assert snapshot({"content": "", "a\ud83d": 1}) == {"content": "", "a?": 1}
    assert "saved without unpaired surrogates of content, which" in caplog.text


class City(str, Enum):  # noqa: UP042 - as in many programs
    PARIS = "Paris"


class Text(str):
    """A text of a class of its own, with a text of its own."""

    __slots__ = ()

    def __str__(self):
        return "not this"


@pytest.mark.parametrize(("text", "plain"), [(City.PARIS, "Paris"), (Text("hello"), "hello")])
def test_a_text_of_a_subclass_is_saved_complete_and_without_a_warning(text, plain, caplog):
    message = OrderedDict(content=text, parts=[text])
    message[text] = 1
    assert snapshot(message) == {"content": plain, "parts": [plain], plain: 1}
    assert type(snapshot(message)["content"]) is str
    assert caplog.text == ""
