"""Encryption of a whole store: for the first time, with another secret, or with none."""

from __future__ import annotations

from scrubjay.store import erasable
from scrubjay.store.encryption import Cipher, KeyEnvelope, item_associated_data, note_associated_data
from scrubjay.store.note_rows import Row
from scrubjay.store.notes import change_note
from scrubjay.store.operation import LONG_WRITE, Context, ExecuteMany, Rows, Statements, operation

CHUNK = 500
"""Rows that are in memory at once."""


@operation("reencrypt", LONG_WRITE)
def reencrypt(context: Context, envelope: KeyEnvelope | None, cipher: Cipher) -> Statements[None]:
    """Encrypt everything with another cipher, whose key envelope replaces the current one."""
    before = context.cipher
    last: tuple[object, ...] = ("", "")
    while rows := (yield "page_values", (*last, CHUNK)):
        yield ExecuteMany("replace_value", _reencrypted(before, cipher, rows))
        last = rows[-1][:2]
    last = ("", "", -1)
    while rows := (yield "page_list_rows", (*last, CHUNK)):
        yield ExecuteMany("replace_list_row", _reencrypted(before, cipher, rows))
        last = rows[-1][:3]
    yield from _reencrypt_notes(before, cipher)
    yield from _reencrypt_vectors(before, cipher)
    yield "forget_digests", ()  # keyed with the old cipher, and their calls are not stored
    yield "delete_key_envelope", ()
    if envelope:
        yield "insert_key_envelope", envelope


def _reencrypted(before: Cipher, cipher: Cipher, rows: Rows) -> Rows:
    """For rows of primary key and value: the new value, then the primary key."""
    updates: Rows = []
    for *at, stored in rows:
        associated = item_associated_data(at[0], at[1])
        updates.append((cipher.encrypt(before.decrypt(stored, associated), associated), *at))
    return updates


def _reencrypt_notes(before: Cipher, cipher: Cipher) -> Statements[None]:
    last: tuple[object, ...] = ("", -1)
    while rows := (yield "page_notes", (*last, CHUNK)):
        for namespace, *columns in rows:
            row = Row.read(before, namespace, columns)
            yield from change_note(cipher, namespace, row, row, before=before)
        last = rows[-1][:2]


def _reencrypt_vectors(before: Cipher, cipher: Cipher) -> Statements[None]:
    last: tuple[object, ...] = ("", -1)
    while rows := (yield "page_vectors", (*last, CHUNK)):
        for namespace, note, blob_id, blob in rows:
            associated = note_associated_data(namespace, note)
            data = cipher.encrypt_bytes(before.decrypt_bytes(erasable.data_of(blob), associated), associated)
            moved = yield from erasable.replace(blob_id, data)
            yield "move_vector", (moved, namespace, note)
        last = rows[-1][:2]
