"""Api keys: who may do what. The key itself is shown once and kept nowhere, only its hash."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from scrubjay.errors import InvalidInput
from scrubjay.names import check_name
from scrubjay.records import ApiKey, to_time

from .changes import Entry, record
from .operation import READ, WRITE, Context, Steps, operation

_PREFIX = "sj"
_ALL = ("*",)
_NOBODY = "0" * 64
_COLUMNS = "id, name, namespaces, read_only, admin, created_at"


# The key's row if there is one, and then always a row that tells whether there are keys at all.
_ADMIT = """SELECT hash, name, namespaces, read_only, admin FROM apikeys WHERE id = ?
UNION ALL SELECT NULL, NULL, NULL, NULL, count(*) FROM (SELECT 1 FROM apikeys LIMIT 1)"""


class Access(NamedTuple):
    """What a request may do."""

    name: str
    patterns: tuple[str, ...] = _ALL
    read_only: bool = False
    admin: bool = True

    def sees(self, namespace: str) -> bool:
        return self.patterns == _ALL or any(fnmatchcase(namespace, pattern) for pattern in self.patterns)


EVERYTHING = Access("anyone")
"""While there are no api keys."""


def make() -> tuple[str, str]:
    """A new key: its id, by which it is listed and revoked, and the whole of it. 256 random bits need no slow hash."""
    identity = secrets.token_hex(4)
    return identity, f"{_PREFIX}_{identity}_{secrets.token_urlsafe(32)}"


@operation(WRITE)
def issue(
    context: Context, identity: str, secret: str, name: str, patterns: tuple[str, ...], read_only: bool, admin: bool
) -> Steps[ApiKey]:
    for pattern in patterns:
        check_name("a namespace pattern", pattern)
    check_name("the name of an api key", name)
    if admin and patterns != _ALL:
        raise InvalidInput(
            "an admin key can issue keys for any namespace, so it has them all; leave out one of the two"
        )
    if admin and read_only:
        raise InvalidInput("an admin key can write by its nature; leave out one of admin and read-only")
    row = (identity, name, json.dumps(patterns), int(read_only), int(admin), context.now)
    yield f"INSERT INTO apikeys ({_COLUMNS}, hash) VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, _hash(secret))  # noqa: S608
    yield from record(context, [Entry("issue", "", identity)])
    return _apikey(row)


@operation(READ)
def list_all(_context: Context) -> Steps[list[ApiKey]]:
    rows = yield f"SELECT {_COLUMNS} FROM apikeys ORDER BY created_at, id", ()  # noqa: S608
    return [_apikey(row) for row in rows]


@operation(WRITE)
def revoke(context: Context, identity: str) -> Steps[bool]:
    rows = yield "DELETE FROM apikeys WHERE id = ? RETURNING id", (identity,)
    if rows:
        yield from record(context, [Entry("revoke", "", identity)])
    return bool(rows)


@operation(READ)
def admit(_context: Context, given: str | None) -> Steps[Access | None]:
    """What a request with this key may do; None when it may do nothing."""
    if given is None:  # the common case where there are no keys, on the path of every request
        rows = yield "SELECT 1 FROM apikeys LIMIT 1", ()
        return None if rows else EVERYTHING
    identity = given.removeprefix(f"{_PREFIX}_").partition("_")[0]
    rows = yield _ADMIT, (identity,)
    *found, (_, _, _, _, exist) = rows
    if not exist:
        return EVERYTHING
    # An unknown id takes the same time as a wrong secret.
    expected, name, patterns, read_only, admin = found[0] if found else (_NOBODY, "", "[]", 1, 0)
    if not hmac.compare_digest(_hash(given), expected):
        return None
    return Access(name, tuple(json.loads(patterns)), bool(read_only), bool(admin))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _apikey(row: tuple[Any, ...]) -> ApiKey:
    identity, name, patterns, read_only, admin, created_at = row
    return ApiKey(
        id=identity,
        name=name,
        namespaces=tuple(json.loads(patterns)),
        read_only=bool(read_only),
        admin=bool(admin),
        created_at=to_time(created_at),
    )
