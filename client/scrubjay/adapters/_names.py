"""Names of agents and projects as namespaces, and as parts of keys."""

from __future__ import annotations

from hashlib import sha256

from scrubjay.adapters._project import project_name
from scrubjay.validation import MAX_NAMESPACE_CHARS

MAX_NAME_BYTES = 120
"""Bytes of an agent's name in a key, which may have two of them and a session's."""


def default_namespace(framework: str, name: str) -> str:
    """The namespace of an agent that is given none: it names the project, too."""
    return namespace_of(framework, project_name(), name)


def namespace_of(*names: str) -> str:
    """A namespace made of names that may be too long for one, or have characters that it cannot have."""
    plain = "-".join(names)
    safe = "".join(character if character.isprintable() and character != "/" else "_" for character in plain)
    if safe == plain and len(plain) <= MAX_NAMESPACE_CHARS:
        return plain
    digest = sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{safe[: MAX_NAMESPACE_CHARS - 17]}-{digest}"


def join_names(names: list[str]) -> str:
    """Several names as one that no other names make."""
    return "+".join(name.replace("%", "%25").replace("+", "%2B") for name in names)


def quote_name(name: str) -> str:
    """A name as a part of a key, whose parts are separated by colons; a long one as its start and a digest."""
    safe = name.encode(errors="replace").decode().replace("%", "%25").replace(":", "%3A")
    if len(safe.encode()) <= MAX_NAME_BYTES:
        return safe
    return f"{safe[:20]}%{sha256(name.encode(errors='surrogatepass')).hexdigest()[:16]}"
