"""Memory: the user's verbs on one namespace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Self, cast

from .backends import MISSING, Backend, LocalBackend
from .drafts import Draft, Question
from .errors import InvalidInput, Unavailable
from .names import (
    MAX_NOTES_PAGE,
    MAX_PAGE,
    check_count,
    check_key,
    check_label,
    check_namespace,
    check_seconds,
    check_tags,
    check_ttl,
    shown,
)
from .recall.context import as_context
from .records import Change, Item, Note, Pending, Usage
from .settings import resolve
from .values import check_total, encode
from .watching import Watch


class Memory:
    """What an agent remembers, under keys, in a namespace of its own.

        memory = Memory("my-agent")
        memory.set("user", {"name": "Sarah"})
        memory.get("user")

    Without `url` (or SCRUBJAY_URL) it is a file of this user's: no server, no key, nothing to configure.
    With it, the same calls go to a Scrubjay server. Safe to share between threads.

    While that server cannot be reached, what is set, appended, deleted, updated and remembered is kept on disk and
    sent later, in order and once; those calls then give None. With `strict=True` they raise Unavailable instead.
    """

    # Loggers of frameworks write down whatever vars() finds, and all that hangs on it: the namespace, and no api key.
    __slots__ = ("__dict__", "__weakref__", "_backend", "_where")

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
        self.namespace = check_namespace(namespace)
        self._where: dict[str, Any] = {
            "url": url,
            "path": path,
            "durability": durability,
            "timeout": timeout,
            "api_key": api_key,
            "strict": strict,
            "keep_refused": keep_refused,
        }
        self._backend = open_backend(**self._where)

    def set(self, key: str, value: Any, *, ttl: float | None = None, if_version: int | None = None) -> int | None:
        """Store any JSON value and return its version; None deletes, which is version 0.

        `ttl` is in seconds. `if_version` stores only over that very version (0: only if there is
        none) and raises Conflict otherwise.
        """
        check_key(key)
        check_ttl(ttl)
        if if_version is not None:
            check_count("if_version", if_version)
        if value is None:
            return None if self._backend.delete(self.namespace, key, if_version) is None else 0
        return self._backend.set(self.namespace, key, encode(value), ttl, if_version)

    def get(self, key: str, default: Any = None) -> Any:
        """The value, exactly as it was stored."""
        value = self._backend.get(self.namespace, check_key(key))
        return default if value is MISSING else value

    def item(self, key: str) -> Item | None:
        """The value with its version, times and size."""
        return self._backend.item(self.namespace, check_key(key))

    def delete(self, key: str, *, if_version: int | None = None) -> bool | None:
        """Whether it was there; None when that is not known yet."""
        if if_version is not None:
            check_count("if_version", if_version)
        return self._backend.delete(self.namespace, check_key(key), if_version)

    def __contains__(self, key: object) -> bool:
        return self._backend.contains(self.namespace, check_key(key))

    def keys(self, prefix: str = "") -> list[str]:
        """All keys that start with `prefix`, sorted."""
        return list(self._each_key(prefix))

    def __iter__(self) -> Iterator[str]:
        return self._each_key("")

    def __len__(self) -> int:
        return self.usage().keys

    def __bool__(self) -> bool:
        """A memory is true even while it is empty, so that `memory or Memory(...)` works."""
        return True

    def clear(self) -> int:
        """Delete everything in the namespace, for good; how many items and notes there were."""
        return self._backend.clear(self.namespace)

    def append(self, key: str, *items: Any, once: str | None = None) -> int | None:
        """Add to the end of a list, atomically, at a cost that does not grow with it; its length.

        With an id of your own in `once`, sending it again after a lost answer does not append twice.
        """
        check_key(key)
        _check_once(once)
        texts = [encode(item, f"items[{i}]") for i, item in enumerate(items)]
        check_total(texts)
        return self._backend.append(self.namespace, key, texts, once)

    def tail(self, key: str, n: int) -> list[Any]:
        """The last `n` items of a list, oldest first."""
        check_key(key)
        return self._backend.tail(self.namespace, key, check_count("n", n))

    def incr(self, key: str, by: float = 1, *, once: str | None = None) -> Any:
        """Add to a number atomically, from 0 if there is none; the new number. For `once` see append."""
        check_key(key)
        _check_once(once)
        if type(by) not in (int, float):
            raise InvalidInput(f"by is a number, not {shown(by)}")
        encode(by, "by")
        return self._backend.incr(self.namespace, key, by, once)

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """The values of those keys that are there, seen at one moment."""
        if isinstance(keys, str):
            raise InvalidInput("get_many takes several keys; for one, call get")
        wanted = [check_key(key) for key in keys]
        check_total(wanted)
        return self._backend.get_many(self.namespace, wanted) if wanted else {}

    def update(self, mapping: Mapping[str, Any]) -> None:
        """Store several values, all of them or none; None deletes."""
        texts = {
            check_key(key): None if value is None else encode(value, f"value[{shown(key)}]")
            for key, value in mapping.items()
        }
        check_total([*texts, *filter(None, texts.values())])
        if texts:
            self._backend.update(self.namespace, texts)

    def remember(
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
        """Keep a text that `recall` finds again; the same content once more refreshes the note.

        `type` and `tags` are free texts to filter by. Notes of one `session` lend each other context.
        A note expires after `ttl` seconds or `ttl_days`, unless it is `pinned`.
        """
        draft = Draft.check(
            content,
            type=type,
            tags=tags,
            session=session,
            ttl=ttl,
            ttl_days=ttl_days,
            pinned=pinned,
            metadata=dict(metadata) if isinstance(metadata, Mapping) else metadata,
        )
        return self._backend.remember(self.namespace, draft)

    def recall(
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
        """The notes that answer best, best first, each with its `score` from 0 to 1.

        Filters: `type`, `tags` (all of them), `session`, and a score of at least `threshold`.
        `ranking="confidence"` lets recency and frequency weigh in, where the default only breaks ties by them.
        """
        question = Question.check(
            query, limit=limit, type=type, tags=tags, session=session, threshold=threshold, ranking=ranking
        )
        return self._backend.recall(self.namespace, question)

    def inject_context(
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
        """What is remembered about this, as text for a system prompt; "" when nothing fits."""
        check_count("max_tokens", max_tokens)
        notes = self.recall(
            query, limit=limit, type=type, tags=tags, session=session, threshold=threshold, ranking=ranking
        )
        return as_context(notes, max_tokens)

    def forget(self, note_id: str) -> bool:
        """Erase a note, its text, index and vector, in the file and its log; whether it was there."""
        return self._backend.forget(self.namespace, check_key(note_id, "note id"))

    def notes(
        self,
        *,
        type: str | None = None,  # noqa: A002
        tags: Iterable[str] | None = None,
        session: str | None = None,
    ) -> list[Note]:
        """All notes, in the order they were first remembered."""
        which = (check_label("type", type), check_tags(tags), check_label("session", session))
        found: list[Note] = []
        page = self._backend.notes(self.namespace, *which, "")
        while page:
            found += page
            if len(page) < MAX_NOTES_PAGE:
                break
            page = self._backend.notes(self.namespace, *which, page[-1].id)
        return found

    def watch(self, prefix: str = "", *, after: int | None = None, timeout: float | None = None) -> Iterator[Change]:
        """Each change in the namespace from now on, by whomever, as it happens; the value is for `get` to read.

        `prefix` keeps to some of the keys. Every change has an `id`: given as `after`, watching goes on from
        there and misses nothing. Ends when nothing happens for `timeout` seconds; without it, never.
        """
        return iter(self._open_watch(prefix, after, timeout))

    def usage(self) -> Usage:
        """What the namespace holds, its writes today, and its limits."""
        return self._backend.usage(self.namespace)

    def set_quota(self, **limits: int | None) -> Usage:
        """Limit this namespace: `writes_per_day=`, `max_bytes=`; 0 is no limit, None is the default again."""
        for name, limit in limits.items():
            if name not in ("writes_per_day", "max_bytes"):
                raise InvalidInput(f"there is no quota {name!r}; set writes_per_day or max_bytes")
            if limit is not None:
                check_count(name, limit)
        return self._backend.set_quota(self.namespace, limits)

    def pending(self) -> list[Pending]:
        """What was written to this namespace and could not be sent yet, oldest first, with the reason.

        Reads see it, but for `item`, `usage`, `recall` and `notes`. Embedded, there is never any.
        """
        return self._backend.pending(self.namespace)

    def flush(self, timeout: float = 10.0) -> None:
        """Return when nothing of this namespace is pending; raise Unavailable, with the reason, if that takes longer.

        What is not sent then is still kept, and sent later.
        """
        self._backend.flush(self.namespace, check_seconds("timeout", timeout))

    def namespaces(self) -> list[str]:
        """Every namespace in the same store, whether it still holds something or not."""
        return self._backend.namespaces()

    @property
    def api_key(self) -> str | None:
        """The key that it was opened with, if any."""
        key: str | None = resolve("api_key", self._where["api_key"])
        return key

    @property
    def timeout(self) -> float:
        """Seconds that it waits for a server."""
        seconds: float = resolve("timeout", self._where["timeout"])
        return seconds

    @property
    def is_away(self) -> bool:
        """Whether the server was asked in vain, and nobody has reached it since."""
        return self.has_outbox and bool(getattr(self._backend, "is_away", False))

    @property
    def has_outbox(self) -> bool:
        """Whether what cannot be sent is kept on disk."""
        return is_remote(self.place) and not self._where["strict"]

    @property
    def place(self) -> str:
        """Where it is: the path of the file, or the URL of the server."""
        return self._backend.place

    def close(self) -> None:
        """Let go of the file or the connections; nothing is lost by not calling it."""
        self._backend.close()
        self._backend = cast("Backend", _Closed())

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process, or a copy, opens the same memory for itself."""
        return partial(type(self), **self._where), (self.namespace,)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Memory {self.namespace!r} at {self.place}>"

    def _open_watch(self, prefix: str, after: int | None, timeout: float | None) -> Watch:
        if prefix:
            check_key(prefix)
        if after is not None:
            check_count("after", after)
        if timeout is not None:
            check_seconds("timeout", timeout)
        return Watch(lambda: self._backend, self.namespace, prefix, after, timeout)

    def _each_key(self, prefix: str) -> Iterator[str]:
        if prefix:
            check_key(prefix, "prefix")
        page, after = [""], ""
        while page:
            page = self._backend.keys(self.namespace, prefix, after)
            yield from page
            if len(page) < MAX_PAGE:
                return
            after = page[-1]


def is_remote(place: str) -> bool:
    return place.startswith("http")


def reopened(memory: Memory, **changes: Any) -> Memory:
    """Another handle on the same memory, opened with other options."""
    return type(memory)(memory.namespace, **{**memory._where, **changes})  # noqa: SLF001


def _check_once(once: str | None) -> None:
    if once is not None:
        check_key(once, "once id")


class _Closed:
    """What is behind a Memory after close()."""

    place = "nothing: it is closed"

    def close(self) -> None: ...

    def __getattr__(self, _verb: str) -> Any:
        raise Unavailable("this Memory is closed; open another one")


def open_backend(
    *,
    url: str | None = None,
    path: str | PathLike[str] | None = None,
    durability: str | None = None,
    timeout: float | None = None,
    api_key: str | None = None,
    strict: bool = True,
    keep_refused: bool = False,
) -> Backend:
    """The server if there is a URL, else the file. `keep_refused` lets the outbox keep what a quota refuses, too."""
    for name, given in (("url", url), ("path", path), ("durability", durability), ("api_key", api_key)):
        if given is not None and not isinstance(given, str | PathLike):
            raise InvalidInput(f"{name} is text, not {shown(given)}")
    if url is not None and path is not None:
        raise InvalidInput("give url= for a server or path= for a file, not both")
    server = None if path is not None else resolve("url", url)
    if not server:
        return LocalBackend(fspath(resolve("path", path)), resolve("durability", durability))
    address = server, resolve("timeout", timeout), resolve("api_key", api_key)
    if strict:
        from .http_backend import HttpBackend  # noqa: PLC0415 - `import scrubjay` stays light

        return HttpBackend(*address)
    from .outbox_backend import OutboxBackend  # noqa: PLC0415

    return OutboxBackend(*address, fspath(resolve("outbox")), keep_refused=keep_refused)
