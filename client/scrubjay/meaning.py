"""Recall by meaning: the model, and the thread that shows it new notes.

`remember` only puts a note in line; words find it at once, and its meaning as soon as the thread got to it.
What a process leaves undone, because it ended or its model was away, the next one to open the store picks up.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple, TypeVar

from .drafts import Question
from .errors import Unavailable
from .forks import Forkable
from .names import counted
from .recall.embedding import Embedder, Known, StillLoading, open_embedder
from .recall.ranking import NEAREST
from .store import vectors
from .store.sqlite import SqliteStore

T = TypeVar("T")

_log = logging.getLogger("scrubjay")

BATCH = 32
"""Notes that the model is shown at once."""
CATCH_UP_SECONDS = 1.0
"""When the thread looks for what others left undone: after a script that only sets a value has ended."""
AWAY_SECONDS = 60
"""How long a model that could not be reached is left alone."""
LOAD_SECONDS = 5.0
"""How long a recall waits for a model that is being loaded or downloaded; then words answer alone."""
NEAREST_OF_SOME = 1000
"""Notes that meaning puts forward where only some may answer."""
MAX_SEEN_BYTES = 256 * 2**20
"""Vectors that are kept in memory, but for those of one namespace that has more: 170,000 of MiniLM's."""


class Seen(NamedTuple):
    """What was read of a namespace's vectors."""

    stamp: vectors.Stamp | None
    known: Known
    people: frozenset[int]


NOTHING_SEEN = Seen(None, Known(), frozenset())


class Meaning(Forkable):
    """A store as a model understands it."""

    def __init__(self, store: SqliteStore, choice: str) -> None:
        self._store = store
        self._choice = choice
        self._away_until = 0.0
        self._load_seconds = LOAD_SECONDS
        self.start_anew()
        self.watch_forks()

    def start_anew(self) -> None:
        self._waiting: deque[tuple[str, int]] = deque()
        self._lock = threading.Lock()
        self._seen: dict[str, Seen] = {}  # last used last
        self._seen_bytes = 0
        self._is_working = False
        self._is_behind = False

    @property
    def embedder(self) -> Embedder:
        """Loaded when first asked for, which takes a moment."""
        return open_embedder(self._choice)

    def similar(self, namespace: str, question: Question) -> Mapping[int, float]:
        """Which notes mean something like the query, and how much; none while the model cannot be reached."""
        query = question.query
        if not query.strip() or time.monotonic() < self._away_until:
            return {}
        try:
            embedder = open_embedder(self._choice, self._load_seconds)
            seen = self._look(namespace, embedder.name)
            if not seen.known:
                return {}
            shown = vectors.without_names(self._store.context().cipher, query, seen.people)
            vector = embedder.embed([shown])[0]
        except StillLoading:
            self._load_seconds = 0.0  # the next one does not wait as well
            return {}
        except Unavailable as error:
            _log.warning("recall by words alone for %d s: %s", AWAY_SECONDS, error)
            self._away_until = time.monotonic() + AWAY_SECONDS
            return {}
        return seen.known.nearest(vector, NEAREST if question.is_open else NEAREST_OF_SOME)

    def _look(self, namespace: str, model: str) -> Seen:
        """All vectors of a namespace; those that were read before are kept in memory, as long as there is room."""
        seen = self._seen.get(namespace, NOTHING_SEEN)
        changes = self._store.run(vectors.read_changes(namespace, model, seen.stamp, seen.known.marks))
        if changes is not None:
            seen = Seen(changes.stamp, seen.known.changed(changes.there, changes.new), frozenset(changes.people))
        with self._lock:
            self._keep(namespace, seen)
        return seen

    def _keep(self, namespace: str, seen: Seen) -> None:
        """As what was used last; what was not used for longest makes room."""
        self._seen_bytes -= self._seen.pop(namespace, NOTHING_SEEN).known.size
        if seen.known:
            self._seen[namespace] = seen
            self._seen_bytes += seen.known.size
        while len(self._seen) > 1 and self._seen_bytes > MAX_SEEN_BYTES:
            self._seen_bytes -= self._seen.pop(next(iter(self._seen))).known.size

    def add(self, namespace: str, note_id: str) -> None:
        """Put a note in line for the model, before those that others left; never waits."""
        with self._lock:
            self._waiting.appendleft((namespace, int(note_id)))
            if not self._is_working:
                self._is_working = True
                _in_background(self._work)

    def catch_up(self) -> None:
        """Have the notes that no model has seen yet put in line, in a moment; never waits."""
        _in_background(self._catch_up)

    def reindex(self) -> Iterator[tuple[int, int]]:
        """Show the model every note that it has not seen; after each batch how many are done, and of how many."""
        missing = self._store.run(vectors.list_unindexed(self.embedder.name))
        done = 0
        for namespace, group in itertools.groupby(missing, key=itemgetter(0)):
            for batch in _batches([note for _, note in group]):
                self._index(namespace, batch)
                done += len(batch)
                yield done, len(missing)

    def _catch_up(self) -> None:
        time.sleep(CATCH_UP_SECONDS)
        try:
            self._find_unseen()
        except Unavailable:
            return  # the store is closed again
        with self._lock:
            if self._is_working or not self._waiting:
                return
            self._is_working = True
        self._work()

    def _find_unseen(self) -> None:
        """In no order: several processes that do this at once then see different notes."""
        batches = list(_batches(self._store.run(vectors.list_unindexed(None))))
        random.shuffle(batches)
        self._waiting.extend(itertools.chain.from_iterable(batches))

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                for namespace, group in itertools.groupby(sorted(batch), key=itemgetter(0)):
                    self._index(namespace, [note for _, note in group])
                if self._is_behind:
                    self._is_behind = False
                    self._find_unseen()
            except Exception as error:  # noqa: BLE001 - a model may fail in any way; the next notes still want one
                # They are in the store, where the next success or the next to open it finds them; words do meanwhile.
                count = len(batch) + len(self._waiting)
                self._waiting.clear()
                self._is_behind = True
                unseen = counted(count, "note")
                _log.warning("the model sees %s once it answers, or when the store is opened again: %s", unseen, error)

    def _next_batch(self) -> list[tuple[str, int]]:
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]
            self._is_working = bool(batch)
            return batch

    def _index(self, namespace: str, ids: list[int]) -> None:
        texts = self._store.run(vectors.read_texts(namespace, ids, self.embedder.name))
        if not texts:
            return
        found = self.embedder.embed([text for _, text in texts])
        made = [(note, vector) for (note, _), vector in zip(texts, found, strict=True)]
        self._store.run(vectors.add_vectors(namespace, self.embedder.name, made))


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="scrubjay-meaning", daemon=True).start()


def _batches(notes: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(notes), BATCH):
        yield notes[start : start + BATCH]
