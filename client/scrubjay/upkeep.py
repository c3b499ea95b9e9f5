"""The commands that keep, move and erase data: export, import, backup, restore, erase, recover."""

# ruff: noqa: T201 - a command prints

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .errors import InvalidInput, Unavailable
from .lazy import Lazy
from .names import check_namespace, counted
from .progress import Progress
from .settings import resolve
from .store import quotas
from .store.sqlite import SqliteStore

if TYPE_CHECKING:
    from . import http_backend, outbox
    from .store import erasure, files, recovery, transfer
else:  # no other command needs them
    erasure, files = Lazy("scrubjay.store.erasure"), Lazy("scrubjay.store.files")
    recovery, transfer = Lazy("scrubjay.store.recovery"), Lazy("scrubjay.store.transfer")
    http_backend, outbox = Lazy("scrubjay.http_backend"), Lazy("scrubjay.outbox")


STDIO = "-"
"""In the place of a file: standard input, or standard output."""


def file_only(arguments: argparse.Namespace, secret: str | None = None) -> SqliteStore:
    """The store that a command works on which no server does for others."""
    if _url(arguments):
        raise InvalidInput("this works on the file itself: run it where the server runs, with --path")
    return SqliteStore(resolve("path", arguments.path), secret=secret)


def export(arguments: argparse.Namespace) -> int:
    namespace = check_namespace(arguments.namespace)
    with _writing(arguments.output) as file, Progress("byte") as progress:
        if url := _url(arguments):
            with _server(url) as server:
                server.export(namespace, file.write, progress)
        else:
            with contextlib.closing(file_only(arguments)) as store:
                expected, written = store.run(quotas.read_usage(namespace)).bytes, 0

                def write(line: bytes) -> None:
                    nonlocal written
                    file.write(line)
                    written += len(line)
                    progress(written, expected)

                store.run(transfer.export_namespace(namespace, write))
    return 0


def import_(arguments: argparse.Namespace) -> int:
    given = None if arguments.namespace == STDIO else arguments.namespace
    with _reading(arguments.file, "an export") as path, Progress("byte") as progress:
        namespace = check_namespace(given or transfer.read_header(path)["namespace"])
        if url := _url(arguments):
            with _server(url) as server, path.open("rb") as file:
                moved = transfer.Moved(**server.import_(namespace, file, replace=arguments.replace))
        else:
            size, read = path.stat().st_size, 0

            def report(line: int) -> None:
                nonlocal read
                read += line
                progress(read, size)

            with contextlib.closing(file_only(arguments)) as store:
                moved, _ = store.run(transfer.import_namespace(namespace, path, arguments.replace, report))
    print(f"{moved.namespace}: {counted(moved.keys, 'key')} and {counted(moved.notes, 'note')}")
    return 0


def backup(arguments: argparse.Namespace) -> int:
    if arguments.file == STDIO:
        return _pipe_backup(arguments)
    target = Path(arguments.file).expanduser()
    with files.arriving(target, force=arguments.force) as partial:
        _back_up(arguments, partial, target)
    print(f"{target}: {counted(target.stat().st_size, 'byte')}, checked")
    return 0


def _pipe_backup(arguments: argparse.Namespace) -> int:
    """To standard output, once it is whole and checked: whoever reads it cannot be told to forget it."""
    if sys.stdout.isatty():
        raise InvalidInput("a backup is nothing to show on a terminal; name a file, or pipe it on")
    with tempfile.TemporaryDirectory(prefix="scrubjay-backup-") as folder:
        copy = Path(folder) / "backup"
        with files.arriving(copy) as partial:
            _back_up(arguments, partial, copy)
        with copy.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    return 0


def _back_up(arguments: argparse.Namespace, partial: Path, target: Path) -> None:
    if url := _url(arguments):
        with _server(url) as server, partial.open("wb") as file, Progress("byte") as progress:
            server.backup(file.write, progress)
    else:
        with contextlib.closing(file_only(arguments)) as store, Progress("page") as progress:
            files.refuse_same(target, store.path)
            files.back_up(store, partial, progress)
    files.check_copy(partial)


def restore(arguments: argparse.Namespace) -> int:
    path = _path_only(arguments)
    with _reading(arguments.file, "the backup to restore") as copy, Progress("page") as progress:
        aside = files.restore(copy, path, progress)
    print(f"{path} is as the backup was, api keys and quotas included")
    if aside:
        print(f"what it was before is kept: {aside}")
    return 0


def erase(arguments: argparse.Namespace) -> int:
    namespace = check_namespace(arguments.namespace)
    _confirm(namespace, arguments)
    try:
        erasures = _erase_all(namespace, arguments)
    except KeyboardInterrupt:
        print("\nrows may be gone whose old pages remain: scrubjay compact", file=sys.stderr)
        raise
    if not any(erased.rows for erased in erasures):
        print(f"scrubjay: there is no namespace {namespace!r}, so nothing was erased", file=sys.stderr)
        return 1
    for erased in erasures:
        _report_erased(erased)
    return 1 if any(erased.traces for erased in erasures) else 0


def _erase_all(namespace: str, arguments: argparse.Namespace) -> list[erasure.Erasure]:
    if url := _url(arguments):
        return _erase_at(url, namespace)
    with contextlib.closing(file_only(arguments)) as store:
        return [erasure.erase(store, namespace)]


def _erase_at(url: str, namespace: str) -> list[erasure.Erasure]:
    """On a server, and here in the outbox; what was sent from there meanwhile is erased once more."""
    file = outbox.OutboxFile(Path(resolve("outbox")).expanduser(), outbox.queue_of(url, resolve("api_key")))
    with _server(url) as server, contextlib.closing(file):
        erasures = [erasure.Erasure(**server.erase(namespace))]
        if dropped := file.drop(namespace):
            print(f"dropped  {counted(dropped, 'write')} that waited in {file.path}")
            erasures.append(erasure.Erasure(**server.erase(namespace)))
    return erasures


def recover(arguments: argparse.Namespace) -> int:
    damaged = Path(arguments.file).expanduser()
    target = Path(arguments.target or f"{damaged}.recovered").expanduser()
    with files.arriving(target) as partial, Progress("page") as progress:
        report = recovery.recover(damaged, partial, progress)
    for table, rows in sorted(report.saved.items()):
        print(f"saved    {counted(rows, 'row')} of {table}")
    if report.unreadable_pages or report.unreadable_rows:
        pages, lost = counted(report.pages, "page"), counted(report.unreadable_rows, "row")
        print(f"LOST     {report.unreadable_pages:,} of {pages}, and {lost}")
    for sentence in report.missing:
        print(f"LOST     {sentence}")
    print(f"{target} has what could be read; look at it with: scrubjay doctor --path {target}")
    print(f"put it in place with: scrubjay restore {target}")
    return 0 if report.is_whole else 1


def _confirm(namespace: str, arguments: argparse.Namespace) -> None:
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput("erasing cannot be undone, and nobody is there to ask; say --yes")
    print(f"All that {namespace!r} holds will be gone for good. Type its name to go on: ", end="", file=sys.stderr)
    sys.stderr.flush()
    if sys.stdin.readline().rstrip("\n") != namespace:
        raise InvalidInput("that is another name; nothing was erased")


def _report_erased(erased: erasure.Erasure) -> None:
    rows = ", ".join(f"{count:,} of {table}" for table, count in sorted(erased.rows.items())) or "none"
    print(f"erased   rows: {rows}")
    print(f"searched {counted(erased.bytes, 'byte')} of {', '.join(erased.files)}")
    print(f"         for {counted(erased.pieces, 'piece')} of what was there; {erased.common:,} say too little to tell")
    if erased.shared:
        print(f"         {erased.shared:,} of them are there because what remains holds the same")
    for place in erased.traces:
        print(f"FOUND    {place}")
    if not erased.traces:
        print("found    nothing; backups, exports and copies that you made still have what they had")


def _path_only(arguments: argparse.Namespace) -> Path:
    if _url(arguments):
        raise InvalidInput("this works on the file itself: run it where the server runs, with --path")
    return Path(resolve("path", arguments.path)).expanduser()


def _url(arguments: argparse.Namespace) -> str | None:
    """The server to ask, unless a file is named."""
    url: str | None = arguments.url or (None if arguments.path else resolve("url"))
    return url


def _server(url: str) -> contextlib.closing[http_backend.HttpBackend]:
    return contextlib.closing(http_backend.HttpBackend(url, resolve("timeout"), resolve("api_key")))


@contextlib.contextmanager
def _writing(output: str | None) -> Iterator[BinaryIO]:
    """Standard output, or a file that is there only when it is whole."""
    if output in (None, STDIO):
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with files.arriving(Path(output).expanduser(), force=True) as partial, partial.open("wb") as file:
        yield file


@contextlib.contextmanager
def _reading(name: str | None, what: str) -> Iterator[Path]:
    """A file that can be read twice: once to see that it is whole, then to bring it in."""
    if name not in (None, STDIO):
        path = Path(name).expanduser()
        if not path.is_file():
            raise InvalidInput(f"there is no file {path}; name {what}")
        yield path
        return
    if sys.stdin.isatty():
        raise InvalidInput(f"nothing is piped in; name {what}, or send it to stdin")
    with tempfile.TemporaryDirectory(prefix="scrubjay-") as folder:
        copy = Path(folder) / "stdin"
        try:
            with copy.open("xb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        except OSError as error:
            raise Unavailable(f"cannot keep what is read from stdin: {error}; name a file instead") from error
        yield copy


def add_upkeep_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    exporter = command("export", export, "print all of a namespace as lines of JSON", "namespace")
    exporter.add_argument("-o", "--output", metavar="FILE", help="write to this file instead; - is stdout")
    importer = command("import", import_, "bring in what `scrubjay export` printed, all of it or nothing")
    importer.add_argument("namespace", nargs="?", metavar="NAMESPACE", help="another name than it had")
    importer.add_argument("-i", "--input", dest="file", metavar="FILE", help="read this file; without it, or -, stdin")
    importer.add_argument("--replace", action="store_true", help="in the place of all that the namespace holds")
    keeper = command("backup", backup, "copy the whole database to a file, while it is in use; - is stdout", "file")
    keeper.add_argument("--force", action="store_true", help="replace the file if it is there")
    command("restore", restore, "put a backup (- is stdin) in the place of the database, and keep that aside", "file")
    eraser = command("erase", erase, "erase a namespace for good, and search the file for traces", "namespace")
    eraser.add_argument("--yes", action="store_true", help="do not ask")
    saver = command("recover", recover, "save what can be read of a damaged database anew", "file", flags=None)
    saver.add_argument("target", nargs="?", metavar="TARGET", help="the new file (default FILE.recovered)")
