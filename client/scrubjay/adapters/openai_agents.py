"""Sessions of the OpenAI Agents SDK that continue in another process as in the same one.

    result = await Runner.run(agent, "Hi", session=ScrubjaySession("sarah"))

Tested with openai-agents 0.24.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scrubjay.adapters._framework import missing, open_memory, read, write
from scrubjay.async_memory import AsyncMemory
from scrubjay.conversations import entry, session_key
from scrubjay.errors import InvalidInput, repr_short
from scrubjay.memory import Memory

try:
    from agents.items import TResponseInputItem
    from agents.memory.session import SessionABC
    from agents.memory.session_settings import SessionSettings, coerce_session_settings, resolve_session_limit
except ImportError as error:
    raise missing("openai-agents", "the OpenAI Agents SDK", error) from error


class ScrubjaySession(SessionABC):
    """The history of a conversation, in a list of a Memory, as `scrubjay chat` and the dashboard show it.

    :param session_id: the name of the conversation, up to 128 bytes.
    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    :param session_settings: the SDK's settings, such as the number of items that a run is given.
    """

    def __init__(
        self,
        session_id: str,
        memory: Memory | AsyncMemory | str = "openai-agents",
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings = coerce_session_settings(session_settings or SessionSettings())
        self._key = session_key(session_id)
        self._memory = open_memory(memory)
        self._is_closed = False

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the history, oldest first, or its last `limit` items.

        :raises Unavailable: if the server is unreachable: an empty history would look like a new conversation.
        """
        self._check_open()
        wanted = resolve_session_limit(limit, self.session_settings)
        if wanted is None or wanted < 0:
            found = await read(self._memory.get, self._key, [])
        else:
            found = await read(self._memory.tail, self._key, wanted)
        return [item["message"] for item in found]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items to the history, all of them or none.

        :raises InvalidInput: if the items are not in a list.
        """
        self._check_open()
        if not isinstance(items, Sequence) or isinstance(items, str | bytes):
            raise InvalidInput(f"add_items takes a list of items, not {repr_short(items)}")
        if items:
            await write(self._memory.append, self._key, *[entry(item) for item in items])

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the last item of the history; None if there is none. Of several callers, each gets another item."""
        self._check_open()
        found = await write(self._memory.pop, self._key)
        return found[0]["message"] if found else None

    async def clear_session(self) -> None:
        """Delete the history."""
        self._check_open()
        await write(self._memory.delete, self._key)

    def close(self) -> None:
        """End the session; its Memory stays open."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"{type(self).__name__} is closed; open another one")
