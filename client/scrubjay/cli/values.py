"""Commands on values, lists and usage: get, set, items, update, transaction, append, pop, quota and more."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from scrubjay import commands
from scrubjay.calls import commands_of
from scrubjay.cli.common import (
    SECONDS,
    add_limit_flags,
    add_yes,
    executor_of,
    fail,
    given_limits,
    open_memory,
    read_json,
    read_text,
    require_namespace,
)
from scrubjay.cli.output import Report, format_duration, format_size, note, print_json, print_lines
from scrubjay.cli.parser import Commands
from scrubjay.errors import InvalidInput, pluralize
from scrubjay.exact_json import decode_body, encode
from scrubjay.models import Usage
from scrubjay.settings import checked, parse_count, parse_size

JSON_STARTS = ("{", "[", '"')
"""First characters of a text that is meant as JSON: if it is not, that is a mistake and not plain text."""


def get(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        item = memory.item(arguments.key)
    if item is None:
        return _fail_missing(arguments)
    print_json(item.to_json() if arguments.json else item.value)
    return 0


def set_(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory, Report(arguments) as report:
        report(version=memory.set(arguments.key, _value(arguments.value, arguments), ttl=arguments.ttl))
    return 0


def keys(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        found = memory.keys(arguments.prefix)
    if not found:
        require_namespace(arguments)
    print_lines(arguments, found, empty=f"no key{_starting(arguments)} in {arguments.namespace!r}")
    return 0


def items(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        found = memory.items(arguments.prefix, after=arguments.after, limit=arguments.n, reverse=arguments.reverse)
        lines = ({"key": key, "value": value} for key, value in found)
        return _print_items(arguments, lines, f"no key{_starting(arguments)} in {arguments.namespace!r}")


def merge(arguments: argparse.Namespace) -> int:
    fields = read_json(arguments.fields, "FIELDS")
    with open_memory(arguments) as memory, Report(arguments) as report:
        report(version=memory.merge(arguments.key, fields))
    return 0


def update(arguments: argparse.Namespace) -> int:
    values = read_json(arguments.values, "VALUES")
    versions = None if arguments.if_versions is None else read_json(arguments.if_versions, "--if-versions")
    with open_memory(arguments) as memory, Report(arguments) as report:
        memory.update(values, if_versions=versions, ttl=arguments.ttl)
        report(updated=len(values))
    return 0


def transaction(arguments: argparse.Namespace) -> int:
    writes = read_json(arguments.writes, "WRITES")
    with open_memory(arguments) as memory:
        with memory.transaction(once=arguments.once) as collected:
            for command in commands_of(memory.namespace, writes, "writes"):
                collected.add(command)
        print_json({"results": collected.results} if arguments.json else collected.results)
    return 0


def touch(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        found = memory.touch(arguments.key, arguments.ttl)
    if not found:
        return _fail_missing(arguments)
    with Report(arguments) as report:
        report(touched=True)
    return 0


def rm(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        found = memory.delete(arguments.key)
    if not found:
        return _fail_missing(arguments)
    with Report(arguments) as report:
        report(deleted=True)
    return 0


def append(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory, Report(arguments) as report:
        length = memory.append(arguments.key, *(_value(text, arguments) for text in arguments.value))
        report(str(length), length=length)
    return 0


def tail(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        found = memory.tail(arguments.key, arguments.n)
    return _print_list(arguments, found)


def search(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        found = memory.search(arguments.query, arguments.prefix, limit=arguments.n)
    lines = ({**match._asdict(), "score": round(match.score, 2)} for match in found)
    return _print_items(arguments, lines, f"nothing in {arguments.namespace!r} fits {arguments.query!r}")


def find(arguments: argparse.Namespace) -> int:
    where = read_json(arguments.where, "--where")
    with open_memory(arguments) as memory:
        found = memory.find(arguments.prefix, where=where, limit=arguments.n, offset=arguments.offset)
    lines = ({"key": item.key, "value": item.value} for item in found)
    hint = f"; {arguments.prefix!r} is the start of keys, conditions are in --where" if "=" in arguments.prefix else ""
    return _print_items(arguments, lines, f"nothing in {arguments.namespace!r} fits{hint}")


def slice_(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        found = memory.slice(arguments.key, arguments.start, arguments.stop)
    return _print_list(arguments, found)


def pop(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        found = memory.pop(arguments.key, arguments.n, first=arguments.first)
    return _print_list(arguments, found)


def length(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        count = memory.length(arguments.key)
    if not count:
        require_namespace(arguments)
    with Report(arguments) as report:
        report(str(count), length=count)
    return 0


def incr(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory, Report(arguments) as report:
        value = memory.incr(arguments.key, arguments.by)
        report(str(value), value=value)
    return 0


def clear(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        if not (arguments.prefix or arguments.yes):
            require_namespace(arguments)
            used = memory.usage()
            size = f"{pluralize(used.keys, 'key')} and {pluralize(used.notes, 'note')}, {format_size(used.bytes)}"
            return fail(f"nothing was deleted; pass --yes to delete {size}, of {arguments.namespace!r}")
        deleted = memory.clear(arguments.prefix)
    if not deleted:
        require_namespace(arguments)
    with Report(arguments) as report:
        report(str(deleted), deleted=deleted)
    return 0


def namespaces(arguments: argparse.Namespace) -> int:
    with executor_of(arguments) as executor:
        found = executor.run(commands.NAMESPACES(""))
    print_lines(arguments, found, empty="no namespaces yet; to make one: scrubjay set my-agent greeting hello")
    return 0


def usage(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        used = memory.usage()
    if not (used.keys or used.bytes or used.writes_today):
        require_namespace(arguments)
    _print_usage(arguments, used)
    return 0


def quota(arguments: argparse.Namespace) -> int:
    limits = given_limits(arguments)
    if not limits:
        return usage(arguments)
    if not arguments.new:
        require_namespace(arguments, " (pass --new to limit it before its first write)")
    with open_memory(arguments) as memory:
        _print_usage(arguments, memory.set_quota(**limits))
    return 0


def _print_list(arguments: argparse.Namespace, found: Iterable[Any]) -> int:
    return _print_items(arguments, found, f"no items in the list {arguments.key!r} of {arguments.namespace!r}")


def _print_items(arguments: argparse.Namespace, found: Iterable[Any], empty: str) -> int:
    """Print one JSON value a line; say on stderr what is empty."""
    is_empty = True
    for item in found:
        is_empty = False
        print(json.dumps(item, ensure_ascii=False))
    if is_empty:
        require_namespace(arguments)
        note(empty)
    return 0


def _starting(arguments: argparse.Namespace) -> str:
    return f" that starts with {arguments.prefix!r}" if arguments.prefix else ""


def _fail_missing(arguments: argparse.Namespace) -> int:
    """The key does not exist, or its namespace does not."""
    require_namespace(arguments)
    return fail(f"there is no {arguments.key!r} in {arguments.namespace!r}")


def _value(text: str, arguments: argparse.Namespace) -> Any:
    """The value of JSON text, or the text itself if it is not JSON or --text is given."""
    text = read_text(text)
    if arguments.text:
        return text
    try:
        value = decode_body(text)
        encode(value)
    except InvalidInput as error:
        if text.lstrip().startswith(JSON_STARTS):
            raise InvalidInput(f"{error}; pass --text to store it as text") from error
        return text
    return value


def _print_usage(arguments: argparse.Namespace, used: Usage) -> None:
    if arguments.json:
        print_json(used.to_json())
        return
    for label, text in _describe(used):
        print(f"{label:12}  {text}")


def _describe(used: Usage) -> Iterator[tuple[str, str]]:
    reset = format_duration((used.resets_at - datetime.now(UTC)).total_seconds())
    limit = f"of {used.writes_per_day:,}, reset in {reset} (midnight UTC)" if used.writes_per_day else "(no limit)"
    yield "writes today", f"{used.writes_today:,} {limit}"
    yield (
        "storage",
        f"{format_size(used.bytes)} " + (f"of {format_size(used.max_bytes)}" if used.max_bytes else "(no limit)"),
    )
    yield "keys", f"{used.keys:,}"
    yield "notes", f"{used.notes:,}"


def number(text: str) -> float:
    """An integer, or a float; argparse names this function in its error."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def add_commands(command: Commands) -> None:
    _add_value_commands(command)
    _add_list_commands(command)
    command("namespaces", namespaces, "list namespaces", example="scrubjay namespaces")
    command(
        "usage", usage, "print current usage and limits of a namespace", "namespace", example="scrubjay usage my-agent"
    )
    limiter = command(
        "quota", quota, "print or change the limits of a namespace", "namespace",
        example="scrubjay quota my-agent --writes-per-day 5000 --max-bytes 200MB", needs_file=False,
    )  # fmt: skip
    add_limit_flags(limiter, ("--writes-per-day", parse_count), ("--max-bytes", parse_size))
    limiter.add_argument("--new", action="store_true", help="limit a namespace before its first write")


def _add_value_commands(command: Commands) -> None:
    prefix: dict[str, Any] = {"nargs": "?", "default": "", "metavar": "PREFIX", "help": "only keys that start with it"}
    command("get", get, "print a value as JSON", "namespace", "key", example="scrubjay get my-agent user")
    setter = command(
        "set", set_, "store a value: JSON, or else plain text", "namespace", "key", "value",
        example="""scrubjay set my-agent user '{"name": "Sarah"}' --ttl 3600""", needs_file=False,
    )  # fmt: skip
    setter.add_argument("--ttl", **SECONDS, help="seconds until it expires")
    setter.add_argument("--text", action="store_true", help="store the text as it is, even if it looks like JSON")
    command("keys", keys, "list keys", "namespace", example="scrubjay keys my-agent user:").add_argument(
        "prefix", **prefix
    )
    pairs = command(
        "items", items, "print keys with their values as JSON, one a line", "namespace",
        example="scrubjay items my-agent user: -n 20",
    )  # fmt: skip
    pairs.add_argument("prefix", **prefix)
    pairs.add_argument("-n", type=checked(parse_count), help="how many at most")
    pairs.add_argument("--reverse", action="store_true", help="from the last key to the first")
    pairs.add_argument("--after", metavar="KEY", help="only keys after it; with --reverse, before it")
    finder = command(
        "search", search, "print the values and items of lists that fit best as JSON, one a line",
        "namespace", "query", example="scrubjay search my-agent PostgreSQL",
    )  # fmt: skip
    finder.add_argument("prefix", **prefix)
    finder.add_argument("-n", type=checked(parse_count), default=10, help="how many (default 10)")
    chooser = command(
        "find", find, "print the items whose values meet conditions as JSON, one a line, those that changed last first",
        "namespace", example="""scrubjay find my-agent users/ --where '{"city": "Berlin"}'""",
    )  # fmt: skip
    chooser.add_argument("prefix", **prefix)
    chooser.add_argument(
        "--where", default="{}", metavar="FIELDS", help="a JSON object of fields and values or operators; - is stdin"
    )
    chooser.add_argument("-n", type=checked(parse_count), default=10, help="how many at most (default 10)")
    chooser.add_argument("--offset", type=checked(parse_count), default=0, help="how many to leave out before those")
    add_yes(command("rm", rm, "delete a key", "namespace", "key", example="scrubjay rm my-agent user"))
    clearer = command(
        "clear", clear, "delete the keys that start with a prefix, or all keys and notes, and print how many",
        "namespace", example="scrubjay clear my-agent cache:",
    )  # fmt: skip
    clearer.add_argument("prefix", **{**prefix, "help": "only keys that start with it; without it, all keys and notes"})
    add_yes(clearer, "needed without a prefix")
    merger = command(
        "merge", merge, "replace fields of a value that is an object", "namespace", "key",
        example="""scrubjay merge my-agent user '{"city": "Berlin"}'""", needs_file=False,
    )  # fmt: skip
    merger.add_argument("fields", metavar="FIELDS", help="a JSON object; null removes a field; - is stdin")
    updater = command(
        "update", update, "store several values, all of them or none", "namespace",
        example="""scrubjay update my-agent '{"city": "Berlin", "old": null}'""", needs_file=False,
    )  # fmt: skip
    updater.add_argument("values", metavar="VALUES", help="a JSON object of keys and values; null deletes; - is stdin")
    updater.add_argument("--ttl", **SECONDS, help="seconds until they expire")
    updater.add_argument(
        "--if-versions", metavar="VERSIONS", help="a JSON object of keys and expected versions; 0: it must not exist"
    )
    runner = command(
        "transaction", transaction, "run several writes, all of them or none, and print their results", "namespace",
        example="""scrubjay transaction my-agent '[{"verb": "incr", "key": "n"}, {"verb": "pop", "key": "tasks"}]'""",
        needs_file=False,
    )  # fmt: skip
    runner.add_argument(
        "writes", metavar="WRITES", help="a JSON list of objects: a verb and its arguments, as in HTTP; - is stdin"
    )
    runner.add_argument("--once", metavar="ID", help="an id: a second transaction with it changes nothing")
    toucher = command(
        "touch", touch, "replace the expiry of a value and nothing else", "namespace", "key",
        example="scrubjay touch my-agent session --ttl 3600",
    )  # fmt: skip
    toucher.add_argument("--ttl", **SECONDS, help="seconds until it expires; without it, never")
    counter = command(
        "incr", incr, "add to a number and print the sum", "namespace", "key",
        example="scrubjay incr my-agent visits 5", needs_file=False,
    )  # fmt: skip
    counter.add_argument("by", nargs="?", type=number, default=1, metavar="BY", help="how much (default 1)")


def _add_list_commands(command: Commands) -> None:
    adder = command(
        "append", append, "add to the end of a list and print its length", "namespace", "key",
        example="""scrubjay append my-agent history '{"role": "user", "content": "Hi"}'""", needs_file=False,
    )  # fmt: skip
    adder.add_argument("value", nargs="+", metavar="VALUE", help="JSON, or else plain text; - is stdin")
    adder.add_argument("--text", action="store_true", help="append the text as it is, even if it looks like JSON")
    tailer = command(
        "tail", tail, "print the last items of a list as JSON, one a line", "namespace", "key",
        example="scrubjay tail my-agent history -n 20",
    )  # fmt: skip
    tailer.add_argument("-n", type=checked(parse_count), default=10, help="how many (default 10)")
    slicer = command(
        "slice", slice_, "print some items of a list as JSON, one a line", "namespace", "key",
        example="scrubjay slice my-agent history 0 10",
    )  # fmt: skip
    slicer.add_argument("start", type=int, metavar="START", help="the first; negative numbers count from the end")
    slicer.add_argument("stop", type=int, nargs="?", metavar="STOP", help="the first that is not printed")
    command(
        "length", length, "print how many items a list has", "namespace", "key",
        example="scrubjay length my-agent history",
    )  # fmt: skip
    popper = command(
        "pop", pop, "take the last items of a list and print them as JSON, one a line", "namespace", "key",
        example="scrubjay pop my-agent tasks --first",
    )  # fmt: skip
    popper.add_argument("-n", type=checked(parse_count), default=1, help="how many (default 1)")
    popper.add_argument("--first", action="store_true", help="take the first items instead")
