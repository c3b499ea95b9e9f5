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
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

import prometheus_client
import prometheus_client.multiprocess
import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.json_schema import models_json_schema
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Receive, Scope, Send
from uvicorn.supervisors import Multiprocess

from scrubjay.drafts import Draft, Question
from scrubjay.errors import (
    Forbidden,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    ScrubjayError,
    Unauthenticated,
    ValueTooLarge,
)
from scrubjay.meaning import Meaning
from scrubjay.names import (
    MAX_NOTES_PAGE,
    MAX_PAGE,
    MAX_RECALL,
    MAX_WRITE_BYTES,
    check_count,
    check_key,
    check_label,
    check_namespace,
    check_tags,
    check_ttl,
    shown,
)
from scrubjay.recall.context import as_context
from scrubjay.recall.embedding import open_embedder
from scrubjay.records import Note, Usage, to_time
from scrubjay.settings import SETTINGS, add_serve_flags, resolve
from scrubjay.store import apikeys, items, lists, notes, quotas
from scrubjay.store.aio import AioStore
from scrubjay.store.apikeys import Access
from scrubjay.store.items import Stored
from scrubjay.store.operation import Operation, Quota
from scrubjay.store.quotas import Account
from scrubjay.store.sqlite import SWEEP_SECONDS, SqliteStore
from scrubjay.values import check_total, decode_body, encode
from scrubjay.version import __version__

T = TypeVar("T")

MAX_BODY_BYTES = 2 * MAX_WRITE_BYTES + 2**20
"""What one call may write, with room for escapes and the JSON around it."""
KEEP_ALIVE_SECONDS = 75
BUSY_SECONDS = 4.0
"""How long a write waits for other processes: less than clients wait for their answer."""
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
                scope["reads"], scope["access"] = self._reads, authenticate(request)
                if scope["access"].read_only and not self._reads:
                    raise Forbidden("this api key may only read; ask for one that may write")
            response = await self.endpoint(request)
        except ScrubjayError as error:
            response = failed(error)
        await answer(response, scope, receive, send)

    def _refuse_slashes(self, scope: Scope) -> None:
        """An encoded slash is decoded before the path is split, and would move the border of the namespace."""
        raw = scope.get("raw_path") or b""
        if self._namespace_at is None or b"%" not in raw:
            return
        if b"%2f" in b"/".join(raw.split(b"/")[: self._namespace_at + 1]).lower():
            raise InvalidInput("a namespace holds no '/', not even as %2F")


class _KeyConvertor(Convertor[str]):
    """A key in a path: everything that follows, slashes and line breaks included."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("key", _KeyConvertor())


async def answer(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a response, and leave its status where the metrics find it."""
    scope["status"] = response.status_code
    await response(scope, receive, send)


def run(request: Request, operation: Operation[T]) -> Awaitable[T]:
    store: AioStore = request.scope["app"].state.store
    return store.run(operation)


async def remember_note(request: Request, namespace: str, draft: Draft) -> tuple[Note, Account]:
    """Store a note; the model, if there is one, sees it later."""
    note, account = await run(request, notes.remember(namespace, draft))
    if meaning := request.app.state.meaning:
        meaning.add(namespace, note.id)
    return note, account


async def recall_notes(request: Request, namespace: str, question: Question) -> list[Note]:
    """By words, and by meaning if there is a model."""
    meaning: Meaning | None = request.app.state.meaning
    similar = await asyncio.to_thread(meaning.similar, namespace, question.query) if meaning else {}
    return await run(request, notes.recall(namespace, question, similar))


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

OPEN_PATHS = ("/health", "/ready")
"""For probes: they tell nothing about what is stored."""
READING_POSTS = ("read", "recall", "context", "inject-context")
"""The last part of a path that is posted to and changes nothing."""
PRIVATE = ("kronvex:", "memstore:")
"""How the namespaces of the other wires begin, of which each api key has its own."""
NOWHERE = "/"
"""A name that no namespace can have."""


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


# ---------------------------------------------------------------- answers


def query_count(request: Request, name: str, default: int, *, least: int = 0, most: int = 2**53) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 16:
        raise InvalidInput(f"{name} in the query is a whole number, not {text[:40]!r}")
    return check_count(name, int(text), least=least, most=most)


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object in the body."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ValueTooLarge(
                f"the body has more than {MAX_BODY_BYTES} bytes; one call writes at most {MAX_WRITE_BYTES}"
            )
    fields = decode_body(bytes(body)) if body else {}
    if not isinstance(fields, dict):
        raise InvalidInput("the body is a JSON object")
    return fields


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
    """If-Match: "3" is version 3; If-None-Match: * is no version at all."""
    match, none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if none_match is not None:
        if none_match.strip() != "*" or match is not None:
            raise InvalidInput("a write takes If-None-Match: * (only if there is nothing yet), or If-Match, not both")
        return 0
    if match is None:
        return None
    digits = match.strip().removeprefix("W/").strip('"')
    if not digits.isascii() or not digits.isdigit() or len(digits) > 16:
        raise InvalidInput(f'If-Match takes one version, as the ETag gave it: "3", not {match[:40]!r}')
    return check_count("If-Match", int(digits))


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


class NamespacesBody(BaseModel):
    namespaces: list[str]


class StatusBody(BaseModel):
    status: str
    version: str


class Strict(BaseModel):
    """What is sent: a field that nobody reads is refused."""

    model_config = ConfigDict(extra="forbid")


class SetBody(Strict):
    value: JsonValue = Field(description="any JSON; null deletes")
    ttl: float | None = Field(None, description="seconds", gt=0)


class UpdateBody(Strict):
    values: dict[str, JsonValue] = Field(description="null deletes")


_ONCE = Field(
    None, description="an id of the sender's own: sent again with it, this does not happen twice", max_length=512
)


class AppendBody(Strict):
    items: list[JsonValue]
    once: str | None = _ONCE


class IncrBody(Strict):
    by: float = 1
    once: str | None = _ONCE


class ReadBody(Strict):
    keys: list[str]


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
    content: str
    type: str | None = None
    tags: list[str] | None = None
    session: str | None = None
    ttl: float | None = Field(None, description="seconds", gt=0)
    ttl_days: float | None = Field(None, gt=0)
    pinned: bool = Field(default=False, description="never expires")
    metadata: dict[str, JsonValue] | None = None


class RecallBody(Strict):
    query: str
    limit: int = Field(5, ge=1, le=MAX_RECALL)
    type: str | None = None
    tags: list[str] | None = Field(None, description="all of them")
    session: str | None = None
    threshold: float | None = Field(None, description="the least score, from 0 to 1")
    ranking: Literal["relevance", "confidence"] | None = None


class InjectBody(RecallBody):
    limit: int = Field(8, ge=1, le=MAX_RECALL)
    max_tokens: int = Field(400, ge=0)


class QuotaBody(Strict):
    writes_per_day: int | None = Field(None, ge=0, description="0 = no limit, null = the server's default")
    max_bytes: int | None = Field(None, ge=0, description="0 = no limit, null = the server's default")


_NAMES: dict[str, dict[str, Any]] = {
    "namespace": {"minLength": 1, "maxLength": 128, "pattern": r"^[^/\x00-\x1f\x7f-\x9f]+$"},
    "key": {"minLength": 1, "maxLength": 512},
}
_IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": 'only over this version: "3"',
}
_IF_NONE = {
    "name": "If-None-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "*: only if there is nothing yet",
}
_WHY = {
    304: "not changed",
    400: "the request cannot be right",
    401: "an api key is needed",
    403: "the api key does not allow this",
    404: "there is nothing of that name",
    409: "the stored value is of another kind",
    412: "the stored value has another version",
    413: "too large for one call",
    429: "no writes left today; Retry-After says when",
    503: "the database cannot do it now",
    507: "no storage left",
}
WRITES = (413, 429, 503, 507)
_bodies: set[type[BaseModel]] = set()


def described(
    path: str,
    *errors: int,
    body: type[BaseModel] | None = None,
    query: Mapping[str, dict[str, Any]] | None = None,
    headers: tuple[dict[str, Any], ...] = (),
    bare: bool = False,
) -> dict[str, Any]:
    """What FastAPI cannot see in a plain route: its parameters, its body, and every status it answers."""
    extra: dict[str, Any] = {
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string", **_NAMES.get(name, {})}}
                for name in re.findall(r"{(\w+)", path)
            ),
            *({"name": name, "in": "query", "schema": schema} for name, schema in (query or {}).items()),
            *headers,
        ]
    }
    if body:
        _bodies.add(body)
        schema = {"$ref": f"#/components/schemas/{body.__name__}"}
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    statuses = {*errors, 400, 503} if "{" in path else set(errors)
    if path not in OPEN_PATHS:
        statuses |= {401, 403}
    return {
        "path": path,
        "openapi_extra": extra,
        "responses": {
            status: {"description": _WHY[status], **({} if status == 304 or bare else {"model": ErrorBody})}
            for status in sorted(statuses)
        },
    }


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


@v1.put(**described(_ITEM, 412, *WRITES, body=SetBody, headers=(_IF_MATCH, _IF_NONE)), response_model=VersionBody)
async def set_item(request: Request) -> Response:
    """Store any JSON value; null deletes."""
    namespace, key = names(request)
    expected = expected_version(request)
    fields = await read_fields(request, "value", "ttl")
    ttl = check_ttl(fields.get("ttl"))
    value = fields["value"]
    text = None if value is None else encode(value)
    version, account = await run(request, items.set_item(namespace, key, text, ttl, expected))
    return written(f'{{"version":{version}}}', account, version)


@v1.delete(**described(_ITEM, 404, 412, headers=(_IF_MATCH,)), status_code=204, response_model=None)
async def delete_item(request: Request) -> Response:
    """Delete a value; this is never counted as a write."""
    namespace, key = names(request)
    found, account = await run(request, items.delete_item(namespace, key, expected_version(request)))
    headers = quota_headers(account.usage())
    if not found:
        return failure(404, NotFound.code, missing(request).detail, headers)
    return Response(status_code=204, headers=headers)


_TEXT = {"type": "string"}


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


@v1.patch(**described(f"{_NS}/items", *WRITES, body=UpdateBody), response_model=UpdatedBody)
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
    _, account = await run(request, items.update_items(namespace, texts))
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
    found = await run(request, items.read_many(namespace, [check_key(key) for key in keys]))
    pairs = ",".join(f"{json.dumps(key)}:{text}" for key, text in found.items())
    return json_response(f'{{"values":{{{pairs}}}}}')


_LIST = f"{_NS}/lists/{{key:key}}"


@v1.post(**described(_LIST, 409, *WRITES, body=AppendBody), response_model=LengthBody)
async def append_items(request: Request) -> Response:
    """Add to the end of a list, which is made if there is none."""
    namespace, key = names(request)
    fields = await read_fields(request, "items", "once")
    parts, once = fields["items"], fields.get("once")
    if not isinstance(parts, list):
        raise InvalidInput("items is a list of values")
    texts = [encode(part, f"items[{i}]") for i, part in enumerate(parts)]
    check_total(texts)
    length, account = await run(request, lists.append_items(namespace, key, texts, once))
    return written({"length": length}, account)


@v1.get(
    **described(_LIST, 409, query={"tail": {"type": "integer", "minimum": 0, "default": 100}}),
    response_model=ItemsBody,
)
async def read_tail(request: Request) -> Response:
    """The last items of a list, oldest first."""
    namespace, key = names(request)
    texts = await run(request, lists.read_tail(namespace, key, query_count(request, "tail", 100)))
    return json_response(f'{{"items":[{",".join(texts)}]}}')


@v1.post(**described(f"{_NS}/counters/{{key:key}}", 409, *WRITES, body=IncrBody), response_model=NumberBody)
async def increment(request: Request) -> Response:
    """Add to a number, from 0 if there is none."""
    namespace, key = names(request)
    fields = await read_fields(request, None, "by", "once")
    by = fields.get("by", 1)
    if type(by) not in (int, float):
        raise InvalidInput(f"by is a number, not {json.dumps(by)[:40]}")
    encode(by, "by")
    total, account = await run(request, items.increment(namespace, key, by, fields.get("once")))
    return written({"value": total}, account)


_NOTES = f"{_NS}/notes"
_QUESTION = tuple(RecallBody.model_fields)


@v1.post(**described(_NOTES, *WRITES, body=RememberBody), response_model=NoteBody)
async def remember(request: Request) -> Response:
    """Remember a text; the same content once more refreshes the note."""
    draft = Draft.check(**await read_fields(request, *RememberBody.model_fields))
    note, account = await remember_note(request, namespace_of(request), draft)
    return written(note.to_json(), account)


@v1.get(
    **described(
        _NOTES,
        query={
            "type": _TEXT,
            "tag": {"type": "array", "items": _TEXT},
            "session": _TEXT,
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
        query.get("after", ""),
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


@v1.delete(**described(f"{_NOTES}/{{key:key}}", 404), status_code=204, response_model=None)
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
    name: str
    namespaces: list[str] = Field(["*"], description="patterns, such as support-*")
    read_only: bool = False
    admin: bool = False


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


@v1.get(**described("/health"), response_model=StatusBody)
async def health(_request: Request) -> Response:
    """Whether the process answers."""
    return json_response({"status": "ok", "version": __version__})


@v1.get(**described("/ready", 503), response_model=StatusBody)
async def ready(request: Request) -> Response:
    """Whether the store answers."""
    await run(request, quotas.read_usage("ready"))
    return json_response({"status": "ready", "version": __version__})


@v1.get(**described("/metrics"), response_class=PlainTextResponse)
async def metrics(_request: Request) -> Response:
    """For Prometheus."""
    registry = _REGISTRY
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        registry = prometheus_client.CollectorRegistry()
        prometheus_client.multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return Response(prometheus_client.generate_latest(registry), media_type=prometheus_client.CONTENT_TYPE_LATEST)


# ---------------------------------------------------------------- the application

# A registry of its own: run as a script with workers, this file is loaded under two names in one process.
_REGISTRY = prometheus_client.CollectorRegistry()
_REQUESTS = prometheus_client.Counter(
    "scrubjay_requests", "Requests answered", ["method", "route", "status"], registry=_REGISTRY
)
_SECONDS = prometheus_client.Histogram("scrubjay_request_seconds", "Time to answer", ["route"], registry=_REGISTRY)


class Service(FastAPI):
    """FastAPI with one layer, this one, in place of its middleware: text, metrics, and errors as JSON."""

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

    def openapi(self) -> dict[str, Any]:
        """FastAPI's document, with the bodies that plain routes read themselves."""
        if not self.openapi_schema:
            document = super().openapi()
            models: list[Any] = [(body, "validation") for body in sorted(_bodies, key=lambda body: body.__name__)]
            _, bodies = models_json_schema(models, ref_template="#/components/schemas/{model}")
            document["components"]["schemas"] |= bodies["$defs"]
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
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    quota = Quota(resolve("writes_per_day"), resolve("max_bytes"))
    file = SqliteStore(resolve("path"), durability=resolve("durability"), quota=quota, patience=BUSY_SECONDS)
    async with AioStore(file) as store:
        app.state.store = store
        choice = resolve("embedder")
        app.state.meaning = Meaning(file, choice) if choice else None
        if app.state.meaning:
            app.state.meaning.catch_up()
        sweeper = asyncio.create_task(_sweep_forever(store))
        try:
            yield
        finally:
            sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sweeper


async def _sweep_forever(store: AioStore) -> None:
    while True:
        with contextlib.suppress(ScrubjayError):  # a busy moment; the next round does it
            await store.sweep()
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
    )
    try:
        # The file is opened once before anything is promised: a bad path or a newer format is told here,
        # and so is a model that is not there.
        store = SqliteStore(resolve("path"), durability=resolve("durability"))
        if resolve("embedder"):
            open_embedder(resolve("embedder"))
        listener = _listen(config.host, config.port)
        first_key = None if is_here(config.host) else _first_key(store)
        store.close()
    except ScrubjayError as error:
        print(f"scrubjay: {error}", file=sys.stderr)
        return 1
    print(banner(listener, first_key), flush=True)
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


def banner(listener: socket.socket, first_key: str | None) -> str:
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    writes, size = resolve("writes_per_day"), resolve("max_bytes")
    allowed = f"{writes:,} writes a day" if writes else "unlimited writes"
    held = f"{size:,} bytes" if size else "unlimited storage"
    key = f"\n  api key  {first_key}   (admin; shown only now: give it as SCRUBJAY_API_KEY)" if first_key else ""
    return f"""Scrubjay {__version__} is serving at {url}{key}
  data     {Path(resolve("path")).expanduser()}
  quotas   {allowed} and {held} for each namespace; reads are free
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
