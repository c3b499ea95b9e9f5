"""The house rules that a test can hold: who imports whom, what is documented, what runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import scrubjay
from harness import clean_environment, serving
from scrubjay.cli import _parser
from scrubjay.settings import SETTINGS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "client" / "scrubjay"
README = (ROOT / "README.md").read_text()
# From the ground up: a room may use only those before it.
ROOMS = [
    "version",
    "lazy",
    "forks",
    "records",
    "errors",
    "names",
    "progress",
    "values",
    "settings",
    "drafts",
    "recall",
    "store",
    "meaning",
    "backends",
    "wire",
    "http_backend",
    "outbox",
    "outbox_backend",
    "watching",
    "memory",
    "async_memory",
    "adapters",
    "upkeep",
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
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "scrubjay" and parts[1] != room:
            assert ROOMS.index(parts[1]) < ROOMS.index(room), f"{room} imports {name}"
        if room == "store":
            assert parts[0] not in ("requests", "urllib3", "fastapi", "starlette", "autogen", "numpy"), name


def test_the_server_uses_the_store_and_never_memory():
    for path in (ROOT / "server").glob("*.py"):
        rooms = {name.split(".")[1] for name in imported(path) if name.startswith("scrubjay.")}
        assert not rooms & {
            "memory",
            "async_memory",
            "backends",
            "http_backend",
            "outbox",
            "outbox_backend",
            "wire",
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


def test_the_public_names_are_sorted_and_there():
    assert scrubjay.__all__ == sorted(scrubjay.__all__)
    for name in scrubjay.__all__:
        assert getattr(scrubjay, name) is not None
    with pytest.raises(AttributeError):
        scrubjay.nonsense  # noqa: B018


def test_every_setting_and_command_is_in_the_readme():
    for setting in SETTINGS.values():
        assert f"`{setting.variable}`" in README
    commands = next(action.choices for action in _parser()._actions if action.choices and "serve" in action.choices)
    for command in commands:
        assert f"scrubjay {command}" in README, command


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def world(tmp_path):
    """A user's machine: an empty home, a server on the port that the README names in its examples."""
    with serving(tmp_path / "served.db") as server:
        bin_ = str(Path(sys.executable).parent)
        environment = clean_environment(HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path / "data"))
        environment["PATH"] = f"{bin_}:{environment['PATH']}"

        def run(command: list[str], text: str) -> str:
            text = text.replace("http://127.0.0.1:8787", server.url)
            done = subprocess.run(
                [*command, text],
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
                env=environment,
                cwd=tmp_path,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        yield run


def test_every_python_block_of_the_readme_runs(world):
    assert len(blocks("python")) >= 4
    for block in blocks("python"):
        printed = world([sys.executable, "-c"], block)
        expected = re.findall(r"print\(.*\)  # (.*)", block)
        assert printed.splitlines() == expected, block


def test_every_shell_block_of_the_readme_runs(world):
    """All but the blocks that install, start the service or run the tests, which CI itself does."""
    ran = [block for block in blocks("bash") if not re.search(r"^(make|pip|git|scrubjay serve)", block, re.MULTILINE)]
    assert ran
    for block in ran:
        world(["bash", "-euc"], block)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_example_is_short_and_runs_twice(path, world):
    text = path.read_text()
    assert len(text.splitlines()) <= 40
    for _ in range(2):
        assert world([sys.executable, "-c"], text)
