"""The commands `status`, which `scrubjay` alone runs, and `open`: where the data is, and whether a server answers."""

from __future__ import annotations

import argparse
import os
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from scrubjay.cli.common import describe_totals, disk_usage, open_queue, open_store, settings_of
from scrubjay.cli.output import Report, format_size
from scrubjay.cli.parser import SERVER, Commands
from scrubjay.commands import NAMESPACES
from scrubjay.errors import InvalidInput, ScrubjayError, Unavailable, pluralize
from scrubjay.settings import Settings, memory_settings, resolve
from scrubjay.store.engine import location_of
from scrubjay.store.usage import Totals, count_all
from scrubjay.version import __version__

if TYPE_CHECKING:
    from scrubjay.http import HttpExecutor

CHECK_SECONDS = 2.0
"""Seconds that `status` and `open` wait for a server: a local one answers at once."""
TRY = ("scrubjay set my-agent greeting hello", "scrubjay get my-agent greeting")


def status(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    with Report(arguments) as report:
        report(f"Scrubjay {__version__}: persistent memory for AI agents\n", version=__version__)
        _report_file(settings, report)
        answers = _report_server(settings, report)
        _report_queue(report)
        report("\ntry")
        for line in (*TRY, "scrubjay open" if answers and not _is_socket_file(settings) else "scrubjay demo"):
            report(f"  {line}")
        report("\n`scrubjay --help` lists all commands.")
    return 0


def _report_file(settings: Settings, report: Report) -> None:
    if settings.url:
        report("data     on the server below, because SCRUBJAY_URL or --url names it")
        return
    if settings.store:
        _report_database(settings, report)
        return
    path = Path(settings.path).expanduser()
    if not path.exists():
        report(f"data     {path}", path=str(path), exists=False)
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        if folder.is_dir() and os.access(folder, os.W_OK):
            report("         no database yet; the first write creates it")
        else:
            why = "cannot be written" if folder.is_dir() else "is not a folder"
            problem = f"no database yet, and none can be made: {folder} {why}; set SCRUBJAY_PATH"
            report(f"         {problem}", error=problem)
        return
    report(f"data     {path}", path=str(path), exists=True)
    try:
        totals = _count(settings)
    except ScrubjayError as error:
        report(f"         {error}", error=str(error))
        return
    size = format_size(disk_usage(path))
    report(f"         {describe_totals(totals)}; {size} on disk", **totals._asdict())


def _report_database(settings: Settings, report: Report) -> None:
    try:
        store = open_store(settings)
    except ScrubjayError as error:
        report(f"data     {error}", error=str(error))
        return
    try:
        totals = store.run(count_all())
        report(f"data     {location_of(store)}", database=location_of(store))
        report(f"         {describe_totals(totals)}, {format_size(totals.bytes)}", **totals._asdict())
    finally:
        store.close()


def _count(settings: Settings) -> Totals:
    store = open_store(settings)
    try:
        return store.run(count_all())
    finally:
        store.close()


def _report_server(settings: Settings, report: Report) -> bool:
    """Print whether a server answers; returns it, too."""
    from scrubjay.transport import without_credentials  # noqa: PLC0415 - only these commands need it

    url = without_credentials(server_url(settings))
    try:
        version = _check_server(settings)
    except Unavailable as error:
        reason = str(error) if settings.url else f"none at {url}; to start one: scrubjay serve"
        report(f"server   {reason}", server=url, answers=False)
        return False
    except ScrubjayError as error:
        report(f"server   {url}: {error}", server=url, answers=False)
        return False
    used = "" if settings.url else "; commands use the data above, unless SCRUBJAY_URL names the server"
    report(f"server   {url} answers, version {version}{used}", server=url, answers=True)
    if settings.url and (refusal := _refusal(settings)):
        report(f"         but refuses: {refusal}", error=str(refusal))
    return True


def _refusal(settings: Settings) -> ScrubjayError | None:
    """Why the server does not accept requests with this api key, or without one."""
    try:
        _open_server(settings).run(NAMESPACES(""))
    except ScrubjayError as error:
        return error
    return None


def _report_queue(report: Report) -> None:
    if not Path(memory_settings().outbox).expanduser().exists():
        return
    with open_queue() as file:
        count = sum(each.writes for each in file.summaries())
    if count:
        report(f"queued   {pluralize(count, 'write')} for a server; to list them: scrubjay pending --all", queued=count)


def open_(arguments: argparse.Namespace) -> int:
    from scrubjay.transport import without_credentials  # noqa: PLC0415 - only these commands need it

    settings = settings_of(arguments)
    url = server_url(settings)
    shown = without_credentials(url)
    if _is_socket_file(settings):
        raise InvalidInput(
            f"a browser cannot open the socket file of {shown}; for the dashboard, serve the same --path on a port as"
            " well: scrubjay serve --require-key --path FILE"
        )
    _check_server(settings)
    with Report(arguments) as report:
        report(shown, url=shown)
        webbrowser.open(url)  # as it was given: the server or a proxy before it may ask for its user name
    return 0


def server_url(settings: Settings) -> str:
    """The server that commands use, or the one that `scrubjay serve` starts on this machine."""
    return settings.url or f"http://127.0.0.1:{resolve('port')}"


def _is_socket_file(settings: Settings) -> bool:
    from scrubjay.transport import SOCKET_SCHEME  # noqa: PLC0415 - only these commands need it

    return server_url(settings).startswith(SOCKET_SCHEME)


def _check_server(settings: Settings) -> str:
    """The version of the server; raises Unavailable if none answers."""
    return _open_server(settings).health()


def _open_server(settings: Settings) -> HttpExecutor:
    from scrubjay.http import HttpExecutor  # noqa: PLC0415 - only these commands need it

    timeout = min(settings.timeout, CHECK_SECONDS)
    return HttpExecutor(settings._replace(url=server_url(settings), timeout=timeout))


def add_commands(command: Commands) -> None:
    command(
        "status", status, "show where the data is, and whether a server answers", example="scrubjay status --json",
        needs_file=False,
    )  # fmt: skip
    command("open", open_, "open the dashboard of the server in a browser", example="scrubjay open", flags=SERVER)
