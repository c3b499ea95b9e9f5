"""Values that only the holder of a secret can read.

The secret opens a keyring in the file, and in it lie two random keys: one seals values, with the place
they belong to (so that none can be moved to another), one hides the words of the index. A file is
sealed as a whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from scrubjay.errors import InvalidInput, MissingExtra, Unavailable
from scrubjay.lazy import Lazy

if TYPE_CHECKING:
    import hashlib
else:
    hashlib = Lazy("hashlib")  # only who has a secret pays for it

NONCE_BYTES, TAG_BYTES, KEY_BYTES, SALT_BYTES = 12, 16, 32, 16
OVERHEAD = NONCE_BYTES + TAG_BYTES
"""Bytes that a sealed value takes more than its text."""
# What a guess at the secret costs: 32 MB of memory and a tenth of a second.
_COST = {"n": 2**15, "r": 8, "p": 1, "maxmem": 2**26, "dklen": KEY_BYTES}
_WORD_BYTES = 7
"""A word of the index is a number of 56 bits."""


class Cipher(Protocol):
    """What turns values into what is stored, and back. `place` is where they belong."""

    def seal(self, text: str, place: str) -> Any: ...
    def open(self, stored: Any, place: str) -> str: ...
    def open_all(self, stored: list[Any], place: str) -> list[str]: ...
    def seal_bytes(self, data: bytes, place: str) -> bytes: ...
    def open_bytes(self, stored: bytes, place: str) -> bytes: ...
    def hide(self, words: Iterable[int]) -> dict[int, int]:
        """For each word the number that stands for it in the index."""

    def hide_digest(self, digest: bytes) -> bytes: ...


class _Plain:
    """No secret: what is stored is what it is."""

    def seal(self, text: str, _place: str) -> str:
        return text

    def open(self, stored: Any, _place: str) -> str:
        return stored  # type: ignore[no-any-return]

    def open_all(self, stored: list[Any], _place: str) -> list[str]:
        return stored

    def seal_bytes(self, data: bytes, _place: str) -> bytes:
        return data

    open_bytes = seal_bytes

    def hide(self, words: Iterable[int]) -> dict[int, int]:
        return {word: word for word in words}

    def hide_digest(self, digest: bytes) -> bytes:
        return digest


PLAIN: Cipher = _Plain()


class _Sealed:
    """AES-256-GCM under a random nonce for each value."""

    def __init__(self, sealing: bytes, hiding: bytes) -> None:
        self._aes = _aes(sealing)
        self._hiding = hiding

    def seal(self, text: str, place: str) -> bytes:
        return self.seal_bytes(text.encode(), place)

    def open(self, stored: Any, place: str) -> str:
        return self.open_bytes(stored, place).decode()

    def open_all(self, stored: list[Any], place: str) -> list[str]:
        return [self.open(one, place) for one in stored]

    def seal_bytes(self, data: bytes, place: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._aes.encrypt(nonce, data, place.encode())  # type: ignore[no-any-return]

    def open_bytes(self, stored: Any, place: str) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        try:
            data: bytes = self._aes.decrypt(stored[:NONCE_BYTES], stored[NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError, TypeError) as error:
            raise Unavailable(
                "a sealed value was changed outside of Scrubjay, or moved to another place, and cannot be read;"
                " run `scrubjay doctor`, restore a backup"
            ) from error
        return data

    def hide(self, words: Iterable[int]) -> dict[int, int]:
        return {word: self._hidden(word) for word in words}

    def _hidden(self, word: int) -> int:
        """Another number of the same sign: the sign says what kind of word it is."""
        digest = hashlib.blake2b(word.to_bytes(8, signed=True), digest_size=_WORD_BYTES, key=self._hiding).digest()
        number = int.from_bytes(digest) or 1
        return number if word > 0 else -number

    def hide_digest(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, digest_size=len(digest), key=self._hiding).digest()


class Keyring(NamedTuple):
    """What the file keeps of its keys: nothing without the secret."""

    salt: bytes
    sealed: bytes

    @classmethod
    def make(cls, secret: str) -> tuple[Keyring, Cipher]:
        """New keys, and the ring that holds them."""
        salt, keys, nonce = os.urandom(SALT_BYTES), os.urandom(2 * KEY_BYTES), os.urandom(NONCE_BYTES)
        ring = cls(salt, nonce + _aes(_stretched(secret, salt)).encrypt(nonce, keys, b"keyring"))
        return ring, _Sealed(keys[:KEY_BYTES], keys[KEY_BYTES:])

    def is_one(self) -> bool:
        """Whether it has the shape of a ring."""
        return len(self.salt) == SALT_BYTES and len(self.sealed) == 2 * KEY_BYTES + OVERHEAD

    def open(self, secret: str) -> Cipher:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - after _aes, which says if it is missing

        aes = _aes(_stretched(secret, self.salt))
        try:
            keys = aes.decrypt(self.sealed[:NONCE_BYTES], self.sealed[NONCE_BYTES:], b"keyring")
        except InvalidTag as error:
            raise InvalidInput("SCRUBJAY_SECRET is not the secret that this database was sealed with") from error
        return _Sealed(keys[:KEY_BYTES], keys[KEY_BYTES:])


def open_ring(rows: Sequence[tuple[Any, ...]], secret: str | None) -> Cipher:
    """The cipher of a file, by its keyring if it has one."""
    if not rows:
        return PLAIN
    if secret is None:
        raise InvalidInput("this database is sealed: set SCRUBJAY_SECRET to its secret")
    _aes(b"\0" * KEY_BYTES)
    return Keyring._make(rows[0]).open(secret)


def item_place(namespace: str, key: str) -> str:
    return f"item/{namespace}/{key}"


def note_place(namespace: str, note: int) -> str:
    return f"note/{namespace}/{note}"


def _stretched(secret: str, salt: bytes) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=salt, **_COST)


def _aes(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - only who has a secret
    except ImportError as error:
        raise MissingExtra(f'encryption is not installed ({error}); run: pip install "scrubjay[encryption]"') from error
    return AESGCM(key)
