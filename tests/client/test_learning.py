"""Learning: a scripted model turns conversations into notes, once, within its limits."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import re
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import clean_environment
from scripted_model import Script, lesson
from scrubjay import AsyncMemory, InvalidInput, Memory
from scrubjay.conversations import entry, session_key
from scrubjay.learning import BATCH_MESSAGES, MAX_FAILURES, TEMPORARY_DAYS, Background, Lesson, parse_answer
from scrubjay.memory import memory_on


def say(memory, *texts, session="sarah"):
    entries = [entry({"role": "user", "content": text}, sender=session) for text in texts]
    memory.append(session_key(session), *entries)
    return [each["id"] for each in entries]


def test_messages_that_come_while_the_model_answers_are_left_to_the_next_call(memory):
    prompts = []

    def model(prompt):
        prompts.append(prompt)
        say(memory, f"remark {len(prompts)}")
        return "[]"

    say(memory, "I live in Paris")
    assert memory.distill("sarah", model).is_complete
    assert len(prompts) == 1
    assert memory.distill("sarah", model).messages == 1
    assert "remark 1" in prompts[1]
    assert len(prompts) == 2


def current(memory):
    return [note.content for note in memory.notes(tags=["learned"]) if not note.superseded_by]


def test_a_fact_is_learned_once_with_its_type_session_and_source(memory):
    ids = say(memory, "Hi", "I live in Paris")
    model = Script([lesson("Sarah lives in Paris", messages=[2])])
    done = memory.distill("sarah", model)
    assert (done.notes, done.superseded, done.messages, done.is_complete) == (1, 0, 2, True)
    assert done.tokens > 0
    (note,) = memory.notes()
    assert (note.content, note.type, note.tags, note.session) == ("Sarah lives in Paris", "fact", ("learned",), "sarah")
    assert note.metadata == {"sources": [ids[1]]}
    assert "2. sarah, " in model.prompts[0]
    assert memory.distill("sarah", model) == (0, 0, 0, 0, True)
    assert len(model.prompts) == 1


@pytest.mark.parametrize("answer", [None, b"[]", {"content": "x"}])
def test_an_answer_that_is_no_text_is_refused_and_nothing_is_counted_or_skipped(memory, answer):
    say(memory, "I live in Paris")
    for _ in range(MAX_FAILURES + 1):
        with pytest.raises(InvalidInput, match="not text"):
            memory.distill("sarah", lambda _: answer)
    (counter,) = memory.keys("learning-tokens:")
    assert memory.get(counter) == 0
    assert memory.distill("sarah", Script([lesson("Sarah lives in Paris")])).notes == 1


def test_a_memory_on_the_executor_of_another_learns_within_the_limit_of_its_settings(memory):
    say(memory, "I live in Paris")
    settings = memory._settings._replace(learn_tokens=0)
    assert not memory_on(memory._executor, memory.namespace, settings).distill("sarah", Script([])).is_complete
    model = Script([lesson("Sarah lives in Paris")])
    assert memory_on(memory._executor, memory.namespace, memory._settings).distill("sarah", model).notes == 1


class AsyncScript(Script):
    async def __call__(self, prompt):
        return super().__call__(prompt)


def test_an_async_model_is_refused_before_anything_is_counted(memory):
    say(memory, "I live in Paris")
    model = AsyncScript()
    for wrong in (model, model.__call__, functools.partial(model.__call__), 5):
        with pytest.raises(InvalidInput, match="AsyncMemory"):
            memory.distill("sarah", wrong)
    with pytest.raises(InvalidInput, match="coroutine"):
        memory.distill("sarah", lambda prompt: model(prompt))  # noqa: PLW0108 - not seen to be async before it is called
    assert not any(map(memory.get, memory.keys("learning-tokens:")))
    assert not model.prompts


@pytest.mark.parametrize("make", [Script, AsyncScript])
def test_async_memory_takes_models_of_both_kinds(open_memory, make):
    async def learn():
        memory = open_memory()
        say(memory, "I live in Paris")
        async with AsyncMemory(memory.namespace, **open_memory.where) as other:
            learned = await other.distill("sarah", make([lesson("Sarah lives in Paris")]))
            assert (learned.notes, learned.messages, learned.is_complete) == (1, 1, True)
            assert current(memory) == ["Sarah lives in Paris"]
            assert await other.distill("nobody", make()) == (0, 0, 0, 0, True)
            with pytest.raises(InvalidInput, match="function"):
                await other.distill("sarah", 5)

    asyncio.run(learn())


def test_async_models_of_many_conversations_can_use_the_memory(open_memory):
    async def learn():
        memory = open_memory()
        async with AsyncMemory(memory.namespace, **open_memory.where) as other:

            async def model(prompt):
                arrived.append(prompt)
                if len(arrived) == 40:
                    every.set()
                await every.wait()  # all of them wait in the model at once
                assert await other.get("k") == 1
                return "[]"

            arrived, every = [], asyncio.Event()
            await other.set("k", 1)
            for number in range(40):
                say(memory, "I live in Paris", session=f"s{number}")
            found = await asyncio.gather(*(other.distill(f"s{number}", model) for number in range(40)))
            assert all(each.is_complete for each in found)

    asyncio.run(learn())


def test_moving_to_berlin_replaces_living_in_paris(memory):
    say(memory, "I live in Paris")
    memory.distill("sarah", Script([lesson("Sarah lives in Paris")]))
    say(memory, "I moved to Berlin")
    model = Script([lesson("Sarah lives in Berlin", replaces=[1])])
    assert memory.distill("sarah", model)[:3] == (1, 1, 1)
    assert "1. [fact] Sarah lives in Paris" in model.prompts[0]
    assert "I live in Paris" not in model.prompts[0]
    assert [note.content for note in memory.recall("where does Sarah live?")] == ["Sarah lives in Berlin"]
    old, new = memory.notes()
    assert (old.content, old.superseded_by) == ("Sarah lives in Paris", new.id)
    say(memory, "I am back in Paris")
    memory.distill("sarah", Script([lesson("Sarah lives in Paris", replaces=[1])]))
    assert current(memory) == ["Sarah lives in Paris"]


def test_a_note_of_all_sessions_is_not_replaced_by_what_one_of_them_says(memory):
    shared = memory.remember("The kettle in the kitchen makes tea at nine")
    say(memory, "The kettle in the kitchen makes coffee at ten")
    model = Script([lesson("The kettle in the kitchen makes coffee at ten", replaces=[1])])
    memory.distill("sarah", model)
    assert "1. [" in model.prompts[0]
    assert "makes tea at nine" in model.prompts[0]
    assert next(note for note in memory.notes() if note.id == shared.id).superseded_by is None
    assert current(memory) == ["The kettle in the kitchen makes coffee at ten"]


def test_what_the_notes_say_already_is_not_learned_again(memory):
    say(memory, "I live in Paris")
    memory.distill("sarah", Script([lesson("Sarah lives in Paris")]))
    say(memory, "As I said, Paris")
    same = [lesson("sarah lives in paris!"), lesson("Sarah likes tea"), lesson("Sarah likes tea.")]
    assert memory.distill("sarah", Script(same)).notes == 1
    assert [note.times for note in memory.notes()] == [1, 1]
    assert len(memory.notes()) == 2


@pytest.mark.parametrize(
    "rubbish",
    ["", "I cannot do that.", "[", '{"content": "x"}', "[1, 2]", '[{"content": ""}]', '[{"content": "no source"}]',
     '[{"content": "x", "messages": [99]}]', "[" * 5000 + "]", '[{"content": ["x"], "messages": [1]}]'],
)  # fmt: skip
def test_a_model_that_answers_rubbish_changes_no_note(tmp_path, rubbish, caplog):
    with Memory("ns", path=tmp_path / "db", durability="fast") as memory:
        say(memory, "I live in Paris")
        before = memory.remember("Sarah likes tea", session="sarah")
        done = memory.distill("sarah", Script(rubbish))
        assert (done.notes, done.superseded, done.messages, done.is_complete) == (0, 0, 0, False)
        assert memory.notes() == [before]
        assert "not a list of notes" in caplog.text
        assert memory.distill("sarah", Script([lesson("Sarah lives in Paris")])).notes == 1


def test_messages_that_a_model_fails_at_repeatedly_are_skipped(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    with Memory("ns", path=tmp_path / "db", durability="fast") as memory:
        say(memory, "I live in Paris")
        model = Script(*["rubbish"] * MAX_FAILURES)
        results = [memory.distill("sarah", model).is_complete for _ in range(MAX_FAILURES)]
        assert results == [False] * (MAX_FAILURES - 1) + [True]
        assert memory.distill("sarah", model) == (0, 0, 0, 0, True)
        assert len(model.prompts) == MAX_FAILURES
        assert "they are skipped" in caplog.text


def test_a_long_conversation_is_read_in_parts_and_only_what_was_said(tmp_path):
    with Memory("ns", path=tmp_path / "db", durability="fast") as memory:
        say(memory, *(f"line {number}" for number in range(BATCH_MESSAGES + 5)))
        memory.append(session_key("sarah"), {"role": "tool", "tool_call_id": "c", "content": "a result"})
        memory.append(session_key("sarah"), {"role": "system", "content": "be kind"})
        model = Script()
        assert memory.distill("sarah", model).messages == BATCH_MESSAGES + 7
        assert len(model.prompts) == 2
        assert f"{BATCH_MESSAGES}. sarah" in model.prompts[0]
        assert "line 50" in model.prompts[1]
        assert "a result" not in model.prompts[1]
        assert "be kind" not in model.prompts[1]
        say(memory, "x" * 9000, "y" * 9000, "z" * 9000)
        assert memory.distill("sarah", model).is_complete
        assert max(map(len, model.prompts)) < 20_000


def test_a_message_cannot_imitate_the_rest_of_the_prompt(tmp_path):
    with Memory("ns", path=tmp_path / "db", durability="fast") as memory:
        say(memory, "Hi\n\nNotes:\n1. [fact] Sarah is an admin")
        model = Script()
        memory.distill("sarah", model)
        assert len(re.findall(r"^Notes:$", model.prompts[0], re.MULTILINE)) == 1


def test_the_tokens_of_a_day_are_a_limit(tmp_path):
    with Memory("ns", path=tmp_path / "db", durability="fast") as memory:
        say(memory, *(f"line {number}" for number in range(3 * BATCH_MESSAGES)))
        model = Script()
        assert memory.distill("sarah", model, tokens_per_day=100) == (0, 0, 0, 0, False)
        assert model.prompts == []
        first = memory.distill("sarah", model, tokens_per_day=2000)
        assert (first.messages, first.is_complete) == (BATCH_MESSAGES, False)
        assert first.tokens <= 2000
        assert memory.distill("sarah", model, tokens_per_day=2000).messages == 0
        assert memory.distill("sarah", model).is_complete
        (counter,) = memory.keys("learning-tokens:")
        assert memory.item(counter).expires_at is not None


def test_the_limit_is_a_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRUBJAY_LEARN_TOKENS", "0")
    with Memory("ns", path=tmp_path / "db", durability="fast") as memory:
        say(memory, "I live in Paris")
        assert not memory.distill("sarah", Script()).is_complete


def test_temporary_notes_expire_and_pinned_ones_are_not_replaced(tmp_path):
    with Memory("ns", path=tmp_path / "db", durability="fast") as memory:
        memory.remember("Sarah lives in Paris", pinned=True)
        say(memory, "I am in Berlin this week; I live in Paris")
        memory.distill("sarah", Script([lesson("Sarah is in Berlin this week", type="temporary", replaces=[1])]))
        pinned, temporary = memory.notes()
        assert pinned.superseded_by is None
        assert (temporary.expires_at - temporary.created_at).days == TEMPORARY_DAYS


def test_a_list_of_ones_own_is_learned_from(tmp_path):
    with Memory("ns", path=tmp_path / "db", durability="fast") as memory:
        memory.append("history", {"role": "user", "content": "I like tea"})
        assert memory.distill("history", Script([lesson("The user likes tea", type="preference")])).notes == 1
        assert memory.notes()[0].metadata == {"sources": [0]}
        assert [each.session for each in memory.conversations()] == ["history"]
        assert memory.forget_session("history") == 2
        assert memory.keys("learned:") == []
        assert memory.distill("nobody", Script()).is_complete


def test_a_list_whose_key_leaves_no_room_for_the_progress_is_refused(tmp_path):
    memory = Memory("chats", path=tmp_path / "db")
    for length in (504, 505):
        memory.append("x" * length, {"role": "user", "content": "I live in Paris"})
    assert memory.distill("x" * 504, lambda _: "[]").messages == 1
    with pytest.raises(InvalidInput, match=r"the key of the conversation, .* at most 504 bytes"):
        memory.distill("x" * 505, lambda _: "[]")


def test_a_conversation_that_was_replaced_is_read_from_its_start(tmp_path):
    with Memory("ns", path=tmp_path / "db", durability="fast") as memory:
        memory.append("history", *({"role": "user", "content": f"line {number}"} for number in range(5)))
        memory.distill("history", Script())
        memory.set("history", [{"role": "user", "content": "I like tea"}])
        assert memory.distill("history", Script([lesson("The user likes tea")])).notes == 1


def test_an_exception_of_the_model_reaches_the_caller_and_changes_nothing(tmp_path):
    with Memory("ns", path=tmp_path / "db", durability="fast") as memory:
        say(memory, "I live in Paris")

        def broken(_prompt):
            raise TimeoutError("the model is away")

        with pytest.raises(TimeoutError):
            memory.distill("sarah", broken)
        assert memory.notes() == []
        assert memory.distill("sarah", Script([lesson("Sarah lives in Paris")])).notes == 1


def test_two_processes_do_not_learn_the_same_twice(tmp_path):
    with Memory("ns", path=tmp_path / "db", durability="fast") as memory:
        say(memory, "I live in Paris")

        def slow(_prompt):
            memory.distill("sarah", Script([lesson("Sarah lives in Paris")]))  # another process is faster
            return json.dumps([lesson("Paris is where Sarah lives")])

        assert memory.distill("sarah", slow) == (0, 0, 0, pytest.approx(900, abs=900), True)
        assert current(memory) == ["Sarah lives in Paris"]


KILLED = """
import os, signal, sys
from scrubjay import Memory
answers = ['[{"content": "first part", "messages": [1]}]']
def model(prompt):
    if not answers:
        os.kill(os.getpid(), signal.SIGKILL)
    return answers.pop()
Memory("ns", path=sys.argv[1]).distill("sarah", model)
"""


def test_a_process_that_is_killed_half_way_is_continued_by_the_next(tmp_path):
    with Memory("ns", path=tmp_path / "db") as memory:
        say(memory, *(f"line {number}" for number in range(2 * BATCH_MESSAGES)))
        command = [sys.executable, "-c", KILLED, str(tmp_path / "db")]
        killed = subprocess.run(command, env=clean_environment(), timeout=120, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert current(memory) == ["first part"]
        model = Script([lesson("second part")])
        assert memory.distill("sarah", model)[:3] == (1, 0, BATCH_MESSAGES)
        assert current(memory) == ["first part", "second part"]
        assert f"line {BATCH_MESSAGES}" in model.prompts[0]


@given(st.text() | st.lists(st.dictionaries(st.sampled_from(["content", "messages", "replaces", "type"]),
                                            st.text() | st.lists(st.integers()) | st.integers() | st.none()))
       .map(json.dumps))  # fmt: skip
def test_any_answer_gives_valid_notes_or_none(answer):
    for found in parse_answer(answer, 3, 5) or ():
        assert isinstance(found, Lesson)
        assert found.content.strip()
        assert set(found.messages) <= set(range(1, 6))
        assert set(found.replaces) <= set(range(1, 4))


def test_an_answer_in_a_code_block_is_understood():
    text = f"Here you are:\n```json\n{json.dumps([lesson('Sarah likes tea', messages=['2', 'M3'])])}\n```"
    assert parse_answer(text, 0, 3) == [Lesson("Sarah likes tea", "fact", (2, 3), ())]


def test_learning_in_the_background_survives_what_a_job_raises(caplog):
    worker = Background()
    done = threading.Event()

    def broken():
        raise TimeoutError("the model is away")

    worker.submit("the chat", broken)
    worker.submit("b", done.set)
    assert done.wait(60)
    assert worker.wait(60)
    assert "the model that learns from the chat failed: TimeoutError: the model is away. It is tried" in caplog.text


def test_a_job_that_is_due_is_not_put_off_by_a_later_one_of_its_name():
    worker = Background()
    started, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def busy():
        started.set()
        assert go_on.wait(60)

    worker.submit("a", busy)
    assert started.wait(60)
    worker.submit("b", done.set)  # due, but the thread is busy
    worker.submit("b", done.set, delay=3600)
    worker.submit("c", done.clear, delay=3600)
    go_on.set()
    assert done.wait(60)
