"""Values that only the holder of the secret can read."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import DRIVERS
from scrubjay.drafts import Draft, Question
from scrubjay.errors import InvalidInput, Unavailable
from scrubjay.store import erasure, items, lists, notes, recovery, transfer, vectors
from scrubjay.store.sqlite import SqliteStore

SECRET = "correct horse battery staple"
NEEDLES = ("purple elephants", "quarterly turnover", "Zebediah", "gossip", "stables", "tuesday-club")

LABELS = {"type": "gossip", "tags": ["stables"], "session": "tuesday-club"}


def fill(driver) -> None:
    driver.run(items.set_item("ns", "k", json.dumps("purple elephants")))
    driver.run(items.update_items("ns", {"l": json.dumps(["quarterly turnover"])}))
    driver.run(lists.append_items("ns", "l", [json.dumps("more purple elephants"), "2"]))
    driver.run(items.increment("ns", "n", 5))
    draft = Draft.check("Zebediah: we rode purple elephants", metadata={"about": "quarterly turnover"}, **LABELS)
    note = driver.run(notes.remember("ns", draft))[0]
    driver.run(notes.remember("ns", Draft.check("Maria: what did Zebediah ride?", **LABELS)))
    driver.run(vectors.add_vectors("ns", "model", [(int(note.id), b"\x01\x02" * 100)]))


def holds(driver) -> None:
    """Everything that `fill` stored comes back."""
    assert driver.run(items.read_text("ns", "k")) == '"purple elephants"'
    assert driver.run(items.read_item("ns", "k")).text == '"purple elephants"'
    whole = ["quarterly turnover", "more purple elephants", 2]
    assert json.loads(driver.run(items.read_text("ns", "l"))) == whole
    assert {key: json.loads(text) for key, text in driver.run(items.read_many("ns", ["l", "n"])).items()} == {
        "l": whole,
        "n": 5,
    }
    assert driver.run(lists.read_tail("ns", "l", 2)) == ['"more purple elephants"', "2"]
    best = driver.run(notes.recall("ns", Question.check("who rode an elephant?")))[0]
    assert best.content == "Zebediah: we rode purple elephants"
    assert best.metadata == {"about": "quarterly turnover"}
    assert (best.type, list(best.tags), best.session) == tuple(LABELS.values())
    assert len(driver.run(notes.list_notes("ns", *LABELS.values()))) == 2
    assert [session.name for session in driver.run(notes.list_sessions("ns"))] == ["tuesday-club"]
    assert [note.content for note in driver.run(notes.list_notes("ns"))][1] == "Maria: what did Zebediah ride?"
    again = driver.run(notes.remember("ns", Draft.check(best.content, session=LABELS["session"])))[0]
    assert again.id == best.id, "the same content is found again"
    assert driver.run(notes.read_note("ns", best.id)).metadata == best.metadata
    changes = driver.run(vectors.read_changes("ns", "model", None, ()))
    assert [vector for *_, vector in changes.new] == [b"\x01\x02" * 100]
    assert driver.run(vectors.read_changes("ns", "model", changes.stamp, ())) is None
    shown = vectors.without_names(driver.store.context().cipher, "what did Zebediah tell Maria?", changes.people)
    assert shown == "what did tell"
    assert driver.store.find_faults() == []


def found_in(path) -> list[str]:
    """Which of the needles lie in the bytes of the file and its log."""
    data = b"".join(part.read_bytes() for part in path.parent.glob(f"{path.name}*"))
    return [needle for needle in NEEDLES if needle.encode() in data or needle.lower().encode() in data]


@pytest.fixture(params=DRIVERS)
def sealed(request, tmp_path):
    driver = DRIVERS[request.param](tmp_path / "scrubjay.db", durability="fast", secret=SECRET)
    yield driver
    driver.close()


def test_a_sealed_store_does_all_that_another_does_and_shows_nothing_of_it(sealed):
    fill(sealed)
    holds(sealed)
    assert found_in(sealed.store.path) == []


def test_without_a_secret_the_needles_are_found(driver):
    """The search above can find something."""
    fill(driver)
    assert found_in(driver.store.path) == list(NEEDLES)


def test_the_words_of_the_index_are_not_those_of_another_store(sealed, tmp_path):
    plain = SqliteStore(tmp_path / "plain.db")
    for run in (plain.run, sealed.run):
        run(notes.remember("ns", Draft.check("purple elephants")))
    plain.close()
    words = []
    for path in (plain.path, sealed.store.path):
        with closing(sqlite3.connect(path)) as connection:
            words.append({word for (word,) in connection.execute("SELECT word FROM note_words")})
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


def test_a_file_with_values_is_not_half_sealed_by_setting_a_secret(tmp_path):
    store = SqliteStore(tmp_path / "db")
    store.run(items.set_item("ns", "k", "1"))
    store.close()
    with pytest.raises(InvalidInput, match="scrubjay encrypt"):
        SqliteStore(tmp_path / "db", secret=SECRET)


@pytest.mark.parametrize(("before", "after"), [("", SECRET), (SECRET, "another"), (SECRET, "")])
def test_the_secret_can_be_set_changed_and_taken_away(tmp_path, before, after):
    path = tmp_path / "db"
    driver = DRIVERS["sqlite"](path, secret=before)
    fill(driver)
    driver.store.reseal(after or None)
    if before:
        with pytest.raises(InvalidInput):
            SqliteStore(path, secret=before)
    driver = DRIVERS["sqlite"](path, secret=after)
    holds(driver)
    driver.close()
    assert found_in(path) == ([] if after else list(NEEDLES))


def test_nobody_else_may_have_the_file_open_when_it_is_sealed_anew(tmp_path):
    store, other = (SqliteStore(tmp_path / "db", patience=0.1) for _ in range(2))
    other.run(items.set_item("ns", "k", "1"))
    with pytest.raises(Unavailable, match="open elsewhere"):
        store.reseal(SECRET)
    assert other.run(items.read_text("ns", "k")) == "1"
    other.run(items.set_item("ns", "k", "2"))
    other.close()


def test_a_value_that_was_moved_to_another_place_is_not_read_there(tmp_path):
    path = tmp_path / "db"
    store = SqliteStore(path, secret=SECRET)
    store.run(items.set_item("ns", "mine", "1"))
    store.run(items.set_item("ns", "yours", "2"))
    with sqlite3.connect(path) as other:
        other.execute("UPDATE items SET value = (SELECT value FROM items WHERE key = 'yours') WHERE key = 'mine'")
    other.close()
    with pytest.raises(Unavailable, match="moved to another place"):
        store.run(items.read_text("ns", "mine"))
    store.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(text=st.text(st.characters(exclude_categories=["Cs"])), key=st.text("ab/\0é", min_size=1, max_size=5))
def test_any_text_under_any_key_comes_back(sealed, text, key):
    value = json.dumps(text, ensure_ascii=False)
    sealed.run(items.set_item("ns", key, value))
    assert sealed.run(items.read_text("ns", key)) == value


def test_an_export_is_plain_and_goes_into_any_store(sealed, tmp_path):
    fill(sealed)
    with (tmp_path / "export").open("wb") as file:
        sealed.run(transfer.export_namespace("ns", file.write))
    assert found_in(tmp_path / "export") == list(NEEDLES), "whoever holds the secret asked for it"
    for secret in ("", "another"):
        store = SqliteStore(tmp_path / f"copy-{secret}", secret=secret)
        store.run(transfer.import_namespace("ns", tmp_path / "export"))
        assert store.run(items.read_text("ns", "l")) == sealed.run(items.read_text("ns", "l"))
        notes_of = [run(notes.list_notes("ns")) for run in (store.run, sealed.run)]
        assert notes_of[0] == notes_of[1]
        assert store.find_faults() == []
        store.close()
    assert found_in(tmp_path / "copy-another") == []


def test_a_damaged_file_is_saved_by_who_has_the_secret_and_stays_sealed(tmp_path, monkeypatch):
    path = tmp_path / "db"
    driver = DRIVERS["sqlite"](path, secret=SECRET)
    fill(driver)
    driver.close()
    with pytest.raises(InvalidInput, match="SCRUBJAY_SECRET"):
        recovery.recover(path, tmp_path / "none", lambda _done, _total: None)
    monkeypatch.setenv("SCRUBJAY_SECRET", SECRET)
    report = recovery.recover(path, tmp_path / "saved", lambda _done, _total: None)
    assert report.is_whole
    saved = DRIVERS["sqlite"](tmp_path / "saved")
    holds(saved)
    saved.close()
    assert found_in(tmp_path / "saved") == []


def test_erasing_leaves_nothing_of_what_was_sealed(tmp_path):
    store = SqliteStore(tmp_path / "db", secret=SECRET)
    for n in range(50):
        store.run(items.set_item("ns", f"k{n}", json.dumps("purple elephants" * 20)))
    erased = erasure.erase(store, "ns")
    assert erased.pieces > 50
    assert erased.traces == []
    store.close()
