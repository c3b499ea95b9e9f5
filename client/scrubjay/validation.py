"""The rules for names, sizes, notes and queries; client and server validate here and nowhere else."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from scrubjay.errors import InvalidInput, ValueTooLarge, repr_short
from scrubjay.exact_json import byte_size, encode
from scrubjay.models import iso

MAX_KEY_BYTES = 512
ABOVE_ALL_KEYS = "\U0010ffff" * (MAX_KEY_BYTES // 4 + 1)
"""A text that is greater than every key: the greatest character, once more than fits into a key."""
MAX_NAMESPACE_CHARS = 128
MAX_SECONDS = 100 * 365 * 86_400
"""Seconds: the longest duration, 100 years. A value without an expiry never expires."""
MAX_PAGE = 10_000
"""Keys that one request may list."""
MAX_NOTE_BYTES = 4 * 2**20
"""Bytes of a note's text, and of its metadata: longer texts belong under a key."""
MAX_NOTES_PAGE = 500
"""Notes that one request may list."""
MAX_MESSAGES_PAGE = 1000
"""Messages of a conversation, or conversations, that one request may list."""
MAX_RECALL = 1000
"""Notes that one recall may return."""
MAX_TAGS = 64
MAX_COUNT = 2**53
"""The largest whole number that every JSON reader represents exactly."""

# No slash (it separates names in a URL), no control character, and nothing that UTF-8 cannot carry.
_NAMESPACE = re.compile(rf"[^/\x00-\x1f\x7f-\x9f\ud800-\udfff]{{1,{MAX_NAMESPACE_CHARS}}}")


def check_namespace(namespace: Any) -> str:
    if not isinstance(namespace, str):
        raise InvalidInput(f"a namespace is text, not {repr_short(namespace)}")
    if not _NAMESPACE.fullmatch(namespace):
        raise InvalidInput(
            f"the namespace {repr_short(namespace)} is not allowed: use 1 to {MAX_NAMESPACE_CHARS} characters,"
            " without '/' and control characters"
        )
    return namespace


def check_key(key: Any, what: str = "key") -> str:
    """Return a key, or another name that follows the same rules; raise InvalidInput otherwise."""
    if not isinstance(key, str):
        raise InvalidInput(f"a {what} is text, not {repr_short(key)}")
    try:
        size = len(key) if key.isascii() else len(key.encode())
    except UnicodeEncodeError:
        raise InvalidInput(
            f"the {what} {repr_short(key)} has a lone surrogate, which UTF-8 cannot encode; remove it"
        ) from None
    if not size:
        raise InvalidInput(f"a {what} has at least one character")
    if size > MAX_KEY_BYTES:
        raise InvalidInput(
            f"the {what} {repr_short(key)} has {size} bytes; at most {MAX_KEY_BYTES} are allowed, so shorten it"
        )
    return key


def check_prefix(prefix: Any) -> str:
    """Return the start of keys, which may be empty; None is not, because "" alone means all keys."""
    return "" if prefix == "" else check_key(prefix, "prefix")


def check_header(name: str, text: Any) -> str:
    """Return text that is safe in a header: a line break would start another header."""
    if not isinstance(text, str) or not text.isascii() or not text.isprintable():
        raise InvalidInput(f"{name} is printable ASCII text in one line; check for a line break at its end")
    return text


def check_name(what: str, text: Any) -> str:
    """Return the name of an api key, or a namespace pattern."""
    if not isinstance(text, str) or not _NAMESPACE.fullmatch(text):
        raise InvalidInput(
            f"{what} is 1 to {MAX_NAMESPACE_CHARS} characters without '/' and control characters, such as a line break,"
            f" not {repr_short(text)}"
        )
    return text


def check_content(content: Any) -> str:
    """Return the text of a note."""
    if not isinstance(content, str):
        raise InvalidInput(f"a note is text, not {repr_short(content)}")
    try:
        size = len(content.encode())
    except UnicodeEncodeError:
        raise InvalidInput("the note has a lone surrogate, which UTF-8 cannot encode; encode or replace it") from None
    if not content.strip():
        raise InvalidInput("a note has at least one character that is not a space")
    if size > MAX_NOTE_BYTES:
        raise ValueTooLarge(f"the note has {size} bytes; at most {MAX_NOTE_BYTES} are allowed, so split it")
    return content


def check_query(query: Any) -> str:
    """Return the text of a query."""
    if not isinstance(query, str):
        raise InvalidInput(f"a query is text, not {repr_short(query)}")
    size = byte_size(query, query, "query")
    if size > MAX_NOTE_BYTES:
        raise ValueTooLarge(f"the query has {size} bytes; at most {MAX_NOTE_BYTES} are allowed, so shorten it")
    return query


def check_label(name: str, label: Any) -> str | None:
    """A type or a session: the same rule as for keys."""
    return None if label is None else check_key(label, name)


def check_tags(tags: Any) -> tuple[str, ...]:
    """Return the tags without duplicates, in the order given."""
    return check_texts("tags", "tag", tags)


def check_texts(name: str, what: str, texts: Any) -> tuple[str, ...]:
    """Return the texts of a list without duplicates, in the order given; the rule for each is that of a key."""
    if texts is None:
        return ()
    if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
        raise InvalidInput(f"{name} is a list of texts, not {repr_short(texts)}")
    once = tuple(dict.fromkeys(check_key(text, what) for text in texts))
    if len(once) > MAX_TAGS:
        raise InvalidInput(f"{name} has at most {MAX_TAGS} entries, not {len(once)}")
    return once


def check_ttl(ttl: Any) -> float | None:
    return None if ttl is None else check_seconds("ttl", ttl)


def check_seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:
        raise InvalidInput(
            f"{name} is a number of seconds, more than 0 and at most {MAX_SECONDS}, not {repr_short(value)}"
        )
    return value


def check_count(name: str, value: Any, *, least: int = 0, most: int = MAX_COUNT) -> int:
    """Return a whole number within bounds; 3.0 counts as one, as in JSON."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{name} is a whole number, not {repr_short(value)}")
    if not least <= value <= most:
        raise InvalidInput(f"{name} is between {least} and {most}, not {repr_short(value)}")
    return value


def check_one_end(before: int | None, after: int | None) -> None:
    if before is not None and after is not None:
        raise InvalidInput("give before or after, not both")


def check_switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} is true or false, not {repr_short(value)}")
    return value


def prefix_upper_bound(prefix: str) -> str | None:
    """The smallest text greater than every text that starts with `prefix`; None if there is none."""
    trimmed = prefix.rstrip("\U0010ffff")
    if not trimmed:
        return None
    last = ord(trimmed[-1]) + 1
    return trimmed[:-1] + chr(0xE000 if last == 0xD800 else last)


RANKINGS = ("relevance", "confidence")
"""relevance: how well the words fit. confidence: fit × .6 + recency × .2 + frequency × .2."""
DAY_SECONDS = 86_400


class NewNote(NamedTuple):
    """Validated input of `remember`; None keeps the field of a note with the same content."""

    content: str
    type: str | None = None
    tags: tuple[str, ...] | None = None
    session: str | None = None
    ttl: float | None = None
    pinned: bool = False
    metadata: dict[str, Any] | None = None
    supersedes: tuple[str, ...] | None = None
    """Ids of notes that it replaces."""
    id: str | None = None
    """The caller's own id: the note replaces the one that has it."""
    default_type: str | None = None
    """The type of a new note that states none: for compat APIs whose clients always send one."""

    @classmethod
    def check(
        cls,
        content: Any,
        *,
        type: Any = None,  # noqa: A002 - the word that users write
        tags: Any = None,
        session: Any = None,
        ttl: Any = None,
        ttl_days: Any = None,
        pinned: Any = False,
        metadata: Any = None,
        supersedes: Any = None,
        id: Any = None,  # noqa: A002
    ) -> NewNote:
        if ttl is not None and ttl_days is not None:
            raise InvalidInput("give ttl in seconds or ttl_days, not both")
        if metadata is not None and not isinstance(metadata, dict):
            raise InvalidInput(f"metadata is an object of names and values, not {repr_short(metadata)}")
        size = len(encode(metadata, "metadata"))
        if size > MAX_NOTE_BYTES:
            raise ValueTooLarge(
                f"metadata has {size} characters as JSON; at most {MAX_NOTE_BYTES} are allowed, so store it under a key"
            )
        return cls(
            check_content(content),
            check_label("type", type),
            check_tags(tags) or None,
            check_label("session", session),
            check_ttl(ttl if ttl_days is None else _seconds(ttl_days)),
            check_switch("pinned", pinned),
            metadata or None,
            check_texts("supersedes", "note id", supersedes) or None,
            check_label("note id", id),
        )

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}


class RecallQuery(NamedTuple):
    """Validated input of `recall`: the query and the filters."""

    query: str
    limit: int
    type: str | None
    tags: tuple[str, ...]
    session: str | None
    threshold: float
    ranking: str
    explain: bool = False
    """Whether each note comes with an explanation of its score."""
    at: datetime | None = None
    """The past moment as of which it is asked, in UTC."""

    @property
    def is_open(self) -> bool:
        """Whether there is no filter."""
        return not (self.type or self.tags or self.session or self.at)

    @classmethod
    def check(
        cls,
        query: Any,
        *,
        limit: Any = 5,
        type: Any = None,  # noqa: A002
        tags: Any = None,
        session: Any = None,
        threshold: Any = None,
        ranking: Any = None,
        explain: Any = False,
        at: Any = None,
    ) -> RecallQuery:
        check_query(query)
        if threshold is not None and not (_is_number(threshold) and 0 <= threshold <= 1):
            raise InvalidInput(f"threshold is a number from 0 to 1, not {repr_short(threshold)}")
        if ranking not in (None, *RANKINGS):
            raise InvalidInput(f"ranking is {' or '.join(map(repr, RANKINGS))}, not {repr_short(ranking)}")
        return cls(
            query,
            check_count("limit", limit, least=1, most=MAX_RECALL),
            check_label("type", type),
            check_tags(tags),
            check_label("session", session),
            threshold or 0.0,
            ranking or RANKINGS[0],
            check_switch("explain", explain),
            _check_moment("at", at),
        )

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON; `explain` and `at` only if they are set, so that servers without them can answer."""
        fields = {**self._asdict(), "at": iso(self.at)}
        return {name: value for name, value in fields.items() if value or name not in ("explain", "at")}


def _check_moment(name: str, value: Any) -> datetime | None:
    """A moment in UTC from a datetime or its ISO 8601 text, which states a time zone."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = value
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise InvalidInput(f"{name} is a datetime or its ISO 8601 text, not {repr_short(value)}")
    if moment.utcoffset() is None:
        raise InvalidInput(f"{name} has no time zone; write datetime(..., tzinfo=UTC) or 2026-02-15T12:00Z")
    return moment.astimezone(UTC)


def _is_number(value: Any) -> bool:
    """Whether it is a finite number; integers beyond the range of floats count as infinite."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _seconds(days: Any) -> Any:
    if not _is_number(days):
        raise InvalidInput(f"ttl_days is a number of days, not {repr_short(days)}")
    return days * DAY_SECONDS
