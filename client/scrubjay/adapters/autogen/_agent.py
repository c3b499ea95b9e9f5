"""PersistentAgent: a ConversableAgent whose conversations continue in the next process.

AutoGen calls `_append_oai_message` for every message on every path, sync and async: there an agent's messages are
saved, each in one transaction. It calls `_generate_oai_reply_from_client` for every request to a model: there the
messages are bounded, and tool calls get the results that they lack.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

from autogen import ConversableAgent

from scrubjay.adapters._messages import Message
from scrubjay.adapters._sessions import Session, is_on_event_loop
from scrubjay.adapters.autogen._agent_part import AgentPart
from scrubjay.adapters.autogen._caller import Caller, find_caller, read_append
from scrubjay.adapters.autogen._conversations import Conversations, conversations_of
from scrubjay.adapters.autogen._persistent import PersistentMixin, add_signature, owns_record, warn_of_own_attributes
from scrubjay.conversations import DEFAULT
from scrubjay.errors import InvalidInput
from scrubjay.learning import check_model
from scrubjay.memory import Memory

log = logging.getLogger("scrubjay")


class AfterSaving:
    """Stands for the recipient of a message that is being saved while an event loop runs.

    AutoGen appends a message to its history and hands it over in one step. The recipient gets it when it is saved, so
    that no agent answers a message that a killed process loses.
    """

    def __init__(self, recipient: Any, session: Session) -> None:
        self.recipient = recipient
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self.recipient, name)

    def receive(self, *args: Any, **kwargs: Any) -> Any:
        self._session.wait()
        return self.recipient.receive(*args, **kwargs)

    async def a_receive(self, *args: Any, **kwargs: Any) -> Any:
        await self._session.wait_async()
        return await self.recipient.a_receive(*args, **kwargs)


class PersistentAgent(ConversableAgent, PersistentMixin):
    """A ConversableAgent that continues its conversations, in another process as in the same one.

    It takes the arguments of ConversableAgent, and these:

    :param memory: a Memory, or the name of a namespace; by default a namespace made of the project (the
        folder of the program, or SCRUBJAY_PROJECT) and the agent's name.
    :param session: keeps several conversations in one memory apart, such as those of several users.
    :param max_messages: how many messages the model is sent at most; all are stored.
    :param max_tokens: the same in tokens, estimated; by default three quarters of the model's context window, if
        AutoGen knows the model.
    :param recall: before each reply, put notes of the memory about the last message into the prompt.
    :param remember: store each message as a note, too, for `recall`.
    :param learn: True to let the agent's own model turn what is new in the conversation into notes, for `recall`, or a
        function that is given a prompt and returns a model's answer. That is done in the background when a chat ends
        and every 20 messages, and costs at most SCRUBJAY_LEARN_TOKENS a day.
    :param resume: start with the stored conversations; with False they stay stored, and the agent starts empty.
    :raises Unauthenticated, Forbidden: if the api key of the memory may not write to it.
    :raises InvalidInput: if `conversation_history` in the memory is a value of your own, or `learn=True` is given
        without an `llm_config`.

    What cannot be stored at once is queued in a file on this machine and sent later (see `Memory`); an error is logged
    if that fails, too. With a Memory that is `strict`, a history that cannot be read raises Unavailable.
    """

    name: str
    _oai_messages: dict[Any, list[Message]]
    _scrubjay: AgentPart

    @add_signature(ConversableAgent)
    def __init__(
        self,
        name: str,
        *args: Any,
        memory: Memory | str | None = None,
        session: str = DEFAULT,
        max_messages: int | None = None,
        max_tokens: int | None = None,
        recall: bool = False,
        remember: bool = False,
        learn: bool | Callable[[str], str] = False,
        resume: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, *args, **kwargs)
        limits = {"max_messages": max_messages, "max_tokens": max_tokens}
        start_agent(self, memory, session, recall=recall, remember=remember, learn=learn, resume=resume, **limits)
        warn_of_own_attributes(self)

    def _append_oai_message(self, *args: Any, **kwargs: Any) -> bool:
        args, kwargs = _with_recipient(args, kwargs)
        appended: bool = super()._append_oai_message(*args, **kwargs)
        if appended and "_scrubjay" in vars(self):
            peer, sending = read_append(args, kwargs)
            try:
                self._scrubjay.save(self._oai_messages[peer], peer, sending=sending)
            except Exception:  # saving never breaks a chat, and a defect of ours least of all
                log.exception("a message of %r is not saved", self.name)
        return appended

    def _process_message_before_send(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = _with_recipient(args, kwargs)
        return super()._process_message_before_send(*args, **kwargs)

    def _generate_oai_reply_from_client(self, llm_client: Any, messages: Any, cache: Any, **kwargs: Any) -> Any:
        sent = self._scrubjay.for_model(messages, llm_client)
        return super()._generate_oai_reply_from_client(llm_client, sent, cache, **kwargs)

    def chat_messages_for_summary(self, agent: Any) -> list[Message]:
        """The messages of this chat, for a summary by a model; earlier chats are not part of it."""
        return self._scrubjay.for_summary(self._oai_messages[agent], agent, getattr(self, "client", None))

    def receive(self, message: Any, sender: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Receive a message; without a sender it is from an anonymous agent named "user"."""
        sender = sender or self._scrubjay.anonymous_user
        with self._scrubjay.talk(conversations_of(self), sender):
            self._scrubjay.read_for_reply(self, sender)
            return super().receive(message, sender, *args, **kwargs)

    async def a_receive(self, message: Any, sender: Any = None, *args: Any, **kwargs: Any) -> Any:
        sender = sender or self._scrubjay.anonymous_user
        await self._scrubjay_restore(sender)
        with self._scrubjay.talk(conversations_of(self), sender):
            if self._scrubjay.has_earlier(sender):
                await asyncio.to_thread(self._scrubjay.read_for_reply, self, sender)
            result = await super().a_receive(message, sender, *args, **kwargs)
        await self._scrubjay.session.wait_async()
        return result

    def send(self, message: Any, recipient: Any, *args: Any, **kwargs: Any) -> Any:
        """Send a message; the recipient gets it when it is saved."""
        if is_on_event_loop():
            recipient = AfterSaving(recipient, self._scrubjay.session)
        return super().send(message, recipient, *args, **kwargs)

    async def a_send(self, message: Any, recipient: Any, *args: Any, **kwargs: Any) -> Any:
        await self._scrubjay_restore(recipient)
        waiting = AfterSaving(recipient, self._scrubjay.session)
        return await super().a_send(message, waiting, *args, **kwargs)

    async def _scrubjay_restore(self, peer: Any) -> None:
        """Read the messages for a peer without holding up the event loop: they may come from a server."""
        conversations, part = conversations_of(self), self._scrubjay
        if not conversations.knows(peer):
            await asyncio.to_thread(lambda: conversations[peer])
        elif part.lacks_stored(peer):
            await asyncio.to_thread(part.record(peer).catch_up, conversations[peer])

    def generate_reply(self, messages: Any = None, sender: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Generate a reply; the message is saved before."""
        part = self._scrubjay
        part.session.wait()
        if sender is not None:
            if part.is_changed_elsewhere(sender):
                part.notice(self, sender)
            part.read_for_reply(self, sender)
        return super().generate_reply(messages, sender, *args, **kwargs)

    async def a_generate_reply(self, messages: Any = None, sender: Any = None, *args: Any, **kwargs: Any) -> Any:
        part = self._scrubjay
        await part.session.wait_async()
        if sender is not None and part.is_changed_elsewhere(sender):
            await asyncio.to_thread(part.notice, self, sender)
        if sender is not None and part.has_earlier(sender):
            await asyncio.to_thread(part.read_for_reply, self, sender)
        if part.with_context in self.hook_lists["process_all_messages_before_reply"]:
            about = messages if messages is not None else self._oai_messages[sender]
            await asyncio.to_thread(part.recall_ahead, about)
        return await super().a_generate_reply(messages, sender, *args, **kwargs)

    def initiate_chat(self, recipient: Any, *args: Any, **kwargs: Any) -> Any:
        """Start a chat. With `clear_history=True` written out, it starts empty; what is stored stays."""
        result = super().initiate_chat(recipient, *args, **kwargs)
        self._scrubjay.learn()
        self._scrubjay.read_earlier(conversations_of(self), recipient)  # the list is result.chat_history
        return result

    async def a_initiate_chat(self, recipient: Any, *args: Any, **kwargs: Any) -> Any:
        result = await super().a_initiate_chat(recipient, *args, **kwargs)
        await self._scrubjay.session.wait_async()
        self._scrubjay.learn()
        await asyncio.to_thread(self._scrubjay.read_earlier, conversations_of(self), recipient)
        return result

    def clear_history(self, recipient: Any = None, *args: Any, **kwargs: Any) -> None:
        """Clear the agent's conversations with the recipient, or all: no model is sent them again, in any process.

        `conversation_history` and `history()` keep them until `forget`. AutoGen itself calls this, too. At the start of
        a chat that does nothing; elsewhere it clears the messages in this process, and what is stored stays.
        """
        caller, manager = find_caller(sys._getframe(1))
        if caller is Caller.RESUME:
            self._scrubjay.await_replay(conversations_of(self), manager)
        elif caller in _STARTS_OF_CHATS and not owns_record(recipient):
            if caller is Caller.START_OF_EMPTY_CHAT:
                self._scrubjay.empty(conversations_of(self), recipient)
            self._scrubjay.start_chat(conversations_of(self), recipient)
        else:
            keeps_some = any((*args, *kwargs.values()))
            if keeps_some:
                conversations_of(self).read_all()
            super().clear_history(recipient, *args, **kwargs)
            if caller is Caller.USER:
                self._scrubjay.erase(conversations_of(self), recipient, keeps_some=keeps_some)
            elif caller is Caller.AUTOGEN:
                self._scrubjay.hide(recipient)


def start_agent(
    agent: Any,
    memory: Memory | str | None,
    session: str,
    *,
    recall: bool = False,
    remember: bool = False,
    learn: bool | Callable[[str], str] = False,
    resume: bool = True,
    **limits: int | None,
) -> None:
    """Give an agent its session; `agent` is a PersistentAgent that has none so far."""
    model = model_of(agent) if learn is True else learn or None
    if model is not None:
        check_model(model)
    part = AgentPart(agent.name, memory, session, remember=remember, resume=resume, learn_with=model, **limits)
    said, agent._oai_messages = agent._oai_messages, Conversations(agent)
    part.attach(agent)
    for peer, messages in said.items():
        part.take_over(agent._oai_messages, peer, list(messages))
    if recall:
        agent.register_hook("process_all_messages_before_reply", part.with_context)


def model_of(agent: Any) -> Callable[[str], str]:
    """A function that asks the model of an agent."""
    if getattr(agent, "client", None) is None:
        raise InvalidInput(
            f"learn=True asks the model of {agent.name!r}, which has no llm_config; give it one, or learn=f with a"
            " function that is given a prompt and returns a model's answer"
        )

    def ask(prompt: str) -> str:
        config = agent.llm_config or {}
        # The agent's tools are sent with every request of its client; none is to be called here.
        without = {"tool_choice": "none"} if config.get("tools") else {}
        without |= {"function_call": "none"} if config.get("functions") else {}
        client = agent.client
        answer = client.create(messages=[{"role": "user", "content": prompt}], cache=None, **without)
        found = client.extract_text_or_completion_object(answer)
        return str(found[0]) if found else ""

    return ask


def _with_recipient(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with the recipient itself in place of an AfterSaving."""
    if not any(type(arg) is AfterSaving for arg in (*args, *kwargs.values())):
        return args, kwargs
    given = tuple(arg.recipient if type(arg) is AfterSaving else arg for arg in args)
    return given, {name: arg.recipient if type(arg) is AfterSaving else arg for name, arg in kwargs.items()}


_STARTS_OF_CHATS = (Caller.START_OF_CHAT, Caller.START_OF_EMPTY_CHAT)
