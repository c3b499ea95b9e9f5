"""Known vulnerabilities in what an installed Scrubjay brings along, by pip-audit; run by `make audit`.

Only what users install is looked at, not the tools of this environment. pip-audit ends with success when
it could look up nothing at all, so what was really looked up is counted here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

ASKED = "scrubjay[server,semantic]"


def needed(requirement: Requirement, found: dict[str, str]) -> dict[str, str]:
    """The versions installed here of everything that a requirement brings along."""
    for text in requires(requirement.name) or ():
        part = Requirement(text)
        extras = requirement.extras or {""}
        if part.name in found or not any(part.marker is None or part.marker.evaluate({"extra": e}) for e in extras):
            continue
        try:
            found[part.name] = version(part.name)
        except PackageNotFoundError:  # an extra that is not installed here
            continue
        needed(part, found)
    return found


def audit(installed: dict[str, str]) -> list[dict]:
    """What pip-audit says of each; nothing if it could not look."""
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "requirements.txt"
        pins.write_text("".join(f"{name}=={pin}\n" for name, pin in sorted(installed.items())))
        command = ["-m", "pip_audit", "--disable-pip", "--no-deps", "--requirement", str(pins), "--format", "json"]
        done = subprocess.run(
            [sys.executable, *command, "--progress-spinner", "off"], capture_output=True, text=True, check=False
        )
    return json.loads(done.stdout)["dependencies"] if done.stdout.strip() else []


def main() -> int:
    installed = needed(Requirement(ASKED), {})
    looked_up = [found for found in audit(installed) if "skip_reason" not in found]
    for found in looked_up:
        for fault in found["vulns"]:
            fixed = ", ".join(fault["fix_versions"]) or "none yet"
            print(f"{found['name']} {found['version']}: {fault['id']}, fixed in {fixed}")
    print(f"{len(looked_up)} of {len(installed)} dependencies were looked up for known vulnerabilities")
    if len(looked_up) < len(installed):
        print("NOT AUDITED: the vulnerability service could not be reached, or does not know the others; try again")
    return int(any(found["vulns"] for found in looked_up))


if __name__ == "__main__":
    raise SystemExit(main())
