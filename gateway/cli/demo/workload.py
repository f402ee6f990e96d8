"""Agent fleets as data: sessions that share a prompt prefix, grow turn by turn, and wait for tools."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """A fleet by its sizes; tokens and seconds. A range is drawn uniformly, seeded."""

    num_sessions: int
    lengths: Sequence[int] = (4,)
    """Turns per session; session i has lengths[i % len(lengths)] after a seeded shuffle."""
    shared_tokens: int = 2_008
    first_tokens: int = 400
    append_tokens: int = 400
    """Tool result that a turn adds, beyond the answer before it."""
    output_tokens: tuple[int, int] = (72, 168)
    gap_s: tuple[float, float] = (0.3, 0.8)
    arrival_rate_per_s: float | None = None
    """Poisson arrivals; None: all at once."""


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    prompt_tokens: int
    output_tokens: int
    gap_s: float
    """Tool time after the answer."""


@dataclass(frozen=True, slots=True)
class PlannedSession:
    id: str
    family_id: str
    arrives_at: float
    shared_tokens: int
    turns: tuple[PlannedTurn, ...]


def draw(shape: Shape, seed: int) -> list[PlannedSession]:
    """The sessions of one fleet in order of arrival; equal seeds give equal fleets."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    lengths = [shape.lengths[i % len(shape.lengths)] for i in range(shape.num_sessions)]
    rng.shuffle(lengths)
    at = 0.0
    sessions = []
    for number, length in enumerate(lengths):
        if shape.arrival_rate_per_s is not None:
            at += rng.expovariate(shape.arrival_rate_per_s)
        prompt_tokens = shape.shared_tokens + shape.first_tokens
        turns = []
        for _ in range(length):
            output_tokens = rng.randint(*shape.output_tokens)
            turns.append(PlannedTurn(prompt_tokens, output_tokens, rng.uniform(*shape.gap_s)))
            prompt_tokens += output_tokens + shape.append_tokens
        sessions.append(PlannedSession(f"s{number}", "family", at, shape.shared_tokens, tuple(turns)))
    return sessions
