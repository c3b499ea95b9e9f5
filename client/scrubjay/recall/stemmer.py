"""Porter's English stemmer: "decisions" and "decision" have one stem.

M. F. Porter, "An algorithm for suffix stripping", 1980, with the two departures of his own later
version (-bli, -logi).
"""

from __future__ import annotations

import re

_VOWEL_GROUPS = re.compile(r"v+c+")
_STEP_2 = (
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("logi", "log"),
)
_STEP_3 = (
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
)
_STEP_4 = (  # longest first
    *("ement", "ance", "ence", "able", "ible", "ment", "sion", "tion"),
    *("ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize", "al", "er", "ic", "ou"),
)


def stem(word: str) -> str:
    """The stem of a lower-case English word."""
    if len(word) < 3:
        return word
    word = _strip_past(_strip_plural(word))
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    word = _replace_suffix(_replace_suffix(word, _STEP_2), _STEP_3)
    return _tidy(_strip_suffix(word))


def _shape(word: str) -> str:
    """The word as vowels (v) and consonants (c); y after a consonant is a vowel."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """Porter's m: how many times a consonant follows a vowel."""
    return len(_VOWEL_GROUPS.findall(_shape(word)))


def _is_short(word: str) -> bool:
    """Whether a stem ends in consonant, vowel, consonant, as "hop" does; then an e was dropped."""
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"


def _strip_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _strip_past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    for suffix in ("ed", "ing"):
        trunk = word.removesuffix(suffix)
        if trunk != word and "v" in _shape(trunk):
            return _restore(trunk)
    return word


def _restore(trunk: str) -> str:
    """The verb that "hoping", "hopping" and "hosting" are made of."""
    if trunk.endswith(("at", "bl", "iz")):
        return trunk + "e"
    if len(trunk) > 1 and trunk[-1] == trunk[-2] and trunk[-1] not in "aeioulsz":
        return trunk[:-1]
    return trunk + "e" if _measure(trunk) == 1 and _is_short(trunk) else trunk


def _replace_suffix(word: str, endings: tuple[tuple[str, str], ...]) -> str:
    for ending, other in endings:
        if word.endswith(ending):
            trunk = word[: -len(ending)]
            return trunk + other if _measure(trunk) else word
    return word


def _strip_suffix(word: str) -> str:
    for ending in _STEP_4:
        if word.endswith(ending):
            trunk = word[: -len(ending)] + ending[0] if ending in ("sion", "tion") else word[: -len(ending)]
            return trunk if _measure(trunk) > 1 else word
    return word


def _tidy(word: str) -> str:
    """The stem without a final e, and with one l in place of two."""
    if word.endswith("e"):
        trunk = word[:-1]
        if _measure(trunk) > 1 or (_measure(trunk) == 1 and not _is_short(trunk)):
            word = trunk
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word
