"""The page at /docs: the OpenAPI document as plain HTML.

FastAPI's own page fetches Swagger from somebody else's server, which a service on a machine of one's
own must not do, and cannot do offline. This one needs no script and no other file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }}
code, pre {{ font: 14px/1.5 ui-monospace, monospace; }}
pre {{ overflow: auto; background: #8882; padding: .5rem 1rem; }}
summary {{ cursor: pointer; padding: .3rem 0; }}
summary b {{ display: inline-block; min-width: 4.5rem; }}
table {{ border-collapse: collapse; margin: .5rem 0; }}
td {{ border-top: 1px solid #8884; padding: .2rem 1rem .2rem 0; vertical-align: top; }}
:root {{ color-scheme: light dark; }}
</style></head><body>
<h1>{title} {version}</h1>
<p>{summary} For programs, the same as <a href="openapi.json">openapi.json</a>.
Api keys go into <code>Authorization: Bearer …</code> or <code>X-API-Key</code>.</p>
{groups}
</body></html>
"""


def page(document: dict[str, Any]) -> str:
    """An OpenAPI document for people to read."""
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            group = operation.get("tags", ["Scrubjay's own"])[0]
            groups.setdefault(group, []).append(_operation(path, method, operation, document))
    info = document["info"]
    return _PAGE.format(
        title=escape(info["title"]),
        version=escape(info["version"]),
        summary=escape(info.get("summary", "")),
        groups="\n".join(f"<h2>{escape(group)}</h2>\n{''.join(parts)}" for group, parts in groups.items()),
    )


def _operation(path: str, method: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    told = operation.get("description") or operation["summary"]
    rows = [
        (given["name"], f"{given['in']}{'' if given.get('required') else ', optional'}", _schema(given["schema"]))
        for given in operation.get("parameters", ())
    ]
    answers = [(status, answer["description"]) for status, answer in operation["responses"].items()]
    body = operation.get("requestBody")
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code></summary>\n<p>{escape(told)}</p>\n"
        f"{_table(rows)}{_body(body, document) if body else ''}{_table(answers)}</details>\n"
    )


def _body(body: dict[str, Any], document: dict[str, Any]) -> str:
    ((media_type, content),) = body["content"].items()
    if "$ref" not in content["schema"]:  # no JSON object with fields
        return _table([(media_type, "body", _schema(content["schema"]))])
    schema = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
    needed = schema.get("required", ())
    rows = [
        (name, "body" if name in needed else "body, optional", field.get("description", ""), _schema(field))
        for name, field in schema["properties"].items()
    ]
    return _table(rows)


def _schema(schema: dict[str, Any]) -> str:
    said = {name: rule for name, rule in schema.items() if name not in ("title", "description")}
    return json.dumps(said, ensure_ascii=False)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>\n" if rows else ""
