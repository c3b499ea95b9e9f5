"""The progress of a command, on stderr, so that its output can be piped."""

from __future__ import annotations

import sys
import time
from typing import Self

from scrubjay.cli.output import format_duration, format_size
from scrubjay.errors import pluralize

WIDTH = 30
"""Characters of the bar."""
REDRAW_SECONDS = 0.1
"""Seconds between two updates of the bar on a terminal."""
REPORT_SECONDS = 10.0
"""Seconds between two lines in a log; a command that ends sooner prints none."""
MIN_ESTIMATE_SECONDS = 1.0
"""Seconds before the time left is shown: earlier it is mostly wrong."""


class Progress:
    """A progress bar with the time left; call it with the amount done and the total."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._is_terminal = sys.stderr.isatty()
        self._pause = REDRAW_SECONDS if self._is_terminal else REPORT_SECONDS
        self._started = time.monotonic()
        self._next = self._started + (0 if self._is_terminal else self._pause)
        self._drawn = 0

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
        text = f"{self._amount(done, max(done, total))}{self._time_left(done, total, now - self._started)}"
        if self._is_terminal:
            bar = "#" * (WIDTH * done // max(done, total, 1))
            text = f"\r[{bar:{WIDTH}}] {text:{self._drawn}}"  # as long as the last one, to cover it
        self._drawn = len(text)
        print(text, end="" if self._is_terminal else "\n", file=sys.stderr, flush=True)

    def _amount(self, done: int, total: int) -> str:
        if self._unit == "byte":
            return f"{format_size(done)} of {format_size(total)}"
        return f"{done:,} of {pluralize(total, self._unit)}"

    @staticmethod
    def _time_left(done: int, total: int, passed: float) -> str:
        if passed < MIN_ESTIMATE_SECONDS or not 0 < done < total:
            return ""
        return f", {format_duration(passed * (total - done) / done)} left"
