"""Query analysis: passages, their terms and weights."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubjay.recall import query
from scrubjay.recall.query import (
    MAX_PASSAGE_WORDS,
    MAX_PASSAGES,
    analyze,
    find_questions,
    inverse_frequency,
    split_passages,
    weigh,
    widen,
)
from scrubjay.recall.terms import prefix_term, term_of

NOW = datetime(2026, 5, 14, tzinfo=UTC)
SMALL_TALK = "The weather was dreadful again this morning. I spilled half of my cup over the keyboard."


def test_a_short_message_is_one_passage():
    assert split_passages("Melanie visits. What does she eat?") == ["Melanie visits. What does she eat?"]


def test_a_long_message_is_split_into_sentences_with_the_question_first():
    passages = split_passages(f"{SMALL_TALK} What is the garage code? Thanks for all your patient help today.")
    assert passages[0] == "What is the garage code?"
    assert len(passages) == 4


def test_a_sentence_that_says_little_is_joined_with_the_next():
    passages = split_passages(f"{SMALL_TALK} Hi. The dog slept through the long storm.")
    assert "Hi. The dog slept through the long storm." in passages


def test_chinese_sentences_need_no_spaces():
    passages = split_passages("今天的天气真是变化无常。路上堵车堵了整整一个小时。车库的密码是多少？")
    assert passages[0] == "车库的密码是多少？"


def test_a_sentence_without_end_is_searched_in_windows():
    words = [f"word{i}" for i in range(100)]
    passages = split_passages(" ".join(words))
    assert all(len(passage.split()) <= MAX_PASSAGE_WORDS for passage in passages)
    assert {word for passage in passages for word in passage.strip("…").split()} == set(words)
    assert any("word50 word51 word52 word53 word54" in passage for passage in passages)


@given(st.text())
def test_any_text_has_passages_and_never_too_many(text):
    assert 1 <= len(split_passages(text)) <= MAX_PASSAGES


@pytest.mark.parametrize(
    ("passages", "expected"),
    [
        (["I am here.", "Where is it?"], {1}),
        (["I am here.", "where is it"], {1}),
        (["Is it?", "where is it"], {0}),
        (["今天很热。", "密码是多少"], {1}),
        (["I am here.", "It is late."], set()),
    ],
)
def test_questions_are_found_by_their_mark_or_their_first_word(passages, expected):
    assert find_questions(passages) == expected


def test_terms_that_no_note_has_are_not_searched_but_lower_the_score():
    known = term_of("garage")
    alone, with_unknown = (weigh([analyze(text, NOW)], {known: 1}, 10) for text in ("garage", "garage zwolka"))
    assert list(alone.roles) == list(with_unknown.roles) == [known]
    assert with_unknown.scales[0] < alone.scales[0]


def test_a_word_of_which_notes_have_the_first_letters_lowers_the_score_less_than_an_unknown_one(monkeypatch):
    question, counts = analyze("garage ключи", NOW), {term_of("garage"): 1, prefix_term("ключи"): 1}
    other_form = weigh([question], counts, 10)
    monkeypatch.setattr(query, "OTHER_FORM_FACTOR", 1.0)
    assert other_form.scales[0] > weigh([question], counts, 10).scales[0]


def test_hiragana_weigh_less_than_other_characters():
    terms = weigh([analyze("猫の餌", NOW)], dict.fromkeys(map(term_of, "猫の餌"), 1), 10)
    particle, noun = terms.roles[term_of("の")][0], terms.roles[term_of("猫")][0]
    assert 0 < particle.weight < noun.weight


def test_a_question_is_scaled_as_if_it_had_been_asked_alone():
    question, other = (
        analyze("What is the garage code?", NOW),
        analyze("The old dog slept through the long storm.", NOW),
    )
    counts = {term_of("garage"): 2, term_of("dog"): 1}
    alone, both = weigh([question], counts, 10), weigh([question, other], counts, 10)
    assert both.scales[0] == alone.scales[0] > both.scales[1]


def test_a_synonym_weighs_less_than_the_word_itself():
    terms = weigh([analyze("kids", NOW)], {term_of("kids"): 3, term_of("children"): 1}, 10)
    own, synonym = terms.roles[term_of("kids")][0], terms.roles[term_of("children")][0]
    assert synonym.term == own.term
    assert 0 < synonym.weight < own.weight


def test_a_related_word_weighs_less_than_a_synonym():
    counts = {term_of("art"): 3, term_of("sculpture"): 1, term_of("kids"): 3, term_of("children"): 1}
    terms = weigh([widen(analyze("art", NOW)), analyze("kids", NOW)], counts, 10)
    related, synonym = terms.roles[term_of("sculpture")][0], terms.roles[term_of("children")][0]
    assert related.term == term_of("art")
    assert 0 < related.weight < synonym.weight


def test_every_word_gets_related_words_before_one_gets_many(monkeypatch):
    monkeypatch.setattr(query, "MAX_RELATED", 3)
    related = widen(analyze("camp museum river", NOW)).related_to
    assert sorted(related.values()) == sorted(map(term_of, ("camp", "museum", "river")))


def test_a_rare_term_weighs_more():
    assert inverse_frequency(100, 1) > inverse_frequency(100, 50) > inverse_frequency(100, 100) > 0
