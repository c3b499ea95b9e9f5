"""Chats for the matrix of endings: the same code runs in a process of its own, which may be killed, and in the test."""

import asyncio
import os
import signal

import autogen
from autogen import GroupChatManager, UserProxyAgent

from adapters.models import quiet, says
from scrubjay import Memory, PersistentAgent, PersistentGroupChat


class Broken(Exception):
    """Ends a chat from inside."""


def weather(city: str) -> str:
    if city == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"sunny in {city}"


def chat(model_config, message, *, namespace="matrix", team=False, is_async=False, where=None, breaks=False, **options):
    """One chat of a user and an assistant, alone or in a group of five."""
    memory = Memory(namespace, **(where or {}))
    assistant = quiet(PersistentAgent, "assistant", llm_config=model_config, memory=memory)
    ended = {"is_termination_msg": lambda said: "TERMINATE" in str(said.get("content"))}
    user = quiet(UserProxyAgent, "user", max_consecutive_auto_reply=2, **ended)
    autogen.register_function(weather, caller=assistant, executor=user, description="the weather in a city")
    peer, answering = assistant, user
    if team:
        others = [says(quiet(PersistentAgent, name, memory=memory)) for name in ("critic", "editor", "reader")]
        group = PersistentGroupChat(
            [user, assistant, *others], [], memory=memory, speaker_selection_method="round_robin",
            max_round=options.pop("max_turns", 3) + 1,
        )  # fmt: skip
        peer, answering = GroupChatManager(groupchat=group, llm_config=False, **ended), others[0]
    if breaks:
        answering.register_reply([autogen.Agent, None], _break)
    options = {"message": message, "silent": True, **options}
    if is_async:
        asyncio.run(user.a_initiate_chat(peer, **options))
    else:
        user.initiate_chat(peer, **options)
    return assistant


def _break(recipient, messages=None, sender=None, config=None):
    raise Broken
