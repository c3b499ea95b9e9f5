"""Erasing for good: nothing of it is left in any table, nor in the bytes of the files."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from harness import clean_environment
from scrubjay.drafts import Draft
from scrubjay.errors import Unavailable
from scrubjay.store import apikeys, erasure, items, lists, notes, quotas, sqlite, vectors
from scrubjay.store.deliveries import Delivery, once
from scrubjay.store.sqlite import SqliteStore
from scrubjay.values import encode


def secret(rng: random.Random, length: int = 40) -> str:
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))


def fill(store: SqliteStore, namespace: str, seed: int) -> list[bytes]:
    """Something of everything; and the texts of it that nothing else has."""
    rng, texts = random.Random(seed), []
    for i in range(60):
        text = secret(rng, rng.choice([20, 200, 9000]))
        store.run(items.set_item(namespace, f"key-{secret(rng, 16)}", encode(text)))
        store.run(
            once(
                lists.append_items(namespace, "list", [encode(secret(rng))]), namespace, Delivery(f"once-{secret(rng)}")
            )
        )
        note = f"{secret(rng)} {secret(rng)}"
        kept, _ = store.run(
            notes.remember(namespace, Draft.check(note, session=secret(rng), metadata={"a": text[:20]}))
        )
        store.run(vectors.add_vectors(namespace, "model", [(int(kept.id), rng.randbytes(64))]))
        texts.append(text[:100].encode())
        if i % 3 == 0:
            store.run(items.set_item(namespace, "churn", encode(secret(rng, 3000))))
            store.run(notes.forget(namespace, kept.id))
        else:
            texts.append(note.encode())
    return texts


def on_disk(store: SqliteStore) -> bytes:
    return b"".join(part.read_bytes() for part in sorted(store.path.parent.iterdir()))


@pytest.fixture
def store(tmp_path):
    opened = SqliteStore(tmp_path / "db", durability="fast")
    yield opened
    opened.close()


def test_nothing_of_an_erased_namespace_is_left(store):
    texts = fill(store, "alice", 1)
    others = fill(store, "bob", 2)
    before = on_disk(store)
    assert all(text in before for text in (*texts, *others))
    erased = erasure.erase(store, "alice")
    assert erased.traces == []
    assert erased.pieces > 200
    assert set(erased.rows) == {
        "changes", "deliveries", "items", "list_items", "namespaces", "note_vectors", "note_words", "notes",
    }  # fmt: skip
    left = on_disk(store)
    assert not [text for text in texts if text in left]
    assert all(text in left for text in others)
    assert store.run(quotas.list_namespaces()) == ["bob"]
    assert store.find_faults() == []
    assert erasure.erase(store, "alice").rows == {}, "erasing again finds nothing"


def test_tables_to_come_are_erased_as_well(store):
    connection = store.take()
    connection.executescript("""CREATE TABLE later (at INTEGER PRIMARY KEY, namespace TEXT NOT NULL, what TEXT);
    CREATE TRIGGER noted AFTER DELETE ON items BEGIN
    INSERT INTO later (namespace, what) VALUES (old.namespace, 'deleted ' || old.key); END""")
    connection.execute("INSERT INTO later (namespace, what) VALUES ('alice', 'set something long enough to be found')")
    store.put_back(connection)
    store.run(items.set_item("alice", "a-key-that-is-distinctive", "1"))
    erased = erasure.erase(store, "alice")
    assert erased.rows["later"] == 2
    assert erased.traces == []
    assert b"distinctive" not in on_disk(store)


def test_what_others_hold_too_is_no_false_alarm(store):
    text = encode("the very same long sentence in two namespaces")
    for namespace in ("alice", "malice", "bob"):
        store.run(items.set_item(namespace, "sentence", text))
        store.run(items.set_item(namespace, "short", "true"))
    store.run(apikeys.issue("abc", "sj_abc_x", "for alice", ("alice", "a-namespace-with-a-long-name"), False, False))
    store.run(items.set_item("a-namespace-with-a-long-name", "k", "1"))
    erased = erasure.erase(store, "alice")
    assert erased.traces == []
    assert erased.shared >= 1
    assert erasure.erase(store, "a-namespace-with-a-long-name").traces == []
    assert store.run(items.read_text("bob", "sentence")) == text


@pytest.mark.parametrize("alignment", range(9))
def test_a_trace_is_found_wherever_it_lies(store, monkeypatch, alignment):
    """What VACUUM would remove is put back by hand: the search must see it, in any file, at any byte."""
    store.run(items.set_item("alice", "diary", encode("met Sarah")))
    real = store.compact

    def leave_a_trace() -> None:
        real()
        with Path(f"{store.path}-journal").open("wb") as file:
            file.write(b"\0" * (2**20 - 20 + alignment) + b'xalicediary"met Sarah"y')

    monkeypatch.setattr(store, "compact", leave_a_trace)
    erased = erasure.erase(store, "alice")
    assert len(erased.traces) == 1
    assert "-journal at byte 1,048," in erased.traces[0]


def test_any_whole_piece_is_met_and_nothing_else(tmp_path):
    rng = random.Random(5)
    pieces = [rng.randbytes(rng.randrange(erasure.LEAST_BYTES, erasure.PIECE_BYTES + 1)) for _ in range(300)]
    search = erasure.Search(pieces)
    assert len(search.pieces) == 300
    there = rng.sample(range(300), 100)
    noise = bytearray(rng.randbytes(3 * 2**20))
    for n, number in enumerate(there):
        at = n * 31_001
        noise[at : at + len(pieces[number])] = pieces[number]
    (tmp_path / "file").write_bytes(noise)
    met = dict(search.look_through(tmp_path / "file"))
    assert met == {number: n * 31_001 for n, number in enumerate(there)}
    alike = erasure.Search([b'{"role":"user","content":"' + bytes([65 + i]) for i in range(26)])
    assert alike.pieces == [], "what all have in common tells nothing of any"


def test_the_pieces_of_a_large_namespace_are_drawn_by_lot(monkeypatch):
    monkeypatch.setattr(erasure, "MAX_PIECES", 10)
    drawn = erasure.draw(b"%015d" % i for i in range(1000))
    assert len(drawn) == 10
    assert drawn != [b"%015d" % i for i in range(10)]


READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM items").fetchone()
print("reading", flush=True)
sys.stdin.read()
"""


def test_a_reader_that_never_ends_is_told_and_the_next_try_finishes(store, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    texts = fill(store, "alice", 3)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(store.path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment(),
    )  # fmt: skip
    assert reader.stdout.readline() == b"reading\n"
    try:
        with pytest.raises(Unavailable, match=r"deleted, but their old pages may remain: another process"):
            erasure.erase(store, "alice")
    finally:
        reader.communicate(timeout=30)
    assert erasure.erase(store, "alice").traces == []
    left = on_disk(store)
    assert not [text for text in texts if text in left]
