"""Drawers: whatever is put in, changed and erased, only what is held lies in the file."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from scrubjay.store import drawers, items
from scrubjay.store.operation import ERASE, operation
from scrubjay.store.sqlite import SqliteStore

SIZES = st.sampled_from([1, 5, 40, 300, 390, 1_000, 5_000]) | st.integers(1, 900)


@operation(ERASE)
def run(_context, steps):
    return (yield from steps)


class Drawers(RuleBasedStateMachine):
    """Every text is a name of its own, over and over, so that a single leftover piece tells whose it is."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = SqliteStore(Path(self.folder.name) / "db", durability="fast")
        self.texts: dict[int, bytes] = {}
        self.count = 0

    def text(self, times: int) -> bytes:
        self.count += 1
        return b"<%06d>" % self.count * times

    @rule(target=held, times=SIZES)
    def keep(self, times):
        text = self.text(times)
        drawer = self.store.run(run(drawers.keep(text)))
        assert drawer not in self.texts
        self.texts[drawer] = text
        return drawer

    @rule(drawer=consumes(held), times=SIZES, target=held)
    def replace(self, drawer, times):
        del self.texts[drawer]
        text = self.text(times)
        drawer = self.store.run(run(drawers.replace(drawer, text)))
        assert drawer not in self.texts
        self.texts[drawer] = text
        return drawer

    @rule(drawer=consumes(held))
    def erase(self, drawer):
        del self.texts[drawer]
        self.store.run(run(drawers.erase([drawer])))

    @rule(drawers_=st.lists(consumes(held), max_size=9))
    def erase_some(self, drawers_):
        for drawer in drawers_:
            del self.texts[drawer]
        self.store.run(run(drawers.erase(drawers_)))

    @rule(count=st.integers(1, 60), size=st.integers(0, 3000))
    def use_the_rest_of_the_file(self, count, size):
        self.store.run(items.update_items("ns", {f"k{i}": f'"{"x" * size}"' for i in range(count)}))

    @rule()
    def compact(self):
        self.store.compact()

    @rule()
    def compact_and_be_killed_half_way(self):
        self.store.run(drawers.renew())
        connection = self.store.take()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self.store.put_back(connection)

    @invariant()
    def only_what_is_held_is_there(self):
        on_disk = b"".join(part.read_bytes() for part in Path(self.folder.name).iterdir())
        assert set(re.findall(rb"<\d{6}>", on_disk)) == {text[:8] for text in self.texts.values()}
        connection = self.store.take()
        rows = connection.execute("SELECT drawer, held FROM drawers WHERE is_free = 0").fetchall()
        self.store.put_back(connection)
        assert {drawer: drawers.data_of(held) for drawer, held in rows} == self.texts

    def teardown(self):
        self.store.close()
        with contextlib.suppress(OSError):
            self.folder.cleanup()


Drawers.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDrawers = Drawers.TestCase
