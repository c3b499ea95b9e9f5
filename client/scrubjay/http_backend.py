"""The backend that asks a server. Loaded only when there is one: `import scrubjay` stays light."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, urlencode

from .backends import MISSING
from .drafts import Draft, Question
from .errors import NotFound, ScrubjayError, Unavailable, from_wire
from .names import MAX_NOTES_PAGE, MAX_PAGE, check_header
from .records import ApiKey, Change, Item, Note, Pending, Usage
from .version import __version__
from .wire import Answer, Flow, NoAnswer, open_wire

_HEADERS = {
    "User-Agent": f"scrubjay/{__version__}",
    "Accept": "application/json",
    "Content-Type": "application/json",
}
PIECE_BYTES = 2**18
"""What is read at a time of an answer that may be larger than memory."""


_ROUTES = {
    "set": ("PUT", "/items/"),
    "delete": ("DELETE", "/items/"),
    "update": ("PATCH", "/items"),
    "append": ("POST", "/lists/"),
    "remember": ("POST", "/notes"),
}
SHORTEST_TTL = 0.001
"""Seconds that are left of a time to live that ended on the way."""


class Write(NamedTuple):
    """A write that makes sense without its answer, so that it may be sent later, or again."""

    verb: str
    namespace: str
    key: str
    body: str = ""
    """A JSON object, without the time to live."""
    ttl: float | None = None

    def request(self, age: float = 0.0) -> tuple[str, str, str]:
        """Method, path and body, this many seconds after it was written: its time to live has begun."""
        method, route = _ROUTES[self.verb]
        body = self.body
        if self.ttl is not None:
            body = f'{body[:-1]},"ttl":{json.dumps(max(self.ttl - age, SHORTEST_TTL))}}}'
        return method, f"{_root(self.namespace)}{route}{quote(self.key, safe='')}", body


class HttpBackend:
    """A server, over kept-alive connections. What it cannot do now is raised; the outbox builds on it."""

    def __init__(self, url: str, timeout: float, api_key: str | None = None) -> None:
        self.place = url.rstrip("/")
        self._headers = dict(_HEADERS)
        if api_key:
            # Not Authorization: a user name in the URL, or a .netrc, would take its place.
            self._headers["X-API-Key"] = check_header("api_key", api_key)
        self._timeout = timeout
        self._wire = open_wire(self.place, timeout)

    def get(self, namespace: str, key: str) -> Any:
        data = self._find("GET", _item(namespace, key))
        return MISSING if data is None else data["value"]

    def item(self, namespace: str, key: str) -> Item | None:
        data = self._find("GET", _item(namespace, key))
        return None if data is None else Item.from_json(data)

    def contains(self, namespace: str, key: str) -> bool:
        answer = self._send("HEAD", _item(namespace, key))
        if "etag" in answer.headers:  # "0" when there is nothing
            return answer.status == 200
        return self._find("GET", _item(namespace, key)) is not None  # a HEAD cannot say why it failed

    def set(self, namespace: str, key: str, text: str, ttl: float | None, if_version: int | None) -> int | None:
        answer = self.write(Write("set", namespace, key, f'{{"value":{text}}}', ttl), _if_match(if_version))
        return None if answer is None else int(answer["version"])

    def delete(self, namespace: str, key: str, if_version: int | None) -> bool | None:
        try:
            answer = self.write(Write("delete", namespace, key), _if_match(if_version))
        except NotFound:
            return False
        return None if answer is None else True

    def keys(self, namespace: str, prefix: str, after: str) -> list[str]:
        query = urlencode({"prefix": prefix, "after": after, "limit": MAX_PAGE})
        return list(self._call("GET", f"{_root(namespace)}/items?{query}")["keys"])

    def clear(self, namespace: str) -> int:
        return int(self._call("DELETE", _root(namespace))["deleted"])

    def append(self, namespace: str, key: str, texts: Sequence[str], once: str | None) -> int | None:
        body = f'{{"items":[{",".join(texts)}],"once":{json.dumps(once)}}}'
        answer = self.write(Write("append", namespace, key, body))
        return None if answer is None else int(answer["length"])

    def tail(self, namespace: str, key: str, count: int) -> list[Any]:
        return list(self._call("GET", f"{_root(namespace)}/lists/{quote(key, safe='')}?tail={count}")["items"])

    def incr(self, namespace: str, key: str, by: float, once: str | None) -> Any:
        path = f"{_root(namespace)}/counters/{quote(key, safe='')}"
        return self._call("POST", path, json.dumps({"by": by, "once": once}))["value"]

    def get_many(self, namespace: str, keys: Sequence[str]) -> dict[str, Any]:
        return dict(self._call("POST", f"{_root(namespace)}/read", json.dumps({"keys": keys}))["values"])

    def update(self, namespace: str, texts: Mapping[str, str | None]) -> None:
        pairs = (f"{json.dumps(key)}:{'null' if text is None else text}" for key, text in texts.items())
        self.write(Write("update", namespace, "", f'{{"values":{{{",".join(pairs)}}}}}'))

    def remember(self, namespace: str, draft: Draft) -> Note | None:
        body = json.dumps(draft._replace(ttl=None).to_json())
        answer = self.write(Write("remember", namespace, "", body, draft.ttl))
        return None if answer is None else Note.from_json(answer)

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

    def changes(self, namespace: str, prefix: str, after: int | None, seconds: float) -> tuple[list[Change], int]:
        wait = min(seconds, self._timeout / 2)  # an answer that comes later would be taken for none
        asked = {"prefix": prefix or None, "after": after, "wait": f"{wait:g}"}
        query = urlencode([(name, value) for name, value in asked.items() if value is not None])
        answer = self._call("GET", f"{_root(namespace)}/changes?{query}")
        return [Change.from_json(change) for change in answer["changes"]], int(answer["cursor"])

    def audit(self, namespace: str | None, since: float, after: int) -> list[Change]:
        query = urlencode({"since": since, "after": after, **({"namespace": namespace} if namespace else {})})
        return [Change.from_json(change) for change in self._call("GET", f"/v1/audit?{query}")["changes"]]

    def usage(self, namespace: str) -> Usage:
        return Usage.from_json(self._call("GET", f"{_root(namespace)}/usage"))

    def set_quota(self, namespace: str, changes: Mapping[str, int | None]) -> Usage:
        return Usage.from_json(self._call("PATCH", f"{_root(namespace)}/quota", json.dumps(changes)))

    def namespaces(self) -> list[str]:
        return list(self._call("GET", "/v1/namespaces")["namespaces"])

    def issue_apikey(self, name: str, patterns: tuple[str, ...], *, read_only: bool, admin: bool) -> str:
        asked = {"name": name, "namespaces": patterns, "read_only": read_only, "admin": admin}
        return str(self._call("POST", "/v1/apikeys", json.dumps(asked))["key"])

    def apikeys(self) -> list[ApiKey]:
        return [ApiKey.from_json(data) for data in self._call("GET", "/v1/apikeys")["apikeys"]]

    def revoke_apikey(self, identity: str) -> bool:
        return self._find("DELETE", f"/v1/apikeys/{quote(identity, safe='')}") is not None

    def pending(self, namespace: str | None) -> list[Pending]:  # noqa: ARG002 - what cannot be sent is raised
        return []

    def adopt(self) -> None: ...
    def flush(self, namespace: str | None, timeout: float) -> None: ...

    def export(self, namespace: str, write: Callable[[bytes], object], progress: Callable[[int, int], object]) -> None:
        """All lines of a namespace, handed to `write`."""
        self._download(f"{_root(namespace)}/export", write, progress)

    def import_(self, namespace: str, file: BinaryIO, *, replace: bool) -> dict[str, Any]:
        """Bring an export in; what it held."""
        return self._upload(f"{_root(namespace)}/import?replace={json.dumps(replace)}", file)

    def backup(self, write: Callable[[bytes], object], progress: Callable[[int, int], object]) -> None:
        """The server's whole database, handed to `write`."""
        self._download("/v1/backup", write, progress)

    def erase(self, namespace: str) -> dict[str, Any]:
        """Erase a namespace for good, and what the server found when it looked for traces."""
        return self._upload(f"{_root(namespace)}/erase", None)

    def close(self) -> None:
        self._wire.close()

    def write(self, write: Write, headers: Mapping[str, str] | None = None, age: float = 0.0) -> Any:
        """The answer; the outbox gives None for a write that it keeps."""
        return self._call(*write.request(age), headers)

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
        answer = self._send(method, path, body, headers)
        if answer.status >= 300:
            raise self._failure(answer)
        return self._decoded(answer.data, answer.status) if answer.data else {}

    def _decoded(self, data: bytes, status: int) -> Any:
        try:
            return json.loads(data)
        except ValueError as error:
            raise Unavailable(
                f"{self.place} answered something that is not JSON; is it a Scrubjay server?", status=status
            ) from error

    def _upload(self, path: str, file: BinaryIO | None) -> dict[str, Any]:
        """What may take long, and may be larger than memory."""
        flow = self._stream("POST", path, file)
        with contextlib.closing(flow):
            answered: dict[str, Any] = self._decoded(self._read(flow), flow.status)
            return answered

    def _download(self, path: str, write: Callable[[bytes], object], progress: Callable[[int, int], object]) -> None:
        """An answer that may be larger than memory; one that was cut off is an error."""
        flow = self._stream("GET", path, None)
        with contextlib.closing(flow):
            total, done = int(flow.headers.get("Content-Length") or 0), 0
            while piece := self._read(flow, PIECE_BYTES):
                write(piece)
                done += len(piece)
                progress(done, total)
        if done < total:
            raise Unavailable(f"{self.place} broke off after {done:,} of {total:,} bytes; try again")

    def _stream(self, method: str, path: str, file: BinaryIO | None) -> Flow:
        try:
            flow = self._wire.stream(method, path, file, self._headers)
        except OSError as error:
            raise self._unreached(error) from error
        if flow.status >= 300:
            with contextlib.closing(flow):
                headers = {name.lower(): value for name, value in flow.headers.items()}
                raise self._failure(Answer(flow.status, headers, self._read(flow)))
        return flow

    def _read(self, flow: Flow, size: int | None = None) -> bytes:
        try:
            return flow.read(size)
        except Exception as error:  # two libraries read HTTP here, each with errors of its own
            raise Unavailable(f"{self.place} broke off in the middle of its answer: {error}; try again") from error

    def _send(
        self, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        sent = {**self._headers, **headers} if headers else self._headers
        try:
            return self._wire.send(method, path, b"" if body is None else body.encode(), sent)
        except OSError as error:
            raise self._unreached(error) from error

    def _unreached(self, error: OSError) -> Unavailable:
        if isinstance(error, NoAnswer):
            return Unavailable(f"{self.place} did not answer: {error}; what was asked may have happened or not")
        return Unavailable(f"cannot reach {self.place}: {error}; is it running? start it with: scrubjay serve")

    def _failure(self, answer: Answer) -> ScrubjayError:
        try:
            told = json.loads(answer.data)
            return from_wire(told["code"], told["detail"], answer.status, answer.headers.get("retry-after"))
        except (ValueError, KeyError, TypeError):
            return Unavailable(
                f"{self.place} answered {answer.status} without saying why; is it a Scrubjay server?",
                status=answer.status,
            )


def _root(namespace: str) -> str:
    return f"/v1/namespaces/{quote(namespace, safe='')}"


def _item(namespace: str, key: str) -> str:
    return f"/v1/namespaces/{quote(namespace, safe='')}/items/{quote(key, safe='')}"


def _if_match(version: int | None) -> dict[str, str]:
    if version is None:
        return {}
    return {"If-Match": f'"{version}"'} if version else {"If-None-Match": "*"}
