"""How far a command has come, for whoever waits: on stderr, so that what it prints can be piped."""

# ruff: noqa: T201 - this is what it is for

from __future__ import annotations

import sys
import time
from typing import Self

from .names import counted

WIDTH = 40
REDRAW_SECONDS = 0.1
"""On a terminal, a bar."""
REPORT_SECONDS = 10.0
"""Elsewhere, such as in a log, a line; and none for what is done sooner."""


class Progress:
    """Called with how much is done, and of how much."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._is_terminal = sys.stderr.isatty()
        self._pause = REDRAW_SECONDS if self._is_terminal else REPORT_SECONDS
        self._next = time.monotonic() + (0 if self._is_terminal else self._pause)
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._drawn and self._is_terminal:
            print(file=sys.stderr)

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next and not (self._is_terminal and done >= total):
            return
        self._next = now + self._pause
        self._drawn = True
        text = f"{done:,} of {counted(max(done, total), self._unit)}"
        if self._is_terminal:
            bar = "#" * (WIDTH * done // max(done, total, 1))
            text = f"\r[{bar:{WIDTH}}] {text}"
        print(text, end="" if self._is_terminal else "\n", file=sys.stderr, flush=True)
