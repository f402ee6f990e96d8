"""Times at which something ends by itself: a heap of (when, whose)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class Timers:
    """Entries are never taken back: whoever is told looks whether its time still holds."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def put(self, at: float, whose: str) -> None:
        heapq.heappush(self._heap, (at, whose))

    def due(self, now: float) -> Iterator[tuple[float, str]]:
        """Take out what has come, earliest first."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)

    @property
    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None
