"""The wires of the systems that Scrubjay replaces, so that their users change only a URL.

Each is a thin router on the same operations as /v1.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, Request, Response
from pydantic import Field, JsonValue

from scrubjay.errors import InvalidInput
from scrubjay.names import MAX_PAGE, check_key, check_ttl
from scrubjay.store import items
from scrubjay.values import decode_body, encode
from scrubjay_server import (
    WRITES,
    PlainRoute,
    Strict,
    described,
    failed,
    item_json,
    json_response,
    missing,
    namespace_of,
    read_fields,
    run,
    written,
)

botwire = APIRouter(route_class=PlainRoute, tags=["BotWire's wire"])
_KEY = "/memory/{namespace}/{key:key}"


class BotwireBody(Strict):
    value: JsonValue
    ttl: float | None = Field(None, description="seconds", gt=0)
    ttl_seconds: float | None = Field(None, gt=0)


@botwire.put(**described(_KEY, *WRITES, body=BotwireBody))
async def botwire_set(request: Request) -> Response:
    """Store a value; its package sends anything but a string as JSON inside a string."""
    namespace, key = namespace_of(request), _botwire_key(request)
    fields = await read_fields(request, "value", "ttl", "ttl_seconds")
    ttl = check_ttl(fields.get("ttl", fields.get("ttl_seconds")))
    value = _meant(fields["value"])
    text = None if value is None else encode(value)
    version, account = await run(request, items.set_item(namespace, key, text, ttl))
    return written({"ok": True, "namespace": namespace, "key": key, "version": version}, account)


@botwire.get(**described(_KEY, 404))
async def botwire_get(request: Request) -> Response:
    namespace, key = namespace_of(request), _botwire_key(request)
    stored = await run(request, items.read_item(namespace, key))
    if stored is None:
        return failed(missing(request))
    return json_response(item_json(key, stored))


@botwire.delete(**described(_KEY, 404))
async def botwire_delete(request: Request) -> Response:
    namespace, key = namespace_of(request), _botwire_key(request)
    found, account = await run(request, items.delete_item(namespace, key))
    if not found:
        return failed(missing(request))
    return written({"ok": True, "deleted": True}, account)


@botwire.get(**described("/memory/{namespace}"))
async def botwire_keys(request: Request) -> Response:
    """All keys, as strings."""
    namespace = namespace_of(request)
    keys: list[str] = []
    page = [""]
    while page and len(keys) % MAX_PAGE == 0:
        page = await run(request, items.list_keys(namespace, "", keys[-1] if keys else "", MAX_PAGE))
        keys += page
    return json_response({"namespace": namespace, "keys": keys, "count": len(keys)})


def _botwire_key(request: Request) -> str:
    """Its package puts keys into the URL as they are, so what follows a ? belongs to the key too."""
    query = request.scope["query_string"].decode("latin-1")
    key = request.path_params["key"]
    return check_key(f"{key}?{unquote(query)}" if query else key)


def _meant(value: Any) -> Any:
    """What the caller of its package had in hand, as far as the wire still tells.

    A list or an object arrives as text, and its package decodes such text on the way back, so storing
    what it stands for changes nothing for it and everything for whoever reads the namespace otherwise.
    None arrives as "null", and is documented to delete. Numbers and booleans cannot be told from
    strings; they stay the strings that its users know.
    """
    if not isinstance(value, str):
        return value
    if value == "null":
        return None
    if value[:1] not in ("[", "{"):
        return value
    try:
        decoded = decode_body(value)
        encode(decoded)
    except InvalidInput:  # not JSON after all, or JSON that would not come back the same
        return value
    return decoded
