"""Scrubjay side by side with its peers, in one run, as ratios.

    make bench            everything        make bench ARGS="get set"        some of it

The machines that this runs on are noisy, so the candidates take turns, many short rounds each, and the
best round counts: noise only ever adds time. Values change from write to write, because SQLite skips
a write of equal bytes.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import botwire
import diskcache
from load import http, requests_per_second

from scrubjay import Memory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness import Server, clean_environment, serving

KEYS = [f"key-{i}" for i in range(100)]
NUMBERS = itertools.count()


def value() -> dict[str, object]:
    """What an agent keeps, different each time."""
    return {"name": "Sarah", "likes": ["TypeScript", "tea"], "seen": next(NUMBERS)}


def microseconds(
    candidates: dict[str, Callable[[int], object]], rounds: int = 40, calls: int = 250
) -> dict[str, float]:
    """The best time of a call for each candidate, which take turns."""
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        for name, call in candidates.items():
            started = time.perf_counter()
            for i in range(calls):
                call(i)
            best[name] = min(best[name], (time.perf_counter() - started) / calls * 1e6)
    return best


def show(title: str, times: dict[str, float], claims: list[tuple[str, float, float, str]], unit: str = "µs") -> None:
    print(f"\n{title}")
    for name, figure in times.items():
        print(f"  {figure:12,.1f} {unit}  {name}")
    for words, ratio, aim, direction in claims:
        met = ratio <= aim if direction == "at most" else ratio >= aim
        print(f"  {ratio:12,.2f} ×   {words} (aim: {direction} {aim:g}) {'yes' if met else 'NO'}")


def bare_sqlite(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE bare (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")
    return connection


def bench_get(folder: Path) -> None:
    memory, cache = Memory("bench", path=str(folder / "get.db")), diskcache.Cache(folder / "get-cache")
    bare = bare_sqlite(folder / "get-bare.db")
    for key in KEYS:
        stored = value()
        memory.set(key, stored)
        cache.set(key, stored)
        bare.execute("INSERT INTO bare VALUES (?, ?)", (key, json.dumps(stored)))
    select = "SELECT value FROM bare WHERE key = ?"
    times = microseconds(
        {
            "Memory.get, embedded": lambda i: memory.get(KEYS[i % 100]),
            "diskcache get": lambda i: cache.get(KEYS[i % 100]),
            "sqlite3 select and json.loads": lambda i: json.loads(bare.execute(select, (KEYS[i % 100],)).fetchone()[0]),
        }
    )
    ours, disk, plain = times.values()
    claims = [("diskcache's time", ours / disk, 1, "at most"), ("bare sqlite3's time", ours / plain, 2, "at most")]
    show("embedded get", times, claims)


def bench_set(folder: Path) -> None:
    memory = Memory("bench", path=str(folder / "set.db"), durability="fast")
    cache = diskcache.Cache(folder / "set-cache")
    times = microseconds(
        {
            "Memory.set, embedded, fast": lambda i: memory.set(KEYS[i % 100], value()),
            "diskcache set": lambda i: cache.set(KEYS[i % 100], value()),
        }
    )
    ours, disk = times.values()
    show("embedded set", times, [("diskcache's time", ours / disk, 1, "at most")])


def bench_append(folder: Path) -> None:
    memory = Memory("bench", path=str(folder / "append.db"), durability="fast")
    memory.append("long", *(value() for _ in range(10_000)))
    fresh = itertools.count()
    times = microseconds(
        {
            "append, among the first 250": lambda _: memory.append(f"short-{next(fresh) // 250}", value()),
            "append, after the 10,000th": lambda _: memory.append("long", value()),
        },
        rounds=30,
    )
    first, later = times.values()
    show("append", times, [("the first's time", later / first, 1.2, "at most")])


EMPTY = """
import sys, uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.get("/")
async def empty():
    return {"value": 1}
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)
"""


@contextmanager
def empty_fastapi(port: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", EMPTY, str(port)], env=clean_environment())
    try:
        time.sleep(2)
        yield
    finally:
        process.terminate()
        process.wait()


def per_second(candidates: dict[str, Callable[[], float]], rounds: int = 5) -> dict[str, float]:
    best = dict.fromkeys(candidates, 0.0)
    for _ in range(rounds):
        for name, measure in candidates.items():
            best[name] = max(best[name], measure())
    return best


def unlimited(path: Path) -> Server:
    return serving(path, "--writes-per-day", "0", "--max-bytes", "0")


def put(i: int) -> bytes:
    return http("PUT", f"/v1/namespaces/bench/items/{KEYS[i % 100]}", json.dumps({"value": value()}))


def commits_per_second(folder: Path, count: int = 400) -> float:
    """A plain loop: one write, one commit, one fsync."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "loop.db"
    connection = bare_sqlite(path)
    upsert = "INSERT INTO bare VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    started = time.perf_counter()
    for i in range(count):
        connection.execute(upsert, (KEYS[i % 100], json.dumps(value())))
    return count / (time.perf_counter() - started)


def bench_http(folder: Path) -> None:
    with unlimited(folder / "http.db") as server, empty_fastapi(server.port + 1):
        with Memory("bench", url=server.url) as memory:
            memory.set("user", value())
        get = http("GET", "/v1/namespaces/bench/items/user")
        root = http("GET", "/")
        rates = per_second(
            {
                "HTTP GET of a value, 16 connections": lambda: requests_per_second(server.port, lambda _: get),
                "an empty FastAPI route, 16 connections": lambda: requests_per_second(server.port + 1, lambda _: root),
                "HTTP PUT, durable, 16 connections": lambda: requests_per_second(server.port, put),
                "SQLite loop, one commit a write, FULL": lambda: commits_per_second(folder),
            }
        )
        got, empty, wrote, loop = rates.values()
        claims = [
            ("the empty route's rate", got / empty, 1, "at least"),
            ("the loop's rate", wrote / loop, 8, "at least"),
        ]
        show("HTTP", rates, claims, unit="/s")


def bench_client(folder: Path) -> None:
    with unlimited(folder / "client.db") as server, Memory("bench", url=server.url) as ours:
        theirs = botwire.Memory("bench", base_url=server.url)
        ours.set("user", value())
        times = microseconds(
            {
                "Memory.get over HTTP": lambda _: ours.get("user"),
                "the botwire package's get, same server": lambda _: theirs.get("user"),
            },
            rounds=10,
            calls=100,
        )
        us, them = times.values()
        show("clients", times, [("botwire's time", us / them, 0.5, "at most")])


def bench_import(_folder: Path) -> None:
    program = "import time; t = time.perf_counter(); import scrubjay; print((time.perf_counter() - t) * 1000)"
    run = lambda: float(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)  # noqa: E731
    took = min(run() for _ in range(10))
    show("import scrubjay", {"import scrubjay": took}, [("60 ms", took / 60, 1, "at most")], unit="ms")


BENCHES = {name.removeprefix("bench_"): run for name, run in list(globals().items()) if name.startswith("bench_")}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for name in sys.argv[1:] or BENCHES:
            BENCHES[name](Path(folder))
