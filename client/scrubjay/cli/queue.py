"""Commands on the outbox: pending and flush."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from scrubjay.cli.common import SECONDS, add_yes, fail, open_queue
from scrubjay.cli.output import Report, note
from scrubjay.cli.parser import SERVER, Commands
from scrubjay.errors import InvalidInput, ScrubjayError, Unavailable, pluralize
from scrubjay.models import iso
from scrubjay.opening import open_executor
from scrubjay.settings import Settings, is_database, memory_settings

if TYPE_CHECKING:
    from scrubjay.outbox.executor import OutboxExecutor
    from scrubjay.outbox.queue import QueueFile, Summary, Target


def pending(arguments: argparse.Namespace) -> int:
    if arguments.drop and not (arguments.url or arguments.all_servers):
        raise InvalidInput(
            "--drop deletes the writes for one server: name it with --url, as `scrubjay pending` prints it, or pass"
            " --all-servers"
        )
    location = arguments.url and _target(arguments.url, None).location
    chosen = {"location": location, "namespace": arguments.namespace}
    with open_queue() as file:
        summaries = file.summaries(**chosen)
        if not summaries:
            note(f"no such writes are queued; {others}" if (others := _count_all(file)) else "no writes are queued")
            return 0
        _print_queue(file, chosen, summaries, arguments)
        return _drop(file, chosen, sum(each.writes for each in summaries), arguments)


def _print_queue(
    file: QueueFile, chosen: dict[str, str | None], summaries: Sequence[Summary], arguments: argparse.Namespace
) -> None:
    """Print each write, or each reason, with the commands that send and delete."""
    if arguments.all or arguments.drop_refused:
        _print_writes(file, chosen, arguments)
    elif arguments.json:
        _print_summaries_json(summaries)
    else:
        _print_summaries(summaries)
        if not arguments.drop:
            _print_deletions(summaries, arguments.namespace)


def _count_all(file: QueueFile) -> str:
    """A sentence about the writes for whatever server; empty if there are none."""
    count = sum(each.writes for each in file.summaries())
    if not count:
        return ""
    return f"`scrubjay pending` lists the {pluralize(count, 'write')} that {'is' if count == 1 else 'are'}"


def _drop(file: QueueFile, chosen: dict[str, str | None], count: int, arguments: argparse.Namespace) -> int:
    """Delete what --drop-refused or --drop names, if one is given; returns the exit code."""
    if arguments.drop_refused:
        dropped = file.drop(**chosen, only_refused=True)
        note(f"dropped {pluralize(dropped, 'refused write')}" if dropped else "no such writes were refused")
    elif arguments.drop and not arguments.yes:
        return fail(f"nothing was deleted; pass --yes to delete {pluralize(count, 'queued write')}")
    elif arguments.drop:
        note(f"dropped {pluralize(file.drop(**chosen, only_refused=False), 'write')}")
    return 0


def _print_summaries(summaries: Sequence[Summary]) -> None:
    """Each reason once, with the namespaces that it holds up and the command that sends their writes."""
    settings = memory_settings()
    by_reason: dict[tuple[str, bool, bool, str], list[Summary]] = {}
    for each in summaries:  # keys that are not in use are alike: the same commands send and delete their writes
        is_other = _is_of_other_key(each.target, settings)
        by_reason.setdefault((each.target.location, is_other, each.is_refused, each.reason), []).append(each)
    for (location, is_other, is_refused, reason), group in by_reason.items():
        count = len({each.target for each in group})
        keys = "another api key" if count == 1 else f"{count} other api keys"
        with_other = f" with {keys} than SCRUBJAY_API_KEY or SCRUBJAY_URL has" if is_other else ""
        tried = _age(min(each.seconds_since_tried for each in group))
        why = f"{reason} ({tried} ago)" if reason else "not tried since a write was sent"
        print(f"{'refused by' if is_refused else 'queued for'} {location}{with_other}: {why}")
        for namespace in dict.fromkeys(each.namespace for each in group):
            same = [each for each in group if each.namespace == namespace]
            writes, age = pluralize(sum(each.writes for each in same), "write"), max(each.age for each in same)
            print(f"    {namespace}  {writes}, the oldest {_age(age)} ago")
        flags = f"{'--refused ' * is_refused}{'--other-keys ' * is_other}--url {shlex.quote(location)}"
        print(f"  to send them{' with the key of now' * is_other}: scrubjay flush {flags}")


def _print_deletions(summaries: Sequence[Summary], namespace: str | None) -> None:
    """The commands that delete, once for each server: they delete whatever the reason and the api key."""
    for location in dict.fromkeys(each.target.location for each in summaries):
        group = [each for each in summaries if each.target.location == location]
        count, refused = sum(each.writes for each in group), sum(each.writes for each in group if each.is_refused)
        chosen, whose = f"--url {shlex.quote(location)}", f"for {location}"
        if namespace:
            chosen, whose = f"{chosen} --namespace {shlex.quote(namespace)}", f"to {namespace} {whose}"
        if refused:
            print(f"to delete all refused writes {whose} ({refused:,}): scrubjay pending --drop-refused {chosen}")
        if refused < count:
            print(f"to delete all writes {whose} ({count:,}): scrubjay pending --drop {chosen} --yes")


def _is_of_other_key(target: Target, settings: Settings) -> bool:
    """Whether writes wait for an api key that is not the one of this environment, and so are not sent with it."""
    return target != _target(_with_credentials(target.location, settings.url), settings.api_key)


def _with_credentials(location: str, url: str | None) -> str:
    """The URL of the environment, which may have an api key in it, if it is the one of this location."""
    from scrubjay.transport import is_server, split_credentials  # noqa: PLC0415 - only these commands need it

    if url and is_server(url) and is_server(location):
        with contextlib.suppress(InvalidInput):  # a mistyped URL must not hide what is queued for others
            shown, credentials = split_credentials(location)
            if credentials is None and split_credentials(url)[0] == shown:
                return url
    return location


def _print_summaries_json(summaries: Sequence[Summary]) -> None:
    settings = memory_settings()
    for each in summaries:
        fields = {
            "server": each.target.location,
            "namespace": each.namespace,
            "writes": each.writes,
            "oldest_seconds": round(each.age),
            "refused": each.is_refused,
            "other_key": _is_of_other_key(each.target, settings),
            "tried_seconds": round(each.seconds_since_tried),
            "reason": each.reason,
        }
        print(json.dumps(fields, ensure_ascii=False))


def _print_writes(file: QueueFile, chosen: dict[str, str | None], arguments: argparse.Namespace) -> None:
    settings = memory_settings()
    for target, writes in file.everything(**chosen).items():
        location, other = target.location, " for another api key" * _is_of_other_key(target, settings)
        shown = ""  # a reason is printed once: hundreds of writes may have the same
        for write in writes:
            if arguments.drop_refused and not write.is_refused:
                continue
            if arguments.json:
                pending = write.to_pending()
                fields = {**pending._asdict(), "queued_at": iso(pending.queued_at)}
                print(json.dumps({"server": location, **fields}, ensure_ascii=False))
                continue
            command, state = write.command, f"{'refused' if write.is_refused else 'queued'}{other}"
            key = f" {json.dumps(command.key, ensure_ascii=False)}" if command.key else ""
            what = f"{command.verb.name}{key}"
            reason, shown = "" if write.reason == shown else f": {write.reason}", write.reason
            print(f"{location}  {command.namespace}  {what}  {_age(write.age)}  {state}{reason}")


def _age(seconds: float) -> str:
    """A duration in the form that --since takes."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds:.0f}s"


def flush(arguments: argparse.Namespace) -> int:
    settings = memory_settings(url=arguments.url)
    url = settings.url and _with_credentials(settings.url, memory_settings().url)
    if arguments.other_keys and not url:
        raise InvalidInput("--other-keys is for one server: give --url, or set SCRUBJAY_URL")
    with open_queue() as file:
        summaries = file.summaries()
    if not url and not summaries:
        note("no writes are queued")
    targets = [(url, settings.api_key)] if url else _targets(summaries, settings.api_key)
    with Report(arguments) as report:
        failures = {
            _target(location, None).location: code
            for location, api_key in targets
            if (code := _flush(location, api_key, arguments, report))
        }
        left = _report_other_keys(targets, url)
        report(failed=list(failures), made_with_other_keys=left)
    return max([*failures.values(), 1 if left else 0])


def _targets(summaries: Sequence[Summary], api_key: str | None) -> list[tuple[str, str | None]]:
    """The targets of writes that were made with this api key or without one: no key is sent to another server."""
    queued = {each.target for each in summaries}
    return [
        (target.location, key)
        for target in sorted(queued)
        for key in dict.fromkeys((None, api_key))
        if _target(target.location, key) == target
    ]


def _target(location: str, api_key: str | None) -> Target:
    from scrubjay.outbox.queue import Target  # noqa: PLC0415 - only these commands need it
    from scrubjay.transport import is_server, split_credentials  # noqa: PLC0415

    if is_database(location):
        return Target.of(_database_name(location), None)
    if not is_server(location):
        return Target.of(location, None)
    shown, credentials = split_credentials(location)
    return Target.of(shown, api_key or credentials)


def _database_name(url: str) -> str:
    """The URL of a PostgreSQL database as the queue has it: without a user, a password and parameters."""
    from scrubjay.store.postgres.connection import Address  # noqa: PLC0415 - only with such a database

    return Address(url).name


def _flush(location: str, api_key: str | None, arguments: argparse.Namespace, report: Report) -> int:
    """Send what is queued for a target; returns the exit code, after printing why some of it was not sent."""
    try:
        queued = _count_sendable(_target(location, api_key), arguments)  # before the outbox is opened, which sends
        with contextlib.closing(_open_outbox(location, api_key)) as executor:
            if arguments.other_keys:
                executor.take_over_other_keys()
            if arguments.refused:
                executor.retry_refused()
            if queued:
                note(f"sending {pluralize(queued, 'write')} to {executor.location}, for up to {arguments.timeout:g} s")
            executor.flush(None, arguments.timeout)
            report(f"{pluralize(queued, 'write')} sent to {executor.location}", flushed=[executor.location])
    except ScrubjayError as error:  # other servers may still accept theirs
        is_unusable = isinstance(error, Unavailable) and _count_unsent(location)
        return fail(str(error), 3 if is_unusable else 1)
    return 0


def _open_outbox(location: str, api_key: str | None) -> OutboxExecutor:
    """An outbox in front of a server, or in front of a file or a database that an agent could not write to."""
    settings = _settings_for(location, api_key)
    return cast("OutboxExecutor", open_executor(settings, strict=False, unattended=not settings.url))


def _settings_for(location: str, api_key: str | None) -> Settings:
    from scrubjay.transport import is_server  # noqa: PLC0415 - only this command needs it

    if is_server(location):
        return memory_settings(url=location, api_key=api_key or "")
    if is_database(location):
        settings = memory_settings()
        known = {_database_name(url): url for url in (settings.store, settings.url) if url and is_database(url)}
        # The queue has no password: one may be in ~/.pgpass.
        return settings._replace(url=None, store=known.get(location, location))
    return memory_settings(path=location)._replace(url=None, store=None)


def _count_sendable(target: Target, arguments: argparse.Namespace) -> int:
    """How many queued writes a flush is to send to a target."""
    with open_queue() as file:
        summaries = file.summaries(location=target.location)
    chosen = [each for each in summaries if arguments.other_keys or each.target == target]
    return sum(each.writes for each in chosen if arguments.refused or not each.is_refused)


def _count_unsent(location: str) -> int:
    """How many writes for a server or a file are queued, with whichever api key; without those refused for good."""
    with open_queue() as file:
        summaries = file.summaries(location=_target(location, None).location)
    return sum(each.writes for each in summaries if not each.is_refused)


def _report_other_keys(targets: Sequence[tuple[str, str | None]], url: str | None) -> int:
    """Print how many writes are left because they were made with another api key; returns their number."""
    tried = {_target(*target) for target in targets}
    left: Counter[str] = Counter()
    with open_queue() as file:
        for each in file.summaries(location=url and _target(url, None).location):
            if not each.is_refused and each.target not in tried:
                left[each.target.location] += each.writes
    for location, count in left.items():
        fail(
            f"{pluralize(count, 'write')} to {location} made with another api key cannot be sent: set"
            " SCRUBJAY_API_KEY to that key, or send them with this one: scrubjay flush --other-keys --url"
            f" {shlex.quote(location)}"
        )
    return left.total()


def add_commands(command: Commands) -> None:
    waiter = command(
        "pending",
        pending,
        "count the writes that are queued for a server",
        example="scrubjay pending --all",
        flags=None,
    )
    waiter.add_argument("--url", help="only writes for this server")
    waiter.add_argument("--namespace", help="only writes of this namespace")
    waiter.add_argument("--all", action="store_true", help="list them, one a line")
    waiter.add_argument("--drop", action="store_true", help="delete them; needs --url or --all-servers, and --yes")
    waiter.add_argument("--all-servers", action="store_true", help="with --drop: for every server")
    add_yes(waiter, "with --drop: do not only print what would be deleted")
    waiter.add_argument("--drop-refused", action="store_true", help="list those that a server refused, and delete them")
    flusher = command(
        "flush", flush, "send queued writes now; without a server, to every server",
        example="scrubjay flush --url http://127.0.0.1:8787", flags=SERVER,
    )  # fmt: skip
    flusher.add_argument("--timeout", **SECONDS, default=30.0, help="how long to try (default 30)")
    flusher.add_argument(
        "--other-keys", action="store_true", help="also send writes that were made with another, replaced api key"
    )
    flusher.add_argument("--refused", action="store_true", help="also send once more what was refused for good")
