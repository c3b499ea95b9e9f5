"""Sessions: several conversations in one memory, each under keys of its own.

The session "default" has the plain keys that people expect in a memory (conversation_history); the keys of any other
start with `session:<name>:`. Other keys in the same memory are the user's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from copy import copy
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

from scrubjay.adapters._copies import copies, queued_copy, whole_conversation
from scrubjay.calls import append_call
from scrubjay.commands import Command
from scrubjay.conversations import is_reserved, session_prefix, split_key
from scrubjay.errors import Conflict, InvalidInput, ScrubjayError, Unavailable
from scrubjay.learning import background
from scrubjay.memory import Memory
from scrubjay.recall.prompt import CONTEXT_THRESHOLD, format_prompt
from scrubjay.threads import Threads
from scrubjay.transaction import CollectedWrites
from scrubjay.validation import MAX_RECALL

_NOTES = 8
"""Notes that are put into a prompt, if they fit."""

T = TypeVar("T")

log = logging.getLogger("scrubjay")


_unreadable: WeakSet[Memory] = WeakSet()
"""Memories that could not be read last time: one error is logged for each."""


_threads = Threads("scrubjay-saving")
"""Threads that save while an event loop goes on."""


def is_on_event_loop() -> bool:
    """Whether the calling thread runs an event loop, which saving must not hold up."""
    return asyncio._get_running_loop() is not None


Saved = Callable[[int | None], None]
"""Called after an append with the new length of the list, or None if the append is queued."""
Batch = list[tuple[Command, Saved | None]]
"""What is saved together, such as a message."""


class Writes(CollectedWrites):
    """The writes that are saved together, each with the callback that gets the new length of a list."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory.namespace, memory._executor.run, None)
        self.batch: Batch = []

    def add(self, command: Command) -> None:
        """Add a command to the batch, whose end `saving` determines."""
        self.batch.append((command, None))

    def append_counted(self, key: str, item: Any, saved: Saved) -> None:
        """Add an item to the end of a list, and call `saved` afterwards."""
        self.batch.append((append_call(self.namespace, key, item), saved))


class _Source(NamedTuple):
    """A list of messages that a model learns from."""

    memory: Memory
    key: str

    def __str__(self) -> str:
        return f"{self.key!r} of {self.memory!r}"


class Session:
    """One conversation's part of a memory.

    Writes go through an unattended copy of the memory: each is stored, or is in the outbox file about a second later.
    A write for which both fail (the disk is full) is logged as an error, kept in this process, and tried again with
    the next one: saving never raises into a chat.
    """

    __slots__ = ("_lock", "_memory", "_prefix", "_saving", "_unsaved", "is_strict", "memory", "name", "restoring")

    def __init__(self, memory: Memory, name: str) -> None:
        self._prefix = session_prefix(name)
        self.memory = memory
        self.name = name
        self.is_strict: bool = memory._arguments["strict"]
        self._memory = copies.copy_of(memory)
        self._unsaved: deque[Batch] = deque()  # whose methods are atomic
        self._lock = threading.Lock()
        self._saving: list[Future[None]] = []
        self.restoring = threading.RLock()
        """Held while a conversation is read for the first time, by a thread beside an event loop perhaps."""

    def __str__(self) -> str:
        return f"the session {self.name!r} of {self.memory!r}"

    def __deepcopy__(self, _memo: object) -> Session:
        """The copy of an agent is another agent in the same session."""
        return self

    def key(self, name: str) -> str:
        return self._prefix + name

    def is_same_as(self, other: Session, name: str | None = None) -> bool:
        """Whether it is the other one, or the one of that name in the other's memory."""
        return self._memory is other._memory and self.name == (name or other.name)

    @property
    def unsaved(self) -> int:
        """How many writes are queued, in the outbox or, if that cannot be used, in this process; a message is one."""
        with contextlib.suppress(Unavailable):
            return len(self._memory.pending()) + len(self._unsaved)
        return len(self._unsaved)

    # ------------------------------------------------------------ writing

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Writes]:
        """Save what the block writes, all of it or nothing, without raising."""
        with saving(self) as transaction_of:
            yield transaction_of(self)

    def new_transaction(self) -> Writes:
        return Writes(self._memory)

    @property
    def is_saved(self) -> bool:
        """Whether nothing is being saved by a thread or waits in this process for the next attempt."""
        return not self._unsaved and all(future.done() for future in self._saving)

    def save_in_thread(self, writes: Writes) -> Future[None]:
        """Save in a thread; `wait` waits for it."""
        self._add_unsaved(writes)
        self._saving = [future for future in self._saving if not future.done()]
        self._saving.append(_threads.submit(self._save, writes))
        return self._saving[-1]

    def save_now(self, writes: Writes) -> None:
        self._add_unsaved(writes)
        self._save(writes)

    def _add_unsaved(self, writes: Writes) -> None:
        if writes.batch:
            self._unsaved.append(writes.batch)

    def wait_for(self, future: Future[None]) -> None:
        """Let `wait` wait for what another session saves, too."""
        self._saving.append(future)

    def wait(self) -> None:
        """Return when everything is saved that an event loop has handed to a thread."""
        for future in self._saving:
            future.result()

    async def wait_async(self) -> None:
        """The same for coroutines."""
        for future in self._saving:
            await asyncio.wrap_future(future)

    def _save(self, writes: Writes) -> None:
        with self._lock:
            unsaved = [self._unsaved.popleft() for _ in range(len(self._unsaved))]
            try:
                self._run(writes, [each for batch in unsaved for each in batch])
            except ScrubjayError as error:
                self._unsaved.extendleft(reversed(unsaved))
                log.error(  # noqa: TRY400 - the message has the cause
                    "%r: a message is neither stored nor queued: %s. It is tried again with the next one",
                    self.memory,
                    error,
                )

    def _run(self, writes: Writes, unsaved: Batch) -> None:
        try:
            writes.run([command for command, _ in unsaved])
        except Unavailable:
            raise
        except ScrubjayError:  # final: a value of the user's is in the way of one of them, and not of the others
            for each in unsaved:
                self._run_alone(writes, each)
        else:
            results = writes.results or [None] * len(unsaved)
            for (_, saved), result in zip(unsaved, results, strict=True):
                if saved is not None:
                    saved(result)

    def _run_alone(self, writes: Writes, unsaved: tuple[Command, Saved | None]) -> None:
        try:
            writes.run([unsaved[0]])
        except Unavailable:
            self._unsaved.append([unsaved])
        except ScrubjayError as error:
            log.error("%r: not saved: %s", self.memory, error)  # noqa: TRY400

    # ------------------------------------------------------------ reading

    def read(self, ask: Callable[[Memory], T], otherwise: T) -> T:
        """What `ask` reads, or `otherwise` when the memory cannot be read; a strict memory raises instead."""
        try:
            found = ask(self._memory)
        except (InvalidInput, Conflict):
            raise
        except ScrubjayError as error:
            if self.is_strict:
                raise
            if self._memory not in _unreadable:
                _unreadable.add(self._memory)
                log.error(  # noqa: TRY400
                    "%r cannot be read: %s. Agents go on WITHOUT their stored history and state, but for what is queued"
                    " on this machine, until it can be read",
                    self.memory, error,
                )  # fmt: skip
            return otherwise
        _unreadable.discard(self._memory)
        return found

    def queued(self) -> Session:
        """The same session as the writes tell that are queued on this machine, to read while the memory cannot be."""
        found = copy(self)
        found._memory = queued_copy(self._memory)
        return found

    def get_many(self, *names: str) -> dict[str, Any] | None:
        """The values that exist, by name; None when the memory cannot be read."""
        found = self.read(lambda memory: memory.get_many([self.key(name) for name in names]), None)
        return None if found is None else {key[len(self._prefix) :]: value for key, value in found.items()}

    def tail(self, name: str, count: int) -> list[Any] | None:
        """The last items of a list; None when the memory cannot be read."""
        return self._read_items(name, lambda memory: memory.tail(self.key(name), count))

    def slice(self, name: str, start: int, stop: int | None, kind: type = dict) -> list[Any] | None:
        """Some items of a list; None when the memory cannot be read."""
        return self._read_items(name, lambda memory: memory.slice(self.key(name), start, stop), kind)

    def _read_items(self, name: str, ask: Callable[[Memory], list[Any]], kind: type = dict) -> list[Any] | None:
        try:
            found = self.read(ask, None)
        except Conflict:  # a value of the user's
            return self.items_of(name, {}, kind)
        self.items_of(name, found, kind)
        return found

    def length(self, name: str) -> int | None:
        """How many items a list has; None when the memory cannot be read."""
        try:
            return self.read(lambda memory: memory.length(self.key(name)), None)
        except Conflict:  # a value of the user's
            return 0

    def names(self, prefix: str) -> list[str] | None:
        """The names that start with a prefix; None when the memory cannot be read."""
        keys = self.read(lambda memory: memory.keys(self.key(prefix)), None)
        return None if keys is None else [key[len(self._prefix) :] for key in keys]

    def items_of(self, name: str, stored: Any, kind: type[T]) -> list[T]:
        """The items of a stored list; anything else that is stored there is logged, and left alone."""
        items = [item for item in stored if isinstance(item, kind)] if isinstance(stored, list) else []
        if stored is not None and items != stored:
            log.error("%r has a value that is not ours under %r; delete it", self.memory, self.key(name))
        return items

    def check_list(self, name: str) -> int | None:
        """How many items a list has; None when the memory cannot be read.

        :raises InvalidInput: if a value of the user is there instead.
        """
        try:
            return self.read(lambda memory: memory.length(self.key(name)), None)
        except Conflict as error:
            raise InvalidInput(
                f"{self.key(name)!r} in {self.memory!r} is not a list, so messages cannot be stored there;"
                " delete it, or give another memory= or session="
            ) from error

    def history(self, name: str) -> list[dict[str, Any]]:
        """The messages of a list, oldest first, as `Memory.conversation` gives them; raises what the memory raises."""
        return [message._asdict() for message in whole_conversation(self._memory, self.key(name))]

    def context(self, query: str, seen: set[str], max_tokens: int) -> str:
        """Notes about a query for a prompt: those of this session and of none, without texts that are in `seen`."""

        def ask(memory: Memory) -> str:
            limit = min(_NOTES + len(seen), MAX_RECALL)
            own = memory.recall(query, limit=limit, session=self.name, threshold=CONTEXT_THRESHOLD)
            found = memory.recall(query, limit=limit, threshold=CONTEXT_THRESHOLD)
            common = [note for note in found if note.session is None]
            best = sorted(own + common, key=lambda note: note.score or 0, reverse=True)
            return format_prompt([note for note in best if note.content not in seen][:_NOTES], max_tokens)

        return self.read(ask, "")

    def learn(self, name: str, model: Callable[[str], str], delay: float) -> None:
        """Let a model learn from a list of messages, in the background and after so many seconds."""
        key, memory, tokens = self.key(name), self._memory, self.memory._settings.learn_tokens

        def work() -> None:
            memory.distill(self.name, model, key=key, tokens_per_day=tokens)

        background.submit(_Source(memory, key), work, delay)

    # ------------------------------------------------------------ all sessions of the memory

    def sessions(self) -> list[str]:
        """Every session of the memory that has something stored."""
        keys = list(filter(is_reserved, self._memory.keys()))
        return sorted({split_key(key)[0] for key in keys})

    def forget(self, name: str) -> int:
        """Erase a session, notes and queued writes included; returns how many items and notes it had."""
        session_prefix(name)
        if name == self.name:
            self._unsaved.clear()
        return self._memory.forget_session(name)


@contextlib.contextmanager
def saving(owner: Session) -> Iterator[Callable[[Session], Writes]]:
    """Save what the block writes for several sessions, without raising: one request for each memory, all at once.

    The block gets a function from a session to the transaction of its memory. When it ends, all is saved; under an
    event loop it is being saved, and `wait` of the owner waits for all of it.
    """
    first: dict[Memory, tuple[Session, Writes]] = {}

    def transaction_of(session: Session) -> Writes:
        return first.setdefault(session._memory, (session, session.new_transaction()))[1]

    yield transaction_of
    parts = [(session, writes) for session, writes in first.values() if writes.batch]
    if not parts:
        return
    on_event_loop = is_on_event_loop()
    futures = [session.save_in_thread(writes) for session, writes in (parts if on_event_loop else parts[1:])]
    if on_event_loop:
        for future in futures:
            owner.wait_for(future)
        return
    parts[0][0].save_now(parts[0][1])
    for future in futures:
        future.result()
