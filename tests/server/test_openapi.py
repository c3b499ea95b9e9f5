"""The OpenAPI document against the service: Schemathesis sends what it allows and what it forbids, with every check."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from harness import clean_environment, serving

CONFIG = Path(__file__).with_name("schemathesis.toml")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that needs an api key, and an admin's key."""
    path = tmp_path_factory.mktemp("openapi") / "db"
    issue = [sys.executable, "-m", "scrubjay.cli", "key", "issue", "--name", "tests", "--admin", "--path", str(path)]
    issued = subprocess.run(issue, capture_output=True, text=True, check=True, timeout=60, env=clean_environment())
    with serving(path, "--writes-per-day", "0", "--max-bytes", "0", "--durability", "fast") as server:
        yield server, issued.stdout.split()[0]


@pytest.mark.timeout(300)
def test_what_the_document_says_is_what_the_service_does(guarded, tmp_path):
    server, apikey = guarded
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIG), "run",
        f"{server.url}/openapi.json", "--header", f"X-API-Key: {apikey}", "--checks", "all", "--no-color",
        "--header", "Accept: application/json",  # else changes come as a stream of events, which has no end
        "--generation-deterministic", "--max-examples", "10", "--continue-on-failure",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=280, check=False, env=clean_environment()
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    document = requests.get(f"{server.url}/openapi.json", timeout=5).json()
    operations = sum(map(len, document["paths"].values()))
    assert f"Tested: {operations}" in done.stdout
    assert int(re.search(r"(\d+) generated", done.stdout)[1]) > 1000
    assert server.process.poll() is None
    assert requests.get(f"{server.url}/ready", timeout=5).json()["status"] == "ready"
