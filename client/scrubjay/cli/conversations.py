"""Commands on conversations: chat, sessions, forget-session."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable

from scrubjay.cli.common import SECONDS, add_yes, confirm, fail, open_memory, require_namespace
from scrubjay.cli.output import NUMBER_ALIGN, Column, Report, note, print_records, printable
from scrubjay.cli.parser import Commands, did_you_mean
from scrubjay.cli.visible import visible
from scrubjay.errors import operand, pluralize, repr_short
from scrubjay.memory import Memory
from scrubjay.models import Change, Conversation, Message
from scrubjay.settings import checked, parse_count
from scrubjay.validation import MAX_MESSAGES_PAGE


def chat(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        # Opened before the first read, so that no message between the two is missed.
        changes = memory.watch(timeout=arguments.timeout) if arguments.follow else ()
        printer = _Printer(memory, arguments)
        if not printer.print_last(arguments.n) and not arguments.follow:
            return fail(_no_conversation(memory, arguments))
        for change in changes:
            printer.print_new(change)
    return 0


class _Printer:
    """Prints one conversation, and what is added to it later."""

    def __init__(self, memory: Memory, arguments: argparse.Namespace) -> None:
        self._memory = memory
        self._session: str | None = arguments.session
        self._search: str | None = arguments.search
        self._as_json: bool = arguments.json
        self._key: str | None = None
        self._position = -1

    def print_last(self, count: int) -> bool:
        """Print the last messages; returns whether there is such a conversation."""
        found = self._memory.conversations(session=self._session)
        if not found:
            return False
        self._key = found[0].key
        self._say_which(found[0])
        messages: list[Message] = []
        while len(messages) < count:
            before = messages[0].position if messages else None
            limit = min(count - len(messages), MAX_MESSAGES_PAGE)
            page = self._memory.conversation(key=self._key, limit=limit, before=before, search=self._search)
            messages[:0] = page
            if len(page) < limit:
                break
        self._move_to_end()
        self._print(messages)
        return True

    def _say_which(self, conversation: Conversation) -> None:
        """On stderr, so that stdout has the messages alone."""
        people = ", ".join(map(printable, conversation.participants))
        note(
            f"session {printable(conversation.session)}: {pluralize(conversation.messages, 'message')} of"
            f" {people or 'nobody with a name'}"
        )

    def print_new(self, change: Change) -> None:
        """Print what was added by a change."""
        if self._key is None:
            self.print_last(MAX_MESSAGES_PAGE)
        elif change.key != self._key:
            return
        elif change.verb == "append":
            self._print(self._memory.conversation(key=self._key, after=self._position, search=self._search))
        else:  # replaced or deleted: what follows is new
            self._move_to_end()

    def _move_to_end(self) -> None:
        last = self._memory.conversation(key=self._key, limit=1)
        self._position = last[0].position if last else -1

    def _print(self, messages: Iterable[Message]) -> None:
        for message in messages:
            print(json.dumps(message.to_json(), ensure_ascii=False) if self._as_json else _lines(message), flush=True)
            self._position = max(message.position, self._position)


def sessions(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        found = memory.conversations()
        if not found:
            return fail(_no_conversation(memory, arguments))
    columns = (
        Column("session", lambda each: printable(each.session)),
        Column("messages", lambda each: pluralize(each.messages, "message"), NUMBER_ALIGN),
        Column("updated", lambda each: f"{each.updated_at:%Y-%m-%d %H:%M}"),
        Column("participants", lambda each: ", ".join(map(printable, each.participants))),
    )
    print_records(arguments, _by_session(found), *columns, empty="")
    return 0


def _by_session(conversations: Iterable[Conversation]) -> list[Conversation]:
    """Each session once, as its longest list: a group chat and the lines of its members have the same messages."""
    found: dict[str, Conversation] = {}
    for each in conversations:  # the latest first
        known = found.setdefault(each.session, each)
        people = tuple(dict.fromkeys(known.participants + each.participants))
        longest = max(known, each, key=lambda conversation: conversation.messages)
        found[each.session] = longest._replace(updated_at=known.updated_at, participants=people)
    return list(found.values())


def forget_session(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        require_namespace(arguments)
        confirm(f"All data of the session {arguments.session!r}", arguments.session, arguments)
        count = memory.forget_session(arguments.session)
    if not count:
        listed = f"see: scrubjay sessions {operand(arguments.namespace)}"
        return fail(f"{arguments.namespace!r} has no session {repr_short(arguments.session)}; {listed}")
    with Report(arguments) as report:
        report(f"erased {count:,} in all: lists, values and notes", erased=count)
    note(
        "the names of their keys stay in the log of changes; only `scrubjay erase`, of a whole namespace, removes them"
    )
    return 0


def _no_conversation(memory: Memory, arguments: argparse.Namespace) -> str:
    require_namespace(arguments)
    names = [] if getattr(arguments, "session", None) is None else [each.session for each in memory.conversations()]
    if names:
        shown = ", ".join(map(repr_short, names[:5])) + (", …" if len(names) > 5 else "")
        meant = did_you_mean(arguments.session, names)
        question = f"; {meant}" if meant else ""
        return f"{arguments.namespace!r} has no session {repr_short(arguments.session)}; it has {shown}{question}"
    return f"{arguments.namespace!r} has no conversation: no list whose last item is a message"


def _lines(message: Message) -> str:
    """A message as text: its time, its sender, what it says, and a line for each tool call and result."""
    said_at = f"{message.time:%Y-%m-%d %H:%M:%S}  " if message.time else ""
    lines = [f"{said_at}{printable(message.sender)}: {_indented(message.message)}".rstrip()]
    for call in message.tool_calls:
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        lines.append(f"  → {printable(call['name'])} {_indented(arguments)}")
    lines += [f"  ← {printable(result['name'])} {_indented(result['content'])}" for result in message.tool_results]
    return "\n".join(lines)


def _indented(text: str) -> str:
    """The text without what could change what a terminal shows; further lines are indented."""
    return visible(text).replace("\n", "\n    ")


def add_commands(command: Commands) -> None:
    reader = command(
        "chat", chat, "print a conversation, and with --follow what is said from now on", "namespace",
        example="scrubjay chat my-assistant --follow",
    )  # fmt: skip
    reader.add_argument("--session", help="the session; without it, the conversation with the latest message")
    reader.add_argument("-n", type=checked(parse_count), default=100, help="how many messages at most (default 100)")
    reader.add_argument("--search", metavar="TEXT", help="only messages that contain it")
    reader.add_argument("--follow", action="store_true", help="go on with each new message, until Ctrl-C")
    reader.add_argument("--timeout", **SECONDS, help="with --follow: end after so long without a change")
    command(
        "sessions",
        sessions,
        "list the sessions that have a conversation",
        "namespace",
        example="scrubjay sessions my-assistant",
    )
    eraser = command(
        "forget-session", forget_session, "erase a session, its notes included", "namespace",
        example="scrubjay forget-session my-assistant user-42",
    )  # fmt: skip
    eraser.add_argument("session", metavar="SESSION", help="the name, as `scrubjay sessions` prints it")
    add_yes(eraser, "do not ask")
