"""The index of words: for each term of a namespace the notes that have it, packed into blocks.

A row of `note_words` is a block: a term, and the postings of notes whose numbers are at least that of the block and
less than that of the next block of the term. A posting is four bytes: the number of the note less that of the block,
how often the note has the term, and the length of the note. Numbers of notes grow, so a new note is added to the last
block of each of its terms.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b

from scrubjay.store.operation import ExecuteMany, Rows, SlowQuery, Statements

BLOCK_POSTINGS = 200
"""Postings of a block, at most: 800 bytes, which SQLite stores in a row without a further page."""
POSTING_BYTES = 4
MAX_OFFSET = 0xFFFF
"""How far the number of a note may be above that of its block; a new block starts beyond."""
MAX_COUNT = 0xFF
"""How often a note counts as having a term, at most."""
EXACT_LENGTH = 64
"""Words up to which the length of a note is stored exactly; longer ones within a twentieth."""
LENGTH_STEPS = 16
"""Steps in which the stored length doubles beyond that."""

Block = tuple[int, bytes]
"""The number of a block, and its postings."""
NoteTerms = tuple[int, Mapping[int, int]]
"""The number of a note, and how often it has each of its terms."""


@lru_cache(1024)
def space_of(namespace: str) -> int:
    """The number of a namespace in the index; a hash, so that it is known without a query."""
    return int.from_bytes(blake2b(namespace.encode(), digest_size=8, person=b"word index").digest()) >> 1


def unpack(postings: bytes) -> tuple[int, ...]:
    """Each posting as a number: 16 bits of offset, 8 of count, 8 of length."""
    return struct.unpack(f"<{len(postings) // POSTING_BYTES}I", postings)


def count_of(posting: int) -> int:
    return posting >> 16 & MAX_COUNT


def length_of(posting: int) -> int:
    """The words of the note, about."""
    return _LENGTHS[posting >> 24]


def _pack(offset: int, count: int, length: int) -> bytes:
    return struct.pack("<I", offset | min(count, MAX_COUNT) << 16 | _length_code(length) << 24)


def _length_code(length: int) -> int:
    if length < EXACT_LENGTH:
        return length
    return min(EXACT_LENGTH + round(LENGTH_STEPS * math.log2(length / EXACT_LENGTH)), 0xFF)


_LENGTHS: tuple[int, ...] = (
    *range(EXACT_LENGTH),
    *(round(EXACT_LENGTH * 2.0 ** (step / LENGTH_STEPS)) for step in range(0x100 - EXACT_LENGTH)),
)
"""The length for each code."""


def add_terms(namespace: str, notes: Sequence[NoteTerms], *, is_last: bool) -> Statements[None]:
    """Add the terms of notes, in the order of their numbers; `is_last` if no other note has a greater number.

    Only then may a new block start because the last one is full: the postings of greater numbers would be looked for in
    it.
    """
    space = space_of(namespace)
    most = BLOCK_POSTINGS * POSTING_BYTES if is_last else math.inf
    terms = list(dict.fromkeys(term for _, counts in notes for term in counts))
    rows = yield "find_blocks", (space, json.dumps(terms), json.dumps([note for note, _ in notes[:1]]))
    last: dict[int, Block] = {term: (block, postings) for term, block, postings in rows}
    changed: dict[tuple[int, int], bytes] = {}
    for note, counts in notes:
        length = sum(count for term, count in counts.items() if term > 0)
        for term, count in counts.items():
            block, postings = last.get(term, (note, b""))
            if note - block > MAX_OFFSET or len(postings) >= most:
                block, postings = note, b""
            postings += _pack(note - block, count, length)
            last[term] = block, postings
            changed[term, block] = postings
    yield ExecuteMany("put_block", [(space, *at, postings) for at, postings in changed.items()])


def remove_terms(namespace: str, note: int, terms: Iterable[int], count: int) -> Statements[None]:
    """Remove a note from the index; `count` is how many terms it has there.

    If these are not its terms, as when another version of this program has derived them, all blocks near it are read.
    """
    space = space_of(namespace)
    rows = yield "find_blocks", (space, json.dumps(list(terms)), json.dumps([note]))
    removed = yield from _remove(space, note, rows)
    if removed < count:
        rows = yield SlowQuery("read_blocks_around", (space, note - MAX_OFFSET - 1, note))
        yield from _remove(space, note, rows)


def _remove(space: int, note: int, rows: Rows) -> Statements[int]:
    """Remove the postings of a note from blocks; how many there were."""
    changed: Rows = []
    emptied: Rows = []
    for term, block, postings in rows:
        if not 0 <= note - block <= MAX_OFFSET:
            continue
        left = b"".join(
            postings[start : start + POSTING_BYTES]
            for start in range(0, len(postings), POSTING_BYTES)
            if int.from_bytes(postings[start : start + 2], "little") != note - block
        )
        if len(left) < len(postings):
            (changed if left else emptied).append((space, term, block, left))
    yield ExecuteMany("put_block", changed)
    yield ExecuteMany("delete_block", [each[:3] for each in emptied])
    return len(changed) + len(emptied)


def read_all(namespace: str, terms: Collection[int]) -> Statements[dict[int, list[Block]]]:
    """All blocks of terms."""
    if not terms:
        return {}
    return _by_term((yield SlowQuery("read_blocks", (space_of(namespace), json.dumps(list(terms))))))


def read_newest(namespace: str, postings: Mapping[int, int]) -> Statements[dict[int, list[Block]]]:
    """For each term the last blocks, with about so many postings."""
    if not postings:
        return {}
    space, params = space_of(namespace), []
    for term, count in postings.items():
        params += [space, term, -(-count // BLOCK_POSTINGS) + 1]
    return _by_term((yield SlowQuery(f"read_newest_blocks * {len(postings)}", params)))


def read_blocks_of(
    namespace: str, terms: Collection[int], notes: Collection[int]
) -> Statements[dict[int, list[Block]]]:
    """For each term the blocks that may have the postings of these notes."""
    if not terms:
        return {}
    params = (space_of(namespace), json.dumps(list(terms)), json.dumps(sorted(notes)))
    return _by_term((yield SlowQuery("find_blocks", params)))


def _by_term(rows: Rows) -> dict[int, list[Block]]:
    found: dict[int, list[Block]] = {}
    for term, block, postings in rows:
        found.setdefault(term, []).append((block, postings))
    return found


def postings_of(blocks: Iterable[Block], notes: Collection[int]) -> Iterator[tuple[int, int]]:
    """The notes of these that blocks have, each with its posting."""
    for block, postings in blocks:
        for posting in unpack(postings):
            if block + (posting & MAX_OFFSET) in notes:
                yield block + (posting & MAX_OFFSET), posting


def numbers_in(rows: Sequence[Block]) -> Iterator[int]:
    """The number of the note of each posting."""
    return (block + (posting & MAX_OFFSET) for block, postings in rows for posting in unpack(postings))
