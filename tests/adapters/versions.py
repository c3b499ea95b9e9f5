"""Run the tests of the AutoGen adapter on every AutoGen it supports, each in an environment of its own.

python tests/adapters/versions.py            # all of them
python tests/adapters/versions.py 0.14.1 -x  # one of them, with arguments for pytest
python tests/adapters/versions.py --install  # only the environments
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from environments import ROOT, environment

# pyautogen 0.9 does not bring openai, and compares its version as text: "1.109" is too low for it.
VERSIONS = {
    "0.2.35": ["pyautogen==0.2.35"],
    "0.9": ["pyautogen==0.9.0", "openai==1.76.0"],
    "0.14.1": ["autogen[openai]==0.14.1"],
}


NEEDS_AUTOGEN = re.compile(r'importorskip\("autogen["\.]')
"""In files whose tests need AutoGen; the others run with the main tests, and do not depend on its version."""

EXAMPLES = "tests/test_documentation.py::test_the_autogen_examples_of_a_page_ask_a_model_once_each"


def python_of(version: str) -> Path:
    """The Python of the environment with this AutoGen."""
    return environment(f"autogen-{version}", VERSIONS[version])


def main(arguments: list[str]) -> int:
    chosen = [argument for argument in arguments if argument in VERSIONS] or list(VERSIONS)
    options = [argument for argument in arguments if argument not in VERSIONS]
    if "--install" in options:
        for version in chosen:
            python_of(version)
        return 0
    failed = []
    tests = [path for path in sorted(Path(__file__).parent.glob("test_*.py")) if NEEDS_AUTOGEN.search(path.read_text())]
    for version in chosen:
        print(f"AutoGen {version}", flush=True)
        pytest = [python_of(version), "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", *options]
        if subprocess.run([*pytest, *tests, EXAMPLES], cwd=ROOT, check=False).returncode:
            failed.append(version)
    print(f"failed: {', '.join(failed)}" if failed else f"passed on {', '.join(chosen)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
