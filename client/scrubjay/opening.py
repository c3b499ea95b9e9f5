"""From the arguments of a Memory to its executor: a file or a database, a server, or either behind the outbox."""

from __future__ import annotations

from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from scrubjay.errors import InvalidInput, repr_short
from scrubjay.executor import Executor
from scrubjay.local import LocalExecutor
from scrubjay.settings import Settings, default_outbox, is_database, memory_settings
from scrubjay.validation import check_seconds

UNATTENDED_SECONDS = 1.0
"""Seconds that an unattended caller waits for the server or for another process's lock; then the write is queued."""
_NEVER_EMPTY = {"url", "path", "secret", "outbox"}
"""Arguments that would silently mean another file or server, or no encryption, if an empty text counted as left out."""


def resolve_arguments(**arguments: Any) -> Settings:
    """The settings of a Memory with these arguments."""
    for name in ("url", "path", "durability", "api_key", "secret", "outbox", "embedder"):
        value = arguments.get(name)
        if value is not None and not isinstance(value, str | PathLike):
            raise InvalidInput(f"{name} is text, not {repr_short(value)}")
        if name in _NEVER_EMPTY and isinstance(value, str) and not value.strip():
            raise InvalidInput(f"{name} is empty, perhaps because a variable is not set; leave it out or set it")
    if arguments.get("timeout") is not None:
        check_seconds("timeout", arguments["timeout"])
    if arguments.get("url") is not None and arguments.get("path") is not None:
        raise InvalidInput("give url= for a server or a database, or path= for a file, not both")
    settings = memory_settings(**arguments)
    is_path = arguments.get("path") is not None  # an argument wins over both variables
    url, store = (None, None) if is_path else (settings.url, settings.store)
    return settings._replace(
        url=None if is_database(url) else url,
        store=url if is_database(url) else None if url else store,
        path=fspath(settings.path),
        outbox=fspath(settings.outbox),
    )


def open_executor(settings: Settings, *, strict: bool = True, unattended: bool = False) -> Executor:
    """The executor for the server if there is a URL, else for the file.

    :param strict: without a queue: what the server cannot take now raises Unavailable.
    :param unattended: with a queue, also in front of the file; see OutboxExecutor.
    """
    if not settings.url and not unattended:
        return LocalExecutor(settings)
    open_inner = partial(_open_inner, settings, unattended)
    if strict:
        return open_inner()
    from scrubjay.outbox.executor import OutboxExecutor  # noqa: PLC0415 - `import scrubjay` stays light

    is_default_file = Path(settings.outbox).expanduser().absolute() == Path(default_outbox()).absolute()
    return OutboxExecutor(
        open_inner, settings.outbox, _credentials(settings), is_default_file=is_default_file, unattended=unattended
    )


def _credentials(settings: Settings) -> str | None:
    """What identifies the caller to the server: queued writes are sent with the same credentials only."""
    if not settings.url:
        return None
    from scrubjay.transport import split_credentials  # noqa: PLC0415

    return settings.api_key or split_credentials(settings.url)[1]


def _open_inner(settings: Settings, unattended: bool) -> Executor:
    if not settings.url:
        return LocalExecutor(settings, UNATTENDED_SECONDS)
    from scrubjay.fencing import FencedExecutor  # noqa: PLC0415
    from scrubjay.http import HttpExecutor  # noqa: PLC0415

    if unattended:
        settings = settings._replace(timeout=min(settings.timeout, UNATTENDED_SECONDS))
    return FencedExecutor(HttpExecutor(settings))
