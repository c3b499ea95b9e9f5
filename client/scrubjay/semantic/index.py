"""The semantic index: nearest notes by the vectors of an embedding model, and the thread that embeds new notes.

`remember` only queues a note: the lexical index finds it at once, the semantic index when the thread has embedded it.
Notes that a process has not embedded when it ends, or when its model is unreachable, are embedded by the next process
that opens the store.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeVar

from scrubjay.errors import Unavailable, pluralize
from scrubjay.fork_safety import ForkSafe
from scrubjay.recall.query import find_questions, split_passages
from scrubjay.recall.ranking import UNRELATED_COSINE
from scrubjay.semantic.embedding import MAX_QUERY_TEXTS, Embedder, StillLoading, VectorMatrix, open_embedder
from scrubjay.store import vectors
from scrubjay.store.engine import Store
from scrubjay.validation import RecallQuery

T = TypeVar("T")

_log = logging.getLogger("scrubjay")

BATCH = 32
"""Notes that are embedded at once."""
CATCH_UP_SECONDS = 1.0
"""Seconds until notes without a vector are looked for: after a script that only sets a value has ended."""
RETRY_SECONDS = 60
"""Seconds for which a model that could not be reached is not tried again."""
LOAD_SECONDS = 5.0
"""Seconds that a recall waits for a model that is being loaded; then the lexical index answers alone."""
MAX_COSINES = 1000
"""Notes whose cosine is known to ranking: it needs those of the lexical candidates too, and filters may drop most."""
MAX_CACHED_BYTES = 256 * 2**20
"""Bytes of vectors that are cached, 300,000 to 600,000 of MiniLM's; one larger namespace is cached alone."""


class CachedVectors(NamedTuple):
    """The vectors of a namespace, as they were when their fingerprint was read."""

    fingerprint: vectors.Fingerprint | None
    matrix: VectorMatrix
    speakers: frozenset[int]
    """The terms of the names of all speakers."""


NOT_CACHED = CachedVectors(None, VectorMatrix(), frozenset())


class SemanticIndex(ForkSafe):
    """The vectors of a store's notes, of one model."""

    def __init__(self, store: Store, choice: str, key: str | None = None) -> None:
        self._store = store
        self._choice = choice
        self._key = key
        self._retry_at = 0.0
        self._load_seconds = LOAD_SECONDS
        self.reset()
        self.register_at_fork()

    def reset(self) -> None:
        self._queue: deque[tuple[str, int]] = deque()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._cache: dict[str, CachedVectors] = {}  # least recently used first
        self._cached_bytes = 0
        self._is_working = False
        self._has_failed = False

    @property
    def embedder(self) -> Embedder:
        """The model, which is loaded when first needed."""
        return open_embedder(self._choice, key=self._key)

    def nearest(self, namespace: str, query: RecallQuery) -> Mapping[int, float]:
        """The notes nearest to a query with their cosines, greatest first; empty while the model is unreachable."""
        if not query.query.strip() or time.monotonic() < self._retry_at:
            return {}
        try:
            embedder = open_embedder(self._choice, self._load_seconds, self._key)
            cached = self._read(namespace, embedder.name)
            if not cached.matrix:
                return {}
            cipher = self._store.cipher
            texts = [vectors.without_names(cipher, text, cached.speakers) for text in _query_texts(query.query)]
            familiarity = max(map(embedder.familiarity, texts))
            if not familiarity:
                return {}
            embedded = embedder.embed(texts)
        except StillLoading:
            self._load_seconds = 0.0  # the next recall does not wait as well
            return {}
        except Unavailable as error:
            _log.warning("recall without the semantic index for %d s: %s", RETRY_SECONDS, error)
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return {}
        found = cached.matrix.nearest(embedded, MAX_COSINES)
        return {note: UNRELATED_COSINE + familiarity * (cosine - UNRELATED_COSINE) for note, cosine in found.items()}

    def _read(self, namespace: str, model: str) -> CachedVectors:
        """All vectors of a namespace; only those that are not cached are read from the store."""
        with self._reading:  # a matrix grows in place
            cached = self._cache.get(namespace, NOT_CACHED)
            changes = self._store.run(vectors.read_changes(namespace, model, cached.fingerprint, cached.matrix.marks))
            if changes is not None:
                matrix = cached.matrix.update(changes.marks, changes.new)
                known = cached.speakers if changes.marks is None else frozenset()
                cached = CachedVectors(changes.fingerprint, matrix, known | changes.speakers)
            with self._lock:
                self._put(namespace, cached)
        return cached

    def _put(self, namespace: str, cached: CachedVectors) -> None:
        """Cache the vectors, and drop those of the least recently used namespaces to make room."""
        self._cached_bytes -= self._cache.pop(namespace, NOT_CACHED).matrix.size_bytes
        if cached.matrix:
            self._cache[namespace] = cached
            self._cached_bytes += cached.matrix.size_bytes
        while len(self._cache) > 1 and self._cached_bytes > MAX_CACHED_BYTES:
            self._cached_bytes -= self._cache.pop(next(iter(self._cache))).matrix.size_bytes

    def add(self, namespace: str, number: str) -> None:
        """Queue a note to be embedded, before those that other processes left; never waits."""
        with self._lock:
            self._queue.appendleft((namespace, int(number)))
            if not self._is_working:
                self._is_working = True
                _in_background(self._work)

    def catch_up(self) -> None:
        """Queue the notes that have no vector, after CATCH_UP_SECONDS; never waits."""
        _in_background(self._catch_up)

    def reindex(self) -> Iterator[tuple[int, int]]:
        """Embed every note that has no vector of this model; after each batch how many are done, and of how many."""
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
            self._queue_unindexed()
        except Unavailable:
            return  # the store has been closed
        with self._lock:
            if self._is_working or not self._queue:
                return
            self._is_working = True
        self._work()

    def _queue_unindexed(self) -> None:
        """In random order, so that several processes that do this at once embed different notes."""
        batches = list(_batches(self._store.run(vectors.list_unindexed(None))))
        random.shuffle(batches)
        self._queue.extend(itertools.chain.from_iterable(batches))

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                for namespace, group in itertools.groupby(sorted(batch), key=itemgetter(0)):
                    self._index(namespace, [note for _, note in group])
                if self._has_failed:
                    self._has_failed = False
                    self._queue_unindexed()
            except Exception as error:  # noqa: BLE001 - models raise errors of many types; the thread goes on
                # The notes are in the store, where the next success or the next process to open it finds them.
                count = len(batch) + len(self._queue)
                self._queue.clear()
                self._has_failed = True
                waiting = pluralize(count, "note")
                _log.warning(
                    "%s will be embedded when the model answers or the store is opened again: %s", waiting, error
                )

    def _next_batch(self) -> list[tuple[str, int]]:
        with self._lock:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH))]
            self._is_working = bool(batch)
            return batch

    def _index(self, namespace: str, ids: list[int]) -> None:
        texts = self._store.run(vectors.read_texts(namespace, ids, self.embedder.name))
        if not texts:
            return
        embedded = self.embedder.embed([each.text for each in texts])
        new = [(each.note, vector) for each, vector in zip(texts, embedded, strict=True)]
        contents = {each.note: each.content for each in texts}  # it may have been replaced since
        self._store.run(vectors.add_vectors(namespace, self.embedder.name, new, contents))


def _query_texts(query: str) -> Sequence[str]:
    """The passages of a query that are embedded: its questions, or all if it asks none; at most a few."""
    passages = split_passages(query)
    questions = find_questions(passages)
    return [text for number, text in enumerate(passages) if number in questions or not questions][:MAX_QUERY_TEXTS]


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="scrubjay-semantic", daemon=True).start()


def _batches(notes: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(notes), BATCH):
        yield notes[start : start + BATCH]
