"""Validated commands of the verbs that write: what Memory runs, and what a transaction collects."""

# ruff: noqa: PLW0108 - lambdas give arguments the names that they have in HTTP
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import isfinite
from typing import Any, TypedDict, Unpack

from scrubjay import commands
from scrubjay.commands import Command
from scrubjay.errors import InvalidInput, repr_short
from scrubjay.exact_json import check_rows, check_total, encode
from scrubjay.validation import NewNote, check_count, check_key, check_prefix, check_switch, check_ttl


class NoteFields(TypedDict, total=False):
    """The arguments of `remember`, beside the content."""

    type: str | None
    tags: Iterable[str]
    session: str | None
    ttl: float | None
    ttl_days: float | None
    pinned: bool
    metadata: Mapping[str, Any] | None
    supersedes: Iterable[str]
    id: str | None


def set_call(
    namespace: str, key: str, value: Any, *, ttl: float | None = None, if_version: int | None = None
) -> Command:
    """Store a value under a key; None deletes the key."""
    if ttl is not None:
        check_ttl(ttl)
    if value is None:
        return delete_call(namespace, key, if_version=if_version)
    check_key(key)
    if if_version is not None:
        if_version = check_count("if_version", if_version)
    return commands.SET(namespace, key, encode(value), ttl, if_version)


def delete_call(namespace: str, key: str, *, if_version: int | None = None) -> Command:
    """Delete a key."""
    if if_version is not None:
        if_version = check_count("if_version", if_version)
    return commands.DELETE(namespace, check_key(key), if_version)


def update_call(
    namespace: str,
    mapping: Mapping[str, Any],
    *,
    if_versions: Mapping[str, int] | None = None,
    ttl: float | None = None,
) -> Command:
    """Store several values; None deletes a key."""
    if not isinstance(mapping, Mapping):
        raise InvalidInput(f"update takes an object of keys and values, not {repr_short(mapping)}")
    check_ttl(ttl)
    if if_versions is not None:
        if_versions = check_versions(if_versions)
    check_rows(len(mapping) + len(if_versions or ()))
    texts = {
        check_key(key): None if value is None else encode(value, f"value[{repr_short(key)}]")
        for key, value in mapping.items()
    }
    check_total([*texts, *filter(None, texts.values())])
    return commands.UPDATE(namespace, texts, if_versions, ttl)


def check_versions(versions: Mapping[str, int]) -> dict[str, int]:
    """Return the keys with the versions that an update expects."""
    if not isinstance(versions, Mapping):
        raise InvalidInput(f"if_versions is an object of keys and versions, not {repr_short(versions)}")
    return {
        check_key(key): check_count(f"if_versions[{repr_short(key)}]", version) for key, version in versions.items()
    }


def merge_call(namespace: str, key: str, mapping: Mapping[str, Any]) -> Command:
    """Replace fields of an object; None removes a field."""
    if not isinstance(mapping, Mapping):
        raise InvalidInput(f"merge takes an object of fields and values, not {repr_short(mapping)}")
    return commands.MERGE(namespace, check_key(key), encode(dict(mapping)))


def touch_call(namespace: str, key: str, ttl: float | None) -> Command:
    """Replace the expiry of a key; None is never."""
    return commands.TOUCH(namespace, check_key(key), check_ttl(ttl))


def incr_call(namespace: str, key: str, by: float = 1) -> Command:
    """Add to a number, which starts at 0."""
    check_key(key)
    if type(by) is not int and not (type(by) is float and isfinite(by)):
        raise InvalidInput(f"by is a finite number, not {repr_short(by)}")
    encode(by, "by")
    return commands.INCR(namespace, key, by)


def clear_call(namespace: str, prefix: str = "") -> Command:
    """Delete all keys that start with `prefix`; without it, erase all values and notes of the namespace."""
    return commands.CLEAR(namespace, check_prefix(prefix))


def append_call(namespace: str, key: str, *items: Any) -> Command:
    """Add items to the end of a list."""
    check_key(key)
    check_rows(len(items))
    texts = [encode(item, f"items[{i}]") for i, item in enumerate(items)]
    check_total(texts)
    return commands.APPEND(namespace, key, texts)


def pop_call(namespace: str, key: str, n: int = 1, *, first: bool = False) -> Command:
    """Take items from the end of a list, or from its start."""
    if n is None:  # as in dict.pop(key, None)
        raise InvalidInput("pop takes items from a list, and n is how many; to remove a key, use delete")
    return commands.POP(namespace, check_key(key), check_count("n", n), check_switch("first", first))


def remember_call(namespace: str, content: str, **fields: Unpack[NoteFields]) -> Command:
    """Store a note."""
    metadata = fields.get("metadata")
    if isinstance(metadata, Mapping):
        fields["metadata"] = dict(metadata)
    return commands.REMEMBER(namespace, NewNote.check(content, **fields))


def forget_call(namespace: str, note_id: str) -> Command:
    """Erase a note."""
    return commands.FORGET(namespace, check_key(note_id, "note id"))


def forget_session_call(namespace: str, session: str) -> Command:
    """Erase the conversations and the notes of a session."""
    return commands.FORGET_SESSION(namespace, check_key(session, "session"))


def _append_list_call(namespace: str, key: str, items: Any) -> Command:
    if not isinstance(items, list):
        raise InvalidInput(f"items is a list, not {repr_short(items)}")
    return append_call(namespace, key, *items)


_CALLS: dict[str, Callable[..., Command]] = {
    "set": set_call,
    "delete": delete_call,
    "update": lambda namespace, values, if_versions=None, ttl=None: update_call(
        namespace, values, if_versions=if_versions, ttl=ttl
    ),
    "merge": lambda namespace, key, fields: merge_call(namespace, key, fields),
    "touch": lambda namespace, key, ttl: touch_call(namespace, key, ttl),
    "incr": incr_call,
    "clear": clear_call,
    "append": _append_list_call,
    "pop": pop_call,
    "remember": remember_call,
    "forget": lambda namespace, key: forget_call(namespace, key),
    "forget_session": lambda namespace, key: forget_session_call(namespace, key),
}
"""The verbs that a transaction may have; their arguments have the names that they have in HTTP."""


@cache
def fields_of(verb: str) -> dict[str, bool]:
    """The fields of a write in JSON, beside the verb, and whether each is required."""
    _, *parameters = inspect.signature(_CALLS[verb]).parameters.values()
    fields = {each.name: each.default is each.empty for each in parameters if each.kind is not each.VAR_KEYWORD}
    return fields if len(fields) == len(parameters) else fields | dict.fromkeys(NoteFields.__annotations__, False)


def commands_of(namespace: str, writes: Any, name: str) -> list[Command]:
    """The commands of writes in JSON, each an object with a verb and its fields.

    :param name: what errors call the list.
    """
    if not isinstance(writes, list):
        raise InvalidInput(f"{name} is a list of writes, not {repr_short(writes)}")
    check_rows(len(writes))
    return [_command_of(namespace, write, f"{name}[{number}]") for number, write in enumerate(writes)]


def _command_of(namespace: str, write: Any, where: str) -> Command:
    verb = write.get("verb") if isinstance(write, dict) else None
    if not isinstance(verb, str) or verb not in _CALLS:
        raise InvalidInput(f"{where} is an object with a verb, one of {', '.join(_CALLS)}, not {repr_short(write)}")
    fields = fields_of(verb)
    for name in write.keys() - fields.keys() - {"verb"}:
        raise InvalidInput(f"{where} has an unknown field {repr_short(name)}; {verb} takes {', '.join(fields)}")
    for name, is_required in fields.items():
        if is_required and name not in write:
            raise InvalidInput(f'{where} lacks the field "{name}"')
    try:
        return _CALLS[verb](namespace, **{name: write[name] for name in fields if name in write})
    except InvalidInput as error:
        raise error.within(where) from None


def transaction_call(namespace: str, parts: Sequence[Command], once: str | None = None) -> Command:
    """The command that runs these commands together."""
    check_rows(sum(part.rows for part in parts))
    command = commands.TRANSACTION(namespace, tuple(parts), once=once)
    check_total([command.to_json()])
    return command
