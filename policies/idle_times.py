"""Recent idle times of a family's sessions, kept in order: quantiles and ranks are asked at every turn."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable

MOST = 64


class IdleTimes:
    """Seconds between two turns of a session; the newest MOST of them count."""

    def __init__(self, seen_s: Iterable[float] = ()) -> None:
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []
        for gap_s in seen_s:
            self.add(gap_s)

    def __len__(self) -> int:
        return len(self._ordered)

    def __repr__(self) -> str:
        return f"Gaps({list(self._recent)})"

    def add(self, gap_s: float) -> None:
        if len(self._recent) == MOST:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        self._recent.append(gap_s)
        insort(self._ordered, gap_s)

    def num_longer(self, idle_s: float) -> int:
        return len(self._ordered) - bisect_right(self._ordered, idle_s)

    def median_longer(self, idle_s: float) -> float | None:
        """Of those that lasted longer. None: none did."""
        first = bisect_right(self._ordered, idle_s)
        return self._ordered[(first + len(self._ordered)) // 2] if first < len(self._ordered) else None

    def quantile(self, share: float) -> float:
        """The caller knows that there is one."""
        return self._ordered[min(len(self._ordered) - 1, int(share * len(self._ordered)))]
