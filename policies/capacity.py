"""The size of one KV pool: what its engine states, lowered by evictions that nobody expected.

Additive increase, multiplicative decrease (Chiu and Jain, 1989), once per turnover: the time in which the engine
computes as many prompt tokens as the pool holds. An engine that states nothing counts as endless until it evicts.
"""

from __future__ import annotations

LOWERED = 0.95
RAISED = 0.01
MET = 0.8
"""A prompt whose cached part is at least this share of the prompt before was found as expected: templates and
whole blocks take their part of the rest."""


class Capacity:
    """Owned by a pool."""

    def __init__(self) -> None:
        self.stated_tokens: int | None = None
        """By the engine; None: it did not say."""
        self._learned_tokens: float | None = None
        self._computed_tokens = 0.0
        """Since the last change."""

    @property
    def tokens(self) -> float | None:
        """None: endless, as far as anybody knows."""
        return self.stated_tokens if self._learned_tokens is None else self._learned_tokens

    def state(self, tokens: int) -> None:
        """The engine reported its size; one that differs from before is another engine."""
        if tokens != self.stated_tokens:
            self.stated_tokens, self._learned_tokens = tokens, None

    def saw(self, computed_tokens: float) -> None:
        """The engine computed so many prompt tokens, and evicted nothing that it should have kept."""
        self._computed_tokens += computed_tokens
        if self._learned_tokens is None or self._computed_tokens < self._learned_tokens:
            return
        self._computed_tokens = 0.0
        raised_tokens = self._learned_tokens * (1 + RAISED)
        is_whole = self.stated_tokens is not None and raised_tokens >= self.stated_tokens
        self._learned_tokens = None if is_whole else raised_tokens

    def saw_eviction(self, computed_tokens: float, resident_tokens: float) -> None:
        """It evicted what residents of that size together should have kept."""
        self._computed_tokens += computed_tokens
        if self._learned_tokens is None:
            known_tokens = self.stated_tokens
            self._learned_tokens = resident_tokens if known_tokens is None else LOWERED * known_tokens
        elif self._computed_tokens >= self._learned_tokens:
            self._learned_tokens *= LOWERED
        else:
            return
        self._computed_tokens = 0.0
