"""What sessions will hold some turns from now: growth while they live, all of it given back once they end.

A session at its k-th turn, whose private part is p tokens and whose turns add a tokens each, holds p + a t + o
tokens t turns later if it is still alive (o: its answer), and nothing if it has ended. With S(t) the chance that
it lives that long, the expected change against now is S(t) (a t + o) - (1 - S(t)) p. Summed over the residents
this is the pool's forecast. Siblings of different age are not at their largest at the same time, and sessions of
uncertain length do not all reach it; a sum of full sizes would count both as if they did.
"""

from __future__ import annotations

from policies.remaining import PRIOR_TURNS, PRIOR_WEIGHT
from policies.types import Family

HORIZON = 8
"""Turns that a forecast looks ahead; further growth is met when it comes nearer."""
LEAST_TOKENS, MOST_TOKENS = 256.0, 2_048.0
"""Bounds of the guess for a family whose sessions have not shown a second turn: a turn adds about as much as
the private part of the first prompt did."""
OUTPUT_TOKENS = 256.0
"""Length of an answer of which nothing is known: the median agent turn (facts, scheduling 5)."""


def append_tokens(family: Family) -> float:
    """Tokens that one more turn adds to the prompt, its answer included."""
    if family.append_tokens is not None:
        return family.append_tokens
    return min(MOST_TOKENS, max(LEAST_TOKENS, private_tokens(family)))


def private_tokens(family: Family) -> float:
    """Tokens of a first prompt that are not the family's."""
    return MOST_TOKENS if family.private_tokens is None else family.private_tokens


def output_tokens(family: Family) -> float:
    """Length of an answer."""
    if family.output_tokens is not None:
        return family.output_tokens
    return OUTPUT_TOKENS if family.most_output_tokens is None else min(OUTPUT_TOKENS, family.most_output_tokens)


def forecast(family: Family, num_begun: int, declared: int | None) -> list[float]:
    """Expected change of what a session holds, in tokens, after 0, 1, ... HORIZON turns; `num_begun` counts the
    turn that it is in, or was in last.

    Admission rests on it, so what nobody has shown counts as alive for `PRIOR_TURNS` turns, then as ended: who is
    let in by mistake evicts others, who is held by mistake waits until somebody has shown more.
    """
    append, output = append_tokens(family), output_tokens(family)
    present = private_tokens(family) + max(0, num_begun - 1) * append
    if declared is not None:
        return [append * ahead + output if ahead <= declared else -present for ahead in range(HORIZON + 1)]
    ended, continued, num_shown = family.ended, family.continued, len(family.ended)
    alive, num_unknown, values = 1.0, 0, [output]
    for ahead in range(1, HORIZON + 1):
        after = num_begun + ahead - 1
        if after < num_shown and (ended[after] or continued[after]):
            went_on = continued[after] + PRIOR_WEIGHT
            alive *= went_on / (ended[after] + went_on)
        elif num_unknown == PRIOR_TURNS:
            return values + [-present] * (HORIZON + 1 - ahead)
        else:
            num_unknown += 1
        values.append(alive * (append * ahead + output) - (1 - alive) * present)
    return values
