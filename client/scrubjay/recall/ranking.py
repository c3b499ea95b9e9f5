"""The order of notes that share words with a question.

BM25 over fields, as measured on long conversations: a note's own words count fully, those of the two notes before
and after it in the session less. Only where a turn does nothing but ask, its words go to the answer in full and to
what was before not at all. What was said by someone whom the question names counts half as much again. Recency and
frequency only break ties: as part of the score they hurt.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

PREVIOUS, NEXT = (0.5, 0.25), (0.3, 0.2)
"""What a word counts in the neighbours of a note, the nearest first; in the note itself it counts 1."""
LENDING = len(PREVIOUS)
"""How many neighbours lend their words, on either side."""
ANSWERING, BEFORE_QUESTION = (1.0, *PREVIOUS[1:]), (0.0, *NEXT[1:])
"""The same where the nearest only asks: then its words are about the answer, and not about what was before."""
ASKING = 0.7
"""The factor for a note that only asks and is followed by another: who asks the same wants what came next."""
SPEAKER = 1.5
"""The factor for a note whose speaker the question names."""
BEGINNING = 0.3
"""What the beginning of a word counts, beside the word itself."""
SYNONYM = 0.5
"""What a word counts that may stand for the one asked for; so little that the word itself always says more."""
WORDS, FITTING = 0.5, 0.2
"""What words count where there is a model, too, and how much more if they fit in full; the meaning counts the rest."""
NEAREST = 50
"""Notes that meaning alone may put forward."""
SATURATION = 0.9
LENGTH_PENALTY = 0.012
"""BM25 as count / (count + SATURATION + LENGTH_PENALTY × length): its k1 is 1.2, its b .25, at 25 words."""
DAY = 86_400_000
"""Milliseconds."""


class Candidate(NamedTuple):
    """What ranking needs to know of a note."""

    id: int
    previous: Sequence[int]
    """Those before it in its session that may matter, the nearest first."""
    next: Sequence[int]
    speaker: Collection[int]
    """The words of the name of whoever said it, as numbers."""
    updated_at: int
    times: int
    asks: bool
    """Whether it only asks, as turns of a conversation do that are answered in the next."""


class Beside:
    """Which notes stand side by side in their sessions, as far as is known from pieces of those."""

    def __init__(self, pieces: Iterable[Sequence[int]]) -> None:
        self.notes: set[int] = set()
        self._before: dict[int, int] = {}
        self._after: dict[int, int] = {}
        for piece in pieces:
            self.notes.update(piece)
            for one, other in pairwise(piece):
                self._before[other], self._after[one] = one, other

    def before(self, note: int) -> list[int]:
        """Those before a note that lend it their words, the nearest first."""
        return _follow(self._before, note)

    def after(self, note: int) -> list[int]:
        return _follow(self._after, note)


def _follow(steps: Mapping[int, int], note: int) -> list[int]:
    found: list[int] = []
    while len(found) < LENDING and note in steps:
        note = steps[note]
        found.append(note)
    return found


class Ranked(NamedTuple):
    id: int
    score: float


class Sought(NamedTuple):
    """What a question looks for."""

    weights: Mapping[int, float]
    """What each word says, those that may stand for another among them."""
    instead: Mapping[int, int]
    """For which word of the question a synonym stands."""
    named: frozenset[int]
    """All words of the question, to find speakers by."""

    def ideal(self) -> float:
        """The score of a short note with every word of the question."""
        return sum(each for word, each in self.weights.items() if word not in self.instead) * _saturated(1, 0) or 1.0


class Occurrences(NamedTuple):
    """Where the words of a question are."""

    counts: Mapping[int, Mapping[int, float]]
    """For each note that has any, how often it has each word."""
    lengths: Mapping[int, int]
    """How many words those notes have in all."""


_NOTHING: Mapping[int, float] = {}


def weight(total: int, notes_with_word: int) -> float:
    """The rarer a word, the more it says."""
    return math.log(1 + (max(total, notes_with_word) - notes_with_word + 0.5) / (notes_with_word + 0.5))


def rank(candidates: Sequence[Candidate], occurrences: Occurrences, sought: Sought) -> list[Ranked]:
    """The candidates, best first; a score of 1 is a short note with every word of the question."""
    ideal, asking = sought.ideal(), {candidate.id for candidate in candidates if candidate.asks}
    scored = [(_fit(candidate, occurrences, sought, asking) / ideal, candidate) for candidate in candidates]
    scored.sort(key=lambda pair: (round(pair[0], 9), pair[1].updated_at, pair[1].times, pair[1].id), reverse=True)
    return [Ranked(candidate.id, min(score, 1.0)) for score, candidate in scored if score > 0]


def lend_to_answers(similar: Mapping[int, float], candidates: Iterable[Candidate]) -> dict[int, float]:
    """How alike the candidates are to a question; a turn that asks much the same passes that on to its answer."""
    known = {candidate.id: candidate for candidate in candidates}
    lent = {id_: cosine for id_, cosine in sorted(similar.items()) if id_ in known}
    for id_ in list(lent):
        answer = next(iter(known[id_].next), None)
        if known[id_].asks and answer is not None and answer in known:
            lent[answer], lent[id_] = max(lent.get(answer, 0.0), lent[id_]), lent[id_] * ASKING
    return lent


def fuse(ranked: Sequence[Ranked], similar: Mapping[int, float]) -> list[Ranked]:
    """Words and meaning, each stretched to what was found, and scaled to the better score that either gave."""
    if not ranked or not similar:
        return sorted((*ranked, *(Ranked(*each) for each in similar.items())), key=lambda each: -each.score)
    by_words, by_meaning = _stretched(dict(ranked)), _stretched(similar)
    top = max([*dict(ranked).values(), *similar.values()], default=0.0)
    share = WORDS + FITTING * max(dict(ranked).values(), default=0.0)
    fused = [
        Ranked(id_, top * (share * by_words.get(id_, 0.0) + (1 - share) * by_meaning.get(id_, 0.0)))
        for id_ in dict.fromkeys([*by_words, *by_meaning])
    ]
    return sorted(fused, key=lambda each: (each.score, each.id), reverse=True)


def _stretched(scores: Mapping[int, float]) -> dict[int, float]:
    """From the least, which counts a little, to the most, which counts 1."""
    if not scores:
        return {}
    least, most = min(scores.values()), max(scores.values())
    return {id_: (score - least + 0.01) / (most - least + 0.01) for id_, score in scores.items()}


def by_confidence(ranked: Sequence[Ranked], candidates: Iterable[Candidate], now: int) -> list[Ranked]:
    """Kronvex's published formula: fit × .6 + recency × .2 + frequency × .2."""
    known = {candidate.id: candidate for candidate in candidates}
    confident = [
        Ranked(id_, 0.6 * score + 0.2 * _recency(known[id_], now) + 0.2 * _frequency(known[id_]))
        for id_, score in ranked
    ]
    return sorted(confident, key=lambda each: (each.score, each.id), reverse=True)


def _fit(candidate: Candidate, occurrences: Occurrences, sought: Sought, asking: Container[int]) -> float:
    counts = dict(occurrences.counts.get(candidate.id, _NOTHING))
    is_answer = candidate.previous and candidate.previous[0] in asking
    is_before_question = candidate.next and candidate.next[0] in asking
    before = zip(candidate.previous, ANSWERING if is_answer else PREVIOUS, strict=False)
    after = zip(candidate.next, BEFORE_QUESTION if is_before_question else NEXT, strict=False)
    for note, share in chain(before, after):
        for word, count in occurrences.counts.get(note, _NOTHING).items():
            counts[word] = counts.get(word, 0.0) + share * count
    score = _told(counts, occurrences.lengths.get(candidate.id, 0), sought)
    if candidate.asks and candidate.next:
        score *= ASKING
    return score if sought.named.isdisjoint(candidate.speaker) else score * SPEAKER


def _told(counts: Mapping[int, float], length: int, sought: Sought) -> float:
    """Of a word and all that may stand for it, only the best counts: ten synonyms are not worth the word."""
    best: dict[int, float] = {}
    weights, instead = sought.weights, sought.instead
    for word, count in counts.items():
        asked = instead.get(word, word)
        told = weights[word] * _saturated(count if asked == word else min(count, 1.0), length)
        if told > best.get(asked, 0.0):
            best[asked] = told
    return sum(best.values())


def _saturated(count: float, length: int) -> float:
    return count / (count + SATURATION + LENGTH_PENALTY * length)


def _recency(candidate: Candidate, now: int) -> float:
    """1 for what is new, a half after 30 days, then soon nothing."""
    days = max(now - candidate.updated_at, 0) / DAY
    return 1 / (1 + math.exp(min((days - 30) / 7, 700)))


def _frequency(candidate: Candidate) -> float:
    """On a log scale, 1 for what was remembered a hundred times."""
    return min(math.log1p(candidate.times) / math.log1p(100), 1.0)
