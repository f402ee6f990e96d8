"""How many turns a session still has: declared, or learned from its family's survival curve.

The curve is Kaplan and Meier's product-limit estimate over turns (J. Am. Stat. Assoc. 53, 1958): the hazard
after k turns is ended[k] / (ended[k] + continued[k]); a session that is still at k counts in neither, which is
what right-censoring asks for. A prior keeps young families finite: `PRIOR_WEIGHT` imaginary sessions that end
with the hazard of `PRIOR_TURNS` remaining turns.
"""

from __future__ import annotations

from policies.gaps import Gaps
from policies.types import Family, Session

PRIOR_TURNS = 3.0
"""Expected remaining turns of a session of which nothing is known."""
PRIOR_WEIGHT = 1.0
PRIOR_ENDED = PRIOR_WEIGHT / (PRIOR_TURNS + 1)
"""Of the imaginary sessions, how many end after each turn."""
FEWEST_GAPS = 8
"""Idle times from which a quantile is taken."""


def hazard(family: Family, num_turns: int) -> float:
    """Probability that a session of the family ends after `num_turns` turns, given that it got there."""
    if num_turns >= len(family.ended):
        return PRIOR_ENDED / PRIOR_WEIGHT
    return _share_ended(family.ended[num_turns], family.continued[num_turns])


def _share_ended(ended: int, continued: int) -> float:
    """With the imaginary sessions among those seen."""
    return (ended + PRIOR_ENDED) / (ended + continued + PRIOR_WEIGHT)


def curve(family: Family) -> list[float]:
    """Expected remaining turns after k turns, for each k that the family has shown; computed backwards from
    E(k) = (1 - h(k)) (1 + E(k + 1)), with the prior beyond the last k."""
    expected = PRIOR_TURNS
    values = [expected]
    for ended, continued in zip(reversed(family.ended), reversed(family.continued), strict=True):
        expected = (1 - _share_ended(ended, continued)) * (1 + expected)
        values.append(expected)
    values.reverse()
    return values


def expected_turns(family: Family, num_begun: int, declared: int | None, keeps: bool = True) -> float:
    """Turns still to come after the `num_begun`-th one. `keeps`: whether the family keeps the curve until there is
    news; an observer leaves no trace, or a look at the fleet would change what is decided."""
    if declared is not None:
        return float(declared)
    values = family.expected_remaining or curve(family)
    if keeps:
        family.expected_remaining = values
    return values[num_begun] if num_begun < len(values) else values[-1]


def will_return(session: Session, family: Family) -> float:
    """Chance that a session sends another turn, as of its last answer.

    In a family whose agents call tools an answer without a call mostly is the last one: such answers have a chance
    of their own, with a prior of two of which half a one goes on.
    """
    if session.tool_s is not None:
        return 1.0  # the gateway runs its tools and asks the next turn itself
    if session.remaining_turns is not None:
        return 1.0 if session.remaining_turns > 0 else 0.0
    alive = 1 - hazard(family, session.num_begun)
    if family.calls_tools and not session.tools:
        alive = min(alive, (family.num_reopened + 0.5) / (family.num_reopened + family.num_closed + 2))
    return alive


def chance_of_return(session: Session, family: Family, now: float) -> float:
    """The same, now that an idle session has been silent for a while: by Bayes, from the family's idle times."""
    alive = will_return(session, family)
    idle_s = now - session.idle_since
    gaps_s = gaps_of(session, family)
    silent = alive * (1 + gaps_s.num_longer(idle_s)) / (1 + len(gaps_s))
    return silent / (silent + 1 - alive) if silent else 0.0


def idle_left_s(session: Session, family: Family, now: float) -> float:
    """How long an idle session will be idle yet, if it comes back; 0 when nobody knows."""
    idle_s = now - session.idle_since
    whole_s = gaps_of(session, family).median_longer(idle_s) if session.tool_s is None else session.tool_s
    return 0.0 if whole_s is None else max(0.0, whole_s - idle_s)


def gaps_of(session: Session, family: Family) -> Gaps:
    """Past idle times after the same tools, or after any while those are few."""
    gaps_s = family.gaps_s.get(session.tools)
    if gaps_s is None or len(gaps_s) < FEWEST_GAPS:
        gaps_s = family.gaps_s.get("")
    return Gaps() if gaps_s is None else gaps_s
