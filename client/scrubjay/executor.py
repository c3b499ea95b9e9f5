"""The interface of executors: what runs commands."""

from __future__ import annotations

from typing import Any

from scrubjay.commands import Command
from scrubjay.models import Pending


class Executor:
    """Runs commands on one store: a file in this process (`local`), a server (`http`), or a queue in front of one."""

    location: str
    """The path of the file, or the URL of the server."""
    is_closed = False
    results_can_be_lost = False
    """Whether a write that raised Unavailable may have happened; then each write carries an idempotency key."""
    timeout: float
    """Seconds after which a call that gets no answer raises Unavailable."""

    def run(self, command: Command, idempotency_key: str | None = None) -> Any:
        """Run a command and return its result.

        With an idempotency key, a command that has happened already is not repeated and returns its first result.
        Raises a ScrubjayError for every failure.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release the file or the connections."""

    def pending(self, _namespace: str | None) -> list[Pending]:
        """Queued writes of a namespace, or of all, oldest first. Only the outbox has any."""
        return []

    def flush(self, _namespace: str | None, _timeout: float) -> None:
        """Return when nothing is queued."""
