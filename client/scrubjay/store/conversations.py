"""Conversations: lists of messages, read from their end, and the erasure of a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from scrubjay.conversations import (
    DEFAULT,
    HISTORY,
    IDS,
    LEARNED,
    MARK,
    MESSAGES,
    SPEAKERS,
    STATE,
    WITH,
    is_message,
    matches,
    may_be_conversation,
    quote_session,
    split_key,
    to_message,
    with_tool_names,
)
from scrubjay.errors import Conflict, InvalidInput, repr_short
from scrubjay.exact_json import decode, encode
from scrubjay.models import Conversation, Message, to_time
from scrubjay.store.encryption import item_associated_data
from scrubjay.store.expiry import is_expired, remove_item
from scrubjay.store.items import clear_below
from scrubjay.store.note_rows import erase_note, hash_label
from scrubjay.store.operation import ERASE, SNAPSHOT, Context, SlowQuery, Statements, operation
from scrubjay.store.usage import NamespaceUsage, open_namespace
from scrubjay.validation import MAX_MESSAGES_PAGE

LISTS_PER_QUERY = 1000
"""Lists that are looked at in one query for conversations."""
RECENT = 10
"""Messages at the end of a conversation from which its participants and its preview are taken."""
PREVIEW_CHARS = 200
SEARCH_ROWS = 500
"""Messages that a search reads at a time, so that a long conversation is never in memory at once."""

_OTHER_LIST = {HISTORY: MESSAGES, MESSAGES: HISTORY}
"""The lists of a session that may have the same messages: those of a group chat, and the lines of its members."""
_END = 2**62
"""A position after every message."""


class Cursor(NamedTuple):
    """The last conversation of a page: when it changed, which orders them, and its key."""

    updated_at: int
    key: str

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """From its text; an empty one is the start.

        :raises InvalidInput: if the text is not a cursor.
        """
        at, _, key = text.partition(" ")
        if not text:
            return cls(_END, "")
        if not (at.isascii() and at.isdecimal() and len(at) < 19 and key):
            raise InvalidInput(f"after is the cursor of an earlier page of conversations, not {repr_short(text)}")
        return cls(int(at), key)

    def __str__(self) -> str:
        return f"{self.updated_at} {self.key}"


@operation("conversations", SNAPSHOT)
def list_conversations(
    context: Context, namespace: str, session: str | None = None, after: str = "", limit: int = MAX_MESSAGES_PAGE
) -> Statements[tuple[list[Conversation], str | None]]:
    """The conversations of a namespace, or of one session, the latest first, and the cursor of the next page.

    The cursor is None if there are no more.
    """
    cursor = Cursor.parse(after)
    found: list[Conversation] = []
    while True:
        at = (namespace, context.now, cursor.updated_at, cursor.updated_at, cursor.key, LISTS_PER_QUERY)
        rows = yield SlowQuery("list_lists", at)
        for key, updated_at in rows:
            if len(found) == limit:
                return found, str(cursor)
            cursor = Cursor(updated_at, key)
            if may_be_conversation(key) and session in (None, split_key(key)[0]):
                conversation = yield from _summarize(context, namespace, cursor)
                if conversation and not (yield from _is_in_other_list(context, namespace, key)):
                    found.append(conversation)
        if len(rows) < LISTS_PER_QUERY:
            return found, None


@operation("conversation", SNAPSHOT)
def read_conversation(
    context: Context,
    namespace: str,
    key: str,
    limit: int = MAX_MESSAGES_PAGE,
    before: int | None = None,
    after: int | None = None,
    search: str | None = None,
) -> Statements[list[Message]]:
    """Messages of a conversation, oldest first: the last ones, those before a position, or those after one.

    With `search`, those that contain a text in whatever case.
    """
    stored = yield from _open_list(context, namespace, key)
    if stored is None:
        return []
    size = SEARCH_ROWS if search else limit
    has_speakers = bool(search) and bool((yield from _speakers_of(context, stored)))
    start, end = -1 if after is None else after, _END if before is None else before
    found: list[Message] = []
    while True:
        rows = yield from _read_rows(context, stored, start, end, size, is_forward=after is not None)
        page = (yield from _to_messages(context, stored, rows)) if has_speakers or _may_match(rows, search) else []
        matching = [message for message in page if matches(message, search)]
        found = found + matching if after is not None else matching + found
        if len(rows) < size or len(found) >= limit:
            return found[:limit] if after is not None else found[-limit:]
        if after is not None:
            start = rows[-1][0]
        else:
            end = rows[0][0]


@operation("forget_session", ERASE)
def forget_session(context: Context, namespace: str, session: str) -> Statements[tuple[int, NamespaceUsage]]:
    """Erase the items and notes of a session; how many there were that users know of, so without lists of ids."""
    usage = yield from open_namespace(context, namespace)
    prefixes, keys = yield from _keys_of(context, namespace, session)
    erased: list[str] = []
    for key in keys:
        for version, size, length, *_ in (yield "find_item", (namespace, key)):
            yield from remove_item(usage, key, version, size, length, verb="delete")
            erased.append(key)
    for prefix in prefixes:
        erased += yield from clear_below(usage, context.now, prefix)
    count = sum(not (key.endswith(IDS) or split_key(key)[1].startswith(LEARNED)) for key in erased)
    label = hash_label(context.cipher, session)
    for expires_at, *columns in (yield SlowQuery("find_session_notes", (namespace, label))):
        yield from erase_note(usage, columns, "forget")
        count += not is_expired(expires_at, context.now)
    yield from usage.save()
    return count, usage


# ------------------------------------------------------------ parts


class _List(NamedTuple):
    """A list that is opened for reading."""

    namespace: str
    key: str
    length: int
    items: Sequence[Any] | None
    """Its items, if it is stored as one value; None if each is a row."""


def _open_list(context: Context, namespace: str, key: str) -> Statements[_List | None]:
    """The list under a key; None if the key does not exist. Raises Conflict if the value is not a list."""
    rows = yield "find_item", (namespace, key)
    if not rows or is_expired(rows[0][3], context.now):
        return None
    length = rows[0][2]
    if length is not None:
        return _List(namespace, key, length, None)
    ((stored, _),) = yield SlowQuery("read_value", (namespace, key))
    items = decode(context.cipher.decrypt(stored, item_associated_data(namespace, key)))
    if not isinstance(items, list):
        raise Conflict(f"the value of {key!r} is not a list, so it is not a conversation; use another key")
    return _List(namespace, key, len(items), items)


def _read_rows(
    context: Context, opened: _List, start: int, end: int, count: int, *, is_forward: bool = False
) -> Statements[list[tuple[int, str]]]:
    """The JSON text and position of up to `count` items between two positions: the last, or the first of them."""
    if opened.items is not None:
        inside = list(enumerate(opened.items))[max(start + 1, 0) : max(end, 0)]
        chosen = inside[:count] if is_forward else inside[-count:]
        return [(position, encode(item)) for position, item in chosen]
    at = (opened.namespace, opened.key, start, end, count)
    if is_forward:
        rows = yield SlowQuery("read_first_rows", at)
    else:
        rows = (yield SlowQuery("read_last_rows", at))[::-1]
    associated = item_associated_data(opened.namespace, opened.key)
    texts = context.cipher.decrypt_all([text for _, text in rows], associated)
    return [(position, text) for (position, _), text in zip(rows, texts, strict=True)]


def _may_match(rows: Sequence[tuple[int, str]], search: str | None) -> bool:
    """False if no message of these rows contains the text, which is seen sooner than in the messages themselves.

    Quotes and brackets are in other places in the JSON text than in a message.
    """
    if not search or set(search) & set('"\\{}[],:'):
        return True
    wanted = encode(search)[1:-1].casefold()
    return any(wanted in text.casefold() for _, text in rows)


def _to_messages(context: Context, opened: _List, rows: Sequence[tuple[int, str]]) -> Statements[list[Message]]:
    if not rows:
        return []
    id_list = yield from _open_any(context, opened.namespace, opened.key + IDS)
    speakers = yield from _speakers_of(context, opened)
    ids = yield from _read_beside(context, opened, id_list, rows)
    senders = yield from _read_beside(context, opened, speakers, rows)
    found = [
        to_message(decode(text), position, id=ids.get(position, ""), sender=senders.get(position, ""))
        for position, text in rows
    ]
    return with_tool_names([message for message in found if message is not None])


def _speakers_of(context: Context, opened: _List) -> Statements[_List | None]:
    """The list of speakers beside the messages of a group chat."""
    name = split_key(opened.key)[1]
    if name != MESSAGES:
        return None
    return (yield from _open_any(context, opened.namespace, opened.key.removesuffix(name) + SPEAKERS))


def _read_beside(
    context: Context, opened: _List, other: _List | None, rows: Sequence[tuple[int, str]]
) -> Statements[dict[int, str]]:
    """What a list beside this one has for each position. Both end with the same message."""
    if other is None:
        return {}
    shift = (yield from _last_position(other)) - (yield from _last_position(opened))
    first, last = rows[0][0] + shift, rows[-1][0] + shift
    found = yield from _read_rows(context, other, first - 1, last + 1, last - first + 1)
    values = {position - shift: decode(text) for position, text in found}
    return {position: value for position, value in values.items() if isinstance(value, str)}


def _last_position(opened: _List) -> Statements[int]:
    """The position of the last item. What was taken from the start of a list has left its positions behind."""
    if opened.items is not None:
        return len(opened.items) - 1
    ((position,),) = yield "find_last_position", (opened.namespace, opened.key)
    return int(position)


def _summarize(context: Context, namespace: str, at: Cursor) -> Statements[Conversation | None]:
    """A list as a conversation; None if its last item is not a message."""
    opened = yield from _open_any(context, namespace, at.key)
    rows = (yield from _read_rows(context, opened, -1, _END, RECENT)) if opened else []
    if not opened or not rows or not is_message(decode(rows[-1][1])):
        return None
    recent = yield from _to_messages(context, opened, rows)
    texts = [" ".join(message.message.split()) for message in recent]
    speakers = {(each.role != "user", each.sender) for each in recent if each.sender and each.role != "tool"}
    return Conversation(
        session=split_key(at.key)[0],
        key=at.key,
        messages=opened.length,
        updated_at=to_time(at.updated_at),
        participants=tuple(dict.fromkeys(sender for _, sender in sorted(speakers))),  # users first, and always alike
        preview=next((text for text in reversed(texts) if text), "")[:PREVIEW_CHARS],
    )


def _is_in_other_list(context: Context, namespace: str, key: str) -> Statements[bool]:
    """Whether the messages of a group chat are also lines of its members, or these are the messages of the chat.

    The list that has fewer is left out; of two that have as many, the messages of the chat.
    """
    name = split_key(key)[1]
    other = _OTHER_LIST.get(name)
    other_key = f"{key.removesuffix(name)}{other}"
    opened = (yield from _open_any(context, namespace, other_key)) if other else None
    own = (yield from _open_any(context, namespace, key)) if opened else None
    if not other or not opened or not own or (opened.length, other == HISTORY) < (own.length, name == HISTORY):
        return False
    last = yield from _last_id(context, namespace, key)
    return last is not None and last == (yield from _last_id(context, namespace, other_key))


def _last_id(context: Context, namespace: str, key: str) -> Statements[str | None]:
    """The id of the last item of a list, as JSON text; None if the list has no ids beside it."""
    ids = yield from _open_any(context, namespace, key + IDS)
    rows = (yield from _read_rows(context, ids, -1, _END, 1)) if ids else []
    return rows[0][1] if rows else None


def _open_any(context: Context, namespace: str, key: str) -> Statements[_List | None]:
    try:
        return (yield from _open_list(context, namespace, key))
    except Conflict:
        return None


def _keys_of(context: Context, namespace: str, session: str) -> Statements[tuple[list[str], list[str]]]:
    """The prefixes of a session's keys, and its keys without: a conversation of its name, and those of "default"."""
    prefixes = [f"{MARK}{quote_session(session)}:"]
    keys = []
    if session == DEFAULT:
        prefixes += [WITH, STATE]
        keys = [key for name in (HISTORY, MESSAGES, SPEAKERS) for key in _with_companions(name)]
    if may_be_conversation(session) and (yield from _summarize(context, namespace, Cursor(0, session))):
        keys += _with_companions(session)
    return prefixes, keys


def _with_companions(key: str) -> list[str]:
    """The key of a list, with those of its ids and of what was learned from it."""
    return [key, key + IDS, LEARNED + key]
