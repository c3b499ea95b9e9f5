"""Model contexts, memories and teams that survive the process, for AutoGen 0.4 and newer (autogen-agentchat).

    context = ScrubjayModelContext("sarah")
    agent = AssistantAgent("assistant", model_client, model_context=context, memory=[ScrubjayMemory("sarah")])

Tested with autogen-agentchat 0.7.5. pyautogen, autogen and ag2 before 1.0 have an adapter of their own:
scrubjay.adapters.autogen.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from scrubjay.adapters._framework import missing, open_memory, read, write
from scrubjay.adapters._plain import plain
from scrubjay.adapters._recall import NOTES, TOKENS, notes_for
from scrubjay.async_memory import AsyncMemory
from scrubjay.conversations import MESSAGES, STATE, entry, session_key
from scrubjay.errors import InvalidInput
from scrubjay.memory import Memory
from scrubjay.models import Note
from scrubjay.recall.prompt import format_prompt

try:
    from autogen_agentchat.teams import BaseGroupChat
    from autogen_agentchat.teams._group_chat._events import (
        GroupChatAgentResponse,
        GroupChatTeamResponse,
        GroupChatTermination,
    )
    from autogen_core import (
        CancellationToken,
        Component,
        SingleThreadedAgentRuntime,
    )
    from autogen_core.memory import Memory as AgentMemory
    from autogen_core.memory import MemoryContent, MemoryMimeType, MemoryQueryResult, UpdateContextResult
    from autogen_core.model_context import ChatCompletionContext
    from autogen_core.models import FunctionExecutionResultMessage, LLMMessage, SystemMessage, UserMessage
    from pydantic import BaseModel, TypeAdapter
except ImportError as error:
    raise missing("agentchat", "autogen-agentchat 0.7.5 or newer", error) from error

logger = logging.getLogger(__name__)

_MESSAGES: TypeAdapter[Any] = TypeAdapter(LLMMessage)
_JSON = MemoryMimeType.JSON.value


# ------------------------------------------------------------ the messages of an agent


class ScrubjayModelContextConfig(BaseModel):
    """The arguments of a ScrubjayModelContext; the Memory by the name of its namespace."""

    session: str
    namespace: str
    agent: str | None = None
    limit: int | None = None


class ScrubjayModelContext(ChatCompletionContext, Component[ScrubjayModelContextConfig]):
    """The messages of one agent, in a list of a Memory, as `scrubjay chat` and the dashboard show it.

    A message is stored when the agent adds it, and the next process goes on with it. System messages, in which memories
    put what they recall, are not stored: they are given to the model until the next message of a user.

    :param session: the name of the conversation, up to 128 bytes.
    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    :param agent: the name of the agent, if several agents of a team are in one session: each has a list of its own.
    :param limit: how many messages the model is given, the latest; without it all of them.
    """

    component_config_schema = ScrubjayModelContextConfig
    component_provider_override = "scrubjay.adapters.agentchat.ScrubjayModelContext"

    def __init__(
        self,
        session: str,
        memory: Memory | AsyncMemory | str = "agentchat",
        *,
        agent: str | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__()
        self._key = session_key(session, f"{MESSAGES}:{agent}" if agent else MESSAGES)
        self._memory = open_memory(memory)
        self._limit = limit
        self._config = ScrubjayModelContextConfig(
            session=session, namespace=self._memory.namespace, agent=agent, limit=limit
        )
        self._recalled: list[LLMMessage] = []

    async def add_message(self, message: LLMMessage) -> None:
        """Store a message at the end of the list; a system message is only held until the next of a user."""
        if isinstance(message, SystemMessage):
            self._recalled.append(message)
            return
        if isinstance(message, UserMessage):
            self._recalled.clear()
        await write(self._memory.append, self._key, _to_item(message))

    async def get_messages(self) -> list[LLMMessage]:
        """Return the messages for the model, oldest first, with what was recalled after the last of a user.

        :raises Unavailable: if the server is unreachable: an empty history would look like a new conversation.
        """
        messages = await self._read(self._limit)
        if self._limit is not None and messages and isinstance(messages[0], FunctionExecutionResultMessage):
            del messages[0]  # without the call before it, models refuse the result
        at = max((number for number, each in enumerate(messages, 1) if isinstance(each, UserMessage)), default=0)
        return messages[:at] + self._recalled + messages[at:]

    async def clear(self) -> None:
        """Delete the messages, as when the agent or its team is reset."""
        self._recalled.clear()
        await write(self._memory.delete, self._key)

    async def save_state(self) -> Mapping[str, Any]:
        """Return all messages."""
        return {"messages": [_dump(message) for message in await self._read(None)]}

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the messages by those of a state."""
        self._recalled.clear()
        wanted = [_MESSAGES.validate_python(each) for each in state["messages"]]
        if wanted != await self._read(None):
            await write(self._memory.set, self._key, [_to_item(message) for message in wanted])

    async def _read(self, limit: int | None) -> list[LLMMessage]:
        if limit is None:
            found = await read(self._memory.get, self._key, [])
        else:
            found = await read(self._memory.tail, self._key, limit)
        return [_MESSAGES.validate_python(item["message"]) for item in found]

    def _to_config(self) -> ScrubjayModelContextConfig:
        return self._config

    @classmethod
    def _from_config(cls, config: ScrubjayModelContextConfig) -> Self:
        return cls(config.session, config.namespace, agent=config.agent, limit=config.limit)


def _to_item(message: LLMMessage) -> dict[str, Any]:
    return entry(_dump(message))


def _dump(message: LLMMessage) -> Any:
    return plain(_MESSAGES.dump_python(message, mode="json"))


# ------------------------------------------------------------ notes


class ScrubjayMemoryConfig(BaseModel):
    """The arguments of a ScrubjayMemory; the Memory by the name of its namespace."""

    session: str | None
    namespace: str
    limit: int = NOTES
    max_tokens: int = TOKENS


class ScrubjayMemory(AgentMemory, Component[ScrubjayMemoryConfig]):
    """Notes of a Memory that are given to the model when they are about what the user says.

    :param session: the session that notes are added to. Given to the model are its notes and those of no session.
    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    :param limit: notes that the model is given, at most.
    :param max_tokens: tokens of these notes, at most.
    """

    component_config_schema = ScrubjayMemoryConfig
    component_provider_override = "scrubjay.adapters.agentchat.ScrubjayMemory"

    def __init__(
        self,
        session: str | None = None,
        memory: Memory | AsyncMemory | str = "agentchat",
        *,
        limit: int = NOTES,
        max_tokens: int = TOKENS,
    ) -> None:
        self._memory = open_memory(memory)
        self._config = ScrubjayMemoryConfig(
            session=session, namespace=self._memory.namespace, limit=limit, max_tokens=max_tokens
        )

    async def update_context(self, model_context: ChatCompletionContext) -> UpdateContextResult:
        """Add the notes about the last message of a user to a context, as a system message.

        :raises Unavailable: if the server is unreachable.
        """
        said = [each for each in await model_context.get_messages() if isinstance(each, UserMessage)]
        notes = await self._recall(_text_of(said[-1].content), self._config.limit) if said else []
        prompt = format_prompt(notes, self._config.max_tokens)
        if prompt:
            await model_context.add_message(SystemMessage(content=prompt))
        found = [_to_content(note) for note in notes] if prompt else []
        return UpdateContextResult(memories=MemoryQueryResult(results=found))

    async def query(
        self,
        query: str | MemoryContent,
        cancellation_token: CancellationToken | None = None,  # noqa: ARG002 - a recall is short
        **options: Any,
    ) -> MemoryQueryResult:
        """Return the notes about a query, best first; `limit=` says how many at most."""
        text = query if isinstance(query, str) else _to_text(query)
        notes = await self._recall(text, options.get("limit", self._config.limit))
        return MemoryQueryResult(results=[_to_content(note) for note in notes])

    async def add(
        self,
        content: MemoryContent,
        cancellation_token: CancellationToken | None = None,  # noqa: ARG002 - a write is not given up halfway
    ) -> None:
        """Store text, or an object as JSON, as a note.

        :raises InvalidInput: if the content is an image or bytes.
        """
        kind = content.mime_type.value if isinstance(content.mime_type, MemoryMimeType) else content.mime_type
        fields = {**plain(content.metadata or {}), "mime_type": kind}
        await write(self._memory.remember, _to_text(content), session=self._config.session, metadata=fields)

    async def clear(self) -> None:
        """Forget the notes of the session; without a session those of none."""
        await write(self._forget)

    async def close(self) -> None:
        """Do nothing: the Memory stays open for others that use it."""

    async def _recall(self, query: str, limit: int) -> list[Note]:
        return await read(notes_for, self._memory, query, self._config.session, limit=limit)

    def _forget(self) -> None:
        for note in self._memory.notes(session=self._config.session):
            if note.session == self._config.session:
                self._memory.forget(note.id)

    def _to_config(self) -> ScrubjayMemoryConfig:
        return self._config

    @classmethod
    def _from_config(cls, config: ScrubjayMemoryConfig) -> Self:
        return cls(config.session, config.namespace, limit=config.limit, max_tokens=config.max_tokens)


def _text_of(content: Any) -> str:
    """The text of a message, without its images."""
    return content if isinstance(content, str) else "\n".join(part for part in content if isinstance(part, str))


def _to_text(content: MemoryContent) -> str:
    if isinstance(content.content, str):
        return content.content
    if isinstance(content.content, dict):
        return json.dumps(plain(content.content), ensure_ascii=False)
    raise InvalidInput(f"a note is text or an object, not {type(content.content).__name__}; describe it in words")


def _to_content(note: Note) -> MemoryContent:
    fields = dict(note.metadata)
    kind = fields.pop("mime_type", MemoryMimeType.TEXT.value)
    content = json.loads(note.content) if kind == _JSON else note.content
    return MemoryContent(
        content=content if isinstance(content, dict) else note.content,
        mime_type=kind,
        metadata={**fields, "id": note.id, "score": note.score},
    )


# ------------------------------------------------------------ teams

_IN_STEP = ("RoundRobinManagerState", "SelectorManagerState", "SwarmManagerState")
"""States of managers that follow from the messages alone, so that a state can be completed by a message."""


class ScrubjayTeam:
    """The state of a team, in a Memory, saved at each response of a member; the messages are in a list beside it.

        saved = ScrubjayTeam("sarah")
        team = RoundRobinGroupChat([writer, critic], runtime=saved.runtime, max_turns=4)
        saved.runtime.start()
        if await saved.load(team):
            await team.run()  # goes on with the next member
        else:
            await team.run(task="Write a poem")

    Teams other than RoundRobinGroupChat, SelectorGroupChat and Swarm are saved when a run has ended.

    :param session: the name of the conversation, up to 128 bytes.
    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    """

    def __init__(self, session: str, memory: Memory | AsyncMemory | str = "agentchat") -> None:
        self._memory = open_memory(memory)
        self._list_key = session_key(session)
        self._key = session_key(session, f"{STATE}team")
        self._team: BaseGroupChat | None = None
        self._version = 0
        self._stored: set[str] = set()
        """The ids of the messages that are in the list."""
        self._last: GroupChatAgentResponse | None = None
        self.runtime = _SavingRuntime(self._before_publish)
        """The runtime for the team; start it before the team runs."""

    async def load(self, team: BaseGroupChat) -> bool:
        """Give a team its stored state, and save it from now on; returns whether there was one.

        :raises Unavailable: if the server is unreachable.
        """
        found = await read(self._memory.item, self._key)
        if found is not None:
            await team.load_state(found.value)
            self._stored = {message["id"] for message in _thread(team, found.value)}
        self._version = found.version if found else 0
        self._team = team
        self._last = None
        return found is not None

    async def save(self, team: BaseGroupChat) -> None:
        """Store the state of a team that is not running.

        :raises Conflict: if another process has saved the team since it was loaded here.
        :raises Unavailable: if the server is unreachable.
        """
        await self._store(team, plain(await team.save_state()))

    async def _before_publish(self, message: Any) -> None:
        """Save the team before a response is delivered, and when a run has ended."""
        team = self._team
        if team is None:
            return
        if isinstance(message, GroupChatAgentResponse) and message.name in team._participant_names:
            self._last = message
            await self._save_running(team, has_ended=False)
        elif isinstance(message, GroupChatTeamResponse):  # of a team within the team: all have the last one
            self._last = None
        elif isinstance(message, GroupChatTermination):
            try:
                await self._save_running(team, has_ended=True)
            except Exception:  # it would keep the run from ending
                logger.exception("the end of a run was not saved; its responses are, up to the last that was")

    async def _save_running(self, team: BaseGroupChat, *, has_ended: bool) -> None:
        state = plain(await team.save_state())
        if has_ended or _manager(team, state).get("type") in _IN_STEP:
            if self._last is not None:
                _deliver(team, state, self._last)
            await self._store(team, state)

    async def _store(self, team: BaseGroupChat, state: dict[str, Any]) -> None:
        new = [message for message in _thread(team, state) if message["id"] not in self._stored]
        self._version = await write(self._write, new, state)
        self._stored |= {message["id"] for message in new}

    def _write(self, messages: list[dict[str, Any]], state: dict[str, Any]) -> int:
        items = [entry(message, sender=message["source"], id=message["id"]) for message in messages]
        with self._memory.transaction() as t:
            t.append(self._list_key, *items)
            t.update({}, if_versions={self._key: self._version})
            t.set(self._key, state)
        *_, version = t.results or [0]  # never queued, because a version is expected
        return int(version)


class _SavingRuntime(SingleThreadedAgentRuntime):
    """A runtime that calls a function before a message is published.

    An intervention handler would be called, too, but the runtime drops a message for which it raises an exception, and
    the team never stops waiting for it. Here the exception reaches the agent that publishes, and ends the run.
    """

    def __init__(self, before_publish: Callable[[Any], Awaitable[None]]) -> None:
        super().__init__()
        self._before_publish = before_publish

    async def publish_message(self, message: Any, *args: Any, **options: Any) -> None:
        await self._before_publish(message)
        await super().publish_message(message, *args, **options)


def _manager(team: BaseGroupChat, state: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = state["agent_states"][team._group_chat_manager_name]
    return found


def _thread(team: BaseGroupChat, state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a team, oldest first."""
    found: list[dict[str, Any]] = _manager(team, state)["message_thread"]
    return found


def _deliver(team: BaseGroupChat, state: dict[str, Any], message: GroupChatAgentResponse) -> None:
    """Change a state into that after a response has reached the manager and the other members."""
    response = message.response
    thread = _thread(team, state)
    known = {each["id"] for each in thread}
    new = [plain(each.dump()) for each in (*(response.inner_messages or ()), response.chat_message)]
    if new[-1]["id"] not in known:
        thread += [each for each in new if each["id"] not in known]
        _manager(team, state)["current_turn"] += 1
    for name in team._participant_names:
        buffer = state["agent_states"][name]["message_buffer"]
        if name != message.name and new[-1]["id"] not in {each["id"] for each in buffer}:
            buffer.append(new[-1])
