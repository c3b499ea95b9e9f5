"""Commands on notes: remember, recall, notes, forget, reindex."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from scrubjay import commands
from scrubjay.cli.common import (
    SECONDS,
    add_yes,
    executor_of,
    fail,
    open_database,
    open_memory,
    read_text,
    require_namespace,
)
from scrubjay.cli.output import NUMBER_ALIGN, Column, format_age, note, print_json, print_records, printable
from scrubjay.cli.parser import Commands
from scrubjay.cli.progress import Progress
from scrubjay.errors import InvalidInput, operand, pluralize
from scrubjay.exact_json import decode_body
from scrubjay.models import Note
from scrubjay.settings import checked, memory_settings, parse_count, parse_seconds
from scrubjay.validation import RANKINGS


def remember(arguments: argparse.Namespace) -> int:
    content = read_text(arguments.content)
    with open_memory(arguments) as memory:
        stored = memory.remember(
            content,
            **_filters(arguments),
            ttl=arguments.ttl,
            ttl_days=arguments.ttl_days,
            pinned=arguments.pinned,
            metadata=None if arguments.metadata is None else decode_body(arguments.metadata),
            supersedes=arguments.supersedes or (),
            id=arguments.id,
        )
    if arguments.json:
        print_json(stored and stored.to_json())
    else:
        print(stored.id if stored else "")
    return 0


def recall(arguments: argparse.Namespace) -> int:
    query = {"limit": arguments.n, "threshold": arguments.threshold, "ranking": arguments.ranking}
    query |= {"at": arguments.at, **_filters(arguments)}
    with open_memory(arguments) as memory:
        if arguments.context is None:
            found: Any = memory.recall(arguments.query, **query)
        else:
            found = memory.inject_context(arguments.query, max_tokens=arguments.context, **query)
    empty = "" if found else _why_nothing_fits(arguments)
    if arguments.context is None:
        _print_notes(arguments, found, empty=empty)
    elif arguments.json:
        print_json({"context": found})
    elif found:
        print(found)
    else:
        note(empty)
    return 0


def _why_nothing_fits(arguments: argparse.Namespace) -> str:
    """Raises NotFound if there is no such namespace."""
    with executor_of(arguments) as executor:
        any_note = executor.run(commands.NOTES(arguments.namespace, None, (), None, "", 1))
    if any_note:
        return f"no note in {arguments.namespace!r} fits"
    require_namespace(arguments)
    return f"{arguments.namespace!r} has no notes; to store one: scrubjay remember {arguments.namespace} TEXT"


def notes(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        found = memory.notes(**_filters(arguments))
    if not found:
        require_namespace(arguments)
    chosen = any(value for value in _filters(arguments).values())
    _print_notes(arguments, found, empty=f"no notes{' of that kind' if chosen else ''} in {arguments.namespace!r}")
    return 0


def forget(arguments: argparse.Namespace) -> int:
    with open_memory(arguments) as memory:
        found = memory.forget(arguments.note_id)
    if not found:
        require_namespace(arguments)
        lists = f"`scrubjay notes {operand(arguments.namespace)}` lists them"
        return fail(f"there is no note {arguments.note_id!r} in {arguments.namespace!r}; {lists}")
    if arguments.json:
        print_json({"forgotten": True})
    return 0


def reindex(arguments: argparse.Namespace) -> int:
    from scrubjay.semantic.index import SemanticIndex  # noqa: PLC0415 - only this command needs it

    settings = memory_settings()
    if not settings.embedder:
        raise InvalidInput("no embedder is set, and the index of words is always complete; set SCRUBJAY_EMBEDDER")
    store = open_database(arguments)
    try:
        index = SemanticIndex(store, settings.embedder, settings.embedder_key)
        done = 0
        with Progress("note") as progress:
            for done, total in index.reindex():
                progress(done, total)
        print(f"{pluralize(done, 'note')} indexed with {index.embedder.name}; all notes are indexed", file=sys.stderr)
    finally:
        store.close()
    return 0


def _filters(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"type": arguments.type, "tags": arguments.tag, "session": arguments.session}


def _print_notes(arguments: argparse.Namespace, found: Sequence[Note], *, empty: str) -> None:
    columns = [
        Column("id", lambda each: each.id),
        Column("score", lambda each: f"{each.score:.2f}", NUMBER_ALIGN),
        Column("updated", lambda each: format_age(each.updated_at), NUMBER_ALIGN),
        Column("text", lambda each: printable(" ".join(each.content.split()))),
    ]
    if not found or found[0].score is None:
        del columns[1]
    print_records(arguments, found, *columns, empty=empty)


def add_commands(command: Commands) -> None:
    rememberer = command(
        "remember", remember, "store a note and print its id", "namespace", "content",
        example="scrubjay remember my-agent 'Sarah prefers short answers' --type preference", needs_file=False,
    )  # fmt: skip
    rememberer.add_argument("--ttl", **SECONDS, help="seconds until it expires")
    rememberer.add_argument("--ttl-days", type=checked(parse_seconds), metavar="DAYS", help="days until it expires")
    rememberer.add_argument("--pinned", action="store_true", help="never expires")
    rememberer.add_argument("--metadata", metavar="JSON", help='an object, such as {"speaker": "Sarah"}')
    rememberer.add_argument("--supersedes", metavar="ID", action="append", help="a note that it replaces")
    rememberer.add_argument("--id", help="of your own: it replaces the note that has this id")
    recaller = command(
        "recall", recall, "print the notes that fit best", "namespace", "query",
        example="scrubjay recall my-agent 'how long should answers be?'",
    )  # fmt: skip
    recaller.add_argument("-n", type=checked(parse_count), default=5, help="how many (default 5)")
    recaller.add_argument("--threshold", type=float, help="the lowest score, from 0 to 1")
    recaller.add_argument("--ranking", choices=RANKINGS, help="by relevance, or also by recency and frequency")
    recaller.add_argument("--at", metavar="TIME", help="as of a past moment, such as 2026-02-15T12:00Z")
    recaller.add_argument(
        "--context", type=checked(parse_count), metavar="TOKENS", help="print text for a prompt, of this length at most"
    )
    lister = command("notes", notes, "list notes", "namespace", example="scrubjay notes my-agent --type preference")
    for parser in (rememberer, recaller, lister):
        parser.add_argument("--type", help="such as decision, preference, fact")
        parser.add_argument("--tag", action="append", help="may be given several times")
        parser.add_argument("--session", help="the conversation that it belongs to")
    add_yes(command("forget", forget, "erase a note", "namespace", "note_id", example="scrubjay forget my-agent n-1"))
    command(
        "reindex", reindex, "index with SCRUBJAY_EMBEDDER the notes that have no vector of that model",
        example="SCRUBJAY_EMBEDDER=./all-MiniLM-L6-v2 scrubjay reindex", json=False,
    )  # fmt: skip
