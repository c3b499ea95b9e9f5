"""Erasable blobs: after any sequence of calls, the file has only the data of blobs in use."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from scrubjay.store import erasable, items
from scrubjay.store.operation import ERASE, operation
from scrubjay.store.sqlite import SqliteStore

SIZES = st.sampled_from([1, 5, 40, 300, 390, 1_000, 5_000]) | st.integers(1, 900)


@operation("test", ERASE)
def run(_context, steps):
    return (yield from steps)


class Blobs(RuleBasedStateMachine):
    """Every text repeats a number of its own, so that any part of it that is left can be recognised."""

    stored = Bundle("stored")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = SqliteStore(Path(self.folder.name) / "db", durability="fast")
        self.texts: dict[int, bytes] = {}
        self.count = 0

    def text(self, times: int) -> bytes:
        self.count += 1
        return b"<%06d>" % self.count * times

    @rule(target=stored, times=SIZES)
    def store_text(self, times):
        text = self.text(times)
        blob_id = self.store.run(run(erasable.store(text)))
        assert blob_id not in self.texts
        self.texts[blob_id] = text
        return blob_id

    @rule(blob_id=consumes(stored), times=SIZES, target=stored)
    def replace(self, blob_id, times):
        del self.texts[blob_id]
        text = self.text(times)
        blob_id = self.store.run(run(erasable.replace(blob_id, text)))
        assert blob_id not in self.texts
        self.texts[blob_id] = text
        return blob_id

    @rule(blob_id=consumes(stored))
    def erase(self, blob_id):
        del self.texts[blob_id]
        self.store.run(run(erasable.erase([blob_id])))

    @rule(blob_ids=st.lists(consumes(stored), max_size=9))
    def erase_some(self, blob_ids):
        for blob_id in blob_ids:
            del self.texts[blob_id]
        self.store.run(run(erasable.erase(blob_ids)))

    @rule(count=st.integers(1, 60), size=st.integers(0, 3000))
    def write_other_data(self, count, size):
        self.store.run(items.update_items("ns", {f"k{i}": f'"{"x" * size}"' for i in range(count)}))

    @rule()
    def compact(self):
        self.store.compact()

    @rule()
    def rebuild_without_vacuum(self):
        self.store.run(erasable.rebuild())
        connection = self.store.take()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self.store.put_back(connection)

    @invariant()
    def only_data_in_use_is_on_disk(self):
        on_disk = b"".join(part.read_bytes() for part in Path(self.folder.name).iterdir())
        assert set(re.findall(rb"<\d{6}>", on_disk)) == {text[:8] for text in self.texts.values()}
        connection = self.store.take()
        rows = connection.execute("SELECT id, data FROM erasable_blobs WHERE is_free = 0").fetchall()
        self.store.put_back(connection)
        assert {blob_id: erasable.data_of(blob) for blob_id, blob in rows} == self.texts

    def teardown(self):
        self.store.close()
        with contextlib.suppress(OSError):
            self.folder.cleanup()


Blobs.TestCase.settings = settings(max_examples=30, stateful_step_count=40)
TestBlobs = Blobs.TestCase
