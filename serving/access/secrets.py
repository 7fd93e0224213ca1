"""API keys as strings: how they look, and what is kept of them.

A key is `sk-steersman-ID-SECRET`. The id is no secret: it finds the entry, stands in logs and names the
key to people. The secret is 256 random bits, and what the file keeps is a salted SHA-256 of the whole
key. Slow hashes (bcrypt, Argon2) make guessing a *password* dear; nobody guesses 256 bits, so one
would only make every request dear. Keys are therefore made here and never chosen.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass
from hashlib import sha256

PREFIX = "sk-steersman-"
KEY_ID = re.compile(r"[a-z0-9]{12}")
_KEY = re.compile(rf"{PREFIX}([a-z0-9]{{12}})-[A-Za-z0-9_-]{{43}}")
_HASH = re.compile(r"sha256:([0-9a-f]{32}):([0-9a-f]{64})")
_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True)
class KeyHash:
    """What is kept of a key."""

    salt: bytes
    digest: bytes

    def matches(self, key: str) -> bool:
        """Whether it is this key's, in a time that does not tell how nearly."""
        return hmac.compare_digest(_digest(self.salt, key), self.digest)

    def __str__(self) -> str:
        """As in the key file."""
        return f"sha256:{self.salt.hex()}:{self.digest.hex()}"


NO_KEY = KeyHash(bytes(16), bytes(32))
"""Matches no key; compared with where there is no entry, so that a known id is not told by the time."""


def new_key() -> tuple[str, str, KeyHash]:
    """A key, its id and its hash."""
    key_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(12))
    key = f"{PREFIX}{key_id}-{secrets.token_urlsafe(32)}"
    return key, key_id, hash_key(key)


def hash_key(key: str) -> KeyHash:
    """With a salt of its own."""
    salt = secrets.token_bytes(16)
    return KeyHash(salt, _digest(salt, key))


def parse_hash(text: str) -> KeyHash:
    """A hash as the key file has it.

    Raises:
        ValueError: it is none; the text is not repeated, since it may be a key put in the wrong place.
    """
    match = _HASH.fullmatch(text)
    if match is None:
        raise ValueError("not a hash; take the line that 'steersman keys new' prints")
    return KeyHash(bytes.fromhex(match[1]), bytes.fromhex(match[2]))


def id_of(key: str) -> str:
    """The id in a key; '' if it is not one of ours."""
    match = _KEY.fullmatch(key)
    return "" if match is None else match[1]


def _digest(salt: bytes, key: str) -> bytes:
    return sha256(salt + key.encode()).digest()
