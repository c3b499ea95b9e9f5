"""The seam under Memory: the same calls on a file in this process, or on a server.

Names are checked and values are JSON text before they get here, so a backend only carries them.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import quote, urlencode, urlsplit

from .drafts import Draft, Question
from .errors import InvalidInput, NotFound, ScrubjayError, Unavailable, from_wire
from .forks import renew_after_fork
from .names import MAX_NOTES_PAGE, MAX_PAGE
from .records import Item, Note, Usage
from .settings import resolve
from .store import items, lists, notes, quotas
from .store.sqlite import SqliteStore
from .values import decode
from .version import __version__

if TYPE_CHECKING:
    import urllib3

    from .meaning import Meaning


class Backend(Protocol):
    """What Memory needs of either end."""

    def get(self, namespace: str, key: str) -> Any:
        """The value, or MISSING."""

    def item(self, namespace: str, key: str) -> Item | None: ...
    def contains(self, namespace: str, key: str) -> bool: ...
    def set(self, namespace: str, key: str, text: str, ttl: float | None, if_version: int | None) -> int: ...
    def delete(self, namespace: str, key: str, if_version: int | None) -> bool: ...
    def keys(self, namespace: str, prefix: str, after: str) -> list[str]: ...
    def clear(self, namespace: str) -> int: ...
    def append(self, namespace: str, key: str, texts: Sequence[str]) -> int: ...
    def tail(self, namespace: str, key: str, count: int) -> list[Any]: ...
    def incr(self, namespace: str, key: str, by: float) -> Any: ...
    def get_many(self, namespace: str, keys: Sequence[str]) -> dict[str, Any]: ...
    def update(self, namespace: str, texts: Mapping[str, str | None]) -> None: ...
    def remember(self, namespace: str, draft: Draft) -> Note: ...
    def recall(self, namespace: str, question: Question) -> list[Note]: ...
    def forget(self, namespace: str, note_id: str) -> bool: ...
    def notes(
        self, namespace: str, type_: str | None, tags: tuple[str, ...], session: str | None, after: str
    ) -> list[Note]: ...
    def usage(self, namespace: str) -> Usage: ...
    def set_quota(self, namespace: str, changes: Mapping[str, int | None]) -> Usage: ...
    def namespaces(self) -> list[str]: ...
    def close(self) -> None: ...

    @property
    def place(self) -> str: ...


MISSING: Any = object()
"""No value, which is something else than the value None inside a list."""


class LocalBackend:
    """The store in this process."""

    def __init__(self, path: str, durability: str) -> None:
        self._store = _borrow(path, durability)
        self.place = str(self._store.path)
        self._meaning = _open_meaning(self._store)
        # Nobody who writes three lines calls close(): garbage collection and exit do it too.
        self.close = weakref.finalize(self, _give_back, self._store)

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

    def append(self, namespace: str, key: str, texts: Sequence[str]) -> int:
        return self._store.run(lists.append_items(namespace, key, texts))[0]

    def tail(self, namespace: str, key: str, count: int) -> list[Any]:
        return [decode(text) for text in self._store.run(lists.read_tail(namespace, key, count))]

    def incr(self, namespace: str, key: str, by: float) -> Any:
        return self._store.run(items.increment(namespace, key, by))[0]

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
        similar = self._meaning.similar(namespace, question.query) if self._meaning else {}
        return self._store.run(notes.recall(namespace, question, similar))

    def forget(self, namespace: str, note_id: str) -> bool:
        return self._store.run(notes.forget(namespace, note_id))[0]

    def notes(
        self, namespace: str, type_: str | None, tags: tuple[str, ...], session: str | None, after: str
    ) -> list[Note]:
        return self._store.run(notes.list_notes(namespace, type_, tags, session, after))

    def usage(self, namespace: str) -> Usage:
        return self._store.run(quotas.read_usage(namespace))

    def set_quota(self, namespace: str, changes: Mapping[str, int | None]) -> Usage:
        return self._store.run(quotas.set_quota(namespace, changes))

    def namespaces(self) -> list[str]:
        return self._store.run(quotas.list_namespaces())


# One store for all handles on a file: a web handler that makes a Memory per request
# shares the warm connections, and threads share their commits.
_stores: dict[tuple[Path, str], SqliteStore] = {}
_borrowers: dict[tuple[Path, str], int] = {}
_stores_lock = threading.Lock()


def _borrow(path: str, durability: str) -> SqliteStore:
    at = (Path(path).expanduser().resolve(), durability)
    with _stores_lock:
        if at not in _stores:
            _stores[at] = SqliteStore(at[0], durability=durability)
        _borrowers[at] = _borrowers.get(at, 0) + 1
        return _stores[at]


def _open_meaning(store: SqliteStore) -> Meaning | None:
    """None unless a model is chosen: then words are all there is, and nothing needs to be installed."""
    choice = resolve("embedder")
    if not choice:
        return None
    from .meaning import Meaning  # noqa: PLC0415 - `import scrubjay` stays light

    return Meaning(store, choice)


def _give_back(store: SqliteStore) -> None:
    at = (store.path, store.durability)
    with _stores_lock:
        _borrowers[at] -= 1
        if not _borrowers[at]:
            del _borrowers[at], _stores[at]
            store.close()


class HttpBackend:
    """A server, over kept-alive connections.

    `requests` reads the environment's proxies and certificates once; each call then goes straight
    to its urllib3 pool, which takes a third of the time of `Session.request`.
    """

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidInput(f"the url {url!r} is not one of a server; write it as http://127.0.0.1:8787")
        self.place = url.rstrip("/")
        self._root = quote(parts.path.rstrip("/"), safe="/%")
        self._timeout = timeout
        self._headers = {
            "User-Agent": f"scrubjay/{__version__}",
            "Accept": "application/json",
            "Content-Type": "application/json",
        }
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        import requests  # noqa: PLC0415 - `import scrubjay` stays light

        session = requests.Session()
        request = requests.Request("GET", self.place).prepare()
        settings = session.merge_environment_settings(self.place, {}, None, None, None)
        adapter = session.get_adapter(self.place)
        assert isinstance(adapter, requests.adapters.HTTPAdapter)  # noqa: S101 - requests' own default
        pool = adapter.get_connection_with_tls_context(
            request, settings["verify"], proxies=settings["proxies"], cert=settings["cert"]
        )
        self._pool = cast("urllib3.HTTPConnectionPool", pool)

    def get(self, namespace: str, key: str) -> Any:
        data = self._find("GET", _item(namespace, key))
        return MISSING if data is None else data["value"]

    def item(self, namespace: str, key: str) -> Item | None:
        data = self._find("GET", _item(namespace, key))
        return None if data is None else Item.from_json(data)

    def contains(self, namespace: str, key: str) -> bool:
        return self._find("HEAD", _item(namespace, key)) is not None

    def set(self, namespace: str, key: str, text: str, ttl: float | None, if_version: int | None) -> int:
        body = f'{{"value":{text}}}' if ttl is None else f'{{"value":{text},"ttl":{json.dumps(ttl)}}}'
        return int(self._call("PUT", _item(namespace, key), body, _if_match(if_version))["version"])

    def delete(self, namespace: str, key: str, if_version: int | None) -> bool:
        return self._find("DELETE", _item(namespace, key), headers=_if_match(if_version)) is not None

    def keys(self, namespace: str, prefix: str, after: str) -> list[str]:
        query = urlencode({"prefix": prefix, "after": after, "limit": MAX_PAGE})
        return list(self._call("GET", f"{_root(namespace)}/items?{query}")["keys"])

    def clear(self, namespace: str) -> int:
        return int(self._call("DELETE", _root(namespace))["deleted"])

    def append(self, namespace: str, key: str, texts: Sequence[str]) -> int:
        body = f'{{"items":[{",".join(texts)}]}}'
        return int(self._call("POST", f"{_root(namespace)}/lists/{quote(key, safe='')}", body)["length"])

    def tail(self, namespace: str, key: str, count: int) -> list[Any]:
        return list(self._call("GET", f"{_root(namespace)}/lists/{quote(key, safe='')}?tail={count}")["items"])

    def incr(self, namespace: str, key: str, by: float) -> Any:
        path = f"{_root(namespace)}/counters/{quote(key, safe='')}"
        return self._call("POST", path, json.dumps({"by": by}))["value"]

    def get_many(self, namespace: str, keys: Sequence[str]) -> dict[str, Any]:
        return dict(self._call("POST", f"{_root(namespace)}/read", json.dumps({"keys": keys}))["values"])

    def update(self, namespace: str, texts: Mapping[str, str | None]) -> None:
        pairs = (f"{json.dumps(key)}:{'null' if text is None else text}" for key, text in texts.items())
        self._call("PATCH", f"{_root(namespace)}/items", f'{{"values":{{{",".join(pairs)}}}}}')

    def remember(self, namespace: str, draft: Draft) -> Note:
        return Note.from_json(self._call("POST", f"{_root(namespace)}/notes", json.dumps(draft.to_json())))

    def recall(self, namespace: str, question: Question) -> list[Note]:
        answer = self._call("POST", f"{_root(namespace)}/notes/recall", json.dumps(question.to_json()))
        return [Note.from_json(note) for note in answer["notes"]]

    def forget(self, namespace: str, note_id: str) -> bool:
        return self._find("DELETE", f"{_root(namespace)}/notes/{quote(note_id, safe='')}") is not None

    def notes(
        self, namespace: str, type_: str | None, tags: tuple[str, ...], session: str | None, after: str
    ) -> list[Note]:
        asked = {"type": type_, "session": session, "after": after or None, "limit": MAX_NOTES_PAGE}
        query = urlencode([*((k, v) for k, v in asked.items() if v is not None), *(("tag", tag) for tag in tags)])
        return [Note.from_json(note) for note in self._call("GET", f"{_root(namespace)}/notes?{query}")["notes"]]

    def usage(self, namespace: str) -> Usage:
        return Usage.from_json(self._call("GET", f"{_root(namespace)}/usage"))

    def set_quota(self, namespace: str, changes: Mapping[str, int | None]) -> Usage:
        return Usage.from_json(self._call("PATCH", f"{_root(namespace)}/quota", json.dumps(changes)))

    def namespaces(self) -> list[str]:
        return list(self._call("GET", "/v1/namespaces")["namespaces"])

    def close(self) -> None:
        self._pool.close()

    def health(self) -> dict[str, Any]:
        return {**self._call("GET", "/health"), **self._call("GET", "/ready")}

    def _find(self, method: str, path: str, *, headers: Mapping[str, str] | None = None) -> Any:
        """The answer, or None when there is nothing of that name."""
        try:
            return self._call(method, path, headers=headers)
        except NotFound:
            return None

    def _call(self, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None) -> Any:
        """One request and its JSON answer; every failure is a ScrubjayError."""
        import urllib3  # noqa: PLC0415 - `import scrubjay` stays light

        try:
            answer = self._pool.urlopen(
                method,
                self._root + path,
                body=None if body is None else body.encode(),
                headers=self._headers if not headers else {**self._headers, **headers},
                timeout=self._timeout,
                retries=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(
                f"cannot reach {self.place}: {error}; is it running? start it with: scrubjay serve"
            ) from error
        if answer.status >= 300:
            raise self._failure(answer.status, answer.data, answer.headers.get("Retry-After"))
        if not answer.data:
            return {}
        try:
            return json.loads(answer.data)
        except ValueError as error:
            raise Unavailable(f"{self.place} answered something that is not JSON; is it a Scrubjay server?") from error

    def _failure(self, status: int, data: bytes, retry_after: str | None) -> ScrubjayError:
        if not data and status == 404:  # HEAD
            return NotFound("there is nothing of that name")
        try:
            answer = json.loads(data)
            return from_wire(answer["code"], answer["detail"], status, retry_after)
        except (ValueError, KeyError, TypeError):
            return Unavailable(f"{self.place} answered {status} without saying why; is it a Scrubjay server?")


def _root(namespace: str) -> str:
    return f"/v1/namespaces/{quote(namespace, safe='')}"


def _item(namespace: str, key: str) -> str:
    return f"/v1/namespaces/{quote(namespace, safe='')}/items/{quote(key, safe='')}"


def _if_match(version: int | None) -> dict[str, str]:
    if version is None:
        return {}
    return {"If-Match": f'"{version}"'} if version else {"If-None-Match": "*"}
