"""How fast one pool prefills, and how long its sessions decode and wait for tools in a turn."""

from __future__ import annotations

from policies.learning import blend
from policies.types import TurnId

PREFILL_TOKENS_PER_S = 8_000.0
CYCLE_S = 3.0
"""Until both have been seen: a 32B-class model on one 80 GB GPU, and agents with short tools."""
FEWEST_TOKENS = 256
"""Shorter prefills tell more of the engine's overhead than of its speed."""


class Pace:
    """Learned from facts; written by the Scheduler."""

    def __init__(self) -> None:
        self._prefill_tokens_per_s: float | None = None
        self._cycle_s: float | None = None
        self._others_tokens: float | None = None
        self.prefilled_tokens = 0.0
        """All that was computed here since the start."""
        self._alone: dict[TurnId, tuple[float, float]] = {}
        """Prefills that began while no other one was under way: (when, tokens)."""

    @property
    def cycle_s(self) -> float:
        """In which a session decodes and waits for its tool."""
        return CYCLE_S if self._cycle_s is None else self._cycle_s

    @property
    def cycle_tokens(self) -> float:
        """Tokens that the pool could prefill in the time in which a session, undelayed by the prefill of others,
        decodes and waits for its tool: what one session's turn is worth at most."""
        if self._prefill_tokens_per_s is None or self._cycle_s is None or self._others_tokens is None:
            return PREFILL_TOKENS_PER_S * CYCLE_S
        return max(0.0, self._prefill_tokens_per_s * self._cycle_s - self._others_tokens)

    def prefill_s(self, tokens: float) -> float:
        """How long it takes to compute so many prompt tokens alone."""
        return tokens / (self._prefill_tokens_per_s or PREFILL_TOKENS_PER_S)

    def prefill_began(self, turn_id: TurnId, tokens: float, is_alone: bool, now: float) -> None:
        self._alone.clear()  # a second prefill slows down the first
        if is_alone and tokens >= FEWEST_TOKENS:
            self._alone[turn_id] = now, tokens

    def prefill_ended(self, turn_id: TurnId, tokens: float, now: float) -> None:
        """Its first byte came."""
        self.prefilled_tokens += tokens
        began_at, alone_tokens = self._alone.pop(turn_id, (now, 0.0))
        if now > began_at:
            self._prefill_tokens_per_s = blend(self._prefill_tokens_per_s, alone_tokens / (now - began_at))

    def saw_cycle(self, cycle_s: float, others_tokens: float) -> None:
        """A session decoded and then waited for its tool for so long; queues and its own prefill are not in it,
        but that of others while it decoded is."""
        self._others_tokens = blend(self._others_tokens, others_tokens)
        self._cycle_s = blend(self._cycle_s, cycle_s)
