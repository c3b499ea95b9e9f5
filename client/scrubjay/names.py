"""The rules for names and sizes. Both ends check here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import InvalidInput, ValueTooLarge

MAX_KEY_BYTES = 512
MAX_NAMESPACE_CHARS = 128
MAX_WRITE_BYTES = 16 * 2**20
"""What one call may write: keys and JSON text together."""
MAX_SECONDS = 100 * 365 * 86_400
"""The longest duration: whoever means longer means for ever, and leaves it out."""
MAX_PAGE = 10_000
"""Keys that one request may list."""
MAX_NOTE_BYTES = 4 * 2**20
"""A note is a passage; what is longer belongs under a key."""
MAX_NOTES_PAGE = 500
"""Notes that one request may list."""
MAX_RECALL = 1000
"""Notes that one recall may return."""
MAX_TAGS = 64
MAX_COUNT = 2**53
"""Above it not every JSON reader tells one whole number from the next."""

# No slash (it separates names in a URL), no control character, and nothing that UTF-8 cannot carry.
_NAMESPACE = re.compile(rf"[^/\x00-\x1f\x7f-\x9f\ud800-\udfff]{{1,{MAX_NAMESPACE_CHARS}}}")


def check_namespace(namespace: Any) -> str:
    if not isinstance(namespace, str):
        raise InvalidInput(f"a namespace is text, not {type(namespace).__name__}")
    if not _NAMESPACE.fullmatch(namespace):
        raise InvalidInput(
            f"the namespace {shown(namespace)} is not allowed: use 1 to {MAX_NAMESPACE_CHARS} characters,"
            " without '/' and control characters"
        )
    return namespace


def check_key(key: Any, what: str = "key") -> str:
    """A key, or what follows the same rule and has another name."""
    if not isinstance(key, str):
        raise InvalidInput(f"a {what} is text, not {type(key).__name__}")
    try:
        size = len(key) if key.isascii() else len(key.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"the {what} {shown(key)} holds a lone surrogate, which is no text") from None
    if not size:
        raise InvalidInput(f"a {what} has at least one character")
    if size > MAX_KEY_BYTES:
        raise InvalidInput(f"the {what} {shown(key)} has {size} bytes; at most {MAX_KEY_BYTES} are allowed")
    return key


def check_header(name: str, text: Any) -> str:
    """Text that is sent as a header: a line break in it would end the header, and start another."""
    if not isinstance(text, str) or not text.isascii() or not text.isprintable():
        raise InvalidInput(f"{name} is printable ASCII text in one line; check for a line break at its end")
    return text


def check_name(what: str, text: Any) -> str:
    """Text that people give to things: names of api keys, patterns of namespaces."""
    if not isinstance(text, str) or not _NAMESPACE.fullmatch(text):
        raise InvalidInput(f"{what} is 1 to {MAX_NAMESPACE_CHARS} characters without '/', not {shown(text)}")
    return text


def check_content(content: Any) -> str:
    """What is remembered, or asked for."""
    if not isinstance(content, str):
        raise InvalidInput(f"a note is text, not {type(content).__name__}")
    try:
        size = len(content.encode())
    except UnicodeEncodeError:
        raise InvalidInput("the note holds a lone surrogate, which is no text; encode it or replace it") from None
    if not content.strip():
        raise InvalidInput("a note has at least one character that is not a space")
    if size > MAX_NOTE_BYTES:
        raise ValueTooLarge(f"the note has {size} bytes; at most {MAX_NOTE_BYTES} are allowed, so split it")
    return content


def check_label(name: str, label: Any) -> str | None:
    """A type or a session: the same rule as for keys."""
    return None if label is None else check_key(label, name)


def check_tags(tags: Any) -> tuple[str, ...]:
    """Each tag once, in the order given."""
    if tags is None:
        return ()
    if isinstance(tags, str | bytes | Mapping) or not isinstance(tags, Iterable):
        raise InvalidInput(f"tags is a list of texts, not {shown(tags)}")
    once = tuple(dict.fromkeys(check_key(tag, "tag") for tag in tags))
    if len(once) > MAX_TAGS:
        raise InvalidInput(f"a note has at most {MAX_TAGS} tags, not {len(once)}")
    return once


def check_ttl(ttl: Any) -> float | None:
    return None if ttl is None else check_seconds("ttl", ttl)


def check_seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:
        raise InvalidInput(f"{name} is a number of seconds, more than 0 and at most {MAX_SECONDS}, not {shown(value)}")
    return value


def check_count(name: str, value: Any, *, least: int = 0, most: int = MAX_COUNT) -> int:
    """A whole number within bounds: versions, limits, quotas. To JSON 3.0 is one, too."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{name} is a whole number, not {shown(value)}")
    if not least <= value <= most:
        raise InvalidInput(f"{name} is between {least} and {most}, not {shown(value)}")
    return value


def shown(value: Any) -> str:
    """What was given, as an error message may show it: escaped, not longer than a line, and never failing itself."""
    try:
        text = ascii(value[:60] if isinstance(value, str) else value)
    except Exception:  # noqa: BLE001 - a foreign __repr__, or an integer with too many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def counted(number: int, noun: str) -> str:
    """How many there are of something, as a message says it: 1 key, 2,000 keys."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def successor(prefix: str) -> str | None:
    """The first text after all that start with `prefix`; None when there is no such text."""
    trimmed = prefix.rstrip("\U0010ffff")
    if not trimmed:
        return None
    last = ord(trimmed[-1]) + 1
    return trimmed[:-1] + chr(0xE000 if last == 0xD800 else last)
