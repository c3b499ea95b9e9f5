"""Query analysis: a message split into passages, and the weight of each term in each of them.

A message may be a question of five words or a page of small talk with a question in it. Each passage is searched for
as if it had been asked alone, and a note is scored by the passage that it fits best, so that unrelated sentences
neither hide an answer nor make its score smaller.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import NamedTuple

from scrubjay.recall import word_lists
from scrubjay.recall.terms import (
    MAX_WORD_CHARS,
    PREFIX_CHARS,
    QUESTION_MARKS,
    UNSPACED,
    count_affixes,
    prefix_term,
    query_words,
    split_words,
    term_of,
    time_term,
)
from scrubjay.recall.times import Times, find_times

MAX_QUERY_CHARS = 20_000
"""Characters of a message that are searched for, from its end: there is the question, if there is one."""
MAX_PASSAGES = 16
"""Passages of a message that are searched for, about 150 words; 100 words cost about five times as much as 5."""
WHOLE_WORDS = 6
"""Words, without stop words, up to which a message is one passage: its sentences explain each other."""
MAX_PASSAGE_WORDS = 24
"""Words of a passage, or pairs of characters; a longer sentence is searched for as windows that overlap by half."""
MIN_PASSAGE_WORDS = 3
"""Words, without stop words, that make a passage; a sentence with fewer is joined with the next."""
TERMS_PER_UNSPACED_WORD = 4
"""Terms that a word of a script without spaces is split into: two characters, and two pairs."""
MAX_PASSAGE_TERMS = 96
"""Terms of a passage that occur in the namespace and are searched for, the rarest first."""
MAX_SYNONYMS = 64
"""Terms that are searched for in place of those of a passage."""
MAX_RELATED = 24
"""The same for terms of related words, each of which takes about as long as a word of the query."""
PREFIX_WEIGHT = 0.3
"""The weight of a prefix or suffix, where the word itself has 1."""
SYNONYM_WEIGHT = 0.5
"""The weight of a synonym, where the word itself has 1: the word always says more."""
RELATED_WEIGHT = 0.3
"""The weight of a related word, such as a painting where the query has art: 0.2 and 0.5 found less."""
SATURATION = 0.9
LENGTH_PENALTY = 0.012
"""BM25 as count / (count + SATURATION + LENGTH_PENALTY × length): its k1 is 1.2, its b 0.25, at 25 words."""
STATEMENT_FACTOR = 0.22
"""The factor for the other sentences of a message that asks a question: small talk has words of many notes. Half of
SINGLE_WORD_FACTOR, so that a note with one word of the question comes before those that fit the small talk."""

OPEN_TIME_SCORE = 0.5
"""The score of a note of the time that a query asks about and says no more."""
FILLER_FACTOR = 0.1
"""The factor for a passage that is only talk about the talk itself, such as "Please continue."."""
UNKNOWN_NAME_FACTOR = 2.0
"""How much a name that no note has lowers the scores of its passage, where any other word has 1: the question is about
something else."""
UNKNOWN_PAIR_FACTOR = 0.3
"""The same for a pair of characters in a script without spaces, which may be the end of one word and the start of
another."""
OTHER_FORM_FACTOR = 0.3
"""The same for a word of which notes have only the first letters: it may well be another form of theirs."""
LIGHT_VERB_FACTOR = 0.6
"""The factor for the weight of a verb such as take or get: its object says what a question is about."""
HIRAGANA_FACTOR = 0.3
"""The factor for the weight of hiragana: in Japanese they are mostly particles and endings, which all notes have."""
TIME_SCORE = 0.1
"""What the time alone adds to the score of a note where the query has other words: less than any useful threshold."""

_NAME = re.compile(r"(?<=[\w,;:\"'’“] )[A-Z]\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?…؟।])\s+|(?<=[。！？])|\n+")
_HIRAGANA = re.compile(r"[\u3040-\u309f]+")
_TOKEN = re.compile(rf"[{UNSPACED}]{{1,2}}|[^\s{UNSPACED}]+")


class Passage(NamedTuple):
    """A part of a message that is searched for by itself."""

    text: str
    words: Mapping[int, str]
    """Its terms, each with the word or affix that it stands for."""
    synonym_of: Mapping[int, int]
    """Terms to search for in place of its own, and which of its own."""
    names: frozenset[int] = frozenset()
    """Those of its terms that are written as names are."""
    has_words: bool = False
    """Whether it has more than one word."""
    is_filler: bool = False
    """Whether it is only talk about the talk itself, such as "Thanks, that was helpful."."""
    times: Sequence[int] = ()
    """The terms of the days and months that it asks about."""
    is_open: bool = False
    """Whether it asks for nothing but a time, such as "What happened on Monday?"."""
    related_to: Mapping[int, int] = MappingProxyType({})
    """Terms of words that are only related to its own, as `widen` finds them, and to which of its own."""


class Role(NamedTuple):
    """What a term does in a passage."""

    passage: int
    term: int
    """The passage's own term: the same, or the one that this is a synonym of."""
    weight: float


class QueryTerms(NamedTuple):
    """A query as its terms: what to look up in the index, and what each find is worth."""

    passages: Sequence[Passage]
    roles: Mapping[int, Sequence[Role]]
    """For each term that occurs in the namespace its roles, the heaviest term first."""
    counts: Mapping[int, int]
    """In how many notes each of them occurs."""
    scales: Sequence[float]
    """For each passage the factor that turns the sum of its weights into a score of at most about 1."""
    total: int
    """Notes in the namespace."""
    times: Mapping[int, Role]
    """The terms of the days and months that the query asks about, each with what a note of that time is worth."""

    def searched(self) -> Iterator[tuple[int, list[tuple[int, float]]]]:
        """Each term with its passages and its scaled weight in them, the heaviest first, times last."""
        for term, roles in self.roles.items():
            yield term, [(role.passage, role.weight * self.scales[role.passage]) for role in roles]
        for term, role in self.times.items():
            yield term, [(role.passage, role.weight)]


def split_passages(message: str) -> list[str]:
    """The passages of a message, those that ask first, the last ones first; a short message is one passage."""
    message = message[-MAX_QUERY_CHARS:]
    if count_content_words(message) <= WHOLE_WORDS:
        return [message]
    passages = [window for sentence in _join_short(_sentences(message)) for window in _windows(sentence)]
    passages.reverse()
    passages.sort(key=lambda passage: not has_question_mark(passage))
    return passages[:MAX_PASSAGES] or [message]


def find_questions(passages: Sequence[str]) -> set[int]:
    """Which passages ask: those with a question mark or, in a message without any, those that start like a question."""
    marked = {number for number, passage in enumerate(passages) if has_question_mark(passage)}
    return marked or {number for number, passage in enumerate(passages) if _starts_like_question(passage)}


def has_question_mark(passage: str) -> bool:
    return passage.rstrip().endswith(QUESTION_MARKS)


def _starts_like_question(passage: str) -> bool:
    if passage.isascii() or not any(part in passage for part in word_lists.question_parts()):
        start = () if passage.startswith("…") else split_words(passage[:MAX_WORD_CHARS])[:1]
        return not word_lists.question_words().isdisjoint(start)
    return True


def _sentences(message: str) -> Iterator[str]:
    return filter(None, map(str.strip, _SENTENCE_END.split(message)))


def _join_short(sentences: Iterable[str]) -> list[str]:
    """Each sentence that says little together with the next, or with the one before if it is the last."""
    joined: list[str] = []
    start = ""
    for sentence in sentences:
        start = f"{start} {sentence}" if start else sentence
        if has_question_mark(sentence) or count_content_words(start) >= MIN_PASSAGE_WORDS:
            joined.append(start)
            start = ""
    if start and joined:
        joined[-1] = f"{joined[-1]} {start}"
    return joined


def _windows(sentence: str) -> Iterator[str]:
    tokens = list(_TOKEN.finditer(sentence))
    if len(tokens) <= MAX_PASSAGE_WORDS:
        yield sentence
        return
    for first in range(0, len(tokens) - MAX_PASSAGE_WORDS // 2, MAX_PASSAGE_WORDS // 2):
        last = min(first + MAX_PASSAGE_WORDS, len(tokens)) - 1
        window = sentence[tokens[first].start() : tokens[last].end()]
        yield f"…{window}" if first else window


def count_content_words(text: str) -> float:
    """About how many words a text has beside stop words, in any script."""
    return sum(1 if word.isascii() else 1 / TERMS_PER_UNSPACED_WORD for word in query_words(text).values())


def analyze(text: str, now: datetime | None = None) -> Passage:
    """A passage with its terms, their synonyms and, if it is asked `now`, its times, whose words are no terms then."""
    labels, rest = times = find_times(text, now) if now else Times(frozenset(), text)
    terms = tuple(map(time_term, sorted(labels, reverse=True)))
    if times.is_open:
        return Passage(text, {}, {}, times=terms, is_open=True)
    words = query_words(rest)
    affixes = {prefix_term(word): _prefix_of(word) for word in words.values() if len(word) > PREFIX_CHARS}
    count, is_filler = len(words), all(word in word_lists.fillers() for word in words.values())
    for affix in count_affixes(rest):
        words[affix] = affixes.get(affix, "…")
    return Passage(text, words, _synonyms(words), _names(text), count > 1, is_filler, terms)


def widen(passage: Passage) -> Passage:
    """The same passage with its related words, of each of its words the nearest first."""
    from scrubjay.recall.synonyms import related  # noqa: PLC0415 - `remember` does not need the table

    words = ((term, word) for term, word in passage.words.items() if term > 0)
    nearest = zip_longest(*([(other, term) for other in related(word)] for term, word in words))
    known = passage.words.keys() | passage.synonym_of.keys()
    found: dict[int, int] = {}
    for other, term in filter(None, chain.from_iterable(nearest)):
        if other not in known and len(found) < MAX_RELATED:
            found.setdefault(other, term)
    return passage._replace(related_to=found)


def _prefix_of(word: str) -> str:
    """How a passage writes the first letters of a longer word."""
    return f"{word[:PREFIX_CHARS]}…"


def _names(text: str) -> frozenset[int]:
    """The terms of capitalized words inside of sentences; none in German, where every noun is one."""
    names = frozenset(term_of(word.lower()) for word in _NAME.findall(text) if word.isascii())
    return names if 2 * len(names) <= count_content_words(text) else frozenset()


def _synonyms(words: Mapping[int, str]) -> dict[int, int]:
    from scrubjay.recall.synonyms import synonyms  # noqa: PLC0415 - `remember` does not need the table

    found: dict[int, int] = {}
    for term in words:
        for other in synonyms(term):
            if other not in words and len(found) < MAX_SYNONYMS:
                found.setdefault(other, term)
    return found


def inverse_frequency(total: int, count: int) -> float:
    """BM25's weight of a term that `count` of `total` notes have: the rarer, the more."""
    return math.log(1 + (max(total, count) - count + 0.5) / (count + 0.5))


def weigh(passages: Sequence[Passage], counts: Mapping[int, int], total: int) -> QueryTerms:
    """The terms of all passages with their weights, given in how many of the namespace's notes each occurs.

    Terms that no note has are not searched for, but make the scores of their passage smaller.
    """
    roles: dict[int, list[Role]] = {}
    ideals = []
    for number, passage in enumerate(passages):
        weights = {term: _weight(term, word, counts.get(term, 0), total) for term, word in passage.words.items()}
        known = sorted((term for term in weights if counts.get(term)), key=lambda term: counts[term])
        for term in known[:MAX_PASSAGE_TERMS]:
            roles.setdefault(term, []).append(Role(number, term, weights[term]))
        for others, factor in ((passage.synonym_of, SYNONYM_WEIGHT), (passage.related_to, RELATED_WEIGHT)):
            for other, term in others.items():
                if counts.get(other):
                    weight = factor * min(inverse_frequency(total, counts[other]), weights[term])
                    roles.setdefault(other, []).append(Role(number, term, weight))
        ideals.append(_ideal(passage, weights, counts))
    heaviest = {term: roles[term] for term in sorted(roles, key=lambda term: -max(role.weight for role in roles[term]))}
    asking = find_questions([passage.text for passage in passages]) or set(range(len(passages)))
    scales = _scales(ideals, asking)
    return QueryTerms(passages, heaviest, counts, scales, total, _times(passages, asking, counts))


def _times(passages: Sequence[Passage], asking: Container[int], counts: Mapping[int, int]) -> dict[int, Role]:
    return {
        term: Role(number, term, OPEN_TIME_SCORE if passage.is_open else TIME_SCORE)
        for number, passage in enumerate(passages)
        if number in asking
        for term in passage.times
        if counts.get(term)
    }


def _ideal(passage: Passage, weights: Mapping[int, float], counts: Mapping[int, int]) -> float:
    """The sum of a short note that has every term of a passage."""
    known = {word for term, word in passage.words.items() if counts.get(term)}
    total = sum(weight * _unknown_factor(passage, term, known) for term, weight in weights.items())
    return total / (1 + SATURATION) / (FILLER_FACTOR if passage.is_filler else 1.0) or 1.0


def _unknown_factor(passage: Passage, term: int, known: Container[str]) -> float:
    """How much a term that no note has lowers the scores of its passage, where any other has 1."""
    word = passage.words[term]
    if word in known:
        return 1.0
    if term in passage.names:
        return UNKNOWN_NAME_FACTOR
    if _is_pair(word):
        return UNKNOWN_PAIR_FACTOR
    return OTHER_FORM_FACTOR if _prefix_of(word) in known else 1.0


def _is_pair(word: str) -> bool:
    return not word.isascii() and len(word) <= 2


def _weight(term: int, word: str, count: int, total: int) -> float:
    return inverse_frequency(total, count) * _word_factor(term, word)


def _word_factor(term: int, word: str) -> float:
    """How much a word counts beside others that are as rare."""
    if term < 0:
        return PREFIX_WEIGHT
    if word in word_lists.light_verbs():
        return LIGHT_VERB_FACTOR
    return HIRAGANA_FACTOR if _HIRAGANA.fullmatch(word) else 1.0


def _scales(ideals: Sequence[float], asking: Collection[int]) -> list[float]:
    """A passage counts by how much it says, and a statement less where the message also asks a question."""
    most = max(ideals[number] for number in asking)
    return [(1.0 if number in asking else STATEMENT_FACTOR) / max(ideal, most) for number, ideal in enumerate(ideals)]
