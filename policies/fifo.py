"""The baselines: first come, first served into slots; and no waiting at all. None looks at the cache."""

from __future__ import annotations

from collections.abc import Sequence

from policies.fleet import Pool
from policies.placement import Option, Place, by_prefix
from policies.policy import Progress
from policies.types import Family, FamilyId, Session, Turn


class Fifo:
    """Arrival order, bounded concurrency."""

    name = "fifo"
    bounds_slots = True
    gates_residency = False
    ranks_turns = False

    def __init__(self, place: Place = by_prefix) -> None:
        self._place = place

    def rank(self, turn: Turn, session: Progress, family: Family) -> float:
        return 0.0

    def forecast(self, family: Family, num_begun: int, declared: int | None) -> Sequence[float]:
        return (0.0,)

    def fits(self, pool: Pool, session: Session, family: Family, new_tokens: float, num_waiting: int) -> bool:
        return True

    def victim_rank(self, session: Session, family: Family) -> float:
        return 0.0

    def lease_s(self, session: Session, family: Family) -> float:
        return 0.0

    def place(self, options: Sequence[Option], family_id: FamilyId, ordinal: int) -> Option:
        return self._place(options, family_id, ordinal)


class Passthrough(Fifo):
    """Every turn goes to its engine at once; only the replica is chosen."""

    name = "passthrough"
    bounds_slots = False


class Observe(Passthrough):
    """Every turn goes as by `passthrough`; a ledger tells what the gate of `turns` would save."""

    name = "observe"
    observes_gate = True
