"""The APIs of BotWire, Kronvex and Memstore on the operations of Scrubjay, so that their users change only a URL."""

from __future__ import annotations

import math
import uuid
from hashlib import blake2b
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, SkipValidation, WithJsonSchema
from starlette.convertors import register_url_convertor
from starlette.types import Scope

from scrubjay.errors import InvalidInput, NotFound, repr_short
from scrubjay.exact_json import decode_body, encode
from scrubjay.models import Note, iso
from scrubjay.recall.prompt import format_prompt
from scrubjay.store import items, notes
from scrubjay.validation import (
    MAX_COUNT,
    MAX_KEY_BYTES,
    MAX_NOTES_PAGE,
    MAX_PAGE,
    MAX_RECALL,
    NewNote,
    RecallQuery,
    check_key,
    check_namespace,
    check_tags,
)
from scrubjay_auth import credentials, headers_of
from scrubjay_http import (
    AUTHENTICATED,
    COMMON_ERRORS,
    MAX_QUERY_BODY_BYTES,
    WRITE_ERRORS,
    Admitted,
    Caller,
    JsonBody,
    JsonResponse,
    Key,
    KeyConvertor,
    ReadableNamespace,
    WritableNamespace,
    count_text,
    errors,
    item_json,
    label_text,
    missing_item,
    parsed_by,
    require_write,
    write_response,
)
from scrubjay_models import Content, Days, Label, Metadata, NoteFields, Recalled, Score, Seconds, StrictBody, Tags

# ---------------------------------------------------------------- BotWire

botwire = APIRouter(dependencies=AUTHENTICATED, tags=["BotWire's API"], responses=errors(*COMMON_ERRORS))
_KEY = "/memory/{namespace}/{key:key}"


def _intended_text(value: Any) -> str | None:
    """The JSON text of what the caller of BotWire's package stored, as far as its request shows it; None deletes.

    Its package sends a list or an object as JSON inside a string, and decodes such strings when it reads. Storing
    the list or object itself changes nothing for it, and lets other clients of the namespace read it. None arrives
    as "null", and is documented to delete. Numbers and booleans look like strings; they stay the strings that its
    users know.
    """
    if value == "null" or value is None:
        return None
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return encode(decode_body(value))
        except InvalidInput:  # not JSON, or JSON that would not come back the same
            pass
    return encode(value)


class BotwireSetBody(StrictBody):
    value: Annotated[Any, PlainValidator(_intended_text), WithJsonSchema({})]
    ttl: Seconds = None
    ttl_seconds: Seconds = None


_SET_BODY = JsonBody(BotwireSetBody)


async def botwire_key(request: Request, key: Key) -> str:
    return _with_query(request.scope, key)


def _with_query(scope: Scope, key: str) -> str:
    """The key with the query string: BotWire's package puts keys into the URL without quoting a "?"."""
    query = scope["query_string"]
    return check_key(f"{key}?{unquote(query.decode('latin-1'))}" if query else key)


BotwireKey = Annotated[str, Depends(botwire_key)]


@botwire.put(_KEY, name="set", responses=errors(*WRITE_ERRORS))
async def botwire_set(
    caller: Admitted,
    namespace: WritableNamespace,
    key: BotwireKey,
    body: Annotated[BotwireSetBody, _SET_BODY.dependency],
) -> Response:
    """Store a value; BotWire's package sends anything but a string as JSON inside a string."""
    version, used = await caller.run(items.set_item(namespace, key, body.value, body.ttl or body.ttl_seconds))
    return write_response({"ok": True, "namespace": namespace, "key": key, "version": version}, used)


@botwire.get(_KEY, name="get", responses=errors(404))
async def botwire_get(caller: Admitted, namespace: ReadableNamespace, key: BotwireKey) -> Response:
    """A value with its version, times and size."""
    stored = await caller.run(items.read_item(namespace, key))
    if stored is None:
        raise missing_item(caller.scope)
    return JsonResponse(item_json(stored))


@botwire.delete(_KEY, name="delete", responses=errors(404))
async def botwire_delete(caller: Admitted, namespace: WritableNamespace, key: BotwireKey) -> Response:
    """Delete a value."""
    found, used = await caller.run(items.delete_item(namespace, key))
    if not found:
        raise missing_item(caller.scope)
    return write_response({"ok": True, "deleted": True}, used)


@botwire.get("/memory/{namespace}", name="keys")
async def botwire_keys(caller: Admitted, namespace: ReadableNamespace) -> Response:
    """All keys, as strings."""
    keys: list[str] = []
    page = [""]
    while page and len(keys) % MAX_PAGE == 0:
        page = await caller.run(items.list_keys(namespace, "", keys[-1] if keys else "", MAX_PAGE))
        keys += page
    return JsonResponse({"namespace": caller.scope["path_params"]["namespace"], "keys": keys, "count": len(keys)})


async def fast_get(caller: Caller, namespace: str, key: str) -> Response:
    return await botwire_get(caller, caller.readable(namespace), _with_query(caller.scope, key))


async def fast_set(caller: Caller, namespace: str, key: str) -> Response:
    namespace = caller.writable(namespace)
    return await botwire_set(caller, namespace, _with_query(caller.scope, key), await _SET_BODY.read(caller))


# ---------------------------------------------------------------- Kronvex

kronvex = APIRouter(dependencies=AUTHENTICATED, tags=["Kronvex's API"], responses=errors(*COMMON_ERRORS))
_AGENTS = "/api/v1/agents"
_AGENT = "/api/v1/agents/{agent:agent}"
_DEFAULT_TYPE = "episodic"
CONTEXT_TOKENS = 1000
"""Tokens of an injected context, at most: Kronvex's API has no parameter for it."""

_REQUIRE_WRITE = [Depends(require_write)]
Limit = Annotated[int, Query(ge=1, le=MAX_COUNT), count_text("limit in the query", least=1)]
Offset = Annotated[int, Query(ge=0, le=MAX_COUNT), count_text("offset in the query")]
LabelQuery = Query(min_length=1, max_length=MAX_KEY_BYTES)


class _AgentConvertor(KeyConvertor):
    """An agent's id in a path: it may contain slashes, but not the name of a route below it."""

    regex = r"(?:(?!/(?:remember|recall|inject-context|sessions|memories)(?:/|$))[\s\S])+"


register_url_convertor("agent", _AgentConvertor())


class KronvexAgentBody(BaseModel):
    name: Annotated[str | None, Field(max_length=MAX_KEY_BYTES), label_text("name", allow_empty=True)] = None
    description: Annotated[str | None, Field(max_length=MAX_KEY_BYTES), label_text("description", allow_empty=True)] = (
        None
    )


class KronvexMemoryBody(BaseModel):
    """The fields of a new note, which `NewNote.check` validates together."""

    content: SkipValidation[Content]
    memory_type: SkipValidation[Label | None] = None
    session_id: SkipValidation[Label | None] = None
    tags: SkipValidation[Tags | None] = None
    ttl_days: SkipValidation[Days] = None
    pinned: SkipValidation[bool] = False
    metadata: SkipValidation[Metadata] = None

    _note: NewNote

    def model_post_init(self, _context: Any) -> None:
        # Kronvex's package sends this type when its user states none, which must not replace a type stated before.
        is_default = self.memory_type == _DEFAULT_TYPE
        note = NewNote.check(
            self.content,
            type=None if is_default else self.memory_type,
            tags=self.tags,
            session=self.session_id,
            ttl_days=self.ttl_days,
            pinned=self.pinned,
            metadata=self.metadata,
        )
        self._note = note._replace(default_type=_DEFAULT_TYPE if is_default else None)

    @property
    def note(self) -> NewNote:
        return self._note


class KronvexRecallBody(BaseModel):
    """The fields of a query, which `RecallQuery.check` validates together."""

    query: SkipValidation[str]
    limit: SkipValidation[Recalled] = Field(5, description="also called top_k")
    top_k: SkipValidation[Recalled | None] = None
    threshold: SkipValidation[Score | None] = None
    memory_type: SkipValidation[Label | None] = None
    session_id: SkipValidation[Label | None] = None
    tags: SkipValidation[Tags | None] = None

    _recall_query: RecallQuery

    def model_post_init(self, _context: Any) -> None:
        self._recall_query = RecallQuery.check(
            self.text(),
            limit=self.limit if self.top_k is None else self.top_k,
            type=self.memory_type,
            tags=self.tags,
            session=self.session_id,
            threshold=self.threshold,
        )

    def text(self) -> Any:
        return self.query

    @property
    def recall_query(self) -> RecallQuery:
        return self._recall_query


class KronvexContextBody(KronvexRecallBody):
    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["query"]}, {"required": ["message"]}]})

    query: SkipValidation[str] = Field("", description="also called message")
    message: SkipValidation[str] = Field("", description="also called query")

    def text(self) -> Any:
        given = [getattr(self, name) for name in ("message", "query") if name in self.model_fields_set]
        if not given or not all(isinstance(text, str) for text in given):
            raise InvalidInput("message, also called query, is the text to find memories for")
        return given[0]


class Agent:
    """An agent of one api key: its id, its namespace, and the directory namespace that lists the key's agents."""

    def __init__(self, caller: Caller, agent_id: str) -> None:
        self.id = check_key(agent_id)
        self.directory = kronvex_directory(caller)
        self.namespace = caller.private(kronvex_name(agent_id), self._namespace())

    def _namespace(self) -> str:
        """Named after the agent; after its hash if the id is not a valid name or looks like a hash."""
        namespace = f"{self.directory}:{self.id}"
        try:
            if not self.id.startswith("~"):
                return check_namespace(namespace)
        except InvalidInput:
            pass
        return f"{self.directory}:~{_digest(self.id)}"

    def memory(self, note: Note) -> dict[str, Any]:
        """A note in Kronvex's form."""
        return {
            "id": note.id,
            "agent_id": self.id,
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


def kronvex_name(agent_id: str) -> str:
    """What the namespace patterns of an api key match for an agent."""
    return f"kronvex:{agent_id}"


def kronvex_directory(caller: Caller) -> str:
    return f"kronvex:{_owner(caller)}"


async def _find_agent(caller: Admitted, agent: Key) -> Agent:
    return Agent(caller, agent)


KronvexAgent = Annotated[Agent, Depends(_find_agent)]


@kronvex.post(_AGENTS, name="create_agent", responses=errors(*WRITE_ERRORS), dependencies=_REQUIRE_WRITE)
async def kronvex_create_agent(
    caller: Admitted, body: Annotated[KronvexAgentBody, JsonBody(KronvexAgentBody, MAX_QUERY_BODY_BYTES).dependency]
) -> Response:
    """Create an agent with a random id."""
    return JsonResponse(await _register(caller, Agent(caller, uuid.uuid4().hex), body.model_dump()))


@kronvex.get(_AGENTS, name="agents")
async def kronvex_agents(caller: Admitted) -> Response:
    """Every agent that was created, or that remembered something, with this api key."""
    directory = kronvex_directory(caller)
    ids = [each for each in await caller.run(items.list_keys(directory)) if caller.access.sees(kronvex_name(each))]
    found = await caller.run(items.read_many(directory, ids))
    return JsonResponse(f"[{','.join(found.values())}]")


@kronvex.post(f"{_AGENT}/remember", name="remember", responses=errors(*WRITE_ERRORS), dependencies=_REQUIRE_WRITE)
async def kronvex_remember(
    caller: Admitted, agent: KronvexAgent, body: Annotated[KronvexMemoryBody, JsonBody(KronvexMemoryBody).dependency]
) -> Response:
    """Remember a text; an agent is created by its first memory."""
    if await caller.run(items.find_version(agent.directory, agent.id)) is None:
        await _register(caller, agent, {"name": agent.id})
    note, used = await caller.remember(agent.namespace, body.note)
    return await caller.run_off_loop(lambda: write_response(agent.memory(note), used))


@kronvex.post(f"{_AGENT}/recall", name="recall", responses=errors(413))
async def kronvex_recall(
    caller: Admitted,
    agent: KronvexAgent,
    body: Annotated[KronvexRecallBody, JsonBody(KronvexRecallBody, MAX_QUERY_BODY_BYTES).dependency],
) -> Response:
    """The memories that match best: as Kronvex's package reads them (memories) and its server documents (results)."""
    found = await caller.recall(agent.namespace, body.recall_query)
    memories = [agent.memory(note) for note in found]
    return JsonResponse({"query": body.query, "memories": memories, "results": memories, "total": len(memories)})


@kronvex.post(f"{_AGENT}/inject-context", name="inject_context", responses=errors(413))
async def kronvex_context(
    caller: Admitted,
    agent: KronvexAgent,
    body: Annotated[KronvexContextBody, JsonBody(KronvexContextBody, MAX_QUERY_BODY_BYTES).dependency],
) -> Response:
    """Matching memories as text: as Kronvex's package reads it (context) and its server documents (context_block)."""
    found = await caller.recall(agent.namespace, body.recall_query)
    text = format_prompt(found, CONTEXT_TOKENS)
    memories = [agent.memory(note) for note in found]
    return JsonResponse({"context": text, "context_block": text, "memories": memories, "memories_used": len(memories)})


@kronvex.get(f"{_AGENT}/sessions", name="sessions")
async def kronvex_sessions(caller: Admitted, agent: KronvexAgent) -> Response:
    """The sessions of an agent's memories."""
    sessions = [
        {
            "session_id": session.name,
            "memory_count": session.notes,
            "created_at": iso(session.created_at),
            "updated_at": iso(session.updated_at),
        }
        for session in await caller.run(notes.list_sessions(agent.namespace))
    ]
    return JsonResponse({"sessions": sessions, "total": len(sessions)})


@kronvex.get(f"{_AGENT}/memories", name="notes")
async def kronvex_memories(
    caller: Admitted,
    agent: KronvexAgent,
    limit: Limit = 50,
    offset: Offset = 0,
    session_id: Annotated[str | None, LabelQuery, label_text("session_id")] = None,
    memory_type: Annotated[str | None, LabelQuery, label_text("memory_type")] = None,
) -> Response:
    """An agent's memories, in the order remembered."""
    limit = min(limit, MAX_NOTES_PAGE)
    found = await caller.run(notes.list_notes(agent.namespace, memory_type, (), session_id, "", limit, offset))
    memories = [agent.memory(note) for note in found]
    return JsonResponse({"memories": memories, "results": memories, "total": len(memories)})


@kronvex.delete(f"{_AGENT}/memories", name="clear", dependencies=_REQUIRE_WRITE)
async def kronvex_clear(caller: Admitted, agent: KronvexAgent) -> Response:
    """Erase an agent's memories permanently; Kronvex's own server only hides them."""
    deleted, used = await caller.run(notes.clear_notes(agent.namespace))
    return write_response({"deleted": deleted}, used)


@kronvex.delete(f"{_AGENT}/memories/{{memory:key}}", name="forget", responses=errors(404), dependencies=_REQUIRE_WRITE)
async def kronvex_forget(caller: Admitted, agent: KronvexAgent, memory: str) -> Response:
    """Erase a memory permanently."""
    return await _forget(caller, agent.namespace, memory)


@kronvex.delete(_AGENT, name="delete_agent", responses=errors(404), dependencies=_REQUIRE_WRITE)
async def kronvex_delete_agent(caller: Admitted, agent: KronvexAgent) -> Response:
    """Delete an agent and erase its memories."""
    await caller.run(notes.clear_all(agent.namespace))
    found, used = await caller.run(items.delete_item(agent.directory, agent.id))
    if not found:
        raise NotFound(f"there is no agent {repr_short(agent.id)}; GET {_AGENTS} lists them")
    return write_response({"deleted": True}, used)


async def _register(caller: Caller, agent: Agent, description: dict[str, Any]) -> dict[str, Any]:
    """Add an agent to the directory of its api key."""
    entry = {"id": agent.id, **description}
    await caller.run(items.set_item(agent.directory, agent.id, encode(entry)))
    return entry


# ---------------------------------------------------------------- Memstore

memstore = APIRouter(dependencies=AUTHENTICATED, tags=["Memstore's API"], responses=errors(*COMMON_ERRORS))


def _split_tags(texts: list[str]) -> tuple[str, ...]:
    return check_tags([tag for text in texts for tag in text.split(",") if tag])


def _query_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise InvalidInput(f"threshold in the query is a number from 0 to 1, not {repr_short(text)}")
    return number


Session = Annotated[str | None, LabelQuery, label_text("session")]
TagsQuery = Annotated[
    list[str],
    Query(description="tags=a,b or tags=a&tags=b"),
    BeforeValidator(_split_tags),
]
Best = Annotated[int, Query(ge=1, le=MAX_RECALL), count_text("limit in the query", least=1, most=MAX_RECALL)]
TopK = Annotated[int | None, Query(ge=1, le=MAX_RECALL), count_text("top_k in the query", least=1, most=MAX_RECALL)]


class MemstoreMemoryBody(NoteFields):
    """A new note; unknown fields are ignored."""


@memstore.post("/v1/memory/remember", name="remember", responses=errors(*WRITE_ERRORS), dependencies=_REQUIRE_WRITE)
async def memstore_remember(
    caller: Admitted, body: Annotated[MemstoreMemoryBody, JsonBody(MemstoreMemoryBody).dependency]
) -> Response:
    """Remember a text."""
    note, used = await caller.remember(_memstore_namespace(caller), body.note)
    return await caller.run_off_loop(lambda: write_response(_memstore_memory(note), used))


# Declared here because a parameter with two names cannot be required.
_QUERY = {"name": "q", "in": "query", "required": True, "schema": {"type": "string"}}


@memstore.get("/v1/memory/recall", name="recall", openapi_extra={"parameters": [_QUERY]})
async def memstore_recall(
    caller: Admitted,
    q: Annotated[str | None, Query(include_in_schema=False)] = None,
    query: Annotated[str | None, Query(include_in_schema=False)] = None,
    limit: Best = 5,
    top_k: TopK = None,
    threshold: Annotated[float | None, Query(ge=0, le=1), parsed_by(_query_number)] = None,
    session: Session = None,
    tags: TagsQuery = [],  # noqa: B006
) -> Response:
    """The memories that match a query best."""
    asked = RecallQuery.check(
        _memstore_query(q, query),
        limit=limit if top_k is None else top_k,
        tags=tags,
        session=session,
        threshold=threshold,
    )
    found = await caller.recall(_memstore_namespace(caller), asked)
    return JsonResponse({"memories": [_memstore_memory(note) for note in found]})


def _memstore_query(q: str | None, query: str | None) -> str:
    if q is None and query is None:
        raise InvalidInput("the query lacks the parameter q, the text to find memories for")
    return q if q is not None else query or ""


@memstore.get("/v1/memory/list", name="notes")
async def memstore_list(
    caller: Admitted,
    limit: Limit = 50,
    offset: Offset = 0,
    session: Session = None,
    tags: TagsQuery = [],  # noqa: B006
) -> Response:
    """Memories in the order remembered."""
    namespace, limit = _memstore_namespace(caller), min(limit, MAX_NOTES_PAGE)
    found = await caller.run(notes.list_notes(namespace, None, tuple(tags), session, "", limit, offset))
    return JsonResponse({"memories": [_memstore_memory(note) for note in found]})


@memstore.delete("/v1/memory/forget/{memory:key}", name="forget", responses=errors(404), dependencies=_REQUIRE_WRITE)
async def memstore_forget(caller: Admitted, memory: str) -> Response:
    """Erase a memory permanently."""
    return await _forget(caller, _memstore_namespace(caller), memory)


def _memstore_namespace(caller: Caller) -> str:
    return caller.private("memstore", f"memstore:{_owner(caller)}")


def _memstore_memory(note: Note) -> dict[str, Any]:
    return {**note.to_json(), "similarity": note.score}


# ---------------------------------------------------------------- Kronvex and Memstore

ROUTERS = (botwire, kronvex, memstore)


def _owner(caller: Caller) -> str:
    """Whose memories these are: those of an api key, by its id, which stays when the key is replaced.

    A server that needs no key takes any, and separates memories by its hash; "-" without one.
    """
    if caller.access.id:
        return caller.access.id
    apikey, _ = credentials(headers_of(caller.scope))
    return _digest(apikey) if apikey else "-"


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=12).hexdigest()


async def _forget(caller: Caller, namespace: str, note_id: str) -> Response:
    found, used = await caller.run(notes.forget(namespace, note_id))
    if not found:
        raise NotFound(f"there is no memory {repr_short(note_id)}; list the memories to get their ids")
    return write_response({"deleted": True, "id": note_id}, used)
