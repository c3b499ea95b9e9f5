"""History, recall and workflow checkpoints for Microsoft Agent Framework.

    agent = Agent(client=client, context_providers=[ScrubjayHistory(), ScrubjayRecall()])
    await agent.run("Hi", session=AgentSession(session_id="sarah"))

Tested with agent-framework-core 1.23.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from scrubjay.adapters._framework import missing, open_memory, read, write
from scrubjay.adapters._large import delete_text, load_text, save_text
from scrubjay.adapters._plain import join_key, plain
from scrubjay.adapters._recall import NOTES, TOKENS, context_for, first_bytes
from scrubjay.async_memory import AsyncMemory
from scrubjay.conversations import DEFAULT, MESSAGES, entry, session_key
from scrubjay.errors import Unavailable
from scrubjay.memory import Memory

try:
    from agent_framework import (
        AgentSession,
        ContextProvider,
        HistoryProvider,
        Message,
        SessionContext,
        SupportsAgentRun,
        WorkflowCheckpoint,
        WorkflowCheckpointException,
    )
    from agent_framework._sessions import filter_new_messages
    from agent_framework._workflows._checkpoint_encoding import decode_checkpoint_value, encode_checkpoint_value
except ImportError as error:
    raise missing("agent-framework", "Microsoft Agent Framework 1.23 or newer", error) from error

SOURCE = "scrubjay"
"""The source_id of a history that is given no other."""


class ScrubjayHistory(HistoryProvider):
    """The messages of each session, in a list of a Memory, as `scrubjay chat` and the dashboard show it.

    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    :param source_id: the name of this provider. Each has a list of its own, so that an agent may have several.
    :param options: those of HistoryProvider: load_messages, store_inputs, store_outputs, store_context_messages,
        store_context_from.
    """

    def __init__(
        self, memory: Memory | AsyncMemory | str = "agent-framework", *, source_id: str = SOURCE, **options: Any
    ) -> None:
        super().__init__(source_id, **options)
        self._memory = open_memory(memory)

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002 - the messages are not in the session's state
        **_: Any,
    ) -> list[Message]:
        """Return the messages of a session, oldest first.

        :raises Unavailable: if the server is unreachable: an empty history would look like a new conversation.
        """
        return _messages(await read(self._memory.get, self._key(session_id), []))

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002
        **_: Any,
    ) -> None:
        """Append messages to those of a session, all of them or none, without those that it already ends with."""
        if messages:
            await write(self._append, self._key(session_id), messages)

    def _append(self, key: str, messages: Sequence[Message]) -> None:
        try:
            # The framework looks for an overlap, which cannot be longer than the messages.
            stored = _messages(self._memory.tail(key, len(messages)))
        except Unavailable:  # what is said must not be lost: the outbox takes all of it
            stored = []
        new = filter_new_messages(stored, messages)
        if new:
            self._memory.append(key, *[entry(plain(message.to_dict())) for message in new])

    def _key(self, session_id: str | None) -> str:
        name = MESSAGES if self.source_id == SOURCE else f"{MESSAGES}:{self.source_id}"
        return session_key(session_id or DEFAULT, name)


def _messages(items: Iterable[dict[str, Any]]) -> list[Message]:
    return [Message.from_dict(item["message"]) for item in items]


class ScrubjayRecall(ContextProvider):
    """Notes of a Memory in the instructions of each run: those that are about its input.

    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    :param source_id: the name of this provider.
    :param remember: also store what is said, input and answer, as notes of the session. A run is given the notes of
        its own session and those of none.
    :param limit: notes in the instructions, at most.
    :param max_tokens: tokens of these notes, at most.
    """

    def __init__(
        self,
        memory: Memory | AsyncMemory | str = "agent-framework",
        *,
        source_id: str = "scrubjay_recall",
        remember: bool = False,
        limit: int = NOTES,
        max_tokens: int = TOKENS,
    ) -> None:
        super().__init__(source_id)
        self._memory = open_memory(memory)
        self._remembers = remember
        self._limit = limit
        self._max_tokens = max_tokens

    async def before_run(
        self,
        *,
        agent: SupportsAgentRun,  # noqa: ARG002 - the framework passes all four
        session: AgentSession,  # noqa: ARG002
        context: SessionContext,
        state: dict[str, Any],  # noqa: ARG002
    ) -> None:
        """Add the notes about the input to the instructions.

        :raises Unavailable: if the server is unreachable.
        """
        query = "\n".join(message.text for message in context.input_messages)
        limits = {"limit": self._limit, "max_tokens": self._max_tokens}
        found = await read(context_for, self._memory, query, context.session_id, **limits)
        if found:
            context.extend_instructions(self.source_id, found)

    async def after_run(
        self,
        *,
        agent: SupportsAgentRun,  # noqa: ARG002
        session: AgentSession,  # noqa: ARG002
        context: SessionContext,
        state: dict[str, Any],  # noqa: ARG002
    ) -> None:
        """Store what was said as notes, as one write, if `remember` is set."""
        if self._remembers:
            answers = context.response.messages if context.response else []
            await write(self._remember, context.session_id, [*context.input_messages, *answers])

    def _remember(self, session: str | None, messages: Sequence[Message]) -> None:
        with self._memory.transaction() as t:
            for message in messages:
                if message.text.strip() and message.role in ("user", "assistant"):
                    sender = message.author_name or message.role
                    text = first_bytes(message.text)
                    t.remember(text, type="interaction", session=session, metadata={"sender": sender})


class ScrubjayCheckpoints:
    """A CheckpointStorage: the checkpoints of workflows, in a Memory.

    :param memory: a Memory or AsyncMemory, or the name of a namespace. Open it with `strict=True`: a queued checkpoint
        would be missing when the workflow is continued.
    :param allowed_checkpoint_types: your own classes in checkpoints, each as "module:qualname". Others than these, and
        than the framework's own, are refused when a checkpoint is saved.
    """

    def __init__(
        self,
        memory: Memory | AsyncMemory | str = "agent-framework-workflows",
        *,
        allowed_checkpoint_types: Iterable[str] = (),
    ) -> None:
        self._memory = open_memory(memory, strict=True)
        self._allowed_types = frozenset(allowed_checkpoint_types)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint, and return its id; one of the same id is replaced, all of it or nothing.

        :raises WorkflowCheckpointException: if it could not be loaded again.
        """
        text = self._encode(checkpoint)  # here, not on a thread: the workflow must not change it meanwhile
        await write(self._save, checkpoint.checkpoint_id, _place_key(checkpoint), text)
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint.

        :raises WorkflowCheckpointException: if there is none with this id, or it cannot be decoded.
        """
        text = await read(self._load, checkpoint_id)
        if text is None:
            raise WorkflowCheckpointException(f"there is no checkpoint {checkpoint_id!r}")
        return self._decode(text)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, oldest first."""
        return [self._decode(text) for text in await read(self._texts, workflow_name)]

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of the checkpoints of a workflow, oldest first."""
        return await read(lambda: list(self._memory.values(_prefix(workflow_name))))

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the latest checkpoint of a workflow; None if it has none. The cost does not grow with their number."""
        texts = await read(self._texts, workflow_name, reverse=True, limit=1)
        return self._decode(texts[0]) if texts else None

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; False if there is none with this id."""
        return await write(self._delete, checkpoint_id)

    def _encode(self, checkpoint: WorkflowCheckpoint) -> str:
        try:
            text = json.dumps(encode_checkpoint_value(checkpoint.to_dict()))
        except Exception as error:
            raise WorkflowCheckpointException(
                f"checkpoint {checkpoint.checkpoint_id!r} cannot be stored: {error}"
            ) from error
        self._decode(text)
        return text

    def _decode(self, text: str) -> WorkflowCheckpoint:
        return WorkflowCheckpoint.from_dict(
            decode_checkpoint_value(json.loads(text), allowed_types=self._allowed_types)
        )

    # ------------------------------------------------------------ on a thread

    def _save(self, checkpoint_id: str, key: str, text: str) -> None:
        def beside(before: Mapping[str, Any] | None) -> dict[str, Any]:
            """The place in the order of the workflow, instead of that of the same checkpoint with another time."""
            return {**({before["place"]: None} if before else {}), key: checkpoint_id}

        save_text(self._memory, _id_key(checkpoint_id), text, {"place": key}, beside)

    def _load(self, checkpoint_id: str) -> str | None:
        return load_text(self._memory, _id_key(checkpoint_id))

    def _texts(self, workflow: str, *, reverse: bool = False, limit: int | None = None) -> list[str]:
        found = map(self._load, list(self._memory.values(_prefix(workflow), reverse=reverse, limit=limit)))
        return [text for text in found if text is not None]

    def _delete(self, checkpoint_id: str) -> bool:
        return delete_text(self._memory, _id_key(checkpoint_id), lambda row: {row["place"]: None})


def _prefix(workflow: str) -> str:
    return f"{join_key('checkpoint', workflow)}/"


def _place_key(checkpoint: WorkflowCheckpoint) -> str:
    """A key that sorts by time within a workflow."""
    try:
        at = datetime.fromisoformat(checkpoint.timestamp)
    except ValueError as error:
        raise WorkflowCheckpointException(
            f"the time of checkpoint {checkpoint.checkpoint_id!r} is not ISO 8601: {checkpoint.timestamp!r}"
        ) from error
    moment = (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    return f"{_prefix(checkpoint.workflow_name)}{moment:%Y%m%dT%H%M%S%f}/{join_key(checkpoint.checkpoint_id)}"


def _id_key(checkpoint_id: str) -> str:
    return join_key("id", checkpoint_id)
