"""What adapters of frameworks share: the memory that they are given, verbs on a thread, and missing packages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from scrubjay.async_memory import AsyncMemory
from scrubjay.errors import MissingExtra
from scrubjay.memory import Memory
from scrubjay.threads import Threads

T = TypeVar("T")
P = ParamSpec("P")

_threads = Threads()
"""The threads of all adapters."""


def open_memory(memory: Memory | AsyncMemory | str, *, strict: bool = False) -> Memory:
    """The Memory of an adapter: one that it is given, or the namespace of that name, `strict` as Memory takes it."""
    if isinstance(memory, str):
        return Memory(memory, strict=strict)
    return memory._memory if isinstance(memory, AsyncMemory) else memory


async def read(verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a verb on a thread."""
    return await asyncio.wrap_future(_threads.submit(verb, *args, **kwargs))


async def write(verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a verb on a thread to its end, also when the caller is cancelled: then it knows that the write happened.

    Without `asyncio.shield`, which takes a twentieth of the time of a write for the case that is rare.
    """
    work = _threads.submit(verb, *args, **kwargs)
    try:
        return await asyncio.wrap_future(work)
    except asyncio.CancelledError:
        if work.cancelled():  # it had not started
            work = _threads.submit(verb, *args, **kwargs)
        end = asyncio.wrap_future(work)
        while not end.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({end})
        end.exception()
        raise


def missing(extra: str, package: str, error: ImportError) -> MissingExtra:
    """The error for an environment without the framework of an adapter."""
    return MissingExtra(f'this needs {package} ({error}); install it with: pip install "scrubjay[{extra}]"')
