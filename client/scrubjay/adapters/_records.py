"""Records: the stored messages of one conversation, and which of the framework's messages they are.

Every saved message has an id. In this process a message is known by its object; in the store, and to other processes,
by its id. So a message is saved once however often its list is looked at, and rows that are read twice (once from the
store, once from the queue of writes that are not sent yet) are one message.

A long conversation is read from its end: first what a prompt needs, the rest when it is asked for. Each append returns
the length of the list, which tells without another request whether other processes have written to it or erased it.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy, deepcopy
from enum import Enum
from typing import Any, NamedTuple

from scrubjay.adapters._messages import Message, count_tokens_of, snapshot
from scrubjay.adapters._sessions import Session, Writes, is_on_event_loop
from scrubjay.conversations import IDS, MESSAGES, SPEAKERS
from scrubjay.fork_safety import ForkSafe

FIRST_MESSAGES = 200
"""Messages that are read at first, from the end of a conversation: enough for many prompts, and about 50 KB."""
PAGE_MESSAGES = 8000
"""Messages in one request for the rest of a conversation: about 1.6 MB, which a server has ready in 0.2 s."""

log = logging.getLogger("scrubjay")


class _Ids(ForkSafe):
    """Makes ids that tell whether this process has made them; a forked child is another process."""

    def __init__(self) -> None:
        self.reset()
        self.register_at_fork()

    def reset(self) -> None:
        self._process = os.urandom(3).hex()
        self._numbers = itertools.count(int.from_bytes(os.urandom(3)))

    def new(self) -> str:
        """An id in the form of `conversations.new_id`, with the process and a number in place of what is random."""
        return f"{time.time_ns() // 1_000_000:012x}-{self._process}{next(self._numbers) & 0xFFFFFF:06x}"

    def is_own(self, id_: str) -> bool:
        return id_[13:19] == self._process


_ids = _Ids()
new_id = _ids.new


class Elsewhere(Enum):
    """What another process has done to a conversation, as the length of its list tells."""

    NOTHING = "nothing"
    ADDED = "added messages"
    ERASED = "erased messages"


class Row(NamedTuple):
    """A saved message."""

    id: str
    message: Message
    speaker: str = ""
    saved: Any = None
    """The message as it was just saved, in a row that `sync` returns; None in all others."""


class Stored(NamedTuple):
    """Rows as they were read from the end of a list."""

    rows: list[Row]
    length: int | None
    """How many items were read, if these are all of the list or of a page; None if there may be more before these."""


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

    __slots__ = ("_has_unread", "_hidden", "_hides_unread", "_known", "_length", "_replay", "_session", "elsewhere",
                 "is_complete", "key", "rows")  # fmt: skip

    def __init__(self, session: Session, key: str, *, is_hidden: bool = False, is_whole: bool = False) -> None:
        """Reads the end of the conversation, or all of it if `is_whole`."""
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
        """Whether the stored messages could be read, from the end at least."""
        self._has_unread = self._hides_unread = False
        """Whether there are messages before the first row that have not been read, and whether they stay hidden."""
        self._length: int | None = None
        """How many items the stored list has if no other process writes to it; None if that is not known."""
        self.elsewhere = Elsewhere.NOTHING
        """What another process has done that the framework's list does not show yet."""
        if not self._load(None if is_whole else FIRST_MESSAGES):
            self._load_queued()
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

    def __str__(self) -> str:
        return f"{self._session.key(self.key)!r} of {self._session.memory!r}"

    @property
    def visible(self) -> list[Message]:
        """The messages that the framework's list starts with."""
        return [row.message for row in self.rows if row.id not in self._hidden]

    def hide(self) -> None:
        """Leave the saved messages out of the framework's list from now on; they stay stored."""
        self._hidden |= {row.id for row in self.rows}
        self._hides_unread = self._has_unread or not self.is_complete

    @property
    def has_earlier(self) -> bool:
        """Whether the framework's list lacks messages at its start that have not been read yet."""
        return self._has_unread and not self._hides_unread

    def replay(self, *, leaves_out_own: bool = False) -> None:
        """Expect the framework to hand over the saved messages again."""
        if self._has_unread:
            self._put_before(None, self._read_from_start())
        messages = [row.message for row in self.rows]
        self._replay = Replay(messages, leaves_out_own=leaves_out_own) if messages else None
        self._hidden.clear()
        self._hides_unread = False

    def sync(self, t: Writes, view: list[Message], speaker: str = "") -> list[Row]:
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

    def _cut_to_replayed(self, t: Writes) -> None:
        """The user resumed from an earlier message: the messages after it are replaced by what follows now."""
        assert self._replay is not None  # noqa: S101
        left = {id(message) for message in self._replay.left}
        self.replace(t, [row.message for row in self.rows if id(row.message) not in left])

    def replace(self, t: Writes, messages: Iterable[Message]) -> None:
        """Store only these messages, which are saved already."""
        self.rows = [self._known[id(message)] for message in messages if id(message) in self._known]
        self._known = {id(row.message): row for row in self.rows}
        self._hidden.clear()
        self._replay = None
        self._has_unread = self._hides_unread = False
        self._store_all(t)
        self._length = len(self.rows)

    def _add(self, t: Writes, message: Message, speaker: str = "") -> Row:
        row = Row(new_id(), message, speaker or str(message.get("name", "")))
        self.rows.append(row)
        self._known[id(message)] = row
        saved = snapshot(message, self)
        self._store(t, row, saved)
        return row._replace(saved=saved)

    def _put(self, index: int, row: Row) -> None:
        self.rows[index] = row
        self._known[id(row.message)] = row

    # ------------------------------------------------------------ reading

    def catch_up(self, view: list[Message]) -> int:
        """Put messages before the framework's if they could not be read at first; returns how many."""
        return 0 if self.is_complete else self._update(view, lambda: self._load(FIRST_MESSAGES))

    def refresh(self, view: list[Message]) -> int:
        """Read the record again and put messages of other processes into the framework's list; returns how many.

        What other processes have erased is dropped.
        """
        return self._update(view, self._reload)

    def notice(self, view: list[Message]) -> int:
        """Do to the framework's list what another process has done to the conversation; returns how many were added."""
        if self.elsewhere is Elsewhere.NOTHING or not self._session.is_saved:  # then a row may still be under way
            return 0
        found, self.elsewhere = self.elsewhere, Elsewhere.NOTHING
        return self._update(view, self._reload if found is Elsewhere.ERASED else self._read_added)

    def read_earlier(self, view: list[Message] | None = None) -> int:
        """Read all messages that have not been read so far, and put them before the others; returns how many."""
        if not self.has_earlier:
            return 0
        return self._put_before(view, self._read_from_start())

    def read_last(self, view: list[Message], max_messages: int | None, max_tokens: int | None) -> int:
        """Read as many messages from the end as fill these limits; returns how many were put before the others."""
        added = 0
        while self.has_earlier and (missing := _missing(self.visible, max_messages, max_tokens)):
            found = self._read_last(len(self.rows) + missing)
            if found is None:
                break
            earlier = self._rows_before_known(found.rows)
            if len(earlier) == len(found.rows):  # erased meanwhile
                break
            added += self._put_before(view, earlier, has_earlier=found.length is None and bool(earlier))
        return added

    def _put_before(self, view: list[Message] | None, earlier: list[Row] | None, *, has_earlier: bool = False) -> int:
        if earlier is None:
            return 0
        first = next(iter(self.visible), None)
        self.rows[:0] = earlier
        self._known |= {id(row.message): row for row in earlier}
        self._has_unread = has_earlier
        if view is not None:  # in front of what follows it; a framework may have put a message before that
            at = next((i for i, message in enumerate(view) if message is first), 0)
            view[at:at] = [row.message for row in earlier]
        return len(earlier)

    def _read_from_start(self) -> list[Row] | None:
        """The rows before the first known one; None if the memory cannot be read."""
        earlier: list[Row] = []
        for page in self._pages():
            if page is None:
                return None
            new = self._rows_before_known(page.rows)
            earlier += new
            if len(new) < len(page.rows):
                break
        return earlier

    def _pages(self) -> Iterator[Stored | None]:
        """The pages of the record from its start, with the number of items in each; None if one cannot be read."""
        for start in itertools.count(0, PAGE_MESSAGES):
            page = self._read_page(start, start + PAGE_MESSAGES)
            yield page
            if page is None or page.length != PAGE_MESSAGES:
                break

    def _rows_before_known(self, rows: list[Row]) -> list[Row]:
        known = {row.id for row in self.rows}
        return list(itertools.takewhile(lambda row: row.id not in known, rows))

    def _update(self, view: list[Message], read: Callable[[], bool]) -> int:
        """Read rows, and give the framework's list those that it has not had; what was cleared from it stays out."""
        before = {row.id for row in self.rows}
        unsaved = [message for message in view if id(message) not in self._known]
        cleared = self._hidden | (
            before - {self._known[id(message)].id for message in view if id(message) in self._known}
        )
        if not read():
            return 0
        now = {row.id for row in self.rows}
        self._hidden |= cleared & now
        if now != before:
            view[:] = [*self.visible, *unsaved]
        return len(now - before)

    def _load(self, count: int | None) -> bool:
        """Read so many messages from the end, or all; False if the memory cannot be read."""
        stored = self._read_last(count)
        return stored is not None and self._merge(stored)

    def _load_queued(self) -> None:
        """Start with the messages that are queued on this machine, or with none if those cannot be read either."""
        queued = copy(self)
        queued._session = self._session.queued()
        queued._load(FIRST_MESSAGES)
        self.rows, self._known = queued.rows, queued._known

    def _reload(self) -> bool:
        """Read all of the record again, and drop rows that are no longer stored."""
        stored = self._read_last(None)
        if stored is None:
            return False
        if self._session.is_saved:  # else a row may be missing because it is still under way
            self._keep({row.id for row in stored.rows})
        return self._merge(stored)

    def _keep(self, stored: set[str]) -> None:
        """Drop rows that are no longer stored."""
        dropped = len(self.rows)
        self.rows = [row for row in self.rows if row.id in stored]
        dropped -= len(self.rows)
        if dropped:
            log.warning(
                "%r: %d messages of %r were erased by another process; this one goes on without them",
                self._session.memory, dropped, self._session.key(self.key),
            )  # fmt: skip

    def _read_added(self) -> bool:
        """Read what other processes have added at the end; what another agent of this process has added stays out.

        Two objects of one name that talk at the same time are kept apart in this process, until `refresh`.
        """
        known = {row.id for row in self.rows}
        count = 50
        while True:
            stored = self._read_last(count)
            if stored is None:
                return False
            if stored.length is not None or any(row.id in known for row in stored.rows[:1]):
                break
            count *= 8
        first = next((i for i, row in enumerate(stored.rows) if row.id in known), 0)
        unread = {row.id for row in stored.rows[:first]} if self._has_unread else set()
        rows = [row for row in stored.rows if row.id in known or row.id in unread or not _ids.is_own(row.id)]
        return self._merge(stored._replace(rows=rows))

    def _merge(self, stored: Stored) -> bool:
        """Put the rows of the store in their order; those that are known keep their message objects."""
        known = {row.id: row for row in self.rows}
        found = {row.id: known.get(row.id, row) for row in stored.rows}
        start = next((i for i, row in enumerate(self.rows) if row.id in found), 0)
        is_all = stored.length is not None
        before = [] if is_all else self.rows[:start]
        after = [row for row in self.rows[len(before) :] if row.id not in found]
        if self._hides_unread and known:
            self._hidden |= set(itertools.takewhile(lambda id_: id_ not in known, found))
        self._has_unread = not is_all and (self._has_unread or not self.is_complete)
        self.rows = [*before, *found.values(), *after]
        self._known = {id(row.message): row for row in self.rows}
        self._length = stored.length if is_all else self._length
        self.is_complete = True
        return True

    def _saved(self, length: int | None) -> None:
        """Called after each append with the length of the list, or None if the append is queued."""
        expected = None if self._length is None else self._length + 1
        self._length = expected if length is None else length
        if length is not None and expected not in (None, length):
            is_erased = length < (expected or 0) or self.elsewhere is Elsewhere.ERASED
            self.elsewhere = Elsewhere.ERASED if is_erased else Elsewhere.ADDED

    # ------------------------------------------------------------ the form in which it is stored

    def _read_last(self, count: int | None) -> Stored | None:
        """The last rows, or all; None if the memory cannot be read."""
        if count is None:
            return self._read_all()
        items = self._session.tail(self.key, count)
        return None if items is None else Stored(_to_rows(items), len(items) if len(items) < count else None)

    def _read_all(self) -> Stored | None:
        pages = [page for page in self._pages() if page is not None]
        if not pages or pages[-1].length == PAGE_MESSAGES:  # then the next one could not be read
            return None
        return Stored([row for page in pages for row in page.rows], sum(page.length or 0 for page in pages))

    def _read_page(self, start: int, stop: int) -> Stored | None:
        """The rows between two positions; None if the memory cannot be read."""
        items = self._session.slice(self.key, start, stop)
        return None if items is None else Stored(_to_rows(items), len(items))

    def _store(self, t: Writes, row: Row, saved: Any) -> None:
        t.append_counted(self._session.key(self.key), {"id": row.id, "message": saved}, self._saved)

    def _store_all(self, t: Writes) -> None:
        key = self._session.key(self.key)
        t.set(key, [{"id": row.id, "message": snapshot(row.message, self)} for row in self.rows] or None)


class GroupMessages(SavedMessages):
    """The record of a group chat: messages, speakers and ids as three lists, the first two of which people read."""

    __slots__ = ("_first_length",)

    def __init__(self, session: Session, key: str, first_length: int | None = None) -> None:
        """`first_length` is how many messages there are, if that is known already."""
        self._first_length = first_length
        super().__init__(session, key)

    @property
    def speakers(self) -> list[str]:
        """The speakers of the messages that have been read."""
        return [row.speaker for row in self.rows]

    def _read_last(self, count: int | None) -> Stored | None:
        length, self._first_length = self._first_length, None
        if count is not None and length is None:
            length = self._session.length(MESSAGES)
            if length is None:
                return None
        if count is None or length is None or length <= count:
            return self._read_all()
        page = self._read_page(length - count, None)
        if page is not None and not page.rows:  # a program that knows no ids has written the messages
            return self._read_all()
        return None if page is None else Stored(page.rows, None)

    def _read_page(self, start: int, stop: int | None) -> Stored | None:
        """Three lists, read one after the other: items are added to all at once, so the shortest has what all have."""
        ids = self._session.slice(MESSAGES + IDS, start, stop, str)
        speakers = None if ids is None else self._session.slice(SPEAKERS, start, stop, str)
        messages = None if speakers is None else self._session.slice(MESSAGES, start, stop)
        if ids is None or speakers is None or messages is None:
            return None
        rows = [Row(*row) for row in zip(ids, messages, speakers, strict=False)]
        return Stored([row for row in rows if isinstance(row.message, dict)], len(rows))

    def _read_all(self) -> Stored | None:
        """All rows, at one moment."""
        found = self._session.get_many(MESSAGES, MESSAGES + IDS, SPEAKERS)
        if found is None:
            return None
        messages = self._session.items_of(MESSAGES, found.get(MESSAGES), dict)
        ids = self._session.items_of(MESSAGES + IDS, found.get(MESSAGES + IDS), str)
        speakers = self._session.items_of(SPEAKERS, found.get(SPEAKERS), str)
        rows = [
            Row(_item(ids, i, f"line {i}"), message, _item(speakers, i, str(message.get("name", ""))))
            for i, message in enumerate(messages)
        ]
        return Stored(rows, len(rows))

    def _store(self, t: Writes, row: Row, saved: Any) -> None:
        t.append_counted(self._session.key(MESSAGES), saved, self._saved)
        t.append(self._session.key(MESSAGES + IDS), row.id)
        t.append(self._session.key(SPEAKERS), row.speaker)

    def _store_all(self, t: Writes) -> None:
        lists: dict[str, Callable[[Row], Any]] = {
            MESSAGES: lambda row: snapshot(row.message, self),
            MESSAGES + IDS: lambda row: row.id,
            SPEAKERS: lambda row: row.speaker,
        }
        for key, field in lists.items():
            t.set(self._session.key(key), [field(row) for row in self.rows] or None)


def _to_rows(items: Sequence[Any]) -> list[Row]:
    return [
        Row(item["id"], item["message"])
        for item in items
        if isinstance(item, dict) and isinstance(item.get("id"), str) and isinstance(item.get("message"), dict)
    ]


def _missing(messages: Sequence[Message], max_messages: int | None, max_tokens: int | None) -> int:
    """How many more messages it takes, by estimate, to fill these limits; 0 if they are filled."""
    counts = []
    if max_messages is not None:
        # With one more exchange, of which a model is sent all or nothing.
        counts.append(max_messages + FIRST_MESSAGES // 2 - len(messages))
    if max_tokens is not None:
        tokens = sum(map(count_tokens_of, messages))
        left = max_tokens - tokens
        counts.append(FIRST_MESSAGES + left * len(messages) // max(tokens, 1) if left >= 0 else 0)
    return max(min(counts, default=0), 0)


def _item(items: list[str], index: int, default: str) -> str:
    return items[index] if index < len(items) else default


def _slots(kind: type) -> list[str]:
    return [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
