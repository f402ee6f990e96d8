"""The fleet's state: sessions, families, replicas and what each replica caches. Only the Scheduler writes it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.capacity import Capacity
from policies.concurrency import Concurrency
from policies.dispatch_queue import Ready
from policies.forecast import Forecast, Reserve
from policies.learning import Pace, TokenRatio
from policies.ledger import Ledger, Met
from policies.placement import Option
from policies.shares import Tenants
from policies.trial import Trial
from policies.types import (
    BLOCK_CHARS,
    Blocks,
    CacheLost,
    Family,
    FamilyId,
    Replica,
    ReplicaId,
    ReplicaReported,
    Session,
    SessionId,
    SessionState,
    Turn,
)

ROOMY = 0.7
"""Share of its cache below which a pool can take speculative prefills (facts, engine hooks)."""


@dataclass(slots=True, eq=False)
class Part:
    """What a tenant has of a pool."""

    num_residents: int = 0
    blocks: int = 0
    """Of their last prompts, each counted whole."""


@dataclass(slots=True, eq=False)
class Pool:
    """One replica with all that is known of its cache and its queue."""

    replica: Replica
    reserve: Reserve
    ledger: Ledger = field(default_factory=Ledger)
    ready: Ready = field(default_factory=Ready)
    ratio: TokenRatio = field(default_factory=TokenRatio)
    pace: Pace = field(default_factory=Pace)
    capacity: Capacity = field(default_factory=Capacity)
    stated_slots: int | None = None
    """By the engine, or the operator; None: nobody did."""
    concurrency: Concurrency = field(default_factory=Concurrency)
    trial: Trial = field(default_factory=Trial)
    idle: dict[SessionId, Session] = field(default_factory=dict)
    """Residents between two turns, longest idle first."""
    parts: dict[str, Part] = field(default_factory=dict)
    """By tenant."""

    def tokens(self, blocks: float, chars: float = 0) -> float:
        return (blocks * BLOCK_CHARS + chars) * self.ratio.value

    @property
    def resident_tokens(self) -> float:
        """What its residents hold now, each shared block once."""
        return (self.ledger.union.resident_blocks * BLOCK_CHARS + self.reserve.tail_chars) * self.ratio.value

    def may_serve(self, turn: Turn) -> bool:
        """Whether it is healthy, serves the turn's model and has not failed it."""
        replica = self.replica
        if not replica.is_healthy or replica.id in turn.excluded:
            return False
        if turn.pinned_to is not None and replica.id != turn.pinned_to:
            return False
        return not replica.models or turn.model in replica.models

    @property
    def num_busy(self) -> int:
        """Turns that run, or will as soon as there is a slot."""
        return len(self.replica.running) + len(self.ready)

    @property
    def is_roomy(self) -> bool:
        """Whether there is room for what is only likely to be needed."""
        return self.capacity.tokens is not None and self.resident_tokens < ROOMY * self.capacity.tokens

    def has_room(self, new_tokens: float, ceiling: float) -> bool:
        """Whether its residents may grow by so much now; the caller knows that it has a size."""
        assert self.capacity.tokens is not None
        return self.resident_tokens + new_tokens <= ceiling * self.capacity.tokens

    def prompt_tokens(self, turn: Turn) -> float:
        return turn.chars * self.ratio.value

    def last_tokens(self, turn: Turn, blocks: int) -> float:
        """Tokens of so many last blocks of this turn's prompt, and of what follows the last whole one."""
        return self.tokens(blocks, max(0, turn.chars - len(turn.blocks) * BLOCK_CHARS))

    def new_tokens(self, turn: Turn) -> float:
        """Tokens by which this turn's prompt would widen the union of the residents."""
        return self.last_tokens(turn, self.ledger.new_blocks(turn.blocks))

    def missing_tokens(self, turn: Turn, expected_blocks: int) -> float:
        """Prompt tokens that the engine will have to compute, where it finds so many blocks in its cache."""
        return max(0.0, self.prompt_tokens(turn) - self.tokens(expected_blocks))


class Fleet:
    """Lookups and bounded memory; no decisions."""

    def __init__(self, forecast: Forecast, max_sessions: int) -> None:
        self._forecast = forecast
        self._max_sessions = max_sessions
        self.sessions: OrderedDict[SessionId, Session] = OrderedDict()
        self.families: OrderedDict[FamilyId, Family] = OrderedDict()
        self.pools: dict[ReplicaId, Pool] = {}
        self.tenants = Tenants()
        self.has_strangers = False
        """Whether other gateways may send turns of other tenants to the same engines."""
        self.lost: list[tuple[Session, ReplicaId]] = []
        """Whose residency ended, or whose cache is gone, and where, since the Scheduler last looked."""

    def pool(self, replica_id: ReplicaId) -> Pool:
        if replica_id not in self.pools:
            self.pools[replica_id] = Pool(Replica(replica_id), Reserve(self._forecast))
        return self.pools[replica_id]

    def reported(self, fact: ReplicaReported | CacheLost) -> None:
        """Take in what a replica said of itself; it is healthy."""
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

    def _resize(self, pool: Pool, fact: ReplicaReported) -> None:
        """What it may run at once: as stated, else as learned."""
        replica = pool.replica
        pool.stated_slots = fact.slots or pool.stated_slots
        if pool.stated_slots is None and fact.running is not None and fact.waiting is not None:
            pool.concurrency.saw(fact.running, fact.waiting, is_wanted=len(pool.ready) > 0)
        replica.resize(
            pool.stated_slots or pool.concurrency.slots,
            replica.share if fact.share is None else fact.share,
            replica.is_on_trial if fact.is_on_trial is None else fact.is_on_trial,
        )

    def home(self, session: Session) -> Pool | None:
        """The pool that keeps a resident session; None when it is not resident."""
        if not session.is_resident or session.replica_id is None:
            return None
        return self.pools[session.replica_id]

    def eligible(self, turn: Turn) -> list[Pool]:
        """Healthy replicas that serve the turn's model and have not failed it."""
        return [pool for pool in self.pools.values() if pool.may_serve(turn)]

    def blocks_of(self, tenant: str, pool: Pool) -> float:
        """What a tenant has of a pool, over its weight."""
        part = pool.parts.get(tenant)
        return 0.0 if part is None else part.blocks / self.tenants.known[tenant][0]

    def surplus(self, turn: Turn, pool: Pool) -> dict[str, float]:
        """Blocks that each other tenant of no higher class holds of a pool beyond as much, by its weight, as the
        turn's own one would hold with it; those that have any."""
        own = self.blocks_of(turn.tenant, pool) + len(turn.blocks) / turn.weight
        found = {}
        for tenant, part in pool.parts.items():
            weight, urgency = self.tenants.known[tenant]
            if tenant != turn.tenant and urgency <= turn.urgency and part.blocks > own * weight:
                found[tenant] = part.blocks - own * weight
        return found

    def family(self, turn: Turn) -> Family:
        family = self.families.get(turn.family_id)
        if family is None:
            family = self.families[turn.family_id] = Family(turn.family_id)
        self.families.move_to_end(turn.family_id)
        return family

    def session(self, turn: Turn) -> Session:
        session = self.sessions.get(turn.session_id)
        if session is None:
            session = Session(turn.session_id, turn.family_id, turn.tenant, turn.parent_id)
            self.sessions[turn.session_id] = session
            self.family(turn).num_sessions += 1
            if (pool := self.pools.get(turn.cached_at or "")) is not None:
                pool.ledger.hold(session.id, turn.blocks)
                pool.ledger.release(session.id)
                session.replica_id, session.blocks = pool.replica.id, turn.blocks
        self.sessions.move_to_end(turn.session_id)
        return session

    def hold(self, session: Session, turn: Turn, pool: Pool) -> Met:
        """Make the session resident on the pool, with this turn's prompt as what it caches."""
        if session.is_resident and session.replica_id != pool.replica.id:
            self.release(session)
        pool.idle.pop(session.id, None)
        session.replica_id, session.blocks = pool.replica.id, turn.blocks
        return self._hold(session, pool, max(0, turn.chars - len(turn.blocks) * BLOCK_CHARS))

    def keep(self, session: Session, pool: Pool) -> None:
        """Make an idle session resident again where it was, with the prompt that it had."""
        pool.idle[session.id] = session
        self._hold(session, pool, 0)

    def _hold(self, session: Session, pool: Pool, tail_chars: int) -> Met:
        part = pool.parts.get(session.tenant)
        if part is None:
            part = pool.parts[session.tenant] = Part()
        part.num_residents += not session.is_resident
        part.blocks += len(session.blocks) - session.held_blocks
        session.is_resident, session.is_parked, session.held_blocks = True, False, len(session.blocks)
        pool.reserve.put(session, self.families[session.family_id], tail_chars)
        return pool.ledger.hold(session.id, session.blocks)

    def release(self, session: Session) -> None:
        """End its residency; its blocks stay cached until the engine needs the room."""
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
        if pool.capacity.tokens is not None:
            pool.ledger.evict(pool.capacity.tokens / pool.tokens(1))

    def forget_oldest(self) -> None:
        """Drop idle sessions, and families without sessions, beyond the bound: least recently used first."""
        while len(self.sessions) > self._max_sessions:
            session = next(iter(self.sessions.values()))
            if session.state is not SessionState.IDLE:
                break
            self.release(session)
            for pool in self.pools.values():
                pool.ledger.forget(session.id)
            del self.sessions[session.id]
            self.families[session.family_id].num_sessions -= 1
        while len(self.families) > self._max_sessions:
            family = next(iter(self.families.values()))
            if family.num_sessions:
                break
            del self.families[family.id]

    def _cut(self, pool: Pool, kept_tokens: Mapping[SessionId, int] | None) -> None:
        """The engine itself said what is left of its cache: no inference is needed. Sessions that are not known
        here are of another gateway, or forgotten."""
        if kept_tokens is None:
            self.clear_cache(pool)
            return
        for session_id, tokens in kept_tokens.items():
            session = self.sessions.get(session_id)
            if session is not None and session.blocks and session.replica_id == pool.replica.id:
                block_tokens = session.prompt_tokens / len(session.blocks) or pool.tokens(1)
                pool.ledger.cut(session_id, int(tokens / block_tokens))
                self.lost.append((session, pool.replica.id))

    def clear_cache(self, pool: Pool) -> None:
        """The replica lost its cache; nobody is resident there any more."""
        for session in self.sessions.values():
            if session.replica_id == pool.replica.id:
                self.release(session)
                session.replica_id = None
        pool.ledger, pool.concurrency = Ledger(), Concurrency()


def option(pool: Pool, turn: Turn, session: Session) -> Option:
    """The pool, as a turn of the session would find it."""
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
