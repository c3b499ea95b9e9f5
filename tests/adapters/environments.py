"""Environments of their own for frameworks that cannot be installed beside each other or beside the tools of `dev`."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Only what these tests use: the dev extra's frameworks need other versions of the same packages.
TOOLS = ["pytest>=8.2", "pytest-timeout>=2.3", "pytest-xdist>=3.5", "hypothesis>=6.100"]


def environment(name: str, packages: list[str], extras: str = "server") -> Path:
    """The environment's Python; what it holds is brought up to date when that has changed."""
    home = ROOT / f".venv-{name}"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    packages = ["--editable", f"{ROOT}[{extras}]", *packages, *TOOLS]
    wanted = "\n".join([*packages, (ROOT / "pyproject.toml").read_text()])
    ready = home / ".ready"
    if not ready.exists() or ready.read_text() != wanted:
        print(f"Installing into {home.name}; this takes about a minute.", flush=True)
        venv.create(home, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)
        ready.write_text(wanted)
    return python
