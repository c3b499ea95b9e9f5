"""What a forked child must not share with its parent: database connections, sockets, locks.

`multiprocessing` forks by default on Linux, so an agent's memory is often opened before a fork.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    def after_fork(self) -> None:
        """Start anew in the child, without touching what the parent still uses."""


_objects: weakref.WeakSet[Forkable] = weakref.WeakSet()


def renew_after_fork(thing: Forkable) -> None:
    _objects.add(thing)


def _renew_all() -> None:
    for thing in list(_objects):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
