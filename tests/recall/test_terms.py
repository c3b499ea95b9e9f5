"""Index terms: the words of a text, in whatever form it is written."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubjay.recall.documents import count_needles, needles_of
from scrubjay.recall.query import analyze
from scrubjay.recall.terms import SORTED_MARKS, _to_form, normalize, split_words
from workload import assert_proportional

MARKS = {
    "two kinds": "\u0301\u0323",
    "a joiner between them": "\u1dc4\u200d\u1dc2\u200d",
    "a letter that becomes a mark": "\uff9e\u0301",
    "a mark that becomes two": "\u0f73\u0323",
}


@pytest.mark.parametrize("kind", MARKS)
def test_a_text_of_marks_alone_takes_work_in_proportion_to_its_size(kind):
    """The interpreter sorts the marks of a letter, and lets no other thread run meanwhile."""

    def make(size: int) -> str:
        return "a" + MARKS[kind] * (size // len(MARKS[kind]))

    assert_proportional(make, split_words, start=1000)
    assert_proportional(make, lambda text: count_needles(text, needles_of([analyze("garage")])), start=1000)


HOSTILE = st.sampled_from("ae-. \u0301\u0323\u0345\u0f73\u1dc2\u1dc4\u200d\uff76\uff9e漢가😀")


@given(st.text(HOSTILE, min_size=40, max_size=200))
def test_long_runs_of_marks_have_the_normal_form_of_unicode(text):
    assert _to_form("NFKD", text) == unicodedata.normalize("NFKD", text)
    assert unicodedata.is_normalized("NFC", normalize(text))


def test_marks_in_any_number_and_order_are_optional():
    marks = "\u0301\u0323" * SORTED_MARKS
    assert split_words(f"caf\u0065{marks} crème") == split_words("cafe creme")
