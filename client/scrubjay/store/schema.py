"""The tables. From the first release on MIGRATIONS is append only: a file's version is how many of them it has seen.

Every primary key of what users store starts with the namespace, so that the same schema can be sharded by it.
WITHOUT ROWID keeps a row in its primary key's tree: one lookup to read, one page to write.
"""

from __future__ import annotations

APPLICATION_ID = 0x5C4A4159
"""Marks an SQLite file as Scrubjay's, so that nobody else's database is ever migrated by mistake."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # What a namespace holds and has used. A NULL limit means the default of whoever asks.
        # version_floor is the highest version ever deleted: a key that comes back starts above it,
        # so that a version seen once can never mean another value later.
        """CREATE TABLE namespaces (
            namespace TEXT NOT NULL PRIMARY KEY,
            keys INTEGER NOT NULL,
            notes INTEGER NOT NULL,
            bytes INTEGER NOT NULL,
            day INTEGER NOT NULL,
            writes INTEGER NOT NULL,
            writes_per_day INTEGER,
            max_bytes INTEGER,
            version_floor INTEGER NOT NULL
        ) WITHOUT ROWID""",
        # value is JSON text, or NULL for a list that grows: then length rows are in list_items.
        # bytes is key and JSON text together, whichever of the two forms it is stored in.
        """CREATE TABLE items (
            namespace TEXT NOT NULL,
            key TEXT NOT NULL,
            value TEXT,
            length INTEGER,
            bytes INTEGER NOT NULL,
            version INTEGER NOT NULL,
            created_at INTEGER NOT NULL,
            updated_at INTEGER NOT NULL,
            expires_at INTEGER,
            PRIMARY KEY (namespace, key),
            CHECK ((value IS NULL) <> (length IS NULL))
        ) WITHOUT ROWID""",
        "CREATE INDEX items_expiry ON items (expires_at) WHERE expires_at IS NOT NULL",
        """CREATE TABLE list_items (
            namespace TEXT NOT NULL,
            key TEXT NOT NULL,
            position INTEGER NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (namespace, key, position)
        ) WITHOUT ROWID""",
        # The ids of writes that must happen once, and what they came to: the last one of each slot.
        # used_on is a day, so that its index is written once a day and not with each write.
        """CREATE TABLE deliveries (
            namespace TEXT NOT NULL,
            slot TEXT NOT NULL,
            number INTEGER NOT NULL,
            verb TEXT NOT NULL,
            result TEXT NOT NULL,
            used_on INTEGER NOT NULL,
            PRIMARY KEY (namespace, slot)
        ) WITHOUT ROWID""",
        "CREATE INDEX deliveries_age ON deliveries (used_on)",
        # Of a key only its hash is kept. The id is in the key itself, and finds its row.
        """CREATE TABLE apikeys (
            id TEXT NOT NULL PRIMARY KEY,
            name TEXT NOT NULL,
            hash TEXT NOT NULL,
            namespaces TEXT NOT NULL,
            read_only INTEGER NOT NULL,
            admin INTEGER NOT NULL,
            created_at INTEGER NOT NULL
        ) WITHOUT ROWID""",
    ),
    (
        # What must not outlive its erasure: rows that never move, never go and never change their size.
        """CREATE TABLE drawers (
            drawer INTEGER PRIMARY KEY,
            is_free INTEGER NOT NULL,
            size INTEGER NOT NULL,
            held BLOB NOT NULL
        )""",
        "CREATE INDEX drawers_free ON drawers (size) WHERE is_free = 1",
        # All that was said is in the drawer; here are numbers that stand for it, so that it is found.
        # speaker is a JSON list of them, tags are between commas. digest is the content's, so that it is found again.
        """CREATE TABLE notes (
            namespace TEXT NOT NULL,
            id INTEGER NOT NULL,
            drawer INTEGER NOT NULL,
            digest BLOB NOT NULL,
            type INTEGER,
            session INTEGER,
            speaker TEXT,
            tags TEXT NOT NULL,
            asks INTEGER NOT NULL,
            pinned INTEGER NOT NULL,
            times INTEGER NOT NULL,
            bytes INTEGER NOT NULL,
            created_at INTEGER NOT NULL,
            updated_at INTEGER NOT NULL,
            expires_at INTEGER,
            PRIMARY KEY (namespace, id)
        ) WITHOUT ROWID""",
        "CREATE UNIQUE INDEX notes_content ON notes (namespace, digest)",
        "CREATE INDEX notes_session ON notes (namespace, session, id) WHERE session IS NOT NULL",
        "CREATE INDEX notes_expiry ON notes (expires_at) WHERE expires_at IS NOT NULL",
        # The index of words. Not FTS5: its deletes leave the text in older segments until they merge
        # (secure-delete came with SQLite 3.42), and one index over all namespaces would let each
        # pay for, and count the words of, all others.
        """CREATE TABLE note_words (
            namespace TEXT NOT NULL,
            word INTEGER NOT NULL,
            note INTEGER NOT NULL,
            count INTEGER NOT NULL,
            length INTEGER NOT NULL,
            PRIMARY KEY (namespace, word, note)
        ) WITHOUT ROWID""",
        # One vector a note, in a drawer: what the model named makes of it, as float16. mark is a number that
        # no other has had, so that whoever keeps vectors in memory knows whether they are still the same.
        """CREATE TABLE note_vectors (
            namespace TEXT NOT NULL,
            note INTEGER NOT NULL,
            model TEXT NOT NULL,
            drawer INTEGER NOT NULL,
            mark INTEGER NOT NULL,
            PRIMARY KEY (namespace, note)
        ) WITHOUT ROWID""",
    ),
    (
        # A rowid table grows at its end, which is the cheapest insert there is. Its last row is never
        # deleted, so that numbers do not come back. refusal is the code of the error.
        """CREATE TABLE changes (
            id INTEGER PRIMARY KEY,
            at INTEGER NOT NULL,
            who TEXT NOT NULL,
            verb TEXT NOT NULL,
            namespace TEXT NOT NULL,
            key TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            refusal TEXT
        )""",
        # One row, or none when nothing is sealed: the keys, which only the secret opens.
        """CREATE TABLE keyring (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            salt BLOB NOT NULL,
            sealed BLOB NOT NULL
        )""",
    ),
)

VERSION = len(MIGRATIONS)
