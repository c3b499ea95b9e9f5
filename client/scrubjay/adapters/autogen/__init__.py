"""AutoGen agents and group chats that continue where they stopped, in another process as in the same one.

    assistant = PersistentAgent("assistant", llm_config=...)
    user.initiate_chat(assistant, message="What is my preferred language?", max_turns=1)

Tested with pyautogen 0.2.35 and 0.9, and with autogen 0.14.1.
"""

from __future__ import annotations

from importlib import metadata

from scrubjay.errors import MissingExtra


def _missing(error: ImportError) -> MissingExtra:
    """The error for an environment that has no ConversableAgent, or a broken one."""
    sharing = sorted(set(metadata.packages_distributions().get("autogen", ())))
    if len(sharing) > 1:
        return MissingExtra(
            f"{' and '.join(sharing)} are installed, which overwrite each other's files in the folder autogen"
            f" ({error}); remove them with: pip uninstall -y {' '.join(sharing)}, then install the one that you use"
        )
    installed = [f"{name} {version}" for name in _DISTRIBUTIONS if (version := _version(name))]
    have = f"{' and '.join(installed)} installed, without a ConversableAgent" if installed else "none installed"
    return MissingExtra(
        f"this needs AutoGen's ConversableAgent, and there is {have} ({error});"
        ' install one that has it with: pip install "scrubjay[autogen]"'
    )


_DISTRIBUTIONS = ("pyautogen", "autogen", "ag2", "autogen-agentchat")
"""Packages that have, or had, a module named autogen."""


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


try:
    from autogen import ConversableAgent, GroupChat, GroupChatManager  # noqa: F401 - the classes that we need
except ImportError as error:
    raise _missing(error) from error

from scrubjay.adapters.autogen._agent import PersistentAgent  # noqa: E402 - AutoGen first
from scrubjay.adapters.autogen._group_chat import PersistentGroupChat  # noqa: E402 - AutoGen first
from scrubjay.adapters.autogen._persist import persist, register_memory_tools  # noqa: E402 - AutoGen first

__all__ = ["PersistentAgent", "PersistentGroupChat", "persist", "register_memory_tools"]
