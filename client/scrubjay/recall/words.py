"""Text as the index sees it: numbers that stand for stems.

A word is kept as 56 bits: 40 of its hash, and 16 that tell how it ends. Rows of the index are then small and equal,
comparing them is comparing integers, and the index holds no text that would have to be erased with a note.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from zlib import crc32

from .porter import stem
from .stopwords import ENGLISH, STOPWORDS

MAX_WORD_CHARS = 64
"""What of a word is looked at; nothing longer is a word."""

BEGINNING_CHARS = 4
ENDING_CHARS = 4
COMPOUND_CHARS = 10
"""How long a word must be to be taken for two that grew together."""
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
_DATE = re.compile(r"(?<!\d)(\d{4})-(0[1-9]|1[0-2])-(\d\d)(?!\d)")
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_SENTENCES = re.compile(r"[^.!?。！？]+[.!?。！？]?")
# What some write and others leave out: accents, Hebrew and Arabic vowels, joiners, the colour of an emoji.
_MARKS = re.compile(
    r"[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u065f\u0670\u200c\u200d\ufe0e\ufe0f"
    r"\U0001f3fb-\U0001f3ff]+"
)
_PLAIN = str.maketrans("ıłøđ", "ilod")
_ARABIC_THE = "ال"
# An umlaut as those write it who have no key for it; but not in neue, quer or poeira.
_UMLAUT = re.compile(r"(?<![aeiouyq])([aou])e(?=[^aeiouy])")
_ENDING = 0xFFFF


def only_asks(text: str) -> bool:
    """Whether a text ends in a question and says next to nothing else."""
    sentences = _SENTENCES.findall(text.strip())
    said = sum(len(split(sentence)) for sentence in sentences if sentence[-1] not in "?？")
    return bool(sentences) and text.rstrip()[-1] in "?？" and said <= MAX_ASIDE_WORDS


def split(text: str) -> list[str]:
    """The words of a text, without case and accents; runs without spaces as characters and pairs of them."""
    folded = text.lower() if text.isascii() else _folded(text)
    if "-" in folded:
        folded = _DATE.sub(_as_written, folded)
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


def _as_written(date: re.Match[str]) -> str:
    """2026-03-05 as 5 March 2026."""
    return f"{int(date[3])} {MONTHS[int(date[2]) - 1]} {date[1]} "


def _pieces(word: str, run: str) -> list[str]:
    pairs = [run[i : i + 2] for i in range(len(run) - 1)]
    return [*([word[:MAX_WORD_CHARS]] if word else []), *run, *pairs]


def count_words(text: str) -> Counter[int]:
    """How often each word that means something occurs; if none does, those that mean nothing count."""
    found = Counter(split(text))
    return _numbered({word: count for word, count in found.items() if word not in ENGLISH} or found)


def asked_words(text: str) -> list[int]:
    """What a question looks for: its words without those that mean nothing, in whatever language, if any are left."""
    told = [word for word in dict.fromkeys(split(text)) if word not in STOPWORDS]
    return list(dict.fromkeys(map(number, told))) or list(count_words(text))


def count_beginnings(text: str) -> Counter[int]:
    """How often each beginning of a longer word occurs: what is left when a language has no stemmer here.

    It finds Datenbanken by Datenbank, and retrospective by retro; and the ending of what may be a compound,
    which finds Kundendatenbank. Counted apart, as negative numbers, because they say less than the word does.
    """
    counts: Counter[int] = Counter()
    for word, count in Counter(split(text)).items():
        if len(word) > BEGINNING_CHARS and word not in STOPWORDS:
            counts[-number(f"{word[:BEGINNING_CHARS]}-")] += count
            is_compound = len(word) >= COMPOUND_CHARS and word.isascii() and len(root(word)) >= COMPOUND_CHARS
            if is_compound and (end := ending(number(word))):
                counts[end] += count
    return counts


def _numbered(words: Mapping[str, int]) -> Counter[int]:
    """Each word is looked at once, however often it occurs."""
    counts: Counter[int] = Counter()
    for word, count in words.items():
        counts[number(word)] += count
    return counts


@lru_cache(65_536)
def number(word: str) -> int:
    """What stands for a word in the index; its last 16 bits say how the word ends, if it may end a compound."""
    known = root(word)
    tail = crc32(known[-ENDING_CHARS:].encode()) & _ENDING if known.isascii() and len(known) >= ENDING_CHARS else 0
    return int.from_bytes(blake2b(known.encode(), digest_size=5).digest()) << 16 | tail


def ending(word: int) -> int:
    """What stands for all that may be compounds and end like this word, or 0."""
    return -(word & _ENDING)


@lru_cache(65_536)
def root(word: str) -> str:
    """What the forms of a word have in common."""
    return _uninflected(stem(word)) if word.isascii() else _without_article(word)


def _uninflected(word: str) -> str:
    """What Porter's English leaves of other languages: Tuer is Tür, chevaux is cheval, bambini is bambino."""
    if len(word) > 3:
        word = _UMLAUT.sub(r"\1", word)
    if len(word) > 5 and word.endswith("aux"):
        return f"{word[:-2]}l"
    if len(word) > 6:
        word = word.removesuffix("en")
    return word[:-1] if len(word) > 5 and word[-1] in "aeio" else word


def _without_article(word: str) -> str:
    """Arabic writes "the" and its noun as one word; what is left must still be one."""
    return word.removeprefix(_ARABIC_THE) if len(word) > len(_ARABIC_THE) + 2 else word
