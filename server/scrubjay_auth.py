"""Authentication: which api key a request has sent, and what that key allows."""

from __future__ import annotations

import asyncio
import base64
import functools
import ipaddress
import re
import sqlite3
from typing import Protocol
from urllib.parse import urlsplit

from starlette.types import Scope

from scrubjay.errors import Forbidden, Unauthenticated
from scrubjay.settings import DEFAULT_MAX_BYTES, DEFAULT_WRITES_PER_DAY, Settings
from scrubjay.store import api_keys
from scrubjay.store.api_keys import EVERYTHING, Access
from scrubjay.store.operation import Actor, KeyQuota, Quota
from scrubjay.store.sqlite import SqliteStore
from scrubjay_limits import ConcurrencyLimit, RequestLimit
from scrubjay_signin import SAFE_METHODS, SignIns

_PROXY_HEADER = re.compile(rb"^(?:forwarded$|via$|x-real-ip$|x-forwarded)", re.MULTILINE)
"""Headers that a proxy adds to the requests that it forwards."""
DEFAULT_QUOTA = Quota(DEFAULT_WRITES_PER_DAY, DEFAULT_MAX_BYTES)
"""The limits of a namespace of a server with api keys, unless others are set."""
MAX_CACHED_KEYS = 1000
"""Api keys whose access is cached; at more the cache is emptied, so that invented keys do not fill the memory."""
NO_KEY = (
    "no api key was sent, and this server needs an api key: set SCRUBJAY_API_KEY, or send it as Authorization: Bearer"
)
NO_KEY_IN_HEADER = (
    "the Authorization header has no api key, and this server needs one: send Bearer and the key, or Basic with the key"
    f" as user name or password; keys begin with {api_keys.PREFIX}"
)
UNKNOWN_KEY = "this api key is not known to the server, or was revoked: check SCRUBJAY_API_KEY"
NEW_KEY = (
    "`scrubjay key issue --admin --path FILE`, on the machine that has the server's file, makes a new admin key; for a"
    " server on PostgreSQL, give --url postgresql://USER@HOST/DATABASE instead of --path FILE"
)
"""How the administrator gets a key, on either engine; the file or database is not named, because anyone may read it."""


SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "an api key; not needed while there are none"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "the same, in another header"},
    "basic": {"type": "http", "scheme": "basic", "description": "the same, as the user name or as the password"},
}
"""The ways to send an api key, for the OpenAPI document. FastAPI's classes for them are dependencies, each of which
would be resolved for every request and parse what `credentials` parses."""


class Authenticator:
    """Admits requests: by api key or, until the first key is issued, by being local; within the client's limits."""

    def __init__(
        self, keys: KeyCache, sign_ins: SignIns, settings: Settings, workers: int, max_concurrent: int
    ) -> None:
        self._keys = keys
        self.sign_ins = sign_ins
        self._requires_key = requires_key(settings)
        self._is_file = settings.socket is not None
        per_minute = settings.requests_per_minute
        self._request_limit = RequestLimit(per_minute, workers) if per_minute else None
        self.concurrency = ConcurrencyLimit(max_concurrent)

    async def admit(self, scope: Scope) -> Access:
        """What the request may do. Counts it: `release` has to be called when it has been answered.

        Raises Unauthenticated, Forbidden, or an error if the client exceeds a limit.
        """
        try:
            access = await self.authenticate(scope)
        except Unauthenticated:
            if self._request_limit:  # of the address only: behind a proxy all clients share it
                self._request_limit.take(address_of(scope))
            raise
        client = address_of(scope) if access is EVERYTHING else access.id
        if self._request_limit:
            self._request_limit.take(client)
        scope["access"], scope["client_id"] = access, client
        self.concurrency.take(client)
        scope["release"] = client
        return access

    def release(self, scope: Scope) -> None:
        """Stop counting a request, if it was counted."""
        client = scope.get("release")
        if client is not None:
            self.concurrency.release(client)

    async def authenticate(self, scope: Scope) -> Access:
        """What the request may do; without an api key, everything, but only from this machine."""
        headers = headers_of(scope)
        apikey, is_basic = credentials(headers)
        if apikey is None and (signed_in := await self.sign_ins.find(scope, headers)):
            _reject_cross_site(headers, must_say=scope["method"] not in SAFE_METHODS)
            return signed_in.access
        access = await self._keys.find(apikey)
        if access is None or (access is EVERYTHING and self._requires_key):
            no_key = NO_KEY_IN_HEADER if b"authorization" in headers else NO_KEY
            raise Unauthenticated(f"{UNKNOWN_KEY if apikey else no_key}; {NEW_KEY}")
        if access is EVERYTHING:
            _reject_remote("localhost" if self._is_file else address_of(scope), scope["http_version"], headers)
        if access is EVERYTHING or is_basic:
            _reject_cross_site(headers)
        return access


class Quotas:
    """The limits that requests have by default, depending on their access.

    A server that answers its own machine without a key has no limits unless they are set: every client of it could
    write to the file itself. With keys, a namespace has those of DEFAULT_QUOTA.
    """

    def __init__(self, settings: Settings) -> None:
        given = (settings.writes_per_day, settings.max_bytes)
        self.without_key = Quota(*(limit or 0 for limit in given))
        self.with_key = Quota(
            *(default if limit is None else limit for limit, default in zip(given, DEFAULT_QUOTA, strict=True))
        )
        self._of_keys = KeyQuota(settings.key_writes_per_day, settings.key_max_bytes, settings.key_max_namespaces)
        self._anonymous = self._actor(EVERYTHING, self.without_key)

    def actor(self, access: Access) -> Actor:
        """In whose name an operation runs for this access, and within which limits."""
        return self._anonymous if access is EVERYTHING else self._actor(access, self.with_key)

    def _actor(self, access: Access, quota: Quota) -> Actor:
        return Actor(access.name, "" if access.admin else access.id, quota, self._of_keys)


class KeyCache(Protocol):
    """What the authenticator needs, whichever engine has the keys."""

    async def find(self, apikey: str | None) -> Access | None: ...


class ApiKeyCache:
    """What each api key allows, read from the database when that has changed.

    `PRAGMA data_version` tells whether another connection has committed, in this process or another. It is read
    once in each iteration of the event loop, so a request that is sent after a key was revoked is refused. That
    takes 5 µs for all the requests of an iteration, where reading the key takes 15 µs for each.
    """

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._connection = store.connect(busy_seconds=0)
        self._loop = asyncio.get_running_loop()
        self._known: dict[str | None, Access] = {}
        self._version = 0
        self._is_current = False

    def close(self) -> None:
        self._connection.close()

    async def find(self, apikey: str | None) -> Access | None:
        """What a request with this key may do; None if nothing."""
        if not self._is_current:
            self._check_version()
        access = self._known.get(apikey)
        if access is None and (access := self._store.run(api_keys.admit(apikey))) is not None:
            if len(self._known) >= MAX_CACHED_KEYS:
                self._known.clear()
            self._known[apikey] = access
        return access

    def _check_version(self) -> None:
        try:
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error as error:
            raise self._store.explained(error) from error
        if version != self._version:
            self._version = version
            self._known.clear()
        self._is_current = True
        self._loop.call_soon(self._expire)

    def _expire(self) -> None:
        self._is_current = False


def address_of(scope: Scope) -> str:
    client = scope["client"]
    return client[0] if client else ""


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The request's headers; of a repeated one, the first. Starlette's mapping takes ten times as long."""
    headers: dict[bytes, bytes] | None = scope.get("header_dict")
    if headers is None:
        headers = scope["header_dict"] = dict(reversed(scope["headers"]))
    return headers


def credentials(headers: dict[bytes, bytes]) -> tuple[str | None, bool]:
    """The api key of a request, and whether it came by Basic authentication, which a browser repeats by itself."""
    scheme = text = ""
    authorization = headers.get(b"authorization")
    if authorization is None and b"x-api-key" not in headers:
        return None, False
    if authorization is not None:
        scheme, _, text = authorization.decode("latin-1").partition(" ")
        scheme = scheme.lower()
    if scheme == "bearer":
        return text.strip(), False
    if (apikey := headers.get(b"x-api-key")) is not None:  # beside it, Basic may be meant for a proxy
        return apikey.decode("latin-1"), False
    if scheme == "basic" and (basic := _basic_key(text)):
        return basic, True
    return None, False


def _basic_key(text: str) -> str | None:
    """The api key, as the user name or as the password; None when neither is one."""
    try:
        user, _, password = base64.b64decode(text).decode("latin-1").partition(":")
    except ValueError:
        return None
    return next((part for part in (user, password) if part.startswith(api_keys.PREFIX)), None)


def _reject_remote(address: str, http_version: str, headers: dict[bytes, bytes]) -> None:
    """Without api keys, answer only programs on this machine, and no proxy that forwards the requests of others.

    A proxy that speaks HTTP/1.1, adds no header and sends a local Host looks like such a program: it needs
    --require-key. nginx uses HTTP/1.0 unless it is configured otherwise, and current HTTP clients do not.
    """
    if not is_loopback(address):
        raise Unauthenticated(f"without api keys this server answers only to its own machine; {NEW_KEY}")
    if http_version == "1.0":
        raise _proxied("came as HTTP/1.0, as proxies send them")
    names = b"\n".join(headers)  # one search in all of them takes less time than a loop
    if _PROXY_HEADER.search(names):
        name = next(name for name in headers if _PROXY_HEADER.match(name))
        raise _proxied(f"has the header {name.decode()[:40]}")
    host = headers.get(b"host", b"").decode("latin-1")
    if not is_loopback(host):
        raise Forbidden(f"without api keys this server answers only to its own names, not to {host[:80]!r}")


def _proxied(sign: str) -> Unauthenticated:
    return Unauthenticated(
        f"without api keys this server answers no proxy, and the request {sign}; start it with --require-key, or:"
        f" {NEW_KEY}"
    )


def _reject_cross_site(headers: dict[bytes, bytes], *, must_say: bool = False) -> None:
    """A page of another site can make a browser send a request here, with what the browser stores to sign in.

    With `must_say` a request without an origin is refused as well; for a write every browser sends one.
    """
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
    if origin is None and site is None:
        if must_say:
            raise Forbidden("a request that is signed in by a cookie needs the header Origin; send the api key instead")
        return
    is_foreign = origin is not None and origin.partition(b"://")[2] != headers.get(b"host")
    if is_foreign or site in (b"cross-site", b"same-site"):
        name = "another site" if origin is None else origin.decode("latin-1")
        raise Forbidden(
            f"this request was made by a web page of {name[:80]!r}; such a page has to send an"
            " api key itself, as Authorization: Bearer or X-API-Key"
        )


@functools.lru_cache(64)
def is_loopback(host: str) -> bool:
    """True if a Host header, or an address to listen on, means this machine alone."""
    for name in (host, _hostname(host)):
        try:
            if name == "localhost" or ipaddress.ip_address(name or "").is_loopback:
                return True
        except ValueError:
            continue
    return False


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def requires_key(settings: Settings) -> bool:
    """True if requests need an api key even before the first is issued: always where other machines can connect."""
    return settings.require_key or not (settings.socket or is_loopback(settings.host))
