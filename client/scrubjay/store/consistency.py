"""Consistency checks: whether counters, lists, notes and blobs agree with each other."""

from __future__ import annotations

from collections import Counter

from scrubjay.errors import ScrubjayError, Unavailable, pluralize
from scrubjay.exact_json import decode_body
from scrubjay.store.encryption import item_associated_data
from scrubjay.store.note_rows import Row
from scrubjay.store.operation import SNAPSHOT, Context, SlowQuery, Statements, operation
from scrubjay.store.word_index import numbers_in

CHUNK = 500
"""Rows that are in memory at once."""

_CHECKS = {
    "check_usage": "the namespace {0!r} counts {1} keys and {2} bytes, but holds {3} keys and {4} bytes",
    "check_note_count": "the namespace {0!r} counts {1} notes, but holds {2}",
    "check_key_usage": "the api key {0} counts {1} bytes in {2} namespaces, but has {3} bytes in {4}",
    "check_note_namespaces": "the note {1} belongs to the namespace {0!r}, which is not counted anywhere",
    "check_vectors": "a vector in {0!r} belongs to the note {1}, which does not exist",
    "check_note_blobs": "the text of the note {1} in {0!r} is lost",
    "check_vector_blobs": "the vector of the note {1} in {0!r} is lost; `scrubjay reindex` computes it again",
    "check_shared_blobs": "the blob {0} is used {1} times, and not once",
    "check_unused_blobs": "the blob {0} belongs to no note",
    "check_free_blobs": "the blob {0} is free, but not overwritten",
    "check_blob_sizes": "the blob {0} does not have the size in its row",
    "check_item_namespaces": "the item {1!r} belongs to the namespace {0!r}, which is not counted anywhere",
    "check_lists": "the list {1!r} in {0!r} says {2} items and {4} bytes, but has {3} items and {5} bytes",
    "check_positions": "the list {1!r} in {0!r} has {2} items at the positions {3} to {4}",
    "check_items": "the item {1!r} in {0!r} says {2} bytes, but has {3}",
    "check_list_rows": "{2} list items under {1!r} in {0!r} belong to no list",
}
"""A sentence for the rows of each query: every row is a problem."""


@operation("check", SNAPSHOT)
def find_problems(context: Context) -> Statements[list[str]]:
    """A sentence for each problem; an empty list when the store is consistent."""
    problems: list[str] = []
    for query, sentence in _CHECKS.items():
        rows = yield SlowQuery(query, ())
        problems += [sentence.format(*row) for row in rows]
    problems += yield from _check_words()
    problems += yield from _check_values(context)
    return problems + (yield from _check_notes(context))


def _check_words() -> Statements[list[str]]:
    """Look for words of notes that do not exist."""
    known = {number for (number,) in (yield SlowQuery("list_note_numbers", ()))}
    lost: Counter[int] = Counter()
    last: tuple[object, ...] = (-1, 0, 0)
    while rows := (yield SlowQuery("page_words", (*last, CHUNK))):
        last = rows[-1][:3]
        lost.update(number for number in numbers_in([row[2:] for row in rows]) if number not in known)
    return [
        f"{pluralize(count, 'word')} of the index belong to the note number {number}, which does not exist"
        for number, count in sorted(lost.items())
    ]


def _check_values(context: Context) -> Statements[list[str]]:
    """Read each value and list item: it may be damaged, or encrypted with other keys."""
    problems: list[str] = []
    for query, start in (("page_values", ("", "")), ("page_list_rows", ("", "", -1))):
        last: tuple[object, ...] = start
        while rows := (yield SlowQuery(query, (*last, CHUNK))):
            last = rows[-1][:-1]
            for namespace, key, *_, stored in rows:
                try:
                    decode_body(context.cipher.decrypt(stored, item_associated_data(namespace, key)))
                except (ScrubjayError, TypeError) as error:
                    problems.append(f"a value under {key!r} in {namespace!r} cannot be read: {error}")
    return problems


def _check_notes(context: Context) -> Statements[list[str]]:
    """Compare the text of each note with its row."""
    problems: list[str] = []
    last: tuple[object, ...] = ("", -1)
    while rows := (yield SlowQuery("page_digests", (*last, CHUNK))):
        last = rows[-1][:2]
        for namespace, id_, digest, *columns in rows:
            note = f"the note {id_} in {namespace!r}"
            try:
                row = Row.read(context.cipher, namespace, columns)
            except Unavailable as error:
                problems.append(f"{note} cannot be read: {error}")
                continue
            if row.digest(context.cipher) != digest:
                problems.append(f"{note} does not have the text of its digest")
            if row.bytes != row.measured().bytes:
                problems.append(f"{note} says {row.bytes} bytes, but has {row.measured().bytes}")
    return problems
