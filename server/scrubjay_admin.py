"""Routes that need an admin key: api keys, quotas, the audit, copies, erasure; and the export, for any key."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Annotated

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

import scrubjay_engine
import scrubjay_models as models
from scrubjay.errors import InvalidInput, NotFound, Unavailable, repr_short
from scrubjay.store import api_keys, changes, export, usage
from scrubjay.store.sqlite import backup
from scrubjay.validation import MAX_NAMESPACE_CHARS, MAX_SECONDS, check_namespace
from scrubjay_http import (
    COMMON_ERRORS,
    HIDDEN_NAMESPACE,
    MAX_QUERY_BODY_BYTES,
    STRICT,
    WRITE_ERRORS,
    Admitted,
    JsonBody,
    JsonResponse,
    PageLimit,
    ReadableNamespace,
    WritableNamespace,
    errors,
    no_content,
    parse_boolean,
    parsed_by,
    require_admin,
    require_write,
    seconds_text,
    sends,
    write_response,
)
from scrubjay_models import NAME_PATTERN

NDJSON = "application/x-ndjson"
DATABASE = "application/vnd.sqlite3"
POSITION_PATTERN = r"[0-9]{1,16}(\.[0-9]{1,16})?"
"""Of a cursor of the audit."""

routes = APIRouter(dependencies=[*STRICT, Depends(require_admin)], responses=errors(*COMMON_ERRORS))
exports = APIRouter(dependencies=STRICT, responses=errors(*COMMON_ERRORS))
"""What every key may take with it: all that it may read of a namespace anyway."""
_NAMESPACE = "/v1/namespaces/{namespace}"
_WITHOUT_COPY = ", or run `scrubjay backup --path FILE TARGET` on its machine, which writes to TARGET alone"

# ---------------------------------------------------------------- api keys and quotas


@routes.post(
    "/v1/apikeys",
    name="issue_key",
    response_model=models.IssuedApiKeyResult,
    responses=errors(413),
    dependencies=[Depends(require_write)],
)
async def issue_apikey(
    caller: Admitted,
    body: Annotated[models.IssueApiKeyBody, JsonBody(models.IssueApiKeyBody, MAX_QUERY_BODY_BYTES).dependency],
) -> Response:
    """Issue an api key; from the first on, every request needs one and namespaces have the default quotas."""
    rights = (tuple(body.namespaces), body.read_only, body.admin, body.limits.given, body.exact)
    issued = await caller.run(api_keys.issue(body.name, *rights))
    return JsonResponse(issued.to_json())


@routes.get("/v1/apikeys", name="api_keys", response_model=models.ApiKeysResult)
async def list_apikeys(caller: Admitted) -> Response:
    """The api keys in force, without the keys themselves."""
    return JsonResponse({"apikeys": [apikey.to_json() for apikey in await caller.run(api_keys.list_all())]})


def _missing_key(key_id: str) -> NotFound:
    return NotFound(f"there is no api key {repr_short(key_id)}; `scrubjay key list` lists them")


@routes.patch(
    "/v1/apikeys/{id}",
    name="set_key_quota",
    response_model=models.ApiKeyResult,
    responses=errors(404, 413),
    dependencies=[Depends(require_write)],
)
async def set_key_quota(
    caller: Admitted,
    id: str,  # noqa: A002 - the name in the path
    body: Annotated[models.KeyQuotaBody, JsonBody(models.KeyQuotaBody, MAX_QUERY_BODY_BYTES).dependency],
) -> Response:
    """Limit an api key over all its namespaces; a limit that is not named stays as it is."""
    apikey = await caller.run(api_keys.set_quota(id, body.given))
    if apikey is None:
        raise _missing_key(id)
    return JsonResponse(apikey.to_json())


@routes.post(
    "/v1/apikeys/{id}/rotate",
    name="rotate_key",
    response_model=models.RotatedApiKeyResult,
    responses=errors(404),
    dependencies=[Depends(require_write)],
)
async def rotate_apikey(caller: Admitted, id: str) -> Response:  # noqa: A002 - the name in the path
    """Replace an api key by another with the same id, rights, limits and memories; the old one ends at once."""
    secret = await caller.run(api_keys.rotate(id))
    if secret is None:
        raise _missing_key(id)
    return JsonResponse({"key": secret})


@routes.delete(
    "/v1/apikeys/{id}",
    name="revoke_key",
    status_code=204,
    response_model=None,
    responses=errors(404),
    dependencies=[Depends(require_write)],
)
async def revoke_apikey(
    caller: Admitted,
    id: str,  # noqa: A002 - the name in the path
    forget: Annotated[bool, Query(), parsed_by(parse_boolean("forget"))] = False,
) -> Response:
    """Revoke an api key at once, the last admin key only on the server's machine; `forget` removes its name, too."""
    if forget:
        await caller.resources.refusals.write()  # those of this key, which would be logged with its name later
    if not await caller.run(api_keys.revoke(id, forget, True)):
        raise _missing_key(id)
    return no_content()


@routes.patch(f"{_NAMESPACE}/quota", name="set_quota", response_model=models.UsageResult, responses=errors(413))
async def set_quota(
    caller: Admitted,
    namespace: WritableNamespace,
    body: Annotated[models.SetQuotaBody, JsonBody(models.SetQuotaBody, MAX_QUERY_BODY_BYTES).dependency],
) -> Response:
    """Limit a namespace; a limit that is not named stays as it is."""
    used = await caller.run(usage.set_quota(namespace, body.model_dump(include=body.model_fields_set)))
    return JsonResponse(used.to_json())


# ---------------------------------------------------------------- the audit


def _check_position(text: str) -> str:
    if not re.fullmatch(POSITION_PATTERN, text):
        raise InvalidInput(f"after in the query is the cursor of an earlier page, such as 57.3, not {repr_short(text)}")
    return text


@routes.get("/v1/audit", name="audit", response_model=models.AuditResult)
async def read_audit(
    caller: Admitted,
    namespace: Annotated[
        str | None,
        Query(min_length=1, max_length=MAX_NAMESPACE_CHARS, pattern=NAME_PATTERN),
        parsed_by(check_namespace),
    ] = None,
    since: Annotated[
        float, Query(ge=0, le=MAX_SECONDS, description="seconds since 1970"), seconds_text("since", MAX_SECONDS)
    ] = 0,
    after: Annotated[str, Query(pattern=f"^{POSITION_PATTERN}$"), parsed_by(_check_position)] = "0",
    limit: PageLimit = 1000,
) -> Response:
    """Who changed what and when, and what was refused; oldest first."""
    position = changes.AuditCursor.parse(after)
    found, position = await caller.run(changes.read_audit(namespace, int(since * 1000), position, limit))
    return JsonResponse({"changes": [change.to_json() for change in found], "cursor": str(position)})


# ---------------------------------------------------------------- data


@exports.get(f"{_NAMESPACE}/export", name="export", response_class=Response, responses={**errors(404), **sends(NDJSON)})
async def export_namespace(caller: Admitted, namespace: ReadableNamespace) -> Response:
    """All of a namespace as lines of JSON, read in one transaction; idempotency keys need an admin key."""
    store, is_whole = caller.resources.store, caller.access.admin
    if namespace == HIDDEN_NAMESPACE:
        raise NotFound("there is no such namespace, or this api key may not read it")
    # Into a file first: an error can still be answered, and a slow client does not keep a transaction open.
    with _disk_errors(), contextlib.ExitStack() as held:
        held.enter_context(caller.resources.export_limit.hold(caller.client_id))
        file = held.enter_context(tempfile.TemporaryFile(dir=store.folder))
        await store.run_in_thread(lambda opened: opened.run(export.export_namespace(namespace, file.write, is_whole)))
        return FileStream(file, NDJSON, held.pop_all())


@routes.post(
    f"{_NAMESPACE}/import",
    name="import",
    response_model=models.ImportedResult,
    responses=errors(409, *WRITE_ERRORS),
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}}
    },
)
async def import_namespace(
    caller: Admitted,
    namespace: WritableNamespace,
    replace: Annotated[bool, Query(), parsed_by(parse_boolean("replace"))] = False,
) -> Response:
    """Import what `export` returned, all of it or nothing; not counted as today's writes."""
    folder = caller.resources.store.folder
    with _disk_errors(), tempfile.NamedTemporaryFile(dir=folder, prefix=f".scrubjay-import-{backup.owner()}-") as file:
        async for chunk in caller.request.stream():
            file.write(chunk)
        file.flush()
        moved, used = await caller.run(export.import_namespace(namespace, Path(file.name), replace))
    return write_response(moved._asdict(), used)


@routes.post(f"{_NAMESPACE}/erase", name="erase", response_model=models.ErasedResult)
async def erase_namespace(caller: Admitted, namespace: WritableNamespace) -> Response:
    """Erase a namespace from every table, rebuild the file and search it for traces."""
    erased = await caller.resources.store.run_in_thread(scrubjay_engine.erase, namespace, caller.actor)
    return JsonResponse(erased.to_json())


@routes.get("/v1/backup", name="backup", response_class=Response, responses=sends(DATABASE))
async def back_up(caller: Admitted) -> Response:
    """The whole database, read in one transaction; until it is sent, the server has a temporary copy of it."""
    store = caller.resources.store
    scrubjay_engine.require_file(store)
    with (
        _disk_errors(_WITHOUT_COPY),
        tempfile.TemporaryDirectory(dir=store.folder, prefix=f".scrubjay-backup-{backup.owner()}-") as folder,
        contextlib.ExitStack() as held,
    ):
        copy = Path(folder) / "copy"
        try:
            await store.run_in_thread(backup.back_up, copy, lambda *_: None)
        except Unavailable as error:
            if getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise OSError(errno.ENOSPC, str(error.__cause__)) from error
            raise
        file = held.enter_context(copy.open("rb"))
        return FileStream(file, DATABASE, held.pop_all())


@contextlib.contextmanager
def _disk_errors(instead: str = "") -> Iterator[None]:
    """Answers 503 when the server's disk cannot hold a temporary file; `instead` is what needs none."""
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"the server has no room for a temporary copy: {error.strerror}; free space on its disk{instead}"
        ) from error


class FileStream(StreamingResponse):
    """A response that streams an open file; when it ends, it closes what was held for it, such as the file."""

    def __init__(self, file: IO[bytes], media_type: str, held: contextlib.ExitStack) -> None:
        size = file.seek(0, os.SEEK_END)
        super().__init__(_chunks_of(file), media_type=media_type, headers={"Content-Length": str(size)})
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


async def _chunks_of(file: IO[bytes]) -> AsyncIterator[bytes]:
    file.seek(0)
    while chunk := await asyncio.to_thread(file.read, 2**18):
        yield chunk
