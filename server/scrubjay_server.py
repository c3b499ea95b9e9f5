"""The Scrubjay service: namespaces of keys and values over HTTP, on one SQLite file.

    scrubjay serve            or            python server/scrubjay_server.py

Every route is plain: it takes a request and returns a response. FastAPI describes them (the OpenAPI
document, /docs) but is kept off their path, because resolving dependencies and models would cost
more than the read itself. What a route means is written in scrubjay.store; here it only meets HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import ipaddress
import json
import math
import multiprocessing
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import IO, Annotated, Any, Literal, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

import prometheus_client
import prometheus_client.multiprocess
import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.json_schema import models_json_schema
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Receive, Scope, Send
from uvicorn.supervisors import Multiprocess

import scrubjay_docs
from scrubjay.drafts import DAY_SECONDS, Draft, Question
from scrubjay.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    ScrubjayError,
    Unauthenticated,
    Unavailable,
    ValueTooLarge,
)
from scrubjay.meaning import Meaning
from scrubjay.names import (
    MAX_COUNT,
    MAX_KEY_BYTES,
    MAX_NAMESPACE_CHARS,
    MAX_NOTES_PAGE,
    MAX_PAGE,
    MAX_RECALL,
    MAX_SECONDS,
    MAX_TAGS,
    MAX_WRITE_BYTES,
    check_count,
    check_key,
    check_label,
    check_namespace,
    check_tags,
    check_ttl,
    counted,
    shown,
)
from scrubjay.recall.context import as_context
from scrubjay.recall.embedding import open_embedder
from scrubjay.records import Change, Note, Usage, to_time
from scrubjay.settings import SETTINGS, add_serve_flags, resolve
from scrubjay.store import apikeys, changes, erasure, files, items, lists, notes, quotas, transfer
from scrubjay.store.aio import AioStore
from scrubjay.store.apikeys import Access
from scrubjay.store.deliveries import HEADER, Delivery, once
from scrubjay.store.items import Stored
from scrubjay.store.operation import Operation, Quota
from scrubjay.store.quotas import Account
from scrubjay.store.sqlite import SWEEP_SECONDS, SqliteStore
from scrubjay.values import check_total, decode_body, encode
from scrubjay.version import __version__
from scrubjay_limits import LimitedProtocol, RequestLimit, WatchLimit

T = TypeVar("T")

NAME_PATTERN = r"^[^/\x00-\x1f\x7f-\x9f]+$"
"""Of a namespace, for those who read the OpenAPI document."""
VERSION_PATTERN = r'(W/)?"?[0-9]{1,15}"?'
"""Of a version as an ETag; a proxy that compresses makes it a weak one."""

MAX_BODY_BYTES = 2 * MAX_WRITE_BYTES + 2**20
"""What one call may write, with room for escapes and the JSON around it."""
MAX_HELD_BYTES = 8 * MAX_BODY_BYTES
"""What all bodies on their way may take of a process's memory: many who send slowly would else fill it."""
KEEP_ALIVE_SECONDS = 75
BUSY_SECONDS = 4.0
"""How long a write waits for other processes: less than clients wait for their answer."""
RETRY_SECONDS = "1"
"""What an answer of 503 asks to wait."""
SHUTDOWN_SECONDS = 10
"""How long requests in flight may take to finish after SIGTERM."""


# ---------------------------------------------------------------- requests and responses


class PlainRoute(APIRoute):
    """A route that FastAPI describes and otherwise leaves alone."""

    def __init__(self, path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(path, *args, **kwargs)
        self.app = self._answer
        parts = path.split("/")
        self._namespace_at = parts.index("{namespace}") if "{namespace}" in parts else None
        self._reads = (self.methods or set()) <= {"GET", "HEAD"} or parts[-1] in READING_POSTS

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            self._refuse_slashes(scope)
            if self.path not in OPEN_PATHS:
                scope["reads"], scope["access"] = self._reads, admit(request)
                if scope["access"].read_only and not self._reads:
                    raise Forbidden("this api key may only read; ask for one that may write")
            response = await self.endpoint(request)
        except ScrubjayError as error:
            if error.status in (READ_REFUSALS if self._reads else REFUSALS):
                request.app.state.refusals.add(refused(request, self.endpoint.__name__, error))
            response = failed(error)
        await answer(response, scope, receive, send)

    def _refuse_slashes(self, scope: Scope) -> None:
        """An encoded slash is decoded before the path is split, and would move the border of the namespace."""
        raw = scope.get("raw_path") or b""
        if self._namespace_at is None or b"%" not in raw:
            return
        if b"%2f" in b"/".join(raw.split(b"/")[: self._namespace_at + 1]).lower():
            raise InvalidInput("a namespace holds no '/', not even as %2F")


class KeyConvertor(Convertor[str]):
    """A key in a path: everything that follows, slashes and line breaks included."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _NoteConvertor(KeyConvertor):
    """A note's id in a path, which is none of the words that stand in its place."""

    regex = r"(?!(?:recall|context)$)[\s\S]+"


register_url_convertor("key", KeyConvertor())
register_url_convertor("note", _NoteConvertor())


async def answer(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a response, and leave its status where the metrics find it."""
    scope["status"] = response.status_code
    await response(scope, receive, send)


def run(request: Request, operation: Operation[T]) -> Awaitable[T]:
    """Run an operation in the name of whoever asks."""
    scope = request.scope
    if "access" in scope:
        operation.who = scope["access"].name
    store: AioStore = scope["app"].state.store
    return store.run(operation)


async def remember_note(request: Request, namespace: str, draft: Draft) -> tuple[Note, Account]:
    """Store a note; the model, if there is one, sees it later."""
    remembered = once(
        notes.remember(namespace, draft),
        namespace,
        delivery_of(request),
        keep=lambda note: note.id,
        again=functools.partial(notes.read_note, namespace),
    )
    note, account = await run(request, remembered)
    if meaning := request.app.state.meaning:
        meaning.add(namespace, note.id)
    return note, account


async def recall_notes(request: Request, namespace: str, question: Question) -> list[Note]:
    """By words, and by meaning if there is a model."""
    meaning: Meaning | None = request.app.state.meaning
    similar = await asyncio.to_thread(meaning.similar, namespace, question) if meaning else {}
    return await run(request, notes.recall(namespace, question, similar))


def delivery_of(request: Request, own: Any = None) -> Delivery | None:
    """By which id this write happens once: the body's own, else that of the header."""
    text = header(request, b"idempotency-key")
    given = None if text is None else Delivery.parse(text)
    return given if own is None else Delivery(own)


def names(request: Request) -> tuple[str, str]:
    """The namespace and the key in the path."""
    return namespace_of(request), check_key(request.path_params["key"])


def namespace_of(request: Request) -> str:
    """The namespace in the path, if the request may use it.

    What a key may not see is read as a namespace that cannot exist, so that it answers just like one
    that does not exist, whatever the route.
    """
    namespace = check_namespace(request.path_params["namespace"])
    access: Access = request.scope["access"]
    if access.sees(namespace) and not is_private(namespace, access):
        return namespace
    if request.scope["reads"]:
        return NOWHERE
    raise Forbidden(f"this api key may not write to {namespace!r}; its namespaces are {' '.join(access.patterns)}")


def is_private(namespace: str, access: Access) -> bool:
    """What other wires keep for each api key is that key's and the administrators' alone."""
    return namespace.startswith(PRIVATE) and not access.admin


def missing(request: Request) -> NotFound:
    """Built from the path alone, so that it says the same of what is hidden and of what is not there."""
    return NotFound(f"there is no {request.path_params['key']!r} in {request.path_params['namespace']!r}")


# ---------------------------------------------------------------- who may do what

OPEN_PATHS = ("/health", "/ready", "/docs")
"""For probes, and for people who look for the way: they tell nothing about what is stored."""
READING_POSTS = ("read", "recall", "context", "inject-context")
"""The last part of a path that is posted to and changes nothing."""
PRIVATE = ("kronvex:", "memstore:")
"""How the namespaces of the other wires begin, of which each api key has its own."""
NOWHERE = "/"
"""A name that no namespace can have."""


def admit(request: Request) -> Access:
    """What the request may do, if it is not one too many."""
    limit: RequestLimit | None = request.scope["app"].limit
    if limit is None:
        return authenticate(request)
    try:
        access = authenticate(request)
    except Unauthenticated:
        limit.take(_address(request))  # and nobody's right key: behind a proxy all have the same address
        raise
    limit.take(client_of(request, access))
    return access


def client_of(request: Request, access: Access) -> str:
    """Whom a request is counted for: its api key, or its address while there are no keys."""
    return _address(request) if access is apikeys.EVERYTHING else given_key(request) or ""


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def authenticate(request: Request) -> Access:
    """What the request may do, by its api key; while there are none, everything, but only from this machine."""
    store: AioStore = request.scope["app"].state.store
    access = store.read_now(apikeys.admit(given_key(request)))
    if access is None:
        raise Unauthenticated(
            "this server needs an api key that it knows: set SCRUBJAY_API_KEY, or send Authorization: Bearer …;"
            " `scrubjay key issue` makes one"
        )
    if access is apikeys.EVERYTHING:
        if request.client is None or not is_here(request.client.host):
            raise Unauthenticated("without api keys this server answers only to its own machine: scrubjay key issue")
        refuse_strangers(request)
    return access


def given_key(request: Request) -> str | None:
    given = header(request, b"authorization")
    if given is not None:
        scheme, _, credentials = given.partition(" ")
        if scheme.lower() == "bearer":
            return credentials.strip()
    return header(request, b"x-api-key")


def header(request: Request, name: bytes) -> str | None:
    """One header, without the mapping that Starlette makes of them all: this is on the path of every request."""
    for key, value in request.scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None


def refuse_strangers(request: Request) -> None:
    """A web page can make a browser write to localhost, directly or through a name that it points there."""
    host, origin = header(request, b"host") or "", header(request, b"origin")
    if not is_here(host) and _hostname(host) != resolve("host"):
        raise Forbidden(f"without api keys this server answers only to its own names, not to {host[:80]!r}")
    if origin is not None and origin.partition("://")[2] != host:
        raise Forbidden(f"without api keys this server takes no requests from web pages of {origin[:80]!r}")


@functools.lru_cache(64)
def is_here(host: str) -> bool:
    """Whether a Host header, or an address to listen on, means this machine alone."""
    for name in (host, _hostname(host)):
        try:
            if name == "localhost" or ipaddress.ip_address(name or "").is_loopback:
                return True
        except ValueError:
            continue
    return False


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def need_admin(request: Request) -> None:
    if not request.scope["access"].admin:
        raise Forbidden("this takes an admin key: scrubjay key issue --admin")


# ---------------------------------------------------------------- what others did, and were refused

READ_REFUSALS = (401, 403)
REFUSALS = (*READ_REFUSALS, 400, 413, 429, 507)
"""What the log of changes tells of; that something is not there, or has another version, is no refusal."""
MAX_REFUSALS = 1000
"""Refusals that are written down a second: whoever knocks at the door must not fill the disk."""
LOOK_AGAIN = 0.05
"""Seconds between two looks for what other processes have changed."""
MAX_WAIT = 60
"""Seconds that a question for changes waits for an answer."""
HEARTBEAT = 15
"""Seconds after which a stream of events says that it is still there."""


def refused(request: Request, endpoint: str, error: ScrubjayError) -> tuple[str, changes.Entry]:
    """Who, and what of it may be written down: names that are too long are cut."""
    access: Access | None = request.scope.get("access")
    who = access.name if access else f"nobody at {request.client.host if request.client else 'unknown'}"
    named = request.path_params
    namespace, key = named.get("namespace", ""), named.get("key", "")
    entry = changes.Entry(endpoint.partition("_")[0], namespace[:128], key[:512], refusal=error.code)
    return who, entry


class Refusals:
    """What was not done, written down once a second: a refusal must cost less than what it prevents."""

    def __init__(self, store: AioStore) -> None:
        self._store = store
        self._waiting: list[tuple[str, changes.Entry]] = []
        self._more = 0
        self._writing: asyncio.Task[None] | None = None

    def add(self, refusal: tuple[str, changes.Entry]) -> None:
        if len(self._waiting) < MAX_REFUSALS:
            self._waiting.append(refusal)
        else:
            self._more += 1
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_soon())

    async def _write_soon(self) -> None:
        await asyncio.sleep(1)
        self._writing = None
        await self.write()

    async def write(self) -> None:
        waiting, self._waiting, more, self._more = self._waiting, [], self._more, 0
        if more:
            waiting.append(("many", changes.Entry("other", "", f"{more} more", refusal="refused")))
        entries: dict[str, list[changes.Entry]] = {}
        for who, entry in waiting:
            entries.setdefault(who, []).append(entry)
        await asyncio.gather(*(self._record(*each) for each in entries.items()))  # at once: they share a commit

    async def _record(self, who: str, entries: list[changes.Entry]) -> None:
        operation = changes.refuse(*entries)
        operation.who = who
        with contextlib.suppress(ScrubjayError):
            await self._store.run(operation)


class Watchers:
    """Wakes those who watch a namespace when it has changed, whichever process wrote it.

    Nobody else: each who is woken reads the log, and many who watch must not slow down one who writes.
    """

    def __init__(self, store: AioStore) -> None:
        self._store = store
        self._waiting: dict[asyncio.Future[None], str] = {}
        self._looking: asyncio.Task[None] | None = None
        self.closed = False

    async def wait(self, namespace: str, cursor: int, seconds: float) -> None:
        """Until there may be something of the namespace after the cursor, or the time is over."""
        if self.closed or namespace in self._changed(cursor, [namespace]):
            return
        woken = asyncio.get_running_loop().create_future()
        self._waiting[woken] = namespace
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(cursor))
        try:
            await asyncio.wait_for(woken, seconds)
        except TimeoutError:
            pass
        finally:
            del self._waiting[woken]

    def close(self) -> None:
        """Let everybody go, so that the server can stop."""
        self.closed = True
        self._wake(set(self._waiting.values()))

    async def _look(self, seen: int) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(LOOK_AGAIN)
                last = self._last()
                if last != seen:
                    self._wake(self._changed(seen, set(self._waiting.values())))
                    seen = last
        finally:
            self._looking = None

    def _wake(self, namespaces: Collection[str]) -> None:
        for woken, namespace in self._waiting.items():
            if namespace in namespaces and not woken.done():
                woken.set_result(None)

    def _changed(self, seen: int, watched: Collection[str]) -> Collection[str]:
        """What has changed since; all that is watched, if the log is another one, which begins anew."""
        if self._last() < seen:
            return watched
        return self._store.read_now(changes.changed_since(seen))

    def _last(self) -> int:
        return self._store.read_now(changes.last_change())


# ---------------------------------------------------------------- answers


def query_count(request: Request, name: str, default: int, *, least: int = 0, most: int = MAX_COUNT) -> int:
    text = request.query_params.get(name)
    return default if text is None else _count(f"{name} in the query", text, least=least, most=most)


def _count(name: str, text: str, *, least: int = 0, most: int = MAX_COUNT) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 16:
        raise InvalidInput(f"{name} is a whole number, not {text[:40]!r}")
    return check_count(name, int(text), least=least, most=most)


def query_seconds(request: Request, name: str, default: float, most: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= most:
        raise InvalidInput(f"{name} in the query is a number of seconds from 0 to {most}, not {text[:40]!r}")
    return seconds


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object in the body."""
    body = await _read_body(request)
    fields = decode_body(body) if body else {}
    if not isinstance(fields, dict):
        raise InvalidInput("the body is a JSON object")
    return fields


async def _read_body(request: Request) -> bytes:
    app: Service = request.scope["app"]
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            app.held_bytes += len(chunk)
            if len(body) > MAX_BODY_BYTES:
                raise ValueTooLarge(
                    f"the body has more than {MAX_BODY_BYTES} bytes; one call writes at most {MAX_WRITE_BYTES}"
                )
            if app.held_bytes > MAX_HELD_BYTES:
                raise Unavailable("too many large requests are arriving at once; try again in a moment")
        return bytes(body)
    finally:
        app.held_bytes -= len(body)


async def read_fields(request: Request, required: str | None, *optional: str) -> dict[str, Any]:
    """The JSON object in the body. A field that nobody reads is a mistake, and is named."""
    fields = await read_object(request)
    known = (required, *optional) if required else optional
    if required and required not in fields:
        raise InvalidInput(f'the body lacks the field "{required}"')
    for name in fields:
        if name not in known:
            raise InvalidInput(
                f"the body has a field {ascii(name)[:60]}, which means nothing here; it takes {', '.join(known)}"
            )
    return fields


def expected_version(request: Request) -> int | None:
    """If-Match: "3" is version 3, * is any; If-None-Match: * is no version at all."""
    match, none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    version = None if match is None else _version(match.strip())
    if none_match is None:
        return version
    if none_match.strip() != "*":
        raise InvalidInput("a write takes If-None-Match: *, which is: only if there is nothing yet")
    if version is not None:
        raise Conflict("a value is there or not: If-Match and If-None-Match: * cannot both hold", status=412)
    return 0


def _version(etag: str) -> int:
    if etag == "*":
        return items.ANY_VERSION
    if not re.fullmatch(VERSION_PATTERN, etag):
        raise InvalidInput(f'If-Match takes one version, as the ETag gave it: "3", not {etag[:40]!r}')
    return int(etag.removeprefix("W/").strip('"'))


def json_response(data: Any, *, headers: Mapping[str, str] | None = None) -> Response:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Response(text, media_type="application/json", headers=headers)


def written(data: Any, account: Account, version: int = 0) -> Response:
    """The answer to a write, with what is left of the quota."""
    headers = quota_headers(account.usage())
    if version:
        headers["ETag"] = f'"{version}"'
    return json_response(data, headers=headers)


def quota_headers(usage: Usage) -> dict[str, str]:
    """Limit and what remains of it; a limit that is not there has no header."""
    headers = {}
    if usage.writes_per_day:
        headers["RateLimit-Limit"] = str(usage.writes_per_day)
        headers["RateLimit-Remaining"] = str(usage.writes_remaining)
        headers["RateLimit-Reset"] = str(max(int(usage.resets_at.timestamp() - time.time()) + 1, 1))
    if usage.max_bytes:
        headers["Storage-Limit"] = str(usage.max_bytes)
        headers["Storage-Remaining"] = str(usage.bytes_remaining)
    return headers


def failed(error: ScrubjayError) -> Response:
    headers = {}
    if isinstance(error, QuotaExceeded):
        if error.usage:
            headers = quota_headers(error.usage)
        if error.retry_after is not None:
            headers["Retry-After"] = str(error.retry_after)
    elif isinstance(error, Unavailable):
        headers["Retry-After"] = RETRY_SECONDS
    return failure(error.status, error.code, error.detail, headers)


def failure(status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps({"code": code, "detail": detail})
    return Response(text, status, headers, media_type="application/json")


def item_json(key: str, stored: Stored) -> str:
    """The value is JSON text already: it is put in its place without being parsed."""
    expires_at = "null" if stored.expires_at is None else f'"{_iso(stored.expires_at)}"'
    return (
        f'{{"key":{json.dumps(key)},"value":{stored.text},"version":{stored.version},'
        f'"created_at":"{_iso(stored.created_at)}","updated_at":"{_iso(stored.updated_at)}",'
        f'"expires_at":{expires_at},"bytes":{stored.bytes}}}'
    )


@functools.lru_cache(4096)  # what is read often is often the same
def _iso(milliseconds: int) -> str:
    return to_time(milliseconds).isoformat(timespec="milliseconds")


# ---------------------------------------------------------------- what the OpenAPI document says


class ErrorBody(BaseModel):
    code: str = Field(examples=["invalid_input"])
    detail: str = Field(description="the cause and the fix")


class ItemBody(BaseModel):
    key: str
    value: JsonValue
    version: int
    created_at: str
    updated_at: str
    expires_at: str | None
    bytes: int


class UsageBody(BaseModel):
    namespace: str
    keys: int
    bytes: int
    max_bytes: int = Field(description="0 = no limit")
    writes_today: int
    writes_per_day: int = Field(description="0 = no limit")
    resets_at: str


class VersionBody(BaseModel):
    version: int = Field(description="0 = deleted")


class KeysBody(BaseModel):
    keys: list[str] = Field(description="sorted; give the last one as `after` to read on")


class DeletedBody(BaseModel):
    deleted: int


class LengthBody(BaseModel):
    length: int


class ItemsBody(BaseModel):
    items: list[JsonValue]


class NumberBody(BaseModel):
    value: float


class ValuesBody(BaseModel):
    values: dict[str, JsonValue]


class UpdatedBody(BaseModel):
    updated: int


class ChangeBody(BaseModel):
    id: int = Field(description="a cursor: give it as `after` to go on from here")
    at: str
    who: str = Field(description="the name of the api key")
    verb: str = Field(examples=["set"])
    namespace: str
    key: str = Field(description="empty when it concerns all keys")
    bytes: int
    refusal: str | None = Field(description="the code of the error, if it was refused")


class ChangesBody(BaseModel):
    changes: list[ChangeBody]
    cursor: int


class AuditBody(BaseModel):
    changes: list[ChangeBody] = Field(description="give the id of the last one as `after` to read on")


class NamespacesBody(BaseModel):
    namespaces: list[str]


class StatusBody(BaseModel):
    status: str
    version: str


# The rules of names.py, as far as a schema can say them: it counts characters and not bytes.
Label = Annotated[str, Field(min_length=1, max_length=MAX_KEY_BYTES)]
Tags = Annotated[list[Label], Field(max_length=MAX_TAGS)]
Content = Annotated[str, Field(pattern=r"\S")]
Seconds = Annotated[float | None, Field(gt=0, le=MAX_SECONDS, description="seconds")]
Days = Annotated[float | None, Field(gt=0, le=MAX_SECONDS / DAY_SECONDS)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAMESPACE_CHARS, pattern=NAME_PATTERN)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]


class Strict(BaseModel):
    """What is sent: a field that nobody reads is refused."""

    model_config = ConfigDict(extra="forbid")


class SetBody(Strict):
    value: JsonValue = Field(description="any JSON; null deletes")
    ttl: Seconds = None


class UpdateBody(Strict):
    values: dict[Label, JsonValue] = Field(description="null deletes")


_ONCE = Field(None, description="an id of the sender's own: sent again with it, this does not happen twice")


class AppendBody(Strict):
    items: list[JsonValue]
    once: Label | None = _ONCE


class IncrBody(Strict):
    by: float = 1
    once: Label | None = _ONCE


class ReadBody(Strict):
    keys: list[Label]


class NoteBody(BaseModel):
    id: str
    content: str
    type: str | None
    tags: list[str]
    session: str | None
    metadata: dict[str, JsonValue]
    pinned: bool
    times: int = Field(description="how often it was remembered")
    created_at: str
    updated_at: str
    expires_at: str | None
    score: float | None = Field(description="how well it answers, from 0 to 1; null if nothing was asked")


class NotesBody(BaseModel):
    notes: list[NoteBody]


class ContextBody(BaseModel):
    context: str


class RememberBody(Strict):
    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"properties": {unit: {"type": "null"}}} for unit in ("ttl", "ttl_days")]}
    )

    content: Content
    type: Label | None = None
    tags: Tags | None = None
    session: Label | None = None
    ttl: Seconds = None
    ttl_days: Days = None
    pinned: bool = Field(default=False, description="never expires")
    metadata: dict[str, JsonValue] | None = None


class RecallBody(Strict):
    query: str
    limit: int = Field(5, ge=1, le=MAX_RECALL)
    type: Label | None = None
    tags: Tags | None = Field(None, description="all of them")
    session: Label | None = None
    threshold: float | None = Field(None, description="the least score, from 0 to 1")
    ranking: Literal["relevance", "confidence"] | None = None


class InjectBody(RecallBody):
    limit: int = Field(8, ge=1, le=MAX_RECALL)
    max_tokens: Count = 400


class QuotaBody(Strict):
    writes_per_day: Count | None = Field(None, description="0 = no limit, null = the server's default")
    max_bytes: Count | None = Field(None, description="0 = no limit, null = the server's default")


LABEL: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": MAX_KEY_BYTES}
_NAMES: dict[str, dict[str, Any]] = {
    "namespace": {"minLength": 1, "maxLength": MAX_NAMESPACE_CHARS, "pattern": NAME_PATTERN},
    "key": LABEL,
    "agent": LABEL,
}
_IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "schema": {"type": "string", "pattern": rf"^(\*|{VERSION_PATTERN})$"},
    "description": 'only over this version: "3"; or over any: *',
}
_IF_NONE = {
    "name": "If-None-Match",
    "in": "header",
    "schema": {"type": "string", "enum": ["*"]},
    "description": "*: only if there is nothing yet",
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "pattern": HEADER},
    "description": "an id of the sender's own: sent again with it, within a week, this does not happen twice."
    " `id;seq=17` is number 17 of a series of which never two are under way: then only the last is kept",
}
_WHY = {
    304: "not changed",
    400: "the request cannot be right",
    401: "an api key is needed",
    403: "the api key does not allow this",
    404: "there is nothing of that name",
    409: "the stored value is of another kind, or the Idempotency-Key was used for another call",
    412: "the stored value has another version",
    413: "too large for one call",
    429: "too many writes today, requests this minute or watches at once; Retry-After says when",
    431: "the address or the headers are too long",
    503: "the database cannot do it now",
    507: "no storage left",
}
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "an api key; not needed while there are none"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "the same, in another header"},
}
WRITES = (413, 429, 503, 507)
NDJSON = "application/x-ndjson"
DATABASE = "application/vnd.sqlite3"
_TEXT = {"type": "string", "maxLength": MAX_KEY_BYTES}
_NUMBER = {"type": "number", "minimum": 0}
_bodies: set[type[BaseModel]] = set()


def described(
    path: str,
    *errors: int,
    body: type[BaseModel] | None = None,
    query: Mapping[str, dict[str, Any]] | None = None,
    required: tuple[str, ...] = (),
    headers: tuple[dict[str, Any], ...] = (),
    bare: bool = False,
    takes: str | None = None,
    sends: str | None = None,
) -> dict[str, Any]:
    """What FastAPI cannot see in a plain route: its parameters, its body, and every status it answers."""
    extra: dict[str, Any] = {
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string", **_NAMES.get(name, {})}}
                for name in re.findall(r"{(\w+)", path)
            ),
            *(
                {"name": name, "in": "query", "required": name in required, "schema": schema}
                for name, schema in (query or {}).items()
            ),
            *headers,
        ]
    }
    if body:
        _bodies.add(body)
        schema = {"$ref": f"#/components/schemas/{body.__name__}"}
        needed = any(field.is_required() for field in body.model_fields.values())
        extra["requestBody"] = {"required": needed, "content": {"application/json": {"schema": schema}}}
    if takes:
        extra["requestBody"] = {"required": True, "content": {takes: {"schema": {"type": "string"}}}}
    statuses = {*errors, 400, 431, 503} if "{" in path else {*errors, 431}
    if path not in OPEN_PATHS:
        statuses |= {401, 403, 429}
        extra["security"] = [{name: []} for name in _SECURITY]
    responses: dict[int | str, Any] = {
        status: {"description": _WHY[status], **({} if status == 304 or bare else {"model": ErrorBody})}
        for status in sorted(statuses)
    }
    if sends:
        responses[200] = {"content": {sends: {"schema": {"type": "string"}}}}
    return {"path": path, "openapi_extra": extra, "responses": responses}


# ---------------------------------------------------------------- /v1

v1 = APIRouter(route_class=PlainRoute)
_NS = "/v1/namespaces/{namespace}"
_ITEM = f"{_NS}/items/{{key:key}}"


@v1.get(**described(_ITEM, 304, 404), response_model=ItemBody)
async def get_item(request: Request) -> Response:
    """A value with its version (also as ETag), times and size."""
    namespace, key = names(request)
    stored = await run(request, items.read_item(namespace, key))
    if stored is None:
        return failed(missing(request))
    etag = f'"{stored.version}"'
    if header(request, b"if-none-match") == etag:
        return Response(status_code=304, headers={"ETag": etag})
    return json_response(item_json(key, stored), headers={"ETag": etag})


@v1.head(**described(_ITEM, 404, bare=True), response_class=Response)
async def head_item(request: Request) -> Response:
    """Whether there is a value, and its version as ETag: "0" if there is none."""
    version = await run(request, items.find_version(*names(request)))
    if version is None:
        return Response(status_code=404, headers={"ETag": '"0"'})
    return Response(headers={"ETag": f'"{version}"'})


@v1.put(
    **described(_ITEM, 409, 412, *WRITES, body=SetBody, headers=(_IF_MATCH, _IF_NONE, _KEY)), response_model=VersionBody
)
async def set_item(request: Request) -> Response:
    """Store any JSON value; null deletes."""
    namespace, key = names(request)
    fields = await read_fields(request, "value", "ttl")
    ttl = check_ttl(fields.get("ttl"))
    value = fields["value"]
    text = None if value is None else encode(value)
    delivery = delivery_of(request)
    stored = items.set_item(namespace, key, text, ttl, expected_version(request))
    version, account = await run(request, once(stored, namespace, delivery))
    return written(f'{{"version":{version}}}', account, version)


@v1.delete(**described(_ITEM, 404, 409, 412, headers=(_IF_MATCH, _KEY)), status_code=204, response_model=None)
async def delete_item(request: Request) -> Response:
    """Delete a value; this is never counted as a write."""
    namespace, key = names(request)
    deleted = items.delete_item(namespace, key, expected_version(request))
    found, account = await run(request, once(deleted, namespace, delivery_of(request)))
    headers = quota_headers(account.usage())
    if not found:
        return failure(404, NotFound.code, missing(request).detail, headers)
    return Response(status_code=204, headers=headers)


@v1.get(
    **described(
        f"{_NS}/items",
        query={
            "prefix": _TEXT,
            "after": _TEXT,
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 1000},
        },
    ),
    response_model=KeysBody,
)
async def list_keys(request: Request) -> Response:
    """Keys in order; fewer than `limit` means that there are no more."""
    namespace = namespace_of(request)
    prefix, after = request.query_params.get("prefix", ""), request.query_params.get("after", "")
    limit = query_count(request, "limit", 1000, least=1, most=MAX_PAGE)
    for name in filter(None, (prefix, after)):
        check_key(name)
    return json_response({"keys": await run(request, items.list_keys(namespace, prefix, after, limit))})


@v1.patch(**described(f"{_NS}/items", 409, *WRITES, body=UpdateBody, headers=(_KEY,)), response_model=UpdatedBody)
async def update_items(request: Request) -> Response:
    """Store several values, all of them or none; null deletes."""
    namespace = namespace_of(request)
    values = (await read_fields(request, "values"))["values"]
    if not isinstance(values, dict):
        raise InvalidInput("values is an object of keys and values")
    texts = {
        check_key(key): None if value is None else encode(value, f"values[{key!r}]") for key, value in values.items()
    }
    check_total([*texts, *filter(None, texts.values())])
    _, account = await run(request, once(items.update_items(namespace, texts), namespace, delivery_of(request)))
    return written({"updated": len(texts)}, account)


@v1.delete(**described(f"{_NS}/items"), response_model=DeletedBody)
async def clear_items(request: Request) -> Response:
    """Delete every value of a namespace."""
    deleted, account = await run(request, items.clear_items(namespace_of(request)))
    return written({"deleted": deleted}, account)


@v1.post(**described(f"{_NS}/read", 413, body=ReadBody), response_model=ValuesBody)
async def read_many(request: Request) -> Response:
    """The values of those keys that are there, seen at one moment."""
    namespace = namespace_of(request)
    keys = (await read_fields(request, "keys"))["keys"]
    if not isinstance(keys, list):
        raise InvalidInput("keys is a list of keys")
    check_total(check_key(key) for key in keys)
    found = await run(request, items.read_many(namespace, keys))
    pairs = ",".join(f"{json.dumps(key)}:{text}" for key, text in found.items())
    return json_response(f'{{"values":{{{pairs}}}}}')


_LIST = f"{_NS}/lists/{{key:key}}"


@v1.post(**described(_LIST, 409, *WRITES, body=AppendBody, headers=(_KEY,)), response_model=LengthBody)
async def append_items(request: Request) -> Response:
    """Add to the end of a list, which is made if there is none."""
    namespace, key = names(request)
    fields = await read_fields(request, "items", "once")
    parts, delivery = fields["items"], delivery_of(request, fields.get("once"))
    if not isinstance(parts, list):
        raise InvalidInput("items is a list of values")
    texts = [encode(part, f"items[{i}]") for i, part in enumerate(parts)]
    check_total(texts)
    length, account = await run(request, once(lists.append_items(namespace, key, texts), namespace, delivery))
    return written({"length": length}, account)


@v1.get(
    **described(_LIST, 409, query={"tail": {"type": "integer", "minimum": 0, "maximum": MAX_COUNT, "default": 100}}),
    response_model=ItemsBody,
)
async def read_tail(request: Request) -> Response:
    """The last items of a list, oldest first."""
    namespace, key = names(request)
    texts = await run(request, lists.read_tail(namespace, key, query_count(request, "tail", 100)))
    return json_response(f'{{"items":[{",".join(texts)}]}}')


@v1.post(
    **described(f"{_NS}/counters/{{key:key}}", 409, *WRITES, body=IncrBody, headers=(_KEY,)), response_model=NumberBody
)
async def increment(request: Request) -> Response:
    """Add to a number, from 0 if there is none."""
    namespace, key = names(request)
    fields = await read_fields(request, None, "by", "once")
    by = fields.get("by", 1)
    if type(by) not in (int, float):
        raise InvalidInput(f"by is a number, not {json.dumps(by)[:40]}")
    encode(by, "by")
    delivery = delivery_of(request, fields.get("once"))
    total, account = await run(request, once(items.increment(namespace, key, by), namespace, delivery))
    return written({"value": total}, account)


_NOTES = f"{_NS}/notes"
_QUESTION = tuple(RecallBody.model_fields)


@v1.post(**described(_NOTES, 404, 409, *WRITES, body=RememberBody, headers=(_KEY,)), response_model=NoteBody)
async def remember(request: Request) -> Response:
    """Remember a text; the same content once more refreshes the note."""
    draft = Draft.check(**await read_fields(request, *RememberBody.model_fields))
    note, account = await remember_note(request, namespace_of(request), draft)
    return written(note.to_json(), account)


@v1.get(
    **described(
        _NOTES,
        query={
            "type": LABEL,
            "tag": {"type": "array", "items": LABEL, "maxItems": MAX_TAGS},
            "session": LABEL,
            "after": _TEXT,
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_NOTES_PAGE, "default": 100},
        },
    ),
    response_model=NotesBody,
)
async def list_notes(request: Request) -> Response:
    """Notes in the order remembered, those after the id given; fewer than `limit` means that there are no more."""
    query = request.query_params
    which = (
        check_label("type", query.get("type")),
        check_tags(query.getlist("tag")),
        check_label("session", query.get("session")),
        check_label("after", query.get("after") or None) or "",
        query_count(request, "limit", 100, least=1, most=MAX_NOTES_PAGE),
    )
    found = await run(request, notes.list_notes(namespace_of(request), *which))
    return json_response({"notes": [note.to_json() for note in found]})


@v1.delete(**described(_NOTES), response_model=DeletedBody)
async def clear_notes(request: Request) -> Response:
    """Erase every note of a namespace for good."""
    deleted, account = await run(request, notes.clear_notes(namespace_of(request)))
    return written({"deleted": deleted}, account)


@v1.post(**described(f"{_NOTES}/recall", 413, body=RecallBody), response_model=NotesBody)
async def recall(request: Request) -> Response:
    """The notes that answer best, best first."""
    question = Question.check(**await read_fields(request, *_QUESTION))
    found = await recall_notes(request, namespace_of(request), question)
    return json_response({"notes": [note.to_json() for note in found]})


@v1.post(**described(f"{_NOTES}/context", 413, body=InjectBody), response_model=ContextBody)
async def inject_context(request: Request) -> Response:
    """What is remembered about this, as text for a system prompt; empty when nothing fits."""
    fields = {"limit": 8, **await read_fields(request, *_QUESTION, "max_tokens")}
    max_tokens = check_count("max_tokens", fields.pop("max_tokens", 400))
    found = await recall_notes(request, namespace_of(request), Question.check(**fields))
    return json_response({"context": as_context(found, max_tokens)})


@v1.delete(**described(f"{_NOTES}/{{key:note}}", 404), status_code=204, response_model=None)
async def forget(request: Request) -> Response:
    """Erase a note for good; this is never counted as a write."""
    namespace, note_id = namespace_of(request), check_key(request.path_params["key"], "note id")
    found, account = await run(request, notes.forget(namespace, note_id))
    headers = quota_headers(account.usage())
    if not found:
        return failure(404, NotFound.code, f"there is no note {shown(note_id)}", headers)
    return Response(status_code=204, headers=headers)


@v1.delete(**described(_NS), response_model=DeletedBody)
async def clear_all(request: Request) -> Response:
    """Erase every value and every note of a namespace."""
    deleted, account = await run(request, notes.clear_all(namespace_of(request)))
    return written({"deleted": deleted}, account)


_COUNT = {"type": "integer", "minimum": 0, "maximum": MAX_COUNT}
_LAST_EVENT = {
    "name": "Last-Event-ID",
    "in": "header",
    "schema": _COUNT,
    "description": "the id of the last event that was seen, which wins over `after`; anything else is refused",
}


@v1.get(
    **described(
        f"{_NS}/changes",
        409,
        query={
            "prefix": _TEXT,
            "after": {**_COUNT, "description": "a cursor; without it, from now on"},
            "wait": {**_NUMBER, "maximum": MAX_WAIT, "description": "seconds to wait for something, as JSON"},
        },
        headers=(_LAST_EVENT,),
        sends="text/event-stream",
    ),
    response_model=ChangesBody,
)
async def watch_changes(request: Request) -> Response:
    """What has changed since: as server-sent events while it happens, or as JSON if that is what Accept says."""
    namespace, prefix = namespace_of(request), request.query_params.get("prefix", "")
    if prefix:
        check_key(prefix)
    as_json = "application/json" in request.headers.get("accept", "")
    cursor = query_count(request, "after", -1)
    if (last := request.headers.get("last-event-id")) is not None:
        cursor = _count("Last-Event-ID", last)
    wait = query_seconds(request, "wait", 0, MAX_WAIT)
    watch = Watched(request, namespace, prefix, None if cursor < 0 else cursor)
    held = request.app.watch_limit.hold(client_of(request, request.scope["access"]))
    if not as_json:
        with contextlib.ExitStack() as place:
            place.enter_context(held)
            return EventStream(watch.events(await watch.look()), place.pop_all())
    found = await watch.look()
    if not found and wait:
        with held:
            found = await watch.wait(wait)
    return json_response({"changes": [change.to_json() for change in found], "cursor": watch.cursor})


class EventStream(StreamingResponse):
    """Server-sent events, and the place among those who watch, given back when they end, however they do."""

    def __init__(self, events: AsyncIterator[str], place: contextlib.ExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            await super().__call__(scope, receive, send)


class Watched:
    """How far one request has seen the changes of a namespace."""

    def __init__(self, request: Request, namespace: str, prefix: str, cursor: int | None) -> None:
        self._request = request
        self._namespace = namespace
        self._prefix = prefix
        self._watchers: Watchers = request.app.state.watchers
        self.cursor: Any = cursor

    async def look(self) -> list[Change]:
        """What has changed since the last look."""
        seen = changes.read_changes(self._namespace, self._prefix, self.cursor)
        found, self.cursor = await run(self._request, seen)
        return found

    async def wait(self, seconds: float) -> list[Change]:
        """The same, but not before there is something or the time is over."""
        give_up_at = time.monotonic() + seconds
        found: list[Change] = []
        while not found and not self._watchers.closed and (left := give_up_at - time.monotonic()) > 0:
            await self._watchers.wait(self._namespace, self.cursor, left)
            found = await self.look()
        return found

    async def events(self, found: list[Change]) -> AsyncIterator[str]:
        """Until the client goes, the server stops, or the api key is revoked. An id alone only moves the cursor.

        Whatever else comes in the way is told to those who ask again.
        """
        yield "retry: 1000\n\n"
        while not self._watchers.closed:
            for change in found:
                yield f"id: {change.id}\ndata: {json.dumps(change.to_json(), ensure_ascii=False)}\n\n"
            yield f"id: {self.cursor}\n\n"
            try:
                found = await self.wait(HEARTBEAT)
                authenticate(self._request)
            except ScrubjayError:
                return


@v1.get(
    **described(
        "/v1/audit",
        400,
        503,
        query={
            "namespace": {**_TEXT, **_NAMES["namespace"]},
            "since": {**_NUMBER, "description": "seconds since 1970"},
            "after": _COUNT,
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 1000},
        },
    ),
    response_model=AuditBody,
)
async def read_audit(request: Request) -> Response:
    """Who changed what and when, and what was refused; oldest first."""
    need_admin(request)
    namespace = request.query_params.get("namespace")
    if namespace is not None:
        check_namespace(namespace)
    since = query_seconds(request, "since", 0, MAX_SECONDS)
    found = await run(
        request,
        changes.read_audit(
            namespace,
            int(since * 1000),
            query_count(request, "after", 0),
            query_count(request, "limit", 1000, least=1, most=MAX_PAGE),
        ),
    )
    return json_response({"changes": [change.to_json() for change in found]})


@v1.get(**described(f"{_NS}/usage"), response_model=UsageBody)
async def read_usage(request: Request) -> Response:
    """What the namespace holds, its writes today, its limits."""
    used = await run(request, quotas.read_usage(namespace_of(request)))
    return json_response({**used.to_json(), "namespace": request.path_params["namespace"]})


@v1.patch(**described(f"{_NS}/quota", 413, body=QuotaBody), response_model=UsageBody)
async def set_quota(request: Request) -> Response:
    """Limit a namespace; a limit that is not named stays as it is."""
    namespace = namespace_of(request)
    need_admin(request)
    limits = await read_fields(request, None, "writes_per_day", "max_bytes")
    for name, limit in limits.items():
        if limit is not None:
            check_count(name, limit)
    return json_response((await run(request, quotas.set_quota(namespace, limits))).to_json())


@v1.get(**described("/v1/namespaces", 503), response_model=NamespacesBody)
async def list_namespaces(request: Request) -> Response:
    """Every namespace that was ever written to, of those that the api key sees."""
    access: Access = request.scope["access"]
    every = await run(request, quotas.list_namespaces())
    return json_response({"namespaces": [name for name in every if access.sees(name) and not is_private(name, access)]})


class ApiKeyBody(BaseModel):
    id: str
    name: str
    namespaces: list[str]
    read_only: bool
    admin: bool
    created_at: str


class ApiKeysBody(BaseModel):
    apikeys: list[ApiKeyBody]


class IssueBody(Strict):
    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"properties": {"admin": {"const": False}}},
                {"properties": {"read_only": {"const": False}, "namespaces": {"const": ["*"]}}},
            ]
        }
    )

    name: Name
    namespaces: list[Name] = Field(["*"], description="patterns, such as support-*", min_length=1)
    read_only: bool = False
    admin: bool = Field(default=False, description="has every namespace, and may write")


class IssuedBody(ApiKeyBody):
    key: str = Field(description="the key itself, shown only now")


@v1.post(**described("/v1/apikeys", 400, 413, 503, body=IssueBody), response_model=IssuedBody)
async def issue_apikey(request: Request) -> Response:
    """Issue an api key; from the first on, every request needs one."""
    need_admin(request)
    fields = await read_fields(request, "name", "namespaces", "read_only", "admin")
    patterns, flags = fields.get("namespaces", ["*"]), [fields.get(flag, False) for flag in ("read_only", "admin")]
    if not isinstance(patterns, list) or not patterns or not all(isinstance(flag, bool) for flag in flags):
        raise InvalidInput("namespaces is a list of patterns; read_only and admin are true or false")
    identity, secret = apikeys.make()
    made = await run(request, apikeys.issue(identity, secret, fields["name"], tuple(patterns), *flags))
    return json_response({**made.to_json(), "key": secret})


@v1.get(**described("/v1/apikeys", 503), response_model=ApiKeysBody)
async def list_apikeys(request: Request) -> Response:
    """The api keys, without the keys themselves."""
    need_admin(request)
    return json_response({"apikeys": [made.to_json() for made in await run(request, apikeys.list_all())]})


@v1.delete(**described("/v1/apikeys/{id}", 404), status_code=204, response_model=None)
async def revoke_apikey(request: Request) -> Response:
    """Revoke an api key, at once."""
    need_admin(request)
    if not await run(request, apikeys.revoke(request.path_params["id"])):
        raise NotFound("there is no such api key")
    return Response(status_code=204)


class MovedBody(BaseModel):
    namespace: str
    keys: int
    notes: int


class ErasedBody(BaseModel):
    namespace: str
    rows: dict[str, int] = Field(description="how many were erased, by table")
    pieces: int = Field(description="of what was there, how many were looked for in the files afterwards")
    common: int = Field(description="pieces that say too little to be looked for")
    shared: int = Field(description="pieces that were found because what remains holds the same")
    files: list[str]
    bytes: int
    traces: list[str] = Field(description="where something was found that should be gone")


@v1.get(**described(f"{_NS}/export", 404, sends=NDJSON), response_class=Response)
async def export_namespace(request: Request) -> Response:
    """All of a namespace as lines of JSON, as it is at one moment. For administrators."""
    need_admin(request)
    namespace, store = namespace_of(request), request.app.state.store
    # On disk first: a failure can still be told, and a slow reader does not hold the store's state back.
    with copying(), contextlib.ExitStack() as undo:
        file = undo.enter_context(tempfile.TemporaryFile(dir=store.folder))
        await store.apart(SqliteStore.run, transfer.export_namespace(namespace, file.write))
        undo.pop_all()
    return sent(file, NDJSON)


@v1.post(
    **described(
        f"{_NS}/import", 409, 413, 507, query={"replace": {"type": "boolean"}}, takes="application/octet-stream"
    ),
    response_model=MovedBody,
)
async def import_namespace(request: Request) -> Response:
    """Bring in what `export` gave, all of it or nothing; not counted as today's writes. For administrators."""
    need_admin(request)
    namespace = namespace_of(request)
    replace = request.query_params.get("replace", "false")
    if replace not in ("true", "false"):
        raise InvalidInput(f"replace in the query is true or false, not {replace[:40]!r}")
    folder = request.app.state.store.folder
    with copying(), tempfile.NamedTemporaryFile(dir=folder, prefix=".scrubjay-import-") as file:
        async for chunk in request.stream():
            file.write(chunk)
        file.flush()
        bring = transfer.import_namespace(namespace, Path(file.name), replace == "true")
        moved, account = await run(request, bring)
    return written(moved._asdict(), account)


@v1.post(**described(f"{_NS}/erase"), response_model=ErasedBody)
async def erase_namespace(request: Request) -> Response:
    """Erase a namespace from every table and write the file anew; then look for traces. For administrators."""
    need_admin(request)
    namespace, who = namespace_of(request), request.scope["access"].name
    erased = await request.app.state.store.apart(erasure.erase, namespace, who)
    return json_response(erased.to_json())


@v1.get(**described("/v1/backup", 503, sends=DATABASE), response_class=Response)
async def back_up(request: Request) -> Response:
    """The whole database, as it is at one moment. For administrators."""
    need_admin(request)
    store = request.app.state.store
    with copying(), tempfile.TemporaryDirectory(dir=store.folder, prefix=".scrubjay-backup-") as folder:
        copy = Path(folder) / "copy"
        await store.apart(files.back_up, copy, lambda *_: None)
        file = copy.open("rb")
    return sent(file, DATABASE)


@contextlib.contextmanager
def copying() -> Iterator[None]:
    """While something is kept on disk on its way in or out."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the server has no room for a copy: {error.strerror}; free space on its disk") from error


def sent(file: IO[bytes], media_type: str) -> Response:
    """A file as an answer, bit by bit."""

    async def pieces() -> AsyncIterator[bytes]:
        file.seek(0)
        with file:
            while piece := await asyncio.to_thread(file.read, 2**18):
                yield piece

    size = file.seek(0, os.SEEK_END)
    return StreamingResponse(pieces(), media_type=media_type, headers={"Content-Length": str(size)})


@v1.get(**described("/health"), response_model=StatusBody)
async def health(_request: Request) -> Response:
    """Whether the process answers."""
    return json_response({"status": "ok", "version": __version__})


@v1.get(**described("/ready", 503), response_model=StatusBody)
async def ready(request: Request) -> Response:
    """Whether the store answers."""
    request.app.state.store.check_place()
    await run(request, quotas.read_usage("ready"))
    return json_response({"status": "ready", "version": __version__})


@v1.get(**described("/metrics", sends="text/plain"), response_class=Response)
async def metrics(_request: Request) -> Response:
    """For Prometheus."""
    registry = _REGISTRY
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        registry = prometheus_client.CollectorRegistry()
        prometheus_client.multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return Response(prometheus_client.generate_latest(registry), media_type=prometheus_client.CONTENT_TYPE_LATEST)


@v1.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """The whole API, to read in a browser."""
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Response(request.app.docs, media_type="text/html", headers=headers)


# ---------------------------------------------------------------- the application

# A registry of its own: run as a script with workers, this file is loaded under two names in one process.
_REGISTRY = prometheus_client.CollectorRegistry()
_REQUESTS = prometheus_client.Counter(
    "scrubjay_requests", "Requests answered", ["method", "route", "status"], registry=_REGISTRY
)
_SECONDS = prometheus_client.Histogram("scrubjay_request_seconds", "Time to answer", ["route"], registry=_REGISTRY)


class Service(FastAPI):
    """FastAPI with one layer, this one, in place of its middleware: text, metrics, and errors as JSON."""

    limit: RequestLimit | None = None
    watch_limit = WatchLimit(0)
    held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] != "http":
            await self.router(scope, receive, send)
            return
        started = time.perf_counter()
        try:
            if _is_text(scope):
                await self.router(scope, receive, send)
            else:
                await answer(failed(InvalidInput("the address holds bytes that are not UTF-8")), scope, receive, send)
        except HTTPException as error:  # Starlette's word for no such path, no such method
            if error.status_code == 405:
                error.headers = {"Allow": ", ".join(sorted(self._methods(scope)))}
            await answer(_refused(error), scope, receive, send)
        except ClientDisconnect:  # nobody is left to answer
            scope["status"] = 499
        except Exception:
            if "status" not in scope:
                mistake = ScrubjayError("the server made a mistake; its log has the details")
                await answer(failed(mistake), scope, receive, send)
            raise  # uvicorn logs it
        finally:
            route = getattr(scope.get("route"), "path_format", "none")
            _counted(scope["method"], route, scope.get("status", 200)).inc()
            _timed(route).observe(time.perf_counter() - started)

    def _methods(self, scope: Scope) -> set[str]:
        """All methods of a path, of which each has a route of its own."""
        matching = [route for route in self.router.routes if route.matches(scope)[0] is not Match.NONE]
        return {method for route in matching for method in getattr(route, "methods", None) or ()}

    @functools.cached_property
    def docs(self) -> str:
        return scrubjay_docs.page(self.openapi())

    def openapi(self) -> dict[str, Any]:
        """FastAPI's document, with the bodies that plain routes read themselves."""
        if not self.openapi_schema:
            document = super().openapi()
            models: list[Any] = [(body, "validation") for body in sorted(_bodies, key=lambda body: body.__name__)]
            _, bodies = models_json_schema(models, ref_template="#/components/schemas/{model}")
            document["components"]["schemas"] |= bodies["$defs"]
            document["components"]["securitySchemes"] = _SECURITY
        return self.openapi_schema or {}


# prometheus_client looks its labels up under a lock; there are only a few dozen combinations.
_counted = functools.cache(_REQUESTS.labels)
_timed = functools.cache(_SECONDS.labels)


def _refused(error: HTTPException) -> Response:
    if error.status_code == 404:
        # Not the code of a key that is not there: a client with a wrong URL must not take it for that.
        return failure(404, "no_such_path", "there is no such path; is the URL right? /docs lists them")
    code = "method_not_allowed" if error.status_code == 405 else "http_error"
    return failure(error.status_code, code, str(error.detail), error.headers)


def _is_text(scope: Scope) -> bool:
    """Uvicorn and Starlette replace bytes that are not UTF-8, and a replaced name is another name."""
    for encoded in (scope.get("raw_path") or b"", scope["query_string"]):
        if b"%" in encoded:
            try:
                unquote_to_bytes(encoded).decode()
            except UnicodeDecodeError:
                return False
    return True


@contextlib.asynccontextmanager
async def lifespan(app: Service) -> AsyncIterator[None]:
    _end_with_parent()
    workers = max(resolve("workers"), 1)  # in each process its share
    if requests := resolve("requests_per_minute"):
        app.limit = RequestLimit(requests / workers)
    app.watch_limit = WatchLimit(math.ceil(resolve("max_watches") / workers))
    quota = Quota(resolve("writes_per_day"), resolve("max_bytes"))
    file = SqliteStore(resolve("path"), durability=resolve("durability"), quota=quota, patience=BUSY_SECONDS)
    file.name = "the server's database"  # where it lies is nothing that clients need to know
    async with AioStore(file) as store:
        app.state.store = store
        choice = resolve("embedder")
        app.state.meaning = Meaning(file, choice) if choice else None
        if app.state.meaning:
            app.state.meaning.catch_up()
        app.state.refusals, app.state.watchers = Refusals(store), Watchers(store)
        _before_stopping(app.state.watchers.close)
        sweeper = asyncio.create_task(_sweep_forever(store))
        try:
            yield
        finally:
            await app.state.refusals.write()
            sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sweeper


def _before_stopping(call: Callable[[], None]) -> None:
    """Uvicorn waits for every answer under way before it tells the application that it stops: a stream of
    events, which has no end of its own, has to be ended when the signal comes.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)

        def stop(number: int, frame: FrameType | None, before: Any = before) -> None:
            loop.call_soon_threadsafe(call)
            if callable(before):
                before(number, frame)

        signal.signal(number, stop)


def _end_with_parent() -> None:
    """A worker whose supervisor was killed would go on, and hold the port, with nobody to stop it."""
    if parent := multiprocessing.parent_process():

        def watch() -> None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, daemon=True).start()


async def _sweep_forever(store: AioStore) -> None:
    while True:
        with contextlib.suppress(ScrubjayError):  # a busy moment; the next round does it
            await store.sweep()
        if store.folder:
            files.remove_left_over(store.folder)
        await asyncio.sleep(SWEEP_SECONDS)


def create_app() -> FastAPI:
    """The application; its settings come from SCRUBJAY_* so that worker processes see the same."""
    from scrubjay_dialects import botwire, kronvex, memstore  # noqa: PLC0415 - it uses what is defined above

    app = Service(
        title="Scrubjay",
        version=__version__,
        summary="Memory for agents that survives.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    # Matched in order, so the hot ones come first.
    app.router.routes[:0] = [*v1.routes, *botwire.routes, *kronvex.routes, *memstore.routes]
    return app


# ---------------------------------------------------------------- the command


def serve(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or Ctrl-C."""
    for name, setting in SETTINGS.items():
        given = getattr(arguments, name, None) if setting.serve else None
        if given is not None:
            os.environ[setting.variable] = str(given)
    workers = max(resolve("workers"), 1)
    config = uvicorn.Config(
        "scrubjay_server:create_app",
        factory=True,
        host=resolve("host"),
        port=resolve("port"),
        workers=workers,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        http=LimitedProtocol,
    )
    try:
        # The file is opened once before anything is promised: a bad path or a newer format is told here,
        # and so is a model that is not there.
        store = SqliteStore(resolve("path"), durability=resolve("durability"))
        if resolve("embedder"):
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads would quarrel with the server's
            open_embedder(resolve("embedder"))
        listener = _listen(config.host, config.port)
        first_key = None if is_here(config.host) else _first_key(store)
        store.close()
    except ScrubjayError as error:
        print(f"scrubjay: {error}", file=sys.stderr)
        return 1
    print(banner(listener, first_key, only_reads=store.only_reads), flush=True)
    for ending in (signal.SIGTERM, signal.SIGINT):
        # Uvicorn raises the signal that ended it once more; to be asked to end and to end is no failure.
        signal.signal(ending, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="scrubjay-metrics-") as folder:
        if workers > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
            Multiprocess(config, sockets=[listener]).run()
        else:
            uvicorn.Server(config).run(sockets=[listener])
    return 0


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)  # from here on nobody is refused: whoever comes early waits for the start
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScrubjayError(
            f"cannot listen on {host} port {port}: {reason}; choose another with --host or --port"
        ) from error
    listener.set_inheritable(True)
    return listener


def _first_key(store: SqliteStore) -> str | None:
    """A server that others can reach is never open: if there is no api key yet, here is one."""
    if store.run(apikeys.list_all()):
        return None
    identity, secret = apikeys.make()
    store.run(apikeys.issue(identity, secret, "first start", ("*",), False, True))
    return secret


def banner(listener: socket.socket, first_key: str | None, *, only_reads: bool = False) -> str:
    host, port = listener.getsockname()[:2]
    everywhere = ipaddress.ip_address(host).is_unspecified
    if everywhere:  # an address to listen on, and none to go to
        host = "::1" if ":" in host else "127.0.0.1"
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    also = " and at every other address of this machine" if everywhere else ""
    writes, size = resolve("writes_per_day"), resolve("max_bytes")
    allowed = f"{counted(writes, 'write')} a day" if writes else "unlimited writes"
    held = f"{counted(size, 'byte')}" if size else "unlimited storage"
    requests = resolve("requests_per_minute")
    reads = f"{counted(requests, 'request')} a minute for each client" if requests else "reads are free"
    key = f"\n  api key  {first_key}   (admin; shown only now: give it as SCRUBJAY_API_KEY)" if first_key else ""
    return f"""Scrubjay {__version__} is serving at {url}{also}{key}
  data     {Path(resolve("path")).expanduser()}{" (only read: it may not be written)" if only_reads else ""}
  quotas   {allowed} and {held} for each namespace; {reads}
  try      SCRUBJAY_URL={url} scrubjay set my-agent greeting hello
  docs     {url}/docs
  stop     Ctrl-C"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scrubjay serve", description="Serve a Scrubjay database over HTTP.")
    add_serve_flags(parser)
    return serve(parser.parse_args(argv))


if __name__ == "__main__":
    import scrubjay_server  # this very file, under the name that its routes and workers know it by

    raise SystemExit(scrubjay_server.main())
