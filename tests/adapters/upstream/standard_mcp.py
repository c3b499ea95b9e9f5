"""The conformance tests of MCP, on `scrubjay mcp --port`; npm fetches them and the Node that they need."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.test_framework_mcp import serving_http

PACKAGES = ("@modelcontextprotocol/conformance@0.1.16", "node@22")
HOME = Path(sys.prefix) / "sources" / "mcp-conformance"
CHECKS = {
    "server-initialize": 1,
    "ping": 1,
    "tools-list": 1,
    "resources-list": 1,
    "prompts-list": 1,
    "dns-rebinding-protection": 2,
    "server-sse-multiple-streams": 2,
}
"""The scenarios for any server, with the number of their checks; the others are about the suite's own example."""


@pytest.fixture(scope="module")
def command():
    modules = HOME / "node_modules"
    conformance = modules / "@modelcontextprotocol/conformance/dist/index.js"
    if not conformance.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not installed")
        HOME.mkdir(parents=True, exist_ok=True)
        flags = ["--no-audit", "--no-fund", "--loglevel", "error"]
        done = subprocess.run([npm, "install", "--prefix", HOME, *flags, *PACKAGES], check=False)
        if done.returncode:
            pytest.skip(f"npm could not fetch {', '.join(PACKAGES)}")
    return [modules / "node/bin/node", conformance]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with serving_http(str(tmp_path_factory.mktemp("mcp") / "memory.db")) as address:
        yield address


@pytest.mark.parametrize("scenario", CHECKS)
def test_a_scenario_passes(scenario, command, url):
    arguments = ["server", "--url", url, "--scenario", scenario]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Passed: {CHECKS[scenario]}/{CHECKS[scenario]}, 0 failed, 0 warnings" in done.stdout
