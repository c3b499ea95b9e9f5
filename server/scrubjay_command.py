"""The command `scrubjay serve`: opens the database and the port, prints a banner, and runs the service."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import inspect
import ipaddress
import multiprocessing
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import uvicorn
from uvicorn.supervisors import Multiprocess

from scrubjay.errors import InvalidInput, ScrubjayError, Unavailable, pluralize
from scrubjay.semantic.embedding import open_embedder
from scrubjay.settings import SETTINGS, Settings, add_serve_flags, server_settings
from scrubjay.store import api_keys, engine
from scrubjay.store.engine import Store, location_of
from scrubjay.store.operation import NO_QUOTA, Quota
from scrubjay.version import __version__
from scrubjay_auth import Quotas, requires_key
from scrubjay_limits import LimitedProtocol, describe_rate
from scrubjay_log import log_config

KEEP_ALIVE_SECONDS = 75
"""Seconds that an idle connection stays open: longer than the 60 s of most proxies, which then close it first."""
SHUTDOWN_SECONDS = 10
"""Seconds that running requests get to finish after SIGTERM: as long as container runtimes wait."""
BUSY_SECONDS = 4.0
"""Seconds that a write waits for other processes: less than clients wait for a response."""


def main(argv: list[str] | None = None) -> int:
    """Parse the flags of `scrubjay serve` and run it; return the exit status."""
    parser = argparse.ArgumentParser(prog="scrubjay serve", description="Serve a Scrubjay database over HTTP.")
    add_serve_flags(parser)
    return serve(parser.parse_args(argv))


def serve(arguments: argparse.Namespace) -> int:
    """Run the service until SIGTERM or Ctrl-C; return the exit status."""
    flags = {name: getattr(arguments, name, None) for name, setting in SETTINGS.items() if setting.serve}
    stop = threading.Event()
    try:
        choose_store(flags)
        settings = server_settings(**flags)
        if settings.embedder:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads would compete with the server's
            open_embedder(settings.embedder, key=settings.embedder_key)
        is_new = not settings.store and not Path(settings.path).expanduser().exists()
        # Opened once before anything is promised: a bad path or a newer format is reported here.
        store = open_store(settings)
        listener = _listen(settings)
        for ending in (signal.SIGTERM, signal.SIGINT):
            # Uvicorn has handlers of its own while it runs. Until then the request to stop is remembered: a key that is
            # issued is also printed, and an exception raised here could be lost in whatever the interpreter is doing.
            signal.signal(ending, lambda *_: stop.set())
        start = _describe_access(store, settings)
        location = location_of(store) + (
            " (read-only: the file cannot be written)" if store.only_reads else " (new database)" * is_new
        )
        store.close()
    except ScrubjayError as error:
        print(f"scrubjay: {error}", file=sys.stderr)
        return 3 if isinstance(error, Unavailable) else 1
    text = banner(listener, start, settings, location)
    if settings.workers > 1 and not start.api_key:  # they import the service first, while clients would wait
        threading.Thread(target=_print_when_ready, args=(text, listener), daemon=True).start()
    else:
        print(text, flush=True)
    os.environ.update({SETTINGS[name].variable: str(given) for name, given in flags.items() if given is not None})
    try:
        _run_server(_uvicorn_config(settings), listener, stop)
    finally:
        if settings.socket:
            Path(settings.socket).expanduser().unlink(missing_ok=True)
    return 0


def choose_store(flags: Mapping[str, Any]) -> None:
    """Let the flags choose between a file and a database, in the workers, too, which read the variables."""
    if flags["path"] is not None and flags["store"] is not None:
        raise InvalidInput("--path names a file and --store a database: give one of them")
    if flags["path"] is not None or flags["store"] is not None:
        for name in ("store", "url"):
            os.environ.pop(SETTINGS[name].variable, None)


class _Server(uvicorn.Server):
    """Uvicorn's server, which stops after its start if that was requested before."""

    def __init__(self, config: uvicorn.Config, stop: threading.Event) -> None:
        super().__init__(config)
        self._stop = stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.should_exit = self.should_exit or self._stop.is_set()


def _uvicorn_config(settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        "scrubjay_server:create_app",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        log_config=log_config(settings),
        access_log=False,
        server_header=False,
        headers=[("Scrubjay-Version", __version__)],  # tells clients that this is a Scrubjay server
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        http=LimitedProtocol,
        ws="none",  # with a library for WebSockets installed, each handshake would leak memory
    )


def _print_when_ready(text: str, listener: socket.socket) -> None:
    """Print when the first worker answers: until then a connection waits in the queue of the port."""
    with socket.socket(listener.family) as probe, contextlib.suppress(OSError):
        probe.connect(listener.getsockname())
        probe.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        probe.recv(1)
    print(text, flush=True)


def _run_server(config: uvicorn.Config, listener: socket.socket, stop: threading.Event) -> None:
    if config.workers == 1:
        _Server(config, stop).run(sockets=[listener])
        return
    with tempfile.TemporaryDirectory(prefix="scrubjay-metrics-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        # Uvicorn before 0.51 needs the function that its workers run.
        needs_target = "target" in inspect.signature(Multiprocess).parameters
        target = {"target": uvicorn.Server(config).run} if needs_target else {}
        supervisor = Multiprocess(config, sockets=[listener], **target)
        if not stop.is_set():
            supervisor.run()


def _listen(settings: Settings) -> socket.socket:
    listener = (
        _bind_file(Path(settings.socket).expanduser()) if settings.socket else _bind(settings.host, settings.port)
    )
    listener.listen(2048)  # connections wait from here on until the server has started
    listener.set_inheritable(True)
    return listener


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScrubjayError(
            f"cannot listen on {host} port {port}: {reason}; choose another with --host or --port"
        ) from error
    return listener


def _bind_file(path: Path) -> socket.socket:
    """A socket file that only its user can connect to, in place of one that a killed server has left."""
    if not hasattr(socket, "AF_UNIX"):
        raise ScrubjayError("this system has no socket files; leave out --socket, and use --require-key")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # the mode is 0600 from its first moment on
    try:
        _remove_stale_socket(path)
        listener.bind(str(path))
    except OSError as error:
        raise ScrubjayError(
            f"cannot listen on {path}: {error.strerror or error}; name another with --socket"
        ) from error
    finally:
        os.umask(before)
    return listener


def _remove_stale_socket(path: Path) -> None:
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()


class Start(NamedTuple):
    """What the banner says of a server that starts."""

    access: str
    """Who has access."""
    is_open: bool
    """Whether requests need no api key."""
    api_key: str | None = None
    """The first api key, if it was issued now."""


def _describe_access(store: Store, settings: Settings) -> Start:
    """Who has access; issues the first api key if one is required and there has never been one."""
    if store.run(api_keys.admit(None)) is api_keys.EVERYTHING:
        if not requires_key(settings):
            who = "programs of this user" if settings.socket else "every user and program of this machine"
            return Start(f"access   {who}, without a key; --require-key asks for one", is_open=True)
        if first_key := store.run(api_keys.issue_first("first start")):
            line = f"api key  {first_key}   (admin; shown only now: give it as SCRUBJAY_API_KEY)"
            return Start(line, is_open=False, api_key=first_key)
    flags = engine.flags_of(settings)
    keys = store.run(api_keys.list_all())
    if any(key.admin for key in keys):
        return Start(f"access   requests with a valid api key: scrubjay key list {flags}", is_open=False)
    state = "requests with a valid api key, but none is an admin's" if keys else "nobody, because every key is revoked"
    return Start(f"access   {state}: scrubjay key issue --admin {flags}", is_open=False)


def banner(listener: socket.socket, start: Start, settings: Settings, location: str) -> str:
    """What `scrubjay serve` prints when it has started."""
    url, also = _url_of(listener)
    quotas = Quotas(settings)
    requests = settings.requests_per_minute
    rate = f"{describe_rate(requests, settings.workers)} for each client" if requests else "unlimited reads"
    pages = (
        f"{url}/ is the dashboard, {url}/docs the API"
        if url.startswith("http")
        else f"curl --unix-socket {listener.getsockname()} http://localhost/openapi.json"
    )
    return f"""Scrubjay {__version__} is serving at {url}{also}
  {start.access}
  data     {location}
  quotas   {_describe_quotas(quotas, is_open=start.is_open)}; {rate}
  try      {_try_line(url, start)}
  look     {pages}
  stop     Ctrl-C"""


def _url_of(listener: socket.socket) -> tuple[str, str]:
    """The URL for clients on this machine, and a note on where else the server listens."""
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return f"unix:{Path(listener.getsockname()).absolute()}", ""
    host, port = listener.getsockname()[:2]
    everywhere = ipaddress.ip_address(host).is_unspecified
    if everywhere:  # an address to listen on, but not one to connect to
        host = "::1" if ":" in host else "127.0.0.1"
    also = " and at every other address of this machine" if everywhere else ""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}", also


def _describe_quotas(quotas: Quotas, *, is_open: bool) -> str:
    """The limits of a namespace that are in force, and those that the first api key puts in force."""
    if not is_open or quotas.without_key == quotas.with_key:
        return _describe_quota(quotas.with_key)
    return f"{_describe_quota(quotas.without_key)}; from the first api key on, {_describe_quota(quotas.with_key)}"


def _describe_quota(quota: Quota) -> str:
    if not any(quota):
        return "none (--writes-per-day and --max-bytes set some)"
    writes = f"{pluralize(quota.writes_per_day, 'write')} a day" if quota.writes_per_day else "unlimited writes"
    size = pluralize(quota.max_bytes, "byte") if quota.max_bytes else "unlimited storage"
    return f"{writes} and {size} for each namespace"


def _try_line(url: str, start: Start) -> str:
    """A command that works when it is pasted into a shell; an api key that is not known here is left open."""
    key = "" if start.is_open else f"SCRUBJAY_API_KEY={start.api_key or '...'} "
    return f"SCRUBJAY_URL={shlex.quote(url)} {key}{_command_path()} set my-agent greeting hello"


def _command_path() -> str:
    """The `scrubjay` command of this installation, as a shell finds it."""
    script = Path(sys.executable).with_name("scrubjay")
    if (found := shutil.which("scrubjay")) and (not script.exists() or Path(found).samefile(script)):
        return "scrubjay"
    return shlex.quote(str(script)) if script.exists() else f"{shlex.quote(sys.executable)} -m scrubjay"


def open_store(settings: Settings, quota: Quota = NO_QUOTA) -> Store:
    return engine.open_store(settings, quota=quota, busy_seconds=BUSY_SECONDS)


def before_shutdown(call: Callable[[], None]) -> None:
    """Call a function when the process is asked to stop.

    Uvicorn waits for all responses before it stops the application, and an event stream does not end by itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        previous = signal.getsignal(number)

        def stop(number: int, frame: FrameType | None, previous: Any = previous) -> None:
            loop.call_soon_threadsafe(call)
            if callable(previous):
                previous(number, frame)

        signal.signal(number, stop)


def stop_with_parent() -> None:
    """Stop when the supervisor is killed: a worker would otherwise run on and keep the port."""
    if parent := multiprocessing.parent_process():

        def watch() -> None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, daemon=True).start()
