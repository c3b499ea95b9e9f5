"""The command `completion`: shell scripts that complete commands, flags and namespaces.

The scripts ask the command itself for the words (`completion --words`), so they need no change when a command is added.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise

from scrubjay import commands
from scrubjay.cli.common import executor_of
from scrubjay.cli.parser import Commands
from scrubjay.errors import ScrubjayError

SCRIPTS = {
    "bash": """\
# Put this line into ~/.bashrc:  eval "$(scrubjay completion bash)"
_scrubjay() {
    local IFS=$'\\n'
    COMPREPLY=($(scrubjay completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _scrubjay scrubjay
""",
    "zsh": """\
# Put this line into ~/.zshrc, after compinit:  eval "$(scrubjay completion zsh)"
_scrubjay() {
    local -a found
    found=(${(f)"$(scrubjay completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -- $found; else _files; fi
}
compdef _scrubjay scrubjay
""",
    "fish": """\
# Put this line into ~/.config/fish/config.fish:  scrubjay completion fish | source
function __scrubjay_words
    set -l words (commandline -opc)
    scrubjay completion --words $words[2..] (commandline -ct) 2>/dev/null
end
complete -c scrubjay -f -a '(__scrubjay_words)'
complete -c scrubjay -n 'test -z "$(__scrubjay_words)"' -F
""",
}


def completion(arguments: argparse.Namespace) -> int:
    if arguments.words is not None:
        for word in complete(arguments.words):
            print(word)
    else:
        print(SCRIPTS[arguments.shell or "bash"], end="")
    return 0


def complete(words: Sequence[str]) -> list[str]:
    """The words that can replace the last of a command line without its first word; the last may be empty."""
    from scrubjay.cli import parser  # noqa: PLC0415 - that module imports this one

    *before, current = words or [""]
    made: argparse.ArgumentParser = parser()
    operands: list[str] = []
    expects: argparse.Action | None = None
    for word in before:
        flag = None if expects else _flag(made, word)
        if expects:
            expects = None
        elif flag:
            expects = None if flag.nargs == 0 else flag
        elif inner := _commands_of(made).get(word):
            made, operands = inner, []
        else:
            operands.append(word)
    if expects is not None:
        found = list(expects.choices or ())
    elif current.startswith("-"):
        found = [flag for action in made._actions for flag in action.option_strings if flag.startswith("--")]  # noqa: SLF001
    else:
        found = _operands(made, len(operands), before)
    return sorted(word for word in found if word.startswith(current))


def _flag(made: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    return made._option_string_actions.get(word)  # noqa: SLF001


def _commands_of(made: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next((dict(each.choices) for each in made._actions if isinstance(each.choices, dict)), {})  # noqa: SLF001


def _operands(made: argparse.ArgumentParser, index: int, before: Sequence[str]) -> list[str]:
    """The values that the operand of this index can have."""
    if inner := _commands_of(made):
        return list(inner)
    actions = [action for action in made._actions if not action.option_strings]  # noqa: SLF001
    if index >= len(actions):
        return []
    if actions[index].dest == "namespace":
        return _namespaces(before)
    return list(actions[index].choices or ())


def _namespaces(before: Sequence[str]) -> list[str]:
    """The namespaces of the file or server that the command line names."""
    where = dict(pairwise(before))
    try:
        with executor_of(argparse.Namespace(url=where.get("--url"), path=where.get("--path"))) as executor:
            return list(executor.run(commands.NAMESPACES("")))
    except ScrubjayError:
        return []


def add_commands(command: Commands) -> None:
    made = command(
        "completion", completion, "print a script that completes commands, flags and namespaces in a shell",
        example='eval "$(scrubjay completion bash)"', flags=None, json=False,
    )  # fmt: skip
    made.add_argument("shell", nargs="?", choices=list(SCRIPTS), metavar="SHELL", help="bash, zsh or fish")
    made.add_argument(
        "--words", nargs=argparse.REMAINDER, help="print the words that can replace the last of these; for the scripts"
    )
