"""Conversations: the keys of their lists, and messages of any framework in one form.

A conversation is a list of messages. Adapters store it under `session:<name>:messages`, for the session "default" under
`messages`, and each item as `entry` makes it. Any other list whose last item is a message is a conversation as well;
its session has the name of its key.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from scrubjay.errors import InvalidInput, repr_short
from scrubjay.models import Message, iso, to_time

DEFAULT = "default"
"""The session of programs that have only one."""
HISTORY, MESSAGES, SPEAKERS = "conversation_history", "messages", "speaker_history"
"""Names of lists: lines for people to read, messages as a framework has them, and who spoke."""
IDS = ":ids"
"""Behind the key of a list: the list of the ids of its items, in the same order."""
WITH, STATE = "with:", "state:"
"""Prefixes of keys that adapters use beside the conversation: what one agent knows of it, and an agent's values."""
LEARNED = "learned:"
"""Before the name of a list: the key that says how far `distill` has read it."""
MAX_SESSION_BYTES = 128
"""Bytes of a session's name as a part of a key, so that the key has room for the rest."""
MARK = "session:"


# ------------------------------------------------------------ keys


def session_key(session: str, name: str = MESSAGES) -> str:
    """The key of a session's list, or of another of its items.

    :raises InvalidInput: if the session's name is empty or too long.
    """
    return session_prefix(session) + name


def session_prefix(session: Any) -> str:
    """What the keys of a session start with; those of the session "default" have no prefix."""
    quoted = quote_session(session) if isinstance(session, str) else ""
    if not 0 < len(quoted.encode()) <= MAX_SESSION_BYTES:
        raise InvalidInput(
            f"the name of a session is text of 1 to {MAX_SESSION_BYTES} bytes, in which ':' and '%' count as three, not"
            f" {repr_short(session)}; use {DEFAULT!r} if there is only one"
        )
    return "" if session == DEFAULT else f"{MARK}{quoted}:"


def quote_session(session: str) -> str:
    """A session's name as a part of a key, whose parts are separated by colons."""
    return session.encode(errors="replace").decode().replace("%", "%25").replace(":", "%3A")


def split_key(key: str) -> tuple[str, str]:
    """The session that a key belongs to, and the rest of the key; a key of no session is one of its own."""
    if key.startswith(MARK):
        quoted, _, name = key.removeprefix(MARK).partition(":")
        return unquote(quoted), name
    return DEFAULT if is_reserved(key) else key, key


def is_reserved(key: str) -> bool:
    """Whether the key is one that adapters store sessions under."""
    plain = key.removeprefix(LEARNED).removesuffix(IDS)
    return plain in (HISTORY, MESSAGES, SPEAKERS) or key.startswith((WITH, STATE, MARK))


def may_be_conversation(key: str) -> bool:
    """False for the keys that adapters use beside a conversation."""
    name = split_key(key)[1]
    return not name.endswith(IDS) and name != SPEAKERS and not name.startswith((WITH, STATE, LEARNED))


# ------------------------------------------------------------ ids and entries


def new_id() -> str:
    """An id for a message: the time in milliseconds since 1970, then random, both in hexadecimal."""
    return f"{time.time_ns() // 1_000_000:012x}-{os.urandom(6).hex()}"


def time_of(message_id: str) -> datetime | None:
    """When `new_id` made this id; None if it is another id."""
    return to_time(int(message_id[:12], 16)) if _ID.fullmatch(message_id) else None


_ID = re.compile(r"0[0-9a-f]{11}-[0-9a-f]{12}")


def entry(message: Any, *, sender: str = "", id: str | None = None) -> dict[str, Any]:  # noqa: A002
    """A message as adapters store it: with an id, the time, the sender if one is named, and the message as it is."""
    chosen = id or new_id()
    at = time_of(chosen) or datetime.now(UTC)
    return {"id": chosen, "time": iso(at), **({"sender": sender} if sender else {}), "message": message}


# ------------------------------------------------------------ messages of any framework

_CONTENTS = ("content", "contents", "parts", "blocks")
_BODIES = (*_CONTENTS, "tool_calls", "function_call", "arguments", "output", "summary", "tool_responses")
_ROLES = {
    "human": "user", "HumanMessage": "user", "HumanMessageChunk": "user", "UserMessage": "user", "request": "user",
    "ai": "assistant", "AIMessage": "assistant", "AIMessageChunk": "assistant", "AssistantMessage": "assistant",
    "response": "assistant", "model": "assistant", "function_call": "assistant", "reasoning": "assistant",
    "system": "system", "developer": "system", "SystemMessage": "system",
    "tool": "tool", "ToolMessage": "tool", "function": "tool", "FunctionMessage": "tool",
    "function_call_output": "tool", "FunctionExecutionResultMessage": "tool",
}  # fmt: skip
"""The names of roles and of types of messages, to the four roles that all of them have."""
_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "args", "input", "tool_kwargs")
_CALL_IDS = ("call_id", "tool_call_id", "tool_use_id", "toolUseId")
_RESULTS = ("content", "output", "result", "response")
_WRAPPED_CALLS = ("toolUse", "function_call", "functionCall", "function")
_WRAPPED_RESULTS = ("toolResult", "function_response", "functionResponse")
_SENDERS = ("sender", "source", "author", "author_name", "name")
_TIMES = ("time", "at", "timestamp", "created_at")
_EVENT = "__event__"
"""The field in which ag2 has the class of an event."""
_UNSPOKEN = ("thinking", "reasoning", "redacted_thinking")
"""Types of parts that are not said to anybody."""


def is_message(item: Any) -> bool:
    """Whether an item of a list is a message of some framework."""
    if not isinstance(item, dict):
        return False
    message = _unwrap(item)
    if message is None or _EVENT in item:
        return True
    if message is not item and "message" in item:
        return "sender" in item or is_message(message)
    return isinstance(message, dict) and bool(_role(message)) and any(field in message for field in _BODIES)


def to_message(item: Any, position: int, *, id: str = "", sender: str = "") -> Message | None:  # noqa: A002
    """An item of a list in the one form; None for an event that only repeats a part of another.

    `id` and `sender` are what lists beside it say of it.
    """
    outer = item if isinstance(item, dict) else {}
    inner = _unwrap(item)
    if inner is None and outer:
        return None
    message = inner if isinstance(inner, dict) else {}
    role = _role(message)
    body = _Body()
    if message:
        body.read_message(message, role)
    else:
        body.add_text(inner)
    if not role and body.results:
        role = "tool"
    known = id or _first_text(outer, ("id", "message_id")) or _first_text(message, ("id", "message_id"))
    said_by = sender or _first_text(outer, _SENDERS) or ("" if body.results else _first_text(message, _SENDERS))
    return Message(
        id=known or str(position),
        position=position,
        sender=said_by or role,
        role=role or ("user" if said_by == "user" else ""),
        message="\n".join(text for text in body.texts if text),
        time=_time(outer, message) or time_of(known),
        tool_calls=tuple(body.calls),
        tool_results=tuple(body.results),
    )


class _Body:
    """What a message says, the tools that it calls, and the results that it brings."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []

    def read_message(self, message: Mapping[str, Any], role: str) -> None:
        if self._add_tool_part(message):
            return
        content = next((message[field] for field in _CONTENTS if field in message), None)
        if role == "tool" and isinstance(content, str) and not message.get("tool_responses"):
            self.results.append(_result(message))
        else:
            for part in content if isinstance(content, list) else [content]:
                self.add_part(part)
        for part in _list(message.get("tool_calls")) + _list(message.get("tool_responses")):
            self._add_tool_part(part)
        if isinstance(message.get("function_call"), dict):
            self.calls.append(_call(message["function_call"]))
        if message.get("tool_responses") and role == "tool":  # the content only repeats the results
            self.texts.clear()

    def add_part(self, part: Any) -> None:
        if not isinstance(part, dict):
            self.add_text(part)
        elif not self._add_tool_part(part):
            kind = next((str(part[field]) for field in ("type", "part_kind", "block_type") if part.get(field)), "")
            text = next((part[field] for field in ("text", "content", "refusal") if field in part), None)
            if isinstance(text, list):
                for inner in text:
                    self.add_part(inner)
            elif text is not None and kind not in _UNSPOKEN:
                self.add_text(text)
            elif kind and kind not in _UNSPOKEN:
                self.texts.append(f"[{kind}]")

    def add_text(self, text: Any) -> None:
        if text is not None:
            self.texts.append(_as_text(text))

    def _add_tool_part(self, part: Any) -> bool:
        """Whether the part is a call or a result: frameworks differ in the names of fields, not in the shape."""
        if not isinstance(part, dict):
            return False
        wrapped = next((part[field] for field in _WRAPPED_CALLS if isinstance(part.get(field), dict)), None)
        if wrapped is not None and "role" not in part:
            self.calls.append({**_call(wrapped), "id": _call(wrapped)["id"] or _call(part)["id"]})
            return True
        wrapped = next((part[field] for field in _WRAPPED_RESULTS if isinstance(part.get(field), dict)), None)
        if wrapped is not None:
            self.results.append(_result(wrapped))
        elif any(part.get(field) for field in _NAMES) and any(field in part for field in _ARGUMENTS):
            self.calls.append(_call(part))
        elif any(part.get(field) for field in _CALL_IDS) and any(field in part for field in _RESULTS):
            self.results.append(_result(part))
        else:
            return False
        return True


def _call(part: Mapping[str, Any]) -> dict[str, Any]:
    arguments = next((part[field] for field in _ARGUMENTS if field in part), None)
    return {
        "id": _first_text(part, (*_CALL_IDS, "id")),
        "name": _first_text(part, _NAMES),
        "arguments": _parsed(arguments),
    }


def _result(part: Mapping[str, Any]) -> dict[str, Any]:
    content = next((part[field] for field in _RESULTS if part.get(field) is not None), "")
    inner = _Body()
    for each in content if isinstance(content, list) else [content]:
        inner.add_part(each) if _has_text(each) else inner.add_text(each)
    return {
        "id": _first_text(part, (*_CALL_IDS, "id")),
        "name": _first_text(part, _NAMES),
        "content": "\n".join(inner.texts),
    }


def _has_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _parsed(arguments: Any) -> Any:
    """Arguments of a call: most frameworks store them as JSON text."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _unwrap(item: Any) -> Any:
    """The message in what a framework or an adapter has put around it."""
    if not isinstance(item, dict):
        return item
    if isinstance(item.get(_EVENT), str):
        return _from_event(item)
    if "message" in item and "role" not in item:
        return _unwrap(item["message"])
    if isinstance(item.get("kwargs"), dict) and isinstance(item.get("id"), list) and item["id"]:  # LangChain's dumps
        return {**item["kwargs"], "type": item["id"][-1]}
    kind = item.get("type")
    if isinstance(item.get("data"), dict) and isinstance(kind, str) and kind in _ROLES:  # LangChain's message_to_dict
        return {**item["data"], "type": item["type"]}
    if isinstance(item.get("content"), dict) and "parts" in item["content"]:  # an event of Google's ADK
        return {**item, "content": item["content"]["parts"], "role": item["content"].get("role")}
    return item


def _from_event(event: Mapping[str, Any]) -> dict[str, Any] | None:
    """An event of ag2 as a message; None for the events that repeat its tool calls and results one by one."""
    kind = str(event[_EVENT]).rpartition(".")[2]
    if kind == "ModelRequest":
        return {"role": "user", **event}
    if kind == "ModelResponse":
        said, calls = _dict(event.get("message")), _dict(event.get("tool_calls"))
        return {**event, "role": "assistant", "content": said.get("content"), "tool_calls": calls.get("calls")}
    if kind == "ToolResultsEvent":
        return {
            "role": "tool",
            **event,
            "tool_responses": [_event_result(_dict(each)) for each in _list(event.get("results"))],
        }
    return None


def _event_result(event: Mapping[str, Any]) -> dict[str, Any]:
    result = _dict(_dict(event.get("result")).get("data"))
    parts = [part for part in _list(result.get("parts")) if isinstance(part, dict)]
    texts = [_as_text(next((part[field] for field in ("content", "data") if field in part), "")) for part in parts]
    return {"call_id": event.get("parent_id"), "name": event.get("name"), "content": "\n".join(texts)}


def _role(message: Mapping[str, Any]) -> str:
    role = message.get("role")
    if isinstance(role, dict):
        role = role.get("value")
    if isinstance(role, str) and role:
        return _ROLES.get(role, role)
    for field in ("type", "kind"):
        kind = message.get(field)
        if isinstance(kind, str) and kind in _ROLES:
            return _only_results(message) or _ROLES[kind]
    return ""


def _only_results(message: Mapping[str, Any]) -> str:
    """Pydantic AI sends results in a request, which otherwise is the user's."""
    kinds = {part.get("part_kind") for part in _list(message.get("parts")) if isinstance(part, dict)}
    return {"tool-return": "tool", "system-prompt": "system"}.get(str(*kinds), "") if len(kinds) == 1 else ""


def _time(*sources: Mapping[str, Any]) -> datetime | None:
    parts = [part for part in _list(sources[-1].get("parts")) if isinstance(part, dict)]
    for source in (*sources, *parts):
        for field in _TIMES:
            found = _parse_time(source.get(field))
            if found is not None:
                return found
    return None


def _parse_time(value: Any) -> datetime | None:
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return to_time(int(value if value > _MILLISECONDS else value * 1000))
    except (ValueError, OverflowError, OSError):
        pass
    return None


_MILLISECONDS = 10**11
"""A larger number is a time in milliseconds: as seconds it would be after the year 5000."""


def _first_text(source: Mapping[str, Any], fields: tuple[str, ...]) -> str:
    return next((source[field] for field in fields if isinstance(source.get(field), str) and source[field]), "")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def with_tool_names(messages: Sequence[Message]) -> list[Message]:
    """The messages with the names of the tools in their results, which most frameworks have in the call only."""
    names = {call["id"]: call["name"] for message in messages for call in message.tool_calls}
    return [
        message._replace(
            tool_results=tuple(
                {**result, "name": result["name"] or names.get(result["id"], "")} for result in message.tool_results
            )
        )
        for message in messages
    ]


def matches(message: Message, search: str | None) -> bool:
    """Whether a message contains a text, in whatever case; every message contains none."""
    wanted = (search or "").casefold()
    return not wanted or any(wanted in text.casefold() for text in _texts(message))


def _texts(message: Message) -> Iterator[str]:
    """All that can be searched for in a message."""
    yield message.sender
    yield message.message
    for call in message.tool_calls:
        yield f"{call['name']} {_as_text(call['arguments'])}"
    for result in message.tool_results:
        yield f"{result['name']} {result['content']}"
