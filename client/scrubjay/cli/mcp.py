"""The command `mcp`: the memory as tools for an MCP client."""

from __future__ import annotations

import argparse

from scrubjay.cli.parser import Commands
from scrubjay.settings import checked, parse_count


def mcp(arguments: argparse.Namespace) -> int:
    from scrubjay.adapters.mcp import run  # noqa: PLC0415 - only this command needs the MCP SDK

    run(arguments.namespace, arguments.port, url=arguments.url, path=arguments.path)
    return 0


def add_commands(command: Commands) -> None:
    server = command(
        "mcp", mcp, "serve the memory as tools to an MCP client, over stdio",
        example="scrubjay mcp --namespace me", json=False, needs_file=False,
    )  # fmt: skip
    server.add_argument(
        "--namespace", action="append", required=True, metavar="NAMESPACE",
        help="a namespace that the tools may use; may be given several times, the first is the default",
    )  # fmt: skip
    server.add_argument(
        "--port", type=checked(parse_count), metavar="PORT",
        help="serve streamable HTTP at http://127.0.0.1:PORT/mcp instead of stdio",
    )  # fmt: skip
