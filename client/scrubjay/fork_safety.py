"""Fork safety: connections, sockets, locks and threads that a forked child must not share with its parent.

`multiprocessing` forks by default on Linux, so an agent's memory is often open when that happens.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

_registered: weakref.WeakSet[ForkSafe] = weakref.WeakSet()


class ForkSafe:
    """An object whose resources a forked child makes again.

    `reset` makes them, in the constructor and in each child.
    """

    def reset(self) -> None:
        raise NotImplementedError

    def before_fork(self) -> None:
        """Release what must not be open during a fork."""

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self.reset()

    def register_at_fork(self) -> None:
        """Call this last in the constructor."""
        _registered.add(self)


def _notify(call: Callable[[ForkSafe], None]) -> None:
    for thing in list(_registered):
        call(thing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _notify(lambda thing: thing.before_fork()),
        after_in_parent=lambda: _notify(lambda thing: thing.after_fork(in_child=False)),
        after_in_child=lambda: _notify(lambda thing: thing.after_fork(in_child=True)),
    )
