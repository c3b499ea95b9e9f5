"""Synonyms and related words: a query is widened with words that people use for the same thing; the index never is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from scrubjay.recall.terms import stem_of, suffix_term, term_of

_DATA = Path(__file__).with_name("data")


def synonyms(term: int) -> tuple[int, ...]:
    """The terms that may stand for a query's term, and the one for compounds that end in the same letters."""
    others = _table().get(term, ())
    return (*others, suffix_term(term)) if term > 0 and suffix_term(term) else others


def related(word: str) -> list[int]:
    """The terms of the words that are nearest to a word in meaning, the nearest first."""
    return list(map(term_of, _related().get(stem_of(word), "").split()))


def read_groups() -> Iterator[tuple[list[str], list[str]]]:
    """Each line of the file: the words that stand for one another, and the members of their kind."""
    for line in (_DATA / "synonyms.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            words, _, members = line.partition(":")
            yield words.split(), members.split()


@cache
def _table() -> dict[int, tuple[int, ...]]:
    found: dict[int, dict[int, None]] = {}

    def link(terms: list[int], others: list[int]) -> None:
        for term in terms:
            found.setdefault(term, {}).update(dict.fromkeys(other for other in others if other != term))

    for words, members in read_groups():
        group, kind = list(map(term_of, words)), list(map(term_of, members))
        link(group, group)
        link(group, kind)
        link(kind, group)
    return {term: tuple(others) for term, others in found.items()}


@cache
def _related() -> dict[str, str]:
    """The lines of the file by their stems: most are never looked at."""
    lines = (_DATA / "related.txt").read_text(encoding="utf-8").splitlines()
    return {stem: words for stem, _, words in (line.partition(" ") for line in lines)}
