"""Word lists: stop words, which say nothing about the subject of a sentence, and words that start a question.

Where notes in one language are few among many, its articles and question words are rare in the index, and rare words
weigh the most. A query drops the stop words of every language, unless nothing else is left: NAS, CES and Uno are found
by their names. The index drops only the English ones.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_DATA = Path(__file__).with_name("data")


@cache
def english() -> frozenset[str]:
    """The stop words that the index drops."""
    return frozenset(_read("stopwords.txt")["English"])


@cache
def all_languages() -> frozenset[str]:
    """The stop words that a query drops."""
    return frozenset(word for words in _read("stopwords.txt").values() for word in words)


@cache
def question_words() -> frozenset[str]:
    """The words that a question starts with, in languages that are written with spaces."""
    lists = _read("questions.txt")
    return frozenset(word for language in lists.keys() - {"unspaced"} for word in lists[language])


@cache
def question_parts() -> tuple[str, ...]:
    """The texts that occur only in questions, in scripts without spaces."""
    return tuple(_read("questions.txt")["unspaced"])


@cache
def times() -> dict[str, dict[str, int]]:
    """The words for times by kind, each with its number."""
    lists = _read("times.txt")
    del lists["open questions"]
    return {kind: dict(zip(words[::2], map(int, words[1::2]), strict=True)) for kind, words in lists.items()}


@cache
def open_questions() -> frozenset[str]:
    """The words of a question that asks for nothing but a time."""
    return frozenset(_read("times.txt")["open questions"])


@cache
def fillers() -> frozenset[str]:
    """The words of messages that ask for no note."""
    return frozenset(word for words in _read("fillers.txt").values() for word in words) | all_languages()


@cache
def light_verbs() -> frozenset[str]:
    """The forms of verbs that say little without their object."""
    return frozenset(_read("light_verbs.txt")["English"])


@cache
def change_words() -> tuple[frozenset[str], tuple[str, ...]]:
    """Words, and parts of texts, that say that something is different from before."""
    lists = _read("changes.txt")
    words = [word for language in lists.keys() - {"unspaced"} for word in lists[language]]
    parts = [word.replace("_", " ") for word in words if "_" in word]
    return frozenset(words), (*parts, *lists["unspaced"])


def _read(name: str) -> dict[str, list[str]]:
    """The sections of a file with their words."""
    found: dict[str, list[str]] = {}
    for line in (_DATA / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            words = found.setdefault(line[1:-1], [])
        elif not line.startswith("#"):
            words += line.split()
    return found
