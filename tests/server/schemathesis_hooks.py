"""Refusals that Schemathesis does not report, because a schema cannot describe why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import schemathesis

from scrubjay.validation import MAX_KEY_BYTES


@schemathesis.hook
def filter_failure(_context: Any, _failure: Any, case: schemathesis.Case, response: Any) -> bool:
    """Whether to report a failure: not the refusal of a key that has too many bytes, but not too many characters."""
    names = map(unquote, _texts(case.path_parameters))  # they are percent-encoded
    texts = [*names, *_texts([case.query, case.body])]
    is_long = any(len(text) <= MAX_KEY_BYTES < len(text.encode(errors="replace")) for text in texts)
    return not (response.status_code == 400 and is_long)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
