"""The `scrubjay` command: its entry point and its commands. Each module has one group of commands."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scrubjay.cli import (
    completion,
    conversations,
    data,
    demo,
    file,
    keys,
    log,
    mcp,
    migrate,
    notes,
    queue,
    status,
    values,
)
from scrubjay.cli.common import fail, require_database
from scrubjay.cli.parser import EXIT_CODES, Commands, Parser
from scrubjay.errors import MissingExtra, ScrubjayError, Unavailable
from scrubjay.settings import add_serve_flags
from scrubjay.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code, one of EXIT_CODES."""
    _open_streams()
    arguments = parser().parse_args(argv)
    try:
        if arguments.needs_file:
            require_database(arguments)
        code = int(arguments.run(arguments))
        sys.stdout.flush()
    except ScrubjayError as error:
        return fail(str(error), 3 if isinstance(error, Unavailable) else 1)
    except BrokenPipeError:  # `scrubjay keys … | head`
        _discard_output()
        return 0
    except OSError as error:
        if error.filename is None:  # it is about stdout
            _discard_output()
        return fail(f"cannot use {error.filename or 'the output'}: {error.strerror}; check it, or name another")
    except KeyboardInterrupt:
        return 130
    return code


def _open_streams() -> None:
    """Replace closed streams by empty ones, and escape characters that the terminal cannot show."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Python flushes stdout when it ends, and would raise the same error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def serve(arguments: argparse.Namespace) -> int:
    try:
        import scrubjay_server  # noqa: PLC0415 - only this command needs it
    except ImportError as error:
        raise MissingExtra(f'the server is not installed ({error}); run: pip install "scrubjay[server]"') from error
    return int(scrubjay_server.serve(arguments))


def parser() -> Parser:
    """The parser of all commands; without a command it runs `status`."""
    made = Parser(prog="scrubjay", description="Persistent memory for AI agents.")
    made.add_argument("--version", action="version", version=f"scrubjay {__version__}")
    made.set_defaults(run=status.status, json=False, needs_file=False, url=None, path=None)
    command = Commands(made, required=False)
    command.group("values")
    values.add_commands(command)
    command.group("notes")
    notes.add_commands(command)
    command.group("conversations")
    conversations.add_commands(command)
    command.group("data")
    data.add_commands(command)
    migrate.add_commands(command)
    file.add_commands(command)
    command.group("server")
    serving = "serve the database over HTTP"
    add_serve_flags(command("serve", serve, serving, example="scrubjay serve --port 9000", flags=None, json=False))
    mcp.add_commands(command)
    status.add_commands(command)
    log.add_commands(command)
    queue.add_commands(command)
    keys.add_commands(command)
    command.group("more")
    demo.add_commands(command)
    completion.add_commands(command)
    made.help_text = _help(command)
    return made


def _help(command: Commands) -> str:
    codes = "\n".join(f"  {code:3}  {meaning}" for code, meaning in EXIT_CODES.items())
    return f"""usage: scrubjay [COMMAND] [--help] [--version]

Persistent memory for AI agents. Without a command: where the data is, and whether a server answers.

{command.describe()}

Commands work on the database file of this user, or on the server at SCRUBJAY_URL.
`scrubjay COMMAND --help` explains a command and has an example.

exit codes:
{codes}
"""
