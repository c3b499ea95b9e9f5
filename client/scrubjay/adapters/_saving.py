"""Saving that never fails the agent, never makes it wait long, and never loses a message.

A write is queued, and the agent waits until it is done: what an agent was told is stored before
it answers. When that takes longer than PATIENCE, or fails, the agent goes on at once from then
on, and a thread writes what has queued up as soon as the memory can be reached again, in order.

Over HTTP what cannot be sent goes into the outbox of this machine, where the end of the process does not
reach it; what a quota refuses waits there, too. That takes a moment, which the agent waits for each time.

A server that does not answer is waited for once, by whoever asks first: all agents of the process
that have a namespace there go on without it until somebody has reached it again.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from scrubjay.errors import Conflict, InvalidInput, QuotaExceeded, ScrubjayError, Unavailable, ValueTooLarge
from scrubjay.forks import Forkable
from scrubjay.memory import Memory, is_remote, reopened
from scrubjay.names import counted

from ._messages import shortened

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds an agent waits for its memory; once, and not again until the memory is back."""
OUTBOX_AFTER = 0.8
"""Seconds after which a write that a server has not answered goes into the outbox."""
FILE_PATIENCE = 30.0
"""Seconds for reading a file of this machine: a long history takes its time."""
ASK_AGAIN = 5.0
"""Seconds after which a memory that could not be reached is asked again."""
LAST_CHANCE = 10.0
"""Seconds that the end of the process waits at most for what is not saved yet."""
SHORTEST_PAUSE = 0.02
"""Seconds between attempts even when the process is about to end."""
FIRST_RETRY, LAST_RETRY = 0.2, 15.0
"""Seconds between attempts while the memory cannot be reached: doubled from the first to the last."""
HOLD_UP = 60.0
"""Seconds that a write which is too large for the room left may hold up those behind it."""
ROOM = 16 * 1024
"""Bytes: with as much left a namespace is not full, and what it refuses is too large by itself."""
EXCERPT = 1_000
"""Characters that are kept of each text in a message that is too large."""
BEFORE = " (before)"
"""Behind the key of a stored value that another was to take the place of unread."""

log = logging.getLogger("scrubjay")

_NO_ANSWER = f"no answer within {PATIENCE:g} s"
_UNREAD: Any = object()


class Write(NamedTuple):
    """One change of a memory: append, set (None deletes), merge (into what is stored by then), drop (every key that
    starts with `key`), or remember (a note that goes where `key` goes).
    """

    verb: str
    key: str
    value: Any = None
    id: str | None = None
    """By which an append that is sent again, after an answer that was lost, does not happen twice."""

    def run(self, memory: Memory) -> bool:
        """Whether it is done, or else kept in the outbox."""
        if self.verb == "append":
            return memory.append(self.key, self.value, once=self.id) is not None
        if self.verb == "set":
            return memory.set(self.key, self.value) is not None
        if self.verb == "remember":
            return memory.remember(**self.value) is not None
        if self.verb == "merge":
            stored = memory.get(self.key)
            merged = self._merged(stored)
            kept = {} if stored is None or _holds(merged, stored) else {self.key + BEFORE: stored}
            memory.update({self.key: merged, **kept})
        else:
            memory.update(dict.fromkeys(memory.keys(self.key)))
        return True

    def applied(self, key: str, value: Any) -> Any:
        """What the value under `key` will be once this is written."""
        if self.verb == "append" and key == self.key:
            return [*(value or ()), self.value]
        if self.verb == "set" and key == self.key:
            return self.value
        if self.verb == "merge" and key == self.key:
            return self._merged(value)
        return None if self.verb == "drop" and key.startswith(self.key) else value

    def _merged(self, stored: Any) -> Any:
        both = isinstance(stored, dict) and isinstance(self.value, dict)
        return {**stored, **self.value} if both else self.value

    def excerpt(self) -> Write | None:
        """The same with its texts cut, for a memory that cannot take the whole; None when that makes no difference."""
        if self.verb not in ("append", "remember"):
            return None
        cut = shortened(self.value, EXCERPT)
        return None if cut == self.value else self._replace(value=cut)


def _holds(value: Any, part: Any) -> bool:
    """Whether nothing of `part` is missing in `value`."""
    both = isinstance(value, dict) and isinstance(part, dict)
    return part.items() <= value.items() if both else bool(value == part)


class Place:
    """A file or a server, as all who save there know it."""

    def __init__(self) -> None:
        self.away = False
        self._ask_again_at = 0.0

    def went_away(self) -> None:
        self.away = True
        self._ask_again_at = time.monotonic() + ASK_AGAIN

    def is_due(self) -> bool:
        """Whether it is time to ask again; for one of those who ask."""
        due = time.monotonic() >= self._ask_again_at
        if due:
            self._ask_again_at = time.monotonic() + ASK_AGAIN
        return due


class Saver(Forkable):
    """All writes of this process to one namespace, one after the other."""

    def __init__(self, memory: Memory, place: Place | None = None, *, keeps: bool = False) -> None:
        self.memory = memory
        self._keeps = keeps  # in the outbox, whatever cannot be sent
        self._place = place or Place()
        self._is_remote = is_remote(memory.place)
        self.start_anew()
        self.watch_forks()

    def start_anew(self) -> None:
        # In a child too: what still waits is the parent's to write.
        self._queue: deque[Write] = deque()
        self._changed = threading.Condition()
        self._working = threading.Lock()
        self._hurry = threading.Event()
        self._draining = False
        self._done = 0
        self._failures = 0
        self._behind = False
        """Whether something waits that could not be written at first; agents do not wait for it."""
        self._denied = False
        """Whether this namespace is refused, at a place that can be reached."""
        self._refused_at: float | None = None
        self._kept = False
        """Whether what was written last went into the outbox."""

    @property
    def down(self) -> bool:
        """Whether the memory can be neither written nor read."""
        return self._place.away or self._denied

    @property
    def refused(self) -> bool:
        """Whether it refuses what is written, a quota used up; it can still be read."""
        return self._refused_at is not None

    @property
    def is_busy(self) -> bool:
        """Whether something is neither saved nor kept in the outbox."""
        return bool(self._queue)

    @property
    def unsaved(self) -> int:
        """How many writes wait for the memory to come back."""
        return len(self._queue) + (len(self.memory.pending()) if self._kept else 0)

    def write(self, *writes: Write) -> None:
        """Save, in this order. Returns when it is saved, or when the memory has been waited for in vain."""
        if not writes:
            return
        with self._changed:
            self._queue.extend(writes)
            ticket = self._done + len(self._queue)
            if not self._draining:
                self._draining = True
                threading.Thread(target=self._drain, name="scrubjay-saver", daemon=True).start()
            in_time = self._changed.wait_for(lambda: self._done >= ticket or self._waits_in_vain(), PATIENCE)
            if in_time and self._done < ticket:
                self._behind = True
        if not in_time:
            self._went_away(_NO_ANSWER)

    def _waits_in_vain(self) -> bool:
        """Whether what is in the queue has been waited for; the outbox takes its writes when nobody else does."""
        return self._behind or (self._place.away and not self._keeps)

    def read(self, get: Callable[[], T], otherwise: T) -> T:
        """What `get` returns, or `otherwise` when that takes too long or fails; a wrong call is the caller's."""
        patience = PATIENCE if self._is_remote else FILE_PATIENCE
        if self._place.away and self._is_remote:
            if not self._place.is_due():
                return otherwise
            patience = 0.0  # it has been waited for, and is asked on the side
        answer: list[T] = []
        wrong: list[InvalidInput] = []

        def ask() -> None:
            asked_at = time.monotonic()
            try:
                answer.append(get())
                self._reached(asked_at)
            except InvalidInput as error:
                wrong.append(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the agent must not see it
                self._failed(error)

        thread = threading.Thread(target=ask, name="scrubjay-reader", daemon=True)
        thread.start()
        thread.join(patience)
        if thread.is_alive() and patience:
            self._went_away(_NO_ANSWER)
        if wrong:
            raise wrong[0]
        return answer[0] if answer else otherwise

    def look(self, key: str) -> tuple[bool, Any]:
        """Whether the memory could be read, and the value as it is stored or about to be."""
        stored, waiting = self._read_with_queue(lambda: self.memory.get(key))
        value = None if stored is _UNREAD else stored
        for write in waiting:
            value = write.applied(key, value)
        return stored is not _UNREAD, value

    def look_all(self, prefix: str) -> dict[str, Any] | None:
        """All values whose keys start like this, as they are or are about to be; None when they cannot be read."""
        values, waiting = self._read_with_queue(lambda: self.memory.get_many(self.memory.keys(prefix)))
        if values is _UNREAD:
            return None
        for write in waiting:
            if write.key.startswith(prefix):
                values[write.key] = write.applied(write.key, values.get(write.key))
        return {key: value for key, value in values.items() if value is not None}

    def _read_with_queue(self, get: Callable[[], Any]) -> tuple[Any, list[Write]]:
        """What is stored and what waits, as they are between two writes: one in the middle would count twice."""

        def both() -> tuple[Any, list[Write]]:
            done = self._done
            if not self._queue:  # a long read holds nobody up, unless there is something to be held up
                value = get()
                if not self._queue and self._done == done:
                    return value, []
            between = self._working.acquire(timeout=0 if self._place.away else PATIENCE)
            try:
                return get(), list(self._queue)
            finally:
                if between:
                    self._working.release()

        return self.read(both, (_UNREAD, list(self._queue)))

    def get(self, key: str) -> Any:
        """The value as it is stored or about to be; None when there is none or it cannot be reached."""
        return self.look(key)[1]

    def erase(self, prefix: str, is_meant: Callable[[str], bool]) -> int:
        """Delete keys for good, waiting writes included. This one fails loudly: it is a promise to somebody."""
        with self._working:
            keys = [key for key in self.memory.keys(prefix) if is_meant(key)]
            self.memory.update(dict.fromkeys(keys))
            with self._changed:
                kept = [write for write in self._queue if not is_meant(write.key)]
                self._done += len(self._queue) - len(kept)
                self._queue = deque(kept)
                self._changed.notify_all()
        return len(keys)

    def flush(self, seconds: float) -> None:
        """Give what still waits a last chance: after PATIENCE failing ends it, and taking long does not."""
        self._hurry.set()
        patient_until = time.monotonic() + PATIENCE

        def is_over() -> bool:
            return not self._queue or (self._failures > 1 and time.monotonic() > patient_until)

        with self._changed:
            self._failures = 0
            self._changed.wait_for(is_over, seconds)
        if self._queue:
            log.error("%r: the process ends with %s not saved", self.memory, counted(len(self._queue), "write"))

    def _drain(self) -> None:
        """Write until nothing waits; the thread ends then, so that idle agents cost none."""
        pause = FIRST_RETRY
        while True:
            with self._changed:
                if not self._queue:
                    self._draining = False
                    self._caught_up()
                    return
            if self._write_first():
                pause, self._failures = FIRST_RETRY, 0
            else:
                with self._changed:
                    self._failures += 1
                    self._changed.notify_all()
                self._hurry.wait(pause)
                time.sleep(SHORTEST_PAUSE)
                pause = min(pause * 2, LAST_RETRY)

    def _write_first(self) -> bool:
        """Whether the first write of the queue is dealt with."""
        with self._working:
            if not self._queue:
                return True
            asked_at = time.monotonic()
            try:
                if self._run(self._queue[0]):
                    self._kept = False
                    self._reached(asked_at)
                else:
                    self._was_kept()
            except QuotaExceeded as error:
                self._was_refused(str(error))
                return False
            except (InvalidInput, Conflict) as error:  # no retry will ever change this
                log.error("%r: not saved: %s", self.memory, error)  # noqa: TRY400 - the cause is in the message
            except Exception as error:  # noqa: BLE001 - whatever it is, the agent must not see it
                self._failed(error)
                return False
            with self._changed:
                self._queue.popleft()
                self._done += 1
                self._changed.notify_all()
        return True

    def _run(self, write: Write) -> bool:
        """Write it, or keep it in the outbox. What is too large by itself must not hold up the rest for ever, and
        gives way to an excerpt.
        """
        try:
            return write.run(self.memory)
        except (ValueTooLarge, QuotaExceeded) as error:
            if isinstance(error, QuotaExceeded) and not self._is_too_large_by_itself(error):
                raise
            excerpt = write.excerpt()
            if excerpt:
                excerpt.run(self.memory)
            what = "a note" if write.verb == "remember" else f"what was to be saved under {write.key!r}"
            part = "an excerpt" if excerpt else "nothing"
            log.error("%r: saved %s of %s: %s", self.memory, part, what, error)  # noqa: TRY400 - the cause is there
            return True

    def _is_too_large_by_itself(self, error: QuotaExceeded) -> bool:
        """Whether there is room for others, and they have waited long enough for somebody to make more of it."""
        if error.retry_after is not None or self._refused_at is None:
            return False
        if time.monotonic() < self._refused_at + HOLD_UP and not self._hurry.is_set():
            return False
        usage = self.memory.usage()
        return usage.max_bytes - usage.bytes >= ROOM

    def _was_kept(self) -> None:
        """It is on disk, whatever else goes wrong; say so once."""
        if self._kept:
            return
        with contextlib.suppress(ScrubjayError):
            if waiting := self.memory.pending():  # else it has been sent by now
                self._warn(waiting[-1].why)
                self._kept = True
                if self.memory.is_away:
                    self._place.went_away()

    def _was_refused(self, why: str) -> None:
        self._go_on_without(why)
        if self._refused_at is None:
            self._refused_at = time.monotonic()

    def _failed(self, error: Exception) -> None:
        """Foreign errors count as a place that does not work; a refusal is this namespace's alone."""
        if isinstance(error, Unavailable) or not isinstance(error, ScrubjayError):
            self._went_away(str(error))
        else:
            self._go_on_without(str(error))
            self._denied = True

    def _went_away(self, why: str) -> None:
        self._go_on_without(why)
        self._place.went_away()

    def _go_on_without(self, why: str) -> None:
        """Let nobody wait for what is in the queue, and say so once until everything is saved."""
        with self._changed:
            self._warn(why)
            self._behind = bool(self._queue)
            self._changed.notify_all()

    def _warn(self, why: str) -> None:
        if not (self._behind or self._kept or self.down):
            log.warning("%r: %s. The agent goes on; what it is told is kept and saved later.", self.memory, why)

    def _reached(self, asked_at: float) -> None:
        """Who answers, but not as long as agents wait, is still away to them: they have waited for it once."""
        if time.monotonic() < asked_at + PATIENCE:
            self._place.away = self._denied = False

    def _caught_up(self) -> None:
        self._refused_at = None
        if self._behind:
            self._behind = False
            log.info("%r: everything is %s", self.memory, "kept until it can be sent" if self._kept else "saved")
        self._changed.notify_all()


class _Savers(Forkable):
    """One for all handles on a namespace: agents made per request must not overtake one another's
    messages, nor each wait for a memory of which it is known that it is away.
    """

    def __init__(self) -> None:
        self._open: weakref.WeakValueDictionary[tuple[str, str, str | None], Saver] = weakref.WeakValueDictionary()
        self._places: dict[str, Place] = {}
        self.start_anew()
        self.watch_forks()

    def start_anew(self) -> None:
        self._lock = threading.Lock()

    def saver_of(self, memory: Memory) -> Saver:
        at = (memory.namespace, memory.place, memory.api_key)
        with self._lock:
            saver = self._open.get(at)
            if saver is None:
                if not self._open:  # after the first Memory, so that at the end this comes before files are closed
                    atexit.unregister(self.flush_all)
                    atexit.register(self.flush_all)
                # A handle of its own: the user may close theirs while another agent still writes.
                # It gives up before the agent does, so that the agent goes on when all is in the outbox.
                seconds = min(memory.timeout, OUTBOX_AFTER) if memory.has_outbox else memory.timeout
                own = reopened(memory, keep_refused=True, timeout=seconds)
                place = self._places.setdefault(memory.place, Place())
                saver = self._open[at] = Saver(own, place, keeps=own.has_outbox)
            return saver

    def flush_all(self) -> None:
        give_up_at = time.monotonic() + LAST_CHANCE
        for reference in self._open.valuerefs():  # a list of its own, whatever other threads still do
            saver = reference()
            if saver is not None and saver.is_busy:
                saver.flush(max(give_up_at - time.monotonic(), 0))


_savers = _Savers()
saver_of = _savers.saver_of
