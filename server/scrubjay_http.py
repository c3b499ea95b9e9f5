"""Requests and responses: the dependencies that routes declare, reading JSON bodies, and answering in JSON."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_origin
from urllib.parse import unquote, unquote_to_bytes

import pydantic
from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

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
    repr_short,
)
from scrubjay.exact_json import decode_body
from scrubjay.models import Note, Usage, to_time
from scrubjay.semantic.index import SemanticIndex
from scrubjay.settings import Settings
from scrubjay.store import conversations, items, notes
from scrubjay.store.api_keys import Access
from scrubjay.store.engine import ServedStore
from scrubjay.store.idempotency import HEADER, IdempotencyKey, run_once
from scrubjay.store.items import StoredItem
from scrubjay.store.operation import Actor, Operation
from scrubjay.store.usage import NamespaceUsage
from scrubjay.validation import (
    MAX_COUNT,
    MAX_KEY_BYTES,
    MAX_MESSAGES_PAGE,
    MAX_NAMESPACE_CHARS,
    MAX_NOTE_BYTES,
    MAX_PAGE,
    NewNote,
    RecallQuery,
    check_key,
    check_label,
    check_namespace,
    check_prefix,
)
from scrubjay_activity import RequestCounter
from scrubjay_auth import NEW_KEY, Authenticator, Quotas, headers_of
from scrubjay_limits import MAX_BODY_BYTES, SMALL_BODY_BYTES, BodyLimit, ExportLimit, WatchLimit, check_unread
from scrubjay_log import failures
from scrubjay_models import NAME_PATTERN, ErrorResult
from scrubjay_watch import AnyWatchers, RefusalLog

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

MAX_QUERY_BODY_BYTES = MAX_NOTE_BYTES + 2**20
"""Bytes of a body that reads or changes a setting; more are refused with 413. The longest query with its other fields,
or all the keys of one read, of which the shortest take four times their size as JSON."""
OFF_LOOP_BYTES = 64 * 2**10
"""Bytes of a body that is parsed on the event loop, which takes a millisecond or two. A larger one goes to the parser
thread, which costs 0.1 ms and lets other requests run meanwhile."""
ONE_PIECE_BYTES = min(OFF_LOOP_BYTES, SMALL_BODY_BYTES)
"""Bytes of a body that is neither counted nor parsed in a thread."""
RETRY_SECONDS = b"1"
"""Retry-After of a 503, in seconds: most causes, such as another process's transaction, last less."""
PRIVATE_PREFIXES = ("kronvex:", "memstore:")
"""Prefixes of the namespaces of the Kronvex and Memstore APIs, of which each api key has its own."""
HIDDEN_NAMESPACE = "/"
"""A name that no namespace can have: what a key may not see is read from here, and so looks like what is missing."""
VERSION_PATTERN = r'(W/)?"?[0-9]{1,16}"?'
"""Of a version up to MAX_COUNT as an ETag; a proxy that compresses makes it a weak one."""


@dataclass(slots=True)
class Resources:
    """What the routes share in a server process, from its start to its end."""

    settings: Settings
    store: ServedStore
    authenticator: Authenticator
    quotas: Quotas
    refusals: RefusalLog
    watchers: AnyWatchers
    watch_limit: WatchLimit
    export_limit: ExportLimit
    body_limit: BodyLimit
    parser: ThreadPoolExecutor
    """One thread: a parsed body takes many times its size in memory, and two threads would share one interpreter."""
    semantic_index: SemanticIndex | None
    requests: RequestCounter


# ---------------------------------------------------------------- authorization


class Caller:
    """A request that has been admitted: who sent it, and the operations that it runs."""

    __slots__ = ("access", "may_wait", "receive", "resources", "scope")

    def __init__(self, scope: Scope, receive: Receive, *, may_wait: bool = True) -> None:
        self.scope = scope
        self.receive = receive
        self.may_wait = may_wait
        """If False, `run` raises WouldBlock where it would have to wait."""
        self.resources: Resources = scope["app"].resources
        self.access: Access = scope["access"]

    @classmethod
    async def admit(cls, scope: Scope, receive: Receive, *, may_wait: bool = True) -> Caller:
        """Authenticate a request, if that was not done yet."""
        if "access" not in scope:
            await scope["app"].resources.authenticator.admit(scope)
        return cls(scope, receive, may_wait=may_wait)

    @property
    def request(self) -> Request:
        """The same as Starlette's request; made when it is needed."""
        return Request(self.scope, self.receive)

    @property
    def client_id(self) -> str:
        """The client whose limits apply: an api key, or an address while there are no keys."""
        return self.scope["client_id"]  # type: ignore[no-any-return]

    def header(self, name: bytes) -> str | None:
        value = headers_of(self.scope).get(name)
        return None if value is None else value.decode("latin-1")

    def is_connected(self) -> bool:
        transport = getattr(getattr(self.receive, "__self__", None), "transport", None)  # of Uvicorn's cycle
        return transport is None or not transport.is_closing()

    @property
    def actor(self) -> Actor:
        """In whose name the operations of this request run."""
        return self.resources.quotas.actor(self.access)

    def sees(self, namespace: str) -> bool:
        """True if the key may read the namespace; private ones belong to one key and to administrators."""
        if namespace.startswith(PRIVATE_PREFIXES) and not self.access.admin:
            return False
        return self.access.sees(namespace)

    def readable(self, namespace: str) -> str:
        """The namespace, or HIDDEN_NAMESPACE if the key may not see it."""
        check_slashes(self.scope)
        check_namespace(namespace)
        return namespace if self.sees(namespace) else HIDDEN_NAMESPACE

    def writable(self, namespace: str) -> str:
        """The namespace; raises Forbidden if the key may not write to it."""
        self.require_write()
        check_slashes(self.scope)
        check_namespace(namespace)
        if not self.sees(namespace):
            patterns = " ".join(self.access.patterns)
            raise Forbidden(f"this api key may not write to {namespace!r}; its namespaces are {patterns}")
        return namespace

    def private(self, name: str, namespace: str) -> str:
        """A namespace of a compat API, which belongs to the key, if the key's patterns match its name in that API.

        A read of another gets HIDDEN_NAMESPACE, a write raises Forbidden.
        """
        if self.access.sees(name):
            return namespace
        if self.scope.get("writes"):
            patterns = " ".join(self.access.patterns)
            raise Forbidden(f"this api key may not write to {name!r}; its namespaces are {patterns}")
        return HIDDEN_NAMESPACE

    def require_write(self) -> None:
        self.scope["writes"] = True
        if self.access.read_only:
            raise Forbidden("this api key may only read; ask for one that may write")
        if not headers_of(self.scope).keys().isdisjoint(CONDITIONS):
            check_conditions(self.scope)

    def require_admin(self) -> None:
        if not self.access.admin:
            raise Forbidden(f"this takes an admin key, and the one that was sent is not; {NEW_KEY}")

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation in the name of the api key, and within its limits.

        A write is not made when the client has hung up while it waited: the client may have made another since, which
        this one would overwrite.
        """
        operation.actor = self.resources.quotas.actor(self.access)
        operation.is_wanted = self.is_connected
        if self.may_wait:
            return await self.resources.store.run(operation)
        return self.resources.store.run_now(operation)

    async def remember(
        self, namespace: str, note: NewNote, once: IdempotencyKey | None = None
    ) -> tuple[Note, NamespaceUsage]:
        """Store a note; the semantic index, if there is one, embeds it later."""
        operation = await self.run_off_loop(notes.remember, namespace, note)
        stored, usage = await self.run(run_once(operation, once))
        if index := self.resources.semantic_index:
            index.add(namespace, stored.cursor)
        return stored, usage

    async def recall(self, namespace: str, query: RecallQuery) -> list[Note]:
        """The notes that match best: by words and, if there is a semantic index, by meaning."""
        index = self.resources.semantic_index
        nearest = await asyncio.to_thread(index.nearest, namespace, query) if index else {}
        return await self.run(notes.recall(namespace, query, nearest))

    async def run_off_loop(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function that works on the body: on the parser thread if the body is large."""
        if not self.scope.get("has_large_body"):
            return call(*args)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.resources.parser, _without_collector, call, *args)


def _without_collector(call: Callable[..., T], *args: Any) -> T:
    """Call without garbage collection: JSON makes no cycles, and visiting a large body stops every thread."""
    gc.disable()
    try:
        return call(*args)
    finally:
        gc.enable()


def check_slashes(scope: Scope) -> None:
    """An encoded slash is decoded before the path is split, and would move the end of the namespace."""
    raw = scope.get("raw_path") or b""
    if b"%" in raw:
        namespace_segment = 2 if scope["path"].startswith("/memory/") else 3
        if b"%2f" in b"/".join(raw.split(b"/")[: namespace_segment + 1]).lower():
            raise InvalidInput("a namespace has no '/', not even as %2F")


CONDITIONS = (b"if-match", b"if-none-match", b"if-unmodified-since")
"""Headers that make a write depend on what is stored: one that a route ignored would let it overwrite a newer value."""


def check_conditions(scope: Scope) -> None:
    """Refuse a write with a condition that its route does not take; the clients of other APIs may send any."""
    route, headers = scope["route"], headers_of(scope)
    if route.tags:  # another API
        return
    taken = _parameters(route.dependant, "header_params")
    for name in CONDITIONS:
        if name in headers and name.decode() not in taken:
            raise InvalidInput(
                f"this write does not take the header {name.decode().title()}, and was not carried out; PUT and DELETE"
                " of items/KEY take If-Match and If-None-Match with a version, PATCH of items takes if_versions in its"
                " body, and the commands of a transaction take if_version"
            )


def _name_fault(scope: Scope) -> InvalidInput | None:
    """What is wrong with the names in a path that no route has: a namespace with a slash, or an empty name."""
    path = scope["path"]
    if not path.startswith("/v1/namespaces/"):
        return None
    try:
        check_slashes(scope)
        check_key(path.split("/", 4)[3], "namespace")
    except InvalidInput as error:
        return error
    if path.endswith("/") and scope["app"].allowed_methods({**scope, "path": f"{path}k"}):
        return InvalidInput("a key has at least one character")
    return None


PATH_HEADER = b"scrubjay-path"
"""Of requests whose path a proxy may change: the path that the client has written."""


def path_fault(scope: Scope) -> InvalidInput | None:
    """What is wrong with the path of a request, whichever route it has."""
    for encoded in (scope.get("raw_path") or b"", scope["query_string"]):
        if b"%" in encoded:
            try:
                unquote_to_bytes(encoded).decode()
            except UnicodeDecodeError:  # Uvicorn and Starlette would replace them with other text
                return InvalidInput("the URL has bytes that are not UTF-8")
    written = headers_of(scope).get(PATH_HEADER)
    if written is None or scope["path"].endswith(unquote(written.decode("latin-1"))):  # a prefix may be before it
        return None
    # A proxy that decodes a path and takes dots out of it makes of the key "../../other/items/k" another namespace.
    return InvalidInput(
        f"the request was sent with the path {repr_short(written.decode('latin-1'))} and arrived with"
        f" {repr_short(scope['path'])}: a proxy on the way has changed it, and it was not carried out. Let the proxy"
        " leave paths as they are; for nginx, write proxy_pass http://127.0.0.1:8787; with nothing after the port"
    )


class KeyConvertor(Convertor[str]):
    """A key in a path: everything that follows, with slashes and line breaks."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("key", KeyConvertor())

# ---------------------------------------------------------------- dependencies
# Resolved in the order in which a route declares them: a JsonBody comes last, so that a request that is refused
# is refused before its body is read.


async def admit(request: Request) -> Caller:
    return await Caller.admit(request.scope, request.receive)


Admitted = Annotated[Caller, Depends(admit)]
NamespacePath = Annotated[
    str,
    Path(min_length=1, max_length=MAX_NAMESPACE_CHARS, pattern=NAME_PATTERN),
    BeforeValidator(check_namespace),
]
Key = Annotated[str, Path(min_length=1, max_length=MAX_KEY_BYTES), BeforeValidator(check_key)]

PrefixQuery = Annotated[str, Query(max_length=MAX_KEY_BYTES), BeforeValidator(check_prefix)]


def _check_cleared_prefix(prefix: str) -> str:
    if not prefix:
        raise InvalidInput("prefix in the query is empty; leave it out to erase the whole namespace")
    return check_prefix(prefix)


ClearedPrefix = Annotated[str, Query(min_length=1, max_length=MAX_KEY_BYTES), BeforeValidator(_check_cleared_prefix)]
"""An empty prefix, as of a variable of a shell that is not set, would erase everything."""
AfterQuery = Annotated[
    str, Query(max_length=MAX_KEY_BYTES), BeforeValidator(lambda text: text and check_key(text, "after"))
]


async def readable_namespace(caller: Admitted, namespace: NamespacePath) -> str:
    return caller.readable(namespace)


async def writable_namespace(caller: Admitted, namespace: NamespacePath) -> str:
    return caller.writable(namespace)


async def require_write(caller: Admitted) -> None:
    caller.require_write()


async def require_admin(caller: Admitted) -> None:
    caller.require_admin()


ReadableNamespace = Annotated[str, Depends(readable_namespace)]
WritableNamespace = Annotated[str, Depends(writable_namespace)]


async def known_query(request: Request) -> None:
    """Refuse a parameter that the route does not have, or that it would read only once: DELETE with `?prefx=` would
    erase a whole namespace.
    """
    if request.scope["query_string"]:
        known = _parameters(request.scope["route"].dependant, "query_params")
        times = Counter(name for name, _ in request.query_params.multi_items())
        for name in sorted(times.keys() - known.keys()):
            takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
            raise InvalidInput(f"the query has an unknown parameter {repr_short(name)}; {takes}")
        for name, number in times.items():
            if number > 1 and get_origin(known[name].field_info.annotation) is not list:
                raise InvalidInput(f"the query has {name} {number} times; give it once")


def _parameters(dependant: Dependant, kind: str) -> dict[str, Any]:
    """The parameters of a route by name, those of its dependencies included; the kind is a field of Dependant."""
    found = {field.alias: field for field in getattr(dependant, kind)}
    for inner in dependant.dependencies:
        found |= _parameters(inner, kind)
    return found


AUTHENTICATED = [Depends(admit)]
"""Dependencies of a router whose routes need an api key."""
STRICT = [*AUTHENTICATED, Depends(known_query)]
"""Dependencies of a router of /v1; clients of other APIs may send more than these use."""


def parsed_by(parse: Callable[[str], object]) -> BeforeValidator:
    """A validator for a parameter; its default is not text, and some versions of FastAPI validate that, too."""
    return BeforeValidator(lambda given: parse(given) if isinstance(given, str) else given)


def checked_by(parse: Callable[[str], object]) -> BeforeValidator:
    """A validator that keeps the text, and raises what `parse` raises: a clearer error than that of a pattern."""

    def check(text: str) -> str:
        parse(text.strip())
        return text.strip()

    return parsed_by(check)


def _parse_version(etag: str) -> int:
    if etag == "*":
        return items.ANY_VERSION
    if not re.fullmatch(VERSION_PATTERN, etag):
        raise InvalidInput(f'If-Match takes one version, as the ETag gave it: "3", not {etag[:40]!r}')
    return int(etag.removeprefix("W/").strip('"'))


async def idempotency_key(
    text: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            pattern=HEADER,
            description="an id of the sender's own: sent again with it, within a week, this does not happen twice."
            " `id;seq=17` is number 17 of a sender that never sends two at once: then only the last is stored",
        ),
        checked_by(IdempotencyKey.parse),
    ] = None,
) -> IdempotencyKey | None:
    return None if text is None else IdempotencyKey.parse(text)


def key_of_call(once: str | None, key: IdempotencyKey | None) -> IdempotencyKey | None:
    """The idempotency key of a call: the caller's own id in the body, or else what the header has."""
    return key if once is None else IdempotencyKey(once)


class Preconditions(NamedTuple):
    """What a write requires of the stored value."""

    if_match: int | None
    if_none_match: bool

    @classmethod
    def parse(cls, if_match: str | None, if_none_match: str | None) -> Preconditions:
        if if_none_match is not None and if_none_match.strip() != "*":
            raise InvalidInput("a write takes If-None-Match: *, which means: only if there is no value yet")
        return cls(None if if_match is None else _parse_version(if_match.strip()), if_none_match is not None)

    def expected_version(self) -> int | None:
        """If-Match: "3" is version 3, * is any; If-None-Match: * is 0, no version; None without either."""
        if not self.if_none_match:
            return self.if_match
        if self.if_match is not None:
            raise Conflict("a value exists or not: If-Match and If-None-Match: * cannot both be true", status=412)
        return 0


async def preconditions(
    if_match: Annotated[
        str | None,
        Header(pattern=rf"^(\*|{VERSION_PATTERN})$", description='only over this version: "3"; or over any: *'),
        checked_by(_parse_version),
    ] = None,
    if_none_match: Annotated[
        str | None,
        Header(json_schema_extra={"enum": ["*"]}, description="*: only if there is no value yet"),
    ] = None,
) -> Preconditions:
    return Preconditions.parse(if_match, if_none_match)


Once = Annotated[IdempotencyKey | None, Depends(idempotency_key)]
If = Annotated[Preconditions, Depends(preconditions)]


def label_text(name: str, *, allow_empty: bool = False) -> BeforeValidator:
    """A validator for a type, a session or another short text; an empty one is None if allowed."""
    return BeforeValidator(lambda text: check_label(name, None if allow_empty and text == "" else text))


def count_text(name: str, *, least: int = 0, most: int = MAX_COUNT) -> BeforeValidator:
    """A validator for a whole number in a query or header."""
    return parsed_by(lambda text: parse_count(name, text, least=least, most=most))


CURSOR_PATTERN = r"^([0-9]{1,18} [\s\S]{1,512})?$"
"""Of a cursor of conversations."""
ConversationCursor = Annotated[
    str,
    Query(pattern=CURSOR_PATTERN, description="the cursor of the page before"),
    parsed_by(lambda text: text and str(conversations.Cursor.parse(text))),
]
PageLimit = Annotated[int, Query(ge=1, le=MAX_PAGE), count_text("limit in the query", least=1, most=MAX_PAGE)]
MessagesLimit = Annotated[
    int, Query(ge=1, le=MAX_MESSAGES_PAGE), count_text("limit in the query", least=1, most=MAX_MESSAGES_PAGE)
]
BeforePosition = Annotated[int | None, Query(ge=0, le=MAX_COUNT), count_text("before in the query")]
AfterPosition = Annotated[int | None, Query(ge=-1, le=MAX_COUNT), count_text("after in the query", least=-1)]


def parse_count(name: str, text: str, *, least: int = 0, most: int = MAX_COUNT) -> int:
    if not re.fullmatch("-?[0-9]+", text):
        raise InvalidInput(f"{name} is a whole number, not {repr_short(text)}")
    digits = text.lstrip("-0") or "0"
    number = int(digits[:17])  # MAX_COUNT has 16 digits, and Python does not read thousands
    if text.startswith("-"):
        number = -number
    if not least <= number <= most:
        raise InvalidInput(f"{name} is between {least} and {most}, not {repr_short(text)}")
    return number


def parse_boolean(name: str) -> Callable[[str], bool]:
    """A parser of a switch in a query."""

    def parse(text: str) -> bool:
        if text not in ("true", "false"):
            raise InvalidInput(f"{name} in the query is true or false, not {repr_short(text)}")
        return text == "true"

    return parse


def index_text(name: str) -> BeforeValidator:
    """A validator for a position in a list in the query; a negative one counts from the end."""
    return count_text(f"{name} in the query", least=-MAX_COUNT)


def seconds_text(name: str, most: float) -> BeforeValidator:
    """A validator for a number of seconds in a query."""

    def parse(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds <= most:
            raise InvalidInput(f"{name} in the query is a number of seconds from 0 to {most}, not {repr_short(text)}")
        return seconds

    return parsed_by(parse)


class JsonBody(Generic[M]):
    """Reads the request body as exact JSON and validates it with a model; a route declares its `dependency`.

    FastAPI's own body parameters are read before any dependency runs, and would buffer a body that is refused anyway.
    """

    def __init__(self, model: type[M], max_bytes: int = MAX_BODY_BYTES) -> None:
        self.model = model
        self._max_bytes = max_bytes

    @property
    def dependency(self) -> Any:
        return Depends(self.read)

    async def read(self, caller: Admitted) -> M:
        first = await caller.receive()
        small: bytes = first.get("body", b"")
        if first["type"] == "http.request" and not first.get("more_body") and len(small) <= ONE_PIECE_BYTES:
            caller.scope["has_large_body"] = False
            return self._parse(small)  # most bodies come in one piece: 6 of 15 µs less than with the loop below
        body = bytearray()
        with caller.resources.body_limit.hold(caller.client_id) as grow:
            async for chunk in _chunks(first, caller.receive):
                body += chunk
                if len(body) > self._max_bytes:
                    raise ValueTooLarge(f"the body has more than {self._max_bytes} bytes, the limit; split the call")
                grow(len(body))
            caller.scope["has_large_body"] = len(body) > OFF_LOOP_BYTES
            return await caller.run_off_loop(self._parse, bytes(body))

    def _parse(self, body: bytes) -> M:
        fields = decode_body(body) if body else {}
        if not isinstance(fields, dict):
            raise InvalidInput("the body is a JSON object")
        try:
            return self.model.model_validate(fields)
        except pydantic.ValidationError as error:
            known = None if self.model.model_config.get("extra") != "forbid" else self.model.model_fields
            raise _explained(error.errors(include_url=False)[0], known) from None


async def while_connected(caller: Caller, work: Coroutine[Any, Any, T]) -> T:
    """The result of work that waits; raises ClientDisconnect as soon as the client, which sends no body, hangs up."""
    working, connected = asyncio.create_task(work), asyncio.create_task(_disconnect(caller.receive))
    try:
        await asyncio.wait((working, connected), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        connected.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _chunks(message: Message, receive: Receive) -> AsyncIterator[bytes]:
    """The pieces of a body, of which the first has been received."""
    while message["type"] != "http.disconnect":
        if chunk := message.get("body", b""):
            yield chunk
        if not message.get("more_body"):
            return
        message = await receive()
    raise ClientDisconnect


# ---------------------------------------------------------------- errors

_WHY = {
    304: "not changed",
    400: "the request is not valid",
    401: "an api key is needed",
    403: "the api key does not allow this",
    404: "it does not exist",
    409: "the stored value is of another kind, or the Idempotency-Key was used for another call",
    412: "the stored value has another version",
    413: "too large for one call",
    429: "too many writes today, requests this minute or open watches; Retry-After says when to try again",
    431: "the URL or the headers are too long",
    503: "the database cannot do it now",
    507: "no storage left",
}
COMMON_ERRORS = (400, 401, 403, 429, 431, 503)
WRITE_ERRORS = (413, 507)


def sends(media_type: str) -> dict[int | str, dict[str, Any]]:
    """The response of a route that does not answer with JSON, for the OpenAPI document."""
    return {200: {"content": {media_type: {"schema": {"type": "string"}}}}}


def errors(*statuses: int, with_body: bool = True) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for the OpenAPI document."""
    return {
        status: {"description": _WHY[status], **({"model": ErrorResult} if with_body and status != 304 else {})}
        for status in sorted(statuses)
    }


def invalid_parameter(error: RequestValidationError) -> InvalidInput:
    """The first error that FastAPI found in the parameters of a request."""
    return _explained(error.errors()[0])


_RULES = {
    "bool_type": "is true or false",
    "dict_type": "is an object",
    "list_type": "is a list",
    "literal_error": "is {expected}",
    "model_type": "is an object",
    "string_too_long": "has at most {max_length} characters",
    "string_too_short": "has at least {min_length} characters",
    "string_type": "is text",
    "too_long": "has at most {max_length} entries",
    "too_short": "has at least {min_length} entries",
}
"""What a field has to be, by the type of Pydantic's error; its own words are about Python, or say "should"."""


def _explained(error: Any, known: Any = None) -> InvalidInput:
    """One of Pydantic's errors as ours: as raised by scrubjay.validation, or in the words of JSON."""
    context = error.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, InvalidInput):
        return cause
    name = error["loc"][-1] if error["loc"] else "body"
    if error["type"] == "missing":
        return InvalidInput(f'the request lacks the field "{name}"')
    if error["type"] == "extra_forbidden":
        takes = f"; it takes {', '.join(known)}" if known else ""
        return InvalidInput(f"the body has an unknown field {repr_short(name)}{takes}")
    if rule := _RULES.get(error["type"]):
        where = " in the query" if error["loc"][:1] == ("query",) else ""
        return InvalidInput(f"{name}{where} {rule.format_map(context)}, not {repr_short(error['input'])}")
    return InvalidInput(f"{repr_short(name)}: {error['msg']}, not {repr_short(error['input'])}")


_PYTHON_WORDS = {"None": "null", "True": "true", "False": "false"}
_QUOTED_OR_WORD = re.compile(r"'(?:[^'\\]|\\.)*'|\b(?:None|True|False)\b")


def _in_json_words(detail: str) -> str:
    """A message that ends with what was given, as JSON writes it: null, not None."""
    rule, separator, given = detail.rpartition(", not ")
    if not separator or not (given in _PYTHON_WORDS or given.startswith(("[", "{"))):
        return detail
    return rule + separator + _QUOTED_OR_WORD.sub(lambda found: _PYTHON_WORDS.get(found[0], found[0]), given)


def missing_item(scope: Scope) -> NotFound:
    """Built from the path alone, so that it says the same about what is hidden and what does not exist."""
    path = scope["path_params"]
    return NotFound(f"there is no {path['key']!r} in {path['namespace']!r}")


_BASIC = b'Basic realm="Scrubjay, with an api key as the user name"'


def is_script(scope: Scope) -> bool:
    """Whether a script of a web page sent the request, and not a person who typed the URL."""
    return headers_of(scope).get(b"sec-fetch-mode") in (b"cors", b"same-origin", b"no-cors")


def error_response(
    error: ScrubjayError, usage: NamespaceUsage | None = None, *, by_script: bool = False
) -> JsonResponse:
    """An error as JSON. To a script of a page it does not offer Basic: the browser would ask for a password."""
    headers = quota_headers(usage)
    if isinstance(error, QuotaExceeded):
        headers += _usage_headers(error.usage) if error.usage else []
        if error.retry_after is not None:
            headers.append((b"retry-after", str(error.retry_after).encode()))
    elif isinstance(error, Unavailable):
        headers.append((b"retry-after", RETRY_SECONDS))
    elif isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer" if by_script else _BASIC))
    detail = _in_json_words(error.detail) if isinstance(error, InvalidInput) else error.detail
    return failure(error.status, error.code, detail, headers)


def no_such_path(scope: Scope) -> JsonResponse:
    if fault := _name_fault(scope):
        return error_response(fault)
    # Not the code of a missing key: a client with a wrong URL must not take it for that.
    return failure(404, "no_such_path", "there is no such path; /docs lists them")


def failure(status: int, code: str, detail: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> JsonResponse:
    return JsonResponse(json.dumps({"code": code, "detail": detail}), headers, status)


# ---------------------------------------------------------------- responses


class JsonResponse(Response):
    """JSON from text or data. Starlette's own takes three times as long to make its headers."""

    media_type = "application/json"

    def __init__(self, data: Any, headers: Sequence[tuple[bytes, bytes]] = (), status: int = 200) -> None:
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        self.status_code = status
        self.body = text.encode()
        self.background = None
        self.raw_headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(self.body)),
            *headers,
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Response.__call__(within_limits(self, scope), scope, receive, send)


def within_limits(response: Response, scope: Scope) -> Response:
    """The response, or an error in its place if the client leaves too many large ones unread."""
    try:
        check_unread(scope, len(response.body))
    except Unavailable as error:
        failures.log(error)
        return error_response(error)
    return response


def write_response(data: Any, usage: NamespaceUsage, version: int = 0) -> JsonResponse:
    """The response to a write, with what is left of the quota, and with the version as ETag."""
    headers = quota_headers(usage)
    if version:
        headers.append(etag(version))
    return JsonResponse(data, headers)


def no_content(usage: NamespaceUsage | None = None) -> Response:
    response = Response(status_code=204)
    response.raw_headers += quota_headers(usage)
    return response


def etag(version: int) -> tuple[bytes, bytes]:
    return b"etag", b'"%d"' % version


def quota_headers(usage: NamespaceUsage | None) -> list[tuple[bytes, bytes]]:
    """Each limit and what is left of it; a limit that is not set has no header."""
    if usage is None or not any(usage.quota):
        return []
    return _usage_headers(usage.summary())


def _usage_headers(usage: Usage) -> list[tuple[bytes, bytes]]:
    headers: list[tuple[bytes, int]] = []
    if usage.writes_per_day:
        seconds = max(int(usage.resets_at.timestamp() - time.time()) + 1, 1)
        headers += (
            (b"ratelimit-limit", usage.writes_per_day),
            (b"ratelimit-remaining", usage.writes_remaining or 0),
            (b"ratelimit-reset", seconds),
        )
    if usage.max_bytes:
        headers += (b"storage-limit", usage.max_bytes), (b"storage-remaining", usage.bytes_remaining or 0)
    return [(name, b"%d" % number) for name, number in headers]


_quote = json.encoder.encode_basestring_ascii
"""A text as JSON, in a quarter of the time of json.dumps, which calls it."""


def item_json(stored: StoredItem) -> str:
    """An item as JSON; its value is JSON text already and is not parsed."""
    expires_at = "null" if stored.expires_at is None else f'"{_iso(stored.expires_at)}"'
    return (
        f'{{"key":{_quote(stored.key)},"value":{stored.text},"version":{stored.version},'
        f'"created_at":"{_iso(stored.created_at)}","updated_at":"{_iso(stored.updated_at)}",'
        f'"expires_at":{expires_at},"bytes":{stored.bytes}}}'
    )


@functools.lru_cache(4096)  # an item that is read often has the same times
def _iso(milliseconds: int) -> str:
    return to_time(milliseconds).isoformat(timespec="milliseconds")
