"""Exact JSON: values that would not come back as they were raise InvalidInput with their path."""

from __future__ import annotations

import json
import math
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from scrubjay.errors import InvalidInput, ValueTooLarge, repr_short

MAX_WRITE_BYTES = 16 * 2**20
"""Bytes that one call may write, keys and JSON text together: larger bodies would block the server while it parses."""
MAX_WRITE_ROWS = 100_000
"""Items of lists and keys that one call may write or compare. A row takes 10 to 35 µs, and no other call writes
meanwhile."""
MAX_READ_BYTES = 2**20
"""Bytes of UTF-8 that the keys of one read may have together: 2,000 of the longest keys there are. A server parses
them even for an api key that may only read, so it is far less than what one call may write."""
MAX_DEPTH = 200
"""Levels of nesting; Python's own JSON decoder gives up before a thousand."""
MAX_INT = 1 << 14_000
"""Python converts at most 4,300 digits; this is the power of two below it."""

MAX_PATH_CHARS = 400
"""Characters of a path that an error message shows in full; of a longer one it shows the beginning."""
_LONE = " contains a lone surrogate, which UTF-8 cannot encode; encode or replace it"

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
# Made once: JSONEncoder.encode makes one for each call, which takes as long as encoding a small value does.
_to_chunks = json.encoder.c_make_encoder and json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, _encoder.default, json.encoder.encode_basestring, None, ":", ",", False, False, False
)


def encode(value: Any, path: str = "value") -> str:
    """The value as compact JSON text.

    `json.dumps` alone would turn the key 1 into "1", an enum into its number, NaN into no JSON
    at all: so each part is looked at first. Only a tuple is allowed to come back as a list.
    """
    if not _fits(value, MAX_DEPTH):
        problem = _find_problem(value, MAX_DEPTH)
        raise InvalidInput(problem.at(path) if problem else f"{path} changed while it was being stored")
    text = to_text(value)
    size = len(text) if text.isascii() else byte_size(text, value, path)
    if size > MAX_WRITE_BYTES:
        raise ValueTooLarge(f"{path} has {size} bytes as JSON; one call writes at most {MAX_WRITE_BYTES}")
    return text


def byte_size(text: str, value: Any = None, path: str = "value") -> int:
    """The size of the text in UTF-8; raises InvalidInput if it contains a lone surrogate."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        problem = _find_surrogate(value) or _Problem("", _LONE, [])
        raise InvalidInput(problem.at(path)) from None


def check_rows(count: int) -> None:
    """Raise ValueTooLarge if these are more items or keys than one call may write."""
    if count > MAX_WRITE_ROWS:
        raise ValueTooLarge(
            f"the call writes or compares {count} items or keys; at most {MAX_WRITE_ROWS} are allowed, so split it"
        )


def check_total(texts: Iterable[str]) -> None:
    """Raise ValueTooLarge if these texts together are more than one call may write."""
    total = sum(map(byte_size, texts))
    if total > MAX_WRITE_BYTES:
        raise ValueTooLarge(f"the call carries {total} bytes; at most {MAX_WRITE_BYTES} are allowed, so split it")


def check_read(keys: Iterable[str]) -> None:
    """Raise ValueTooLarge if these keys together are more than one call may ask for."""
    total = sum(map(byte_size, keys))
    if total > MAX_READ_BYTES:
        raise ValueTooLarge(f"the keys have {total} bytes; one call reads at most {MAX_READ_BYTES}, so split it")


def to_text(value: Any) -> str:
    """The JSON text of a value that is known to be representable."""
    return "".join(_to_chunks(value, 0)) if _to_chunks else _encoder.encode(value)  # PyPy has no encoder in C


_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def decode(text: str) -> Any:
    """The value of text that `encode` made; faster than json.loads, which first skips white space."""
    try:
        return _scan(text, 0)[0]
    except StopIteration as error:
        raise json.JSONDecodeError("this is not a JSON value", text, error.value) from None


def decode_body(body: bytes | str) -> Any:
    """The value of JSON from outside; raises InvalidInput for NaN, Infinity, deep nesting and repeated names."""
    try:
        return _strict.decode(body if isinstance(body, str) else body.decode())
    except RecursionError:
        raise InvalidInput(f"the JSON nests deeper than {MAX_DEPTH} levels; send its inner parts as text") from None
    except InvalidInput:
        raise
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        if body[:3] == BOM_UTF8 or body[:1] == "\ufeff":
            raise InvalidInput("the JSON begins with a byte order mark, EF BB BF; send UTF-8 without one") from None
        raise InvalidInput(f"this is not JSON: {error}") from None
    except ValueError:
        raise InvalidInput("the JSON holds an integer of more than 4,200 digits; send it as a string") from None


def _no_constant(name: str) -> None:
    raise InvalidInput(f"{name} is not JSON; send null or a string")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without repeated names: Python's decoder would silently keep the last value."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidInput(
            f"the JSON has the name {repr_short(_first_repeated(pairs))} twice in one object; remove one of them"
        )
    return found


def _first_repeated(pairs: list[tuple[str, Any]]) -> str:
    counts = Counter(name for name, _ in pairs)  # in the order in which the names first appear
    return next(name for name, count in counts.items() if count > 1)


# Made once: json.loads makes a decoder for each call with options, which takes longer than a small body does.
_strict = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_each_once)


def _fits(value: Any, depth: int) -> bool:
    """Whether JSON represents the value exactly; fast, because it runs on every write."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is int:
        return -MAX_INT < value < MAX_INT  # type: ignore[no-any-return]
    if kind is float:
        return math.isfinite(value)
    if kind is dict:
        for key in value:
            if type(key) is not str:
                return False
        value = value.values()
    elif kind is not list and kind is not tuple:
        return False
    for part in value:  # noqa: SIM110 - all() with a generator takes half as long again
        if not depth or (type(part) is not str and not _fits(part, depth - 1)):  # no call for the most frequent kind
            return False
    return True


class _Problem(NamedTuple):
    """What is wrong with a part of a value. Its path is built only for the error message: building one for each part
    would cost time for every level above it.
    """

    before: str
    after: str
    names: list[Any]
    """The keys and indexes that lead to the part, innermost first."""

    def at(self, path: str) -> str:
        where = path + "".join(f"[{repr_short(name)}]" for name in reversed(self.names))
        return f"{self.before}{where if len(where) <= MAX_PATH_CHARS else where[:80] + '…'}{self.after}"


def _find_problem(value: Any, depth: int) -> _Problem | None:
    """The first part that JSON cannot represent, with its path; `_fits` is the fast form of the same rules."""
    kind = type(value)
    if isinstance(value, float) and not math.isfinite(value):
        return _Problem("", f" is {value}, which JSON cannot represent; store a string instead", [])
    if kind is int and not -MAX_INT < value < MAX_INT:
        return _Problem("", " is an integer of more than 4,200 digits; store it as a string", [])
    if kind not in (dict, list, tuple):
        if _fits(value, depth):
            return None
        named = f"{kind.__module__}.{kind.__qualname__}"
        return _Problem("", f" is {named}, which JSON cannot represent exactly; convert it first", [])
    if not depth:
        return _Problem("", f" nests deeper than {MAX_DEPTH} levels, or contains itself", [])
    for name, part in value.items() if kind is dict else enumerate(value):
        if kind is dict and type(name) is not str:
            named = f"{repr_short(name)} of the type {type(name).__name__}"
            return _Problem("", f" has the key {named}; JSON keys are strings", [])
        problem = _find_problem(part, depth - 1)
        if problem:
            problem.names.append(name)
            return problem
    return None


def _find_surrogate(value: Any) -> _Problem | None:
    """The first text that UTF-8 cannot encode, with its path."""
    if isinstance(value, str):
        return None if _is_text(value) else _Problem("", _LONE, [])
    if not isinstance(value, dict | list | tuple):
        return None
    for name, part in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(name, str) and not _is_text(name):
            return _Problem("the key of ", _LONE, [name])
        problem = _find_surrogate(part)
        if problem:
            problem.names.append(name)
            return problem
    return None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
