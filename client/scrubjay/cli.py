"""The `scrubjay` command."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .backends import Backend
from .drafts import RANKINGS
from .errors import InvalidInput, MissingExtra, ScrubjayError
from .memory import Memory, open_backend
from .names import check_namespace, counted
from .progress import Progress
from .records import Change, Note, Usage
from .settings import add_serve_flags, checked, parse_count, parse_seconds, parse_size, resolve
from .store.sqlite import SqliteStore
from .upkeep import add_upkeep_commands, file_only
from .values import decode_body, encode
from .version import __version__

if TYPE_CHECKING:
    from .outbox import Line, OutboxFile

Command = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    _open_streams()
    arguments = _parser().parse_args(argv)
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
    except ScrubjayError as error:
        print(f"scrubjay: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `scrubjay keys … | head`
        _drop_output()
        return 0
    except OSError as error:
        if error.filename is None:  # then it is stdout's
            _drop_output()
        place = error.filename or "the output"
        print(f"scrubjay: cannot use {place}: {error.strerror}; check it, or name another place", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _open_streams() -> None:
    """What is closed is empty; and a terminal that cannot show a character shows its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Python writes what is left when it ends, and would complain once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def get(arguments: argparse.Namespace) -> int:
    with _memory(arguments) as memory:
        item = memory.item(arguments.key)
    if item is None:
        print(f"scrubjay: there is no {arguments.key!r} in {arguments.namespace!r}", file=sys.stderr)
        return 1
    _show(item.value)
    return 0


def set_(arguments: argparse.Namespace) -> int:
    with _memory(arguments) as memory:
        memory.set(arguments.key, _value(arguments.value, arguments), ttl=arguments.ttl)
    return 0


def keys(arguments: argparse.Namespace) -> int:
    with _memory(arguments) as memory:
        for key in memory.keys(arguments.prefix):
            print(key if key.isprintable() else json.dumps(key))
    return 0


def rm(arguments: argparse.Namespace) -> int:
    with _memory(arguments) as memory:
        found = memory.delete(arguments.key)
    if not found:
        print(f"scrubjay: there is no {arguments.key!r} in {arguments.namespace!r}", file=sys.stderr)
    return 0 if found else 1


def append(arguments: argparse.Namespace) -> int:
    with _memory(arguments) as memory:
        print(memory.append(arguments.key, *(_value(text, arguments) for text in arguments.value)))
    return 0


def tail(arguments: argparse.Namespace) -> int:
    with _memory(arguments) as memory:
        for item in memory.tail(arguments.key, arguments.n):
            print(json.dumps(item, ensure_ascii=False))
    return 0


def remember(arguments: argparse.Namespace) -> int:
    content = sys.stdin.read() if arguments.content == "-" else arguments.content
    with _memory(arguments) as memory:
        note = memory.remember(
            content,
            **_filters(arguments),
            ttl=arguments.ttl,
            ttl_days=arguments.ttl_days,
            pinned=arguments.pinned,
            metadata=None if arguments.metadata is None else decode_body(arguments.metadata),
        )
    print(note.id if note else "")
    return 0


def recall(arguments: argparse.Namespace) -> int:
    with _memory(arguments) as memory:
        asked = {"limit": arguments.n, "threshold": arguments.threshold, "ranking": arguments.ranking}
        asked |= _filters(arguments)
        if arguments.context is None:
            _show_notes(memory.recall(arguments.query, **asked))
        elif text := memory.inject_context(arguments.query, max_tokens=arguments.context, **asked):
            print(text)
    return 0


def notes(arguments: argparse.Namespace) -> int:
    with _memory(arguments) as memory:
        _show_notes(memory.notes(**_filters(arguments)))
    return 0


def forget(arguments: argparse.Namespace) -> int:
    with _memory(arguments) as memory:
        found = memory.forget(arguments.note_id)
    if not found:
        print(f"scrubjay: there is no note {arguments.note_id!r} in {arguments.namespace!r}", file=sys.stderr)
    return 0 if found else 1


def reindex(arguments: argparse.Namespace) -> int:
    from .meaning import Meaning  # noqa: PLC0415 - nobody else needs it

    choice = resolve("embedder")
    if not choice:
        raise InvalidInput("no model is chosen, and words need no reindexing; set SCRUBJAY_EMBEDDER")
    store = file_only(arguments)
    try:
        meaning = Meaning(store, choice)
        done = 0
        with Progress("note") as progress:
            for done, total in meaning.reindex():
                progress(done, total)
        print(f"{counted(done, 'note')} new to {meaning.embedder.name}, which has seen all now", file=sys.stderr)
    finally:
        store.close()
    return 0


def encrypt(arguments: argparse.Namespace) -> int:
    store, is_sealed = _open_sealed(arguments)
    secret = resolve("new_secret") or (None if is_sealed else resolve("secret"))
    if not secret:
        store.close()
        variable = "SCRUBJAY_NEW_SECRET" if is_sealed else "SCRUBJAY_SECRET"
        raise InvalidInput(f"set {variable} to the secret that shall be needed from now on")
    store.reseal(secret)
    print("everything is sealed; without the secret nobody can read it, you neither", file=sys.stderr)
    return 0


def decrypt(arguments: argparse.Namespace) -> int:
    store, is_sealed = _open_sealed(arguments)
    if not is_sealed:
        store.close()
        raise InvalidInput("this database is not sealed")
    store.reseal(None)
    print("nothing is sealed any more; unset SCRUBJAY_SECRET", file=sys.stderr)
    return 0


def _open_sealed(arguments: argparse.Namespace) -> tuple[SqliteStore, bool]:
    """The file, and whether its values are sealed: then SCRUBJAY_SECRET has to open it."""
    try:
        return file_only(arguments, secret=""), False
    except InvalidInput:
        return file_only(arguments), True


def compact(arguments: argparse.Namespace) -> int:
    store = file_only(arguments)
    try:
        store.sweep()
        store.compact()
        print(_disk(store.path))
    finally:
        store.close()
    return 0


def watch(arguments: argparse.Namespace) -> int:
    with _memory(arguments) as memory:
        for change in memory.watch(arguments.prefix, after=arguments.after, timeout=arguments.timeout):
            print(_change(change), flush=True)
    return 0


def audit(arguments: argparse.Namespace) -> int:
    namespace = None if arguments.namespace is None else check_namespace(arguments.namespace)
    with _store(arguments) as store:
        after = 0
        while page := store.audit(namespace, arguments.since, after):
            for change in page:
                print(json.dumps(change.to_json()) if arguments.json else _change(change))
            after = page[-1].id
    return 0


def _change(change: Change) -> str:
    """On one line, whatever is in its names."""
    names = (name if name.isprintable() else json.dumps(name) for name in (change.namespace, change.key))
    refused = f"  REFUSED: {change.refusal}" if change.refusal else ""
    at, size = f"{change.at:%Y-%m-%d %H:%M:%S}", counted(change.bytes, "byte")
    return f"{change.id}  {at}  {change.who:12}  {change.verb:8}  {'  '.join(names)}  {size}{refused}"


def _moment(text: str) -> float:
    """Seconds since 1970, from '2026-11-16', '2026-11-16T08:30' (UTC), or an age such as 90m, 24h, 7d."""
    if (age := re.fullmatch(r"(\d+)([smhd])", text)) is not None:
        return time.time() - int(age[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[age[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write 2026-11-16, 2026-11-16T08:30 or an age such as 24h, 7d") from None
    return max((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(), 0)


def namespaces(arguments: argparse.Namespace) -> int:
    with _store(arguments) as store:
        for namespace in store.namespaces():
            print(namespace)
    return 0


def usage(arguments: argparse.Namespace) -> int:
    with _memory(arguments) as memory:
        print(_usage(memory.usage()))
    return 0


def quota(arguments: argparse.Namespace) -> int:
    changes = {
        name: None if value == "default" else value
        for name in ("writes_per_day", "max_bytes")
        if (value := getattr(arguments, name)) is not None
    }
    with _memory(arguments) as memory:
        print(_usage(memory.set_quota(**changes) if changes else memory.usage()))
    return 0


def pending(arguments: argparse.Namespace) -> int:
    with _outbox() as file:
        lines = file.lines()
        if arguments.drop_refused:
            _show_entries(file, drop_refused=True)
        elif arguments.all:
            _show_entries(file)
        else:
            _show_lines(lines)
    if not lines:
        print("nothing waits to be sent", file=sys.stderr)
    return 0


def _show_lines(lines: Sequence[Line]) -> None:
    """Each reason once, with the namespaces that it holds up."""
    alike: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        state = "refused by" if line.refused else "waits for"
        alike.setdefault((f"{state} {line.server}", line.why), []).append(line)
    for (state, why), group in alike.items():
        print(f"{state}: {why}")
        for line in group:
            print(f"    {line.namespace}  {counted(line.writes, 'write')}, the oldest {_age(line.age)} ago")


def _show_entries(file: OutboxFile, *, drop_refused: bool = False) -> None:
    """One a line; with `drop_refused` only those, which are then let go of."""
    for server, entries in file.everything().items():
        chosen = [entry for entry in entries if entry.refused or not drop_refused]
        for entry in chosen:
            write, state = entry.write, "refused" if entry.refused else "waits"
            what = f"{write.verb} {json.dumps(write.key, ensure_ascii=False)}" if write.key else write.verb
            print(f"{server}  {write.namespace}  {what}  {_age(entry.age)}  {state}: {entry.why}")
        if drop_refused:
            file.remove(*(entry.id for entry in chosen))


def _age(seconds: float) -> str:
    """As --since takes it."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds:.0f}s"


def flush(arguments: argparse.Namespace) -> int:
    url = resolve("url", arguments.url)
    if arguments.adopt and not url:
        raise InvalidInput("--adopt is for the one server that knows this api key: give --url, or set SCRUBJAY_URL")
    with _outbox() as file:
        lines = file.lines()
    if not url and not lines:
        print("nothing waits to be sent", file=sys.stderr)
    targets = [(url, resolve("api_key") or "")] if url else _senders(lines)
    failed = [url for url, apikey in targets if not _flush(url, apikey, arguments)]
    left = _other_keys(targets, url)
    return 1 if failed or left else 0


def _senders(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """The servers that something waits for, if it was written with this api key or none: no other gets to see it."""
    from .outbox import queue_of  # noqa: PLC0415 - only these commands need it

    queues = {line.queue: line.server for line in lines}
    apikeys = {"", resolve("api_key") or ""}
    return [(url, apikey) for queue, url in queues.items() for apikey in apikeys if queue_of(url, apikey) == queue]


def _flush(url: str, apikey: str, arguments: argparse.Namespace) -> bool:
    try:
        with contextlib.closing(open_backend(url=url, api_key=apikey, strict=False)) as store:
            if arguments.adopt:
                store.adopt()
            store.flush(None, arguments.timeout)
            print(f"nothing waits for {store.place} any more")
    except ScrubjayError as error:  # the other servers may still take theirs
        print(f"scrubjay: {error}", file=sys.stderr)
        return False
    return True


def _other_keys(targets: Sequence[tuple[str, str]], url: str | None) -> int:
    """Tell how much still waits because it was written with another api key."""
    from .outbox import queue_of  # noqa: PLC0415

    tried = {queue_of(*target) for target in targets}
    left: Counter[str] = Counter()
    with _outbox() as file:
        for line in file.lines():
            if not line.refused and line.queue not in tried and (not url or line.server == url.rstrip("/")):
                left[line.server] += line.writes
    for server, count in left.items():
        print(
            f"scrubjay: {counted(count, 'write')} more for {server} came with another api key: set SCRUBJAY_API_KEY to"
            f" that, or send with the one that replaced it: scrubjay flush --adopt --url {server}",
            file=sys.stderr,
        )
    return left.total()


def _outbox() -> contextlib.closing[OutboxFile]:
    """What waits for any server, under any api key."""
    from .outbox import OutboxFile  # noqa: PLC0415

    return contextlib.closing(OutboxFile(Path(resolve("outbox")).expanduser(), ""))


def key_issue(arguments: argparse.Namespace) -> int:
    """Shown once: it is stored nowhere."""
    patterns = tuple(arguments.namespaces or ["*"])
    with _store(arguments) as store:
        secret = store.issue_apikey(arguments.name, patterns, read_only=arguments.read_only, admin=arguments.admin)
    print(secret)
    print("Keep it: it is shown only now. Give it to clients as SCRUBJAY_API_KEY.", file=sys.stderr)
    return 0


def key_list(arguments: argparse.Namespace) -> int:
    with _store(arguments) as store:
        for apikey in store.apikeys():
            may = "admin" if apikey.admin else "read-only" if apikey.read_only else "read-write"
            print(
                f"{apikey.id}  {may:10}  {' '.join(apikey.namespaces):20}  {apikey.created_at:%Y-%m-%d}  {apikey.name}"
            )
    return 0


def key_revoke(arguments: argparse.Namespace) -> int:
    with _store(arguments) as store:
        found = store.revoke_apikey(arguments.id)
    if not found:
        print(f"scrubjay: there is no api key {arguments.id!r}; `scrubjay key list` shows them", file=sys.stderr)
    return 0 if found else 1


def serve(arguments: argparse.Namespace) -> int:
    try:
        import scrubjay_server  # noqa: PLC0415 - only this command needs it
    except ImportError as error:
        raise MissingExtra(f'the server is not installed ({error}); run: pip install "scrubjay[server]"') from error
    return int(scrubjay_server.serve(arguments))


def doctor(arguments: argparse.Namespace) -> int:
    faults = _examine_file(Path(resolve("path", arguments.path)).expanduser())
    url = None if arguments.path else resolve("url", arguments.url)
    if url:
        faults += _examine_server(url)
    print(f"{counted(faults, 'fault')} found" if faults else "all is well")
    return 1 if faults else 0


def _examine_file(path: Path) -> int:
    from .store import checks  # noqa: PLC0415 - nobody else needs it

    print(f"file     {path}")
    if not path.exists():
        print("         not there yet; the first write makes it")
        return 0
    try:
        store = SqliteStore(path)
    except ScrubjayError as error:
        print(f"FAULT    {error}")
        return 1
    try:
        faults = store.find_faults()
        if not faults:
            count, held, size = store.run(checks.count_all())
            holds = f"{counted(count, 'namespace')}, {counted(held, 'key')}, {counted(size, 'byte')} of values"
            print(f"         {holds}; {_disk(path)}")
            print("ok       integrity, counters, lists")
    finally:
        store.close()
    for fault in faults:
        print(f"FAULT    {fault}")
    return len(faults)


def _disk(path: Path) -> str:
    parts = [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")]
    taken = sum(part.stat().st_size for part in parts if part.exists())
    return f"{taken:,} bytes on disk, {shutil.disk_usage(path.parent).free:,} free"


def _examine_server(url: str) -> int:
    from .http_backend import HttpBackend  # noqa: PLC0415 - only if there is a server

    print(f"server   {url}")
    try:
        print(
            f"ok       answers, version {HttpBackend(url, resolve('timeout'), resolve('api_key')).health()['version']}"
        )
    except ScrubjayError as error:
        print(f"FAULT    {error}")
        return 1
    return 0


def _store(arguments: argparse.Namespace) -> contextlib.closing[Backend]:
    """What belongs to the whole store and not to one namespace."""
    return contextlib.closing(open_backend(url=arguments.url, path=arguments.path))


def _memory(arguments: argparse.Namespace) -> Memory:
    """Whoever types a command wants to see it fail, and not to have it done later."""
    return Memory(arguments.namespace, url=arguments.url, path=arguments.path, strict=True)


def _value(text: str, arguments: argparse.Namespace) -> Any:
    """JSON if it is JSON, else the text itself; --text takes it as it is."""
    if text == "-":
        text = sys.stdin.read()
    if arguments.text:
        return text
    try:
        value = decode_body(text)
        encode(value)
    except InvalidInput:  # no JSON, or nothing that JSON carries
        return text
    return value


def _show(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def _filters(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"type": arguments.type, "tags": arguments.tag, "session": arguments.session}


def _show_notes(found: Sequence[Note]) -> None:
    """One a line: the id, the score if there is one, and the text."""
    for note in found:
        score = "" if note.score is None else f"{note.score:.2f}  "
        print(f"{note.id}  {score}{' '.join(note.content.split())}")


def _usage(used: Usage) -> str:
    writes = f"of {used.writes_per_day:,}" if used.writes_per_day else "(no limit)"
    size = f"of {used.max_bytes:,}" if used.max_bytes else "(no limit)"
    return (
        f"writes today  {used.writes_today:,} {writes}, from 0 again at {used.resets_at:%Y-%m-%d %H:%M} UTC\n"
        f"bytes         {used.bytes:,} {size}\n"
        f"keys          {used.keys:,}"
    )


def _limit(parse: Callable[[str], int]) -> Callable[[str], int | str]:
    return checked(lambda text: text if text == "default" else parse(text))


_WORDS = {
    "namespace": "whose memory it is, such as my-agent",
    "key": "any text, such as user:42",
    "value": "JSON, or else plain text; - is stdin",
    "content": "the text; - is stdin",
    "query": "what to look for, in any words",
    "note_id": "as remember, recall and notes print it",
    "file": "where it is",
}
_SECONDS: dict[str, Any] = {"type": checked(parse_seconds), "metavar": "SECONDS"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scrubjay",
        description="Memory for agents that survives.",
        epilog="Works on the file of this user, or on the server at SCRUBJAY_URL.",
    )
    parser.add_argument("--version", action="version", version=f"scrubjay {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    where, server = argparse.ArgumentParser(add_help=False), argparse.ArgumentParser(add_help=False)
    one_of = where.add_mutually_exclusive_group()
    for parent in (one_of, server):
        parent.add_argument("--url", help="the server to ask (SCRUBJAY_URL)")
    one_of.add_argument("--path", help="the database file (SCRUBJAY_PATH)")

    def command(
        name: str,
        run: Command,
        help: str,  # noqa: A002
        *words: str,
        flags: argparse.ArgumentParser | None = where,
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, description=help, parents=[flags] if flags else [])
        made.set_defaults(run=run)
        for word in words:
            made.add_argument(word, metavar=word.upper(), help=_WORDS[word])
        return made

    add_serve_flags(command("serve", serve, "serve the database over HTTP", flags=None))
    command("get", get, "print a value as JSON", "namespace", "key")
    setter = command(
        "set",
        set_,
        "store a value: JSON, or else plain text; - reads it from stdin",
        "namespace",
        "key",
        "value",
    )
    setter.add_argument("--ttl", **_SECONDS, help="seconds until it expires")
    setter.add_argument("--text", action="store_true", help="store the text as it is, even if it is JSON")
    lister = command("keys", keys, "list keys", "namespace")
    lister.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="only keys that start with it")
    command("rm", rm, "delete a key", "namespace", "key")
    adder = command("append", append, "add to the end of a list and print its length", "namespace", "key")
    adder.add_argument("value", nargs="+", metavar="VALUE", help=_WORDS["value"])
    adder.add_argument("--text", action="store_true", help="append the text as it is, even if it is JSON")
    tailer = command("tail", tail, "print the last items of a list, one a line", "namespace", "key")
    tailer.add_argument("-n", type=checked(parse_count), default=10, help="how many (default 10)")
    _add_note_commands(command)
    command("namespaces", namespaces, "list namespaces")
    command("usage", usage, "print what a namespace holds and has used", "namespace")
    limiter = command("quota", quota, "print or change the limits of a namespace", "namespace")
    for flag, parse in (("--writes-per-day", parse_count), ("--max-bytes", parse_size)):
        limiter.add_argument(flag, type=_limit(parse), metavar="N", help="0 = no limit; default = the server's")
    waiter = command("pending", pending, "count the writes that could not be sent to a server yet", flags=None)
    waiter.add_argument("--all", action="store_true", help="list them, one a line")
    waiter.add_argument(
        "--drop-refused", action="store_true", help="list those that a server refused for good, and let go of them"
    )
    flusher = command("flush", flush, "send now what waits for the server; without one, for all of them", flags=server)
    flusher.add_argument("--timeout", **_SECONDS, default=30.0, help="how long to try (default 30)")
    flusher.add_argument(
        "--adopt", action="store_true", help="also what was written with another api key, one that was replaced"
    )
    keys_ = commands.add_parser("key", help="issue, list and revoke api keys", description="api keys of a server")
    _add_key_commands(keys_.add_subparsers(title="commands", metavar="COMMAND", required=True), where)
    _add_log_commands(command)
    command("encrypt", encrypt, "seal all values under SCRUBJAY_SECRET, or change it to SCRUBJAY_NEW_SECRET")
    command("decrypt", decrypt, "store values as they are again")
    command("compact", compact, "write the file anew: smaller, and without a trace of what was erased")
    add_upkeep_commands(command)
    command("doctor", doctor, "check the file, and the server if there is one")
    return parser


def _add_key_commands(keys_: Any, where: argparse.ArgumentParser) -> None:
    def command(name: str, run: Command, help: str) -> argparse.ArgumentParser:  # noqa: A002
        made: argparse.ArgumentParser = keys_.add_parser(name, help=help, description=help, parents=[where])
        made.set_defaults(run=run)
        return made

    issuer = command("issue", key_issue, "issue an api key and print it once")
    issuer.add_argument("--name", default="unnamed", help="who it is for")
    issuer.add_argument("--namespaces", action="append", metavar="PATTERN", help="such as 'support-*'; may be repeated")
    issuer.add_argument("--read-only", action="store_true", help="may read and search, and change nothing")
    issuer.add_argument("--admin", action="store_true", help="may also change quotas and api keys")
    command("list", key_list, "list api keys: id, what they may do, namespaces, day, name")
    revoker = command("revoke", key_revoke, "revoke an api key, at once")
    revoker.add_argument("id", metavar="ID", help="as `scrubjay key list` prints it")


def _add_log_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    watcher = command("watch", watch, "print changes as they happen", "namespace")
    watcher.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="only keys that start with it")
    watcher.add_argument("--after", type=checked(parse_count), metavar="ID", help="go on after this change")
    watcher.add_argument("--timeout", **_SECONDS, help="end after so long without a change")
    auditor = command("audit", audit, "print who changed what and when, and what was refused")
    auditor.add_argument("--namespace", help="only this one")
    auditor.add_argument(
        "--since", type=checked(_moment), default=0.0, metavar="TIME", help="a day, a time (UTC), or an age: 24h, 7d"
    )
    auditor.add_argument("--json", action="store_true", help="one JSON object a line")


def _add_note_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    rememberer = command(
        "remember", remember, "keep a text, - reads it from stdin, and print its id", "namespace", "content"
    )
    rememberer.add_argument("--ttl", **_SECONDS, help="seconds until it expires")
    rememberer.add_argument("--ttl-days", type=checked(parse_seconds), metavar="DAYS", help="days until it expires")
    rememberer.add_argument("--pinned", action="store_true", help="never expires")
    recaller = command("recall", recall, "print the notes that answer best: id, score, text", "namespace", "query")
    rememberer.add_argument("--metadata", metavar="JSON", help='an object, such as {"speaker": "Sarah"}')
    recaller.add_argument("-n", type=checked(parse_count), default=5, help="how many (default 5)")
    recaller.add_argument("--threshold", type=float, help="the least score, from 0 to 1")
    recaller.add_argument("--ranking", choices=RANKINGS, help="by fit, or also by recency and frequency")
    recaller.add_argument(
        "--context", type=checked(parse_count), metavar="TOKENS", help="as text for a prompt, so long at most"
    )
    lister = command("notes", notes, "list notes: id, text", "namespace")
    for parser in (rememberer, recaller, lister):
        parser.add_argument("--type", help="such as decision, preference, fact")
        parser.add_argument("--tag", action="append", help="may be given several times")
        parser.add_argument("--session", help="the conversation it belongs to")
    command("reindex", reindex, "show the model of SCRUBJAY_EMBEDDER the notes that it has not seen")
    command("forget", forget, "erase a note for good", "namespace", "note_id")


if __name__ == "__main__":
    raise SystemExit(main())
