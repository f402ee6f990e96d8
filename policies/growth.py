"""How much a session will still add to the cache: tokens that admission reserves beyond its present prompt."""

from __future__ import annotations

from policies.remaining import expected_turns
from policies.types import Family

LEAST_TOKENS, MOST_TOKENS = 256.0, 2_048.0
"""Bounds of the guess for a family whose sessions have not shown a second turn: a turn adds about as much as
the private part of the first prompt did."""
OUTPUT_TOKENS = 256.0
"""Length of an answer of which nothing is known: the median agent turn (facts, scheduling 5)."""


def append_tokens(family: Family) -> float:
    """Tokens that one more turn adds to the prompt, its answer included."""
    if family.append_tokens is not None:
        return family.append_tokens
    guess = MOST_TOKENS if family.private_tokens is None else family.private_tokens
    return min(MOST_TOKENS, max(LEAST_TOKENS, guess))


def growth_tokens(family: Family, num_begun: int, declared: int | None) -> float:
    """Expected tokens beyond the prompt of the turn that was begun last: its answer and all later turns."""
    output = OUTPUT_TOKENS if family.output_tokens is None else family.output_tokens
    return output + expected_turns(family, num_begun, declared) * append_tokens(family)
