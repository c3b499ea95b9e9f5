"""Filters: conditions on the fields of a value, as a JSON object.

    {"city": "Berlin", "age": {"$gte": 18}, "address.zip": "10115", "address": {"country": "DE"}}

A name is that of a field, or a path of names with dots. Beside it is the value that the field has to be equal to, an
object of operators, or an object of conditions on the field's own fields. A field that does not exist is null.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scrubjay.errors import InvalidInput, repr_short
from scrubjay.exact_json import encode

OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
MAX_NAMES = 256
"""Names of fields and operators in a filter, one for each part of a path. A find compares all of them with each
value, which takes up to 15 µs a value."""
MAX_NAME_CHARS = 16_384
"""Characters of these names together."""
MAX_DIGITS_VALUE = 10**15
"""Integers below it have the same digits as an int and as a float."""


def check_filter(where: Any, path: str = "where") -> Any:
    """Return the filter; raise InvalidInput if it is none."""
    if not isinstance(where, Mapping):
        raise InvalidInput(f"{path} is an object of fields and conditions, not {repr_short(where)}")
    for name, expected in where.items():
        if name.startswith("$"):
            raise InvalidInput(
                f"{path} has {repr_short(name)} in the place of a field; write an operator beside the field that it is"
                f' about: {{"age": {{{repr_short(name)}: …}}}}'
            )
        if isinstance(expected, Mapping):
            if has_operators(expected):
                _check_operators(expected)
            else:
                check_filter(expected, f"{path}[{repr_short(name)}]")
    return where


def encode_filter(where: Any) -> str:
    """Return the JSON text of a filter; raise InvalidInput if it is none."""
    text = encode(dict(where), "where") if isinstance(where, Mapping) else ""  # its names are texts, and its levels few
    check_filter(where)
    _check_names(list(_names(where)))
    return text


def _names(where: Mapping[str, Any]) -> Iterator[str]:
    for name, expected in where.items():
        yield name
        if isinstance(expected, Mapping):
            yield from _names(expected)


def _check_names(names: list[str]) -> None:
    count, size = sum(name.count(".") + 1 for name in names), sum(map(len, names))
    if count > MAX_NAMES or size > MAX_NAME_CHARS:
        raise InvalidInput(
            f"the filter has {count} names of {size} characters, with those in paths; at most {MAX_NAMES} of"
            f" {MAX_NAME_CHARS} characters are allowed, because each value is compared with all of them"
        )


def _check_operators(expected: Mapping[str, Any]) -> None:
    for name in expected:
        if name not in OPERATORS:
            raise InvalidInput(f"{repr_short(name)} is not an operator of a filter; use one of {', '.join(OPERATORS)}")


def matches(value: Any, where: Mapping[str, Any]) -> bool:
    """Whether a value, as JSON decodes it, meets all conditions of a filter; only an object meets any."""
    return type(value) is dict and all(_meets(_follow(value, name), expected) for name, expected in where.items())


def needles_of(where: Mapping[str, Any]) -> list[str]:
    """Texts that the JSON text of every value contains that meets the conditions, as far as they are known."""
    return list(dict.fromkeys(_needles(where)))


def _needles(where: Mapping[str, Any]) -> Iterator[str]:
    for expected in where.values():
        if type(expected) is str or (type(expected) is int and 1 < abs(expected) < MAX_DIGITS_VALUE):
            yield encode(expected)
        elif isinstance(expected, Mapping):
            inner = {name: part for name, part in expected.items() if name == "$eq"}
            yield from _needles(inner if has_operators(expected) else expected)


def _follow(value: dict[str, Any], path: str) -> Any:
    """The field of a name, or of a path with dots."""
    if path in value:
        return value[path]
    found: Any = value
    for name in path.split("."):
        found = found.get(name) if type(found) is dict else None
    return found


def _meets(value: Any, expected: Any) -> bool:
    if not isinstance(expected, dict):
        return bool(value == expected)
    if has_operators(expected):
        return all(_apply(name, value, other) for name, other in expected.items())
    return matches(value, expected)


def has_operators(expected: Mapping[str, Any]) -> bool:
    """Whether a condition is made of operators, not of conditions on the fields of a field."""
    return any(name.startswith("$") for name in expected)


def _apply(name: str, value: Any, other: Any) -> bool:
    try:
        return bool(OPERATORS[name](value, other))
    except TypeError:  # values of different kinds have no order
        return False
