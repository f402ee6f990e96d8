"""What has been used: sums over sliding windows and numbers of things held, decided from local memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Used:
    """A sliding window as two fixed ones: all of the current one, and what has not yet faded of the one before.

    Exact while use is even; never more than twice the limit in one window, and no list of events is kept.
    """

    before: float
    current: float
    into_s: float
    """How long the current window has run."""
    window_s: float

    @property
    def counted(self) -> float:
        return self.current + self.before * (1 - self.into_s / self.window_s)

    @property
    def total(self) -> float:
        """What a decision is made on."""
        return self.counted

    def fades_to_s(self, room: float) -> float:
        """Seconds until no more than `room` (>= 0) is used, while nothing is added."""
        if self.counted <= room:
            return 0.0
        if self.current <= room:
            return self.window_s * (1 - (room - self.current) / self.before) - self.into_s
        return self.window_s - self.into_s + self.window_s * (1 - room / self.current)


class Counters(Protocol):
    """The store behind limits. Every call is synchronous and answers from local memory, so that reading and then
    adding is atomic in the event loop. An implementation that gateways share exchanges its sums beside the path.

    Times are Unix seconds: gateways agree about where a window begins.
    """

    def used(self, name: str, window_s: float, now: float) -> Used:
        """Of a counter that nobody has added to: nothing."""
        ...

    def add(self, name: str, window_s: float, amount: float, at: float) -> None:
        """Counts `amount`, which may be negative to correct what was added at the same `at`."""
        ...

    def held(self, name: str) -> int:
        """How many are held now."""
        ...

    def hold(self, name: str, change: int) -> None:
        """+1 takes, -1 gives back."""
        ...

    def look(self) -> None:
        """Takes over what a reload has changed of the keys' limits."""
        ...


@dataclass(slots=True)
class _Sums:
    index: int
    """Number of the current window since the epoch."""
    current: float = 0.0
    before: float = 0.0

    def roll(self, index: int) -> None:
        """A clock that is set back stays in its window."""
        if index > self.index:
            self.before = self.current if index == self.index + 1 else 0.0
            self.current, self.index = 0.0, index


class LocalCounters:
    """`Counters` of one gateway process. As many as keys have limits."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sums] = {}
        self._held: dict[str, int] = {}

    def used(self, name: str, window_s: float, now: float) -> Used:
        sums = self._of(name, int(now // window_s))
        into_s = min(window_s, max(0.0, now - sums.index * window_s))
        return Used(sums.before, sums.current, into_s, window_s)

    def add(self, name: str, window_s: float, amount: float, at: float) -> None:
        index = int(at // window_s)
        sums = self._of(name, index)
        if index >= sums.index - 1:  # else it has faded
            if index == sums.index - 1:
                sums.before = max(0.0, sums.before + amount)
            else:
                sums.current = max(0.0, sums.current + amount)

    def held(self, name: str) -> int:
        return self._held.get(name, 0)

    def hold(self, name: str, change: int) -> None:
        held = self._held.get(name, 0) + change
        if held > 0:
            self._held[name] = held
        else:
            self._held.pop(name, None)

    def look(self) -> None:
        """Nothing is kept of limits here."""

    def _of(self, name: str, index: int) -> _Sums:
        sums = self._sums.get(name)
        if sums is None:
            sums = self._sums[name] = _Sums(index)
        sums.roll(index)
        return sums
