"""Chat messages in OpenAI's format: what is stored of one, and which of them a model is sent."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scrubjay.errors import InvalidInput, ValueTooLarge
from scrubjay.exact_json import MAX_DEPTH, byte_size, decode, encode
from scrubjay.recall.prompt import count_tokens

Message = dict[str, Any]

TOKENS_PER_MESSAGE = 4
"""Tokens that a model counts for a message besides its text."""
MAX_MESSAGE_BYTES = 5 * 2**20
"""Bytes of JSON stored of one message: a transaction, which may have 16 MiB, holds a message up to three times."""
INTERRUPTED = "[interrupted: this call has no result]"
"""What a model is sent as the result of a call whose chat ended before the result came."""

log = logging.getLogger("scrubjay")

_CUTS = (2**23, 2**21, 2**18, 2**12)
"""Characters that texts are cut to; the first length that fits is used. A character takes up to 6 bytes as JSON."""
_NOTHING = object()


def snapshot(message: Any, where: object = "a conversation") -> Any:
    """A copy of the message as JSON can represent it; frameworks change and share the original.

    `where` it is saved is named in the log if something of it is lost.
    """
    try:
        text = encode(message)
        if byte_size(text) <= MAX_MESSAGE_BYTES:
            return decode(text)
        problem = f"it has {byte_size(text):,} bytes as JSON, and at most {MAX_MESSAGE_BYTES:,} are stored"
        representable = message
    except ValueTooLarge as error:
        problem = str(error)
        representable = message
    except InvalidInput:
        problem = ""
        lost: list[str] = []
        representable = _representable(message, "", lost)
        if lost:
            log.warning("a message of %s is saved without %s, which JSON cannot represent", where, ", ".join(lost))
    if problem:
        log.error("a message of %s is saved without all of its text: %s", where, problem)
    fitting = _cut_to_fit(representable)
    return {"content": "", **fitting} if isinstance(fitting, dict) else fitting


def _cut_to_fit(message: Any) -> Any:
    """A copy of the message, its texts cut as far as needed to store it."""
    for length in (MAX_MESSAGE_BYTES, *_CUTS):
        try:
            text = encode(_cut(message, length))
        except ValueTooLarge:
            continue
        if byte_size(text) <= MAX_MESSAGE_BYTES:
            return decode(text)
    return {"role": message.get("role", "user"), "content": "[a message of too many parts to be saved]"}


def _representable(value: Any, path: str, lost: list[str], depth: int = 1) -> Any:
    """The value without the parts that JSON cannot represent; _NOTHING when nothing is left of it."""

    def parts(named: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        for name, part in named:
            kept = _representable(part, f"{path}.{name}".lstrip("."), lost, depth + 1)
            if kept is not _NOTHING:
                yield name, kept

    if isinstance(value, dict) and depth < MAX_DEPTH and all(isinstance(name, str) for name in value):
        return dict(parts((_plain_text(name, path, lost), part) for name, part in value.items()))
    if isinstance(value, list | tuple) and depth < MAX_DEPTH:
        return [part for _, part in parts(enumerate(value))]
    if isinstance(value, str):
        return _plain_text(value, path, lost)
    try:
        encode(value)
    except InvalidInput:
        lost.append(path)
        return _NOTHING
    return value


def _plain_text(text: str, path: str, lost: list[str]) -> str:
    """The text of a string of any subclass, such as an Enum's, with question marks for unpaired surrogates."""
    plain = str.encode(text, errors="replace").decode()
    if str.__ne__(text, plain):
        lost.append(f"unpaired surrogates of {path}" if path else "unpaired surrogates")
    return plain


def _cut(value: Any, length: int) -> Any:
    """The value with every text in it cut to `length` characters, and a remark at the cut."""
    if isinstance(value, str) and len(value) > length:
        return f"{value[:length]}… [{len(value) - length:,} more characters were too much to be saved]"
    if isinstance(value, dict):
        return {name: _cut(part, length) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(part, length) for part in value]
    return value


def text_of(message: Message) -> str:
    """The text of a message, whose content may be a list of texts and images."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def uses_tools(message: Message) -> bool:
    return any(message.get(part) for part in ("tool_calls", "function_call", "tool_responses"))


# ------------------------------------------------------------ what a model is sent


def for_model(messages: Sequence[Message], max_messages: int | None, max_tokens: int | None) -> list[Message]:
    """The messages that a model is sent: the latest that fit the limits, with a result right behind each tool call.

    OpenAI answers 400 to a call without its result and to a result without its call. System messages at the start are
    always sent.
    """
    complete = with_results(messages)
    start = next((i for i, message in enumerate(complete) if message.get("role") != "system"), len(complete))
    return complete[:start] + _latest(complete[start:], max_messages, max_tokens)


def with_results(messages: Sequence[Message]) -> list[Message]:
    """The messages with the results of every tool call right behind it, in the order of the calls.

    A call without a result gets INTERRUPTED as its result; a result without a call is left out. Results that AutoGen
    keeps in one message (`tool_responses`) become messages of their own.
    """
    flat = [part for message in messages for part in _flatten(message)]
    results = _results_by_call(flat)
    complete: list[Message] = []
    for i, message in enumerate(flat):
        if message.get("role") not in ("tool", "function"):
            complete.append(message)
            complete += [results.get((i, n), _interrupted(call)) for n, call in enumerate(_calls(message))]
    return complete


def _flatten(message: Message) -> list[Message]:
    responses = message.get("tool_responses")
    if not responses:
        return [message]
    parts = [dict(response) for response in responses]
    if message.get("role") != "tool":  # the content is text beside the results, not their concatenation
        parts.append({name: part for name, part in message.items() if name != "tool_responses"})
    return parts


def _calls(message: Message) -> list[tuple[str, str]]:
    """The calls of a message, each as the role and the name or id of its result."""
    calls = [("tool", str(call.get("id"))) for call in message.get("tool_calls") or ()]
    function = message.get("function_call")
    return [*calls, ("function", str(function.get("name")))] if function else calls


def _answered(message: Message) -> tuple[str, str]:
    """The call that a result belongs to, in the form of `_calls`."""
    if message["role"] == "tool":
        return "tool", str(message.get("tool_call_id"))
    return "function", str(message.get("name"))


def _results_by_call(messages: Sequence[Message]) -> dict[tuple[int, int], Message]:
    """Each result by the index of its call's message and the number of the call in it.

    A result belongs to the last call before it that has its id and no result yet.
    """
    open_calls: dict[tuple[str, str], list[tuple[int, int]]] = {}
    results: dict[tuple[int, int], Message] = {}
    for i, message in enumerate(messages):
        for n, call in enumerate(_calls(message)):
            open_calls.setdefault(call, []).append((i, n))
        if message.get("role") in ("tool", "function"):
            waiting = open_calls.get(_answered(message))
            if waiting:
                results[waiting.pop()] = message
    return results


def _interrupted(call: tuple[str, str]) -> Message:
    role, name = call
    return {"role": role, "tool_call_id" if role == "tool" else "name": name, "content": INTERRUPTED}


def _latest(messages: Sequence[Message], max_messages: int | None, max_tokens: int | None) -> list[Message]:
    """The latest messages that fit, and at least the last; a tool call and its results stay together."""
    if max_messages is None and max_tokens is None:
        return list(messages)
    kept: list[Message] = []
    tokens = 0
    for exchange in _latest_exchanges(messages):
        tokens += sum(map(count_tokens_of, exchange))
        too_many = max_messages is not None and len(kept) + len(exchange) > max_messages
        if kept and (too_many or (max_tokens is not None and tokens > max_tokens)):
            break
        kept[:0] = exchange
    return kept


def _latest_exchanges(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """From the end: each message alone, but a tool call together with its results."""
    exchange: list[Message] = []
    for message in reversed(messages):
        exchange.insert(0, message)
        if message.get("role") not in ("tool", "function"):
            yield exchange
            exchange = []
    if exchange:
        yield exchange


def count_tokens_of(message: Message) -> int:
    """The tokens of a message, estimated."""
    parts = (message.get(part) for part in ("content", "tool_calls", "function_call"))
    return TOKENS_PER_MESSAGE + sum(count_tokens(str(part)) for part in parts if part)


# ------------------------------------------------------------ messages that are given back


def new_messages(stored: Sequence[Message], given: Sequence[Message]) -> Sequence[Message]:
    """Those of the given messages that are not among the stored ones.

    A user who kept a copy of a conversation may give all of it, its start, its end, or any part in between, with or
    without messages that came later.
    """
    count = len(given)
    if any(list(stored[i : i + count]) == list(given) for i in range(len(stored) - count + 1)):
        return []
    overlap = next((n for n in range(min(len(stored), count), 0, -1) if stored[-n:] == given[:n]), 0)
    return given[overlap:]
