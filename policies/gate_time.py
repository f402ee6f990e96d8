"""The ledger of time of one pool: what its gate costs and saves, in seconds of sessions (`shadow_clocks.py`)."""

from __future__ import annotations

import math
from collections import deque

RECENT_S, BIN_S = 60.0, 5.0
NEAR_S, KNOWN_S = 3.0, 10.0
"""Times for which computed times of turns hold: those by their clocks, and those by what they depend on."""


class GateTime:
    """What the gate of one pool cost and saved. Owned by the pool."""

    def __init__(self) -> None:
        self.held_s = 0.0
        """Waits of turns for residency."""
        self.saved_s = 0.0
        """Times of turns without a gate, less the real ones. It falls where the gate slows turns down."""
        self._recent: deque[tuple[float, float]] = deque()
        """(end of a bin, net in it)."""
        self._turn_s: dict[tuple[int, int], float] = {}
        self._near_s: dict[int, float] = {}
        self._until = self._near_until = -math.inf

    @property
    def net_s(self) -> float:
        return self.saved_s - self.held_s

    def saw_turn(self, held_s: float, saved_s: float, now: float) -> None:
        """Count a turn that ended."""
        self.held_s += held_s
        self.saved_s += saved_s
        recent, net_s = self._recent, saved_s - held_s
        if recent and now < recent[-1][0]:
            recent[-1] = recent[-1][0], recent[-1][1] + net_s
        else:
            recent.append((now + BIN_S, net_s))
            while recent[0][0] < now - RECENT_S:
                recent.popleft()

    def recent_s(self, now: float) -> float:
        """Return the net of the last minute."""
        return sum(net_s for until, net_s in self._recent if until >= now - RECENT_S)

    def near(self, now: float) -> dict[int, float]:
        """Return the times of turns without a gate by the step of their clocks; see `known`."""
        if now >= self._near_until:
            self._near_s.clear()
            self._near_until = now + NEAR_S
        return self._near_s

    def known(self, now: float) -> dict[tuple[int, int], float]:
        """Return the times of turns without a gate by what they depend on. Their reader adds those that are
        missing."""
        if now >= self._until:
            self._turn_s.clear()
            self._until = now + KNOWN_S
        return self._turn_s
