"""Characters that a reader does not see."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubjay.cli.output import printable
from scrubjay.cli.visible import visible


@pytest.mark.parametrize(
    "text",
    [
        "سلام، می\u200cخواهم کتاب\u200cها را ببینم", "PDF\u200cها", "۱۳\u200cساله", "ه\u200d", "क्\u200dष", "ශ්\u200dරී",
        "👩\u200d💻 🏳\ufe0f\u200d🌈", "👩🏽\u200d❤\ufe0f\u200d💋\u200d👨🏻", "🐦\u200d⬛", "☎\ufe0e", "©\ufe0f",
        "1\ufe0f\u20e3", "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
        "葛\U000e0100城", "Jose\u0301", "a\u00a0b",
    ],
)  # fmt: skip
def test_joiners_and_selectors_that_are_part_of_words_and_emoji_stay(text):
    assert visible(text) == printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2066a\u2069", r"\u2066a\u2069"),
        ("a\u200fb", r"a\u200fb"),
        ("bo\u200cb", r"bo\u200cb"),
        ("bo\u200db", r"bo\u200db"),
        ("bo\u200bb", r"bo\u200bb"),
        ("bob\ufe0f", r"bob\ufe0f"),
        ("سلام\u200c", r"سلام\u200c"),
        ("می\u200c\u200cخ", r"می\u200c\u200cخ"),
        ("👩\u200d\u200d💻", r"👩\u200d\u200d💻"),
        ("👩\ufe0f\ufe0f", "👩\ufe0f" + r"\ufe0f"),
        ("🏴\U000e0068\U000e0069\U000e007f", r"🏴\udb40\udc68\udb40\udc69\udb40\udc7f"),
        ("a\u2028b\u3164", r"a\u2028b\u3164"),
        ("\x1b[2J\x7f\x9b", r"\u001b[2J\u007f\u009b"),
    ],
)
def test_what_deceives_a_reader_is_shown_as_the_codes_of_json(text, shown):
    assert visible(text) == shown
    assert json.loads(f'"{shown}"') == text


@given(st.text(st.characters() | st.sampled_from("\n\u200c\u200d\ufe0f\u202eمक\u094d👩")))
def test_a_printable_text_is_one_line_that_says_what_it_stands_for(text):
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert visible(shown) == shown
    assert text == shown or text == json.loads(shown)
