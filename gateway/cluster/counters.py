"""Limits that hold over all members: each counts for itself up to a ceiling that the others know.

Law: the ceilings of one counter and what has not faded of the window before add up to the limit at most. So no
member waits for another one, and a burst at all of them at once is counted once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gateway.access.client_keys import Keys
from gateway.access.counters import Counters, LocalCounters, Used
from gateway.access.meters import Meter

FEW = 0.02
"""Of a limit: where less is free, whoever needs it gets all of it, and who does not lets go of it."""

Window = tuple[str, int]
"""A counter, and the number of one of its windows since the epoch."""


@dataclass(slots=True)
class SharedUsed(Used):
    """What all have used, and what this member leaves to the others until they have talked again."""

    kept: float = 0.0

    @property
    def total(self) -> float:
        """What a decision is made on."""
        return self.counted + self.kept


@dataclass(frozen=True, slots=True)
class LimitClaim:
    """What one member says of one window."""

    used: float
    ceiling: float | None = None
    """None: it has none yet, and may spend an equal part."""


@dataclass(slots=True)
class HeardCounts:
    """What the other members had counted at the last round."""

    sums: Mapping[Window, float] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)


def free_of(limit: float, faded: float, own: float, others: Mapping[str, LimitClaim], num_members: int) -> float:
    """What nobody has claimed. `faded`: what is left of the window before. `others`: who is gone claims what it
    used; who is not in it and lives, an equal part."""
    equal = max(0.0, limit - faded) / num_members
    claimed = sum(max(c.used, equal if c.ceiling is None else c.ceiling) for c in others.values())
    unheard = max(0, num_members - 1 - len(others)) * equal
    return max(0.0, limit - faded - own - claimed - unheard)


def grant(free: float, limit: float, num_members: int, is_wanted: bool) -> float:
    """What a member may spend of it until the next round."""
    if free < max(FEW * limit, num_members):
        return free if is_wanted else 0.0
    return free / num_members


def counters_of(keys: Keys, is_shared: bool) -> Counters:
    """Of a gateway process; `is_shared`: it is one of several members."""
    return SharedCounters(lambda: keys.all_meters) if is_shared else LocalCounters()


class SharedCounters:
    """`gateway.access.counters.Counters` of one of several members."""

    def __init__(self, meters: Callable[[], Iterable[Meter]]) -> None:
        """`meters`: all that there are now; a reload changes them."""
        self._meters = meters
        self.limits: dict[str, float] = {}
        self.heard = HeardCounts()
        self.num_members = 1
        self._windows_s: dict[str, float] = {}
        self._active: set[str] = set()
        """Counters that any member has looked at."""
        self._sums: dict[Window, float] = {}
        self._ceilings: dict[Window, float] = {}
        self._held: Counter[str] = Counter()
        self._asked: set[str] = set()
        """Counters that were looked at since the last round."""
        self.look()

    def look(self) -> None:
        """As `Counters` says. Windows of what is gone are kept: they fade."""
        meters = list(self._meters())
        self.limits = {meter.name: meter.limit for meter in meters}
        self._windows_s |= {meter.name: meter.window_s for meter in meters}

    # ---- Counters

    def used(self, name: str, window_s: float, now: float) -> SharedUsed:
        index = int(now // window_s)
        before, current = (self._counted((name, index - 1)), self._counted((name, index)))
        used = SharedUsed(before, current, now - index * window_s, window_s)
        if name not in self._windows_s:
            self.look()
        self._asked.add(name)
        self._active.add(name)
        if (limit := self.limits.get(name)) is not None:
            equal = max(0.0, limit - used.before * (1 - used.into_s / window_s)) / self.num_members
            left = self._ceilings.get((name, index), equal) - self._sums.get((name, index), 0.0)
            used.kept = max(0.0, limit - used.counted - max(0.0, left))
        return used

    def add(self, name: str, window_s: float, amount: float, at: float) -> None:
        window = name, int(at // window_s)
        self._active.add(name)
        self._sums[window] = self._sums.get(window, 0.0) + amount

    def held(self, name: str) -> int:
        return self._held[name] + self.heard.held.get(name, 0)

    def hold(self, name: str, change: int) -> None:
        self._held[name] += change
        if not self._held[name]:
            del self._held[name]

    # ---- between members

    @property
    def holding(self) -> dict[str, int]:
        return dict(self._held)

    def windows(self, now: float) -> list[Window]:
        """Those that matter, of each counter the last one first; what is older is forgotten."""
        for window in [w for w in self._sums if w[1] < self._index(w[0], now) - 1]:
            del self._sums[window]
            self._ceilings.pop(window, None)
        return [(name, self._index(name, now) - back) for name in self._active for back in (1, 0)]

    @property
    def active(self) -> list[str]:
        """Counters that are looked at here."""
        return list(self._asked)

    def learn(self, names: Iterable[str]) -> None:
        """Counters that are looked at elsewhere, of which this member leaves the rest to the others."""
        self._active.update(name for name in names if name in self._windows_s)

    def window_s(self, name: str) -> float:
        return self._windows_s[name]

    def claim(self, window: Window) -> LimitClaim:
        return LimitClaim(self._sums.get(window, 0.0), self._ceilings.get(window))

    def is_wanted(self, name: str) -> bool:
        """Whether anybody asked since this was asked last."""
        is_wanted = name in self._asked
        self._asked.discard(name)
        return is_wanted

    def raise_to(self, window: Window, ceiling: float) -> None:
        self._ceilings[window] = ceiling

    def faded(self, name: str, now: float) -> float:
        """What is left, of all members, of the window before."""
        window_s = self._windows_s[name]
        return self._counted((name, self._index(name, now) - 1)) * (1 - now % window_s / window_s)

    def _counted(self, window: Window) -> float:
        return max(0.0, self._sums.get(window, 0.0) + self.heard.sums.get(window, 0.0))

    def _index(self, name: str, now: float) -> int:
        return int(now // self._windows_s[name])
