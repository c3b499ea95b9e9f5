"""What persistent agents and group chats have in common."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

from autogen import GroupChatManager

from scrubjay.adapters._names import default_namespace
from scrubjay.adapters._project import project_name
from scrubjay.adapters._sessions import Session
from scrubjay.adapters._state import State
from scrubjay.errors import InvalidInput, repr_short
from scrubjay.memory import Memory

Init = TypeVar("Init", bound=Callable[..., None])

log = logging.getLogger("scrubjay")

_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Part:
    """A part of `_scrubjay` as an attribute of the object, which an attribute of the user's own may hide."""

    def __init__(self, name: str, doc: str) -> None:
        self._name = self.__name__ = name  # AutoGen's decorators for optional imports want the name
        self.__doc__ = doc

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else getattr(owner._scrubjay, self._name)


class StatePart(Part):
    """The state, whose values an assigned mapping replaces. Anything else is an attribute of the user's own."""

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        own = {} if owner is None else vars(owner)
        return own[self._name] if self._name in own else super().__get__(owner, kind)

    def __set__(self, owner: Any, value: Any) -> None:
        own = vars(owner)
        if isinstance(value, Mapping) and "_scrubjay" in own and self._name not in own:
            owner._scrubjay.state.assign(value)
            return
        is_new = "_scrubjay" in own and self._name not in own
        own[self._name] = value
        if is_new:
            warn_of_own_attributes(owner)

    def __delete__(self, owner: Any) -> None:
        if self._name not in vars(owner):
            raise AttributeError(f"{self._name} cannot be deleted; {self._name}.clear() deletes its values")
        del vars(owner)[self._name]


class PersistentMixin:
    """A session of a memory. All that it needs is in `_scrubjay`; the other names are for the user.

    A class or an object that has an attribute of one of these names keeps it.
    """

    _scrubjay: Any
    PUBLIC: ClassVar = ("memory", "session", "state", "unsaved", "history", "sessions", "forget", "refresh")

    memory: Memory = Part("memory", "The Memory that the messages are saved in.")  # type: ignore[assignment]
    session: str = Part("session_name", "The name of the session.")  # type: ignore[assignment]
    state: State = StatePart("state", str(State.__doc__))  # type: ignore[assignment]
    unsaved: int = Part("unsaved", "How many writes are queued; 0 is the normal state.")  # type: ignore[assignment]

    def history(self) -> list[dict[str, Any]]:
        """Return the conversation of this session, oldest first: each line has `id`, `sender`, `message` and `time`.

        It has the other fields of `Memory.conversation` as well: `role`, `tool_calls`, `tool_results` and `position`.

        :raises Unavailable: when the memory cannot be read.
        """
        lines: list[dict[str, Any]] = self._scrubjay.history()
        return lines

    def sessions(self) -> list[str]:
        """Return the sessions of this memory that have something stored."""
        names: list[str] = self._scrubjay.session.sessions()
        return names

    def forget(self, session: str | None = None) -> int:
        """Erase a session, this one unless another is named, and return how many items and notes it had.

        All agents and group chats of this process that are in that session start empty. What you have stored in the
        same memory under keys of your own stays.

        :raises Unavailable: when the memory cannot be reached, or has queued writes for several sessions at once.
        """
        own: Session = self._scrubjay.session
        name = own.name if session is None else session
        erased = own.forget(name)
        for reference in _owners.valuerefs():  # a list of its own, whatever other threads do
            owner = reference()
            if owner is not None and owner._scrubjay.session.is_same_as(own, name):
                owner._scrubjay.start_empty(owner)
        return erased

    def refresh(self) -> int:
        """Read what other processes have saved in this session meanwhile, and return how many messages that were."""
        count: int = self._scrubjay.refresh(self)
        return count

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called for a copy, which `forget` has to find as well."""
        self.__dict__.update(state)
        _owners[id(self)] = self


class SessionPart:
    """What an agent or a group chat has in a session: the `_scrubjay` of its owner."""

    __slots__ = ("__dict__", "first_length", "session", "state")  # AutoGen's logger shows vars(), which is empty

    def __init__(self, memory: Memory | str | None, name: str, session: str, messages: str, state_owner: str) -> None:
        """`name` is a part of the namespace that is used without a memory, `messages` the list that people read."""
        self.session = Session(open_memory(memory, default_namespace("autogen", name)), session)
        self.first_length = self.session.check_list(messages)
        """How many messages were stored at the start; None if that could not be read."""
        self.state = State(self.session, state_owner)
        if memory is None and self.first_length == 0:
            _announce(self.memory)

    def attach(self, owner: PersistentMixin) -> None:
        """Make it the `_scrubjay` of its owner."""
        owner._scrubjay = self
        _owners[id(owner)] = owner

    @property
    def memory(self) -> Memory:
        return self.session.memory

    @property
    def session_name(self) -> str:
        return self.session.name

    @property
    def unsaved(self) -> int:
        return self.session.unsaved

    def start_empty(self, owner: Any) -> None:
        """Drop the messages of the owner, which are erased."""
        raise NotImplementedError


_owners: WeakValueDictionary[int, PersistentMixin] = WeakValueDictionary()
"""By identity: a group chat has no hash."""


_announced: set[str] = set()
"""Projects whose namespaces this process has named in the log."""


def _announce(memory: Memory) -> None:
    """Say where agents without a memory are saved, when one of a project is used for the first time."""
    project = project_name()
    if project not in _announced:
        _announced.add(project)
        log.warning(
            "conversations are saved in %r, and those of other agents in namespaces of their own; the project %r is the"
            " folder of the program. Choose another namespace with memory=, or name the project with SCRUBJAY_PROJECT",
            memory, project,
        )  # fmt: skip


def open_memory(memory: Memory | str | None, namespace: str) -> Memory:
    """The memory that a user may give as `memory=`: a Memory, a namespace, or nothing."""
    if isinstance(memory, Memory):
        return memory
    if memory is None or isinstance(memory, str):
        return Memory(namespace if memory is None else memory)
    raise InvalidInput(f"memory= takes a Memory or a namespace, not {repr_short(memory)}")


def is_persistent(thing: Any) -> bool:
    """Whether it is one of ours; a mock of one says so to isinstance."""
    return PersistentMixin in type(thing).__mro__


def is_manager(thing: Any) -> bool:
    """Whether it is a GroupChatManager; isinstance takes ten times as long for classes that are protocols."""
    return GroupChatManager in type(thing).__mro__


def owns_record(peer: Any) -> bool:
    """Whether the conversation with the peer is a persistent group chat, which saves and restores it itself."""
    return is_manager(peer) and is_persistent(peer.groupchat)


def add_signature(base: Any) -> Callable[[Init], Init]:
    """Let help() and editors show the arguments of AutoGen's class, too, whichever its version has."""

    def decorate(init: Init) -> Init:
        theirs, own = inspect.signature(base.__init__), inspect.signature(init)
        named = {name: given for name, given in own.parameters.items() if given.kind not in _REST}
        parameters = sorted((theirs.parameters | named).values(), key=lambda given: given.kind)
        vars(init)["__signature__"] = own.replace(parameters=parameters)
        return init

    return decorate


def change_class(
    thing: Any, kind: type, start: Any, memory: Memory | str | None, session: str, options: dict[str, Any]
) -> Any:
    """Make an object that exists already one of `kind`, too, and `start` it."""
    own: Any = type(thing)
    thing.__class__ = _persistent_class(own, kind)
    try:
        start(thing, memory, session, **options)
    except BaseException:
        thing.__class__ = own
        raise
    warn_of_hidden_names(thing)
    return thing


@cache
def _persistent_class(own: Any, kind: type) -> type:
    """The persistent version of a class, whose own attributes come before those of PersistentMixin."""
    return type(f"Persistent{own.__name__}", (kind, own), {"__module__": own.__module__})


def warn_of_hidden_names(thing: Any) -> None:
    """Log which attributes of an object and of its class hide ours."""
    _warn_of(thing, [name for name in PersistentMixin.PUBLIC if _is_own(thing, name)])


def warn_of_own_attributes(thing: Any) -> None:
    """Log which attributes of an object hide ours. What a subclass of ours defines is meant to."""
    _warn_of(thing, [name for name in PersistentMixin.PUBLIC if name in vars(thing)])


def _warn_of(thing: Any, hidden: list[str]) -> None:
    if hidden:
        log.warning(
            "%s has attributes of its own with the names %s; those of Scrubjay are in its attribute _scrubjay",
            type(thing).__name__,
            ", ".join(hidden),
        )


def _is_own(thing: Any, name: str) -> bool:
    return name in vars(thing) or getattr(type(thing), name, None) is not getattr(PersistentMixin, name)
