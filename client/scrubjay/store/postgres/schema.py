"""The tables of a PostgreSQL database: those of SQLite, with what PostgreSQL needs to be exact and fast.

Texts are compared by code points (COLLATE "C"), so that keys have the same order as in Python and in SQLite. Rows that
are updated in place all the time leave room on their pages (fillfactor), so that the indexes need no new entry.
"""

from __future__ import annotations

_TEXT = 'TEXT COLLATE "C"'

_FIRST = (
    f"""CREATE TABLE namespaces (
        namespace {_TEXT} NOT NULL PRIMARY KEY,
        keys BIGINT NOT NULL,
        notes BIGINT NOT NULL,
        bytes BIGINT NOT NULL,
        day BIGINT NOT NULL,
        writes BIGINT NOT NULL,
        writes_per_day BIGINT,
        max_bytes BIGINT,
        version_floor BIGINT NOT NULL,
        changed_at BIGINT NOT NULL DEFAULT 0,
        owner {_TEXT} NOT NULL DEFAULT '',
        vectors_stored BIGINT NOT NULL DEFAULT 0,
        vectors_removed BIGINT NOT NULL DEFAULT 0
    ) WITH (fillfactor = 50)""",
    # An encrypted value is text as well: see TextCipher.
    f"""CREATE TABLE items (
        namespace {_TEXT} NOT NULL,
        key {_TEXT} NOT NULL,
        value {_TEXT},
        length BIGINT,
        bytes BIGINT NOT NULL,
        version BIGINT NOT NULL,
        created_at BIGINT NOT NULL,
        updated_at BIGINT NOT NULL,
        expires_at BIGINT,
        PRIMARY KEY (namespace, key),
        CHECK ((value IS NULL) <> (length IS NULL))
    ) WITH (fillfactor = 80)""",
    "CREATE INDEX items_expiry ON items (expires_at) WHERE expires_at IS NOT NULL",
    f"""CREATE TABLE list_items (
        namespace {_TEXT} NOT NULL,
        key {_TEXT} NOT NULL,
        position BIGINT NOT NULL,
        value {_TEXT} NOT NULL,
        PRIMARY KEY (namespace, key, position)
    )""",
    f"""CREATE TABLE idempotency_keys (
        namespace {_TEXT} NOT NULL,
        sender {_TEXT} NOT NULL,
        sequence BIGINT NOT NULL,
        verb {_TEXT} NOT NULL,
        key {_TEXT} NOT NULL,
        digest {_TEXT} NOT NULL,
        result {_TEXT} NOT NULL,
        used_on BIGINT NOT NULL,
        PRIMARY KEY (namespace, sender)
    ) WITH (fillfactor = 50)""",
    "CREATE INDEX idempotency_keys_age ON idempotency_keys (used_on)",
    f"""CREATE TABLE api_keys (
        id {_TEXT} NOT NULL PRIMARY KEY,
        name {_TEXT} NOT NULL,
        hash {_TEXT} NOT NULL,
        namespaces {_TEXT} NOT NULL,
        read_only BIGINT NOT NULL,
        admin BIGINT NOT NULL,
        created_at BIGINT NOT NULL,
        revoked_at BIGINT,
        writes_per_day BIGINT,
        max_bytes BIGINT,
        max_namespaces BIGINT,
        day BIGINT NOT NULL DEFAULT 0,
        writes BIGINT NOT NULL DEFAULT 0,
        bytes BIGINT NOT NULL DEFAULT 0,
        namespace_count BIGINT NOT NULL DEFAULT 0
    ) WITH (fillfactor = 50)""",
    # An update writes a new copy of the row, so nothing is overwritten in place: an erased blob is a deleted row.
    """CREATE TABLE erasable_blobs (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        is_free BIGINT NOT NULL,
        size BIGINT NOT NULL,
        data BYTEA NOT NULL
    )""",
    f"""CREATE TABLE notes (
        number BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE,
        namespace {_TEXT} NOT NULL,
        id BIGINT NOT NULL,
        blob_id BIGINT NOT NULL,
        digest BYTEA NOT NULL,
        type BIGINT,
        session BIGINT,
        speaker {_TEXT},
        tags {_TEXT} NOT NULL,
        asks BIGINT NOT NULL,
        is_change BIGINT NOT NULL,
        pinned BIGINT NOT NULL,
        times BIGINT NOT NULL,
        bytes BIGINT NOT NULL,
        created_at BIGINT NOT NULL,
        updated_at BIGINT NOT NULL,
        expires_at BIGINT,
        superseded_by BIGINT,
        PRIMARY KEY (namespace, id)
    )""",
    "CREATE UNIQUE INDEX notes_content ON notes (namespace, digest)",
    "CREATE INDEX notes_session ON notes (namespace, session, id)",
    "CREATE INDEX notes_expiry ON notes (expires_at) WHERE expires_at IS NOT NULL",
    # A block is replaced whenever a note with its word is added.
    """CREATE TABLE note_words (
        space BIGINT NOT NULL,
        word BIGINT NOT NULL,
        block BIGINT NOT NULL,
        postings BYTEA NOT NULL,
        PRIMARY KEY (space, word, block)
    ) WITH (fillfactor = 70)""",
    f"""CREATE TABLE note_vectors (
        namespace {_TEXT} NOT NULL,
        note BIGINT NOT NULL,
        model {_TEXT} NOT NULL,
        blob_id BIGINT NOT NULL,
        mark BIGINT NOT NULL,
        PRIMARY KEY (namespace, note)
    )""",
    "CREATE INDEX note_vectors_mark ON note_vectors (namespace, mark)",
    # number is the cursor of watchers: it counts the changes of a namespace in the order of their commits. Ids are
    # given before the commit, so that a lower one may become visible later.
    f"""CREATE TABLE changes (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        number BIGINT NOT NULL,
        at BIGINT NOT NULL,
        actor {_TEXT} NOT NULL,
        verb {_TEXT} NOT NULL,
        namespace {_TEXT} NOT NULL,
        key {_TEXT} NOT NULL,
        bytes BIGINT NOT NULL,
        UNIQUE (namespace, number)
    )""",
    # The last number of a namespace whose changes were removed from the log, or which was erased: its numbers continue.
    """CREATE TABLE change_floors (
        namespace_hash BYTEA NOT NULL PRIMARY KEY,
        number BIGINT NOT NULL
    )""",
    f"""CREATE TABLE refusals (
        change BIGINT NOT NULL,
        number BIGINT NOT NULL,
        at BIGINT NOT NULL,
        actor {_TEXT} NOT NULL,
        verb {_TEXT} NOT NULL,
        namespace {_TEXT} NOT NULL,
        key {_TEXT} NOT NULL,
        code {_TEXT} NOT NULL,
        times BIGINT NOT NULL,
        PRIMARY KEY (change, number)
    )""",
    """CREATE TABLE key_envelope (
        id BIGINT PRIMARY KEY CHECK (id = 1),
        salt BYTEA NOT NULL,
        ciphertext BYTEA NOT NULL
    )""",
    f"""CREATE TABLE sign_ins (
        hash {_TEXT} NOT NULL PRIMARY KEY,
        api_key {_TEXT} NOT NULL,
        expires_at BIGINT NOT NULL
    )""",
    f"""CREATE TABLE requests (
        minute BIGINT NOT NULL,
        kind {_TEXT} NOT NULL,
        count BIGINT NOT NULL,
        refused BIGINT NOT NULL,
        failed BIGINT NOT NULL,
        total_ms DOUBLE PRECISION NOT NULL,
        max_ms DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (minute, kind)
    )""",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST,)
"""Append only from the first release on: the version of a database is how many of them were applied to it."""

VERSION = len(MIGRATIONS)
VERSION_TABLE = "scrubjay_version"
"""The table that has the version: one row."""
