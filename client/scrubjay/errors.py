"""The errors that Scrubjay raises, in the client and in the server.

    ScrubjayError
    ├─ InvalidInput (ValueError)     400  the call is not valid: change it
    │  └─ ValueTooLarge              413  split it, or store less
    ├─ NotFound (KeyError)           404  the key, note or namespace does not exist
    ├─ Conflict                      409  the stored value is not what the call expects (412: its version)
    ├─ QuotaExceeded                 429  writes or requests used up: wait `retry_after` s (507: storage, delete some)
    ├─ Unauthenticated               401  send an api key
    ├─ Forbidden                     403  send another api key
    ├─ Unavailable                   503  unreachable, timed out, locked, disk full: try again later
    │  └─ OutcomeUnknown             503  the same, and the write may have happened: read the value, then try again
    └─ MissingExtra (ImportError)     –   install what the message names

The server sends an error as {"code", "detail"}, and `from_response` makes the same class of it in the client.
"""

from __future__ import annotations

import errno
import re
import shlex
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from scrubjay.models import Usage


class ScrubjayError(Exception):
    """The base class of every error of Scrubjay."""

    code: ClassVar[str] = "internal"
    status: int = 500

    def __init__(self, detail: str, *, status: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        if status is not None:
            self.status = status

    def within(self, part: str) -> Self:
        """The same error, which begins with the part of the call that it is about."""
        self.detail = f"{part}: {self.detail}"
        self.args = (self.detail,)
        return self


class InvalidInput(ScrubjayError, ValueError):
    """The call can never succeed as it is."""

    code = "invalid_input"
    status = 400


class ValueTooLarge(InvalidInput):
    """One call carries more bytes than a call may."""

    code = "value_too_large"
    status = 413


class NotFound(ScrubjayError, KeyError):
    """The key, note, namespace or api key does not exist."""

    __str__ = Exception.__str__  # a KeyError shows the repr of its message

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
    """The server requires an api key, and none that it knows was sent."""

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


class OutcomeUnknown(Unavailable):
    """A write may have happened or not: its response, or the database's answer to its COMMIT, was lost."""

    code = "outcome_unknown"


class MissingExtra(ScrubjayError, ImportError):
    """An optional part is not installed; the message has the command."""

    code = "missing_extra"


_BY_CODE = {
    error.code: error
    for error in (
        InvalidInput,
        ValueTooLarge,
        NotFound,
        Conflict,
        Unauthenticated,
        Forbidden,
        Unavailable,
        OutcomeUnknown,
    )
}


def from_response(code: str, detail: str, status: int, retry_after: str | None = None) -> ScrubjayError:
    """The error that a response of the server stands for."""
    if code == QuotaExceeded.code:
        wait = int(retry_after) if retry_after and retry_after.isdigit() else None
        return QuotaExceeded(detail, retry_after=wait if status == 429 else None)
    if code in _BY_CODE:
        return _BY_CODE[code](detail, status=status)
    return (Unavailable if status >= 500 else ScrubjayError)(detail, status=status)


def repr_short(value: Any) -> str:
    """What was given, as an error message may show it: not longer than a line, and never failing itself.

    Readable in every language, but for characters that a reader would not see, or would take for others.
    """
    try:
        text = repr(value[:60] if isinstance(value, str) else value)
    except Exception:  # noqa: BLE001 - a foreign __repr__, or an integer with too many digits
        text = f"a {type(value).__name__}"
    text = _TWO_SCRIPTS.sub(lambda word: ascii(word[0])[1:-1], text[:61])
    text = "".join(each if each.isprintable() and each not in _UNSEEN else ascii(each)[1:-1] for each in text)
    return text if len(text) <= 60 else f"{text[:57]}..."


_UNSEEN = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0" + "".join(map(chr, range(0xFE00, 0xFE10)))
"""Characters that Python takes for printable, and that fonts show as a space or not at all."""
_TWO_SCRIPTS = re.compile(r"\w*(?:[A-Za-z]\w*[\u0370-\u058f]|[\u0370-\u058f]\w*[A-Za-z])\w*")
"""A word with both Latin letters and Greek, Cyrillic or Armenian ones, many of which look the same."""


def operand(text: str) -> str:
    """A word of a command line as a message shows it: quoted for a shell, and no option if it begins with a dash.

    It has to come last: a word after -- is no option.
    """
    return f"{'-- ' * text.startswith('-')}{shlex.quote(text)}"


def pluralize(number: int, noun: str) -> str:
    """How many there are of something, as a message says it: 1 key, 2,000 keys."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def advice_if_out_of_files(error: Exception) -> str:
    """What to do about an error whose cause is the number of open files; empty for any other error."""
    if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
        return "close some of the files and connections of this program, or raise their limit with `ulimit -n`"
    return ""
