"""Sign-ins: browsers that have shown an api key, and hold a token until it expires or the key is revoked."""

from __future__ import annotations

import json
import secrets
from typing import NamedTuple

from scrubjay.errors import Unauthenticated
from scrubjay.store.api_keys import Access, hash_secret
from scrubjay.store.operation import READ, WRITE, Context, Statements, operation

SIGN_IN_SECONDS = 8 * 3600
"""Seconds that a sign-in lasts: a working day, so that a forgotten browser is out by the next one."""
MAX_SIGN_INS = 100
"""Sign-ins of one api key; one more ends the oldest. A key that may only read could fill the disk with them."""


class SignIn(NamedTuple):
    """A browser that is signed in."""

    api_key: str
    """The id of the api key."""
    access: Access
    expires_at: int


@operation("sign_in", WRITE)
def start(context: Context, secret: str) -> Statements[tuple[str, SignIn]]:
    """Sign in with an api key: the token, which is stored as a hash only."""
    found = yield "find_api_key_id", (hash_secret(secret),)
    if not found:
        raise Unauthenticated("this api key is not known to the server, or was revoked")
    yield "delete_old_sign_ins", (context.now,)
    token = secrets.token_urlsafe(32)
    expires_at = context.now + SIGN_IN_SECONDS * 1000
    yield "insert_sign_in", (hash_secret(token), found[0][0], expires_at)
    yield "delete_excess_sign_ins", (found[0][0], found[0][0], MAX_SIGN_INS)
    return token, (yield from _find(context, token))  # type: ignore[return-value]


@operation("signed_in", READ)
def find(context: Context, token: str) -> Statements[SignIn | None]:
    """The sign-in of a token; None when it has expired, was ended, or its api key was revoked."""
    return (yield from _find(context, token))


@operation("sign_out", WRITE)
def end(_context: Context, token: str) -> Statements[None]:
    """Sign out: the token is worthless from now on."""
    yield "delete_sign_in", (hash_secret(token),)


def _find(context: Context, token: str) -> Statements[SignIn | None]:
    rows = yield "find_sign_in", (hash_secret(token), context.now)
    if not rows:
        return None
    name, patterns, read_only, admin, expires_at, api_key = rows[0]
    return SignIn(api_key, Access(name, api_key, tuple(json.loads(patterns)), bool(read_only), bool(admin)), expires_at)
