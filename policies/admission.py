"""Admission: which sessions may be resident, in which order, and which ones leave. The policy says what pays;
where holding pays less than thrash, the whole gate opens (`throughput.py`)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from policies.admission_queue import AdmissionQueue, Bucket
from policies.cost import is_cheap, load_of, outgrows, should_give_way
from policies.fleet import Fleet, Pool
from policies.forecast import Stage
from policies.policy import Policy
from policies.shares import Flow, coarse, flow_of
from policies.throughput import FEWEST_GAPS, Load
from policies.types import FamilyId, Reason, Refusal, Session, SessionId, Turn, TurnId

# ---- the gate in front of the caches


@dataclass(frozen=True, slots=True)
class Limits:
    """Knobs that hold for every policy."""

    ceiling: float = 0.98
    """Share of a replica's cache that residents and their next answers may fill now."""
    hold_bound_s: float = 60.0
    """Wait after which idle residents yield to a turn that others overtook."""
    max_queue: int = 10_000
    """Turns at the gate; more are refused."""
    max_sessions: int = 50_000
    """Sessions, and families, that are remembered."""
    max_family_bytes: float = math.inf
    """Memory of families without sessions."""
    tries: int = 4
    """Buckets that one pass looks at behind a head that does not fit, and idle residents that it considers as
    victims."""
    min_retry_after_s: float = 1.0
    sub_agents_return: bool = True
    """Whether the first turn of a sub-agent goes like a later turn of its parent, which waits for it."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The decision to admit a turn."""

    turn: Turn
    pools: list[Pool]
    """Those that have room; never empty."""
    reason: Reason


@dataclass(frozen=True, slots=True)
class _KeptPlace:
    """The place of a session whose turn left the queue unserved."""

    since: float
    place: int
    until: float


MOST_BEHIND, LARGER = 2.0, 2.0
"""Turns by which a tenant may be behind before it counts as overdue, where they are so many times as large as
those of the others. Alike turns lack room alike, and would evict each other's sessions."""
_FREE = Reason.FREE
"""A global, as is `SIDE`."""


class Admission:
    """Owns the turns that wait at the gate, and the places that sessions keep in it."""

    def __init__(self, fleet: Fleet, policy: Policy, limits: Limits) -> None:
        self._fleet, self._policy, self._limits = fleet, policy, limits
        self._queues: dict[str, AdmissionQueue] = {}
        """By model."""
        self.held: dict[TurnId, AdmissionQueue] = {}
        """The queue of each waiting turn."""
        self._kept: OrderedDict[SessionId, _KeptPlace] = OrderedDict()
        self.unranked: dict[TurnId, Exception] = {}
        """Turns that the policy failed to rank since the Scheduler last looked. They stand last until it does: an
        error that is raised would leave the queue half changed."""

    def turns(self) -> Iterator[Turn]:
        """Return all waiting turns, in no order."""
        return (turn for queue in self._queues.values() for turn in queue.held.turns())

    def queue_of(self, model: str) -> AdmissionQueue:
        if model not in self._queues:
            self._queues[model] = AdmissionQueue(self._rank)
        return self._queues[model]

    # ---- places in the queue

    def put(self, turn: Turn, session: Session, now: float) -> None:
        """Queue a turn, at the end or in the place that its session kept."""
        kept = self._kept.pop(session.id, None)
        is_kept = kept is not None and kept.until >= now
        since, place = (kept.since, kept.place) if kept is not None and is_kept else (now, None)
        queue = self.queue_of(turn.model)
        queue.put(turn, self._bucket(turn, session), since, place, now)
        self.held[turn.id] = queue

    def withdraw(self, turn_id: TurnId, keep_until: float) -> Turn:
        """Remove a turn unserved; its session keeps its place until then."""
        queue = self.held.pop(turn_id)
        since = queue.held.since(turn_id)
        turn, place = queue.remove(turn_id)
        self._kept[turn.session_id] = _KeptPlace(since, place, keep_until)
        self._kept.move_to_end(turn.session_id)
        while len(self._kept) > self._limits.max_queue:
            self._kept.popitem(last=False)
        return turn

    def forget_session(self, session_id: SessionId) -> None:
        self._kept.pop(session_id, None)

    def refusal(self, turn: Turn, session: Session, now: float) -> tuple[Refusal | None, float]:
        """Return why a turn that arrives now cannot wait, if it cannot, and its expected wait."""
        kept = self._kept.get(turn.session_id)
        since = kept.since if kept is not None and kept.until >= now else now
        queue, key = self.queue_of(turn.model), None
        if self._policy.ranks_turns and self.held:
            key = queue.held.key(turn, self._bucket(turn, session), since)
        wait_s = queue.expected_wait_s(now, flow_of(turn), key=key) - (now - since)
        if len(self.held) >= self._limits.max_queue and self._is_full_for(turn.tenant):
            return Refusal.QUEUE_FULL, wait_s
        if wait_s > turn.max_wait_s:
            return Refusal.TOO_LONG, wait_s
        if turn.deadline_at is not None and now + wait_s > turn.deadline_at:
            return Refusal.DEADLINE, wait_s
        return None, wait_s

    def expected_wait_of_s(self, turn_id: TurnId, now: float) -> float:
        """Estimate the further wait of a turn; 0 for one that does not wait for residency."""
        queue = self.held.get(turn_id)
        return 0.0 if queue is None else queue.expected_wait_s(now, flow_of(queue.held[turn_id]), turn_id)

    def next_overdue_at(self, now: float) -> float:
        """Return the next time at which a wait passes the bound; infinite while none is due to."""
        at = math.inf
        for queue in self._queues.values():
            overdue_at = queue.overdue_at(self._limits.hold_bound_s, now)
            if now < overdue_at < at:
                at = overdue_at
        return at

    def _bucket(self, turn: Turn, session: Session) -> Bucket:
        returns = session.num_begun > 1 or self._waits_for(session)
        stage = session.num_begun, session.declared_turns
        turn_id = turn.id if self._policy.ranks_turns else ""
        return Bucket(turn.priority_class, returns, turn.tenant, turn.family_id, *stage, turn_id)

    def _is_full_for(self, tenant: str) -> bool:
        """Whether the tenant has its part of the queue, as one of the tenants that wait."""
        queues = self._queues.values()
        tenants = {tenant}.union(other for queue in queues for _, other in queue.held.flows)
        return len(tenants) * sum(queue.held.num_of(tenant) for queue in queues) >= self._limits.max_queue

    def _waits_for(self, session: Session) -> bool:
        """Whether a parent waits for this session."""
        return self._limits.sub_agents_return and session.parent_id in self._fleet.sessions

    def _rank(self, turn: Turn, bucket: Bucket) -> float:
        """Return the place of a turn among those of its standing. A session in mid-run goes in the order in which
        it came back, so none that came later prolongs its stall."""
        if bucket.num_begun > 1 and not self._policy.ranks_turns:
            return 0.0
        try:
            rank = self._policy.rank(turn, bucket, self._fleet.families[bucket.family_id])
        except Exception as error:
            self.unranked[turn.id] = error
            return math.inf
        is_exact = self._policy.ranks_turns or not self._fleet.tenants.are_rivals
        return rank if is_exact else coarse(rank)

    # ---- the decision

    def passes(self, turn: Turn, pools: list[Pool], now: float) -> Reason | None:
        """Return why a turn that arrives now is admitted at once into any of its pools: it is cheap, or the gate
        is empty and it fits. None: it is not."""
        if self._fleet.tenants.are_rivals and any(self._has_enough(flow_of(turn), pool) for pool in pools):
            return None
        may_fit = not self.held and turn.session_id not in self._kept
        if may_fit and all(self._fits(turn, pool, now) for pool in pools):
            reason = Reason.OPEN if any(map(self.is_open, pools)) else _FREE
        elif all(self._is_cheap(turn, pool) for pool in pools):
            reason = Reason.CHEAP if self.held else Reason.FREE
        else:
            return None
        self.queue_of(turn.model).admitted(now)
        return reason

    def trim(self, now: float) -> bool:
        """Release idle residents where the residents outgrew a pool, in the order of `_victim_key`, so that
        the others stop evicting each other. Returns whether one was released."""
        trims = False
        for pool in self._fleet.pools.values() if self._policy.gates_residency else ():
            if not pool.idle or not outgrows(pool) or self._opens(pool, now):
                continue
            while pool.idle and outgrows(pool) and pool.ledger.num_residents > 1:
                self._fleet.release(max(pool.idle.values(), key=self._victim_key))
                trims = True
        return trims

    def next(self, now: float) -> Admitted | None:
        """Remove the next turn that may be admitted from its queue; None while there is none.

        Tenants go in the order of their shares. A turn that was overtaken for too long goes first, as does one
        whose tenant is far behind, and while it does not fit no other overtakes it. Otherwise the policy's order
        holds, and a session that does not fit lets smaller ones behind it pass. While a session in mid-run waits,
        no new one takes its room, and while a sub-agent waits, or one that only its history shows to be in
        mid-run, no new one of its tenant does.
        """
        for model, queue in self._queues.items() if self.held else ():
            bound_s, is_shared = self._limits.hold_bound_s, self._fleet.tenants.are_rivals
            flows = self._flows(queue, model) if is_shared else list(queue.held.flows)
            candidates, is_overdue = queue.candidates(flows, self._limits.tries, bound_s, now, is_shared)
            if is_shared and candidates and self._is_far_behind(candidates, flows, now):
                candidates, is_overdue = candidates[:1], True
            tried: set[str] = set()
            is_awaited = False
            held_up: set[str] = set()
            for turn in candidates:
                bucket = queue.held.bucket(turn.id)
                if not bucket.is_returning and (is_awaited or turn.tenant in held_up):
                    continue
                self._fleet.deciding, pools = turn.id, self._takers(turn)
                admitted = self._try(turn, pools, now, not tried, turn.tenant not in tried, is_overdue)
                tried.add(turn.tenant)
                if admitted is not None:
                    queue.remove(turn.id)
                    queue.admitted(now)
                    del self.held[turn.id]
                    return admitted
                if not self._could_fit(turn, pools):
                    continue
                if self._is_due(turn, pools):
                    break
                session = self._fleet.sessions[turn.session_id]
                if bucket.is_returning and bucket.num_begun > 1 and not session.is_presumed:
                    is_awaited = True
                elif bucket.is_returning:
                    held_up.add(turn.tenant)
        return None

    def _try(
        self,
        turn: Turn,
        pools: list[Pool],
        now: float,
        is_first: bool,
        is_tenants_first: bool,
        is_overdue: bool,
    ) -> Admitted | None:
        """Admit the turn where one of these holds, in this order:

        1. It fits.
        2. It is the first, and idle residents that have probably ended leave for it.
        3. It is the first of its tenant, and residents of tenants that hold much more of the pool leave for it.
        4. It is overdue, or its tenant far behind, and idle residents leave for it.
        5. It does not fit beside others, and all others are idle: it gets the pool alone.
        """
        fitting = [pool for pool in pools if self._fits(turn, pool, now)]
        if any(map(self.is_open, fitting)):
            return Admitted(turn, pools, Reason.OPEN)  # into any: the open one must not take the sessions of all
        if fitting:
            return Admitted(turn, fitting, Reason.ADMITTED if self._is_old(turn, now) else Reason.FREE)
        for pool in pools:
            if is_first and self._evicts_ended(turn, pool, now):
                return Admitted(turn, [pool], Reason.ADMITTED)
            if is_tenants_first and self._evicts_surplus(turn, pool, now):
                return Admitted(turn, [pool], Reason.ADMITTED)
        if is_overdue:
            for pool in pools:
                if self._evicts_idle(turn, pool):
                    return Admitted(turn, [pool], Reason.YIELDED)
        alone = next((pool for pool in pools if self._clears(turn, pool, is_overdue)), None)
        return None if alone is None else Admitted(turn, [alone], Reason.ALONE)

    def _flows(self, queue: AdmissionQueue, model: str) -> list[Flow]:
        """Return the waiting flows that may have more room in a pool."""
        pools = self._fleet.serving(model)
        return [flow for flow in queue.held.flows if not all(self._has_enough(flow, pool) for pool in pools)]

    def _takers(self, turn: Turn) -> list[Pool]:
        """Return the pools in which the turn may have room."""
        pools = self._fleet.eligible(turn)
        if not self._fleet.tenants.are_rivals:
            return pools
        return [pool for pool in pools if not self._has_enough(flow_of(turn), pool)]

    def _has_enough(self, flow: Flow, pool: Pool) -> bool:
        """Whether a tenant holds much of the pool, and has as many turns that only wait for a slot as run there.
        More would have room long before they use it, and keep it from others."""
        if pool.capacity.tokens is None or pool.queue.num_of(flow) < max(1, len(pool.replica.running)):
            return False
        return self._fleet.holds_much(flow[1], pool)

    def _is_far_behind(self, candidates: list[Turn], flows: list[Flow], now: float) -> bool:
        """Whether the tenant of the first got less than each other one that waits, by several turns like this one,
        and those of the others are smaller. It lacked room while they went, and once overdue it would make up for
        that in a row."""
        turn = candidates[0]
        others = [other.chars for other in candidates if other.tenant != turn.tenant]
        if turn.chars < LARGER * max(others, default=math.inf):
            return False
        turn_tokens = turn.chars * self._fleet.tokens_per_char(turn) / turn.weight
        return self.held[turn.id].behind_tokens(flow_of(turn), flows, now) > MOST_BEHIND * turn_tokens

    def _is_old(self, turn: Turn, now: float) -> bool:
        return self.held[turn.id].held.since(turn.id) < now

    def _is_due(self, turn: Turn, pools: list[Pool]) -> bool:
        """Whether other tenants have to make room for it as soon as sessions of them are idle."""
        for pool in pools if self._fleet.tenants.are_rivals else ():
            for tenant, blocks in self._fleet.surplus(turn, pool).items():
                part = pool.parts[tenant]
                if part.blocks <= blocks * part.num_residents:
                    return True
        return False

    def _is_cheap(self, turn: Turn, pool: Pool) -> bool:
        """Whether holding a first turn costs more than its session does. Among several tenants none is: a flood of
        them would take the parts of others. Nor is any before the pool has shown its pace."""
        session, family = self._fleet.sessions[turn.session_id], self._fleet.families[turn.family_id]
        if pool.capacity.tokens is None or pool.pace.gap_s is None or self._fleet.tenants.are_rivals:
            return False
        return session.num_begun <= 1 and is_cheap(pool, session, family, pool.new_tokens(turn))

    def _fits(self, turn: Turn, pool: Pool, now: float) -> bool:
        """Whether it fits now and costs the fleet less than holding it, or holding sessions does not pay. One that
        comes in mid-run for the first time needs room alone: another gateway has admitted it."""
        if pool.capacity.tokens is None:
            return True
        new_tokens = pool.new_tokens(turn)
        if pool.has_room(new_tokens, self._limits.ceiling):
            session, family = self._fleet.sessions[turn.session_id], self._fleet.families[turn.family_id]
            num_waiting = len(self.held) + (turn.id not in self.held)
            if session.is_presumed or self._policy.fits(pool, session, family, new_tokens, num_waiting):
                return True
        return self._opens(pool, now)

    def is_open(self, pool: Pool) -> bool:
        """Whether holding sessions did not pay in the pool when that was judged last. Among several tenants it
        keeps their parts, and never opens."""
        return pool.switch.is_open and not self._fleet.tenants.are_rivals

    def _opens(self, pool: Pool, now: float) -> bool:
        """Judge whether holding sessions pays in the pool, if that is due. Return whether it does not."""
        if pool.switch.is_due(now) and len(pool.pace.gaps) >= FEWEST_GAPS and not self._fleet.tenants.are_rivals:
            was_open = pool.switch.is_open
            if (load := self._load(pool)) is not None:  # else the turn is too large for an empty pool
                pool.switch.judge(load, pool.pace, now)
            if pool.switch.is_open is not was_open:
                self._fleet.switched.append(pool)
        return self.is_open(pool)

    def _load(self, pool: Pool) -> Load | None:
        """Return the sessions that use the pool, with its part of those that wait; None: there are none."""
        part = 1 / max(1, sum(other.replica.is_healthy for other in self._fleet.pools.values()))
        waiting: dict[tuple[FamilyId, Stage], float] = {}
        for queue in self._queues.values():
            for bucket, num in queue.held.counts():
                key = bucket.family_id, (bucket.num_begun, bucket.declared_turns)
                waiting[key] = waiting.get(key, 0.0) + part * num
        return load_of(pool, self._fleet.families, waiting)

    def _could_fit(self, turn: Turn, pools: list[Pool]) -> bool:
        """Whether some pool is large enough for it. A turn that is too large for all waits for a pool of its own
        and holds up no other."""
        ceiling = self._limits.ceiling
        return any(pool.prompt_tokens(turn) <= ceiling * (pool.capacity.tokens or math.inf) for pool in pools)

    # ---- victims: idle residents that leave for a turn that waits

    def _victims(self, turn: Turn, pool: Pool) -> list[Session]:
        """Return the idle residents of no higher class, longest idle first; where there are many, only some."""
        idle = islice(pool.idle.values(), self._limits.tries)
        return [session for session in idle if session.priority_class <= turn.priority_class]

    def _victim_key(self, session: Session) -> tuple[int, bool, float, float]:
        """Sort key; the largest is released first: the lowest class, then an expired lease, then the tenant that
        holds most of the pool, then the policy's order."""
        family, pool = self._fleet.families[session.family_id], self._fleet.home(session)
        return (
            -session.priority_class,
            session.is_expired,
            0.0 if pool is None else self._fleet.blocks_of(session.tenant, pool),
            self._policy.victim_rank(session, family),
        )

    def _evicts_ended(self, turn: Turn, pool: Pool, now: float) -> bool:
        """Release residents that have probably ended, until the turn fits."""
        for session in self._victims(turn, pool):
            family = self._fleet.families[session.family_id]
            if not should_give_way(pool, session, family, now):
                continue
            self._fleet.release(session)
            if self._fits(turn, pool, now):
                return True
        return False

    def _evicts_surplus(self, turn: Turn, pool: Pool, now: float) -> bool:
        """Release residents of tenants that hold more of the pool than the turn's tenant, until the turn fits. No
        tenant is left with less than that one."""
        surplus = self._fleet.surplus(turn, pool) if self._fleet.tenants.are_rivals else {}
        for session in list(pool.idle.values()) if surplus else ():
            left_blocks = surplus.get(session.tenant, 0.0) - session.held_blocks
            if left_blocks >= 0 and session.priority_class <= turn.priority_class:
                surplus[session.tenant] = left_blocks
                self._fleet.release(session)
                if self._fits(turn, pool, now):
                    return True
        return False

    def _evicts_idle(self, turn: Turn, pool: Pool) -> bool:
        """Release residents, longest idle first, until an overdue turn has room, whatever it costs later."""
        for session in self._victims(turn, pool):
            if pool.has_room(pool.new_tokens(turn), self._limits.ceiling):
                break
            self._fleet.release(session)
        return pool.has_room(pool.new_tokens(turn), self._limits.ceiling)

    def _clears(self, turn: Turn, pool: Pool, is_overdue: bool) -> bool:
        """Release all residents, if all are idle, and have ended or have to yield."""
        if len(pool.idle) < pool.ledger.num_residents:
            return False
        idle = list(pool.idle.values())
        if any(
            session.priority_class > turn.priority_class or not (is_overdue or session.is_expired)
            for session in idle
        ):
            return False
        for session in idle:
            self._fleet.release(session)
        return True
