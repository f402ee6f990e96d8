"""Times at which something ends by itself: a heap of (when, whose)."""

from __future__ import annotations

import heapq
import math

NEVER = math.inf, ""


class Timers:
    """Entries are not taken back: whoever is told looks whether its time still holds."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self.next_at, self.next_whose = NEVER
        """The earliest entry."""

    def put(self, at: float, whose: str) -> None:
        heapq.heappush(self._heap, (at, whose))
        self.next_at, self.next_whose = self._heap[0]

    def pop(self, now: float) -> tuple[float, str] | None:
        """Take out the earliest one that has come, if any has."""
        return None if self.next_at > now else self.drop()

    def drop(self) -> tuple[float, str]:
        """Take out the earliest one; the caller knows that there is one."""
        entry = heapq.heappop(self._heap)
        self.next_at, self.next_whose = self._heap[0] if self._heap else NEVER
        return entry
