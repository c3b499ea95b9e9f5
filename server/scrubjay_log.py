"""The log of the service, on stderr: a line for each request, if that is wanted, and the errors.

A line names the route and the namespace, but never a key, a value or an api key: a log is read by more people, and
kept longer, than the data.
"""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime
from typing import Any

from starlette.types import Scope

from scrubjay.errors import ScrubjayError, Unavailable
from scrubjay.settings import Settings

REPEAT_SECONDS = 60.0
"""Seconds after which the same reason for a 503 is logged again: each request may get it."""
_access = logging.getLogger("scrubjay.access")
_failures = logging.getLogger("scrubjay")
_FIELDS = ("status", "method", "route", "namespace", "client", "ms")
"""Of a line of the access log, in this order."""


def log_request(scope: Scope, seconds: float) -> None:
    """Log a request that was answered; does nothing unless --access-log is set."""
    if _access.isEnabledFor(logging.INFO):
        access, route = scope.get("access"), scope.get("route")
        write_request(
            status=scope.get("status", 500),
            method=scope["method"],
            route=getattr(route, "path_format", None),
            namespace=(scope.get("path_params") or {}).get("namespace"),
            client=access.name if access and access.id else (scope.get("client") or ("",))[0],
            ms=round(seconds * 1000, 1),
        )


def log_refused_connection(status: int, address: str) -> None:
    """Log a request that was refused before it could be read."""
    if _access.isEnabledFor(logging.INFO):
        write_request(status=status, method=None, route=None, namespace=None, client=address, ms=None)


def write_request(**fields: Any) -> None:
    _access.info("request", extra={"request": fields})


class FailureLog:
    """Logs why requests get 503, such as a full disk, a damaged file or a limit."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}

    def log(self, error: ScrubjayError) -> None:
        """Log an Unavailable, each reason once in REPEAT_SECONDS; other errors are mistakes of clients."""
        if not isinstance(error, Unavailable):
            return
        now = time.monotonic()
        if now - self._logged_at.get(error.detail, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return
        self._logged_at = {each: at for each, at in self._logged_at.items() if now - at < REPEAT_SECONDS}
        self._logged_at[error.detail] = now
        _failures.error("%s", error.detail)


failures = FailureLog()


class TextFormatter(logging.Formatter):
    """A line of text: the time, the level, and what happened."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "request", None)
        text = super().format(record) if fields is None else _describe(fields)
        return f"{_time_of(record)} {record.levelname} {text}"


class JsonFormatter(logging.Formatter):
    """A JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "request", None) or {"message": record.getMessage()}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps({"time": _time_of(record), "level": record.levelname, **fields}, ensure_ascii=False)


def _describe(fields: dict[str, Any]) -> str:
    shown = {name: "-" if fields[name] is None else fields[name] for name in _FIELDS}
    client, namespace = json.dumps(shown["client"]), json.dumps(shown["namespace"])  # on one line, whatever they are
    return f"{shown['status']} {shown['method']} {shown['route']} {namespace} {client} {shown['ms']} ms"


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


FORMATTERS = {"text": TextFormatter, "json": JsonFormatter}


def log_config(settings: Settings) -> dict[str, Any]:
    """The configuration of Python's logging in every process of the server."""
    levels = {
        "uvicorn": "WARNING",
        "scrubjay": "WARNING",
        "scrubjay.access": "INFO" if settings.access_log else "ERROR",
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": FORMATTERS[settings.log_format]}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {
            name: {"handlers": ["stderr"], "level": level, "propagate": False} for name, level in levels.items()
        },
    }
