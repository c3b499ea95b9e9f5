"""The conversations of an agent: its messages by peer, as AutoGen has them, and those that are stored."""

from __future__ import annotations

import sys
from collections.abc import Iterator, KeysView
from typing import Any

from scrubjay.adapters._messages import Message
from scrubjay.adapters._names import join_names
from scrubjay.adapters.autogen._caller import is_outside
from scrubjay.adapters.autogen._persistent import is_manager


class SavedPeer:
    """Stands for an agent of an earlier process in `chat_messages`, until an agent of that name is used."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<SavedPeer {self.name!r}>"


class Conversations(dict[Any, list[Message]]):
    """An agent's messages by peer, as AutoGen has them, and those that are stored.

    A peer gets the messages that are stored for its name. Iterating includes stored conversations whose peer is not
    known in this process, under a SavedPeer.

    Of a long conversation AutoGen gets the end, as much as a prompt needs; code outside AutoGen gets all of it. Both
    get the same list.
    """

    def __init__(self, agent: Any) -> None:
        super().__init__()
        self._agent = agent

    @property
    def _part(self) -> Any:
        """The AgentPart, which reads what is stored."""
        return self._agent._scrubjay

    def __getitem__(self, peer: Any) -> list[Message]:
        if not self.knows(peer):
            self._restore(peer, is_whole=is_outside(sys._getframe(1)))
        elif self._part.has_earlier(peer) and is_outside(sys._getframe(1)):
            self._part.read_earlier(self, peer)
        return super().__getitem__(peer)

    def _restore(self, peer: Any, *, is_whole: bool) -> None:
        with self._part.session.restoring:
            if not self.knows(peer):
                view = self._part.restore(self._agent, peer, is_whole=is_whole)
                for other in self.known_peers():
                    if isinstance(other, SavedPeer) and other.name == peer_name(peer):
                        del self[other]
                self[peer] = view

    def knows(self, peer: Any) -> bool:
        """Whether this process has the messages for a peer; nothing is read."""
        return super().__contains__(peer)

    def known_peers(self) -> list[Any]:
        return list(super().__iter__())

    def restore_all(self, *, is_whole: bool = False) -> None:
        """Restore the conversations with peers that this process has not used, or the ends of them."""
        known = {peer_name(peer) for peer in self.known_peers()}
        for name in self._part.stored_peers():
            if name not in known:
                self._restore(SavedPeer(name), is_whole=is_whole)

    def read_all(self) -> None:
        """Read all that is stored."""
        self.restore_all(is_whole=True)
        for peer in self.known_peers():
            self._part.read_earlier(self, peer)

    def __contains__(self, peer: object) -> bool:
        if not self.knows(peer) and hasattr(peer, "name") and peer_name(peer) in self._part.stored_peers():
            self[peer]
        return self.knows(peer)

    def get(self, peer: Any, default: Any = None) -> Any:
        if peer not in self:
            return default
        if is_outside(sys._getframe(1)):
            self._part.read_earlier(self, peer)
        return self[peer]

    def __iter__(self) -> Iterator[Any]:
        self.restore_all()
        return super().__iter__()

    def __len__(self) -> int:
        self.restore_all()
        return super().__len__()

    def __bool__(self) -> bool:
        return len(self) > 0

    def keys(self) -> Any:
        return KeysView(self)

    def values(self) -> Any:
        self.read_all()
        return super().values()

    def items(self) -> Any:
        self.read_all()
        return super().items()

    def __repr__(self) -> str:
        self.read_all()
        return super().__repr__()


def conversations_of(agent: Any) -> Conversations:
    found: Any = agent._oai_messages
    return found  # type: ignore[no-any-return]


def peer_name(peer: Any) -> str:
    """The name that a conversation is stored under. Every manager is named chat_manager, so a group chat goes by its
    members.
    """
    name = str(peer.name)
    return f"{name}:{join_names(member_names(peer.groupchat))}" if is_manager(peer) else name


def member_names(group: Any) -> list[str]:
    return sorted(str(agent.name) for agent in group.agents)
