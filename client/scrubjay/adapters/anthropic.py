"""Anthropic's memory tool on a Memory, sync and async: a file is a key, a directory is a prefix.

    client.beta.messages.tool_runner(model=…, messages=…, tools=[ScrubjayMemoryTool("sarah")])

Results and errors have the texts that Claude was trained on. Tested with anthropic 2.10.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from scrubjay.adapters._framework import missing, open_memory, write
from scrubjay.async_memory import AsyncMemory
from scrubjay.errors import Conflict, InvalidInput, QuotaExceeded, ValueTooLarge
from scrubjay.exact_json import byte_size
from scrubjay.memory import Memory

try:
    from anthropic.lib.tools import ToolError
    from anthropic.tools.memory import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool
    from anthropic.types.beta import (
        BetaCacheControlEphemeralParam,
        BetaMemoryTool20250818CreateCommand,
        BetaMemoryTool20250818DeleteCommand,
        BetaMemoryTool20250818InsertCommand,
        BetaMemoryTool20250818RenameCommand,
        BetaMemoryTool20250818StrReplaceCommand,
        BetaMemoryTool20250818ViewCommand,
    )
except ImportError as error:
    raise missing("anthropic", "the Anthropic SDK", error) from error

ROOT = "/memories"
MAX_LINES = 999_999
"""Lines that `view` shows: their numbers have six columns."""
CONTEXT_LINES = 2
"""Lines before and after a replaced text that the model is shown."""
MAX_DEPTH = 2
"""Levels of directories that `view` lists."""


class ScrubjayMemoryTool(BetaAbstractMemoryTool):
    """The memory tool of a synchronous client.

    :param memory: a Memory or AsyncMemory, or the name of a namespace. Open it with `strict=True`: a queued edit would
        be missing when Claude views the file.
    :param cache_control: the SDK's setting for prompt caching.
    """

    def __init__(
        self,
        memory: Memory | AsyncMemory | str = "anthropic",
        *,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._files = _Files(memory)

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        return self._files.view(command)

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        return self._files.create(command)

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        return self._files.str_replace(command)

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        return self._files.insert(command)

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        return self._files.delete(command)

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        return self._files.rename(command)

    def clear_all_memory(self) -> str:
        return self._files.clear()


class ScrubjayAsyncMemoryTool(BetaAsyncAbstractMemoryTool):
    """The memory tool of an asynchronous client; the arguments are those of ScrubjayMemoryTool."""

    def __init__(
        self,
        memory: Memory | AsyncMemory | str = "anthropic",
        *,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._files = _Files(memory)

    async def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        return await write(self._files.view, command)

    async def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        return await write(self._files.create, command)

    async def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        return await write(self._files.str_replace, command)

    async def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        return await write(self._files.insert, command)

    async def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        return await write(self._files.delete, command)

    async def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        return await write(self._files.rename, command)

    async def clear_all_memory(self) -> str:
        return await write(self._files.clear)


class _File(NamedTuple):
    """A file that was read, and the version under which it may be replaced."""

    key: str
    text: str
    version: int


class _Files:
    """The commands of the tool, on the keys of a Memory."""

    def __init__(self, memory: Memory | AsyncMemory | str) -> None:
        self._memory = open_memory(memory, strict=True)

    def view(self, command: Any) -> str:
        key = _key(command.path)
        with _readable_errors():
            text = None if key == _key(ROOT) else self._memory.get(key)
            if text is None:
                return self._view_directory(command.path, key)
        return _view_file(command.path, str(text), command.view_range)

    def _view_directory(self, path: str, key: str) -> str:
        sizes = {
            name.removeprefix(f"{key}/"): byte_size(str(text)) for name, text in self._memory.items(f"{key}/")
        }  # the texts are short: a model writes them
        if not sizes and key != _key(ROOT):
            raise _no_path(path)
        listed: dict[str, int] = {}
        for name, size in sizes.items():
            parts = name.split("/")
            if any(part.startswith(".") for part in parts):
                continue
            for depth in range(1, min(len(parts), MAX_DEPTH) + 1):
                shown = "/".join(parts[:depth]) + ("/" if depth < len(parts) else "")
                listed[shown] = listed.get(shown, 0) + size
        lines = [f"{_size(sum(sizes.values()))}\t{path}"]
        lines += [f"{_size(size)}\t{path.rstrip('/')}/{name}" for name, size in sorted(listed.items())]
        header = f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:"
        return "\n".join([header, *lines])

    def create(self, command: Any) -> str:
        key = _key(command.path)
        exists = ToolError(f"File {command.path} already exists")
        with _readable_errors():
            if key == _key(ROOT) or self._is_directory(key):
                raise exists
            self._check_parents(key)
            try:
                self._memory.set(key, command.file_text, if_version=0)
            except Conflict:
                raise exists from None
        return f"File created successfully at: {command.path}"

    def str_replace(self, command: Any) -> str:
        old, new = command.old_str, command.new_str or ""

        def replace(text: str) -> str:
            if not old:
                raise ToolError("No replacement was performed, old_str is empty.")
            if old not in text:
                raise ToolError(
                    f"No replacement was performed, old_str `{old}` did not appear verbatim in {command.path}."
                )
            if text.count(old) > 1:
                lines = ", ".join(map(str, _lines_with(text, old)))
                raise ToolError(
                    f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: {lines}."
                    " Please ensure it is unique"
                )
            return text.replace(old, new)

        before, after = self._edit(command.path, replace)
        first = before[: before.index(old)].count("\n")
        snippet = _numbered(after, max(first - CONTEXT_LINES, 0), first + new.count("\n") + CONTEXT_LINES + 1)
        edited = "The memory file has been edited. Here is the snippet showing the change (with line numbers):"
        return f"{edited}\n{snippet}"

    def insert(self, command: Any) -> str:
        def insert(text: str) -> str:
            lines = text.removesuffix("\n").split("\n") if text else []
            if not 0 <= command.insert_line <= len(lines):
                raise ToolError(
                    f"Invalid `insert_line` parameter: {command.insert_line}."
                    f" It should be within the range [0, {len(lines)}]."
                )
            lines.insert(command.insert_line, command.insert_text.removesuffix("\n"))
            return "\n".join([*lines, ""])

        self._edit(command.path, insert)
        return f"The file {command.path} has been edited."

    def _edit(self, path: str, change: Callable[[str], str]) -> tuple[str, str]:
        """Change a file, again if another writer has changed it meanwhile; return the text before and after."""
        while True:
            with _readable_errors():
                file = self._read(path)
                text = change(file.text)
                with contextlib.suppress(Conflict):
                    self._memory.set(file.key, text, if_version=file.version)
                    return file.text, text

    def _read(self, path: str) -> _File:
        key = _key(path)
        item = None if key == _key(ROOT) else self._memory.item(key)
        if item is None:
            if key == _key(ROOT) or self._is_directory(key):
                raise ToolError(f"The path {path} is not a file.")
            raise _no_path(path)
        return _File(key, str(item.value), item.version)

    def delete(self, command: Any) -> str:
        key = _key(command.path)
        if key == _key(ROOT):
            raise ToolError(f"Cannot delete the {ROOT} directory itself")
        with _readable_errors():
            if not self._memory.delete(key) and not self._memory.clear(f"{key}/"):
                raise ToolError(f"The path {command.path} does not exist")
        return f"Successfully deleted {command.path}"

    def rename(self, command: Any) -> str:
        old, new = _key(command.old_path), _key(command.new_path)
        if old == _key(ROOT):
            raise ToolError(f"Cannot rename the {ROOT} directory itself")
        exists = ToolError(f"The destination {command.new_path} already exists")
        with _readable_errors():
            if new in self._memory or new == _key(ROOT) or self._is_directory(new):
                raise exists
            file = self._memory.item(old)
            items = [file] if file else list(self._memory.scan(f"{old}/"))
            if not items:
                raise ToolError(f"The path {command.old_path} does not exist")
            if f"{new}/".startswith(f"{old}/"):
                raise ToolError(f"Cannot rename {command.old_path} to a path inside of it")
            self._check_parents(new)
            moved = {new + item.key.removeprefix(old): item.value for item in items}
            versions = {item.key: item.version for item in items} | dict.fromkeys(moved, 0)
            try:
                self._memory.update(moved | dict.fromkeys(item.key for item in items), if_versions=versions)
            except Conflict:
                raise ToolError(f"{command.old_path} or {command.new_path} was changed meanwhile; try again") from None
        return f"Successfully renamed {command.old_path} to {command.new_path}"

    def clear(self) -> str:
        self._memory.clear(f"{_key(ROOT)}/")
        return "All memory cleared"

    def _is_directory(self, key: str) -> bool:
        return any(True for _ in self._memory.items(f"{key}/", limit=1))

    def _check_parents(self, key: str) -> None:
        parts = key.split("/")
        parents = ["/".join(parts[:depth]) for depth in range(2, len(parts))]
        for parent in self._memory.get_many(parents) if parents else ():
            raise ToolError(f"The path /{parent} is a file, not a directory")


def _key(path: str) -> str:
    """The key of a path; raises ToolError if it is not below /memories."""
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        raise ToolError(f"Path must start with {ROOT}, got: {path}")
    normal = posixpath.normpath(path)
    if normal != ROOT and not normal.startswith(f"{ROOT}/"):
        raise ToolError(f"Path {path} would escape {ROOT} directory")
    return normal.removeprefix("/")


def _no_path(path: str) -> ToolError:
    return ToolError(f"The path {path} does not exist. Please provide a valid path.")


@contextlib.contextmanager
def _readable_errors() -> Iterator[None]:
    """What the model can do something about is an error that it reads."""
    try:
        yield
    except (InvalidInput, QuotaExceeded, ValueTooLarge) as error:
        raise ToolError(str(error)) from error


def _view_file(path: str, text: str, wanted: list[int] | None) -> str:
    count = text.count("\n") + 1
    if count > MAX_LINES:
        raise ToolError(f"File {path} exceeds maximum line limit of {MAX_LINES:,} lines.")
    first, last = (wanted[0], wanted[1]) if wanted and len(wanted) == 2 else (1, -1)
    stop = count if last == -1 else last
    return f"Here's the content of {path} with line numbers:\n{_numbered(text, max(first, 1) - 1, stop)}"


def _numbered(text: str, start: int, stop: int) -> str:
    lines = text.split("\n")[start:stop]
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, start + 1))


def _lines_with(text: str, old: str) -> list[int]:
    """The numbers of the lines in which a text starts."""
    found, at = [], text.find(old)
    while at >= 0:
        found.append(text.count("\n", 0, at) + 1)
        at = text.find(old, at + len(old))
    return found


def _size(count: int) -> str:
    """Bytes for people: 0B, 17B, 1.5K."""
    units = iter("BKMG")
    size, unit = float(count), next(units)
    for larger in units:
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f}".removesuffix(".0") + unit
