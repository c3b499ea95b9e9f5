"""Text as the index sees it: numbers that stand for stems.

A word is kept as 56 bits of its hash. Rows of the index are then small and equal, comparing them is
comparing integers, and the index holds no text that would have to be erased with a note.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b

from .porter import stem

MAX_WORD_CHARS = 64
"""What of a word is looked at; nothing longer is a word."""

BEGINNING_CHARS = 4
MAX_ASIDE_WORDS = 4
"""What a question may have beside it and still only ask: a greeting, a name, "That's great!"."""

# To Python a vowel sign of India's and its neighbours' scripts is no part of a word, and an emoji is none at all.
_SIGNS = r"\u0900-\u0963\u0966-\u0eff\u1000-\u1049\u1050-\u109f\u1780-\u17d3"
_EMOJI = r"\u231a-\u23ff\u2600-\u27bf\u2b05-\u2b55\U0001f000-\U0001f1e5\U0001f200-\U0001faff"
_FLAG = r"[\U0001f1e6-\U0001f1ff]{2}"
_WORD = re.compile(rf"(?:[^\W_]|[{_SIGNS}])+|[{_EMOJI}]|{_FLAG}")
# Scripts written without spaces, and Hangul, whose particles stick to the word.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff]+"
)
_SENTENCES = re.compile(r"[^.!?。！？]+[.!?。！？]?")
# What some write and others leave out: accents, Hebrew and Arabic vowels, joiners, the colour of an emoji.
_MARKS = re.compile(
    r"[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u065f\u0670\u200c\u200d\ufe0e\ufe0f"
    r"\U0001f3fb-\U0001f3ff]+"
)
_PLAIN = str.maketrans("ıłøđ", "ilod")
_ARABIC_THE = "ال"
# What every English sentence is made of; d, ll, m, re, s, t, ve are what an apostrophe leaves over.
_STOPWORDS = """
a about after again all also am an and any are as at be because been before being between both but by can could d did
do does doing don down during each few for from further had has have having he her here hers herself him himself his
how i if in into is it its itself just let ll m me more most my myself no nor not now of off on once only or other our
ours out over own re s same she should so some such t than that the their theirs them themselves then there these they
this those through to too under until up us ve very was we were what when where which while who whom why will with
would you your yours yourself
"""
STOPWORDS = frozenset(_STOPWORDS.split())


def only_asks(text: str) -> bool:
    """Whether a text ends in a question and says next to nothing else."""
    sentences = _SENTENCES.findall(text.strip())
    said = sum(len(split(sentence)) for sentence in sentences if sentence[-1] not in "?？")
    return bool(sentences) and text.rstrip()[-1] in "?？" and said <= MAX_ASIDE_WORDS


def split(text: str) -> list[str]:
    """The words of a text, without case and accents; runs without spaces as characters and pairs of them."""
    folded = text.lower() if text.isascii() else _folded(text)
    if not _UNSPACED.search(folded):
        return [word[:MAX_WORD_CHARS] for word in _WORD.findall(folded)]
    found: list[str] = []
    for word in _WORD.findall(folded):
        start = 0
        for run in _UNSPACED.finditer(word):
            found += _pieces(word[start : run.start()], run[0])
            start = run.end()
        found += _pieces(word[start:], "")
    return found


def _folded(text: str) -> str:
    plain = _MARKS.sub("", unicodedata.normalize("NFKD", text).casefold()).translate(_PLAIN)
    return unicodedata.normalize("NFC", plain)


def _pieces(word: str, run: str) -> list[str]:
    pairs = [run[i : i + 2] for i in range(len(run) - 1)]
    return [*([word[:MAX_WORD_CHARS]] if word else []), *run, *pairs]


def count_words(text: str) -> Counter[int]:
    """How often each word that means something occurs; if none does, those that mean nothing count."""
    found = Counter(split(text))
    return _numbered({word: count for word, count in found.items() if word not in STOPWORDS} or found)


def count_beginnings(text: str) -> Counter[int]:
    """How often each beginning of a longer word occurs: what is left when a language has no stemmer here.

    It finds Datenbanken by Datenbank, and retrospective by retro. Counted apart, as negative numbers,
    because they say less than the word does.
    """
    counts: Counter[int] = Counter()
    for word, count in Counter(split(text)).items():
        if len(word) > BEGINNING_CHARS and word not in STOPWORDS:
            counts[-number(f"{word[:BEGINNING_CHARS]}-")] += count
    return counts


def _numbered(words: Mapping[str, int]) -> Counter[int]:
    """Each word is looked at once, however often it occurs."""
    counts: Counter[int] = Counter()
    for word, count in words.items():
        counts[number(word)] += count
    return counts


@lru_cache(65_536)
def number(word: str) -> int:
    """What stands for a word in the index."""
    known = stem(word) if word.isascii() else _without_article(word)
    return int.from_bytes(blake2b(known.encode(), digest_size=7).digest())


def _without_article(word: str) -> str:
    """Arabic writes "the" and its noun as one word; what is left must still be one."""
    return word.removeprefix(_ARABIC_THE) if len(word) > len(_ARABIC_THE) + 2 else word
