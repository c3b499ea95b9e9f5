"""The SQL of every query for PostgreSQL: most texts are those of SQLite, with other placeholders.

`text_of` translates a text once and remembers it. What means something else in PostgreSQL has a text of its own in
_OWN.
"""

# ruff: noqa: S608 - texts are joined from constants only
from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from scrubjay.recall.neighbours import MAX_PAUSE_SECONDS, NEIGHBOURS
from scrubjay.store.encryption import OVERHEAD
from scrubjay.store.operation import IDS_PER_SECOND, EngineSql
from scrubjay.store.sqlite.queries import NOTE, NOTES, QUERIES

ENCRYPTED = "~"
"""The first character of an encrypted value, which no JSON text starts with."""
ADMINISTRATION = ""
"""What a transaction locks that changes api keys or logs refusals: no namespace has this name."""

_LIVE = "(expires_at IS NULL OR expires_at > ?)"
_BETWEEN = f"namespace = ? AND {_LIVE} AND key >= ? AND key < ?"
_IDS = "= ANY (translate(?, '[]', '{}')::bigint[])"
"""Numbers, from a list in JSON: without its brackets it is the text of an array."""
_FLOOR = "(SELECT number FROM change_floors WHERE namespace_hash = sha256(convert_to(?4, 'UTF8')))"
_LAST_NUMBER = "(SELECT max(number) FROM changes WHERE namespace = ?4)"
_LAST_OF = f"coalesce({_LAST_NUMBER}, {_FLOOR}, 0)".replace("?4", "?1")
_KEY_SIZE = r"octet_length(replace(replace({}, E'\x01\x01', '0'), E'\x01\x02', '1'))"
"""Bytes of a key without its escapes: see connection.TextDumper."""
_VALUE_SIZE = f"""CASE WHEN left({{0}}, 1) = '{ENCRYPTED}'
THEN octet_length(decode(substr({{0}}, 2), 'base64')) - {OVERHEAD} ELSE octet_length({{0}}) END"""
_LIST_SIZE = f"{_KEY_SIZE.format('i.key')} + 2 + coalesce(sum({_VALUE_SIZE.format('l.value')} + 1) - 1, 0)"
_ITEM_SIZE = f"{_KEY_SIZE.format('key')} + {_VALUE_SIZE.format('value')}"
_NEIGHBOURS = "SELECT o.number FROM notes o WHERE o.namespace = n.namespace AND o.session"
_NEAR = MAX_PAUSE_SECONDS * IDS_PER_SECOND
# One arm for each case, because an index finds equal values and NULL, but not either of them.
_BEFORE = f"""array_to_json(CASE WHEN n.session IS NULL
THEN ARRAY({_NEIGHBOURS} IS NULL AND o.id < n.id AND o.id > n.id - {_NEAR} ORDER BY o.id DESC LIMIT {NEIGHBOURS})
ELSE ARRAY({_NEIGHBOURS} = n.session AND o.id < n.id ORDER BY o.id DESC LIMIT {NEIGHBOURS}) END)::text"""
_AFTER = f"""array_to_json(CASE WHEN n.session IS NULL
THEN ARRAY({_NEIGHBOURS} IS NULL AND o.id > n.id AND o.id < n.id + {_NEAR} ORDER BY o.id LIMIT {NEIGHBOURS})
ELSE ARRAY({_NEIGHBOURS} = n.session AND o.id > n.id ORDER BY o.id LIMIT {NEIGHBOURS}) END)::text"""
_CHANGE = "at, actor, verb, namespace, key, bytes"

APPEND_CHANGES = EngineSql(f"""INSERT INTO changes (number, {_CHANGE})
SELECT {_LAST_OF} + c.n, c.at, c.actor, c.verb, ?1, c.key, c.bytes
FROM unnest(?2::bigint[], ?3::text[], ?4::text[], ?5::text[], ?6::bigint[])
WITH ORDINALITY AS c (at, actor, verb, key, bytes, n) ORDER BY c.n""")
"""append_change for several changes of one namespace: times, actors, verbs, keys and sizes."""

_OWN = {
    "add_namespace_id": "",
    # The row of a key is locked until the commit: its usage is read, counted and written.
    "read_key_usage": f"{QUERIES['read_key_usage']} FOR NO KEY UPDATE",
    "list_entries": f"""SELECT key, length, bytes, version, updated_at, expires_at,
        CASE WHEN bytes <= 4000 AND left(value, 1) = '{ENCRYPTED}' THEN value
        WHEN bytes <= 65536 AND left(value, 1) <> '{ENCRYPTED}' THEN substr(value, 1, 200) END
        FROM items WHERE {_BETWEEN} ORDER BY key LIMIT ?""",
    "sum_items": f"""SELECT count(*), coalesce(sum(bytes), 0), coalesce(max(version), 0),
        count(*) FILTER (WHERE {_LIVE}) FROM items WHERE namespace = ?""",
    "sum_notes": f"""SELECT count(*), coalesce(sum(bytes), 0), count(*) FILTER (WHERE {_LIVE})
        FROM notes WHERE namespace = ?""",
    "list_lists": f"""SELECT key, updated_at FROM items WHERE namespace = ? AND {_LIVE}
        AND (updated_at < ? OR (updated_at = ? AND key > ?))
        AND (length IS NOT NULL OR left(value, 1) = '{ENCRYPTED}' OR substr(value, 1, 2) = '[{{')
        ORDER BY updated_at DESC, key LIMIT ?""",
    # ------------------------------------------------------------ changes
    # The transaction has locked the namespace, so this number is the next one, and follows the order of commits.
    "append_change": f"""INSERT INTO changes (number, {_CHANGE})
        VALUES (coalesce({_LAST_NUMBER}, {_FLOOR}, 0) + 1, ?1, ?2, ?3, ?4, ?5, ?6)""",
    "find_last_change": f"SELECT {_LAST_OF}",
    "find_change_bounds": f"""SELECT coalesce((SELECT min(number) FROM changes WHERE namespace = ?1), {_LAST_OF} + 1),
        {_LAST_OF}""",
    "read_changes": f"""SELECT number, {_CHANGE} FROM changes WHERE number > ? AND number <= ? AND namespace = ?
        AND (key = '' OR (key >= ? AND (? IS NULL OR key < ?))) ORDER BY number LIMIT ?""",
    "rotate_changes": """WITH gone AS (DELETE FROM changes WHERE id IN
        (SELECT id FROM (SELECT id, at FROM changes ORDER BY id LIMIT ?) o
        WHERE id < (SELECT max(id) FROM changes) AND (at < ? OR id <= (SELECT max(id) FROM changes) - ?))
        RETURNING namespace, number),
        floors AS (INSERT INTO change_floors (namespace_hash, number)
        SELECT sha256(convert_to(namespace, 'UTF8')), max(number) FROM gone GROUP BY namespace
        ON CONFLICT (namespace_hash) DO UPDATE SET number = greatest(change_floors.number, excluded.number))
        SELECT 1 FROM gone""",
    # ------------------------------------------------------------ the rest
    "save_idempotency_key": """INSERT INTO idempotency_keys
        (namespace, sender, used_on, sequence, verb, key, digest, result) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (namespace, sender) DO UPDATE SET used_on = excluded.used_on, sequence = excluded.sequence,
        verb = excluded.verb, key = excluded.key, digest = excluded.digest, result = excluded.result""",
    "list_admin_keys": "SELECT id FROM api_keys WHERE admin = 1 AND revoked_at IS NULL LIMIT 2",
    "add_requests": """INSERT INTO requests AS r (minute, kind, count, refused, failed, total_ms, max_ms)
        VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (minute, kind) DO UPDATE SET count = r.count + excluded.count,
        refused = r.refused + excluded.refused, failed = r.failed + excluded.failed,
        total_ms = r.total_ms + excluded.total_ms, max_ms = greatest(r.max_ms, excluded.max_ms)""",
    "find_free_blob": "",
    "erase_blob": "DELETE FROM erasable_blobs WHERE id = ?",
    "erase_note_blobs": "DELETE FROM erasable_blobs WHERE id IN (SELECT blob_id FROM notes WHERE namespace = ?)",
    "erase_vector_blobs": """DELETE FROM erasable_blobs
        WHERE id IN (SELECT blob_id FROM note_vectors WHERE namespace = ?)""",
    "put_vector": """INSERT INTO note_vectors (namespace, note, model, blob_id, mark) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT (namespace, note) DO UPDATE SET model = excluded.model, blob_id = excluded.blob_id,
        mark = excluded.mark""",
    "page_notes": f"""SELECT n.namespace, {NOTE} FROM {NOTES} WHERE (n.namespace, n.id) > (?, ?)
        ORDER BY n.namespace, n.id LIMIT ?""",
    "page_vectors": """SELECT v.namespace, v.note, v.blob_id, b.data FROM note_vectors v
        JOIN erasable_blobs b ON b.id = v.blob_id WHERE (v.namespace, v.note) > (?, ?)
        ORDER BY v.namespace, v.note LIMIT ?""",
    "page_digests": f"""SELECT n.namespace, n.id, n.digest, {NOTE} FROM {NOTES}
        WHERE b.is_free = 0 AND (n.namespace, n.id) > (?, ?) ORDER BY n.namespace, n.id LIMIT ?""",
    "check_free_blobs": "SELECT id FROM erasable_blobs WHERE is_free = 1",
    "check_lists": QUERIES["check_lists"].partition(", i.bytes, ")[0] + f""", i.bytes, {_LIST_SIZE}
        FROM items i LEFT JOIN list_items l ON l.namespace = i.namespace AND l.key = i.key
        WHERE i.length IS NOT NULL GROUP BY i.namespace, i.key, i.length, i.bytes
        HAVING i.length <> count(l.position) OR i.bytes <> {_LIST_SIZE}""",
    "check_items": f"""SELECT namespace, key, bytes, {_ITEM_SIZE} FROM items
        WHERE value IS NOT NULL AND bytes <> {_ITEM_SIZE}""",
    # ------------------------------------------------------------ recall
    "measure_terms": """SELECT 0, coalesce((SELECT notes FROM namespaces WHERE namespace = ?4), 0)
        UNION ALL SELECT word, (SELECT coalesce(sum(size), 0)::bigint FROM
        (SELECT length(postings) AS size FROM note_words w WHERE w.space = ?1 AND w.word = t.word
        ORDER BY block DESC LIMIT ?2) c) FROM unnest(translate(?3, '[]', '{}')::bigint[]) t(word)""",
    # LIMIT makes it look up each block. A plain join compares all terms with all blocks while the table has no
    # statistics, as during an import.
    "find_blocks": """SELECT w.word, w.block, w.postings FROM (SELECT DISTINCT t.word, (SELECT max(x.block)
        FROM note_words x WHERE x.space = ?1 AND x.word = t.word AND x.block <= p.number) AS block
        FROM unnest(translate(?2, '[]', '{}')::bigint[]) t(word)
        CROSS JOIN unnest(translate(?3, '[]', '{}')::bigint[]) p(number)) k
        CROSS JOIN LATERAL (SELECT * FROM note_words
        WHERE space = ?1 AND word = k.word AND block = k.block LIMIT 1) w""",
    "find_neighbours": f"SELECT {_BEFORE}, n.number, {_AFTER} FROM notes n WHERE n.number {_IDS}",
}  # fmt: skip
"""Queries whose text is not that of SQLite; without a text they find nothing."""

_REWRITTEN: tuple[tuple[str, str], ...] = (
    # Notes have the name of their namespace here, not its number, so that every table can be sharded by it.
    (r"\(SELECT id FROM namespaces WHERE namespace = (\?\d*)\)", r"\1"),
    (r"\bs\.id\b", "s.namespace"),
    (r"0 \+ n\.namespace_id\b", "n.namespace || ''"),
    (r"\bnamespace_id\b", "namespace"),
    (r"IN \(SELECT value FROM json_each\((\?\d*)\)\)", r"= ANY (translate(\1, '[]', '{}')::bigint[])"),
    (r"instr\(n\.tags, ',' \|\| \? \|\| ','\)", "strpos(n.tags, ',' || ?::bigint || ',') > 0"),
    (r"instr\(value, ", "strpos(value, "),
    (r"LIMIT (\?\d*)", r"LIMIT nullif(\1, -1)"),
    (r"\?(\d*) IS NULL", r"?\1::text IS NULL"),
    (r"\+((?:n\.)?namespace) = ", r"\1 = "),
    (r"i\.bytes \* min\(", "i.bytes * least("),
    (r"\blength\(CAST\((\w+) AS BLOB\)\)", r"octet_length(\1)"),
)  # fmt: skip
"""Patterns in SQLite's texts, and what stands for them here; in this order."""

MAX_JOINED = 6
"""Writes that are sent as one statement: those of one operation. Larger batches have too many combinations to prepare
each."""
_TABLES = r"\b(?:INTO|UPDATE|FROM|JOIN) (?!SET\b)(\w+)"

_LOCKED_PARAMETERS = {"open_namespace": 1, "append_change": 3}
_LOCKED_ADMINISTRATION = {"find_active_api_key", "find_any_api_key", "list_admin_keys", "append_refusal"}


@lru_cache(1000)
def text_of(query: str) -> str:
    """The SQL of a query by its name."""
    text = _OWN[query] if query in _OWN else QUERIES[query]
    for pattern, replacement in _REWRITTEN:
        text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    return _numbered(text)


def _numbered(text: str) -> str:
    """The text with $1 for the first ?, and $3 for ?3."""
    count = 0

    def number(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"${match[1] or count}"

    return re.sub(r"\?(\d*)", number, text)


@lru_cache(1000)
def joined(texts: tuple[str, ...]) -> str | None:
    """One text for statements without rows, whose parameters follow each other; None if they have to run in order.

    The parts of one statement see the same state, and run in any order: no two of them may name the same table.
    """
    tables = [table for text in texts for table in set(re.findall(_TABLES, text))]
    if len(texts) > MAX_JOINED or len(tables) > len(set(tables)) or any(text.startswith("WITH") for text in texts):
        return None
    count, parts = 0, []
    for text in texts:
        parts.append(_shifted(text, count))
        count += max(map(int, re.findall(r"\$(\d+)", text)), default=0)
    *first, last = parts
    return "WITH " + ", ".join(f"w{n} AS ({part})" for n, part in enumerate(first)) + f" {last}" if first else last


def _shifted(text: str, count: int) -> str:
    """The text with $4 for $1, if three parameters come before its own."""
    return re.sub(r"\$(\d+)", lambda match: f"${int(match[1]) + count}", text)


def locked_by(query: str, rows: Sequence[Sequence[Any]]) -> set[str]:
    """The namespaces that a write must have locked before it executes a query."""
    if query in _LOCKED_ADMINISTRATION:
        return {ADMINISTRATION}
    index = _LOCKED_PARAMETERS.get(query)
    return set() if index is None else {str(row[index]) for row in rows}
