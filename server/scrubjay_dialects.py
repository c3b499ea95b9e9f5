"""The wires of the systems that Scrubjay replaces, so that their users change only a URL.

Each is a thin router on the same operations as /v1.
"""

from __future__ import annotations

import uuid
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.convertors import register_url_convertor

from scrubjay.drafts import Draft, Question
from scrubjay.errors import InvalidInput, NotFound
from scrubjay.names import (
    MAX_COUNT,
    MAX_KEY_BYTES,
    MAX_NOTES_PAGE,
    MAX_PAGE,
    MAX_RECALL,
    check_key,
    check_label,
    check_namespace,
    check_tags,
    check_ttl,
    shown,
)
from scrubjay.recall.context import as_context
from scrubjay.records import Note, iso
from scrubjay.store import items, notes
from scrubjay.values import decode_body, encode
from scrubjay_server import (
    LABEL,
    WRITES,
    Content,
    Days,
    KeyConvertor,
    Label,
    PlainRoute,
    Seconds,
    Strict,
    Tags,
    described,
    failed,
    given_key,
    item_json,
    json_response,
    missing,
    namespace_of,
    query_count,
    read_fields,
    read_object,
    recall_notes,
    remember_note,
    run,
    written,
)

botwire = APIRouter(route_class=PlainRoute, tags=["BotWire's wire"])
_KEY = "/memory/{namespace}/{key:key}"


class BotwireBody(Strict):
    value: JsonValue
    ttl: Seconds = None
    ttl_seconds: Seconds = None


@botwire.put(**described(_KEY, *WRITES, body=BotwireBody))
async def botwire_set(request: Request) -> Response:
    """Store a value; its package sends anything but a string as JSON inside a string."""
    namespace, key = namespace_of(request), _botwire_key(request)
    fields = await read_fields(request, "value", "ttl", "ttl_seconds")
    ttl, ttl_seconds = check_ttl(fields.get("ttl")), check_ttl(fields.get("ttl_seconds"))
    value = _meant(fields["value"])
    text = None if value is None else encode(value)
    version, account = await run(request, items.set_item(namespace, key, text, ttl or ttl_seconds))
    return written({"ok": True, "namespace": namespace, "key": key, "version": version}, account)


@botwire.get(**described(_KEY, 404))
async def botwire_get(request: Request) -> Response:
    namespace, key = namespace_of(request), _botwire_key(request)
    stored = await run(request, items.read_item(namespace, key))
    if stored is None:
        return failed(missing(request))
    return json_response(item_json(key, stored))


@botwire.delete(**described(_KEY, 404))
async def botwire_delete(request: Request) -> Response:
    namespace, key = namespace_of(request), _botwire_key(request)
    found, account = await run(request, items.delete_item(namespace, key))
    if not found:
        return failed(missing(request))
    return written({"ok": True, "deleted": True}, account)


@botwire.get(**described("/memory/{namespace}"))
async def botwire_keys(request: Request) -> Response:
    """All keys, as strings."""
    namespace = namespace_of(request)
    keys: list[str] = []
    page = [""]
    while page and len(keys) % MAX_PAGE == 0:
        page = await run(request, items.list_keys(namespace, "", keys[-1] if keys else "", MAX_PAGE))
        keys += page
    return json_response({"namespace": request.path_params["namespace"], "keys": keys, "count": len(keys)})


def _botwire_key(request: Request) -> str:
    """Its package puts keys into the URL as they are, so what follows a ? belongs to the key too."""
    query = request.scope["query_string"].decode("latin-1")
    key = request.path_params["key"]
    return check_key(f"{key}?{unquote(query)}" if query else key)


def _meant(value: Any) -> Any:
    """What the caller of its package had in hand, as far as the wire still tells.

    A list or an object arrives as text, and its package decodes such text on the way back, so storing
    what it stands for changes nothing for it and everything for whoever reads the namespace otherwise.
    None arrives as "null", and is documented to delete. Numbers and booleans cannot be told from
    strings; they stay the strings that its users know.
    """
    if not isinstance(value, str):
        return value
    if value == "null":
        return None
    if value[:1] not in ("[", "{"):
        return value
    try:
        decoded = decode_body(value)
        encode(decoded)
    except InvalidInput:  # not JSON after all, or JSON that would not come back the same
        return value
    return decoded


# ---------------------------------------------------------------- Kronvex

kronvex = APIRouter(route_class=PlainRoute, tags=["Kronvex's wire"])
_AGENTS = "/api/v1/agents"
_AGENT = "/api/v1/agents/{agent:agent}"
_TEXT: dict[str, Any] = {"type": "string"}
_LIMIT: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT}
_OFFSET: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": MAX_COUNT}
_LISTED = {"limit": _LIMIT, "offset": _OFFSET, "session_id": LABEL, "memory_type": LABEL}
_DEFAULT_TYPE = "episodic"
CONTEXT_TOKENS = 1000
"""What a context may take; its wire has no word for that."""


class _AgentConvertor(KeyConvertor):
    """An agent's id in a path: slashes may be part of it, but not the name of what it has."""

    regex = r"(?:(?!/(?:remember|recall|inject-context|sessions|memories)(?:/|$))[\s\S])+"


register_url_convertor("agent", _AgentConvertor())


class KronvexAgent(BaseModel):
    name: str | None = Field(None, max_length=MAX_KEY_BYTES)
    description: str | None = Field(None, max_length=MAX_KEY_BYTES)


class KronvexMemory(BaseModel):
    content: Content
    memory_type: Label | None = None
    session_id: Label | None = None
    tags: Tags | None = None
    ttl_days: Days = None
    pinned: bool = False
    metadata: dict[str, JsonValue] | None = None


class KronvexQuestion(BaseModel):
    query: str
    limit: int = Field(5, ge=1, le=MAX_RECALL, description="also called top_k")
    top_k: int | None = Field(None, ge=1, le=MAX_RECALL)
    threshold: float | None = None
    memory_type: Label | None = None
    session_id: Label | None = None
    tags: Tags | None = None


class KronvexContext(KronvexQuestion):
    model_config = ConfigDict(
        json_schema_extra={"required": [], "anyOf": [{"required": ["query"]}, {"required": ["message"]}]}
    )

    message: str = Field("", description="also called query")


@kronvex.post(**described(_AGENTS, 400, *WRITES, body=KronvexAgent))
async def kronvex_create_agent(request: Request) -> Response:
    fields = await read_object(request)
    given = {name: fields.get(name) for name in ("name", "description")}
    about = {name: check_label(name, None if text == "" else text) for name, text in given.items()}
    return json_response(await _register(request, uuid.uuid4().hex, about))


@kronvex.get(**described(_AGENTS, 503))
async def kronvex_agents(request: Request) -> Response:
    """Every agent that was made, or remembered something, with this api key."""
    directory = _directory(request)
    ids = await run(request, items.list_keys(directory))
    found = await run(request, items.read_many(directory, ids))
    return json_response(f"[{','.join(found.values())}]")


@kronvex.post(**described(f"{_AGENT}/remember", *WRITES, body=KronvexMemory))
async def kronvex_remember(request: Request) -> Response:
    """Its agents exist from their first use."""
    fields = await read_object(request)
    given = fields.get("memory_type")
    # Its package sends this type for whoever states none, which must not change what was stated before.
    is_default = given == _DEFAULT_TYPE
    draft = Draft.check(
        fields.get("content"),
        type=None if is_default else given,
        tags=fields.get("tags"),
        session=fields.get("session_id"),
        ttl_days=fields.get("ttl_days"),
        pinned=fields.get("pinned", False),
        metadata=fields.get("metadata"),
    )._replace(default_type=_DEFAULT_TYPE if is_default else None)
    agent = _agent(request)
    if await run(request, items.find_version(_directory(request), agent)) is None:
        await _register(request, agent, {"name": agent})
    note, account = await remember_note(request, _agent_namespace(request), draft)
    return written(_kronvex_memory(agent, note), account)


@kronvex.post(**described(f"{_AGENT}/recall", 413, body=KronvexQuestion))
async def kronvex_recall(request: Request) -> Response:
    """Both as its package reads it (memories) and as its server documents it (results)."""
    fields = await read_object(request)
    found = await _kronvex_found(request, fields, fields.get("query"))
    memories = [_kronvex_memory(_agent(request), note) for note in found]
    return json_response({"query": fields["query"], "memories": memories, "results": memories, "total": len(memories)})


@kronvex.post(**described(f"{_AGENT}/inject-context", 413, body=KronvexContext))
async def kronvex_context(request: Request) -> Response:
    """Both as its package reads it (context) and as its server documents it (context_block)."""
    fields = await read_object(request)
    asked = [fields[name] for name in ("message", "query") if name in fields]
    if not asked or not all(isinstance(text, str) for text in asked):
        raise InvalidInput("message, also called query, is the text to find memories for")
    found = await _kronvex_found(request, fields, asked[0])
    text = as_context(found, CONTEXT_TOKENS)
    memories = [_kronvex_memory(_agent(request), note) for note in found]
    return json_response({"context": text, "context_block": text, "memories": memories, "memories_used": len(memories)})


@kronvex.get(**described(f"{_AGENT}/sessions"))
async def kronvex_sessions(request: Request) -> Response:
    sessions = [
        {
            "session_id": session.name,
            "memory_count": session.notes,
            "created_at": iso(session.created_at),
            "updated_at": iso(session.updated_at),
        }
        for session in await run(request, notes.list_sessions(_agent_namespace(request)))
    ]
    return json_response({"sessions": sessions, "total": len(sessions)})


@kronvex.get(**described(f"{_AGENT}/memories", query=_LISTED))
async def kronvex_memories(request: Request) -> Response:
    query = request.query_params
    which = (
        check_label("memory_type", query.get("memory_type")),
        (),
        check_label("session_id", query.get("session_id")),
    )
    found = await run(request, notes.list_notes(_agent_namespace(request), *which, "", *_page(request)))
    memories = [_kronvex_memory(_agent(request), note) for note in found]
    return json_response({"memories": memories, "results": memories, "total": len(memories)})


@kronvex.delete(**described(f"{_AGENT}/memories"))
async def kronvex_clear(request: Request) -> Response:
    """Erases for good, where its own server only hides."""
    deleted, account = await run(request, notes.clear_notes(_agent_namespace(request)))
    return written({"deleted": deleted}, account)


@kronvex.delete(**described(f"{_AGENT}/memories/{{memory:key}}", 404))
async def kronvex_forget(request: Request) -> Response:
    return await _forget(request, _agent_namespace(request))


@kronvex.delete(**described(_AGENT, 404))
async def kronvex_delete_agent(request: Request) -> Response:
    """An agent and everything it remembers."""
    await run(request, notes.clear_all(_agent_namespace(request)))
    found, account = await run(request, items.delete_item(_directory(request), _agent(request)))
    if not found:
        return failed(NotFound(f"there is no agent {shown(_agent(request))}"))
    return written({"deleted": True}, account)


async def _kronvex_found(request: Request, fields: dict[str, Any], query: Any) -> list[Note]:
    question = Question.check(
        query,
        limit=fields.get("limit", 5) if fields.get("top_k") is None else fields["top_k"],
        type=fields.get("memory_type"),
        tags=fields.get("tags"),
        session=fields.get("session_id"),
        threshold=fields.get("threshold"),
    )
    return await recall_notes(request, _agent_namespace(request), question)


def _kronvex_memory(agent: str, note: Note) -> dict[str, Any]:
    return {
        "id": note.id,
        "agent_id": agent,
        "content": note.content,
        "memory_type": note.type,
        "session_id": note.session,
        "tags": note.tags,
        "metadata": note.metadata,
        "pinned": note.pinned,
        "access_count": note.times,
        "created_at": iso(note.created_at),
        "updated_at": iso(note.updated_at),
        "expires_at": iso(note.expires_at),
        "score": note.score,
        "similarity": note.score,
    }


async def _register(request: Request, agent: str, about: dict[str, Any]) -> dict[str, Any]:
    """Enter an agent into the list of those that belong to the api key."""
    entry = {"id": agent, **about}
    await run(request, items.set_item(_directory(request), agent, encode(entry)))
    return entry


def _agent(request: Request) -> str:
    return check_key(request.path_params["agent"])


def _agent_namespace(request: Request) -> str:
    """Of the api key and the agent; by its hash if its id holds what no namespace may, or could be taken for one."""
    agent = _agent(request)
    namespace = f"{_directory(request)}:{agent}"
    try:
        if not agent.startswith("~"):
            return check_namespace(namespace)
    except InvalidInput:
        pass
    return f"{_directory(request)}:~{_digest(agent)}"


def _directory(request: Request) -> str:
    return f"kronvex:{_owner(request)}"


# ---------------------------------------------------------------- Memstore

memstore = APIRouter(route_class=PlainRoute, tags=["Memstore's wire"])


_NUMBER: dict[str, Any] = {"type": "number"}
_BEST: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": MAX_RECALL}
_TAGS = {**LABEL, "minLength": 0, "description": "tags=a,b or tags=a&tags=b"}
_PAGE = {"limit": _LIMIT, "offset": _OFFSET, "session": LABEL, "tags": _TAGS}
_ASKED = {"q": _TEXT, "limit": _BEST, "top_k": _BEST, "threshold": _NUMBER, "session": LABEL, "tags": _TAGS}


class MemstoreMemory(BaseModel):
    content: Content
    type: Label | None = None
    tags: Tags | None = None
    session: Label | None = None
    ttl: Seconds = None
    ttl_days: Days = None
    pinned: bool = False
    metadata: dict[str, JsonValue] | None = None


@memstore.post(**described("/v1/memory/remember", 400, *WRITES, body=MemstoreMemory))
async def memstore_remember(request: Request) -> Response:
    fields = await read_object(request)
    draft = Draft.check(
        fields.get("content"),
        type=fields.get("type"),
        tags=fields.get("tags"),
        session=fields.get("session"),
        ttl=fields.get("ttl"),
        ttl_days=fields.get("ttl_days"),
        pinned=fields.get("pinned", False),
        metadata=fields.get("metadata"),
    )
    note, account = await remember_note(request, _memstore(request), draft)
    return written(_memstore_memory(note), account)


@memstore.get(**described("/v1/memory/recall", 400, 503, query=_ASKED, required=("q",)))
async def memstore_recall(request: Request) -> Response:
    query = request.query_params
    question = Question.check(
        query.get("q", query.get("query")),
        limit=query_count(request, "top_k" if "top_k" in query else "limit", 5),
        tags=_memstore_tags(request),
        session=query.get("session"),
        threshold=_query_number(request, "threshold"),
    )
    found = await recall_notes(request, _memstore(request), question)
    return json_response({"memories": [_memstore_memory(note) for note in found]})


@memstore.get(**described("/v1/memory/list", 400, 503, query=_PAGE))
async def memstore_list(request: Request) -> Response:
    which = (None, _memstore_tags(request), check_label("session", request.query_params.get("session")))
    found = await run(request, notes.list_notes(_memstore(request), *which, "", *_page(request)))
    return json_response({"memories": [_memstore_memory(note) for note in found]})


@memstore.delete(**described("/v1/memory/forget/{memory:key}", 404))
async def memstore_forget(request: Request) -> Response:
    return await _forget(request, _memstore(request))


def _memstore(request: Request) -> str:
    return f"memstore:{_owner(request)}"


def _memstore_memory(note: Note) -> dict[str, Any]:
    return {**note.to_json(), "similarity": note.score}


def _memstore_tags(request: Request) -> tuple[str, ...]:
    """tags=a,b or tags=a&tags=b."""
    given = request.query_params.getlist("tags") + request.query_params.getlist("tag")
    return check_tags([tag for text in given for tag in text.split(",") if tag])


# ---------------------------------------------------------------- both


def _owner(request: Request) -> str:
    """What separates one api key from all others, without telling it; "-" without any."""
    apikey = given_key(request)
    return _digest(apikey) if apikey else "-"


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=12).hexdigest()


async def _forget(request: Request, namespace: str) -> Response:
    note_id = request.path_params["memory"]
    found, account = await run(request, notes.forget(namespace, note_id))
    if not found:
        return failed(NotFound(f"there is no memory {shown(note_id)}"))
    return written({"deleted": True, "id": note_id}, account)


def _page(request: Request) -> tuple[int, int]:
    """How many to list, and how many to skip."""
    limit = query_count(request, "limit", 50, least=1)
    return min(limit, MAX_NOTES_PAGE), query_count(request, "offset", 0)


def _query_number(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    try:
        return None if text is None else float(text)
    except ValueError:
        raise InvalidInput(f"{name} in the query is a number, not {shown(text)}") from None
