"""A store for the conversations of Pydantic AI.

    store = ScrubjayConversations()
    conversation = await store.load("sarah") or Conversation(conversation_id="sarah")
    await store.save(await agent.run("Hi", conversation=conversation))

Tested with pydantic-ai-slim 2.66, the first that has conversation stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scrubjay.adapters._framework import missing, open_memory, read, write
from scrubjay.adapters._large import read_keys
from scrubjay.adapters._plain import join_key
from scrubjay.async_memory import AsyncMemory
from scrubjay.conversations import MARK, STATE, session_key, split_key
from scrubjay.conversations import entry as message_entry
from scrubjay.errors import Conflict
from scrubjay.memory import Memory

try:
    from pydantic import TypeAdapter
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
except ImportError as error:
    raise missing("pydantic-ai", "Pydantic AI 2.66 or newer", error) from error

_RECORD = f"{STATE}pydantic-ai"
_RECORDS: TypeAdapter[Any] = TypeAdapter(ConversationRecord)
_ENTRIES: TypeAdapter[Any] = TypeAdapter(ConversationEntry)


class ScrubjayConversations(ConversationStore):
    """Conversations in a Memory: the messages of each in a list, as `scrubjay chat` and the dashboard show it.

    A save stores the new messages and the record together, as one write, if no other process has saved the conversation
    since it was loaded. Beside the list there is a small value for each message that says in which list it is: a fork
    shares the messages of the conversation that it was made from.

    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    """

    def __init__(self, memory: Memory | AsyncMemory | str = "pydantic-ai") -> None:
        self._memory = open_memory(memory)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        found = await read(self._memory.get, _record_key(conversation_id))
        return None if found is None else _RECORDS.validate_python(found)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        found = await read(self._stored_records)
        records = [_RECORDS.validate_python(each) for each in found if scope is None or each["scope"] == scope]
        records.sort(key=lambda record: record.updated_at, reverse=True)
        return records[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        await write(self._write, record, new_entries, expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation. Its messages stay while another conversation, a fork of it, has some of them."""
        await write(self._delete, conversation_id, expected_revision)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        (found,) = await self.read_history(entry_id, limit=1)
        return found

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        return await read(self._read_history, head_id, limit)

    # ------------------------------------------------------------ on a thread

    def _write(
        self, record: ConversationRecord, new_entries: Sequence[ConversationEntry], expected: str | None
    ) -> None:
        conversation = record.conversation_id
        versions = {_record_key(conversation): self._expect(conversation, expected)}
        new = {entry.id for entry in new_entries}
        if record.head_id is not None and record.head_id not in new:
            head = self._memory.item(_entry_key(record.head_id))
            if head is None:
                raise ConversationConflict(conversation)
            versions[head.key] = head.version
        rows: dict[str, Any] = {_entry_key(entry.id): {"conversation": conversation} for entry in new_entries}
        rows[_record_key(conversation)] = _RECORDS.dump_python(record, mode="json")
        try:
            with self._memory.transaction() as t:
                t.append(session_key(conversation), *map(_to_item, new_entries))
                t.update(rows, if_versions=versions)
        except Conflict as error:
            raise ConversationConflict(conversation) from error

    def _expect(self, conversation: str, revision: str | None) -> int:
        """The version of the stored record, which has to have this revision; 0 if there must be none."""
        stored = self._memory.item(_record_key(conversation))
        if (None if stored is None else stored.value["revision"]) != revision:
            raise ConversationConflict(conversation)
        return 0 if stored is None else stored.version

    def _delete(self, conversation: str, revision: str) -> None:
        if (version := self._expect(conversation, revision)) == 0:
            raise ConversationConflict(conversation)
        items = self._memory.get(session_key(conversation), [])
        own = {item["id"] for item in items}
        removed: list[str] = [] if self._is_shared(conversation, own) else [session_key(conversation)]
        removed += [_entry_key(each) for each in own] if removed else []
        key = _record_key(conversation)
        try:
            self._memory.update(dict.fromkeys([key, *removed]), if_versions={key: version})
        except Conflict as error:
            raise ConversationConflict(conversation) from error

    def _is_shared(self, conversation: str, entries: set[str]) -> bool:
        """Whether another conversation has some of these messages."""
        for record in self._stored_records():
            if record["conversation_id"] != conversation:
                for head in (record["head_id"], *record["branches"]):
                    if any(entry.id in entries for entry in self._read_history(head, None)):
                        return True
        return False

    def _stored_records(self) -> list[Any]:
        keys = [*self._memory.keys(MARK), _RECORD]
        return list(read_keys(self._memory, [key for key in keys if split_key(key)[1] == _RECORD]).values())

    def _read_history(self, head_id: str | None, limit: int | None) -> list[ConversationEntry]:
        """The messages up to the head: one read for each list that they are in, of its end if that has them."""
        found: list[ConversationEntry] = []
        known: dict[str, Any] = {}
        current = head_id
        while current is not None and (limit is None or len(found) < limit):
            if current not in known:
                place = self._memory.get(_entry_key(current))
                if place is None:
                    raise LookupError(f"there is no message {current!r}")
                key = session_key(place["conversation"])
                if limit is not None:
                    known |= {item["id"]: item for item in self._memory.tail(key, limit)}
                if current not in known:
                    known |= {item["id"]: item for item in self._memory.get(key, [])}
                if current not in known:
                    raise LookupError(f"there is no message {current!r}")
            found.append(_to_entry(known[current]))
            current = found[-1].parent_id
        return found[::-1]


def _record_key(conversation: str) -> str:
    return session_key(conversation, _RECORD)


def _entry_key(entry_id: str) -> str:
    return join_key("entry", entry_id)


def _to_item(entry: ConversationEntry) -> dict[str, Any]:
    """An entry as an item of the list of messages."""
    fields = _ENTRIES.dump_python(entry, mode="json")
    return {**message_entry(fields["message"], id=entry.id), "parent_id": entry.parent_id, "kind": entry.kind}


def _to_entry(item: dict[str, Any]) -> ConversationEntry:
    fields = {name: item[name] for name in ("id", "parent_id", "message", "kind")}
    entry: ConversationEntry = _ENTRIES.validate_python(fields)
    return entry
