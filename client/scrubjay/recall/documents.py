"""Search in texts that have no index: a fast test for candidates, then the scores of recall."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from scrubjay.recall.query import LENGTH_PENALTY, SATURATION, Passage, weigh
from scrubjay.recall.terms import MONTHS, count_affixes, count_terms, normalize, stem_of

MAX_NEEDLES = 32
"""Words of a query that are searched for, the longest first: each of them is looked for in every text."""
MAX_SCORED_CHARS = 2048
"""Characters of a text whose words are counted for its score, which takes half a millisecond. Of a longer text they are
those around the words of the query."""


_ENDINGS = (("e", "[ei]"), ("i", "[iy]"), ("bl", "bi?l"), ("al", "(?:al|au)"))
"""Letters that a stem ends in but not all of its words have there: hiking, city, solubility, chevaux."""
_LONG_VOWEL = re.compile(r"(?<![aeiouyq])([aou])(?=[^aeiouy])")
"""A vowel that may be an umlaut, which some write as two letters."""
MAX_SHORT_STEM = 2
"""Letters of a stem that is looked for as a word and not as a part of one: most texts contain them."""
_SHORT_ENDINGS = r"e?(?:(?:ful)?(?:ness)?|ative|l[iy])(?:[a-z]?(?:ing|ed))?(?:e?s)?(?![a-z0-9])"
"""What can follow a short stem in its words."""
_MONTHS = {stem_of(month): number for number, month in enumerate(MONTHS, 1)}


def needles_of(passages: Sequence[Passage]) -> list[re.Pattern[str]]:
    """For each word of a query the pattern that finds, in a text without case and accents, all words of its stem."""
    words = {word for passage in passages for term, word in passage.words.items() if term > 0}
    longest = sorted(words, key=lambda word: (-len(word), word))[:MAX_NEEDLES]
    return [_needle(stem_of(word)) for word in longest]


@lru_cache(1024)
def _needle(stem: str) -> re.Pattern[str]:
    """What the words of a stem start with; it may occur in other words too, which their score tells apart."""
    if not stem.isascii():
        return re.compile(re.escape(stem))
    ending, other = next((pair for pair in _ENDINGS if stem[1:].endswith(pair[0])), ("", ""))
    start = stem.removesuffix(ending) + other
    if len(stem) > MAX_SHORT_STEM:
        start = _LONG_VOWEL.sub(r"\1e?", start)
    elif stem.isalpha():
        # A word starts after something else than a letter, or after the \n of a JSON text.
        start += rf"(?:(?<![a-z0-9]{start})|(?<=\\[bfnrt]{start})){_SHORT_ENDINGS}"
    if stem in _MONTHS:
        start += rf"|\d-{_MONTHS[stem]:02}-\d"
    return re.compile(start)


def count_needles(text: str, needles: Sequence[re.Pattern[str]]) -> int:
    """How many of the needles a text contains, whatever case and accents it has."""
    plain = text.lower() if text.isascii() else normalize(text)
    return sum(1 for needle in needles if needle.search(plain))


def excerpt(text: str, needles: Sequence[re.Pattern[str]]) -> str:
    """A short text as it is; of a long one, what surrounds the first occurrence of each needle."""
    if len(text) <= MAX_SCORED_CHARS:
        return text
    plain, reach = normalize(text), MAX_SCORED_CHARS // (2 * len(needles))
    starts = (max(found.start() - reach, 0) for needle in needles if (found := needle.search(plain)))
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
