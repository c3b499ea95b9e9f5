"""Saving that never fails the agent, never makes it wait long, and never loses a message.

A write is queued, and the agent waits until it is done: what an agent was told is stored before
it answers. When that takes longer than PATIENCE, or fails, the agent goes on at once from then
on, and a thread writes what has queued up as soon as the memory can be reached again, in order.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple, TypeVar

from scrubjay.errors import Conflict, InvalidInput, QuotaExceeded
from scrubjay.forks import Forkable
from scrubjay.memory import Memory

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds an agent waits for its memory; once, and not again until the memory is back."""
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

log = logging.getLogger("scrubjay")

_NO_ANSWER = f"no answer within {PATIENCE:g} s"


class Write(NamedTuple):
    """One change of a memory: append, set (None deletes), drop (every key that starts with `key`), or remember
    (a note that goes where `key` goes).
    """

    verb: str
    key: str
    value: Any = None
    id: str | None = None
    """By which an append that is sent again, after an answer that was lost, does not happen twice."""

    def run(self, memory: Memory) -> None:
        if self.verb == "append":
            memory.append(self.key, self.value, once=self.id)
        elif self.verb == "set":
            memory.set(self.key, self.value)
        elif self.verb == "remember":
            memory.remember(**self.value)
        else:
            memory.update(dict.fromkeys(memory.keys(self.key)))

    def applied(self, key: str, value: Any) -> Any:
        """What the value under `key` will be once this is written."""
        if self.verb == "append" and key == self.key:
            return [*(value or ()), self.value]
        if self.verb == "set" and key == self.key:
            return self.value
        return None if self.verb == "drop" and key.startswith(self.key) else value


class Saver(Forkable):
    """All writes of this process to one namespace, one after the other."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
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
        self._ask_again_at = 0.0
        self.down = False
        """Whether the memory cannot be reached: neither written nor read."""
        self.refused = False
        """Whether it refuses what is written, a quota used up; it can still be read."""

    @property
    def unsaved(self) -> int:
        """How many writes wait for the memory to come back."""
        return len(self._queue)

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
            in_time = self._changed.wait_for(lambda: self._done >= ticket or self.down or self.refused, PATIENCE)
        if not in_time:
            self._went_down(_NO_ANSWER)

    def read(self, get: Callable[[], T], otherwise: T) -> T:
        """What `get` returns, or `otherwise` when that takes too long or fails; a wrong call is the caller's."""
        if self.down and time.monotonic() < self._ask_again_at:
            return otherwise
        answer: list[T] = []
        wrong: list[InvalidInput] = []

        def ask() -> None:
            try:
                answer.append(get())
            except InvalidInput as error:
                wrong.append(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the agent must not see it
                self._went_down(str(error))

        thread = threading.Thread(target=ask, name="scrubjay-reader", daemon=True)
        thread.start()
        thread.join(PATIENCE if is_remote(self.memory) else FILE_PATIENCE)
        if thread.is_alive():
            self._went_down(_NO_ANSWER)
        elif answer and not self._queue:
            self._came_back()
        if wrong:
            raise wrong[0]
        return answer[0] if answer else otherwise

    def get(self, key: str) -> Any:
        """The value as it is stored or about to be; None when there is none or it cannot be reached."""
        value = self.read(lambda: self.memory.get(key), None)
        for write in list(self._queue):
            value = write.applied(key, value)
        return value

    def erase(self, prefix: str, *, but: str | None = None) -> int:
        """Delete keys for good, waiting writes included. This one fails loudly: it is a promise to somebody."""

        def meant(key: str) -> bool:
            return key.startswith(prefix) and not (but and key.startswith(but))

        with self._working, self._changed:
            kept = [write for write in self._queue if not meant(write.key)]
            self._done += len(self._queue) - len(kept)
            self._queue = deque(kept)
            self._changed.notify_all()
            keys = [key for key in self.memory.keys(prefix) if meant(key)]
            self.memory.update(dict.fromkeys(keys))
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
            log.error("%r: the process ends with %d writes not saved", self.memory, self.unsaved)

    def _drain(self) -> None:
        """Write until nothing waits; the thread ends then, so that idle agents cost none."""
        pause = FIRST_RETRY
        while True:
            with self._changed:
                if not self._queue:
                    self._draining = False
                    self._came_back()
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
            try:
                self._queue[0].run(self.memory)
            except QuotaExceeded as error:
                self._was_refused(str(error))
                return False
            except (InvalidInput, Conflict) as error:  # no retry will ever change this
                log.error("%r: not saved: %s", self.memory, error)  # noqa: TRY400 - the cause is in the message
            except Exception as error:  # noqa: BLE001 - whatever it is, the agent must not see it
                self._went_down(str(error))
                return False
            with self._changed:
                self._queue.popleft()
                self._done += 1
                self._changed.notify_all()
        return True

    def _was_refused(self, why: str) -> None:
        with self._changed:
            if not self.refused:
                self.refused = True
                log.warning("%r: %s. The agent goes on; what it is told is kept and saved later.", self.memory, why)
                _unsaved.add(self)
            self._changed.notify_all()

    def _went_down(self, why: str) -> None:
        with self._changed:
            self._ask_again_at = time.monotonic() + ASK_AGAIN
            if not self.down:
                self.down = True
                log.warning("%r: %s. The agent goes on; what it is told is kept and saved later.", self.memory, why)
                _unsaved.add(self)
            self._changed.notify_all()

    def _came_back(self) -> None:
        with self._changed:
            if self.down or self.refused:
                self.down = self.refused = False
                log.info("%r: is back, and everything is saved", self.memory)
            self._changed.notify_all()


# One for all handles on a namespace: agents made per request must not overtake one another's
# messages, nor each wait for a memory of which it is known that it is down.
_savers: weakref.WeakValueDictionary[tuple[str, str, str | None], Saver] = weakref.WeakValueDictionary()
_savers_lock = threading.Lock()
_unsaved: weakref.WeakSet[Saver] = weakref.WeakSet()


def saver_of(memory: Memory) -> Saver:
    at = (memory.namespace, memory.place, memory.api_key)
    with _savers_lock:
        saver = _savers.get(at)
        if saver is None:
            if not _savers:  # after the first Memory, so that at the end this comes before files are closed
                atexit.unregister(_flush_all)
                atexit.register(_flush_all)
            # A handle of its own: the user may close theirs while another agent still writes.
            saver = _savers[at] = Saver(copy(memory))
        return saver


def is_remote(memory: Memory) -> bool:
    return memory.place.startswith("http")


def _flush_all() -> None:
    give_up_at = time.monotonic() + LAST_CHANCE
    for saver in list(_unsaved):
        saver.flush(max(give_up_at - time.monotonic(), 0))
