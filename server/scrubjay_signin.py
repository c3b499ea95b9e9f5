"""Signing in: a browser that has shown an api key holds a cookie in its place.

The cookie is a random token of which the database stores the hash: it ends by signing out, after eight hours, or with
the key. Scripts cannot read it (HttpOnly), and pages of other sites cannot send it (SameSite=Strict). Pages of this
machine on other ports count as the same site to a browser, so the authenticator also compares the origin.
"""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie

from starlette.types import Scope

from scrubjay.store import sign_ins
from scrubjay.store.engine import ServedStore
from scrubjay.store.sign_ins import SIGN_IN_SECONDS, SignIn

COOKIE = "scrubjay_sign_in"
COOKIE_PATH = "/v1/"
"""The only paths that the cookie is sent to and accepted on: the APIs of other products have users of their own."""
SAFE_METHODS = ("GET", "HEAD")


class SignIns:
    """The browsers that are signed in. Each request reads the database: people send few."""

    def __init__(self, store: ServedStore) -> None:
        self._store = store

    async def find(self, scope: Scope, headers: dict[bytes, bytes]) -> SignIn | None:
        """The sign-in of a request; None without a valid cookie."""
        if b"cookie" not in headers or not scope["path"].startswith(COOKIE_PATH):
            return None
        token = token_of(headers)
        return await self._store.run(sign_ins.find(token)) if token else None


def token_of(headers: dict[bytes, bytes]) -> str | None:
    """The token in the cookie of a request."""
    try:
        cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return None
    return cookies[COOKIE].value if COOKIE in cookies else None


def set_cookie(token: str, *, is_secure: bool) -> tuple[bytes, bytes]:
    """The header that gives a browser its token; an empty one takes it away."""
    cookie = (
        f"{COOKIE}={token}; Path={COOKIE_PATH}; HttpOnly; SameSite=Strict; Max-Age={SIGN_IN_SECONDS if token else 0}"
    )
    return b"set-cookie", (f"{cookie}; Secure" if is_secure else cookie).encode()


def is_secure(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    """Whether the browser uses HTTPS, as the proxy in front says; a lie here only costs the liar the cookie."""
    return scope["scheme"] == "https" or headers.get(b"x-forwarded-proto") == b"https"
