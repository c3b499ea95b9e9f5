"""Export and import: an import restores an export exactly, all of it or nothing."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import DRIVERS, Driver
from scrubjay.errors import Conflict, InvalidInput, NotFound, QuotaExceeded
from scrubjay.exact_json import encode
from scrubjay.store import export, items, lists, notes, usage
from scrubjay.store.erasable import data_of
from scrubjay.store.idempotency import IdempotencyKey, run_once
from scrubjay.store.operation import Quota
from scrubjay.store.sqlite.queries import IN_NAMESPACE, NOTE_VALUES
from scrubjay.store.word_index import count_of, space_of, unpack
from scrubjay.validation import NewNote

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
NAMES = st.text(min_size=1, max_size=30)
TTL = st.none() | st.floats(0.001, 10**9)
NOTES = st.builds(
    NewNote.check,
    st.text(min_size=1).filter(lambda text: text.strip()),
    type=st.none() | NAMES,
    tags=st.none() | st.lists(NAMES, max_size=3),
    session=st.none() | NAMES,
    ttl=TTL,
    pinned=st.booleans(),
    metadata=st.none() | st.dictionaries(st.text(), JSON, max_size=2),
)
CALLS = st.lists(
    st.one_of(
        st.builds(lambda k, v, ttl: items.set_item("ns", k, encode(v), ttl), NAMES, JSON, TTL),
        st.builds(lambda k, vs: lists.append_items("ns", k, [encode(v) for v in vs]), st.just("list"), st.lists(JSON)),
        st.builds(lambda k: items.delete_item("ns", k), st.just("list") | NAMES),
        st.builds(
            lambda k, id_: run_once(items.increment("ns", k, 1.5), id_ and IdempotencyKey(id_)),
            st.just("n"),
            st.none() | NAMES,
        ),
        st.builds(lambda draft: notes.remember("ns", draft), NOTES),
        st.builds(lambda n: usage.set_quota("ns", {"max_bytes": n}), st.none() | st.integers(10**6, 10**9)),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip
COLUMNS = {
    "items": "key, value, length, bytes, version, created_at, updated_at, expires_at",
    "list_items": "key, position, value",
    "idempotency_keys": "sender, sequence, verb, key, digest, result, used_on",
}
NOW = 1_700_000_000.0


def contents(driver: Driver, namespace: str) -> dict[str, object]:
    """Everything that a store has of a namespace, except its name and today's writes."""
    found = {}
    for table, columns in COLUMNS.items():
        found[table] = sorted(map(repr, driver.query(f"SELECT {columns} FROM {table} WHERE namespace = ?", namespace)))
    words = driver.query("SELECT word, block, postings FROM note_words WHERE space = ?", space_of(namespace))
    found["words"] = sorted((word, count_of(posting)) for word, _, data in words for posting in unpack(data))
    rows = driver.query(
        f"""SELECT data, {", ".join(NOTE_VALUES[1:])} FROM notes
        JOIN erasable_blobs b ON b.id = blob_id WHERE {IN_NAMESPACE}""",
        namespace,
    )
    found["notes"] = sorted(repr((data_of(blob), *row)) for blob, *row in rows)
    found["limits"] = driver.query(
        "SELECT keys, bytes, writes_per_day, max_bytes, version_floor FROM namespaces WHERE namespace = ?", namespace
    )
    return found


def exported(driver, path: Path, namespace: str = "ns") -> Path:
    with path.open("wb") as file:
        driver.run(export.export_namespace(namespace, file.write))
    return path


@pytest.mark.parametrize("kind", DRIVERS)
@settings(max_examples=40)
@given(calls=CALLS)
def test_an_import_restores_every_export_exactly(kind, calls):
    with tempfile.TemporaryDirectory() as folder:
        source = DRIVERS[kind](Path(folder) / "source", durability="fast", clock=lambda: NOW)
        target = DRIVERS[kind](Path(folder) / "target", durability="fast", clock=lambda: NOW)
        for call in calls:
            try:
                source.run(call)
            except (Conflict, InvalidInput):
                continue  # a key that holds something else already
        source.run(usage.set_quota("ns", {}))
        path = exported(source, Path(folder) / "export")
        moved, used = target.run(export.import_namespace("other", path))
        assert contents(target, "other") == contents(source, "ns")
        assert used.summary().writes_today == 0
        assert (moved.keys, moved.notes) == (
            len(source.run(items.list_keys("ns"))),
            len(source.run(notes.list_notes("ns"))),
        )
        assert target.store.find_problems() == []
        again = exported(target, Path(folder) / "again", "other").read_bytes().splitlines()
        assert again[1:] == path.read_bytes().splitlines()[1:]
        source.close()
        target.close()


@pytest.fixture
def full(driver, tmp_path) -> Path:
    """The export of a namespace with something of everything."""
    driver.run(items.set_item("ns", "a", '{"x":1}'))
    driver.run(run_once(lists.append_items("ns", "l", ["1", '"two"', "null"]), IdempotencyKey("key-1")))
    driver.run(items.set_item("ns", "z", '"last"'))
    driver.run(notes.remember("ns", NewNote.check("Sarah likes PostgreSQL", tags=["db"], session="s")))
    driver.run(notes.remember("ns", NewNote.check("Bob likes MongoDB")))
    return exported(driver, tmp_path / "export")


def test_an_incomplete_export_changes_nothing(driver, full, tmp_path):
    whole = full.read_bytes()
    before = contents(driver, "ns")
    for cut in [*range(0, len(whole) - 1, 61), len(whole) - 1]:
        (tmp_path / "cut").write_bytes(whole[:cut])
        for namespace, replace in (("ns", True), ("new", False)):
            with pytest.raises(InvalidInput, match=r"incomplete|line 1"):
                driver.run(export.import_namespace(namespace, tmp_path / "cut", replace))
    assert contents(driver, "ns") == before
    assert driver.run(usage.list_namespaces()) == ["ns"]


@pytest.mark.parametrize(
    ("line", "change", "complaint"),
    [
        (1, {"format": "other"}, "not an export of Scrubjay"),
        (1, {"version": 2}, "pip install -U scrubjay"),
        (1, {"max_bytes": "lots"}, "max_bytes"),
        (2, {"key": ""}, "at least one character"),
        (2, {"version": 0}, "version"),
        (2, {"created_at": "yesterday"}, "created_at"),
        (2, {"updated_at": 10**15}, "updated_at"),
        (8, {"expires_at": 10**15}, "expires_at"),
        (2, {"kind": "thing"}, "'thing'"),
        (2, {"key": "l"}, "'l' occurs twice; remove one of the two lines"),
        (3, {"length": 4}, "4 entries, and has 3"),
        (3, {"kind": "item", "value": 1}, "no list before it"),
        (8, {"content": " "}, "not a space"),
        (8, {"id": "x"}, "id of a note"),
        (8, {"pinned": 1}, "pinned"),
        (9, {"content": "Sarah likes PostgreSQL", "session": "s"}, "in the same session; remove one of the lines"),
        (10, {"sequence": "no"}, "sequence"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_and_nothing_is_changed(driver, full, line, change, complaint):
    lines = full.read_bytes().splitlines(keepends=True)
    lines[line - 1] = json.dumps({**json.loads(lines[line - 1]), **change}).encode() + b"\n"
    full.write_bytes(b"".join(lines))
    before = contents(driver, "ns")
    for namespace, replace in (("ns", True), ("new", False)):
        with pytest.raises(InvalidInput, match=r"line \d+: ") as error:
            driver.run(export.import_namespace(namespace, full, replace))
        assert complaint in str(error.value)
        named = int(str(error.value).split(":")[0].removeprefix("line "))
        assert named in (line, line + 1, line + 4), error.value
    assert contents(driver, "ns") == before
    assert driver.run(usage.list_namespaces()) == ["ns"]
    assert driver.store.find_problems() == []


def test_a_line_that_is_not_json_is_named(driver, full):
    lines = full.read_bytes().splitlines(keepends=True)
    for bad in (b"{\n", b"[]\n", b"\xff\n", b'{"kind":"item","key":"k","value":NaN}\n'):
        full.write_bytes(b"".join([lines[0], bad, *lines[2:]]))
        with pytest.raises(InvalidInput, match="line 2: "):
            driver.run(export.import_namespace("new", full))


def test_a_namespace_with_content_is_replaced_only_with_replace(driver, full):
    driver.run(items.set_item("ns", "mine", "1"))
    with pytest.raises(Conflict, match="--replace"):
        driver.run(export.import_namespace("ns", full))
    assert driver.run(items.read_text("ns", "mine")) == "1"
    seen = driver.run(items.read_item("ns", "a")).version
    driver.run(export.import_namespace("ns", full, True))
    assert driver.run(items.list_keys("ns")) == ["a", "l", "z"]
    assert driver.run(items.read_text("ns", "l")) == '[1,"two",null]'
    assert driver.run(items.read_item("ns", "a")).version > seen, "a version never belongs to two values"
    assert driver.run(lists.append_items("ns", "l", ["4"]))[0] == 4
    again = run_once(lists.append_items("ns", "l", ["1", '"two"', "null"]), IdempotencyKey("key-1"))
    assert driver.run(again)[0] == 3, "a repeated append happens once"
    assert driver.store.find_problems() == []


def test_an_import_keeps_the_limits_that_its_namespace_has_been_given(driver, full):
    driver.run(usage.set_quota("raised", {"max_bytes": 10**8}))
    assert driver.run(usage.read_usage("ns")).max_bytes != 10**8
    driver.run(export.import_namespace("raised", full))
    assert driver.run(usage.read_usage("raised")).max_bytes == 10**8


def test_an_import_obeys_the_storage_limit_and_counts_no_writes(open_driver, full):
    driver = open_driver(quota=Quota(writes_per_day=2, max_bytes=150))
    moved, used = driver.run(export.import_namespace("new", full))
    assert (moved.keys, moved.notes, used.summary().writes_today) == (3, 2, 0)
    driver.run(usage.set_quota("small", {"max_bytes": 20}))
    lines = full.read_bytes().replace(b'"max_bytes":null', b'"max_bytes":20')
    full.write_bytes(lines)
    with pytest.raises(QuotaExceeded) as error:
        driver.run(export.import_namespace("small", full))
    assert error.value.status == 507
    assert driver.run(items.list_keys("small")) == []
    assert driver.run(notes.list_notes("small")) == []


@pytest.mark.parametrize("last", ["note", "item"])
def test_a_note_that_expires_to_make_room_during_an_import_leaves_no_words(open_driver, tmp_path, last):
    now = [NOW]
    driver = open_driver(clock=lambda: now[0])
    driver.run(items.set_item("ns", "the cellar's code", "4712"))
    driver.run(notes.remember("ns", NewNote.check("The garage code is 4711", ttl=60)))
    driver.run(notes.remember("ns", NewNote.check("The cellar code is 4712")))
    head, item, garage, cellar, end = exported(driver, tmp_path / "export").read_text().splitlines()
    now[0] += 100
    limited = head.replace('"max_bytes":null', '"max_bytes":33')
    lines = [limited, garage, cellar if last == "note" else item, end.replace('"lines":5', '"lines":4')]
    (tmp_path / "edited").write_text("\n".join(lines) + "\n")
    moved, used = driver.run(export.import_namespace("copy", tmp_path / "edited"))
    assert (moved.keys, moved.notes) == ((0, 2) if last == "note" else (1, 1))
    assert used.keys + used.notes == 1, "the note of the garage has expired"
    assert driver.store.find_problems() == []


def test_expired_items_and_notes_are_not_exported(open_driver, tmp_path):
    now = [NOW]
    driver = open_driver(clock=lambda: now[0])
    driver.run(items.set_item("ns", "over", "1", 5))
    driver.run(notes.remember("ns", NewNote.check("over, too", ttl=5)))
    driver.run(items.set_item("ns", "stays", "1", 50))
    now[0] += 6
    moved, _ = driver.run(export.import_namespace("new", exported(driver, tmp_path / "export")))
    assert moved == ("new", 1, 0)
    assert driver.run(items.read_item("new", "stays")).expires_at == (NOW + 50) * 1000


def test_a_superseded_note_is_still_superseded_after_an_import(driver, tmp_path):
    old, _ = driver.run(notes.remember("ns", NewNote.check("Sarah lives in Paris")))
    new, _ = driver.run(notes.remember("ns", NewNote.check("Sarah lives in Berlin", supersedes=[old.id])))
    driver.run(export.import_namespace("new", exported(driver, tmp_path / "export")))
    assert [note.superseded_by for note in driver.run(notes.list_notes("new"))] == [new.id, None]


def test_a_note_keeps_the_callers_id_through_an_import(driver, tmp_path):
    driver.run(notes.remember("ns", NewNote.check("the same", id="own")))
    driver.run(notes.remember("ns", NewNote.check("the same")))
    driver.run(export.import_namespace("new", exported(driver, tmp_path / "export")))
    assert driver.run(notes.list_notes("new")) == driver.run(notes.list_notes("ns"))
    assert driver.run(notes.remember("new", NewNote.check("changed", id="own")))[0].id == "own"
    assert len(driver.run(notes.list_notes("new"))) == 2


def test_the_export_of_a_namespace_that_does_not_exist_is_not_found(driver):
    with pytest.raises(NotFound, match="scrubjay namespaces"):
        driver.run(export.export_namespace("missing", print))


def test_large_values_and_long_lists_are_read_page_by_page(driver, tmp_path, monkeypatch):
    """No statement reads more than a page of bytes at once, but for a value that is larger itself."""
    monkeypatch.setattr(export, "PAGE_BYTES", 1000)
    monkeypatch.setattr(export, "PAGE_ROWS", 7)
    for i in range(20):
        driver.run(items.set_item("ns", f"k{i:02}", encode("x" * (i * 60))))
    driver.run(lists.append_items("ns", "l", [encode("y" * i) for i in range(200)]))
    for i in range(20):
        driver.run(notes.remember("ns", NewNote.check(f"note {i} " + "z" * (i * 60))))
    path = exported(driver, tmp_path / "export")
    driver.run(export.import_namespace("copy", path))
    assert contents(driver, "copy") == contents(driver, "ns")
    assert list(export._pages([(1, 600), (2, 600), (3, 10), (4, 5000), (5, 1)])) == [(1, 1), (2, 3), (4, 4), (5, 5)]
