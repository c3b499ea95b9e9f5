"""What a forked child must not share with its parent: database connections, sockets, locks, threads.

`multiprocessing` forks by default on Linux, so an agent's memory is often open when that happens.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()


class Forkable:
    """Something that a child needs anew. `start_anew` makes it, in the constructor and in each child."""

    def start_anew(self) -> None:
        raise NotImplementedError

    def before_fork(self) -> None:
        """Let go of what cannot be taken through a fork."""

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self.start_anew()

    def watch_forks(self) -> None:
        """Call this last in the constructor."""
        _watched.add(self)


def _tell(call: Callable[[Forkable], None]) -> None:
    for thing in list(_watched):
        call(thing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _tell(lambda thing: thing.before_fork()),
        after_in_parent=lambda: _tell(lambda thing: thing.after_fork(in_child=False)),
        after_in_child=lambda: _tell(lambda thing: thing.after_fork(in_child=True)),
    )
