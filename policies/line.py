"""The line of turns that wait for one model: their order, and how the wait goes."""

from __future__ import annotations

import math
from collections import deque

from policies.held import Bucket, HeldTurns, Place, Rank
from policies.overtaking import Overtaking
from policies.shares import Flow, Shares, firsts, flow_of
from policies.types import Turn, TurnId

FEWEST_RECENT, MOST_RECENT = 5, 64
"""Admissions that a wait is estimated from."""
FAIR = 2.0
"""Nobody waits longer than this many times what it would have waited first come, first served."""


class Line:
    """One for each model, so that who waits for one never holds up who waits for another."""

    def __init__(self, rank: Rank) -> None:
        self.held = HeldTurns(rank)
        self.shares = Shares()
        """Of the tokens that are computed for this model."""
        self._overtaking = Overtaking()
        self._recent: deque[float] = deque(maxlen=MOST_RECENT)
        """Times of admissions since the line was last empty."""

    def put(self, turn: Turn, bucket: Bucket, since: float, place: int | None, now: float) -> None:
        """`place`: the one that its session kept; None: at the end."""
        flow = flow_of(turn)
        if flow not in self.held.flows:
            self.shares.joined(flow, self.held.flows, now)
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

    def candidates(self, most: int, bound_s: float, now: float) -> tuple[list[Turn], bool]:
        """Who may go next, best first, and whether everybody makes way for it. Of several flows the next one has
        that right as soon as anybody waits too long, so that its admission brings that one nearer."""
        if not self.held:
            return [], False
        flows = self.shares.in_order(self.held.flows, now)
        next_at, any_at, turn_id = self._overdue_at(flows, bound_s)
        if next_at <= now:
            return [self.held[turn_id]], True
        if any_at <= now:
            return self.held.heads(1, flows[:1]), True
        return self.held.heads(most, flows), False

    def overdue_at(self, bound_s: float, now: float) -> float:
        """From when on somebody has waited too long who has not yet; infinite while nobody knows."""
        flows = self.held.flows
        if len(flows) == 1:
            at = self._after(*self.held.oldest(next(iter(flows))), bound_s)
            return at if at > now else math.inf
        if not flows:
            return math.inf
        next_at, any_at, _ = self._overdue_at(self.shares.in_order(flows, now), bound_s)
        return min((at for at in (next_at, any_at) if at > now), default=math.inf)

    def _overdue_at(self, flows: list[Flow], bound_s: float) -> tuple[float, float, TurnId]:
        """From when everybody makes way for who has waited longest of the flows that are next in each class, which
        is told; and of all. That is after the bound, and not before it has waited FAIR times as long as in the
        order of arrivals; until that order has come to it, all wait alike."""
        if len(flows) == 1:
            place, turn_id = self.held.oldest(flows[0])
            at = self._after(place, turn_id, bound_s)
            return at, at, turn_id
        place, turn_id = min(map(self.held.oldest, firsts(flows)))
        of_all = min(map(self.held.oldest, flows))
        return self._after(place, turn_id, bound_s), self._after(*of_all, bound_s), turn_id

    def _after(self, place: Place, turn_id: TurnId, bound_s: float) -> float:
        if not turn_id:
            return math.inf
        since = place[0]
        due_at = self._overtaking.due_at(turn_id, since)
        return math.inf if due_at is None else since + max(bound_s, FAIR * (due_at - since))

    def expected_wait_s(self, now: float, flow: Flow, turn_id: TurnId | None = None) -> float:
        """Further wait of a turn of the flow, or of one that comes now, at the pace of recent admissions; 0 before
        enough were seen: they come in bursts, and a client that is refused for nothing is worse off than one that
        waits."""
        if len(self._recent) < FEWEST_RECENT:
            return 0.0
        return (self.held.num_before(flow, turn_id) + 1) * (now - self._recent[0]) / len(self._recent)
