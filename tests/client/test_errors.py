"""How error messages show what was given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubjay.errors import repr_short


@pytest.mark.parametrize("name", ["alice", "Ünï cødé:%/x", "ключ", "名前", "Привет bob", "👩‍🚀"[:1]])
def test_names_in_every_language_are_readable(name):
    assert repr_short(name) == f"'{name}'"


@pytest.mark.parametrize(
    "name",
    [
        "a\u202eb",
        "a\u200bb",
        "a\xa0b",
        "a\u3164b",
        "\u2800",
        "a\ufe0f",
        "\ud800",
        "a\x1b[2Jb",
        "\u0430lice",
        "alic\u0435",
    ],
)
def test_what_a_reader_would_not_see_or_take_for_something_else_is_escaped(name):
    assert repr_short(name) == ascii(name)


@given(st.text(max_size=100) | st.binary(max_size=100) | st.lists(st.text()))
def test_what_is_shown_is_one_line(value):
    shown = repr_short(value)
    assert shown.isprintable()
    assert len(shown) <= 60


def test_a_foreign_repr_cannot_change_a_terminal():
    class Foreign:
        def __repr__(self):
            return "\x1b[2J\n\u202e"

    assert repr_short(Foreign()) == r"\x1b[2J\n\u202e"
