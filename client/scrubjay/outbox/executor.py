"""The executor that puts the outbox in front of another executor."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy
from pathlib import Path
from typing import Any

from scrubjay.commands import (
    CLEAR,
    FORGET,
    FORGET_SESSION,
    GET,
    GET_MANY,
    KEYS,
    LENGTH,
    MISSING,
    SET_QUOTA,
    SLICE,
    TAIL,
    Command,
)
from scrubjay.errors import (
    Forbidden,
    OutcomeUnknown,
    QuotaExceeded,
    ScrubjayError,
    Unauthenticated,
    Unavailable,
    pluralize,
)
from scrubjay.executor import Executor
from scrubjay.fencing import key_of_a_write, no_op
from scrubjay.models import Message, Pending
from scrubjay.outbox.overlay import (
    keys_deleted,
    keys_written,
    sessions_written,
)
from scrubjay.outbox.queue import QueuedWrite, Target
from scrubjay.outbox.reader import OVERLAID, OverlayReader
from scrubjay.outbox.sender import Sender, shared_sender

log = logging.getLogger("scrubjay")

_REFUSALS = (QuotaExceeded, Unauthenticated, Forbidden)
"""Answers that a change on the server can end: raised to a caller, queued for an unattended one."""


class OutboxExecutor(Executor):
    """Queues writes that the inner executor cannot take now, and lets reads see them.

    A write that is queued returns None. A command whose result the caller needs (`incr`, `if_version=`) goes to the
    inner executor after the queued writes of its namespace, or raises.

    `unattended` is for adapters, whose caller is a framework in the middle of a conversation: what a quota or a
    missing permission refuses is queued, too, and while the target cannot be reached no call waits for it.
    """

    def __init__(
        self,
        open_inner: Callable[[], Executor],
        path: str,
        credentials: str | None,
        *,
        is_default_file: bool = False,
        unattended: bool = False,
    ) -> None:
        self._inner = open_inner()
        self.location, self.timeout = self._inner.location, self._inner.timeout
        self._unattended = unattended
        target = Target.of(self.location, credentials)
        self._sender: Sender = shared_sender(
            open_inner, Path(path).expanduser().absolute(), target, credentials, is_default_file=is_default_file
        )
        try:
            self._sender.find_unsent()
        except Unavailable as error:  # the target may be reachable; a write that needs the queue raises it again
            log.error("%s. Writes that are queued in it are not sent", error)  # noqa: TRY400 - the message has the cause

    def run(self, command: Command, idempotency_key: str | None = None) -> Any:
        verb = command.verb
        if command.namespace in self._sender.of_other_keys:
            self._sender.warn_of_other_keys(command.namespace)
        if verb.writes:
            if not command.needs_result:
                return self._write(command, idempotency_key)
            return self._run_in_order(command)
        if command.namespace in self._sender.unsent and verb in OVERLAID:
            return self._reader().run(command)
        return self._ask(command)

    def _reader(self) -> OverlayReader:
        return OverlayReader(self._ask, self._sender.queued, self._exclusive, self._send_now)

    def close(self) -> None:
        self._inner.close()

    def pending(self, namespace: str | None) -> list[Pending]:
        return [write.to_pending() for write in self._sender.pending(namespace)]

    def flush(self, namespace: str | None, timeout: float) -> None:
        self._sender.flush(namespace, timeout)

    def take_over_other_keys(self) -> None:
        """Send with this api key what is queued for the same server under other keys."""
        self._sender.take_over_other_keys()

    def retry_refused(self) -> None:
        """Send once more what the target has refused for good."""
        self._sender.retry_refused()

    def check_access(self, namespace: str) -> bool:
        """Raise Unauthenticated or Forbidden if the target does not accept writes to a namespace.

        Returns False if it could not be asked.
        """
        try:
            self._ask(no_op(namespace))
        except QuotaExceeded:
            return True
        except Unavailable:
            return False
        return True

    def whole_conversation(self, namespace: str, key: str) -> list[Message]:
        """All messages of a conversation, oldest first."""
        return self._reader().whole_conversation(namespace, key)

    def queued_alone(self) -> Executor:
        """An executor that reads the queued writes, and nothing else."""
        return QueuedWritesExecutor(self._sender)

    @property
    def is_unreachable(self) -> bool:
        """True while the last request to the target failed."""
        return self._sender.is_unreachable

    # ------------------------------------------------------------ writes

    def _write(self, command: Command, idempotency_key: str | None) -> Any:
        """The result, or None when the write is queued."""
        if self._must_queue(command):
            if not self._unattended and (refusal := self._sender.refusal(command.namespace)):
                raise refusal  # of the writes queued before it, and so of this one
            return self._sender.add(command, idempotency_key)
        try:
            if idempotency_key is not None or not self._inner.results_can_be_lost:
                return self._ask(command, idempotency_key)
            with key_of_a_write(self.location, command.namespace, keeps=self._queues) as key:
                idempotency_key = str(key)
                return self._ask(command, idempotency_key)
        except ScrubjayError as error:
            if not self._queues(error):
                raise
            return self._sender.add(command, idempotency_key, error)

    def _must_queue(self, command: Command) -> bool:
        sender = self._sender
        self._send_now(command.namespace)
        is_unreachable = self._is_known_unreachable() if self._unattended else sender.is_backing_off
        return is_unreachable or (command.namespace in sender.unsent and not self._may_overtake(command))

    def _queues(self, error: ScrubjayError) -> bool:
        if isinstance(error, Unavailable):
            # A response below 500 comes from another service at this URL: the caller has to know.
            return error.status >= 500 or self._unattended
        return self._unattended and isinstance(error, _REFUSALS)

    def _may_overtake(self, command: Command) -> bool:
        """A delete of keys that no queued write touches may go first: it makes room under a quota."""
        keys = keys_deleted(command)
        return bool(keys) and not keys & keys_written(self._sender.queued(command.namespace))

    def _run_in_order(self, command: Command) -> Any:
        """Run a write that needs its result, after the queued writes of its namespace."""
        verb, namespace = command.verb, command.namespace
        if verb is FORGET:
            self._sender.send_now(namespace, self._inner)
        elif namespace in self._sender.unsent and verb is not SET_QUOTA:
            if verb is FORGET_SESSION:
                return self._forget_session(command)
            if verb is CLEAR and not command.argument("prefix"):
                return self._clear_all(command)
            self._send_queued_before(command)
        try:
            result = self._ask(command)
        except Unavailable as error:
            # A response of 500 is a mistake in the server, after which the write may be stored.
            if error.status == Unavailable.status and not isinstance(error, OutcomeUnknown):
                raise Unavailable(f"{error}; {_never_queued(command)}") from error
            raise
        if verb is SET_QUOTA:
            self._sender.retry_now()  # a quota may have held up queued writes
        return result

    def _send_queued_before(self, command: Command) -> None:
        """Send the queued writes of the command's namespace; raises Unavailable if one of them was refused."""
        with self._sender.exclusive(command.namespace, self._inner) as queued:
            if queued:
                raise Unavailable(
                    f"{command.verb.name} needs a result, and {pluralize(len(queued), 'write')} to"
                    f" {command.namespace!r} must be sent before it: {queued[0].reason}"
                )

    def _clear_all(self, command: Command) -> Any:
        """Erase a namespace, and its writes that the target has refused so far: they are older."""
        with self._sender.exclusive(command.namespace, self._inner) as queued:
            count = self._ask(command)
            self._sender.drop(queued)
        return count

    def _forget_session(self, command: Command) -> Any:
        """Erase a session, and its writes that the target has refused so far."""
        with self._sender.exclusive(command.namespace, self._inner) as queued:
            count = self._ask(command)
            own = [write for write in queued if sessions_written(write) == {command.key}]
            if own:
                self._sender.drop(own)
        if any(command.key in sessions_written(write) for write in queued if write not in own):
            raise Unavailable(
                f"{command.key!r} is erased from {self.location}, but queued writes are about it and about other"
                " sessions; forget it again after they are sent"
            )
        return count

    def _ask(self, command: Command, idempotency_key: str | None = None) -> Any:
        """Run a command on the inner executor, and share with other calls whether it could be reached."""
        if self._unattended and self._is_known_unreachable():
            raise self._sender.cause(command.namespace)
        try:
            result = self._inner.run(command, idempotency_key)
        except Unavailable as error:
            if error.status >= 500:
                self._sender.mark_unreachable(error)
            raise
        except ScrubjayError:
            self._sender.mark_reachable()
            raise
        self._sender.mark_reachable()
        return result

    def _is_known_unreachable(self) -> bool:
        """True while a call need not wait to learn that the target cannot be reached.

        With queued writes the sender thread finds out when it can be; without, the next call does.
        """
        return self._sender.is_backing_off or (self._sender.is_unreachable and bool(self._sender.unsent))

    def _exclusive(self, namespace: str) -> AbstractContextManager[list[QueuedWrite]]:
        """The queued writes, all others having been sent.

        An unattended caller does not wait for that: it gets all writes that are queued now, and one that is sent while
        it reads is seen twice. Its rows have ids, by which it sees them once.
        """
        if self._unattended:
            return contextlib.nullcontext(self._sender.queued(namespace))
        return self._sender.exclusive(namespace, self._inner)

    def _send_now(self, namespace: str) -> None:
        """Send some of the queued writes of a namespace first; an unattended caller does not wait for that."""
        if not self._unattended:
            self._sender.send_now(namespace, self._inner)


class QueuedWritesExecutor(Executor):
    """Answers reads from the queued writes alone, as if nothing else was stored.

    For an adapter whose target cannot be read: it has at least what was queued on this machine.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.location = sender.location
        with contextlib.suppress(Unavailable):  # without the file nothing is queued in it
            self._sender.find_unsent()

    def run(self, command: Command, _idempotency_key: str | None = None) -> Any:
        return self._reader().run(command) if command.verb in OVERLAID else _answer_of_nothing(command)

    def _reader(self) -> OverlayReader:
        queued = self._sender.queued
        return OverlayReader(
            _answer_of_nothing,
            queued,
            lambda namespace: contextlib.nullcontext(queued(namespace)),
            lambda _namespace: None,
        )

    def whole_conversation(self, namespace: str, key: str) -> list[Message]:
        """All queued messages of a conversation, oldest first."""
        return self._reader().whole_conversation(namespace, key)

    def pending(self, namespace: str | None) -> list[Pending]:
        return [write.to_pending() for write in self._sender.pending(namespace)]


def _answer_of_nothing(command: Command) -> Any:
    """What an empty target answers."""
    if command.verb not in _NOTHING_STORED:
        raise Unavailable(f"queued writes alone do not answer {command.verb.name}")
    return copy(_NOTHING_STORED[command.verb])


_NOTHING_STORED: dict[Any, Any] = {GET: MISSING, GET_MANY: {}, TAIL: [], SLICE: [], LENGTH: 0, KEYS: []}


def _never_queued(command: Command) -> str:
    part = next(part for part in command.argument("commands", (command,)) if part.needs_result)
    what = f"{part.verb.name} with a version" if part.verb.queueable else part.verb.name
    return f"{what} is never queued, so nothing of this call was stored"
