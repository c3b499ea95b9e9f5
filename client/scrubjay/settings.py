"""The table of settings, and the frozen object that they are resolved into.

An argument wins over the variable SCRUBJAY_<NAME>, which wins over the default. `Memory`, the command and
`scrubjay serve` resolve them once and pass the object down; nothing below them reads the environment.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scrubjay.errors import InvalidInput

if TYPE_CHECKING:
    import argparse

DEFAULT_WRITES_PER_DAY = 1000
"""Writes to a namespace a day on a server with api keys, unless another limit is set: an agent that writes in a loop
does not fill the disk of the others. BotWire's service has the same limit."""
DEFAULT_MAX_BYTES = 50_000_000
"""Bytes of a namespace on a server with api keys, unless another limit is set; also as BotWire's service."""

_OPENAI = "https://api.openai.com/"

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_size(text: str) -> int:
    """Bytes, from '50MB', '2GiB' or a plain number."""
    match = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", text.strip())
    if not match or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write a number with KB, MB or GB")
    return int(match[1]) * _UNITS[match[2].upper()]


def parse_count(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def parse_number(text: str) -> int:
    """A count of what there has to be one of."""
    if not text.strip().isdecimal() or not int(text):
        raise ValueError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def parse_seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def parse_url(text: str) -> str:
    """The URL without the spaces around it that a pasted one may have."""
    return text.strip()


def parse_log_format(text: str) -> str:
    if text not in ("text", "json"):
        raise ValueError(f"{text!r} is neither text nor json")
    return text


def parse_switch(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.strip().lower() not in words:
        raise ValueError(f"{text!r} is neither 1 nor 0")
    return words[text.strip().lower()]


_KINDS: dict[Callable[[str], Any], str] = {
    parse_size: "SIZE",
    parse_count: "N",
    parse_number: "N",
    parse_seconds: "SECONDS",
}
"""What a flag's help calls them."""


def default_path() -> str:
    """A file in the platform's folder for a user's data."""
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
    """A line of the table."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    help: str
    memory: bool = False
    """Whether it is an argument of `Memory` and `AsyncMemory`."""
    serve: bool = False
    """Whether it is a flag of `scrubjay serve`."""

    @property
    def variable(self) -> str:
        return f"SCRUBJAY_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "url",
            None,
            parse_url,
            "the server to use, or postgresql://…; without it the file is used directly",
            memory=True,
        ),
        Setting("api_key", None, str, "the api key to send to the server", memory=True),
        Setting("path", default_path, str, "the database file", memory=True, serve=True),
        Setting(
            "store",
            None,
            parse_url,
            "the PostgreSQL database to use instead of the file: postgresql://host,host/database; SCRUBJAY_URL comes"
            " before it",
            serve=True,
        ),
        Setting(
            "durability",
            "full",
            str,
            "full: a write is on disk when it returns; fast: no fsync, so a power failure may lose the last writes",
            memory=True,
            serve=True,
        ),
        Setting("timeout", 5.0, parse_seconds, "seconds to wait for the server", memory=True),
        Setting(
            "outbox", default_outbox, str, "the file that queues writes while the server is unreachable", memory=True
        ),
        Setting("secret", None, str, "encrypts the values in the file", memory=True),
        Setting("new_secret", None, str, "the secret that `scrubjay encrypt` changes to"),
        Setting(
            "embedder",
            None,
            str,
            "the model for recall by meaning: a directory, URL#model of an /embeddings service, or a fastembed name",
            memory=True,
            serve=True,
        ),
        Setting(
            "project",
            None,
            str,
            "names the project in the namespaces of agents that are given none; default: the folder of the program",
        ),
        Setting(
            "embedder_key",
            None,
            str,
            "the key that is sent to an embedder at a URL; OPENAI_API_KEY is sent to https://api.openai.com alone",
        ),
        Setting(
            "learn_tokens",
            100_000,
            parse_count,
            "tokens a day (UTC), estimated, that `distill` and `learn=True` may spend on a namespace",
        ),
        Setting("audit_days", 90, parse_count, "days that changes are kept in the log", serve=True),
        Setting(
            "audit_rows",
            1_000_000,
            parse_count,
            "rows that the log of changes may have, at some 100 bytes each; 0 = changes are not recorded",
            serve=True,
        ),
        Setting("host", "127.0.0.1", str, "the address to listen on", serve=True),
        Setting("port", 8787, parse_count, "the port to listen on; 0 takes a free one", serve=True),
        Setting(
            "socket",
            None,
            str,
            "a socket file to listen on instead of a port: only programs of this user can connect",
            serve=True,
        ),
        Setting("workers", 1, parse_number, "server processes", serve=True),
        Setting(
            "access_log",
            False,
            parse_switch,
            "log a line for each request to stderr: route, namespace, client, status, time; no keys, no values",
            serve=True,
        ),
        Setting("log_format", "text", parse_log_format, "text or json: the form of the log on stderr", serve=True),
        Setting(
            "require_key",
            False,
            parse_switch,
            "require an api key on 127.0.0.1, too: behind a reverse proxy, or where other users share the machine",
            serve=True,
        ),
        Setting(
            "writes_per_day",
            None,
            parse_count,
            f"writes to a namespace a day (UTC); 0 = no limit; default {DEFAULT_WRITES_PER_DAY}, and no limit while no"
            " api key is needed",
            serve=True,
        ),
        Setting(
            "max_bytes",
            None,
            parse_size,
            f"bytes that a namespace may hold; 0 = no limit; default {DEFAULT_MAX_BYTES // 10**6}MB, and no limit while"
            " no api key is needed",
            serve=True,
        ),
        Setting(
            "key_writes_per_day",
            100_000,
            parse_count,
            "writes a day (UTC) with one api key to all namespaces together; 0 = no limit",
            serve=True,
        ),
        Setting(
            "key_max_bytes",
            5_000_000_000,
            parse_size,
            "bytes that the namespaces of one api key may hold together; 0 = no limit",
            serve=True,
        ),
        Setting(
            "key_max_namespaces",
            10_000,
            parse_count,
            "namespaces that one api key may have in use; 0 = no limit",
            serve=True,
        ),
        Setting(
            "requests_per_minute",
            0,
            parse_count,
            "requests a minute for each api key, or for each address without one; 0 = no limit",
            serve=True,
        ),
        Setting(
            "max_watches",
            250,
            parse_count,
            "open watches for each api key, or for each address without one; 0 = no limit",
            serve=True,
        ),
    )
}


class Settings(NamedTuple):
    """Every setting, resolved. Those that a caller does not use have their defaults."""

    url: str | None
    api_key: str | None
    path: str
    store: str | None
    durability: str
    timeout: float
    outbox: str
    secret: str | None
    new_secret: str | None
    embedder: str | None
    project: str | None
    embedder_key: str | None
    learn_tokens: int
    audit_days: int
    audit_rows: int
    host: str
    port: int
    socket: str | None
    workers: int
    access_log: bool
    log_format: str
    require_key: bool
    writes_per_day: int | None
    max_bytes: int | None
    key_writes_per_day: int
    key_max_bytes: int
    key_max_namespaces: int
    requests_per_minute: int
    max_watches: int


_STORE = ("audit_days", "audit_rows")
_FOR_MEMORY = {name for name, setting in SETTINGS.items() if setting.memory}
_FOR_MEMORY |= {*_STORE, "store", "learn_tokens", "new_secret", "embedder_key"}
_FOR_SERVER = {name for name, setting in SETTINGS.items() if setting.serve} | {"secret", "embedder_key"}


def memory_settings(**arguments: Any) -> Settings:
    """The settings of a client: of the file, or of the server that it talks to."""
    return _resolve_all(_FOR_MEMORY, arguments)


def is_database(url: str | None) -> bool:
    """Whether a URL is that of a PostgreSQL database, and not of a server."""
    return url is not None and url.startswith(("postgresql://", "postgres://"))


def server_settings(**arguments: Any) -> Settings:
    """The settings of `scrubjay serve`, which serves the database that SCRUBJAY_URL names, if it names one."""
    settings = _resolve_all(_FOR_SERVER, arguments)
    if arguments.get("store") is None and arguments.get("path") is None and is_database(url := resolve("url")):
        return settings._replace(store=url)
    return settings


def _resolve_all(used: set[str], arguments: Mapping[str, Any]) -> Settings:
    """Only the settings that are used are read: a wrong SCRUBJAY_PORT does not concern a client."""
    settings = Settings(
        **{
            name: _resolve(setting, arguments.get(name)) if name in used else _default(setting)
            for name, setting in SETTINGS.items()
        }
    )
    return settings._replace(embedder_key=settings.embedder_key or _key_of_openai(settings.embedder))


def _key_of_openai(embedder: str | None) -> str | None:
    """The key of OpenAI's own variable, for an embedder of OpenAI alone: another service must not learn it."""
    return os.environ.get("OPENAI_API_KEY") if embedder and embedder.startswith(_OPENAI) else None


def _resolve(setting: Setting, argument: Any) -> Any:
    if argument is not None:
        return setting.parse(argument) if setting.parse is parse_url and isinstance(argument, str) else argument
    text = os.environ.get(setting.variable)
    if not text:
        return _default(setting)
    try:
        return setting.parse(text)
    except ValueError as error:
        raise InvalidInput(f"{setting.variable}: {error}") from None


def _default(setting: Setting) -> Any:
    return setting.default() if callable(setting.default) else setting.default


def resolve(name: str, given: Any = None) -> Any:
    """One setting, resolved."""
    return _resolve(SETTINGS[name], given)


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `scrubjay serve`, from the table."""
    for setting in SETTINGS.values():
        if setting.serve and setting.parse is parse_switch:
            parser.add_argument(setting.flag, action="store_true", default=None, help=setting.help)
        elif setting.serve:
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
