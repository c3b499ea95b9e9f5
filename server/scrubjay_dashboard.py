"""The dashboard at / and the page of the API at /docs: their files.

The pages are plain HTML, CSS and ES modules in `dashboard/`, without a build step. They use /v1 alone, so whatever they
show, any client can read. The files are public; what they show is not.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import HTTPException

import scrubjay
from scrubjay_http import errors

FILES = next(
    folder
    for folder in (Path(scrubjay.__file__).with_name("dashboard"), Path(__file__).with_name("dashboard"))
    if folder.is_dir()
)
"""In the installed package, or beside this file in a checkout."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: its own files and this server's API. Nothing inline, so that stored text can never run."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-cache",  # asks again each time; the ETag answers without a body
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
"""Not those of the system, which may say that a script is plain text; no browser would run it."""

pages = APIRouter(responses=errors(431))


@cache
def _read(name: str) -> tuple[bytes, str, str]:
    """The bytes, media type and ETag of a file; read once in the life of the process."""
    data = (FILES / name).read_bytes()
    return data, TYPES[Path(name).suffix], f'"{hashlib.sha256(data).hexdigest()[:16]}"'


@cache
def _names() -> frozenset[str]:
    return frozenset(path.name for path in FILES.iterdir() if path.is_file())


def _file(request: Request, name: str) -> Response:
    data, media_type, tag = _read(name)
    headers = {**HEADERS, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=media_type, headers=headers)


@pages.get("/", name="dashboard", include_in_schema=False)
async def index(request: Request) -> Response:
    """The dashboard."""
    return _file(request, "index.html")


@pages.get("/docs", name="docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """The API as a page: examples, and a form to try each route."""
    return _file(request, "docs.html")


@pages.get("/dashboard/{name}", name="dashboard_file", include_in_schema=False)
async def file(request: Request, name: str) -> Response:
    if name not in _names():
        raise HTTPException(404)
    return _file(request, name)


@pages.get("/favicon.ico", name="icon", include_in_schema=False)
async def icon(request: Request) -> Response:
    return _file(request, "icon.svg")
