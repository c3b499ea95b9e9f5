"""Storage for the streams of ag2 1.x, and a knowledge store.

    stream = MemoryStream(ScrubjayStorage(), id="sarah")
    await agent.ask("Hi", stream=stream)

Tested with ag2 1.2. AutoGen and ag2 before 1.0 have an adapter of their own: scrubjay.adapters.autogen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

from scrubjay.adapters._framework import missing, open_memory, read, write
from scrubjay.adapters._plain import plain
from scrubjay.async_memory import AsyncMemory, AsyncWatch
from scrubjay.conversations import entry, session_key
from scrubjay.errors import Conflict, Unavailable
from scrubjay.memory import Memory

try:
    from ag2.annotations import Context
    from ag2.context import StreamId
    from ag2.events import BaseEvent
    from ag2.events._serialization import deserialize_value, serialize_value
    from ag2.knowledge.base import ChangeCallback
except ImportError as error:
    raise missing("ag2", "ag2 1.2 or newer", error) from error

logger = logging.getLogger(__name__)

FIRST_PIECES = 16
"""Pieces of a text that a read from a position starts with: what was appended lately is most often asked for."""


class ScrubjayStorage:
    """The events of each stream, in a list of a Memory, as `scrubjay chat` and the dashboard show it.

    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    """

    def __init__(self, memory: Memory | AsyncMemory | str = "ag2") -> None:
        self._memory = open_memory(memory)
        self._known: dict[str, set[str]] = {}
        """The ids of the events that a history had when it was last read here, and of those added here since."""

    # ag2 reads these annotations when it calls: Context and BaseEvent have to exist at run time.
    async def save_event(self, event: BaseEvent, context: Context) -> None:
        """Append an event to the history of its stream."""
        key = _key(context.stream.id)
        item = _to_item(event)
        await write(self._memory.append, key, item)
        if key in self._known:
            self._known[key].add(item["id"])

    async def get_history(self, stream_id: StreamId) -> list[BaseEvent]:
        """Return the events of a stream, oldest first.

        :raises Unavailable: if the server is unreachable: an empty history would look like a new conversation.
        """
        key = _key(stream_id)
        found = await read(self._memory.get, key, [])
        self._known[key] = {item["id"] for item in found}
        return [deserialize_value(item["message"]) for item in found]

    async def set_history(self, stream_id: StreamId, events: Iterable[BaseEvent]) -> None:
        """Replace the events of a stream, as when a history is compacted.

        Events that another process has added since the history was read here stay, after the new ones.

        :raises Unavailable: if the server is unreachable.
        """
        key = _key(stream_id)
        self._known[key] = await write(self._replace, key, [_to_item(event) for event in events])

    async def drop_history(self, stream_id: StreamId) -> None:
        """Delete the events of a stream."""
        key = _key(stream_id)
        await write(self._memory.delete, key)
        self._known.pop(key, None)

    def _replace(self, key: str, items: list[dict[str, Any]]) -> set[str]:
        """Store the items before those that are not known; returns the ids of the former."""
        known = self._known.get(key)
        while True:
            stored = self._memory.item(key)
            later = (
                [] if stored is None or known is None else [each for each in stored.value if each["id"] not in known]
            )
            with contextlib.suppress(Conflict):
                self._memory.set(key, items + later, if_version=stored.version if stored else 0)
                return {item["id"] for item in items}


def _key(stream_id: StreamId) -> str:
    return session_key(str(stream_id))


def _to_item(event: BaseEvent) -> dict[str, Any]:
    return entry(plain(serialize_value(event)))


class ScrubjayKnowledgeStore:
    """A KnowledgeStore: texts under paths, in a Memory.

    A text is a list of pieces, so that adding to it costs the same however long it is. Beside it is its size in bytes,
    which gives each piece that is added its position.

    :param memory: a Memory or AsyncMemory, or the name of a namespace. Open it with `strict=True`: a queued text would
        be missing when it is read.
    """

    def __init__(self, memory: Memory | AsyncMemory | str = "ag2-knowledge") -> None:
        self._memory = open_memory(memory, strict=True)

    async def read(self, path: str) -> str | None:
        """Return the text at a path; None if there is none."""
        pieces = await read(self._memory.get, _text(path))
        return None if pieces is None else "".join(piece["text"] for piece in pieces)

    async def write(self, path: str, content: str) -> None:
        """Replace the text at a path."""
        rows = {_text(path): [{"at": 0, "text": content}], _size(path): len(content.encode())}
        await write(self._memory.update, rows)

    async def append(self, path: str, content: str) -> int:
        """Add to the text at a path, and return the position in bytes at which the addition starts."""
        return await write(self._append, path, content)

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        """Return a part of a text by positions in bytes; "" if there is none. The end of a long text is read fast.

        :raises UnicodeDecodeError: if a position is inside of a character.
        """
        return await read(self._read_range, path, max(start, 0), end)

    async def list(self, path: str = "/") -> list[str]:
        """Return the names in a directory, in order; those of directories end with a slash."""
        start = _below(path)
        found = await read(self._memory.keys, start)
        parts = [key.removeprefix(start).partition("/") for key in found]
        return sorted({name + slash for name, slash, _ in parts})

    async def exists(self, path: str) -> bool:
        """Return whether there is a text or a directory at a path."""
        return await read(lambda: _size(path) in self._memory or self._has_any(_below(path)))

    async def delete(self, path: str) -> None:
        """Delete the text at a path and those below it, all of them or none."""
        await write(self._delete, path)

    async def on_change(self, path: str, callback: ChangeCallback) -> ChangeWatcher:
        """Call a function with the path of each text that changes at a path or below it, in whatever process.

        :return: what ends it: `await watcher.close()`.
        """
        watch = AsyncWatch(partial(read, self._memory._open_watch, _size(path).rstrip("/"), None, None))
        return ChangeWatcher(await watch, _normalize(path), callback)

    # ------------------------------------------------------------ on a thread

    def _append(self, path: str, content: str) -> int:
        key = _size(path)
        while True:
            size = self._memory.item(key)
            at = size.value if size else 0
            with contextlib.suppress(Conflict):  # another one was faster
                with self._memory.transaction() as t:
                    t.append(_text(path), {"at": at, "text": content})
                    t.update({key: at + len(content.encode())}, if_versions={key: size.version if size else 0})
                return int(at)

    def _read_range(self, path: str, start: int, end: int | None) -> str:
        count = FIRST_PIECES
        while True:
            pieces = self._memory.tail(_text(path), count)
            if len(pieces) < count or pieces[0]["at"] <= start:
                break
            count *= 4
        first = pieces[0]["at"] if pieces else 0
        data = b"".join(piece["text"].encode() for piece in pieces)
        return data[start - first : None if end is None else max(end - first, 0)].decode()

    def _has_any(self, prefix: str) -> bool:
        return next(iter(self._memory.items(prefix, limit=1)), None) is not None

    def _delete(self, path: str) -> None:
        sizes = [key for key in [_size(path), *self._memory.keys(_below(path))] if key in self._memory]
        self._memory.update(dict.fromkeys([*sizes, *(_text(key.removeprefix("size")) for key in sizes)]))


class ChangeWatcher:
    """A subscription of a knowledge store: a task that looks for changes until it is closed."""

    def __init__(self, watch: AsyncWatch, path: str, callback: ChangeCallback) -> None:
        self._watch = watch
        self._path = path
        self._callback = callback
        self._task = asyncio.create_task(self._run(), name="scrubjay-knowledge-watch")

    async def close(self) -> None:
        """End the subscription."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        with contextlib.suppress(Unavailable):  # the Memory was closed
            await self._follow()

    async def _follow(self) -> None:
        async for change in self._watch:
            path = change.key.removeprefix("size")
            if path == self._path or path.startswith(f"{self._path.rstrip('/')}/"):
                await self._call(path)

    async def _call(self, path: str) -> None:
        try:
            await self._callback(path)
        except Exception:
            logger.exception("a callback for changes of %s failed; it is called again for the next change", path)


def _normalize(path: str) -> str:
    """A path with a slash at its start, none at its end, and none twice."""
    return "/" + "/".join(filter(None, path.split("/")))


def _size(path: str) -> str:
    return f"size{_normalize(path)}"


def _text(path: str) -> str:
    return f"text{_normalize(path)}"


def _below(path: str) -> str:
    """What the keys of a directory start with."""
    return f"{_size(path).rstrip('/')}/"
