"""The parser of the command line: commands in groups, each with an example, and suggestions for mistyped names."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scrubjay.errors import repr_short

Run = Callable[[argparse.Namespace], int]

EXIT_CODES = {
    0: "success",
    1: "the command failed, or what it names does not exist; stderr says why",
    2: "an unknown command or option, or a missing argument",
    3: "the server or the file cannot be used; stderr says what to do",
    130: "interrupted with Ctrl-C",
}
_HABITS = {
    "help": "`scrubjay COMMAND --help` explains a command",
    "version": "`scrubjay --version` prints it",
}
"""What people type who know it from other programs, and what it is called here."""
_WORDS = {
    "namespace": "such as my-agent",
    "key": "any text, such as user:42",
    "value": "JSON, or else plain text; - is stdin",
    "content": "the text; - is stdin",
    "query": "a question, in any words",
    "note_id": "as remember, recall and notes print it",
    "file": "the path of the file",
}


class Parser(argparse.ArgumentParser):
    """A parser that suggests the word that was probably meant."""

    help_text: str | None = None
    """Printed by --help instead of argparse's own list of arguments."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **options})

    def format_help(self) -> str:
        return self.help_text or super().format_help()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse what a command does not know with the usage of that command, not with that of all."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            hint = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unknown arguments: {' '.join(unknown)}{hint and f'; {hint}'}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Overrides the check of argparse for an argument with choices."""
        if action.choices is None or value in action.choices:
            return
        names_command = isinstance(action.choices, dict)
        others = f"`{self.prog} --help` lists them" if names_command else f"choose from {', '.join(action.choices)}"
        what = "command" if names_command else action.option_strings[0] if action.option_strings else action.metavar
        hint = (names_command and _HABITS.get(value)) or did_you_mean(str(value), action.choices) or others
        raise argparse.ArgumentError(None, f"there is no {what} {value!r}; {hint}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The question whether a similar word was meant; empty if none is similar."""
    close = difflib.get_close_matches(word, list(known), n=2, cutoff=0.65)
    return f"did you mean {' or '.join(map(repr_short, close))}?" if close else ""


def _flags(*, path: bool) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(add_help=False)
    one_of = made.add_mutually_exclusive_group()
    one_of.add_argument("--url", help="the server to use (SCRUBJAY_URL)")
    if path:
        one_of.add_argument("--path", help="the database file (SCRUBJAY_PATH)")
    return made


WHERE, SERVER = _flags(path=True), _flags(path=False)
"""The flags of a command that works on a file or on a server, and of one that works on a server only."""


class Commands:
    """The commands under a parser. Called, it adds one to the current group and returns its parser."""

    def __init__(self, parser: argparse.ArgumentParser, *, required: bool = True) -> None:
        self._parsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=required)
        self._groups: dict[str, dict[str, str]] = {}
        self._group = ""

    def group(self, title: str) -> None:
        """Start a group: the commands that are added from here on belong to it."""
        self._group = title

    def __call__(
        self,
        name: str,
        run: Run,
        help: str,  # noqa: A002 - the word of argparse
        *words: str,
        example: str = "",
        flags: argparse.ArgumentParser | None = WHERE,
        json: bool = True,
        needs_file: bool = True,
    ) -> argparse.ArgumentParser:
        """Add a command.

        :param words: its operands, which `_WORDS` explains.
        :param example: a command line that is printed below the help.
        :param flags: WHERE, SERVER, or None for a command without --url and --path.
        :param json: whether it has --json.
        :param needs_file: whether it fails if there is no database file; False if it creates one.
        """
        made = self._add(name, help, epilog=f"example:\n  {example}", parents=[flags] if flags else [])
        made.set_defaults(run=run, json=False, needs_file=needs_file and flags is WHERE)
        for word in words:
            made.add_argument(word, metavar=word.upper(), help=_WORDS[word])
        if json:
            made.add_argument("--json", action="store_true", help="print JSON, for programs")
        return made

    def nested(self, name: str, help: str) -> Commands:  # noqa: A002
        """Add a command that has commands of its own."""
        return Commands(self._add(name, help))

    def describe(self) -> str:
        """All commands by group."""
        width = max(len(name) for group in self._groups.values() for name in group)
        sections = (
            "\n".join([f"{title}:", *(f"  {name:{width}}  {help_}" for name, help_ in group.items())])
            for title, group in self._groups.items()
        )
        return "\n\n".join(sections)

    def _add(self, name: str, help_: str, **options: Any) -> argparse.ArgumentParser:
        self._groups.setdefault(self._group, {})[name] = help_
        made: argparse.ArgumentParser = self._parsers.add_parser(name, help=help_, description=help_, **options)
        return made
