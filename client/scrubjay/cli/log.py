"""Commands on the log of changes: watch and audit."""

from __future__ import annotations

import argparse
import json
import re
import time
from datetime import UTC, datetime

from scrubjay import commands
from scrubjay.cli.common import SECONDS, executor_of, open_memory, require_namespace
from scrubjay.cli.output import note, printable
from scrubjay.cli.parser import Commands
from scrubjay.errors import pluralize
from scrubjay.models import Change
from scrubjay.settings import checked, parse_count
from scrubjay.validation import check_namespace


def watch(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        if arguments.namespace not in memory.namespaces():
            note(f"there is no namespace {arguments.namespace!r} yet; waiting for its first change")
        for change in memory.watch(arguments.prefix, after=arguments.after, timeout=arguments.timeout):
            _print_change(change, arguments)
    return 0


def audit(arguments: argparse.Namespace) -> int:
    namespace = None if arguments.namespace is None else check_namespace(arguments.namespace)
    is_empty = True
    with executor_of(arguments) as executor:
        page, after = executor.run(commands.AUDIT("", namespace, arguments.since, "0"))
        while page:
            is_empty = False
            for change in page:
                _print_change(change, arguments)
            page, after = executor.run(commands.AUDIT("", namespace, arguments.since, after))
    if is_empty:
        if namespace is not None:
            require_namespace(arguments)
        note("the log has no changes" + (" since then" if arguments.since else ""))
    return 0


def _print_change(change: Change, arguments: argparse.Namespace) -> None:
    line = json.dumps(change.to_json(), ensure_ascii=False) if arguments.json else _describe(change)
    print(line, flush=arguments.run is watch)


def _describe(change: Change) -> str:
    """A change on one line."""
    names = "  ".join(map(printable, (change.namespace, change.key)))
    times = f" ({change.times:,} times)" if change.times > 1 else ""
    refused = f"  REFUSED: {change.refusal}{times}" if change.refusal else ""
    at, size = f"{change.at:%Y-%m-%d %H:%M:%S}", pluralize(change.bytes, "byte")
    return f"{change.id}  {at}  {printable(change.who):12}  {change.verb:8}  {names}  {size}{refused}"


def _parse_time(text: str) -> float:
    """Seconds since 1970, from '2026-11-16', '2026-11-16T08:30' (UTC), or an age such as 90m, 24h, 7d."""
    if (age := re.fullmatch(r"(\d+)([smhd])", text)) is not None:
        return time.time() - int(age[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[age[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time; write 2026-11-16, 2026-11-16T08:30 or an age such as 24h, 7d"
        ) from None
    return max((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(), 0)


def add_commands(command: Commands) -> None:
    watcher = command(
        "watch", watch, "print changes as they happen", "namespace", example="scrubjay watch my-agent task:"
    )
    watcher.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="only keys that start with it")
    watcher.add_argument("--after", type=checked(parse_count), metavar="ID", help="start after this change")
    watcher.add_argument("--timeout", **SECONDS, help="end after so long without a change")
    auditor = command(
        "audit", audit, "print which key changed what and when, and what was refused",
        example="scrubjay audit --namespace my-agent --since 24h",
    )  # fmt: skip
    auditor.add_argument("--namespace", help="only this namespace")
    auditor.add_argument(
        "--since", type=checked(_parse_time), default=0.0, metavar="TIME", help="a day, a time (UTC), or an age: 24h"
    )
