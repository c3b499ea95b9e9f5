"""Notes: texts that are recalled by their content."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from scrubjay.errors import Conflict, NotFound, repr_short
from scrubjay.exact_json import decode, encode
from scrubjay.models import Note, to_time
from scrubjay.recall.query import MAX_QUERY_CHARS, QueryTerms, analyze, split_passages, widen
from scrubjay.recall.ranking import (
    MAX_NEAREST,
    MIN_COSINE,
    Candidate,
    Evidence,
    SessionNeighbours,
    explain,
    fuse,
    limit_scores,
    rank,
    rank_by_confidence,
    similarities,
)
from scrubjay.store import erasable
from scrubjay.store.candidates import Candidates, Filters, weigh_terms
from scrubjay.store.encryption import Cipher
from scrubjay.store.expiry import charge, is_expired
from scrubjay.store.items import clear_into, clear_prefix
from scrubjay.store.note_rows import (
    Row,
    content_digest,
    erase_note,
    erase_vector,
    hash_label,
    hash_words,
    own_id_digest,
)
from scrubjay.store.operation import (
    ERASE,
    IDS_PER_SECOND,
    READ,
    SNAPSHOT,
    WRITE,
    Context,
    Operation,
    Replay,
    Rows,
    SlowQuery,
    Statements,
    operation,
)
from scrubjay.store.usage import NamespaceUsage, open_namespace
from scrubjay.store.word_index import NoteTerms, add_terms, remove_terms, space_of
from scrubjay.validation import MAX_NOTES_PAGE, NewNote, RecallQuery

SLOW_CHARS = 300
"""Characters of content and metadata from which indexing takes longer than a server's event loop may wait."""
MAX_LABELS = 1000
"""Different types, tags or sessions in one list: more than a person looks through."""
_BLOB_FIELDS = ("content", "type", "tags", "session", "metadata", "term_count")
"""The fields of a row that are in its blob and may change."""
_NO_NEAREST: Mapping[int, float] = {}


class SessionSummary(NamedTuple):
    """A session that has notes: how many, and when the first was created and the last updated."""

    name: str
    notes: int
    created_at: datetime
    updated_at: datetime


class LabelCount(NamedTuple):
    """A type, a tag or a session, and how many notes have it."""

    label: str
    notes: int


@operation("read_note", READ)
def read_note(context: Context, namespace: str, note_id: str) -> Statements[Note]:
    numbers = yield from _find_numbers(context.cipher, namespace, note_id)
    rows = yield "read_notes", (namespace, json.dumps(numbers))
    row = Row.read(context.cipher, namespace, rows[0]) if rows else None
    if row is None or is_expired(row.expires_at, context.now):
        raise NotFound(
            f"there is no note {repr_short(note_id)}: it was forgotten or has expired; to store it again, remember it"
            " under a new idempotency key"
        )
    return row.to_note()


def _is_slow(_namespace: str, note: NewNote) -> bool:
    return len(note.content) + (len(encode(note.metadata)) if note.metadata else 0) >= SLOW_CHARS


_REPLAY = Replay(
    content=lambda _namespace, note: note._replace(ttl=note.ttl and 0),
    summarize=lambda note: note.cursor,
    reload=read_note,
)


def remember(namespace: str, note: NewNote) -> Operation[tuple[Note, NamespaceUsage]]:
    """Store a note, or refresh the one with the same content and session, or replace the one with the same id; the
    note, and the namespace's usage.
    """
    return _remember(namespace, note) if note.id is None else _remember_under_id(namespace, note)


@operation("remember", WRITE, is_slow=_is_slow, replay=_REPLAY)
def _remember(context: Context, namespace: str, note: NewNote) -> Statements[tuple[Note, NamespaceUsage]]:
    usage = yield from open_namespace(context, namespace)
    rows = yield "find_note", (namespace, content_digest(context.cipher, note.content, note.session))
    found = yield from _read_live(context, usage, rows)
    row = yield from (_refresh(context, usage, note, found) if found else _insert(context, usage, note))
    return (yield from _save(context, usage, note, row))


@operation("remember", ERASE, replay=_REPLAY)
def _remember_under_id(context: Context, namespace: str, note: NewNote) -> Statements[tuple[Note, NamespaceUsage]]:
    """The same for a note with an id: an erasure, because the text that it replaces must not be found any more."""
    usage = yield from open_namespace(context, namespace)
    numbers = yield from _find_numbers(context.cipher, namespace, note.id or "")
    rows = yield "read_notes", (namespace, json.dumps(numbers))
    found = yield from _read_live(context, usage, rows)
    row = yield from (_replace(context, usage, note, found) if found else _insert(context, usage, note))
    return (yield from _save(context, usage, note, row))


def _read_live(context: Context, usage: NamespaceUsage, rows: Rows) -> Statements[Row | None]:
    """The note of these rows; None, once it is erased, if it has expired."""
    found = Row.read(context.cipher, usage.namespace, rows[0]) if rows else None
    if found and is_expired(found.expires_at, context.now):
        yield from erase_note(usage, (yield "read_note_to_erase", (usage.namespace, found.id))[0][1:], "expire")
        return None
    return found


def _save(context: Context, usage: NamespaceUsage, note: NewNote, row: Row) -> Statements[tuple[Note, NamespaceUsage]]:
    """Record the change, mark the notes that the note supersedes, and save the usage."""
    usage.record(str(row.id), row.bytes)
    for text in note.supersedes or ():
        for older in (yield from _find_numbers(context.cipher, usage.namespace, text)):
            if (yield "supersede_note", (row.id, usage.namespace, older, row.id)):
                usage.record(str(older), 0, "supersede")
    yield from usage.save()
    return row.to_note(), usage


@operation("forget", ERASE)
def forget(context: Context, namespace: str, note_id: str) -> Statements[tuple[bool, NamespaceUsage]]:
    """Erase a note; whether it existed and had not expired."""
    usage = yield from open_namespace(context, namespace)
    is_live = False
    for id_ in (yield from _find_numbers(context.cipher, namespace, note_id)):
        for expires_at, *columns in (yield "read_note_to_erase", (namespace, id_)):
            yield from erase_note(usage, columns)
            is_live = not is_expired(expires_at, context.now)
    yield from usage.save()
    return is_live, usage


@operation("clear", ERASE)
def clear_notes(context: Context, namespace: str) -> Statements[tuple[int, NamespaceUsage]]:
    """Erase all notes of a namespace; how many had not expired."""
    usage = yield from open_namespace(context, namespace)
    count = yield from clear_notes_into(usage, context.now)
    usage.record_clear()
    yield from usage.save()
    return count, usage


def clear(namespace: str, prefix: str = "") -> Operation[tuple[int, NamespaceUsage]]:
    """Erase everything in a namespace, or delete the items whose keys start with `prefix`."""
    return clear_prefix(namespace, prefix) if prefix else clear_all(namespace)


@operation("clear", ERASE)
def clear_all(context: Context, namespace: str) -> Statements[tuple[int, NamespaceUsage]]:
    """Erase everything in a namespace; how many items and notes had not expired."""
    usage = yield from open_namespace(context, namespace)
    count = yield from clear_into(usage, context.now)
    count += yield from clear_notes_into(usage, context.now)
    usage.record_clear()
    yield from usage.save()
    return count, usage


@operation("notes", SNAPSHOT)
def list_notes(
    context: Context,
    namespace: str,
    type_: str | None = None,
    tags: tuple[str, ...] = (),
    session: str | None = None,
    after: str = "",
    limit: int = MAX_NOTES_PAGE,
    offset: int = 0,
) -> Statements[list[Note]]:
    """Notes in the order first remembered, from the one after the id `after`; fewer than `limit` are the last page."""
    filters = _filters(context, type_, tags, session)
    previous = yield from _find_numbers(context.cipher, namespace, after)
    rows = yield SlowQuery(
        filters.on("list_notes"),
        (namespace, max(previous, default=0), *filters.params, limit, offset),
    )
    return [Row.read(context.cipher, namespace, row).to_note() for row in rows]


@operation("sessions", SNAPSHOT)
def list_sessions(context: Context, namespace: str) -> Statements[list[SessionSummary]]:
    """The sessions that have notes, the one updated last first."""
    filters = _filters(context)
    rows = yield SlowQuery(filters.on("list_note_sessions"), (namespace, *filters.params))
    texts = yield SlowQuery("read_notes", (namespace, json.dumps([row[0] for row in rows])))
    named = {row[0]: Row.read(context.cipher, namespace, row).session or "" for row in texts}
    found = [
        SessionSummary(named[note], count, to_time(first), to_time(last))
        for note, count, first, last in rows
        if note in named  # else it is damaged
    ]
    return sorted(sorted(found), key=lambda session: session.updated_at, reverse=True)


@operation("labels", SNAPSHOT)
def list_labels(context: Context, namespace: str, limit: int = MAX_LABELS) -> Statements[dict[str, list[LabelCount]]]:
    """The types, tags and sessions of the notes, each with the number of its notes, the most frequent first.

    Up to `limit` of each. Rows have only hashes of labels, so one note of each hash is read.
    """
    return {
        "type": (yield from _count_labels(context, namespace, "type", limit)),
        "tags": (yield from _count_tags(context, namespace, limit)),
        "session": (yield from _count_labels(context, namespace, "session", limit)),
    }


def _count_labels(context: Context, namespace: str, column: str, limit: int) -> Statements[list[LabelCount]]:
    filters = _filters(context)
    query = filters.on("count_note_types" if column == "type" else "count_note_sessions")
    counts: dict[int, int] = dict((yield SlowQuery(query, (namespace, *filters.params, limit))))
    texts = yield SlowQuery("read_notes", (namespace, json.dumps(list(counts))))
    rows = [Row.read(context.cipher, namespace, text) for text in texts]
    return _most_frequent({getattr(row, column): counts[row.id] for row in rows})


def _count_tags(context: Context, namespace: str, limit: int) -> Statements[list[LabelCount]]:
    """The same for tags, of which a note has several: those of all combinations are counted, and then cut."""
    filters = _filters(context)
    counts: Counter[str] = Counter()
    examples: dict[str, int] = {}
    for note, count, hashes in (yield SlowQuery(filters.on("count_note_tags"), (namespace, *filters.params))):
        for hashed in filter(None, hashes.split(",")):
            counts[hashed] += count
            examples[hashed] = note
    best = dict(counts.most_common(limit))
    texts = yield SlowQuery("read_notes", (namespace, json.dumps(sorted({examples[hashed] for hashed in best}))))
    tags = {tag for text in texts for tag in Row.read(context.cipher, namespace, text).tags}
    hashed_tags = ((tag, str(hash_label(context.cipher, tag))) for tag in tags)
    return _most_frequent({tag: best[hashed] for tag, hashed in hashed_tags if hashed in best})


def _most_frequent(counts: Mapping[str, int]) -> list[LabelCount]:
    return [LabelCount(*pair) for pair in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]


@operation("recall", SNAPSHOT)
def recall(
    context: Context, namespace: str, query: RecallQuery, nearest: Mapping[int, float] = _NO_NEAREST
) -> Statements[list[Note]]:
    """The notes that fit a query best, with their scores.

    `nearest` is what the semantic index found: ids of notes with the cosine of their vector to the query's.
    """
    filters = _only_current(_filters(context, query.type, query.tags, query.session, query.at), query.at)
    # A model knows which words are related: they would count twice.
    terms = yield from _weigh_query(context, namespace, query, is_widened=not nearest)
    search = Candidates(namespace, query, terms, filters)
    best = yield from search.find()
    best += (yield from _nearest_allowed(namespace, query, nearest, filters)) if nearest else []
    rows = yield SlowQuery("find_neighbours", (json.dumps(best),))
    neighbours = SessionNeighbours([(*reversed(decode(before)), note, *decode(after)) for before, note, after in rows])
    occurrences = yield from search.occurrences(neighbours.notes)
    candidates, ids = yield from _read_candidates(neighbours, filters)
    speakers = frozenset(hash_words(context.cipher, query.query[-MAX_QUERY_CHARS:]))
    evidence = Evidence(terms, occurrences, speakers, {each.id: each.asks for each in candidates if each.asks})
    ranked = rank(candidates, evidence)
    lexical = dict(ranked)
    cosines = similarities({ids[id_]: cosine for id_, cosine in nearest.items() if id_ in ids}, candidates)
    if cosines:
        ranked = fuse(ranked, cosines, candidates, evidence)
    fused = dict(ranked)
    ranked = [each for each in limit_scores(ranked, is_fused=bool(cosines)) if each.score >= query.threshold]
    if query.ranking == "confidence":
        ranked = rank_by_confidence(ranked, candidates, context.now)
    notes = yield from _read_scored(context, namespace, dict(ranked[: query.limit]))
    if query.explain:
        confident_at = context.now if query.ranking == "confidence" else None
        for each in candidates:
            if each.id in notes:
                explanation = explain(each, evidence, lexical.get(each.id, 0.0), cosines, fused[each.id], confident_at)
                notes[each.id] = notes[each.id]._replace(explanation=explanation)
    return list(notes.values())


def _weigh_query(context: Context, namespace: str, query: RecallQuery, *, is_widened: bool) -> Statements[QueryTerms]:
    """The terms of a query with their weights; if it is widened, those of related words as well."""
    now = query.at or to_time(context.now)
    passages = [analyze(text, now) for text in split_passages(query.query)]
    if is_widened:
        passages = list(map(widen, passages))
    return (yield from weigh_terms(context.cipher, namespace, passages))


def _read_scored(context: Context, namespace: str, scores: Mapping[int, float]) -> Statements[dict[int, Note]]:
    """The notes that have these numbers, in their order and with their scores."""
    rows = yield SlowQuery("read_numbered_notes", (json.dumps(list(scores)),))
    found = {row.number: row for row in (Row.read(context.cipher, namespace, row) for row in rows)}
    return {number: found[number].to_note(round(score, 6)) for number, score in scores.items() if number in found}


def _nearest_allowed(
    namespace: str, query: RecallQuery, nearest: Mapping[int, float], filters: Filters
) -> Statements[list[int]]:
    """The numbers of the nearest of the notes that pass the filters."""
    close = [note for note, cosine in nearest.items() if cosine >= MIN_COSINE]
    asked = json.dumps(close[: 2 * MAX_NEAREST] if query.is_open else close)
    rows = yield SlowQuery(filters.on("find_nearest_notes"), (namespace, *filters.params, asked))
    return [number for _, number in sorted(rows, key=lambda row: -nearest[row[0]])[:MAX_NEAREST]]


def _read_candidates(
    neighbours: SessionNeighbours, filters: Filters
) -> Statements[tuple[list[Candidate], dict[int, int]]]:
    """Those of the notes that pass the filters, by number, and the number for each id."""
    rows = yield SlowQuery(filters.on("read_candidates"), (json.dumps(sorted(neighbours.notes)), *filters.params))
    spoken = {note for _, note, speaker, *_ in rows if speaker}
    candidates = []
    for _, note, speaker, updated_at, times, asks, is_change, has_session in rows:
        before, after = neighbours.previous(note), neighbours.next(note)
        is_turn = bool(has_session) or (note in spoken and not spoken.isdisjoint((*before[:1], *after[:1])))
        said_by = _speaker_terms(speaker)
        candidates.append(Candidate(note, before, after, said_by, updated_at, times, asks, is_change, is_turn))
    return candidates, {id_: number for id_, number, *_ in rows}


@lru_cache(1024)
def _speaker_terms(speaker: str | None) -> tuple[int, ...]:
    """The terms of a speaker's name; a conversation has few speakers."""
    return tuple(json.loads(speaker)) if speaker else ()


def _insert(context: Context, usage: NamespaceUsage, note: NewNote) -> Statements[Row]:
    ((last,),) = yield "find_last_note", (usage.namespace,)
    row = Row(
        # Ids grow with time, and the id of a deleted note is not given to another.
        id=max(last + 1, context.now * 1000 + int.from_bytes(os.urandom(2)) % 1000),
        times=1,
        created_at=context.now,
        own_id=note.id,
        **_fields_of(context, note),
    ).measured()
    yield from charge(usage, writes=1, notes=1, size=row.bytes)
    terms = yield from _insert_row(context, usage, row)
    yield from add_terms(usage.namespace, [terms], is_last=True)
    return row


def insert_note(context: Context, usage: NamespaceUsage, row: Row) -> Statements[NoteTerms | None]:
    """Store a note of an export under its own id; None if a note of that id or content exists.

    Returns its terms, which the caller adds to the index: those of many notes together take a tenth of the writes.
    """
    if (yield "find_same_note", (usage.namespace, row.id, row.digest(context.cipher))):
        return None
    row = row.measured()
    yield from charge(usage, notes=1, size=row.bytes)
    return (yield from _insert_row(context, usage, row))


def _insert_row(context: Context, usage: NamespaceUsage, row: Row) -> Statements[NoteTerms]:
    counts = row.hashed_terms(context.cipher)
    row = row._replace(term_count=len(counts))
    data = row.pack(context.cipher, usage.namespace)
    blob_id = yield from (erasable.replace(row.blob_id, data) if row.blob_id else erasable.store(data))
    values = row._replace(blob_id=blob_id).column_values(context.cipher)
    yield "add_namespace_id", (usage.namespace,)
    ((number,),) = yield "insert_note", (usage.namespace, row.id, *values)
    return number, counts


def _refresh(context: Context, usage: NamespaceUsage, note: NewNote, found: Row) -> Statements[Row]:
    """Given fields replace the stored ones, tags are added, the time to live starts again, and pinned stays pinned."""
    is_pinned = bool(found.pinned) or note.pinned
    ttl = None if found.expires_at is None else (found.expires_at - found.updated_at) / 1000
    row = found._replace(
        type=note.type or found.type or note.default_type,
        tags=list(dict.fromkeys((*found.tags, *(note.tags or ())))),
        metadata=found.metadata if note.metadata is None else decode(encode(note.metadata)),
        pinned=int(is_pinned),
        times=found.times + 1,
        updated_at=context.now,
        expires_at=_expiry(context, ttl if note.ttl is None else note.ttl, is_pinned),
        superseded_by=None,  # said again, it is true again
    )
    row = row.measured()
    yield from charge(usage, writes=1, size=row.bytes - found.bytes)
    return (yield from change_note(context.cipher, usage.namespace, found, row))


def _replace(context: Context, usage: NamespaceUsage, note: NewNote, found: Row) -> Statements[Row]:
    """All fields of `found` are replaced, but its ids and the time at which it was created."""
    is_same = note.content == found.content
    row = found._replace(
        times=found.times + 1 if is_same else 1, superseded_by=None, **_fields_of(context, note)
    ).measured()
    twins = yield "find_note_number", (usage.namespace, row.digest(context.cipher))
    if any(twin != row.id for (twin,) in twins):
        raise Conflict(f"the note {twins[0][0]} has this content in this session already; forget one of the two")
    yield from charge(usage, writes=1, size=row.bytes - found.bytes)
    if not is_same:
        yield from erase_vector(usage.namespace, row.id)
    return (yield from change_note(context.cipher, usage.namespace, found, row))


def change_note(
    cipher: Cipher, namespace: str, found: Row, row: Row, *, before: Cipher | None = None
) -> Statements[Row]:
    """Replace the row `found` by `row`: the same note with other texts, or encrypted `before` under another key."""
    counts = row.hashed_terms(cipher)
    row = row._replace(term_count=len(counts))
    is_same = all(getattr(row, name) == getattr(found, name) for name in _BLOB_FIELDS)
    if before or not is_same:
        row = row._replace(blob_id=(yield from erasable.replace(row.blob_id, row.pack(cipher, namespace))))
        yield from remove_terms(namespace, row.number, found.hashed_terms(before or cipher), found.term_count)
        yield from add_terms(namespace, [(row.number, counts)], is_last=False)
    yield "update_note", (*row.column_values(cipher), namespace, row.id)
    return row


def clear_notes_into(usage: NamespaceUsage, now: int) -> Statements[int]:
    """Erase all notes and take them off the usage, which the caller saves; how many had not expired."""
    at = (usage.namespace,)
    ((count, size, live),) = yield "sum_notes", (now, *at)
    for table in ("note_vectors", "notes"):
        yield from erasable.erase_all(table, usage.namespace)
    yield "delete_words", (space_of(usage.namespace),)
    yield "delete_all_vectors", at
    yield "delete_all_notes", at
    yield "count_removed_vector", at
    if count:
        usage.release(notes=count, size=size)
    return int(live)


def _filters(
    context: Context,
    type_: str | None = None,
    tags: tuple[str, ...] = (),
    session: str | None = None,
    at: datetime | None = None,
) -> Filters:
    """Only notes that have not expired, of this type, with all of these tags, of this session, and as old as `at`."""
    conditions, params = ["is_live"], [context.now]
    if at is not None:
        conditions.append("is_written")
        params.append(round(at.timestamp() * 1000))
    labels = [("has_type", type_), ("has_session", session), *(("has_tag", tag) for tag in tags)]
    for condition, label in labels:
        hashed = hash_label(context.cipher, label)
        if hashed is not None:
            conditions.append(condition)
            params.append(hashed)
    return Filters(tuple(conditions), tuple(params))


def _only_current(filters: Filters, at: datetime | None) -> Filters:
    """Without the notes that others have replaced, or had by then; ids grow with time."""
    if at is None:
        return filters._replace(conditions=(*filters.conditions, "is_current"))
    params = (*filters.params, round(at.timestamp() * IDS_PER_SECOND))
    return Filters((*filters.conditions, "was_current"), params)


def _find_numbers(cipher: Cipher, namespace: str, note_id: str) -> Statements[list[int]]:
    """The number of the note with this id: the caller's own, or else a number of the store; empty if it is neither."""
    if not note_id:
        return []
    rows = yield "find_note_number", (namespace, own_id_digest(cipher, note_id))
    return [number for (number,) in rows] or _ids(note_id)


def _fields_of(context: Context, note: NewNote) -> dict[str, Any]:
    """The fields of a row that a note which is stored now determines."""
    return {
        "content": note.content,
        "type": note.type or note.default_type,
        "tags": note.tags or (),
        "session": note.session,
        "metadata": decode(encode(note.metadata or {})),
        "pinned": int(note.pinned),
        "updated_at": context.now,
        "expires_at": _expiry(context, note.ttl, note.pinned),
    }


def _ids(text: str) -> list[int]:
    """The note id as a number; empty if the text is not an id that this store gives."""
    return [int(text)] if text.isascii() and text.isdecimal() and len(text) < 19 else []


def _expiry(context: Context, ttl: float | None, is_pinned: bool) -> int | None:
    return None if is_pinned or ttl is None else context.now + max(round(ttl * 1000), 1)
