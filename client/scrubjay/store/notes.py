"""Notes: texts that are found again by their words."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from scrubjay.drafts import Draft, Question
from scrubjay.errors import NotFound
from scrubjay.names import MAX_NOTES_PAGE, shown
from scrubjay.recall.ranking import (
    BEGINNING,
    LENDING,
    LENGTH_PENALTY,
    NEAREST,
    SATURATION,
    SYNONYM,
    Beside,
    Candidate,
    Occurrences,
    Sought,
    by_confidence,
    fuse,
    lend_to_answers,
    rank,
    weight,
)
from scrubjay.recall.words import asked_words, count_beginnings
from scrubjay.records import Note, to_time
from scrubjay.values import decode, encode

from . import drawers
from .items import clear_into, is_over
from .note_rows import COLUMNS, KEPT, LEAVING, SOURCE, Row, digest_of, erase_note, hide_label, hide_words, remove_words
from .operation import ERASE, LONG_WRITE, READ, SNAPSHOT, WRITE, Context, Long, Many, Operation, Steps, operation
from .quotas import Account, open_account
from .sealing import Cipher

LONG_CHARS = 300
"""A text that takes longer to index than a server's event loop may wait."""
MAX_QUERY_CHARS = 20_000
MAX_QUERY_WORDS = 32
"""The rarest words of a question; what is longer is no longer a question."""
MAX_SYNONYMS = 64
"""The words that are looked for in place of those of a question."""
MAX_COUNTED = 5_000
"""How many notes with a word are counted; a word in more of them says little anyway."""
MIN_POSTINGS, MAX_POSTINGS = 1_000, 3_000
"""Rows of the index that one recall reads, in a small and in a large namespace, those of telling words first."""
MIN_CANDIDATES, ENOUGH_CANDIDATES = 20, 40
"""Notes that are looked at closely, with their neighbours, if few are wanted, and if more are."""
SCANNED = 4
"""Rows that are read in the time in which one is looked up."""

_FIND = f"SELECT {COLUMNS} FROM {SOURCE} WHERE n.namespace = ? AND n.digest = ?"  # noqa: S608
_READ = f"SELECT {COLUMNS} FROM {SOURCE} WHERE n.namespace = ? AND n.id IN (SELECT value FROM json_each(?))"  # noqa: S608
_SAME = "SELECT 1 FROM notes WHERE namespace = ?1 AND (id = ?2 OR digest = ?3)"
_LEAVING = f"SELECT n.expires_at, {LEAVING} WHERE n.namespace = ? AND n.id = ?"
_INSERT = f"""INSERT INTO notes (namespace, id, {", ".join(KEPT)})
VALUES ({", ".join("?" * (len(KEPT) + 2))})"""  # noqa: S608
_UPDATE = f"UPDATE notes SET {' = ?, '.join(KEPT)} = ? WHERE namespace = ? AND id = ?"  # noqa: S608
_ADD_WORD = "INSERT INTO note_words (namespace, word, note, count, length) VALUES (?, ?, ?, ?, ?)"
_COUNT = """SELECT 0, coalesce((SELECT notes FROM namespaces WHERE namespace = ?1), 0)
UNION ALL SELECT value, (SELECT count(*) FROM
(SELECT 1 FROM note_words WHERE namespace = ?1 AND word = value LIMIT ?2)) FROM json_each(?3)"""
_POSTINGS = f"""SELECT * FROM (SELECT note, ? * count / (count + {SATURATION} + {LENGTH_PENALTY} * length) AS part
FROM note_words w WHERE namespace = ? AND word = ? {{}} ORDER BY note DESC LIMIT ?)"""  # noqa: S608
_NONE: Mapping[int, float] = {}
_BESIDE = f"""(SELECT json_group_array(id) FROM (SELECT o.id FROM notes o
WHERE o.namespace = n.namespace AND o.session = n.session AND o.id {{}} LIMIT {LENDING}))"""  # noqa: S608
_NEIGHBOURS = f"""SELECT {_BESIDE.format("< n.id ORDER BY o.id DESC")}, n.id, {_BESIDE.format("> n.id ORDER BY o.id")}
FROM notes n WHERE n.namespace = ? AND n.id IN (SELECT value FROM json_each(?))"""  # noqa: S608
# All rows of a rare word are read sooner than each note is looked for among them: that is what the + asks for.
_OCCURRENCES = """SELECT note, word, count, length FROM note_words WHERE namespace = ?1
AND word IN (SELECT value FROM json_each(?2)) AND +note IN (SELECT value FROM json_each(?4))
UNION ALL SELECT note, word, count, length FROM note_words WHERE namespace = ?1
AND word IN (SELECT value FROM json_each(?3)) AND note IN (SELECT value FROM json_each(?4))"""


class Session(NamedTuple):
    """What is known of the notes of one session."""

    name: str
    notes: int
    created_at: datetime
    updated_at: datetime


def remember(namespace: str, draft: Draft) -> Operation[tuple[Note, Account]]:
    """Store a note; one with the same content is refreshed instead."""
    size = len(draft.content) + (len(encode(draft.metadata)) if draft.metadata else 0)
    return (_remember if size < LONG_CHARS else _remember_long)(namespace, draft)


def _remember_note(context: Context, namespace: str, draft: Draft) -> Steps[tuple[Note, Account]]:
    account = yield from open_account(context, namespace)
    rows = yield _FIND, (namespace, digest_of(context.cipher, draft.content, draft.session))
    found = Row.read(context.cipher, namespace, rows[0]) if rows else None
    if found and is_over(found.expires_at, context.now):
        yield from erase_note(account, "expire", (yield _LEAVING, (namespace, found.id))[0][1:])
        found = None
    row = yield from (_refresh(context, account, draft, found) if found else _insert(context, account, draft))
    account.record("remember", str(row.id), row.bytes)
    yield from account.save()
    return row.to_note(), account


_remember = operation(WRITE)(_remember_note)
_remember_long = operation(LONG_WRITE)(_remember_note)


@operation(READ)
def read_note(context: Context, namespace: str, note_id: str) -> Steps[Note]:
    rows = yield _READ, (namespace, json.dumps(_ids(note_id)))
    row = Row.read(context.cipher, namespace, rows[0]) if rows else None
    if row is None or is_over(row.expires_at, context.now):
        raise NotFound(f"there is no note {shown(note_id)} any more")
    return row.to_note()


@operation(ERASE)
def forget(context: Context, namespace: str, note_id: str) -> Steps[tuple[bool, Account]]:
    """Erase a note; whether it was there."""
    account = yield from open_account(context, namespace)
    is_live = False
    for id_ in _ids(note_id):
        for expires_at, *leaving in (yield _LEAVING, (namespace, id_)):
            yield from erase_note(account, "forget", leaving)
            is_live = not is_over(expires_at, context.now)
    yield from account.save()
    return is_live, account


@operation(ERASE)
def clear_notes(context: Context, namespace: str) -> Steps[tuple[int, Account]]:
    """Erase all notes of a namespace; how many there were."""
    account = yield from open_account(context, namespace)
    count = yield from clear_notes_into(account, context.now)
    account.record_clear()
    yield from account.save()
    return count, account


@operation(ERASE)
def clear_all(context: Context, namespace: str) -> Steps[tuple[int, Account]]:
    """Erase everything in a namespace; how many items and notes there were."""
    account = yield from open_account(context, namespace)
    count = yield from clear_into(account, context.now)
    count += yield from clear_notes_into(account, context.now)
    account.record_clear()
    yield from account.save()
    return count, account


@operation(SNAPSHOT)
def list_notes(
    context: Context,
    namespace: str,
    type_: str | None = None,
    tags: tuple[str, ...] = (),
    session: str | None = None,
    after: str = "",
    limit: int = MAX_NOTES_PAGE,
    offset: int = 0,
) -> Steps[list[Note]]:
    """Notes in the order remembered, those after the one named; fewer than `limit` means there are no more."""
    where, params = _conditions(context, type_, tags, session)
    rows = yield Long(
        f"SELECT {COLUMNS} FROM {SOURCE} WHERE n.namespace = ? AND n.id > ? AND {where} ORDER BY n.id LIMIT ? OFFSET ?",  # noqa: S608
        (namespace, max(_ids(after), default=0), *params, limit, offset),
    )
    return [Row.read(context.cipher, namespace, row).to_note() for row in rows]


@operation(SNAPSHOT)
def list_sessions(context: Context, namespace: str) -> Steps[list[Session]]:
    """The sessions that have notes, the last used first."""
    where, params = _conditions(context)
    rows = yield Long(
        f"""SELECT min(n.id), count(*), min(n.created_at), max(n.updated_at) FROM notes n
        WHERE n.namespace = ? AND n.session IS NOT NULL AND {where} GROUP BY n.session""",  # noqa: S608
        (namespace, *params),
    )
    texts = yield Long(_READ, (namespace, json.dumps([row[0] for row in rows])))
    named = {row[0]: Row.read(context.cipher, namespace, row).session or "" for row in texts}
    found = [
        Session(named[note], count, to_time(first), to_time(last))
        for note, count, first, last in rows
        if note in named  # else it is damaged
    ]
    return sorted(sorted(found), key=lambda session: session.updated_at, reverse=True)


@operation(SNAPSHOT)
def recall(
    context: Context, namespace: str, question: Question, similar: Mapping[int, float] = _NONE
) -> Steps[list[Note]]:
    """The notes that answer best, with their scores; `similar` are those that mean something like it."""
    query = question.query[:MAX_QUERY_CHARS]
    where, params = _conditions(context, question.type, question.tags, question.session)
    sought, counts, budget = yield from _weigh(context.cipher, namespace, query)
    limits = _shared_out(budget, counts)
    best = (yield from _candidates(namespace, question, sought.weights, limits, where, params)) if limits else []
    similar = (yield from _most_similar(namespace, similar, where, params)) if similar else similar
    rows = yield Long(_NEIGHBOURS, (namespace, json.dumps([*best, *similar])))
    beside = Beside([(*reversed(decode(before)), note, *decode(after)) for before, note, after in rows])
    pool = json.dumps(sorted(beside.notes))
    found = yield from _occurrences(namespace, counts, beside.notes, pool)
    rows = yield Long(
        f"""SELECT n.id, n.speaker, n.updated_at, n.times, n.asks FROM notes n
        WHERE n.namespace = ? AND n.id IN (SELECT value FROM json_each(?)) AND {where}""",  # noqa: S608
        (namespace, pool, *params),
    )
    candidates = [
        Candidate(note, beside.before(note), beside.after(note), decode(speaker) if speaker else (), *known)
        for note, speaker, *known in rows
    ]
    ranked = rank(candidates, found, sought)
    if similar:
        ranked = fuse(ranked, lend_to_answers(similar, candidates))
    if question.ranking == "confidence":
        ranked = by_confidence(ranked, candidates, context.now)
    scores = {id_: score for id_, score in ranked[: question.limit] if score >= question.threshold}
    texts = yield Long(_READ, (namespace, json.dumps(list(scores))))
    best_rows = [Row.read(context.cipher, namespace, row) for row in texts]
    notes = {row.id: row.to_note(round(scores[row.id], 6)) for row in best_rows}
    return [notes[id_] for id_ in scores if id_ in notes]


def _most_similar(
    namespace: str, similar: Mapping[int, float], where: str, params: tuple[Any, ...]
) -> Steps[Mapping[int, float]]:
    """Of those that may answer, the most similar."""
    rows = yield Long(
        f"""SELECT n.id FROM notes n WHERE n.namespace = ? AND n.id IN (SELECT value FROM json_each(?)) AND {where}""",  # noqa: S608
        (namespace, json.dumps(list(similar)), *params),
    )
    allowed = sorted((id_ for (id_,) in rows), key=lambda id_: -similar[id_])
    return {id_: similar[id_] for id_ in allowed[:NEAREST]}


def _insert(context: Context, account: Account, draft: Draft) -> Steps[Row]:
    ((last,),) = yield "SELECT coalesce(max(id), 0) FROM notes WHERE namespace = ?", (account.namespace,)
    row = Row(
        # Grows with time, and what was deleted does not come back under the same id.
        id=max(last + 1, context.now * 1000 + int.from_bytes(os.urandom(2)) % 1000),
        content=draft.content,
        type=draft.type or draft.default_type,
        tags=draft.tags or (),
        session=draft.session,
        metadata=decode(encode(draft.metadata or {})),
        pinned=int(draft.pinned),
        times=1,
        created_at=context.now,
        updated_at=context.now,
        expires_at=_expiry(context, draft.ttl, draft.pinned),
    ).measured()
    yield from account.charge(writes=1, notes=1, size=row.bytes)
    yield from _keep(context, account, row)
    return row


def keep_note(context: Context, account: Account, row: Row) -> Steps[bool]:
    """Store a note as it once was, under its own id; its words are counted anew. False when it is there already."""
    digest = digest_of(context.cipher, row.content, row.session)
    if (yield _SAME, (account.namespace, row.id, digest)):
        return False
    row = row.measured()
    yield from account.charge(notes=1, size=row.bytes)
    yield from _keep(context, account, row)
    return True


def _keep(context: Context, account: Account, row: Row) -> Steps[None]:
    counts = row.hidden_words(context.cipher)
    row = row._replace(words=tuple(sorted(counts)))
    data = row.pack(context.cipher, account.namespace)
    drawer = yield from (drawers.replace(row.drawer, data) if row.drawer else drawers.keep(data))
    yield _INSERT, (account.namespace, row.id, *row._replace(drawer=drawer).kept(context.cipher))
    yield from add_words(account.namespace, row.id, counts)


def _refresh(context: Context, account: Account, draft: Draft, found: Row) -> Steps[Row]:
    """What is given replaces what was there, but tags add up; the time to live starts anew; pinned stays pinned."""
    is_pinned = bool(found.pinned) or draft.pinned
    ttl = None if found.expires_at is None else (found.expires_at - found.updated_at) / 1000
    row = found._replace(
        type=draft.type or found.type or draft.default_type,
        tags=list(dict.fromkeys((*found.tags, *(draft.tags or ())))),
        metadata=found.metadata if draft.metadata is None else decode(encode(draft.metadata)),
        pinned=int(is_pinned),
        times=found.times + 1,
        updated_at=context.now,
        expires_at=_expiry(context, ttl if draft.ttl is None else draft.ttl, is_pinned),
    )
    row = row.measured()
    yield from account.charge(writes=1, size=row.bytes - found.bytes)
    return (yield from change_note(context.cipher, account.namespace, found, row))


def change_note(cipher: Cipher, namespace: str, found: Row, row: Row, *, is_sealed_anew: bool = False) -> Steps[Row]:
    """Store a note in the place of what was found there; it is the same, with other labels or under another cipher."""
    counts = row.hidden_words(cipher)
    row = row._replace(words=tuple(sorted(counts)))
    is_same = (row.type, row.tags, row.metadata, row.words) == (found.type, found.tags, found.metadata, found.words)
    if is_sealed_anew or not is_same:
        row = row._replace(drawer=(yield from drawers.replace(row.drawer, row.pack(cipher, namespace))))
        yield from remove_words(namespace, row.id, found.words)
        yield from add_words(namespace, row.id, counts)
    yield _UPDATE, (*row.kept(cipher), namespace, row.id)
    return row


def add_words(namespace: str, note: int, counts: Mapping[int, int]) -> Steps[None]:
    length = sum(count for word, count in counts.items() if word > 0)
    yield Many(_ADD_WORD, [(namespace, word, note, count, length) for word, count in counts.items()])


def clear_notes_into(account: Account, now: int) -> Steps[int]:
    """Erase all notes and take them off the account, which the caller saves; how many there were."""
    at = (account.namespace,)
    ((count, size, live),) = yield (
        """SELECT count(*), coalesce(sum(bytes), 0), coalesce(sum(expires_at IS NULL OR expires_at > ?), 0)
        FROM notes WHERE namespace = ?""",
        (now, *at),
    )
    for table in ("note_vectors", "notes"):
        yield from drawers.erase_all(table, account.namespace)
    for table in ("note_words", "note_vectors", "notes"):
        yield f"DELETE FROM {table} WHERE namespace = ?", at  # noqa: S608
    if count:
        account.release(notes=count, size=size)
    return int(live)


def _weigh(cipher: Cipher, namespace: str, query: str) -> Steps[tuple[Sought, dict[int, int], int]]:
    """What each word of a question says; how many notes have it, the most telling first; how many may be read."""
    words = [*asked_words(query), *count_beginnings(query)][: 4 * MAX_QUERY_WORDS]
    instead = _synonyms(words)
    hidden = cipher.hide([*words, *instead])
    words, instead = [hidden[word] for word in words], {hidden[other]: hidden[word] for other, word in instead.items()}
    (_, notes), *counts = yield Long(_COUNT, (namespace, MAX_COUNTED, json.dumps([*words, *instead])))
    total = min(notes, 10 * MAX_COUNTED)  # more change little, and of no word are more than MAX_COUNTED counted
    counts.sort(key=lambda pair: pair[1])
    asked = [pair for pair in counts if pair[0] not in instead][:MAX_QUERY_WORDS]
    weights = {word: weight(total, count) * (1.0 if word > 0 else BEGINNING) for word, count in asked}
    other = [(word, count) for word, count in counts if count and instead.get(word) in weights]
    weights |= {word: SYNONYM * min(weight(total, count), weights[instead[word]]) for word, count in other}
    sought = Sought(weights, {word: instead[word] for word, _ in other}, frozenset(hide_words(cipher, query)))
    found = sorted((pair for pair in (*asked, *other) if pair[1]), key=lambda pair: -weights[pair[0]])
    return sought, dict(found), min(max(MIN_POSTINGS, total // 10), MAX_POSTINGS)


def _shared_out(rows: int, counts: Mapping[int, int]) -> dict[int, int]:
    """How many rows of the index each word may cost: the first as many as it has, while there are any left."""
    limits = {}
    for word, count in counts.items():
        if rows:
            limits[word] = min(count, rows)
            rows -= limits[word]
    return limits


def _synonyms(words: Sequence[int]) -> dict[int, int]:
    """What else to look for, and in place of which word."""
    from scrubjay.recall.synonyms import synonyms  # noqa: PLC0415 - only those who ask pay for it

    found: dict[int, int] = {}
    for word in words:
        for other in synonyms(word):
            found.setdefault(other, word)
    return dict(islice(((other, word) for other, word in found.items() if other not in words), MAX_SYNONYMS))


def _candidates(
    namespace: str,
    question: Question,
    weights: Mapping[int, float],
    limits: Mapping[int, int],
    where: str,
    params: tuple[Any, ...],
) -> Steps[list[int]]:
    """Notes by their own words alone."""
    wanted = max(MIN_CANDIDATES, min(4 * question.limit, ENOUGH_CANDIDATES), 2 * question.limit)
    arms = " UNION ALL ".join([_POSTINGS.format("")] * len(limits))
    asked = [part for word, rows in limits.items() for part in (weights[word], namespace, word, rows)]
    for most in (2 * wanted, -1) if question.is_open else ():  # to find a few is cheaper than to order all
        rows = yield Long(
            f"""SELECT note FROM (SELECT note, sum(part) AS fit FROM ({arms}) GROUP BY note
            ORDER BY fit DESC, note DESC LIMIT ?)
            WHERE EXISTS (SELECT 1 FROM notes n WHERE n.namespace = ? AND n.id = note AND {where}) LIMIT ?""",  # noqa: S608
            (*asked, most, namespace, *params, wanted),
        )
        if len(rows) == wanted or sum(limits.values()) < MIN_POSTINGS:
            return [note for (note,) in rows]
    return (yield from _candidates_among(namespace, wanted, weights, where, params))


def _candidates_among(
    namespace: str, wanted: int, weights: Mapping[int, float], where: str, params: tuple[Any, ...]
) -> Steps[list[int]]:
    """The same where few of the notes may answer: those that may not must not use up what may be read."""
    allowed = f"SELECT n.id FROM notes n WHERE n.namespace = ? AND {where}"  # noqa: S608
    at = (namespace, *params)
    some = yield Long(f"{allowed} LIMIT ?", (*at, MAX_POSTINGS + 1))
    if not some or not weights:
        return []
    are_few = len(some) <= MAX_POSTINGS  # then each is looked for; else the rows of a word are read until enough fit
    arm = _POSTINGS.format("AND note IN allowed" if are_few else f"AND EXISTS ({allowed} AND n.id = w.note)")
    told = sorted(weights, key=lambda word: -weights[word])[:MAX_QUERY_WORDS]
    asked = [part for word in told for part in (weights[word], namespace, word, *(() if are_few else at), MAX_POSTINGS)]
    rows = yield Long(
        f"""WITH allowed AS MATERIALIZED ({allowed if are_few else "SELECT 0"})
        SELECT note FROM (SELECT note, sum(part) AS fit FROM ({" UNION ALL ".join([arm] * len(told))}) GROUP BY note
        ORDER BY fit DESC, note DESC LIMIT ?)""",  # noqa: S608
        (*(at if are_few else ()), *asked, wanted),
    )
    return [note for (note,) in rows]


def _occurrences(namespace: str, counts: Mapping[int, int], notes: Collection[int], pool: str) -> Steps[Occurrences]:
    """Where the question's words are in these notes."""
    rare = [word for word, count in counts.items() if count < SCANNED * len(notes)]
    common = [word for word, count in counts.items() if count >= SCANNED * len(notes)]
    rows = yield Long(_OCCURRENCES, (namespace, json.dumps(rare), json.dumps(common), pool))
    found: defaultdict[int, dict[int, float]] = defaultdict(dict)
    lengths: dict[int, int] = {}
    for note, word, count, length in rows:
        found[note][word] = count
        lengths[note] = length
    return Occurrences(found, lengths)


def _conditions(
    context: Context, type_: str | None = None, tags: tuple[str, ...] = (), session: str | None = None
) -> tuple[str, tuple[int, ...]]:
    """Which notes n may answer, as SQL."""
    where, params = ["(n.expires_at IS NULL OR n.expires_at > ?)"], [context.now]
    asked = [("n.type = ?", type_), ("n.session = ?", session)]
    asked += [("instr(n.tags, ',' || ? || ',')", tag) for tag in tags]
    for condition, label in asked:
        number = hide_label(context.cipher, label)
        if number is not None:
            where.append(condition)
            params.append(number)
    return " AND ".join(where), tuple(params)


def _ids(text: str) -> list[int]:
    """The number behind an id; none for what is no id of ours."""
    return [int(text)] if text.isascii() and text.isdecimal() and len(text) < 19 else []


def _expiry(context: Context, ttl: float | None, is_pinned: bool) -> int | None:
    return None if is_pinned or ttl is None else context.now + max(round(ttl * 1000), 1)
