"""Backups in a series: a file for each moment in one folder, of which the newest are kept."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from scrubjay.cli.common import fail
from scrubjay.errors import InvalidInput, ScrubjayError, Unavailable

NAME = "scrubjay-%Y%m%dT%H%M%S.%fZ.db"
"""The name of a backup: the moment when it was begun, in UTC; in this form the order of names is the order of time.
Two backups in a second have two names."""
RETRY_SECONDS = 60.0
"""Seconds until a backup that failed is tried again, if that is sooner than the next one."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_duration(text: str) -> float:
    """Seconds, from 90s, 30m, 1h or 1d."""
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if not match or int(match[1]) == 0:
        raise ValueError(f"{text!r} is not a duration; write 30m, 1h or 1d")
    return float(int(match[1]) * _UNITS[match[2]])


def back_up_once(folder: Path, make: Callable[[Path], None], keep: int | None) -> None:
    """Make one backup in the folder, then delete all but the newest `keep`."""
    make_folder(folder)
    make(folder / f"{datetime.now(UTC):{NAME}}")
    if keep:
        for old in list_backups(folder)[:-keep]:
            old.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make the folder of a series, unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise InvalidInput(f"{folder} is not a folder; name one for the backups") from error
    except OSError as error:
        raise Unavailable(f"cannot make the folder {folder}: {error.strerror}; name one that can be written") from error


def back_up_forever(folder: Path, make: Callable[[Path], None], keep: int | None, every: float) -> None:
    """Make a backup whenever the newest is `every` seconds old, until SIGTERM; one that fails is tried again.

    A folder that cannot be made is an error at once, while the user of the command can see it.
    """
    make_folder(folder)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    wait = _age_left(folder, every)
    while not stop.wait(wait):
        try:
            back_up_once(folder, make, keep)
            wait = _age_left(folder, every)
        except (ScrubjayError, OSError) as error:
            wait = min(every, RETRY_SECONDS)
            fail(f"{error}; the next attempt is in {wait:.0f} seconds", 1)


def list_backups(folder: Path) -> list[Path]:
    """The backups of the series in a folder, the oldest first; other files are not part of it."""
    return sorted(path for path in folder.glob("scrubjay-*.db") if _begun_at(path) is not None)


def _begun_at(path: Path) -> float | None:
    try:
        return datetime.strptime(path.name, NAME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _age_left(folder: Path, every: float) -> float:
    """Seconds until the newest backup is old enough for the next; 0 if there is none."""
    backups = list_backups(folder)
    newest = _begun_at(backups[-1]) if backups else None
    return 0.0 if newest is None else min(max(newest + every - time.time(), 0), every)
