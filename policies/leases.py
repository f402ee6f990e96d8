"""How long an idle session keeps its residency: as long as its family's tools usually take, if it comes back."""

from __future__ import annotations

from policies.remaining import returns_likely
from policies.types import Family, Session

FEWEST_GAPS = 8
UNKNOWN_S = 10.0
"""Until a family has shown that many gaps: nine in ten tool calls of agents are shorter
(TraceLab, arXiv 2606.30560)."""
LEAST_S, MOST_S = 2.0, 60.0
MARGIN = 1.5
QUANTILE = 0.95


def lease_s(session: Session, family: Family) -> float:
    """Seconds for which an idle session keeps its residency; 0 when it is not expected back."""
    if not returns_likely(session, family):
        return 0.0
    if len(family.gaps_s) < FEWEST_GAPS:
        return UNKNOWN_S
    gaps_s = sorted(family.gaps_s)
    quantile_s = gaps_s[min(len(gaps_s) - 1, int(QUANTILE * len(gaps_s)))]
    return min(MOST_S, max(LEAST_S, MARGIN * quantile_s))
