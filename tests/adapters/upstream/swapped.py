"""Marks the tests that reach into a class that was exchanged: they must fail, which shows that it was exchanged."""

from __future__ import annotations

from collections.abc import Mapping

import pytest


def expect_failures(items: list[pytest.Item], reasons: Mapping[str, str]) -> None:
    """`reasons`: names of tests, without their parameters, and why each cannot pass."""
    found = set()
    for item in items:
        name = item.name.partition("[")[0]
        if name in reasons:
            found.add(name)
            item.add_marker(pytest.mark.xfail(reason=reasons[name], strict=True))
    missing = reasons.keys() - found
    if missing and len(items) > len(found):
        raise pytest.UsageError(f"no such tests any more: {', '.join(sorted(missing))}")
