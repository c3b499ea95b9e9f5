from __future__ import annotations

import pytest

from harness import Server, issue_key, serving


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Server:
    """A server without quotas that needs an api key; its `apikey` is an admin key."""
    path = tmp_path_factory.mktemp("guarded") / "db"
    apikey = issue_key(path, "tests", "--admin")
    with serving(path, "--writes-per-day", "0", "--max-bytes", "0", "--durability", "fast") as server:
        server.apikey = apikey
        yield server
