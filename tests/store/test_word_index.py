"""The index of words: after any sequence of calls, its blocks have the postings of the notes, and only those."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrubjay.store import word_index
from scrubjay.store.operation import WRITE, operation
from scrubjay.store.sqlite import SqliteStore

TERMS = (7, 8, 9, -7)
COUNTS = st.dictionaries(st.sampled_from(TERMS), st.integers(1, 300), min_size=1)
GAPS = st.sampled_from([1, 1, 1, 2, 300, word_index.MAX_OFFSET, word_index.MAX_OFFSET + 1, 10**6])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["add", "add with the last"]), GAPS, COUNTS),
        st.tuples(st.just("change"), st.integers(0, 30), COUNTS),
        st.tuples(st.sampled_from(["remove", "remove by other terms"]), st.integers(0, 30), st.just({})),
    ),
    max_size=30,
)
_namespaces = itertools.count()


@operation("test", WRITE)
def run(_context, steps):
    return (yield from steps)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_index, "BLOCK_POSTINGS", 3)
        store = SqliteStore(tmp_path_factory.mktemp("index") / "db", durability="fast")
        yield store
        store.close()


def apply(store, namespace: str, steps) -> dict[int, dict[int, int]]:
    """Run the steps; the notes that are then indexed, with their terms."""
    notes: dict[int, dict[int, int]] = {}
    last, waiting = 0, []

    def add_waiting():
        store.run(run(word_index.add_terms(namespace, waiting, is_last=True)))
        waiting.clear()

    for action, number, counts in steps:
        if action != "add with the last":
            add_waiting()
        if action.startswith("add"):
            last += number
            notes[last] = counts
            waiting.append((last, counts))
        elif notes:
            note = sorted(notes)[number % len(notes)]
            known = notes.pop(note)
            terms = (12345,) if action == "remove by other terms" else known
            store.run(run(word_index.remove_terms(namespace, note, terms, len(known))))
            if action == "change":
                store.run(run(word_index.add_terms(namespace, [(note, counts)], is_last=False)))
                notes[note] = counts
    add_waiting()
    return notes


@settings(max_examples=40)
@given(steps=STEPS)
def test_every_note_is_found_by_each_of_its_terms_and_by_no_other(store, steps):
    namespace = f"ns-{next(_namespaces)}"
    notes = apply(store, namespace, steps)
    blocks = store.run(run(word_index.read_all(namespace, TERMS)))
    for term in TERMS:
        found = dict(word_index.postings_of(blocks.get(term, []), notes))
        assert {note: word_index.count_of(posting) for note, posting in found.items()} == {
            note: min(counts[term], word_index.MAX_COUNT) for note, counts in notes.items() if term in counts
        }
    assert sorted(word_index.numbers_in(list(itertools.chain.from_iterable(blocks.values())))) == sorted(
        note for note, counts in notes.items() for _ in counts
    )


@settings(max_examples=40)
@given(steps=STEPS)
def test_the_blocks_of_a_note_are_found_without_reading_the_others(store, steps):
    namespace = f"ns-{next(_namespaces)}"
    for note, counts in apply(store, namespace, steps).items():
        blocks = store.run(run(word_index.read_blocks_of(namespace, TERMS, [note])))
        assert all(len(found) == 1 for found in blocks.values())
        has = {term for term, found in blocks.items() if dict(word_index.postings_of(found, [note]))}
        assert has == counts.keys()


@given(length=st.integers(0, 200_000))
def test_the_length_of_a_note_is_stored_within_a_twentieth(length):
    (posting,) = word_index.unpack(word_index._pack(1, 1, length))
    assert word_index.length_of(posting) == pytest.approx(length, rel=0.05)
    assert length >= word_index.EXACT_LENGTH or word_index.length_of(posting) == length


def test_two_namespaces_do_not_see_each_other(store):
    store.run(run(word_index.add_terms("one", [(1, {7: 1})], is_last=True)))
    store.run(run(word_index.add_terms("two", [(2, {7: 1})], is_last=True)))
    for namespace, note in (("one", 1), ("two", 2)):
        blocks = store.run(run(word_index.read_all(namespace, TERMS)))
        assert list(word_index.numbers_in(blocks[7])) == [note]
