"""JSON in and out, exactly: what cannot come back as it went in is refused, with the place."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from .errors import InvalidInput, ValueTooLarge
from .names import MAX_WRITE_BYTES, shown

MAX_DEPTH = 200
"""Levels of nesting; Python's own JSON decoder gives up before a thousand."""
MAX_INT = 1 << 14_000
"""Python converts at most 4,300 digits; this is the power of two below it."""

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))


def encode(value: Any, place: str = "value") -> str:
    """The value as compact JSON text.

    `json.dumps` alone would turn the key 1 into "1", an enum into its number, NaN into no JSON
    at all: so each part is looked at first. Only a tuple is allowed to come back as a list.
    """
    if not _fits(value, MAX_DEPTH):
        raise InvalidInput(_complaint(value, place, MAX_DEPTH) or f"{place} changed while it was being stored")
    text = _encoder.encode(value)
    size = byte_size(text, value, place)
    if size > MAX_WRITE_BYTES:
        raise ValueTooLarge(f"{place} has {size} bytes as JSON; one call writes at most {MAX_WRITE_BYTES}")
    return text


def byte_size(text: str, value: Any = None, place: str = "value") -> int:
    """How many bytes the text takes, which is also the proof that UTF-8 can carry it."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(_surrogate(value, place) or f"{place} holds a lone surrogate, which is no text") from None


def check_total(texts: Iterable[str]) -> None:
    """What one call may carry, all in all."""
    total = sum(map(byte_size, texts))
    if total > MAX_WRITE_BYTES:
        raise ValueTooLarge(f"the call carries {total} bytes; at most {MAX_WRITE_BYTES} are allowed, so split it")


to_text = _encoder.encode
"""The JSON text of what was looked at before."""
_decoder = json.JSONDecoder()


def decode(text: str) -> Any:
    """The value of text that `encode` made: without white space around it, which json.loads looks for twice."""
    return _decoder.raw_decode(text)[0]


def decode_body(body: bytes | str) -> Any:
    """What someone sent as JSON in UTF-8; NaN and Infinity are not JSON, and neither is what nests without end."""
    try:
        return _strict.decode(body if isinstance(body, str) else body.decode())
    except RecursionError:
        raise InvalidInput(f"the JSON nests deeper than {MAX_DEPTH} levels") from None
    except InvalidInput:
        raise
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"this is not JSON: {error}") from None
    except ValueError:
        raise InvalidInput("the JSON holds an integer of more than 4,200 digits; send it as a string") from None


def _no_constant(name: str) -> None:
    raise InvalidInput(f"{name} is not JSON")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values under one name Python would keep the last, and lose the other without a word."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"the JSON has the name {shown(twice)} twice in one object; only one of them can be meant")
    return found


# Made once: json.loads makes a decoder for each call with options, which takes longer than a small body does.
_strict = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_each_once)


def _fits(value: Any, depth: int) -> bool:
    """Whether JSON carries this exactly; fast, because it runs on every write."""
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
        if not depth or not _fits(part, depth - 1):
            return False
    return True


def _complaint(value: Any, place: str, depth: int) -> str | None:
    """The first thing that JSON cannot carry, and where it is; the slow twin of `_fits`."""
    kind = type(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"{place} is {value}, which JSON cannot carry; use None or a string"
    if kind is int and not -MAX_INT < value < MAX_INT:
        return f"{place} is an integer of more than 4,200 digits; store it as a string"
    if kind not in (dict, list, tuple):
        if _fits(value, depth):
            return None
        return f"{place} is {kind.__module__}.{kind.__qualname__}, which JSON cannot carry exactly; convert it first"
    if not depth:
        return f"{place[:80]}… nests deeper than {MAX_DEPTH} levels, or contains itself"
    for name, part in value.items() if kind is dict else enumerate(value):
        if kind is dict and type(name) is not str:
            return f"{place} has the key {shown(name)}, a {type(name).__name__}; JSON keys are strings"
        found = _complaint(part, f"{place}[{shown(name)}]", depth - 1)
        if found:
            return found
    return None


def _surrogate(value: Any, place: str) -> str | None:
    """Where the text is that UTF-8 cannot carry."""
    if isinstance(value, str):
        if any("\ud800" <= char <= "\udfff" for char in value):
            return f"{place} holds a lone surrogate, which is no text; encode it or replace it"
        return None
    if not isinstance(value, dict | list | tuple):
        return None
    for name, part in value.items() if isinstance(value, dict) else enumerate(value):
        inside = f"{place}[{name!a}]"
        found = _surrogate(name, f"the key of {inside}") or _surrogate(part, inside)
        if found:
            return found
    return None
