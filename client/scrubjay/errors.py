"""Every error Scrubjay raises, on both ends of the wire.

    ScrubjayError
    ├─ InvalidInput (ValueError)     400  the call cannot be right: change it
    │  └─ ValueTooLarge              413  split it, or store less
    ├─ NotFound (LookupError)        404  what was named does not exist
    ├─ Conflict                      409  the stored value is not what the call expects (412: its version)
    ├─ QuotaExceeded                 429  writes or requests used up: wait `retry_after` s (507: storage, delete some)
    ├─ Unauthenticated               401  send an api key
    ├─ Forbidden                     403  send another api key
    ├─ Unavailable                   503  unreachable, timed out, locked, disk full: try again later
    └─ MissingExtra (ImportError)     –   install what the message names

`code` travels over HTTP as {"code", "detail"} and `from_wire` raises the same class on the other side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from .records import Usage


class ScrubjayError(Exception):
    """The base of every error raised by Scrubjay."""

    code: ClassVar[str] = "internal"
    status: int = 500

    def __init__(self, detail: str, *, status: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        if status is not None:
            self.status = status


class InvalidInput(ScrubjayError, ValueError):
    """The call can never succeed as it is."""

    code = "invalid_input"
    status = 400


class ValueTooLarge(InvalidInput):
    """One call carries more bytes than a call may."""

    code = "value_too_large"
    status = 413


class NotFound(ScrubjayError, LookupError):
    """What was named does not exist."""

    code = "not_found"
    status = 404


class Conflict(ScrubjayError):
    """The stored value is of another kind or version than the call expects."""

    code = "conflict"
    status = 409


class QuotaExceeded(ScrubjayError):
    """Too many writes today or requests this minute (`retry_after` is set), or no storage left (it is None)."""

    code = "quota_exceeded"

    def __init__(self, detail: str, *, retry_after: int | None = None, usage: Usage | None = None) -> None:
        super().__init__(detail, status=507 if retry_after is None else 429)
        self.retry_after = retry_after
        self.usage = usage


class Unauthenticated(ScrubjayError):
    """The server wants an api key and got none that it knows."""

    code = "unauthenticated"
    status = 401


class Forbidden(ScrubjayError):
    """The api key does not allow this."""

    code = "forbidden"
    status = 403


class Unavailable(ScrubjayError):
    """The store cannot be reached or cannot do its work now."""

    code = "unavailable"
    status = 503


class MissingExtra(ScrubjayError, ImportError):
    """An optional part is not installed; the message has the command."""

    code = "missing_extra"


_BY_CODE = {
    error.code: error
    for error in (InvalidInput, ValueTooLarge, NotFound, Conflict, Unauthenticated, Forbidden, Unavailable)
}


def from_wire(code: str, detail: str, status: int, retry_after: str | None = None) -> ScrubjayError:
    """The error that a server's answer stands for."""
    if code == QuotaExceeded.code:
        wait = int(retry_after) if retry_after and retry_after.isdigit() else None
        return QuotaExceeded(detail, retry_after=wait if status == 429 else None)
    if code in _BY_CODE:
        return _BY_CODE[code](detail, status=status)
    return (Unavailable if status >= 500 else ScrubjayError)(detail, status=status)
