"""Encryption of values with a secret.

The secret decrypts an envelope in the file that holds two random keys: one encrypts values, together with where they
belong (associated data), so that none can be moved to another key; the other hashes the words of the index. A file
is encrypted as a whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from scrubjay.errors import InvalidInput, MissingExtra, Unavailable

NONCE_BYTES, TAG_BYTES, KEY_BYTES, SALT_BYTES = 12, 16, 32, 16
OVERHEAD = NONCE_BYTES + TAG_BYTES
"""Bytes by which an encrypted value is longer than its text."""
_SCRYPT = {"n": 2**15, "r": 8, "p": 1, "maxmem": 2**26, "dklen": KEY_BYTES}
"""A guess at the secret costs 32 MB of memory and a tenth of a second."""
_WORD_BYTES = 7
"""Bytes of a hashed word: a number of 56 bits."""
_ENVELOPE_DATA = b"key envelope"
"""The associated data of the envelope."""


class Cipher(Protocol):
    """How values are stored. `associated` says where a value belongs; it cannot be decrypted elsewhere."""

    def encrypt(self, text: str, associated: str) -> Any: ...
    def decrypt(self, stored: Any, associated: str) -> str: ...
    def decrypt_all(self, stored: list[Any], associated: str) -> list[str]: ...
    def encrypt_bytes(self, data: bytes, associated: str) -> bytes: ...
    def decrypt_bytes(self, stored: bytes, associated: str) -> bytes: ...
    def keyed_hash(self, words: Iterable[int]) -> dict[int, int]:
        """The number of each word in the index."""

    def keyed_digest(self, digest: bytes) -> bytes: ...


class _NoEncryption:
    """The cipher of a file without a secret: values are stored as they are."""

    def encrypt(self, text: str, _associated: str) -> str:
        return text

    def decrypt(self, stored: Any, _associated: str) -> str:
        return stored  # type: ignore[no-any-return]

    def decrypt_all(self, stored: list[Any], _associated: str) -> list[str]:
        return stored

    def encrypt_bytes(self, data: bytes, _associated: str) -> bytes:
        return data

    decrypt_bytes = encrypt_bytes

    def keyed_hash(self, words: Iterable[int]) -> dict[int, int]:
        return {word: word for word in words}

    def keyed_digest(self, digest: bytes) -> bytes:
        return digest


NO_ENCRYPTION: Cipher = _NoEncryption()


class _AesCipher:
    """AES-256-GCM with a random nonce for each value."""

    def __init__(self, keys: bytes) -> None:
        from hashlib import blake2b  # noqa: PLC0415 - `import scrubjay` starts sooner without it

        self._aes = _aes(keys[:KEY_BYTES])
        self._hash_key = keys[KEY_BYTES:]
        self._blake2b = blake2b

    def encrypt(self, text: str, associated: str) -> bytes:
        return self.encrypt_bytes(text.encode(), associated)

    def decrypt(self, stored: Any, associated: str) -> str:
        return self.decrypt_bytes(stored, associated).decode()

    def decrypt_all(self, stored: list[Any], associated: str) -> list[str]:
        return [self.decrypt(one, associated) for one in stored]

    def encrypt_bytes(self, data: bytes, associated: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._aes.encrypt(nonce, data, associated.encode())  # type: ignore[no-any-return]

    def decrypt_bytes(self, stored: Any, associated: str) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an optional package

        try:
            data: bytes = self._aes.decrypt(stored[:NONCE_BYTES], stored[NONCE_BYTES:], associated.encode())
        except (InvalidTag, ValueError, TypeError) as error:
            raise Unavailable(
                "an encrypted value was changed, or moved to another key, outside of Scrubjay, and cannot be read;"
                " run `scrubjay doctor`, restore a backup"
            ) from error
        return data

    def keyed_hash(self, words: Iterable[int]) -> dict[int, int]:
        return {word: self._hash(word) for word in words}

    def _hash(self, word: int) -> int:
        """A number of the same sign: the sign is the kind of word."""
        digest = self._blake2b(word.to_bytes(8, signed=True), digest_size=_WORD_BYTES, key=self._hash_key).digest()
        number = int.from_bytes(digest) or 1
        return number if word > 0 else -number

    def keyed_digest(self, digest: bytes) -> bytes:
        return self._blake2b(digest, digest_size=len(digest), key=self._hash_key).digest()


class KeyEnvelope(NamedTuple):
    """The keys of a file, encrypted with its secret."""

    salt: bytes
    ciphertext: bytes

    @classmethod
    def make(cls, secret: str) -> tuple[KeyEnvelope, Cipher]:
        """New keys, in an envelope and as a cipher."""
        salt, keys, nonce = os.urandom(SALT_BYTES), os.urandom(2 * KEY_BYTES), os.urandom(NONCE_BYTES)
        ciphertext = nonce + _aes(_derive_key(secret, salt)).encrypt(nonce, keys, _ENVELOPE_DATA)
        return cls(salt, ciphertext), _AesCipher(keys)

    def is_valid(self) -> bool:
        """Whether its parts have the sizes of an envelope."""
        return len(self.salt) == SALT_BYTES and len(self.ciphertext) == 2 * KEY_BYTES + OVERHEAD

    def decrypt(self, secret: str) -> Cipher:
        aes = _aes(_derive_key(secret, self.salt))
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - after _aes, whose error names the extra

        try:
            keys = aes.decrypt(self.ciphertext[:NONCE_BYTES], self.ciphertext[NONCE_BYTES:], _ENVELOPE_DATA)
        except InvalidTag as error:
            raise InvalidInput("SCRUBJAY_SECRET is not the secret that this database was encrypted with") from error
        return _AesCipher(keys)


def open_envelope(rows: Sequence[tuple[Any, ...]], secret: str | None) -> Cipher:
    """The cipher of a file, from the rows of its table `key_envelope`."""
    if not rows:
        return NO_ENCRYPTION
    if secret is None:
        raise InvalidInput("this database is encrypted: set SCRUBJAY_SECRET to its secret")
    return KeyEnvelope._make(rows[0]).decrypt(secret)


def item_associated_data(namespace: str, key: str) -> str:
    return f"item/{namespace}/{key}"


def note_associated_data(namespace: str, note: int) -> str:
    return f"note/{namespace}/{note}"


def _derive_key(secret: str, salt: bytes) -> bytes:
    from hashlib import scrypt  # noqa: PLC0415 - `import scrubjay` starts sooner without it

    return scrypt(secret.encode(), salt=salt, **_SCRYPT)


def _aes(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise MissingExtra(f'encryption is not installed ({error}); run: pip install "scrubjay[encryption]"') from error
    return AESGCM(key)
