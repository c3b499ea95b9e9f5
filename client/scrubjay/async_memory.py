"""AsyncMemory: the verbs of Memory for asyncio.

Each verb runs on a thread, so the event loop never waits for a disk or a server, and concurrent writes share a commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from datetime import datetime
from functools import partial
from inspect import getdoc, isawaitable, isfunction
from os import PathLike
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar
from weakref import WeakSet

from scrubjay import commands
from scrubjay.errors import ScrubjayError
from scrubjay.memory import UNCHANGED, Memory
from scrubjay.models import Change, Conversation, Item, Learned, Match, Message, Note, Pending, Usage
from scrubjay.threads import threads_of
from scrubjay.transaction import CollectedWrites
from scrubjay.watch import Watch

T = TypeVar("T")
P = ParamSpec("P")


LOOK_SECONDS = 5.0
"""Seconds that a thread waits for changes at a time, so that it ends soon after its caller has stopped reading."""


def _documented(made: type[T]) -> type[T]:
    """Give each verb the docstring that it has in Memory, after what is different here."""
    for name, method in vars(made).items():
        verb = vars(Memory).get(name)
        if not name.startswith("_") and isfunction(verb):
            method.__doc__ = "\n\n".join(filter(None, (getdoc(method), getdoc(verb))))
    return made


@_documented
class AsyncMemory:
    """Memory for asyncio: methods with the same names, arguments, results and errors, most of them to be awaited.

    - `items`, `values` and `scan` are not awaited: `async for key, value in memory.items()`.
    - `async for change in memory.watch()` has the changes since its first step. `changes = await memory.watch()` starts
      at once, and `async for change in changes` then misses nothing. While it waits it has a thread of its own.
    - `async with memory.transaction() as t` awaits the end of the block; the verbs of `t` are not awaited.
    - Each server, database or file has 16 threads for calls, so that a silent one holds up no calls to others. A call
      that waited half of `timeout` for a thread, while calls failed and none was answered, raises Unavailable without
      being sent; a write that can be queued is queued.
    - What Python cannot await has other words: `await memory.contains(key)` for `key in memory`, `await memory.count()`
      for `len(memory)`, and `get`, `set`, `delete` and `keys` for `memory[key]`, `del` and `for key in memory`.
    """

    def __init__(
        self,
        namespace: str,
        *,
        url: str | None = None,
        path: str | PathLike[str] | None = None,
        durability: str | None = None,
        timeout: float | None = None,
        api_key: str | None = None,
        secret: str | None = None,
        outbox: str | PathLike[str] | None = None,
        embedder: str | None = None,
        strict: bool = False,
    ) -> None:
        self._memory = Memory(
            namespace,
            url=url,
            path=path,
            durability=durability,
            timeout=timeout,
            api_key=api_key,
            secret=secret,
            outbox=outbox,
            embedder=embedder,
            strict=strict,
        )
        self.namespace = self._memory.namespace
        self._is_strict = strict
        self._timeout = self._memory._executor.timeout  # noqa: SLF001
        self._threads = threads_of(self._memory.location)
        self._watches: WeakSet[AsyncWatch] = WeakSet()

    async def set(self, key: str, value: Any, *, ttl: float | None = None, if_version: int | None = None) -> int | None:
        return await self._write(self._memory.set, key, value, ttl=ttl, if_version=if_version)

    async def get(self, key: str, default: Any = None) -> Any:
        return await self._run(self._memory.get, key, default)

    async def item(self, key: str) -> Item | None:
        return await self._run(self._memory.item, key)

    async def delete(self, key: str, *, if_version: int | None = None) -> bool | None:
        return await self._write(self._memory.delete, key, if_version=if_version)

    async def contains(self, key: str) -> bool:
        """Return whether a key exists: `key in memory`, which Python cannot await.

        :param key: text of up to 512 bytes.
        :raises Unavailable: if the server is unreachable, and queued writes alone do not determine it.
        """
        return await self._run(self._memory.__contains__, key)

    async def keys(self, prefix: str = "") -> list[str]:
        return await self._run(self._memory.keys, prefix)

    def items(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, reverse: bool = False
    ) -> AsyncIterator[tuple[str, Any]]:
        """`async for key, value in memory.items()`."""
        return self._each_of(self._memory._pages(commands.ITEMS, prefix, after, limit, reverse))  # noqa: SLF001

    def scan(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, reverse: bool = False
    ) -> AsyncIterator[Item]:
        """`async for item in memory.scan()`."""
        return self._each_of(self._memory._pages(commands.SCAN, prefix, after, limit, reverse))  # noqa: SLF001

    async def find(
        self, prefix: str = "", *, where: Mapping[str, Any] | None = None, limit: int = 10, offset: int = 0
    ) -> list[Item]:
        return await self._run(self._memory.find, prefix, where=where, limit=limit, offset=offset)

    def values(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, reverse: bool = False
    ) -> AsyncIterator[Any]:
        """`async for value in memory.values()`."""
        pages = self._memory._pages(commands.ITEMS, prefix, after, limit, reverse)  # noqa: SLF001
        return self._each_of([value for _, value in page] for page in pages)

    async def setdefault(self, key: str, default: Any) -> Any:
        return await self._run(self._memory.setdefault, key, default)

    async def touch(self, key: str, ttl: float | None) -> bool:
        return await self._run(self._memory.touch, key, ttl)

    async def merge(self, key: str, mapping: Mapping[str, Any]) -> int | None:
        return await self._write(self._memory.merge, key, mapping)

    async def slice(self, key: str, start: int = 0, stop: int | None = None) -> list[Any]:
        return await self._run(self._memory.slice, key, start, stop)

    async def length(self, key: str) -> int:
        return await self._run(self._memory.length, key)

    async def pop(self, key: str, n: int = 1, *, first: bool = False) -> list[Any]:
        return await self._run(self._memory.pop, key, n, first=first)

    async def count(self) -> int:
        """Return how many keys the namespace has: `len(memory)`, which Python cannot await.

        :raises Unavailable: if the server is unreachable.
        """
        return await self._run(self._memory.__len__)

    async def clear(self, prefix: str = "") -> int:
        return await self._run(self._memory.clear, prefix)

    async def append(self, key: str, *items: Any, once: str | None = None) -> int | None:
        return await self._write(self._memory.append, key, *items, once=once)

    async def tail(self, key: str, n: int) -> list[Any]:
        return await self._run(self._memory.tail, key, n)

    async def incr(self, key: str, by: float = 1, *, once: str | None = None) -> Any:
        return await self._run(self._memory.incr, key, by, once=once)

    async def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        return await self._run(self._memory.get_many, keys)

    async def update(
        self, mapping: Mapping[str, Any], *, if_versions: Mapping[str, int] | None = None, ttl: float | None = None
    ) -> None:
        await self._write(self._memory.update, mapping, if_versions=if_versions, ttl=ttl)

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
        supersedes: Iterable[str] = (),
        id: str | None = None,  # noqa: A002
    ) -> Note | None:
        return await self._write(
            self._memory.remember,
            content,
            type=type,
            tags=tags,
            session=session,
            ttl=ttl,
            ttl_days=ttl_days,
            pinned=pinned,
            metadata=metadata,
            supersedes=supersedes,
            id=id,
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
        explain: bool = False,
        at: datetime | None = None,
    ) -> list[Note]:
        return await self._run(
            self._memory.recall,
            query,
            limit=limit,
            type=type,
            tags=tags,
            session=session,
            threshold=threshold,
            ranking=ranking,
            explain=explain,
            at=at,
        )

    async def search(self, query: str, prefix: str = "", *, limit: int = 10) -> list[Match]:
        return await self._run(self._memory.search, query, prefix, limit=limit)

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
        at: datetime | None = None,
    ) -> str:
        return await self._run(
            self._memory.inject_context,
            query,
            limit=limit,
            max_tokens=max_tokens,
            type=type,
            tags=tags,
            session=session,
            threshold=threshold,
            ranking=ranking,
            at=at,
        )

    async def forget(self, note_id: str) -> bool:
        return await self._run(self._memory.forget, note_id)

    async def notes(
        self,
        *,
        type: str | None = None,  # noqa: A002
        tags: Iterable[str] | None = None,
        session: str | None = None,
    ) -> list[Note]:
        return await self._run(self._memory.notes, type=type, tags=tags, session=session)

    async def conversations(self, *, session: str | None = None) -> list[Conversation]:
        return await self._run(self._memory.conversations, session=session)

    async def conversation(
        self,
        session: str | None = None,
        *,
        key: str | None = None,
        limit: int = 100,
        before: int | None = None,
        after: int | None = None,
        search: str | None = None,
    ) -> list[Message]:
        return await self._run(
            self._memory.conversation, session, key=key, limit=limit, before=before, after=after, search=search
        )

    async def forget_session(self, session: str) -> int:
        return await self._run(self._memory.forget_session, session)

    async def distill(
        self,
        session: str,
        model: Callable[[str], str] | Callable[[str], Awaitable[str]],
        *,
        key: str | None = None,
        tokens_per_day: int | None = None,
    ) -> Learned:
        """`model`, which may be async here, is called on a thread, and what it returns is awaited if it has to be."""
        from scrubjay.learning import check_model, next_prompt  # noqa: PLC0415 - `import scrubjay` stays light

        check_model(model, may_be_async=True)
        steps = self._memory._distill(session, key, tokens_per_day)  # noqa: SLF001
        answer: Any = None
        while isinstance(step := await self._run_always(next_prompt, steps, answer), str):
            answer = await self._run_always(model, step)
            if isawaitable(answer):
                answer = await answer
        return step

    def transaction(self, *, once: str | None = None) -> AsyncTransaction:
        """`async with memory.transaction() as t`; the verbs of `t` are not awaited."""
        return AsyncTransaction(self, once)

    def watch(self, prefix: str = "", *, after: int | None = None, timeout: float | None = None) -> AsyncWatch:
        """`async for change in memory.watch()`, or `changes = await memory.watch()` before."""
        watch = AsyncWatch(partial(self._run, self._memory._open_watch, prefix, after, timeout))  # noqa: SLF001
        self._watches.add(watch)
        return watch

    async def usage(self) -> Usage:
        return await self._run(self._memory.usage)

    async def set_quota(self, *, writes_per_day: int | None = UNCHANGED, max_bytes: int | None = UNCHANGED) -> Usage:
        return await self._run(self._memory.set_quota, writes_per_day=writes_per_day, max_bytes=max_bytes)

    async def pending(self) -> list[Pending]:
        return await self._run_always(self._memory.pending)

    async def flush(self, timeout: float = 10.0) -> None:  # noqa: ASYNC109 - it is the outbox that gives up
        await self._run_always(self._memory.flush, timeout)

    async def namespaces(self) -> list[str]:
        return await self._run(self._memory.namespaces)

    @property
    def location(self) -> str:
        return self._memory.location

    async def close(self) -> None:
        await self._run_always(self._memory.close)
        for watch in list(self._watches):
            watch.look_again()  # which raises that the Memory is closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._memory)[1:]}"

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call on a thread, but not if the target has been silent while it waited for one."""
        return await asyncio.wrap_future(self._threads.submit_within(self._timeout, call, *args, **kwargs))

    async def _run_always(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call on a thread whatever the target does."""
        return await asyncio.wrap_future(self._threads.submit(call, *args, **kwargs))

    async def _write(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a write that the outbox takes, if there is one, when the target is silent."""
        return await (self._run if self._is_strict else self._run_always)(call, *args, **kwargs)

    async def _each_of(self, pages: Iterator[Sequence[T]]) -> AsyncIterator[T]:
        """Each element of pages that are read on a thread."""
        while (page := await self._run(next, pages, None)) is not None:
            for each in page:
                yield each


class AsyncTransaction(CollectedWrites):
    """A transaction whose end is awaited."""

    def __init__(self, memory: AsyncMemory, once: str | None) -> None:
        super().__init__(memory.namespace, memory._memory._run, once)  # noqa: SLF001
        self._write = memory._write  # noqa: SLF001

    async def __aenter__(self) -> Self:
        return self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._write(self.end, kind)


class AsyncWatch(AsyncIterator[Change]):
    """Changes, to be iterated. It starts when it is awaited, or else with the first step of the iteration.

    A step that finds nothing waits on a thread of its own. If it is cancelled, the next step has what the thread finds.
    """

    def __init__(self, open_watch: Callable[[], Awaitable[Watch]]) -> None:
        self._open_watch = open_watch
        self._watch: Watch | None = None
        self._found: deque[Change] = deque()
        self._look: Future[list[Change]] | None = None
        """The look that is under way, or whose changes no step has taken."""

    def __await__(self) -> Generator[Any, Any, Self]:
        yield from self._start().__await__()
        return self

    async def _start(self) -> Watch:
        if self._watch is None:
            self._watch = await self._open_watch()
            self._found.extend(self._watch.first)
        return self._watch

    async def __anext__(self) -> Change:
        watch = await self._start()
        while not self._found:
            if self._look is None:
                if watch.is_over:
                    raise StopAsyncIteration
                self._look = _on_own_thread(watch.look, LOOK_SECONDS)
            await self._wait_for(self._look)
        return self._found.popleft()

    async def _wait_for(self, look: Future[list[Change]]) -> None:
        with contextlib.suppress(ScrubjayError):
            await asyncio.wrap_future(look)
        if self._look is look:  # else another step has taken it
            self._look = None
            self._found.extend(look.result())

    def look_again(self) -> None:
        """Let the step that waits look at once."""
        if self._look is not None:
            with contextlib.suppress(InvalidStateError):
                self._look.set_result([])


def _on_own_thread(verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Start a verb on a daemon thread: one that waits would block the pool, and the end of the program."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # so that a caller who is cancelled does not cancel it

    def run() -> None:
        with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
            try:
                future.set_result(verb(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - raised where the result is taken
                future.set_exception(error)

    threading.Thread(target=run, name="scrubjay-watch", daemon=True).start()
    return future
