"""What a person meets at the command line: help, suggestions, status, completion, the demo, JSON and tables."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness import clean_environment, run_command
from scrubjay import Memory
from scrubjay.cli import output, parser
from scrubjay.cli.completion import SCRIPTS, complete
from scrubjay.cli.output import format_age, format_duration, format_size
from scrubjay.cli.parser import EXIT_CODES
from scrubjay.cli.progress import Progress


@pytest.fixture
def scrubjay(tmp_path):
    def run(*words: object, **variables: str) -> subprocess.CompletedProcess:
        done = run_command(*words, **{"SCRUBJAY_PATH": str(tmp_path / "cli.db"), **variables})
        return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


def commands(made, name=()):
    inner = next((each.choices for each in made._actions if isinstance(each.choices, dict)), None)
    if inner is None:
        yield name, made
    else:
        for word, choice in inner.items():
            yield from commands(choice, (*name, word))


COMMANDS = dict(commands(parser()))


# ------------------------------------------------------------ help


def test_help_has_every_command_in_a_group(scrubjay):
    text = scrubjay("--help").stdout
    groups = re.split(r"\n\n(?=[a-z]+:\n)", text)
    assert {group.split(":")[0] for group in groups[1:]} >= {
        "values",
        "notes",
        "conversations",
        "data",
        "server",
        "keys",
    }
    for name, *_ in COMMANDS:
        assert re.search(rf"^  {name} +\w", text, re.MULTILINE), name
    for code, meaning in EXIT_CODES.items():
        assert f"{code}  {meaning}" in text


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_a_command_has_an_example_that_can_be_parsed(name):
    example = COMMANDS[name].epilog.removeprefix("example:\n  ")
    words = shlex.split(re.sub(r'^eval "\$\((.*)\)"$', r"\1", example).partition(" > ")[0].partition(" < ")[0])
    while re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    assert tuple(words[1 : 1 + len(name)]) == name
    parser().parse_args(words[1:])


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [(("gte",), "did you mean 'get'?"), (("key", "lst"), "did you mean 'list'?"), (("completion", "bahs"), "'bash'")],
)
def test_a_mistyped_word_gets_a_suggestion(scrubjay, words, suggestion):
    ended = scrubjay(*words)
    assert ended.returncode == 2
    assert suggestion in ended.stderr


@pytest.mark.parametrize(
    ("words", "usage", "hint"),
    [
        (("serve", "--prot", "9801"), "usage: scrubjay serve", "did you mean '--port' or '--path'?"),
        (("tail", "my-agent", "user", "2"), "usage: scrubjay tail", "unknown arguments: 2\n"),
        (("key", "list", "--jsno"), "usage: scrubjay key list", "did you mean '--json'?"),
    ],
)
def test_an_argument_too_many_is_named_with_the_usage_of_its_command(scrubjay, words, usage, hint):
    ended = scrubjay(*words)
    assert ended.returncode == 2
    assert ended.stderr.startswith(usage)
    assert hint in ended.stderr


def test_words_that_are_options_here_are_named(scrubjay):
    assert "`scrubjay COMMAND --help` explains a command" in scrubjay("help").stderr
    assert "`scrubjay --version` prints it" in scrubjay("version").stderr


def test_a_condition_in_place_of_a_prefix_is_noticed(scrubjay):
    scrubjay("set", "ns", "k", "1")
    assert "'name=Sarah' is the start of keys, conditions are in --where" in scrubjay("find", "ns", "name=Sarah").stderr


def test_ctrl_c_while_the_commands_are_imported_is_no_traceback():
    program = """if True:
        import sys
        from importlib.abc import MetaPathFinder
        class Interrupted(MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == "scrubjay.cli":
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Interrupted())
        from scrubjay.__main__ import main
        sys.exit(main())
    """
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, env=clean_environment()
    )
    assert (ended.returncode, ended.stderr) == (130, "")


def test_a_word_like_no_command_names_the_help(scrubjay):
    assert "`scrubjay --help` lists them" in scrubjay("xyzzy").stderr
    assert "choose from relevance" in scrubjay("recall", "ns", "q", "--ranking", "xyzzy").stderr


# ------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    "words",
    [
        ("get", "{}", "k"),
        ("keys", "{}"),
        ("tail", "{}", "l"),
        ("slice", "{}", "l", "0"),
        ("items", "{}"),
        ("touch", "{}", "k"),
        ("chat", "{}"),
        ("sessions", "{}"),
        ("forget-session", "{}", "s"),
        ("rm", "{}", "k"),
        ("usage", "{}"),
        ("quota", "{}"),
        ("recall", "{}", "question"),
        ("recall", "{}", "question", "--context", "100"),
        ("notes", "{}"),
        ("forget", "{}", "1"),
        ("audit", "--namespace", "{}"),
        ("export", "{}"),
        ("clear", "{}", "--yes"),
    ],
    ids=lambda words: words[0],
)
def test_a_namespace_that_does_not_exist_is_named_with_a_similar_one(scrubjay, words):
    assert scrubjay("set", "my-agent", "k", "1").returncode == 0
    ended = scrubjay(*(word.format("my-agnet") for word in words))
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr == "scrubjay: no such namespace: 'my-agnet'; did you mean 'my-agent'?\n"
    assert scrubjay("namespaces").stdout == "my-agent\n", "asking for a namespace does not create it"


def test_an_empty_result_says_what_is_empty(scrubjay):
    scrubjay("set", "ns", "k", "1")
    assert "no api key is in force" in scrubjay("key", "list").stderr
    assert scrubjay("keys", "ns", "user:").stderr == "no key that starts with 'user:' in 'ns'\n"
    assert scrubjay("notes", "ns").stderr == "no notes in 'ns'\n"
    assert "has no notes; to store one: scrubjay remember ns TEXT" in scrubjay("recall", "ns", "tea").stderr
    scrubjay("remember", "ns", "Sarah likes tea")
    assert scrubjay("recall", "ns", "zebra").stderr == "no note in 'ns' fits\n"
    assert "no changes since then" in scrubjay("audit", "--namespace", "ns", "--since", "2999-01-01").stderr
    for words in (("keys", "ns", "user:"), ("recall", "ns", "zebra")):
        assert scrubjay(*words).returncode == 0


@pytest.mark.parametrize(
    "words",
    [("get", "ns", "k"), ("namespaces",), ("chat", "ns", "--follow"), ("rm", "ns", "k"), ("export", "ns"), ("compact",),
     ("erase", "ns", "--yes"), ("backup", "copy"), ("key", "list"), ("key", "issue"), ("audit",),
     ("watch", "ns")],
    ids=" ".join,
)  # fmt: skip
def test_a_command_that_reads_or_deletes_creates_no_database(scrubjay, words, tmp_path):
    missing = tmp_path / "no" / "such" / "file"
    ended = scrubjay(*words, "--path", str(missing))
    assert ended.returncode == 1
    assert f"there is no database at {missing}; the first write creates it" in ended.stderr
    assert not (tmp_path / "no").exists()
    assert scrubjay("set", "ns", "k", "1", "--path", str(missing)).returncode == 0


def test_a_server_that_does_not_answer_has_an_exit_code_of_its_own(scrubjay):
    ended = scrubjay("get", "ns", "k", "--url", "http://127.0.0.1:9")
    assert ended.returncode == 3
    assert "cannot reach http://127.0.0.1:9" in ended.stderr


# ------------------------------------------------------------ new verbs


def test_incr_adds_and_clear_deletes_after_a_confirmation(scrubjay):
    assert scrubjay("incr", "ns", "visits").stdout == "1\n"
    assert scrubjay("incr", "ns", "visits", "2.5").stdout == "3.5\n"
    assert scrubjay("incr", "ns", "visits", "x").returncode == 2
    scrubjay("remember", "ns", "Sarah likes tea")
    refused = scrubjay("clear", "ns")
    assert refused.returncode == 1
    assert "pass --yes to delete 1 key and 1 note" in refused.stderr
    assert scrubjay("get", "ns", "visits").stdout == "3.5\n"
    assert scrubjay("clear", "ns", "--yes").stdout == "2\n"
    assert scrubjay("keys", "ns").stdout == scrubjay("notes", "ns").stdout == ""


# ------------------------------------------------------------ status, open, demo


def test_without_a_command_the_state_is_shown_and_nothing_is_created(scrubjay, tmp_path):
    shown = scrubjay()
    assert shown.returncode == 0
    assert str(tmp_path / "cli.db") in shown.stdout
    assert "no database yet" in shown.stdout
    assert not (tmp_path / "cli.db").exists()
    scrubjay("set", "my-agent", "k", "1")
    assert "1 namespace, 1 key, 0 notes" in scrubjay().stdout
    tries = [line.strip() for line in shown.stdout.splitlines() if line.startswith("  scrubjay ")]
    assert len(tries) == 3
    for line in tries:
        assert scrubjay(*line.split()[1:]).returncode == 0, line


def test_the_status_says_whether_a_server_answers(scrubjay, server):
    told = scrubjay(SCRUBJAY_URL=server.url).stdout
    assert f"{server.url} answers" in told
    assert re.search(r"^data +on the server below", told, re.MULTILINE)
    assert "to start one: scrubjay serve" in scrubjay(SCRUBJAY_PORT="9").stdout
    status = json.loads(scrubjay("status", "--json", "--url", server.url).stdout)
    assert (status["server"], status["answers"]) == (server.url, True)


def test_status_says_that_no_database_can_be_made(scrubjay, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    shown = scrubjay("status", SCRUBJAY_PATH=str(tmp_path / "file" / "new" / "db")).stdout
    assert f"none can be made: {tmp_path / 'file'} is not a folder; set SCRUBJAY_PATH" in shown
    real = os.access
    monkeypatch.setattr(os, "access", lambda name, mode: real(name, mode) and name != tmp_path)
    shown = scrubjay("status", "--json", SCRUBJAY_PATH=str(tmp_path / "new" / "db")).stdout
    assert f"none can be made: {tmp_path} cannot be written" in json.loads(shown)["error"]


def test_open_shows_the_address_of_a_server_that_answers(scrubjay, server, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert scrubjay("open", "--url", server.url).stdout == f"{server.url}\n"
    assert opened == [server.url]
    ended = scrubjay("open", "--url", "http://127.0.0.1:9")
    assert (ended.returncode, opened) == (3, [server.url])
    assert "start it with: scrubjay serve --port 9\n" in ended.stderr


def test_open_says_that_a_browser_cannot_open_a_socket_file(scrubjay, monkeypatch):
    monkeypatch.setattr("webbrowser.open", pytest.fail)
    ended = scrubjay("open", "--url", "unix:/run/scrubjay.sock")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "a browser cannot open the socket file of unix:/run/scrubjay.sock" in ended.stderr


def test_no_command_prints_the_api_key_in_a_url(scrubjay, server, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    for command, flags in itertools.product(("status", "open", "doctor"), ((), ("--json",))):
        for url in (server.url, "http://127.0.0.1:9", "http://127.0.0.1:wrong"):
            ended = scrubjay(command, *flags, SCRUBJAY_URL=url.replace("//", "//sj_secret@"))
            assert url in ended.stdout + ended.stderr
            assert "sj_secret" not in ended.stdout + ended.stderr
    assert opened == [server.url.replace("//", "//sj_secret@")] * 2, "as it was given"


def test_the_demo_remembers_what_the_killed_process_stored(scrubjay, tmp_path):
    shown = scrubjay("demo")
    assert shown.returncode == 0, shown.stderr
    first, second = shown.stdout.split("process 2")
    assert "killed" in first
    assert "Welcome back, Sarah. I have our 4 messages." in second
    assert re.search(r"agent +We decided on PostgreSQL", second)
    assert not (tmp_path / "cli.db").exists(), "the demo leaves the user's own data alone"


# ------------------------------------------------------------ JSON


def test_every_command_that_prints_has_json():
    printed_as_json_anyway, prints_no_result = {"export"}, {"serve", "mcp", "encrypt", "decrypt", "reindex"}
    made_for_people = {"demo", "completion"}
    without = {name for (name, *_), made in COMMANDS.items() if "--json" not in made._option_string_actions}
    assert without <= printed_as_json_anyway | prints_no_result | made_for_people


def test_a_note_is_replaced_and_forgotten_by_an_id_of_your_own(scrubjay):
    assert scrubjay("remember", "ns", "Sarah likes tea", "--id", "sarah/drink").stdout.strip() == "sarah/drink"
    scrubjay("remember", "ns", "Sarah likes water", "--id", "sarah/drink")
    listed = scrubjay("notes", "ns").stdout
    assert "water" in listed
    assert "tea" not in listed
    scrubjay("forget", "ns", "sarah/drink")
    assert "water" not in scrubjay("notes", "ns").stdout


def test_json_has_the_fields_of_the_http_api(scrubjay, tmp_path):
    scrubjay("set", "ns", "user", '{"name": "Sarah"}')
    scrubjay("remember", "ns", "Sarah likes tea")
    backup, copy = tmp_path / "backup.db", tmp_path / "copy.jsonl"
    copy.write_text(scrubjay("export", "ns").stdout)
    for words, expected in (
        (("get", "ns", "user"), {"key": "user", "value": {"name": "Sarah"}, "version": 1}),
        (("set", "ns", "k", "1"), {"version": 1}),
        (("keys", "ns", "user"), "user"),
        (("append", "ns", "l", "1", "2"), {"length": 2}),
        (("incr", "ns", "n"), {"value": 1}),
        (("rm", "ns", "n"), {"deleted": True}),
        (("namespaces",), "ns"),
        (("usage", "ns"), {"namespace": "ns", "keys": 3}),
        (("quota", "ns", "--max-bytes", "1MB"), {"max_bytes": 1_000_000}),
        (("recall", "ns", "tea"), {"content": "Sarah likes tea"}),
        (("recall", "ns", "tea", "--context", "100"), {"context": "…"}),
        (("notes", "ns"), {"content": "Sarah likes tea"}),
        (("audit", "--namespace", "ns"), {"verb": "set", "key": "user"}),
        (("doctor",), {"problems": [], "namespaces": 1}),
        (("import", "copy", "-i", copy), {"namespace": "copy", "keys": 1, "notes": 1}),
        (("backup", backup), {"file": str(backup)}),
        (("restore", backup), {"file": str(tmp_path / "cli.db")}),
        (("compact",), {"file": str(tmp_path / "cli.db")}),
        (("erase", "copy", "--yes"), {"traces": []}),
        (("key", "issue", "--name", "me", "--admin"), {"name": "me", "admin": True}),
        (("key", "list"), {"name": "me"}),
        (("clear", "ns", "--yes"), {"deleted": 4}),
    ):
        ended = scrubjay(*words, "--json")
        assert ended.returncode == 0, ended.stderr
        found = json.loads(ended.stdout.splitlines()[0])
        if isinstance(expected, dict):
            shown = {name: found[name] if value != "…" else "…" for name, value in expected.items()}
            assert shown == expected, words
        else:
            assert found == expected


# ------------------------------------------------------------ sizes, times, tables, progress


def test_sizes_and_times_are_for_people():
    assert [format_size(n) for n in (0, 1, 999, 1000, 1234, 999_950, 50_000_000, 3 * 10**12)] == [
        "0 bytes", "1 byte", "999 bytes", "1.0 kB", "1.2 kB", "1.0 MB", "50.0 MB", "3.0 TB",
    ]  # fmt: skip
    assert [format_duration(n) for n in (0, 1, 61, 3600, 3725, 90_000)] == [
        "0 s", "1 s", "1 min 1 s", "1 h", "1 h 2 min", "1 d 1 h",
    ]  # fmt: skip
    now = datetime.now(UTC)
    ages = [timedelta(0), timedelta(minutes=5, seconds=9), timedelta(days=3)]
    assert [format_age(now - age) for age in ages] == ["now", "5 min ago", "3 d ago"]


def on_terminal(*words: str, **variables: str) -> str:
    """The output of a command on a terminal."""
    main, side = pty.openpty()
    command = [sys.executable, "-m", "scrubjay", *words]
    with subprocess.Popen(command, stdout=side, stderr=side, env=clean_environment(TERM="xterm", **variables)):
        os.close(side)
        shown = b""
        try:
            while data := os.read(main, 4096):
                shown += data
        except OSError:  # Linux ends a terminal with an error
            pass
    os.close(main)
    return shown.decode()


@pytest.fixture
def notes(tmp_path):
    path = str(tmp_path / "notes.db")
    with Memory("ns", path=path) as memory:
        memory.remember("tea [bold]is\x1b[31m good")
        memory.remember("coffee is better")
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("rm", "ns", "key"), ("clear", "ns"), ("clear", "ns", "k"), ("forget", "ns", "n-1"),
        ("forget-session", "ns", "s"), ("erase", "ns"), ("key", "revoke", "3f9c0a12"),
        ("pending", "--drop", "--all-servers"),
    ],
)  # fmt: skip
def test_every_command_that_deletes_takes_yes(scrubjay, words):
    assert scrubjay(*words, "--yes").returncode != 2


def test_a_table_has_headings_and_colours_on_a_terminal_only(notes, scrubjay):
    plain = scrubjay("notes", "ns", "--path", notes).stdout
    assert "text" not in plain
    assert "\x1b" not in plain, "a note cannot send codes to the terminal either"
    assert len({re.search('"tea|coffee', line).start() for line in plain.splitlines()}) == 1
    shown = on_terminal("notes", "ns", "--path", notes)
    assert re.search(r"\x1b\[1m *id", shown)
    assert "[bold]is" in shown
    assert "\x1b[31m" not in shown
    uncoloured = on_terminal("notes", "ns", "--path", notes, NO_COLOR="1")
    assert "\x1b[3" not in uncoloured
    assert re.search(r"id +.*text", uncoloured)


def test_a_table_is_plain_text_without_rich(notes, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    column = output.Column("name", lambda record: record["name"])
    number = output.Column("n", lambda record: str(record["n"]), output.NUMBER_ALIGN)
    arguments = parser().parse_args(["namespaces"])
    output.print_records(arguments, [{"name": "a", "n": 1}, {"name": "long", "n": 100}], column, number, empty="")
    assert capsys.readouterr().out == "name    n\na       1\nlong  100\n"


def test_progress_shows_the_time_left(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Progress("byte") as progress:
        for second in range(5):
            now[0] = float(second)
            progress(second * 1_000_000, 4_000_000)
    shown = capsys.readouterr().err.split("\r")
    assert "1.0 MB of 4.0 MB, 3 s left" in shown[2]
    assert shown[-1].rstrip() == f"[{'#' * 30}] 4.0 MB of 4.0 MB"


# ------------------------------------------------------------ completion


def test_completion_knows_commands_flags_choices_and_namespaces(tmp_path):
    path = str(tmp_path / "words.db")
    for namespace in ("my-agent", "my-team", "other"):
        with Memory(namespace, path=path) as memory:
            memory.set("k", 1)
    assert complete(["rem"]) == ["remember"]
    assert complete(["key", "re"]) == ["revoke"]
    assert complete(["get", "--path", path, "my-"]) == ["my-agent", "my-team"]
    assert complete(["recall", "ns", "q", "--ranking", "re"]) == ["relevance"]
    assert complete(["set", "--t"]) == ["--text", "--ttl"]
    assert complete(["completion", ""]) == ["bash", "fish", "zsh"]
    assert complete(["get", "--path", str(tmp_path / "no" / "such"), ""]) == []
    assert "get" in complete([])


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_of_a_shell_completes_in_that_shell(shell, tmp_path, scrubjay):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / f"completion.{shell}"
    script.write_text(scrubjay("completion", shell).stdout)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    programs = {
        "bash": f"source {script}; COMP_WORDS=(scrubjay name); COMP_CWORD=1; _scrubjay; echo ${{COMPREPLY[@]}}",
        "zsh": f"autoload -Uz compinit; compinit -u; source {script}; compadd() {{ shift; print -l $@ }};"
        " words=(scrubjay name); CURRENT=2; _scrubjay",
        "fish": f"source {script}; complete -C 'scrubjay name'",
    }
    done = subprocess.run(
        [shell, "-c", programs[shell]], capture_output=True, text=True, check=False, timeout=60,
        env=clean_environment(PATH=path, HOME=str(tmp_path)),
    )  # fmt: skip
    assert done.stdout.split() == ["namespaces"], done.stderr
