"""Validated commands of the verbs that both Memory and its transactions have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scrubjay import commands
from scrubjay.commands import Command
from scrubjay.errors import InvalidInput, repr_short
from scrubjay.exact_json import check_total, encode
from scrubjay.validation import NewNote, check_count, check_key, check_ttl


def set_call(namespace: str, key: str, value: Any, ttl: float | None, if_version: int | None = None) -> Command:
    """The command that stores a value under a key; None deletes the key."""
    if ttl is not None:
        check_ttl(ttl)
    if value is None:
        return delete_call(namespace, key, if_version)
    check_key(key)
    if if_version is not None:
        check_count("if_version", if_version)
    return commands.SET(namespace, key, encode(value), ttl, if_version)


def delete_call(namespace: str, key: str, if_version: int | None = None) -> Command:
    if if_version is not None:
        check_count("if_version", if_version)
    return commands.DELETE(namespace, check_key(key), if_version)


def update_call(
    namespace: str, mapping: Mapping[str, Any], if_versions: Mapping[str, int] | None = None, ttl: float | None = None
) -> Command | None:
    """None if there is nothing to store and no version to check."""
    if not isinstance(mapping, Mapping):
        raise InvalidInput(f"update takes an object of keys and values, not {repr_short(mapping)}")
    check_ttl(ttl)
    if if_versions is not None:
        if_versions = {check_key(key): check_count("if_versions", version) for key, version in if_versions.items()}
    texts = {
        check_key(key): None if value is None else encode(value, f"value[{repr_short(key)}]")
        for key, value in mapping.items()
    }
    check_total([*texts, *filter(None, texts.values())])
    return commands.UPDATE(namespace, texts, if_versions, ttl) if texts or if_versions else None


def merge_call(namespace: str, key: str, mapping: Mapping[str, Any]) -> Command:
    """The command that replaces fields of an object."""
    if not isinstance(mapping, Mapping):
        raise InvalidInput(f"merge takes an object of fields and values, not {repr_short(mapping)}")
    return commands.MERGE(namespace, check_key(key), encode(dict(mapping)))


def touch_call(namespace: str, key: str, ttl: float | None) -> Command:
    return commands.TOUCH(namespace, check_key(key), check_ttl(ttl))


def append_call(namespace: str, key: str, items: Sequence[Any], once: str | None = None) -> Command:
    check_key(key)
    texts = [encode(item, f"items[{i}]") for i, item in enumerate(items)]
    check_total(texts)
    return commands.APPEND(namespace, key, texts, once=once)


def remember_call(namespace: str, content: str, **fields: Any) -> Command:
    """`fields` are the arguments of Memory.remember."""
    metadata = fields.pop("metadata", None)
    given = dict(metadata) if isinstance(metadata, Mapping) else metadata
    return commands.REMEMBER(namespace, NewNote.check(content, **fields, metadata=given))


def transaction_call(namespace: str, parts: Sequence[Command], once: str | None = None) -> Command:
    command = commands.TRANSACTION(namespace, tuple(parts), once=once)
    check_total([command.to_json()])
    return command
