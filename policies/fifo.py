"""First come, first served into the slots that there are; the cache is not looked at."""

from __future__ import annotations

from collections.abc import Sequence

from policies.placement import Option, Place, by_prefix
from policies.types import Family, FamilyId, Session


class Fifo:
    """Arrival order, bounded concurrency."""

    name = "fifo"
    bounds_slots = True
    gates_residency = False

    def __init__(self, place: Place = by_prefix) -> None:
        self._place = place

    def rank(self, family: Family, num_begun: int, declared: int | None) -> float:
        return 0.0

    def forecast(self, family: Family, num_begun: int, declared: int | None) -> Sequence[float]:
        return (0.0,)

    def lease_s(self, session: Session, family: Family) -> float:
        return 0.0

    def place(self, options: Sequence[Option], family_id: FamilyId, ordinal: int) -> Option:
        return self._place(options, family_id, ordinal)
