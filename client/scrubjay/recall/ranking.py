"""The order of notes for a query.

BM25 over fields, with weights measured on long conversations: a note's own terms count fully, those of the two notes
before and after it in its session less. Where a turn is only a question, its terms count fully for the answer after it
and not at all for the turn before. A turn that ends in a question after other sentences counts a little less itself,
and more for the answer. A note by a speaker whom the query names counts half as much again, and so does one
of the time that the query asks about. A note that repeats what an older one stated comes before it. Otherwise
recency and frequency only break ties: as part of the score they made it worse.

A lexical score of 1 is that of a short note with every term of a passage of the query.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from scrubjay.recall.neighbours import NEIGHBOURS
from scrubjay.recall.query import LENGTH_PENALTY, SATURATION, QueryTerms
from scrubjay.recall.terms import Asks

PREVIOUS_WEIGHTS, NEXT_WEIGHTS = (0.5, 0.25), (0.3, 0.2)
"""The weight of a term in the neighbours of a note, the nearest first, where in the note itself it has 1."""
LOOSE_FACTOR = 0.4
"""The factor for neighbours of a note that is not a turn of a conversation: they may be about something else,
and alone do not make it fit."""
ANSWER_WEIGHTS = (1.0, *PREVIOUS_WEIGHTS[1:])
"""PREVIOUS_WEIGHTS for a note whose previous one is only a question: its terms are about the answer."""
BEFORE_QUESTION_WEIGHTS = (0.0, *NEXT_WEIGHTS[1:])
"""NEXT_WEIGHTS for a note whose next one is only a question: its terms are not about what was said before."""
QUESTION_FACTOR = 0.7
"""The factor for a note that is only a question and is followed by another: a query like it wants the answer."""
LAST_QUESTION_WEIGHTS = (0.65, *PREVIOUS_WEIGHTS[1:])
"""PREVIOUS_WEIGHTS for a note whose previous one ends in a question."""
LAST_QUESTION_FACTOR = 0.9
"""QUESTION_FACTOR for a note that ends in a question after other sentences."""
SPEAKER_FACTOR = 1.5
"""The factor for a note whose speaker the query names."""
SINGLE_WORD_FACTOR = 0.45
"""The factor for a note that has, with its neighbours, only one word of a passage that has several, unless it is a
name: it may well be about something else."""
TIME_FACTOR = 1.5
"""The factor for a note of the time that the query asks about."""
NEAR_EQUAL = 0.985
"""The part of an older note's score from which on a newer one comes before it: notes of equal terms that differ in
length by a word or two."""
CHANGE_OVERLAP = 0.45
"""The part of an older note's terms of the query from which on a newer note with words of change, such as "moved" or
"now", comes before it: "Marta moved to Berlin" has only the name of "Marta lives in Paris". Turns of a conversation
never replace each other: as a rule for them it found the first answer 5 to 8 % less often."""
MIN_REPLACED_SCORE = 0.4
"""The score from which on a note can be replaced: below, notes have little to do with the query, or each other."""
MIN_REPLACED_WORDS = 0.2
"""The same for its score by words alone, where a model makes the score higher: texts that only sound alike do not
replace each other."""
MAX_REPLACED = 10
"""Notes, the best, that newer ones are compared with."""
CONTEXT_WEIGHT = 0.1
"""The weight of the other passages of a message beside the one that a note fits best: they may explain it, as in
"Melanie comes to dinner. What should I cook?", and may be unrelated."""
MAX_NEAREST = 50
"""Notes without a term of the query that the semantic index may add to the candidates."""
MIN_COSINE = 0.25
"""The cosine from which a note without a term of the query is found; below, texts have nothing in common."""
UNRELATED_COSINE, EQUIVALENT_COSINE = 0.1, 0.8
"""The cosines that count as 0 and as 1: chosen for MiniLM on the evaluation sets. Other models may need others."""
SEMANTIC_WEIGHT = 0.5
"""What the semantic index can add to the score of a note that has no word of the query."""
LEXICAL_DOUBT = 2.0
"""The lexical score at which it can add half as much: where words fit well, they decide. Over the evaluation sets and
three conversations of LoCoMo none is answered worse with a model than without."""
NEIGHBOUR_SIMILARITY = 0.5
"""How far the similarity of a turn rises to that of the turn before or after it, if that is greater."""
CALIBRATION = 1.5
"""The power to which a score is raised where the semantic index took part, so that it means the same as a score by
words alone: of questions that have nothing to do with the notes, four in five stay below the same threshold."""
DAY = 86_400_000
"""Milliseconds."""

_NO_COUNTS: Mapping[int, float] = {}


class Candidate(NamedTuple):
    """A note as ranking sees it."""

    id: int
    previous: Sequence[int]
    """The notes before it in its session, the nearest first."""
    next: Sequence[int]
    speaker: Collection[int]
    """The terms of its speaker's name."""
    updated_at: int
    times: int
    asks: int
    """Of `Asks`: whether it is a question, or ends in one, that the next turn of the conversation answers."""
    is_change: bool
    """Whether it says that something is different from before."""
    is_turn: bool
    """Whether it is a turn of a conversation: it has a session, or it has a speaker and so has the note next to it."""


class SessionNeighbours:
    """Which notes follow each other in their sessions, as far as fragments of the sessions show it."""

    def __init__(self, fragments: Iterable[Sequence[int]]) -> None:
        self.notes: set[int] = set()
        self._previous: dict[int, int] = {}
        self._next: dict[int, int] = {}
        for fragment in fragments:
            self.notes.update(fragment)
            for one, other in pairwise(fragment):
                self._previous[other], self._next[one] = one, other

    def previous(self, note: int) -> list[int]:
        """The notes before a note whose terms count for it, the nearest first."""
        return _follow(self._previous, note)

    def next(self, note: int) -> list[int]:
        return _follow(self._next, note)


def _follow(links: Mapping[int, int], note: int) -> list[int]:
    found: list[int] = []
    while len(found) < NEIGHBOURS and (other := links.get(note)) is not None:
        found.append(other)
        note = other
    return found


class Ranked(NamedTuple):
    id: int
    score: float
    """From 0; above 1 until `limit_scores`, because notes that fit better than 1 says still have an order."""


class Occurrences(NamedTuple):
    """Where the terms of a query occur."""

    counts: Mapping[int, Mapping[int, float]]
    """For each note with any of them, how often it has each."""
    lengths: Mapping[int, int]
    """How many words those notes have in all."""


class Evidence(NamedTuple):
    """All that the lexical score of a candidate depends on, beside the candidate itself."""

    terms: QueryTerms
    occurrences: Occurrences
    speakers: frozenset[int]
    """The terms of all words of the query, which may name a speaker."""
    asks: Mapping[int, int]
    """The candidates that ask, and how."""


class Scored(NamedTuple):
    """A candidate with its score, and with its score by words alone."""

    score: float
    lexical: float
    candidate: Candidate


def rank(candidates: Sequence[Candidate], evidence: Evidence) -> list[Ranked]:
    """The candidates that have any term of the query, in themselves or their neighbours, best first."""
    scores = [(_lexical_score(candidate, evidence), candidate) for candidate in candidates]
    return _in_order([Scored(score, score, candidate) for score, candidate in scores if score > 0], evidence)


def _in_order(scored: Iterable[Scored], evidence: Evidence) -> list[Ranked]:
    """The best first, and a note that replaces an older one before it."""
    raised = [(score, each.candidate) for score, each in _raise_newer(scored, evidence)]
    raised.sort(key=lambda pair: (round(pair[0], 9), pair[1].updated_at, pair[1].times, pair[1].id), reverse=True)
    return [Ranked(candidate.id, score) for score, candidate in raised]


def limit_scores(ranked: Iterable[Ranked], *, is_fused: bool) -> list[Ranked]:
    """The scores as callers see them: at most 1 and, where the semantic index took part, calibrated."""
    power = CALIBRATION if is_fused else 1.0
    return [Ranked(id_, min(score, 1.0) ** power) for id_, score in ranked]


def _raise_newer(scored: Iterable[Scored], evidence: Evidence) -> list[tuple[float, Scored]]:
    """The candidates with their scores; one that replaces an older one gets at least its score."""
    best = sorted(scored, key=lambda each: -each.score)
    older = [each for each in best[:MAX_REPLACED] if _may_be_replaced(each)]
    return [(_raised(each, older, evidence), each) for each in best]


def _may_be_replaced(old: Scored) -> bool:
    is_found = old.score >= MIN_REPLACED_SCORE and old.lexical >= MIN_REPLACED_WORDS
    return is_found and not old.candidate.is_turn


def _raised(new: Scored, best: Sequence[Scored], evidence: Evidence) -> float:
    """The score of the best of these notes that a candidate replaces, or its own."""
    if not best or new.candidate.is_turn:
        return new.score
    older = (old.score for old in best if old.score > new.score and _replaces(new, old, evidence))
    return next(older, new.score)


def _replaces(new: Scored, old: Scored, evidence: Evidence) -> bool:
    """Whether a note is newer than another, and states the same or that it is different now."""
    is_same = new.lexical >= NEAR_EQUAL * old.lexical >= NEAR_EQUAL * MIN_REPLACED_SCORE
    return _is_newer(new.candidate, old.candidate, evidence) and (
        is_same or _changes(new.candidate, old.candidate, evidence)
    )


def _is_newer(new: Candidate, old: Candidate, evidence: Evidence) -> bool:
    """Whether a note is newer than another, and the query does not ask about the time of the other."""
    is_later = (new.updated_at, new.id) > (old.updated_at, old.id)
    return is_later and _time_score(old, evidence) <= _time_score(new, evidence)


def _changes(new: Candidate, old: Candidate, evidence: Evidence) -> bool:
    """Whether a note says that something is different from before, and has enough of an older one's terms."""
    if not new.is_change:
        return False
    counts, terms = evidence.occurrences.counts, evidence.terms
    before, after = (_best_values(counts.get(each.id, _NO_COUNTS), 0, terms) for each in (old, new))
    common = sum(min(value, after.get(term, 0.0)) for term, value in before.items())
    return common >= CHANGE_OVERLAP * sum(before.values()) > 0


def _lexical_score(candidate: Candidate, evidence: Evidence) -> float:
    counts = _counts_with_neighbours(candidate, evidence)
    length = evidence.occurrences.lengths.get(candidate.id, 0)
    score = _with_context(_passage_scores(counts, length, evidence.terms)) * _factor(candidate, evidence)
    time = _time_score(candidate, evidence) if evidence.terms.times else 0.0
    return score * TIME_FACTOR + time if time else score


def _time_score(candidate: Candidate, evidence: Evidence) -> float:
    """What a note is worth for the time it is of; 0 if that is not the one that the query asks about."""
    times = evidence.terms.times
    counts = evidence.occurrences.counts.get(candidate.id, _NO_COUNTS)
    return max((times[term].weight for term in times.keys() & counts.keys()), default=0.0) if times else 0.0


def _with_context(scores: Sequence[float]) -> float:
    """The score of the best passage, and a little of those of the others."""
    if len(scores) == 1:
        return scores[0]
    best = max(scores)
    return best + CONTEXT_WEIGHT * (sum(scores) - best)


def _factor(candidate: Candidate, evidence: Evidence) -> float:
    factor = _question_factor(candidate)
    return factor if evidence.speakers.isdisjoint(candidate.speaker) else factor * SPEAKER_FACTOR


def _question_factor(candidate: Candidate) -> float:
    if not (candidate.asks and candidate.next):
        return 1.0
    return QUESTION_FACTOR if candidate.asks == Asks.ONLY else LAST_QUESTION_FACTOR


def _counts_with_neighbours(candidate: Candidate, evidence: Evidence) -> dict[int, float]:
    """How often a candidate and its neighbours have each term; this and `_best_values` take most of the time."""
    known, asks = evidence.occurrences.counts, evidence.asks
    before, after = candidate.previous, candidate.next
    counts = dict(known.get(candidate.id, _NO_COUNTS))
    factor = 1.0
    if not candidate.is_turn:
        if not counts:
            return counts
        factor = LOOSE_FACTOR
    asked = asks.get(before[0], Asks.NO) if before else Asks.NO
    weights = PREVIOUS_WEIGHTS
    if asked:
        weights = ANSWER_WEIGHTS if asked == Asks.ONLY else LAST_QUESTION_WEIGHTS
    for note, weight in zip(before, weights, strict=False):
        for term, count in known.get(note, _NO_COUNTS).items():
            counts[term] = counts.get(term, 0.0) + factor * weight * count
    weights = BEFORE_QUESTION_WEIGHTS if after and asks.get(after[0]) == Asks.ONLY else NEXT_WEIGHTS
    for note, weight in zip(after, weights, strict=False):
        for term, count in known.get(note, _NO_COUNTS).items():
            counts[term] = counts.get(term, 0.0) + factor * weight * count
    return counts


def _passage_scores(counts: Mapping[int, float], length: int, terms: QueryTerms) -> list[float]:
    values = _best_values(counts, length, terms)
    return _covered(_totals(values, terms), values, terms)


def _totals(values: Mapping[tuple[int, int], float], terms: QueryTerms) -> list[float]:
    """The sum of the values of each passage, on the scale of scores."""
    scales = terms.scales
    totals = [0.0] * len(scales)
    for (passage, _), value in values.items():
        totals[passage] += value * scales[passage]
    return totals


def _covered(totals: Sequence[float], values: Iterable[tuple[int, int]], terms: QueryTerms) -> list[float]:
    """The sums, made smaller where a note has a single word of a passage of several; a name is enough."""
    passages = terms.passages
    words = [0] * len(totals)
    for number, term in values:
        if term > 0:
            words[number] += 2 if term in passages[number].names else 1
    return [
        total * SINGLE_WORD_FACTOR if words[number] < 2 and passages[number].has_words else total
        for number, total in enumerate(totals)
    ]


def _best_values(counts: Mapping[int, float], length: int, terms: QueryTerms) -> dict[tuple[int, int], float]:
    """The value of each passage's own terms; of a term and its synonyms the best: ten are not worth the word."""
    best: dict[tuple[int, int], float] = {}
    roles, half = terms.roles, SATURATION + LENGTH_PENALTY * length
    for term, count in counts.items():
        for passage, own, weight in roles.get(term, ()):
            value = weight * count / (count + half) if own == term or count < 1 else weight / (1 + half)
            key = passage, own
            if key not in best or value > best[key]:
                best[key] = value
    return best


def similarities(nearest: Mapping[int, float], candidates: Sequence[Candidate]) -> dict[int, float]:
    """The cosines of the candidates: those of turns of a conversation rise with those of their neighbours."""
    passed = _pass_to_answers(nearest, candidates)
    found = dict(passed)
    for turn in candidates:
        around = max((passed.get(note, 0.0) for note in (*turn.previous[:1], *turn.next[:1])), default=0.0)
        own = passed.get(turn.id, 0.0)
        if turn.is_turn and around > own:
            found[turn.id] = own + NEIGHBOUR_SIMILARITY * (around - own)
    return found


def _pass_to_answers(nearest: Mapping[int, float], candidates: Iterable[Candidate]) -> dict[int, float]:
    """The cosines of the candidates, where a turn that is only a question gives its own to the answer after it."""
    known = {candidate.id: candidate for candidate in candidates}
    passed = {id_: cosine for id_, cosine in sorted(nearest.items()) if id_ in known}
    for id_ in list(passed):
        answer = next(iter(known[id_].next), None)
        if known[id_].asks == Asks.ONLY and answer is not None and answer in known:
            passed[answer], passed[id_] = max(passed.get(answer, 0.0), passed[id_]), passed[id_] * QUESTION_FACTOR
    return passed


def fuse(
    ranked: Iterable[Ranked], nearest: Mapping[int, float], candidates: Iterable[Candidate], evidence: Evidence
) -> list[Ranked]:
    """The lexical scores, raised by what the semantic index adds, best first.

    A score never depends on which other notes were found, so that a threshold means the same for every query; but a
    note that replaces an older one gets at least its score, as by words alone.
    """
    lexical = dict(ranked)
    found = (each for each in candidates if each.id in lexical or nearest.get(each.id, 0.0) >= MIN_COSINE)
    fused = [_fused_with(lexical.get(each.id, 0.0), each, nearest, evidence) for each in found]
    return _in_order(fused, evidence)


def _fused_with(lexical: float, candidate: Candidate, nearest: Mapping[int, float], evidence: Evidence) -> Scored:
    return Scored(_fused(lexical, _cosine_of(candidate, nearest, evidence)), lexical, candidate)


def _cosine_of(candidate: Candidate, nearest: Mapping[int, float], evidence: Evidence) -> float:
    """Its similarity, or 0 for a note of another time than that which the query asks about."""
    if evidence.terms.times and not _time_score(candidate, evidence):
        return 0.0
    return nearest.get(candidate.id, 0.0)


def _fused(lexical: float, cosine: float) -> float:
    return lexical + SEMANTIC_WEIGHT * _similarity(cosine) / (1 + lexical / LEXICAL_DOUBT)


def _similarity(cosine: float) -> float:
    """0 for unrelated texts, 1 for texts that say the same."""
    return min(max((cosine - UNRELATED_COSINE) / (EQUIVALENT_COSINE - UNRELATED_COSINE), 0.0), 1.0)


def rank_by_confidence(ranked: Sequence[Ranked], candidates: Iterable[Candidate], now: int) -> list[Ranked]:
    """Kronvex's published formula: score × 0.6 + recency × 0.2 + frequency × 0.2."""
    known = {candidate.id: candidate for candidate in candidates}
    confident = [
        Ranked(id_, 0.6 * score + 0.2 * _recency(known[id_], now) + 0.2 * _frequency(known[id_]))
        for id_, score in ranked
    ]
    return sorted(confident, key=lambda each: (each.score, each.id), reverse=True)


def explain(
    candidate: Candidate,
    evidence: Evidence,
    lexical: float,
    nearest: Mapping[int, float],
    score: float,
    now: int | None,
) -> dict[str, Any]:
    """How a candidate's score came about: the passage that it fits best, the words of it that it has, and parts.

    The values of `parts` add up to the score: the note's own words, those of its neighbours, its having only one of
    several words, the other passages of the query, its being only a question, its speaker, its time, its being newer
    than a note that it replaces, the semantic index, the cap at 1, and the calibration where the semantic index took
    part. `lexical` is the score that `rank` gave, `score` that of `fuse`, or the same without a model. With `now` it is
    the score of the ranking "confidence", which has parts for recency and frequency.
    """
    terms, length = evidence.terms, evidence.occurrences.lengths.get(candidate.id, 0)
    values = _best_values(evidence.occurrences.counts.get(candidate.id, _NO_COUNTS), length, terms)
    around = _best_values(_counts_with_neighbours(candidate, evidence), length, terms)
    totals = _totals(around, terms)
    scores = _covered(totals, around, terms)
    best = scores.index(max(scores))
    passage, scale = terms.passages[best], terms.scales[best]
    words = {passage.words[term]: value * scale for (number, term), value in values.items() if number == best}
    parts = {"words": sum(words.values())}
    parts["neighbours"] = totals[best] - parts["words"]
    parts["single word"] = scores[best] - totals[best]
    parts["context"] = _with_context(scores) - scores[best]
    parts["question"] = sum(parts.values()) * (_question_factor(candidate) - 1)
    parts["speaker"] = (
        sum(parts.values()) * (SPEAKER_FACTOR - 1) * (not evidence.speakers.isdisjoint(candidate.speaker))
    )
    time = _time_score(candidate, evidence)
    parts["time"] = time + sum(parts.values()) * (TIME_FACTOR - 1) * bool(time)
    parts["semantic"] = _fused(lexical, _cosine_of(candidate, nearest, evidence)) - lexical
    parts["newer"] = score - sum(parts.values())
    parts["cap"] = min(1 - score, 0.0)
    (limited,) = limit_scores([Ranked(candidate.id, score)], is_fused=bool(nearest))
    parts["calibration"] = limited.score - sum(parts.values())
    if now is not None:
        parts["scale"] = -0.4 * sum(parts.values())
        parts |= {"recency": 0.2 * _recency(candidate, now), "frequency": 0.2 * _frequency(candidate)}
    return {"passage": passage.text, "words": _rounded(words), "parts": _rounded(parts)}


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Without those that are 0."""
    rounded = {name: round(value, 6) for name, value in values.items()}
    return {name: value for name, value in rounded.items() if value}


def _recency(candidate: Candidate, now: int) -> float:
    """1 for a new note, a half after 30 days, then soon 0."""
    days = max(now - candidate.updated_at, 0) / DAY
    return 1 / (1 + math.exp(min((days - 30) / 7, 700)))


def _frequency(candidate: Candidate) -> float:
    """On a log scale, 1 for a note that was remembered a hundred times."""
    return min(math.log1p(candidate.times) / math.log1p(100), 1.0)
