"""What past executions teach about how long the next one will take."""

from __future__ import annotations

from collections import deque

REMEMBERED = 64
QUANTILE = 0.9


class Durations:
    """Of one tool."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)

    def saw(self, seconds: float) -> None:
        self._seconds.append(seconds)

    @property
    def expected_s(self) -> float | None:
        """What nine in ten of the last executions kept. None: there was none."""
        ordered = sorted(self._seconds)
        return ordered[int(QUANTILE * (len(ordered) - 1) + 0.5)] if ordered else None
