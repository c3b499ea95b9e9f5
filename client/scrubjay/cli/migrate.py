"""The command `migrate`: copies what BotWire, Kronvex and Memstore store, through their APIs.

What is already in the target is skipped, so a migration that was interrupted continues when it is run again, and
nothing in the target is overwritten.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from scrubjay.cli.common import fail
from scrubjay.cli.output import Report, note
from scrubjay.cli.parser import Commands, did_you_mean
from scrubjay.cli.progress import Progress
from scrubjay.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    ScrubjayError,
    Unauthenticated,
    Unavailable,
    pluralize,
    repr_short,
)
from scrubjay.memory import Memory
from scrubjay.validation import check_header, check_namespace
from scrubjay.version import __version__

if TYPE_CHECKING:
    from scrubjay.transport import Response

TIMEOUT_SECONDS = 30.0
MAX_AGENTS = 10
"""Agents that an error names."""
PAGE = 100
"""Memories of one request."""
MAX_DETAIL_CHARS = 300
"""Of another server's reason for an error."""
BOTWIRE_MAX_KEYS = 100
"""Keys that BotWire's server lists at most, without a way to ask for more."""


class Api(NamedTuple):
    """An API to copy from."""

    name: str
    root: str
    """The start of all its paths."""
    variable: str
    """The environment variable with the api key; empty if the key is in the URL."""


BOTWIRE = Api("BotWire", "/memory", "")
KRONVEX = Api("Kronvex", "/api/v1", "KRONVEX_API_KEY")
MEMSTORE = Api("Memstore", "/v1/memory", "MEMSTORE_API_KEY")


class Source:
    """A server to copy from, over HTTP; its URL may end with the root of the API."""

    def __init__(self, api: Api, url: str, **headers: str) -> None:
        from scrubjay.transport import open_transport, split_credentials  # noqa: PLC0415 - only this command needs it

        url = url.rstrip("/").removesuffix(api.root)
        try:
            self.url, _ = split_credentials(url)  # an api key must not reach errors
            self._transport = open_transport(url, TIMEOUT_SECONDS)
        except InvalidInput as error:
            raise InvalidInput(f"--from: {error}") from None
        self._api = api
        self._headers = {"User-Agent": f"scrubjay/{__version__}", "Accept": "application/json", **headers}

    def close(self) -> None:
        self._transport.close()

    def read(self, path: str, *fields: str, missing: str = "") -> Any:
        """The first of these fields that a response has, or the list that it is.

        Raises NotFound with the sentence `missing` for 404, and for the response of another service.
        """
        path = self._api.root + path
        response = self._send(path)
        if response.status == 404:
            raise NotFound(missing) if missing else self._not_served(path, "404")
        if response.status >= 300:
            raise self._error(response)
        with suppress(ValueError, RecursionError):
            found = json.loads(response.data)
            if isinstance(found, list):
                return found
            for name in fields:
                if isinstance(found, dict) and name in found:
                    return found[name]
        raise self._not_served(path, f"the response has no {fields[0]}")

    def read_records(self, path: str, *fields: str, having: str) -> list[dict[str, Any]]:
        """The same for a list of objects, each of which has a field."""
        found = self.read(path, *fields)
        if isinstance(found, list) and all(isinstance(each, dict) and having in each for each in found):
            return found
        raise self._not_served(self._api.root + path, f"its {fields[0]} are not a list of objects with {having}")

    def nothing_found(self, what: str) -> NotFound:
        """Nothing to copy is a failure: the wrong key or server must not look like a migration."""
        return NotFound(f"no {what} were found at {self.url} with this key, so nothing was copied; check the key")

    def _send(self, path: str) -> Response:
        try:
            return self._transport.send("GET", path, b"", self._headers)
        except OSError as error:
            raise Unavailable(
                f"cannot read from {self.url}: {error}; check that --from is the URL of a server that runs, and run the"
                " command again to continue"
            ) from error

    def _not_served(self, path: str, why: str) -> NotFound:
        served = f"{self._api.name}'s API at {path.partition('?')[0]}"
        return NotFound(f"{self.url} does not serve {served} ({why}); pass the URL of a server that does with --from")

    def _error(self, response: Response) -> ScrubjayError:
        from scrubjay.transport import without_credentials  # noqa: PLC0415

        status, wait = response.status, response.headers.get("retry-after")
        if status in (401, 403):
            return ScrubjayError(f"the source {self.url} refused access ({status}); {self._key_advice()}")
        if status < 400:
            to = without_credentials(response.headers.get("location", "another URL"))
            return ScrubjayError(f"the source {self.url} redirects to {to}; pass the URL of that server with --from")
        answered = f"the source {self.url} answered {status}{_detail(response)}"
        if status == 429 or status >= 500:
            later = f" in {wait} seconds" if wait else ""
            return Unavailable(f"{answered}; run the command again{later} to continue")
        return ScrubjayError(f"{answered}; check the URL and the names")

    def _key_advice(self) -> str:
        if self._api.variable:
            return f"set {self._api.variable} to an api key of that server, or pass --from-key"
        return f"write an api key of that server into the URL: --from {self.url.replace('://', '://KEY@', 1)}"


def _detail(response: Response) -> str:
    """The reason in a response, if it has one in the form that all three APIs use."""
    with suppress(ValueError, RecursionError):
        body = json.loads(response.data)
        if isinstance(body, dict) and isinstance(body.get("detail"), str):
            return f": {' '.join(body['detail'].split())[:MAX_DETAIL_CHARS]}"
    return ""


class Copyable(NamedTuple):
    """A value or a memory that can be copied."""

    id: Hashable
    """Tells whether it is already in the target: a key, or the content and session of a note."""
    store: Callable[[Memory], object]


class Tally:
    """What became of the entries of one namespace."""

    def __init__(self) -> None:
        self.copied = self.skipped = 0
        self.refused: list[str] = []


def copy(entries: Sequence[Copyable], known: frozenset[Hashable], memory: Memory, unit: str) -> Tally:
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


def _store(entry: Copyable, memory: Memory, tally: Tally) -> None:
    try:
        entry.store(memory)
    except Conflict:  # another writer has stored it meanwhile
        tally.skipped += 1
    except (InvalidInput, NotFound) as error:
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


@contextmanager
def _open(arguments: argparse.Namespace, namespace: str) -> Iterator[Memory]:
    """The memory to copy into; its errors about api keys say that they are not about the source's."""
    with Memory(namespace, url=arguments.url, path=arguments.path, strict=True) as memory:
        try:
            yield memory
        except (Unauthenticated, Forbidden) as error:
            raise type(error)(f"the target: {error}", status=error.status) from error


# ------------------------------------------------------------ BotWire


def botwire(arguments: argparse.Namespace) -> int:
    refused = 0
    with closing(Source(BOTWIRE, arguments.source)) as source, Report(arguments) as report:
        for namespace in map(check_namespace, arguments.namespace):
            keys = _botwire_keys(source, namespace, arguments.keys)
            with _open(arguments, namespace) as memory:
                entries = [Copyable(key, partial(_copy_value, source, key)) for key in keys]
                tally = copy(entries, frozenset(memory.keys()), memory, "key")
            _report(report, namespace, tally, "key")
            refused += len(tally.refused)
    return 1 if refused else 0


def _botwire_keys(source: Source, namespace: str, file: str | None) -> list[str]:
    if file is not None:
        return Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    listed = source.read(
        f"/{quote(namespace, safe='')}", "keys", missing=f"{source.url} has no namespace {namespace!r}; check both"
    )
    # BotWire's server lists records where its package promises strings.
    keys = [
        str(each["key"]) if isinstance(each, dict) else str(each)
        for each in (listed if isinstance(listed, list) else [])
    ]
    if not keys:
        raise NotFound(
            f"the namespace {namespace!r} of {source.url} has no keys, so nothing was copied; check its name"
        )
    if len(keys) == BOTWIRE_MAX_KEYS:
        note(f"{namespace}: BotWire lists at most {len(keys)} keys; if there are more, name them with --keys FILE")
    return keys


def _copy_value(source: Source, key: str, memory: Memory) -> None:
    path = f"/{quote(memory.namespace, safe='')}/{quote(key, safe='')}"
    memory.set(key, _botwire_value(source.read(path, "value", missing="the source has no such key")), if_version=0)


def _botwire_value(value: Any) -> Any:
    """The value as BotWire's package returns it: text that starts with [ or { is JSON if it can be."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        with suppress(ValueError):
            return json.loads(value)
    return value


# ------------------------------------------------------------ Kronvex and Memstore


def kronvex(arguments: argparse.Namespace) -> int:
    with closing(Source(KRONVEX, arguments.source, **{"X-API-Key": _source_key(arguments, KRONVEX)})) as source:
        known = [str(agent["id"]) for agent in source.read_records("/agents", "agents", having="id")]
        if not known:
            raise source.nothing_found("agents")
        agents = [_known_agent(agent, known) for agent in arguments.agent] or known
        pages = {agent: _pages(source, f"/agents/{quote(agent, safe='')}/memories") for agent in agents}
        return _copy_memories(arguments, {f"{arguments.prefix}{agent}": found for agent, found in pages.items()})


def _known_agent(agent: str, known: Sequence[str]) -> str:
    if agent not in known:
        shown = [*map(repr_short, known[:MAX_AGENTS]), *["…"] * (len(known) > MAX_AGENTS)]
        hint = did_you_mean(agent, known) or f"this key has {', '.join(shown)}"
        raise NotFound(f"there is no agent {agent!r}; {hint}")
    return agent


def memstore(arguments: argparse.Namespace) -> int:
    authorization = f"Bearer {_source_key(arguments, MEMSTORE)}"
    with closing(Source(MEMSTORE, arguments.source, Authorization=authorization)) as source:
        memories = list(_pages(source, "/list"))
        if not memories:
            raise source.nothing_found("memories")
        return _copy_memories(arguments, {arguments.namespace: memories})


def _source_key(arguments: argparse.Namespace, api: Api) -> str:
    key = arguments.from_key or os.environ.get(api.variable)
    if not key:
        raise InvalidInput(f"the source needs its api key: set {api.variable}, or pass --from-key")
    return check_header("the api key of the source", key)


def _pages(source: Source, path: str) -> Iterator[dict[str, Any]]:
    """Every memory of a list, page by page: servers return fewer than were asked for."""
    offset = 0
    listed = partial(source.read_records, having="content")
    while page := listed(f"{path}?limit={PAGE}&offset={offset}", "memories", "results"):
        yield from page
        offset += len(page)


def _copy_memories(arguments: argparse.Namespace, namespaces: Mapping[str, Iterable[dict[str, Any]]]) -> int:
    refused = 0
    with Report(arguments) as report:
        for namespace, memories in namespaces.items():
            with _open(arguments, check_namespace(namespace)) as memory:
                known = frozenset((each.content, each.session) for each in memory.notes())
                entries = [Copyable((each.get("content"), _session(each)), _note_storer(each)) for each in memories]
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
    for made, with_key in ((wire, ", with its api key as http://KEY@host"), (agents, ""), (store, "")):
        help_text = f"the server to copy from{with_key}"
        made.add_argument("--from", dest="source", required=True, metavar="URL", help=help_text)
    for made in (agents, store):
        made.add_argument(
            "--from-key", metavar="KEY", help="its api key (default: KRONVEX_API_KEY or MEMSTORE_API_KEY)"
        )
