"""The raw text of a body's messages and tools, and fingerprints of it: what came before need not be read again.

Only with msgspec (extra `fast`), which finds them far faster than Python could; without it nothing is cut, and
every prompt is written and hashed in whole. xxhash, of the same extra, is the faster fingerprint.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from types import GenericAlias
from typing import Any

from policies.types import value


@value
class RawParts:
    tools: int
    """Fingerprint of the tools; 0: it has none."""
    items: Sequence[int]
    """Fingerprint of each item of the conversation."""


class Cutter:
    """Cuts bodies. `is_fast=False`: as if the extra was not there."""

    def __init__(self, is_fast: bool = True) -> None:
        self.fingerprint = _fingerprint()
        self._decoder = _decoder() if is_fast else None

    def cut(self, raw: bytes) -> RawParts | None:
        """Of a body with `messages`; None without msgspec."""
        if self._decoder is None:
            return None
        decode, error = self._decoder
        try:
            body = decode(raw)
        except (error, RecursionError):  # nested deeper than it reads
            return None
        fingerprint = self.fingerprint
        return RawParts(fingerprint(body.tools) if body.tools else 0, list(map(fingerprint, body.messages)))


def _decoder() -> tuple[Callable[[bytes], Any], type[Exception]] | None:
    try:
        msgspec: Any = import_module("msgspec")
    except ImportError:
        return None
    fields: list[Any] = [("messages", GenericAlias(list, msgspec.Raw), []), ("tools", msgspec.Raw, b"")]
    return msgspec.json.Decoder(msgspec.defstruct("Body", fields)).decode, msgspec.MsgspecError


def _fingerprint() -> Callable[[Any], int]:
    """64 bits, different in each process: nobody outside can look for two texts that have the same."""
    try:
        xxhash = import_module("xxhash")
    except ImportError:
        return lambda text: hash(bytes(text))
    return partial(xxhash.xxh3_64_intdigest, seed=secrets.randbits(64))
