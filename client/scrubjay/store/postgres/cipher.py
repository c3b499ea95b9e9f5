"""Encrypted values as text, because a column of PostgreSQL has one type."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable

from scrubjay.store.encryption import NO_ENCRYPTION, Cipher
from scrubjay.store.postgres.queries import ENCRYPTED


class TextCipher:
    """A cipher whose encrypted values are text: a mark that no JSON text starts with, and base64."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher
        self.encrypt_bytes = cipher.encrypt_bytes
        self.decrypt_bytes = cipher.decrypt_bytes

    def encrypt(self, text: str, associated: str) -> str:
        return ENCRYPTED + b64encode(self._cipher.encrypt_bytes(text.encode(), associated)).decode()

    def decrypt(self, stored: str, associated: str) -> str:
        return self._cipher.decrypt_bytes(_decoded(stored), associated).decode()

    def decrypt_all(self, stored: list[str], associated: str) -> list[str]:
        return [self.decrypt(one, associated) for one in stored]

    def keyed_hash(self, words: Iterable[int]) -> dict[int, int]:
        return self._cipher.keyed_hash(words)

    def keyed_digest(self, digest: bytes) -> bytes:
        return self._cipher.keyed_digest(digest)


def _decoded(stored: str) -> bytes:
    """The encrypted bytes; none, which no cipher decrypts, if a text was changed outside of Scrubjay."""
    try:
        return b64decode(stored[len(ENCRYPTED) :], validate=True) if stored.startswith(ENCRYPTED) else b""
    except ValueError:
        return b""


def as_text(cipher: Cipher) -> Cipher:
    return cipher if cipher is NO_ENCRYPTION else TextCipher(cipher)
