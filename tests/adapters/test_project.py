"""The namespace of an agent that is given none: safe for two projects, and the same for one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scrubjay.adapters._names import default_namespace
from scrubjay.adapters._project import program_folder, project_name

SHOW = "from scrubjay.adapters._names import default_namespace; print(default_namespace('autogen', 'assistant'))"


@pytest.fixture(autouse=True)
def _without_a_name(monkeypatch):
    monkeypatch.delenv("SCRUBJAY_PROJECT", raising=False)


def run(*words, cwd):
    done = subprocess.run([sys.executable, *map(str, words)], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def program(folder):
    folder.mkdir(parents=True)
    (folder / "main.py").write_text(SHOW)
    return folder / "main.py"


def test_projects_that_name_their_agents_alike_do_not_share_them(tmp_path):
    cooking, medical = program(tmp_path / "cooking" / "src"), program(tmp_path / "medical" / "src")
    names = {run(path, cwd=tmp_path) for path in (cooking, medical)}
    assert len(names) == 2
    assert all(name.startswith("autogen-src-") and name.endswith("-assistant") for name in names)


def test_a_program_has_one_project_wherever_it_is_started_from(tmp_path):
    path = program(tmp_path / "bot")
    assert run(path, cwd=tmp_path) == run(path, cwd=path.parent) == run("main.py", cwd=path.parent)


def test_a_prompt_belongs_to_the_current_folder(tmp_path):
    path = program(tmp_path / "bot")
    assert run("-c", SHOW, cwd=path.parent) == run(path, cwd=tmp_path)


def test_an_installed_program_runs_the_project_of_the_current_folder(monkeypatch):
    main = type(sys)("__main__")
    main.__file__ = str(Path(sys.prefix) / "bin" / "uvicorn")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert program_folder() == Path.cwd()


def test_a_project_can_be_named(monkeypatch):
    monkeypatch.setenv("SCRUBJAY_PROJECT", "cooking")
    assert project_name() == "cooking"
    assert default_namespace("autogen", "assistant") == "autogen-cooking-assistant"
