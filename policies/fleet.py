"""The fleet's state: sessions, families, replicas and their caches; and a copy of it for observers. Only the
Scheduler writes it."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, takewhile

from policies import learning
from policies.backpressure import Backpressure
from policies.capacity import Capacity, Concurrency
from policies.dispatch_queue import DispatchQueue
from policies.engine_queue import EngineQueue
from policies.forecast import Forecast, Reserve, expected_turns
from policies.gate_time import GateTime
from policies.learning import Pace, TokenRatio, blend
from policies.ledger import Ledger, Met
from policies.placement import Option
from policies.reuse import ReuseDistances
from policies.sent_ahead import SentAhead
from policies.shares import Tenants
from policies.throughput import Switch
from policies.types import (
    BLOCK_CHARS,
    Blocks,
    CacheLost,
    Family,
    FamilyId,
    Hold,
    Replica,
    ReplicaId,
    ReplicaReported,
    Session,
    SessionId,
    SessionState,
    Turn,
    TurnId,
)

ROOMY = 0.7
"""Share of its cache below which a pool takes speculative prefills (facts, engine hooks)."""
MOST_UNFOUND = 2
"""Histories of new sessions of a family that were not cached, beyond those that were, after which none counts as
cached: a cache loses some, and a client may send examples as history."""
MOST_EARLIER = 256
"""Turns that a history counts as at most. A family keeps a number for each turn that its sessions have reached."""
MUCH = 2.0
"""Below it tenants that all behave reach it too, and the sessions of some are held back."""
CONTINUES = 3, 4
"""Part of a session's last prompt with which its next one has to begin, where its id alone proves nothing."""


@dataclass(slots=True, eq=False)
class TenantPart:
    """The part of a pool that a tenant holds."""

    num_residents: int = 0
    blocks: int = 0
    """Of the last prompts of its residents, each counted whole."""


@dataclass(slots=True, eq=False)
class Pool:
    """One replica with its cache and its queue, as far as they are known."""

    replica: Replica
    reserve: Reserve
    ledger: Ledger = field(default_factory=Ledger)
    queue: DispatchQueue = field(default_factory=DispatchQueue)
    """Turns that wait for a slot of it."""
    ratio: TokenRatio = field(default_factory=TokenRatio)
    pace: Pace = field(default_factory=Pace)
    capacity: Capacity = field(default_factory=Capacity)
    switch: Switch = field(default_factory=Switch)
    gate_time: GateTime = field(default_factory=GateTime)
    engine_queue: EngineQueue = field(default_factory=EngineQueue)
    backpressure: Backpressure = field(default_factory=Backpressure)
    sent_ahead: SentAhead = field(default_factory=SentAhead)
    reuse: ReuseDistances = field(default_factory=ReuseDistances)
    grain_tokens: int = 0
    """Divides all numbers of cached tokens so far: its engine finds blocks of so many. 0: not seen yet."""
    answering_tokens: float = 0.0
    """Expected length of the answers of all running turns."""
    kept_answers: float | None = None
    """Share of the answers that its engine finds again in the next prompt. None: not seen yet."""
    stated_slots: int | None = None
    """By the engine or the operator. None: neither states them."""
    concurrency: Concurrency = field(default_factory=Concurrency)
    idle: dict[SessionId, Session] = field(default_factory=dict)
    """Residents between two turns, longest idle first."""
    parts: dict[str, TenantPart] = field(default_factory=dict)
    """By tenant."""

    def tokens(self, blocks: float, chars: float = 0) -> float:
        return (blocks * BLOCK_CHARS + chars) * self.ratio.value

    @property
    def resident_tokens(self) -> float:
        """Size of what its residents hold now; a shared block counts once."""
        blocks, reserve = self.ledger.union.resident_blocks, self.reserve
        return (blocks * BLOCK_CHARS + reserve.tail_chars - reserve.edge_chars) * self.ratio.value

    def saw_answer(self, found_tokens: int, family: Family) -> None:
        """Learn whether the engine keeps answers: a prompt was found, and so many tokens behind it, or fewer."""
        if (family.output_tokens or 0.0) >= 2 * self.grain_tokens:
            self.kept_answers = blend(self.kept_answers, float(found_tokens > self.grain_tokens))

    @property
    def held_tokens(self) -> float:
        """Size of its residents with their next answers."""
        return self.resident_tokens + self.reserve.answer_tokens

    def evict_released(self) -> None:
        """Drop the released sessions that the cache has no room for."""
        if self.capacity.tokens is not None:
            self.ledger.evict(self.capacity.tokens / self.tokens(1))

    def may_serve(self, turn: Turn) -> bool:
        """Whether it is healthy, serves the turn's model and has not failed it."""
        replica = self.replica
        if not replica.is_healthy or replica.id in turn.excluded:
            return False
        if turn.pinned_to is not None and replica.id != turn.pinned_to:
            return False
        return not replica.models or turn.model in replica.models

    def has_slot(self, now: float) -> bool:
        """Whether a turn may be sent: it has a free slot, and its engine's own queue takes the call."""
        replica, backpressure = self.replica, self.backpressure
        if not replica.free_slots or not backpressure.is_on:
            return replica.free_slots > 0
        return backpressure.has_place(
            now, len(replica.running), replica.queued_prefill_tokens, self.engine_queue.slots
        )

    @property
    def num_busy(self) -> int:
        """Turns that run, or wait for nothing but a slot."""
        return len(self.replica.running) + len(self.queue)

    @property
    def is_roomy(self) -> bool:
        """Whether there is room for prompts that are only likely to come."""
        return self.capacity.tokens is not None and self.resident_tokens < ROOMY * self.capacity.tokens

    def has_room(self, new_tokens: float, ceiling: float) -> bool:
        """Whether its residents may grow by so much now. Its capacity must be known."""
        assert self.capacity.tokens is not None
        return self.held_tokens + new_tokens <= ceiling * self.capacity.tokens

    def prompt_tokens(self, turn: Turn) -> float:
        return turn.chars * self.ratio.value

    def last_tokens(self, turn: Turn, blocks: int) -> float:
        """Tokens of the last `blocks` blocks of this turn's prompt, and of the text behind the last whole
        block."""
        tail_chars = turn.chars - len(turn.blocks) * BLOCK_CHARS
        return (blocks * BLOCK_CHARS + (tail_chars if tail_chars > 0 else 0)) * self.ratio.value

    def new_tokens(self, turn: Turn) -> float:
        """Tokens by which this turn's prompt would widen the union of the residents."""
        tokens = self.last_tokens(turn, self.ledger.new_blocks(turn.blocks))
        if turn.head is None:
            return tokens
        return max(0.0, tokens - self.reserve.edge_chars_of(turn.family_id) * self.ratio.value)

    def missing_tokens(self, turn: Turn, expected_blocks: int) -> float:
        """Prompt tokens that the engine has to compute, if it finds so many blocks in its cache."""
        missing_tokens = (turn.chars - expected_blocks * BLOCK_CHARS) * self.ratio.value
        return missing_tokens if missing_tokens > 0.0 else 0.0


_GAP_BYTES = 5_000
"""Of the idle times after one tool, at most."""


def _lesson_bytes(family: Family) -> int:
    """Return about the memory of what a family has learned and can forget."""
    return 8 * len(family.first_blocks) + _GAP_BYTES * len(family.gaps_s)


class Fleet:
    """Finds sessions, families and pools, and keeps the books of residency. It decides nothing."""

    def __init__(self, forecast: Forecast, max_sessions: int, max_family_bytes: float = math.inf) -> None:
        """`max_family_bytes`: of what families without sessions hold beside their names."""
        self._forecast = forecast
        self._max_sessions = max_sessions
        self._max_family_bytes = max_family_bytes
        self.family_bytes = 0
        self._idle_families: OrderedDict[FamilyId, int] = OrderedDict()
        """Families without sessions, and their bytes; the one that has been so for longest is first."""
        self.sessions: OrderedDict[SessionId, Session] = OrderedDict()
        self.families: OrderedDict[FamilyId, Family] = OrderedDict()
        self.pools: dict[ReplicaId, Pool] = {}
        self.tenants = Tenants()
        self.has_strangers = False
        """Whether other gateways may send turns of other tenants to the same engines."""
        self.switched: list[Pool] = []
        """Pools whose gate has opened or closed since the Scheduler last looked."""
        self.recalled: dict[FamilyId, dict[SessionId, int]] = {}
        """Sessions of an earlier gateway that have not come back, and the characters of their last prompts."""
        self.lost: list[tuple[Session, ReplicaId]] = []
        """Sessions whose residency ended, and where, since the Scheduler last looked."""
        self.deciding: TurnId | None = None
        """The turn that is decided on now; an error in the decision is blamed on it."""

    def pool(self, replica_id: ReplicaId) -> Pool:
        if replica_id not in self.pools:
            self.pools[replica_id] = Pool(Replica(replica_id), Reserve(self._forecast))
        return self.pools[replica_id]

    def reported(self, fact: ReplicaReported | CacheLost, now: float) -> None:
        """Take a replica's report in; a replica that reports is healthy."""
        pool = self.pool(fact.replica_id)
        if isinstance(fact, CacheLost):
            self._cut(pool, fact.kept_tokens)
            return
        replica = pool.replica
        replica.is_healthy = True
        if fact.tokens_per_char is not None:
            pool.ratio.suppose(fact.tokens_per_char)
        replica.models = replica.models if fact.models is None else fact.models
        if fact.capacity_tokens is not None:
            pool.capacity.state(fact.capacity_tokens)
        if fact.share is not None:
            pool.capacity.share = fact.share
        if fact.has_strangers is not None:
            self.has_strangers = fact.has_strangers
        self._resize(pool, fact)
        if fact.running is not None and fact.waiting is not None:
            pool.engine_queue.saw(fact.running, fact.waiting, len(replica.running), now)
            pool.backpressure.saw(fact.waiting)

    def _resize(self, pool: Pool, fact: ReplicaReported) -> None:
        """Set the slots of a replica: as stated, else as learned."""
        replica = pool.replica
        pool.stated_slots = fact.slots or pool.stated_slots
        if pool.stated_slots is None and fact.running is not None and fact.waiting is not None:
            pool.concurrency.saw(fact.running, fact.waiting, is_wanted=len(pool.queue) > 0)
        limits = pool.backpressure.limits if fact.limits is None else fact.limits
        share = replica.share if fact.share is None else fact.share
        slots = pool.stated_slots or pool.concurrency.slots
        if limits.calls is not None:
            slots = min(slots or limits.calls, limits.calls)
        replica.resize(slots, share, replica.is_on_trial if fact.is_on_trial is None else fact.is_on_trial)
        pool.backpressure.state(limits, share)

    def home(self, session: Session) -> Pool | None:
        """Return the pool where the session is resident; None where it is not resident."""
        if not session.is_resident or session.replica_id is None:
            return None
        return self.pools[session.replica_id]

    def eligible(self, turn: Turn) -> list[Pool]:
        """Return the healthy replicas that serve the turn's model and have not failed it."""
        return [pool for pool in self.pools.values() if pool.may_serve(turn)]

    def serving(self, model: str) -> list[Pool]:
        """Return the healthy replicas that serve the model."""
        pools = self.pools.values()
        return [one for one in pools if one.replica.is_healthy and model in (one.replica.models or (model,))]

    def tokens_per_char(self, turn: Turn) -> float:
        """Return the ratio of the turn's model."""
        for pool in self.pools.values():
            if pool.may_serve(turn):
                return pool.ratio.value
        return TokenRatio.PRIOR

    def blocks_of(self, tenant: str, pool: Pool) -> float:
        """Return the blocks of a pool that a tenant holds, over its weight."""
        part = pool.parts.get(tenant)
        return 0.0 if part is None else part.blocks / self.tenants.known.get(tenant, (1.0, 0))[0]

    def holds_much(self, tenant: str, pool: Pool) -> bool:
        """Whether a tenant holds MUCH times its part of a pool, as one of those that have turns, by weights."""
        weight = sum(self.tenants.known[one][0] for one in self.tenants.open_turns)
        return pool.tokens(self.blocks_of(tenant, pool)) * weight >= MUCH * (pool.capacity.tokens or math.inf)

    def surplus(self, turn: Turn, pool: Pool) -> dict[str, float]:
        """Return how many blocks of a pool each other tenant of no higher class holds beyond its fair part: what
        the turn's tenant would hold with the turn, by their weights. Tenants without a surplus are left out."""
        own = self.blocks_of(turn.tenant, pool) + len(turn.blocks) / turn.weight
        found = {}
        for tenant, part in pool.parts.items():
            weight, priority_class = self.tenants.known.get(tenant, (1.0, 0))
            if tenant != turn.tenant and priority_class <= turn.priority_class and part.blocks > own * weight:
                found[tenant] = part.blocks - own * weight
        return found

    def family(self, turn: Turn) -> Family:
        family = self.families.get(turn.family_id)
        if family is None:
            family = self.families[turn.family_id] = Family(turn.family_id)
        self.families.move_to_end(turn.family_id)
        return family

    def session(self, turn: Turn, family: Family) -> Session:
        """Return the session of a turn, which may be new in this family."""
        session = self.sessions.get(turn.session_id)
        if session is None:
            session = Session(turn.session_id, turn.family_id, turn.tenant, turn.parent_id)
            self.sessions[turn.session_id] = session
            self.count_session(family)
            self._presume(session, turn, family)
            if (pool := self.pools.get(turn.cached_at or "")) is not None:
                _suppose_cached(pool, session, turn.blocks)
        self.sessions.move_to_end(turn.session_id)
        return session

    def count_session(self, family: Family) -> None:
        """Count one more session of a family."""
        family.num_sessions += 1
        if family.num_sessions == 1:
            self.family_bytes -= self._idle_families.pop(family.id, 0)

    def _presume(self, session: Session, turn: Turn, family: Family) -> None:
        """Believe the history with which a session comes for the first time: so many turns of it have begun, and
        the prompt of the latest is still cached, where only one pool can have it.

        It has to be the session's own: one that sessions here have sent, too, is an example in a prompt, or a
        parent's. A family is no longer believed after histories that were not cached.
        """
        history = turn.history
        if history is None or session.parent_id in self.sessions or family.num_unfound > MOST_UNFOUND:
            return
        blocks, pools = turn.blocks[: history.last_chars // BLOCK_CHARS], self.eligible(turn)
        num_shared = max((pool.ledger.expected_blocks(blocks) for pool in pools), default=0)
        if num_shared >= len(blocks):
            return
        session.num_earlier = min(history.num_turns, MOST_EARLIER)
        if len(pools) == 1:
            session.presumed_blocks = len(blocks) - num_shared
            _suppose_cached(pools[0], session, blocks)

    def hold(self, session: Session, blocks: Blocks, chars: int, pool: Pool) -> Met:
        """Make the session resident in the pool, with this prompt."""
        if session.is_resident and session.replica_id != pool.replica.id:
            self.release(session)
        pool.idle.pop(session.id, None)
        if session.replica_id != pool.replica.id:
            session.kept_tokens, session.is_followed = None, False
        session.replica_id, session.blocks = pool.replica.id, blocks
        part = pool.parts.get(session.tenant)
        if part is None:
            part = pool.parts[session.tenant] = TenantPart()
        part.num_residents += not session.is_resident
        part.blocks += len(session.blocks) - session.held_blocks
        session.is_resident, session.held_blocks = True, len(session.blocks)
        tail_chars = chars - session.held_blocks * BLOCK_CHARS
        tail_chars = tail_chars if tail_chars > 0 else 0
        pool.reserve.put(session, self.families[session.family_id], tail_chars)
        return pool.ledger.hold(session.id, session.blocks)

    def reset_session(self, session: Session) -> None:
        """Make the session a new one: another prompt came under its id."""
        self.release(session)
        session.num_begun = session.num_earlier = session.presumed_blocks = session.prompt_tokens = 0
        session.is_presumed_ended = session.found_prefix = False
        session.kept_tokens = None

    def release(self, session: Session) -> None:
        """End the residency of a session. Its blocks stay cached until the engine needs the room."""
        pool = self.home(session)
        if pool is None:
            return
        pool.ledger.release(session.id)
        pool.reserve.drop(session.id, self.families[session.family_id])
        pool.idle.pop(session.id, None)
        part = pool.parts[session.tenant]
        part.num_residents -= 1
        part.blocks -= session.held_blocks
        session.is_resident, session.held_blocks = False, 0
        self.lost.append((session, pool.replica.id))
        pool.evict_released()

    def forget(self, session: Session) -> None:
        """Drop an idle session and all that pools hold of it; its family keeps its lessons."""
        self.release(session)
        for pool in self.pools.values():
            pool.ledger.forget(session.id)
            pool.reuse.forget(session.id)
        del self.sessions[session.id]
        if session.is_recalled:
            del self.recalled[session.family_id][session.id]
        family = self.families[session.family_id]
        family.num_sessions -= 1
        self.weigh(family)

    def weigh(self, family: Family) -> None:
        """Count what a family without sessions holds. Beyond the bound those without sessions for longest forget
        their lessons; their records stay, as turns may refer to them."""
        if family.num_sessions:
            return
        num_bytes = _lesson_bytes(family)
        self.family_bytes += num_bytes - self._idle_families.pop(family.id, 0)
        self._idle_families[family.id] = num_bytes
        while self._idle_families and self.family_bytes > self._max_family_bytes:
            family_id, num_bytes = self._idle_families.popitem(last=False)
            self.family_bytes -= num_bytes
            learning.forget(self.families[family_id])

    def beyond_bound(self) -> list[Session]:
        """Return the idle sessions beyond the bound, least recently used first. Families without sessions beyond
        it are dropped."""
        self._drop_families()
        if len(self.sessions) <= self._max_sessions:
            return []
        oldest = islice(self.sessions.values(), len(self.sessions) - self._max_sessions)
        return list(takewhile(lambda session: session.state is SessionState.IDLE, oldest))

    def _drop_families(self) -> None:
        while len(self.families) > self._max_sessions:
            family = next(iter(self.families.values()))
            if family.num_sessions:
                break
            self.family_bytes -= self._idle_families.pop(family.id, 0)
            del self.families[family.id]

    def _cut(self, pool: Pool, kept_tokens: Mapping[SessionId, int] | None) -> None:
        """Record the losses that the engine itself reported. Sessions that are not known here belong to another
        gateway, or are forgotten."""
        if kept_tokens is None:
            self.clear_cache(pool)
            return
        for session_id, tokens in kept_tokens.items():
            session = self.sessions.get(session_id)
            if session is not None and session.blocks and session.replica_id == pool.replica.id:
                session.is_followed = True
                if session.num_running and not session.prompt_tokens:
                    continue  # its first prompt is being computed: nothing of it was there to be lost
                session.kept_tokens = tokens if tokens < session.prompt_tokens else None
                block_tokens = session.prompt_tokens / len(session.blocks) or pool.tokens(1)
                pool.ledger.cut(session_id, int(tokens / block_tokens))

    def clear_cache(self, pool: Pool) -> None:
        """Record that the replica lost its cache: no session is resident there any more."""
        for session in self.sessions.values():
            if session.replica_id == pool.replica.id:
                self.release(session)
                session.replica_id = None
        pool.ledger, pool.concurrency, pool.reuse = Ledger(), Concurrency(), ReuseDistances()
        pool.sent_ahead.restarted()


def _suppose_cached(pool: Pool, session: Session, blocks: Blocks) -> None:
    """Take in that the pool served a session that is new here. It is not resident."""
    pool.ledger.hold(session.id, blocks)
    pool.ledger.release(session.id)
    pool.evict_released()
    session.replica_id, session.blocks = pool.replica.id, blocks


def continues_prompt(session: Session, turn: Turn) -> bool:
    """Whether a prompt begins with most of the session's last one. The id of a block covers all before it."""
    index = CONTINUES[0] * len(session.blocks) // CONTINUES[1]
    return not session.blocks or (len(turn.blocks) > index and turn.blocks[index] == session.blocks[index])


def cached_tokens(pool: Pool, session: Session, expected_blocks: int, last_blocks: int) -> float | None:
    """Return how many tokens the engine should find of a prompt that goes on from its session's last one, that of
    so many blocks (0: it does not); None where only the number of expected blocks says it.

    The engine's own counts come first, as parts of a prompt differ in characters per token.
    """
    if not last_blocks or not session.prompt_tokens:
        return None
    kept_tokens = session.kept_tokens
    if expected_blocks >= last_blocks or (session.is_followed and kept_tokens is None):
        return float(session.prompt_tokens)
    scaled_tokens = session.prompt_tokens * expected_blocks / last_blocks
    if kept_tokens is None:
        return scaled_tokens
    own_blocks = int(kept_tokens * last_blocks / session.prompt_tokens)
    return float(kept_tokens) if expected_blocks <= own_blocks else max(float(kept_tokens), scaled_tokens)


def option(pool: Pool, turn: Turn, session: Session) -> Option:
    """Return the pool as a turn of the session would find it."""
    return Option(
        replica_id=pool.replica.id,
        missing_tokens=pool.missing_tokens(turn, pool.ledger.expected_blocks(turn.blocks)),
        queued_tokens=pool.replica.queued_prefill_tokens,
        num_running=pool.num_busy,
        free_slots=pool.replica.free_slots,
        is_home=session.replica_id == pool.replica.id and chain_is_cached(pool, turn.blocks),
    )


def chain_is_cached(pool: Pool, blocks: Blocks) -> bool:
    """Whether most of a chain is still expected in the pool."""
    return bool(blocks) and pool.ledger.expected_blocks(blocks) * 2 >= len(blocks)


# ---- a copy of the fleet at one moment, for observers

USUAL_SLOTS = 256
"""The default of vLLM's `--max-num-seqs` on most GPUs."""


class GateState(StrEnum):
    """What the gate of a replica does."""

    HOLDS = "holds"
    OPEN = "open"  # holding sessions does not pay there now
    OBSERVED = "observed"  # there is none; what one would save is counted
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ReplicaView:
    id: ReplicaId
    is_healthy: bool
    slots: int | None
    """None: no bound is known."""
    slots_used: int
    residency_tokens: int
    """Union over its residents: a shared block counts once."""
    capacity_tokens: int | None
    """Size of this gateway's share of its KV pool, as it is believed: stated, or shown by what was found again.
    None: no bound is known."""
    ceiling_tokens: int | None
    """Size up to which sessions are admitted, as a part of that."""
    num_residents: int = 0
    stated_tokens: int | None = None
    """Size of the whole pool, as its engine states it."""
    gate_held_s: float = 0.0
    gate_saved_s: float = 0.0
    """What its gate cost and saved against no gate, in seconds of sessions; of an observed one: would have."""
    gate: GateState = GateState.NONE
    engine_slots: int | None = None
    """Calls that its engine ran at once while others waited in its own queue. None: it has shown no queue."""
    engine_waiting: int | None = None
    """In that queue at the last poll. None: it does not say."""

    @property
    def assumed_slots(self) -> int:
        """For callers that divide work among replicas beforehand."""
        return USUAL_SLOTS if self.slots is None else self.slots


@dataclass(frozen=True, slots=True)
class SessionView:
    state: SessionState
    replica_id: ReplicaId | None
    """Where its prefix was last computed. None: nowhere yet."""
    is_resident: bool
    is_expired: bool
    """While idle: its lease ran out, and it stays resident only until the room is needed."""
    tools: str
    """Names of the tools that its last answer called, joined by `+`. Empty: it called none."""
    lease_until: float
    """While idle, by the Scheduler's clock."""
    prompt_tokens: int
    """Of its last turn."""
    expected_turns: float
    """Turns still to come: declared, or learned from its family."""
    is_engine_queued: bool = False
    """Whether a turn of it is in the queue of its engine now: inferred from the polled counts."""


@dataclass(frozen=True, slots=True)
class FleetView:
    sessions: Mapping[SessionState, int] = field(default_factory=dict)
    num_families: int = 0
    waiting: Mapping[Hold, int] = field(default_factory=dict)
    """Turns at the gate, by what they wait for."""
    replicas: Sequence[ReplicaView] = ()
    named: Mapping[SessionId, SessionView] = field(default_factory=dict)
    """Those of the requested sessions that the Scheduler remembers."""


def view_of(
    fleet: Fleet,
    waiting: Mapping[Hold, int],
    ceiling: float,
    gate: GateState,
    counts_sessions: bool = True,
    named: frozenset[SessionId] = frozenset(),
    queued: frozenset[SessionId] = frozenset(),
) -> FleetView:
    """Return a copy of the fleet. Counting sessions looks at each of them. `queued`: those in engines' queues."""
    sessions = fleet.sessions.values() if counts_sessions else ()
    return FleetView(
        sessions=Counter(session.state for session in sessions),
        num_families=len(fleet.families),
        waiting=waiting,
        replicas=[_replica(pool, ceiling, gate) for pool in fleet.pools.values()],
        named={id_: _session(fleet, fleet.sessions[id_], id_ in queued) for id_ in named if id_ in fleet.sessions},
    )


def _session(fleet: Fleet, session: Session, is_queued: bool) -> SessionView:
    family = fleet.families[session.family_id]
    return SessionView(
        state=session.state,
        replica_id=session.replica_id,
        is_resident=session.is_resident,
        is_expired=session.is_expired,
        tools=session.tools,
        lease_until=session.lease_until,
        prompt_tokens=session.prompt_tokens,
        expected_turns=expected_turns(family, session.num_begun, session.remaining_turns, keeps=False),
        is_engine_queued=is_queued,
    )


def _replica(pool: Pool, ceiling: float, gate: GateState) -> ReplicaView:
    replica, capacity_tokens = pool.replica, pool.capacity.tokens
    return ReplicaView(
        id=replica.id,
        is_healthy=replica.is_healthy,
        slots=None if replica.own_slots == math.inf else int(replica.own_slots),
        slots_used=len(replica.running),
        residency_tokens=round(pool.resident_tokens),
        num_residents=pool.ledger.num_residents,
        capacity_tokens=None if capacity_tokens is None else round(capacity_tokens),
        stated_tokens=pool.capacity.stated_tokens,
        ceiling_tokens=None if capacity_tokens is None else round(ceiling * capacity_tokens),
        gate_held_s=pool.gate_time.held_s,
        gate_saved_s=pool.gate_time.saved_s,
        engine_slots=pool.engine_queue.slots,
        engine_waiting=pool.engine_queue.waiting,
        gate=GateState.OPEN if gate is GateState.HOLDS and pool.switch.is_open else gate,
    )
