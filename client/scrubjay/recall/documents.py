"""Search in texts that have no index: a fast test for candidates, then the scores of recall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from scrubjay.recall.query import LENGTH_PENALTY, SATURATION, Passage, weigh
from scrubjay.recall.terms import count_affixes, count_terms, normalize, stem_of

MIN_NEEDLE_CHARS = 3
"""Characters that a word and its stem must have in common to be searched for in place of the word."""
MAX_NEEDLES = 32
"""Words of a query that are searched for, the longest first: each of them is looked for in every text."""
MAX_SCORED_CHARS = 2048
"""Characters of a text whose words are counted for its score, which takes half a millisecond. Of a longer text they are
those around the words of the query."""


def needles_of(passages: Sequence[Passage]) -> list[str]:
    """What the forms of each word of a query have in common, such as "databas" for database and databases."""
    words = {word for passage in passages for term, word in passage.words.items() if term > 0}
    longest = sorted(words, key=lambda word: (-len(word), word))[:MAX_NEEDLES]
    return [_common_start(word, stem_of(word)) for word in longest]


def _common_start(word: str, stem: str) -> str:
    """The letters that a word and its stem start with; the word itself if they are too few."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(word, stem, strict=False))
    start = "".join(letter for letter, _ in same)
    return start if len(start) >= MIN_NEEDLE_CHARS else word


def count_needles(text: str, needles: Sequence[str]) -> int:
    """How many of the needles a text contains, whatever case and accents it has."""
    plain = text.lower() if text.isascii() else normalize(text)
    return sum(needle in plain for needle in needles)


def excerpt(text: str, needles: Sequence[str]) -> str:
    """A short text as it is; of a long one, what surrounds the first occurrence of each needle."""
    if len(text) <= MAX_SCORED_CHARS:
        return text
    plain, reach = normalize(text), MAX_SCORED_CHARS // (2 * len(needles))
    starts = (max(at - reach, 0) for needle in needles if (at := plain.find(needle)) >= 0)
    return " ".join(plain[start : start + 2 * reach] for start in starts)


def terms_of(text: str) -> Counter[int]:
    return count_terms(text) + count_affixes(text)


def score(passages: Sequence[Passage], documents: Sequence[Mapping[int, int]], total: int) -> list[float]:
    """How well each document, given as its terms, fits a query, on the scale of recall.

    `total` is how many texts there are, with those that have no word of the query.
    """
    counts = Counter(term for document in documents for term in document)
    terms = weigh(passages, counts, total)
    return [_score(document, terms.roles, terms.scales) for document in documents]


def _score(document: Mapping[int, int], roles: Mapping[int, Sequence[Any]], scales: Sequence[float]) -> float:
    length = sum(count for term, count in document.items() if term > 0)
    fits = [0.0] * len(scales)
    for term, count in document.items():
        for passage, _, weight in roles.get(term, ()):
            fits[passage] += weight * scales[passage] * count / (count + SATURATION + LENGTH_PENALTY * length)
    return min(max(fits), 1.0)


def strings_in(value: Any) -> Iterator[str]:
    """Every string in a JSON value, names of fields aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings_in(part)
