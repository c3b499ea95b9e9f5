"""Limits on the messages that a model is sent: those of the user, or the model's context window."""

from __future__ import annotations

from typing import Any

from autogen import ConversableAgent

from scrubjay.adapters.autogen._caller import is_of_autogen
from scrubjay.validation import check_count

WINDOW_SHARE = 0.75
"""The part of a model's context window that messages may fill by default: tokens are estimated, and the reply, the
system message and the tools need the rest."""
_READING_HOOKS = ("process_all_messages_before_reply", "update_agent_state")
_REPLYING = ("generate_reply", "a_generate_reply")
Limits = tuple[int | None, int | None]
"""How many messages, and how many tokens, a model is sent at most."""


def check_limits(max_messages: int | None, max_tokens: int | None) -> Limits:
    """The limits that a user has given; None is none."""
    for option, limit in (("max_messages", max_messages), ("max_tokens", max_tokens)):
        if limit is not None:
            check_count(option, limit, least=1)
    return max_messages, max_tokens


def needed_by(agent: Any, limits: Limits) -> Limits | None:
    """How many messages a reply of an agent needs at most; None: all, for a program or for a model without a bound.

    An agent without a model whose messages only AutoGen reads needs none.
    """
    if _has_readers(agent):
        return None
    client = getattr(agent, "client", None)
    if client is None:
        return 0, None
    bounds = limits_for(client, limits)
    return None if bounds == (None, None) else bounds


def _has_readers(agent: Any) -> bool:
    """Whether code of the user's reads the messages before a reply: a hook, a reply function or a method."""
    if not isinstance(agent, ConversableAgent):
        return True
    hooks = [hook for name in _READING_HOOKS for hook in agent.hook_lists.get(name, ())]
    functions = [reply["reply_func"] for reply in agent._reply_func_list]
    own = [vars(kind)[name] for kind in type(agent).__mro__ for name in _REPLYING if name in vars(kind)]
    own_part = vars(agent).get("_scrubjay", agent)
    return any(getattr(hook, "__self__", None) is not own_part for hook in hooks) or not all(
        is_of_autogen(function) for function in [*functions, *own]
    )


def limits_for(client: Any, limits: Limits) -> Limits:
    """The limits that a user has given, or that of the model's context window."""
    return limits if limits != (None, None) else (None, _default_max_tokens(client))


def _default_max_tokens(client: Any) -> int | None:
    """A bound from the context window of the client's model; None if AutoGen does not know the model."""
    try:
        from autogen.token_count_utils import get_max_token_limit  # noqa: PLC0415 - it loads tiktoken

        return int(get_max_token_limit(client._config_list[0]["model"]) * WINDOW_SHARE)
    except Exception:  # noqa: BLE001 - each version raises errors of its own for a model that it does not know
        return None
