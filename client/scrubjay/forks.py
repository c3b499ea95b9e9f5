"""What a forked child must not share with its parent: database connections, sockets, locks, threads.

`multiprocessing` forks by default on Linux, so an agent's memory is often open when that happens.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol


class Forkable(Protocol):
    def before_fork(self) -> None:
        """Let go of what cannot be taken through a fork."""

    def after_fork(self, *, in_child: bool) -> None:
        """Go on in the parent, or start anew in the child."""


_objects: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch_forks(thing: Forkable) -> None:
    _objects.add(thing)


def _tell(call: Callable[[Forkable], None]) -> None:
    for thing in list(_objects):
        call(thing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _tell(lambda thing: thing.before_fork()),
        after_in_parent=lambda: _tell(lambda thing: thing.after_fork(in_child=False)),
        after_in_child=lambda: _tell(lambda thing: thing.after_fork(in_child=True)),
    )
