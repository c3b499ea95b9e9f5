"""Commands on the database file: doctor, compact, encrypt, decrypt."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from scrubjay.cli.common import describe_totals, disk_usage, open_file, open_queue, open_store, settings_of
from scrubjay.cli.output import Report, format_size
from scrubjay.cli.parser import Commands
from scrubjay.commands import NAMESPACES
from scrubjay.errors import InvalidInput, ScrubjayError, pluralize
from scrubjay.settings import Settings
from scrubjay.store.sqlite import SqliteStore
from scrubjay.store.usage import count_all

_INSTEAD_OF_ENCRYPT = (
    "`scrubjay export --all` it, and import that into another schema (?schema=NAME), with SCRUBJAY_SECRET set for an"
    " encrypted one"
)


def doctor(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    with Report(arguments) as report:
        report(problems=[])
        problems = _check_server(settings, report) if settings.url else _check_file(settings, report)
        report(f"{pluralize(problems, 'problem')} found" if problems else "no problems found")
    return 1 if problems else 0


def _check_file(settings: Settings, report: Report) -> int:
    from scrubjay.store.sqlite.backup import remove_left_over  # noqa: PLC0415
    from scrubjay.store.sqlite.connection import find_unwritable  # noqa: PLC0415

    if settings.store:
        return _check_database(settings, report)
    path = Path(settings.path).expanduser()
    report(f"file     {path}", file=str(path))
    if not path.exists():
        return _check_missing_file(path, report)
    try:
        store = open_store(settings)
    except ScrubjayError as error:
        return _report_problems(report, str(error))
    try:
        problems = store.find_problems()
        problems += [f"{copy}: left by a killed process; delete it" for copy in remove_left_over(path.parent)]
        if unwritable := find_unwritable(path):
            problems.append(f"{unwritable} cannot be written, so the database can only be read: check its permissions")
        if not problems:
            totals = store.run(count_all())
            counts = describe_totals(totals)
            report(f"         {counts}, {format_size(totals.bytes)}; {_describe_disk(path)}", **totals._asdict())
            report("ok       integrity, counters, lists")
    finally:
        store.close()
    return _report_problems(report, *problems)


def _check_database(settings: Settings, report: Report) -> int:
    from scrubjay.store import engine  # noqa: PLC0415 - only this command needs it

    try:
        store = open_store(settings)
    except ScrubjayError as error:
        return _report_problems(report, str(error))
    try:
        report(f"database {engine.location_of(store)}", database=engine.location_of(store))
        problems = store.find_problems()
        if not problems:
            totals = store.run(count_all())
            report(f"         {describe_totals(totals)}, {format_size(totals.bytes)}", **totals._asdict())
            report("ok       counters, lists, notes; PostgreSQL checks its own pages")
    finally:
        store.close()
    return _report_problems(report, *problems)


def _report_problems(report: Report, *problems: str) -> int:
    for problem in problems:
        report(f"PROBLEM  {problem}", problems=[problem])
    return len(problems)


def _describe_disk(path: Path) -> str:
    return f"{format_size(disk_usage(path))} on disk, {format_size(shutil.disk_usage(path.parent).free)} free"


def _check_missing_file(path: Path, report: Report) -> int:
    from scrubjay.store.sqlite.file_identity import FileIdentity  # noqa: PLC0415 - only this command needs it

    try:
        FileIdentity(path).refuse_lost_file()
    except ScrubjayError as error:
        return _report_problems(report, str(error))
    return _report_problems(
        report, f"there is no database at {path}; the first write creates it, or name another with --path"
    )


def _check_server(settings: Settings, report: Report) -> int:
    from scrubjay.http import HttpExecutor  # noqa: PLC0415 - only with a server
    from scrubjay.transport import split_credentials, without_credentials  # noqa: PLC0415

    shown = without_credentials(str(settings.url))
    report(f"server   {shown}", server=shown)
    problems = []
    try:
        server = HttpExecutor(settings)
        version = server.health()
        report(f"ok       answers, version {version}", server_version=version)
        report("         its data is checked on its machine: scrubjay doctor --path FILE")
        server.run(NAMESPACES(""))  # needs an api key where the server has keys
    except ScrubjayError as error:
        problems.append(str(error))
    with open_queue() as file:
        summaries = file.summaries(location=settings.url and split_credentials(settings.url)[0])
    if count := sum(each.writes for each in summaries):
        problems.append(f"{pluralize(count, 'write')} for it not sent; to see why: scrubjay pending")
    return _report_problems(report, *problems)


def compact(arguments: argparse.Namespace) -> int:
    store = open_file(arguments, "autovacuum frees the space of deleted rows, and VACUUM FULL shrinks the tables")
    try:
        store.sweep()
        store.compact()
        with Report(arguments) as report:
            report(_describe_disk(store.path), file=str(store.path), bytes=disk_usage(store.path))
    finally:
        store.close()
    return 0


def encrypt(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    store, is_encrypted = _open_encrypted(arguments)
    secret = settings.new_secret or (None if is_encrypted else settings.secret)
    if not secret:
        store.close()
        variable = "SCRUBJAY_NEW_SECRET" if is_encrypted else "SCRUBJAY_SECRET"
        raise InvalidInput(f"set {variable} to the new secret")
    store.reencrypt(secret)
    print("the database is encrypted; without the secret it cannot be read", file=sys.stderr)
    return 0


def decrypt(arguments: argparse.Namespace) -> int:
    store, is_encrypted = _open_encrypted(arguments)
    if not is_encrypted:
        store.close()
        raise InvalidInput("this database is not encrypted")
    store.reencrypt(None)
    print("the database is not encrypted any more; unset SCRUBJAY_SECRET", file=sys.stderr)
    return 0


def _open_encrypted(arguments: argparse.Namespace) -> tuple[SqliteStore, bool]:
    """The file, and whether it is encrypted; then SCRUBJAY_SECRET must be its secret."""
    try:
        return open_file(arguments, _INSTEAD_OF_ENCRYPT, secret=""), False
    except InvalidInput:
        return open_file(arguments, _INSTEAD_OF_ENCRYPT), True


def add_commands(command: Commands) -> None:
    command(
        "doctor", doctor, "check the database file; with SCRUBJAY_URL, the server and what is queued for it",
        example="scrubjay doctor", needs_file=False,
    )  # fmt: skip
    command(
        "compact", compact, "rewrite the file: smaller, and without remains of deleted values",
        example="scrubjay compact",
    )  # fmt: skip
    command(
        "encrypt", encrypt, "encrypt all values with SCRUBJAY_SECRET, or change it to SCRUBJAY_NEW_SECRET",
        example="SCRUBJAY_SECRET=… scrubjay encrypt", json=False,
    )  # fmt: skip
    command(
        "decrypt", decrypt, "store all values without encryption", example="SCRUBJAY_SECRET=… scrubjay decrypt",
        json=False,
    )  # fmt: skip
