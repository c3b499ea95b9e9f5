"""Leaves out those of AutoGen's tests that ask a model of a provider: they take its credentials from a fixture."""

from __future__ import annotations


def pytest_collection_modifyitems(config, items):
    online = {item for item in items if _asks_a_provider(getattr(item, "fixturenames", ()))}
    config.hook.pytest_deselected(items=list(online))
    items[:] = [item for item in items if item not in online]


def _asks_a_provider(fixtures):
    return any("credentials" in name for name in fixtures) and not any(name.startswith("mock") for name in fixtures)
