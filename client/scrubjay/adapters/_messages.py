"""Chat messages as every OpenAI-like framework has them: what JSON can carry of one, and how many a model gets."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scrubjay.errors import InvalidInput, ValueTooLarge
from scrubjay.names import MAX_WRITE_BYTES
from scrubjay.recall.context import count_tokens
from scrubjay.values import MAX_DEPTH, decode, encode

Message = dict[str, Any]

TOKENS_PER_MESSAGE = 4
"""What a model counts for a message besides its text."""

log = logging.getLogger("scrubjay")

_CUTS = (2**23, 2**21, 2**18, 2**12)
"""Characters to which texts are cut, the first length that fits: one may take up to 6 bytes as JSON."""
_NOTHING = object()


def snapshot(message: Any) -> Any:
    """The message as it is now and as JSON can carry it: frameworks change and share the original."""
    try:
        return decode(encode(message))
    except ValueTooLarge as error:
        log.error("a message is saved without all of its text: %s", error)  # noqa: TRY400 - it is kept as far as can be
        carried = message
    except InvalidInput:
        left_out: list[str] = []
        carried = _carried(message, "", left_out)
        log.warning("a message is saved without %s, which JSON cannot carry", ", ".join(left_out) or "half characters")
    fitting = _fitting(carried)
    return {"content": "", **fitting} if isinstance(fitting, dict) else fitting


def _fitting(message: Any) -> Any:
    """A copy of the message with its texts cut as far as they must be for a memory to take it."""
    for most in (MAX_WRITE_BYTES, *_CUTS):
        try:
            return decode(encode(shortened(message, most)))
        except ValueTooLarge:
            pass
    return {"role": message.get("role", "user"), "content": "[a message of too many parts to be saved]"}


def _carried(value: Any, place: str, left_out: list[str], depth: int = 1) -> Any:
    """The value without the parts that are no JSON; _NOTHING when nothing is left of it."""

    def parts(named: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        for name, part in named:
            carried = _carried(part, f"{place}.{name}".lstrip("."), left_out, depth + 1)
            if carried is not _NOTHING:
                yield name, carried

    if isinstance(value, dict) and depth < MAX_DEPTH and all(isinstance(name, str) for name in value):
        return dict(parts(value.items()))
    if isinstance(value, list | tuple) and depth < MAX_DEPTH:
        return [part for _, part in parts(enumerate(value))]
    if isinstance(value, str):  # half an emoji is no reason to lose the rest
        return value.encode(errors="replace").decode()
    try:
        encode(value)
    except InvalidInput:
        left_out.append(place)
        return _NOTHING
    return value


def shortened(value: Any, most: int) -> Any:
    """The value with every text in it cut to `most` characters, and what is missing said at the cut."""
    if isinstance(value, str) and len(value) > most:
        return f"{value[:most]}… [{len(value) - most:,} more characters were too much to be saved]"
    if isinstance(value, dict):
        return {name: shortened(part, most) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(part, most) for part in value]
    return value


def text_of(message: Message) -> str:
    """The words of a message, be it one text or parts of which some are images."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def fitted(messages: Sequence[Message], max_messages: int | None, max_tokens: int | None) -> list[Message]:
    """The latest messages that fit, and at least the last; a tool call and its results stay together."""
    kept: list[Message] = []
    tokens = 0
    for exchange in _latest_exchanges(messages):
        tokens += sum(map(_tokens, exchange))
        too_many = max_messages is not None and len(kept) + len(exchange) > max_messages
        if kept and (too_many or (max_tokens is not None and tokens > max_tokens)):
            break
        kept[:0] = exchange
    return kept


def _latest_exchanges(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """From the end: each message by itself, but a call of tools together with all its results."""
    exchange: list[Message] = []
    for message in reversed(messages):
        exchange.insert(0, message)
        if message.get("role") not in ("tool", "function"):
            yield exchange
            exchange = []
    if exchange:
        yield exchange


def _tokens(message: Message) -> int:
    parts = (message.get(part) for part in ("content", "tool_calls", "function_call"))
    return TOKENS_PER_MESSAGE + sum(count_tokens(str(part)) for part in parts if part)
