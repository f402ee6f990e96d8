"""The prompts that one engine is sent ahead, where several tenants use it."""

from __future__ import annotations

import math

from policies.learning import Pace
from policies.types import Turn, TurnId

AHEAD_S, NUM_AHEAD = 1.0, 2
"""An engine that several tenants use is sent prompts ahead that take so long to compute, more than one of its
iterations; and where its slots are not known so many turns: one is computed while the next one comes."""
NUM_AHEAD_OF_SHARE = 1
"""Of a tenant that got more than another one whose turns are all with the engine: each of them would go before the
next turn of that one. Without one the slots of an engine would not be found while that one runs."""
LOST_S = 30.0
"""Beyond twice the expected time of its first byte, after which a prompt counts as begun: some engines hold an
answer back until they have all of it."""


class SentAhead:
    """Prompts that were sent to one engine and whose answers have not begun.

    Its queue is first come, first served, and knows no tenants: what waits in it goes before what waits at the
    gate. An engine whose slots are not known has at least as many as answers were once under way. An answer that
    comes whole shows no beginning, so it counts as begun after the time that its prompt should take.
    """

    def __init__(self) -> None:
        self._sent: dict[TurnId, tuple[float, float]] = {}
        """Tokens to compute, and until when they count, in the order in which they were sent."""
        self._tokens = 0.0
        self._most_begun = 0
        """Answers under way at once."""

    def sent(self, turn: Turn, tokens: float, pace: Pace, now: float) -> None:
        """Record a prompt of which so many tokens are to be computed."""
        self._tokens += tokens
        expected_s = pace.prefill_s(self._tokens)
        self._sent[turn.id] = tokens, now + (2 * expected_s + LOST_S if turn.streams else expected_s)

    def begun(self, turn_id: TurnId) -> None:
        """Record that its answer began, or ended."""
        if (sent := self._sent.pop(turn_id, None)) is not None:
            self._tokens = self._tokens - sent[0] if self._sent else 0.0

    def has_room(
        self, num_running: int, pace: Pace, knows_slots: bool, now: float, is_ahead: bool = False
    ) -> bool:
        """Whether one more may be sent. `num_running`: turns that were sent and have not ended; `is_ahead`: it is
        of a tenant that got more than another one whose turns are all with the engine."""
        while self._sent and (oldest := next(iter(self._sent.items())))[1][1] <= now:
            self.begun(oldest[0])
        self._most_begun = max(self._most_begun, num_running - len(self._sent))
        num_ahead = NUM_AHEAD_OF_SHARE if is_ahead else NUM_AHEAD
        if not knows_slots and num_running >= self._most_begun + num_ahead:
            return False
        return self._tokens * pace.prefill_token_s < AHEAD_S

    def next_at(self) -> float:
        """Return when the oldest counts no longer; infinite without one."""
        return next(iter(self._sent.values()))[1] if self._sent else math.inf

    def restarted(self) -> None:
        """Forget what its engine has shown."""
        self._most_begun = 0
