"""What a call costs as a namespace and a database grow, for `make bench ARGS=growth`.

Keys and the log of changes are filled in by SQL, and notes by an import, because a million calls would take an hour;
the calls that are timed are those of Memory. The notes have few different words, so each is in a large part of them,
which is the hardest case for recall.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from scrubjay import Memory
from scrubjay.commands import KEYS
from scrubjay.store import export

NAMESPACE = "bench"
ROUNDS = 10
ENGINES = ("SQLite", "PostgreSQL")
KEYS_OF_OTHERS = 2
"""Keys in each of the other namespaces."""
WORDS = [
    a + b for a in ("ba", "ke", "li", "mo", "nu", "pa", "ro", "si", "ta", "ve") for b in ("dor", "lim", "nak", "rus")
]
NAMES = ("Sarah", "Tom", "Aiko", "Ben", "Chloe", "Dario", "Elif", "Farid")
QUERIES = ("What does Sarah say about badors and tanaks?", "Who likes the molim of the veruses?", "kerus pador")
_numbers = itertools.count()
_randomness = random.Random(1)

ITEMS = "namespace, key, value, length, bytes, version, created_at, updated_at, expires_at"
CHANGES = "at, actor, verb, namespace, key, bytes"
USAGE = "namespace, keys, notes, bytes, day, writes, version_floor"


class Size(NamedTuple):
    name: str
    keys: int
    notes: int
    namespaces: int


SIZES = (
    Size("1,000 keys", 1_000, 1_000, 1),
    Size("100,000 keys", 100_000, 10_000, 1),
    Size("1,000,000 keys", 1_000_000, 100_000, 1),
    Size("100,000 namespaces", 1_000, 1_000, 100_000),
)


def bench(folder: Path, postgres: Any) -> None:
    for engine in ENGINES:
        with contextlib.ExitStack() as stack:
            memories: dict[Size, Memory] = {}
            databases: dict[Size, Sqlite | PostgreSQL] = {}
            for size in SIZES:
                where = (
                    {"path": str(folder / f"{size.name}.db")} if engine == "SQLite" else {"url": postgres.fresh_url()}
                )
                memories[size] = stack.enter_context(Memory(NAMESPACE, durability="fast", **where))
                import_notes(memories[size], size.notes, folder / "notes.jsonl")
                databases[size] = Sqlite(where["path"]) if engine == "SQLite" else PostgreSQL(where["url"])
                fill(databases[size], size)
                print(f"{engine}, {size.name}: {databases[size].size()}", flush=True)
            show(engine, memories, databases)


def import_notes(memory: Memory, count: int, path: Path) -> None:
    """Store notes by an import, in one transaction: a commit for each would take an hour."""
    first = int(time.time() * 1000)
    header = {"format": "scrubjay-export", "version": 1, "namespace": NAMESPACE, "version_floor": 0}
    with path.open("w") as file:
        print(json.dumps(header), file=file)
        for number in range(count):
            content = f"{NAMES[number % 8]} likes {' '.join(_randomness.choices(WORDS, k=2))} {number}"
            note = {
                "kind": "note", "id": str(first * 1000 + number), "content": content,
                "type": None, "session": None, "times": 1, "created_at": first, "updated_at": first,
                "expires_at": None, "tags": [], "metadata": {}, "pinned": False, "superseded_by": None,
            }  # fmt: skip
            print(json.dumps(note), file=file)
        print(json.dumps({"kind": "end", "lines": count + 2}, separators=(",", ":")), file=file)
    memory._executor._store.run(export.import_namespace(NAMESPACE, path))  # noqa: SLF001


# ------------------------------------------------------------ databases


class Sqlite:
    """A file, with the texts that differ."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection = sqlite3.connect(path, isolation_level=None)
        for setting in ("cache_size = -1000000", "temp_store = MEMORY", "synchronous = OFF"):
            self._connection.execute(f"PRAGMA {setting}")
        self._connection.execute("BEGIN")

    def execute(self, text: str, *params: object) -> list[Any]:
        return self._connection.execute(text, params).fetchall()

    def insert(self, table: str, columns: str, rows: Iterable[tuple[object, ...]]) -> None:
        marks = ", ".join("?" * (columns.count(",") + 1))
        self._connection.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)

    def insert_changes(self, rows: Iterable[tuple[object, ...]]) -> None:
        self.insert("changes", CHANGES, rows)

    def finish(self) -> None:
        self._connection.execute("COMMIT")
        self._connection.close()

    def pages(self, _memory: Memory) -> int:
        """Not counted."""
        return 0

    def cpu_seconds(self) -> float:
        """The CPU time of this process, which does all the work."""
        return time.process_time()

    def size(self) -> str:
        return f"{Path(self._path).stat().st_size / 1e6:,.0f} MB"


class PostgreSQL:
    """A schema, with the texts that differ."""

    def __init__(self, url: str) -> None:
        address, _, self._schema = url.partition("?schema=")
        self._connection = psycopg.connect(address, autocommit=True)
        self._connection.execute(f"SET search_path = {self._schema}")

    def execute(self, text: str, *params: object) -> list[Any]:
        cursor = self._connection.execute(text.replace("?", "%s"), params)
        return cursor.fetchall() if cursor.description else []

    def insert(self, table: str, columns: str, rows: Iterable[tuple[object, ...]]) -> None:
        with self._connection.cursor().copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def insert_changes(self, rows: Iterable[tuple[object, ...]]) -> None:
        ((last,),) = self.execute("SELECT coalesce(max(number), 0) FROM changes")
        numbers = itertools.count(last + 1)
        self.insert("changes", f"number, {CHANGES}", ((next(numbers), *row) for row in rows))

    def finish(self) -> None:
        for table in ("namespaces", "items", "notes", "note_words", "erasable_blobs", "changes"):
            self.execute(f"VACUUM ANALYZE {table}")  # as autovacuum does after a minute

    def pages(self, memory: Memory) -> int:
        """The pages of this schema that were read so far."""
        store = memory._executor._store  # noqa: SLF001
        connection = store.take()
        connection.execute("SELECT pg_stat_force_next_flush()")
        store.put_back(connection)
        counters = ("heap_blks_hit", "heap_blks_read", "idx_blks_hit", "idx_blks_read")
        total = " + ".join(f"coalesce({each}, 0)" for each in counters)
        ((read,),) = self.execute(
            f"SELECT sum({total})::bigint FROM pg_statio_user_tables WHERE schemaname = ?", self._schema
        )
        return int(read)

    def cpu_seconds(self) -> float:
        """The CPU time of this process and of the processes of PostgreSQL that work for it; on Linux only."""
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'scrubjay'"
        stats = [Path(f"/proc/{pid}/schedstat").read_text() for (pid,) in self.execute(query)]
        return time.process_time() + sum(int(each.split()[0]) for each in stats) / 1e9

    def size(self) -> str:
        tables = """SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r'
            AND relnamespace = to_regnamespace(?) ORDER BY 2 DESC LIMIT 6"""
        return ", ".join(f"{table} {size / 1e6:,.0f} MB" for table, size in self.execute(tables, self._schema))


def value(number: int) -> str:
    return f'{{"name":"Sarah","likes":["TypeScript","tea"],"seen":{number}}}'


def key(number: int) -> str:
    return f"key-{number:07}"


def fill(database: Sqlite | PostgreSQL, size: Size) -> None:
    now = int(time.time() * 1000)
    others = [f"other-{number:06}" for number in range(size.namespaces - 1)]
    keys = [(NAMESPACE, key(n)) for n in range(size.keys)]
    keys += [(name, key(n)) for name in others for n in range(KEYS_OF_OTHERS)]
    bytes_each = len(key(0)) + len(value(1000))
    items = ((*each, value(1000), None, bytes_each, n + 1, now, now, None) for n, each in enumerate(keys))
    database.insert("items", ITEMS, items)
    database.insert_changes((now, "bench", "set", *each, bytes_each) for each in keys)
    database.insert(
        "namespaces", USAGE, ((name, KEYS_OF_OTHERS, 0, KEYS_OF_OTHERS * bytes_each, 0, 0, 0) for name in others)
    )
    database.execute(
        "UPDATE namespaces SET keys = ?, bytes = bytes + ? WHERE namespace = ?",
        *(size.keys, size.keys * bytes_each, NAMESPACE),
    )
    database.finish()


# ------------------------------------------------------------ calls


def show(engine: str, memories: dict[Size, Memory], databases: dict[Size, Sqlite | PostgreSQL]) -> None:
    """The least CPU time of each call at each size, of many short rounds in which the sizes take turns.

    Of PostgreSQL also the pages that a call reads.
    """
    print(f"\n{engine}, µs for a call\n  {'':12}" + "".join(f"{size.name:>26}" for size in memories))
    for verb, (call, calls) in CALLS.items():
        times: dict[Size, list[float]] = {size: [] for size in memories}
        pages: dict[Size, float] = {}
        for turn in range(ROUNDS):
            for size, memory in memories.items():
                before = databases[size].pages(memory) if turn == ROUNDS - 1 else 0
                started = databases[size].cpu_seconds()
                for _ in range(calls):
                    call(memory, size)
                times[size].append((databases[size].cpu_seconds() - started) / calls * 1e6)
                if turn == ROUNDS - 1:
                    pages[size] = (databases[size].pages(memory) - before) / calls
        first = min(next(iter(times.values())))
        cells = (
            f"{min(times[size]):12,.0f} {min(times[size]) / first:4.1f}× {pages[size]:5.0f} p" for size in memories
        )
        print(f"  {verb:12}" + "".join(f"{cell:>26}" for cell in cells), flush=True)


def some_key(size: Size) -> str:
    return key(_randomness.randrange(size.keys))


CALLS: dict[str, tuple[Callable[[Memory, Size], object], int]] = {
    "get": (lambda memory, size: memory.get(some_key(size)), 50),
    "set": (lambda memory, size: memory.set(some_key(size), value(next(_numbers))), 20),
    "append": (lambda memory, _: memory.append("log", value(next(_numbers))), 20),
    "keys, 100": (lambda memory, size: memory._executor.run(KEYS(NAMESPACE, "", some_key(size), 100)), 10),  # noqa: SLF001
    "recall": (lambda memory, _: memory.recall(QUERIES[next(_numbers) % len(QUERIES)]), 3),
    "remember": (lambda memory, _: memory.remember(f"Tom likes the badors number {next(_numbers)}"), 5),
    "usage": (lambda memory, _: memory.usage(), 10),
}
"""Each verb, and how often it is called in a round."""
