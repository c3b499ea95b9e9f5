"""A chat store, a memory block and a key-value store for LlamaIndex.

    memory = Memory.from_defaults(session_id="sarah", chat_store=ScrubjayChatStore(), memory_blocks=[ScrubjayBlock()])
    response = await agent.run("Hi", memory=memory)

Tested with llama-index-core 0.14.25.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scrubjay.adapters._framework import missing, open_memory, read, write
from scrubjay.adapters._plain import join_key, plain, quote_part, unquote_part
from scrubjay.adapters._recall import NOTES, TOKENS, context_for, first_bytes
from scrubjay.async_memory import AsyncMemory
from scrubjay.conversations import MESSAGES, entry, session_key, split_key
from scrubjay.errors import Conflict
from scrubjay.memory import Memory

try:
    from llama_index.core.base.llms.types import ChatMessage, MessageRole
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.memory.memory import BaseMemoryBlock
    from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
    from llama_index.core.storage.kvstore.types import DEFAULT_BATCH_SIZE, DEFAULT_COLLECTION, BaseKVStore
except ImportError as error:
    raise missing("llama-index", "llama-index-core 0.14.25 or newer", error) from error

ARCHIVED = f"{MESSAGES}:archived"
"""The name of the list of messages that have left the queue."""
BATCH = 500
"""Values that one write of `put_all` stores."""


class ScrubjayChatStore(AsyncDBChatStore):
    """The messages of each session, in two lists of a Memory, active and archived ones, as `scrubjay chat` shows them.

    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    """

    namespace: str
    _memory: Memory = PrivateAttr()

    def __init__(self, memory: Memory | AsyncMemory | str = "llama-index") -> None:
        opened = open_memory(memory)
        super().__init__(namespace=opened.namespace)
        self._memory = opened

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """Return messages of a session, oldest first; without a status those that were archived, then active ones.

        :raises Unavailable: if the server is unreachable: an empty history would look like a new conversation.
        """
        start = offset or 0
        stop = None if limit is None else start + limit
        if status is not None:
            items = await read(self._memory.slice, _key(key, status), start, stop)
        else:
            lists = await read(self._memory.get_many, [_key(key, each) for each in _IN_ORDER])
            items = [item for each in lists.values() for item in each][start:stop]
        return _messages(items)

    async def count_messages(self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE) -> int:
        """Return how many messages a session has, without reading them."""
        kinds = _IN_ORDER if status is None else (status,)
        return sum([await read(self._memory.length, _key(key, each)) for each in kinds])

    async def add_message(self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE) -> None:
        """Append a message."""
        await self.add_messages(key, [message], status)

    async def add_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Append messages, all of them or none."""
        if messages:
            await write(self._memory.append, _key(key, status), *map(_to_item, messages))

    async def set_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Replace all messages of a session, archived ones included, as LlamaIndex's own store does."""
        rows: dict[str, Any] = {_key(key, each): None for each in _IN_ORDER}
        rows[_key(key, status)] = [_to_item(message) for message in messages] or None
        await write(self._memory.update, rows)

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the active message at a position, and return it; None if there is none."""
        return await write(self._delete, key, idx)

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Delete the messages of a status, or all."""
        kinds = _IN_ORDER if status is None else (status,)
        await write(self._memory.update, {_key(key, each): None for each in kinds})

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Take the first active messages; of several callers, each gets other ones."""
        return _messages(await write(self._memory.pop, _key(key, MessageStatus.ACTIVE), n, first=True))

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Move the first active messages to the archived ones, in one write, and return them."""
        return _messages(await write(self._archive, key, n))

    async def get_keys(self) -> list[str]:
        """Return the names of the sessions, in order."""
        keys = await read(self._memory.keys)
        return sorted({session for session, name in map(split_key, keys) if name in (MESSAGES, ARCHIVED)})

    @classmethod
    def class_name(cls) -> str:
        return "ScrubjayChatStore"

    def _delete(self, key: str, idx: int) -> ChatMessage | None:
        name = _key(key, MessageStatus.ACTIVE)
        while True:
            stored = self._memory.item(name)
            if stored is None or not 0 <= idx < len(stored.value):
                return None
            deleted = stored.value.pop(idx)
            try:
                self._memory.set(name, stored.value, if_version=stored.version)
            except Conflict:  # another process has appended meanwhile
                continue
            return _messages([deleted])[0]

    def _archive(self, key: str, count: int) -> list[Any]:
        active, archived = (_key(key, each) for each in (MessageStatus.ACTIVE, MessageStatus.ARCHIVED))
        while True:
            stored = self._memory.item(active)
            moved = stored.value[:count] if stored else []
            if stored is None or not moved:
                return []
            try:
                with self._memory.transaction() as t:
                    t.update({active: stored.value[count:]}, if_versions={active: stored.version})
                    t.append(archived, *moved)
            except Conflict:
                continue
            return list(moved)


_IN_ORDER = (MessageStatus.ARCHIVED, MessageStatus.ACTIVE)
"""The statuses, that of the oldest messages first."""


def _key(key: str, status: MessageStatus) -> str:
    return session_key(key, MESSAGES if status is MessageStatus.ACTIVE else ARCHIVED)


def _to_item(message: ChatMessage) -> dict[str, Any]:
    return entry(plain(message), sender=message.role.value)


def _messages(items: Sequence[Any]) -> list[ChatMessage]:
    return [ChatMessage.model_validate(item["message"]) for item in items]


# ------------------------------------------------------------ notes


class ScrubjayBlock(BaseMemoryBlock[str]):
    """A memory block: notes of a Memory about what the user says, and what leaves the queue of messages as new notes.

    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    :param session: the session of the notes. The model is given its notes and those of no session.
    :param limit: notes that the model is given, at most.
    :param max_tokens: tokens of these notes, at most.
    :param options: those of BaseMemoryBlock: name, description, priority, accept_short_term_memory.
    """

    session: str | None = None
    limit: int = NOTES
    max_tokens: int = TOKENS
    _memory: Memory = PrivateAttr()

    def __init__(self, memory: Memory | AsyncMemory | str = "llama-index", **options: Any) -> None:
        super().__init__(**{"name": "scrubjay", **options})
        self._memory = open_memory(memory)

    async def _aget(self, messages: list[ChatMessage] | None = None, **_: Any) -> str:
        """The notes about the last message of the user.

        :raises Unavailable: if the server is unreachable.
        """
        said = [each for each in messages or [] if each.role is MessageRole.USER]
        query = (said[-1].content or "") if said else ""
        limits = {"limit": self.limit, "max_tokens": self.max_tokens}
        return str(await read(context_for, self._memory, query, self.session, **limits))

    async def _aput(self, messages: list[ChatMessage]) -> None:
        """Store messages as notes, as one write."""
        await write(self._remember, messages)

    def _remember(self, messages: Sequence[ChatMessage]) -> None:
        with self._memory.transaction() as t:
            for message in messages:
                text = first_bytes(message.content or "")
                if text.strip() and message.role in (MessageRole.USER, MessageRole.ASSISTANT):
                    fields = {"sender": message.role.value}
                    t.remember(text, type="interaction", session=self.session, metadata=fields)


# ------------------------------------------------------------ documents and indexes


class ScrubjayKVStore(BaseKVStore):
    """A key-value store for LlamaIndex's document, index and chat stores.

        docstore = KVDocumentStore(ScrubjayKVStore())

    :param memory: a Memory or AsyncMemory, or the name of a namespace. Open it with `strict=True`: a value that is
        queued would be missing when it is read.
    """

    def __init__(self, memory: Memory | AsyncMemory | str = "llama-index-store") -> None:
        self._memory = open_memory(memory, strict=True)

    def put(self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION) -> None:
        """Store a value; enums, dates and models in it become JSON."""
        self._memory.set(join_key(collection, key), plain(val))

    async def aput(self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION) -> None:
        await write(self.put, key, val, collection)

    def put_all(
        self,
        kv_pairs: list[tuple[str, dict[str, Any]]],
        collection: str = DEFAULT_COLLECTION,
        batch_size: int = DEFAULT_BATCH_SIZE,  # noqa: ARG002 - it is LlamaIndex's least, and more is better here
    ) -> None:
        """Store several values, 500 of them as one write."""
        pairs = dict(kv_pairs)
        names = list(pairs)
        for start in range(0, len(names), BATCH):
            batch = names[start : start + BATCH]
            self._memory.update({join_key(collection, name): plain(pairs[name]) for name in batch})

    async def aput_all(
        self,
        kv_pairs: list[tuple[str, dict[str, Any]]],
        collection: str = DEFAULT_COLLECTION,
        batch_size: int = DEFAULT_BATCH_SIZE,
    ) -> None:
        await write(self.put_all, kv_pairs, collection, batch_size)

    def get(self, key: str, collection: str = DEFAULT_COLLECTION) -> dict[str, Any] | None:
        """Return a value; None if there is none."""
        found: dict[str, Any] | None = self._memory.get(join_key(collection, key))
        return found

    async def aget(self, key: str, collection: str = DEFAULT_COLLECTION) -> dict[str, Any] | None:
        return await read(self.get, key, collection)

    def get_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Return all values of a collection."""
        start = f"{quote_part(collection)}/"
        return {unquote_part(key.removeprefix(start)): value for key, value in self._memory.items(start)}

    async def aget_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        return await read(self.get_all, collection)

    def delete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Delete a value; returns whether there was one."""
        return bool(self._memory.delete(join_key(collection, key)))

    async def adelete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        return await write(self.delete, key, collection)
