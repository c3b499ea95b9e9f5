"""remember, recall, inject_context, forget and notes, on a file and on a server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import fresh_name, run_text
from scrubjay import AsyncMemory, InvalidInput, Memory, Note, ValueTooLarge
from scrubjay.recall.prompt import HEADING, count_tokens, format_prompt


def contents(notes):
    return [note.content for note in notes]


def test_notes_are_recalled_best_first(memory):
    memory.remember("Decided on PostgreSQL instead of MongoDB", type="decision", tags=["db"], session="s-12")
    memory.remember("The database password rotates monthly")
    found = memory.recall("Did we decide on MongoDB?", limit=5)
    assert contents(found)[0] == "Decided on PostgreSQL instead of MongoDB"
    assert 0 < found[0].score <= 1


def test_a_question_in_other_words_finds_its_note(memory):
    memory.remember("Decided on PostgreSQL instead of MongoDB", type="decision", tags=["db"], session="s-12")
    memory.remember("The cat sleeps on the sofa")
    found = memory.recall("which database did we choose?", limit=5)
    assert contents(found) == ["Decided on PostgreSQL instead of MongoDB"]
    assert 0 < found[0].score < 1


def test_importing_scrubjay_does_not_load_the_synonyms():
    program = "import sys, scrubjay; print('scrubjay.recall.synonyms' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout.strip() == "False"


def test_a_note_is_returned_with_all_its_fields(memory):
    metadata = {"by": "Ana", "n": [1, 2.5, None, {"é": True}]}
    note = memory.remember("text", type="fact", tags=("b", "a", "b"), session="s", metadata=metadata, ttl=60)
    assert isinstance(note, Note)
    assert isinstance(note.id, str)
    assert (note.content, note.type, note.tags, note.session, note.metadata) == (
        "text",
        "fact",
        ("b", "a"),
        "s",
        metadata,
    )
    assert note.expires_at - note.created_at == timedelta(seconds=60)
    assert memory.notes() == [note]
    assert memory.recall("text")[0].metadata == metadata


def test_the_same_content_is_one_note(memory):
    first, again = memory.remember("likes tea"), memory.remember("likes tea", type="preference")
    assert (first.id, again.times) == (again.id, 2)
    assert len(memory.notes()) == 1


def test_pinned_never_expires_and_days_are_days(memory):
    assert memory.remember("a", pinned=True, ttl=1).expires_at is None
    again = memory.remember("a", ttl=1)
    assert (again.pinned, again.expires_at) == (True, None)
    note = memory.remember("b", ttl_days=2)
    assert note.expires_at - note.created_at == timedelta(days=2)


def test_filters(memory):
    memory.remember("tea one", type="fact", tags=["user:alice", "b"], session="s")
    memory.remember("tea two", type="fact", tags=["user:bob"])
    assert contents(memory.notes(tags=["user:alice"])) == ["tea one"]
    assert contents(memory.recall("tea", tags=["b", "user:alice"], type="fact", session="s")) == ["tea one"]
    assert memory.recall("tea", tags=["b", "user:bob"]) == []
    assert memory.recall("tea and much that nobody ever said", threshold=0.9) == []


def test_forget_and_clear(memory):
    note = memory.remember("secret plan")
    memory.remember("other plan")
    memory.set("key", 1)
    assert memory.forget(note.id) is True
    assert memory.forget(note.id) is False
    assert memory.forget("no such note") is False
    assert contents(memory.recall("plan")) == ["other plan"]
    assert memory.clear() == 2
    assert memory.notes() == memory.recall("plan") == memory.keys() == []
    assert memory.usage().bytes == 0


def test_all_notes_are_listed_page_after_page(memory, monkeypatch):
    for i in range(5):
        memory.remember(f"note {i}")
    monkeypatch.setattr("scrubjay.memory.MAX_NOTES_PAGE", 2)
    assert contents(memory.notes()) == [f"note {i}" for i in range(5)]


def test_namespaces_do_not_see_each_other(open_memory):
    one, other = open_memory(), open_memory()
    note = one.remember("the secret of one")
    assert other.recall("secret") == other.notes() == []
    assert other.forget(note.id) is False
    assert other.inject_context("secret") == ""
    assert contents(one.notes()) == ["the secret of one"]


def test_a_context_is_text_for_a_prompt(memory):
    assert memory.inject_context("anything") == ""
    memory.remember("Prefers\n\nshort   answers", type="preference")
    context = memory.inject_context("which answers?")
    assert context.startswith(HEADING)
    assert context.count("\n") == 1
    assert context.endswith("] Prefers short answers")
    assert "[preference, 2" in context


@settings(max_examples=15)
@given(max_tokens=st.integers(0, 300))
def test_context_keeps_to_its_budget(memory, max_tokens):
    for length in (10, 100, 300):
        memory.remember("answer " * length)
    context = memory.inject_context("answer", max_tokens=max_tokens)
    assert count_tokens(context) <= max_tokens or context == ""


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda m: m.remember(""), "at least one character"),
        (lambda m: m.remember("  \n"), "at least one character"),
        (lambda m: m.remember(42), "text, not 42"),
        (lambda m: m.remember("\ud800"), "surrogate"),
        (lambda m: m.remember("x", tags="db"), "list of texts"),
        (lambda m: m.remember("x", tags=[1]), "a tag is text, not 1"),
        (lambda m: m.remember("x", tags=["\ud800"]), "the tag .* surrogate"),
        (lambda m: m.remember("x", type=1), "a type is text"),
        (lambda m: m.remember("x", session=""), "a session has at least one character"),
        (lambda m: m.remember("x", ttl=1, ttl_days=1), "not both"),
        (lambda m: m.remember("x", ttl=0), "ttl"),
        (lambda m: m.remember("x", ttl_days="1"), "ttl_days"),
        (lambda m: m.remember("x", pinned="yes"), "pinned"),
        (lambda m: m.remember("x", metadata={"a": {1: 2}}), "metadata"),
        (lambda m: m.recall(None), "query"),
        (lambda m: m.recall("x", limit=0), "limit"),
        (lambda m: m.recall("x", limit=True), "limit"),
        (lambda m: m.recall("x", threshold="high"), "threshold"),
        (lambda m: m.recall("x", ranking="magic"), "confidence"),
        (lambda m: m.inject_context("x", max_tokens=-1), "max_tokens"),
        (lambda m: m.inject_context("x", ranking="magic"), "confidence"),
        (lambda m: m.forget(7), "a note id is text, not 7"),
    ],
)
def test_invalid_arguments_are_rejected_by_name(memory, call, named):
    with pytest.raises(InvalidInput, match=named):
        call(memory)


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("dinner with Ana 🍕 on Friday", "🍕"),
        ("she reacted with 👍🏽", "👍"),
        ("pair programming 👩‍💻 all day", "💻"),
        ("moving to 🇵🇹", "🇵🇹"),
        ("I ❤️ jazz", "❤"),
        ("Toplantı IĞDIR'da yapılacak", "ığdır"),
        ("İSTANBUL ofisi", "istanbul"),
        ("Zażółć gęślą jaźń, Łódź", "lodz"),
        ("café au lait", "cafe\u0301"),
        ("Die Straße nach Köln", "STRASSE koln"),
        ("Wir nutzen Datenbanken", "welche Datenbank"),
        ("मुझे हिन्दी पसंद है", "हिन्दी"),
        ("يُحِبُّ الكتابَ القديم", "كتاب"),
        ("הוא אוהב שָׁלוֹם", "שלום"),
        ("ฉันชอบกินข้าวผัด", "ข้าวผัด"),
        ("彼は東京に住んでいる", "東京"),
        ("می‌خواهم بروم", "میخواهم"),
    ],
)
def test_words_are_found_in_many_scripts(memory, content, query):
    memory.remember(content)
    memory.remember("something else entirely")
    assert [note.content for note in memory.recall(query)] == [content]


def test_words_that_differ_only_in_vowel_signs_are_different(memory):
    memory.remember("दिन")
    memory.remember("दान")
    assert [note.content for note in memory.recall("दान")] == ["दान"]


def test_a_context_takes_the_same_choices_as_a_recall(memory):
    for content, labels in (("tea one", {"type": "fact"}), ("tea two", {"session": "s"}), ("tea three", {})):
        memory.remember(content, **labels)
    memory.remember("tea three")
    memory.remember("tea three")
    for choices in ({"type": "fact"}, {"session": "s"}, {"tags": ["x"]}, {"threshold": 0.9}, {"ranking": "confidence"}):
        found = memory.recall("tea", limit=8, **choices)
        assert memory.inject_context("tea", **choices).splitlines()[1:] == format_prompt(found, 400).splitlines()[1:]


def test_a_note_that_is_too_long_is_refused(memory):
    with pytest.raises(ValueTooLarge, match="split it"):
        memory.remember("x" * (4 * 2**20 + 1))


def test_a_megabyte_of_emoji_is_a_note_and_a_query(memory):
    text = "🦜" * 250_000
    note = memory.remember(text)
    assert memory.notes()[0].content == text
    assert [found.id for found in memory.recall(text)] == [note.id]
    assert memory.forget(note.id)


@settings(max_examples=40)
@given(text=st.text(st.characters(exclude_categories=["Cs"])), query=st.text())
def test_no_text_is_ever_an_error(memory, text, query):
    note = memory.remember("_" + text)
    assert note.content == "_" + text
    memory.recall(query)
    memory.recall(text)
    memory.inject_context(query)


LABELS = [
    '" OR 1=1 --', "'; DROP TABLE notes; --", "NEAR(a b)*", "a\x00b", "\u202eاليمين", "🦜", "名前", "x" * 512,
    "%00/../", "[1]",
]  # fmt: skip


@pytest.mark.parametrize("label", LABELS)
def test_hostile_labels_are_only_labels(open_memory, label):
    """As type, tag, session and id, on both ends: kept as they are, filtered by exactly, and nobody else's."""
    memory, other = open_memory(fresh_name()), open_memory(fresh_name())
    memory.remember("tea", type=label, tags=[label], session=label)
    memory.remember("tea with milk", type="t", tags=["t"], session="s")
    for which in ({"type": label}, {"tags": [label]}, {"session": label}):
        (found,) = memory.recall(f"tea {label}", **which)
        assert (found.content, found.type, found.tags, found.session) == ("tea", label, (label,), label)
        assert memory.notes(**which) == [found._replace(score=None)]
        assert "tea" in memory.inject_context("tea", **which)
        assert other.recall("tea", **which) == other.notes(**which) == []
    assert memory.forget(label) is False
    assert len(memory.notes()) == 2


def test_the_async_verbs_are_the_same(open_memory):
    namespace = fresh_name()

    async def scenario():
        async with AsyncMemory(namespace, **open_memory.where) as memory:
            await asyncio.gather(*(memory.remember(f"fact number {i}", tags=["t"]) for i in range(10)))
            found = await memory.recall("fact 7", limit=1, tags=["t"])
            assert contents(found) == ["fact number 7"]
            assert "fact number 7" in await memory.inject_context("fact 7")
            assert await memory.forget(found[0].id)
            return await memory.notes(tags=["t"])

    assert len(asyncio.run(scenario())) == 9


def test_the_commands(open_memory):
    where = [
        part for name, value in open_memory.where.items() if name in ("url", "path") for part in (f"--{name}", value)
    ]
    namespace = fresh_name()
    words = ("--type", "decision", "--tag", "db", "--session", "s", "--ttl-days", "3")
    made = run_text("remember", namespace, "Decided on PostgreSQL", *words, *where)
    assert (made.returncode, made.stderr) == (0, "")
    run_text("remember", namespace, "-", *where, stdin="from stdin\n")
    run_text("remember", namespace, "it rains", "--metadata", '{"speaker": "Zoe"}', *where)
    assert run_text("recall", namespace, "zoe", "--ranking", "confidence", *where).stdout.endswith("it rains\n")
    assert run_text("recall", namespace, "postgresql?", "--threshold", "1", *where).stdout == ""
    assert run_text("recall", namespace, "zoe", "--context", "100", *where).stdout.startswith(HEADING)
    asked = run_text("recall", namespace, "postgresql?", "-n", "1", "--tag", "db", *where)
    note_id, score, *_, text = asked.stdout.rstrip("\n").split("  ")
    assert (note_id, text) == (made.stdout.strip(), "Decided on PostgreSQL")
    assert 0 < float(score) <= 1
    assert run_text("notes", namespace, *where).stdout.count("\n") == 3
    assert run_text("forget", namespace, note_id, *where).returncode == 0
    again = run_text("forget", namespace, note_id, *where)
    assert again.returncode == 1
    assert note_id in again.stderr


def test_compact_leaves_nothing_of_what_was_forgotten(tmp_path):
    path = tmp_path / "scrubjay.db"
    with Memory("ns", path=str(path)) as memory:
        memory.forget(memory.remember("zyxsecret " * 5000).id)
        memory.set("key", 1)
    before = path.stat().st_size
    done = run_text("compact", "--path", str(path))
    assert "on disk" in done.stdout
    assert path.stat().st_size < before
    assert b"zyxsecret" not in path.read_bytes()
    with Memory("ns", path=str(path)) as memory:
        assert memory.get("key") == 1


def test_a_superseded_note_is_kept_and_marked_and_not_recalled(memory):
    old = memory.remember("Sarah lives in Paris", session="s")
    new = memory.remember("Sarah lives in Berlin", session="s", supersedes=[old.id])
    assert contents(memory.recall("where does Sarah live?")) == ["Sarah lives in Berlin"]
    assert contents(memory.recall("where does Sarah live?", session="s")) == ["Sarah lives in Berlin"]
    assert [(note.content, note.superseded_by) for note in memory.notes()] == [
        ("Sarah lives in Paris", new.id),
        ("Sarah lives in Berlin", None),
    ]


def test_a_superseded_note_that_is_remembered_again_is_recalled_again(memory):
    old = memory.remember("Sarah lives in Paris")
    new = memory.remember("Sarah lives in Berlin", supersedes=[old.id, "17", "no id"])
    again = memory.remember("Sarah lives in Paris", supersedes=[new.id])
    assert (again.id, again.superseded_by) == (old.id, None)
    assert contents(memory.recall("where does Sarah live?")) == ["Sarah lives in Paris"]


def test_a_note_does_not_supersede_itself(memory):
    note = memory.remember("Sarah lives in Paris")
    assert memory.remember("Sarah lives in Paris", supersedes=[note.id]).superseded_by is None
    assert len(memory.recall("Paris")) == 1


def test_a_note_is_superseded_in_a_transaction(memory):
    old = memory.remember("Sarah lives in Paris")
    with memory.transaction() as t:
        t.remember("Sarah lives in Berlin", supersedes=[old.id])
    assert [note.superseded_by for note in memory.notes()] == [t.results[0], None]
    with pytest.raises(InvalidInput, match="supersedes is a list"):
        memory.remember("text", supersedes=old.id)


def test_a_note_is_replaced_and_forgotten_by_an_id_of_the_callers_own(memory):
    memory.remember("Sarah lives in Paris", id="home/Sarah", tags=["a"])
    replaced = memory.remember("Sarah lives in Berlin", id="home/Sarah")
    assert (replaced.id, replaced.tags) == ("home/Sarah", ())
    assert [(note.id, note.content) for note in memory.recall("where does Sarah live?")] == [
        ("home/Sarah", "Sarah lives in Berlin")
    ]
    assert memory.notes() == [replaced]
    with memory.transaction() as t:
        t.remember("Sarah lives in Rome", id="home/Sarah")
    assert t.results == [replaced.number]
    other = memory.remember("Sarah moved", supersedes=["home/Sarah"])
    assert [note.superseded_by for note in memory.notes()] == [other.id, None]
    assert memory.forget("home/Sarah")
    assert not memory.forget("home/Sarah")
    with pytest.raises(InvalidInput, match="note id"):
        memory.remember("text", id="")


@pytest.mark.parametrize("own", ["recall", "context", "a/b", "..", "a\0b", "%2F", "?", " ", "😀", "7"])
def test_an_own_id_is_any_text(memory, own):
    assert memory.remember("text", id=own).id == own
    assert memory.forget(own)
    assert memory.notes() == []


def test_an_async_note_has_an_id_of_the_callers_own(open_memory):
    async def run():
        async with AsyncMemory(fresh_name(), **open_memory.where) as memory:
            await memory.remember("one", id="a")
            await memory.remember("two", id="a")
            return [(note.id, note.content) for note in await memory.notes()]

    assert asyncio.run(run()) == [("a", "two")]
