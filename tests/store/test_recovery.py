"""Recovery: what can be read of a damaged file is saved, nothing is invented, and every error has advice."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrubjay.errors import ScrubjayError, Unavailable
from scrubjay.store import api_keys, items, lists, notes, usage
from scrubjay.store.idempotency import IdempotencyKey, run_once
from scrubjay.store.recover import recovery
from scrubjay.store.recover.pages import INDEX_INNER, INDEX_LEAF, TABLE_INNER, TABLE_LEAF, Pages
from scrubjay.store.recover.recovery import NOT_COPIED, Report, recover, shapes
from scrubjay.store.sqlite import SqliteStore, schema
from scrubjay.store.sqlite import connection as sqlite
from scrubjay.validation import NewNote

SIZE = 4096
NOTE_COLUMNS = 18
"""The length of a row of notes, of which no other table has as many columns."""


def fill(store: SqliteStore) -> None:
    rng = random.Random(7)
    for namespace in ("ns", "other"):
        for i in range(80):
            store.run(items.set_item(namespace, f"key-{i:04}", json.dumps({"n": i, "text": "v" * rng.randrange(200)})))
        for i in range(2):
            store.run(items.set_item(namespace, f"large-{i}", json.dumps("".join(rng.choices("abcdef", k=15_000)))))
        store.run(lists.append_items(namespace, "list", [json.dumps([i, "entry" * 5]) for i in range(300)]))
        store.run(lists.append_items(namespace, "empty", []))
        for i in range(30):
            draft = NewNote.check(f"note {i} about {'words ' * rng.randrange(1, 60)}", session=f"s{i % 3}", tags=["t"])
            store.run(notes.remember(namespace, draft))
    store.run(usage.set_quota("ns", {"max_bytes": 10**7}))
    store.run(api_keys.issue("mine", ("*",), False, True))
    store.run(run_once(lists.append_items("ns", "once", ["1"]), IdempotencyKey("key")))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "db"
    store = SqliteStore(path, durability="fast")
    fill(store)
    store.close()
    return path


class Contents(NamedTuple):
    """Every value by namespace and key, and every note."""

    values: dict[tuple[str, str], str]
    notes: set[tuple[str, str, str]]

    def __repr__(self) -> str:
        return f"{len(self.values)} values and {len(self.notes)} notes"


def read_all(path: Path) -> Contents:
    store = SqliteStore(path)
    values, remembered = {}, set()
    for namespace in store.run(usage.list_namespaces()):
        for key in store.run(items.list_keys(namespace)):
            values[namespace, key] = store.run(items.read_text(namespace, key))
        remembered |= {(namespace, note.id, note.content) for note in store.run(notes.list_notes(namespace))}
    store.close()
    return Contents(values, remembered)


@pytest.fixture(scope="module")
def truth(whole, tmp_path_factory) -> Contents:
    copy = tmp_path_factory.mktemp("truth") / "db"
    shutil.copyfile(whole, copy)
    return read_all(copy)


def is_part(found: str, original: str) -> bool:
    """Whether a list has some of the items it had, in their order."""
    rest = iter(json.loads(original))
    return all(any(part == other for other in rest) for part in json.loads(found))


def saved(path: Path, truth: Contents) -> tuple[Report, Contents]:
    """What recover saves, all of which must have been there."""
    target = path.with_name(f"{path.name}.recovered")
    report = recover(path, target, lambda *_: None)
    store = SqliteStore(target)
    assert store.find_problems() == []
    store.close()
    values, remembered = read_all(target)
    for place, text in values.items():
        assert text == truth[0][place] or (place[1] in ("list", "once") and is_part(text, truth[0][place])), place
    named = {note for note in remembered if not note[0].startswith("recovered-")}
    assert named <= truth[1]
    assert {note[1:] for note in remembered - named} <= {note[1:] for note in truth[1]}
    return report, Contents(values, remembered)


def damaged(whole: Path, folder: Path, at: int, data: bytes) -> Path:
    path = folder / "db"
    shutil.copyfile(whole, path)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    return path


def pages_of(path: Path, *kinds: int) -> list[int]:
    raw = path.read_bytes()
    return [n for n in range(2, len(raw) // SIZE + 1) if raw[(n - 1) * SIZE] in kinds]


def test_an_intact_file_is_recovered_completely(whole, truth, tmp_path):
    path = damaged(whole, tmp_path, 0, b"")
    report, found = saved(path, truth)
    assert report.is_complete, report
    assert found == truth
    store = SqliteStore(f"{path}.recovered")
    assert store.run(api_keys.list_all())[0].name == "mine"
    assert store.run(usage.read_usage("ns")).max_bytes == 10**7
    assert store.run(run_once(lists.append_items("ns", "once", ["1"]), IdempotencyKey("key")))[0] == 1
    found = store.run(notes.list_notes("ns", None, (), "s1"))
    assert len(found) == 10
    store.close()


GARBAGE = [b"\0" * SIZE, b"\xff" * SIZE, random.Random(3).randbytes(SIZE)]


@pytest.mark.parametrize("garbage", GARBAGE, ids=["zeros", "ones", "noise"])
def test_a_damaged_leaf_page_costs_at_most_its_rows(whole, truth, tmp_path, garbage):
    pages = Pages(whole)
    for number in random.Random(1).sample(pages_of(whole, TABLE_LEAF, INDEX_LEAF), 6):
        held = [cell for cell in pages.cells(number) if cell is not None]
        path = damaged(whole, tmp_path, (number - 1) * SIZE, garbage)
        _, (values, remembered) = saved(path, truth)
        texts = {value for cell in held for value in cell.values if isinstance(value, str)}
        for place in truth[0].keys() - values.keys():
            assert place[1] in texts, f"{place} was not on page {number}"
        blobs = [value.decode(errors="replace") for cell in held for value in cell.values if isinstance(value, bytes)]
        gone = [content for *_, content in truth[1] - remembered if not any(content in blob for blob in blobs)]
        assert len(gone) <= sum(len(cell.values) == NOTE_COLUMNS for cell in held), f"{gone} were not on page {number}"
        for name in ("ns", "other"):
            gone = len(json.loads(truth[0][name, "list"])) - len(json.loads(values.get((name, "list"), "[]")))
            assert gone <= sum(len(cell.values) == 4 for cell in held), f"more of the list than page {number} had"
        path.with_name("db.recovered").unlink()
    pages.close()


def test_a_damaged_inner_page_costs_at_most_its_own_rows(whole, truth, tmp_path):
    inner = pages_of(whole, TABLE_INNER, INDEX_INNER)
    assert inner
    for number in inner:
        own = sum(cell is not None for cell in _cells(whole, number))
        path = damaged(whole, tmp_path, (number - 1) * SIZE, GARBAGE[2])
        _, (values, remembered) = saved(path, truth)
        lost = len(truth[0]) - len(values) + len(truth[1]) - len(remembered)
        assert lost <= own
        path.with_name("db.recovered").unlink()


def _cells(path: Path, number: int) -> list:
    pages = Pages(path)
    cells = list(pages.cells(number))
    pages.close()
    return cells


@pytest.mark.parametrize("length", [16, 100, SIZE])
def test_a_lost_header_or_first_page_costs_nothing(whole, truth, tmp_path, length):
    path = damaged(whole, tmp_path, 0, GARBAGE[2][:length])
    with pytest.raises(Unavailable, match=rf"first page is damaged.*scrubjay recover {path}"):
        SqliteStore(path)
    _, found = saved(path, truth)
    assert found == truth


@pytest.mark.parametrize("name", ["namespaces", recovery.NAMES])
def test_notes_keep_their_namespace_when_one_of_the_two_copies_of_its_name_is_damaged(whole, truth, tmp_path, name):
    path = damaged(whole, tmp_path, 0, b"")
    damage_first_page(path, name)
    assert saved(path, truth)[1] == truth


def test_the_two_copies_of_a_name_are_not_side_by_side(whole, tmp_path):
    path = damaged(whole, tmp_path, 0, b"")
    for _ in range(2):
        first, second = (first_page(path, name) for name in ("namespaces", recovery.NAMES))
        assert abs(first - second) >= 8
        store = SqliteStore(path)
        store.compact()
        store.close()


def test_notes_of_a_namespace_whose_name_is_lost_are_saved_under_another(whole, truth, tmp_path):
    path = damaged(whole, tmp_path, 0, b"")
    for name in ("namespaces", recovery.NAMES):
        damage_first_page(path, name)
    target = tmp_path / "recovered"
    report = recover(path, target, lambda *_: None)
    assert sorted(report.missing)[:2] == [
        f"a namespace with 30 notes lost its name; they are in 'recovered-{number}'" for number in (1, 2)
    ]
    values, remembered = read_all(target)
    assert values == truth.values
    names = {"ns": "recovered-1", "other": "recovered-2"}
    assert {(names[namespace], *note) for namespace, *note in truth.notes} == remembered
    store = SqliteStore(target)
    assert store.find_problems() == []
    store.close()


def test_without_its_name_no_note_of_a_namespace_can_be_decrypted(tmp_path):
    path = tmp_path / "db"
    with closing(SqliteStore(path, secret="s3cret")) as store:
        store.run(notes.remember("ns", NewNote.check("about tea")))
    for name in ("namespaces", recovery.NAMES):
        damage_first_page(path, name)
    report = recover(path, tmp_path / "recovered", lambda *_: None, "s3cret")
    assert report.missing == ["a namespace lost its name, without which its 1 note cannot be decrypted"]
    assert report.unreadable_rows == 1


def test_an_id_that_is_damaged_in_one_copy_gives_no_namespace_the_notes_of_another(tmp_path):
    with closing(SqliteStore(tmp_path / "db")) as store:
        found = {("ns", 1), ("ns", 2), ("other", 2), ("third", 3), ("", 4), ("fifth", 5), ("sixth", 5)}
        store.run(recovery.save_ids(found))
        with store.connect() as connection:
            assert connection.execute("SELECT namespace, id FROM namespaces").fetchall() == [("third", 3)]


def first_page(path: Path, name: str) -> int:
    """The number of the first page of a table or an index."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0]


def damage_first_page(path: Path, name: str) -> None:
    at = (first_page(path, name) - 1) * SIZE
    with path.open("r+b") as file:
        file.seek(at)
        file.write(GARBAGE[2])


def test_a_damaged_overflow_page_costs_one_large_value(whole, truth, tmp_path):
    overflow = [n for n in pages_of(whole, 0) if any(whole.read_bytes()[(n - 1) * SIZE :][:SIZE])]
    path = damaged(whole, tmp_path, (overflow[3] - 1) * SIZE, GARBAGE[2])
    report, (values, remembered) = saved(path, truth)
    assert not report.is_complete
    lost = truth[0].keys() - values.keys()
    assert len(lost) == 1
    assert lost.pop()[1].startswith("large-")
    assert remembered == truth[1]


def test_a_truncated_file_is_reported_and_the_rest_is_recovered(whole, truth, tmp_path):
    path = damaged(whole, tmp_path, 0, b"")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2 + 1000)
    with pytest.raises(Unavailable, match=rf"damaged: .*scrubjay recover {path}"):
        SqliteStore(path).run(items.read_text("ns", "key-0001"))
    report, (values, _) = saved(path, truth)
    assert any("truncated" in sentence for sentence in report.missing)
    assert values


def open_copy(whole: Path, folder: Path) -> Path:
    """A file as a killed process leaves it: some of it only in the log."""
    live = folder / "live"
    shutil.copyfile(whole, live)
    store = SqliteStore(live)
    for i in range(50):
        store.run(items.set_item("ns", f"late-{i}", json.dumps("late" * i)))
    path = folder / "db"
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{live}{suffix}", f"{path}{suffix}")
    store.close()
    return path


def test_writes_that_are_only_in_the_log_are_recovered(whole, truth, tmp_path):
    path = open_copy(whole, tmp_path)
    late = {("ns", f"late-{i}"): json.dumps("late" * i) for i in range(50)}
    _, (values, _) = saved(path, Contents({**truth[0], **late}, truth[1]))
    assert values == {**truth[0], **late}


@pytest.mark.parametrize("at", [0, 20, 4000, 40_000])
def test_garbage_in_the_log_costs_at_most_what_came_after_it(whole, truth, tmp_path, at):
    path = open_copy(whole, tmp_path)
    with Path(f"{path}-wal").open("r+b") as file:
        file.seek(at)
        file.write(GARBAGE[2])
    late = {("ns", f"late-{i}"): json.dumps("late" * i) for i in range(50)}
    _, (values, remembered) = saved(path, Contents({**truth[0], **late}, truth[1]))
    assert truth[0].keys() <= values.keys()
    assert remembered == truth[1]


def test_an_empty_file_beside_its_log_is_refused(whole, tmp_path):
    path = open_copy(whole, tmp_path)
    path.write_bytes(b"")
    log = Path(f"{path}-wal").read_bytes()
    with pytest.raises(Unavailable, match=r"truncated.*scrubjay restore.*scrubjay recover"):
        SqliteStore(path)
    assert Path(f"{path}-wal").read_bytes() == log
    report = recover(path, tmp_path / "saved", lambda *_: None)
    assert report.saved["items"]


@settings(max_examples=20)
@given(
    damage=st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from([512, SIZE, 3 * SIZE]), st.sampled_from(["zeros", "noise", "page"])),
        min_size=1,
        max_size=5,
    ),
    cut=st.none() | st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_recovery_of_random_damage_ends_and_invents_nothing(whole, truth, tmp_path_factory, damage, cut, seed):
    folder = tmp_path_factory.mktemp("random")
    raw, rng = bytearray(whole.read_bytes()), random.Random(seed)
    for place, length, kind in damage:
        at = int(place * (len(raw) - length)) // 512 * 512
        other = rng.randrange(len(raw) // SIZE) * SIZE
        noise = {"zeros": b"\0" * length, "noise": rng.randbytes(length), "page": bytes(raw[other : other + length])}
        raw[at : at + length] = noise[kind][:length].ljust(length, b"\0")
    path = folder / "db"
    path.write_bytes(raw[: int(cut * len(raw))] if cut is not None else raw)
    try:
        saved(path, truth)
    except Unavailable as error:
        assert "no data of Scrubjay" in str(error)  # noqa: PT017
    shutil.rmtree(folder)


def test_another_programs_database_and_no_database_are_refused(tmp_path):
    theirs = tmp_path / "theirs"
    with sqlite3.connect(theirs) as connection:
        connection.executescript("PRAGMA application_id = 7; CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)")
    connection.close()
    (tmp_path / "text").write_text("some text\n" * 1000)
    (tmp_path / "empty").write_bytes(b"")
    for name in ("theirs", "text", "empty", "nowhere"):
        with pytest.raises(ScrubjayError, match=r"another program's|no data of Scrubjay|no file"):
            recover(tmp_path / name, tmp_path / f"{name}.out", lambda *_: None)


def test_tables_and_columns_of_later_versions_are_recovered(whole, truth, tmp_path, monkeypatch):
    """Also rows that are older than the last column of their table, and tables whose key is the row's number."""
    path = damaged(whole, tmp_path, 0, b"")
    later = (
        *schema.MIGRATIONS,
        (
            "ALTER TABLE items ADD COLUMN colour TEXT",
            "CREATE TABLE later (number INTEGER PRIMARY KEY, namespace TEXT NOT NULL, what TEXT)",
        ),
    )
    for module in (sqlite, recovery):
        monkeypatch.setattr(module, "MIGRATIONS", later)
    monkeypatch.setattr(sqlite, "VERSION", len(later))
    store = SqliteStore(path)
    connection = store.take()
    connection.execute("INSERT INTO later VALUES (42, 'ns', 'something'), (7, 'ns', NULL)")
    connection.execute("UPDATE items SET colour = 'blue' WHERE key = 'key-0003'")
    store.put_back(connection)
    store.close()
    report, found = saved(path, truth)
    assert report.is_complete, report
    assert found == truth
    with sqlite3.connect(tmp_path / "db.recovered") as connection:
        assert connection.execute("SELECT * FROM later").fetchall() == [(7, "ns", None), (42, "ns", "something")]
        assert connection.execute("SELECT count(*) FROM items WHERE colour = 'blue'").fetchone() == (2,)
    connection.close()


def test_recover_can_tell_apart_all_tables_that_it_copies():
    """By the shape of their rows alone: a table that looks like another, or like an index, needs a new rule there."""
    known = shapes()
    for shape in known:
        if not shape.is_index and shape.name not in NOT_COPIED:
            alike = [
                other.name
                for other in known
                if other.name != shape.name
                and other.in_table is shape.in_table
                and len(other.columns) == len(shape.columns)
                and all(set(one) & set(two) for one, two in zip(shape.types, other.types, strict=True))
            ]
            assert alike == [], f"rows of {shape.name} look like those of {alike}"
