"""An MCP server: the memory as tools for any MCP client, over stdio or streamable HTTP.

    {"command": "scrubjay", "args": ["mcp", "--namespace", "me"]}

Tested with mcp 2.1 and 2.3.
"""

from __future__ import annotations

import functools
import json
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

from scrubjay.adapters._framework import missing, write
from scrubjay.errors import InvalidInput, ScrubjayError, repr_short
from scrubjay.memory import Memory
from scrubjay.models import Note
from scrubjay.version import __version__

try:
    import uvicorn
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.mcpserver.tools import Tool
    from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata
    from mcp_types import ToolAnnotations
    from pydantic import ConfigDict, Field, ValidationError
    from starlette.responses import PlainTextResponse
except ImportError as error:
    raise missing("mcp", "the MCP SDK, version 2", error) from error

Where = Annotated[str | None, Field(description="the namespace; without it, the first of those in the instructions")]
QUEUED = "queued; it is stored when the server can be reached"
INSTRUCTIONS = (
    "Memory that persists between conversations. Use `remember` for facts, decisions and preferences worth knowing"
    " later, and `recall` before answering questions about the past. Use `set` and `get` for values that have a name,"
    " and `search` to find words in stored values and conversations."
)
_PROXY_HEADER = re.compile(rb"forwarded|via|x-real-ip|x-forwarded.*")
"""Headers that a proxy adds to the requests that it forwards, as in the service."""
MAX_LISTED = 200
"""Keys that `list` returns at once; its answer says how to get more."""

_READS = ToolAnnotations(read_only_hint=True)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True)
_REPLACES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True)


def make_server(namespaces: Sequence[str], **options: Any) -> MCPServer[Any]:
    """An MCP server whose tools reach these namespaces and nothing else.

    :param namespaces: the names; a tool uses the first one, unless the call names another.
    :param options: arguments of Memory, such as `url` and `path`.
    :raises InvalidInput: if there is no namespace, or a name is not valid.
    """
    if not namespaces:
        raise InvalidInput("an MCP server needs the namespaces that it may use; give at least one")
    tools = _Tools({name: Memory(name, **options) for name in namespaces})
    instructions = f"{INSTRUCTIONS} Namespaces: {', '.join(namespaces)}."
    made = [
        _tool("remember", tools.remember, _ADDS),
        _tool("recall", tools.recall, _READS),
        _tool("forget", tools.forget, _REPLACES),
        _tool("get", tools.get, _READS),
        _tool("set", tools.set, _REPLACES),
        _tool("list", tools.list_keys, _READS),
        _tool("search", tools.search, _READS),
    ]
    return MCPServer("scrubjay", instructions=instructions, version=__version__, log_level="WARNING", tools=made)


class _Tools:
    """The tools; their docstrings and annotations are what the model reads."""

    def __init__(self, memories: Mapping[str, Memory]) -> None:
        self._memories = memories

    def _memory(self, namespace: str | None) -> Memory:
        chosen = next(iter(self._memories)) if namespace is None else namespace
        if chosen not in self._memories:
            raise ToolError(f"there is no namespace {chosen!r} here; use one of: {', '.join(self._memories)}")
        return self._memories[chosen]

    def remember(
        self,
        content: Annotated[str, Field(description="one fact, decision or preference, as a sentence")],
        tags: Annotated[list[str] | None, Field(description="labels to filter by")] = None,
        namespace: Where = None,
    ) -> str:
        """Remember a text, so that `recall` finds it in later conversations."""
        note = self._memory(namespace).remember(content, tags=tags or ())
        return f"remembered as note {note.id}" if note else QUEUED

    def recall(
        self,
        query: Annotated[str, Field(description="a question, in any words")],
        limit: Annotated[int, Field(ge=1, le=100)] = 5,
        namespace: Where = None,
    ) -> str:
        """Find what was remembered, by its words and, with an embedder, by its meaning; best first."""
        notes = self._memory(namespace).recall(query, limit=limit)
        return "\n".join(map(_line, notes)) or f"no note fits {query!r}"

    def forget(
        self,
        note_id: Annotated[str, Field(description="the id of a note, as recall and remember give it")],
        namespace: Where = None,
    ) -> str:
        """Erase a note for good."""
        found = self._memory(namespace).forget(note_id)
        return f"note {note_id} is erased" if found else f"there is no note {note_id}"

    def get(self, key: str, namespace: Where = None) -> str:
        """The value that is stored under a key, as JSON."""
        value = self._memory(namespace).get(key)
        return f"nothing is stored under {key!r}" if value is None else _json(value)

    def set(
        self,
        key: Annotated[str, Field(description="a name, such as user/city")],
        value: Annotated[Any, Field(description="any JSON value; null deletes the key")],
        ttl: Annotated[float | None, Field(description="seconds until it is deleted; without it, never")] = None,
        namespace: Where = None,
    ) -> str:
        """Store a value under a key, in place of what was there."""
        if self._memory(namespace).set(key, value, ttl=ttl) is None:
            return QUEUED
        return f"{key!r} is deleted" if value is None else f"stored under {key!r}"

    def list_keys(
        self,
        prefix: Annotated[str, Field(description="only keys that start with it")] = "",
        after: Annotated[str | None, Field(description="only keys after this one")] = None,
        namespace: Where = None,
    ) -> str:
        """The keys of stored values, in order."""
        keys = [key for key, _ in self._memory(namespace).items(prefix, after=after, limit=MAX_LISTED)]
        more = f"\n… there may be more: list again with after={keys[-1]!r}" if len(keys) == MAX_LISTED else ""
        return ("\n".join(keys) or "no keys") + more

    def search(
        self,
        query: Annotated[str, Field(description="words to find")],
        prefix: Annotated[str, Field(description="only under keys that start with it")] = "",
        limit: Annotated[int, Field(ge=1, le=100)] = 10,
        namespace: Where = None,
    ) -> str:
        """Find words in stored values and conversations; best first."""
        matches = self._memory(namespace).search(query, prefix, limit=limit)
        lines = [f"{match.key}{_position(match.position)}: {_json(match.value)}" for match in matches]
        return "\n".join(lines) or f"nothing stored fits {query!r}"


class _Arguments(FuncMetadata):
    """The arguments of a tool. The SDK reads text that looks like JSON as JSON: "null" would delete a value."""

    def pre_parse_json(self, data: dict[str, Any]) -> dict[str, Any]:
        """The arguments as they were sent, but a list as text, which some clients send, as a list."""
        parsed: dict[str, Any] = super().pre_parse_json(data)
        return {**data, "tags": parsed["tags"]} if "tags" in data else data


class _Tool(Tool):
    """A tool whose errors about its arguments are sentences, without the address of Pydantic's documentation."""

    async def run(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().run(*args, **kwargs)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            problems = error.__cause__.errors(include_url=False)
            raise ToolError("; ".join(map(self._sentence, problems))) from error

    def _sentence(self, problem: Any) -> str:
        first, *indexes = problem["loc"]
        name = f"{first}{''.join(f'[{index}]' for index in indexes)}"
        if problem["type"] == "missing":
            return f"{self.name} needs the argument {name}"
        if problem["type"] == "extra_forbidden":
            takes = ", ".join(self.parameters["properties"])
            return f"{self.name} has no argument {repr_short(name)}; it takes {takes}"
        return f"{name} {problem['msg'].removeprefix('Input ')}, not {repr_short(problem['input'])}"


def _tool(name: str, function: Callable[..., str], hints: ToolAnnotations) -> Tool:
    """A tool that refuses arguments that it does not have."""
    tool = _Tool.from_function(_readable(function), name, annotations=hints, structured_output=False)

    class Strict(tool.fn_metadata.arg_model):  # type: ignore[name-defined]
        model_config = ConfigDict(extra="forbid")

    tool.parameters = Strict.model_json_schema(by_alias=True)
    tool.fn_metadata = _Arguments(arg_model=Strict)
    return tool


def _readable(function: Callable[..., str]) -> Callable[..., Awaitable[str]]:
    """The function on a thread, with errors that the model can read: MCP hides all others from it."""

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> str:
        try:
            return await write(function, *args, **kwargs)
        except ScrubjayError as error:
            raise ToolError(str(error)) from error

    return call


def _line(note: Note) -> str:
    return f"[{note.id}] {note.updated_at:%Y-%m-%d}: {note.content}"


def _position(position: int | None) -> str:
    return "" if position is None else f"[{position}]"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def run(namespaces: Sequence[str], port: int | None, **options: Any) -> None:
    """Serve over stdio, or over HTTP at 127.0.0.1: it has no keys, so that no other machine may reach it."""
    server = make_server(namespaces, **options)
    if port is None:
        server.run("stdio")
    elif 0 <= port < 2**16:
        _check_free(port)
        app = _WithoutProxies(server.streamable_http_app(host="127.0.0.1"))
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", proxy_headers=False)
    else:
        raise InvalidInput(f"port is a number from 0 to 65535, not {repr_short(port)}")


class _WithoutProxies:
    """The application without requests that a reverse proxy has forwarded, which would open it to other machines.

    A proxy that speaks HTTP/1.1 and adds no header cannot be told from a program of this machine.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and _is_forwarded(scope):
            await PlainTextResponse("this server asks for no key, so it answers no proxy", 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _is_forwarded(scope: Any) -> bool:
    names = (name for name, _ in scope["headers"])
    return scope["http_version"] == "1.0" or any(_PROXY_HEADER.fullmatch(name) for name in names)


def _check_free(port: int) -> None:
    """Raise ScrubjayError if a server cannot listen on a port; the SDK would log the system's error alone."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except OSError as error:
        raise ScrubjayError(
            f"cannot listen on 127.0.0.1 port {port}: {error.strerror}; choose another with --port"
        ) from error
