"""Routes of the dashboard: signing in with a browser, all namespaces with their usage, activity."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

import scrubjay_models as models
from scrubjay.errors import Unauthenticated
from scrubjay.models import iso, to_time
from scrubjay.store import notes, overview, sign_ins
from scrubjay.store.api_keys import EVERYTHING
from scrubjay.store.overview import Activity
from scrubjay.validation import MAX_KEY_BYTES, MAX_NAMESPACE_CHARS, MAX_PAGE, check_namespace
from scrubjay_auth import credentials, headers_of
from scrubjay_http import (
    COMMON_ERRORS,
    STRICT,
    Admitted,
    AfterQuery,
    Caller,
    JsonResponse,
    PrefixQuery,
    ReadableNamespace,
    count_text,
    errors,
    no_content,
    parse_boolean,
    parsed_by,
    require_admin,
)
from scrubjay_models import NAME_PATTERN
from scrubjay_signin import is_secure, set_cookie, token_of

MAX_POINTS = 1440
"""Points of a report of activity: the minutes of a day."""
NOT_SIGNED_IN: dict[str, Any] = {
    "name": None,
    "namespaces": [],
    "read_only": True,
    "admin": False,
    "needs_key": True,
    "expires_at": None,
}
"""The answer to a browser that has not signed in, or no longer."""
MAX_MINUTES = 43_200
"""Minutes that a report of activity covers: 30 days, as long as requests are counted."""

# ---------------------------------------------------------------- /v1: signing in

routes = APIRouter(dependencies=STRICT, responses=errors(*COMMON_ERRORS))


unauthenticated = APIRouter(responses=errors(*COMMON_ERRORS))
"""Routes that a browser may use before it has signed in."""


@unauthenticated.get("/v1/sign-in", name="who", response_model=models.WhoResult)
async def who(request: Request) -> Response:
    """What the sender of this request may do: nothing, without a name, if it has neither an api key nor a sign-in.

    That is not a refusal: the page for signing in asks first whether it has to be shown.
    """
    try:
        caller = await Caller.admit(request.scope, request.receive)
    except Unauthenticated:
        if credentials(headers_of(request.scope))[0] is not None:
            raise
        return JsonResponse(NOT_SIGNED_IN)
    access = caller.access
    token = token_of(headers_of(caller.scope))
    signed_in = await caller.run(sign_ins.find(token)) if token and access is not EVERYTHING else None
    return JsonResponse(
        {
            "name": access.name,
            "namespaces": list(access.patterns),
            "read_only": access.read_only,
            "admin": access.admin,
            "needs_key": access is not EVERYTHING,
            "expires_at": iso(to_time(signed_in.expires_at)) if signed_in else None,
        }
    )


@routes.post("/v1/sign-in", name="sign_in", status_code=204, response_model=None)
async def sign_in(caller: Admitted) -> Response:
    """Give a browser a cookie in place of the api key that this request was sent with; it lasts eight hours."""
    response = no_content()
    scope = caller.scope
    apikey, _ = credentials(headers_of(scope))
    if apikey is not None and caller.access is not EVERYTHING:
        token, _ = await caller.run(sign_ins.start(apikey))
        response.raw_headers.append(set_cookie(token, is_secure=is_secure(scope, headers_of(scope))))
    return response


@routes.delete("/v1/sign-in", name="sign_out", status_code=204, response_model=None)
async def sign_out(caller: Admitted) -> Response:
    """End the sign-in whose cookie this request has, and remove the cookie."""
    headers = headers_of(caller.scope)
    if token := token_of(headers):
        await caller.run(sign_ins.end(token))
    response = no_content()
    response.raw_headers.append(set_cookie("", is_secure=is_secure(caller.scope, headers)))
    return response


# ---------------------------------------------------------------- /v1: overview

NamespaceQuery = Annotated[
    str | None,
    Query(min_length=1, max_length=MAX_NAMESPACE_CHARS, pattern=NAME_PATTERN, description="only this one"),
    parsed_by(check_namespace),
]


@routes.get("/v1/usage", name="overview", response_model=models.OverviewResult)
async def read_overview(
    caller: Admitted,
    namespace: NamespaceQuery = None,
    search: Annotated[str, Query(max_length=MAX_NAMESPACE_CHARS, description="a part of the name")] = "",
    sort: Annotated[Literal["name", "keys", "notes", "bytes", "writes", "changed"], Query()] = "name",
    reverse: Annotated[
        bool, Query(description="the largest or latest first"), parsed_by(parse_boolean("reverse"))
    ] = False,
    offset: Annotated[int, Query(ge=0, le=10**9), count_text("offset in the query", most=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE), count_text("limit in the query", least=1, most=MAX_PAGE)] = 100,
) -> Response:
    """Namespaces with their usage, limits and last change, of those that the api key may see; and the sums."""

    def is_visible(name: str) -> bool:
        return namespace in (None, name) and caller.sees(name)

    found, totals = await caller.run(overview.list_usage(search, sort, reverse, offset, limit, is_visible))
    return JsonResponse({"namespaces": [each.to_json() for each in found], "totals": totals._asdict()})


@routes.get("/v1/namespaces/{namespace}/entries", name="entries", response_model=models.EntriesResult)
async def list_entries(
    caller: Admitted,
    namespace: ReadableNamespace,
    prefix: PrefixQuery = "",
    after: AfterQuery = "",
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE), count_text("limit in the query", least=1, most=MAX_PAGE)] = 100,
    search: Annotated[str, Query(max_length=MAX_KEY_BYTES, description="a part of the key, in whatever case")] = "",
) -> Response:
    """Keys with size, version, times and the start of each value; fewer than `limit` means that there are no more."""
    found = await caller.run(overview.list_entries(namespace, prefix, after, limit, search))
    return JsonResponse({"entries": [entry.to_json() for entry in found]})


@routes.get("/v1/namespaces/{namespace}/labels", name="labels", response_model=models.LabelsResult)
async def list_labels(caller: Admitted, namespace: ReadableNamespace) -> Response:
    """The 1,000 most frequent types, tags and sessions of the notes, with the number of notes that have each."""
    found = await caller.run(notes.list_labels(namespace))
    names = {"type": "types", "tags": "tags", "session": "sessions"}
    return JsonResponse({names[column]: [each._asdict() for each in labels] for column, labels in found.items()})


MinutesQuery = Annotated[
    int,
    Query(ge=1, le=MAX_MINUTES, description="how far back"),
    count_text("minutes in the query", least=1, most=MAX_MINUTES),
]
PointsQuery = Annotated[
    int,
    Query(ge=1, le=MAX_POINTS, description="into how many steps of whole minutes, at most"),
    count_text("points in the query", least=1, most=MAX_POINTS),
]


@routes.get(
    "/v1/activity", name="activity", response_model=models.ServerActivityResult, dependencies=[Depends(require_admin)]
)
async def read_activity(caller: Admitted, minutes: MinutesQuery = 1440, points: PointsQuery = 48) -> Response:
    """Requests, changes and refusals over time, and the latest changes and refusals, newest first."""
    await caller.resources.requests.write()
    step = math.ceil(minutes / points)
    return _activity_response(await caller.run(overview.read_activity(None, minutes, step)), step)


@routes.get("/v1/namespaces/{namespace}/activity", name="activity", response_model=models.ActivityResult)
async def read_namespace_activity(
    caller: Admitted, namespace: ReadableNamespace, minutes: MinutesQuery = 1440, points: PointsQuery = 48
) -> Response:
    """Changes and refusals of a namespace over time, and the latest of them, newest first."""
    step = math.ceil(minutes / points)
    return _activity_response(await caller.run(overview.read_activity(namespace, minutes, step)), step)


def _activity_response(activity: Activity, step: int) -> Response:
    points = [{**point, "at": iso(point["at"])} for point in activity.points]
    return JsonResponse({"step": step, "points": points, "recent": [change.to_json() for change in activity.recent]})
