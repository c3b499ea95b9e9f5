"""Notes in the store, under every driver: dedupe, quotas, expiry, erasure, and the order of what is recalled."""

from __future__ import annotations

import random
import re
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import eventually
from scrubjay import Conflict, QuotaExceeded, Unavailable
from scrubjay.recall import query as query_analysis
from scrubjay.recall import word_lists
from scrubjay.recall.stemmer import stem
from scrubjay.recall.synonyms import read_groups
from scrubjay.recall.terms import Asks, asks, count_terms, split_words, term_of
from scrubjay.store import candidates, consistency, items, notes, usage, vectors
from scrubjay.store.operation import Quota
from scrubjay.store.sqlite.queries import IN_NAMESPACE
from scrubjay.store.transaction import run_all
from scrubjay.store.word_index import numbers_in, space_of
from scrubjay.validation import NewNote, RecallQuery

DAY = 86_400


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


ONE_DRIVER = pytest.mark.parametrize("open_driver", ["sqlite"], indirect=True)
"""For tests that take long and whose statements are the same under every driver."""


def remember(driver, content, namespace="ns", **options):
    return driver.run(notes.remember(namespace, NewNote.check(content, **options)))[0]


def recall(driver, query, namespace="ns", **options):
    return driver.run(notes.recall(namespace, RecallQuery.check(query, **options)))


def contents(found):
    return [note.content for note in found]


def problems(driver):
    return driver.run(consistency.find_problems())


def used(driver, namespace="ns"):
    return driver.run(usage.read_usage(namespace))


def bytes_on_disk(driver) -> bytes:
    """The file and its log, as they are."""
    return b"".join(path.read_bytes() for path in driver.store.path.parent.iterdir())


def test_a_note_is_found_by_another_form_of_its_words(driver):
    remember(driver, "We decided to deploy the databases on Friday")
    remember(driver, "The cat sleeps")
    found = recall(driver, "Deploying a DATABASE?")
    assert contents(found) == ["We decided to deploy the databases on Friday"]
    assert 0 < found[0].score <= 1


def test_the_note_with_more_and_rarer_words_comes_first(driver):
    for i in range(20):
        remember(driver, f"the service number {i} was started")
    remember(driver, "the billing service was started by Ana")
    assert contents(recall(driver, "who started the billing service?"))[0].startswith("the billing")


def test_the_same_content_refreshes_the_note(open_driver):
    clock = Clock()
    driver = open_driver(clock=clock)
    first = remember(driver, "likes tea", type="preference", tags=["a"], session="s", metadata={"by": "x"}, ttl=60)
    clock.now += 10
    again = remember(driver, "likes tea", tags=["b"], session="s")
    assert (again.id, again.times, again.type, again.tags) == (first.id, 2, "preference", ("a", "b"))
    assert again.metadata == {"by": "x"}
    assert again.created_at == first.created_at < again.updated_at
    assert again.expires_at == again.updated_at + timedelta(seconds=60)  # the earlier time to live, from now on
    assert len(driver.run(notes.list_notes("ns"))) == 1
    assert contents(recall(driver, "b tea")) == ["likes tea"]
    assert problems(driver) == []


def test_the_same_words_in_another_session_are_another_note(open_driver):
    """Two people may say the same thing, and forgetting what one said leaves the other's."""
    driver = open_driver()
    alice = remember(driver, "thanks", session="alice")
    bob = remember(driver, "thanks", session="bob")
    assert alice.id != bob.id
    driver.run(notes.forget("ns", bob.id))
    assert [note.session for note in driver.run(notes.list_notes("ns"))] == ["alice"]


def test_an_expired_note_is_gone_and_may_come_back_as_a_new_one(open_driver):
    clock = Clock()
    driver = open_driver(clock=clock)
    old = remember(driver, "the code is 1234", ttl_days=1)
    remember(driver, "the code of honour", ttl_days=1, pinned=True)
    clock.now += DAY + 1
    assert contents(recall(driver, "code")) == contents(driver.run(notes.list_notes("ns"))) == ["the code of honour"]
    assert driver.run(notes.forget("ns", old.id))[0] is False
    new = remember(driver, "the code is 1234")
    assert (new.times, new.expires_at) == (1, None)
    assert new.id != old.id
    assert problems(driver) == []


def test_notes_count_against_bytes_and_writes(open_driver):
    driver = open_driver(quota=Quota(writes_per_day=3, max_bytes=100))
    remember(driver, "x" * 90)
    assert used(driver).bytes == 90 + len("[]") + len("{}")
    with pytest.raises(QuotaExceeded) as full:
        remember(driver, "y" * 90)
    assert full.value.status == 507
    remember(driver, "x" * 90)
    remember(driver, "x" * 90)
    with pytest.raises(QuotaExceeded) as many:
        remember(driver, "x" * 90)
    assert many.value.status == 429
    assert used(driver).writes_today == 3
    assert problems(driver) == []


def test_expired_notes_free_their_bytes(open_driver):
    clock = Clock()
    driver = open_driver(quota=Quota(max_bytes=100), clock=clock)
    remember(driver, "x" * 90, ttl=1)
    clock.now += 2
    assert used(driver).bytes == 0
    remember(driver, "y" * 90)
    assert problems(driver) == []


def test_items_and_notes_share_the_byte_count_and_are_cleared_separately(driver):
    driver.run(items.set_item("ns", "key", '"value"'))
    size = used(driver).bytes
    remember(driver, "one")
    remember(driver, "two")
    assert driver.run(notes.clear_notes("ns"))[0] == 2
    assert (used(driver).keys, used(driver).bytes) == (1, size)
    remember(driver, "three")
    assert driver.run(notes.clear_all("ns"))[0] == 2
    assert (used(driver).keys, used(driver).bytes) == (0, 0)
    assert problems(driver) == []


@pytest.mark.sqlite_file
@pytest.mark.parametrize("way", ["forget", "clear_notes", "clear_all", "expiry", "refresh"])
def test_nothing_of_an_erased_note_is_left_on_disk(open_driver, way):
    clock = Clock()
    driver = open_driver(clock=clock)
    for i in range(40):
        remember(driver, f"an ordinary note number {i}", session="s")
    secret = {"type": "zyxtype", "tags": ["zyxtag"], "session": "zyxsession", "metadata": {"k": "zyxmeta"}}
    note = remember(driver, "zyxword " * 3000, ttl=None if way == "refresh" else 60, **secret)
    assert b"zyxword" in bytes_on_disk(driver)
    if way == "forget":
        driver.run(notes.forget("ns", note.id))
    elif way == "expiry":
        clock.now += 61
        driver.store.sweep()
    elif way == "refresh":
        remember(driver, "zyxword " * 3000, type="t", session="zyxsession", metadata={"t": 1})
        driver.store.sweep()
    else:
        driver.run(getattr(notes, way)("ns"))
    left = bytes_on_disk(driver)
    kept = {b"zyxword", b"zyxtag", b"zyxsession"} if way == "refresh" else set()
    assert {word for word in (b"zyxtype", b"zyxtag", b"zyxsession", b"zyxmeta", b"zyxword") if word in left} == kept
    assert problems(driver) == []


@ONE_DRIVER
@pytest.mark.parametrize("seed", [0, 2, 5])
def test_erased_notes_leave_no_trace_after_many_changes(open_driver, seed):
    """Rows that SQLite moves leave a copy now and then: with these seeds one or two, when notes were such rows."""
    driver, chance, alive, erased = open_driver(), random.Random(seed), {}, set()
    for i in range(900):
        name = f"zyx{i:05}zyx"
        labels = {"type": name, "tags": [name], "session": name, "metadata": {"speaker": name, "more": [name]}}
        note = remember(driver, f"{name} " + "word " * chance.choice([1, 10, 100, 1000]), **labels)
        driver.run(vectors.add_vectors("ns", "model", [(int(note.id), name.encode() * chance.choice([10, 50]))]))
        alive[name] = note.id
        if chance.random() < 0.2:
            again = chance.choice(list(alive))
            text = driver.run(notes.read_note("ns", alive[again])).content
            remember(driver, text, session=again, metadata={"speaker": again, "pad": again * chance.randrange(99)})
        if chance.random() < 0.6:
            gone = chance.choice(list(alive))
            driver.run(notes.forget("ns", alive.pop(gone)))
            erased.add(gone)
    left = {found.decode() for found in re.findall(rb"zyx\d{5}zyx", bytes_on_disk(driver))}
    assert left & erased == set()
    assert left == set(alive)
    assert problems(driver) == []


@pytest.mark.sqlite_file
def test_erased_text_is_in_the_log_only_while_a_reader_needs_it(open_driver):
    driver = open_driver()
    note = remember(driver, "zyxword")
    with closing(sqlite3.connect(driver.store.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM notes").fetchall()
        assert driver.run(notes.forget("ns", note.id))[0]
        assert b"zyxword" in bytes_on_disk(driver)
        reader.execute("COMMIT")
        eventually(lambda: b"zyxword" not in bytes_on_disk(driver))


def test_labels_are_counted_by_type_tag_and_session(open_driver):
    clock = Clock()
    driver = open_driver(clock=clock)
    remember(driver, "one", type="fact", tags=["a", "b"], session="s1")
    remember(driver, "two", type="fact", tags=["b", "a"], session="s1")
    remember(driver, "three", type="rule", tags=["b"], session="s2")
    remember(driver, "four")
    remember(driver, "five", type="gone", tags=["gone"], session="gone", ttl=60)
    remember(driver, "six", namespace="other", type="other", tags=["other"], session="other")
    clock.now += 61
    found = driver.run(notes.list_labels("ns"))
    assert {column: [tuple(each) for each in labels] for column, labels in found.items()} == {
        "type": [("fact", 2), ("rule", 1)],
        "tags": [("b", 3), ("a", 2)],
        "session": [("s1", 2), ("s2", 1)],
    }
    assert driver.run(notes.list_labels("ns", 1))["session"] == [("s1", 2)]


def test_a_tag_is_counted_in_all_combinations_however_few_tags_are_listed(open_driver):
    driver = open_driver()
    for i in range(5):
        remember(driver, f"note {i}", tags=[f"u{i}", "todo"])
    assert driver.run(notes.list_labels("ns", 1))["tags"] == [("todo", 5)]
    found = driver.run(notes.list_labels("ns", 3))["tags"]
    assert found[0] == ("todo", 5)
    assert [each.notes for each in found] == [5, 1, 1]


@pytest.mark.parametrize(
    "damage", ["UPDATE erasable_blobs SET data = substr(data, 1, 4)", "DELETE FROM erasable_blobs"]
)
def test_a_damaged_note_can_be_forgotten_and_blocks_no_other_operation(open_driver, damage):
    clock = Clock()
    driver = open_driver(clock=clock)
    damaged, expired = (remember(driver, f"{n} bad words", session=f"{n}", ttl=60) for n in (1, 2))
    for namespace in ("ns", "other"):
        remember(driver, "three good words", namespace=namespace, session="s", ttl=60)
    driver.query(f"{damage} WHERE id IN (SELECT blob_id FROM notes WHERE {IN_NAMESPACE} ORDER BY id LIMIT 2)", "ns")
    assert len(problems(driver)) >= 2
    if "DELETE" in damage:
        assert contents(recall(driver, "words")) == ["three good words"]
        assert [session.name for session in driver.run(notes.list_sessions("ns"))] == ["s"]
    else:
        with pytest.raises(Unavailable, match="damaged"):
            recall(driver, "bad words")
    assert driver.run(notes.forget("ns", damaged.id))[0]
    clock.now += 61
    driver.store.sweep()
    assert not driver.run(notes.forget("ns", expired.id))[0]
    assert problems(driver) == []
    assert used(driver).bytes == used(driver, "other").bytes == 0


def count_blobs(driver) -> int:
    return driver.query("SELECT count(*) FROM erasable_blobs")[0][0]


@pytest.mark.sqlite_file
def test_free_blobs_are_reused(open_driver):
    driver, sizes = open_driver(), []
    for _ in range(4):
        for i in range(100):
            remember(driver, f"note {i} " + "word " * (i % 30))
        driver.run(notes.clear_notes("ns"))
        sizes.append(count_blobs(driver))
    assert 0 < sizes[0] <= 100
    assert len(set(sizes)) == 1
    driver.store.compact()
    assert count_blobs(driver) == 0


def test_a_note_indexed_by_another_version_is_erased_whole(driver, monkeypatch):
    note = remember(driver, "all of it goes")
    monkeypatch.setattr("scrubjay.store.note_rows.count_terms", lambda _text: Counter({1: 1}))
    assert driver.run(notes.forget("ns", note.id))[0]
    assert problems(driver) == []


@pytest.mark.parametrize("name", ["NAS", "CES", "EST", "Uno", "DES", "par", "com", "Les", "den"])
def test_a_name_that_is_a_stop_word_of_another_language_is_found(driver, name):
    remember(driver, f"our {name} is in the cellar")
    remember(driver, "nothing of the kind")
    for query in (name, f"where is the {name}?"):
        assert contents(recall(driver, query)) == [f"our {name} is in the cellar"]


@pytest.mark.parametrize("which", [{"tags": ["alice"]}, {"session": "alice"}, {"type": "alice"}, {}])
def test_notes_that_a_filter_drops_do_not_hide_the_one_that_passes(open_driver, which):
    """There are more of them than rows of the index are read; they have other labels, or have expired."""
    clock = Clock()
    driver = open_driver(clock=clock)
    remember(driver, "Alice prefers tea", **which)
    new = [
        NewNote.check(f"User {i} prefers coffee", type="other", tags=["b"], session="b", ttl=60) for i in range(1_100)
    ]
    for start in range(0, len(new), 100):
        driver.run(run_all("ns", [notes.remember("ns", note) for note in new[start : start + 100]]))
    clock.now += 61 if not which else 0
    assert contents(recall(driver, "what does she prefer?", **which)) == ["Alice prefers tea"]
    if which:
        assert len(recall(driver, "what does she prefer?", session="b", limit=20)) == 20


def test_no_word_is_ever_in_the_index(driver):
    note = remember(driver, "xylophone")
    rows = driver.query("SELECT word, block, postings FROM note_words")
    assert {word for word, *_ in rows} >= set(count_terms("xylophone"))
    numbers = driver.query("SELECT number FROM notes WHERE id = ?", int(note.id))
    assert set(numbers_in([block for _, *block in rows])) == set(numbers[0])


def test_the_words_of_session_neighbours_count(driver):
    remember(driver, "Ana: where shall we meet?", session="s")
    remember(driver, "Ben: at the old lighthouse", session="s")
    remember(driver, "Ana: fine", session="s")
    remember(driver, "Zoe: no idea", session="t")
    found = contents(recall(driver, "lighthouse"))
    assert found == ["Ben: at the old lighthouse", "Ana: fine", "Ana: where shall we meet?"]


@pytest.mark.parametrize("lead", ["", "Hi Ben! ", "That's great. "])
def test_a_turn_that_is_only_a_question_ranks_below_its_answer(driver, lead):
    remember(driver, "Ben: I was at the harbour on Monday", session="s")
    remember(driver, f"Ana: {lead}Which school will the twins go to?", session="s")
    remember(driver, "Ben: The one by the canal", session="s")
    remember(driver, "Ana: Fine", session="s")
    assert contents(recall(driver, "which school do the twins go to?"))[0] == "Ben: The one by the canal"


@pytest.mark.parametrize("session", [None, "s"])
def test_a_question_without_an_answer_is_found_like_any_note(driver, session):
    remember(driver, "The school is closed on Monday", session=session)
    remember(driver, "Which school will the twins go to?", session=session)
    assert contents(recall(driver, "which school do the twins go to?"))[0].endswith("?")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Where is it?", True),
        ("Ana: Hello Ben! Where is it? At home?  ", True),
        ("どこですか？", True),
        ("Where is it? At home.", False),
        ("I moved to Porto and found a new job. What about you?", False),
        ("It is 3.5 metres", False),
        ("?", False),
        ("", False),
        ("...", False),
    ],
)
def test_only_questions_are_only_questions(text, expected):
    assert (asks(text) == Asks.ONLY) is expected


@pytest.mark.parametrize("text", ["I moved to Porto and found a new job. What about you? ", "我搬到了波尔图。你呢？"])
def test_a_text_may_end_in_a_question(text):
    assert asks(text) == Asks.LAST


@pytest.mark.parametrize("text", ["", "I moved to Porto.", "What about you? I moved to Porto and found a new job."])
def test_a_text_that_does_not_end_in_a_question_does_not_ask(text):
    assert asks(text) == Asks.NO


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("Decided on PostgreSQL instead of MongoDB", "which database did we choose?"),
        ("She purchased a loom", "where was it bought?"),
        ("Two kids and a dog", "any children?"),
        ("The report is due on Friday", "deadline"),
        ("Writes everything in Neovim", "favourite editor"),
    ],
)
def test_a_note_is_found_by_synonyms(driver, content, query):
    remember(driver, "something else altogether")
    remember(driver, content)
    assert contents(recall(driver, query)) == [content]


def test_the_word_itself_outranks_its_synonyms(driver):
    remember(driver, "The database stands in the cellar of the old town hall")
    for words in ("PostgreSQL", "MySQL MongoDB SQLite Redis", "redis " * 50):
        remember(driver, words)
    found = recall(driver, "database")
    assert contents(found)[0].startswith("The database")
    assert len(found) == 4


def test_members_of_a_kind_are_not_synonyms_of_each_other(driver):
    remember(driver, "MySQL is slow")
    assert recall(driver, "postgresql") == []
    assert contents(recall(driver, "database")) == ["MySQL is slow"]


def test_synonyms_find_nothing_in_other_namespaces(driver):
    remember(driver, "Decided on PostgreSQL", namespace="other")
    assert recall(driver, "which database did we choose?") == []


def test_a_query_keeps_its_own_words_when_synonyms_are_many(driver, monkeypatch):
    monkeypatch.setattr(query_analysis, "MAX_SYNONYMS", 3)
    remember(driver, "the wedding")
    assert contents(recall(driver, "database choose children car wedding trip bug"))[0] == "the wedding"


@pytest.mark.parametrize("how", ["in the text", "in the metadata"])
def test_notes_of_the_named_speaker_come_first(driver, how):
    for name in ("Caroline", "Melanie"):
        if how == "in the text":
            remember(driver, f"{name}: I adopted a puppy, says the {'x' * len(name)}")
        else:
            remember(driver, f"I adopted a puppy, number {len(name)}", metadata={"speaker": name})
    assert "Melanie" in str(recall(driver, "What did Melanie adopt?")[0])
    assert "Caroline" in str(recall(driver, "What did Caroline adopt?")[0])


def test_the_day_it_was_written_is_among_its_words(open_driver):
    driver = open_driver(clock=lambda: 1_683_504_000.0)
    remember(driver, "went to the dentist")
    assert contents(recall(driver, "anything from 8 May 2023?")) == ["went to the dentist"]
    assert contents(recall(driver, "¿qué pasó en mayo?")) == ["went to the dentist"]
    assert contents(recall(driver, "2023-05-08")) == ["went to the dentist"]


def test_recency_breaks_ties_only(open_driver):
    clock = Clock()
    driver = open_driver(clock=clock)
    remember(driver, "the red door of Mia")
    clock.now += 100 * DAY
    remember(driver, "the red door of Noa")
    clock.now += DAY
    remember(driver, "a long and winding story about somebody who once painted an old garden door in red")
    assert contents(recall(driver, "red door"))[:2] == ["the red door of Noa", "the red door of Mia"]


def test_confidence_prefers_new_and_frequent_notes(open_driver):
    clock = Clock()
    driver = open_driver(clock=clock)
    remember(driver, "coffee with milk")
    clock.now += 100 * DAY
    for _ in range(50):
        remember(driver, "coffee with milk is what some people on the third floor order")
    assert contents(recall(driver, "coffee milk"))[0] == "coffee with milk"
    assert contents(recall(driver, "coffee milk", ranking="confidence"))[0].endswith("order")


def test_filters_restrict_the_notes_that_are_recalled(driver):
    remember(driver, "tea one", type="fact", tags=["a", "b"], session="s")
    remember(driver, "tea two", type="fact", tags=["a"])
    remember(driver, "tea three", tags=["b"], session="s")
    assert contents(recall(driver, "tea", tags=["a", "b"])) == ["tea one"]
    assert set(contents(recall(driver, "tea", type="fact"))) == {"tea one", "tea two"}
    assert set(contents(recall(driver, "tea", session="s"))) == {"tea one", "tea three"}
    assert contents(driver.run(notes.list_notes("ns", "fact", ("a",), None))) == ["tea one", "tea two"]
    assert recall(driver, "tea coffee milk sugar", threshold=0.9) == []


def test_paging_gives_every_note_once(driver):
    for i in range(7):
        remember(driver, f"note {i}")
    page, seen = [], []
    while page or not seen:
        page = driver.run(notes.list_notes("ns", None, (), None, page[-1].id if page else "", 3))
        seen += contents(page)
    assert seen == [f"note {i}" for i in range(7)]


@pytest.mark.parametrize("note_id", ["", "0", "-1", "1e3", "abc", "9" * 40, "１２"])
def test_forgetting_an_invalid_id_finds_nothing(driver, note_id):
    remember(driver, "stays")
    assert driver.run(notes.forget("ns", note_id))[0] is False
    assert len(driver.run(notes.list_notes("ns"))) == 1


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("東京に住んでいます", "東京"),
        ("猫が好きです", "猫"),
        ("我们决定使用新的数据库", "数据库"),
        ("나는 김치를 좋아한다", "김치"),
        ("ฉันอาศัยอยู่ที่เชียงใหม่", "เชียงใหม่"),
        ("Ich wohne in Köln", "köln"),
        ("Ich wohne in Ko\u0308ln", "KÖLN"),
        ("café crème", "Cafe creme"),
        ("Straße 7", "strasse"),
        ("Я живу в Москве", "москве"),
        ("to be or not to be", "to be or not"),
        ("release of user_id", "user id"),
        ("Die Datenbanken stehen fest", "welche Datenbank?"),
        ("Die Kundendatenbanken sind umgezogen", "welche Datenbank?"),
        ("Kindergeburtstag bei Familie Brandt", "geburtstag"),
        ("Der Kinderarzt hat zu", "Arzt"),
        ("Die Tür klemmt", "tuer"),
        ("Der Schluessel haengt am Brett", "Wo hängt er?"),
        ("Signed on 2026-03-05, by both", "what was on 5 March?"),
        ("Signed on 5 March 2026, by both", "2026-03-05T12:00"),
        ("Где лежат ключи", "запасной ключ? ключом"),
        ("the retro is on Thursday", "retrospective"),
        ("🦜 is called Polly", "polly 🦜"),
        ("ｆｕｌｌｗｉｄｔｈ", "fullwidth"),
    ],
)
def test_every_script_is_found(driver, content, query):
    remember(driver, "something else altogether")
    remember(driver, content)
    assert contents(recall(driver, query))[:1] == [content]


def test_stop_words_of_other_languages_do_not_count(driver):
    remember(driver, "Ute hat den Schlüssel")
    remember(driver, "Was ist das, und wo ist der Hund?")
    for day in range(20):
        remember(driver, f"day {day} was quiet")
    assert contents(recall(driver, "Wo ist der Schlüssel?"))[0] == "Ute hat den Schlüssel"


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("Mühle", "Muehle"),
        ("Datenbanken", "Datenbank"),
        ("chevaux", "cheval"),
        ("bambini", "bambino"),
        ("allergies", "allergic"),
    ],
)
def test_forms_of_a_word_are_one_word(word, other):
    assert count_terms(word) == count_terms(other)


@pytest.mark.parametrize(("word", "other"), [("party", "part"), ("queen", "quen"), ("Bauer", "Baur")])
def test_similar_words_stay_different(word, other):
    assert count_terms(word) != count_terms(other)


HOSTILE = [
    '"', "'", '" OR 1=1 --', "NEAR(a b)", "a AND OR NOT", "content:x", "*", "^a", "{a b}: c", "a-b", "(", ")", "%_",
    "\x00", "a\x00b", "'; DROP TABLE notes; --", "🦜" * 1000, "\u202e\u200b", "a" * 100_000, "١٢٣", "\\", "[]", "{}",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_text(driver, text):
    remember(driver, "another namespace's secret " + text, namespace="other")
    remember(driver, "x " + text)
    assert contents(driver.run(notes.list_notes("ns"))) == ["x " + text]
    for found in (recall(driver, text), recall(driver, "secret " + text), recall(driver, f"{text} password {text}")):
        assert set(contents(found)) <= {"x " + text}
    assert problems(driver) == []


@ONE_DRIVER
def test_a_megabyte_is_remembered_recalled_and_erased(driver):
    words = [f"word{i}" for i in range(120_000)]
    text = " ".join(words)[:1_000_000]
    note = remember(driver, text)
    assert [found.id for found in recall(driver, "word77777")] == [note.id]
    recall(driver, text)
    driver.run(notes.forget("ns", note.id))
    assert b"word77777" not in bytes_on_disk(driver)
    assert problems(driver) == []


def test_a_common_word_does_not_make_recall_lose_the_rare_one(driver, monkeypatch):
    monkeypatch.setattr(candidates, "MAX_POSTINGS", 20)
    remember(driver, "the quokka likes everyday things")
    for i in range(100):
        remember(driver, f"everyday note {i}")
    assert contents(recall(driver, "everyday quokka"))[0].startswith("the quokka")
    assert len(recall(driver, "everyday", limit=10)) == 10


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(str.strip)
steps = st.lists(st.tuples(st.sampled_from(["remember", "forget", "clear"]), texts, st.booleans()), max_size=25)


@settings(max_examples=25)
@given(steps=steps)
def test_counters_index_and_notes_always_agree(driver, steps):
    driver.run(notes.clear_all("p"))
    expected: dict[tuple[str, bool], str] = {}  # a note is its content in its session
    for action, text, flag in steps:
        if action == "remember":
            expected[text, flag] = remember(driver, text, namespace="p", session="s" if flag else None).id
        elif action == "forget" and expected:
            note = random.Random(text).choice(sorted(expected))
            assert driver.run(notes.forget("p", expected.pop(note)))[0]
        elif action == "clear" and flag:
            assert driver.run(notes.clear_notes("p"))[0] == len(expected)
            expected.clear()
    assert Counter(contents(driver.run(notes.list_notes("p")))) == Counter(text for text, _ in expected)
    assert problems(driver) == []


spoken = st.lists(
    st.sampled_from(
        ["database", "PostgreSQL", "redis", "choose", "decided", "kids", "children", "Ana:", "the", "tea", "?"]
    ),
    min_size=1,
    max_size=8,
).map(" ".join)


@settings(max_examples=40)
@given(said=st.lists(st.tuples(spoken, st.sampled_from([None, "s"])), max_size=12), query=spoken)
def test_scores_are_between_0_and_1_and_fall_in_an_order_that_stays(driver, said, query):
    driver.run(notes.clear_all("p"))
    for content, session in said:
        remember(driver, content, namespace="p", session=session)
    found = recall(driver, query, namespace="p")
    scores = [note.score for note in found]
    assert all(0 < score <= 1 for score in scores)
    assert scores == sorted(scores, reverse=True)
    assert found == recall(driver, query, namespace="p")


@given(text=st.text("a.!?？ ", max_size=12) | st.text())
def test_only_a_text_that_ends_in_a_question_mark_asks(text):
    assert asks(text) == Asks.NO or text.strip()[-1] in "?？؟"


def test_every_synonym_is_a_searchable_word_and_adds_a_term():
    for words, members in read_groups():
        line = [*words, *members]
        assert [word for word in line if word in word_lists.all_languages() or split_words(word) != [word]] == [], line
        assert len({term_of(word) for word in line}) == len(line) > 1, line


@given(text=st.text())
def test_any_text_has_words_and_never_fails(text):
    assert all(split_words(text)) or not split_words(text)
    assert count_terms(text) == count_terms(text.upper().lower()) or not text.isascii()


@pytest.mark.parametrize(
    ("word", "stemmed"),
    [("decisions", "decis"), ("hopping", "hop"), ("hoping", "hope"), ("relational", "relat"), ("flies", "fli")],
)
def test_stems_are_porters(word, stemmed):
    assert stem(word) == stemmed


def test_stems_are_those_of_fts5():
    """SQLite's own porter tokenizer is the reference."""
    words = [a + b for a in ("connect", "happy", "relat", "agre", "fall", "trouble", "size", "oscill", "hop", "cry")
             for b in ("", "s", "ed", "ing", "ion", "ations", "ate", "ational", "izer", "fulness", "ibility", "ement",
                       "ly", "er", "es", "ies", "ous", "ive", "alism", "y")]  # fmt: skip
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE t USING fts5(x, tokenize='porter ascii')")
    connection.execute("CREATE VIRTUAL TABLE v USING fts5vocab(t, instance)")
    connection.executemany("INSERT INTO t (rowid, x) VALUES (?, ?)", list(enumerate(words)))
    theirs = {words[row]: term for term, row in connection.execute("SELECT term, doc FROM v")}
    connection.close()
    assert {word: stem(word) for word in words} == theirs


def test_a_tag_that_repeats_a_word_counts_whenever_it_is_given(driver):
    driver.run(notes.remember("at once", NewNote.check("tea at noon", tags=["tea"])))
    driver.run(notes.remember("later", NewNote.check("tea at noon")))
    driver.run(notes.remember("later", NewNote.check("tea at noon", tags=["tea"])))
    indexed = [
        driver.query("SELECT word, postings FROM note_words WHERE space = ? ORDER BY word", space_of(namespace))
        for namespace in ("at once", "later")
    ]
    assert indexed[0] == indexed[1]
    assert indexed[0]


def test_a_note_with_an_id_is_replaced_with_all_its_fields(open_driver):
    clock = Clock()
    driver = open_driver(clock=clock)
    labels = {"type": "t", "tags": ["a"], "session": "s", "metadata": {"by": "x"}, "ttl": 60, "pinned": True}
    first = remember(driver, "Sarah likes zebras", id="liking", **labels)
    clock.now += 10
    second = remember(driver, "Sarah likes trains", id="liking")
    assert (first.id, second.id, first.number) == ("liking", "liking", second.number)
    assert (second.type, second.tags, second.session, second.metadata, second.pinned) == (None, (), None, {}, False)
    assert (second.created_at, second.expires_at, second.times) == (first.created_at, None, 1)
    assert second.updated_at == first.updated_at + timedelta(seconds=10)
    assert contents(recall(driver, "zebras")) == []
    assert [note.id for note in recall(driver, "trains")] == ["liking"]
    assert remember(driver, "Sarah likes trains", id="liking").times == 2
    assert problems(driver) == []


@pytest.mark.sqlite_file
def test_the_text_and_the_vector_that_an_id_replaces_are_erased(open_driver):
    driver = open_driver()
    note = remember(driver, "zyxword", id="a", type="zyxtype", tags=["zyxtag"], metadata={"zyxmeta": 1})
    driver.run(vectors.add_vectors("ns", "model", [(int(note.number), b"zyxvector")]))
    remember(driver, "other", id="a")
    assert b"zyx" not in bytes_on_disk(driver)
    assert driver.run(vectors.list_unindexed("model")) == [("ns", int(note.number))]
    assert problems(driver) == []


@pytest.mark.sqlite_file
def test_the_id_of_a_note_is_erased_with_it(open_driver):
    driver = open_driver()
    remember(driver, "text", id="zyxid")
    assert driver.run(notes.forget("ns", "zyxid"))[0]
    assert b"zyxid" not in bytes_on_disk(driver)


def test_a_vector_of_a_text_that_was_replaced_is_not_stored(driver):
    number = int(remember(driver, "first", namespace="v", id="a").number)
    (read,) = driver.run(vectors.read_texts("v", [number], "model"))
    remember(driver, "second", namespace="v", id="a")
    for content, is_stored in ((read.content, False), ("second", True)):
        driver.run(vectors.add_vectors("v", "model", [(number, b"12")], {number: content}))
        assert (("v", number) not in driver.run(vectors.list_unindexed("model"))) == is_stored


def test_notes_with_ids_may_have_the_same_content_and_are_apart_from_those_without(open_driver):
    driver = open_driver()
    for own_id in ("a", "b", None):
        remember(driver, "the same", id=own_id)
    assert len(recall(driver, "same")) == len(driver.run(notes.list_notes("ns"))) == 3
    assert driver.run(notes.forget("ns", "a"))[0]
    assert [note.number is None for note in driver.run(notes.list_notes("ns"))] == [False, True]


def test_the_number_of_a_note_replaces_it_too(open_driver):
    driver = open_driver()
    plain = remember(driver, "first")
    own = remember(driver, "second", id="own")
    assert remember(driver, "changed", id=plain.id)[:2] == (plain.id, "changed")
    assert remember(driver, "changed as well", id=own.number).id == "own"
    assert remember(driver, "changed").id == plain.id
    assert contents(driver.run(notes.list_notes("ns"))) == ["changed", "changed as well"]


def test_two_notes_without_ids_never_get_the_same_content(open_driver):
    driver = open_driver()
    first, second = remember(driver, "first"), remember(driver, "second")
    with pytest.raises(Conflict, match=f"note {first.id} has this content"):
        remember(driver, "first", id=second.id)
    assert contents(driver.run(notes.list_notes("ns"))) == ["first", "second"]


def test_a_list_of_notes_continues_after_one_that_was_forgotten(open_driver):
    driver = open_driver()
    first, _ = remember(driver, "first", id="1"), remember(driver, "second", id="2")
    assert contents(driver.run(notes.list_notes("ns", None, (), None, "1"))) == ["second"]
    driver.run(notes.forget("ns", "1"))
    assert contents(driver.run(notes.list_notes("ns", None, (), None, first.cursor))) == ["second"]


own_ids = st.sampled_from(["a", "b", "17", "id/with ümlaut"])
id_steps = st.lists(
    st.tuples(st.sampled_from(["remember", "remember", "forget", "wait"]), own_ids, texts, st.booleans()), max_size=20
)


@settings(max_examples=25)
@given(steps=id_steps)
def test_notes_with_ids_are_like_a_dict(open_driver, steps):
    clock = Clock()
    driver = open_driver(clock=clock)
    driver.run(notes.clear_all("ns"))
    model: dict[str, tuple[str, bool]] = {}
    for action, own_id, text, flag in steps:
        if action == "remember":
            labels = {"type": "t", "tags": [text], "session": "s", "ttl": 60} if flag else {}
            assert remember(driver, text, id=own_id, **labels).id == own_id
            model[own_id] = (text, flag)
        elif action == "forget":
            assert driver.run(notes.forget("ns", own_id))[0] == (own_id in model)
            model.pop(own_id, None)
        else:
            clock.now += 61
            model = {own_id: (text, flag) for own_id, (text, flag) in model.items() if not flag}
    found = {note.id: (note.content, note.type == "t") for note in driver.run(notes.list_notes("ns"))}
    assert found == model
    assert {note.session for note in driver.run(notes.list_notes("ns", "t"))} <= {"s"}
    assert problems(driver) == []
