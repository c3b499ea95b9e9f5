"""The table of commands: every verb with its operation, its arguments, its HTTP form and its result.

A command is data: a verb, a namespace and arguments. An executor runs it: on a store in this process (`local`), on a
server (`http`), or on either with a durable queue in front (`outbox`). A new verb is one operation in
`scrubjay.store`, one line in this table, one method of `Memory` and one route of the server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from scrubjay.exact_json import decode, encode
from scrubjay.models import ApiKey, Change, Conversation, IssuedKey, Item, Match, Message, Note, Usage
from scrubjay.validation import NewNote, RecallQuery

MISSING: Any = object()
"""The result of `get` for a key that does not exist; None is a value inside lists and objects."""
MIN_TTL = 0.001
"""Seconds: the time to live of a queued write that expired before it was sent. A ttl of 0 is invalid input."""
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_new_tuple = tuple.__new__
"""Makes a named tuple without its constructor, a Python function: 0.1 µs less of the 11 µs of an embedded `get`."""


class Argument(NamedTuple):
    """One argument of a command: where HTTP carries it, and how it is written as JSON and read back."""

    name: str
    where: str
    """path, query, body, object (it is the whole body) or if_match (a header)."""
    dump: Callable[[Any], str] = _dumps
    load: Callable[[Any], Any] = lambda value: value
    sends_null: bool = False
    """Whether None is written to a body; the server takes an argument that is left out for its default."""


class Request(NamedTuple):
    """A command as an HTTP request; the path starts at the root of the server."""

    method: str
    path: str
    body: str
    headers: Mapping[str, str]


class Verb:
    """A line of the table. Called with a namespace and the arguments in order, it makes a Command."""

    __slots__ = ("arguments", "from_json", "from_store", "in_transaction", "method", "missing", "name", "operation",
                 "path", "positions", "queueable", "writes")  # fmt: skip

    def __init__(
        self,
        name: str,
        operation: str,
        method: str,
        path: str,
        *arguments: Argument,
        from_store: Callable[[Any], Any] = lambda result: result,
        from_json: Callable[[Any], Any],
        missing: Any = NotImplemented,
        writes: bool = False,
        queueable: bool = False,
        in_transaction: bool = False,
    ) -> None:
        self.name = name
        self.operation = operation
        """Module and function in `scrubjay.store`; imported by the executor that runs it."""
        self.method = method
        self.path = path if path.startswith("/v1") else f"/v1/namespaces/{{namespace}}{path}"
        self.arguments = arguments
        self.positions = {argument.name: i for i, argument in enumerate(arguments)}
        """Of the arguments, by name; they are looked up several times for each write."""
        self.from_store = from_store
        """What the caller gets, from what the operation returns."""
        self.from_json = from_json
        """What the caller gets, from the JSON of a server's response."""
        self.missing = missing
        """What the caller gets when the server answers 404; NotImplemented raises NotFound."""
        self.writes = writes
        self.queueable = queueable
        """Whether the outbox may keep it: the caller can go on without its result."""
        self.in_transaction = in_transaction
        """Whether a transaction may have it: it writes to one namespace, in the same commit as others."""

    def __call__(self, namespace: str, *arguments: Any, once: str | None = None) -> Command:
        return _new_tuple(Command, (self, namespace, arguments, once))

    def __repr__(self) -> str:
        return f"<verb {self.name}>"


class Command(NamedTuple):
    """One call on a store: what to do, where, and with what. Names are validated and values are JSON text."""

    verb: Verb
    namespace: str
    arguments: tuple[Any, ...]
    once: str | None = None
    """The caller's own id: a second command with the same id returns the result of the first."""

    def argument(self, name: str, default: Any = None) -> Any:
        position = self.verb.positions.get(name)
        return default if position is None else self.arguments[position]

    @property
    def key(self) -> str:
        """The key that it is about; empty if it is about several or none."""
        return str(self.argument("key", ""))

    @property
    def needs_result(self) -> bool:
        """Whether the caller cannot go on without the result: the verb says so, or a version is expected."""
        expects = self.argument("if_version") is not None or self.argument("if_versions") is not None
        return expects or not self.verb.queueable or any(part.needs_result for part in self.argument("commands", ()))

    @property
    def rows(self) -> int:
        """How many items or keys it writes or compares."""
        return sum(len(self.argument(name) or ()) for name in ("items", "values", "if_versions")) or 1

    def aged(self, seconds: float) -> Command:
        """The same command so many seconds later: its time to live has started."""
        changed = tuple(
            _shortened(argument.name, value, seconds)
            for argument, value in zip(self.verb.arguments, self.arguments, strict=True)
        )
        return self._replace(arguments=changed)

    def to_json(self) -> str:
        """The arguments as a JSON object."""
        fields = [
            f"{_dumps(argument.name)}:{argument.dump(value)}"
            for argument, value in zip(self.verb.arguments, self.arguments, strict=True)
        ]
        if self.once is not None:
            fields.append(f'"once":{_dumps(self.once)}')
        return f"{{{','.join(fields)}}}"

    @classmethod
    def from_json(cls, verb: str, namespace: str, text: str) -> Command:
        """The command that `to_json` wrote."""
        fields, known = json.loads(text), VERBS[verb]
        arguments = tuple(argument.load(fields[argument.name]) for argument in known.arguments)
        return cls(known, namespace, arguments, fields.get("once"))

    def request(self) -> Request:
        """The command as an HTTP request."""
        path = {"namespace": quote(self.namespace, safe="")}
        query: list[tuple[str, Any]] = []
        body: list[str] = []
        whole = ""
        headers: dict[str, str] = {}
        for argument, value in zip(self.verb.arguments, self.arguments, strict=True):
            if argument.where == "path":
                path[argument.name] = quote(value, safe="")
            elif argument.where == "query":
                query += _pairs(argument.name, value)
            elif argument.where == "object":
                whole = argument.dump(value)
            elif argument.where == "if_match":
                headers = _if_match(value)
            elif value is not None or argument.sends_null:
                body.append(f"{_dumps(argument.name)}:{argument.dump(value)}")
        if self.once is not None:
            body.append(f'"once":{_dumps(self.once)}')
        url = self.verb.path.format_map(path)
        text = whole or (f"{{{','.join(body)}}}" if body else "")
        return Request(self.verb.method, f"{url}?{urlencode(query)}" if query else url, text, headers)


def _shortened(name: str, value: Any, seconds: float) -> Any:
    if name == "commands":
        return tuple(command.aged(seconds) for command in value)
    if isinstance(value, NewNote):
        return value._replace(ttl=_shortened("ttl", value.ttl, seconds))
    return max(value - seconds, MIN_TTL) if name == "ttl" and value is not None else value


def _pairs(name: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, tuple):
        return [(name, each) for each in value]
    if isinstance(value, bool):
        return [(name, _dumps(value))]
    return [] if value is None or value == "" else [(name, value)]


def _if_match(version: int | None) -> dict[str, str]:
    if version is None:
        return {}
    return {"If-Match": f'"{version}"'} if version else {"If-None-Match": "*"}


def _same(text: str) -> str:
    return text


def _dump_texts(texts: Sequence[str]) -> str:
    return f"[{','.join(texts)}]"


def _load_texts(values: Sequence[Any]) -> list[str]:
    return [encode(value) for value in values]


def _dump_mapping(texts: Mapping[str, str | None]) -> str:
    pairs = (f"{_dumps(key)}:{'null' if text is None else text}" for key, text in texts.items())
    return f"{{{','.join(pairs)}}}"


def _load_mapping(values: Mapping[str, Any]) -> dict[str, str | None]:
    return {key: None if value is None else encode(value) for key, value in values.items()}


def _dump_note(note: NewNote) -> str:
    return _dumps(note.to_json())


def _load_note(fields: Mapping[str, Any]) -> NewNote:
    lists = {name: tuple(fields[name]) for name in ("tags", "supersedes") if fields.get(name) is not None}
    return NewNote(**{**fields, **lists})


def _dump_commands(commands: Sequence[Command]) -> str:
    return f"[{','.join(map(_dump_command, commands))}]"


def _dump_command(command: Command) -> str:
    """An object with the verb and the arguments, those of a note beside the others."""
    fields = [f'"verb":{_dumps(command.verb.name)}']
    for argument, value in zip(command.verb.arguments, command.arguments, strict=True):
        if argument is _NOTE:
            fields.append(argument.dump(value)[1:-1])
        elif value is not None or argument.sends_null:
            fields.append(f"{_dumps(argument.name)}:{argument.dump(value)}")
    return f"{{{','.join(fields)}}}"


def _load_commands(commands: Sequence[Mapping[str, Any]]) -> tuple[Command, ...]:
    return tuple(_load_command(**fields) for fields in commands)


def _load_command(verb: str, **fields: Any) -> Command:
    known = VERBS[verb]
    if known is REMEMBER:
        return known("", _load_note(fields))
    return known("", *(arg.load(fields[arg.name]) if arg.name in fields else None for arg in known.arguments))


def _dump_query(query: RecallQuery) -> str:
    return _dumps(query.to_json())


def _decode_all(texts: Sequence[str]) -> list[Any]:
    return [decode(text) for text in texts]


def _value(text: str | None) -> Any:
    return MISSING if text is None else decode(text)


def _values(texts: Mapping[str, str]) -> dict[str, Any]:
    return {key: decode(text) for key, text in texts.items()}


def field(name: str, *types: type) -> Callable[[Any], Any]:
    """Reads one field of a JSON object; raises an error unless it has one of these types, if any are given."""

    def read(data: Any) -> Any:
        value = data[name]
        if types and type(value) not in types:
            raise TypeError(f"{name} is a {type(value).__name__}")
        return value

    return read


def _each(name: str, read: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """Reads a field that is a list of records."""
    listed = field(name, list)
    return lambda data: [read(part) for part in listed(data)]


def _page(name: str, read: Callable[[Any], Any]) -> Callable[[Any], tuple[list[Any], str | None]]:
    """Reads a page of records, and the cursor to continue after; None at the end."""
    records, cursor = _each(name, read), field("cursor", str, type(None))
    return lambda data: (records(data), cursor(data))


def _no_content(data: Any) -> bool:
    """Reads the empty response to a deletion, for which the executor gives MISSING."""
    if data is not MISSING:
        raise TypeError("a body where none was expected")
    return True


def _changes(data: Any) -> tuple[list[Change], int]:
    return _each("changes", Change.from_json)(data), field("cursor", int)(data)


_first = itemgetter(0)
"""Writes return their result and the usage of the namespace; callers get the result."""
_KEY = Argument("key", "path")
_VALUE = Argument("value", "body", _same, encode)
_ITEMS = Argument("items", "body", _dump_texts, _load_texts)
_IF_VERSION = Argument("if_version", "if_match")
_NOTE = Argument("note", "object", _dump_note, _load_note)
_AFTER = Argument("after", "query")
_PREFIX = Argument("prefix", "query")
_LIMIT = Argument("limit", "query")
_REVERSE, _FIRST = Argument("reverse", "query"), Argument("first", "query")

GET = Verb(
    "get", "items.read_text", "GET", "/items/{key}", _KEY,
    from_store=_value, from_json=field("value"), missing=MISSING,
)  # fmt: skip
ITEM = Verb(
    "item", "items.read_item", "GET", "/items/{key}", _KEY,
    from_store=lambda stored: stored and stored.to_item(), from_json=Item.from_json, missing=None,
)  # fmt: skip
CONTAINS = Verb(
    "contains", "items.find_version", "HEAD", "/items/{key}", _KEY,
    from_store=lambda version: version is not None, from_json=lambda _: True, missing=False,
)  # fmt: skip
GET_MANY = Verb(
    "get_many", "items.read_many", "POST", "/read", Argument("keys", "body"),
    from_store=_values, from_json=field("values", dict),
)  # fmt: skip
KEYS = Verb(
    "keys", "items.list_keys", "GET", "/items", _PREFIX, _AFTER, _LIMIT,
    from_json=field("keys", list),
)  # fmt: skip
ITEMS = Verb(
    "items", "items.list_items", "GET", "/values", _PREFIX, _AFTER, _LIMIT, _REVERSE,
    from_store=lambda page: ([(item.key, decode(item.text)) for item in page[0]], page[1]),
    from_json=_page("items", lambda item: (item["key"], item["value"])),
)  # fmt: skip
"""Keys with values, and the key to continue after; None at the end."""
SCAN = Verb(
    "scan", "items.list_items", "GET", "/values", _PREFIX, _AFTER, _LIMIT, _REVERSE,
    from_store=lambda page: ([item.to_item() for item in page[0]], page[1]), from_json=_page("items", Item.from_json),
)  # fmt: skip
"""The same as Items."""
FIND = Verb(
    "find", "find.find_items", "POST", "/find", Argument("prefix", "body"), Argument("where", "body", _same, encode),
    Argument("limit", "body"), Argument("offset", "body"),
    from_store=lambda found: [item.to_item() for item in found], from_json=_each("items", Item.from_json),
)  # fmt: skip
SET = Verb(
    "set", "items.set_item", "PUT", "/items/{key}", _KEY, _VALUE, Argument("ttl", "body"), _IF_VERSION,
    from_store=_first, from_json=field("version", int), writes=True, queueable=True, in_transaction=True,
)  # fmt: skip
DELETE = Verb(
    "delete", "items.delete_item", "DELETE", "/items/{key}", _KEY, _IF_VERSION,
    from_store=_first, from_json=_no_content, missing=False, writes=True, queueable=True, in_transaction=True,
)  # fmt: skip
UPDATE = Verb(
    "update", "items.update_items", "PATCH", "/items", Argument("values", "body", _dump_mapping, _load_mapping),
    Argument("if_versions", "body"), Argument("ttl", "body"),
    from_store=_first, from_json=field("updated", int), writes=True, queueable=True, in_transaction=True,
)  # fmt: skip
MERGE = Verb(
    "merge", "items.merge_item", "PATCH", "/items/{key}", _KEY, Argument("fields", "body", _same, encode),
    from_store=_first, from_json=field("version", int), writes=True, queueable=True, in_transaction=True,
)  # fmt: skip
TOUCH = Verb(
    "touch", "items.touch_item", "PUT", "/expiries/{key}", _KEY, Argument("ttl", "body", sends_null=True),
    from_store=_first, from_json=_no_content, missing=False, writes=True, in_transaction=True,
)  # fmt: skip
INCR = Verb(
    "incr", "items.increment", "POST", "/counters/{key}", _KEY, Argument("by", "body"),
    from_store=_first, from_json=field("value", int, float), writes=True, in_transaction=True,
)  # fmt: skip
CLEAR = Verb(
    "clear", "notes.clear", "DELETE", "", _PREFIX,
    from_store=_first, from_json=field("deleted", int), writes=True, in_transaction=True,
)  # fmt: skip

APPEND = Verb(
    "append", "lists.append_items", "POST", "/lists/{key}", _KEY, _ITEMS,
    from_store=_first, from_json=field("length", int), writes=True, queueable=True, in_transaction=True,
)  # fmt: skip
TAIL = Verb(
    "tail", "lists.read_tail", "GET", "/lists/{key}", _KEY, Argument("tail", "query"),
    from_store=_decode_all, from_json=field("items", list),
)  # fmt: skip
SLICE = Verb(
    "slice", "lists.read_slice", "GET", "/slices/{key}", _KEY, Argument("start", "query"), Argument("stop", "query"),
    from_store=_decode_all, from_json=field("items", list),
)  # fmt: skip
LENGTH = Verb(
    "length", "lists.find_length", "GET", "/lengths/{key}", _KEY,
    from_json=field("length", int),
)  # fmt: skip
POP = Verb(
    "pop", "lists.pop_items", "DELETE", "/lists/{key}", _KEY, Argument("n", "query"), _FIRST,
    from_store=lambda result: _decode_all(result[0]), from_json=field("items", list), writes=True,
    in_transaction=True,
)  # fmt: skip

REMEMBER = Verb(
    "remember", "notes.remember", "POST", "/notes", _NOTE,
    from_store=_first, from_json=Note.from_json, writes=True, queueable=True, in_transaction=True,
)  # fmt: skip
RECALL = Verb(
    "recall", "notes.recall", "POST", "/notes/recall", Argument("query", "object", _dump_query),
    from_json=_each("notes", Note.from_json),
)  # fmt: skip
SEARCH = Verb(
    "search", "search.search", "POST", "/search",
    Argument("query", "body"), Argument("prefix", "body"), Argument("limit", "body"),
    from_json=_each("matches", Match.from_json),
)  # fmt: skip
NOTES = Verb(
    "notes", "notes.list_notes", "GET", "/notes",
    Argument("type", "query"), Argument("tag", "query"), Argument("session", "query"), _AFTER, _LIMIT,
    from_json=_each("notes", Note.from_json),
)  # fmt: skip
FORGET = Verb(
    "forget", "notes.forget", "DELETE", "/notes/{key}", _KEY,
    from_store=_first, from_json=_no_content, missing=False, writes=True, in_transaction=True,
)  # fmt: skip

CONVERSATIONS = Verb(
    "conversations", "conversations.list_conversations", "GET", "/conversations",
    Argument("session", "query"), _AFTER, _LIMIT,
    from_json=_page("conversations", Conversation.from_json),
)  # fmt: skip
CONVERSATION = Verb(
    "conversation", "conversations.read_conversation", "GET", "/conversations/{key}",
    _KEY, _LIMIT, Argument("before", "query"), _AFTER, Argument("search", "query"),
    from_json=_each("messages", Message.from_json),
)  # fmt: skip
FORGET_SESSION = Verb(
    "forget_session", "conversations.forget_session", "DELETE", "/sessions/{key}", _KEY,
    from_store=_first, from_json=field("deleted", int), writes=True, in_transaction=True,
)  # fmt: skip

TRANSACTION = Verb(
    "transaction", "transaction.run_all", "POST", "/transaction",
    Argument("commands", "body", _dump_commands, _load_commands),
    from_store=_first, from_json=field("results", list), writes=True, queueable=True,
)  # fmt: skip
"""Its commands are in the namespace of the transaction, whatever their own says."""

CHANGES = Verb(
    "changes", "changes.read_changes", "GET", "/changes", _PREFIX, _AFTER, Argument("wait", "query"),
    from_json=_changes,
)  # fmt: skip
AUDIT = Verb(
    "audit", "changes.read_audit", "GET", "/v1/audit",
    Argument("namespace", "query"), Argument("since", "query"), _AFTER,
    from_json=lambda data: (_each("changes", Change.from_json)(data), field("cursor", str)(data)),
)  # fmt: skip
USAGE = Verb(
    "usage", "usage.read_usage", "GET", "/usage",
    from_json=Usage.from_json,
)  # fmt: skip
SET_QUOTA = Verb(
    "set_quota", "usage.set_quota", "PATCH", "/quota", Argument("limits", "object"),
    from_json=Usage.from_json, writes=True,
)  # fmt: skip
NAMESPACES = Verb(
    "namespaces", "usage.list_namespaces", "GET", "/v1/namespaces",
    from_json=field("namespaces", list),
)  # fmt: skip

ISSUE_KEY = Verb(
    "issue_key", "api_keys.issue", "POST", "/v1/apikeys",
    Argument("name", "body"), Argument("namespaces", "body"), Argument("read_only", "body"), Argument("admin", "body"),
    Argument("limits", "body"), Argument("exact", "body"),
    from_json=IssuedKey.from_json, writes=True,
)  # fmt: skip
API_KEYS = Verb(
    "api_keys", "api_keys.list_all", "GET", "/v1/apikeys",
    from_json=_each("apikeys", ApiKey.from_json),
)  # fmt: skip
SET_KEY_QUOTA = Verb(
    "set_key_quota", "api_keys.set_quota", "PATCH", "/v1/apikeys/{id}",
    Argument("id", "path"), Argument("limits", "object"),
    from_json=ApiKey.from_json, missing=None, writes=True,
)  # fmt: skip
ROTATE_KEY = Verb(
    "rotate_key", "api_keys.rotate", "POST", "/v1/apikeys/{id}/rotate", Argument("id", "path"),
    from_json=field("key", str), missing=None, writes=True,
)  # fmt: skip
REVOKE_KEY = Verb(
    "revoke_key", "api_keys.revoke", "DELETE", "/v1/apikeys/{id}", Argument("id", "path"),
    Argument("forget", "query"),
    from_json=_no_content, missing=False, writes=True,
)  # fmt: skip

VERBS = {verb.name: verb for verb in list(globals().values()) if isinstance(verb, Verb)}
"""By name: the queue file stores names."""
