"""The tables of a SQLite file.

Every primary key of what users store starts with the namespace: with its name, or in the rows of notes, whose indexes
would repeat the name, with its id.
WITHOUT ROWID keeps a row in its primary key's tree: one lookup to read, one page to write. Only tables with short rows
have it: to compare two keys in such a tree SQLite reads a row to its end, however long it is.
"""

from __future__ import annotations

APPLICATION_ID = 0x5C4A4159
"""Marks a SQLite file as Scrubjay's, so that no other program's database is ever migrated by mistake."""

BLOBS = """CREATE TABLE erasable_blobs (
    id INTEGER PRIMARY KEY,
    is_free INTEGER NOT NULL,
    size INTEGER NOT NULL,
    data BLOB NOT NULL
)"""
FREE_BLOBS = "CREATE INDEX erasable_blobs_free ON erasable_blobs (size) WHERE is_free = 1"

_FIRST = (
    # Usage and limits. A NULL limit means the store's default.
    # version_floor is the highest version ever deleted: a key that is set again starts above it,
    # so that a version that a client has read never belongs to another value.
    # changed_at is in milliseconds since 1970. owner is the api key that wrote into the namespace while it was empty:
    # its bytes count for this key. From the numbers of vectors that were ever stored, and removed or replaced, a cache
    # of vectors sees whether it is current; it then reads those with a greater mark.
    # id is what the rows of notes and vectors call the namespace; NULL until the first note. It is the last column: if
    # one that may be NULL came after the name, SQLite would not rely on the order of names, and sort what it joins.
    """CREATE TABLE namespaces (
        namespace TEXT NOT NULL PRIMARY KEY,
        keys INTEGER NOT NULL,
        notes INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        day INTEGER NOT NULL,
        writes INTEGER NOT NULL,
        writes_per_day INTEGER,
        max_bytes INTEGER,
        version_floor INTEGER NOT NULL,
        changed_at INTEGER NOT NULL DEFAULT 0,
        owner TEXT NOT NULL DEFAULT '',
        vectors_stored INTEGER NOT NULL DEFAULT 0,
        vectors_removed INTEGER NOT NULL DEFAULT 0,
        id INTEGER
    ) WITHOUT ROWID""",
    # value is JSON text, encrypted or not; NULL for a list in rows, of which list_items has `length`.
    # bytes is the size of key and JSON text, in whichever of the two forms it is stored.
    # value is the last column, because SQLite reads through all columns before the one that it needs.
    """CREATE TABLE items (
        length INTEGER,
        bytes INTEGER NOT NULL,
        version INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        expires_at INTEGER,
        namespace TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT,
        PRIMARY KEY (namespace, key),
        CHECK ((value IS NULL) <> (length IS NULL))
    )""",
    "CREATE INDEX items_expiry ON items (expires_at) WHERE expires_at IS NOT NULL",
    """CREATE TABLE list_items (
        position INTEGER NOT NULL,
        namespace TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (namespace, key, position)
    )""",
    # The last idempotency key of each sender, the call it was used for, and its result.
    # used_on is a day, so that its index changes once a day and not with each write.
    """CREATE TABLE idempotency_keys (
        namespace TEXT NOT NULL,
        sender TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        verb TEXT NOT NULL,
        key TEXT NOT NULL,
        digest TEXT NOT NULL,
        result TEXT NOT NULL,
        used_on INTEGER NOT NULL,
        PRIMARY KEY (namespace, sender)
    ) WITHOUT ROWID""",
    "CREATE INDEX idempotency_keys_age ON idempotency_keys (used_on)",
    # Only the hash of a key is stored; the id is part of the key. A revoked key keeps its row: a file that once had
    # keys never again gives access without one. A limit is NULL for the server's default. Used: writes on a day, bytes
    # and number of the namespaces that the key owns and that hold something.
    """CREATE TABLE api_keys (
        id TEXT NOT NULL PRIMARY KEY,
        name TEXT NOT NULL,
        hash TEXT NOT NULL,
        namespaces TEXT NOT NULL,
        read_only INTEGER NOT NULL,
        admin INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        revoked_at INTEGER,
        writes_per_day INTEGER,
        max_bytes INTEGER,
        max_namespaces INTEGER,
        day INTEGER NOT NULL DEFAULT 0,
        writes INTEGER NOT NULL DEFAULT 0,
        bytes INTEGER NOT NULL DEFAULT 0,
        namespace_count INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID""",
    # What must not outlive its erasure: rows that never move, are never deleted and never change their size.
    BLOBS,
    FREE_BLOBS,
    # All text of a note is in its blob; here are the hashes by which it is found.
    # speaker is a JSON list of hashes, tags are hashes between commas. digest is that of the content. number is what
    # the index of words calls the note: small, so that the index is. superseded_by is the id of the note that replaced
    # it; NULL for a note that is recalled.
    """CREATE TABLE notes (
        number INTEGER PRIMARY KEY,
        namespace_id INTEGER NOT NULL,
        id INTEGER NOT NULL,
        blob_id INTEGER NOT NULL,
        digest BLOB NOT NULL,
        type INTEGER,
        session INTEGER,
        speaker TEXT,
        tags TEXT NOT NULL,
        asks INTEGER NOT NULL,
        is_change INTEGER NOT NULL,
        pinned INTEGER NOT NULL,
        times INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        expires_at INTEGER,
        superseded_by INTEGER
    )""",
    "CREATE UNIQUE INDEX notes_id ON notes (namespace_id, id)",
    "CREATE UNIQUE INDEX notes_content ON notes (namespace_id, digest)",
    "CREATE INDEX notes_session ON notes (namespace_id, session, id)",
    "CREATE INDEX notes_expiry ON notes (expires_at) WHERE expires_at IS NOT NULL",
    # The index of words. Not FTS5: its deletes leave the text in older segments until they merge
    # (secure-delete came with SQLite 3.42), and one index over all namespaces would let each
    # pay for, and count the words of, all others.
    # A row is a block of postings: see word_index.py. space is a hash of the namespace.
    """CREATE TABLE note_words (
        space INTEGER NOT NULL,
        word INTEGER NOT NULL,
        block INTEGER NOT NULL,
        postings BLOB NOT NULL,
        PRIMARY KEY (space, word, block)
    ) WITHOUT ROWID""",
    # The embedding of a note by a model, as float16, in a blob. mark grows with each vector of
    # a namespace, so that a cache of vectors knows which ones are new.
    """CREATE TABLE note_vectors (
        namespace_id INTEGER NOT NULL,
        note INTEGER NOT NULL,
        model TEXT NOT NULL,
        blob_id INTEGER NOT NULL,
        mark INTEGER NOT NULL,
        PRIMARY KEY (namespace_id, note)
    ) WITHOUT ROWID""",
    "CREATE INDEX note_vectors_mark ON note_vectors (namespace_id, mark)",
    # A rowid table grows at its end, which is the cheapest insert there is. Its last row is never
    # deleted, so that no id is used twice.
    """CREATE TABLE changes (
        id INTEGER PRIMARY KEY,
        at INTEGER NOT NULL,
        actor TEXT NOT NULL,
        verb TEXT NOT NULL,
        namespace TEXT NOT NULL,
        key TEXT NOT NULL,
        bytes INTEGER NOT NULL
    )""",
    # Refused calls. change is the id of the last change before the refusal; number grows by one with each.
    # code is that of the error, times how often it happened in that second.
    """CREATE TABLE refusals (
        change INTEGER NOT NULL,
        number INTEGER NOT NULL,
        at INTEGER NOT NULL,
        actor TEXT NOT NULL,
        verb TEXT NOT NULL,
        namespace TEXT NOT NULL,
        key TEXT NOT NULL,
        code TEXT NOT NULL,
        times INTEGER NOT NULL,
        PRIMARY KEY (change, number)
    ) WITHOUT ROWID""",
    # One row, or none when nothing is encrypted: the file's keys, which only the secret decrypts.
    """CREATE TABLE key_envelope (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        salt BLOB NOT NULL,
        ciphertext BLOB NOT NULL
    )""",
    # Browsers that are signed in. Only the hash of a token is stored.
    """CREATE TABLE sign_ins (
        hash TEXT NOT NULL PRIMARY KEY,
        api_key TEXT NOT NULL,
        expires_at INTEGER NOT NULL
    ) WITHOUT ROWID""",
    # Requests of each minute, by kind. Each server process adds its own once a minute.
    """CREATE TABLE requests (
        minute INTEGER NOT NULL,
        kind TEXT NOT NULL,
        count INTEGER NOT NULL,
        refused INTEGER NOT NULL,
        failed INTEGER NOT NULL,
        total_ms REAL NOT NULL,
        max_ms REAL NOT NULL,
        PRIMARY KEY (minute, kind)
    ) WITHOUT ROWID""",
    # A second copy of each name and id, from which recovery knows whose a note is if the first one is damaged. It is
    # created last, so that its pages are far from those of the first.
    "CREATE UNIQUE INDEX namespaces_id ON namespaces (id) WHERE id IS NOT NULL",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST,)
"""Append only from the first release on: the version of a file is how many of them were applied to it."""

VERSION = len(MIGRATIONS)
