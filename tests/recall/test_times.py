"""Times in texts, and recall by them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubjay import InvalidInput
from scrubjay.recall.times import find_times, labels_of_note
from scrubjay.store import notes
from scrubjay.validation import NewNote, RecallQuery

THURSDAY = datetime(2026, 5, 14, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("What did I eat today?", ["2026-05-14"]),
        ("What was said in yesterday's meeting?", ["2026-05-13"]),
        ("Was war gestern?", ["2026-05-13"]),
        ("昨天我吃了什么？", ["2026-05-13"]),
        ("What happened on Monday?", ["2026-05-11", "2026-05-18"]),
        ("the one last Wednesday", ["2026-05-06", "2026-05-13"]),
        ("two days ago", ["2026-05-12"]),
        ("two months ago", ["2026-03"]),
        ("in March", ["2026-03"]),
        ("in July", ["2025-07", "2026-07"]),
        ("on 2 March 2024", ["2024-03-02"]),
        ("March 2nd, 2024", ["2024-03-02"]),
        ("3月5日", ["2026-03-05"]),
        ("2026-06-19", ["2026-06-19"]),
        ("last week", [f"2026-05-{day:02}" for day in range(4, 11)]),
        ("in 2024", [f"2024-{month:02}" for month in range(1, 13)]),
        ("May I march on?", []),
        ("31 June", []),
        ("Tuesdays at 10", []),
    ],
)
def test_times_are_read_relative_to_now(text, labels):
    assert sorted(find_times(text, THURSDAY).labels) == labels


@pytest.mark.parametrize(
    ("text", "is_open"),
    [("What happened last week?", True), ("What did Tobias say last week?", False), ("Hello", False)],
)
def test_a_question_for_nothing_but_a_time_is_open(text, is_open):
    assert find_times(text, THURSDAY).is_open is is_open


@given(st.text(), st.datetimes(timezones=st.just(UTC)))
def test_any_text_at_any_time_can_be_read(text, now):
    find_times(text, now)
    labels_of_note(text, now)


def test_a_note_is_of_the_day_it_was_written_and_of_those_it_mentions():
    assert labels_of_note("Dentist on 9 June 2026", THURSDAY) == {"2026-05-14", "2026-05", "2026-06-09", "2026-06"}


def test_a_time_alone_finds_the_notes_of_that_time(driver):
    driver.run(notes.remember("ns", NewNote.check("Baked rye bread")))
    (note,) = driver.run(notes.recall("ns", RecallQuery.check("What happened today?", explain=True)))
    assert note.content == "Baked rye bread"
    assert note.explanation["parts"] == {"time": note.score}
    assert driver.run(notes.recall("ns", RecallQuery.check("What happened yesterday?"))) == []


def test_recall_as_of_a_past_moment_knows_only_what_was_written_by_then(driver):
    old = driver.run(notes.remember("ns", NewNote.check("Marta lives in Paris")))[0]
    driver.run(notes.remember("ns", NewNote.check("Marta moved to Berlin")))
    query = "Where does Marta live?"
    found = driver.run(notes.recall("ns", RecallQuery.check(query)))
    assert found[0].content == "Marta moved to Berlin"
    before = RecallQuery.check(query, at=old.created_at.replace(year=2020))
    assert driver.run(notes.recall("ns", before)) == []


@pytest.mark.parametrize("at", ["yesterday", 17, "2026-05-14T20:00", datetime(2026, 5, 14)])  # noqa: DTZ001 - on purpose
def test_a_moment_has_a_time_zone(at):
    with pytest.raises(InvalidInput, match=r"at (is|has)"):
        RecallQuery.check("x", at=at)


def test_a_moment_travels_as_json():
    query = RecallQuery.check("x", at=THURSDAY)
    assert RecallQuery.check(**query.to_json()) == query
    assert "at" not in RecallQuery.check("x").to_json()
