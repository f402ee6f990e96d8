"""The Scheduler: takes facts with a time, returns decisions as data. It is the only writer of the fleet's state.

Laws (tests/contract):
1. Every turn that arrived is dispatched or refused at most once, and ends with its own `Left`.
2. A slot is held from Dispatch to Left, never between two turns.
3. A turn of a resident session waits for a slot only; others wait until the cache of a replica has room.
4. No session is admitted into a pool whose residents already fill the ceiling, unless it is cheap or the gate of
   the pool is open. One that is larger than the ceiling gets a pool alone.
5. A turn that waits longer than the bound, for room or a slot, goes before the policy's order; idle residents
   yield.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from policies import learning
from policies.admission import Admission, Limits
from policies.engine_queue import EngineTime
from policies.fleet import (
    Fleet,
    FleetView,
    GateState,
    Pool,
    cached_tokens,
    continues_prompt,
    option,
    view_of,
)
from policies.idle import IdleSessions, Timers
from policies.ledger import shared_length
from policies.lessons import (
    family_lessons,
    pool_lessons,
    recall_family,
    recall_pool,
    recall_residents,
    returned,
)
from policies.observed_gate import ObservedGate
from policies.policy import Policy
from policies.shadow_clocks import Clocks
from policies.shares import coarse
from policies.slots import Slots
from policies.types import (
    COMPLETE,
    SIDE,
    Arrived,
    CacheLost,
    Decision,
    Dispatch,
    Fact,
    FamiliesRecalled,
    Family,
    FamilyLessons,
    FirstByte,
    Hold,
    Left,
    PoolLessons,
    Reason,
    Refusal,
    Reject,
    Release,
    ReplicaLost,
    ReplicaReported,
    Session,
    SessionEnded,
    SessionForgotten,
    SessionId,
    SessionState,
    Switched,
    Turn,
    TurnId,
    TurnKind,
    Usage,
)
from policies.waits import Waits, holds_most, residents

AGAIN_S = 1.0
"""When to decide again after an error that may have stopped the timer."""


class _Ready(NamedTuple):
    """A turn that waits for a slot only."""

    pool: Pool
    reason: Reason
    missing_tokens: float
    evicted_tokens: float
    expected_blocks: int
    last_blocks: int
    """Length of its session's last prompt; 0 where this one does not go on from it."""
    at: float


class Scheduler:
    """Owns the fleet. `tell` is the only way in."""

    def __init__(self, policy: Policy, limits: Limits) -> None:
        self._policy, self._limits = policy, limits
        self._fleet = Fleet(policy.forecast, limits.max_sessions, limits.max_family_bytes)
        self._admission = Admission(self._fleet, policy, limits)
        self._ready: dict[TurnId, _Ready] = {}
        """Turns that wait for a slot only: (pool, reason, tokens that its cache should miss, those of them that it
        had before, since when)."""
        self._resting: dict[TurnId, Turn] = {}
        """Turns that may not go yet: see `Turn.not_before`."""
        self._rests = Timers()
        self._slots = Slots(self._fleet, self._admission.queue_of)
        self._sides: set[SessionId] = set()
        """Sessions with a side request that passed the gate; and side requests that did not, which are sessions of
        their own."""
        observes = getattr(policy, "observes_gate", False)  # policies of other packages need not have it
        holds = GateState.HOLDS if policy.gates_residency else GateState.NONE
        self._gate = GateState.OBSERVED if observes else holds
        self._clocks = ObservedGate(self._fleet) if observes else Clocks(self._fleet, policy.gates_residency)
        self._idle = IdleSessions(self._fleet, policy, self._relearn, self._clocks.ended)
        self._deadlines = Timers()
        """Of waiting turns."""
        self._waits = Waits()
        self._wake_at: float | None = None
        """As returned last."""
        self._num_placed = 0
        self._open: dict[TurnId, Turn] = {}
        """Turns that arrived and are not over, as they are gated."""
        self.on_error: Callable[[TurnId | None, Exception], None] | None = None
        """Hears of each error in a decision, with the turn that gave all back for it; None: it was no turn's.
        Without a hearer errors are raised, and the state is undefined from then on."""

    @property
    def family_bytes(self) -> int:
        """About the memory of what families without sessions have learned."""
        return self._fleet.family_bytes

    def tell(self, fact: Fact, now: float) -> tuple[list[Decision], float | None]:
        """Take a fact in. Return the decisions, and when to send a Tick if no other fact comes before."""
        decisions: list[Decision] = []
        try:
            self._decide(fact, now, decisions)
        except Exception as error:
            if self.on_error is None:
                raise
            self._blame(error, now, decisions)
            self._go_on(now, decisions)
        if self._admission.unranked:
            self._drop_unranked(now, decisions)
        return decisions, self._wake_at

    def _decide(self, fact: Fact, now: float, decisions: list[Decision]) -> None:
        """Take a fact in, and decide what follows. The steps behind the fact are those of `_go_on`, too."""
        may_admit, self._fleet.deciding = True, None
        if isinstance(fact, FirstByte):
            are_several = self._fleet.tenants.are_several(now)
            if (self._slots.first_byte(fact.turn_id, now) or are_several) and self._ready:
                self._dispatch(now, decisions)
            if self._admission.held or are_several:
                self._wake_at = self._next_wake(now)
            return  # it makes no room
        if isinstance(fact, Arrived):
            may_admit = self._arrived(fact.turn, now, decisions)
        elif isinstance(fact, Left):
            self._left(fact, now)
        else:
            self._heard(fact, now, decisions)
        self._fleet.deciding = None
        idle = self._idle
        if idle.leases.next_at <= now or idle.outrun.next_at <= now or self._deadlines.next_at <= now:
            may_admit |= self._expire(now, decisions)
        if self._clocks.quiet.next_at <= now:
            self._clocks.expire(now)
        if self._rests.next_at <= now:
            self._resume(now, decisions)
            may_admit = True
        may_admit |= self._admission.trim(now)
        if may_admit and self._admission.held:
            self._admit(now)
        if self._ready:
            self._dispatch(now, decisions)
        if self._fleet.lost or self._fleet.switched:
            self._announce(decisions)
        if isinstance(fact, Arrived) and (self._admission.held or self._ready or self._resting):
            self._note_wait(fact.turn, now)
        self._wake_at = self._next_wake(now)

    def view(self, counts_sessions: bool = True, named: frozenset[SessionId] = frozenset()) -> FleetView:
        """Return a copy for observers, with the state of the named sessions."""
        waiting = {
            Hold.RESIDENCY: len(self._admission.held),
            Hold.SLOT: len(self._ready),
            Hold.REPLICA: len(self._resting),
        }
        queued = self._slots.queued_sessions() if named else frozenset()
        return view_of(self._fleet, waiting, self._limits.ceiling, self._gate, counts_sessions, named, queued)

    def pool_lessons(self) -> Iterator[PoolLessons]:
        """Yield what the pools have learned. Take it before the next fact."""
        return pool_lessons(self._fleet)

    def family_lessons(self) -> Iterator[FamilyLessons]:
        """Yield what the families have learned, the last used one first. Take it before the next fact."""
        return family_lessons(self._fleet)

    def expected_wait_s(self, turn_id: TurnId, now: float) -> float:
        """Estimate the further wait of a turn at the gate; 0 for one that only waits for a slot."""
        return self._admission.expected_wait_of_s(turn_id, now)

    def engine_time(self, turn_id: TurnId, usage: Usage, is_whole: bool, now: float) -> EngineTime | None:
        """Return where the time of a turn at its engine went that ends now; None when it has no slot. `is_whole`:
        its answer came at once."""
        return self._slots.engine_time(turn_id, usage, is_whole, now)

    # ---- facts

    def _heard(self, fact: Fact, now: float, decisions: list[Decision]) -> None:
        """Take in a fact about replicas or sessions."""
        match fact:
            case ReplicaReported() | CacheLost():
                if isinstance(fact, ReplicaReported) and fact.lessons is not None:
                    self._recall(self._fleet.pool(fact.replica_id), fact.lessons, now)
                self._fleet.reported(fact, now)
            case FamiliesRecalled(families):
                for lessons in families:
                    recall_family(self._fleet, lessons)
            case ReplicaLost(replica_id):
                self._lost(self._fleet.pool(replica_id), now, decisions)
            case SessionEnded(session_id) | SessionForgotten(session_id):
                self._ended(session_id, now, is_forgotten=isinstance(fact, SessionForgotten))

    def _recall(self, pool: Pool, lessons: PoolLessons, now: float) -> None:
        """Begin where an earlier gateway ended: with its lessons, and with the room of its residents."""
        recall_pool(pool, lessons)
        for session, idle_since in recall_residents(self._fleet, pool, lessons.residents, now):
            self._idle.rest(session, idle_since)

    def _take_place(self, session: Session, turn: Turn) -> None:
        """Make a session resident that was so at an earlier gateway."""
        before = returned(self._fleet, turn)
        home = None if before is None else self._fleet.home(before)
        if before is not None:
            self._forget(before)
        if home is not None and home.may_serve(turn):
            self._fleet.hold(session, turn.blocks, turn.chars, home)

    def _arrived(self, turn: Turn, now: float, decisions: list[Decision]) -> bool:
        """Take a turn in. Return whether a turn at the gate may go that could not before: this one, or others
        where its prompt is shorter than the session's last."""
        self._fleet.deciding = turn.id
        self._fleet.tenants.arrived(turn, now)
        if turn.kind is SIDE:
            turn = self._gated_side(turn, now)
        self._open[turn.id] = turn
        session = self._begin(turn, now)
        shrinks = len(turn.blocks) < len(session.blocks)
        session.num_waiting += 1
        self._idle.came_back(session)
        if turn.deadline_at is not None and turn.deadline_at <= now:
            self._refuse(turn, Refusal.DEADLINE, 0.0, now, decisions)
        else:
            if turn.not_before > now:
                self._resting[turn.id] = turn
                self._rests.put(turn.not_before, turn.id)
            else:
                self._route(turn, session, now, decisions)
            if turn.deadline_at is not None:
                self._deadlines.put(turn.deadline_at, turn.id)
        return shrinks or turn.id in self._admission.held

    def _gated_side(self, turn: Turn, now: float) -> Turn:
        """Return a side request as it is gated. Side requests pass the gate, since they are small and few. Among
        several tenants only one at a time passes for each resident session; any other becomes a session of its
        own."""
        if not self._is_shared(now) or not self._policy.gates_residency:
            return turn
        session = self._fleet.sessions.get(turn.session_id)
        if session is not None and session.is_resident and session.id not in self._sides:
            self._sides.add(session.id)
            return turn
        self._sides.add(turn.id)
        return replace(turn, kind=TurnKind.SINGLE, session_id=turn.id)

    def _begin(self, turn: Turn, now: float) -> Session:
        """Record an arriving turn in its session and its family."""
        family = self._fleet.family(turn)
        session = self._fleet.session(turn, family)
        if turn.kind is SIDE:
            return session
        is_shared = self._is_shared(now)
        if is_shared and session.num_begun and not continues_prompt(session, turn):
            self._fleet.reset_session(session)
        session.kind, session.is_expired = turn.kind, False
        session.declared_turns, session.priority_class = turn.remaining_turns, turn.priority_class
        session.remaining_turns = None if is_shared else turn.remaining_turns
        if turn.is_retry and session.num_begun:
            return session
        if session.num_begun:
            if not session.num_running and not session.num_waiting:
                learning.saw_gap(family, session, now - session.idle_since)
                self._clocks.came_back(session, now)
                home = self._fleet.pools.get(session.replica_id or "")
                if home is not None:
                    home.pace.saw_cycle(session.decode_s, now - session.idle_since)
            learning.saw_continuation(family, session)
        else:
            parent = self._fleet.sessions.get(session.parent_id or "")
            family.tokens_per_char = self._fleet.tokens_per_char(turn)
            shared_chars = learning.saw_first_prompt(family, turn, parent, has_history=session.num_earlier > 0)
            session.num_begun = session.num_earlier
            self._fleet.weigh(family)
            if session.num_earlier and self._fleet.recalled:
                self._take_place(session, turn)
            self._clocks.began(session, shared_chars, parent, now)
        self._clocks.wants(session, family, turn, now)
        session.num_begun += 1
        learning.saw_bound(family, turn.max_output_tokens)
        self._relearn(family)
        return session

    def _route(self, turn: Turn, session: Session, now: float, decisions: list[Decision]) -> None:
        """Send a turn on its way: 1. its session is resident; 2. no replica can serve it; 3. it needs no
        residency; 4. it waits at the gate."""
        self._fleet.deciding = turn.id
        needs_residency = self._policy.gates_residency and turn.kind is not SIDE
        home = self._fleet.home(session)
        if needs_residency and home is not None and home.may_serve(turn):
            pool = self._choose(turn, self._fleet.eligible(turn)) if self._admission.is_open(home) else home
            self._make_ready(turn, pool, Reason.RESIDENT, now)
        elif not (pools := self._fleet.eligible(turn)):
            self._refuse(turn, Refusal.NO_REPLICA, 0.0, now, decisions)
        elif needs_residency:
            self._wait(turn, session, pools, now, decisions)
        else:
            reason = Reason.SIDE if turn.kind is SIDE else Reason.FREE
            self._make_ready(turn, self._choose(turn, pools), reason, now)

    def _wait(
        self, turn: Turn, session: Session, pools: list[Pool], now: float, decisions: list[Decision]
    ) -> None:
        """Admit a turn at once where the gate is empty; else queue it, or refuse it now."""
        nothing_ends = self._idle.leases.next_at > now and self._deadlines.next_at > now
        if nothing_ends and self._limits.max_queue:
            reason = self._admission.passes(turn, pools, now)
            if reason is not None:
                self._make_ready(turn, self._choose(turn, pools), reason, now)
                return
        refusal, wait_s = self._admission.refusal(turn, session, now)
        self._admission.put(turn, session, now)
        if refusal is not None:
            self._admission.withdraw(turn.id, now + 2 * wait_s)
            self._refuse(turn, refusal, wait_s, now, decisions)

    def _is_shared(self, now: float) -> bool:
        """Whether several tenants use the fleet. Then the declarations of one order its own turns, and no more."""
        fleet = self._fleet
        return fleet.has_strangers or fleet.tenants.are_several(now)

    def _refuse(self, turn: Turn, refusal: Refusal, wait_s: float, now: float, decisions: list[Decision]) -> None:
        decisions.append(Reject(turn.id, refusal, max(self._limits.min_retry_after_s, wait_s)))
        self._waits.forget(turn.id)
        self._fleet.sessions[turn.session_id].num_waiting -= 1
        self._rest(turn, now)

    def _left(self, fact: Left, now: float) -> None:
        self._fleet.deciding = fact.turn_id
        turn = self._slots.free(fact, now)
        if turn is None:
            turn = self._withdraw(fact.turn_id, now + fact.keep_place_s)
            if turn is None:
                return  # it was refused
            self._fleet.sessions[turn.session_id].num_waiting -= 1
        elif fact.ending is COMPLETE and turn.kind is not SIDE:
            self._relearn(self._fleet.families[turn.family_id])
            self._clocks.finished(turn, now)
        self._rest(turn, now)

    def _rest(self, turn: Turn, now: float) -> None:
        """Make the session of a turn that is over idle, unless it has other turns."""
        del self._open[turn.id]
        self._fleet.tenants.left(turn)
        session = self._fleet.sessions[turn.session_id]
        try:
            if self._idle.rest(session, now):
                for oldest in self._fleet.beyond_bound():
                    self._forget(oldest)
        finally:
            if turn.kind is SIDE:
                self._sides.discard(session.id)
            elif self._sides and turn.id in self._sides:
                self._sides.discard(turn.id)
                self._idle.ended(session, now)

    def _note_wait(self, turn: Turn, now: float) -> None:
        """Note what a turn waits for that arrived now and did not go at once."""
        queue = self._admission.held.get(turn.id)
        if queue is not None:
            pools = self._fleet.eligible(turn)
            holders = residents(pools[0], self._slots.holders(pools[0])) if pools else ()
            is_share = queue.is_behind(turn, now) or holds_most(self._fleet, turn, pools)
            estimate_s = self._admission.expected_wait_of_s(turn.id, now)
            self._waits.note(turn, holders, is_share, len(self._admission.held) - 1, estimate_s, now)
        elif turn.id in self._ready:
            pool = self._ready[turn.id].pool
            is_share = pool.queue.is_behind(turn, now)
            self._waits.note(turn, self._slots.holders(pool), is_share, len(pool.queue) - 1, 0.0, now)
        elif turn.id in self._resting:
            self._waits.note(turn, (), False, 0, turn.not_before - now, now)

    def _withdraw(self, turn_id: TurnId, keep_until: float) -> Turn | None:
        """Remove a waiting turn from where it waits; None when it waits nowhere."""
        self._waits.forget(turn_id)
        if turn_id in self._admission.held:
            return self._admission.withdraw(turn_id, keep_until)
        if turn_id in self._ready:
            return self._ready.pop(turn_id).pool.queue.remove(turn_id)
        return self._resting.pop(turn_id, None)

    def _relearn(self, family: Family) -> None:
        """Take in a lesson of a family: what is derived from its statistics follows as soon as that changes
        them."""
        if not learning.is_news(family):
            return
        for pool in self._fleet.pools.values():
            pool.reserve.touch(family)

    def _ended(self, session_id: SessionId, now: float, is_forgotten: bool) -> None:
        session = self._fleet.sessions.get(session_id)
        if session is None or session.state is not SessionState.IDLE:
            return
        if is_forgotten:
            self._forget(session)
        else:
            self._idle.ended(session, now)

    def _forget(self, session: Session) -> None:
        """Drop an idle session everywhere. Only timers may hold its id until they fire."""
        self._fleet.forget(session)
        self._clocks.forget(session.id)
        self._admission.forget_session(session.id)

    def _expire(self, now: float, decisions: list[Decision]) -> bool:
        """Refuse turns whose deadline has come, and end leases. Return whether there were any."""
        happened = self._idle.expire(now)
        while (entry := self._deadlines.pop(now)) is not None:
            if (turn := self._withdraw(entry[1], now)) is not None:
                happened = True
                self._refuse(turn, Refusal.DEADLINE, 0.0, now, decisions)
        return happened

    def _resume(self, now: float, decisions: list[Decision]) -> None:
        """Route the resting turns whose time has come."""
        while (entry := self._rests.pop(now)) is not None:
            if (turn := self._resting.pop(entry[1], None)) is not None:
                self._route(turn, self._fleet.sessions[turn.session_id], now, decisions)

    def _lost(self, lost: Pool, now: float, decisions: list[Decision]) -> None:
        """Route the turns that waited for a lost replica again; those that no other replica serves are refused."""
        lost.replica.is_healthy = False
        self._fleet.clear_cache(lost)
        homeless = lost.queue.drain()
        for turn in homeless:
            del self._ready[turn.id]
        for turn in list(self._admission.turns()):
            if not self._fleet.eligible(turn):
                homeless.append(self._admission.withdraw(turn.id, now))
        for turn in homeless:
            self._route(turn, self._fleet.sessions[turn.session_id], now, decisions)

    # ---- decisions

    def _admit(self, now: float) -> None:
        while (admitted := self._admission.next(now)) is not None:
            self._fleet.deciding = admitted.turn.id
            self._make_ready(admitted.turn, self._choose(admitted.turn, admitted.pools), admitted.reason, now)

    def _choose(self, turn: Turn, pools: list[Pool]) -> Pool:
        """Return the policy's choice among pools that may take the turn."""
        if len(pools) == 1:
            return pools[0]
        session = self._fleet.sessions[turn.session_id]
        options = [option(pool, turn, session) for pool in pools]
        self._num_placed += 1
        chosen = self._policy.place(options, turn.family_id, self._num_placed)
        return self._fleet.pools[chosen.replica_id]

    def _make_ready(self, turn: Turn, pool: Pool, reason: Reason, now: float) -> None:
        """Make the session resident in the pool. From here on the turn waits for a slot of it only."""
        session, family = self._fleet.sessions[turn.session_id], self._fleet.families[turn.family_id]
        is_side, last_blocks = turn.kind is SIDE, session.blocks
        if is_side:
            rank, expected_blocks = 0.0, pool.ledger.expected_blocks(turn.blocks)
        else:
            rank = self._policy.rank(turn, session, family)
            if self._fleet.tenants.are_rivals and not self._policy.ranks_turns:
                rank = coarse(rank)
            _, expected_blocks = self._fleet.hold(session, turn.blocks, turn.chars, pool)
            self._clocks.ready(session.id, now)
        pool.queue.put(turn, (is_side, rank, turn.arrived_at), now)
        if turn.unranked and pool.replica.id in turn.unranked:
            pool.backpressure.keep_short(now)
        missing_tokens = pool.missing_tokens(turn, expected_blocks)
        evicted_tokens, last_len = 0.0, 0
        if last_blocks and not is_side:
            shared_len = shared_length(last_blocks, turn.blocks)
            evicted_tokens = pool.tokens(max(0, shared_len - expected_blocks))
            last_len = shared_len if shared_len == len(last_blocks) else 0
        ready = _Ready(pool, reason, missing_tokens, evicted_tokens, expected_blocks, last_len, now)
        self._ready[turn.id] = ready

    def _dispatch(self, now: float, decisions: list[Decision]) -> None:
        """Give free slots to ready turns."""
        for pool in self._fleet.pools.values():
            while pool.queue and self._may_dispatch(pool, now):
                turn = pool.queue.pop(now - self._limits.hold_bound_s, now)
                decisions.append(self._dispatched(turn, pool, now))
        self._fleet.deciding = None

    def _may_dispatch(self, pool: Pool, now: float) -> bool:
        """Whether the pool takes another turn: it has a free slot, and where several tenants use it, its own queue
        is short."""
        if not self._policy.bounds_slots:
            return True
        if not pool.has_slot(now):
            return False
        if not self._fleet.tenants.are_several(now):
            return True
        num_running, knows_slots = len(pool.replica.running), pool.replica.slots is not None
        is_ahead = not knows_slots and pool.queue.is_ahead(now)
        return pool.sent_ahead.has_room(num_running, pool.pace, knows_slots, now, is_ahead)

    def _dispatched(self, turn: Turn, pool: Pool, now: float) -> Dispatch:
        session = self._fleet.sessions[turn.session_id]
        self._fleet.deciding = turn.id
        ready = self._ready.pop(turn.id)
        session.num_waiting, session.num_running = session.num_waiting - 1, session.num_running + 1
        self._slots.occupy(turn, pool, ready.missing_tokens, ready.evicted_tokens, now)
        expected_tokens = cached_tokens(pool, session, ready.expected_blocks, ready.last_blocks)
        if expected_tokens is None:
            # While it waited, tokens per character may have been learned to be fewer.
            expected_tokens = max(0.0, pool.prompt_tokens(turn) - ready.missing_tokens)
        backpressure = pool.backpressure
        is_ordered = backpressure.is_on and backpressure.is_short(now)
        hints = self._slots.hints(turn, pool, self._is_shared(now), is_ordered)
        waited = self._waits.ended(turn.id, turn.not_before, ready.at, now)
        return Dispatch(turn.id, pool.replica.id, ready.reason, round(expected_tokens), hints, waited)

    def _announce(self, decisions: list[Decision]) -> None:
        """Announce the sessions that lost their residency, and the gates that opened or closed."""
        lost, self._fleet.lost = self._fleet.lost, []
        decisions += (
            Release(session.id, replica_id)
            for session, replica_id in lost
            if not session.is_resident and not session.is_recalled
        )
        for pool in self._fleet.switched:
            decisions.append(Switched(pool.replica.id, pool.switch.is_open, pool.gate_time.net_s))
        self._fleet.switched.clear()

    def _next_wake(self, now: float) -> float | None:
        """Return the next time at which something changes by itself: a timer fires, or a wait passes the bound."""
        wake_at, deadline_at = self._idle.leases.next_at, self._deadlines.next_at
        rested_at, quiet_at = self._rests.next_at, self._clocks.quiet.next_at
        wake_at = deadline_at if deadline_at < wake_at else wake_at
        wake_at = rested_at if rested_at < wake_at else wake_at
        wake_at = quiet_at if quiet_at < wake_at else wake_at
        if self._admission.held:  # an idle session is less likely to come back once it outran its lease
            wake_at = min(wake_at, self._idle.outrun.next_at, self._admission.next_overdue_at(now))
        if self._ready and self._fleet.tenants.are_several(now):
            waiting = (pool for pool in self._fleet.pools.values() if pool.queue and pool.replica.free_slots)
            wake_at = min(wake_at, *(pool.sent_ahead.next_at() for pool in waiting), math.inf)
        return None if wake_at == math.inf else wake_at

    # ---- errors in decisions: a policy may come from elsewhere

    def _go_on(self, now: float, decisions: list[Decision]) -> None:
        """Decide for all others after an error: route turns that were on their way, and do all steps."""
        for turn in list(self._open.values()):
            session = self._fleet.sessions.get(turn.session_id)
            if session is not None and not self._is_placed(turn.id):
                self._try(partial(self._route, turn, session, now, decisions), now, decisions)
        self._try(partial(self._expire, now, decisions), now, decisions)
        self._try(partial(self._resume, now, decisions), now, decisions)
        self._try(partial(self._admission.trim, now), now, decisions)
        self._try(partial(self._admit, now), now, decisions)
        self._try(partial(self._dispatch, now, decisions), now, decisions)
        self._try(partial(self._announce, decisions), now, decisions)
        self._wake_at = now + AGAIN_S
        self._try(partial(self._set_wake, now), now, decisions)

    def _try(self, step: Callable[[], object], now: float, decisions: list[Decision]) -> None:
        """Do a step, again and again while its errors are those of turns."""
        is_again = True
        while is_again:
            is_again, self._fleet.deciding = False, None
            try:
                step()
            except Exception as error:
                is_again = self._blame(error, now, decisions)

    def _blame(self, error: Exception, now: float, decisions: list[Decision]) -> bool:
        """Report an error. The turn that was decided on, if there is one, gives all back. Return whether there
        is."""
        assert self.on_error is not None
        turn_id, self._fleet.deciding = self._fleet.deciding, None
        turn = self._open.pop(turn_id or "", None)
        if turn is not None:
            decisions[:] = [one for one in decisions if getattr(one, "turn_id", "") != turn_id]
            self._drop(turn, now)
        self.on_error(turn_id, error)
        return turn is not None

    def _drop(self, turn: Turn, now: float) -> None:
        """Take back all that a turn has come to, whichever step failed. A session without another turn ends."""
        self._fleet.tenants.left(turn)
        self._withdraw(turn.id, now)
        for pool in self._fleet.pools.values():
            if turn.id in pool.queue:
                pool.queue.remove(turn.id)
        self._slots.take_back(turn.id, now)
        self._sides.discard(turn.session_id if turn.kind is SIDE else turn.id)
        session = self._fleet.sessions.get(turn.session_id)
        if session is None:
            return
        others = [other.id for other in self._open.values() if other.session_id == session.id]
        session.num_running = sum(other in self._slots for other in others)
        session.num_waiting = len(others) - session.num_running
        if not others:
            session.idle_since = now
            self._idle.ended(session, now)

    def _drop_unranked(self, now: float, decisions: list[Decision]) -> None:
        """Drop the turns that the policy failed to rank; each may show another one, which is ranked then."""
        while self._admission.unranked:
            self._fleet.deciding, error = self._admission.unranked.popitem()
            if self.on_error is None:
                raise error
            self._blame(error, now, decisions)

    def _is_placed(self, turn_id: TurnId) -> bool:
        waits = turn_id in self._admission.held or turn_id in self._ready or turn_id in self._resting
        return waits or turn_id in self._slots

    def _set_wake(self, now: float) -> None:
        self._wake_at = self._next_wake(now)
