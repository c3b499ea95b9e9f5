"""What the counters and lists say, against what is really there. Every row found is a fault."""

from __future__ import annotations

from scrubjay.errors import Unavailable

from .note_rows import COLUMNS, SOURCE, Row, digest_of
from .operation import SNAPSHOT, Context, Long, Steps, operation
from .sealing import OVERHEAD

CHUNK = 500
"""Notes that are held in memory at once."""


def _size(column: str) -> str:
    """The bytes of a text, sealed or not, as SQL."""
    return (
        f"CASE typeof({column}) WHEN 'blob' THEN length({column}) - {OVERHEAD} ELSE length(CAST({column} AS BLOB)) END"
    )


# One name for the size of an item's JSON text in either form, as items.bytes counts it.
_CHECKS = (
    (
        "the namespace {0!r} counts {1} keys and {2} bytes, but holds {3} keys and {4} bytes",
        """SELECT n.namespace, n.keys, n.bytes, coalesce(sum(h.keys), 0), coalesce(sum(h.bytes), 0)
        FROM namespaces n LEFT JOIN (SELECT namespace, 1 AS keys, bytes FROM items
        UNION ALL SELECT namespace, 0, bytes FROM notes) h ON h.namespace = n.namespace
        GROUP BY n.namespace, n.keys, n.bytes
        HAVING n.keys <> coalesce(sum(h.keys), 0) OR n.bytes <> coalesce(sum(h.bytes), 0)""",
    ),
    (
        "the namespace {0!r} counts {1} notes, but holds {2}",
        """SELECT n.namespace, n.notes, count(h.id) FROM namespaces n LEFT JOIN notes h ON h.namespace = n.namespace
        GROUP BY n.namespace, n.notes HAVING n.notes <> count(h.id)""",
    ),
    (
        "the note {1} belongs to the namespace {0!r}, which is not counted anywhere",
        """SELECT h.namespace, h.id FROM notes h LEFT JOIN namespaces n ON n.namespace = h.namespace
        WHERE n.namespace IS NULL""",
    ),
    (
        "{2} words in {0!r} point to the note {1}, which is not there",
        """SELECT w.namespace, w.note, count(*) FROM note_words w
        LEFT JOIN notes n ON n.namespace = w.namespace AND n.id = w.note
        WHERE n.id IS NULL GROUP BY w.namespace, w.note""",
    ),
    (
        "a vector in {0!r} belongs to the note {1}, which is not there",
        """SELECT v.namespace, v.note FROM note_vectors v
        LEFT JOIN notes n ON n.namespace = v.namespace AND n.id = v.note WHERE n.id IS NULL""",
    ),
    (
        "the note {1} in {0!r} has lost what it said",
        """SELECT n.namespace, n.id FROM notes n LEFT JOIN drawers d ON d.drawer = n.drawer AND d.is_free = 0
        WHERE d.drawer IS NULL""",
    ),
    (
        "the vector of the note {1} in {0!r} is lost; `scrubjay reindex` makes it anew",
        """SELECT v.namespace, v.note FROM note_vectors v LEFT JOIN drawers d ON d.drawer = v.drawer AND d.is_free = 0
        WHERE d.drawer IS NULL""",
    ),
    (
        "{1} things lie in the drawer {0}, which is for one",
        """SELECT drawer, count(*) FROM (SELECT drawer FROM notes UNION ALL SELECT drawer FROM note_vectors)
        GROUP BY drawer HAVING count(*) > 1""",
    ),
    (
        "what lies in the drawer {0} belongs to nothing",
        """SELECT drawer FROM drawers WHERE is_free = 0
        AND drawer NOT IN (SELECT drawer FROM notes UNION ALL SELECT drawer FROM note_vectors)""",
    ),
    (
        "the drawer {0} is free, and not empty",
        "SELECT drawer FROM drawers WHERE is_free = 1 AND held <> zeroblob(size)",
    ),
    (
        "the drawer {0} has another size than it says",
        "SELECT drawer FROM drawers WHERE length(held) <> size",
    ),
    (
        "the item {1!r} belongs to the namespace {0!r}, which is not counted anywhere",
        """SELECT i.namespace, i.key FROM items i LEFT JOIN namespaces n ON n.namespace = i.namespace
        WHERE n.namespace IS NULL""",
    ),
    (
        "the list {1!r} in {0!r} says {2} items and {4} bytes, but has {3} items and {5} bytes",
        f"""SELECT i.namespace, i.key, i.length, count(l.position), i.bytes,
        length(CAST(i.key AS BLOB)) + 2 + coalesce(sum({_size("l.value")} + 1) - 1, 0)
        FROM items i LEFT JOIN list_items l ON l.namespace = i.namespace AND l.key = i.key
        WHERE i.length IS NOT NULL GROUP BY i.namespace, i.key, i.length, i.bytes
        HAVING i.length <> count(l.position) OR i.bytes <>
        length(CAST(i.key AS BLOB)) + 2 + coalesce(sum({_size("l.value")} + 1) - 1, 0)""",  # noqa: S608
    ),
    (
        "the item {1!r} in {0!r} says {2} bytes, but has {3}",
        f"""SELECT namespace, key, bytes, length(CAST(key AS BLOB)) + {_size("value")} FROM items
        WHERE value IS NOT NULL AND bytes <> length(CAST(key AS BLOB)) + {_size("value")}""",  # noqa: S608
    ),
    (
        "{2} list items under {1!r} in {0!r} belong to no list",
        """SELECT l.namespace, l.key, count(*) FROM list_items l
        LEFT JOIN items i ON i.namespace = l.namespace AND i.key = l.key AND i.length IS NOT NULL
        WHERE i.key IS NULL GROUP BY l.namespace, l.key""",
    ),
)


_NOTES = f"""SELECT n.namespace, n.id, n.digest, {COLUMNS} FROM {SOURCE}
WHERE d.is_free = 0 AND (n.namespace, n.id) > (?, ?) ORDER BY n.namespace, n.id LIMIT ?"""  # noqa: S608


@operation(SNAPSHOT)
def find_faults(context: Context) -> Steps[list[str]]:
    """A sentence for each thing that is not as it should be."""
    faults: list[str] = []
    for sentence, query in _CHECKS:
        rows = yield Long(query, ())
        faults += [sentence.format(*row) for row in rows]
    return faults + (yield from _faults_of_notes(context))


def _faults_of_notes(context: Context) -> Steps[list[str]]:
    """Whether notes are what their rows say."""
    faults: list[str] = []
    last: tuple[object, ...] = ("", -1)
    while rows := (yield Long(_NOTES, (*last, CHUNK))):
        last = rows[-1][:2]
        for namespace, id_, digest, *columns in rows:
            try:
                row = Row.read(context.cipher, namespace, columns)
            except Unavailable as error:
                faults.append(f"the note {id_} in {namespace!r} cannot be read: {error}")
                continue
            if digest_of(context.cipher, row.content, row.session) != digest:
                faults.append(f"the note {id_} in {namespace!r} is not what it was")
            if row.bytes != row.measured().bytes:
                faults.append(f"the note {id_} in {namespace!r} says {row.bytes} bytes, but has {row.measured().bytes}")
    return faults


@operation(SNAPSHOT)
def count_all(_context: Context) -> Steps[tuple[int, int, int]]:
    """How many namespaces, items and bytes there are."""
    ((namespaces, keys, size),) = yield Long(
        "SELECT count(*), coalesce(sum(keys), 0), coalesce(sum(bytes), 0) FROM namespaces", ()
    )
    return namespaces, keys, size
