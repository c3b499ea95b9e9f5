"""The command `migrate`: copies what BotWire, Kronvex and Memstore store, through their APIs.

What is already in the target is skipped, so a migration that was interrupted continues when it is run again, and
nothing in the target is overwritten.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from scrubjay.cli.common import fail
from scrubjay.cli.output import Report, note
from scrubjay.cli.parser import Commands
from scrubjay.cli.progress import Progress
from scrubjay.errors import Conflict, InvalidInput, Unavailable, pluralize, repr_short
from scrubjay.memory import Memory
from scrubjay.validation import check_namespace

TIMEOUT_SECONDS = 30.0
PAGE = 100
"""Memories of one request."""
BOTWIRE_MAX_KEYS = 100
"""Keys that BotWire's server lists at most, without a way to ask for more."""


class Source:
    """A server to copy from, over HTTP."""

    def __init__(self, url: str, **headers: str) -> None:
        import requests  # noqa: PLC0415 - only this command needs it

        self._url = url.rstrip("/")
        self._session = requests.Session()
        self._session.headers.update(headers)

    def close(self) -> None:
        self._session.close()

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of a response; None for 404."""
        import requests  # noqa: PLC0415

        try:
            response = self._session.get(self._url + path, params=query, timeout=TIMEOUT_SECONDS)
            if response.status_code == 404:
                return None
            if response.ok:
                return response.json()
        except requests.RequestException as error:
            raise Unavailable(f"cannot read from {self._url}: {error}; run the command again to continue") from error
        wait = response.headers.get("Retry-After")
        later = f" in {wait} seconds" if wait else ""
        raise Unavailable(
            f"{self._url} answered {response.status_code}: {response.text[:200]};"
            f" run the command again{later} to continue"
        )


class Entry(NamedTuple):
    """One thing to copy."""

    id: Hashable
    """Tells whether it is already in the target: a key, or the content and session of a note."""
    store: Callable[[Memory], object]


class Tally:
    """What became of the entries of one namespace."""

    def __init__(self) -> None:
        self.copied = self.skipped = 0
        self.refused: list[str] = []


def copy(entries: Sequence[Entry], known: frozenset[Hashable], memory: Memory, unit: str) -> Tally:
    """Store every entry whose id is not known."""
    tally = Tally()
    with Progress(unit) as progress:
        for number, entry in enumerate(entries, 1):
            if entry.id in known:
                tally.skipped += 1
            else:
                _store(entry, memory, tally)
            progress(number, len(entries))
    return tally


def _store(entry: Entry, memory: Memory, tally: Tally) -> None:
    try:
        entry.store(memory)
    except Conflict:  # another writer has stored it meanwhile
        tally.skipped += 1
    except InvalidInput as error:
        tally.refused.append(f"{repr_short(entry.id)}: {error}")
    else:
        tally.copied += 1


def _report(report: Report, namespace: str, tally: Tally, unit: str) -> None:
    text = f"{namespace}: {pluralize(tally.copied, unit)} copied"
    if tally.skipped:
        text += f", {tally.skipped:,} were already there"
    counts = {"namespace": namespace, "copied": tally.copied, "skipped": tally.skipped, "refused": tally.refused}
    report(text, migrated=[counts])
    for reason in tally.refused:
        fail(f"not copied: {reason}")


def _open(arguments: argparse.Namespace, namespace: str) -> Memory:
    return Memory(namespace, url=arguments.url, path=arguments.path, strict=True)


# ------------------------------------------------------------ BotWire


def botwire(arguments: argparse.Namespace) -> int:
    refused = 0
    with closing(Source(arguments.source)) as source, Report(arguments) as report:
        for namespace in map(check_namespace, arguments.namespace):
            keys = _botwire_keys(source, namespace, arguments.keys)
            with _open(arguments, namespace) as memory:
                entries = [Entry(key, partial(_copy_value, source, key)) for key in keys]
                tally = copy(entries, frozenset(memory.keys()), memory, "key")
            _report(report, namespace, tally, "key")
            refused += len(tally.refused)
    return 1 if refused else 0


def _botwire_keys(source: Source, namespace: str, file: str | None) -> list[str]:
    if file is not None:
        return Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    found = source.get(f"/memory/{quote(namespace, safe='')}")
    if found is None:
        raise InvalidInput(f"the source has no namespace {namespace!r}")
    # BotWire's server lists records where its package promises strings.
    keys = [str(each["key"]) if isinstance(each, dict) else str(each) for each in found.get("keys", [])]
    if len(keys) == BOTWIRE_MAX_KEYS:
        note(f"{namespace}: BotWire lists at most {len(keys)} keys; if there are more, name them with --keys FILE")
    return keys


def _copy_value(source: Source, key: str, memory: Memory) -> None:
    found = source.get(f"/memory/{quote(memory.namespace, safe='')}/{quote(key, safe='')}")
    if found is None:
        raise InvalidInput("the source has no such key")
    memory.set(key, _botwire_value(found.get("value")), if_version=0)


def _botwire_value(value: Any) -> Any:
    """The value as BotWire's package returns it: text that starts with [ or { is JSON if it can be."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        with suppress(ValueError):
            return json.loads(value)
    return value


# ------------------------------------------------------------ Kronvex and Memstore


def kronvex(arguments: argparse.Namespace) -> int:
    key = _source_key(arguments, "KRONVEX_API_KEY")
    with closing(Source(arguments.source, **{"X-API-Key": key})) as source:
        agents = arguments.agent or _kronvex_agents(source)
        pages = {agent: _pages(source, f"/api/v1/agents/{quote(agent, safe='')}/memories") for agent in agents}
        return _copy_memories(arguments, {f"{arguments.prefix}{agent}": found for agent, found in pages.items()})


def _kronvex_agents(source: Source) -> list[str]:
    found = source.get("/api/v1/agents") or []
    listed = found.get("agents", []) if isinstance(found, dict) else found
    return [str(agent["id"]) for agent in listed]


def memstore(arguments: argparse.Namespace) -> int:
    key = _source_key(arguments, "MEMSTORE_API_KEY")
    with closing(Source(arguments.source, Authorization=f"Bearer {key}")) as source:
        return _copy_memories(arguments, {arguments.namespace: _pages(source, "/v1/memory/list")})


def _source_key(arguments: argparse.Namespace, variable: str) -> str:
    key = arguments.from_key or os.environ.get(variable)
    if not key:
        raise InvalidInput(f"the source needs its api key: set {variable}, or pass --from-key")
    return str(key)


def _pages(source: Source, path: str) -> Iterator[dict[str, Any]]:
    """Every memory of a list, page by page: servers return fewer than were asked for."""
    offset = 0
    while True:
        found = source.get(path, limit=PAGE, offset=offset) or {}
        page = found if isinstance(found, list) else found.get("memories") or found.get("results") or []
        yield from page
        if not page:
            return
        offset += len(page)


def _copy_memories(arguments: argparse.Namespace, namespaces: dict[str, Iterator[dict[str, Any]]]) -> int:
    refused = 0
    with Report(arguments) as report:
        for namespace, memories in namespaces.items():
            with _open(arguments, check_namespace(namespace)) as memory:
                known = frozenset((each.content, each.session) for each in memory.notes())
                entries = [Entry((each.get("content"), _session(each)), _note_storer(each)) for each in memories]
                tally = copy(entries, known, memory, "note")
            _report(report, namespace, tally, "note")
            refused += len(tally.refused)
    return 1 if refused else 0


def _note_storer(found: dict[str, Any]) -> Callable[[Memory], object]:
    """Stores a memory of Kronvex or Memstore as a note, with the fields that both APIs name in their own way."""
    created = found.get("created_at")
    metadata = {**(found.get("metadata") or {}), **({"created_at": created} if created else {})}
    pinned = bool(found.get("pinned"))
    ttl = None if pinned else _seconds_until(found.get("expires_at"))

    def store(memory: Memory) -> object:
        return memory.remember(
            found["content"],
            type=found.get("memory_type") or found.get("type"),
            session=_session(found),
            tags=found.get("tags") or (),
            metadata=metadata or None,
            pinned=pinned,
            ttl=ttl,
        )

    return store


def _session(found: dict[str, Any]) -> str | None:
    return found.get("session_id") or found.get("session")


def _seconds_until(text: str | None) -> float | None:
    if not text:
        return None
    moment = datetime.fromisoformat(text)
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()


def add_commands(command: Commands) -> None:
    command = command.nested("migrate", "copy data from BotWire, Kronvex or Memstore")
    wire = command(
        "botwire", botwire, "copy namespaces from a BotWire server; run it again to continue",
        example="scrubjay migrate botwire --from https://botwire.dev my-agent", needs_file=False,
    )  # fmt: skip
    wire.add_argument("namespace", nargs="+", metavar="NAMESPACE", help="such as my-agent")
    wire.add_argument("--keys", metavar="FILE", help="copy these keys, one a line; BotWire lists only 100")
    agents = command(
        "kronvex", kronvex, "copy the memories of Kronvex's agents, each into a namespace of its name",
        example="KRONVEX_API_KEY=… scrubjay migrate kronvex --from https://api.kronvex.io assistant", needs_file=False,
    )  # fmt: skip
    agents.add_argument("agent", nargs="*", metavar="AGENT", help="the id of an agent (default: every agent)")
    agents.add_argument("--prefix", default="", help="in front of the id, for the name of the namespace")
    store = command(
        "memstore", memstore, "copy the memories of a Memstore server into a namespace", "namespace",
        example="MEMSTORE_API_KEY=… scrubjay migrate memstore --from https://memstore.example my-agent",
        needs_file=False,
    )  # fmt: skip
    for made in (wire, agents, store):
        made.add_argument("--from", dest="source", required=True, metavar="URL", help="the server to copy from")
    for made in (agents, store):
        made.add_argument(
            "--from-key", metavar="KEY", help="its api key (default: KRONVEX_API_KEY or MEMSTORE_API_KEY)"
        )
