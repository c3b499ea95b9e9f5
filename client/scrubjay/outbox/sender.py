"""The sender: the thread that sends queued writes, and the state that all executors of a target share.

Each write keeps the idempotency key under which it happens once, so it may be sent again after a lost response, by
this process or another, and even by two at the same time. Within a namespace a write is sent after the one before it
was acknowledged; a namespace that is held up does not hold up the others.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import shlex
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scrubjay.commands import Command
from scrubjay.errors import (
    Forbidden,
    NotFound,
    OutcomeUnknown,
    QuotaExceeded,
    ScrubjayError,
    Unauthenticated,
    Unavailable,
    pluralize,
)
from scrubjay.executor import Executor
from scrubjay.fork_safety import ForkSafe
from scrubjay.outbox.queue import QueuedWrite, QueueFile, QueueUnavailable, Target
from scrubjay.store.expiry import KEY_DAYS
from scrubjay.write_keys import new_key

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.2, 15.0
"""Delay between attempts while the target cannot be reached: doubled from the first to the last."""
MAX_REFUSAL_SECONDS = 60.0
"""Delay until a refused write is tried again, whatever Retry-After says: a quota may be raised, a key be replaced."""
PAGE_WRITES = 20
"""Writes sent in one go; also the most that a call sends before its own, so that no call takes long."""
SEND_LOCK_SECONDS = 0.05
"""How long a call waits while another thread sends: it slows a caller that writes faster than the target accepts."""
SILENCE_SECONDS = 0.5
"""If an attempt fails after more than this, no call tries the target again for the same time: many calls would wait for
it one after the other. After a faster failure, because nothing listens, each call tries, and so notices a restart."""
EXIT_SECONDS = 5.0
"""How long the end of a process waits while the target takes its queued writes, some hundreds a second: else programs
that run for a moment would hardly send any, and a container that is thrown away would lose them."""
_UNREACHABLE = (502, 503, 504)
"""Statuses that say that the target, not this write, is the problem; an Unavailable without a response has 503."""
_TEMPORARY = (Unavailable, QuotaExceeded, Unauthenticated, Forbidden)
"""Errors after which the same write may succeed later. Any other is final."""
UNCERTAIN = (
    f"its response was lost more than {KEY_DAYS} days ago, so it may have happened, and the server has forgotten its"
    " idempotency key: sent again it could happen twice"
)

log = logging.getLogger("scrubjay")


class Pause(NamedTuple):
    """Why nothing is sent for now, and until when."""

    until: float
    seconds: float
    error: ScrubjayError
    silent_until: float = 0.0
    """Until when no call tries the target itself, because it was silent."""


class Sender(ForkSafe):
    """Sends the queued writes of one target. One for all executors of a process."""

    def __init__(self, executor: Executor, file: QueueFile, *, is_default_file: bool = False) -> None:
        self._executor = executor
        self._file = file
        self._is_default_file = is_default_file
        """Whether the command finds the file without being told its path."""
        self.unsent: set[str] = set()
        """Namespaces that have unsent writes; while it is empty no call looks at anything else."""
        weakref.finalize(self, file.close)
        self.reset()
        self.register_at_fork()

    def reset(self) -> None:
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pauses: dict[str | None, Pause] = {}  # by namespace; None is the target itself
        self._is_ending = False
        self._has_queued = self._has_warned = False
        """Whether this process has queued a write that may be unsent, and whether it has logged why."""
        self.of_other_keys: dict[str, int] = {}
        """How many writes of a namespace are queued under other api keys, until that was logged."""
        self._announced: set[str] = set()
        """The namespaces for which it was logged."""
        self._unrecorded: dict[int, Callable[[], None]] = {}
        """Writes that the target has answered, by id, and the change of the file that failed: the disk may be full.

        They count as sent here. A process that finds them in the file sends them again, which changes nothing.
        """

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def location(self) -> str:
        return self._executor.location

    @property
    def ways_out(self) -> str:
        """Commands for queued writes, which work when they are pasted."""
        return (
            f"`{self._command('pending --all')}` lists queued writes, `{self._command('flush', self._url)}` sends them,"
            f" `{self._command('pending --drop', self._url, '--yes')}` deletes all of them, of every namespace"
        )

    @property
    def _url(self) -> str:
        return f"--url {shlex.quote(self.location)}"

    def _command(self, *words: str) -> str:
        """A command on the queue file of this sender."""
        file = "" if self._is_default_file else f"SCRUBJAY_OUTBOX={shlex.quote(str(self.path))} "
        return f"{file}scrubjay {' '.join(words)}"

    # ------------------------------------------------------------ queueing

    def find_unsent(self) -> None:
        """Look for writes that an earlier process has queued, and start to send them."""
        if self._file.fingerprint() in (None, _empty_files.get(self._file_key)):
            return
        with self._changed:
            self.unsent |= self._file.namespaces()
            others = self._file.of_other_keys()
            self.of_other_keys = {name: count for name, count in others.items() if name not in self._announced}
            if self.unsent:
                self._start()
            else:
                self._file.close()
                if not others:
                    _empty_files[self._file_key] = self._file.fingerprint()

    @property
    def _file_key(self) -> tuple[Path, Target]:
        return self._file.path, self._file.target

    def add(self, command: Command, idempotency_key: str | None = None, error: ScrubjayError | None = None) -> None:
        """Queue a write. `error` is what has just happened to it; without one, something is queued before it."""
        with self._changed:
            cause = error or self.cause(command.namespace)
            try:
                is_sent = isinstance(error, OutcomeUnknown)
                self._file.add(command, idempotency_key or str(new_key()), str(cause), is_sent=is_sent)
            except QueueUnavailable as failure:
                raise Unavailable(f"{cause}. It could not be queued either: {failure}") from cause
            self.unsent.add(command.namespace)
            self._has_queued = True
            if error is not None:
                self._pause(command.namespace, error)
            if self._pause_of(command.namespace):
                self._warn(cause)
            self._start()

    def warn_of_other_keys(self, namespace: str) -> None:
        """Log, once for each namespace, that writes to it are queued under other api keys."""
        count = self.of_other_keys.pop(namespace, 0)
        self._announced.add(namespace)
        if count:
            log.warning(
                "%s to %r made with another api key: queued in %s, not sent with this one, and not read."
                " If this key replaces it: `%s`",
                pluralize(count, "write"), namespace, self.path, self._command("flush --other-keys", self._url),
            )  # fmt: skip

    def queued(self, namespace: str) -> list[QueuedWrite]:
        """The unsent writes of a namespace."""
        if namespace not in self.unsent:
            return []
        return self._unanswered(namespace)

    def pending(self, namespace: str | None) -> list[QueuedWrite]:
        """Unsent and refused writes."""
        if not self.path.exists():
            return []
        with self._changed:
            found = [write for write in self._file.all(namespace) if write.id not in self._unrecorded]
            if not self.unsent:
                self._close_file()
        return found

    def drop(self, writes: Sequence[QueuedWrite]) -> None:
        """Remove writes that need not be sent any more, while `exclusive` is held."""
        self._file.remove(*(write.id for write in writes))
        for namespace in {write.command.namespace for write in writes}:
            self._finish(namespace)

    def take_over_other_keys(self) -> None:
        if self.path.exists():
            self._file.take_over_other_keys()
            self.find_unsent()

    def retry_refused(self) -> None:
        if self.path.exists():
            self._file.retry_refused()
            self.find_unsent()

    # ------------------------------------------------------------ whether the target can be reached

    def mark_unreachable(self, error: Unavailable) -> None:
        with self._changed:
            self._pause(None, error)

    def mark_reachable(self) -> None:
        if None in self._pauses:
            with self._changed:
                self._pauses.pop(None, None)
                self._changed.notify_all()

    @property
    def is_unreachable(self) -> bool:
        """True while the last request to the target failed."""
        return None in self._pauses

    @property
    def _is_silent(self) -> bool:
        pause = self._pauses.get(None)
        return pause is not None and time.monotonic() < pause.silent_until

    @property
    def is_backing_off(self) -> bool:
        """True while the next attempt to reach the target is not due, or is under way in another thread."""
        return None in self._pauses and (self._sending.locked() or not self._is_due(None))

    def refusal(self, namespace: str) -> QuotaExceeded | None:
        """The quota error that holds up the queued writes of a namespace, if one does."""
        error = self.cause(namespace)
        return error if isinstance(error, QuotaExceeded) else None

    def cause(self, namespace: str | None) -> ScrubjayError:
        """Why the writes of a namespace are not sent, as an error of its own for each caller that raises it."""
        pause = self._pause_of(namespace)
        return copy(pause.error) if pause else Unavailable(f"{self.location} has not accepted earlier writes yet")

    def _pause_of(self, namespace: str | None) -> Pause | None:
        return self._pauses.get(None) or self._pauses.get(namespace)

    def _warn(self, cause: ScrubjayError) -> None:
        """Log once that writes of this process are queued because sending has failed."""
        if self._has_queued and not self._has_warned:
            self._has_warned = True
            log.warning("%s. Writes are queued in %s and sent later: %s", cause, self.path, self.ways_out)

    # ------------------------------------------------------------ sending now

    def send_now(self, namespace: str, executor: Executor) -> None:
        """Send some of the queued writes of a namespace, unless an attempt failed a moment ago."""
        if namespace not in self.unsent or self.is_backing_off or not self._is_due(namespace):
            return
        if self._sending.acquire(timeout=SEND_LOCK_SECONDS):
            try:
                self._send_page(namespace, executor)
            finally:
                self._sending.release()

    @contextlib.contextmanager
    def exclusive(self, namespace: str, executor: Executor) -> Iterator[list[QueuedWrite]]:
        """Send the queued writes of a namespace, then give those that were refused, while no thread sends.

        For calls that need the target's answer: a queued write may have happened already, so the target's state is
        known only after it was sent again. They send by their own executor, and wait for others as long as it waits
        for an answer. Raises Unavailable while the target cannot be reached.
        """
        if not self._sending.acquire(timeout=executor.timeout):
            raise self._not_sent_before(namespace)
        try:
            if not self._is_silent:
                while self._send_page(namespace, executor, ignore_back_off=True):
                    pass
            queued = self.queued(namespace)
            if queued and not self._is_refused(namespace):
                raise self._not_sent_before(namespace)
            yield queued
        finally:
            self._sending.release()

    def _not_sent_before(self, namespace: str) -> Unavailable:
        return Unavailable(
            f"this call was not sent: earlier writes to {namespace!r} are queued in {self.path} and must be sent before"
            f" it: {self.cause(namespace)}; {self.ways_out}"
        )

    def flush(self, namespace: str | None, timeout: float) -> None:
        """Return when everything is sent; raise Unavailable with the number left and the reason otherwise."""
        self.find_unsent()
        before = self._file.unsent_ids(namespace) if self.unsent else set()
        with self._changed:
            self.retry_now()
            self._changed.wait_for(lambda: all(map(self._is_refused, self._unsent(namespace))), timeout)
        left = self.pending(namespace)
        unsent = [write for write in left if not write.is_refused]
        if unsent:
            sent = len(before - {write.id for write in left})
            raise Unavailable(self._why_unsent(unsent, f"{sent:,} of {pluralize(len(before), 'write')}", sent, timeout))
        if left:
            raise Unavailable(
                f"{self.location} has refused {pluralize(len(left), 'write')}: {left[0].reason};"
                f" `{self._command('pending --all')}` lists them, `{self._command('flush --refused', self._url)}` sends"
                f" them once more, `{self._command('pending --drop-refused', self._url)}` deletes them"
            )

    def _why_unsent(self, unsent: Sequence[QueuedWrite], progress: str, sent: int, timeout: float) -> str:
        """What holds up these writes after a flush, which has forgotten all earlier pauses."""
        held_up = [write for write in unsent if self._pause_of(write.command.namespace)]
        if not held_up and sent:
            return (
                f"{progress} were sent to {self.location} in {timeout:g} s, the rest is still queued: flush again, or"
                " with a longer timeout"
            )
        first, count = (held_up or unsent)[0], len(held_up or unsent)
        pause = self._pause_of(first.command.namespace)
        reason = str(pause.error) if pause else f"no answer in {timeout:g} s, and before: {first.reason or 'not tried'}"
        others = f"; {len(unsent) - count:,} others are still queued" if count < len(unsent) else ""
        return f"{pluralize(count, 'write')} could not be sent to {self.location}: {reason}{others}; {self.ways_out}"

    def retry_now(self) -> None:
        """Try at once what was delayed."""
        with self._changed:
            self._pauses.clear()
            self._changed.notify_all()

    # ------------------------------------------------------------ the thread

    def finish(self, seconds: float) -> None:
        """Wait while writes are being sent, but no longer than so many seconds; then send nothing more."""
        with self._changed:
            thread = self._thread
            if thread is None or not thread.is_alive():  # as in a child that was forked while writes were queued
                return
            self._changed.wait_for(lambda: all(map(self._pause_of, self.unsent)), max(seconds, 0.0))
            self._is_ending = True
            self._changed.notify_all()
        thread.join(SEND_LOCK_SECONDS)

    def _start(self) -> None:
        """Start the thread unless it runs; it ends when nothing is queued, and with the process."""
        _finish_at_exit()
        if self._is_ending:
            return
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._work, name="scrubjay-outbox", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends: another process will send what is queued
                return
            self._thread = thread
        self._changed.notify_all()

    def _work(self) -> None:
        while not self._is_ending:
            with self._changed:
                namespaces = sorted(self.unsent)
            try:
                self._send_in_turns(namespaces)
            except QueueUnavailable as error:  # the file fails, not the target: namespaces without a queue go on
                self._pause_all(namespaces, error)
            with self._changed:
                self._record_again()
                if not self.unsent and not self._unrecorded:
                    self._close_file()
                    self._thread = None
                    return
                self._changed.wait(self._seconds_to_next_attempt())

    def _send_in_turns(self, namespaces: list[str]) -> None:
        """Send a page of each namespace in turn until nothing more can be sent, so that each is tried soon."""
        while namespaces:
            namespaces = [name for name in namespaces if not self._is_ending and self._send_page_locked(name)]

    def _send_page_locked(self, namespace: str) -> bool:
        with self._sending:  # released between pages, for calls that wait for it
            return self._send_page(namespace, self._executor)

    def _send_page(self, namespace: str, executor: Executor, *, ignore_back_off: bool = False) -> bool:
        """Send the oldest unsent writes of a namespace; True when there are more and nothing holds them up.

        `ignore_back_off` retries a target that failed, but not one that refused.
        """
        is_due = self._is_due(namespace) and self._is_due(None)
        if not is_due and (not ignore_back_off or self._is_refused(namespace)):
            return False
        writes = self._unanswered(namespace, PAGE_WRITES)
        if not all(self._send(write, executor) for write in writes):
            return False
        if len(writes) < PAGE_WRITES:
            self._finish(namespace)
        return namespace in self.unsent

    def _send(self, write: QueuedWrite, executor: Executor) -> bool:
        """Send one write; True when the next one may follow."""
        namespace = write.command.namespace
        if not self._file.has(write.id):
            return True
        if write.is_uncertain:
            self._refuse(write, ScrubjayError(UNCERTAIN))
            return True
        started = time.monotonic()
        try:
            executor.run(write.command.aged(write.age), write.idempotency_key)
        except NotFound:  # nothing to delete, or a note that was forgotten after it had arrived
            pass
        except _TEMPORARY as error:
            with self._changed:
                self._pause(namespace, error, time.monotonic() - started)
                self._warn(error)
                self._changed.notify_all()
            with contextlib.suppress(QueueUnavailable):  # the reason in the file stays an older one
                self._file.set_reason(write.id, str(error))
                if isinstance(error, OutcomeUnknown):
                    self._file.mark_sent(write.id)
            return False
        except ScrubjayError as error:
            self._refuse(write, error)
            return True
        self._record(write, partial(self._file.remove, write.id))
        with self._changed:
            self._pauses.pop(None, None)
            self._pauses.pop(namespace, None)
        return True

    def _unanswered(self, namespace: str, limit: int = -1) -> list[QueuedWrite]:
        """Writes that the target has not answered; answered ones may stand before them in the file."""
        with self._changed:
            answered = set(self._unrecorded)
        writes = self._file.unsent(namespace, limit if limit < 0 else limit + len(answered))
        return [write for write in writes if write.id not in answered][: None if limit < 0 else limit]

    def _record(self, write: QueuedWrite, change: Callable[[], None]) -> None:
        """Record the answer to a write in the file; if that fails, later."""
        try:
            change()
        except QueueUnavailable as error:
            with self._changed:
                if not self._unrecorded:
                    log.warning("%s. Writes that were sent are removed from it later", error)
                self._unrecorded[write.id] = change

    def _record_again(self) -> None:
        with contextlib.suppress(QueueUnavailable):
            for id_, change in list(self._unrecorded.items()):
                change()
                del self._unrecorded[id_]

    def _refuse(self, write: QueuedWrite, error: ScrubjayError) -> None:
        """Keep a write that is not sent any more, and say so."""
        self._record(write, partial(self._file.mark_refused, write.id, str(error)))
        command = write.command
        log.error(
            "a write to %s is refused for good: %s %r in %r: %s. It is kept in %s and not sent again: `scrubjay pending"
            " --all` shows it, `scrubjay flush --refused` sends it once more, `scrubjay pending --drop-refused` deletes"
            " it and all others that were refused",
            self.location, command.verb.name, command.key, command.namespace, error, self.path,
        )  # fmt: skip

    def _close_file(self) -> None:
        if not self._unrecorded:
            self._file.close()

    def _finish(self, namespace: str) -> None:
        """Note that a namespace has no unsent writes, if that is so."""
        with self._changed:
            if self._unanswered(namespace, limit=1):  # queued meanwhile
                return
            self.unsent.discard(namespace)
            self._pauses.pop(namespace, None)
            if not self.unsent:
                self._pauses.clear()
                self._has_queued = self._has_warned = False
                self._close_file()
                log.info("%s: all queued writes are sent", self.location)
            self._changed.notify_all()

    # ------------------------------------------------------------ pauses

    def _pause(self, namespace: str | None, error: ScrubjayError, tried_seconds: float = 0.0) -> None:
        is_unreachable = isinstance(error, Unavailable) and error.status in _UNREACHABLE
        subject = None if is_unreachable else namespace
        if not is_unreachable:  # the target answered
            self._pauses.pop(None, None)
        before, now = self._pauses.get(subject), time.monotonic()
        silent_until = now + tried_seconds if is_unreachable and tried_seconds >= SILENCE_SECONDS else 0.0
        if before and now < before.until:  # another thread failed at the same time
            self._pauses[subject] = before._replace(silent_until=max(silent_until, before.silent_until))
            return
        seconds = min(before.seconds * 2, MAX_RETRY_SECONDS) if before else FIRST_RETRY_SECONDS
        if not isinstance(error, Unavailable):
            seconds = min(getattr(error, "retry_after", None) or MAX_RETRY_SECONDS, MAX_REFUSAL_SECONDS)
        self._pauses[subject] = Pause(now + seconds, seconds, error, silent_until)

    def _pause_all(self, namespaces: Sequence[str], error: ScrubjayError) -> None:
        until = time.monotonic() + MAX_RETRY_SECONDS
        with self._changed:
            self._pauses |= {namespace: Pause(until, MAX_RETRY_SECONDS, error) for namespace in namespaces}
            self._changed.notify_all()

    def _is_due(self, subject: str | None) -> bool:
        return time.monotonic() >= self._pause_end(subject)

    def _is_refused(self, namespace: str) -> bool:
        """True when an answer of the target, not its absence, holds up a namespace."""
        pause = self._pauses.get(namespace)
        return pause is not None and not isinstance(pause.error, Unavailable)

    def _unsent(self, namespace: str | None) -> list[str]:
        return [name for name in self.unsent if namespace in (None, name)]

    def _seconds_to_next_attempt(self) -> float:
        now = time.monotonic()
        ends = [max(self._pause_end(None), self._pause_end(namespace)) for namespace in self.unsent]
        return max(min(ends, default=now + MAX_RETRY_SECONDS) - now, 0.0)

    def _pause_end(self, subject: str | None) -> float:
        pause = self._pauses.get(subject)
        return pause.until if pause else 0.0


_senders: weakref.WeakValueDictionary[tuple[Path, Target, str | None], Sender] = weakref.WeakValueDictionary()
"""By the credentials, too: a key that was rotated has the same target, and its old form is refused."""
_opening = threading.Lock()
_empty_files: dict[tuple[Path, Target], tuple[int, ...] | None] = {}
"""Fingerprints of files in which nothing was found, so that opening many Memory objects reads each file once."""


@functools.cache
def _finish_at_exit() -> None:
    """Register once, when something is queued: what was registered before, such as closing a store, runs after it."""
    atexit.register(_finish_all)


def _finish_all() -> None:
    give_up_at = time.monotonic() + EXIT_SECONDS
    with contextlib.suppress(KeyboardInterrupt):
        for sender in list(_senders.values()):
            sender.finish(give_up_at - time.monotonic())


def shared_sender(
    open_executor: Callable[[], Executor],
    path: Path,
    target: Target,
    credentials: str | None,
    *,
    is_default_file: bool = False,
) -> Sender:
    """The sender of this process for a target, which has an executor of its own: callers may close theirs."""
    with _opening:
        sender = _senders.get((path, target, credentials))
        if sender is None:
            sender = Sender(open_executor(), QueueFile(path, target), is_default_file=is_default_file)
            _senders[path, target, credentials] = sender
    return sender
