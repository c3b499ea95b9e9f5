"""Ranking: fusion with the semantic index, and explanations."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubjay.recall import ranking
from scrubjay.recall.neighbours import MAX_PAUSE_SECONDS, NEIGHBOURS
from scrubjay.recall.prompt import CONTEXT_THRESHOLD
from scrubjay.recall.query import QueryTerms
from scrubjay.recall.ranking import (
    CALIBRATION,
    MIN_COSINE,
    SEMANTIC_WEIGHT,
    Candidate,
    Evidence,
    Occurrences,
    Ranked,
    fuse,
    limit_scores,
    similarities,
)
from scrubjay.recall.terms import Asks
from scrubjay.store import notes
from scrubjay.validation import NewNote, RecallQuery


def test_every_neighbour_has_a_weight():
    assert len(ranking.PREVIOUS_WEIGHTS) == len(ranking.NEXT_WEIGHTS) == NEIGHBOURS


def test_a_question_passes_its_similarity_to_the_answer_after_it():
    turn = Candidate(
        id=1,
        previous=(),
        next=(2,),
        speaker=(),
        updated_at=0,
        times=1,
        asks=Asks.ONLY,
        is_change=False,
        is_turn=True,
    )
    answer = turn._replace(id=2, previous=(1,), next=(), asks=Asks.NO)
    passed = similarities({1: 0.8, 9: 0.7}, [turn, answer])
    assert passed[2] == 0.8 > passed[1] > 0
    assert 9 not in passed
    assert similarities({1: 0.8}, [turn._replace(next=())]) == {1: 0.8}
    assert similarities({1: 0.8}, [turn]) == {1: 0.8}


def fused(lexical: dict[int, float], cosines: dict[int, float]) -> dict[int, float]:
    """The scores of turns of a session, as callers see them, the best first."""
    turns = [Candidate(id_, (), (), (), 0, 1, asks=Asks.NO, is_change=False, is_turn=True) for id_ in range(9)]
    evidence = Evidence(QueryTerms([], {}, {}, [], 0, {}), Occurrences({}, {}), frozenset(), {})
    ranked = fuse([Ranked(*each) for each in lexical.items()], cosines, turns, evidence)
    return dict(limit_scores(ranked, is_fused=True))


def test_a_fused_score_does_not_depend_on_the_other_notes():
    alone = fused({1: 0.5}, {1: 0.6})[1]
    among = fused({1: 0.5, 2: 0.9, 3: 0.1}, {1: 0.6, 4: 0.9, 5: 0.3})[1]
    assert alone == among > 0.5**CALIBRATION


def test_the_semantic_index_adds_to_a_lexical_score_and_never_takes_away():
    scores = fused({1: 1.0, 2: 0.4}, {1: 0.9, 3: 1.0})
    assert (scores[1], scores[2]) == (1.0, 0.4**CALIBRATION)
    assert scores[3] == SEMANTIC_WEIGHT**CALIBRATION


def test_the_semantic_index_adds_less_where_words_fit_well():
    scores = fused({1: 0.1, 2: 0.6}, {1: 0.4, 2: 0.4})
    weak, strong = scores[1] ** (1 / CALIBRATION) - 0.1, scores[2] ** (1 / CALIBRATION) - 0.6
    assert weak > strong + 0.01 > 0.01


def test_notes_that_fit_better_than_a_score_of_1_says_keep_their_order_with_a_model():
    assert list(fused({1: 1.6, 2: 1.3, 3: 1.1}, {1: 0.3, 2: 0.3, 3: 0.3})) == [1, 2, 3]
    assert set(fused({1: 1.6, 2: 1.3, 3: 1.1}, {1: 0.3, 2: 0.3, 3: 0.3}).values()) == {1.0}


@given(low=st.floats(0, 3), margin=st.floats(0.001, 3), cosines=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_model_moves_no_note_past_one_that_fits_better_by_more_than_its_weight(low, margin, cosines):
    scores = fused({1: low + margin, 2: low}, dict(enumerate(cosines, 1)))
    if margin > SEMANTIC_WEIGHT or cosines[0] >= cosines[1]:
        assert next(iter(scores)) == 1 or scores[1] == scores[2] < 1


def test_a_turn_is_near_a_question_if_the_turn_beside_it_is():
    note = Candidate(1, (), (2,), (), 0, 1, asks=Asks.NO, is_change=False, is_turn=True)
    other = note._replace(id=2, previous=(1,), next=())
    assert similarities({1: 0.2, 2: 0.8}, [note, other]) == {1: pytest.approx(0.5), 2: 0.8}
    loose = [each._replace(is_turn=False) for each in (note, other)]
    assert similarities({1: 0.2, 2: 0.8}, loose) == {1: 0.2, 2: 0.8}


def test_a_note_without_a_term_of_the_query_needs_a_cosine():
    assert fused({}, {1: MIN_COSINE - 0.01, 2: MIN_COSINE}).keys() == {2}


def test_a_newer_fact_comes_first_though_an_older_one_sounds_more_like_the_question(driver):
    remember(driver, "Marta lives in Paris", "Marta moved to Berlin", session=None)
    old, new = (int(note.id) for note in driver.run(notes.list_notes("ns")))
    query = RecallQuery.check("Where does Marta live?", explain=True)
    found = driver.run(notes.recall("ns", query, {old: 0.8, new: 0.3}))
    assert [int(note.id) for note in found] == [new, old]
    assert found[0].explanation["parts"]["newer"] > 0
    assert sum(found[0].explanation["parts"].values()) == pytest.approx(found[0].score, abs=1e-5)


def test_a_note_that_only_sounds_like_the_question_is_not_replaced(driver):
    remember(driver, "The rowing club meets at the old bridge", "The chess club moved to the library", session=None)
    old, new = (int(note.id) for note in driver.run(notes.list_notes("ns")))
    query = RecallQuery.check("Which club trains with oars, boats, paddles, sculls and a coxswain?")
    found = driver.run(notes.recall("ns", query, {old: 0.8, new: 0.3}))
    assert [int(note.id) for note in found] == [old, new]


def test_a_note_of_another_time_is_not_raised_by_its_similarity(open_driver):
    now = [datetime(2026, 3, 10, 9, tzinfo=UTC).timestamp()]
    driver = open_driver(clock=lambda: now[0])
    remember(driver, "Dinner with Ana", session=None)
    now[0] += 86_400
    remember(driver, "Dinner at the pier", session=None)
    other, wanted = (int(note.id) for note in driver.run(notes.list_notes("ns")))
    query = RecallQuery.check("Which zebras came to the dinner with the mayor on 2026-03-11?")
    by_words, by_meaning = (
        {int(note.id): note.score for note in driver.run(notes.recall("ns", query, nearest))}
        for nearest in ({}, {other: 0.9, wanted: 0.9})
    )
    assert by_meaning[other] == pytest.approx(by_words[other] ** CALIBRATION, abs=1e-5)
    assert by_meaning[wanted] > by_words[wanted] > by_words[other]


@pytest.mark.parametrize("ranking", ["fit", "confidence"])
def test_the_parts_of_an_explanation_add_up_to_the_score(driver, ranking):
    from scrubjay.validation import RANKINGS

    for text in ("Ana: What is the code of the garage?", "Ben: The garage code is 4471", "Ana: Thanks", "the garage"):
        driver.run(notes.remember("ns", NewNote.check(text, session="s")))
    ids = [int(note.id) for note in driver.run(notes.list_notes("ns"))]
    query = RecallQuery.check(
        "I was out in the rain all morning with the dog. Which garage code did Ben give?",
        ranking=RANKINGS[0] if ranking == "fit" else ranking,
        explain=True,
    )
    found = driver.run(notes.recall("ns", query, dict.fromkeys(ids, 0.5)))
    assert len(found) == 4
    for note in found:
        assert sum(note.explanation["parts"].values()) == pytest.approx(note.score, abs=1e-5)
        assert note.explanation["passage"] == "Which garage code did Ben give?"
    ben = next(note for note in found if "Ben" in note.content).explanation
    assert {"garage", "code"} <= ben["words"].keys()
    assert {"words", "neighbours", "speaker", "semantic"} <= ben["parts"].keys()


def test_notes_have_no_explanation_unless_asked_for(driver):
    driver.run(notes.remember("ns", NewNote.check("the garage code")))
    (note,) = driver.run(notes.recall("ns", RecallQuery.check("garage")))
    assert note.explanation is None
    assert "explanation" not in note.to_json()


def test_all_rows_of_a_term_are_read_up_to_the_limit(driver):
    """The answer is the oldest of 900 notes with the word: reading half as many rows would miss it."""
    driver.run(notes.remember("ns", NewNote.check("emu emu")))
    for start in range(0, 900, 100):
        for i in range(start, start + 100):
            driver.run(notes.remember("ns", NewNote.check(f"emu and {i} other creatures of the island")))
    assert driver.run(notes.recall("ns", RecallQuery.check("emu")))[0].content == "emu emu"


def remember(driver, *texts: str, session: str | None = "s") -> None:
    for text in texts:
        driver.run(notes.remember("ns", NewNote.check(text, session=session)))


def recall(driver, query: str, **options) -> list[str]:
    return [note.content for note in driver.run(notes.recall("ns", RecallQuery.check(query, **options)))]


@pytest.mark.parametrize("session", ["s", None])
def test_words_of_the_next_note_find_a_note(driver, session):
    remember(driver, "Ana: guess what we adopted", "Ben: a kitten!", session=session)
    assert recall(driver, "kitten") == ["Ben: a kitten!", "Ana: guess what we adopted"]


def test_loose_notes_are_neighbours_only_if_they_are_near_in_time(open_driver):
    now = [1_800_000_000.0]
    driver = open_driver(clock=lambda: now[0])
    remember(driver, "Visited grandpa in the clinic", session=None)
    now[0] += MAX_PAUSE_SECONDS + 1
    remember(driver, "Third floor, room 312", session=None)
    assert recall(driver, "clinic") == ["Visited grandpa in the clinic"]


def test_of_two_notes_that_state_the_same_the_newer_comes_first(open_driver):
    now = [1_800_000_000.0]
    driver = open_driver(clock=lambda: now[0])
    other = "Marta lives for the sea, mountains, old books, cheap wine and long talks with strangers on night trains"
    for text in ("Marta lives in Paris", "Marta lives in the east of Berlin", other):
        remember(driver, text, session=None)
        now[0] += 86_400
    assert recall(driver, "Where does Marta live?")[:2] == ["Marta lives in the east of Berlin", "Marta lives in Paris"]


def test_turns_of_a_conversation_do_not_replace_each_other(driver):
    remember(driver, "Ana: Marta lives in Paris", "Ben: She moved, Marta", session=None)
    assert recall(driver, "Where does Marta live?")[0] == "Ana: Marta lives in Paris"


def test_a_name_that_no_note_has_lowers_the_score(driver):
    remember(driver, "The opera in Verona was sold out")
    known, unknown = (
        driver.run(notes.recall("ns", RecallQuery.check(text)))[0].score
        for text in ("Who composed the opera rusalka?", "Who composed the opera Rusalka?")
    )
    assert unknown < known


@pytest.mark.parametrize("text", ["Please continue.", "Thanks, that was really helpful!"])
def test_talk_about_the_talk_scores_next_to_nothing(driver, text):
    remember(driver, "Please continue to water the plants, thanks, it was really helpful")
    assert driver.run(notes.recall("ns", RecallQuery.check(text)))[0].score < CONTEXT_THRESHOLD


def test_other_sentences_of_a_message_break_ties(driver):
    for name in ("Melanie", "Karim", "Olaf", *range(20)):  # the newest first, if all else is equal
        remember(driver, f"Cook {name} rice for dinner" if isinstance(name, str) else f"Item {name}", session=str(name))
    message = "Melanie comes to visit us for the whole evening. Which dinner should I cook for the big table?"
    assert recall(driver, message)[0] == "Cook Melanie rice for dinner"


def test_a_note_that_begins_with_a_label_is_no_turn_of_a_conversation(driver):
    products = [f"Product {number} costs {number + 10} euros" for number in range(60)]
    remember(driver, "Refund takes three days", "Temporary: office closed today", *products, session=None)
    assert recall(driver, "How long does a refund take?", threshold=CONTEXT_THRESHOLD) == ["Refund takes three days"]


def test_notes_that_follow_each_other_with_speakers_are_turns_of_a_conversation(driver):
    remember(driver, "Ana: guess what we adopted", "Ben: a kitten!", "the shop opens at nine", session=None)
    found = driver.run(notes.recall("ns", RecallQuery.check("kitten")))
    assert [note.content for note in found] == ["Ben: a kitten!", "Ana: guess what we adopted"]


def test_an_answer_has_more_of_a_turn_that_ends_in_a_question_than_of_a_statement(driver):
    remember(driver, "Ana: I made some tea. Do you like sport?", "Ben: Badminton on Sundays.", session="one")
    remember(driver, "Ana: I made some tea. You like sport!", "Ben: Football on Sundays.", session="two")
    scores = {note.content: note.score for note in driver.run(notes.recall("ns", RecallQuery.check("sport")))}
    assert scores["Ben: Badminton on Sundays."] > scores["Ben: Football on Sundays."]
    assert scores["Ana: I made some tea. You like sport!"] > scores["Ana: I made some tea. Do you like sport?"]
