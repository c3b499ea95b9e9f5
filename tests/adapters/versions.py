"""Run the tests of the AutoGen adapter on every AutoGen it supports, each in an environment of its own.

python tests/adapters/versions.py            # all of them
python tests/adapters/versions.py 0.14.1 -x  # one of them, with arguments for pytest
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# pyautogen 0.9 does not bring openai, and compares its version as text: "1.109" is too low for it.
VERSIONS = {
    "0.2.35": ["pyautogen==0.2.35"],
    "0.9": ["pyautogen==0.9.0", "openai==1.76.0"],
    "0.14.1": ["autogen[openai]==0.14.1"],
}
# Only what these tests use: the dev extra's frameworks would fight with AutoGen over versions.
TOOLS = ["pytest>=8.2", "pytest-timeout>=2.3", "hypothesis>=6.100"]


def environment(version: str) -> Path:
    """The environment's Python; what it holds is brought up to date when that has changed."""
    home = ROOT / f".venv-autogen-{version}"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    packages = ["--editable", f"{ROOT}[server]", *VERSIONS[version], *TOOLS]
    wanted = "\n".join([*packages, (ROOT / "pyproject.toml").read_text()])
    ready = home / ".ready"
    if not ready.exists() or ready.read_text() != wanted:
        venv.create(home, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)
        ready.write_text(wanted)
    return python


def main(arguments: list[str]) -> int:
    chosen = [argument for argument in arguments if argument in VERSIONS] or list(VERSIONS)
    options = [argument for argument in arguments if argument not in VERSIONS]
    failed = []
    for version in chosen:
        print(f"AutoGen {version}", flush=True)
        command = [environment(version), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/adapters", *options]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(version)
    print(f"failed: {', '.join(failed)}" if failed else f"passed on {', '.join(chosen)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
