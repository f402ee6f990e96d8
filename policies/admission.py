"""The gate in front of the caches: which held turn may become resident next, and how long the others will wait."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass

from policies.fleet import Fleet, Pool, chain_is_cached
from policies.held import Bucket, HeldTurns
from policies.policy import Policy
from policies.remaining import expected_turns
from policies.types import Reason, Session, SessionId, Turn, TurnId

FEWEST_RECENT, MOST_RECENT = 5, 64
"""Admissions that a wait is estimated from."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Knobs that hold for every policy."""

    ceiling: float = 0.95
    """Share of a replica's cache that residents may fill now; nobody is admitted beyond it."""
    price: float = 4.0
    """How many times the time to compute evicted tokens again counts against the time that holding wastes. Above
    1 because a prefill also delays the answers that others are getting; 0 admits whatever fits now."""
    hold_bound_s: float = 60.0
    """Wait after which idle residents yield, W in the design."""
    max_queue: int = 10_000
    """Turns at the gate; more are refused."""
    max_sessions: int = 50_000
    """Sessions, and families, that are remembered."""
    tries: int = 8
    """Buckets that one pass looks at behind a head that does not fit."""
    min_retry_after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Admitted:
    turn: Turn
    pools: list[Pool]
    """Those that have room; never empty."""
    reason: Reason


class Admission:
    """Owns the turns that wait at the gate and the places that sessions keep in it."""

    def __init__(self, fleet: Fleet, policy: Policy, limits: Limits) -> None:
        self._fleet, self._policy, self._limits = fleet, policy, limits
        self.held = HeldTurns(self._rank)
        self._kept: OrderedDict[SessionId, tuple[float, float]] = OrderedDict()
        """Places of sessions that left the queue unserved: (waiting since, kept until)."""
        self._recent: deque[float] = deque(maxlen=MOST_RECENT)
        """Times of admissions out of the queue since it was last empty."""

    # ---- places in the queue

    def put(self, turn: Turn, session: Session, since: float) -> None:
        bucket = Bucket(turn.urgency, turn.family_id, session.num_begun, session.remaining_turns)
        self.held.put(turn, bucket, since)

    def since(self, session_id: SessionId, now: float) -> float:
        """When the wait of a newly arrived turn began: now, or when the place that its session kept did."""
        since, until = self._kept.pop(session_id, (now, now))
        return since if until >= now else now

    def keep_place(self, session_id: SessionId, since: float, until: float) -> None:
        self._kept[session_id] = (since, until)
        self._kept.move_to_end(session_id)
        while len(self._kept) > self._limits.max_queue:
            self._kept.popitem(last=False)

    def expected_wait_s(self, num_ahead: int, now: float) -> float:
        """Wait behind `num_ahead` turns at the pace of recent admissions; 0 before enough were seen: they come in
        bursts, and a client that is refused for nothing is worse off than one that waits."""
        if len(self._recent) < FEWEST_RECENT:
            return 0.0
        return (num_ahead + 1) * (now - self._recent[0]) / len(self._recent)

    def expected_wait_of_s(self, turn_id: TurnId, now: float) -> float:
        return self.expected_wait_s(self.held.num_older(turn_id), now) if turn_id in self.held else 0.0

    def trim(self) -> None:
        """Where residents outgrew the pool, those who are idle and furthest from their end wait for their next
        turn at the gate. Whatever was mispredicted, the others stop evicting each other."""
        for pool in self._fleet.pools.values() if self._policy.gates_residency else ():
            capacity_tokens = pool.replica.capacity_tokens or math.inf
            while pool.idle and pool.ledger.num_residents > 1 and pool.resident_tokens > capacity_tokens:
                self._fleet.release(max(pool.idle.values(), key=self._rank_of))

    # ---- the decision

    def next(self, now: float) -> Admitted | None:
        """Take the next turn out of the queue that may go; None while there is none.

        What waited past the bound goes first, and while it does not fit nothing overtakes it. Otherwise the
        policy's order holds, and a turn that does not fit lets smaller ones behind it through.
        """
        oldest = self.held.oldest()
        if oldest is None:
            return None
        if now - self.held.since(oldest.id) >= self._limits.hold_bound_s:
            candidates, is_overdue = [oldest], True
        else:
            candidates, is_overdue = self.held.heads(self._limits.tries), False
        for turn in candidates:
            admitted = self._try(turn, now, is_overdue)
            if admitted is not None:
                self.held.take(turn.id)
                self._recent.append(now)
                if not self.held:
                    self._recent.clear()
                return admitted
        return None

    def _try(self, turn: Turn, now: float, is_overdue: bool) -> Admitted | None:
        pools = list(self._fleet.eligible(turn))
        fitting = [pool for pool in pools if self.fits(turn, pool)]
        if fitting:
            is_new = now <= self.held.since(turn.id)
            return Admitted(turn, fitting, Reason.FREE if is_new else Reason.ADMITTED)
        if is_overdue:
            yielding = next((pool for pool in pools if self._yields(turn, pool)), None)
            if yielding is not None:
                return Admitted(turn, [yielding], Reason.YIELDED)
        alone = next((pool for pool in pools if self._clears(pool, is_overdue)), None)
        return None if alone is None else Admitted(turn, [alone], Reason.ALONE)

    def fits(self, turn: Turn, pool: Pool) -> bool:
        """Whether admitting the session costs the fleet less than holding it.

        It fits now, and either its pool stays within its size as far as the forecast sees, or what it is expected
        to evict in a turn, at `price` times the time to compute that again, is less than the share of the
        pool's time that one more session in the batch saves.
        """
        capacity_tokens = pool.replica.capacity_tokens
        if capacity_tokens is None:
            return True
        session = self._fleet.sessions[turn.session_id]
        new_tokens = pool.new_tokens(turn)
        if pool.resident_tokens + new_tokens > self._limits.ceiling * capacity_tokens:
            return False
        if session.num_begun > 1 and chain_is_cached(pool, session.blocks):
            return True
        evicted_tokens = self._evicted_tokens(session, new_tokens, pool)
        share_tokens = pool.pace.cycle_tokens / (pool.ledger.num_residents + 1)
        return self._limits.price * evicted_tokens <= share_tokens

    def _evicted_tokens(self, session: Session, new_tokens: float, pool: Pool) -> float:
        """Tokens per turn by which the session makes the residents outgrow the pool, while it lives."""
        assert pool.replica.capacity_tokens is not None
        family = self._fleet.families[session.family_id]
        own = self._policy.forecast(family, session.num_begun, session.remaining_turns)
        others = pool.reserve.forecast or [0.0] * len(own)
        room_tokens = pool.replica.capacity_tokens - pool.resident_tokens
        overflow_tokens = sum(
            max(0.0, theirs + ours + new_tokens - room_tokens) - max(0.0, theirs - room_tokens)
            for theirs, ours in zip(others, own, strict=True)
        )
        turns = 1 + expected_turns(family, session.num_begun, session.remaining_turns)
        return overflow_tokens / min(turns, len(own))

    def _yields(self, turn: Turn, pool: Pool) -> bool:
        """Make room now for a turn past the bound: idle residents give way, longest idle first."""
        assert pool.replica.capacity_tokens is not None  # else everything fits
        ceiling_tokens = self._limits.ceiling * pool.replica.capacity_tokens
        while pool.resident_tokens + pool.new_tokens(turn) > ceiling_tokens:
            if not pool.idle:
                return False
            self._fleet.release(next(iter(pool.idle.values())))
        return True

    def _clears(self, pool: Pool, is_overdue: bool) -> bool:
        """Whether a session that fits beside nobody has the pool to itself: nobody is in a turn there, and
        nobody is idle, or has to yield."""
        if pool.ledger.num_residents > (len(pool.idle) if is_overdue else 0):
            return False
        for session in list(pool.idle.values()):
            self._fleet.release(session)
        return True

    def _rank_of(self, session: Session) -> float:
        family = self._fleet.families[session.family_id]
        return self._policy.rank(family, session.num_begun, session.remaining_turns)

    def _rank(self, bucket: Bucket) -> float:
        return self._policy.rank(self._fleet.families[bucket.family_id], bucket.num_begun, bucket.declared)
