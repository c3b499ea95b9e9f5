"""The limits of names, sizes and numbers: what is exactly at a limit is accepted, and one more is refused."""

from __future__ import annotations

import json
from datetime import UTC
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scrubjay import InvalidInput, ScrubjayError, ValueTooLarge
from scrubjay.exact_json import decode_body
from scrubjay.validation import (
    ABOVE_ALL_KEYS,
    DAY_SECONDS,
    MAX_COUNT,
    MAX_KEY_BYTES,
    MAX_NAMESPACE_CHARS,
    MAX_NOTE_BYTES,
    MAX_RECALL,
    MAX_SECONDS,
    MAX_TAGS,
    RANKINGS,
    NewNote,
    RecallQuery,
    check_content,
    check_count,
    check_key,
    check_name,
    check_namespace,
    check_query,
    check_seconds,
    check_tags,
    prefix_upper_bound,
)

METADATA = len('{"a":""}')
LIMITS = {
    "the bytes of a key": (lambda n: check_key("k" * n), MAX_KEY_BYTES, InvalidInput),
    "the bytes of a key of other letters": (lambda n: check_key("k" * (n - 510) + "é" * 255), 512, InvalidInput),
    "a namespace": (lambda n: check_namespace("é" * n), MAX_NAMESPACE_CHARS, InvalidInput),
    "the name of an api key": (lambda n: check_name("name", "x" * n), MAX_NAMESPACE_CHARS, InvalidInput),
    "a note": (lambda n: check_content("é" * (n // 2) + "x" * (n % 2)), MAX_NOTE_BYTES, ValueTooLarge),
    "a query": (lambda n: check_query("x" * n), MAX_NOTE_BYTES, ValueTooLarge),
    "metadata": (lambda n: NewNote.check("x", metadata={"a": "y" * (n - METADATA)}), MAX_NOTE_BYTES, ValueTooLarge),
    "tags": (lambda n: check_tags([str(i) for i in range(n)]), MAX_TAGS, InvalidInput),
    "seconds": (partial(check_seconds, "ttl"), MAX_SECONDS, InvalidInput),
    "days": (lambda n: NewNote.check("x", ttl_days=n), MAX_SECONDS // DAY_SECONDS, InvalidInput),
    "a count": (partial(check_count, "n"), MAX_COUNT, InvalidInput),
    "a limit": (lambda n: RecallQuery.check("x", limit=n), MAX_RECALL, InvalidInput),
}


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        (lambda: check_key("k" * (MAX_KEY_BYTES + 1)), "so shorten it"),
        (lambda: check_key("\ud800"), "remove it"),
        (lambda: NewNote.check("x", metadata={"a": "y" * MAX_NOTE_BYTES}), "so store it under a key"),
        (lambda: decode_body("[" * 999 + "]" * 999), "send its inner parts as text"),
        (lambda: decode_body("NaN"), "send null or a string"),
    ],
)
def test_an_error_about_input_ends_with_what_to_do(call, fix):
    with pytest.raises((InvalidInput, ValueTooLarge), match=f"{fix}$"):
        call()


@pytest.mark.parametrize("what", LIMITS)
def test_what_is_at_its_limit_is_accepted_and_one_more_is_not(what):
    check, most, error = LIMITS[what]
    check(most)
    with pytest.raises(error):
        check(most + 1)


def test_the_error_about_a_name_with_a_line_break_mentions_control_characters():
    with pytest.raises(InvalidInput, match="control characters, such as a line break, not 'a"):
        check_name("the name of an api key", "a\n")


def test_tags_are_counted_once_each_and_keep_their_order():
    assert check_tags(["b", "a", "b"]) == ("b", "a")
    assert len(check_tags([str(i % MAX_TAGS) for i in range(3 * MAX_TAGS)])) == MAX_TAGS


@pytest.mark.parametrize("least", [0, 1, -5])
def test_the_least_count_is_accepted_and_one_less_is_not(least):
    assert check_count("n", float(least), least=least) == least
    with pytest.raises(InvalidInput, match=f"between {least} and"):
        check_count("n", least - 1, least=least)


@given(st.text(max_size=4), st.text(max_size=4))
def test_a_text_is_below_the_bound_of_a_prefix_exactly_if_it_starts_with_it_or_comes_before(prefix, text):
    bound = prefix_upper_bound(prefix)
    assume(text >= prefix)
    assert text.startswith(prefix) == (bound is None or text < bound)


@given(st.text(min_size=1, max_size=MAX_KEY_BYTES))
def test_every_key_is_below_the_text_above_all_keys(key):
    try:
        check_key(key)
    except ScrubjayError:
        return
    assert key < ABOVE_ALL_KEYS


def test_a_query_without_options_is_ranked_by_relevance_and_filters_nothing():
    query = RecallQuery.check("x")
    assert query == ("x", 5, None, (), None, 0.0, "relevance", False, None)
    assert query.is_open


@pytest.mark.parametrize("threshold", [2, -0.1, 1.0001, float("nan"), float("inf"), True, "0.5"])
def test_a_threshold_is_from_0_to_1(threshold):
    with pytest.raises(InvalidInput, match=r"^threshold is a number from 0 to 1, not "):
        RecallQuery.check("x", threshold=threshold)
    for least in (0, 1):
        assert RecallQuery.check("x", threshold=least).threshold == least


@given(
    st.fixed_dictionaries(
        {"query": st.text(st.characters(codec="utf-8"), max_size=9)},
        optional={
            "limit": st.integers(1, MAX_RECALL),
            "type": st.sampled_from([None, "t"]),
            "tags": st.lists(st.sampled_from("abc")),
            "session": st.sampled_from([None, "s"]),
            "threshold": st.floats(0, 1),
            "ranking": st.sampled_from([None, *RANKINGS]),
            "explain": st.booleans(),
            "at": st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(microsecond=0)),
        },
    )
)
def test_a_query_comes_back_from_its_json(options):
    query = RecallQuery.check(**options)
    assert RecallQuery.check(**json.loads(json.dumps(query.to_json()))) == query
