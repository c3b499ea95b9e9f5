"""The SQL of every query that an operation yields by name, for SQLite.

Parameters are positional. `+namespace = ?` keeps SQLite from reading a whole namespace where another index finds few
rows. The names of some queries say what their texts are built of: `list_notes where is_live and has_tag` has a
condition of CONDITIONS for each word, and `read_newest_blocks * 3` has its text three times.
"""

# ruff: noqa: S608 - texts are joined from constants only
from __future__ import annotations

from functools import lru_cache

from scrubjay.recall.neighbours import MAX_PAUSE_SECONDS, NEIGHBOURS
from scrubjay.store.encryption import OVERHEAD
from scrubjay.store.operation import IDS_PER_SECOND, EngineSql
from scrubjay.store.sqlite.schema import BLOBS, FREE_BLOBS

IN_NAMESPACE = "namespace_id = (SELECT id FROM namespaces WHERE namespace = ?)"
"""The condition on the rows of notes and vectors, which have the id of their namespace instead of its name."""
NOTE_VALUES = (
    *("blob_id", "digest", "type", "session", "speaker", "tags", "asks", "is_change"),
    *("pinned", "times", "bytes", "created_at", "updated_at", "expires_at", "superseded_by"),
)
"""The columns of a note's row, beside namespace and id, in the order of note_rows.Row.column_values."""
_LIVE = "(expires_at IS NULL OR expires_at > ?)"
_LIVE_OF = f"namespace = ? AND {_LIVE}"
_BETWEEN = f"{_LIVE_OF} AND key >= ? AND key < ?"
_ITEM = "value, version, created_at, updated_at, expires_at, bytes"
"""The columns from which items.StoredItem is made, beside the key."""
_ROWS_BETWEEN = "namespace = ? AND key = ? AND position >= ? AND position < ?"
NOTE = """n.id, b.data, n.pinned, n.times, n.created_at, n.updated_at, n.expires_at, n.bytes, n.blob_id,
n.superseded_by, n.number"""
"""The columns from which note_rows.Row.read makes a note."""
NOTES = "notes n JOIN erasable_blobs b ON b.id = n.blob_id"
_NAME_OF = "(SELECT namespace FROM namespaces s WHERE s.id = {}.namespace_id)"
_OF_NAMESPACES = "JOIN namespaces s ON s.id = n.namespace_id"
# To compare (namespace, id) with a pair, SQLite would read each namespace from its first note.
_AFTER, _AFTER_NOTE = "s.namespace >= ?1", "iif(s.namespace = ?1, ?2, -1)"
_ERASED_NOTE = f"{NOTE} FROM notes n LEFT JOIN erasable_blobs b ON b.id = n.blob_id"
"""The columns with which note_rows.erase_note erases a note, even a damaged one."""
_API_KEY = "id, name, namespaces, read_only, admin, created_at"
_KEY_LIMITS = "writes_per_day, max_bytes, max_namespaces"
_KEY_USAGE = f"id, name, {_KEY_LIMITS}, day, writes, bytes, namespace_count"
_ERASE_BLOB = "UPDATE erasable_blobs SET is_free = 1, data = zeroblob(size) WHERE id"
_LAST_CHANGE = "SELECT max(id) FROM changes"
# Two subselects: SQLite finds min and max at either end of the table, but for both in one SELECT it reads it all.
_ID_BOUNDS = f"SELECT coalesce((SELECT min(id) FROM changes), 1), coalesce(({_LAST_CHANGE}), 0)"
_LAST_REFUSAL = "SELECT number FROM refusals ORDER BY change DESC, number DESC LIMIT 1"
_AUDITED = "at >= ? AND (? IS NULL OR namespace = ?)"
_LIST_SIZE = f"""length(CAST(i.key AS BLOB)) + 2 + coalesce(sum(CASE typeof(l.value) WHEN 'blob'
THEN length(l.value) - {OVERHEAD} ELSE length(CAST(l.value AS BLOB)) END + 1) - 1, 0)"""
_ITEM_SIZE = f"""length(CAST(key AS BLOB)) + CASE typeof(value) WHEN 'blob'
THEN length(value) - {OVERHEAD} ELSE length(CAST(value AS BLOB)) END"""
_HELD = f"""(SELECT namespace, 1 AS keys, bytes FROM items UNION ALL
SELECT s.namespace, 0, n.bytes FROM notes n {_OF_NAMESPACES}) h"""
_IDS = "IN (SELECT value FROM json_each(?))"
_MARKS = f"SELECT mark, note FROM note_vectors WHERE {IN_NAMESPACE} AND model = ?"
_SPEAKERS = f"SELECT DISTINCT speaker FROM notes WHERE {IN_NAMESPACE}"
# Ids grow with time: the notes of no session that are near in time are those with ids near by.
_NUMBERS_NEAR = f"""(SELECT json_group_array(number) FROM (SELECT o.number FROM notes o
WHERE o.namespace_id = n.namespace_id AND o.session IS n.session AND o.id {{}} LIMIT {NEIGHBOURS}))"""
_FAR = f"iif(n.session IS NULL, {MAX_PAUSE_SECONDS * IDS_PER_SECOND}, n.id)"
_BEFORE = _NUMBERS_NEAR.format(f"< n.id AND o.id > n.id - {_FAR} ORDER BY o.id DESC")
_BEHIND = _NUMBERS_NEAR.format(f"> n.id AND o.id < n.id + {_FAR} ORDER BY o.id")
_BLOB_IDS = "SELECT blob_id FROM notes UNION ALL SELECT blob_id FROM note_vectors"

CONDITIONS = {
    "is_live": "(n.expires_at IS NULL OR n.expires_at > ?)",
    "is_written": "n.created_at <= ?",
    "has_type": "n.type = ?",
    "has_session": "n.session = ?",
    "has_tag": "instr(n.tags, ',' || ? || ',')",
    "is_current": "n.superseded_by IS NULL",
    "was_current": "(n.superseded_by IS NULL OR n.superseded_by > ?)",
}
"""What a note must meet, by the name that a query's name has after `where`; was_current has the last possible id."""

_LABELS = f"""SELECT min(n.id), count(*) FROM notes n WHERE n.{IN_NAMESPACE} AND n.{{column}} IS NOT NULL
AND {{where}} GROUP BY n.{{column}} ORDER BY 2 DESC, 1 LIMIT ?"""

FILTERED = {
    "list_notes": f"""SELECT {NOTE} FROM {NOTES} WHERE n.{IN_NAMESPACE} AND n.id > ? AND {{where}}
        ORDER BY n.id LIMIT ? OFFSET ?""",
    "list_note_sessions": f"""SELECT min(n.id), count(*), min(n.created_at), max(n.updated_at) FROM notes n
        WHERE n.{IN_NAMESPACE} AND n.session IS NOT NULL AND {{where}} GROUP BY n.session""",
    "count_note_types": _LABELS.format(column="type", where="{where}"),
    "count_note_sessions": _LABELS.format(column="session", where="{where}"),
    "count_note_tags": f"""SELECT min(n.id), count(*), n.tags FROM notes n
        WHERE n.{IN_NAMESPACE} AND n.tags <> '' AND {{where}} GROUP BY n.tags""",
    "list_allowed_notes": f"SELECT n.number FROM notes n WHERE n.{IN_NAMESPACE} AND {{where}} LIMIT ?",
    # The operator keeps SQLite from reading all notes of the namespace, which its planner prefers to the few numbers.
    "find_allowed_notes": f"""SELECT n.number FROM notes n WHERE 0 + n.{IN_NAMESPACE} AND {{where}}
        AND n.number {_IDS}""",
    "find_nearest_notes": f"""SELECT n.id, n.number FROM notes n WHERE n.{IN_NAMESPACE} AND {{where}}
        AND n.id {_IDS}""",
    "read_candidates": f"""SELECT n.id, n.number, n.speaker, n.updated_at, n.times, n.asks, n.is_change,
        n.session IS NOT NULL FROM notes n WHERE n.number {_IDS} AND {{where}}""",
}  # fmt: skip
"""Texts of queries whose names say which notes they are about: `list_notes where is_live`."""

REPEATED = {
    "read_newest_blocks": """SELECT * FROM (SELECT word, block, postings FROM note_words
        WHERE space = ? AND word = ? ORDER BY block DESC LIMIT ?) b""",
}
"""Texts that a query has once for each of its groups of parameters: `read_newest_blocks * 3`."""


class Queries(dict[str, str]):
    """The SQL texts by name."""

    def __missing__(self, name: str) -> str:
        return name if isinstance(name, EngineSql) else _built(name)


@lru_cache(1000)
def _built(name: str) -> str:
    """The text of a query whose name says what it is built of; KeyError for any other name."""
    query, _, conditions = name.partition(" where ")
    if conditions and query in FILTERED:
        return FILTERED[query].format(where=" AND ".join(CONDITIONS[each] for each in conditions.split(" and ")))
    query, _, count = name.partition(" * ")
    if count and query in REPEATED:
        return " UNION ALL ".join([REPEATED[query]] * int(count))
    raise KeyError(f"no query has the name {name!r}")


QUERIES = Queries({
    # ------------------------------------------------------------ namespaces
    "open_namespace": """SELECT i.version, i.bytes, i.length, i.expires_at, i.created_at,
        n.keys, n.notes, n.bytes, n.day, n.writes, n.writes_per_day, n.max_bytes, n.version_floor, n.owner
        FROM namespaces n LEFT JOIN items i ON i.namespace = n.namespace AND i.key = ? WHERE n.namespace = ?""",
    "read_namespace": """SELECT keys, notes, bytes, day, writes, writes_per_day, max_bytes, version_floor, owner
        FROM namespaces WHERE namespace = ?""",
    "save_namespace": """INSERT INTO namespaces
        (namespace, keys, notes, bytes, day, writes, writes_per_day, max_bytes, version_floor, owner,
        changed_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (namespace) DO UPDATE SET keys = excluded.keys, notes = excluded.notes, bytes = excluded.bytes,
        day = excluded.day, writes = excluded.writes, writes_per_day = excluded.writes_per_day,
        max_bytes = excluded.max_bytes, version_floor = excluded.version_floor, owner = excluded.owner,
        changed_at = excluded.changed_at""",
    "add_namespace_id": """INSERT INTO namespaces (namespace, id, keys, notes, bytes, day, writes, version_floor)
        VALUES (?, (SELECT coalesce(max(id), 0) + 1 FROM namespaces WHERE id IS NOT NULL), 0, 0, 0, 0, 0, 0)
        ON CONFLICT (namespace) DO UPDATE SET id = excluded.id WHERE id IS NULL""",
    "list_namespaces": "SELECT namespace FROM namespaces ORDER BY namespace",
    "read_namespaces": """SELECT namespace, keys, notes, bytes, day, writes, writes_per_day, max_bytes, changed_at
        FROM namespaces ORDER BY namespace""",
    # ------------------------------------------------------------ items
    "find_item": "SELECT version, bytes, length, expires_at, created_at FROM items WHERE namespace = ? AND key = ?",
    "read_value": "SELECT value, expires_at FROM items WHERE namespace = ? AND key = ?",
    "read_item": f"SELECT {_ITEM} FROM items WHERE namespace = ? AND key = ?",
    "read_values": f"""SELECT key, value FROM items WHERE namespace = ? AND {_LIVE}
        AND key IN ({", ".join("?" * 100)})""",
    "first_items": f"SELECT key, {_ITEM} FROM items WHERE {_BETWEEN} ORDER BY key LIMIT ?",
    "last_items": f"SELECT key, {_ITEM} FROM items WHERE {_BETWEEN} ORDER BY key DESC LIMIT ?",
    "sum_first_items": f"SELECT sum(bytes) FROM (SELECT bytes FROM items WHERE {_BETWEEN} ORDER BY key LIMIT ?) p",
    "sum_last_items": f"SELECT sum(bytes) FROM (SELECT bytes FROM items WHERE {_BETWEEN} ORDER BY key DESC LIMIT ?) p",
    "list_keys": f"SELECT key FROM items WHERE {_BETWEEN} ORDER BY key LIMIT ?",
    "page_items": f"SELECT key, bytes FROM items WHERE {_BETWEEN} ORDER BY key LIMIT ?",
    "page_items_reversed": f"SELECT key, bytes FROM items WHERE {_BETWEEN} ORDER BY key DESC LIMIT ?",
    "list_items": f"SELECT key, {_ITEM} FROM items WHERE {_LIVE_OF} AND key BETWEEN ? AND ? ORDER BY key",
    "list_items_reversed": f"SELECT key, {_ITEM} FROM items WHERE {_LIVE_OF} AND key BETWEEN ? AND ? ORDER BY key DESC",
    "sum_range": f"SELECT coalesce(sum(bytes), 0) FROM items WHERE {_BETWEEN}",
    "read_range": f"SELECT key, value FROM items WHERE {_BETWEEN} ORDER BY key",
    "latest_keys": f"SELECT key FROM items WHERE {_BETWEEN} ORDER BY updated_at DESC, key LIMIT ? OFFSET ?",
    "sum_values": f"SELECT coalesce(sum(bytes), 0) FROM items WHERE {_BETWEEN} AND length IS NULL",
    "latest_sizes": f"SELECT key, bytes FROM items WHERE {_BETWEEN} AND length IS NULL ORDER BY updated_at DESC, key",
    "latest_values": f"""SELECT key, value FROM items WHERE {_BETWEEN} AND length IS NULL
        AND (value IS NULL OR instr(value, ?) > 0) ORDER BY updated_at DESC, key""",
    "find_items_between": """SELECT key, version, bytes, expires_at FROM items
        WHERE namespace = ? AND key >= ? AND key < ? ORDER BY key""",
    # To cut a value SQLite reads all of it, and an encrypted one cannot be cut: large values have no preview.
    "list_entries": f"""SELECT key, length, bytes, version, updated_at, expires_at,
        CASE WHEN typeof(value) = 'blob' THEN iif(bytes <= 4000, value, NULL)
        WHEN bytes <= 65536 THEN substr(value, 1, 200) END
        FROM items WHERE {_BETWEEN} ORDER BY key LIMIT ?""",
    "write_item": """INSERT INTO items
        (namespace, key, value, length, bytes, version, created_at, updated_at, expires_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value, length = excluded.length,
        bytes = excluded.bytes, version = excluded.version, created_at = excluded.created_at,
        updated_at = excluded.updated_at, expires_at = excluded.expires_at""",
    "delete_item": "DELETE FROM items WHERE namespace = ? AND key = ?",
    "sum_items": f"""SELECT count(*), coalesce(sum(bytes), 0), coalesce(max(version), 0), coalesce(sum({_LIVE}), 0)
        FROM items WHERE namespace = ?""",
    "delete_all_items": "DELETE FROM items WHERE namespace = ?",
    "delete_items_between": "DELETE FROM items WHERE namespace = ? AND key >= ? AND key < ?",
    "set_expiry": "UPDATE items SET expires_at = ? WHERE namespace = ? AND key = ?",
    # ------------------------------------------------------------ lists
    # One statement sees one state, so a list and its rows always belong together.
    "read_list": """SELECT l.value, i.value, i.version, i.created_at, i.updated_at, i.expires_at, i.bytes
        FROM items i LEFT JOIN list_items l ON l.namespace = i.namespace AND l.key = i.key
        WHERE i.namespace = ? AND i.key = ? ORDER BY l.position""",
    "read_tail": """SELECT l.value, i.value, i.length, i.expires_at
        FROM items i LEFT JOIN list_items l ON l.namespace = i.namespace AND l.key = i.key
        WHERE i.namespace = ? AND i.key = ? ORDER BY l.position DESC LIMIT ?""",
    # The same, but no rows if they are long on average: so many would be more bytes than the fourth parameter.
    "read_short_tail": """SELECT l.value, i.value, i.length, i.expires_at
        FROM items i LEFT JOIN list_items l ON l.namespace = i.namespace AND l.key = i.key
        WHERE i.namespace = ? AND i.key = ? AND i.bytes * min(?, coalesce(i.length, 1)) <= ? * coalesce(i.length, 1)
        ORDER BY l.position DESC LIMIT ?""",
    "read_first_rows": """SELECT position, value FROM list_items
        WHERE namespace = ? AND key = ? AND position > ? AND position < ? ORDER BY position LIMIT ?""",
    "read_last_rows": """SELECT position, value FROM list_items
        WHERE namespace = ? AND key = ? AND position > ? AND position < ? ORDER BY position DESC LIMIT ?""",
    # Lists in rows, and values that may be lists of objects; whether an encrypted value is one shows only its text.
    "list_lists": f"""SELECT key, updated_at FROM items WHERE namespace = ? AND {_LIVE}
        AND (updated_at < ? OR (updated_at = ? AND key > ?))
        AND (length IS NOT NULL OR typeof(value) = 'blob' OR substr(value, 1, 2) = '[{{')
        ORDER BY updated_at DESC, key LIMIT ?""",
    "create_list": """INSERT INTO items (namespace, key, value, length, bytes, version, created_at, updated_at)
        VALUES (?, ?, NULL, ?, ?, ?, ?, ?)""",
    "resize_list": """UPDATE items SET value = NULL, length = ?, bytes = ?, version = ?, updated_at = ?
        WHERE namespace = ? AND key = ?""",
    "turn_into_list": "UPDATE items SET value = NULL, length = ? WHERE namespace = ? AND key = ?",
    # Not at `length`: what was taken from the start of a list has left its positions behind.
    "append_list_row": """INSERT INTO list_items (namespace, key, position, value) VALUES (?, ?, coalesce(
        (SELECT max(position) + 1 FROM list_items WHERE namespace = ? AND key = ?), 0), ?)""",
    "delete_list_rows": "DELETE FROM list_items WHERE namespace = ? AND key = ?",
    "delete_all_list_rows": "DELETE FROM list_items WHERE namespace = ?",
    "delete_list_rows_between": "DELETE FROM list_items WHERE namespace = ? AND key >= ? AND key < ?",
    "find_last_position": "SELECT coalesce(max(position), -1) FROM list_items WHERE namespace = ? AND key = ?",
    "find_first_position": "SELECT min(position) FROM list_items WHERE namespace = ? AND key = ?",
    "read_rows_between": f"SELECT value FROM list_items WHERE {_ROWS_BETWEEN} ORDER BY position",
    # The positions of a list follow each other without a gap.
    "take_last_rows": """DELETE FROM list_items WHERE namespace = ? AND key = ? AND position >
        (SELECT max(position) - ? FROM list_items WHERE namespace = ? AND key = ?) RETURNING position, value""",
    "take_first_rows": """DELETE FROM list_items WHERE namespace = ? AND key = ? AND position <
        (SELECT min(position) + ? FROM list_items WHERE namespace = ? AND key = ?) RETURNING position, value""",
    # ------------------------------------------------------------ expiry
    "sum_expired": f"""SELECT coalesce(sum(keys), 0), coalesce(sum(notes), 0), coalesce(sum(bytes), 0) FROM (
        SELECT 1 AS keys, 0 AS notes, bytes FROM items WHERE +namespace = ? AND expires_at <= ?
        UNION ALL SELECT 0, 1, bytes FROM notes WHERE +{IN_NAMESPACE} AND expires_at <= ?) e""",
    "find_expired_items": "SELECT namespace, key, version, bytes, length FROM items WHERE expires_at <= ? LIMIT ?",
    "find_expired_items_of": """SELECT key, version, bytes, length FROM items
        WHERE +namespace = ? AND expires_at <= ?""",
    "find_expired_notes": f"SELECT s.namespace, {_ERASED_NOTE} {_OF_NAMESPACES} WHERE n.expires_at <= ? LIMIT ?",
    "find_expired_notes_of": f"SELECT {_ERASED_NOTE} WHERE +n.{IN_NAMESPACE} AND n.expires_at <= ?",
    "find_session_notes": f"SELECT n.expires_at, {_ERASED_NOTE} WHERE n.{IN_NAMESPACE} AND n.session = ?",
    # ------------------------------------------------------------ notes
    "find_note": f"SELECT {NOTE} FROM {NOTES} WHERE n.{IN_NAMESPACE} AND n.digest = ?",
    # Two lookups: for an OR PostgreSQL may read all notes of the namespace.
    "find_same_note": f"""SELECT 1 FROM notes WHERE {IN_NAMESPACE.replace("?", "?1")} AND id = ?2
        UNION ALL SELECT 1 FROM notes WHERE {IN_NAMESPACE.replace("?", "?1")} AND digest = ?3""",
    "find_last_note": f"SELECT coalesce(max(id), 0) FROM notes WHERE {IN_NAMESPACE}",
    "find_note_number": f"SELECT id FROM notes WHERE {IN_NAMESPACE} AND digest = ?",
    "read_note": f"SELECT {NOTE} FROM {NOTES} WHERE n.{IN_NAMESPACE} AND n.id = ?",
    "read_notes": f"SELECT {NOTE} FROM {NOTES} WHERE n.{IN_NAMESPACE} AND n.id {_IDS}",
    "read_numbered_notes": f"SELECT {NOTE} FROM {NOTES} WHERE n.number {_IDS}",
    "read_note_to_erase": f"SELECT n.expires_at, {_ERASED_NOTE} WHERE n.{IN_NAMESPACE} AND n.id = ?",
    "insert_note": f"""INSERT INTO notes (namespace_id, id, {", ".join(NOTE_VALUES)})
        VALUES ((SELECT id FROM namespaces WHERE namespace = ?), ?{", ?" * len(NOTE_VALUES)}) RETURNING number""",
    "update_note": f"UPDATE notes SET {' = ?, '.join(NOTE_VALUES)} = ? WHERE {IN_NAMESPACE} AND id = ?",
    "supersede_note": f"""UPDATE notes SET superseded_by = ?
        WHERE {IN_NAMESPACE} AND id = ? AND id <> ? AND superseded_by IS NULL RETURNING id""",
    "delete_note": f"DELETE FROM notes WHERE {IN_NAMESPACE} AND id = ?",
    "delete_all_notes": f"DELETE FROM notes WHERE {IN_NAMESPACE}",
    "sum_notes": f"""SELECT count(*), coalesce(sum(bytes), 0), coalesce(sum({_LIVE}), 0)
        FROM notes WHERE {IN_NAMESPACE}""",
    "find_neighbours": f"SELECT {_BEFORE}, n.number, {_BEHIND} FROM notes n WHERE n.number {_IDS}",
    "list_speakers": _SPEAKERS,
    "list_speakers_of": f"{_SPEAKERS} AND id {_IDS}",
    # ------------------------------------------------------------ the index of words
    # The bytes of each term's newest postings.
    "measure_terms": """SELECT 0, coalesce((SELECT notes FROM namespaces WHERE namespace = ?4), 0)
        UNION ALL SELECT value, (SELECT coalesce(sum(size), 0) FROM (SELECT length(postings) AS size
        FROM note_words WHERE space = ?1 AND word = value ORDER BY block DESC LIMIT ?2)) FROM json_each(?3)""",
    # For each term the blocks that have the postings of these notes, if they have the term.
    "find_blocks": """SELECT w.word, w.block, w.postings FROM (SELECT DISTINCT t.value AS word, (SELECT max(x.block)
        FROM note_words x WHERE x.space = ?1 AND x.word = t.value AND x.block <= p.value) AS block
        FROM json_each(?2) t CROSS JOIN json_each(?3) p) k
        JOIN note_words w ON w.space = ?1 AND w.word = k.word AND w.block = k.block""",
    "read_blocks": f"SELECT word, block, postings FROM note_words WHERE space = ? AND word {_IDS}",
    "read_blocks_around": "SELECT word, block, postings FROM note_words WHERE space = ? AND block > ? AND block <= ?",
    "put_block": """INSERT INTO note_words (space, word, block, postings) VALUES (?, ?, ?, ?)
        ON CONFLICT (space, word, block) DO UPDATE SET postings = excluded.postings""",
    "delete_block": "DELETE FROM note_words WHERE space = ? AND word = ? AND block = ?",
    "delete_words": "DELETE FROM note_words WHERE space = ?",
    # ------------------------------------------------------------ vectors
    "read_fingerprint": "SELECT vectors_stored, vectors_removed FROM namespaces WHERE namespace = ?",
    "count_stored_vector": """UPDATE namespaces SET vectors_stored = vectors_stored + 1,
        vectors_removed = vectors_removed + ? WHERE namespace = ? RETURNING vectors_stored""",
    # Tells caches of vectors that not all of theirs are stored any more.
    "count_removed_vector": "UPDATE namespaces SET vectors_removed = vectors_removed + 1 WHERE namespace = ?",
    "list_marks": _MARKS,
    "list_new_marks": f"{_MARKS} AND mark > ?",
    "read_vectors": f"""SELECT v.mark, v.note, b.data FROM note_vectors v
        JOIN erasable_blobs b ON b.id = v.blob_id AND b.is_free = 0 WHERE v.{IN_NAMESPACE} AND v.note {_IDS}""",
    "find_vector_blob": f"SELECT blob_id FROM note_vectors WHERE {IN_NAMESPACE} AND note = ?",
    "put_vector": """INSERT OR REPLACE INTO note_vectors (namespace_id, note, model, blob_id, mark)
        VALUES ((SELECT id FROM namespaces WHERE namespace = ?), ?, ?, ?, ?)""",
    "delete_vector": f"DELETE FROM note_vectors WHERE {IN_NAMESPACE} AND note = ? RETURNING blob_id",
    "delete_all_vectors": f"DELETE FROM note_vectors WHERE {IN_NAMESPACE}",
    "list_unindexed_notes": """SELECT s.namespace, n.id FROM notes n JOIN namespaces s ON s.id = n.namespace_id
        WHERE NOT EXISTS (SELECT 1 FROM note_vectors v
        WHERE v.namespace_id = n.namespace_id AND v.note = n.id AND v.model = coalesce(?, v.model))
        ORDER BY s.namespace, n.id""",
    "read_unindexed_notes": f"""SELECT {NOTE} FROM {NOTES}
        WHERE n.{IN_NAMESPACE.replace("?", "?1")} AND n.id IN (SELECT value FROM json_each(?2)) AND NOT EXISTS
        (SELECT 1 FROM note_vectors v WHERE v.namespace_id = n.namespace_id AND v.note = n.id AND v.model = ?3)""",
    # ------------------------------------------------------------ changes
    "append_change": "INSERT INTO changes (at, actor, verb, namespace, key, bytes) VALUES (?, ?, ?, ?, ?, ?)",
    "append_refusal": f"""INSERT INTO refusals (change, number, at, actor, verb, namespace, key, code, times)
        VALUES (coalesce(({_LAST_CHANGE}), 0), coalesce(({_LAST_REFUSAL}), 0) + 1, ?, ?, ?, ?, ?, ?, ?)""",
    "find_last_change": _LAST_CHANGE,
    # Cursors are ids here; in PostgreSQL they are numbers of their own.
    "find_change_bounds": _ID_BOUNDS,
    "find_id_bounds": _ID_BOUNDS,
    "read_changes": """SELECT id, at, actor, verb, namespace, key, bytes FROM changes
        WHERE id > ? AND id <= ? AND namespace = ? AND (key = '' OR (key >= ? AND (? IS NULL OR key < ?)))
        ORDER BY id LIMIT ?""",
    "list_changed_namespaces": "SELECT DISTINCT namespace FROM changes WHERE id > ?",
    "audit_changes": f"""SELECT id, at, actor, verb, namespace, key, bytes FROM changes
        WHERE id > ? AND {_AUDITED} ORDER BY id LIMIT ?""",
    "audit_refusals": f"""SELECT change, number, at, actor, verb, namespace, key, 0, code, times FROM refusals
        WHERE (change, number) > (?, ?) AND {_AUDITED} ORDER BY change, number LIMIT ?""",
    "find_change_from": "SELECT id, at FROM changes WHERE id >= ? ORDER BY id LIMIT 1",
    "count_changes": """SELECT at / ? AS step, count(*), sum(bytes) FROM changes
        WHERE id >= ? AND at >= ? AND (? IS NULL OR namespace = ?) GROUP BY step""",
    "count_refusals": f"SELECT at / ? AS step, sum(times) FROM refusals WHERE {_AUDITED} GROUP BY step",
    "latest_changes": f"""SELECT id, at, actor, verb, namespace, key, bytes FROM changes
        WHERE id >= ? AND {_AUDITED} ORDER BY id DESC LIMIT ?""",
    "latest_refusals": f"""SELECT number, at, actor, verb, namespace, key, 0, code, times FROM refusals
        WHERE {_AUDITED} ORDER BY change DESC, number DESC LIMIT ?""",
    "rotate_changes": f"""DELETE FROM changes WHERE id IN
        (SELECT id FROM (SELECT id, at FROM changes ORDER BY id LIMIT ?) o
        WHERE id < ({_LAST_CHANGE}) AND (at < ? OR id <= ({_LAST_CHANGE}) - ?)) RETURNING 1""",
    "rotate_refusals": f"""DELETE FROM refusals WHERE (change, number) IN (SELECT change, number FROM
        (SELECT change, number, at FROM refusals ORDER BY change, number LIMIT ?) o
        WHERE number < ({_LAST_REFUSAL}) AND (at < ? OR number <= ({_LAST_REFUSAL}) - ?)) RETURNING 1""",
    # ------------------------------------------------------------ idempotency keys
    "find_idempotency_key": """SELECT used_on, sequence, verb, key, digest, result FROM idempotency_keys
        WHERE namespace = ? AND sender = ?""",
    "save_idempotency_key": """INSERT OR REPLACE INTO idempotency_keys
        (namespace, sender, used_on, sequence, verb, key, digest, result) VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
    # Without used_on, so that its index stays as it is.
    "advance_idempotency_key": """UPDATE idempotency_keys SET sequence = ?, verb = ?, key = ?, digest = ?, result = ?
        WHERE namespace = ? AND sender = ?""",
    "insert_idempotency_key": """INSERT INTO idempotency_keys
        (namespace, sender, sequence, verb, used_on, key, digest, result)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1""",
    "list_idempotency_keys": """SELECT sender, sequence, verb, used_on, key, digest, result FROM idempotency_keys
        WHERE namespace = ? AND sender > ? ORDER BY sender LIMIT ?""",
    "delete_idempotency_keys": "DELETE FROM idempotency_keys WHERE namespace = ?",
    "delete_old_idempotency_keys": """DELETE FROM idempotency_keys WHERE (namespace, sender) IN
        (SELECT namespace, sender FROM idempotency_keys WHERE used_on < ? LIMIT ?) RETURNING 1""",
    # ------------------------------------------------------------ api keys
    "insert_api_key": f"""INSERT INTO api_keys ({_API_KEY}, {_KEY_LIMITS}, hash)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "list_api_keys": f"""SELECT {_API_KEY}, {_KEY_LIMITS}, day, writes, bytes, namespace_count FROM api_keys
        WHERE revoked_at IS NULL ORDER BY created_at, id""",
    "read_api_key": f"""SELECT {_API_KEY}, {_KEY_LIMITS}, day, writes, bytes, namespace_count FROM api_keys
        WHERE id = ?""",
    "set_key_limits": "UPDATE api_keys SET writes_per_day = ?, max_bytes = ?, max_namespaces = ? WHERE id = ?",
    "replace_key_hash": "UPDATE api_keys SET hash = ? WHERE id = ? AND revoked_at IS NULL RETURNING id",
    "read_key_usage": f"SELECT {_KEY_USAGE} FROM api_keys WHERE id = ?",
    "save_key_usage": "UPDATE api_keys SET day = ?, writes = ?, bytes = ?, namespace_count = ? WHERE id = ?",
    "recount_key_usage": """UPDATE api_keys SET
        bytes = (SELECT coalesce(sum(n.bytes), 0) FROM namespaces n WHERE n.owner = api_keys.id),
        namespace_count = (SELECT count(*) FROM namespaces n WHERE n.owner = api_keys.id AND n.keys + n.notes > 0)""",
    "list_admin_keys": "SELECT id FROM api_keys WHERE admin AND revoked_at IS NULL LIMIT 2",
    "find_any_api_key": "SELECT 1 FROM api_keys LIMIT 1",
    "find_active_api_key": "SELECT 1 FROM api_keys WHERE revoked_at IS NULL LIMIT 1",
    # The row of the key if it is active, and then always a row that tells whether a key was ever issued.
    "find_api_key": """SELECT hash, id, name, namespaces, read_only, admin FROM api_keys
        WHERE id = ? AND revoked_at IS NULL
        UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, count(*) FROM (SELECT 1 FROM api_keys LIMIT 1) k""",
    "revoke_api_key": "UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL RETURNING id",
    "list_all_api_keys": "SELECT id, name, namespaces, revoked_at FROM api_keys ORDER BY created_at, id",
    "forget_api_key": "UPDATE api_keys SET name = id, namespaces = '[]' WHERE id = ?",
    "find_api_key_named": "SELECT 1 FROM api_keys WHERE name = ? LIMIT 1",
    "rename_actor_of_changes": "UPDATE changes SET actor = ? WHERE actor = ?",
    "rename_actor_of_refusals": "UPDATE refusals SET actor = ? WHERE actor = ?",
    # ------------------------------------------------------------ sign-ins
    "find_api_key_id": "SELECT id FROM api_keys WHERE hash = ? AND revoked_at IS NULL",
    "insert_sign_in": "INSERT INTO sign_ins (hash, api_key, expires_at) VALUES (?, ?, ?)",
    "find_sign_in": """SELECT k.name, k.namespaces, k.read_only, k.admin, s.expires_at, k.id FROM sign_ins s
        JOIN api_keys k ON k.id = s.api_key WHERE s.hash = ? AND s.expires_at > ? AND k.revoked_at IS NULL""",
    "delete_sign_in": "DELETE FROM sign_ins WHERE hash = ?",
    "delete_sign_ins_of": "DELETE FROM sign_ins WHERE api_key = ?",
    "delete_old_sign_ins": "DELETE FROM sign_ins WHERE expires_at <= ?",
    "delete_excess_sign_ins": """DELETE FROM sign_ins WHERE api_key = ? AND hash NOT IN
        (SELECT hash FROM sign_ins WHERE api_key = ? ORDER BY expires_at DESC LIMIT ?)""",
    # ------------------------------------------------------------ requests
    "add_requests": """INSERT INTO requests (minute, kind, count, refused, failed, total_ms, max_ms)
        VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (minute, kind) DO UPDATE SET count = count + excluded.count,
        refused = refused + excluded.refused, failed = failed + excluded.failed,
        total_ms = total_ms + excluded.total_ms, max_ms = max(max_ms, excluded.max_ms)""",
    "count_requests": """SELECT minute / ? AS step, kind, sum(count), sum(refused), sum(failed), sum(total_ms),
        max(max_ms) FROM requests WHERE minute >= ? GROUP BY step, kind""",
    "delete_old_requests": "DELETE FROM requests WHERE minute < ?",
    # ------------------------------------------------------------ erasable blobs
    "find_free_blob": """SELECT id, size FROM erasable_blobs WHERE is_free = 1 AND size BETWEEN ? AND ?
        ORDER BY size LIMIT 1""",
    "find_blob_size": "SELECT size FROM erasable_blobs WHERE id = ?",
    "insert_blob": "INSERT INTO erasable_blobs (is_free, size, data) VALUES (0, ?, ?) RETURNING id",
    "fill_blob": "UPDATE erasable_blobs SET is_free = 0, data = ? WHERE id = ?",
    "erase_blob": f"{_ERASE_BLOB} = ?",
    "erase_note_blobs": f"{_ERASE_BLOB} IN (SELECT blob_id FROM notes WHERE {IN_NAMESPACE})",
    "erase_vector_blobs": f"{_ERASE_BLOB} IN (SELECT blob_id FROM note_vectors WHERE {IN_NAMESPACE})",
    "rename_blobs": "ALTER TABLE erasable_blobs RENAME TO old_blobs",
    "drop_blob_index": "DROP INDEX erasable_blobs_free",
    "create_blobs": BLOBS,
    "create_blob_index": FREE_BLOBS,
    "copy_blobs": "INSERT INTO erasable_blobs SELECT * FROM old_blobs WHERE is_free = 0 ORDER BY id",
    "drop_blobs": "DROP TABLE old_blobs",
    # ------------------------------------------------------------ export and import
    "read_limits": "SELECT version_floor, writes_per_day, max_bytes FROM namespaces WHERE namespace = ?",
    "list_item_sizes": f"""SELECT key, bytes, length FROM items WHERE namespace = ? AND {_LIVE} AND key > ?
        ORDER BY key LIMIT ?""",
    "export_items": f"""SELECT key, length, version, created_at, updated_at, expires_at, value FROM items
        WHERE namespace = ? AND {_LIVE} AND key BETWEEN ? AND ? ORDER BY key""",
    "list_row_sizes": """SELECT position, length(CAST(value AS BLOB)) FROM list_items
        WHERE namespace = ? AND key = ? AND position > ? ORDER BY position LIMIT ?""",
    "export_list_rows": """SELECT value FROM list_items
        WHERE namespace = ? AND key = ? AND position BETWEEN ? AND ? ORDER BY position""",
    "list_note_sizes": f"SELECT id, bytes FROM notes WHERE {IN_NAMESPACE} AND {_LIVE} AND id > ? ORDER BY id LIMIT ?",
    "export_notes": f"""SELECT {NOTE} FROM {NOTES} WHERE n.{IN_NAMESPACE} AND {_LIVE} AND n.id BETWEEN ? AND ?
        ORDER BY n.id""",
    "find_content": f"""SELECT 1 FROM items WHERE namespace = ?
        UNION ALL SELECT 1 FROM notes WHERE {IN_NAMESPACE} LIMIT 1""",
    "insert_item": """INSERT INTO items
        (namespace, key, value, length, bytes, version, created_at, updated_at, expires_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1""",
    "add_item_bytes": "UPDATE items SET bytes = bytes + ? WHERE namespace = ? AND key = ?",
    # ------------------------------------------------------------ encryption of the whole store
    "page_values": """SELECT namespace, key, value FROM items WHERE value IS NOT NULL AND (namespace, key) > (?, ?)
        ORDER BY namespace, key LIMIT ?""",
    "page_list_rows": """SELECT namespace, key, position, value FROM list_items
        WHERE (namespace, key, position) > (?, ?, ?) ORDER BY namespace, key, position LIMIT ?""",
    "page_notes": f"""SELECT s.namespace, {NOTE} FROM {NOTES} {_OF_NAMESPACES}
        WHERE {_AFTER} AND n.id > {_AFTER_NOTE} ORDER BY s.namespace, n.id LIMIT ?3""",
    "page_vectors": f"""SELECT s.namespace, v.note, v.blob_id, b.data FROM note_vectors v
        JOIN erasable_blobs b ON b.id = v.blob_id JOIN namespaces s ON s.id = v.namespace_id
        WHERE {_AFTER} AND v.note > {_AFTER_NOTE} ORDER BY s.namespace, v.note LIMIT ?3""",
    "replace_value": "UPDATE items SET value = ? WHERE namespace = ? AND key = ?",
    "replace_list_row": "UPDATE list_items SET value = ? WHERE namespace = ? AND key = ? AND position = ?",
    "move_vector": f"UPDATE note_vectors SET blob_id = ? WHERE {IN_NAMESPACE} AND note = ?",
    "forget_digests": "UPDATE idempotency_keys SET digest = ''",
    "delete_key_envelope": "DELETE FROM key_envelope",
    "insert_key_envelope": "INSERT INTO key_envelope (id, salt, ciphertext) VALUES (1, ?, ?)",
    # ------------------------------------------------------------ consistency: each row found is a problem
    "count_store": """SELECT count(*), coalesce(sum(keys), 0), coalesce(sum(notes), 0), coalesce(sum(bytes), 0)
        FROM namespaces""",
    "check_usage": f"""SELECT n.namespace, n.keys, n.bytes, coalesce(sum(h.keys), 0), coalesce(sum(h.bytes), 0)
        FROM namespaces n LEFT JOIN {_HELD} ON h.namespace = n.namespace GROUP BY n.namespace, n.keys, n.bytes
        HAVING n.keys <> coalesce(sum(h.keys), 0) OR n.bytes <> coalesce(sum(h.bytes), 0)""",
    "check_note_count": """SELECT s.namespace, s.notes, count(n.id) FROM namespaces s
        LEFT JOIN notes n ON n.namespace_id = s.id
        GROUP BY s.namespace, s.notes HAVING s.notes <> count(n.id)""",
    "check_key_usage": """SELECT k.id, k.bytes, k.namespace_count, coalesce(sum(n.bytes), 0), count(n.namespace)
        FROM api_keys k LEFT JOIN namespaces n ON n.owner = k.id AND n.keys + n.notes > 0
        GROUP BY k.id, k.bytes, k.namespace_count
        HAVING k.bytes <> coalesce(sum(n.bytes), 0) OR k.namespace_count <> count(n.namespace)""",
    "check_note_namespaces": f"""SELECT n.namespace_id, n.id FROM notes n
        LEFT {_OF_NAMESPACES} WHERE s.namespace IS NULL""",
    "page_words": """SELECT space, word, block, postings FROM note_words
        WHERE (space, word, block) > (?, ?, ?) ORDER BY space, word, block LIMIT ?""",
    "list_note_numbers": "SELECT number FROM notes",
    "check_vectors": f"""SELECT {_NAME_OF.format("v")}, v.note FROM note_vectors v
        LEFT JOIN notes n ON n.namespace_id = v.namespace_id AND n.id = v.note WHERE n.id IS NULL""",
    "check_note_blobs": f"""SELECT {_NAME_OF.format("n")}, n.id FROM notes n
        LEFT JOIN erasable_blobs b ON b.id = n.blob_id AND b.is_free = 0 WHERE b.id IS NULL""",
    "check_vector_blobs": f"""SELECT {_NAME_OF.format("v")}, v.note FROM note_vectors v
        LEFT JOIN erasable_blobs b ON b.id = v.blob_id AND b.is_free = 0 WHERE b.id IS NULL""",
    "check_shared_blobs": f"SELECT blob_id, count(*) FROM ({_BLOB_IDS}) GROUP BY blob_id HAVING count(*) > 1",
    "check_unused_blobs": f"SELECT id FROM erasable_blobs WHERE is_free = 0 AND id NOT IN ({_BLOB_IDS})",
    "check_free_blobs": "SELECT id FROM erasable_blobs WHERE is_free = 1 AND data <> zeroblob(size)",
    "check_blob_sizes": "SELECT id FROM erasable_blobs WHERE length(data) <> size",
    "check_item_namespaces": """SELECT i.namespace, i.key FROM items i
        LEFT JOIN namespaces n ON n.namespace = i.namespace WHERE n.namespace IS NULL""",
    "check_lists": f"""SELECT i.namespace, i.key, i.length, count(l.position), i.bytes, {_LIST_SIZE}
        FROM items i LEFT JOIN list_items l ON l.namespace = i.namespace AND l.key = i.key
        WHERE i.length IS NOT NULL GROUP BY i.namespace, i.key, i.length, i.bytes
        HAVING i.length <> count(l.position) OR i.bytes <> {_LIST_SIZE}""",
    "check_positions": """SELECT namespace, key, count(*), min(position), max(position) FROM list_items
        GROUP BY namespace, key HAVING max(position) - min(position) + 1 <> count(*)""",
    "check_items": f"""SELECT namespace, key, bytes, {_ITEM_SIZE} FROM items
        WHERE value IS NOT NULL AND bytes <> {_ITEM_SIZE}""",
    "check_list_rows": """SELECT l.namespace, l.key, count(*) FROM list_items l
        LEFT JOIN items i ON i.namespace = l.namespace AND i.key = l.key AND i.length IS NOT NULL
        WHERE i.key IS NULL GROUP BY l.namespace, l.key""",
    "page_digests": f"""SELECT s.namespace, n.id, n.digest, {NOTE} FROM {NOTES} {_OF_NAMESPACES}
        WHERE b.is_free = 0 AND {_AFTER} AND n.id > {_AFTER_NOTE} ORDER BY s.namespace, n.id LIMIT ?3""",
})  # fmt: skip
"""The SQL text of each query, by its name."""
