"""Finished outcomes, kept for a while: least recently used goes first, bounded in bytes, each with its own end."""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass

from tool_runtime.outcome import Outcome

ENTRY_BYTES = 500
"""Of the key, the outcome's other fields and the table."""


@dataclass(frozen=True, slots=True)
class _Entry:
    outcome: Outcome
    ends_at: float

    @property
    def num_bytes(self) -> int:
        return ENTRY_BYTES + sys.getsizeof(self.outcome.text)


class Cache:
    """Keys say who may share (`sharing`), so that this only has to remember."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def get(self, key: bytes, now: float) -> Outcome | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.ends_at <= now:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.outcome

    def put(self, key: bytes, outcome: Outcome, ends_at: float) -> None:
        if key in self._entries:
            self._drop(key)
        entry = self._entries[key] = _Entry(outcome, ends_at)
        self._num_bytes += entry.num_bytes
        while self._num_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        self._num_bytes -= self._entries.pop(key).num_bytes
