"""What a model is handed of a long conversation, and what JSON can carry of a message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scrubjay.adapters._messages import fitted, snapshot


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
    kept = fitted(messages, max_messages, max_tokens)
    assert kept == messages[len(messages) - len(kept) :]
    calls = {call["id"] for message in kept for call in message.get("tool_calls", [])}
    assert {message["tool_call_id"] for message in kept if message["role"] == "tool"} == calls


@given(messages=conversations(), max_messages=st.integers(1, 60))
def test_as_many_as_fit_are_kept_and_at_least_the_last(messages, max_messages):
    kept = fitted(messages, max_messages, None)
    assert bool(kept) == bool(messages)
    whole_exchange = 4
    assert len(kept) <= max(max_messages, whole_exchange)
    assert len(kept) == len(messages) or len(kept) > max_messages - whole_exchange


@given(messages=conversations())
def test_without_limits_nothing_is_left_out(messages):
    assert fitted(messages, None, None) == messages


def test_a_result_without_its_call_is_not_made_worse():
    orphan = [{"role": "tool", "content": "result"}]
    assert fitted(orphan, 1, 1) == orphan


def test_a_snapshot_does_not_change_with_the_message():
    message = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    taken = snapshot(message)
    message["content"][0]["text"] = "b"
    assert taken["content"][0]["text"] == "a"


def test_a_message_in_itself_is_carried_as_far_as_json_goes(caplog):
    message = {"role": "user", "content": "hello"}
    message["context"] = {"self": message}
    assert snapshot(message)["content"] == "hello"
    assert "JSON cannot carry" in caplog.text


def test_a_message_of_too_many_parts_leaves_a_mark_in_its_place(caplog):
    parts = [{"type": "text", "text": "x" * 100} for _ in range(150_000)]
    assert snapshot({"role": "user", "content": parts}) == {
        "content": "[a message of too many parts to be saved]",
        "role": "user",
    }
    assert "without all of its text" in caplog.text


def test_a_name_is_carried_too():
    assert snapshot("half \ud83d") == "half ?"
