"""Counters behind limits: sums over sliding windows, and numbers of requests that are held, in local memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Used:
    """A sliding window as two fixed ones: all of the current one, and the unfaded part of the one before.

    Exact while use is even, and never more than twice the limit in one window. No list of events is kept.
    """

    before: float
    current: float
    into_s: float
    """Seconds that the current window has run."""
    window_s: float

    @property
    def counted(self) -> float:
        return self.current + self.before * (1 - self.into_s / self.window_s)

    @property
    def total(self) -> float:
        """The amount that a decision is based on."""
        return self.counted

    def fades_to_s(self, room: float) -> float:
        """Return the seconds until no more than `room` (>= 0) is used, if nothing is added."""
        if self.counted <= room:
            return 0.0
        if self.current <= room:
            return self.window_s * (1 - (room - self.current) / self.before) - self.into_s
        return self.window_s - self.into_s + self.window_s * (1 - room / self.current)


class Counters(Protocol):
    """The store behind limits. Every call is synchronous and reads local memory, so that reading and then counting
    is atomic in the event loop. Counters that gateways share exchange their sums beside the path of a request.

    Times are Unix seconds, so that all gateways agree where a window begins.
    """

    def used(self, name: str, window_s: float, now: float) -> Used:
        """Return what is used of a counter; nothing of a counter without any count."""
        ...

    def count(self, name: str, window_s: float, amount: float, at: float) -> None:
        """Count `amount`. A negative amount corrects an earlier count at the same `at`."""
        ...

    def held(self, name: str) -> int:
        """Return how many are held now."""
        ...

    def hold(self, name: str, change: int) -> None:
        """Change the number that is held: +1 or -1."""
        ...

    def look(self) -> None:
        """Read the limits of all keys again, after a reload."""
        ...


@dataclass(slots=True)
class _Sums:
    index: int
    """Number of the current window, from the epoch on."""
    current: float = 0.0
    before: float = 0.0

    def roll(self, index: int) -> None:
        """Go on to a window. A clock that is set back stays in its window."""
        if index > self.index:
            self.before = self.current if index == self.index + 1 else 0.0
            self.current, self.index = 0.0, index


class LocalCounters:
    """`Counters` of one gateway process."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sums] = {}
        self._held: dict[str, int] = {}

    def used(self, name: str, window_s: float, now: float) -> Used:
        sums = self._of(name, int(now // window_s))
        into_s = min(window_s, max(0.0, now - sums.index * window_s))
        return Used(sums.before, sums.current, into_s, window_s)

    def count(self, name: str, window_s: float, amount: float, at: float) -> None:
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
        """Does nothing: no limits are kept here."""

    def _of(self, name: str, index: int) -> _Sums:
        sums = self._sums.get(name)
        if sums is None:
            sums = self._sums[name] = _Sums(index)
        sums.roll(index)
        return sums
