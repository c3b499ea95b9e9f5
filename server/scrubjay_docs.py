"""The OpenAPI document: what FastAPI makes of the routes, completed with groups, bodies and examples.

The page at /docs shows it. FastAPI's own page loads Swagger from another server, which does not work offline and tells
that server who uses this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from scrubjay_auth import SECURITY_SCHEMES
from scrubjay_http import JsonBody, admit

GROUPS = {
    "items": "Values",
    "read": "Values",
    "values": "Values",
    "expiries": "Values",
    "entries": "Values",
    "transaction": "Values",
    "lists": "Lists and counters",
    "slices": "Lists and counters",
    "lengths": "Lists and counters",
    "counters": "Lists and counters",
    "notes": "Notes",
    "labels": "Notes",
    "conversations": "Conversations",
    "sessions": "Conversations",
    "search": "Search",
    "find": "Search",
    "changes": "Changes and activity",
    "activity": "Changes and activity",
    "audit": "Changes and activity",
    "usage": "Namespaces and quotas",
    "quota": "Namespaces and quotas",
    "namespaces": "Namespaces and quotas",
    "apikeys": "Api keys and signing in",
    "sign-in": "Api keys and signing in",
    "export": "Copies",
    "import": "Copies",
    "backup": "Copies",
    "erase": "Copies",
}
"""The group of a route, by the first part of its path behind the namespace or behind /v1; "Server" for the others."""

BODIES: dict[str, Any] = {
    "set": {"value": {"name": "Sarah", "likes": ["TypeScript"]}, "ttl": 3600},
    "merge": {"fields": {"name": "Sarah"}},
    "touch": {"ttl": 3600},
    "update": {"values": {"theme": "dark", "language": "en"}},
    "get_many": {"keys": ["theme", "language"]},
    "transaction": {
        "commands": [
            {"verb": "set", "key": "step", "value": 2},
            {"verb": "append", "key": "history", "items": ["step 2"]},
        ]
    },
    "append": {"items": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]},
    "incr": {"by": 1},
    "remember": {"content": "Sarah prefers short answers", "type": "preference", "tags": ["style"]},
    "recall": {"query": "What does Sarah prefer?", "limit": 5, "explain": True},
    "inject_context": {"query": "What does Sarah prefer?", "max_tokens": 400},
    "search": {"query": "Sarah"},
    "find": {"prefix": "users/", "where": {"city": "Berlin", "age": {"$gte": 18}}},
    "set_quota": {"writes_per_day": 5000},
    "issue_key": {"name": "support bot", "namespaces": ["support-*"]},
    "set_key_quota": {"writes_per_day": 5000, "max_namespaces": 10},
}
"""A body that works, by the name of the route; the page at /docs starts with it."""

PYTHON = {
    "set": 'memory.set("user", {"name": "Sarah", "likes": ["TypeScript"]}, ttl=3600)',
    "get": 'memory.get("user")',
    "contains": '"user" in memory',
    "update": 'memory.update({"theme": "dark", "language": "en"})',
    "get_many": 'memory.get_many(["theme", "language"])',
    "keys": 'memory.keys("the")',
    "items": 'memory.items("the")',
    "merge": 'memory.merge("user", {"name": "Sarah"})',
    "touch": 'memory.touch("user", ttl=3600)',
    "transaction": 'with memory.transaction() as t:\n    t.set("step", 2)\n    t.append("history", "step 2")',
    "append": 'memory.append("chat", {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"})',
    "tail": 'memory.tail("chat", 10)',
    "slice": 'memory.slice("chat", -10)',
    "length": 'memory.length("chat")',
    "pop": 'memory.pop("history")',
    "incr": 'memory.incr("visits")',
    "remember": 'memory.remember("Sarah prefers short answers", type="preference", tags=["style"])',
    "notes": 'memory.notes(type="preference")',
    "recall": 'memory.recall("What does Sarah prefer?", limit=5, explain=True)',
    "inject_context": 'memory.inject_context("What does Sarah prefer?", max_tokens=400)',
    "forget": "memory.forget(memory.notes()[0].id)",
    "search": 'memory.search("Sarah")',
    "find": 'memory.find("users/", where={"city": "Berlin"})',
    "conversations": "memory.conversations()",
    "conversation": 'memory.conversation("chat", limit=10)',
    "forget_session": 'memory.forget_session("chat")',
    "changes": "for change in memory.watch():\n    print(change.key)\n    break",
    "usage": "memory.usage()",
    "set_quota": "memory.set_quota(writes_per_day=5000)",
    "namespaces": "memory.namespaces()",
    "delete": 'memory.delete("user")',
    "clear": "memory.clear()",
}
"""The same in Python, by the name of the route, in an order in which all of them can be run."""


def complete(document: dict[str, Any], routes: Iterable[Any]) -> None:
    """Complete FastAPI's document: add the ways to send an api key and the bodies that JsonBody reads; remove the 422
    that is never answered, and null from the parameters.
    """
    models: set[Any] = set()
    for route in routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            models |= _complete_route(document["paths"][route.path_format], route)
    models_by_name = sorted(models, key=lambda pair: pair[0].__name__)
    _, definitions = models_json_schema(models_by_name, ref_template="#/components/schemas/{model}")
    schemas = document["components"]["schemas"] | definitions["$defs"]
    document["components"]["schemas"] = {
        name: schema for name, schema in schemas.items() if name not in ("HTTPValidationError", "ValidationError")
    }
    document["components"]["securitySchemes"] = SECURITY_SCHEMES
    document["tags"] = [{"name": group} for group in dict.fromkeys((*GROUPS.values(), "Server"))]


def _complete_route(operations: dict[str, Any], route: APIRoute) -> set[Any]:
    """Complete the operations of a route; returns the models of its bodies, as Pydantic's schemas need them."""
    dependencies = [dependency.call for dependency in route.dependant.dependencies]
    bodies = [getattr(call, "__self__", None) for call in dependencies]
    models = {(body.model, "validation") for body in bodies if isinstance(body, JsonBody)}
    is_own = not route.tags  # the others are the APIs of other products
    for method in route.methods or ():
        operation = operations[method.lower()]
        operation["responses"].pop("422", None)
        operation.setdefault("tags", [group_of(route.path_format)])
        if is_own and route.name in PYTHON:
            source = f'from scrubjay import Memory\n\nmemory = Memory("demo")\n{PYTHON[route.name]}'
            operation["x-codeSamples"] = [{"lang": "Python", "source": source}]
        for parameter in operation.get("parameters", ()):
            _remove_null(parameter["schema"])
        if admit in dependencies:
            operation["security"] = [{name: []} for name in SECURITY_SCHEMES]
        for model, _ in models:
            operation["requestBody"] = _request_body(model, BODIES.get(route.name) if is_own else None)
    return models


def _remove_null(schema: dict[str, Any]) -> None:
    """An optional parameter is left out: no URL or header can say null."""
    if {"type": "null"} in schema.get("anyOf", ()):
        (rules,) = [rules for rules in schema.pop("anyOf") if rules != {"type": "null"}]
        schema |= rules


def group_of(path: str) -> str:
    """The group of a route of /v1, and of those that need no api key."""
    parts = path.removeprefix("/v1/").removeprefix("namespaces/{namespace}").strip("/").split("/")
    return GROUPS.get(parts[0] or "namespaces", "Server")


def _request_body(model: type[BaseModel], example: Any = None) -> dict[str, Any]:
    """A body is required if its model refuses an empty object."""
    try:
        model.model_validate({})
        required = False
    except ValidationError:
        required = True
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    content = {"schema": schema} if example is None else {"schema": schema, "example": example}
    return {"required": required, "content": {"application/json": content}}
