"""Without AutoGen, and with packages that only go by its name."""

from __future__ import annotations

import subprocess
import sys

import pytest

INSTALL = 'pip install "scrubjay[autogen]"'


@pytest.fixture
def python_with(tmp_path):
    """Run code where exactly these distributions are installed, and no module autogen."""

    def run(code, **distributions):
        for name, version in distributions.items():
            info = tmp_path / f"{name}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        hide = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.modules['autogen'] = None\n"
        done = subprocess.run(
            [sys.executable, "-c", hide + code], capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout + done.stderr

    return run


ASK = """
import scrubjay
try:
    scrubjay.PersistentAgent
except scrubjay.MissingExtra as error:
    assert isinstance(error, ImportError)
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "version"), [("pyautogen", "0.10.0"), ("ag2", "1.2.0"), ("autogen_agentchat", "0.7.5")]
)
def test_the_wrong_package_is_named_with_the_command_that_helps(python_with, name, version):
    said = python_with(ASK, **{name: version})
    assert f"{name.replace('_', '-')} {version}" in said
    assert "without a ConversableAgent" in said
    assert INSTALL in said


@pytest.mark.parametrize("name", ["PersistentAgent", "PersistentGroupChat", "persist", "register_memory_tools"])
def test_every_name_says_what_to_install(python_with, name):
    said = python_with(f"from scrubjay import {name}")
    assert "MissingExtra: this needs AutoGen's ConversableAgent" in said
    assert INSTALL in said


def test_two_packages_in_one_folder_are_named_with_the_way_out(python_with, tmp_path):
    said = python_with(ASK, pyautogen="0.9.0", autogen="0.14.1")
    assert "overwrite" not in said
    for folder in tmp_path.glob("*.dist-info"):
        (folder / "top_level.txt").write_text("autogen\n")
    said = python_with(ASK)
    assert "autogen and pyautogen are installed, which overwrite each other's files" in said
    assert "pip uninstall -y autogen pyautogen" in said
    assert INSTALL not in said


def test_everything_else_works_without(python_with):
    code = "from scrubjay import *; print(Memory.__name__, 'scrubjay.adapters' in sys.modules)"
    assert python_with(code).split() == ["Memory", "False"]
