"""A memory as tools for a model: plain functions, whose annotations and docstrings are what the model reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from scrubjay.errors import InvalidInput
from scrubjay.memory import Memory
from scrubjay.names import check_content, check_key
from scrubjay.values import decode_body, encode

from ._saving import Write, saver_of
from ._sessions import is_reserved

UNREACHED = "the memory cannot be reached just now"


def memory_tools(memory: Memory) -> list[Callable[..., str]]:
    """Tools that say so when the memory is away; what is wrong with a call is raised, for the model to read."""
    saver = saver_of(memory)

    def remember(content: Annotated[str, "one fact, in a sentence that can stand alone"]) -> str:
        """Remember something for later conversations."""
        saver.write(Write("remember", "", {"content": check_content(content)}))
        return "remembered"

    def recall(query: Annotated[str, "what to look for"], limit: Annotated[int, "how many notes at most"] = 5) -> str:
        """Recall what was remembered about something, best first."""
        found = saver.read(lambda: [note.content for note in saver.memory.recall(query, limit=limit)], [UNREACHED])
        return "\n".join(found) or "nothing is remembered about that"

    def get(key: Annotated[str, "the name it was stored under"]) -> str:
        """Get the value that is stored under a key."""
        known, value = saver.look(key)
        if value is not None:
            return encode(value)
        return f"nothing is stored under {key!r}" if known else UNREACHED

    def set(  # noqa: A001 - the word of the library, and the name the model sees
        key: Annotated[str, "a name to store it under"], value: Annotated[str, "text, or JSON"]
    ) -> str:
        """Store a value under a key, over what was there."""
        if is_reserved(check_key(key)):
            raise InvalidInput(f"conversations are kept under {key!r}; choose another key")
        saver.write(Write("set", key, _json_or_text(value)))
        return f"stored under {key!r}"

    return [remember, recall, get, set]


def _json_or_text(value: str) -> Any:
    try:
        return decode_body(value)
    except InvalidInput:
        return value
