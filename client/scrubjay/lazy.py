"""Modules that are imported when they are first used, so that `import scrubjay` costs only what everyone needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Lazy:
    """Stands for a module until something of it is wanted."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)  # found directly from here on
        return value
