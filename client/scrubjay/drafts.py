"""What a call asks to remember or to recall, checked. Both ends make these, and send them as JSON."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from .errors import InvalidInput, ValueTooLarge
from .names import MAX_NOTE_BYTES, MAX_RECALL, check_content, check_count, check_label, check_tags, check_ttl, shown
from .values import byte_size, encode

RANKINGS = ("relevance", "confidence")
"""relevance: how well the words fit. confidence: fit × .6 + recency × .2 + frequency × .2."""
DAY_SECONDS = 86_400


class Draft(NamedTuple):
    """A note on its way into the store; None leaves what a note with the same content has."""

    content: str
    type: str | None
    tags: tuple[str, ...] | None
    session: str | None
    ttl: float | None
    pinned: bool
    metadata: dict[str, Any] | None
    default_type: str | None = None
    """The type of a note that has none: for wires that always send one, whether it was stated or not."""

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
    ) -> Draft:
        if ttl is not None and ttl_days is not None:
            raise InvalidInput("give ttl in seconds or ttl_days, not both")
        if not isinstance(pinned, bool):
            raise InvalidInput(f"pinned is true or false, not {shown(pinned)}")
        if metadata is not None and not isinstance(metadata, dict):
            raise InvalidInput(f"metadata is an object of names and values, not {shown(metadata)}")
        size = len(encode(metadata, "metadata"))
        if size > MAX_NOTE_BYTES:
            raise ValueTooLarge(f"metadata has {size} characters as JSON; at most {MAX_NOTE_BYTES} are allowed")
        return cls(
            check_content(content),
            check_label("type", type),
            check_tags(tags) or None,
            check_label("session", session),
            check_ttl(ttl if ttl_days is None else _seconds(ttl_days)),
            pinned,
            metadata or None,
        )

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}


class Question(NamedTuple):
    """What is asked for, and which notes may answer."""

    query: str
    limit: int
    type: str | None
    tags: tuple[str, ...]
    session: str | None
    threshold: float
    ranking: str

    @property
    def is_open(self) -> bool:
        """Whether any note may answer."""
        return not (self.type or self.tags or self.session)

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
    ) -> Question:
        if not isinstance(query, str):
            raise InvalidInput(f"a query is text, not {shown(query)}")
        byte_size(query, query, "query")
        if threshold is not None and not _is_number(threshold):
            raise InvalidInput(f"threshold is a number from 0 to 1, not {shown(threshold)}")
        if ranking not in (None, *RANKINGS):
            raise InvalidInput(f"ranking is {' or '.join(map(repr, RANKINGS))}, not {shown(ranking)}")
        return cls(
            query,
            check_count("limit", limit, least=1, most=MAX_RECALL),
            check_label("type", type),
            check_tags(tags),
            check_label("session", session),
            threshold or 0.0,
            ranking or RANKINGS[0],
        )

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def _is_number(value: Any) -> bool:
    """A finite one; an integer that no float can hold is as good as infinite here."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _seconds(days: Any) -> Any:
    if not _is_number(days):
        raise InvalidInput(f"ttl_days is a number of days, not {shown(days)}")
    return days * DAY_SECONDS
