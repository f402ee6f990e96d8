"""How long an idle session keeps its residency: as long as its tools usually take, if it comes back."""

from __future__ import annotations

from policies.remaining import FEWEST_GAPS, gaps_of, will_return
from policies.types import Family, Session

UNKNOWN_S = 10.0
"""Until a family has shown enough idle times: nine in ten tool calls of agents are shorter
(TraceLab, arXiv 2606.30560)."""
LEAST_S, MOST_S = 1.0, 60.0
MARGIN = 1.25
QUANTILE = 0.95
LEAST_CHANCE = 0.2


def lease_s(session: Session, family: Family) -> float:
    """Seconds for which an idle session keeps its residency; 0 when it is not expected back."""
    if will_return(session, family) < LEAST_CHANCE:
        return 0.0
    if session.tool_s is not None:
        return MARGIN * session.tool_s + LEAST_S
    gaps_s = gaps_of(session, family)
    if len(gaps_s) < FEWEST_GAPS:
        return UNKNOWN_S
    return min(MOST_S, max(LEAST_S, MARGIN * gaps_s.quantile(QUANTILE)))
