"""The candidates for a query: the notes that fit it best by their own terms, and where its terms occur."""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from scrubjay.recall.query import LENGTH_PENALTY, SATURATION, Passage, QueryTerms, weigh
from scrubjay.recall.ranking import Occurrences
from scrubjay.store.encryption import Cipher
from scrubjay.store.operation import SlowQuery, Statements
from scrubjay.store.word_index import (
    BLOCK_POSTINGS,
    MAX_OFFSET,
    POSTING_BYTES,
    Block,
    count_of,
    length_of,
    postings_of,
    read_all,
    read_blocks_of,
    read_newest,
    space_of,
    unpack,
)
from scrubjay.validation import RecallQuery

MAX_COUNTED, MIN_COUNTED = 5_000, 1_000
"""Notes that are counted for each term of a query, if its terms are few, and if they are many; a more frequent term
says little anyway."""
MAX_COUNTED_ROWS = 160_000
"""Postings that are counted for one query, from which on MAX_COUNTED is lowered."""
MIN_POSTINGS, MAX_POSTINGS = 1_000, 3_000
"""Postings that one passage of a query reads, in a small and in a large namespace, heavy terms first."""
FULL_PASSAGES = 4
"""Passages of a query that may read so many postings each; more of them share the same number."""
FILTERED_FACTOR = 10
"""How many times as many are read where a filter drops some of the notes, and leaves too many to look at each."""
MIN_CANDIDATES, ENOUGH_CANDIDATES = 20, 40
"""Notes that are ranked, with their neighbours, if few are wanted, and if more are."""
SCAN_FACTOR = 4
"""Postings that are decoded in the time in which SQLite finds the block of one."""
CHECKED_AT_ONCE = 1_000
"""Notes whose labels are compared with the filters in one query, the best first."""


class Filters(NamedTuple):
    """Conditions on notes, by name, and their parameters."""

    conditions: tuple[str, ...]
    params: tuple[int, ...]

    def on(self, query: str) -> str:
        """The name of a query of the notes that meet the conditions."""
        return f"{query} where {' and '.join(self.conditions)}"


class Share(NamedTuple):
    """How much of a term a passage reads: the newest postings, up to so many."""

    term: int
    passage: int
    weight: float
    postings: int


class _Parts(dict[int, float]):
    """What a term of weight 1 is worth in a note, by count and length as postings have them."""

    def __missing__(self, packed: int) -> float:
        count = count_of(packed << 16)
        value = self[packed] = count / (count + SATURATION + LENGTH_PENALTY * length_of(packed << 16))
        return value


_parts = _Parts()


def weigh_terms(cipher: Cipher, namespace: str, passages: Sequence[Passage]) -> Statements[QueryTerms]:
    """The terms of a query as the index stores them, weighed by how many notes have each."""
    plain = dict.fromkeys(
        term
        for passage in passages
        for term in (*passage.words, *passage.synonym_of, *passage.related_to, *passage.times)
    )
    hashed = cipher.keyed_hash(plain)
    stored = [
        passage._replace(
            words={hashed[term]: word for term, word in passage.words.items()},
            synonym_of={hashed[other]: hashed[term] for other, term in passage.synonym_of.items()},
            related_to={hashed[other]: hashed[term] for other, term in passage.related_to.items()},
            names=frozenset(hashed[term] for term in passage.names if term in hashed),
            times=[hashed[term] for term in passage.times],
        )
        for passage in passages
    ]
    limit = min(max(MAX_COUNTED_ROWS // max(len(hashed), 1), MIN_COUNTED), MAX_COUNTED)
    params = (space_of(namespace), limit // BLOCK_POSTINGS, json.dumps(list(hashed.values())), namespace)
    (_, notes), *sizes = yield SlowQuery("measure_terms", params)
    total = min(notes, 10 * limit)  # no term is counted beyond the limit, so that a larger total would overrate all
    return weigh(stored, {term: size // POSTING_BYTES for term, size in sizes}, total)


class Candidates:
    """The notes of a namespace that may answer a query, by number."""

    def __init__(self, namespace: str, query: RecallQuery, terms: QueryTerms, filters: Filters) -> None:
        self._namespace = namespace
        self._query = query
        self._terms = terms
        self._filters = filters
        self._known: dict[int, list[Block]] = {}
        """All blocks of the terms that were read as a whole."""

    def find(self) -> Statements[list[int]]:
        """The notes that fit best by their own terms, the best first."""
        if not (self._terms.roles or self._terms.times):
            return []
        query = self._query
        wanted = max(MIN_CANDIDATES, min(4 * query.limit, ENOUGH_CANDIDATES), 2 * query.limit)
        if query.is_open:
            shares = self._share_out(1)
            found = yield from self._first_allowed((yield from self._fits(shares)), wanted)
            if len(found) == wanted or sum(share.postings for share in shares) < MIN_POSTINGS:
                return found
        allowed = yield SlowQuery(
            self._filters.on("list_allowed_notes"),
            (self._namespace, *self._filters.params, MAX_POSTINGS + 1),
        )
        if len(allowed) > MAX_POSTINGS:
            fits = yield from self._fits(self._share_out(FILTERED_FACTOR))
            return (yield from self._first_allowed(fits, wanted))
        return _best((yield from self._fits_among({number for (number,) in allowed})), wanted)

    def _share_out(self, factor: int) -> list[Share]:
        """How many postings of each term each passage reads, the heaviest terms first."""
        terms = self._terms
        budget = min(max(MIN_POSTINGS, terms.total // 10), MAX_POSTINGS) * factor
        left = [min(budget, FULL_PASSAGES * budget // len(terms.scales))] * len(terms.scales)
        shares = []
        for term, roles in terms.searched():
            for passage, scaled in roles:
                if left[passage]:
                    shares.append(Share(term, passage, scaled, min(terms.counts[term], left[passage])))
                left[passage] = max(left[passage] - terms.counts[term], 0)
        return shares

    def _fits(self, shares: Sequence[Share]) -> Statements[dict[int, float]]:
        """How well each note fits its best passage."""
        needed: dict[int, int] = {}
        for share in shares:
            needed[share.term] = max(share.postings, needed.get(share.term, 0))
        whole = [term for term, count in needed.items() if count >= self._terms.counts[term]]
        yield from self._read_whole(whole)
        some = {term: count for term, count in needed.items() if term not in self._known}
        newest = yield from read_newest(self._namespace, some)
        return self._sum((share, self._known.get(share.term) or newest.get(share.term, [])) for share in shares)

    def _fits_among(self, allowed: Collection[int]) -> Statements[dict[int, float]]:
        """The same for these notes alone: others must not use up the postings that may be read."""
        counts = self._terms.counts
        shares = [
            Share(term, passage, scaled, counts[term])
            for term, roles in self._terms.searched()
            for passage, scaled in roles
        ]
        terms = {share.term for share in shares}
        yield from self._read_whole([term for term in terms if self._is_scanned(term, allowed)])
        others = yield from read_blocks_of(self._namespace, terms - self._known.keys(), allowed)
        fits = self._sum((share, self._known.get(share.term) or others.get(share.term, [])) for share in shares)
        return {number: fit for number, fit in fits.items() if number in allowed}

    def _is_scanned(self, term: int, notes: Collection[int]) -> bool:
        """Whether to read all blocks of a term is faster than to find those of these notes."""
        return self._terms.counts[term] < min(SCAN_FACTOR * len(notes), MIN_COUNTED)

    def _read_whole(self, terms: Collection[int]) -> Statements[None]:
        missing = [term for term in terms if term not in self._known]
        found = yield from read_all(self._namespace, missing)
        for term in missing:
            self._known[term] = found.get(term, [])

    def _sum(self, shares: Iterator[tuple[Share, list[Block]]]) -> dict[int, float]:
        """The sum of each passage's parts for each note, and of these the greatest."""
        fits: list[dict[int, float]] = [{} for _ in self._terms.scales]
        for share, blocks in shares:
            _add_parts(fits[share.passage], blocks, share)
        best = fits[0]
        for others in fits[1:]:
            for number, fit in others.items():
                if fit > best.get(number, 0.0):
                    best[number] = fit
        return best

    def _first_allowed(self, fits: Mapping[int, float], wanted: int) -> Statements[list[int]]:
        """The best notes that pass the filters: a few more than are wanted are tried first, then the others."""
        found: list[int] = []
        for chunk in _chunks(fits, 2 * wanted):
            passed = yield from self.allowed(chunk)
            found += [number for number in chunk if number in passed]
            if len(found) >= wanted:
                break
        return found[:wanted]

    def allowed(self, numbers: Collection[int]) -> Statements[set[int]]:
        """Those of the notes that pass the filters."""
        query = self._filters.on("find_allowed_notes")
        rows = yield SlowQuery(query, (self._namespace, *self._filters.params, json.dumps(list(numbers))))
        return {number for (number,) in rows}

    def occurrences(self, notes: Collection[int]) -> Statements[Occurrences]:
        """Where the terms of the query occur in these notes."""
        searched = (*self._terms.roles, *self._terms.times)
        yield from self._read_whole([term for term in searched if self._is_scanned(term, notes)])
        others = [term for term in searched if term not in self._known]
        blocks = yield from read_blocks_of(self._namespace, others, notes)
        found: defaultdict[int, dict[int, float]] = defaultdict(dict)
        lengths: dict[int, int] = {}
        for term in searched:
            for number, posting in postings_of(self._known.get(term) or blocks.get(term, []), notes):
                found[number][term] = count_of(posting)
                lengths[number] = length_of(posting)
        return Occurrences(found, lengths)


def _add_parts(fits: dict[int, float], blocks: list[Block], share: Share) -> None:
    """Add what a term is worth in each note that has it, the newest notes first."""
    parts, weight, left = _parts, share.weight, share.postings
    for block, postings in sorted(blocks, reverse=True):
        if left <= 0:
            return
        values = unpack(postings)
        for posting in values if len(values) <= left else values[-left:]:
            number = block + (posting & MAX_OFFSET)
            fits[number] = fits.get(number, 0.0) + weight * parts[posting >> 16]
        left -= len(values)


def _best(fits: Mapping[int, float], count: int) -> list[int]:
    """The notes that fit best, of equal ones the newest."""
    return heapq.nlargest(count, fits, key=lambda number: (fits[number], number))


def _chunks(fits: Mapping[int, float], first: int) -> Iterator[list[int]]:
    """The notes in their order, in lists that are checked at once."""
    yield _best(fits, first)
    ordered = _best(fits, len(fits)) if len(fits) > first else []
    for start in range(first, len(ordered), CHECKED_AT_ONCE):
        yield ordered[start : start + CHECKED_AT_ONCE]
