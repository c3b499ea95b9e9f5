"""Helpers that several commands share: opening a memory or a store, and failing with a sentence."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrubjay import commands
from scrubjay.cli.output import note
from scrubjay.cli.parser import did_you_mean
from scrubjay.errors import InvalidInput, NotFound, ScrubjayError, pluralize
from scrubjay.exact_json import decode_body
from scrubjay.executor import Executor
from scrubjay.memory import Memory
from scrubjay.opening import open_executor, resolve_arguments
from scrubjay.settings import Settings, checked, memory_settings, parse_seconds
from scrubjay.store import engine
from scrubjay.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from scrubjay.outbox.queue import QueueFile
    from scrubjay.store.usage import Totals

SECONDS: dict[str, Any] = {"type": checked(parse_seconds), "metavar": "SECONDS"}
"""The arguments of argparse for a duration."""
QUEUE_SECONDS = 2.0
"""Seconds that a command waits for queued writes of its namespace to be sent, which takes milliseconds each; an
unreachable server makes the command fail that much later."""


def open_memory(arguments: argparse.Namespace) -> Memory:
    """The memory of a command; strict, because the user waits to see whether the command succeeded."""
    _send_queued_writes(arguments)
    return Memory(arguments.namespace, url=arguments.url, path=arguments.path, strict=True)


def _send_queued_writes(arguments: argparse.Namespace) -> None:
    """Send what programs have queued for the namespace first: the command is newer, and reads what they wrote."""
    settings = settings_of(arguments)
    if not settings.url or not Path(settings.outbox).expanduser().exists():
        return
    with Memory(arguments.namespace, url=arguments.url) as memory:
        if not memory.pending():
            return
        try:
            memory.flush(QUEUE_SECONDS)
        except ScrubjayError:
            note(
                f"{pluralize(len(memory.pending()), 'write')} to {arguments.namespace!r} of other programs could not be"
                " sent before this command; `scrubjay pending` says why, and how to send or delete them"
            )


def read_text(argument: str) -> str:
    """The text of an argument; "-" means standard input."""
    if argument != "-":
        return argument
    try:
        text = sys.stdin.read()
        text.encode()  # bytes that are not UTF-8 may be read as lone surrogates
    except UnicodeError:
        raise InvalidInput("standard input is not UTF-8 text") from None
    return text


def read_json(argument: str, name: str) -> Any:
    """The value of an argument that is JSON; "-" means standard input, and errors start with the argument's name."""
    try:
        return decode_body(read_text(argument))
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None


def require_database(arguments: argparse.Namespace) -> None:
    """Raise NotFound if a command that needs a file has none to work on: opening it would create one."""
    settings = settings_of(arguments)
    if not (settings.url or settings.store) and not Path(settings.path).expanduser().exists():
        raise NotFound(
            f"there is no database at {settings.path}; the first write creates it, as `scrubjay serve` does, or name"
            " another with --path"
        )


def confirm(what: str, name: str, arguments: argparse.Namespace) -> None:
    """Let the user type the name of what is erased, unless --yes was passed."""
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput("erasing cannot be undone, and there is no terminal to ask on; pass --yes")
    print(f"{what} will be erased. Type {name!r} to confirm: ", end="", file=sys.stderr)
    sys.stderr.flush()
    if sys.stdin.readline().rstrip("\n") != name:
        raise InvalidInput("the name does not match; nothing was erased")


def add_yes(parser: argparse.ArgumentParser, what: str = "for scripts: nothing is asked anyway") -> None:
    """Add --yes, which every command that deletes takes, so that nobody has to know which of them ask."""
    parser.add_argument("--yes", action="store_true", help=what)


def executor_of(arguments: argparse.Namespace) -> contextlib.closing[Executor]:
    """An executor for commands that are about the whole store."""
    return contextlib.closing(open_executor(resolve_arguments(url=arguments.url, path=arguments.path)))


def require_namespace(arguments: argparse.Namespace, advice: str = "") -> None:
    """Raise NotFound, with advice, if there is no such namespace.

    A command calls it when it has found nothing: an empty result must not hide a mistyped name.
    """
    with executor_of(arguments) as executor:
        known = executor.run(commands.NAMESPACES(""))
    if arguments.namespace not in known:
        hint = did_you_mean(arguments.namespace, known) or "`scrubjay namespaces` lists them"
        raise NotFound(f"no such namespace: {arguments.namespace!r}{advice}; {hint}")


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings of a command; `url` is None if it works on the file."""
    return resolve_arguments(url=arguments.url, path=arguments.path)


def open_file(arguments: argparse.Namespace, instead: str, secret: str | None = None) -> SqliteStore:
    """The store of a command that works on a SQLite file only; `instead` is what to do with a PostgreSQL database."""
    engine.require_file(settings_of(arguments), instead)
    return open_database(arguments, secret)  # type: ignore[return-value]


def open_database(arguments: argparse.Namespace, secret: str | None = None) -> engine.Store:
    """The store of a command that works on the file or the database itself."""
    settings = settings_of(arguments)
    if settings.url:
        raise InvalidInput("this command works on the file: run it on the server's machine, with --path")
    return open_store(settings, secret)


def open_store(settings: Settings, secret: str | None = None) -> engine.Store:
    return engine.open_store(settings, secret=settings.secret if secret is None else secret, durability="full")


def open_queue() -> contextlib.closing[QueueFile]:
    """The queue file, with the writes for every server."""
    from scrubjay.outbox.queue import QueueFile, Target  # noqa: PLC0415 - few commands need it

    return contextlib.closing(QueueFile(Path(memory_settings().outbox).expanduser(), Target("", "")))


def add_limit_flags(parser: argparse.ArgumentParser, *flags: tuple[str, Callable[[str], int]]) -> None:
    """Flags for limits, each with the function that parses its number."""

    def limit(parse: Callable[[str], int]) -> Callable[[str], int | str]:
        return checked(lambda text: text if text == "default" else parse(text))

    for flag, parse in flags:
        parser.add_argument(flag, type=limit(parse), metavar="N", help="0 = no limit; default = the server's default")


def given_limits(arguments: argparse.Namespace) -> dict[str, int | None]:
    """The limits that the flags have given; None is the default."""
    given = {name: getattr(arguments, name, None) for name in ("writes_per_day", "max_bytes", "max_namespaces")}
    return {name: None if limit == "default" else limit for name, limit in given.items() if limit is not None}


def fail(message: str, code: int = 1) -> int:
    """Print why a command failed; returns its exit code."""
    print(f"scrubjay: {message}", file=sys.stderr)
    return code


def describe_totals(totals: Totals) -> str:
    counts = ((totals.namespaces, "namespace"), (totals.keys, "key"), (totals.notes, "note"))
    return ", ".join(pluralize(*count) for count in counts)


def disk_usage(path: Path) -> int:
    """Bytes that a database takes on disk, with its write-ahead log."""
    parts = [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")]
    return sum(part.stat().st_size for part in parts if part.exists())
