"""What reads see of queued writes: pure functions over values and commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from scrubjay.commands import APPEND, DELETE, MERGE, MISSING, REMEMBER, SET, UPDATE, Command
from scrubjay.conversations import IDS, split_key, to_message, with_tool_names
from scrubjay.exact_json import decode
from scrubjay.models import Message
from scrubjay.outbox.queue import QueuedWrite
from scrubjay.store.items import merge_fields

UNKNOWN: Any = object()
"""A value that only the target knows."""


def overlaid(writes: Iterable[QueuedWrite], key: str, value: Any) -> Any:
    """The value of a key once these writes are sent; MISSING and UNKNOWN are values, too."""
    if isinstance(value, list):
        value = [*value]  # once, and not for each item that is added
    for write in writes:
        for command in _parts(write.command):
            value = _applied(command, write.age, key, value)
    return value


def _parts(command: Command) -> tuple[Command, ...]:
    """The commands of a transaction, or the command itself."""
    parts: tuple[Command, ...] = command.argument("commands", (command,))
    return parts


def _applied(command: Command, age: float, key: str, value: Any) -> Any:
    if command.verb is UPDATE:
        texts, ttl = command.argument("values"), command.argument("ttl")
        if key not in texts:
            return value
        return MISSING if texts[key] is None or _is_over(ttl, age) else decode(texts[key])
    if command.key != key:
        return value
    if command.verb is APPEND:
        items = [decode(text) for text in command.argument("items")]
        if value is MISSING:
            return items or MISSING
        if isinstance(value, list):
            value += items
        return value
    if command.verb is MERGE:
        return _merged(decode(command.argument("fields")), value)
    if command.verb is SET:
        return MISSING if _is_over(command.argument("ttl"), age) else decode(command.argument("value"))
    return MISSING if command.verb is DELETE else value


def _merged(fields: dict[str, Any], value: Any) -> Any:
    if value is MISSING:
        value = {}
    return merge_fields(value, fields) if isinstance(value, dict) else value


def _is_over(ttl: float | None, age: float) -> bool:
    return ttl is not None and age >= ttl


def keys_written(writes: Iterable[QueuedWrite]) -> set[str]:
    """The keys that these writes change."""
    return {key for write in writes for command in _parts(write.command) for key in _keys(command)}


def keys_deleted(command: Command) -> set[str]:
    """The keys that a command deletes, if it does nothing else."""
    parts = _parts(command)
    return set().union(*map(_keys, parts)) if all(map(_only_deletes, parts)) else set()


def _only_deletes(command: Command) -> bool:
    if command.verb is UPDATE:
        return all(text is None for text in command.argument("values").values())
    return command.verb is DELETE


def _keys(command: Command) -> set[str]:
    if command.verb is UPDATE:
        return set(command.argument("values"))
    return {command.key} if command.key else set()


def messages_written(writes: Sequence[QueuedWrite], key: str, position: int) -> list[Message]:
    """The messages that these writes add to a conversation, from this position on."""
    items, ids = (_list(overlaid(writes, name, [])) for name in (key, key + IDS))
    shift = len(ids) - len(items)
    named = {i - shift: id_ for i, id_ in enumerate(ids) if isinstance(id_, str)}
    found = [to_message(item, position + i, id=named.get(i, "")) for i, item in enumerate(items)]
    return with_tool_names([message for message in found if message is not None])


def messages_behind(writes: Sequence[QueuedWrite], key: str, stored: Sequence[Message]) -> list[Message]:
    """The messages that these writes add behind the stored ones, but for those that are stored by now."""
    start = stored[-1].position + 1 if stored else 0
    added = messages_written(writes, key, start)
    ids = {message.id for message in stored}
    sent = max((message.position + 1 for message in added if message.id in ids), default=start) - start
    return [message._replace(position=message.position - sent) for message in added if message.id not in ids]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def sessions_written(write: QueuedWrite) -> set[str | None]:
    """The sessions that a write is about; None for a note of no session."""
    found: set[str | None] = set()
    for command in _parts(write.command):
        found |= {split_key(key)[0] for key in _keys(command)}
        if command.verb is REMEMBER:
            found.add(command.argument("note").session)
    return found
