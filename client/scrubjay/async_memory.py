"""AsyncMemory: the verbs of Memory, awaited.

Each verb runs on a thread, so the loop never waits for a disk or a server, and awaiting many at
once lets their writes share a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from .forks import Forkable
from .memory import Memory
from .records import Change, Item, Note, Pending, Usage
from .watching import Watch

T = TypeVar("T")
P = ParamSpec("P")


LOOK_AGAIN = 0.1
"""Seconds between two looks for changes; a wait on a thread would keep others from it, and a program from its end."""


class _Threads(Forkable):
    """The threads of this process; a forked child has none of its parent's."""

    def __init__(self) -> None:
        self.start_anew()
        self.watch_forks()

    def start_anew(self) -> None:
        self.pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="scrubjay")


_threads = _Threads()


class AsyncMemory:
    """What an agent remembers, under keys, in a namespace of its own; see Memory."""

    def __init__(
        self,
        namespace: str,
        *,
        url: str | None = None,
        path: str | PathLike[str] | None = None,
        durability: str | None = None,
        timeout: float | None = None,
        api_key: str | None = None,
        strict: bool = False,
        keep_refused: bool = False,
    ) -> None:
        self._memory = Memory(
            namespace,
            url=url,
            path=path,
            durability=durability,
            timeout=timeout,
            api_key=api_key,
            strict=strict,
            keep_refused=keep_refused,
        )
        self.namespace = self._memory.namespace

    async def set(self, key: str, value: Any, *, ttl: float | None = None, if_version: int | None = None) -> int | None:
        return await _on_thread(self._memory.set, key, value, ttl=ttl, if_version=if_version)

    async def get(self, key: str, default: Any = None) -> Any:
        return await _on_thread(self._memory.get, key, default)

    async def item(self, key: str) -> Item | None:
        return await _on_thread(self._memory.item, key)

    async def delete(self, key: str, *, if_version: int | None = None) -> bool | None:
        return await _on_thread(self._memory.delete, key, if_version=if_version)

    async def contains(self, key: str) -> bool:
        """`key in memory`, which Python cannot await."""
        return await _on_thread(self._memory.__contains__, key)

    async def keys(self, prefix: str = "") -> list[str]:
        return await _on_thread(self._memory.keys, prefix)

    async def count(self) -> int:
        """`len(memory)`, which Python cannot await."""
        return await _on_thread(self._memory.__len__)

    async def clear(self) -> int:
        return await _on_thread(self._memory.clear)

    async def append(self, key: str, *items: Any, once: str | None = None) -> int | None:
        return await _on_thread(self._memory.append, key, *items, once=once)

    async def tail(self, key: str, n: int) -> list[Any]:
        return await _on_thread(self._memory.tail, key, n)

    async def incr(self, key: str, by: float = 1, *, once: str | None = None) -> Any:
        return await _on_thread(self._memory.incr, key, by, once=once)

    async def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        return await _on_thread(self._memory.get_many, keys)

    async def update(self, mapping: Mapping[str, Any]) -> None:
        await _on_thread(self._memory.update, mapping)

    async def remember(
        self,
        content: str,
        *,
        type: str | None = None,  # noqa: A002 - the word that users write
        tags: Iterable[str] = (),
        session: str | None = None,
        ttl: float | None = None,
        ttl_days: float | None = None,
        pinned: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> Note | None:
        return await _on_thread(
            self._memory.remember,
            content,
            type=type,
            tags=tags,
            session=session,
            ttl=ttl,
            ttl_days=ttl_days,
            pinned=pinned,
            metadata=metadata,
        )

    async def recall(
        self,
        query: str,
        *,
        limit: int = 5,
        type: str | None = None,  # noqa: A002
        tags: Iterable[str] | None = None,
        session: str | None = None,
        threshold: float | None = None,
        ranking: str | None = None,
    ) -> list[Note]:
        return await _on_thread(
            self._memory.recall,
            query,
            limit=limit,
            type=type,
            tags=tags,
            session=session,
            threshold=threshold,
            ranking=ranking,
        )

    async def inject_context(
        self,
        query: str,
        *,
        limit: int = 8,
        max_tokens: int = 400,
        type: str | None = None,  # noqa: A002
        tags: Iterable[str] | None = None,
        session: str | None = None,
        threshold: float | None = None,
        ranking: str | None = None,
    ) -> str:
        return await _on_thread(
            self._memory.inject_context,
            query,
            limit=limit,
            max_tokens=max_tokens,
            type=type,
            tags=tags,
            session=session,
            threshold=threshold,
            ranking=ranking,
        )

    async def forget(self, note_id: str) -> bool:
        return await _on_thread(self._memory.forget, note_id)

    async def notes(
        self,
        *,
        type: str | None = None,  # noqa: A002
        tags: Iterable[str] | None = None,
        session: str | None = None,
    ) -> list[Note]:
        return await _on_thread(self._memory.notes, type=type, tags=tags, session=session)

    def watch(
        self, prefix: str = "", *, after: int | None = None, timeout: float | None = None
    ) -> AsyncIterator[Change]:
        """`async for change in memory.watch()`: see Memory.watch, from the moment that it is first awaited."""
        return _each_change(partial(self._memory._open_watch, prefix, after, timeout))  # noqa: SLF001

    async def usage(self) -> Usage:
        return await _on_thread(self._memory.usage)

    async def set_quota(self, **limits: int | None) -> Usage:
        return await _on_thread(self._memory.set_quota, **limits)

    async def pending(self) -> list[Pending]:
        return await _on_thread(self._memory.pending)

    async def flush(self, timeout: float = 10.0) -> None:  # noqa: ASYNC109 - it is the outbox that gives up
        await _on_thread(self._memory.flush, timeout)

    async def namespaces(self) -> list[str]:
        return await _on_thread(self._memory.namespaces)

    async def close(self) -> None:
        await _on_thread(self._memory.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._memory)[1:]}"


async def _on_thread(verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.get_running_loop().run_in_executor(_threads.pool, partial(verb, *args, **kwargs))


async def _each_change(open_watch: Callable[[], Watch]) -> AsyncIterator[Change]:
    watch = await _on_thread(open_watch)
    for change in watch.first:
        yield change
    while not watch.is_over():
        await asyncio.sleep(LOOK_AGAIN)
        for change in await _on_thread(watch.look, 0):
            yield change
