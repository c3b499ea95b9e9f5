"""The state of an agent: values by name, which are saved in its session."""

from __future__ import annotations

import logging
import marshal
from collections.abc import Iterator, Mapping, MutableMapping
from hashlib import blake2b
from typing import Any

from scrubjay.adapters._names import quote_name
from scrubjay.adapters._sessions import Session, is_on_event_loop
from scrubjay.conversations import STATE
from scrubjay.errors import InvalidInput, ScrubjayError, repr_short
from scrubjay.exact_json import decode, encode
from scrubjay.transaction import CollectedWrites
from scrubjay.validation import check_key

_UNSAVED = b"unsaved"
"""In place of the fingerprint of a value that is not saved; no fingerprint is that short."""

log = logging.getLogger("scrubjay")


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

    def _put(self, t: CollectedWrites, name: str, value: Any) -> None:
        t.set(check_key(self._key(name)), decode(encode(value)))
        self._values[name], self._saved[name] = value, fingerprint(value)

    def _put_or_log(self, t: CollectedWrites, name: str, value: Any) -> None:
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

    def save_changes(self, t: CollectedWrites) -> None:
        """Add to a transaction what has been changed inside a value."""
        if self._is_blind and not is_on_event_loop():
            self._known()
        self.add_changes(t)

    def add_changes(self, t: CollectedWrites) -> None:
        """The same, and nothing is read."""
        for name in list(self._saved):
            if self._is_changed(name):
                self._put_or_log(t, name, self._values[name])

    def _is_changed(self, name: str) -> bool:
        return name in self._values and name in self._saved and fingerprint(self._values[name]) != self._saved[name]

    def replace(self, t: CollectedWrites, values: Mapping[str, Any]) -> None:
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
