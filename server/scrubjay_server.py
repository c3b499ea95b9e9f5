"""The Scrubjay service: the HTTP API of a Scrubjay database, as a FastAPI application.

    scrubjay serve            or            python server/scrubjay_server.py

Top to bottom: the routes of /v1, the fast paths of the most frequent ones, the application. A route
authorizes the request, runs an operation of scrubjay.store, which has the rules, and turns the result into JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, NamedTuple

import prometheus_client
from fastapi import APIRouter, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BeforeValidator
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

import scrubjay_admin
import scrubjay_compat
import scrubjay_dashboard
import scrubjay_docs
import scrubjay_models as models
import scrubjay_overview
from scrubjay.errors import NotFound, ScrubjayError, repr_short
from scrubjay.operations import notes_stored, operation_for
from scrubjay.recall.prompt import format_prompt
from scrubjay.semantic.index import SemanticIndex
from scrubjay.settings import Settings, server_settings
from scrubjay.store import conversations, find, items, lists, notes, search, usage
from scrubjay.store.engine import ServedStore
from scrubjay.store.expiry import SWEEP_SECONDS
from scrubjay.store.idempotency import IdempotencyKey, run_once
from scrubjay.store.sqlite import backup
from scrubjay.validation import (
    MAX_COUNT,
    MAX_NOTES_PAGE,
    MAX_TAGS,
    check_key,
    check_one_end,
    check_tags,
)
from scrubjay.version import __version__
from scrubjay_activity import RequestCounter
from scrubjay_auth import Authenticator, Quotas, headers_of
from scrubjay_command import before_shutdown, main, open_store, serve, stop_with_parent
from scrubjay_engine import open_async, open_key_cache, open_watchers
from scrubjay_http import (
    COMMON_ERRORS,
    MAX_QUERY_BODY_BYTES,
    PATH_HEADER,
    STRICT,
    WRITE_ERRORS,
    Admitted,
    AfterPosition,
    AfterQuery,
    BeforePosition,
    Caller,
    ClearedPrefix,
    ConversationCursor,
    If,
    JsonBody,
    JsonResponse,
    Key,
    MessagesLimit,
    Once,
    PageLimit,
    Preconditions,
    PrefixQuery,
    ReadableNamespace,
    Resources,
    WritableNamespace,
    count_text,
    error_response,
    errors,
    etag,
    failure,
    index_text,
    invalid_parameter,
    is_script,
    item_json,
    key_of_call,
    label_text,
    missing_item,
    no_content,
    no_such_path,
    parse_boolean,
    parse_count,
    parsed_by,
    path_fault,
    seconds_text,
    sends,
    while_connected,
    within_limits,
    write_response,
)
from scrubjay_limits import REQUEST_SHARE, BodyLimit, ExportLimit, WatchLimit, send_at_once, share_of_connections
from scrubjay_log import failures, log_request
from scrubjay_models import Label
from scrubjay_signin import SignIns
from scrubjay_watch import MAX_WAIT_SECONDS, EventStream, RefusalLog, Watch

# ---------------------------------------------------------------- /v1: values
# A route's name is its verb, under which a refused request is logged.

v1 = APIRouter(dependencies=STRICT, responses=errors(*COMMON_ERRORS))
_NAMESPACE = "/v1/namespaces/{namespace}"
_ITEM = f"{_NAMESPACE}/items/{{key:key}}"

_SET_BODY, _APPEND_BODY = JsonBody(models.SetItemBody), JsonBody(models.AppendItemsBody)


@v1.get(_ITEM, name="get", response_model=models.ItemResult, responses=errors(304, 404))
async def get_item(
    caller: Admitted, namespace: ReadableNamespace, key: Key, if_none_match: Annotated[str | None, Header()] = None
) -> Response:
    """A value with its version, which is also the ETag, its times and its size."""
    stored = await caller.run(items.read_item(namespace, key))
    if stored is None:
        raise missing_item(caller.scope)
    tag = etag(stored.version)
    if if_none_match is not None and if_none_match.encode() == tag[1]:
        return Response(status_code=304, headers={"ETag": if_none_match})
    return JsonResponse(item_json(stored), [tag])


@v1.head(_ITEM, name="contains", response_class=Response, responses=errors(*COMMON_ERRORS, 404, with_body=False))
async def head_item(caller: Admitted, namespace: ReadableNamespace, key: Key) -> Response:
    """Whether the key exists: its version as ETag, "0" if it does not."""
    version = await caller.run(items.find_version(namespace, key))
    return Response(status_code=200 if version else 404, headers={"ETag": f'"{version or 0}"'})


@v1.put(_ITEM, name="set", response_model=models.VersionResult, responses=errors(409, 412, *WRITE_ERRORS))
async def set_item(
    caller: Admitted,
    namespace: WritableNamespace,
    key: Key,
    condition: If,
    once: Once,
    body: Annotated[models.SetItemBody, _SET_BODY.dependency],
) -> Response:
    """Store any JSON value; null deletes."""
    operation = items.set_item(namespace, key, body.value, body.ttl, condition.expected_version())
    version, used = await caller.run(run_once(operation, once))
    return write_response(f'{{"version":{version}}}', used, version)


@v1.delete(_ITEM, name="delete", status_code=204, response_model=None, responses=errors(404, 409, 412))
async def delete_item(caller: Admitted, namespace: WritableNamespace, key: Key, condition: If, once: Once) -> Response:
    """Delete a value; this is never counted as a write."""
    operation = items.delete_item(namespace, key, condition.expected_version())
    found, used = await caller.run(run_once(operation, once))
    return no_content(used) if found else error_response(missing_item(caller.scope), used)


@v1.get(f"{_NAMESPACE}/items", name="keys", response_model=models.KeysResult)
async def list_keys(
    caller: Admitted,
    namespace: ReadableNamespace,
    prefix: PrefixQuery = "",
    after: AfterQuery = "",
    limit: PageLimit = 1000,
) -> Response:
    """Keys in order; fewer than `limit` means that there are no more."""
    return JsonResponse({"keys": await caller.run(items.list_keys(namespace, prefix, after, limit))})


@v1.get(f"{_NAMESPACE}/values", name="items", response_model=models.ItemsResult)
async def list_items(
    caller: Admitted,
    namespace: ReadableNamespace,
    prefix: PrefixQuery = "",
    after: AfterQuery = "",
    limit: PageLimit = 100,
    reverse: Annotated[bool, Query(), parsed_by(parse_boolean("reverse"))] = False,
) -> Response:
    """Items in the order of their keys, or in reverse; send `cursor` as `after` to get the next page."""
    page, cursor = await caller.run(items.list_items(namespace, prefix, after, limit, reverse))
    texts = ",".join(item_json(stored) for stored in page)
    return JsonResponse(f'{{"items":[{texts}],"cursor":{json.dumps(cursor)}}}')


@v1.post(f"{_NAMESPACE}/find", name="find", response_model=models.FoundResult, responses=errors(413))
async def find_items(
    caller: Admitted,
    namespace: ReadableNamespace,
    body: Annotated[models.FindBody, JsonBody(models.FindBody, MAX_QUERY_BODY_BYTES).dependency],
) -> Response:
    """Items whose values meet conditions, those that changed last first."""
    operation = find.find_items(namespace, body.prefix, body.where, body.limit, body.offset)
    found = await caller.resources.store.run_in_thread(lambda store: store.run(operation))  # it may decode for a second
    return JsonResponse(f'{{"items":[{",".join(item_json(stored) for stored in found)}]}}')


@v1.patch(_ITEM, name="merge", response_model=models.VersionResult, responses=errors(409, *WRITE_ERRORS))
async def merge_item(
    caller: Admitted,
    namespace: WritableNamespace,
    key: Key,
    once: Once,
    body: Annotated[models.MergeItemBody, JsonBody(models.MergeItemBody).dependency],
) -> Response:
    """Replace fields of an object, which starts empty; null removes a field."""
    version, used = await caller.run(run_once(items.merge_item(namespace, key, body.fields), once))
    return write_response(f'{{"version":{version}}}', used, version)


@v1.put(
    f"{_NAMESPACE}/expiries/{{key:key}}",
    name="touch",
    status_code=204,
    response_model=None,
    responses=errors(404, 409, 413),
)
async def touch_item(
    caller: Admitted,
    namespace: WritableNamespace,
    key: Key,
    once: Once,
    body: Annotated[models.TouchItemBody, JsonBody(models.TouchItemBody, MAX_QUERY_BODY_BYTES).dependency],
) -> Response:
    """Replace the expiry of a value and nothing else; this is never counted as a write."""
    found, used = await caller.run(run_once(items.touch_item(namespace, key, body.ttl), once))
    return no_content(used) if found else error_response(missing_item(caller.scope), used)


@v1.patch(
    f"{_NAMESPACE}/items", name="update", response_model=models.UpdatedResult, responses=errors(409, 412, *WRITE_ERRORS)
)
async def update_items(
    caller: Admitted,
    namespace: WritableNamespace,
    once: Once,
    body: Annotated[models.UpdateItemsBody, JsonBody(models.UpdateItemsBody).dependency],
) -> Response:
    """Store several values, all of them or none; null deletes. Together they count as one write."""
    operation = items.update_items(namespace, body.values, body.if_versions, body.ttl)
    _, used = await caller.run(run_once(operation, once))
    return write_response({"updated": len(body.values)}, used)


@v1.delete(f"{_NAMESPACE}/items", name="clear_items", response_model=models.DeletedResult)
async def clear_items(caller: Admitted, namespace: WritableNamespace) -> Response:
    """Delete every value of a namespace."""
    deleted, used = await caller.run(items.clear_items(namespace))
    return write_response({"deleted": deleted}, used)


@v1.post(f"{_NAMESPACE}/read", name="get_many", response_model=models.ValuesResult, responses=errors(413))
async def read_many(
    caller: Admitted,
    namespace: ReadableNamespace,
    body: Annotated[models.ReadItemsBody, JsonBody(models.ReadItemsBody, MAX_QUERY_BODY_BYTES).dependency],
) -> Response:
    """The values of those keys that exist, read in one transaction."""
    found = await caller.run(items.read_many(namespace, body.keys))
    pairs = ",".join(f"{json.dumps(key)}:{text}" for key, text in found.items())
    return JsonResponse(f'{{"values":{{{pairs}}}}}')


@v1.post(
    f"{_NAMESPACE}/transaction",
    name="transaction",
    response_model=models.TransactionResult,
    responses=errors(409, 412, *WRITE_ERRORS),
)
async def run_transaction(
    caller: Admitted,
    namespace: WritableNamespace,
    once: Once,
    body: Annotated[models.TransactionBody, JsonBody(models.TransactionBody).dependency],
) -> Response:
    """Run several writes, all of them or none; together they count as one write."""
    command = await caller.run_off_loop(body.command, namespace)
    results, used = await caller.run(run_once(operation_for(command), key_of_call(body.once, once)))
    if index := caller.resources.semantic_index:
        for number in notes_stored(command, results):
            index.add(namespace, number)
    return write_response({"results": results}, used)


# ---------------------------------------------------------------- /v1: lists and counters

_LIST = f"{_NAMESPACE}/lists/{{key:key}}"


@v1.post(_LIST, name="append", response_model=models.LengthResult, responses=errors(409, *WRITE_ERRORS))
async def append_items(
    caller: Admitted,
    namespace: WritableNamespace,
    key: Key,
    once: Once,
    body: Annotated[models.AppendItemsBody, _APPEND_BODY.dependency],
) -> Response:
    """Append to the end of a list, which is created if it does not exist."""
    operation = lists.append_items(namespace, key, body.items)
    length, used = await caller.run(run_once(operation, key_of_call(body.once, once)))
    return write_response(f'{{"length":{length}}}', used)


@v1.get(_LIST, name="tail", response_model=models.ListItemsResult, responses=errors(409))
async def read_tail(
    caller: Admitted,
    namespace: ReadableNamespace,
    key: Key,
    tail: Annotated[int, Query(ge=0, le=MAX_COUNT), count_text("tail in the query")] = 100,
) -> Response:
    """The last items of a list, oldest first."""
    texts = await caller.run(lists.read_tail(namespace, key, tail))
    return JsonResponse(f'{{"items":[{",".join(texts)}]}}')


@v1.delete(_LIST, name="pop", response_model=models.ListItemsResult, responses=errors(409))
async def pop_items(
    caller: Admitted,
    namespace: WritableNamespace,
    key: Key,
    n: Annotated[int, Query(ge=0, le=MAX_COUNT), count_text("n in the query")] = 1,
    first: Annotated[bool, Query(), parsed_by(parse_boolean("first"))] = False,
) -> Response:
    """Take the last items of a list, or the first, and return them in order; this is never counted as a write."""
    texts, used = await caller.run(lists.pop_items(namespace, key, n, first))
    return write_response(f'{{"items":[{",".join(texts)}]}}', used)


@v1.get(f"{_NAMESPACE}/slices/{{key:key}}", name="slice", response_model=models.ListItemsResult, responses=errors(409))
async def read_slice(
    caller: Admitted,
    namespace: ReadableNamespace,
    key: Key,
    start: Annotated[int, Query(ge=-MAX_COUNT, le=MAX_COUNT), index_text("start")] = 0,
    stop: Annotated[int | None, Query(ge=-MAX_COUNT, le=MAX_COUNT), index_text("stop")] = None,
) -> Response:
    """Some items of a list; negative numbers count from its end."""
    texts = await caller.run(lists.read_slice(namespace, key, start, stop))
    return JsonResponse(f'{{"items":[{",".join(texts)}]}}')


@v1.get(f"{_NAMESPACE}/lengths/{{key:key}}", name="length", response_model=models.LengthResult, responses=errors(409))
async def find_length(caller: Admitted, namespace: ReadableNamespace, key: Key) -> Response:
    """How many items a list has; 0 if it does not exist."""
    return JsonResponse({"length": await caller.run(lists.find_length(namespace, key))})


@v1.post(
    f"{_NAMESPACE}/counters/{{key:key}}",
    name="incr",
    response_model=models.NumberResult,
    responses=errors(409, *WRITE_ERRORS),
)
async def increment(
    caller: Admitted,
    namespace: WritableNamespace,
    key: Key,
    once: Once,
    body: Annotated[models.IncrementBody, JsonBody(models.IncrementBody, MAX_QUERY_BODY_BYTES).dependency],
) -> Response:
    """Add to a number, which starts at 0."""
    operation = items.increment(namespace, key, body.by)
    total, used = await caller.run(run_once(operation, key_of_call(body.once, once)))
    return write_response({"value": total}, used)


# ---------------------------------------------------------------- /v1: notes

_NOTES = f"{_NAMESPACE}/notes"


@v1.post(_NOTES, name="remember", response_model=models.NoteResult, responses=errors(404, 409, *WRITE_ERRORS))
async def remember(
    caller: Admitted,
    namespace: WritableNamespace,
    once: Once,
    body: Annotated[models.RememberBody, JsonBody(models.RememberBody).dependency],
) -> Response:
    """Remember a text; the same content once more refreshes the note, and another under the same id replaces it."""
    note, used = await caller.remember(namespace, body.note, once)
    return await caller.run_off_loop(lambda: write_response(note.to_json(), used))


@v1.get(_NOTES, name="notes", response_model=models.NotesResult)
async def list_notes(
    caller: Admitted,
    namespace: ReadableNamespace,
    type: Annotated[Label | None, Query(), label_text("type")] = None,  # noqa: A002 - the name in the query
    tag: Annotated[list[Label], Query(max_length=MAX_TAGS), BeforeValidator(check_tags)] = [],  # noqa: B006
    session: Annotated[Label | None, Query(), label_text("session")] = None,
    after: AfterQuery = "",
    limit: Annotated[
        int, Query(ge=1, le=MAX_NOTES_PAGE), count_text("limit in the query", least=1, most=MAX_NOTES_PAGE)
    ] = 100,
) -> Response:
    """Notes in the order remembered, those after the given id; fewer than `limit` means that there are no more."""
    found = await caller.run(notes.list_notes(namespace, type, tuple(tag), session, after, limit))
    return JsonResponse({"notes": [note.to_json() for note in found]})


@v1.delete(_NOTES, name="clear_notes", response_model=models.DeletedResult)
async def clear_notes(caller: Admitted, namespace: WritableNamespace) -> Response:
    """Erase every note of a namespace permanently."""
    deleted, used = await caller.run(notes.clear_notes(namespace))
    return write_response({"deleted": deleted}, used)


@v1.post(f"{_NOTES}/recall", name="recall", response_model=models.NotesResult, responses=errors(413))
async def recall(
    caller: Admitted,
    namespace: ReadableNamespace,
    body: Annotated[models.RecallBody, JsonBody(models.RecallBody, MAX_QUERY_BODY_BYTES).dependency],
) -> Response:
    """The notes that match a query best, best first."""
    found = await caller.recall(namespace, body.recall_query)
    return JsonResponse({"notes": [note.to_json() for note in found]})


@v1.post(f"{_NOTES}/context", name="inject_context", response_model=models.ContextResult, responses=errors(413))
async def inject_context(
    caller: Admitted,
    namespace: ReadableNamespace,
    body: Annotated[models.InjectContextBody, JsonBody(models.InjectContextBody, MAX_QUERY_BODY_BYTES).dependency],
) -> Response:
    """The notes that match a query, as text for a system prompt; empty when none does."""
    found = await caller.recall(namespace, body.recall_query)
    return JsonResponse({"context": format_prompt(found, body.max_tokens)})


@v1.post(f"{_NAMESPACE}/search", name="search", response_model=models.MatchesResult, responses=errors(413))
async def search_values(
    caller: Admitted,
    namespace: ReadableNamespace,
    body: Annotated[models.SearchBody, JsonBody(models.SearchBody, MAX_QUERY_BODY_BYTES).dependency],
) -> Response:
    """The values and the items of lists that match a query best, best first."""
    operation = search.search(namespace, body.query, body.prefix, body.limit)
    found = await caller.resources.store.run_in_thread(lambda store: store.run(operation))  # it may count for a second
    return JsonResponse({"matches": [match._asdict() for match in found]})


@v1.delete(f"{_NOTES}/{{key:key}}", name="forget", status_code=204, response_model=None, responses=errors(404))
async def forget(caller: Admitted, namespace: WritableNamespace, key: Key) -> Response:
    """Erase a note permanently; this is never counted as a write."""
    found, used = await caller.run(notes.forget(namespace, key))
    missing = f"there is no note {repr_short(key)}; GET /v1/namespaces/{{namespace}}/notes lists the ids"
    return no_content(used) if found else error_response(NotFound(missing), used)


@v1.delete(_NAMESPACE, name="clear", response_model=models.DeletedResult, responses=errors(409))
async def clear(caller: Admitted, namespace: WritableNamespace, once: Once, prefix: ClearedPrefix = "") -> Response:
    """Delete the values whose keys start with `prefix`; without it, erase every value and every note."""
    deleted, used = await caller.run(run_once(notes.clear(namespace, prefix), once))
    return write_response({"deleted": deleted}, used)


# ---------------------------------------------------------------- /v1: conversations


@v1.get(f"{_NAMESPACE}/conversations", name="conversations", response_model=models.ConversationsResult)
async def list_conversations(
    caller: Admitted,
    namespace: ReadableNamespace,
    session: Annotated[Label | None, Query(), label_text("session")] = None,
    after: ConversationCursor = "",
    limit: MessagesLimit = 100,
) -> Response:
    """The lists of messages in a namespace, those with the latest messages first."""
    found, cursor = await caller.run(conversations.list_conversations(namespace, session, after, limit))
    return JsonResponse({"conversations": [each.to_json() for each in found], "cursor": cursor})


@v1.get(
    f"{_NAMESPACE}/conversations/{{key:key}}",
    name="conversation",
    response_model=models.MessagesResult,
    responses=errors(409),
)
async def read_conversation(
    caller: Admitted,
    namespace: ReadableNamespace,
    key: Key,
    limit: MessagesLimit = 100,
    before: BeforePosition = None,
    after: AfterPosition = None,
    search: Annotated[Label | None, Query(), label_text("search")] = None,
) -> Response:
    """The last messages of a list, or those before or after a position, in one form for every framework."""
    check_one_end(before, after)
    found = await caller.run(conversations.read_conversation(namespace, key, limit, before, after, search))
    return JsonResponse({"messages": [message.to_json() for message in found]})


@v1.delete(f"{_NAMESPACE}/sessions/{{key:key}}", name="forget_session", response_model=models.DeletedResult)
async def forget_session(caller: Admitted, namespace: WritableNamespace, key: Key) -> Response:
    """Erase a session: its conversations, what agents have stored beside them, and its notes."""
    deleted, used = await caller.run(conversations.forget_session(namespace, key))
    return write_response({"deleted": deleted}, used)


# ---------------------------------------------------------------- /v1: changes


@v1.get(
    f"{_NAMESPACE}/changes",
    name="changes",
    response_model=models.ChangesResult,
    responses={**errors(409), 200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def watch_changes(
    caller: Admitted,
    namespace: ReadableNamespace,
    prefix: PrefixQuery = "",
    after: Annotated[
        int | None,
        Query(ge=0, le=MAX_COUNT, description="a cursor; without it, from now on"),
        count_text("after in the query"),
    ] = None,
    wait: Annotated[
        float,
        Query(ge=0, le=MAX_WAIT_SECONDS, description="seconds to wait for a change, when the response is JSON"),
        seconds_text("wait", MAX_WAIT_SECONDS),
    ] = 0,
    last_event_id: Annotated[
        int | None,
        Header(alias="Last-Event-ID", ge=0, le=MAX_COUNT, description="the id of the last event; overrides `after`"),
        count_text("Last-Event-ID"),
    ] = None,
) -> Response:
    """The changes since a cursor: as server-sent events while they happen, or as JSON if Accept says so."""
    resources = caller.resources
    cursor = after if last_event_id is None else last_event_id
    watch = Watch(resources.store, resources.watchers, namespace, prefix, cursor)
    watching = resources.watch_limit.hold(caller.client_id)
    if "application/json" not in caller.request.headers.get("accept", ""):
        with contextlib.ExitStack() as counted:
            counted.enter_context(watching)
            authenticate = functools.partial(resources.authenticator.authenticate, caller.scope)
            return EventStream(watch.events(await watch.read(), authenticate), counted.pop_all())
    found = await watch.read()
    if not found and wait:
        with watching:
            found = await while_connected(caller, watch.wait(wait))
    return JsonResponse({"changes": [change.to_json() for change in found], "cursor": watch.cursor})


# ---------------------------------------------------------------- /v1: usage


@v1.get(f"{_NAMESPACE}/usage", name="usage", response_model=models.UsageResult)
async def read_usage(caller: Admitted, namespace: ReadableNamespace) -> Response:
    """Current usage of a namespace, its limits, and when the daily counter resets."""
    used = await caller.run(usage.read_usage(namespace))
    return JsonResponse({**used.to_json(), "namespace": caller.scope["path_params"]["namespace"]})


@v1.get("/v1/namespaces", name="namespaces", response_model=models.NamespacesResult)
async def list_namespaces(caller: Admitted) -> Response:
    """Every namespace that was ever written to, of those that the api key may see."""
    every = await caller.run(usage.list_namespaces())
    return JsonResponse({"namespaces": [name for name in every if caller.sees(name)]})


# ---------------------------------------------------------------- metrics, and routes that need no api key

public = APIRouter(responses=errors(431))


@v1.get("/metrics", name="metrics", response_class=Response, responses=sends("text/plain"))
async def metrics(caller: Admitted) -> Response:
    """Metrics for Prometheus."""
    return Response(caller.resources.requests.metrics(), media_type=prometheus_client.CONTENT_TYPE_LATEST)


@public.get("/health", name="health", response_model=models.StatusResult)
async def health() -> Response:
    """Answers while the process runs."""
    return JsonResponse({"status": "ok", "version": __version__})


@public.get("/ready", name="ready", response_model=models.StatusResult, responses=errors(503))
async def ready(request: Request) -> Response:
    """Answers 200 while the database can be read and no damage to it was found."""
    store = request.app.resources.store
    store.check_ready()
    await store.run(usage.read_usage("ready"))
    return JsonResponse({"status": "ready", "version": __version__})


# ---------------------------------------------------------------- fast paths
# Reading, setting and appending values are most of the requests. They call the same endpoint functions as above, but
# without FastAPI's middleware, router and dependency solver. They also send the response in one write, and a read that
# need not wait is answered when its headers have arrived, without a task. tests/server/test_fast_paths.py compares them
# with the router, and docs/decisions/hot-path-outside-fastapi.md says what each part saves.


async def _get(caller: Caller, namespace: str, key: str) -> Response:
    return await get_item(caller, caller.readable(namespace), check_key(key), caller.header(b"if-none-match"))


async def _set(caller: Caller, namespace: str, key: str) -> Response:
    namespace = caller.writable(namespace)
    condition = Preconditions.parse(caller.header(b"if-match"), caller.header(b"if-none-match"))
    once, body = _idempotency_key(caller), await _SET_BODY.read(caller)
    return await set_item(caller, namespace, check_key(key), condition, once, body)


async def _append(caller: Caller, namespace: str, key: str) -> Response:
    namespace, once = caller.writable(namespace), _idempotency_key(caller)
    return await append_items(caller, namespace, check_key(key), once, await _APPEND_BODY.read(caller))


async def _tail(caller: Caller, namespace: str, key: str) -> Response:
    count = caller.request.query_params.get("tail", "100")
    return await read_tail(caller, caller.readable(namespace), check_key(key), parse_count("tail in the query", count))


def _idempotency_key(caller: Caller) -> IdempotencyKey | None:
    text = caller.header(b"idempotency-key")
    return None if text is None else IdempotencyKey.parse(text)


class FastPath(NamedTuple):
    """A route with a shorter way to its endpoint."""

    route: APIRoute
    call: Callable[[Caller, str, str], Coroutine[Any, Any, Response]]
    queries: re.Pattern[bytes] = re.compile(b"")
    """The queries that it answers, beside an empty one; the router answers or refuses the others."""

    async def answer(self, scope: Scope, receive: Receive, *, may_wait: bool = True) -> Response:
        caller, names = await Caller.admit(scope, receive, may_wait=may_wait), scope["path_params"]
        return await self.call(caller, names["namespace"], names["key"])


def _route(router: APIRouter, name: str) -> APIRoute:
    return next(route for route in router.routes if isinstance(route, APIRoute) and route.name == name)


_ANY_QUERY = re.compile(b".*", re.DOTALL)
_FAST_PATHS = {
    ("GET", "items"): FastPath(_route(v1, "get"), _get),
    ("PUT", "items"): FastPath(_route(v1, "set"), _set),
    ("POST", "lists"): FastPath(_route(v1, "append"), _append),
    ("GET", "lists"): FastPath(_route(v1, "tail"), _tail, re.compile(b"tail=[^&]*")),
    ("GET", "memory"): FastPath(_route(scrubjay_compat.botwire, "get"), scrubjay_compat.fast_get, _ANY_QUERY),
    ("PUT", "memory"): FastPath(_route(scrubjay_compat.botwire, "set"), scrubjay_compat.fast_set, _ANY_QUERY),
}


def find_fast_path(scope: Scope) -> FastPath | None:
    """The fast path of a request; puts the namespace and key into the scope, as the router does."""
    path: str = scope["path"]
    if path.startswith("/v1/namespaces/") and path.count("/") > 4:
        _, _, _, namespace, kind, key = path.split("/", 5)
    elif path.startswith("/memory/") and path.count("/") > 2:
        _, kind, namespace, key = path.split("/", 3)
    else:
        return None
    found = _FAST_PATHS.get((scope["method"], kind)) if namespace and key else None
    if not found or ((query := scope["query_string"]) and not found.queries.fullmatch(query)):
        return None
    scope["route"], scope["path_params"] = found.route, {"namespace": namespace, "key": key}
    return found


# ---------------------------------------------------------------- the application


class Service(FastAPI):
    """The FastAPI application, which measures every request and answers the frequent ones on their fast path."""

    resources: Resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        started = time.perf_counter()
        try:
            await self._answer(scope, receive, send)
        finally:
            self._count(scope, started)

    def _count(self, scope: Scope, started: float) -> None:
        """Count a request that has been answered."""
        self.resources.authenticator.release(scope)
        seconds = time.perf_counter() - started
        self.resources.requests.add(scope, seconds)
        log_request(scope, seconds)

    def answer_now(self, cycle: Any) -> bool:
        """Answer a read on its fast path, if that needs no waiting; LimitedProtocol starts a task for the others.

        `cycle` is Uvicorn's object for a request and its response.
        """
        scope: Scope = cycle.scope
        is_encoded = b"%" in scope["raw_path"] or b"%" in scope["query_string"]
        if scope["method"] != "GET" or is_encoded or PATH_HEADER in headers_of(scope):
            return False
        fast_path = find_fast_path(scope)
        if fast_path is None or cycle.flow.write_paused or not self.resources.store.answers_now:
            return False
        scope["app"] = self
        started = time.perf_counter()
        try:
            reading = fast_path.answer(scope, cycle.receive, may_wait=False)
            reading.send(None)
        except StopIteration as done:
            response: Response = done.value
        except ScrubjayError as error:
            response = _refuse(scope, error)
        except Exception:  # noqa: BLE001 - WouldBlock, or a mistake, which the task meets again
            return False
        else:
            reading.close()
            return False
        response = within_limits(response, scope)
        scope["status"] = response.status_code
        send_at_once(response, cycle.send)
        self._count(scope, started)
        return True

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if fault := path_fault(scope):
            response: Response = error_response(fault)
        elif fast_path := find_fast_path(scope):
            try:
                response = await fast_path.answer(scope, receive)
            except ScrubjayError as error:
                response = _refuse(scope, error)
            except ClientDisconnect:
                response = await _answer_disconnect(None, None)
            except Exception:
                response = await _answer_mistake(None, None)
                await response(scope, receive, send)
                raise  # Uvicorn logs it
        else:
            await FastAPI.__call__(self, scope, receive, _note_status(scope, send))
            return
        response = within_limits(response, scope)
        scope["status"] = response.status_code
        if not send_at_once(response, send):
            await response(scope, receive, send)

    def allowed_methods(self, scope: Scope) -> str:
        """All methods of a path, each of which has a route of its own."""
        matching = [route for route in self.router.routes if route.matches(scope)[0] is not Match.NONE]
        return ", ".join(sorted({method for route in matching for method in getattr(route, "methods", None) or ()}))

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            scrubjay_docs.complete(super().openapi(), self.routes)
        return self.openapi_schema or {}


def _note_status(scope: Scope, send: Send) -> Send:
    async def noting(message: Message) -> None:
        if message["type"] == "http.response.start":
            scope["status"] = message["status"]
        await send(message)

    return noting


async def _answer_error(request: Request, error: Any) -> Response:
    return _refuse(request.scope, error if isinstance(error, ScrubjayError) else invalid_parameter(error))


def _refuse(scope: Scope, error: ScrubjayError) -> Response:
    """Log an error, if it is a refusal, and make it a response."""
    scope["app"].resources.refusals.log(scope, scope["route"].name, error)
    failures.log(error)
    return error_response(error, by_script=is_script(scope))


async def _answer_http_error(request: Request, error: Any) -> Response:
    """Starlette's errors: no such path, no such method."""
    if error.status_code == 404:
        return no_such_path(request.scope)
    if error.status_code == 405:
        allow = request.app.allowed_methods(request.scope)
        detail = f"this path does not take {request.method}; it takes {allow}"
        return failure(405, "method_not_allowed", detail, [(b"allow", allow.encode())])
    return failure(error.status_code, "http_error", str(error.detail))


async def _answer_disconnect(_request: Any, _error: Any) -> Response:
    return Response(status_code=499)  # for the metrics: the client is gone


async def _answer_mistake(_request: Any, _error: Any) -> Response:
    return error_response(ScrubjayError("the server made a mistake; its log has the details"))


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application. Worker processes take its settings from SCRUBJAY_*, where the command has put its flags."""
    app = Service(
        title="Scrubjay",
        version=__version__,
        summary="Persistent memory for AI agents.",
        lifespan=_lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        exception_handlers={
            ScrubjayError: _answer_error,
            RequestValidationError: _answer_error,
            HTTPException: _answer_http_error,
            ClientDisconnect: _answer_disconnect,
            Exception: _answer_mistake,
        },
    )
    app.state.settings = settings or server_settings()
    # Not by include_router, which since FastAPI 0.140 hides the routes that `allowed_methods` and `openapi` look at.
    for router in (
        v1,
        scrubjay_admin.routes,
        scrubjay_admin.exports,
        scrubjay_overview.unauthenticated,
        scrubjay_overview.routes,
        public,
        scrubjay_dashboard.pages,
        *scrubjay_compat.ROUTERS,
    ):
        app.router.routes += router.routes
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: Service) -> AsyncIterator[None]:
    """Open the database and everything that the routes share; close it when the server stops."""
    settings: Settings = app.state.settings
    stop_with_parent()
    file = open_store(settings)
    file.name = "the server's database"  # clients need not know its path
    workers = settings.workers  # each process gets its share of a limit
    async with open_async(file) as store:
        keys = open_key_cache(store)
        authenticator = Authenticator(keys, SignIns(store), settings, workers, share_of_connections(REQUEST_SHARE))
        app.resources = Resources(
            settings,
            store,
            authenticator,
            Quotas(settings),
            RefusalLog(store),
            open_watchers(store),
            WatchLimit(math.ceil(settings.max_watches / workers)),
            ExportLimit(),
            BodyLimit(),
            ThreadPoolExecutor(1, "scrubjay-parser"),
            SemanticIndex(file, settings.embedder, settings.embedder_key) if settings.embedder else None,
            RequestCounter(store),
        )
        if app.resources.semantic_index:
            app.resources.semantic_index.catch_up()
        before_shutdown(app.resources.watchers.close)
        tasks = [asyncio.create_task(work) for work in (_sweep_forever(store), app.resources.requests.write_forever())]
        try:
            yield
        finally:
            await app.resources.refusals.write()
            await app.resources.requests.write()
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            app.resources.parser.shutdown(wait=False)
            keys.close()


async def _sweep_forever(store: ServedStore) -> None:
    """Remove expired items and leftover temporary files, once a minute."""
    while True:
        with contextlib.suppress(ScrubjayError):  # the next round does it
            await store.sweep()
        if store.folder:
            backup.remove_left_over(store.folder)
        await asyncio.sleep(SWEEP_SECONDS)


__all__ = ["create_app", "main", "serve"]

if __name__ == "__main__":
    raise SystemExit(main())
