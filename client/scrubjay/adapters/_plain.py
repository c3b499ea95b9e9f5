"""Values of frameworks as exact JSON: what a Memory would refuse is converted, or refused with its path."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import date, datetime, time
from enum import Enum
from hashlib import blake2b
from pathlib import PurePath
from typing import Any
from uuid import UUID

from scrubjay.conversations import session_prefix
from scrubjay.errors import InvalidInput


def plain(value: Any) -> Any:
    """A value that Memory stores: models as objects, enums as their value, dates, ids and paths as text, sets as lists,
    bytes as an object with the field "base64".

    What is none of these stays as it is, and Memory raises InvalidInput with its path.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {name if type(name) is str else _name(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID | PurePath):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode()}
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json"))
    return str(value) if isinstance(value, str) else value  # a subclass of str


def _name(name: Any) -> Any:
    """The name of a field: frameworks use enums and ids; what else is not text is refused by Memory."""
    return str(plain(name)) if isinstance(name, Enum | UUID | str) else name


def session_name(name: str) -> str:
    """A framework's name as that of a session: one that is empty or too long becomes its start and a digest."""
    try:
        session_prefix(name)
    except InvalidInput:
        digest = blake2b(name.encode(errors="surrogatepass"), digest_size=8).hexdigest()
        return f"{name[:20]}~{digest}"
    return name


def join_key(*parts: str) -> str:
    """A key of several parts, none of which can reach into another: slashes separate them, and are escaped inside."""
    return "/".join(map(quote_part, parts))


def quote_part(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")


def unquote_part(part: str) -> str:
    return part.replace("%2F", "/").replace("%25", "%")
