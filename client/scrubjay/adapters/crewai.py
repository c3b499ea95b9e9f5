"""Flow states and the memory of crews for CrewAI, without an api key, a model or an embedder.

    crew = Crew(agents=…, tasks=…, memory=ScrubjayCrewMemory("research"))

    @persist(ScrubjayFlowPersistence())
    class Report(Flow): ...

Tested with crewai 1.15.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Self

from scrubjay.adapters._framework import missing, open_memory, read, write
from scrubjay.adapters._plain import plain, session_name
from scrubjay.async_memory import AsyncMemory
from scrubjay.conversations import STATE, session_key
from scrubjay.memory import Memory
from scrubjay.models import Note
from scrubjay.validation import MAX_RECALL

try:
    from crewai.flow.async_feedback.types import PendingFeedbackContext
    from crewai.flow.persistence.base import FlowPersistence
    from crewai.memory.types import MemoryMatch, MemoryRecord, ScopeInfo
    from crewai.memory.unified_memory import Memory as CrewMemory
    from pydantic import BaseModel, PrivateAttr
    from pydantic_core import PydanticSerializationError
except ImportError as error:
    raise missing("crewai", "CrewAI", error) from error

SCOPE = "scope:"
"""Before each scope that a note is in, as a tag: its own, and all above it."""
IMPORTANCE = 0.5
"""The importance of a memory for which none is given, from 0 to 1."""


class _Shared:
    """A Memory that copies of a crew or a flow share."""

    def __init__(self, memory: Memory | AsyncMemory | str) -> None:
        self.memory = open_memory(memory)

    def __deepcopy__(self, _memo: Any) -> Self:
        return self


# ------------------------------------------------------------ flows


class ScrubjayFlowPersistence(FlowPersistence):
    """The last state of each flow, in a Memory.

    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    """

    persistence_type: str = "ScrubjayFlowPersistence"
    namespace: str = "crewai"
    _shared: Any = PrivateAttr()

    def __init__(self, memory: Memory | AsyncMemory | str | None = None, /, **fields: Any) -> None:
        if memory is not None:
            fields["namespace"] = memory if isinstance(memory, str) else memory.namespace
        super().__init__(**fields)
        self._shared = _Shared(self.namespace if memory is None else memory)

    def init_db(self) -> None:
        """There is nothing to set up."""

    def save_state(self, flow_uuid: str, method_name: str, state_data: dict[str, Any] | BaseModel) -> None:
        self._memory.set(_flow_key(flow_uuid), {"method": method_name, "state": _state(state_data)})

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """Return the last state of a flow; None if there is none.

        :raises Unavailable: if the server is unreachable: without its state the flow would start again.
        """
        found = self._memory.get(_flow_key(flow_uuid))
        return None if found is None else found["state"]

    def save_pending_feedback(
        self, flow_uuid: str, context: PendingFeedbackContext, state_data: dict[str, Any] | BaseModel
    ) -> None:
        state = _state(state_data)
        self._memory.update(
            {
                _flow_key(flow_uuid): {"method": context.method_name, "state": state},
                _flow_key(flow_uuid, "pending"): {"context": _lenient(context.to_dict()), "state": state},
            }
        )

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        found = self._memory.get(_flow_key(flow_uuid, "pending"))
        return None if found is None else (found["state"], PendingFeedbackContext.from_dict(found["context"]))

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        self._memory.delete(_flow_key(flow_uuid, "pending"))

    @property
    def _memory(self) -> Memory:
        memory: Memory = self._shared.memory
        return memory


def _flow_key(flow_uuid: str, name: str = "flow") -> str:
    """A key in the session of the flow's id, with which it is erased."""
    return session_key(session_name(flow_uuid), f"{STATE}{name}")


def _state(data: dict[str, Any] | BaseModel) -> Any:
    if not isinstance(data, BaseModel | dict):
        raise ValueError(f"state_data must be either a Pydantic BaseModel or dict, got {type(data)}")  # noqa: TRY004
    return _lenient(data)


def _lenient(value: Any) -> Any:
    """A state as JSON: what JSON cannot represent becomes text, as with CrewAI's own persistence."""
    if isinstance(value, BaseModel):
        try:
            return _lenient(value.model_dump(mode="json"))
        except PydanticSerializationError:  # a field holds an object that pydantic does not know
            return _lenient(value.model_dump(mode="python"))
    if isinstance(value, Mapping):
        return {str(plain(name)): _lenient(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_lenient(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    done = plain(value)
    return done if done is None or isinstance(done, str | int | float | bool | dict) else str(done)


# ------------------------------------------------------------ the memory of crews


class ScrubjayCrewMemory(CrewMemory):
    """What a crew remembers: notes of a Memory, which are found by their words and, with an embedder, by their meaning.

    CrewAI's own memory asks a model to take memories out of a result, and to search. This one stores a result as it is.

    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    """

    _shared: Any = PrivateAttr()

    def __init__(self, memory: Memory | AsyncMemory | str = "crewai", /, **fields: Any) -> None:
        shared = _Shared(memory)
        super().__init__(**{**fields, "storage": _Notes(shared)})
        self._shared = shared

    @property
    def _memory(self) -> Memory:
        memory: Memory = self._shared.memory
        return memory

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return a copy with the same Memory: that of the base class fails before Python 3.13."""
        copied: Self = self.model_copy()
        return copied

    def extract_memories(self, content: str) -> list[str]:
        """Return the content as one memory: to take it apart would need a model."""
        return [content] if content.strip() else []

    def remember(
        self,
        content: str,
        scope: str | None = None,
        categories: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        importance: float | None = None,
        source: str | None = None,
        private: bool = False,
        agent_role: str | None = None,
        root_scope: str | None = None,
    ) -> MemoryRecord | None:
        """Store a memory; the same text in the same scope refreshes it."""
        stored = self.remember_many(
            [content], scope, categories, metadata, importance, source, private, agent_role, root_scope
        )
        return stored[0] if stored else None

    def remember_many(
        self,
        contents: list[str],
        scope: str | None = None,
        categories: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        importance: float | None = None,
        source: str | None = None,
        private: bool = False,
        agent_role: str | None = None,
        root_scope: str | None = None,
    ) -> list[MemoryRecord]:
        """Store memories, all of them or none."""
        texts = [content for content in contents if content.strip()]
        if self.read_only or not texts:
            return []
        extra = {"agent_role": agent_role} if agent_role else {}
        records = [
            MemoryRecord(
                content=text,
                scope=_join(root_scope or self.root_scope, scope),
                categories=categories or [],
                metadata={**(metadata or {}), **extra},
                importance=IMPORTANCE if importance is None else importance,
                source=source,
                private=private,
            )
            for text in texts
        ]
        with self._memory.transaction() as t:
            for record in records:
                t.remember(record.content, **_fields_of(record))
        if t.results is None:  # queued: the ids are not known yet
            return records
        ids = t.results
        return [record.model_copy(update={"id": number}) for record, number in zip(records, ids, strict=False)]

    def recall(
        self,
        query: str,
        scope: str | None = None,
        categories: list[str] | None = None,
        limit: int = 10,
        depth: str = "deep",  # noqa: ARG002 - CrewAI's signature; there is one depth
        source: str | None = None,
        include_private: bool = False,
    ) -> list[MemoryMatch]:
        """Return the memories that fit a query best, best first."""
        if not query.strip() or limit < 1:
            return []
        tags = [f"{SCOPE}{_join(self.root_scope, scope)}"]
        found: list[MemoryMatch] = []
        for most in (min(limit, MAX_RECALL), MAX_RECALL):  # more, if the filters below leave too few
            notes = self._memory.recall(query, limit=most, tags=tags)
            found = [
                MemoryMatch(record=record, score=note.score or 0.0, match_reasons=["words"])
                for note, record in ((note, _record(note)) for note in notes)
                if _is_visible(record, categories, source, include_private)
            ]
            if len(found) >= limit or len(notes) < most:
                break
        return found[:limit]

    def update(
        self,
        record_id: str,
        content: str | None = None,
        scope: str | None = None,
        categories: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        importance: float | None = None,
    ) -> MemoryRecord:
        """Replace fields of a memory.

        :raises ValueError: if there is none with this id.
        """
        existing = self._storage.get_record(record_id)
        if existing is None:
            raise ValueError(f"Record not found: {record_id}")
        if self.read_only:
            return existing
        given = {
            "content": content,
            "scope": scope,
            "categories": categories,
            "metadata": metadata,
            "importance": importance,
        }
        updated = existing.model_copy(update={name: value for name, value in given.items() if value is not None})
        self._storage.update(updated)
        return updated

    def drain_writes(self) -> None:
        """Nothing waits: a memory is stored when the call returns."""

    async def aextract_memories(self, content: str) -> list[str]:
        return self.extract_memories(content)

    async def aremember(self, content: str, *args: Any, **kwargs: Any) -> MemoryRecord | None:
        return await write(self.remember, content, *args, **kwargs)

    async def aremember_many(self, contents: list[str], *args: Any, **kwargs: Any) -> list[MemoryRecord]:
        return await write(self.remember_many, contents, *args, **kwargs)

    async def arecall(self, query: str, *args: Any, **kwargs: Any) -> list[MemoryMatch]:
        return await read(self.recall, query, *args, **kwargs)


class _Notes:
    """The storage that CrewAI's inherited methods use: forget, list_records, list_scopes, info, tree, reset."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared

    def __deepcopy__(self, _memo: Any) -> Self:
        return self

    def _records(self, scope_prefix: str | None = None) -> list[MemoryRecord]:
        tags = [f"{SCOPE}{_join(None, scope_prefix)}"]
        return [_record(note) for note in self._shared.memory.notes(tags=tags)]

    def get_record(self, record_id: str) -> MemoryRecord | None:
        return next((record for record in self._records() if record.id == record_id), None)

    def update(self, record: MemoryRecord) -> None:
        self._shared.memory.remember(record.content, id=record.id, **_fields_of(record))

    def delete(
        self,
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        record_ids: list[str] | None = None,
        older_than: datetime | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> int:
        chosen = [
            record.id
            for record in self._records(scope_prefix)
            if (record_ids is None or record.id in record_ids)
            and (not categories or set(categories) & set(record.categories))
            and (older_than is None or record.created_at < _naive(older_than))
            and all(record.metadata.get(name) == value for name, value in (metadata_filter or {}).items())
        ]
        return sum(map(self._shared.memory.forget, chosen))

    def reset(self, scope_prefix: str | None = None) -> None:
        self.delete(scope_prefix)

    def list_records(self, scope_prefix: str | None = None, limit: int = 200, offset: int = 0) -> list[MemoryRecord]:
        return self._records(scope_prefix)[::-1][offset : offset + limit]

    def count(self, scope_prefix: str | None = None) -> int:
        return len(self._records(scope_prefix))

    def list_scopes(self, parent: str = "/") -> list[str]:
        return list(self.get_scope_info(parent).child_scopes)

    def list_categories(self, scope_prefix: str | None = None) -> dict[str, int]:
        return dict(Counter(category for record in self._records(scope_prefix) for category in record.categories))

    def get_scope_info(self, scope: str) -> ScopeInfo:
        records = self._records(scope)
        above = _join(None, scope).rstrip("/")
        below = {record.scope.removeprefix(above).strip("/").partition("/")[0] for record in records} - {""}
        times = [record.created_at for record in records]
        return ScopeInfo(
            path=above or "/",
            record_count=len(records),
            categories=sorted({category for record in records for category in record.categories}),
            oldest_record=min(times, default=None),
            newest_record=max(times, default=None),
            child_scopes=[f"{above}/{name}" for name in sorted(below)],
        )


def _join(root: str | None, scope: str | None) -> str:
    """A scope below another, from "/"."""
    return "/" + "/".join(part for path in (root, scope) for part in (path or "").split("/") if part)


def _naive(moment: datetime) -> datetime:
    """A time in UTC without its offset, as CrewAI compares them."""
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _scopes_above(scope: str) -> Iterable[str]:
    parts = [part for part in scope.split("/") if part]
    return ["/", *("/" + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1))]


def _fields_of(record: MemoryRecord) -> dict[str, Any]:
    """A memory as the arguments of `remember`. The scope is the session: the same text in two scopes is two notes."""
    beside = {
        "categories": record.categories,
        "metadata": _lenient(record.metadata),
        "importance": record.importance,
        "source": record.source,
        "private": record.private,
    }
    tags = [f"{SCOPE}{scope}" for scope in _scopes_above(record.scope)]
    return {"session": record.scope, "tags": tags, "metadata": {"crewai": beside}}


def _record(note: Note) -> MemoryRecord:
    beside = note.metadata.get("crewai", {})
    return MemoryRecord(
        id=note.id,
        content=note.content,
        scope=note.session or "/",
        created_at=note.created_at.replace(tzinfo=None),  # CrewAI compares naive times, in UTC
        last_accessed=note.updated_at.replace(tzinfo=None),
        **beside,
    )


def _is_visible(record: MemoryRecord, categories: list[str] | None, source: str | None, include_private: bool) -> bool:
    if record.private and not include_private and (source is None or record.source != source):
        return False
    return not categories or bool(set(categories) & set(record.categories))
