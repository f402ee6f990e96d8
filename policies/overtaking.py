"""When first come, first served would have let each waiting turn in; the bound on waiting is stated against it."""

from __future__ import annotations

from policies.types import TurnId


class Overtaking:
    """Counts admissions against places: a turn that found n others waiting would have been the n-th after it."""

    def __init__(self) -> None:
        self._places: dict[TurnId, int] = {}
        """How many admissions come before a turn, counted from the start."""
        self._num_admitted = 0
        self._times: list[float] = []
        """Of the last admissions."""

    def enter(self, turn_id: TurnId, place: int | None = None) -> None:
        """A turn begins to wait, at the end or in the place that its session kept."""
        self._places[turn_id] = self._num_admitted + len(self._places) if place is None else place

    def leave(self, turn_id: TurnId) -> int:
        """It waits no more; returns its place."""
        return self._places.pop(turn_id)

    def admitted(self, now: float) -> None:
        """Somebody was let in."""
        self._times.append(now)
        self._num_admitted += 1
        if len(self._times) > 64 + 2 * len(self._places):
            num_kept = self._num_admitted - min(self._places.values(), default=self._num_admitted) + 1
            del self._times[: max(0, len(self._times) - num_kept)]

    def due_at(self, turn_id: TurnId, since: float) -> float | None:
        """When, in the order of arrivals, a turn that waits since then was the next. None: it is not yet."""
        num_since = self._num_admitted - self._places[turn_id]
        if num_since < 0:
            return None
        before = self._times[-1 - num_since] if num_since < len(self._times) else since
        return max(since, before)
