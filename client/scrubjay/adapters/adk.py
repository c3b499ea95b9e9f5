"""Sessions and memory for Google's Agent Development Kit.

    runner = Runner(app_name="app", agent=agent, session_service=ScrubjaySessionService())

Tested with google-adk 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import uuid4

from scrubjay.adapters._framework import missing, open_memory, read, write
from scrubjay.adapters._large import read_keys
from scrubjay.adapters._plain import join_key, plain, unquote_part
from scrubjay.adapters._recall import first_bytes
from scrubjay.async_memory import AsyncMemory
from scrubjay.conversations import STATE, entry, session_key, session_prefix, split_key
from scrubjay.errors import Conflict
from scrubjay.memory import Memory
from scrubjay.models import Note

try:
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events.event import Event
    from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
    from google.adk.memory.memory_entry import MemoryEntry
    from google.adk.sessions._session_util import extract_json_safe_state_delta
    from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
    from google.adk.sessions.session import Session
    from google.adk.sessions.state import State
    from google.genai.types import Content, Part
except ImportError as error:
    raise missing("adk", "Google ADK 2.13 or newer", error) from error

NOTES = 10
"""Memories that a search returns, as one of ADK's own service does."""
RECENT = 20
"""Ids of the last events that a session keeps, to know an event that is appended again after a lost answer."""
FIRST_EVENTS = 50
"""Events that a read of those after a time starts with; it reads more while all of them are later."""
_ROW = f"{STATE}adk"


class _Place(NamedTuple):
    """The keys of a session."""

    app_name: str
    user_id: str
    session_id: str

    @property
    def name(self) -> str:
        """The session as `scrubjay sessions` names it."""
        return join_key(self.app_name, self.user_id, self.session_id)

    @property
    def events(self) -> str:
        return session_key(self.name)

    @property
    def row(self) -> str:
        """The key of the session's own state, the time of its last event, and the ids of its last events."""
        return session_key(self.name, _ROW)

    @property
    def app(self) -> str:
        return join_key("app", self.app_name)

    @property
    def user(self) -> str:
        return join_key("user", self.app_name, self.user_id)


class ScrubjaySessionService(BaseSessionService):
    """The events of each session, in a list of a Memory, as `scrubjay chat` and the dashboard show it.

    An event and the changes of state that it makes, of the session, the user and the app, are one write. Several
    processes may go on with one session: no event is refused because another one came first.

    :param memory: a Memory or AsyncMemory, or the name of a namespace. Open it with `strict=True`: a write is never
        queued.
    """

    def __init__(self, memory: Memory | AsyncMemory | str = "adk") -> None:
        self._memory = open_memory(memory, strict=True)

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Store a new session.

        :raises AlreadyExistsError: if there is one of this id.
        :raises InvalidInput: if the names of app, user and session have more than 126 bytes together.
        """
        place = _Place(app_name, user_id, (session_id or "").strip() or str(uuid4()))
        try:
            return await write(self._create, place, state or {})
        except Conflict as error:
            raise AlreadyExistsError(f"Session with id {place.session_id} already exists.") from error

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events, or the latest of them; None if it does not exist.

        :raises Unavailable: if the server is unreachable: an empty session would look like a new conversation.
        """
        found: Session | None = await read(self._get, _Place(app_name, user_id, session_id.strip()), config)
        return found

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of a user, or of all users of an app, without events; the latest is the last."""
        found: list[Session] = await read(self._list, app_name, user_id)
        found.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=found)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session, if it exists, with its events and its state."""
        place = _Place(app_name, user_id, session_id.strip())
        await write(self._memory.update, dict.fromkeys([place.row, place.events]))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of a user, without the prefix of its names."""
        return await read(self._memory.get, _Place(app_name, user_id, "").user, {})

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event to a session, with the changes of state that it makes; the same event twice is stored once.

        :raises SessionNotFoundError: if the session does not exist.
        :raises Unavailable: if the server is unreachable.
        """
        if event.partial:
            return event
        changes = event.actions.state_delta if event.actions else {}
        kept = {name: value for name, value in changes.items() if not name.startswith(State.TEMP_PREFIX)}
        message = plain(event.model_dump(mode="json", exclude_none=True))
        if changes:
            message["actions"]["state_delta"] = plain(extract_json_safe_state_delta({"": kept})["session"][""])
        place = _Place(session.app_name, session.user_id, session.id)
        if await write(self._append, place, message, extract_json_safe_state_delta(kept)):
            await super().append_event(session=session, event=event)
            session.last_update_time = event.timestamp
        return event

    # ------------------------------------------------------------ on a thread

    def _create(self, place: _Place, state: Mapping[str, Any]) -> Session:
        deltas = extract_json_safe_state_delta(dict(state))
        row = {"updated_at": datetime.now(UTC).timestamp(), "state": plain(deltas["session"]), "recent": []}
        with self._memory.transaction() as t:
            t.update({place.row: row, place.events: None}, if_versions={place.row: 0})
            _merge_scopes(t, place, deltas)
        return _session(place, row, self._memory.get_many([place.app, place.user]))

    def _get(self, place: _Place, config: GetSessionConfig | None) -> Session | None:
        rows = self._memory.get_many([place.row, place.app, place.user])
        return _session(place, rows[place.row], rows, self._events(place, config)) if place.row in rows else None

    def _list(self, app_name: str, user_id: str | None) -> list[Session]:
        parts = [app_name] if user_id is None else [app_name, user_id]
        prefix = session_prefix(f"{join_key(*parts)}/").removesuffix(":")
        keys = [key for key in self._memory.keys(prefix) if key.endswith(f":{_ROW}")]
        places = {key: _Place(*map(unquote_part, split_key(key)[0].split("/"))) for key in keys}
        scopes = {scope for place in places.values() for scope in (place.app, place.user)}
        rows = read_keys(self._memory, [*keys, *sorted(scopes)])
        return [_session(place, rows[key], rows) for key, place in places.items() if key in rows]

    def _events(self, place: _Place, config: GetSessionConfig | None) -> list[Event]:
        count, earliest = (config.num_recent_events, config.after_timestamp) if config else (None, None)
        if count is not None:
            items = self._memory.tail(place.events, count)
        elif earliest is not None:
            items = self._tail_after(place.events, earliest)
        else:
            items = self._memory.get(place.events, [])
        before = [
            number for number, item in enumerate(items, 1) if earliest and item["message"]["timestamp"] < earliest
        ]
        return [_to_event(item) for item in items[before[-1] if before else 0 :]]

    def _tail_after(self, key: str, earliest: float) -> list[Any]:
        """The end of a list of events, with one before the time if there is one."""
        count = FIRST_EVENTS
        while True:
            items: list[Any] = self._memory.tail(key, count)
            if len(items) < count or items[0]["message"]["timestamp"] < earliest:
                return items
            count *= 4

    def _append(self, place: _Place, message: dict[str, Any], deltas: Mapping[str, Mapping[str, Any]]) -> bool:
        """Store an event; False if it is stored already."""
        name = message["id"]
        item = entry(message, sender=message["author"], id=name)
        while True:
            found = self._memory.item(place.row)
            if found is None:
                raise SessionNotFoundError(f"Session {place.session_id} not found.")
            row = found.value
            if name in row["recent"] and any(each["message"] == message for each in self._last_events(place)):
                return False
            row = {
                "updated_at": message["timestamp"],
                "state": {**row["state"], **plain(deltas["session"])},
                "recent": [*row["recent"], name][-RECENT:],
            }
            try:
                with self._memory.transaction() as t:
                    t.update({place.row: row}, if_versions={place.row: found.version})
                    t.append(place.events, item)
                    _merge_scopes(t, place, deltas)
            except Conflict:  # another process has appended meanwhile, or has deleted the session
                continue
            return True

    def _last_events(self, place: _Place) -> list[Any]:
        found: list[Any] = self._memory.tail(place.events, RECENT)
        return found


def _merge_scopes(transaction: Any, place: _Place, deltas: Mapping[str, Mapping[str, Any]]) -> None:
    """Add to a transaction the changes of the state of the app and of the user; None removes a value."""
    for key, fields in ((place.app, deltas["app"]), (place.user, deltas["user"])):
        if fields:
            transaction.merge(key, plain(fields))


def _session(place: _Place, row: Mapping[str, Any], rows: Mapping[str, Any], events: Sequence[Event] = ()) -> Session:
    """A session with the state of its app and of its user."""
    state = dict(row["state"])
    state |= {State.APP_PREFIX + name: value for name, value in rows.get(place.app, {}).items()}
    state |= {State.USER_PREFIX + name: value for name, value in rows.get(place.user, {}).items()}
    return Session(
        app_name=place.app_name,
        user_id=place.user_id,
        id=place.session_id,
        state=state,
        events=list(events),
        last_update_time=row["updated_at"],
    )


def _to_event(item: Mapping[str, Any]) -> Event:
    return Event.model_validate(item["message"])


# ------------------------------------------------------------ notes


class ScrubjayMemoryService(BaseMemoryService):
    """What was said in sessions, as notes of a Memory that are found by their words, without a model.

    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    """

    def __init__(self, memory: Memory | AsyncMemory | str = "adk") -> None:
        self._memory = open_memory(memory)

    async def add_session_to_memory(self, session: Session) -> None:
        """Store each event of a session that has text as a note; an event that has been added is not added again."""
        place = _Place(session.app_name, session.user_id, session.id)
        await write(self._add, place, list(session.events), {})

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store events that have text as notes."""
        place = _Place(app_name, user_id, session_id or "")
        await write(self._add, place, list(events), plain(custom_metadata or {}))

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store memories that have text as notes, as one write; one with an id replaces the note of that id."""
        await write(self._remember, app_name, user_id, list(memories), plain(custom_metadata or {}))

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return the notes of a user that fit a query best, best first.

        :raises Unavailable: if the server is unreachable.
        """
        about = first_bytes(query)
        if not about.strip():
            return SearchMemoryResponse()
        notes = await read(self._memory.recall, about, limit=NOTES, tags=[_tag(app_name, user_id)])
        return SearchMemoryResponse(memories=[_to_entry(note) for note in notes])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Erase a note; the event that it comes from is not added again."""
        if memory_id:
            await write(self._forget, app_name, user_id, memory_id)

    def _add(self, place: _Place, events: Sequence[Event], fields: Mapping[str, Any]) -> None:
        tag = _tag(place.app_name, place.user_id)
        deleted = self._memory.get(_deleted_key(tag), {})
        with self._memory.transaction() as t:
            for event in events:
                text = _text(event.content)
                if text.strip() and event.id not in deleted:
                    t.remember(
                        text,
                        id=event.id,
                        tags=[tag],
                        session=place.name if place.session_id else None,
                        metadata={**fields, **_author(event.author, event.content, event.timestamp)},
                    )

    def _remember(
        self, app_name: str, user_id: str, memories: Sequence[MemoryEntry], fields: Mapping[str, Any]
    ) -> None:
        with self._memory.transaction() as t:
            for memory in memories:
                text = _text(memory.content)
                if text.strip():
                    said = _author(memory.author, memory.content, memory.timestamp)
                    own = plain(memory.custom_metadata or {})
                    t.remember(text, id=memory.id, tags=[_tag(app_name, user_id)], metadata={**fields, **own, **said})

    def _forget(self, app_name: str, user_id: str, memory_id: str) -> None:
        tag = _tag(app_name, user_id)
        if any(note.id == memory_id for note in self._memory.notes(tags=[tag])) and self._memory.forget(memory_id):
            self._memory.merge(_deleted_key(tag), {memory_id: True})


def _tag(app_name: str, user_id: str) -> str:
    """The tag of a user's notes."""
    return join_key(app_name, user_id)


def _deleted_key(tag: str) -> str:
    return f"deleted/{tag}"


def _text(content: Content | None) -> str:
    parts = content.parts if content and content.parts else []
    return first_bytes("\n".join(part.text for part in parts if part.text and not part.thought))


def _author(author: str | None, content: Content | None, at: float | str | None) -> dict[str, Any]:
    when = datetime.fromtimestamp(at, UTC).isoformat() if isinstance(at, float | int) else at
    fields = {"sender": author, "role": content.role if content else None, "timestamp": when}
    return {name: value for name, value in fields.items() if value is not None}


def _to_entry(note: Note) -> MemoryEntry:
    fields = dict(note.metadata)
    author, role, when = (fields.pop(name, None) for name in ("sender", "role", "timestamp"))
    content = Content(role=role, parts=[Part(text=note.content)])
    when = when or note.created_at.isoformat()
    return MemoryEntry(id=note.id, content=content, author=author, timestamp=when, custom_metadata=fields)
