"""Commands on api keys: key issue, key list, key quota, key rotate, key revoke."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable

from scrubjay import commands
from scrubjay.cli.common import add_limit_flags, add_yes, executor_of, fail, given_limits, settings_of
from scrubjay.cli.output import Column, Report, format_size, note, print_json, print_records, printable
from scrubjay.cli.parser import Commands
from scrubjay.models import ApiKey
from scrubjay.settings import DEFAULT_MAX_BYTES, DEFAULT_WRITES_PER_DAY, parse_count, parse_size
from scrubjay.store import engine


def issue(arguments: argparse.Namespace) -> int:
    """Print a new key. Stdout has only the key that was asked for, so that a script can read it."""
    if arguments.exact and not arguments.namespaces:
        return fail("--exact needs the names of namespaces: --namespaces NAME")
    with executor_of(arguments) as executor:
        rights = (_patterns(arguments), arguments.read_only, arguments.admin, given_limits(arguments), arguments.exact)
        issued = executor.run(commands.ISSUE_KEY("", arguments.name, *rights))
    with Report(arguments) as report:
        report(issued.secret, **issued.to_json())
    note("Keep it: it is shown only now. Give it to clients as SCRUBJAY_API_KEY.")
    if issued.admin_secret:
        note(
            f"admin key  {issued.admin_secret}\n"
            "No other api key was in force, so this admin key was issued as well and is shown only now.\n"
            "Set SCRUBJAY_API_KEY to the admin key to issue, list and revoke keys."
        )
    if issued.is_first:
        note(
            "From now on every request to a server needs a key, and every namespace has a quota:\n"
            f"{DEFAULT_WRITES_PER_DAY:,} writes a day and {format_size(DEFAULT_MAX_BYTES)}, unless the server was"
            " started with other limits.\n`scrubjay quota NAMESPACE` shows and changes them."
        )
    return 0


def _patterns(arguments: argparse.Namespace) -> tuple[str, ...]:
    given = [text for texts in arguments.namespaces or [["*"]] for text in texts]
    if arguments.exact:
        return tuple(given)
    return tuple(pattern for text in given for pattern in re.split(r"\s*,\s*", text))


def list_(arguments: argparse.Namespace) -> int:
    with executor_of(arguments) as executor:
        found = executor.run(commands.API_KEYS(""))
    columns = (
        Column("id", lambda key: key.id),
        Column("may", _permission),
        Column("namespaces", lambda key: printable(_quote_spaces(",".join(key.namespaces)))),
        Column("issued", lambda key: f"{key.created_at:%Y-%m-%d}"),
        Column("name", lambda key: printable(key.name)),
    )
    print_records(arguments, found, *columns, empty="no api key is in force")
    return 0


def _permission(key: ApiKey) -> str:
    return "admin" if key.admin else "read-only" if key.read_only else "read-write"


def _quote_spaces(patterns: str) -> str:
    """Patterns as --namespaces takes them; those with spaces in quotes, which show where they begin and end."""
    return shlex.quote(patterns) if re.search(r"\s", patterns) else patterns


def quota(arguments: argparse.Namespace) -> int:
    with executor_of(arguments) as executor:
        key = executor.run(commands.SET_KEY_QUOTA("", arguments.id, given_limits(arguments)))
    if key is None:
        return _no_such_key(arguments.id)
    if arguments.json:
        print_json(key.to_json())
        return 0
    print(f"writes today  {key.writes_today:,} {_describe_limit(key, key.writes_per_day)}")
    print(f"storage       {format_size(key.bytes)} {_describe_limit(key, key.max_bytes, format_size)}")
    print(f"namespaces    {key.namespaces_in_use:,} {_describe_limit(key, key.max_namespaces)}")
    return 0


def _describe_limit(key: ApiKey, limit: int | None, describe: Callable[[int], str] = "{:,}".format) -> str:
    if limit is None and not key.admin:
        return "(the server's default limit)"
    return f"of {describe(limit)}" if limit else "(no limit)"


def rotate(arguments: argparse.Namespace) -> int:
    with executor_of(arguments) as executor:
        secret = executor.run(commands.ROTATE_KEY("", arguments.id))
    if secret is None:
        return _no_such_key(arguments.id)
    with Report(arguments) as report:
        report(secret, key=secret)
    note("The old key is not valid any more; everything else of it stays. The new one is shown only now.")
    return 0


def revoke(arguments: argparse.Namespace) -> int:
    with executor_of(arguments) as executor:
        keys = {key.id: key for key in executor.run(commands.API_KEYS(""))}
        found = executor.run(commands.REVOKE_KEY("", arguments.id, arguments.forget))
    if not found:
        return _no_such_key(arguments.id)
    with Report(arguments) as report:
        name = f" ({printable(keys[arguments.id].name)})" if arguments.id in keys else ""
        report(f"revoked  api key {arguments.id}{name}", revoked=arguments.id)
        if arguments.forget:
            report("removed  its name and its namespaces; in the log its id takes their place", forgotten=arguments.id)
    if arguments.forget:
        note(
            "a name that another key has, too, stays in the log until that key is forgotten as well; in a SQLite file,"
            " copies are left in free space until the next `scrubjay compact` or `scrubjay erase`"
        )
    if [key.id for key in keys.values() if key.admin] == [arguments.id]:
        flags = engine.flags_of(settings_of(arguments))
        note(f"that was the last admin key; to make another: scrubjay key issue --admin {flags}")
    return 0


def _no_such_key(identity: str) -> int:
    return fail(f"there is no api key {identity!r}; `scrubjay key list` shows them")


def add_commands(command: Commands) -> None:
    command.group("keys")
    command = command.nested("key", "issue, list, limit, rotate and revoke api keys")
    issuer = command(
        "issue",
        issue,
        "issue an api key and print it once",
        example="scrubjay key issue --name bot --namespaces 'bot-*'",
    )
    issuer.add_argument("--name", default="unnamed", help="what it is for")
    issuer.add_argument(
        "--namespaces",
        action="append",
        nargs="+",
        metavar="PATTERN",
        help="such as 'autogen-*'; several, separated by commas or quoted one by one; it may have spaces",
    )
    issuer.add_argument(
        "--exact",
        action="store_true",
        help="--namespaces has names, in which * and commas mean themselves: for names that users choose",
    )
    issuer.add_argument("--read-only", action="store_true", help="may read and search, and change nothing")
    issuer.add_argument("--admin", action="store_true", help="may also change quotas and api keys")
    command("list", list_, "list api keys", example="scrubjay key list")
    limiter = command(
        "quota", quota, "print what an api key has used of its limits, or change them",
        example="scrubjay key quota 3f9c0a12 --max-bytes 100MB",
    )  # fmt: skip
    limits = (("--writes-per-day", parse_count), ("--max-bytes", parse_size), ("--max-namespaces", parse_count))
    for limited in (issuer, limiter):
        add_limit_flags(limited, *limits)
    rotator = command(
        "rotate", rotate, "replace an api key by a new one with the same id, rights and memories",
        example="scrubjay key rotate 3f9c0a12",
    )  # fmt: skip
    revoker = command("revoke", revoke, "revoke an api key, at once", example="scrubjay key revoke 3f9c0a12")
    add_yes(revoker)
    revoker.add_argument(
        "--forget",
        action="store_true",
        help="also remove its name and its namespaces, from the log too; of a revoked key as well",
    )
    for named in (limiter, rotator, revoker):
        named.add_argument("id", metavar="ID", help="as `scrubjay key list` prints it")
