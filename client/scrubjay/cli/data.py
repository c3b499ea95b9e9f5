"""Commands that move whole namespaces and databases: export, import, backup, restore, erase, recover."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from scrubjay import commands
from scrubjay.cli import series
from scrubjay.cli.common import (
    add_yes,
    confirm,
    executor_of,
    fail,
    open_database,
    open_file,
    open_queue,
    require_namespace,
    settings_of,
)
from scrubjay.cli.output import Report, format_size, note, printable
from scrubjay.cli.parser import Commands
from scrubjay.cli.progress import Progress
from scrubjay.errors import Forbidden, InvalidInput, Unavailable, operand, pluralize
from scrubjay.executor import Executor
from scrubjay.settings import Settings, checked, is_database, memory_settings, parse_number
from scrubjay.store import engine
from scrubjay.store.sqlite import SqliteStore
from scrubjay.validation import check_namespace

if TYPE_CHECKING:
    from scrubjay.http import HttpExecutor
    from scrubjay.store import export as transfer
    from scrubjay.store.recover import recovery
    from scrubjay.store.sqlite import backup as copies
    from scrubjay.store.sqlite import erase as erasure

# Each command imports what it needs when it runs: the others start in half the time.

STDIO = "-"
"""Instead of a file name: standard input, or standard output."""

MAX_NAMES = 10
"""Namespaces that `restore` names; more are counted, and --json has all."""
_INSTEAD_OF_BACKUP = "back it up with pg_dump or pg_basebackup, or its namespaces with `scrubjay export --all`"
_INSTEAD_OF_RESTORE = "restore it with pg_restore, or its namespaces with `scrubjay import`"
_Export: TypeAlias = Callable[[str, Callable[[bytes], object], Progress], object]


def export(arguments: argparse.Namespace) -> int:
    if arguments.all == bool(arguments.namespace):
        raise InvalidInput("name one namespace, or pass --all")
    if arguments.all:
        with executor_of(arguments) as executor:
            namespaces = executor.run(commands.NAMESPACES(""))
            has_keys = _has_api_keys(executor)
    else:
        namespaces = [check_namespace(arguments.namespace)]
        require_namespace(arguments)
    with _writing(arguments.output) as file, Progress("byte") as progress, _exporter(arguments) as export_to:
        for namespace in namespaces:
            export_to(namespace, file.write, progress)
    if arguments.all and has_keys:
        note(
            "scrubjay: api keys and their limits are not part of an export, and a server without keys lets in every"
            " program of its machine, without quotas; start the new one with `scrubjay serve --require-key`, and issue"
            " keys again with `scrubjay key issue`"
        )
    return 0


def _has_api_keys(executor: Executor) -> bool:
    try:
        return bool(executor.run(commands.API_KEYS("")))
    except Forbidden:  # by a server that has keys, of which this one is not an admin's
        return True


@contextlib.contextmanager
def _exporter(arguments: argparse.Namespace) -> Iterator[_Export]:
    """A function that passes the lines of a namespace on, from the server, the file or the database."""
    from scrubjay.store import export as transfer  # noqa: PLC0415
    from scrubjay.store import usage  # noqa: PLC0415

    settings = settings_of(arguments)
    if settings.url:
        with _server(settings) as server:
            yield server.export
        return
    with contextlib.closing(open_database(arguments)) as store:

        def export_to(namespace: str, write: Callable[[bytes], object], progress: Progress) -> None:
            expected, written = store.run(usage.read_usage(namespace)).bytes, 0

            def write_line(line: bytes) -> None:
                nonlocal written
                write(line)
                written += len(line)
                progress(written, expected)

            store.run(transfer.export_namespace(namespace, write_line))

        yield export_to


def import_(arguments: argparse.Namespace) -> int:
    from scrubjay.store import export as transfer  # noqa: PLC0415

    given = None if arguments.namespace == STDIO else arguments.namespace
    with (
        _explaining_a_file(given, arguments.file),
        _reading(arguments.file, "an export") as path,
        Progress("byte") as progress,
        Report(arguments) as tell,
        _importer(arguments, progress) as import_from,
    ):
        count = transfer.count_exports(path)
        if given and count > 1:
            raise InvalidInput(f"this file has {count} namespaces, which keep their names; import it without a name")
        for part in transfer.split_exports(path):
            imported = import_from(check_namespace(given or transfer.read_header(part)["namespace"]), part)
            counts = f"{pluralize(imported.keys, 'key')} and {pluralize(imported.notes, 'note')}"
            fields = imported._asdict()
            tell(f"{imported.namespace}: {counts}", **(fields if count <= 1 else {"imported": [fields]}))
    return 0


@contextlib.contextmanager
def _explaining_a_file(namespace: str | None, file: str | None) -> Iterator[None]:
    """Tell how a file is named, if there is one where an import that failed expects the name of a namespace."""
    try:
        yield
    except InvalidInput as error:
        if not namespace or file or not Path(namespace).expanduser().is_file():
            raise
        form = f"scrubjay import -i {shlex.quote(namespace)}"
        raise InvalidInput(f"{error}; {namespace} is a file, and to import it, type: {form}") from error


@contextlib.contextmanager
def _importer(
    arguments: argparse.Namespace, progress: Progress
) -> Iterator[Callable[[str, Path], transfer.TransferSummary]]:
    """A function that imports an export under a name, into the server, the file or the database."""
    from scrubjay.store import export as transfer  # noqa: PLC0415

    settings = settings_of(arguments)
    if settings.url:
        with _server(settings) as server:

            def send(namespace: str, path: Path) -> transfer.TransferSummary:
                try:
                    with _Upload(path, progress) as file:
                        return server.import_(namespace, file, _read_summary, replace=arguments.replace)
                except KeyboardInterrupt:
                    look = f"scrubjay usage {operand(namespace)}"
                    print(f"\ninterrupted: the server may import it all the same; look with: {look}", file=sys.stderr)
                    raise

            yield send
        return
    with contextlib.closing(open_database(arguments)) as store:

        def import_from(namespace: str, path: Path) -> transfer.TransferSummary:
            size, read = path.stat().st_size, 0

            def report(line: int) -> None:
                nonlocal read
                read += line
                progress(read, size)

            return store.run(transfer.import_namespace(namespace, path, arguments.replace, report))[0]

        yield import_from


class _Upload(io.FileIO):
    """A file that reports how much of it has been read."""

    def __init__(self, path: Path, progress: Progress) -> None:
        super().__init__(path)
        self._progress, self._total = progress, path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self._progress(self.tell(), self._total)
        return data


def backup(arguments: argparse.Namespace) -> int:
    engine.require_file(settings_of(arguments), _INSTEAD_OF_BACKUP)
    if arguments.file == STDIO:
        return _pipe_backup(arguments)
    target = Path(arguments.file).expanduser()
    make = partial(_make_backup, arguments)
    if arguments.every:
        series.back_up_forever(target, make, arguments.keep, arguments.every)
    elif arguments.keep:
        series.back_up_once(target, make, arguments.keep)
    elif target.is_dir() or arguments.file.endswith(("/", os.sep)):
        raise InvalidInput(
            f"{arguments.file} is a folder; name a file in it, or pass --keep N to make a backup in it and keep the"
            " newest N"
        )
    else:
        make(target)
    return 0


def _make_backup(arguments: argparse.Namespace, target: Path) -> None:
    from scrubjay.store.sqlite import backup as copies  # noqa: PLC0415

    copies.remove_left_over(target.parent)
    with copies.atomic_write(target, force=arguments.force) as unfinished:
        _back_up(arguments, unfinished, target)
    size = target.stat().st_size
    with Report(arguments) as report:
        report(f"{target}: {format_size(size)}, checked", file=str(target), bytes=size)
    sys.stdout.flush()


def _pipe_backup(arguments: argparse.Namespace) -> int:
    """Write a backup to standard output once it is complete and checked: a pipe cannot be taken back."""
    from scrubjay.store.sqlite import backup as copies  # noqa: PLC0415

    if sys.stdout.isatty():
        raise InvalidInput("a backup is binary data; name a file, or redirect the output")
    with tempfile.TemporaryDirectory(prefix="scrubjay-backup-") as folder:
        copy = Path(folder) / "backup"
        with copies.atomic_write(copy) as partial:
            _back_up(arguments, partial, copy)
        with copy.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    return 0


def _back_up(arguments: argparse.Namespace, partial: Path, target: Path) -> None:
    from scrubjay.store.sqlite import backup as copies  # noqa: PLC0415

    settings = settings_of(arguments)
    if settings.url:
        with _server(settings) as server, partial.open("wb") as file, Progress("byte") as progress:
            server.backup(file.write, progress)
    else:
        with contextlib.closing(open_file(arguments, _INSTEAD_OF_BACKUP)) as store, Progress("page") as progress:
            copies.refuse_same(target, store.path)
            copies.remove_left_over(store.path.parent)
            copies.back_up(store, partial, progress)
    copies.check_copy(partial)


def restore(arguments: argparse.Namespace) -> int:
    from scrubjay.store.sqlite import backup as copies  # noqa: PLC0415

    path, flags = _path_only(arguments), engine.flags_of(settings_of(arguments))
    if arguments.revoke_keys and copies.is_empty(path):
        raise InvalidInput(
            f"there is no database at {path}, so it is not known which api keys of the backup were revoked after it;"
            f" restore without --revoke-keys, then look at: scrubjay key list {flags}"
        )
    with _reading(arguments.file, "the backup to restore") as copy, Progress("page") as progress:
        restored = copies.restore(copy, path, progress)
    previous = restored.previous
    with Report(arguments) as report:
        report(f"{path} is restored, api keys and quotas included", file=str(path), previous=previous and str(previous))
        if previous is None:
            report(f"there was no database at {path}, so it is new: a server that is running keeps its own")
        else:
            report(f"the previous database is kept: {previous}")
            _report_namespaces(restored, report)
        with contextlib.closing(copies.Copy(path)) as store:
            _report_keys(store, restored, report, flags, revoke=arguments.revoke_keys)
    return 0


def _report_namespaces(restored: copies.Restored, report: Report) -> None:
    """Print which namespaces only the previous database has, and which only the backup has."""
    if restored.before is None:
        report("it cannot be read, so it is not compared with the backup")
        return
    before, after = restored.before.namespaces, restored.after.namespaces
    for text, field, names in (
        ("removed  {}, which only the previous database has", "removed", sorted(before - after)),
        ("back     {}, which the previous database did not have", "brought_back", sorted(after - before)),
    ):
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        shown = f"namespace{'s' * (len(names) > 1)} {', '.join(names[:MAX_NAMES])}{more}"
        report(text.format(shown) if names else "", **{field: names})


def _report_keys(store: SqliteStore, restored: copies.Restored, report: Report, flags: str, *, revoke: bool) -> None:
    """Print or revoke the api keys that the restore has put in force, and tell when those left are too few."""
    from scrubjay.store import api_keys  # noqa: PLC0415

    before, after = restored.before, restored.after.api_keys
    if before is None or restored.previous is None:
        _report_uncompared_keys(after, report, flags, revoke=revoke)
    else:
        _report_changed_keys(store, before.api_keys, after, report, flags, revoke=revoke)
    in_force = store.run(api_keys.list_all())
    if any(key.admin for key in in_force) or not (after or before is None or before.api_keys):
        return
    if in_force:
        report("CAUTION  no admin key is in force; to make one:", no_admin_key_in_force=True)
    else:
        is_open = store.run(api_keys.admit(None)) is not None
        who = "every user of this machine gets in without one" if is_open else "a server lets nobody in"
        report(f"CAUTION  no api key is in force, so {who}; to make one:", no_key_in_force=True)
    report(f"         scrubjay key issue --admin {flags}")


def _report_uncompared_keys(
    after: frozenset[tuple[str, str, str]], report: Report, flags: str, *, revoke: bool
) -> None:
    """Print that api keys of the backup may have been revoked after it, where nothing tells which."""
    if revoke:
        report("no api key was revoked: nothing tells which were in force before the restore", revoked=[])
    if after:
        report(
            f"CAUTION  {pluralize(len(after), 'api key')} of the backup may have been revoked after it; look at:",
            in_force_again=sorted(identity for identity, *_ in after),
        )
        report(f"         scrubjay key list {flags}")


def _report_changed_keys(
    store: SqliteStore,
    before: frozenset[tuple[str, str, str]],
    after: frozenset[tuple[str, str, str]],
    report: Report,
    flags: str,
    *,
    revoke: bool,
) -> None:
    """Print or revoke the api keys that were not in force before the restore.

    A key that was rotated after the backup has its old secret again.
    """
    from scrubjay.store import api_keys  # noqa: PLC0415

    for identity, name in sorted({(each[0], each[2]) for each in before} - {(each[0], each[2]) for each in after}):
        report(
            f"CAUTION  api key {identity} ({name}) is not valid any more: the backup does not have it", lost=[identity]
        )
    rotated = {identity for identity, *_ in before}
    again = sorted(after - before)
    if revoke and not again:
        report("no api key was revoked: those of the backup were in force before the restore, too", revoked=[])
    for identity, _, name in again:
        if revoke:
            store.run(api_keys.revoke(identity))
            report(f"revoked  api key {identity} ({name})", revoked=[identity])
        else:
            what = "has its old secret again" if identity in rotated else "is in force, and was not before"
            report(f"CAUTION  api key {identity} ({name}) {what}; to revoke it:", in_force_again=[identity])
            report(f"         scrubjay key revoke {identity} {flags}")


def erase(arguments: argparse.Namespace) -> int:
    namespace = check_namespace(arguments.namespace)
    confirm(f"All data of {namespace!r}", namespace, arguments)
    try:
        erasures = _erase_all(namespace, arguments)
    except KeyboardInterrupt:
        print("\ninterrupted: deleted rows may still be in the file; run `scrubjay compact`", file=sys.stderr)
        raise
    keys = erasures[-1].keys
    if not (keys or any(erased.rows for erased in erasures)):
        return fail(f"there is no namespace {namespace!r}, so nothing was erased; `scrubjay namespaces` lists them")
    with Report(arguments) as report:
        report(traces=[])
        for erased in erasures:
            _report_erased(erased, report)
        _report_named_keys(keys, report, settings_of(arguments))
    return 1 if any(erased.traces for erased in erasures) else 0


def _erase_all(namespace: str, arguments: argparse.Namespace) -> list[erasure.Erasure]:
    settings = settings_of(arguments)
    if settings.url:
        return _erase_at(settings, namespace)
    with contextlib.closing(open_database(arguments)) as store:
        erasures = [_erase_in(store, namespace)]
    _report_queued(namespace)
    return erasures


def _erase_in(store: engine.Store, namespace: str) -> erasure.Erasure:
    if isinstance(store, SqliteStore):
        from scrubjay.store.sqlite import erase as erasure  # noqa: PLC0415

        return erasure.erase(store, namespace)
    from scrubjay.store.postgres import erase as postgres_erasure  # noqa: PLC0415

    return postgres_erasure.erase(store, namespace)


def _erase_at(settings: Settings, namespace: str) -> list[erasure.Erasure]:
    """Erase on a server, then in the queue of this machine; if the server refuses, nothing.

    An erased namespace has its quota again, so that another process may have sent what was queued before the queue
    was emptied: then it is erased once more. What is queued is erased even if the server cannot be reached, or is not
    Scrubjay's.
    """
    with _server(settings) as server:

        def erase() -> erasure.Erasure:
            try:
                return server.erase(namespace, _read_erasure)
            except Unavailable as error:
                dropped = _drop_queued(server.location, namespace)
                raise Unavailable(
                    f"{error}. {namespace!r} on the server is not erased: run this again when it answers"
                    f" ({pluralize(dropped, 'queued write')} on this machine erased)"
                ) from error

        with open_queue() as file:
            had_queued = bool(file.summaries(server.location, namespace))
        erasures = [erase()]
        if _drop_queued(server.location, namespace) or had_queued:
            erasures.append(erase())
    return erasures


def _drop_queued(location: str, namespace: str) -> int:
    """Erase the queued writes for a namespace of a server; returns how many there were."""
    with open_queue() as file:
        dropped = file.drop(location=location, namespace=namespace)
    if dropped:
        note(f"dropped  {pluralize(dropped, 'queued write')} in {file.path}")
    return dropped


def _report_queued(namespace: str) -> None:
    """Print that writes to the namespace are queued for a server: they are not part of this file."""
    with open_queue() as file:
        summaries = file.summaries(namespace=namespace)
    for server in dict.fromkeys(each.target.location for each in summaries):
        note(
            f"scrubjay: writes to {namespace!r} are queued for {server} in {file.path} and are not erased:"
            f" scrubjay pending --drop --url {shlex.quote(server)} --namespace={shlex.quote(namespace)} --yes"
        )


def recover(arguments: argparse.Namespace) -> int:
    from scrubjay.store.recover import recovery  # noqa: PLC0415
    from scrubjay.store.sqlite import backup as copies  # noqa: PLC0415

    if is_database(arguments.file):
        raise InvalidInput(
            f"this command works on a SQLite file, and that is a PostgreSQL database: {_INSTEAD_OF_RESTORE}"
        )
    damaged = Path(arguments.file).expanduser()
    target = Path(arguments.target or f"{damaged}.recovered").expanduser()
    with copies.atomic_write(target) as partial, Progress("page") as progress:
        report = recovery.recover(damaged, partial, progress, memory_settings().secret)
    with Report(arguments) as tell:
        _report_recovered(report, damaged, target, tell)
    return 0 if report.is_complete else 1


def _report_recovered(report: recovery.Report, damaged: Path, target: Path, tell: Report) -> None:
    tell(file=str(target), saved=report.saved, lost=[])
    for table, rows in sorted(report.saved.items()):
        tell(f"saved    {pluralize(rows, 'row')} of {table}")
    pages = f"{report.unreadable_pages:,} of {pluralize(report.pages, 'page')}" if report.unreadable_pages else ""
    rows_lost = pluralize(report.unreadable_rows, "row") if report.unreadable_rows else ""
    if lost := ", and ".join(filter(None, (pages, rows_lost))):
        tell(f"LOST     {lost}", lost=[lost])
    for sentence in report.missing:
        tell(f"LOST     {sentence}", lost=[sentence])
    new, old = shlex.quote(str(target)), shlex.quote(str(damaged))
    tell(f"{target} has everything that could be read; check it with: scrubjay doctor --path {new}")
    tell(f"use it with: scrubjay restore {new} --path {old}")


def _report_erased(erased: erasure.Erasure, report: Report) -> None:
    rows = ", ".join(f"{count:,} of {table}" for table, count in sorted(erased.rows.items())) or "none"
    report(f"erased   rows: {rows}", erased=[erased.rows])
    if erased.limits:
        report(f"CAUTION  {erased.limits}", limits=erased.limits)
        return
    report(f"searched {format_size(erased.bytes)} of {', '.join(erased.files)}", files=list(erased.files))
    report(f"         for {pluralize(erased.samples, 'random sample')} of the erased data")
    if erased.shared:
        report(f"         {erased.shared:,} of them found in other namespaces, which have the same text")
    for trace in erased.traces:
        report(f"FOUND    {trace}", traces=[trace])
    if not erased.traces:
        report("found    nothing: the data is gone from this database; backups, exports and copies still have it")


def _report_named_keys(keys: Sequence[Mapping[str, Any]], report: Report, settings: Settings) -> None:
    """Print the api keys that still have the name, and the commands that remove it."""
    flags = f"--url {shlex.quote(settings.url)}" if settings.url else engine.flags_of(settings)
    report(keys=list(keys))
    for key in keys[:MAX_NAMES]:
        state = "is revoked, and still" if key["is_revoked"] else "is in force, and"
        report(
            f"CAUTION  api key {key['id']} ({printable(key['name'])}) {state} has this name; to revoke and forget it:"
        )
        report(f"         scrubjay key revoke {key['id']} --forget {flags}")
    if len(keys) > MAX_NAMES:
        report(f"         and {pluralize(len(keys) - MAX_NAMES, 'more key')}, which --json has")
    if keys and not settings.store:  # copies in the free space of pages; in PostgreSQL nothing clears those
        report(f"         scrubjay compact {'on the machine that has the file' if settings.url else flags}")


def _path_only(arguments: argparse.Namespace) -> Path:
    settings = settings_of(arguments)
    engine.require_file(settings, _INSTEAD_OF_RESTORE)
    if settings.url:
        raise InvalidInput("this command works on the file: run it on the server's machine, with --path")
    return Path(settings.path).expanduser()


def _server(settings: Settings) -> contextlib.closing[HttpExecutor]:
    from scrubjay.http import HttpExecutor  # noqa: PLC0415

    return contextlib.closing(HttpExecutor(settings))


def _read_summary(data: dict[str, object]) -> transfer.TransferSummary:
    from scrubjay.store import export as transfer  # noqa: PLC0415

    return transfer.TransferSummary(**data)  # type: ignore[arg-type]


def _read_erasure(data: dict[str, object]) -> erasure.Erasure:
    from scrubjay.store.sqlite import erase as erasure  # noqa: PLC0415

    return erasure.Erasure(**data)  # type: ignore[arg-type]


@contextlib.contextmanager
def _writing(output: str | None) -> Iterator[BinaryIO]:
    """Standard output, a device or a pipe, or a file that appears when it is complete."""
    from scrubjay.store.sqlite import backup as copies  # noqa: PLC0415

    if output in (None, STDIO):
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(output).expanduser()
    if target.exists() and not (target.is_file() or target.is_dir()):
        with target.open("wb") as file:
            yield file
        return
    with copies.atomic_write(target, force=True) as partial, partial.open("wb") as file:
        yield file


@contextlib.contextmanager
def _reading(name: str | None, what: str) -> Iterator[Path]:
    """A file that can be read twice: once to check it, once to import it."""
    if name not in (None, STDIO):
        path = Path(name).expanduser()
        if not path.is_file():
            raise InvalidInput(f"there is no file {path}; name {what}")
        yield path
        return
    if sys.stdin.isatty():
        raise InvalidInput(f"there is no input; name {what}, or send it to stdin")
    with tempfile.TemporaryDirectory(prefix="scrubjay-") as folder:
        copy = Path(folder) / "stdin"
        try:
            with copy.open("xb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        except OSError as error:
            raise Unavailable(f"cannot store the input: {error}; name a file instead") from error
        yield copy


def add_commands(command: Commands) -> None:
    exporter = command(
        "export", export, "print a namespace, or all of them, as lines of JSON",
        example="scrubjay export my-agent > my-agent.jsonl", json=False,
    )  # fmt: skip
    exporter.add_argument("namespace", nargs="?", metavar="NAMESPACE", help="the namespace")
    exporter.add_argument("--all", action="store_true", help="all namespaces, one after the other")
    exporter.add_argument("-o", "--output", metavar="FILE", help="write to this file instead; - is stdout")
    importer = command(
        "import", import_, "import an export; each namespace as a whole or not at all",
        example="scrubjay import copy < my-agent.jsonl", needs_file=False,
    )  # fmt: skip
    importer.add_argument(
        "namespace", nargs="?", metavar="NAMESPACE", help="import under this name (default: the exported name)"
    )
    importer.add_argument("-i", "--input", dest="file", metavar="FILE", help="read this file; without it, or -, stdin")
    importer.add_argument("--replace", action="store_true", help="replace everything in the namespace")
    keeper = command(
        "backup", backup, "copy the whole database to a file, while it is in use; - is stdout", "file",
        example="scrubjay backup --every 1h --keep 24 backups",
    )  # fmt: skip
    keeper.add_argument("--force", action="store_true", help="replace the file if it exists")
    keeper.add_argument(
        "--every", type=checked(series.parse_duration), metavar="DURATION",
        help="go on until SIGTERM, with a backup each 30m, 1h or 1d; FILE is a folder then",
    )  # fmt: skip
    keeper.add_argument(
        "--keep", type=checked(parse_number), metavar="N",
        help="delete all but the newest N backups; FILE is a folder then",
    )  # fmt: skip
    restorer = command(
        "restore", restore, "replace the database by a backup (- is stdin), and keep the previous one", "file",
        example="scrubjay restore scrubjay-backup.db", needs_file=False,
    )  # fmt: skip
    restorer.add_argument(
        "--revoke-keys", action="store_true", help="revoke the api keys that were not in force before the restore"
    )
    eraser = command(
        "erase", erase, "erase a namespace, then search the file for remains", "namespace",
        example="scrubjay erase my-agent",
    )  # fmt: skip
    add_yes(eraser, "do not ask")
    saver = command(
        "recover", recover, "copy everything that can be read from a damaged database into a new file", "file",
        example="scrubjay recover scrubjay.db", flags=None,
    )  # fmt: skip
    saver.add_argument("target", nargs="?", metavar="TARGET", help="the new file (default FILE.recovered)")
