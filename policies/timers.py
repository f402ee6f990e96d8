"""Times at which something ends by itself: a heap of (when, whose)."""

from __future__ import annotations

import heapq
import math


class Timers:
    """Entries are never taken back: whoever is told looks whether its time still holds."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def put(self, at: float, whose: str) -> None:
        heapq.heappush(self._heap, (at, whose))

    def pop(self, now: float) -> tuple[float, str] | None:
        """Take out the earliest one that has come, if any has."""
        return heapq.heappop(self._heap) if self._heap and self._heap[0][0] <= now else None

    @property
    def next_at(self) -> float:
        """Infinite when there is none."""
        return self._heap[0][0] if self._heap else math.inf
