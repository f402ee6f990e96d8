"""How many calls a service takes at once that tells it by refusing: additive increase, multiplicative decrease.

The limit grows by one per answered call until the first refusal, then by one per round of calls, and only while it
is in use. A refusal cuts it, once for all calls that had begun before the cut: they were sent under the old limit,
so their refusals are no news.
"""

from __future__ import annotations

START = 32
"""What current services take of a new client; a few round trips find more."""
MOST = 1024
CUT = 0.7


class Throttle:
    """Of one service. Law: 1 <= limit <= MOST."""

    def __init__(self, start: float = START) -> None:
        self._limit = min(float(MOST), max(1.0, start))
        self.was_cut = False
        """Whether it ever refused."""
        self._cut_at = float("-inf")

    @property
    def limit(self) -> int:
        return int(self._limit)

    def answered(self, in_flight: int) -> None:
        """A call was not refused; `in_flight` counts it."""
        if 2 * in_flight < self.limit:
            return
        self._limit = min(float(MOST), self._limit + (1 / self._limit if self.was_cut else 1))

    def refused(self, begun_at: float, in_flight: int, now: float) -> None:
        """A call that was sent at `begun_at` came back refused; `in_flight` counts it."""
        if begun_at < self._cut_at:
            return
        self._limit = max(1.0, CUT * min(self._limit, in_flight))
        self.was_cut, self._cut_at = True, now
