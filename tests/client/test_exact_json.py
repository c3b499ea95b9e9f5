"""What it takes to check JSON that somebody sent grows with its size, whatever it is made of."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrubjay import InvalidInput
from scrubjay.exact_json import MAX_DEPTH, MAX_PATH_CHARS, decode_body, encode
from scrubjay.validation import NewNote, RecallQuery, check_key, check_tags
from workload import SMALL, assert_proportional


def flat(parts: Callable[[int], str], size: int, last: str) -> str:
    """An object of that many bytes, or a few more; each of its parts is made with its number."""
    each = len(parts(size)) + 1
    return "{" + ",".join(parts(i) for i in range(size // each + 1)) + last + "}"


def wrapped(inner: str, levels: int, name: str) -> str:
    return f'{{"{name}":' * levels + inner + "}" * levels


ENDS = {"right": "1", "infinite": "1e999", "surrogate": '"\\ud800"', "deep": "[" * 300 + "]" * 300}
"""What a document ends with, so that the parser reads all of it before it finds a mistake."""
LASTS = {"whole": "", "a name twice": ',"twice":1,"twice":2'}
"""The same for the object with most of the parts."""
PARTS: dict[str, Callable[[int], str]] = {
    "distinct names": lambda i: f'"n{i}":1',
    "each name twice": lambda i: f'"n{i // 2}":1',
    "one name": lambda _: '"n":1',
    "objects": lambda i: f'"n{i}":{{}}',
    "lists": lambda i: f'"n{i}":[[],[1,2.5,"x"]]',
    "long names": lambda i: f'"{i:0500}":0',
    "texts": lambda i: f'"n{i}":"{"é" * 100}"',
}


@st.composite
def documents(draw: st.DrawFn) -> Callable[[int], str]:
    """A hostile shape, as a function from its size to its text."""
    parts = draw(st.sampled_from(sorted(PARTS)))
    end, last = draw(st.sampled_from(sorted(ENDS))), draw(st.sampled_from(sorted(LASTS)))
    levels = draw(st.integers(0, MAX_DEPTH - 10))
    name = "x" * draw(st.sampled_from([1, 60, 2000]))

    def make(size: int) -> str:
        inside = wrapped(flat(PARTS[parts], size, LASTS[last]), levels, name[: max(1, size // (levels + 1))])
        return f'{{"a":{inside},"b":{ENDS[end]}}}'

    return make


@settings(max_examples=25)
@given(documents())
def test_checking_a_document_takes_work_in_proportion_to_its_size(make):
    assert_proportional(make, lambda text: encode(decode_body(text.encode())))


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("last", LASTS)
def test_every_shape_takes_work_in_proportion_to_its_size(parts, end, last):
    def make(size: int) -> str:
        return f'{{"a":{flat(PARTS[parts], size, LASTS[last])},"b":{ENDS[end]}}}'

    assert_proportional(make, lambda text: encode(decode_body(text.encode())))


def test_a_long_name_costs_its_length_once():
    """And not again for each of the values below it, when one of them is wrong."""

    def make(size: int) -> str:
        return f'{{"{"x" * size}":[{"1," * size}"\\ud800"]}}'

    assert_proportional(make, lambda text: encode(decode_body(text)), start=4 * SMALL)


def test_fields_with_many_parts_take_work_in_proportion_to_their_number():
    def make(size: int) -> str:
        return json.dumps([f"{i}" for i in range(size // 8)])

    assert_proportional(make, lambda text: check_tags(json.loads(text)))
    assert_proportional(make, lambda text: [check_key(key) for key in json.loads(text)])
    assert_proportional(make, lambda text: NewNote.check(text, metadata=dict.fromkeys(json.loads(text))))
    assert_proportional(make, lambda text: RecallQuery.check(text, tags=json.loads(text)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a":1,"b":2,"b":3,"a":4}', "the name 'a' twice"),
        ('{"x":[0,{"y":1e999}]}', r"value\['x'\]\[1\]\['y'\] is inf"),
        ('{"x":[0,{"y":"\\ud800"}]}', r"^value\['x'\]\[1\]\['y'\] contains a lone surrogate"),
        ('{"x":[0,{"\\ud800":1}]}', r"the key of value\['x'\]\[1\]\['\\ud800'\] contains a lone surrogate"),
    ],
)
def test_a_mistake_is_told_with_its_place(text, told):
    with pytest.raises(InvalidInput, match=told):
        encode(decode_body(text))


def test_a_long_place_is_cut():
    with pytest.raises(InvalidInput) as caught:
        encode(decode_body(wrapped("1e999", MAX_DEPTH - 1, "x" * 2000)))
    assert len(str(caught.value)) < 2 * MAX_PATH_CHARS


def test_a_key_that_is_not_text_is_named_with_its_type():
    with pytest.raises(InvalidInput, match=r"^value\['a'\] has the key 1 of the type int; JSON keys are strings$"):
        encode({"a": {1: 2}})


def test_a_number_that_is_not_in_json_is_stored_as_a_string():
    with pytest.raises(InvalidInput, match=r"^value is inf, which JSON cannot represent; store a string instead$"):
        encode(float("inf"))
