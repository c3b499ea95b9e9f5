"""Sessions: several conversations in one memory, each under keys of its own.

The session "default" has the plain keys that people expect in a memory (conversation_history); the keys of any other
start with `session:<name>:`. Other keys in the same memory are the user's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import marshal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from hashlib import blake2b, sha256
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

from scrubjay.adapters._project import project_name
from scrubjay.commands import Command
from scrubjay.conversations import STATE, is_reserved, session_prefix, split_key
from scrubjay.errors import Conflict, Forbidden, InvalidInput, ScrubjayError, Unauthenticated, Unavailable, repr_short
from scrubjay.exact_json import decode, encode
from scrubjay.fork_safety import ForkSafe
from scrubjay.learning import background
from scrubjay.memory import Memory, check_access, is_strict, queued_copy, unattended_copy
from scrubjay.recall.prompt import CONTEXT_THRESHOLD, format_prompt
from scrubjay.transaction import Transaction
from scrubjay.validation import MAX_MESSAGES_PAGE, MAX_NAMESPACE_CHARS, MAX_RECALL, check_key

MAX_NAME_BYTES = 120
"""Bytes of an agent's name in a key, which may have two of them and a session's."""
_NOTES = 8
"""Notes that are put into a prompt, if they fit."""

_UNSAVED = b"unsaved"
"""In place of the fingerprint of a value that is not saved; no fingerprint is that short."""

T = TypeVar("T")

log = logging.getLogger("scrubjay")


class _Copies:
    """The unattended copies of this process: all agents on a namespace share one, and so its connections."""

    def __init__(self) -> None:
        self._open: WeakValueDictionary[tuple[Any, ...], Memory] = WeakValueDictionary()
        self._accepted: set[int] = set()
        """Hashes of the keys of memories that have accepted writes in this process."""
        self._lock = threading.Lock()

    def copy_of(self, memory: Memory) -> Memory:
        """The copy of a memory; raises Unauthenticated or Forbidden if its api key may not write there.

        A program that makes its agents for each request goes on when the key is revoked: its messages are queued.
        """
        key = (memory.namespace, memory.location, memory._settings)
        with self._lock:
            copy = self._open.get(key)
            if copy is None:
                copy = unattended_copy(memory)
                self._check_access(copy, hash(key))
                self._open[key] = copy
            return copy

    def _check_access(self, copy: Memory, key: int) -> None:
        try:
            if check_access(copy):
                self._accepted.add(key)
        except (Unauthenticated, Forbidden) as error:
            if key not in self._accepted:
                raise
            log.error(  # noqa: TRY400 - the message has the cause
                "%r no longer accepts the api key: %s. Messages are queued on this machine until it does", copy, error
            )


_copies = _Copies()
_unreadable: WeakSet[Memory] = WeakSet()
"""Memories that could not be read last time: one error is logged for each."""


class _Threads(ForkSafe):
    """Threads that save while an event loop goes on; a forked child makes its own."""

    def __init__(self) -> None:
        self.reset()
        self.register_at_fork()

    def reset(self) -> None:
        self.pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="scrubjay-saving")


_threads = _Threads()


def is_on_event_loop() -> bool:
    """Whether the calling thread runs an event loop, which saving must not hold up."""
    return asyncio._get_running_loop() is not None


Saved = Callable[[int | None], None]
"""Called after an append with the new length of the list, or None if the append is queued."""
Batch = list[tuple[Command, Saved | None]]
"""What is saved together, such as a message."""


class Writes(Transaction):
    """The writes that are saved together, and which callbacks get the new lengths of lists."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory.namespace, memory._executor.run, None)
        self._is_open = True  # until `saving` has saved it
        self.callbacks: dict[int, Saved] = {}
        """By the identity of the command."""

    def append_counted(self, key: str, item: Any, saved: Saved) -> None:
        """Add an item to the end of a list, and call `saved` afterwards."""
        self.append(key, item)
        self.callbacks[id(self.commands[-1])] = saved


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
        self.is_strict = is_strict(memory)
        self._memory = _copies.copy_of(memory)
        self._unsaved: deque[Batch] = deque()  # whose methods are atomic
        self._lock = threading.Lock()
        self._saving: list[Future[None]] = []
        self.restoring = threading.RLock()
        """Held while a conversation is read for the first time, by a thread beside an event loop perhaps."""

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
        self._saving.append(_threads.pool.submit(self._save, writes))
        return self._saving[-1]

    def save_now(self, writes: Writes) -> None:
        self._add_unsaved(writes)
        self._save(writes)

    def _add_unsaved(self, writes: Writes) -> None:
        if writes.commands:
            self._unsaved.append([(command, writes.callbacks.get(id(command))) for command in writes.commands])

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
        found: list[dict[str, Any]] = []
        before = None
        while True:
            page = self._memory.conversation(key=self.key(name), limit=MAX_MESSAGES_PAGE, before=before)
            found[:0] = [message._asdict() for message in page]
            if len(page) < MAX_MESSAGES_PAGE:
                return found
            before = page[0].position

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

        background.submit((memory, key), work, delay)

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
    parts = [(session, writes) for session, writes in first.values() if writes.commands]
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


class State(MutableMapping[str, Any]):
    """An agent's values by name, such as preferences and counts. An assigned value is saved at once:

        agent.state["preferences"] = {"language": "Python"}

    A change inside a value, as by `agent.state["seen"].append(1)`, is saved with the agent's next message, or by
    `agent.state.save()`. While the memory cannot be read, the stored values are missing, but for those that are queued,
    and new values are stored beside them. When the memory can be read, here or in a later process, a value that was
    stored before stays, and a warning says which new values were dropped for that.
    """

    __slots__ = ("_beside", "_owner", "_prefix", "_queued", "_saved", "_session", "_values", "is_complete")

    def __init__(self, session: Session, owner: str) -> None:
        self._session = session
        self._owner = f"{STATE}{quote_name(owner)}"
        self._prefix = f"{self._owner}:"
        self._beside = f"{self._owner}%offline:"  # which no other owner has: a quoted name has no such %
        self.reset()

    def reset(self) -> None:
        """Forget the values that were read; the next access reads them again."""
        self._values: dict[str, Any] = {}
        self._saved: dict[str, bytes] = {}
        """Fingerprints, as saved, of values that others hold and may change."""
        self.is_complete = False
        """Whether the stored values could be read; else these are the ones that are queued, and new ones."""
        self._queued: set[str] | None = None
        """Names of values that are queued, and so known, while the stored ones cannot be read; None before that."""

    @property
    def _is_blind(self) -> bool:
        """Whether the stored values could not be read so far."""
        return self._queued is not None and not self.is_complete

    def _known(self) -> dict[str, Any]:
        """The values; read now if they were not read so far."""
        if not self.is_complete:
            found = self._read(self._session)
            if found is not None:
                self._complete(*found)
            elif self._queued is None:
                queued, beside = self._read(self._session.queued()) or ({}, {})
                self._queued = set(queued)
                self._values = beside | queued
        return self._values

    def _read(self, session: Session) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The values in a session, and those that are stored beside them; None when it cannot be read."""
        names = session.names(self._owner)
        if names is None:
            return None
        own = [name for name in names if name.startswith((self._prefix, self._beside))]
        found = session.get_many(*own) if own else {}
        if found is None:
            return None
        values, beside = (
            {name.removeprefix(start): value for name, value in found.items() if name.startswith(start)}
            for start in (self._prefix, self._beside)
        )
        return values, beside

    def _complete(self, stored: dict[str, Any], beside: dict[str, Any]) -> None:
        """Take over the stored values, and those that were assigned meanwhile under names that have none."""
        known = self._queued or set()
        new = beside | {name: value for name, value in self._values.items() if name not in known}
        changed = {name: value for name, value in self._values.items() if name in known and self._is_changed(name)}
        own = self._values | new
        equal = {name: own[name] for name in own.keys() & stored if fingerprint(own[name]) == fingerprint(stored[name])}
        dropped = (new.keys() & stored) - equal.keys()
        self._values = stored | equal | changed
        self._saved = {name: self._saved[name] for name in changed}
        self._watch(equal)
        self.is_complete = True
        if new:
            with self._session.transaction() as t:
                for name in new.keys() - stored.keys():
                    self._put_or_log(t, name, new[name])
                for name in beside:
                    t.delete(self._session.key(self._beside + name))
        if dropped:
            log.warning(
                "%r: the stored values of %s stay; what was assigned to them while they could not be read is dropped",
                self._session.memory,
                ", ".join(repr(self._session.key(self._prefix + name)) for name in sorted(dropped)),
            )  # fmt: skip

    def __getitem__(self, name: str) -> Any:
        value = self._known()[name]
        self._watch({name: value})
        return value

    def copy(self) -> dict[str, Any]:
        """The values, in a dict of their own."""
        values = dict(self._known())
        self._watch(values)
        return values

    def _watch(self, values: dict[str, Any]) -> None:
        """Note what values are before others hold them, and may change them."""
        for name, value in values.items():
            if isinstance(value, dict | list) and name not in self._saved:
                self._saved[name] = fingerprint(value)

    def __setitem__(self, name: str, value: Any) -> None:
        self._check(name, value)
        self.hold({name: value})
        was_blind = self._is_blind
        if self._known().get(name) is value or not (was_blind and self.is_complete):
            with self._session.transaction() as t:
                self._put(t, name, value)

    def assign(self, values: Mapping[str, Any]) -> None:
        """Have exactly these values, and save them.

        :raises InvalidInput: if JSON cannot represent one of them; then nothing is changed.
        """
        new = dict(values)
        for name, value in new.items():
            self._check(name, value)
        with self._session.transaction() as t:
            self.replace(t, new)

    def _check(self, name: Any, value: Any) -> None:
        """Raise InvalidInput for what cannot be saved."""
        if not isinstance(name, str):
            raise InvalidInput(f"the names of state are text, not {repr_short(name)}")
        check_key(self._session.key(self._beside + name))
        encode(value)

    def _key(self, name: str) -> str:
        """The key of a value: beside the stored ones if there may be one of that name that is not known."""
        is_known = not self._is_blind or name in (self._queued or ())
        return self._session.key((self._prefix if is_known else self._beside) + name)

    def _put(self, t: Transaction, name: str, value: Any) -> None:
        t.set(check_key(self._key(name)), decode(encode(value)))
        self._values[name], self._saved[name] = value, fingerprint(value)

    def _put_or_log(self, t: Transaction, name: str, value: Any) -> None:
        try:
            self._put(t, name, value)
        except (ScrubjayError, RuntimeError) as error:  # the latter when another thread changes it just now
            self._values[name], self._saved[name] = value, fingerprint(value)
            log.error("state[%r] of %r is not saved: %s", name, self._session.memory, error)  # noqa: TRY400

    def __delitem__(self, name: str) -> None:
        del self._known()[name]
        self._saved.pop(name, None)
        with self._session.transaction() as t:
            t.delete(self._key(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def __repr__(self) -> str:
        return f"State({self._known()!r})"

    def hold(self, values: Mapping[str, Any]) -> None:
        """Take over values of the program's, unsaved, if the stored ones could not be read so far."""
        for name, value in values.items() if self._is_blind else ():
            if fingerprint(value) != self._saved.get(name):
                self._values[name], self._saved[name] = value, _UNSAVED

    def save(self) -> None:
        """Save what has been changed inside a value."""
        with self._session.transaction() as t:
            self.save_changes(t)

    def save_changes(self, t: Transaction) -> None:
        """Add to a transaction what has been changed inside a value."""
        if self._is_blind and not is_on_event_loop():
            self._known()
        self.add_changes(t)

    def add_changes(self, t: Transaction) -> None:
        """The same, and nothing is read."""
        for name in list(self._saved):
            if self._is_changed(name):
                self._put_or_log(t, name, self._values[name])

    def _is_changed(self, name: str) -> bool:
        return name in self._values and name in self._saved and fingerprint(self._values[name]) != self._saved[name]

    def replace(self, t: Transaction, values: Mapping[str, Any]) -> None:
        """Add to a transaction what it takes to have exactly these values; one that cannot be saved is logged once.

        Values that are stored and could not be read so far stay.
        """
        if self._is_blind:
            self.hold(values)
            self._known()
            self.add_changes(t)
            return
        known = self._known()
        for name in [name for name in known if name not in values]:
            del known[name]
            self._saved.pop(name, None)
            t.delete(self._key(name))
        for name, value in values.items():
            if name not in self._saved and name in known:
                self._saved[name] = fingerprint(known[name])
            if fingerprint(value) == self._saved.get(name):
                known[name] = value
            else:
                self._put_or_log(t, name, value)

    def refresh(self) -> None:
        """Read the stored values again; if they cannot be read, those that are known stay."""
        if not self.is_complete:
            self._known()
        elif (found := self._read(self._session)) is not None:
            self.reset()
            self._complete(*found)


def fingerprint(value: Any) -> bytes:
    """A digest that changes with the value; marshal takes a tenth of the time of JSON."""
    try:
        return blake2b(marshal.dumps(value, 2), digest_size=16).digest()
    except (ValueError, RuntimeError):  # an object that JSON cannot represent either, or a change by another thread
        return b""


# ------------------------------------------------------------ names


def open_memory(memory: Memory | str | None, namespace: str) -> Memory:
    """The memory that a user may give as `memory=`: a Memory, a namespace, or nothing."""
    if isinstance(memory, Memory):
        return memory
    if memory is None or isinstance(memory, str):
        return Memory(memory or namespace)
    raise InvalidInput(f"memory= takes a Memory or a namespace, not {repr_short(memory)}")


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
