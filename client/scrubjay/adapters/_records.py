"""Records: the stored messages of one conversation, and which of the framework's messages they are.

Every saved message has an id. In this process a message is known by its object; in the store, and to other processes,
by its id. So a message is saved once however often its list is looked at, and rows that are read twice (once from the
store, once from the queue of writes that are not sent yet) are one message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from scrubjay.adapters._messages import Message, snapshot
from scrubjay.adapters._sessions import Session, is_on_event_loop
from scrubjay.conversations import IDS, MESSAGES, SPEAKERS, new_id
from scrubjay.transaction import Transaction


class Row(NamedTuple):
    """A saved message."""

    id: str
    message: Message
    speaker: str = ""


class Replay:
    """Messages that a framework is about to hand over again, one by one, and that are saved already."""

    __slots__ = ("_leaves_out_own", "_messages", "_next")

    def __init__(self, messages: Sequence[Message], *, leaves_out_own: bool = False) -> None:
        self._messages = messages
        self._next = 0
        self._leaves_out_own = leaves_out_own
        """Whether the framework may leave out the agent's own messages; AutoGen 0.2.35 does."""

    def take(self, view: list[Message]) -> int | None:
        """The index of the last message of the view among the replayed ones; None if it is another message.

        Own messages that were left out are put back into the view before it.
        """
        for i in range(self._next, len(self._messages)):
            if self._messages[i] == view[-1]:
                view[-1:-1] = self._messages[self._next : i]
                self._next = i + 1
                return i
            if not (self._leaves_out_own and self._messages[i].get("role") == "assistant"):
                break
        return None

    @property
    def left(self) -> Sequence[Message]:
        """The messages that have not come again so far."""
        return self._messages[self._next :]

    @property
    def is_over(self) -> bool:
        return self._next == len(self._messages)


class SavedMessages:
    """The record of a conversation between two agents: a list of objects with `id` and `message`."""

    __slots__ = ("_hidden", "_known", "_replay", "_session", "is_complete", "key", "rows")

    def __init__(self, session: Session, key: str, *, is_hidden: bool = False) -> None:
        self._session = session
        self.key = key
        self.rows: list[Row] = []
        """In the order of the store."""
        self._known: dict[int, Row] = {}
        """By the identity of the message object, which its row keeps alive."""
        self._hidden: set[str] = set()
        """Ids of messages that were cleared from the framework's list, in this process only."""
        self._replay: Replay | None = None
        self.is_complete = False
        """Whether the stored messages could be read."""
        self._load()
        if is_hidden:
            self.hide()

    def __deepcopy__(self, memo: dict[int, Any]) -> SavedMessages:
        copied: SavedMessages = self.__class__.__new__(self.__class__)
        memo[id(self)] = copied
        for name in _slots(self.__class__):
            if name != "_known":
                setattr(copied, name, deepcopy(getattr(self, name), memo))
        copied._known = {id(row.message): row for row in copied.rows}
        return copied

    @property
    def visible(self) -> list[Message]:
        """The messages that the framework's list starts with."""
        return [row.message for row in self.rows if row.id not in self._hidden]

    def hide(self) -> None:
        """Leave the saved messages out of the framework's list from now on; they stay stored."""
        self._hidden |= {row.id for row in self.rows}

    def replay(self, *, leaves_out_own: bool = False) -> None:
        """Expect the framework to hand over the saved messages again."""
        messages = [row.message for row in self.rows]
        self._replay = Replay(messages, leaves_out_own=leaves_out_own) if messages else None
        self._hidden.clear()

    def sync(self, t: Transaction, view: list[Message], speaker: str = "") -> list[Row]:
        """Save the messages at the end of the framework's list that are not saved yet, and return their rows."""
        if not is_on_event_loop():
            self.catch_up(view)
        if self._replay is not None:
            if self._take_replayed(view):
                return []
            self._cut_to_replayed(t)
        start = len(view)
        while start and id(view[start - 1]) not in self._known:
            start -= 1
        rows = [self._add(t, message) for message in view[start:-1]]
        return [*rows, self._add(t, view[-1], speaker)] if start < len(view) else rows

    def _take_replayed(self, view: list[Message]) -> bool:
        assert self._replay is not None  # noqa: S101
        index = self._replay.take(view)
        if index is None:
            return False
        self._put(index, self.rows[index]._replace(message=view[-1]))
        if self._replay.is_over:
            self._replay = None
        return True

    def _cut_to_replayed(self, t: Transaction) -> None:
        """The user resumed from an earlier message: the messages after it are replaced by what follows now."""
        assert self._replay is not None  # noqa: S101
        left = {id(message) for message in self._replay.left}
        self.replace(t, [row.message for row in self.rows if id(row.message) not in left])

    def replace(self, t: Transaction, messages: Iterable[Message]) -> None:
        """Store only these messages, which are saved already."""
        self.rows = [self._known[id(message)] for message in messages if id(message) in self._known]
        self._known = {id(row.message): row for row in self.rows}
        self._hidden.clear()
        self._replay = None
        self._store_all(t)

    def _add(self, t: Transaction, message: Message, speaker: str = "") -> Row:
        row = Row(new_id(), message, speaker or str(message.get("name", "")))
        self.rows.append(row)
        self._known[id(message)] = row
        self._store(t, row)
        return row

    def _put(self, index: int, row: Row) -> None:
        self.rows[index] = row
        self._known[id(row.message)] = row

    # ------------------------------------------------------------ reading

    def catch_up(self, view: list[Message]) -> int:
        """Put messages before the framework's if they could not be read at first; returns how many."""
        return 0 if self.is_complete else self.refresh(view)

    def refresh(self, view: list[Message]) -> int:
        """Read the record again and put messages of other processes into the framework's list; returns how many."""
        before = {row.id for row in self.rows}
        unsaved = [message for message in view if id(message) not in self._known]
        cleared = self._hidden | (
            before - {self._known[id(message)].id for message in view if id(message) in self._known}
        )
        if not self._load():
            return 0
        self._hidden = cleared
        added = len(self.rows) - len(before)
        if added:
            view[:] = [*self.visible, *unsaved]
        return added

    def _load(self) -> bool:
        """Read the record; False if the memory cannot be read. Rows that are known keep their message objects."""
        stored = self._read()
        if stored is None:
            return False
        known = {row.id: row for row in self.rows}
        rows = {row.id: known.get(row.id, row) for row in stored}
        self.rows = list((rows | known).values())
        self._known = {id(row.message): row for row in self.rows}
        self.is_complete = True
        return True

    # ------------------------------------------------------------ the form in which it is stored

    def _read(self) -> list[Row] | None:
        found = self._session.get_many(self.key)
        if found is None:
            return None
        stored = self._session.items_of(self.key, found.get(self.key), dict)
        return [
            Row(row["id"], row["message"])
            for row in stored
            if isinstance(row.get("id"), str) and isinstance(row.get("message"), dict)
        ]

    def _store(self, t: Transaction, row: Row) -> None:
        t.append(self._session.key(self.key), {"id": row.id, "message": snapshot(row.message)})

    def _store_all(self, t: Transaction) -> None:
        key = self._session.key(self.key)
        t.set(key, [{"id": row.id, "message": snapshot(row.message)} for row in self.rows] or None)


class GroupMessages(SavedMessages):
    """The record of a group chat: messages, speakers and ids as three lists, the first two of which people read."""

    __slots__ = ()

    @property
    def speakers(self) -> list[str]:
        return [row.speaker for row in self.rows]

    def _read(self) -> list[Row] | None:
        found = self._session.get_many(MESSAGES, MESSAGES + IDS, SPEAKERS)
        if found is None:
            return None
        messages = self._session.items_of(MESSAGES, found.get(MESSAGES), dict)
        ids = self._session.items_of(MESSAGES + IDS, found.get(MESSAGES + IDS), str)
        speakers = self._session.items_of(SPEAKERS, found.get(SPEAKERS), str)
        return [
            Row(_item(ids, i, f"line {i}"), message, _item(speakers, i, str(message.get("name", ""))))
            for i, message in enumerate(messages)
        ]

    def _store(self, t: Transaction, row: Row) -> None:
        for key, item in ((MESSAGES, snapshot(row.message)), (MESSAGES + IDS, row.id), (SPEAKERS, row.speaker)):
            t.append(self._session.key(key), item)

    def _store_all(self, t: Transaction) -> None:
        lists: dict[str, Callable[[Row], Any]] = {
            MESSAGES: lambda row: snapshot(row.message),
            MESSAGES + IDS: lambda row: row.id,
            SPEAKERS: lambda row: row.speaker,
        }
        for key, field in lists.items():
            t.set(self._session.key(key), [field(row) for row in self.rows] or None)


def _item(items: list[str], index: int, default: str) -> str:
    return items[index] if index < len(items) else default


def _slots(kind: type) -> list[str]:
    return [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
