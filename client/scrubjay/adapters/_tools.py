"""Tools of a memory for a model: functions whose annotations and docstrings the model reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from scrubjay.adapters._copies import unattended_copy
from scrubjay.conversations import is_reserved
from scrubjay.errors import Forbidden, InvalidInput, Unauthenticated, Unavailable
from scrubjay.exact_json import decode_body, encode
from scrubjay.memory import Memory
from scrubjay.validation import check_content, check_key

UNREACHABLE = "the memory cannot be reached just now"
_UNREADABLE = (Unavailable, Unauthenticated, Forbidden)


def memory_tools(memory: Memory) -> list[Callable[..., str]]:
    """Tools that tell the model when the memory is unreachable. A wrong call raises, which the model reads as well."""
    own = unattended_copy(memory)

    def remember(content: Annotated[str, "one fact, in a sentence that can stand alone"]) -> str:
        """Remember something for later conversations."""
        own.remember(check_content(content))
        return "remembered"

    def recall(query: Annotated[str, "what to look for"], limit: Annotated[int, "how many notes at most"] = 5) -> str:
        """Recall what was remembered about something, best first."""
        try:
            found = [note.content for note in own.recall(query, limit=limit)]
        except _UNREADABLE:
            return UNREACHABLE
        return "\n".join(found) or "nothing is remembered about that"

    def get(key: Annotated[str, "the name it was stored under"]) -> str:
        """Get the value that is stored under a key."""
        try:
            value = own.get(key)
        except _UNREADABLE:
            return UNREACHABLE
        return f"nothing is stored under {key!r}" if value is None else encode(value)

    def set(  # noqa: A001 - the word of the library, and the name the model sees
        key: Annotated[str, "a name to store it under"], value: Annotated[str, "text, or JSON"]
    ) -> str:
        """Store a value under a key, over what was there."""
        if is_reserved(check_key(key)):
            raise InvalidInput(f"conversations are stored under {key!r}; choose another key")
        own.set(key, _json_or_text(value))
        return f"stored under {key!r}"

    return [remember, recall, get, set]


def _json_or_text(value: str) -> Any:
    try:
        return decode_body(value)
    except InvalidInput:
        return value
