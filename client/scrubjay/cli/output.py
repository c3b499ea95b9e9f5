"""The output of commands: JSON for programs; aligned columns, sizes and times for people.

Colours are for terminals only, and come from rich, which `scrubjay[server]` installs; without it the text is plain.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from scrubjay.cli.visible import visible

NUMBER_ALIGN = ">"
_SIZES = ("bytes", "kB", "MB", "GB", "TB")
_AGES = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class Column(NamedTuple):
    """A column of a table: its heading, and the cell that it makes of a record."""

    heading: str
    cell: Callable[[Any], str]
    align: str = "<"


class Report:
    """What a command has done: lines for people as it goes on, or one JSON object when it has ended.

    Each call is one line with the fields that say the same; a field that is a list grows with each call.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.is_json: bool = arguments.json
        self._fields: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_rest: object) -> None:
        if self.is_json and error is None:
            print_json(self._fields)

    def __call__(self, text: str = "", **fields: Any) -> None:
        for name, value in fields.items():
            known = self._fields.get(name)
            self._fields[name] = [*known, *value] if isinstance(known, list) else value
        if text and not self.is_json:
            print(text)


def print_json(value: Any) -> None:
    """JSON on one line; on a terminal over several, in colours."""
    if not sys.stdout.isatty():
        print(json.dumps(value, ensure_ascii=False))
    elif console := _console():
        console.print_json(json.dumps(value, ensure_ascii=False))
    else:
        print(json.dumps(value, ensure_ascii=False, indent=2))


def print_records(
    arguments: argparse.Namespace, records: Iterable[Any], *columns: Column, empty: str, name: str = ""
) -> None:
    """Print a table, or one JSON object a line with --json; say on stderr what is empty.

    Headings are printed on a terminal only: a script that reads the lines need not skip one.
    """
    found = list(records)
    if arguments.json:
        for record in found:
            print(json.dumps(record.to_json() if hasattr(record, "to_json") else record, ensure_ascii=False))
    elif found:
        _print_table([[column.cell(record) for column in columns] for record in found], columns, name)
    else:
        note(empty)


def print_lines(arguments: argparse.Namespace, texts: Iterable[str], *, empty: str) -> None:
    """Print one text a line, as JSON with --json; say on stderr what is empty."""
    is_empty = True
    for text in texts:
        is_empty = False
        print(json.dumps(text, ensure_ascii=False) if arguments.json else printable(text))
    if is_empty and not arguments.json:
        note(empty)


def note(text: str) -> None:
    """A remark for the person at the terminal, on stderr: it is not part of the result."""
    print(text, file=sys.stderr)


def printable(text: str) -> str:
    """A text on one line; as a string of JSON if it has line breaks, tabs or invisible characters."""
    is_plain = "\n" not in text and "\t" not in text and visible(text) == text
    return text if is_plain else visible(json.dumps(text, ensure_ascii=False))


def _print_table(rows: Sequence[Sequence[str]], columns: Sequence[Column], name: str) -> None:
    is_terminal = sys.stdout.isatty()
    if is_terminal and (console := _console()):
        console.print(_rich_table(rows, columns, name))
        return
    lines = [[column.heading for column in columns], *rows] if is_terminal else list(rows)
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = (f"{cell:{column.align}{width}}" for cell, column, width in zip(line, columns, widths, strict=True))
        print("  ".join(cells).rstrip())


def _rich_table(rows: Sequence[Sequence[str]], columns: Sequence[Column], name: str) -> Any:
    from rich.table import Table  # noqa: PLC0415 - only on a terminal
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold", title=name or None, title_justify="left")
    for column in columns:
        table.add_column(column.heading, justify="right" if column.align == NUMBER_ALIGN else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # Text: a cell with [brackets] is not markup
    return table


def _console() -> Any:
    """The console of rich for stdout; None if rich is not installed."""
    try:
        from rich.console import Console  # noqa: PLC0415 - it takes longer to import than a command to run
    except ImportError:
        return None
    return Console(highlight=False, soft_wrap=False)


# ------------------------------------------------------------ sizes and times


def format_size(size: float) -> str:
    """A number of bytes for people, such as 1.2 MB; the units are those that --max-bytes takes."""
    unit = 0
    while round(size, 1) >= 1000 and unit + 1 < len(_SIZES):
        size, unit = size / 1000, unit + 1
    if unit == 0:
        return "1 byte" if size == 1 else f"{size:.0f} bytes"
    return f"{size:.1f} {_SIZES[unit]}"


def format_duration(seconds: float) -> str:
    """A duration for people: its two largest units, such as 3 h 20 min."""
    left, parts = round(max(seconds, 0)), []
    for length, unit in _AGES:
        if left >= length:
            parts.append(f"{left // length} {unit}")
            left %= length
    return " ".join(parts[:2]) or "0 s"


def format_age(moment: datetime) -> str:
    """How long ago a moment was, in its largest unit: 5 min ago."""
    passed = (datetime.now(UTC) - moment).total_seconds()
    for length, unit in _AGES:
        if passed >= length:
            return f"{passed // length:.0f} {unit} ago"
    return "now"
