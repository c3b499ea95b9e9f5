"""Where things are and how they are chosen."""

from __future__ import annotations

import subprocess
import sys

import pytest

import scrubjay_command
from harness import clean_environment
from scrubjay import InvalidInput, Memory, Unavailable
from scrubjay.opening import resolve_arguments
from scrubjay.settings import SETTINGS, parse_size, resolve


def test_nothing_needs_to_be_configured(tmp_path):
    with Memory("my-agent") as memory:
        memory.set("k", 1)
    assert (tmp_path / "data" / "scrubjay" / "scrubjay.db").exists()


def test_a_memory_in_a_file_opens_no_connection(tmp_path):
    """What Scrubjay does by itself: no telemetry, no look for updates, no download."""
    program = """
import sys
seen = []
sys.addaudithook(lambda event, _: seen.append(event) if event.startswith(("socket.", "urllib.", "http.")) else None)
from scrubjay import Memory
with Memory("ns") as memory:
    memory.set("k", 1)
    memory.append("l", {"role": "user", "content": "Hi"})
    memory.remember("Sarah prefers short answers")
    memory.recall("which answers?")
    memory.search("Hi")
    memory.inject_context("which answers?")
print(seen)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120,
        env=clean_environment(SCRUBJAY_PATH=str(tmp_path / "db")),
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_an_argument_wins_over_the_environment_and_that_over_the_default(monkeypatch, tmp_path, server):
    monkeypatch.setenv("SCRUBJAY_PATH", str(tmp_path / "from-environment.db"))
    assert "from-environment.db" in repr(Memory("ns"))
    assert "given.db" in repr(Memory("ns", path=str(tmp_path / "given.db")))
    monkeypatch.setenv("SCRUBJAY_URL", server.url)
    assert server.url in repr(Memory("ns"))
    assert "given.db" in repr(Memory("ns", path=str(tmp_path / "given.db"))), "a file that was named is meant"
    monkeypatch.setenv("SCRUBJAY_URL", "")
    assert "from-environment.db" in repr(Memory("ns"))
    with pytest.raises(InvalidInput, match="not both"):
        Memory("ns", url=server.url, path="x")


@pytest.mark.parametrize("name", ["TIMEOUT", "DURABILITY"])
def test_a_bad_setting_is_named(monkeypatch, server, name):
    monkeypatch.setenv(f"SCRUBJAY_{name}", "nonsense")
    with pytest.raises(InvalidInput, match=f"(?i){name}"):
        Memory("ns", **({"url": server.url} if name == "TIMEOUT" else {}))


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8787", "ftp://x", "http://", "nonsense", "http://[::1", "http://h:x", "http://h:99999"]
)
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(InvalidInput, match=r"write it (as|like) http://(127\.0\.0\.1:8787|nonsense)$"):
        Memory("ns", url=url)


@pytest.mark.parametrize("where", [{"url": 5}, {"path": b"x"}, {"durability": 1}, {"url": "http://h", "timeout": -1}])
def test_arguments_of_the_wrong_kind_are_refused(where):
    with pytest.raises(InvalidInput):
        Memory("ns", **where)


@pytest.mark.parametrize("where", [{"timeout": -1}, {"timeout": "5"}, {"timeout": 0, "path": "x"}])
def test_a_wrong_timeout_is_refused_without_a_server_too(where):
    with pytest.raises(InvalidInput, match="timeout"):
        Memory("ns", **where)


@pytest.mark.parametrize("name", ["url", "path", "secret", "outbox"])
@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_argument_is_refused_and_an_empty_variable_is_not_set(monkeypatch, tmp_path, name, empty):
    with pytest.raises(InvalidInput, match=f"{name} is empty"):
        Memory("ns", **{name: empty})
    monkeypatch.setenv(f"SCRUBJAY_{name.upper()}", "")
    assert str(tmp_path) in repr(Memory("ns"))


def test_a_server_that_is_not_there_is_unavailable():
    memory = Memory("ns", url="http://127.0.0.1:9", strict=True)
    for call in (lambda: memory.get("k"), lambda: memory.set("k", 1), memory.keys, lambda: "k" in memory):
        with pytest.raises(Unavailable, match=r"cannot reach.*scrubjay serve"):
            call()


def test_https_to_a_server_without_tls_says_so(server):
    memory = Memory("ns", url=server.url.replace("http://", "https://"), strict=True)
    with pytest.raises(Unavailable, match=f"does not seem to use TLS: try {server.url}"):
        memory.get("k")


def test_sizes_are_read_as_people_write_them():
    sizes = {"0": 0, "50MB": 50_000_000, "1 kb": 1000, "2GiB": 2**31, "17": 17, "3b": 3}
    assert {text: parse_size(text) for text in sizes} == sizes
    for text in ("", "MB", "-1", "1.5MB", "1XB"):
        with pytest.raises(ValueError, match="not a size"):
            parse_size(text)


def test_switches_are_read_as_people_write_them(monkeypatch):
    for text, meant in (("1", True), ("True", True), ("on", True), ("0", False), ("No", False), ("", False)):
        monkeypatch.setenv("SCRUBJAY_REQUIRE_KEY", text)
        assert resolve("require_key") is meant
    monkeypatch.setenv("SCRUBJAY_REQUIRE_KEY", "perhaps")
    with pytest.raises(InvalidInput, match=r"SCRUBJAY_REQUIRE_KEY: 'perhaps' is neither"):
        resolve("require_key")


def test_every_setting_has_a_default_that_it_can_read_itself():
    for name, setting in SETTINGS.items():
        default = resolve(name)
        if default is not None:
            assert setting.parse(str(default)) == default


def test_every_program_uses_the_database_in_scrubjay_store_unless_it_names_another(monkeypatch):
    monkeypatch.setenv("SCRUBJAY_STORE", "postgresql://db/memory")
    assert resolve_arguments().store == "postgresql://db/memory"
    assert resolve_arguments(path="file").store is None
    assert resolve_arguments(url="postgresql://other/memory").store == "postgresql://other/memory"
    assert resolve_arguments(url="http://127.0.0.1:8787").store is None
    monkeypatch.setenv("SCRUBJAY_URL", "http://127.0.0.1:8787")
    assert (resolve_arguments().url, resolve_arguments().store) == ("http://127.0.0.1:8787", None)


def test_a_path_given_to_serve_wins_over_scrubjay_store(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SCRUBJAY_STORE", "postgresql://db/memory")
    assert scrubjay_command.main(["--path", str(tmp_path)]) == 3
    told = capsys.readouterr().err
    assert (str(tmp_path) in told, "postgresql" in told) == (True, False)
