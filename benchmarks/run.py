"""Scrubjay side by side with its peers, in one run, as ratios.

    make bench            everything        make bench ARGS="get set"        some of it

Machines are noisy, so the candidates take turns, many short rounds each, and the median round counts. Values change
from write to write, because SQLite skips a write of equal bytes. Redis takes part if `redis-server` is installed, and
BotWire's own server (github.com/pmestre-Forge/signal-api) if BOTWIRE_SERVER is the URL of one on this machine.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import adapter_cases
import adapter_times
import botwire
import diskcache
import growth
import lmdb
import psycopg
import redis
from agents import SQLiteSession
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from load import http, requests_per_second

from scrubjay import Memory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "adapters"))
import frameworks
from environments import environment
from versions import VERSIONS

from harness import Server, clean_environment, serving
from postgres import Postgres

KEYS = [f"key-{i}" for i in range(100)]
NUMBERS = itertools.count()


def value() -> dict[str, object]:
    """What an agent keeps, different each time."""
    return {"name": "Sarah", "likes": ["TypeScript", "tea"], "seen": next(NUMBERS)}


def microseconds(
    candidates: dict[str, Callable[[int], object]], rounds: int = 40, calls: int = 250
) -> dict[str, float]:
    """The median time of a call for each candidate, which take turns."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            started = time.perf_counter()
            for i in range(calls):
                call(i)
            times[name].append((time.perf_counter() - started) / calls * 1e6)
    return {name: statistics.median(each) for name, each in times.items()}


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


class Lmdb:
    """LMDB with JSON values; without sync it is as durable as Memory's durability="fast"."""

    def __init__(self, path: Path) -> None:
        self._environment = lmdb.open(str(path), map_size=2**30, sync=False)

    def set(self, key: str, value: object) -> None:
        with self._environment.begin(write=True) as transaction:
            transaction.put(key.encode(), json.dumps(value).encode())

    def get(self, key: str) -> object:
        with self._environment.begin() as transaction:
            return json.loads(transaction.get(key.encode()))


class Redis:
    """Redis on a socket of this machine, with JSON values."""

    def __init__(self, port: int) -> None:
        self._client = redis.Redis(port=port)

    def set(self, key: str, value: object) -> None:
        self._client.set(key, json.dumps(value))

    def get(self, key: str) -> object:
        return json.loads(self._client.get(key))

    def append(self, key: str, value: object) -> None:
        self._client.rpush(key, json.dumps(value))


@contextmanager
def redis_server(folder: Path, fsync: str = "everysec") -> Iterator[Redis | None]:
    """None if there is no redis-server on this machine. `fsync`: when it writes its log to the disk."""
    program = shutil.which("redis-server")
    if program is None:
        print("\nredis-server is not installed, so its rows are left out (Debian: apt-get install redis-server)")
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    options = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes")
    process = subprocess.Popen([program, *options, "--appendfsync", fsync], stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        yield Redis(port)
    finally:
        process.terminate()
        process.wait(timeout=30)


def bench_get(folder: Path) -> None:
    memory, cache = Memory("bench", path=str(folder / "get.db")), diskcache.Cache(folder / "get-cache")
    bare = bare_sqlite(folder / "get-bare.db")
    for key in KEYS:
        stored = value()
        memory.set(key, stored)
        cache.set(key, stored)
        bare.execute("INSERT INTO bare VALUES (?, ?)", (key, json.dumps(stored)))
    select = "SELECT value FROM bare WHERE key = ?"
    peer = Lmdb(folder / "get-lmdb")
    for key in KEYS:
        peer.set(key, value())
    candidates = {
        "Memory.get, embedded": lambda i: memory.get(KEYS[i % 100]),
        "diskcache get": lambda i: cache.get(KEYS[i % 100]),
        "sqlite3 select and json.loads": lambda i: json.loads(bare.execute(select, (KEYS[i % 100],)).fetchone()[0]),
        "LMDB get and json.loads": lambda i: peer.get(KEYS[i % 100]),
    }
    with redis_server(folder) as remote:
        if remote:
            for key in KEYS:
                remote.set(key, value())
            candidates["Redis get and json.loads"] = lambda i: remote.get(KEYS[i % 100])
        times = microseconds(candidates)
    ours, disk, plain, *_ = times.values()
    claims = [("diskcache's time", ours / disk, 1, "at most"), ("bare sqlite3's time", ours / plain, 2, "at most")]
    show("embedded get", times, claims)


def bench_set(folder: Path) -> None:
    memory = Memory("bench", path=str(folder / "set.db"), durability="fast")
    cache = diskcache.Cache(folder / "set-cache")
    peer = Lmdb(folder / "set-lmdb")
    candidates = {
        "Memory.set, embedded, fast": lambda i: memory.set(KEYS[i % 100], value()),
        "diskcache set": lambda i: cache.set(KEYS[i % 100], value()),
        "LMDB put, without sync": lambda i: peer.set(KEYS[i % 100], value()),
    }
    with redis_server(folder) as remote:
        if remote:
            candidates["Redis set, log each second"] = lambda i: remote.set(KEYS[i % 100], value())
        times = microseconds(candidates)
    ours, disk, *_ = times.values()
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


def bench_messages(folder: Path) -> None:
    """Storing one message of a conversation, durable, beside the memories of other frameworks."""
    memory = Memory("bench", path=str(folder / "messages.db"))
    session = SQLiteSession("bench", str(folder / "session.db"))
    loop = asyncio.new_event_loop()
    message = lambda: {"role": "user", "content": f"message {next(NUMBERS)}"}  # noqa: E731
    with SqliteStore.from_conn_string(str(folder / "langgraph.db")) as store:
        store.setup()
        times = microseconds(
            {
                "Memory.append, durability full": lambda _: memory.append("history", message()),
                "OpenAI Agents SQLiteSession.add_items": lambda _: loop.run_until_complete(
                    session.add_items([message()])
                ),
                "LangGraph SqliteStore.put": lambda i: store.put(("bench",), f"m{i}", message()),
            },
            rounds=10,
            calls=50,
        )
    loop.close()
    session.close()
    ours, *others = times.values()
    show("a message of a conversation", times, [("the faster peer's time", ours / min(others), 1, "at most")])


FASTAPI = """
import sys, uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.get("/")
async def empty():
    return {"value": 1}
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)
"""
ASGI = """
import sys, uvicorn
body = b'{"value":{"name":"Sarah","likes":["TypeScript","tea"],"seen":1},"version":1}'
headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False, lifespan="off")
"""


@contextmanager
def running(program: str, port: int) -> Iterator[None]:
    """A Python program that serves HTTP on a port, in a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", program, str(port)], env=clean_environment())
    try:
        time.sleep(2)
        yield
    finally:
        process.terminate()
        process.wait()


def per_second(candidates: dict[str, Callable[[], float]], rounds: int = 5) -> dict[str, float]:
    """The median rate of each candidate, which take turns."""
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, measure in candidates.items():
            rates[name].append(measure())
    return {name: statistics.median(each) for name, each in rates.items()}


def unlimited(path: Path, *flags: str) -> Server:
    return serving(path, "--writes-per-day", "0", "--max-bytes", "0", *flags)


def put(i: int) -> bytes:
    return http("PUT", f"/v1/namespaces/bench/items/{KEYS[i % 100]}", json.dumps({"value": value()}))


def botwire_put(i: int) -> bytes:
    return http("PUT", f"/memory/bench/{KEYS[i % 100]}", json.dumps({"value": json.dumps(value())}))


def put_to_many(i: int) -> bytes:
    return http("PUT", f"/v1/namespaces/bench-{i % 16}/items/{KEYS[i % 100]}", json.dumps({"value": value()}))


def get(i: int) -> bytes:
    return http("GET", f"/v1/namespaces/bench/items/{KEYS[i % 100]}")


def append(i: int) -> bytes:
    return http("POST", f"/v1/namespaces/bench/lists/{KEYS[i % 100]}-list", json.dumps({"items": [value()]}))


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
    with (
        unlimited(folder / "http.db") as server,
        running(FASTAPI, server.port + 1),
        running(ASGI, server.port + 2),
    ):
        with Memory("bench", url=server.url) as memory:
            memory.set("user", value())
            memory.set("key-1", value())
            memory.append("list", *(value() for _ in range(100)))
        get, root = http("GET", "/v1/namespaces/bench/items/user"), http("GET", "/")
        botwire_get, tail = http("GET", "/memory/bench/key-1"), http("GET", "/v1/namespaces/bench/lists/list?tail=20")
        candidates = {
            "GET of a value": lambda: requests_per_second(server.port, lambda _: get),
            "GET of a value, BotWire's API": lambda: requests_per_second(server.port, lambda _: botwire_get),
            "GET of the last 20 items of a list": lambda: requests_per_second(server.port, lambda _: tail),
            "a bare ASGI application": lambda: requests_per_second(server.port + 2, lambda _: root),
            "an empty FastAPI route": lambda: requests_per_second(server.port + 1, lambda _: root),
            "PUT, durable": lambda: requests_per_second(server.port, put),
            "PUT, durable, BotWire's API": lambda: requests_per_second(server.port, botwire_put),
            "append, durable": lambda: requests_per_second(server.port, append),
            "SQLite loop, one commit a write, FULL": lambda: commits_per_second(folder),
        }
        if peer := os.environ.get("BOTWIRE_SERVER"):
            port = urlsplit(peer).port or 80
            requests_per_second(port, botwire_put, count=200)
            candidates["GET, BotWire's own server"] = lambda: requests_per_second(port, lambda _: botwire_get)
            candidates["PUT, BotWire's own server"] = lambda: requests_per_second(port, botwire_put)
        rates = per_second(candidates)
        got, botwire_got, _, asgi, fastapi, _, botwire_wrote, _, _, *peers = rates.values()
        claims = [
            ("the rate of bare ASGI: GET", got / asgi, 0.5, "at least"),
            ("the rate of bare ASGI: GET, BotWire's API", botwire_got / asgi, 0.5, "at least"),
            ("the rate of an empty FastAPI route: GET", got / fastapi, 1, "at least"),
        ]
        if peers:
            claims.append(("the rate of BotWire's own server: PUT", botwire_wrote / peers[1], 4, "at least"))
        show("HTTP, 16 connections", rates, claims, unit="/s")


def bench_postgres(folder: Path) -> None:
    """PostgreSQL beside psycopg, LangGraph's PostgresStore and durable Redis; a server on it beside one on a file."""
    database = Postgres(folder.absolute(), fsync="on", full_page_writes="on", wal_level="replica")
    try:
        url = database.fresh_url()
        with (
            psycopg.connect(database.url, autocommit=True) as bare,
            PostgresStore.from_conn_string(database.url) as langgraph,
            redis_server(folder, "always") as durable_redis,
            Memory("bench", url=url) as ours,
        ):
            langgraph.setup()
            _bench_postgres_client(bare, ours, langgraph, durable_redis)
        # Not before: a server listens, and every write would also wake it.
        quota = ("--writes-per-day", "0", "--max-bytes", "0")
        with (
            unlimited(folder / "served.db") as on_file,
            serving(folder, *quota, "--store", database.fresh_url()) as on_postgres,
        ):
            _bench_postgres_servers(on_postgres, on_file)
    finally:
        database.close()


def _bench_postgres_servers(on_postgres: Server, on_file: Server) -> None:
    kinds = {"PUT": put, "PUT to 16 namespaces": put_to_many, "append": append, "GET": get}
    for server in (on_file, on_postgres):
        for request in kinds.values():
            requests_per_second(server.port, request, count=200)
    for kind, request in kinds.items():
        rates = per_second(
            {
                f"{kind}, a server on PostgreSQL": lambda r=request: requests_per_second(
                    on_postgres.port, r, count=1000
                ),
                f"{kind}, a server on a file": lambda r=request: requests_per_second(on_file.port, r, count=1000),
            },
        )
        ours, theirs = rates.values()
        claims = [(f"the rate of a server on a file: {kind}", ours / theirs, 0.5, "at least")]
        show("HTTP on PostgreSQL, 16 connections", rates, claims, unit="/s")


def _bench_postgres_client(
    bare: psycopg.Connection, ours: Memory, langgraph: PostgresStore, durable_redis: Redis | None
) -> None:
    bare.execute("CREATE TABLE kv (ns text, key text, value text, PRIMARY KEY (ns, key))")
    bare.execute("CREATE TABLE log (id bigserial PRIMARY KEY, ns text, key text, value text)")
    upsert = "INSERT INTO kv VALUES (%s, %s, %s) ON CONFLICT (ns, key) DO UPDATE SET value = excluded.value"
    for key in KEYS:
        ours.set(key, value())
        bare.execute(upsert, ("bench", key, json.dumps(value())))
        langgraph.put(("bench",), key, value())

    def bare_get(i: int) -> object:
        query = "SELECT value FROM kv WHERE ns = %s AND key = %s"
        return json.loads(bare.execute(query, ("bench", KEYS[i % 100])).fetchone()[0])

    peers: dict[str, Callable[[int], object]] = {
        "LangGraph's PostgresStore.get": lambda i: langgraph.get(("bench",), KEYS[i % 100])
    }
    if durable_redis:
        for key in KEYS:
            durable_redis.set(key, value())
        peers["Redis GET"] = lambda i: durable_redis.get(KEYS[i % 100])
    got = microseconds({"Memory.get": lambda i: ours.get(KEYS[i % 100]), "psycopg SELECT": bare_get, **peers}, 20, 50)
    us, them, *_ = got.values()
    show("get on PostgreSQL", got, [("psycopg's time", us / them, 1.5, "at most")])
    peers = {"LangGraph's PostgresStore.put": lambda i: langgraph.put(("bench",), KEYS[i % 100], value())}
    if durable_redis:
        peers["Redis SET, appendfsync always"] = lambda i: durable_redis.set(KEYS[i % 100], value())
        peers["Redis RPUSH, appendfsync always"] = lambda _: durable_redis.append("log", value())
    wrote = microseconds(
        {
            "Memory.set": lambda i: ours.set(KEYS[i % 100], value()),
            "psycopg upsert, committed": lambda i: bare.execute(upsert, ("bench", KEYS[i % 100], json.dumps(value()))),
            "Memory.append": lambda _: ours.append("log", value()),
            "psycopg INSERT, committed": lambda _: bare.execute(
                "INSERT INTO log (ns, key, value) VALUES (%s, %s, %s)", ("bench", "log", json.dumps(value()))
            ),
            **peers,
        },
        20,
        20,
    )
    set_, upserted, appended, inserted, *_ = wrote.values()
    claims = [
        ("the time of an upsert: set", set_ / upserted, 2, "at most"),
        ("the time of an INSERT: append", appended / inserted, 2, "at most"),
    ]
    show("durable writes on PostgreSQL", wrote, claims)


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


def bench_autogen(_folder: Path) -> None:
    """Agents of AutoGen, in the environment of the adapter's tests."""
    print("\nAutoGen")
    subprocess.run(
        [environment("autogen-0.14.1", VERSIONS["0.14.1"]), Path(__file__).with_name("autogen_turns.py")], check=True
    )


def bench_frameworks(folder: Path) -> None:
    """The adapters beside the frameworks' own classes: three aims, and a table of all, in their tests' environments."""
    adapter_times.bench(folder, microseconds, show)
    print(
        "\nEach adapter beside its framework's class: CPU time as a ratio, and in microseconds; elapsed time as a ratio"
    )
    print("\n| adapter | beside | add one | read the last 20 | start with 5,000 |\n|---|---|---|---|---|")
    others = [name for name in adapter_cases.CASES if name not in frameworks.OWN]
    pythons = {name: (environment(name, *needed), [name]) for name, needed in frameworks.OWN.items()}
    pythons["others"] = environment("frameworks", frameworks.SUITES_NEED, frameworks.EXTRAS), others
    for python, names in pythons.values():
        command = [python, "-W", "ignore", Path(adapter_cases.__file__), *names]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, **frameworks.QUIET}
        ) as process:
            for line in process.stdout or ():
                print(adapter_cases.row(json.loads(line)), flush=True)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)


def bench_growth(folder: Path) -> None:
    """Calls at a thousand to a million keys and notes, and among 100,000 namespaces; takes some minutes."""
    # Autovacuum would read pages, too, which are counted.
    database = Postgres(folder.absolute(), shared_buffers="512MB", max_wal_size="4GB", autovacuum="off")
    try:
        growth.bench(folder, database)
    finally:
        database.close()


BENCHES = {name.removeprefix("bench_"): run for name, run in list(globals().items()) if name.startswith("bench_")}

if __name__ == "__main__":
    if unknown := set(sys.argv[1:]) - BENCHES.keys():
        sys.exit(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for name in sys.argv[1:] or BENCHES:
            BENCHES[name](Path(folder))
