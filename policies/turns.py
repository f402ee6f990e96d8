"""The default policy: bounded residency, fewest expected remaining tokens first."""

from __future__ import annotations

from collections.abc import Sequence

from policies.forecast import append_tokens, expected_turns, forecast
from policies.idle import lease_s
from policies.placement import Option, Place, by_prefix
from policies.types import Family, FamilyId


class Turns:
    """Keeps as many sessions resident as the cache holds at their expected full size, and lets those that are
    nearest to their end go first."""

    name = "turns"
    bounds_slots = True
    gates_residency = True
    forecast = staticmethod(forecast)
    lease_s = staticmethod(lease_s)

    def __init__(self, place: Place = by_prefix) -> None:
        self._place = place

    def rank(self, family: Family, num_begun: int, declared: int | None) -> float:
        return (1 + expected_turns(family, num_begun, declared)) * append_tokens(family)

    def place(self, options: Sequence[Option], family_id: FamilyId, ordinal: int) -> Option:
        return self._place(options, family_id, ordinal)
