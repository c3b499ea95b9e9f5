"""Real parts for the tests: a server process on loopback, and both drivers behind one `run`."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import io
import itertools
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote

from forking import ForkedServer
from scrubjay.cli import main
from scrubjay.store.operation import NO_QUOTA, Context, EngineSql, Operation
from scrubjay.store.sqlite import SqliteStore
from scrubjay.store.sqlite import erase as sqlite_erase
from scrubjay.store.sqlite.asyncio import AsyncStore
from scrubjay.store.sqlite.queries import QUERIES
from scrubjay.transport import Response
from scrubjay.version import __version__

DAY = 86_400
ALL_TABLES = (
    *("namespaces", "items", "list_items", "idempotency_keys", "api_keys", "erasable_blobs", "notes", "note_words"),
    *("note_vectors", "changes", "refusals", "key_envelope", "sign_ins", "requests"),
)
_numbers = itertools.count(1)


def fresh_name(prefix: str = "ns") -> str:
    """A namespace that no other test uses; none is the beginning of another."""
    return f"{prefix}-{os.getpid()}-{next(_numbers):06}"


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def eventually(holds: Callable[[], object], seconds: float = 120) -> None:
    """Wait until it holds: at once on an idle machine, and for as long as a busy one may need."""
    give_up_at = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up_at, f"it did not happen within {seconds} seconds"
        time.sleep(0.01)


def clean_environment(**variables: str) -> dict[str, str]:
    """The environment without any SCRUBJAY_* setting of the developer's own; clients wait for a busy machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SCRUBJAY_")}
    return {**kept, "SCRUBJAY_TIMEOUT": "60", **variables}


def run_command(*words: object, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
    """The `scrubjay` command in this process: the same result as a process of its own, in a tenth of the time."""
    streams = [io.TextIOWrapper(io.BytesIO(data), encoding="utf-8") for data in (stdin, b"", b"")]
    before = sys.stdin, sys.stdout, sys.stderr
    with mock.patch.dict(os.environ, clean_environment(**variables), clear=True):
        sys.stdin, sys.stdout, sys.stderr = streams
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:  # argparse
            code = int(ended.code or 0)
        finally:
            sys.stdin, sys.stdout, sys.stderr = before
    printed = []
    for stream in streams[1:]:
        stream.flush()
        printed.append(stream.buffer.getvalue())
    return subprocess.CompletedProcess(list(words), code, *printed)


def run_text(*words: object, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """The same, with text for input and output."""
    done = run_command(*words, stdin=stdin.encode(), **variables)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class AsgiTransport:
    """A transport to the service in this process, whose event loop runs in a thread of its own."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._lifespan = app.router.lifespan_context(app)
        self._run(self._lifespan.__aenter__())

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        return self._run(self._send(method, path, body, headers))

    def close(self) -> None:
        if self._loop.is_running():
            self._run(self._lifespan.__aexit__(None, None, None))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=60)
            self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    async def _send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        target, _, query = path.partition("?")
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": unquote(target),
            "raw_path": target.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(b"host", b"127.0.0.1"), *((k.lower().encode(), v.encode()) for k, v in headers.items())],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        received, sent = [{"type": "http.request", "body": body, "more_body": False}], []

        async def receive() -> Any:
            return received.pop() if received else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        start, data = sent[0], b"".join(message.get("body", b"") for message in sent[1:])
        found = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        found.setdefault("scrubjay-version", __version__)  # uvicorn adds it to every response
        return Response(start["status"], found, data)


class Clock:
    """Time that stands still until a test moves it."""

    def __init__(self, now: float = 20_000 * DAY + 3600.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Server:
    """`scrubjay serve` as a process of its own: forked, or started by its command if it has workers.

    `limits` replaces constants of scrubjay_limits: what takes twenty seconds by default can be seen in one.
    """

    def __init__(self, path: Path, *flags: str, port: int = 0, limits: Mapping[str, float] | None = None) -> None:
        self.path = path
        place = [] if "--store" in flags else ["--path", str(path)]
        arguments = ["--port", str(port), *place, *flags]
        if "--workers" in flags:
            command = [sys.executable, "-m", "scrubjay", "serve", *arguments]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            self.process = subprocess.Popen(command, **pipes, env=clean_environment())
        else:
            self.process = ForkedServer(arguments, clean_environment(), limits or {})
        self.banner = ""
        for line in self.process.stdout:
            self.banner += line
            if "stop" in line:
                break
        else:
            raise AssertionError(f"the server did not start: {self.process.stderr.read()}")
        self.url = re.search(r"serving at (\S+)", self.banner)[1]
        self.port = int(self.url.rpartition(":")[2]) if self.url.startswith("http") else 0

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop it by its process id and say how it ended."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(timeout=120)
        self.process.stdout.close()
        self.process.stderr.close()
        return code


def issue_key(path: Path, name: str, *flags: str) -> str:
    """An api key, made by the command as an administrator would."""
    SqliteStore(path).close()  # the command makes none
    issued = run_text("key", "issue", "--name", name, "--path", path, *flags)
    issued.check_returncode()
    return issued.stdout.split()[0]


@contextmanager
def serving(path: Path, *flags: str, port: int = 0, limits: Mapping[str, float] | None = None) -> Iterator[Server]:
    server = Server(path, *flags, port=port, limits=limits)
    try:
        yield server
    finally:
        server.stop()


def work_of(path: Path, operation: Operation[Any]) -> int:
    """How many instructions SQLite's virtual machine executes for an operation that reads."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the schema is read before the counting
        connection.set_progress_handler(step, 1)
        steps = operation.start(Context(0, NO_QUOTA))
        statement = next(steps)
        with contextlib.suppress(StopIteration):
            while True:
                query, params = statement
                statement = steps.send(connection.execute(QUERIES[query], params).fetchall())
    return count


class Driver:
    """A store behind one `run`, whichever engine and driver it has."""

    store: Any
    delete_rows = staticmethod(sqlite_erase.delete_rows)

    def query(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        """The rows of a query, which may also change some."""
        connection = self.store.take()
        try:
            cursor = connection.execute(self.text_of(text), params)
            return cursor.fetchall() if cursor.description else []
        finally:
            self.store.put_back(connection)

    def text_of(self, text: str) -> Any:
        return text

    @property
    def where(self) -> str:
        """The file, or the URL of the database."""
        return str(self.store.path)

    def dump(self) -> list[Any]:
        """All rows of all tables."""
        return [(table, sorted(map(repr, self.query(f"SELECT * FROM {table}")))) for table in ALL_TABLES]


class SyncDriver(Driver):
    """The store as embedded clients use it."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.store = SqliteStore(path, **options)

    def run(self, operation: Operation[Any]) -> Any:
        return self.store.run(operation)

    def close(self) -> None:
        self.store.close()


class AioDriver(Driver):
    """The store as the server uses it, driven from outside its loop."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.store = SqliteStore(path, **options)
        self._runner = asyncio.Runner()
        self._aio = self._runner.run(AsyncStore(self.store).__aenter__())

    def run(self, operation: Operation[Any]) -> Any:
        return self._runner.run(self._aio.run(operation))

    def gather(self, *operations: Operation[Any]) -> list[Any]:
        async def together() -> list[Any]:
            return await asyncio.gather(*map(self._aio.run, operations), return_exceptions=True)

        return self._runner.run(together())

    def close(self) -> None:
        self._runner.run(self._aio.__aexit__())
        self._runner.close()


@functools.cache
def postgres() -> Any:
    """One PostgreSQL for all tests of a process, started when the first needs it.

    It is imported here because the environments of the frameworks do not have it.
    """
    from postgres import Postgres

    server = Postgres()
    atexit.register(server.close)
    return server


@functools.cache
def schema_for(path: Path) -> str:
    """The URL of the schema that a test uses in place of a file."""
    return postgres().fresh_url()


class PostgresDriver(Driver):
    """The store in a PostgreSQL database."""

    def __init__(self, path: Path, **options: Any) -> None:
        from scrubjay.store.postgres import PostgresStore, erase

        self.delete_rows = erase.delete_rows
        self._url = schema_for(path)
        self.store = PostgresStore(self._url, **options)

    def text_of(self, text: str) -> Any:
        from scrubjay.store.postgres.queries import text_of

        return text_of(EngineSql(text)).encode()

    @property
    def where(self) -> str:
        return self._url

    def run(self, operation: Operation[Any]) -> Any:
        return self.store.run(operation)

    def close(self) -> None:
        self.store.close()


DRIVERS = {"sqlite": SyncDriver, "aio": AioDriver, "postgres": PostgresDriver}
