"""A server on a socket file, which only programs of its user can connect to."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harness import clean_environment, run_command, serving
from scrubjay import InvalidInput, Memory, Unavailable


@pytest.fixture
def folder(tmp_path_factory):
    """A short path: a socket's has 107 bytes at most."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture
def listening(folder):
    with serving(folder / "db", "--socket", str(folder / "s")) as server:
        yield server


def test_memory_and_the_command_work_over_a_socket_file(folder, listening):
    url = f"unix:{folder / 's'}"
    assert listening.url == url
    with Memory("ns", url=url) as memory:
        memory.set("k", {"a": 1})
        assert memory.get("k") == {"a": 1}
        assert memory.append("l", *range(5000)) == 5000
        assert "k" in memory
    assert run_command("get", "ns", "k", SCRUBJAY_URL=url).stdout == b'{"a": 1}\n'
    exported = run_command("export", "ns", SCRUBJAY_URL=url)
    assert exported.returncode == 0
    assert exported.stdout.count(b"\n") > 2
    assert run_command("doctor", SCRUBJAY_URL=url).returncode == 0


def test_only_its_user_may_connect(folder, listening):
    assert stat.S_IMODE((folder / "s").stat().st_mode) == 0o600
    assert "programs of this user, without a key" in listening.banner


def test_keys_are_needed_once_they_are_issued(folder, listening):
    url = listening.url
    issued = run_command("key", "issue", "--admin", SCRUBJAY_URL=url).stdout.decode().strip()
    assert run_command("set", "ns", "k", "1", SCRUBJAY_URL=url).returncode != 0
    assert run_command("set", "ns", "k", "1", SCRUBJAY_URL=url, SCRUBJAY_API_KEY=issued).returncode == 0


def test_writes_are_queued_while_nobody_listens_and_sent_by_flush(folder):
    url = f"unix:{folder / 's'}"
    with Memory("ns", url=url) as memory:
        assert memory.set("k", 1) is None
    assert f"queued for {url}" in run_command("pending").stdout.decode()
    with serving(folder / "db", "--socket", str(folder / "s")):
        assert run_command("flush").returncode == 0
        assert Memory("ns", url=url).get("k") == 1


def test_the_file_of_a_killed_server_is_replaced_and_that_of_a_running_one_is_not(folder):
    path = folder / "s"
    with serving(folder / "db", "--socket", str(path)) as server:
        second = [sys.executable, "-m", "scrubjay", "serve", "--path", str(folder / "db"), "--socket", str(path)]
        done = subprocess.run(second, capture_output=True, text=True, timeout=120, check=False, env=clean_environment())
        assert done.returncode == 1
        assert "--socket" in done.stderr
        server.stop(signal.SIGKILL)
        assert path.exists()
    with serving(folder / "db", "--socket", str(path)), Memory("ns", url=f"unix:{path}") as memory:
        memory.set("k", 1)
    assert not path.exists(), "a server that stops removes it"


@pytest.mark.parametrize("url", ["unix:", "unix:relative/path"])
def test_a_socket_url_without_an_absolute_path_is_refused(url):
    with pytest.raises(InvalidInput, match=r"unix:/run/scrubjay\.sock"):
        Memory("ns", url=url).get("k")


def test_a_socket_that_does_not_exist_is_unavailable(tmp_path):
    with pytest.raises(Unavailable, match="cannot reach unix:/"):
        Memory("ns", url=f"unix:{Path(tmp_path) / 'none'}", strict=True).set("k", 1)
