"""The documentation: its examples run, its links resolve, its reference pages are current and complete."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
import requests

import scrubjay
from adapters.models import serving_model
from harness import clean_environment, run_command, serving
from scrubjay import Memory, ScrubjayError, learning
from scrubjay import errors as errors_module
from scrubjay.adapters._large import CALL_BYTES, PART_CHARS
from scrubjay.calls import fields_of
from scrubjay.cli.series import RETRY_SECONDS
from scrubjay.commands import VERBS
from scrubjay.conversations import LEARNED, MAX_SESSION_BYTES
from scrubjay.exact_json import MAX_DEPTH, MAX_READ_BYTES, MAX_WRITE_BYTES, MAX_WRITE_ROWS
from scrubjay.opening import UNATTENDED_SECONDS
from scrubjay.outbox.reader import OVERLAID
from scrubjay.outbox.sender import FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS
from scrubjay.recall.documents import MAX_SCORED_CHARS
from scrubjay.recall.neighbours import MAX_PAUSE_SECONDS, NEIGHBOURS
from scrubjay.recall.prompt import CONTEXT_THRESHOLD
from scrubjay.recall.query import RELATED_WEIGHT, SYNONYM_WEIGHT
from scrubjay.semantic.embedding import MAX_COMPARED
from scrubjay.semantic.index import MAX_CACHED_BYTES
from scrubjay.settings import DEFAULT_MAX_BYTES, DEFAULT_WRITES_PER_DAY, SETTINGS
from scrubjay.store.api_keys import LIMITS
from scrubjay.store.candidates import MAX_COUNTED, MAX_POSTINGS, MIN_POSTINGS
from scrubjay.store.changes import REFUSAL_SHARE
from scrubjay.store.expiry import KEY_DAYS
from scrubjay.store.overview import MAX_RECENT
from scrubjay.store.pool import FORK_SECONDS
from scrubjay.store.search import MAX_RANKED, MAX_SEARCH_BYTES
from scrubjay.store.sign_ins import SIGN_IN_SECONDS
from scrubjay.store.sqlite.file_identity import WRITE_CHECK_SECONDS
from scrubjay.store.sqlite.turnstile import MAX_WAIT_SECONDS
from scrubjay.store.word_index import BLOCK_POSTINGS, EXACT_LENGTH, MAX_COUNT
from scrubjay.validation import MAX_KEY_BYTES, MAX_NAMESPACE_CHARS, MAX_NOTE_BYTES
from scrubjay_command import BUSY_SECONDS as SERVER_SECONDS
from scrubjay_command import SHUTDOWN_SECONDS
from scrubjay_http import idempotency_key
from scrubjay_limits import (
    BODY_SHARE,
    MAX_BUFFERED_BYTES,
    MAX_CONNECTIONS,
    MAX_HEAD_BYTES,
    MIN_BYTES_PER_SECOND,
    REQUEST_SHARE,
    STALL_SECONDS,
)
from scrubjay_models import TransactionBody
from scrubjay_server import v1
from scrubjay_watch import MAX_REFUSALS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SKIPPED = ("pip install", "make ", "scrubjay serve", "sudo ", "docker ")
"""Shell blocks of these commands are not run here: they install, start the service, run the tests or need root."""
LANGUAGES = {"python", "bash", "text", "json", "nginx"}
"""`python` and `bash` are run; `text` is for signatures, output and fragments."""
SERVER = "http://127.0.0.1:8787"
"""The server of the examples; the test's own server has another port."""
MARK = "-- end of block --"
MAX_README_LINES = 140


class Block(NamedTuple):
    language: str
    text: str

    @property
    def is_run(self) -> bool:
        if self.language == "python":
            return not re.search(r"^from autogen import", self.text, re.MULTILINE)
        return self.language == "bash" and not self.text.startswith(SKIPPED)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
    return [Block(*each) for each in found]


@cache
def generator():
    spec = spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def command_names() -> list[str]:
    """All commands, such as `scrubjay key issue`."""
    return [name for name, _ in generator().commands(generator().parser(), "scrubjay")]


# ------------------------------------------------------------ examples


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("documentation") / "served.db", "--durability", "fast") as started:
        yield started


@pytest.fixture
def terminal(server, tmp_path):
    """The terminal of a new user: an empty home, an empty server, and `curl` that fails when a request does."""
    empty = tmp_path / "empty.db"
    Memory("empty", path=empty).close()
    assert run_command("restore", empty, "--path", server.path).returncode == 0
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "curl").write_text(f'#!/bin/sh\nexec {shutil.which("curl")} --fail-with-body "$@"\n')
    (bin_ / "curl").chmod(0o755)
    environment = clean_environment(
        HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path / "data"), SCRUBJAY_DURABILITY="fast"
    )
    environment["PATH"] = os.pathsep.join([str(bin_), str(Path(sys.executable).parent), environment["PATH"]])

    def run(script: str) -> str:
        command = ["bash", "-euo", "pipefail", "-c", script.replace(SERVER, server.url)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=110, env=environment, cwd=tmp_path
        )
        assert done.returncode == 0, f"after {done.stdout!r}: {done.stderr}"
        return done.stdout

    return run


def script_of(block: Block) -> str:
    """The block as a part of a shell script: what it exports is there for the blocks after it."""
    body = block.text if block.language == "bash" else f"python - <<'END_OF_PYTHON'\n{block.text}END_OF_PYTHON\n"
    return f"{body}echo '{MARK}'\n"


@pytest.mark.parametrize("path", [path for path in PAGES if any(block.is_run for block in blocks(path))], ids=name_of)
def test_the_examples_of_a_page_run_in_order_in_one_terminal(path, terminal):
    run = [block for block in blocks(path) if block.is_run]
    printed = terminal("".join(map(script_of, run))).split(f"{MARK}\n")
    for block, output in zip(run, printed, strict=False):
        if block.language == "python":
            assert output.splitlines() == re.findall(r"print\(.*\)  # (.*)", block.text), block.text


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_block_has_a_known_language_and_a_skipped_one_has_nothing_else(path):
    for block in blocks(path):
        assert block.language in LANGUAGES
        if block.language == "bash" and not block.is_run:
            assert all(line.startswith(SKIPPED) for line in block.text.splitlines())


@pytest.mark.skipif(find_spec("autogen") is None, reason="AutoGen is not installed")
@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "docs" / "autogen.md"], ids=name_of)
def test_the_autogen_examples_of_a_page_ask_a_model_once_each(path, terminal):
    found = [block for block in blocks(path) if block.language == "python" and not block.is_run]
    assert found
    for block in found:
        with serving_model() as model:
            text, uses_model = re.subn(
                r"^llm_config = .*$", f"llm_config = {model.config}", block.text, flags=re.MULTILINE
            )
            terminal(script_of(block._replace(text=text)))
        assert len(model.seen) == uses_model, block.text


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_runs_twice(path, terminal):
    assert len(path.read_text().splitlines()) <= 40
    for _ in range(2):
        assert terminal(f"python {path}")


# ------------------------------------------------------------ completeness


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


def test_the_first_example_of_the_readme_has_three_lines_of_code():
    assert len(list(filter(None, blocks(ROOT / "README.md")[0].text.splitlines()))) == 3


@pytest.mark.parametrize(
    "name", ["command.md", "settings.md", "memory.md", "routes.md", "modules.md", "framework-tests.md"]
)
def test_a_generated_page_is_current(name):
    current = (ROOT / "docs" / name).read_text()
    assert current == generator().PAGES[name](), f"docs/{name} is out of date; run: make docs"


def test_every_setting_and_every_command_has_its_line():
    settings, commands = ((ROOT / "docs" / name).read_text() for name in ("settings.md", "command.md"))
    for setting in SETTINGS.values():
        assert f"| `{setting.variable}` |" in settings
    for name in command_names():
        assert f"\n## {name}\n" in commands


def test_every_flag_of_serve_is_a_setting():
    serve = dict(generator().commands(generator().parser(), "scrubjay"))["scrubjay serve"]
    assert flags_of(serve) - {"-h", "--help"} == {each.flag for each in SETTINGS.values() if each.serve}


def test_figures_in_a_page_are_those_of_the_code():
    size = DEFAULT_MAX_BYTES // 10**6
    key_writes, key_bytes, namespaces = (SETTINGS[f"key_{name}"].default for name in LIMITS)
    facts = {
        "hosting.md": (
            f"A namespace has {DEFAULT_WRITES_PER_DAY:,} writes a day (UTC) and {size} MB by default",
            f"{key_writes:,} writes a day, {key_bytes // 10**9} GB and {namespaces:,} namespaces",
            f"for up to {SHUTDOWN_SECONDS} seconds",
            f"`--max-watches`, {SETTINGS['max_watches'].default} |",
            "| requests of one client at once | half of the connections |" if REQUEST_SHARE == 2 else "",
            f"| {MAX_BUFFERED_BYTES // BODY_SHARE // 2**20} MiB, in each worker |",
            f"| {MAX_CONNECTIONS:,} for each worker",
            f"| headers | {MAX_HEAD_BYTES // 2**10} KiB | 431 |",
            f"| {MAX_WRITE_BYTES // 2**20} MiB of keys and values | 413 |",
            f"| items and keys of one write | {MAX_WRITE_ROWS:,} | 413 |",
            f"| keys of one read | {MAX_READ_BYTES // 2**20} MiB | 413 |",
            f"delay behind {MIN_BYTES_PER_SECOND // 2**10} KiB a second | {STALL_SECONDS:g} s |",
        ),
        "security.md": (
            "eight hours" if SIGN_IN_SECONDS == 8 * 3600 else "",
            f"{100 // REFUSAL_SHARE} % of the log",
            f"at most {MAX_REFUSALS} rows",
            "a quarter of that memory" if BODY_SHARE == 4 else "",
        ),
        "tutorial.md": (
            f"up to {MAX_WRITE_BYTES // 2**20} MiB in one call",
            f"One call writes at most {MAX_WRITE_ROWS:,} items and keys",
            f"Keys are text of up to {MAX_KEY_BYTES} bytes",
            f"Namespaces are 1 to {MAX_NAMESPACE_CHARS} characters",
            f"A value nests at most {MAX_DEPTH} levels deep",
            "Ids are kept for a week" if KEY_DAYS == 7 else "",
        ),
        "http-api.md": (
            "Keys are kept for a week" if KEY_DAYS == 7 else "",
            "it ends after eight hours" if SIGN_IN_SECONDS == 8 * 3600 else "",
            "the latest hundred changes" if MAX_RECENT == 100 else "",
        ),
        "recall.md": (
            f"A note has at most {MAX_NOTE_BYTES // 2**20} MiB",
            f"Below {CONTEXT_THRESHOLD} `inject_context` leaves a note out",
            f"`SCRUBJAY_LEARN_TOKENS` ({SETTINGS['learn_tokens'].default:,})",
            "`temporary`, which expires after a week" if learning.TEMPORARY_DAYS == 7 else "",
            "After three of them about the same messages" if learning.MAX_FAILURES == 3 else "",
            "synonyms, at half the weight" if SYNONYM_WEIGHT == 0.5 else "",
            f"has art, at {RELATED_WEIGHT} of it",
            "the two notes before and after it" if NEIGHBOURS == 2 else "",
            "neighbours within ten minutes" if MAX_PAUSE_SECONDS == 600 else "",
        ),
        "autogen.md": (
            "three seconds after the last message" if learning.QUIET_SECONDS == 3 else "",
            f"every {learning.EVERY_MESSAGES} messages of a long one",
            "waits for it up to five seconds" if learning.EXIT_SECONDS == 5 else "",
            f"at most `SCRUBJAY_LEARN_TOKENS` ({SETTINGS['learn_tokens'].default:,}) a day",
            "It waits about a second at most" if UNATTENDED_SECONDS == 1 else "",
        ),
        "langgraph.md": (
            f"more than {CALL_BYTES // 2**20} MiB is split",
            f"has more than {MAX_SESSION_BYTES} bytes, is listed under",
        ),
        "conversations.md": (
            f"a name of 1 to {MAX_SESSION_BYTES} bytes",
            f"key has more than {MAX_KEY_BYTES - len(LEARNED)} bytes",
        ),
        "agent-framework.md": (
            f"one above {CALL_BYTES // 2**20} MiB as one for each {PART_CHARS // 2**20} MiB and one more",
        ),
        "scaling.md": (
            f"`recall` reads up to {MIN_POSTINGS:,} entries",
            f"up to {MAX_POSTINGS:,} from {10 * MAX_POSTINGS:,} notes on",
            f"counts each word in up to {MAX_COUNTED:,} notes",
        ),
        "deployment.md": ("is tried again after a minute" if RETRY_SECONDS == 60 else "",),
        "decisions/search-reads-values.md": (
            f"The {MAX_RANKED} texts with the most words",
            f"more than {MAX_SCORED_CHARS:,} characters",
            f"at most {MAX_SEARCH_BYTES // 2**20} MiB at once",
        ),
        "decisions/own-word-index.md": (
            f"up to {BLOCK_POSTINGS} postings",
            f"above {MAX_COUNT} is stored as {MAX_COUNT}",
            f"more than {EXACT_LENGTH} words",
        ),
        "decisions/vectors-in-memory.md": (
            f"most {MAX_CACHED_BYTES // 2**20} MiB",
            f"The bits choose {MAX_COMPARED:,} vectors",
        ),
        "decisions/checks-of-the-file.md": ("for a millisecond (`WRITE" if WRITE_CHECK_SECONDS == 0.001 else "",),
        "decisions/take-turns-to-write.md": ("get it within a second" if MAX_WAIT_SECONDS == 1 else "",),
        "decisions/connections-and-forks.md": (f"waits up to {FORK_SECONDS:g} s for calls",),
        "../README.md": (f"{DEFAULT_WRITES_PER_DAY:,} writes a day and {size} MB",),
        "durability.md": (
            f"tries again after {FIRST_RETRY_SECONDS} s, and doubles the delay up to {MAX_RETRY_SECONDS:g} s",
            f"keeps a key for {KEY_DAYS} days",
        ),
    }  # fmt: skip
    for name, sentences in facts.items():
        check_sentences(name, *sentences)


def test_figures_in_the_pages_on_postgresql_are_those_of_the_code():
    pytest.importorskip("psycopg")
    engine = import_module("scrubjay.store.postgres.asyncio")
    connection = import_module("scrubjay.store.postgres.connection")
    defaults, program_seconds = connection._DEFAULTS, connection.BUSY_SECONDS
    watchdog_seconds = import_module("scrubjay.store.postgres.watchdog").CHECK_SECONDS
    check_sentences(
        "postgresql.md",
        f"more than {engine.MAX_CONNECTIONS}: {engine.LOOP_READS} for short reads, {engine.LOOP_TRANSACTIONS} for",
        f"short writes, {engine.READ_THREADS} and {engine.WRITE_THREADS} for reads and writes that take long",
        f"up to {program_seconds:g} seconds in a program, and for {SERVER_SECONDS:g} seconds in a server",
        f"gives up short ones after {engine.ANSWER_SECONDS:g} seconds",
        f"{defaults['connect_timeout']} seconds for each host (`connect_timeout`)",
        f"or {int(defaults['tcp_user_timeout']) // 1000} on a connection that died (`tcp_user_timeout`)",
        f"PostgreSQL {connection.MIN_VERSION // 10_000} or newer",
        "have waited for three seconds looks for" if watchdog_seconds == 3 else "",
    )
    check_sentences("scaling.md", f"takes up to {engine.MAX_CONNECTIONS} connections (`MAX_CONNECTIONS`")


def test_pages_of_adapters_count_the_tests_of_frameworks_as_their_page_does():
    text = (ROOT / "docs" / "framework-tests.md").read_text()
    rows = re.findall(r"^\| (.*?) \| .*? \| (\d+) \| (\d+) \| (\d+)\b.* \|$", text, re.MULTILINE)
    counts = {name.partition(",")[0].partition(" (")[0]: tuple(map(int, numbers)) for name, *numbers in rows}
    conformance, store = counts["LangGraph"], counts["LangGraph's SQLite store"]
    passed, *failed = counts["Strands"]
    of_ag2 = counts["ag2"]
    for name, sentences in {
        "langgraph.md": (
            f"pass, {conformance[0]} of {sum(conformance)}, and so do {store[0]} [tests",
            f"{store[2]} are about vectors that the caller brings, and {store[1]} about SQLite",
        ),
        "langchain.md": (f"{counts['`langchain-tests`'][0]} pass",),
        "openai-agents.md": ("{} pass, and [{}](framework-tests.md)".format(*counts["OpenAI Agents SDK"]),),
        "anthropic.md": ("{} pass. The other [{}](framework-tests.md)".format(*counts["Anthropic SDK"]),),
        "crewai.md": (f"{counts['CrewAI'][0]} pass",),
        "strands.md": (f"{passed} of {passed + sum(failed)} pass",),
        "ag2.md": (f"{of_ag2[0]} of {sum(of_ag2)} pass",),
    }.items():
        check_sentences(name, *sentences)


def check_sentences(name: str, *sentences: str) -> None:
    text = " ".join((ROOT / "docs" / name).read_text().split())
    for sentence in sentences:
        assert sentence, "a word on the page stands for a number that has changed"
        assert sentence in text, f"{name}: {sentence}"


def test_pages_list_every_error_with_its_other_classes_and_its_code():
    errors = {name: each for name, each in vars(errors_module).items() if isinstance(each, type)}
    errors = {name: each for name, each in errors.items() if issubclass(each, ScrubjayError)}
    assert set(errors) <= set(scrubjay.__all__)
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", tutorial.partition("## Errors")[2], re.MULTILINE))
    assert set(rows) == set(errors) - {"ScrubjayError"}
    for name, text in rows.items():
        for base in re.findall(r"\(an? `(\w+)`\)|\(also an? `(\w+)`\)", text):
            assert "".join(base) in {each.__name__ for each in errors[name].__mro__}
    table = (ROOT / "docs" / "http-api.md").read_text().partition("| status | code |")[2]
    codes = set(re.findall(r"^\|[^|]*\| `(\w+)`", table, re.MULTILINE))
    assert codes == {error.code for error in errors.values()} - {"missing_extra"} | {"method_not_allowed"}


@pytest.mark.parametrize(
    ("page", "before", "after"),
    [
        ("docs/durability.md", "With a server, ", " go to the outbox"),
        ("docs/tutorial.md", "While the server is unreachable, ", " are queued in a file"),
        ("docs/memory.md", "While the server is unreachable, ", " are queued on disk"),
        ("README.md", "the library queues ", " on disk"),
    ],
)
def test_a_page_names_every_verb_that_can_be_queued(page, before, after):
    text = " ".join((ROOT / page).read_text().split())
    sentence = text.partition(before)[2].partition(after)[0]
    named = names_in(sentence) | ({"transaction"} if "transactions" in sentence else set())
    assert named == {verb.name for verb in VERBS.values() if verb.queueable}


def test_pages_name_every_read_that_includes_queued_writes():
    including = {verb.name for verb in OVERLAID} - {"item", "scan", "contains"} | {"in", "values"}
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    sentence = tutorial.partition("They are sent later")[2].partition("\n- ")[2].partition(" include queued")[0]
    assert names_in(sentence) == including | {"key"}
    sentence = (Memory.pending.__doc__ or "").partition("\n\n")[2].partition("include them")[0]
    assert names_in(sentence) == including | {"key"}


def test_pages_name_every_verb_of_a_transaction_that_is_never_queued():
    never = {verb.name for verb in VERBS.values() if verb.in_transaction and not verb.queueable}
    sentence = (Memory.transaction.__doc__ or "").partition("never queued (")[2].partition(")")[0]
    assert names_in(sentence) == never
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    sentence = tutorial.partition("Calls that need their result (")[2].partition(")")[0]
    assert names_in(sentence) == never | {"setdefault", "if_version="}


@pytest.mark.parametrize(
    ("page", "before", "after"),
    [
        ("durability.md", "the server refuses it, except ", " and writes with an id"),
        ("decisions/fence-lost-writes.md", "(`once=`), ", " are not fenced"),
    ],
)
def test_pages_name_every_write_that_is_not_fenced(page, before, after):
    """A late write is refused by its idempotency key, which some routes do not take."""
    takes_key = [
        route for route in v1.routes if idempotency_key in {each.call for each in route.dependant.dependencies}
    ]
    text = " ".join((ROOT / "docs" / page).read_text().split())
    writes = {verb.name for verb in VERBS.values() if verb.writes and "{namespace}" in verb.path}
    assert names_in(text.partition(before)[2].partition(after)[0]) == writes - {route.name for route in takes_key}


def names_in(sentence: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", sentence))


def test_the_page_on_http_lists_the_verbs_of_a_transaction_with_their_arguments():
    section = (ROOT / "docs" / "http-api.md").read_text().partition("## Transactions")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE)
    (annotation,) = get_args(TransactionBody.model_fields["commands"].annotation)
    parts = {get_args(part.model_fields["verb"].annotation)[0]: part for part in get_args(get_args(annotation)[0])}
    assert {verb: names_in(names) for verb, names in rows} == {
        verb: set(part.model_fields) - {"verb"} for verb, part in parts.items()
    }
    for verb, part in parts.items():  # described as they are validated
        required = {name: field.is_required() for name, field in part.model_fields.items() if name != "verb"}
        assert required == fields_of(verb), verb


def test_the_examples_on_the_page_on_http_get_the_responses_on_it(terminal, server):
    page = blocks(ROOT / "docs" / "http-api.md")
    missing = requests.get(f"{server.url}/v1/namespaces/demo/items/nobody", timeout=60).text
    printed = missing + terminal("".join(block.text for block in page if block.is_run))
    responses = [without_times(response) for response in documents(printed)]
    samples = [without_times(json.loads(block.text)) for block in page if block.language == "json"]
    assert len(samples) == 3
    for sample in samples:
        assert sample in responses


def documents(text: str) -> list[dict]:
    """The JSON documents in a text that has nothing else."""
    found, at = [], 0
    while at < len(text):
        document, at = json.JSONDecoder().raw_decode(text, at)
        found.append(document)
        at = len(text) - len(text[at:].lstrip())
    return found


def without_times(document: dict) -> dict:
    return {name: None if name.endswith("_at") else value for name, value in document.items()}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_settings_and_commands_that_a_page_names_exist(path):
    text = path.read_text()
    assert set(re.findall(r"SCRUBJAY_[A-Z_]+[A-Z]", text)) <= {each.variable for each in SETTINGS.values()} | {
        "SCRUBJAY_STRESS"
    }
    known = {name.split()[1] for name in command_names()}
    assert set(re.findall(r"(?:^|`)scrubjay ([a-z]+)", text, re.MULTILINE)) <= known


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_the_flags_of_commands_that_a_page_names_exist(path):
    known = {name: flags_of(parser) for name, parser in generator().commands(generator().parser(), "scrubjay")}
    for line in re.findall(r"^scrubjay .*$|`scrubjay [^`]*`|\$\(scrubjay [^)]*\)", path.read_text(), re.MULTILINE):
        words = re.split(r"[#|;>]", " ".join(line.strip("`$()").split()))[0].split()
        name = next((name for size in (3, 2) if (name := " ".join(words[:size])) in known), None)
        if name:
            given = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert given <= known[name], line


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_the_files_that_a_page_names_exist(path):
    named = re.findall(r"`((?:client|server|tests|docs|examples|benchmarks|deploy)/[\w./-]+)`", path.read_text())
    assert [each for each in named if not (ROOT / each).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_relative_link_resolves(path):
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", path.read_text()):
        linked = (path.parent / target).resolve() if target else path
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), f"{target}#{anchor}"


def test_every_page_can_be_reached_from_the_readme():
    seen, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            left += [(page.parent / target).resolve() for target in re.findall(r"\]\(([^)#:]+)", page.read_text())]
    assert [name_of(page) for page in PAGES if page not in seen] == []


def flags_of(parser) -> set[str]:
    return {flag for action in parser._actions for flag in action.option_strings}


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
