"""Memory: the user's verbs on one namespace."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from os import PathLike
from types import TracebackType
from typing import Any, Self

from scrubjay import commands
from scrubjay.calls import (
    append_call,
    clear_call,
    delete_call,
    forget_call,
    forget_session_call,
    incr_call,
    merge_call,
    pop_call,
    remember_call,
    set_call,
    touch_call,
    update_call,
)
from scrubjay.commands import MISSING, Command, Verb
from scrubjay.errors import Conflict, InvalidInput, NotFound, Unavailable, repr_short
from scrubjay.exact_json import check_read
from scrubjay.executor import Executor
from scrubjay.filters import encode_filter
from scrubjay.models import Change, Conversation, Item, Learned, Match, Message, Note, Pending, Usage
from scrubjay.opening import open_executor, resolve_arguments
from scrubjay.recall.prompt import CONTEXT_THRESHOLD, format_prompt
from scrubjay.settings import Settings
from scrubjay.transaction import Transaction
from scrubjay.validation import (
    MAX_COUNT,
    MAX_MESSAGES_PAGE,
    MAX_NOTES_PAGE,
    MAX_PAGE,
    MAX_RECALL,
    RecallQuery,
    check_count,
    check_key,
    check_label,
    check_namespace,
    check_one_end,
    check_prefix,
    check_query,
    check_seconds,
    check_switch,
    check_tags,
)
from scrubjay.watch import Watch


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Any = _Unchanged()
"""The default of a limit that `set_quota` leaves as it is; None is the default of the server."""


class Memory:
    """Persistent values, lists and notes of one namespace.

        memory = Memory("my-agent")
        memory.set("user", {"name": "Sarah"})
        memory.get("user")

    Without `url` (or SCRUBJAY_URL) the namespace is in a file of this user's: no server, no key, no configuration.
    With it, the same calls go to a Scrubjay server. Safe to share between threads, and to use after a fork.

    `memory[key]`, `memory[key] = value`, `del memory[key]`, `key in memory`, `len(memory)` and `for key in memory` work
    as with a dict: a key that does not exist raises NotFound, which is a KeyError, and None is not stored.

    While the server is unreachable, `set`, `append`, `delete`, `update`, `merge`, `remember` and transactions of these
    are queued on disk, return None, and are sent later, in order and once. With `strict=True` they raise Unavailable
    instead.

    :param namespace: 1 to 128 characters without "/" and control characters; namespaces share nothing.
    :param url: the server, such as "http://127.0.0.1:8787", or a PostgreSQL database: "postgresql://host/database"
        (SCRUBJAY_URL).
    :param path: the database file (SCRUBJAY_PATH); not together with `url`.
    :param durability: "full" or "fast" (SCRUBJAY_DURABILITY).
    :param timeout: seconds to wait for the server (SCRUBJAY_TIMEOUT).
    :param api_key: the key that the server asks for (SCRUBJAY_API_KEY).
    :param secret: encrypts the values in the file (SCRUBJAY_SECRET).
    :param outbox: the file that queues writes (SCRUBJAY_OUTBOX).
    :param embedder: the model for recall by meaning (SCRUBJAY_EMBEDDER).
    :param strict: raise Unavailable instead of queueing writes.
    :raises InvalidInput: for a namespace or setting that is not valid.
    :raises Unavailable: when the file cannot be opened.
    """

    # Loggers of frameworks print vars() and everything below it: slots keep the api key out of them.
    __slots__ = ("__dict__", "__weakref__", "_arguments", "_executor", "_settings")

    def __init__(
        self,
        namespace: str,
        *,
        url: str | None = None,
        path: str | PathLike[str] | None = None,
        durability: str | None = None,
        timeout: float | None = None,
        api_key: str | None = None,
        secret: str | None = None,
        outbox: str | PathLike[str] | None = None,
        embedder: str | None = None,
        strict: bool = False,
    ) -> None:
        self.namespace = check_namespace(namespace)
        self._arguments: dict[str, Any] = {
            "url": url,
            "path": path,
            "durability": durability,
            "timeout": timeout,
            "api_key": api_key,
            "secret": secret,
            "outbox": outbox,
            "embedder": embedder,
            "strict": strict,
        }
        self._settings = resolve_arguments(**{**self._arguments, "strict": None})
        self._executor = open_executor(self._settings, strict=strict)

    # ------------------------------------------------------------ values

    def set(self, key: str, value: Any, *, ttl: float | None = None, if_version: int | None = None) -> int | None:
        """Store a value under a key.

        Replaces the value and its expiry; without `ttl` it never expires.

        :param key: text of up to 512 bytes.
        :param value: any JSON value; None deletes the key.
        :param ttl: seconds until it expires.
        :param if_version: store only if the key is at this version; 0 means that it must not exist.
        :return: the new version; 0 for a deletion; None when the write is queued.
        :raises InvalidInput: if JSON cannot represent the value exactly; the message names the path.
        :raises ValueTooLarge: above 16 MiB.
        :raises Conflict: if the key is at another version than `if_version`.
        :raises QuotaExceeded: if the namespace has used up its writes or its storage.
        """
        result: int | None = self._executor.run(set_call(self.namespace, key, value, ttl=ttl, if_version=if_version))
        return 0 if value is None and result is not None else result

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, exactly as it was stored.

        :param key: text of up to 512 bytes.
        :param default: what to return if the key does not exist.
        :return: the value, as it will be when queued writes have been sent.
        :raises InvalidInput: if the key is not such a text.
        :raises Unavailable: if the server is unreachable, and queued writes alone do not determine the value.
        """
        value = self._executor.run(commands.GET(self.namespace, check_key(key)))
        return default if value is MISSING else value

    def item(self, key: str) -> Item | None:
        """Return the value of a key with its version, times, expiry and size.

        :param key: text of up to 512 bytes.
        :return: the item; None if the key does not exist.
        :raises Unavailable: if the server is unreachable, or a write to the key is queued: it has no version yet.
        """
        found: Item | None = self._executor.run(commands.ITEM(self.namespace, check_key(key)))
        return found

    def delete(self, key: str, *, if_version: int | None = None) -> bool | None:
        """Delete a key; this never counts against a quota.

        :param key: text of up to 512 bytes.
        :param if_version: delete only if the key is at this version.
        :return: whether the key existed; None when the deletion is queued.
        :raises Conflict: if the key is at another version than `if_version`.
        """
        deleted: bool | None = self._executor.run(delete_call(self.namespace, key, if_version=if_version))
        return deleted

    def setdefault(self, key: str, default: Any) -> Any:
        """Return the value of a key, and store `default` first if the key does not exist, atomically.

        :param key: text of up to 512 bytes.
        :param default: any JSON value but None.
        :return: the value that the key has now; that of a queued write, without asking the server.
        :raises Unavailable: if the server is unreachable and no write to the key is queued: this is never queued.
        """
        if default is None:
            raise InvalidInput("setdefault takes a value to store, not None")
        value = self.get(key, MISSING)
        while value is MISSING:
            try:
                self.set(key, default, if_version=0)
            except Conflict:  # another writer was faster, and may have deleted it again
                value = self.get(key, MISSING)
            else:
                return default
        return value

    def touch(self, key: str, ttl: float | None) -> bool:
        """Replace the expiry of a key; its value, version and times stay. This never counts against a quota.

        :param key: text of up to 512 bytes.
        :param ttl: seconds until it expires; None is never.
        :return: whether the key exists.
        :raises Unavailable: if the server is unreachable: this is never queued.
        """
        found: bool = self._executor.run(touch_call(self.namespace, key, ttl))
        return found

    def __getitem__(self, key: str) -> Any:
        value = self.get(key, MISSING)
        if value is MISSING:
            raise self._missing(key)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        if self.delete(key) is False:
            raise self._missing(key)

    def _missing(self, key: str) -> NotFound:
        return NotFound(f"there is no {key!r} in {self.namespace!r}")

    def __contains__(self, key: object) -> bool:
        found: bool = self._executor.run(commands.CONTAINS(self.namespace, check_key(key)))
        return found

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of the namespace.

        :param prefix: only keys that start with it.
        :return: all of them at once, in code point order, those of queued writes included.
        :raises InvalidInput: if the prefix is not text.
        :raises Unavailable: if the server is unreachable.
        """
        return list(self._iter_keys(prefix))

    def items(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, reverse: bool = False
    ) -> Iterator[tuple[str, Any]]:
        """Yield keys with their values, in the order of the keys, page by page.

            for key, value in memory.items("thread/", reverse=True, limit=1): ...

        One page is read at one moment; what others write between two pages may be seen or not.

        :param prefix: only keys that start with it.
        :param after: only what comes after this key in the order of the iteration.
        :param limit: how many at most.
        :param reverse: from the last key to the first.
        :raises InvalidInput: if an argument is not valid.
        :raises Unavailable: during the iteration, if the server is unreachable.
        """
        pages = self._pages(commands.ITEMS, prefix, after, limit, reverse)
        return chain.from_iterable(pages)

    def values(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, reverse: bool = False
    ) -> Iterator[Any]:
        """Yield the values that `items` yields, without their keys.

        :param prefix: only keys that start with it.
        :param after: only what comes after this key in the order of the iteration.
        :param limit: how many at most.
        :param reverse: from the last key to the first.
        :raises InvalidInput: if an argument is not valid.
        :raises Unavailable: during the iteration, if the server is unreachable.
        """
        return (value for _, value in self.items(prefix, after=after, limit=limit, reverse=reverse))

    def scan(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, reverse: bool = False
    ) -> Iterator[Item]:
        """Yield what `items` yields as Items, with versions, times, expiry and sizes.

        :param prefix: only keys that start with it.
        :param after: only what comes after this key in the order of the iteration.
        :param limit: how many at most.
        :param reverse: from the last key to the first.
        :raises InvalidInput: if an argument is not valid.
        :raises Unavailable: during the iteration, if the server is unreachable, or a write to one of the keys is
            queued: it has no version yet.
        """
        pages = self._pages(commands.SCAN, prefix, after, limit, reverse)
        return chain.from_iterable(pages)

    def find(
        self, prefix: str = "", *, where: Mapping[str, Any] | None = None, limit: int = 10, offset: int = 0
    ) -> list[Item]:
        """Return items whose values meet conditions, those that changed last first, filtered where they are stored.

            memory.find("users/", where={"city": "Berlin", "age": {"$gte": 18}})

        A name is that of a field, or a path such as "address.zip". Beside it is the value that it must have, operators
        ($eq, $ne, $gt, $gte, $lt, $lte), or conditions on its own fields. Values have no index: a find reads what is
        under the prefix, 10,000 small values in about 0.05 s. It does not include queued writes.

        :param prefix: only under keys that start with it.
        :param where: the conditions, all of which a value must meet; without them, any value and any list.
        :param limit: how many at most, from 1 to 1,000.
        :param offset: how many to leave out before those.
        :raises InvalidInput: if a condition is not valid, or there are more than 256 names in all.
        """
        check_prefix(prefix)
        conditions = encode_filter({} if where is None else where)
        limit, offset = check_count("limit", limit, least=1, most=MAX_RECALL), check_count("offset", offset)
        command = commands.FIND(self.namespace, prefix, conditions, limit, offset)
        found: list[Item] = self._executor.run(command)
        return found

    def __iter__(self) -> Iterator[str]:
        return self._iter_keys("")

    def __len__(self) -> int:
        return self.usage().keys

    def __bool__(self) -> bool:
        """True even while it is empty, so that `memory or Memory(...)` works."""
        return True

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of those keys that exist, all read at one moment.

        :param keys: an iterable of keys.
        :return: a dict in the order of `keys`.
        :raises ValueTooLarge: if the keys have more than 1 MiB together.
        """
        if isinstance(keys, str):
            raise InvalidInput("get_many takes several keys; for one, call get")
        if not isinstance(keys, Iterable):
            raise InvalidInput(f"get_many takes a list of keys, not {repr_short(keys)}")
        wanted = [check_key(key) for key in keys]
        check_read(wanted)
        if not wanted:
            return {}
        found: dict[str, Any] = self._executor.run(commands.GET_MANY(self.namespace, wanted))
        return found

    def update(
        self,
        mapping: Mapping[str, Any],
        *,
        if_versions: Mapping[str, int] | None = None,
        ttl: float | None = None,
    ) -> None:
        """Store several values, all of them or none; together they count as one write.

        :param mapping: keys and values; None deletes a key.
        :param if_versions: keys and versions: store only if each key is at its version; 0 means that it must not exist.
        :param ttl: seconds until the values expire; without it they never do.
        :raises Conflict: if a key is at another version; nothing is stored then.
        :raises QuotaExceeded: if all of them together exceed a quota; nothing is stored then.
        :raises ValueTooLarge: above 16 MiB, or 100,000 keys in `mapping` and `if_versions` together.
        """
        command = update_call(self.namespace, mapping, if_versions=if_versions, ttl=ttl)
        if mapping or if_versions:
            self._executor.run(command)

    def merge(self, key: str, mapping: Mapping[str, Any]) -> int | None:
        """Replace fields of an object, atomically; its other fields and its expiry stay.

        :param key: text of up to 512 bytes; a key that does not exist counts as an empty object.
        :param mapping: fields and values; None removes a field.
        :return: the new version; None when the write is queued.
        :raises Conflict: if the value is not an object.
        :raises QuotaExceeded: if the namespace has used up its writes or its storage.
        """
        version: int | None = self._executor.run(merge_call(self.namespace, key, mapping))
        return version

    def incr(self, key: str, by: float = 1, *, once: str | None = None) -> Any:
        """Add to a number, atomically; the expiry stays.

        :param key: text of up to 512 bytes.
        :param by: what to add; a key that does not exist counts as 0.
        :param once: an id of your own: a second call with it returns the first result and adds nothing.
        :return: the new number.
        :raises Conflict: if the value is not a number, or `once` was used for another call.
        :raises Unavailable: if the server is unreachable: this is never queued.
        """
        return self._executor.run(_once(incr_call(self.namespace, key, by), once))

    def clear(self, prefix: str = "") -> int:
        """Delete all keys that start with `prefix`, all of them or none; this never counts against a quota.

        Without a prefix, erase all values and notes of the namespace, queued writes included. The ids of `once` stay,
        so that a call that is repeated later does not bring back what was erased.

        :param prefix: the start of the keys; without one everything is erased.
        :return: how many keys there were, and without a prefix how many notes, too.
        :raises InvalidInput: if the prefix is not text.
        :raises Unavailable: if the server is unreachable: this is never queued.
        """
        count: int = self._executor.run(clear_call(self.namespace, prefix))
        return count

    # ------------------------------------------------------------ lists

    def append(self, key: str, *items: Any, once: str | None = None) -> int | None:
        """Add items to the end of a list, atomically; the cost does not depend on its length.

        :param key: text of up to 512 bytes. A key that does not exist becomes a list.
        :param items: any JSON values.
        :param once: an id of your own: a second call with it returns the first result and appends nothing.
        :return: the new length; None when the write is queued.
        :raises Conflict: if the value is not a list, or `once` was used for another call.
        :raises QuotaExceeded: if the namespace has used up its writes or its storage.
        :raises ValueTooLarge: above 16 MiB or 100,000 items.
        """
        length: int | None = self._executor.run(_once(append_call(self.namespace, key, *items), once))
        return length

    def tail(self, key: str, n: int) -> list[Any]:
        """Return the last items of a list; the cost does not depend on its length.

        :param key: text of up to 512 bytes.
        :param n: how many at most.
        :return: the items, oldest first, those of queued writes included; [] if the key does not exist.
        :raises Conflict: if the value is not a list.
        :raises Unavailable: if the server is unreachable, and queued writes alone do not determine the items.
        """
        items: list[Any] = self._executor.run(commands.TAIL(self.namespace, check_key(key), check_count("n", n)))
        return items

    def slice(self, key: str, start: int = 0, stop: int | None = None) -> list[Any]:
        """Return some items of a list, as `value[start:stop]` would; the cost does not depend on its length.

        :param key: text of up to 512 bytes.
        :param start: the first item; a negative number counts from the end.
        :param stop: the first item that is not returned; None is the end.
        :return: [] if the key does not exist.
        :raises Conflict: if the value is not a list.
        """
        start = check_count("start", start, least=-MAX_COUNT)
        if stop is not None:
            stop = check_count("stop", stop, least=-MAX_COUNT)
        items: list[Any] = self._executor.run(commands.SLICE(self.namespace, check_key(key), start, stop))
        return items

    def length(self, key: str) -> int:
        """Return how many items a list has.

        :param key: text of up to 512 bytes.
        :return: the number, with the items of queued writes; 0 if the key does not exist.
        :raises Conflict: if the value is not a list.
        :raises Unavailable: if the server is unreachable.
        """
        count: int = self._executor.run(commands.LENGTH(self.namespace, check_key(key)))
        return count

    def pop(self, key: str, n: int = 1, *, first: bool = False) -> list[Any]:
        """Take items from the end of a list, atomically: each item goes to exactly one caller.

        This is about the items of one list; to remove a key, use `delete`. It never counts against a quota.

        :param key: text of up to 512 bytes.
        :param n: how many at most.
        :param first: take them from the start of the list instead.
        :return: the items, in the order of the list; [] if there are none.
        :raises Conflict: if the value is not a list.
        :raises Unavailable: if the server is unreachable: this is never queued.
        """
        items: list[Any] = self._executor.run(pop_call(self.namespace, key, n, first=first))
        return items

    # ------------------------------------------------------------ notes

    def remember(
        self,
        content: str,
        *,
        type: str | None = None,  # noqa: A002 - the word that users write
        tags: Iterable[str] = (),
        session: str | None = None,
        ttl: float | None = None,
        ttl_days: float | None = None,
        pinned: bool = False,
        metadata: Mapping[str, Any] | None = None,
        supersedes: Iterable[str] = (),
        id: str | None = None,  # noqa: A002
    ) -> Note | None:
        """Store a text that `recall` finds by its words and, with an embedder, by its meaning.

        The same content in the same session refreshes the note instead of storing it twice.

        :param content: the text, of up to 4 MiB.
        :param type: a label to filter by, such as "decision".
        :param tags: labels to filter by.
        :param session: the conversation that it belongs to; neighbouring notes of a session help to find each other.
        :param ttl: seconds until it expires.
        :param ttl_days: the same in days.
        :param pinned: never expires.
        :param metadata: a JSON object of your own; "speaker" or "sender" in it names who said it.
        :param supersedes: ids of notes that it replaces: they are kept, marked, and no longer recalled. An id that no
            note has, such as that of a note that was forgotten, is ignored.
        :param id: an id of your own: the note replaces the one that has it, all its fields but `created_at`, and what
            it replaces is erased as `forget` does. Without it the note is found by its content.
        :return: the note; None when the write is queued.
        :raises QuotaExceeded: if the namespace has used up its writes or its storage.
        :raises Conflict: if `id` is that of a note without an id of your own, and another note has the same content.
        """
        command = remember_call(
            self.namespace,
            content,
            type=type,
            tags=tags,
            session=session,
            ttl=ttl,
            ttl_days=ttl_days,
            pinned=pinned,
            metadata=metadata,
            supersedes=supersedes,
            id=id,
        )
        stored: Note | None = self._executor.run(command)
        return stored

    def recall(
        self,
        query: str,
        *,
        limit: int = 5,
        type: str | None = None,  # noqa: A002
        tags: Iterable[str] | None = None,
        session: str | None = None,
        threshold: float | None = None,
        ranking: str | None = None,
        explain: bool = False,
        at: datetime | None = None,
    ) -> list[Note]:
        """Return the notes that fit a question best, best first, each with a `score` from 0 to 1.

        :param query: the question, or a whole message.
        :param limit: how many at most.
        :param type: only notes of this type.
        :param tags: only notes that have all of these tags.
        :param session: only notes of this session.
        :param threshold: only notes with at least this score by relevance.
        :param ranking: "relevance" (the default), or "confidence", which also weighs recency and frequency.
        :param explain: give each note an `explanation`: the parts that add up to its score, and the words that matched.
        :param at: a datetime with a time zone: ask as of that moment. Only notes that had been written by then, and
            "today" is that day.
        :return: the notes; [] if none fits.
        :raises InvalidInput: if an argument is not valid.
        :raises Unavailable: if the server is unreachable: queued notes are not searched.
        """
        asked = RecallQuery.check(
            query,
            limit=limit,
            type=type,
            tags=tags,
            session=session,
            threshold=threshold,
            ranking=ranking,
            explain=explain,
            at=at,
        )
        found: list[Note] = self._executor.run(commands.RECALL(self.namespace, asked))
        return found

    def search(self, query: str, prefix: str = "", *, limit: int = 10) -> list[Match]:
        """Return the values and the items of lists that fit a question best, best first.

        It finds words in whatever form in all texts of a value, and in the key of a value that is not a list.
        `recall` searches notes. Values have no index: a search reads what it searches, 10,000 short messages in about
        0.1 s, and costs the writes nothing.

        :param query: the question, or words.
        :param prefix: only under keys that start with it.
        :param limit: how many at most.
        :raises InvalidInput: if there are more than 16 MiB under these keys.
        """
        limit = check_count("limit", limit, least=1, most=MAX_RECALL)
        command = commands.SEARCH(self.namespace, check_query(query), check_prefix(prefix), limit)
        found: list[Match] = self._executor.run(command)
        return found

    def inject_context(
        self,
        query: str,
        *,
        limit: int = 8,
        max_tokens: int = 400,
        type: str | None = None,  # noqa: A002
        tags: Iterable[str] | None = None,
        session: str | None = None,
        threshold: float | None = None,
        ranking: str | None = None,
        at: datetime | None = None,
    ) -> str:
        """Return what `recall` finds as text for a system prompt.

        :param query: the question, or a whole message.
        :param limit: how many notes at most.
        :param max_tokens: the length of the text at most, estimated.
        :param type: only notes of this type.
        :param tags: only notes that have all of these tags.
        :param session: only notes of this session.
        :param threshold: only notes with at least this score by relevance. Without one, notes need a score that those
            for an unrelated question seldom have; 0 takes all.
        :param ranking: "relevance" (the default), or "confidence", which also weighs recency and frequency.
        :param at: a datetime with a time zone: ask as of that moment.
        :return: the text; "" if nothing fits.
        :raises InvalidInput: if an argument is not valid.
        :raises Unavailable: if the server is unreachable: queued notes are not searched.
        """
        max_tokens = check_count("max_tokens", max_tokens)
        least = CONTEXT_THRESHOLD if threshold is None else threshold
        notes = self.recall(
            query, limit=limit, type=type, tags=tags, session=session, threshold=least, ranking=ranking, at=at
        )
        return format_prompt(notes, max_tokens)

    def forget(self, note_id: str) -> bool:
        """Erase a note: its text, labels, index entries and vector are overwritten in the file and its log.

        :param note_id: the `id` of a Note.
        :return: whether it existed.
        :raises Unavailable: if the server is unreachable: this is never queued.
        """
        found: bool = self._executor.run(forget_call(self.namespace, note_id))
        return found

    def notes(
        self,
        *,
        type: str | None = None,  # noqa: A002
        tags: Iterable[str] | None = None,
        session: str | None = None,
    ) -> list[Note]:
        """Return the notes that match the filters.

        :param type: only notes of this type.
        :param tags: only notes that have all of these tags.
        :param session: only notes of this session.
        :return: all of them, in the order in which they were first remembered; queued ones are not included.
        :raises Unavailable: if the server is unreachable.
        """
        filters = (check_label("type", type), check_tags(tags), check_label("session", session))
        found: list[Note] = []
        page: list[Note] = self._executor.run(commands.NOTES(self.namespace, *filters, "", MAX_NOTES_PAGE))
        while page:
            found += page
            if len(page) < MAX_NOTES_PAGE:
                break
            page = self._executor.run(commands.NOTES(self.namespace, *filters, page[-1].cursor, MAX_NOTES_PAGE))
        return found

    # ------------------------------------------------------------ conversations

    def conversations(self, *, session: str | None = None) -> list[Conversation]:
        """Return the conversations of the namespace, those with the latest messages first.

        A conversation is a list of messages: of an adapter, or one that you `append` messages to, such as
        `{"role": "user", "content": "Hi"}`. A group chat whose members share its memory is one conversation, although
        its messages are in two lists.

        :param session: only those of this session.
        :raises Unavailable: if the server is unreachable.
        """
        check_label("session", session)
        found: list[Conversation] = []
        page, cursor = self._executor.run(commands.CONVERSATIONS(self.namespace, session, "", MAX_MESSAGES_PAGE))
        while page:
            found += page
            if not cursor:
                break
            page, cursor = self._executor.run(
                commands.CONVERSATIONS(self.namespace, session, cursor, MAX_MESSAGES_PAGE)
            )
        return found

    def conversation(
        self,
        session: str | None = None,
        *,
        key: str | None = None,
        limit: int = 100,
        before: int | None = None,
        after: int | None = None,
        search: str | None = None,
    ) -> list[Message]:
        """Return the last messages of a conversation, oldest first, in one form whichever framework stored them.

        The cost does not depend on the length of the conversation, but a `search` reads as far back as it has to.

        :param session: the session; without it, and without `key`, the conversation with the latest message.
        :param key: the `key` of a Conversation, if its session has several.
        :param limit: how many messages at most, up to 1,000.
        :param before: a `position`: the last messages before it, the page before.
        :param after: a `position`: the first messages after it, as when a conversation is followed; -1 starts with
            the first message.
        :param search: only messages that contain this text.
        :return: the messages; [] if there is no such conversation.
        :raises Conflict: if the value of `key` is not a list.
        """
        check_label("session", session)
        limit = check_count("limit", limit, least=1, most=MAX_MESSAGES_PAGE)
        if before is not None:
            before = check_count("before", before)
        if after is not None:
            after = check_count("after", after, least=-1)
        check_one_end(before, after)
        if search is not None:
            check_key(search, "search")
        if key is None:
            latest, _ = self._executor.run(commands.CONVERSATIONS(self.namespace, session, "", 1))
            if not latest:
                return []
            key = latest[0].key
        found: list[Message] = self._executor.run(
            commands.CONVERSATION(self.namespace, check_key(key), limit, before, after, search)
        )
        return found

    def forget_session(self, session: str) -> int:
        """Erase a session: its conversations, what agents have stored beside them, and its notes.

        :param session: the name, as `conversations` gives it.
        :return: the number of keys and notes that were erased; keys that have only the ids of messages, or the progress
            of `distill`, are not counted.
        :raises Unavailable: if the server is unreachable, or has not been sent all queued writes.
        """
        count: int = self._executor.run(forget_session_call(self.namespace, session))
        return count

    def distill(
        self, session: str, model: Callable[[str], str], *, key: str | None = None, tokens_per_day: int | None = None
    ) -> Learned:
        """Let a model turn what is new in a conversation into notes.

        Each note has a type (preference, decision, fact, context, temporary), the tag "learned", the session, and in
        `metadata["sources"]` the ids of the messages that it comes from. A note that contradicts an older one
        supersedes it. Notes and progress are stored together, so that nothing is learned twice, and an interrupted call
        is continued by the next one.

        :param session: the session, as `conversations` gives it.
        :param model: a function that is given a prompt and returns the model's answer; not an async one, which
            AsyncMemory takes.
        :param key: the `key` of a Conversation, if the session has several; otherwise the latest is taken.
        :param tokens_per_day: the most to spend on this namespace in a day (UTC), estimated; SCRUBJAY_LEARN_TOKENS.
        :return: what was learned. An answer that is not a list of notes changes nothing.
        :raises InvalidInput: if the model is not such a function, or answers with something else than text.
        :raises Unavailable: if the server is unreachable.
        """
        from scrubjay.learning import check_model, next_prompt  # noqa: PLC0415 - `import scrubjay` stays light

        check_model(model)
        steps = self._distill(session, key, tokens_per_day)
        answer: Any = None
        while isinstance(step := next_prompt(steps, answer), str):
            answer = model(step)
        return step

    def _distill(self, session: str, key: str | None, tokens_per_day: int | None) -> Generator[str, Any, Learned]:
        """Learning without a model: yields prompts, and is sent what a model answers."""
        from scrubjay.learning import Learner  # noqa: PLC0415

        if tokens_per_day is None:
            tokens_per_day = self._settings.learn_tokens
        tokens_per_day = check_count("tokens_per_day", tokens_per_day)
        if key is None:
            check_key(session, "session")
            latest, _ = self._executor.run(commands.CONVERSATIONS(self.namespace, session, "", 1))
            if not latest:
                return Learned(0, 0, 0, 0, is_complete=True)
            key = latest[0].key
        return (yield from Learner(self, check_key(key), tokens_per_day).learn())

    # ------------------------------------------------------------ transactions

    def transaction(self, *, once: str | None = None) -> Transaction:
        """Write several things, all of them or none; together they count as one write.

            with memory.transaction() as t:
                t.append("log", "Sarah moved")
                t.set("city", "Berlin")

        `t` has every verb that writes: `set`, `delete`, `update`, `merge`, `touch`, `incr`, `clear`, `append`, `pop`,
        `remember`, `forget` and `forget_session`. They run in order when the block ends, each on what those before it
        have left. Inside of the block they return None, so a value cannot depend on them; to make it depend on what is
        stored, read it before and pass `if_version`. After the block, `t.results` has the result of each, with two
        differences: that of `remember` is the number of the note as text, not a Note, and that of `set` with None is
        whether the key existed.

        While the server is unreachable the transaction is queued as one write, and `t.results` stays None. It raises
        Unavailable instead if a verb is never queued (`touch`, `incr`, `clear`, `pop`, `forget`, `forget_session`), or
        has a version.

        :param once: an id of your own: a second transaction with it changes nothing and has the first results, but None
            for the items of a `pop`.
        :return: the Transaction.
        :raises QuotaExceeded: at the end of the block, if it exceeds a quota; nothing is stored then.
        :raises Conflict: likewise, if a key is at another version, if a value is not what a verb needs (a list, a
            number, an object), or if `once` was used for another transaction.
        :raises ValueTooLarge: likewise, above 16 MiB or 100,000 items and keys.
        """
        return Transaction(self.namespace, self._run, once)

    # ------------------------------------------------------------ the namespace

    def watch(self, prefix: str = "", *, after: int | None = None, timeout: float | None = None) -> Iterator[Change]:
        """Yield each change in the namespace from now on, by any process, as it happens.

        :param prefix: only changes of keys that start with it.
        :param after: the `id` of a Change: start after it, and miss nothing.
        :param timeout: end when nothing has changed for so many seconds; without it, never.
        :raises Conflict: if changes after `after` have been removed from the log.
        :raises QuotaExceeded: if this client has as many watches open as the server allows.
        """
        return iter(self._open_watch(prefix, after, timeout))

    def usage(self) -> Usage:
        """Return current usage, limits, and when the daily counter resets.

        :return: the usage, without queued writes.
        :raises Unavailable: if the server is unreachable.
        """
        found: Usage = self._executor.run(commands.USAGE(self.namespace))
        return found

    def set_quota(self, *, writes_per_day: int | None = UNCHANGED, max_bytes: int | None = UNCHANGED) -> Usage:
        """Limit this namespace; needs an admin key on a server that has keys.

        :param writes_per_day: writes a day (UTC); 0 means no limit, None the default of the server.
        :param max_bytes: bytes of keys and values; 0 means no limit, None the default of the server.
        :return: the usage with the new limits; a limit that is not given stays as it is.
        :raises InvalidInput: if a limit is not a whole number from 0 up.
        :raises Forbidden: if the server has keys, and this is not an admin key.
        :raises Unavailable: if the server is unreachable: this is never queued.
        """
        given = {"writes_per_day": writes_per_day, "max_bytes": max_bytes}
        limits = {
            name: None if limit is None else check_count(name, limit)
            for name, limit in given.items()
            if limit is not UNCHANGED
        }
        changed: Usage = self._executor.run(commands.SET_QUOTA(self.namespace, limits))
        return changed

    def namespaces(self) -> list[str]:
        """Return the namespaces of the same store.

        :return: those that the api key may read, in order, empty ones included.
        :raises Unavailable: if the server is unreachable.
        """
        found: list[str] = self._executor.run(commands.NAMESPACES(""))
        return found

    # ------------------------------------------------------------ the queue

    def pending(self) -> list[Pending]:
        """Return the queued writes of this namespace, oldest first, each with its reason.

        `get`, `get_many`, `in`, `keys`, `items`, `values`, `tail`, `slice`, `length` and `conversation` with a `key`
        include them. `item` and `scan` raise Unavailable for a key with a queued write. `find`, `search`, `recall`,
        `notes`, `conversations` and `usage` answer from the server alone.
        """
        return self._executor.pending(self.namespace)

    def flush(self, timeout: float = 10.0) -> None:
        """Return when no write of this namespace is queued.

        :param timeout: seconds to wait.
        :raises Unavailable: if writes are still queued then; they stay queued, and are sent later.
        """
        self._executor.flush(self.namespace, check_seconds("timeout", timeout))

    @property
    def location(self) -> str:
        """The path of the file, or the URL of the server."""
        return self._executor.location

    def close(self) -> None:
        """Release the file or the connections. Nothing is lost without it."""
        self._executor.close()
        self._executor = _ClosedExecutor()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or another process, opens the same memory for itself."""
        return partial(type(self), **self._arguments), (self.namespace,)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Memory {self.namespace!r} at {self.location}>"

    def _run(self, command: Command) -> Any:
        """Run a command on the executor of this moment: one that is closed may open itself again."""
        return self._executor.run(command)

    def _open_watch(self, prefix: str, after: int | None, timeout: float | None) -> Watch:
        check_prefix(prefix)
        if after is not None:
            after = check_count("after", after)
        if timeout is not None:
            check_seconds("timeout", timeout)
        return Watch(lambda: self._executor, self.namespace, prefix, after, timeout)

    def _pages(
        self, verb: Verb, prefix: str, after: str | None, limit: int | None, reverse: bool
    ) -> Iterator[Sequence[Any]]:
        """The pages of `items` and `scan`; the arguments are checked before the first is asked for."""
        check_prefix(prefix)
        if after is not None:
            check_key(after, "key in after")
        left = MAX_COUNT if limit is None else check_count("limit", limit, least=1)
        return self._read_pages(verb, prefix, after or "", left, check_switch("reverse", reverse))

    def _read_pages(self, verb: Verb, prefix: str, after: str, left: int, reverse: bool) -> Iterator[Sequence[Any]]:
        cursor: str | None = after
        while cursor is not None and left > 0:
            size = min(left, MAX_PAGE)
            page, cursor = self._executor.run(verb(self.namespace, prefix, cursor, size, reverse))
            yield page[:left]
            left -= len(page)

    def _iter_keys(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        page, after = [""], ""
        while page:
            page = self._executor.run(commands.KEYS(self.namespace, prefix, after, MAX_PAGE))
            yield from page
            if len(page) < MAX_PAGE:
                return
            after = page[-1]


def _once(command: Command, once: str | None) -> Command:
    """The command under the caller's own id, if it has one."""
    return command if once is None else command._replace(once=check_key(once, "once id"))


class _ClosedExecutor(Executor):
    """The executor of a Memory after close()."""

    location = "nothing: it is closed"
    is_closed = True

    def run(self, _command: object, _idempotency_key: str | None = None) -> Any:
        raise Unavailable("this Memory is closed; open another one")

    def pending(self, _namespace: str | None) -> list[Pending]:
        return self.run(None)  # type: ignore[no-any-return]

    def flush(self, _namespace: str | None, _timeout: float) -> None:
        self.run(None)


def memory_on(executor: Executor, namespace: str, settings: Settings) -> Memory:
    """A Memory that runs its commands on this executor, which was opened with these settings."""
    memory = Memory.__new__(Memory)
    memory.namespace = check_namespace(namespace)
    memory._arguments, memory._settings, memory._executor = {}, settings, executor  # noqa: SLF001
    return memory
