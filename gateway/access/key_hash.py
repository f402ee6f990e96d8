"""Client keys as they are kept: a fast hash of long random ones, a slow and salted one of those people chose."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

PREFIX = "tg-"
RANDOM_BYTES = 32
LONG_CHARS = 32
"""A key of at least this length is taken for a random one, which nobody guesses: 128 bits even in hexadecimal."""
_HASH = re.compile(r"sha256:[0-9a-f]{64}|scrypt:[0-9a-f]{32}:[0-9a-f]{64}")
_N, _R, _P = 2**14, 8, 1
"""Cost of scrypt: 16 MiB and about 30 ms."""


def new_key() -> str:
    """256 random bits."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def hashed(key: str) -> str:
    """What to write into the configuration instead of a key."""
    return fast(key) if len(key) >= LONG_CHARS else _slow(key, secrets.token_bytes(16))


def is_hash(text: str) -> bool:
    return _HASH.fullmatch(text) is not None


def is_slow(hashed_key: str) -> bool:
    return hashed_key.startswith("scrypt:")


def fast(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def matches(hashed_key: str, key: str) -> bool:
    """In a time that does not depend on how much of it agrees."""
    if not is_slow(hashed_key):
        return hmac.compare_digest(hashed_key, fast(key))
    return hmac.compare_digest(hashed_key, _slow(key, bytes.fromhex(hashed_key.split(":")[1])))


def _slow(key: str, salt: bytes) -> str:
    digest = hashlib.scrypt(key.encode(errors="surrogateescape"), salt=salt, n=_N, r=_R, p=_P, dklen=32)
    return f"scrypt:{salt.hex()}:{digest.hex()}"
