"""Encryption: only a process with the secret can read values."""

from __future__ import annotations

import json
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import DRIVERS, PostgresDriver, SyncDriver
from scrubjay.errors import InvalidInput, Unavailable
from scrubjay.store import export, items, lists, notes, vectors
from scrubjay.store.recover import recovery
from scrubjay.store.sqlite import SqliteStore, erase
from scrubjay.validation import NewNote, RecallQuery

SECRET = "correct horse battery staple"
NEEDLES = ("purple elephants", "quarterly turnover", "Zebediah", "gossip", "stables", "tuesday-club")

LABELS = {"type": "gossip", "tags": ["stables"], "session": "tuesday-club"}


def fill(driver) -> None:
    driver.run(items.set_item("ns", "k", json.dumps("purple elephants")))
    driver.run(items.update_items("ns", {"l": json.dumps(["quarterly turnover"])}))
    driver.run(lists.append_items("ns", "l", [json.dumps("more purple elephants"), "2"]))
    driver.run(items.increment("ns", "n", 5))
    draft = NewNote.check("Zebediah: we rode purple elephants", metadata={"about": "quarterly turnover"}, **LABELS)
    note = driver.run(notes.remember("ns", draft))[0]
    driver.run(notes.remember("ns", NewNote.check("Maria: what did Zebediah ride?", **LABELS)))
    driver.run(vectors.add_vectors("ns", "model", [(int(note.id), b"\x01\x02" * 100)]))
    driver.run(notes.remember("ns", NewNote.check("Ana sings", id="tuesday-club/ana")))


def check_filled(driver) -> None:
    """Everything that `fill` stored can be read."""
    assert driver.run(items.read_text("ns", "k")) == '"purple elephants"'
    assert driver.run(items.read_item("ns", "k")).text == '"purple elephants"'
    whole = ["quarterly turnover", "more purple elephants", 2]
    assert json.loads(driver.run(items.read_text("ns", "l"))) == whole
    assert {key: json.loads(text) for key, text in driver.run(items.read_many("ns", ["l", "n"])).items()} == {
        "l": whole,
        "n": 5,
    }
    assert driver.run(lists.read_tail("ns", "l", 2)) == ['"more purple elephants"', "2"]
    best = driver.run(notes.recall("ns", RecallQuery.check("who rode an elephant?")))[0]
    assert best.content == "Zebediah: we rode purple elephants"
    assert best.metadata == {"about": "quarterly turnover"}
    assert (best.type, list(best.tags), best.session) == tuple(LABELS.values())
    assert len(driver.run(notes.list_notes("ns", *LABELS.values()))) == 2
    assert [session.name for session in driver.run(notes.list_sessions("ns"))] == ["tuesday-club"]
    assert driver.run(notes.list_labels("ns"))["session"][0] == ("tuesday-club", 2)
    assert [note.content for note in driver.run(notes.list_notes("ns"))][1] == "Maria: what did Zebediah ride?"
    assert driver.run(notes.remember("ns", NewNote.check("Ana sings", id="tuesday-club/ana")))[0].times >= 2
    again = driver.run(notes.remember("ns", NewNote.check(best.content, session=LABELS["session"])))[0]
    assert again.id == best.id, "the same content is found again"
    assert driver.run(notes.read_note("ns", best.id)).metadata == best.metadata
    changes = driver.run(vectors.read_changes("ns", "model", None, ()))
    assert [vector for *_, vector in changes.new] == [b"\x01\x02" * 100]
    assert driver.run(vectors.read_changes("ns", "model", changes.fingerprint, ())) is None
    shown = vectors.without_names(driver.store.cipher, "what did Zebediah tell Maria?", changes.speakers)
    assert shown == "what did tell"
    assert driver.store.find_problems() == []


def found_in(path) -> list[str]:
    """Which of the needles are in the bytes of the file and its log."""
    data = b"".join(part.read_bytes() for part in path.parent.glob(f"{path.name}*"))
    return [needle for needle in NEEDLES if needle.encode() in data or needle.lower().encode() in data]


def shown_by(driver) -> list[str]:
    """Which of the needles a store shows without its secret: in its file, or in its tables."""
    if isinstance(driver, PostgresDriver):
        data = repr(driver.dump())
        return [needle for needle in NEEDLES if needle in data or needle.lower() in data]
    return found_in(driver.store.path)


@pytest.fixture(params=DRIVERS)
def encrypted(request, tmp_path):
    driver = DRIVERS[request.param](tmp_path / "scrubjay.db", durability="fast", secret=SECRET)
    yield driver
    driver.close()


def test_a_encrypted_store_does_all_that_another_does_and_shows_nothing_of_it(encrypted):
    fill(encrypted)
    check_filled(encrypted)
    assert shown_by(encrypted) == []


def test_without_a_secret_the_file_has_the_plain_text(driver):
    """So the search for plain text can find something."""
    fill(driver)
    assert shown_by(driver) == list(NEEDLES)


def test_the_words_of_the_index_are_not_those_of_another_store(encrypted, tmp_path):
    plain = SyncDriver(tmp_path / "plain.db")
    for run in (plain.run, encrypted.run):
        run(notes.remember("ns", NewNote.check("purple elephants")))
    words = [{word for (word,) in driver.query("SELECT word FROM note_words")} for driver in (plain, encrypted)]
    plain.close()
    assert len(words[0]) == len(words[1]) > 0
    assert not words[0] & words[1]


@pytest.mark.parametrize("secret", ["wrong", "", "correct horse battery staple "])
def test_a_wrong_secret_gets_a_clear_error_and_changes_nothing(tmp_path, secret):
    path = tmp_path / "db"
    store = SqliteStore(path, secret=SECRET)
    store.run(items.set_item("ns", "k", "1"))
    store.close()
    with pytest.raises(InvalidInput, match="SCRUBJAY_SECRET"):
        SqliteStore(path, secret=secret)
    store = SqliteStore(path, secret=SECRET)
    assert store.run(items.read_text("ns", "k")) == "1"
    store.close()


def test_a_file_with_values_is_not_half_encrypted_by_setting_a_secret(tmp_path):
    store = SqliteStore(tmp_path / "db")
    store.run(items.set_item("ns", "k", "1"))
    store.close()
    with pytest.raises(InvalidInput, match="scrubjay encrypt"):
        SqliteStore(tmp_path / "db", secret=SECRET)


@pytest.mark.parametrize(("before", "after"), [("", SECRET), (SECRET, "another"), (SECRET, "")])
def test_the_secret_can_be_set_changed_and_removed(tmp_path, before, after):
    path = tmp_path / "db"
    driver = DRIVERS["sqlite"](path, secret=before)
    fill(driver)
    driver.store.reencrypt(after or None)
    if before:
        with pytest.raises(InvalidInput):
            SqliteStore(path, secret=before)
    driver = DRIVERS["sqlite"](path, secret=after)
    check_filled(driver)
    driver.close()
    assert found_in(path) == ([] if after else list(NEEDLES))


def test_nobody_else_may_have_the_file_open_when_it_is_encrypted_anew(tmp_path):
    store, other = (SqliteStore(tmp_path / "db", busy_seconds=0.1) for _ in range(2))
    other.run(items.set_item("ns", "k", "1"))
    with pytest.raises(Unavailable, match="open in another process"):
        store.reencrypt(SECRET)
    assert other.run(items.read_text("ns", "k")) == "1"
    other.run(items.set_item("ns", "k", "2"))
    other.close()


def test_doctor_names_values_that_cannot_be_read(tmp_path):
    store = SqliteStore(tmp_path / "db", secret="one")
    store.run(items.set_item("ns", "a", '"1"'))
    store.run(items.set_item("ns", "b", '"2"'))
    store.run(lists.append_items("ns", "l", ["1", "2"]))
    assert store.find_problems() == []
    connection = store.take()
    connection.execute("UPDATE items SET value = (SELECT value FROM items WHERE key = 'a') WHERE key = 'b'")
    connection.execute("UPDATE list_items SET value = zeroblob(length(value)) WHERE position = 1")
    store.put_back(connection)
    problems = store.find_problems()
    assert [problem.partition(" cannot be read")[0] for problem in problems] == [
        "a value under 'b' in 'ns'",
        "a value under 'l' in 'ns'",
    ]
    store.close()


def test_a_value_that_was_moved_to_another_key_cannot_be_decrypted(tmp_path):
    path = tmp_path / "db"
    store = SqliteStore(path, secret=SECRET)
    store.run(items.set_item("ns", "mine", "1"))
    store.run(items.set_item("ns", "yours", "2"))
    with sqlite3.connect(path) as other:
        other.execute("UPDATE items SET value = (SELECT value FROM items WHERE key = 'yours') WHERE key = 'mine'")
    other.close()
    with pytest.raises(Unavailable, match="moved to another key"):
        store.run(items.read_text("ns", "mine"))
    store.close()


@settings(max_examples=40)
@given(text=st.text(st.characters(exclude_categories=["Cs"])), key=st.text("ab/\0é", min_size=1, max_size=5))
def test_any_text_under_any_key_is_decrypted_unchanged(encrypted, text, key):
    value = json.dumps(text, ensure_ascii=False)
    encrypted.run(items.set_item("ns", key, value))
    assert encrypted.run(items.read_text("ns", key)) == value


def test_an_export_is_not_encrypted_and_can_be_imported_anywhere(encrypted, tmp_path):
    fill(encrypted)
    with (tmp_path / "export").open("wb") as file:
        encrypted.run(export.export_namespace("ns", file.write))
    assert found_in(tmp_path / "export") == list(NEEDLES), "an export is plain text"
    for secret in ("", "another"):
        store = SqliteStore(tmp_path / f"copy-{secret}", secret=secret)
        store.run(export.import_namespace("ns", tmp_path / "export"))
        assert store.run(items.read_text("ns", "l")) == encrypted.run(items.read_text("ns", "l"))
        notes_of = [run(notes.list_notes("ns")) for run in (store.run, encrypted.run)]
        assert notes_of[0] == notes_of[1]
        assert store.find_problems() == []
        store.close()
    assert found_in(tmp_path / "copy-another") == []


def test_a_damaged_file_is_saved_by_who_has_the_secret_and_stays_encrypted(tmp_path):
    path = tmp_path / "db"
    driver = DRIVERS["sqlite"](path, secret=SECRET)
    fill(driver)
    driver.close()
    with pytest.raises(InvalidInput, match="SCRUBJAY_SECRET"):
        recovery.recover(path, tmp_path / "none", lambda _done, _total: None)
    report = recovery.recover(path, tmp_path / "saved", lambda _done, _total: None, SECRET)
    assert report.is_complete
    saved = DRIVERS["sqlite"](tmp_path / "saved", secret=SECRET)
    check_filled(saved)
    saved.close()
    assert found_in(tmp_path / "saved") == []


def test_erasing_leaves_nothing_of_what_was_encrypted(tmp_path):
    store = SqliteStore(tmp_path / "db", secret=SECRET)
    for n in range(50):
        store.run(items.set_item("ns", f"k{n}", json.dumps("purple elephants" * 20)))
    erased = erase.erase(store, "ns")
    assert erased.samples >= 50
    assert erased.traces == []
    store.close()
