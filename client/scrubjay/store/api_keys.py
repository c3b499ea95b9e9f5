"""Api keys and the access they give. A key is shown once; only its hash is stored."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

from scrubjay.errors import Forbidden, InvalidInput, repr_short
from scrubjay.models import ApiKey, IssuedKey, to_time
from scrubjay.store.changes import LogEntry, append_changes
from scrubjay.store.key_usage import counted_today
from scrubjay.store.operation import LOCAL, READ, WRITE, Context, SlowQuery, Statements, operation
from scrubjay.validation import check_count, check_name, check_namespace

PREFIX = "sj_"
"""The first characters of every api key."""
_ALL = ("*",)
_NO_HASH = "0" * 64
LIMITS = ("writes_per_day", "max_bytes", "max_namespaces")
"""The limits of a key, as `set_quota` takes them and in the order of their columns."""
_NO_LIMITS: Mapping[str, int | None] = {}


class Access(NamedTuple):
    """What a request is allowed to do."""

    name: str
    id: str = ""
    """The id of the api key, which stays the same when its secret is replaced; empty without a key."""
    patterns: tuple[str, ...] = _ALL
    read_only: bool = False
    admin: bool = True

    def sees(self, namespace: str) -> bool:
        return self.patterns == _ALL or any(matches(namespace, pattern) for pattern in self.patterns)


def matches(namespace: str, pattern: str) -> bool:
    """Whether a pattern matches: `*` stands for any characters, `[*]` for an asterisk, every other for itself."""
    return fnmatchcase(namespace, _glob(pattern))


@lru_cache(maxsize=4096)
def _glob(pattern: str) -> str:
    """The pattern in the language of fnmatch, to which `?` and `[` are special, too."""
    return "[*]".join(re.sub(r"[?[]", r"[\g<0>]", part) for part in pattern.split("[*]"))


EVERYTHING = Access("anyone")
"""The access of every request until the first api key is issued. When all keys are revoked, no request has access."""
_NO_KEYS = (LOCAL.name, EVERYTHING.name)
"""The actors in the logs of calls without an api key."""


@operation("issue_key", WRITE)
def issue(
    context: Context,
    name: str,
    patterns: tuple[str, ...] = _ALL,
    read_only: bool = False,
    admin: bool = False,
    limits: Mapping[str, int | None] = _NO_LIMITS,
    exact: bool = False,
) -> Statements[IssuedKey]:
    """Issue a key. While no other key is active an admin key is issued with it, to issue the next one with.

    With `exact` the patterns are names of namespaces, in which no character is special.
    """
    _check_limits(limits)
    if exact:
        patterns = tuple(check_namespace(name).replace("*", "[*]") for name in patterns)
    else:
        for pattern in patterns:
            _check_pattern(pattern)
    check_name("the name of an api key", name)
    if admin and patterns != _ALL:
        raise InvalidInput(
            "an admin key can issue keys for any namespace, so it has access to all; leave out namespaces or admin"
        )
    if admin and read_only:
        raise InvalidInput("an admin key can write; leave out admin or read-only")
    if admin and limits:
        raise InvalidInput("an admin key can change every limit, so it has none; leave out the limits or admin")
    others = yield "find_active_api_key", ()
    made, secret = yield from _add(context, name, patterns, read_only, admin, limits)
    if admin or others:
        return IssuedKey(made, secret, None, is_first=not others)
    _, admin_secret = yield from _add(context, "admin", _ALL, False, True)
    return IssuedKey(made, secret, admin_secret, is_first=True)


@operation("issue_key", WRITE)
def issue_first(context: Context, name: str) -> Statements[str | None]:
    """Issue an admin key, if no key was ever issued; None otherwise."""
    rows = yield "find_any_api_key", ()
    if rows:
        return None
    _, secret = yield from _add(context, name, _ALL, False, True)
    return secret


def _add(
    context: Context,
    name: str,
    patterns: tuple[str, ...],
    read_only: bool,
    admin: bool,
    limits: Mapping[str, int | None] = _NO_LIMITS,
) -> Statements[tuple[ApiKey, str]]:
    """Add a key: what is listed of it, and the key itself."""
    identity = secrets.token_hex(4)
    secret = _new_secret(identity)
    row = (identity, name, json.dumps(patterns), int(read_only), int(admin), context.now, *map(limits.get, LIMITS))
    yield "insert_api_key", (*row, hash_secret(secret))
    yield from append_changes(context, [LogEntry(context.verb, "", identity)])
    return _api_key(context, (*row, 0, 0, 0, 0)), secret


def _new_secret(identity: str) -> str:
    """A key. 256 random bits need no slow hash."""
    return f"{PREFIX}{identity}_{secrets.token_urlsafe(32)}"


def _check_limits(limits: Mapping[str, int | None]) -> None:
    for name, limit in limits.items():
        if limit is not None:
            check_count(name, limit)


def _check_pattern(pattern: Any) -> None:
    check_name("a namespace pattern", pattern)
    if "," in pattern:
        raise InvalidInput(
            f"the namespace pattern {repr_short(pattern)} has a comma, which does not separate patterns: send a list"
            ' such as ["team-*", "x-*"]; for a namespace that has a comma in its name, send "exact": true'
        )


@operation("api_keys", READ)
def list_all(context: Context) -> Statements[list[ApiKey]]:
    """The keys that are not revoked."""
    rows = yield "list_api_keys", ()
    return [_api_key(context, row) for row in rows]


@operation("set_key_quota", WRITE)
def set_quota(context: Context, identity: str, changes: Mapping[str, int | None]) -> Statements[ApiKey | None]:
    """Change the limits of a key that are named in `changes`; None restores the default. None if there is no key.

    A revoked key has limits, too: the namespaces that it owns still count for it.
    """
    _check_limits(changes)
    rows = yield "read_api_key", (identity,)
    if not rows:
        return None
    key = _api_key(context, rows[0])
    if changes:
        key = ApiKey(**{**key._asdict(), **changes})
        yield "set_key_limits", (key.writes_per_day, key.max_bytes, key.max_namespaces, identity)
        yield from append_changes(context, [LogEntry(context.verb, "", identity)])
    return key


@operation("rotate_key", WRITE)
def rotate(context: Context, identity: str) -> Statements[str | None]:
    """Replace the secret of a key at once, and end its sign-ins; everything else stays. None if it is not in force."""
    secret = _new_secret(identity)
    rows = yield "replace_key_hash", (hash_secret(secret), identity)
    if not rows:
        return None
    yield "delete_sign_ins_of", (identity,)
    yield from append_changes(context, [LogEntry(context.verb, "", identity)])
    return secret


@operation("revoke_key", WRITE, is_slow=lambda _identity, forget=False, *_: forget)
def revoke(context: Context, identity: str, forget: bool = False, keep_admin: bool = False) -> Statements[bool]:
    """Revoke a key; with `keep_admin` not the last admin key, without which no client could issue another.

    With `forget` its name and its namespaces are removed as well, also those of a key that was revoked before. Its row
    stays: the namespaces that it owns count for it, and without a row the store would be open to everybody.
    """
    if keep_admin:
        admins = yield "list_admin_keys", ()
        if admins == [(identity,)]:
            raise Forbidden(
                f"{identity} is the last admin key, so it is not revoked over HTTP: issue another admin key first, or"
                f" run `scrubjay key revoke {identity} --path FILE` on the machine that has the server's file; for a"
                " server on PostgreSQL, give --url postgresql://USER@HOST/DATABASE instead of --path FILE"
            )
    rows = yield "revoke_api_key", (context.now, identity)
    if rows:
        yield from append_changes(context, [LogEntry(context.verb, "", identity)])
    return (yield from _forget(identity)) if forget else bool(rows)


def _forget(identity: str) -> Statements[bool]:
    """Put the id of a key in the place of its name, in the logs too; False if there is no such key.

    The logs have names, so a name that another key has as well stays in them until that key is forgotten, too.
    """
    rows = yield "read_api_key", (identity,)
    if not rows:
        return False
    name = rows[0][1]
    yield "forget_api_key", (identity,)
    others = yield "find_api_key_named", (name,)
    if not others and name not in _NO_KEYS:
        yield "rename_actor_of_changes", (identity, name)
        yield "rename_actor_of_refusals", (identity, name)
    return True


@operation("api_keys", READ)
def find_named(_context: Context, namespace: str) -> Statements[list[dict[str, Any]]]:
    """The keys, revoked ones included, that have the name of a namespace: among their namespaces, or in their name."""
    word = re.compile(rf"(?<![\w-]){re.escape(namespace)}(?![\w-])")
    own = namespace.replace("*", "[*]")
    rows = yield SlowQuery("list_all_api_keys", ())
    return [
        {"id": identity, "name": name, "is_revoked": revoked_at is not None}
        for identity, name, patterns, revoked_at in rows
        if word.search(name) or own in json.loads(patterns)
    ]


@operation("authenticate", READ)
def admit(_context: Context, given: str | None) -> Statements[Access | None]:
    """The access of a request with this key; None when it has none."""
    if given is None:  # the path of every request to a server without api keys
        rows = yield "find_any_api_key", ()
        return None if rows else EVERYTHING
    identity = given.removeprefix(PREFIX).partition("_")[0]
    rows = yield "find_api_key", (identity,)
    *found, (*_, any_key) = rows
    if not any_key:
        return EVERYTHING
    # An unknown id takes the same time as a wrong secret.
    expected, identity, name, patterns, read_only, admin = found[0] if found else (_NO_HASH, "", "", "[]", 1, 0)
    if not hmac.compare_digest(hash_secret(given), expected):
        return None
    return Access(name, identity, tuple(json.loads(patterns)), bool(read_only), bool(admin))


def hash_secret(secret: str) -> str:
    """What is stored of a secret; it is random, so a hash without salt is enough."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _api_key(context: Context, row: tuple[Any, ...]) -> ApiKey:
    identity, name, patterns, read_only, admin, created_at, *limits, day, writes, size, namespaces = row
    _, writes_today = counted_today(context, day, writes)
    return ApiKey(
        id=identity,
        name=name,
        namespaces=tuple(json.loads(patterns)),
        read_only=bool(read_only),
        admin=bool(admin),
        created_at=to_time(created_at),
        **dict(zip(LIMITS, limits, strict=True)),
        writes_today=writes_today,
        bytes=size,
        namespaces_in_use=namespaces,
    )
