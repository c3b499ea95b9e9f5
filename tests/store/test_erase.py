"""Erasure: no data of a namespace is left in any table, nor in the bytes of the files."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness import clean_environment
from scrubjay.errors import Unavailable
from scrubjay.exact_json import encode
from scrubjay.store import api_keys, changes, items, lists, notes, usage, vectors
from scrubjay.store.idempotency import IdempotencyKey, run_once
from scrubjay.store.operation import Actor
from scrubjay.store.sqlite import SqliteStore, erase, maintenance
from scrubjay.validation import NewNote


def secret(rng: random.Random, length: int = 40) -> str:
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))


def fill(store: SqliteStore, namespace: str, seed: int) -> list[bytes]:
    """Store every kind of data; returns its unique texts."""
    rng, texts = random.Random(seed), []
    for i in range(60):
        text = secret(rng, rng.choice([20, 200, 9000]))
        store.run(items.set_item(namespace, f"key-{secret(rng, 16)}", encode(text)))
        store.run(
            run_once(
                lists.append_items(namespace, "list", [encode(secret(rng))]),
                IdempotencyKey(f"once-{secret(rng)}"),
            )
        )
        note = f"{secret(rng)} {secret(rng)}"
        kept, _ = store.run(
            notes.remember(namespace, NewNote.check(note, session=secret(rng), metadata={"a": text[:20]}))
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


def test_no_data_of_an_erased_namespace_is_left(store):
    texts = fill(store, "alice", 1)
    others = fill(store, "bob", 2)
    before = on_disk(store)
    assert all(text in before for text in (*texts, *others))
    erased = erase.erase(store, "alice")
    assert erased.traces == []
    assert erased.samples > 200
    assert set(erased.rows) == {
        "changes", "idempotency_keys", "items", "list_items", "namespaces", "note_vectors", "note_words", "notes",
    }  # fmt: skip
    left = on_disk(store)
    assert not [text for text in texts if text in left]
    assert all(text in left for text in others)
    assert store.run(usage.list_namespaces()) == ["bob"]
    assert store.find_problems() == []
    assert erase.erase(store, "alice").rows == {}, "erasing again finds nothing"


def test_the_name_of_a_forgotten_key_is_in_no_byte_of_the_files(store):
    name = "a-person-with-a-long-name"
    issued = store.run(api_keys.issue(f"key of {name}", (name,), False, False, {}, True))
    actor = Actor(issued.apikey.name, issued.apikey.id)
    for operation in (
        items.set_item(name, "k", "1"),
        items.set_item("shared", "k", "1"),
        changes.refuse(changes.Refusal("set", "other", "", "forbidden")),
    ):
        operation.actor = actor
        store.run(operation)
    (key,) = erase.erase(store, name).keys
    assert key["id"] == issued.apikey.id
    store.run(api_keys.revoke(key["id"], True))
    assert erase.erase(store, name).keys == []
    assert name.encode() not in on_disk(store)


def test_tables_of_later_versions_are_erased_as_well(store):
    connection = store.take()
    connection.executescript("""CREATE TABLE later (at INTEGER PRIMARY KEY, namespace TEXT NOT NULL, what TEXT);
    CREATE TRIGGER noted AFTER DELETE ON items BEGIN
    INSERT INTO later (namespace, what) VALUES (old.namespace, 'deleted ' || old.key); END""")
    connection.execute("INSERT INTO later (namespace, what) VALUES ('alice', 'set something long enough to be found')")
    store.put_back(connection)
    store.run(items.set_item("alice", "a-key-that-is-distinctive", "1"))
    erased = erase.erase(store, "alice")
    assert erased.rows["later"] == 2
    assert erased.traces == []
    assert b"distinctive" not in on_disk(store)


def test_text_that_another_namespace_has_too_is_not_a_trace(store):
    text = encode("the very same long sentence in two namespaces")
    for namespace in ("alice", "malice", "bob"):
        store.run(items.set_item(namespace, "sentence", text))
        store.run(items.set_item(namespace, "short", "true"))
    store.run(api_keys.issue("for alice", ("alice", "a-namespace-with-a-long-name"), False, False))
    store.run(items.set_item("a-namespace-with-a-long-name", "k", "1"))
    erased = erase.erase(store, "alice")
    assert erased.traces == []
    assert erased.shared >= 1
    assert erase.erase(store, "a-namespace-with-a-long-name").traces == []
    assert store.run(items.read_text("bob", "sentence")) == text


@pytest.mark.parametrize("alignment", range(9))
def test_a_trace_is_found_at_any_byte_of_any_file(store, monkeypatch, alignment):
    """A trace that VACUUM would have removed is written by hand: the search must find it at any byte."""
    store.run(items.set_item("alice", "diary", encode("met Sarah")))
    real = store.compact

    def leave_a_trace() -> None:
        real()
        with Path(f"{store.path}-journal").open("wb") as file:
            file.write(b"\0" * (2**20 - 20 + alignment) + b'xalicediary"met Sarah"y')

    monkeypatch.setattr(store, "compact", leave_a_trace)
    erased = erase.erase(store, "alice")
    assert len(erased.traces) == 1
    assert "-journal at byte 1,048," in erased.traces[0]


def test_every_sample_in_a_file_is_found_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(erase, "BLOCK_BYTES", 4096)
    rng = random.Random(5)
    samples = [rng.randbytes(rng.randrange(erase.MIN_SAMPLE_BYTES, erase.SAMPLE_BYTES + 1)) for _ in range(300)]
    present = rng.sample(samples, 100)
    noise = bytearray(rng.randbytes(2**20))
    for n, sample in enumerate(present):
        noise[n * 4091 : n * 4091 + len(sample)] = sample
    (tmp_path / "file").write_bytes(noise)
    found = dict(erase.find_samples(tmp_path / "file", samples))
    assert found == {sample: n * 4091 for n, sample in enumerate(present)}


def test_the_samples_of_a_large_namespace_are_drawn_at_random(store, monkeypatch):
    monkeypatch.setattr(erase, "MAX_SAMPLES", 10)
    store.run(items.update_items("alice", {f"key-{i:03}": encode(f"value-{i:012}") for i in range(200)}))
    connection = store.take()
    one, two = (erase.draw_samples(connection, "alice") for _ in range(2))
    store.put_back(connection)
    assert len(one) == len(two) == 10
    assert set(one) != set(two)


READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM items").fetchone()
print("reading", flush=True)
sys.stdin.read()
"""


def test_an_erasure_during_a_long_read_is_unavailable_and_the_next_one_completes(store, monkeypatch):
    monkeypatch.setattr(maintenance, "BUSY_SECONDS", 0.2)
    texts = fill(store, "alice", 3)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(store.path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment(),
    )  # fmt: skip
    assert reader.stdout.readline() == b"reading\n"
    try:
        with pytest.raises(Unavailable, match=r"deleted, but their old pages may remain: another process"):
            erase.erase(store, "alice")
    finally:
        reader.communicate(timeout=30)
    assert erase.erase(store, "alice").traces == []
    left = on_disk(store)
    assert not [text for text in texts if text in left]


def test_erasures_at_the_same_time_wait_for_each_other(store):
    names = [f"person-{number}" for number in range(6)]
    for name in names:
        store.run(items.set_item(name, "diary", encode(f"{name} met Sarah at the harbour")))
    with ThreadPoolExecutor(len(names)) as threads:
        erased = list(threads.map(lambda name: erase.erase(store, name), names))
    assert [each.traces for each in erased] == [[]] * len(names)
    assert [each.rows["items"] for each in erased] == [1] * len(names)
