"""The layers: which module may import which, and what `import scrubjay` loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import scrubjay

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "client" / "scrubjay"
# From the bottom up: a layer may import only those before it.
LAYERS = [
    "version",
    "fork_safety",
    "models",
    "errors",
    "exact_json",
    "filters",
    "validation",
    "settings",
    "recall",
    "conversations",
    "store",
    "semantic",
    "commands",
    "calls",
    "operations",
    "transaction",
    "executor",
    "local",
    "transport",
    "http",
    "write_keys",
    "fencing",
    "outbox",
    "opening",
    "watch",
    "learning",
    "memory",
    "threads",
    "async_memory",
    "adapters",
    "cli",
]


def imported(path: Path) -> set[str]:
    """The full names of all modules that a file imports, wherever in the file."""
    package = ["scrubjay", *path.relative_to(PACKAGE).parent.parts] if PACKAGE in path.parents else []
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base += node.module.split(".") if node.module else []
            found |= {".".join([*base, alias.name]) for alias in node.names}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if layer in ("__init__", "__main__"):
        return
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "scrubjay" and parts[1] != layer:
            assert LAYERS.index(parts[1]) < LAYERS.index(layer), f"{layer} imports {name}"
        if layer == "store":
            assert parts[0] not in ("requests", "urllib3", "fastapi", "starlette", "autogen", "numpy"), name


OF_THE_ENVIRONMENT = {"default_outbox", "default_path", "memory_settings", "resolve", "server_settings"}
"""The functions of `settings` that read the environment."""


@pytest.mark.parametrize("layer", sorted(set(LAYERS) - {"settings", "opening", "adapters", "cli"}))
def test_settings_are_read_from_the_environment_above_the_executors_only(layer):
    for path in (PACKAGE / f"{layer}.py", *(PACKAGE / layer).rglob("*.py")):
        names = imported(path) if path.exists() else set()
        assert not names & {f"scrubjay.settings.{name}" for name in OF_THE_ENVIRONMENT}, path


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_modules_import_each_other_in_a_circle():
    """Imports inside of functions, and those for types only, count as well."""
    paths = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    graph = {}
    for name, path in paths.items():
        found = {full if full in paths else full.rpartition(".")[0] for full in imported(path)}
        graph[name] = (found & paths.keys()) - {name}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_server_uses_the_store_and_never_memory():
    for path in (ROOT / "server").glob("*.py"):
        layers = {name.split(".")[1] for name in imported(path) if name.startswith("scrubjay.")}
        assert not layers & {
            "memory",
            "async_memory",
            "local",
            "http",
            "outbox",
            "opening",
            "transport",
            "adapters",
            "cli",
        }


def test_importing_scrubjay_stays_light():
    program = "import sys; before = set(sys.modules); import scrubjay; print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    heavy = {"requests", "urllib3", "asyncio", "fastapi", "aiosqlite", "uvicorn", "numpy", "autogen", "pydantic"}
    names = {name.split(".")[0] for name in loaded.stdout.split()}
    assert not names & heavy
    assert names - set(sys.stdlib_module_names) == {"scrubjay"}


def test_the_public_names_are_sorted_and_exist():
    assert scrubjay.__all__ == sorted(scrubjay.__all__)
    for name in scrubjay.__all__:
        assert getattr(scrubjay, name) is not None
    with pytest.raises(AttributeError):
        scrubjay.nonsense  # noqa: B018
    assert {*scrubjay.__all__, "PersistentAgent", "PersistentGroupChat", "persist"} <= set(dir(scrubjay))
