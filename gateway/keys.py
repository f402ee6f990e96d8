"""Which caller a client key stands for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gateway.config import Caller

ANYBODY = Caller(tenant="default", may_prioritise=False, tools=("*",))
"""Everybody, while no keys are configured."""


class Keys:
    """Looks callers up by a digest of their key: the time that takes says nothing about any key."""

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        self._callers = {_digest(key): caller for key, caller in callers.items()}

    def caller(self, headers: Mapping[str, str]) -> Caller | None:
        """Whose request this is; None when its key is missing or wrong."""
        if not self._callers:
            return ANYBODY
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("X-Api-Key", "")
        return self._callers.get(_digest(key))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
