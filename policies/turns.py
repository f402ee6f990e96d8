"""The default policy: bounded residency, fewest expected remaining tokens first."""

from __future__ import annotations

from collections.abc import Sequence

from policies.cost import is_worth_admitting
from policies.fleet import Pool
from policies.forecast import FEWEST_GAPS, forecast, gaps_of, remaining_tokens, will_return
from policies.placement import Option, Place, by_prefix
from policies.policy import Progress
from policies.types import Family, FamilyId, Session, Turn

UNKNOWN_S = 10.0
"""Lease until a family has shown enough idle times: nine in ten tool calls of agents are shorter
(TraceLab, arXiv 2606.30560)."""
LEAST_S, MOST_S = 1.0, 60.0
MARGIN = 1.25
QUANTILE = 0.95
LEAST_CHANCE = 0.2
"""Chance of return below which an idle session gets no lease."""


class Turns:
    """Keeps as many sessions resident as the cache holds at their expected full size. Of those that wait, the
    session that is nearest to its end goes first."""

    name = "turns"
    bounds_slots = True
    gates_residency = True
    ranks_turns = False
    forecast = staticmethod(forecast)

    def __init__(self, place: Place = by_prefix) -> None:
        self._place = place

    def rank(self, turn: Turn, session: Progress, family: Family) -> float:
        return remaining_tokens(family, session.num_begun, session.declared_turns)

    def fits(self, pool: Pool, session: Session, family: Family, new_tokens: float, num_waiting: int) -> bool:
        return is_worth_admitting(pool, session, family, new_tokens, num_waiting)

    def victim_rank(self, session: Session, family: Family) -> float:
        return remaining_tokens(family, session.num_begun, session.declared_turns)

    def lease_s(self, session: Session, family: Family) -> float:
        """Return a lease that covers most of the past idle times after the same tools; 0 for a session that is
        not expected back."""
        if will_return(session, family) < LEAST_CHANCE:
            return 0.0
        if session.tool_s is not None:
            return MARGIN * session.tool_s + LEAST_S
        gaps_s = gaps_of(session, family)
        if len(gaps_s) < FEWEST_GAPS:
            return UNKNOWN_S
        return min(MOST_S, max(LEAST_S, MARGIN * gaps_s.quantile(QUANTILE)))

    def place(self, options: Sequence[Option], family_id: FamilyId, ordinal: int) -> Option:
        return self._place(options, family_id, ordinal)
