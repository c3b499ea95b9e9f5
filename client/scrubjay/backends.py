"""The seam under Memory: the same calls on a file in this process (here), or on a server (http_backend).

Names are checked and values are JSON text before they get here, so a backend only carries them.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .drafts import Draft, Question
from .forks import Forkable
from .lazy import Lazy
from .names import MAX_PAGE
from .records import ApiKey, Change, Item, Note, Pending, Usage
from .settings import resolve
from .store import changes, items, lists, quotas
from .store.sqlite import SqliteStore
from .values import decode

if TYPE_CHECKING:
    from .meaning import Meaning
    from .store import apikeys, deliveries, notes
else:
    apikeys, notes = Lazy("scrubjay.store.apikeys"), Lazy("scrubjay.store.notes")
    deliveries = Lazy("scrubjay.store.deliveries")


class Backend(Protocol):
    """What Memory needs of either end. A write gives None when it is kept to be sent later."""

    def get(self, namespace: str, key: str) -> Any:
        """The value, or MISSING."""

    def item(self, namespace: str, key: str) -> Item | None: ...
    def contains(self, namespace: str, key: str) -> bool: ...
    def set(self, namespace: str, key: str, text: str, ttl: float | None, if_version: int | None) -> int | None: ...
    def delete(self, namespace: str, key: str, if_version: int | None) -> bool | None: ...
    def keys(self, namespace: str, prefix: str, after: str) -> list[str]: ...
    def clear(self, namespace: str) -> int: ...
    def append(self, namespace: str, key: str, texts: Sequence[str], once: str | None) -> int | None: ...
    def tail(self, namespace: str, key: str, count: int) -> list[Any]: ...
    def incr(self, namespace: str, key: str, by: float, once: str | None) -> Any: ...
    def get_many(self, namespace: str, keys: Sequence[str]) -> dict[str, Any]: ...
    def update(self, namespace: str, texts: Mapping[str, str | None]) -> None: ...
    def remember(self, namespace: str, draft: Draft) -> Note | None: ...
    def recall(self, namespace: str, question: Question) -> list[Note]: ...
    def forget(self, namespace: str, note_id: str) -> bool: ...
    def notes(
        self, namespace: str, type_: str | None, tags: tuple[str, ...], session: str | None, after: str
    ) -> list[Note]: ...
    def changes(self, namespace: str, prefix: str, after: int | None, seconds: float) -> tuple[list[Change], int]:
        """Changes after the cursor and the cursor to go on from; waits up to so many seconds for one."""

    def audit(self, namespace: str | None, since: float, after: int) -> list[Change]: ...
    def usage(self, namespace: str) -> Usage: ...
    def set_quota(self, namespace: str, changes: Mapping[str, int | None]) -> Usage: ...
    def namespaces(self) -> list[str]: ...
    def issue_apikey(self, name: str, patterns: tuple[str, ...], *, read_only: bool, admin: bool) -> str: ...
    def apikeys(self) -> list[ApiKey]: ...
    def revoke_apikey(self, identity: str) -> bool: ...
    def pending(self, namespace: str | None) -> list[Pending]: ...
    def adopt(self) -> None: ...
    def flush(self, namespace: str | None, timeout: float) -> None: ...
    def close(self) -> None: ...

    @property
    def place(self) -> str: ...


LOOK_AGAIN = 0.02
"""Seconds between two looks for what other processes have changed."""
MISSING: Any = object()
"""No value, which is something else than the value None inside a list."""


class LocalBackend:
    """The store in this process."""

    def __init__(self, path: str, durability: str) -> None:
        self._store = _stores.borrow(path, durability)
        self.place = str(self._store.path)
        self._meaning = _stores.meaning_of(self._store)
        # Nobody who writes three lines calls close(): garbage collection and exit do it too.
        self.close = weakref.finalize(self, _stores.give_back, self._store)

    def get(self, namespace: str, key: str) -> Any:
        text = self._store.run(items.read_text(namespace, key))
        return MISSING if text is None else decode(text)

    def item(self, namespace: str, key: str) -> Item | None:
        stored = self._store.run(items.read_item(namespace, key))
        return stored and stored.to_item(key)

    def contains(self, namespace: str, key: str) -> bool:
        return self._store.run(items.find_version(namespace, key)) is not None

    def set(self, namespace: str, key: str, text: str, ttl: float | None, if_version: int | None) -> int:
        return self._store.run(items.set_item(namespace, key, text, ttl, if_version))[0]

    def delete(self, namespace: str, key: str, if_version: int | None) -> bool:
        return self._store.run(items.delete_item(namespace, key, if_version))[0]

    def keys(self, namespace: str, prefix: str, after: str) -> list[str]:
        return self._store.run(items.list_keys(namespace, prefix, after, MAX_PAGE))

    def clear(self, namespace: str) -> int:
        return self._store.run(notes.clear_all(namespace))[0]

    def append(self, namespace: str, key: str, texts: Sequence[str], once: str | None) -> int:
        return self._store.run(deliveries.once(lists.append_items(namespace, key, texts), namespace, _id(once)))[0]

    def tail(self, namespace: str, key: str, count: int) -> list[Any]:
        return [decode(text) for text in self._store.run(lists.read_tail(namespace, key, count))]

    def incr(self, namespace: str, key: str, by: float, once: str | None) -> Any:
        return self._store.run(deliveries.once(items.increment(namespace, key, by), namespace, _id(once)))[0]

    def get_many(self, namespace: str, keys: Sequence[str]) -> dict[str, Any]:
        found = self._store.run(items.read_many(namespace, keys))
        return {key: decode(text) for key, text in found.items()}

    def update(self, namespace: str, texts: Mapping[str, str | None]) -> None:
        self._store.run(items.update_items(namespace, texts))

    def remember(self, namespace: str, draft: Draft) -> Note:
        note = self._store.run(notes.remember(namespace, draft))[0]
        if self._meaning:
            self._meaning.add(namespace, note.id)
        return note

    def recall(self, namespace: str, question: Question) -> list[Note]:
        similar = self._meaning.similar(namespace, question) if self._meaning else {}
        return self._store.run(notes.recall(namespace, question, similar))

    def forget(self, namespace: str, note_id: str) -> bool:
        return self._store.run(notes.forget(namespace, note_id))[0]

    def notes(
        self, namespace: str, type_: str | None, tags: tuple[str, ...], session: str | None, after: str
    ) -> list[Note]:
        return self._store.run(notes.list_notes(namespace, type_, tags, session, after))

    def changes(self, namespace: str, prefix: str, after: int | None, seconds: float) -> tuple[list[Change], int]:
        give_up_at = time.monotonic() + seconds
        while True:
            found, cursor = self._store.run(changes.read_changes(namespace, prefix, after))
            if found or after is None or time.monotonic() >= give_up_at:
                return found, cursor
            after = cursor
            while self._store.run(changes.last_change()) == cursor and time.monotonic() < give_up_at:
                time.sleep(LOOK_AGAIN)

    def audit(self, namespace: str | None, since: float, after: int) -> list[Change]:
        return self._store.run(changes.read_audit(namespace, int(since * 1000), after))

    def usage(self, namespace: str) -> Usage:
        return self._store.run(quotas.read_usage(namespace))

    def set_quota(self, namespace: str, changes: Mapping[str, int | None]) -> Usage:
        return self._store.run(quotas.set_quota(namespace, changes))

    def namespaces(self) -> list[str]:
        return self._store.run(quotas.list_namespaces())

    def pending(self, namespace: str | None) -> list[Pending]:  # noqa: ARG002 - a file takes every write at once
        return []

    def adopt(self) -> None: ...
    def flush(self, namespace: str | None, timeout: float) -> None: ...

    def issue_apikey(self, name: str, patterns: tuple[str, ...], *, read_only: bool, admin: bool) -> str:
        identity, secret = apikeys.make()
        self._store.run(apikeys.issue(identity, secret, name, patterns, read_only, admin))
        return secret

    def apikeys(self) -> list[ApiKey]:
        return self._store.run(apikeys.list_all())

    def revoke_apikey(self, identity: str) -> bool:
        return self._store.run(apikeys.revoke(identity))


def _id(once: str | None) -> deliveries.Delivery | None:
    return None if once is None else deliveries.Delivery(once)


def _open_meaning(store: SqliteStore, choice: str) -> Meaning:
    from .meaning import Meaning  # noqa: PLC0415 - `import scrubjay` stays light

    meaning = Meaning(store, choice)
    meaning.catch_up()
    return meaning


class _Stores(Forkable):
    """One store for all handles on a file: a web handler that makes a Memory per request
    shares the warm connections, and threads share their commits.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[Path, str], SqliteStore] = {}
        self._borrowers: dict[tuple[Path, str], int] = {}
        self._meanings: dict[tuple[SqliteStore, str], Meaning] = {}
        self.start_anew()
        self.watch_forks()

    def start_anew(self) -> None:
        # Reentrant: the collector may end another Memory, and so give its store back, while this thread borrows.
        self._lock = threading.RLock()

    def borrow(self, path: str, durability: str) -> SqliteStore:
        at = (Path(path).expanduser().resolve(), durability)
        with self._lock:
            self._borrowers[at] = self._borrowers.get(at, 0) + 1  # first, so that nobody closes it from here on
            try:
                if at not in self._open:
                    self._open[at] = SqliteStore(at[0], durability=durability)
                return self._open[at]
            except BaseException:
                self._count_off(at)
                raise

    def give_back(self, store: SqliteStore) -> None:
        self._count_off((store.path, store.durability))

    def meaning_of(self, store: SqliteStore) -> Meaning | None:
        """None unless a model is chosen: then words are all there is, and nothing needs to be installed."""
        choice = resolve("embedder")
        if not choice:
            return None
        with self._lock:
            if (store, choice) not in self._meanings:
                self._meanings[store, choice] = _open_meaning(store, choice)
            return self._meanings[store, choice]

    def _count_off(self, at: tuple[Path, str]) -> None:
        with self._lock:
            self._borrowers[at] -= 1
            if not self._borrowers[at]:
                del self._borrowers[at]
                if at in self._open:  # not when it could not be opened in the first place
                    store = self._open.pop(at)
                    store.close()
                    self._meanings = {key: each for key, each in self._meanings.items() if key[0] is not store}


_stores = _Stores()
