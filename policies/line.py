"""The line of turns that wait for one model: their order, and how the wait goes."""

from __future__ import annotations

import math
from collections import deque

from policies.held import Attained, Bucket, HeldTurns, Rank
from policies.overtaking import Overtaking
from policies.types import Turn, TurnId

FEWEST_RECENT, MOST_RECENT = 5, 64
"""Admissions that a wait is estimated from."""
FAIR = 2.0
"""Nobody waits longer than this many times what it would have waited first come, first served."""


class Line:
    """One for each model, so that who waits for one never holds up who waits for another."""

    def __init__(self, rank: Rank) -> None:
        self.held = HeldTurns(rank)
        self._overtaking = Overtaking()
        self._recent: deque[float] = deque(maxlen=MOST_RECENT)
        """Times of admissions since the line was last empty."""

    def put(self, turn: Turn, bucket: Bucket, since: float, place: int | None) -> None:
        """`place`: the one that its session kept; None: at the end."""
        self.held.put(turn, bucket, since)
        self._overtaking.enter(turn.id, place)

    def take(self, turn_id: TurnId) -> tuple[Turn, int]:
        """A turn leaves, served or not; also its place."""
        turn = self.held.take(turn_id)
        if not self.held:
            self._recent.clear()
        return turn, self._overtaking.leave(turn_id)

    def admitted(self, now: float) -> None:
        """Who was taken last, or never had to wait, has been let in."""
        self._overtaking.admitted(now)
        if self.held:
            self._recent.append(now)

    def heads(self, most: int, attained: Attained) -> list[Turn]:
        return self.held.heads(most, attained)

    def oldest(self, bound_s: float) -> tuple[Turn, float] | None:
        """Who has waited longest, and from when everybody makes way for it: after the bound, and not before it has
        waited FAIR times as long as in the order of arrivals. Until that order has come to it, all wait alike."""
        turn = self.held.oldest()
        if turn is None:
            return None
        since = self.held.since(turn.id)
        due_at = self._overtaking.due_at(turn.id, since)
        return turn, math.inf if due_at is None else since + max(bound_s, FAIR * (due_at - since))

    def expected_wait_s(self, now: float, turn_id: TurnId | None = None) -> float:
        """Further wait of a turn, or of one that comes now, at the pace of recent admissions; 0 before enough were
        seen: they come in bursts, and a client that is refused for nothing is worse off than one that waits."""
        if len(self._recent) < FEWEST_RECENT:
            return 0.0
        num_ahead = len(self.held) if turn_id is None else self.held.num_older(turn_id)
        return (num_ahead + 1) * (now - self._recent[0]) / len(self._recent)
