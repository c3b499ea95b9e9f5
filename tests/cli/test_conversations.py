"""The commands chat, sessions and forget-session."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import pytest

from harness import clean_environment, run_command
from scrubjay import Memory
from scrubjay.conversations import entry, session_key


@pytest.fixture
def memory(tmp_path):
    with Memory("support", path=tmp_path / "db") as memory:
        yield memory


@pytest.fixture
def scrubjay(tmp_path, memory):
    def run(*words):
        ended = run_command(*words, SCRUBJAY_PATH=str(tmp_path / "db"))
        return ended.returncode, ended.stdout.decode(), ended.stderr.decode()

    return run


def say(memory, session, *texts):
    time.sleep(0.01)  # the latest conversation is the one with the latest millisecond
    for text in texts:
        memory.append(session_key(session), entry({"role": "user", "content": text}, sender=session))


def test_chat_prints_the_latest_conversation_or_the_one_named(scrubjay, memory):
    say(memory, "sarah", "Hi", "Bye")
    say(memory, "bob", "Hello")
    code, printed, told = scrubjay("chat", "support")
    assert code == 0
    assert told == "session bob: 1 message of bob\n"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  bob: Hello\n", printed)
    assert [line[21:] for line in scrubjay("chat", "support", "--session", "sarah")[1].splitlines()] == [
        "sarah: Hi", "sarah: Bye",
    ]  # fmt: skip
    assert scrubjay("chat", "support", "--session", "sarah", "-n", "1")[1].endswith("sarah: Bye\n")
    assert scrubjay("chat", "support", "--session", "sarah", "--search", "HI")[1].count("\n") == 1


def test_chat_prints_tool_calls_with_their_results(scrubjay, memory):
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    memory.append("history", {"role": "assistant", "content": "Let me see", "tool_calls": [call]})
    memory.append("history", {"role": "tool", "tool_call_id": "c", "content": "21 °C\nsunny"})
    assert scrubjay("chat", "support")[1] == (
        'assistant: Let me see\n  → weather {"city": "Paris"}\ntool:\n  ← weather 21 °C\n    sunny\n'
    )


def test_chat_as_json_is_one_message_a_line(scrubjay, memory):
    memory.append("history", {"role": "user", "content": "Hi"})
    (line,) = scrubjay("chat", "support", "--json")[1].splitlines()
    assert json.loads(line) == {
        "id": "0", "position": 0, "sender": "user", "role": "user", "message": "Hi", "time": None, "tool_calls": [],
        "tool_results": [],
    }  # fmt: skip


def test_chat_does_not_let_a_message_control_the_terminal(scrubjay, memory):
    memory.append("history", {"role": "user", "content": "\x1b[2Jgone", "name": "\x1bx"})
    assert "\x1b" not in scrubjay("chat", "support")[1]


def test_chat_prints_persian_and_joined_emoji_as_they_are_and_what_deceives_as_codes(scrubjay, memory):
    text = "می\u200cخواهم 👩\u200d💻"
    memory.append("history", {"role": "user", "content": f"{text}\u202e", "name": text})
    assert scrubjay("chat", "support")[1] == f"{text}: {text}\\u202e\n"


def test_more_messages_than_a_page_are_printed(scrubjay, memory):
    memory.append("history", *({"role": "user", "content": str(number)} for number in range(1500)))
    assert scrubjay("chat", "support", "-n", "1200")[1].splitlines() == [f"user: {n}" for n in range(300, 1500)]


def test_a_session_that_does_not_exist_is_an_error_that_names_those_that_do(scrubjay, memory):
    code, _, error = scrubjay("chat", "support")
    assert (code, "no such namespace" in error) == (1, True)
    memory.set("k", 1)
    code, _, error = scrubjay("chat", "support")
    assert (code, "has no conversation" in error) == (1, True)
    say(memory, "sarah", "Hi")
    code, _, error = scrubjay("chat", "support", "--session", "sara")
    assert (code, error) == (1, "scrubjay: 'support' has no session 'sara'; it has 'sarah'; did you mean 'sarah'?\n")
    say(memory, "Ünï cødé:%/x", "Hi")
    error = scrubjay("chat", "support", "--session", "nobody")[2]
    assert error == "scrubjay: 'support' has no session 'nobody'; it has 'Ünï cødé:%/x', 'sarah'\n"


def test_a_session_that_cannot_be_forgotten_is_an_error_with_a_command_that_lists_them(scrubjay, memory):
    say(memory, "sarah", "Hi")
    code, _, error = scrubjay("forget-session", "support", "nobody", "--yes")
    assert (code, error) == (1, "scrubjay: 'support' has no session 'nobody'; see: scrubjay sessions support\n")


def test_sessions_are_listed_with_their_messages_and_people(scrubjay, memory):
    assert scrubjay("sessions", "support")[0] == 1
    say(memory, "sarah", "Hi", "Bye")
    time.sleep(0.01)
    memory.append("history", {"role": "user", "content": "Hi"})
    first, second = scrubjay("sessions", "support")[1].splitlines()
    assert re.fullmatch(r"history +1 message +\d{4}-\d\d-\d\d \d\d:\d\d  user", first)
    assert re.fullmatch(r"sarah +2 messages +\d{4}-\d\d-\d\d \d\d:\d\d  sarah", second)
    listed = [json.loads(line) for line in scrubjay("sessions", "support", "--json")[1].splitlines()]
    assert [each["key"] for each in listed] == ["history", "session:sarah:messages"]


def test_a_group_chat_and_the_lines_of_its_members_are_one_session(scrubjay, memory):
    say(memory, "team", "Hi", "Bye")
    memory.append("session:team:conversation_history", {"sender": "ana", "message": "Hello"})
    code, printed, _ = scrubjay("sessions", "support")
    assert (code, printed.count("\n")) == (0, 1)
    assert re.match(r"team +2 messages", printed)
    assert {"ana", "team"} <= set(re.split(r"[\s,]+", printed))
    assert len(scrubjay("sessions", "support", "--json")[1].splitlines()) == 1


def test_forget_session_erases_it_with_its_notes(scrubjay, memory):
    say(memory, "sarah", "Hi")
    memory.remember("Sarah likes tea", session="sarah")
    code, _, error = scrubjay("forget-session", "support", "sarah")
    assert (code, "pass --yes" in error, len(memory.notes())) == (1, True, 1)
    assert scrubjay("forget-session", "support", "sarah", "--yes")[:2] == (
        0,
        "erased 2 in all: lists, values and notes\n",
    )
    assert (memory.conversations(), memory.notes()) == ([], [])
    code, _, error = scrubjay("forget-session", "support", "sarah", "--yes")
    assert (code, "has no session 'sarah'" in error) == (1, True)


def test_chat_follows_a_conversation_as_it_grows(memory, tmp_path):
    say(memory, "sarah", "Hi")
    command = [sys.executable, "-m", "scrubjay", "chat", "support", "--session", "sarah", "--follow", "--json"]
    environment = clean_environment(SCRUBJAY_PATH=str(tmp_path / "db"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert json.loads(process.stdout.readline())["message"] == "Hi"
            say(memory, "bob", "not this one")
            say(memory, "sarah", "How are you?", "Bye")
            lines = [json.loads(process.stdout.readline())["message"] for _ in range(2)]
            assert lines == ["How are you?", "Bye"]
        finally:
            process.terminate()
