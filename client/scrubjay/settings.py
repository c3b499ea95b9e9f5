"""Every setting there is. An argument wins over SCRUBJAY_<NAME>, which wins over the default."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import InvalidInput

if TYPE_CHECKING:
    import argparse

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_size(text: str) -> int:
    """Bytes, from '50MB', '2GiB' or a plain number."""
    match = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", text.strip())
    if not match or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is no size; write a number with KB, MB or GB")
    return int(match[1]) * _UNITS[match[2].upper()]


def parse_count(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is no whole number from 0 up")
    return int(text)


def parse_seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None


_KINDS: dict[Callable[[str], Any], str] = {parse_size: "SIZE", parse_count: "N", parse_seconds: "SECONDS"}
"""What a flag's help calls them."""


def default_path() -> str:
    """The platform's place for a user's data."""
    home = Path.home()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData/Local")
    elif sys.platform == "darwin":
        base = home / "Library/Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
    return str(base / "scrubjay" / "scrubjay.db")


def default_outbox() -> str:
    return str(Path(default_path()).with_name("outbox.db"))


class Setting(NamedTuple):
    name: str
    default: Any
    parse: Callable[[str], Any]
    help: str
    serve: bool = False
    """Whether `scrubjay serve` takes it as a flag."""

    @property
    def variable(self) -> str:
        return f"SCRUBJAY_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("url", None, str, "the server to talk to; without it the file is used directly"),
        Setting("api_key", None, str, "the key that the server asks for"),
        Setting("path", default_path, str, "the database file", serve=True),
        Setting("durability", "full", str, "full: a write is on disk when it returns; fast: no fsync", serve=True),
        Setting("secret", None, str, "seals the values in the file: only who has it can read them"),
        Setting("new_secret", None, str, "the secret that `scrubjay encrypt` changes to"),
        Setting(
            "embedder",
            None,
            str,
            "what recall by meaning uses: a model's directory, URL#model of /embeddings, or fastembed's name",
            serve=True,
        ),
        Setting("audit_days", 90, parse_count, "days that the log of changes is kept", serve=True),
        Setting(
            "audit_rows",
            1_000_000,
            parse_count,
            "rows that it may have, at some 100 bytes each; 0 = nothing is recorded or watched",
            serve=True,
        ),
        Setting("timeout", 5.0, parse_seconds, "seconds to wait for the server"),
        Setting("outbox", default_outbox, str, "the file where writes wait while the server cannot be reached"),
        Setting("host", "127.0.0.1", str, "the address to listen on", serve=True),
        Setting("port", 8787, parse_count, "the port to listen on; 0 takes a free one", serve=True),
        Setting("workers", 1, parse_count, "server processes", serve=True),
        Setting(
            "writes_per_day",
            1000,
            parse_count,
            "writes a namespace may do a day (UTC); 0 = no limit",
            serve=True,
        ),
        Setting(
            "max_bytes",
            50_000_000,
            parse_size,
            "what a namespace may hold, such as 50MB; 0 = no limit",
            serve=True,
        ),
        Setting(
            "requests_per_minute",
            0,
            parse_count,
            "requests a minute from each api key, or from each address without one; 0 = no limit",
            serve=True,
        ),
        Setting(
            "max_watches",
            250,
            parse_count,
            "who wait for changes at once with each api key, or from each address without one; 0 = no limit",
            serve=True,
        ),
    )
}


def resolve(name: str, given: Any = None) -> Any:
    """The value in force."""
    setting = SETTINGS[name]
    if given is not None:
        return given
    text = os.environ.get(setting.variable)
    if text:
        try:
            return setting.parse(text)
        except ValueError as error:
            raise InvalidInput(f"{setting.variable}: {error}") from None
    return setting.default() if callable(setting.default) else setting.default


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `scrubjay serve`, from the table."""
    for setting in SETTINGS.values():
        if setting.serve:
            default = "" if callable(setting.default) or setting.default is None else f" (default {setting.default})"
            kind = _KINDS.get(setting.parse)
            parser.add_argument(setting.flag, type=checked(setting.parse), metavar=kind, help=setting.help + default)


def checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """For argparse, which shows a message only from an error of its own."""
    import argparse  # noqa: PLC0415 - only a command needs it

    def parse_argument(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument
