"""Notes for the prompt of an agent, and messages as notes, for adapters whose framework has a place for them."""

from __future__ import annotations

from scrubjay.memory import Memory
from scrubjay.models import Note
from scrubjay.recall.prompt import CONTEXT_THRESHOLD, format_prompt
from scrubjay.validation import MAX_NOTE_BYTES, MAX_RECALL

NOTES, TOKENS = 8, 400
"""Notes, and tokens of notes, that a prompt is given at most, as in Memory.inject_context."""


def context_for(memory: Memory, query: str, session: str | None, *, limit: int, max_tokens: int) -> str:
    """Notes about a query, for a prompt: those of the session and those of none; "" if none fits."""
    return format_prompt(notes_for(memory, query, session, limit=limit), max_tokens)


def notes_for(memory: Memory, query: str, session: str | None, *, limit: int) -> list[Note]:
    """Notes about a query, best first: those of the session and those of none."""
    about = first_bytes(query)
    if not about.strip():
        return []
    own = memory.recall(about, limit=limit, session=session, threshold=CONTEXT_THRESHOLD) if session else []
    found = memory.recall(about, limit=min(limit * 8, MAX_RECALL), threshold=CONTEXT_THRESHOLD)
    common = [note for note in found if note.session is None]  # those of other sessions may be about other people
    return sorted(own + common, key=lambda note: note.score or 0, reverse=True)[:limit]


def first_bytes(text: str) -> str:
    """As much of a text as a note or a query may have."""
    return text.encode(errors="replace")[:MAX_NOTE_BYTES].decode(errors="ignore")
