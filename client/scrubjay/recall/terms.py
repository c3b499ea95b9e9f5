"""Index terms: text as the numbers that the index stores.

A term is 56 bits: 40 of the hash of a word's stem, and 16 of the hash of its last letters. Rows of the index are then
small and of equal size, comparing them is comparing integers, and the index holds no text that would have to be erased
with a note.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby
from typing import Literal
from zlib import crc32

from scrubjay.recall import word_lists
from scrubjay.recall.stemmer import stem

MAX_WORD_CHARS = 64
"""Characters of a word that are indexed; natural words are shorter."""
PREFIX_CHARS = 4
"""Characters of the prefix that is indexed beside a longer word: fewer make unrelated words equal."""
SUFFIX_CHARS = 4
"""Characters of a stem that its suffix term is made of."""
MIN_COMPOUND_CHARS = 10
"""Characters from which a word, and its stem, may be a compound such as Kundendatenbank."""
MAX_GREETING_WORDS = 4
"""Words beside its questions that a text may have and still be only a question: a greeting, a name, "That's great!"."""

# Python's \w leaves out the vowel signs of Indic scripts and their neighbours, and all emoji.
_SIGNS = r"\u0900-\u0963\u0966-\u0eff\u1000-\u1049\u1050-\u109f\u1780-\u17d3"
_EMOJI = r"\u231a-\u23ff\u2600-\u27bf\u2b05-\u2b55\U0001f000-\U0001f1e5\U0001f200-\U0001faff"
_FLAG = r"[\U0001f1e6-\U0001f1ff]{2}"
_WORD = re.compile(rf"(?:[^\W_]|[{_SIGNS}])+|[{_EMOJI}]|{_FLAG}")
# Scripts written without spaces, and Hangul, whose particles are written as part of the word.
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff"
_UNSPACED_RUN = re.compile(rf"[{UNSPACED}]+")
_DATE = re.compile(r"(?<!\d)(\d{4})-(0[1-9]|1[0-2])-(\d\d)(?!\d)")
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
QUESTION_MARKS = ("?", "？", "؟")
_SENTENCES = re.compile(r"[^.!?。！？؟]+[.!?。！？؟]?")
# Optional in writing: accents, Hebrew and Arabic vowels, joiners, the skin tone of an emoji.
_MARKS = re.compile(
    r"[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u065f\u0670\u200c\u200d\ufe0e\ufe0f"
    r"\U0001f3fb-\U0001f3ff]+"
)
SORTED_MARKS = 32
"""Marks in a row that are left to Python to sort: its time grows with the square of their number."""
# No mark is a letter or digit, but for two of Japanese in half width, which become marks.
_LONG_RUN = re.compile(rf"[\W\uff9e\uff9f]{{{SORTED_MARKS},}}")
_UNDECOMPOSED = str.maketrans("ıłøđ", "ilod")
_ARABIC_ARTICLE = "ال"
# An umlaut written as two letters; but not in neue, quer or poeira.
_UMLAUT = re.compile(r"(?<![aeiouyq])([aou])e(?=[^aeiouy])")
_SUFFIX_BITS = 0xFFFF


class Asks(IntEnum):
    """Whether a text asks, so that what follows it is an answer."""

    NO = 0
    ONLY = 1
    LAST = 2
    """It ends in a question, and says something else before."""


def asks(text: str) -> Asks:
    """Whether a text asks."""
    if not text.rstrip().endswith(QUESTION_MARKS):
        return Asks.NO
    sentences = _SENTENCES.findall(text.strip())
    stated = sum(len(split_words(sentence)) for sentence in sentences if not sentence.endswith(QUESTION_MARKS))
    return Asks.ONLY if sentences and stated <= MAX_GREETING_WORDS else Asks.LAST


def is_change(text: str) -> bool:
    """Whether a text says that something is different from before."""
    words, parts = word_lists.change_words()
    plain = text.lower() if text.isascii() else normalize(text)
    return not words.isdisjoint(_WORD.findall(plain)) or any(part in plain for part in parts)


def split_words(text: str) -> list[str]:
    """The words of a text, without case and accents; unspaced scripts as single characters and pairs of them."""
    plain = text.lower() if text.isascii() else normalize(text)
    if "-" in plain:
        plain = _DATE.sub(_spell_date, plain)
    if not _UNSPACED_RUN.search(plain):
        return [word[:MAX_WORD_CHARS] for word in _WORD.findall(plain)]
    found: list[str] = []
    for word in _WORD.findall(plain):
        start = 0
        for run in _UNSPACED_RUN.finditer(word):
            found += _with_pairs(word[start : run.start()], run[0])
            start = run.end()
        found += _with_pairs(word[start:], "")
    return found


def normalize(text: str) -> str:
    """A text without case and without marks that are optional in writing."""
    plain = _MARKS.sub("", _to_form("NFKD", text).casefold()).translate(_UNDECOMPOSED)
    return _to_form("NFC", plain)


def _to_form(form: Literal["NFC", "NFKD"], text: str) -> str:
    """The text in a normal form, in a time in proportion to its length even if it is nothing but marks."""
    return unicodedata.normalize(form, _LONG_RUN.sub(_sort_marks, text))


def _sort_marks(run: re.Match[str]) -> str:
    """The run with its marks in the order of the normal forms."""
    text = run[0]
    if text.isascii():
        return text
    pieces = (text[start : start + SORTED_MARKS] for start in range(0, len(text), SORTED_MARKS))
    decomposed = "".join(unicodedata.normalize("NFKD", piece) for piece in pieces)
    parts = groupby(decomposed, lambda character: unicodedata.combining(character) > 0)
    # The key of a character that is no mark is 0, so that a part without marks stays as it is.
    return "".join("".join(sorted(part, key=unicodedata.combining)) for _, part in parts)


def _spell_date(date: re.Match[str]) -> str:
    """2026-03-05 as 5 march 2026."""
    return f"{int(date[3])} {MONTHS[int(date[2]) - 1]} {date[1]} "


def _with_pairs(word: str, run: str) -> list[str]:
    pairs = [run[i : i + 2] for i in range(len(run) - 1)]
    return [*([word[:MAX_WORD_CHARS]] if word else []), *run, *pairs]


def count_terms(text: str) -> Counter[int]:
    """How often each term occurs, without English stop words; if nothing else is left, those count."""
    found = Counter(split_words(text))
    ignored = word_lists.english()
    counts: Counter[int] = Counter()
    for word, count in ({word: count for word, count in found.items() if word not in ignored} or found).items():
        counts[term_of(word)] += count
    return counts


def query_words(text: str) -> dict[int, str]:
    """The terms of a query with one word for each, without the stop words of any language, unless no other is left."""
    words, ignored = dict.fromkeys(split_words(text)), word_lists.all_languages()
    kept = [word for word in words if word not in ignored]
    kept = kept or [word for word in words if word not in word_lists.english()] or list(words)
    return _first_words(kept)


def _first_words(words: list[str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for word in words:
        found.setdefault(term_of(word), word)
    return found


def count_affixes(text: str) -> Counter[int]:
    """How often each prefix of a longer word occurs, and each suffix of a possible compound, as negative numbers.

    They stand in for a stemmer in languages that have none here: a prefix finds Datenbanken by Datenbank and
    retrospective by retro, and a suffix finds Kundendatenbank.
    """
    counts: Counter[int] = Counter()
    ignored = word_lists.all_languages()
    for word, count in Counter(split_words(text)).items():
        if len(word) > PREFIX_CHARS and word not in ignored:
            counts[prefix_term(word)] += count
            is_compound = (
                len(word) >= MIN_COMPOUND_CHARS and word.isascii() and len(stem_of(word)) >= MIN_COMPOUND_CHARS
            )
            if is_compound and (suffix := suffix_term(term_of(word))):
                counts[suffix] += count
    return counts


@lru_cache(65_536)
def term_of(word: str) -> int:
    """The term of a word; its last 16 bits are the hash of the letters that its stem ends in, or 0."""
    known = stem_of(word)
    is_suffix = known.isascii() and len(known) >= SUFFIX_CHARS
    suffix = crc32(known[-SUFFIX_CHARS:].encode()) & _SUFFIX_BITS if is_suffix else 0
    return int.from_bytes(blake2b(known.encode(), digest_size=5).digest()) << 16 | suffix


def prefix_term(word: str) -> int:
    """The term of all words that start with the same letters."""
    return -term_of(f"{word[:PREFIX_CHARS]}-")


def time_term(label: str) -> int:
    """The term of a day or month."""
    return int.from_bytes(blake2b(label.encode(), digest_size=5, person=b"time").digest()) << 16


def suffix_term(term: int) -> int:
    """The term of all possible compounds that end like the word of this term, or 0."""
    return -(term & _SUFFIX_BITS)


@lru_cache(65_536)
def stem_of(word: str) -> str:
    """The part that the forms of a word have in common."""
    return _strip_inflection(stem(word)) if word.isascii() else _strip_article(word)


def _strip_inflection(word: str) -> str:
    """Inflection of other languages that Porter's English rules leave: Tuer is Tür, chevaux cheval, bambini bambino."""
    if len(word) > 3:
        word = _UMLAUT.sub(r"\1", word)
    if len(word) > 5 and word.endswith("aux"):
        return f"{word[:-2]}l"
    if len(word) > 6:
        word = word.removesuffix("en")
    return word[:-1] if len(word) > 5 and word[-1] in "aeio" else word


def _strip_article(word: str) -> str:
    """Arabic writes "the" and its noun as one word; at least three letters stay."""
    return word.removeprefix(_ARABIC_ARTICLE) if len(word) > len(_ARABIC_ARTICLE) + 2 else word
