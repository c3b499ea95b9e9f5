"""The `scrubjay` command on a file and on a server: in this process, and as a process where that matters."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import clean_environment, fresh_name, run_text, serving
from scrubjay import Memory
from scrubjay.cli import parser
from scrubjay.commands import DELETE
from scrubjay.outbox.queue import QueueFile, Target


@pytest.fixture(params=["file", "server"])
def scrubjay(request, tmp_path):
    if request.param == "server":
        variables = {"SCRUBJAY_URL": request.getfixturevalue("server").url}
    else:
        variables = {"SCRUBJAY_PATH": str(tmp_path / "cli.db")}

    def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess:
        return run_text(*words, stdin=stdin, **variables)

    return run


def test_set_and_get_speak_json_and_fall_back_to_text(scrubjay):
    namespace = fresh_name()
    for given, stored in (
        ("hello there", "hello there"),
        ('{"a": [1, null]}', {"a": [1, None]}),
        ("42", 42),
        ('"42"', "42"),
        ("ключ", "ключ"),
    ):
        assert scrubjay("set", namespace, "k", given).returncode == 0
        assert json.loads(scrubjay("get", namespace, "k").stdout) == stored
    for text in ("NaN", "1e999", "a [1", "} no"):
        assert scrubjay("set", namespace, "k", text).returncode == 0
        assert json.loads(scrubjay("get", namespace, "k").stdout) == text


def test_a_value_that_looks_like_json_and_is_not_is_refused_without_text(scrubjay):
    namespace = fresh_name()
    for text in ('{"a": 1,}', " [1, 2", "[NaN]", "[" * 5000, '"\\ud800"', '"unclosed'):
        for words in (("set", namespace, "k", text), ("append", namespace, "l", text)):
            refused = scrubjay(*words)
            assert refused.returncode == 1
            assert "--text" in refused.stderr
            assert refused.stderr.count("\n") == 1
        assert scrubjay("set", namespace, "k", text, "--text").returncode == 0
        assert json.loads(scrubjay("get", namespace, "k").stdout) == text


def test_a_value_is_text_or_comes_from_stdin(scrubjay):
    namespace = fresh_name()
    scrubjay("set", namespace, "k", "[1]", "--text")
    assert scrubjay("get", namespace, "k").stdout == '"[1]"\n'
    scrubjay("set", namespace, "k", "-", stdin='{"from": "stdin"}')
    assert json.loads(scrubjay("get", namespace, "k").stdout) == {"from": "stdin"}


def test_lists_keys_and_deleting(scrubjay):
    namespace = fresh_name()
    assert scrubjay("append", namespace, "l", "one", '{"two": 2}').stdout == "2\n"
    assert scrubjay("append", namespace, "l", "3").stdout == "3\n"
    assert scrubjay("tail", namespace, "l", "-n", "2").stdout == '{"two": 2}\n3\n'
    scrubjay("set", namespace, "user:a\nb", "1")
    assert scrubjay("keys", namespace).stdout == 'l\n"user:a\\nb"\n'
    assert scrubjay("keys", namespace, "user:").stdout == '"user:a\\nb"\n'
    assert namespace in scrubjay("namespaces").stdout.splitlines()
    assert scrubjay("rm", namespace, "l").returncode == 0
    gone = scrubjay("rm", namespace, "l")
    assert (gone.returncode, gone.stderr) == (1, f"scrubjay: there is no 'l' in '{namespace}'\n")
    assert scrubjay("get", namespace, "l").returncode == 1


def test_forgetting_a_note_that_does_not_exist_names_the_command_that_lists_them(scrubjay):
    namespace = fresh_name()
    scrubjay("set", namespace, "k", "1")
    gone = scrubjay("forget", namespace, "17")
    assert gone.returncode == 1
    assert gone.stderr == f"scrubjay: there is no note '17' in '{namespace}'; `scrubjay notes {namespace}` lists them\n"


def test_usage_and_quota(scrubjay):
    namespace = fresh_name()
    shown = scrubjay("quota", namespace, "--writes-per-day", "1", "--max-bytes", "2KB", "--new").stdout
    assert "0 of 1" in shown
    assert "0 bytes of 2.0 kB" in shown
    assert scrubjay("set", namespace, "k", "1").returncode == 0
    refused = scrubjay("set", namespace, "k", "2")
    assert refused.returncode == 1
    assert "--writes-per-day" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "1 of 1" in scrubjay("usage", namespace).stdout
    assert "(no limit)" in scrubjay("quota", namespace, "--writes-per-day", "0", "--max-bytes", "default").stdout
    assert scrubjay("quota", namespace, "--max-bytes", "lots").returncode == 2


@pytest.mark.parametrize("limit", ["--max-bytes", "--writes-per-day"])
@pytest.mark.parametrize("namespace", ["ns", "my ns", "-ns"])
def test_the_advice_to_raise_a_limit_works_when_it_is_pasted(tmp_path, limit, namespace):
    path = {"SCRUBJAY_PATH": str(tmp_path / "db")}
    run_text("quota", "--new", limit, "1", "--", namespace, **path).check_returncode()
    for _ in range(2):  # the first may be within the limit
        refused = run_text("set", "--", namespace, "key", '"a value"', **path)
    advice = shlex.split(refused.stderr.rpartition(": scrubjay ")[2])
    assert limit in advice, refused.stderr
    raised = run_text(*("100" if word == "N" else word for word in advice), **path)
    assert raised.returncode == 0, raised.stderr
    run_text("set", "--", namespace, "key", '"a value"', **path).check_returncode()


def test_the_quota_of_a_mistyped_namespace_is_refused_and_creates_none(scrubjay):
    namespace = fresh_name()
    scrubjay("set", namespace, "k", "1")
    refused = scrubjay("quota", f"{namespace}s", "--writes-per-day", "1")
    assert refused.returncode == 1
    assert f"no such namespace: '{namespace}s' (pass --new to" in refused.stderr
    assert f"did you mean {namespace!r}" in refused.stderr
    assert f"{namespace}s" not in scrubjay("namespaces").stdout.split()


def test_bad_input_is_one_sentence(scrubjay):
    for words in (
        ("get", "a/b", "k"),
        ("set", "ns", "", "1"),
        ("set", "ns", "k", "1", "--ttl", "0"),
    ):
        ended = scrubjay(*words)
        assert ended.returncode == 1
        assert ended.stderr.startswith("scrubjay: ")
        assert ended.stderr.count("\n") == 1
    assert scrubjay("fly").returncode == 2


def test_doctor_finds_nothing_wrong_and_something_wrong(scrubjay, tmp_path):
    missing = scrubjay("doctor", "--path", str(tmp_path / "nowhere"))
    assert missing.returncode == 1
    assert f"there is no database at {tmp_path / 'nowhere'}" in missing.stdout
    assert not (tmp_path / "nowhere").exists()
    namespace = fresh_name()
    scrubjay("append", namespace, "l", "1", "2")
    well = scrubjay("doctor")
    assert well.returncode == 0
    assert "no problems found" in well.stdout
    (tmp_path / "broken").write_bytes(b"not a database" * 1000)
    ill = scrubjay("doctor", "--path", str(tmp_path / "broken"))
    assert ill.returncode == 1
    assert "PROBLEM" in ill.stdout
    assert "1 problem found" in ill.stdout


def test_doctor_tells_which_file_cannot_be_written(tmp_path, monkeypatch):
    path, real = tmp_path / "db", os.access
    with Memory("ns", path=path) as memory:
        memory.set("k", 1)
    monkeypatch.setattr(os, "access", lambda name, mode: real(name, mode) and (str(name), mode) != (str(path), os.W_OK))
    ended = run_text("doctor", "--path", str(path))
    assert ended.returncode == 1
    assert f"PROBLEM  {path} cannot be written" in ended.stdout


def test_doctor_tells_when_the_server_does_not_answer(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "scrubjay", "doctor"], capture_output=True, text=True, check=False, timeout=60,
        env=clean_environment(SCRUBJAY_URL="http://127.0.0.1:9", SCRUBJAY_PATH=str(tmp_path / "none")),
    )  # fmt: skip
    assert ended.returncode == 1
    assert re.search(r"PROBLEM +cannot reach http://127.0.0.1:9", ended.stdout)


def test_doctor_and_status_tell_when_the_server_does_not_accept_the_api_key(tmp_path):
    with serving(tmp_path / "db") as server:
        apikey = run_text("key", "issue", "--admin", "--path", str(server.path)).stdout.strip()
        for sent, reason in (("", "no api key was sent"), (f"{apikey}x", "not known to the server")):
            where = {"SCRUBJAY_URL": server.url, "SCRUBJAY_API_KEY": sent, "SCRUBJAY_OUTBOX": str(tmp_path / "outbox")}
            ended = run_text("doctor", **where)
            assert (ended.returncode, "1 problem found" in ended.stdout) == (1, True)
            assert re.search(f"PROBLEM +.*{reason}", ended.stdout)
            assert reason in run_text("status", **where).stdout
        assert run_text("doctor", **{**where, "SCRUBJAY_API_KEY": apikey}).returncode == 0


def test_doctor_counts_queued_writes_although_the_server_does_not_answer(tmp_path):
    outbox = str(tmp_path / "outbox")
    with Memory("ns", url="http://127.0.0.1:9", outbox=outbox, timeout=1) as memory:
        memory.set("k", 1)
    ended = run_text("doctor", SCRUBJAY_URL="http://127.0.0.1:9", SCRUBJAY_OUTBOX=outbox)
    assert ended.returncode == 1
    assert "cannot reach" in ended.stdout
    assert "1 write for it not sent" in ended.stdout


def test_doctor_checks_what_the_user_uses(server, tmp_path):
    (tmp_path / "broken").write_bytes(b"not a database" * 1000)
    other = {"SCRUBJAY_PATH": str(tmp_path / "broken"), "SCRUBJAY_OUTBOX": str(tmp_path / "outbox")}
    ended = run_text("doctor", SCRUBJAY_URL=server.url, **other)
    assert (ended.returncode, "broken" in ended.stdout) == (0, False)
    assert f"server   {server.url}" in ended.stdout
    assert "on its machine: scrubjay doctor --path FILE" in ended.stdout
    assert run_text("doctor", **other).returncode == 1
    queue = QueueFile(tmp_path / "outbox", Target.of(server.url, None))
    queue.add(DELETE("ns", "k", None), "c-1", "a reason")
    queue.close()
    ended = run_text("doctor", SCRUBJAY_URL=server.url, **other)
    assert ended.returncode == 1
    assert "PROBLEM  1 write for it not sent; to see why: scrubjay pending" in ended.stdout


def test_a_missing_server_extra_names_the_command(tmp_path):
    program = "import sys; sys.modules['fastapi'] = None; from scrubjay.cli import main; sys.exit(main(['serve']))"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=clean_environment(),
    )
    assert ended.returncode == 1
    assert 'pip install "scrubjay[server]"' in ended.stderr


def on_file(path, *words: str, **variables: str) -> subprocess.CompletedProcess:
    return run_text(*words, SCRUBJAY_PATH=str(path), **variables)


def test_a_file_is_sealed_opened_and_sealed_anew_by_commands(tmp_path):
    path = tmp_path / "cli.db"
    assert on_file(path, "set", "ns", "k", "hello").returncode == 0
    first, second = {"SCRUBJAY_SECRET": "one"}, {"SCRUBJAY_SECRET": "two"}
    assert "scrubjay encrypt" in on_file(path, "get", "ns", "k", **first).stderr
    assert on_file(path, "encrypt").returncode == 1
    assert on_file(path, "encrypt", **first).returncode == 0
    for wrong in ({}, second):
        refused = on_file(path, "get", "ns", "k", **wrong)
        assert refused.returncode == 1
        assert "SCRUBJAY_SECRET" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert on_file(path, "serve", "--port", "0", **wrong).returncode == 1
    assert "SCRUBJAY_NEW_SECRET" in on_file(path, "encrypt", **first).stderr
    assert on_file(path, "encrypt", **first, SCRUBJAY_NEW_SECRET="two").returncode == 0
    assert on_file(path, "get", "ns", "k", **second).stdout == '"hello"\n'
    assert on_file(path, "doctor", **second).returncode == 0
    assert on_file(path, "decrypt", **second).returncode == 0
    assert on_file(path, "get", "ns", "k").stdout == '"hello"\n'
    assert on_file(path, "decrypt").returncode == 1


def test_the_audit_and_the_watch_print_a_line_for_each_change(scrubjay):
    namespace = fresh_name()
    scrubjay("set", namespace, "k", "1")
    scrubjay("rm", namespace, "k")
    told = scrubjay("audit", "--namespace", namespace, "--since", "1h").stdout.splitlines()
    assert [line.split()[4] for line in told] == ["set", "delete"]
    assert json.loads(scrubjay("audit", "--namespace", namespace, "--json").stdout.splitlines()[0])["key"] == "k"
    assert scrubjay("audit", "--namespace", namespace, "--since", "2999-01-01").stdout == ""
    assert "24h" in scrubjay("audit", "--since", "yesterday").stderr
    first = told[0].split()[0]
    seen = scrubjay("watch", namespace, "--after", first, "--timeout", "0.2").stdout.splitlines()
    assert seen == told[1:]


def test_one_of_anything_is_told_in_the_singular(tmp_path):
    path = tmp_path / "cli.db"
    on_file(path, "set", "ns", "k", "1")
    on_file(path, "quota", "ns", "--writes-per-day", "1")
    assert "1 namespace, 1 key, 0 notes, 2 bytes" in on_file(path, "doctor").stdout
    assert on_file(path, "export", "ns", "-o", str(tmp_path / "ns.jsonl")).returncode == 0
    assert "1 key and 0 notes" in on_file(path, "import", "other", "-i", str(tmp_path / "ns.jsonl")).stdout
    assert "has 0 of its 1 write a day left" in on_file(path, "set", "ns", "k", "2").stderr
    with serving(tmp_path / "db", "--writes-per-day", "1", "--requests-per-minute", "1") as server:
        assert "1 write a day" in server.banner
        assert "1 request a minute" in server.banner


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_output_that_cannot_be_written_is_one_sentence(tmp_path):
    on_file(tmp_path / "cli.db", "set", "ns", "k", "1")
    for words in (("get", "ns", "k"), ("keys", "ns"), ("export", "ns"), ("backup", "-"), ("doctor",)):
        with Path("/dev/full").open("w") as full:
            ended = subprocess.run(
                [sys.executable, "-m", "scrubjay", *words, "--path", str(tmp_path / "cli.db")],
                stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60, env=clean_environment(),
            )  # fmt: skip
        assert ended.returncode == 1
        assert re.fullmatch(r"scrubjay: cannot use the output: No space left on device; .*\n", ended.stderr)


def test_the_reader_of_a_pipe_may_stop_at_any_time(tmp_path):
    assert on_file(tmp_path / "cli.db", "append", "ns", "l", *map(str, range(2000))).returncode == 0
    command = f"{sys.executable} -m scrubjay %s --path {tmp_path / 'cli.db'}"
    for words in ("get ns l", "tail ns l -n 2000", "export ns", "backup -", "keys ns"):
        ended = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command % words} | true"],
            capture_output=True, text=True, check=False, timeout=60, env=clean_environment(),
        )  # fmt: skip
        assert (ended.returncode, ended.stderr) == (0, "")


def test_streams_that_are_closed_are_empty(tmp_path):
    where = f"--path {tmp_path / 'cli.db'}"
    for words, code in (
        (f"set ns k 1 {where} >&-", 0),
        (f"get ns k {where} >&-", 0),
        (f"set ns text - --text {where} <&-", 0),
        (f"import {where} <&-", 1),
    ):
        ended = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m scrubjay {words}"],
            capture_output=True, text=True, check=False, timeout=60, env=clean_environment(),
        )  # fmt: skip
        assert ended.returncode == code
        assert "Traceback" not in ended.stderr
    assert on_file(tmp_path / "cli.db", "get", "ns", "text").stdout == '""\n'


def test_a_file_and_a_server_cannot_both_be_meant(scrubjay):
    for words in (("get", "ns", "k"), ("export", "ns"), ("key", "list")):
        ended = scrubjay(*words, "--url", "http://127.0.0.1:9", "--path", "db")
        assert ended.returncode == 2
        assert "not allowed with argument --url" in ended.stderr


def test_the_audit_refuses_a_namespace_that_cannot_be(scrubjay):
    scrubjay("set", "ns", "k", "1")
    ended = scrubjay("audit", "--namespace", "a/b")
    assert ended.returncode == 1
    assert "'a/b' is not allowed" in ended.stderr


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        for inner in set(action.choices.values()) if isinstance(action.choices, dict) else ():
            yield from commands(inner)


def test_every_command_and_every_argument_of_it_is_explained():
    for each in commands(parser()):
        assert each.description, each.prog
        for action in each._actions:
            assert action.help or action.choices, (each.prog, action.metavar or action.dest)
        assert "None" not in each.format_help()
