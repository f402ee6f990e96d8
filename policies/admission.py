"""What admitting a session is worth to the fleet and what it costs, both in tokens of prefill.

One more session in the batch gains one turn per cycle Z (decode and tool, undelayed). Each token that it makes the
pool evict is computed again, and that delays those who run, r of them, and itself. So its turns pay while
price x evicted x (r + 1) <= Z. Who waits for a tool is not delayed; where tools are slow, thrash is cheap.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from policies.admission_queue import Bucket, Line
from policies.fleet import Fleet, Pool, chain_is_cached
from policies.forecast import (
    append_tokens,
    chance_of_return,
    expected_turns,
    idle_left_s,
    output_tokens,
    private_tokens,
)
from policies.policy import Policy
from policies.shares import flow_of
from policies.types import Family, FamilyId, Reason, Refusal, Session, SessionId, Turn, TurnId


def share_tokens(pool: Pool, price: float) -> float:
    """Tokens that may be evicted per turn for one more session; a price of 0 allows any number."""
    if price == 0:
        return math.inf
    return pool.pace.cycle_tokens / (price * (pool.num_busy + 1))


def evicted_tokens(pool: Pool, session: Session, family: Family, new_tokens: float) -> float:
    """Tokens per turn by which the session, which adds so many now, makes the residents outgrow the pool, while it
    lives."""
    assert pool.capacity.tokens is not None
    own = pool.reserve.of(family, (session.num_begun, session.remaining_turns))
    others = pool.reserve.forecast or [0.0] * len(own)
    room_tokens = pool.capacity.tokens - pool.resident_tokens
    if max(others) + max(own) + new_tokens <= room_tokens:
        return 0.0
    overflow_tokens = 0.0
    for theirs, ours in zip(others, own, strict=True):
        together, without = theirs + ours + new_tokens - room_tokens, theirs - room_tokens
        overflow_tokens += (together if together > 0 else 0.0) - (without if without > 0 else 0.0)
    turns = 1 + expected_turns(family, session.num_begun, session.remaining_turns)
    return overflow_tokens / min(turns, len(own))


def is_worth(pool: Pool, session: Session, family: Family, new_tokens: float, price: float) -> bool:
    """Whether a session that fits now, and adds so many tokens, costs the fleet less than holding it."""
    if session.num_begun > 1 and chain_is_cached(pool, session.blocks):
        return True
    return evicted_tokens(pool, session, family, new_tokens) <= share_tokens(pool, price)


def outgrows(pool: Pool) -> bool:
    """Whether the residents take more than the pool holds, by more than one of them is worth: at a price of 1, so
    that what was let in at a higher one is not sent out again for a trifle."""
    capacity_tokens, resident_tokens = pool.capacity.tokens, pool.resident_tokens
    if capacity_tokens is None or resident_tokens <= capacity_tokens:
        return False
    return resident_tokens > capacity_tokens + share_tokens(pool, 1.0)


def should_give_way(pool: Pool, session: Session, family: Family, price: float, now: float) -> bool:
    """Whether the room of an idle session is worth more to one that waits. If it comes back, its private tokens
    are computed again, and it waits as long as it made the other not; until then that one takes a turn a cycle."""
    share = share_tokens(pool, price)
    private_tokens = pool.tokens(pool.ledger.private_blocks(session.id))
    turns = max(1.0, idle_left_s(session, family, now) / pool.pace.cycle_s)
    return chance_of_return(session, family, now) * (private_tokens + share) <= turns * share


# ---- parking

DEARER = 3.0
"""How many times dearer parking is than what an admission evicts: who is parked also waits, perhaps again and
again."""


def token_turns(family: Family, num_begun: int, remaining_turns: int) -> float:
    """What a session holds beside its family's prefix, added up over a turn and those that remain after it."""
    append = append_tokens(family)
    held_tokens = private_tokens(family) + (num_begun - 1) * append + output_tokens(family)
    return (1 + remaining_turns) * (held_tokens + append * remaining_turns / 2)


def to_park(
    pool: Pool,
    session: Session,
    idle: Iterable[Session],
    families: Mapping[FamilyId, Family],
    num_waiting: int,
    price: float,
) -> list[Session]:
    """Those of the idle residents whose room the turns that wait need more, longest to go first. Each turn
    goes earlier by the difference in token-turns over the pool's size; the price is what is computed again."""
    if session.declared_turns is None or pool.capacity.tokens is None:
        return []
    ours = token_turns(families[session.family_id], session.num_begun, session.declared_turns)
    worth_tokens = num_waiting * share_tokens(pool, DEARER * price) / pool.capacity.tokens
    found: list[tuple[float, Session]] = []
    for other in idle:
        if not other.declared_turns or other.parent_id is not None or other.tenant != session.tenant:
            continue
        theirs = token_turns(families[other.family_id], other.num_begun + 1, other.declared_turns - 1)
        if theirs > ours and pool.tokens(pool.ledger.private_blocks(other.id)) <= worth_tokens * (theirs - ours):
            found.append((theirs, other))
    return [other for _, other in sorted(found, key=lambda pair: -pair[0])]


# ---- the gate in front of the caches


@dataclass(frozen=True, slots=True)
class Limits:
    """Knobs that hold for every policy."""

    ceiling: float = 0.95
    """Share of a replica's cache that residents may fill now; nobody is admitted beyond it."""
    price: float = 3.0
    """How many times the time to compute evicted tokens again counts against the time that holding wastes. Above
    1 because what is evicted is not all that is lost; 0 admits whatever fits now."""
    hold_bound_s: float = 60.0
    """Wait after which idle residents yield to who was overtaken, W in the design."""
    max_queue: int = 10_000
    """Turns at the gate; more are refused."""
    max_sessions: int = 50_000
    """Sessions, and families, that are remembered."""
    tries: int = 8
    """Buckets that one pass looks at behind a head that does not fit, and idle residents that it asks to leave."""
    min_retry_after_s: float = 1.0
    warms_up: bool = False
    """Whether the driver can have a session's last prompt computed again."""
    sub_agents_return: bool = True
    """Whether the first turn of a sub-agent goes like a later turn of its parent, which waits for it."""


@dataclass(frozen=True, slots=True)
class Admitted:
    turn: Turn
    pools: list[Pool]
    """Those that have room; never empty."""
    reason: Reason


@dataclass(frozen=True, slots=True)
class _Kept:
    """The place of a session that left the line unserved."""

    since: float
    place: int
    until: float


class Admission:
    """Owns the turns that wait at the gate and the places that sessions keep in it."""

    def __init__(self, fleet: Fleet, policy: Policy, limits: Limits) -> None:
        self._fleet, self._policy, self._limits = fleet, policy, limits
        self._lines: dict[str, Line] = {}
        """By model."""
        self.held: dict[TurnId, Line] = {}
        """Turns that wait, and where."""
        self._kept: OrderedDict[SessionId, _Kept] = OrderedDict()

    def turns(self) -> Iterator[Turn]:
        """All that wait, in no order."""
        return (turn for line in self._lines.values() for turn in line.held.turns())

    # ---- places in the line

    def put(self, turn: Turn, session: Session, now: float) -> None:
        """A turn begins to wait, at the end or in the place that its session kept."""
        line = self.line(turn.model)
        kept = self._kept.pop(session.id, None)
        is_parked = session.is_parked
        returns = not is_parked and (session.num_begun > 1 or self._waits_for(session))
        stage = session.num_begun, session.declared_turns
        bucket = Bucket(turn.urgency, returns, turn.tenant, turn.family_id, *stage, is_parked)
        is_kept = kept is not None and kept.until >= now
        since, place = (kept.since, kept.place) if kept is not None and is_kept else (now, None)
        line.put(turn, bucket, since, place, now)
        self.held[turn.id] = line

    def take(self, turn_id: TurnId, keep_until: float) -> Turn:
        """A turn leaves unserved; its session keeps its place."""
        line = self.held.pop(turn_id)
        since = line.held.since(turn_id)
        turn, place = line.take(turn_id)
        self._kept[turn.session_id] = _Kept(since, place, keep_until)
        self._kept.move_to_end(turn.session_id)
        while len(self._kept) > self._limits.max_queue:
            self._kept.popitem(last=False)
        return turn

    def refusal(self, turn: Turn, now: float) -> tuple[Refusal | None, float]:
        """Why a turn that arrives now cannot wait, if it cannot, and for how long it would have to."""
        kept = self._kept.get(turn.session_id)
        since = kept.since if kept is not None and kept.until >= now else now
        wait_s = self.line(turn.model).expected_wait_s(now, flow_of(turn)) - (now - since)
        if len(self.held) >= self._limits.max_queue and self._is_full_for(turn.tenant):
            return Refusal.QUEUE_FULL, wait_s
        if wait_s > turn.max_wait_s:
            return Refusal.TOO_LONG, wait_s
        if turn.deadline_at is not None and now + wait_s > turn.deadline_at:
            return Refusal.DEADLINE, wait_s
        return None, wait_s

    def expected_wait_of_s(self, turn_id: TurnId, now: float) -> float:
        """Estimated further wait of a turn; 0 for one that waits for no residency."""
        line = self.held.get(turn_id)
        return 0.0 if line is None else line.expected_wait_s(now, flow_of(line.held[turn_id]), turn_id)

    def rerank(self, family_id: FamilyId) -> None:
        """The family's statistics changed."""
        for line in self._lines.values() if self.held else ():
            line.held.rerank(family_id)

    def next_overdue_at(self, now: float) -> float:
        """The next time at which a wait passes the bound; infinite when none will before others went."""
        at = math.inf
        for line in self._lines.values():
            overdue_at = line.overdue_at(self._limits.hold_bound_s, now)
            if now < overdue_at < at:
                at = overdue_at
        return at

    # ---- the decision

    def passes(self, turn: Turn, pools: list[Pool], now: float) -> bool:
        """Whether a turn that comes now goes at once, as it meets nobody and fits each of the pools that it may
        use. The same as `put` and `next`, without a line for it."""
        if self.held or turn.session_id in self._kept:
            return False
        for pool in pools:
            if not self._fits(turn, pool):
                return False
        self.line(turn.model).admitted(now)
        return True

    def trim(self) -> bool:
        """Where residents outgrew the pool by more than they are worth, those who are idle and furthest from
        their end wait for their next turn at the gate, so that the others stop evicting each other. Returns
        whether somebody does."""
        trims = False
        for pool in self._fleet.pools.values() if self._policy.gates_residency else ():
            while pool.idle and outgrows(pool) and pool.ledger.num_residents > 1:
                self._fleet.release(max(pool.idle.values(), key=self._last_to_keep))
                trims = True
        return trims

    def next(self, now: float) -> Admitted | None:
        """Take the next turn out of a line that may go; None while there is none.

        Tenants go in the order of their shares. What was overtaken for too long goes first, and while it does not
        fit nothing overtakes it. Otherwise the policy's order holds, and a new session that does not fit lets
        smaller ones behind it through. One whose parent is said to wait holds up its own tenant only.
        """
        for line in self._lines.values() if self.held else ():
            candidates, is_overdue = line.candidates(self._limits.tries, self._limits.hold_bound_s, now)
            tried: set[str] = set()
            held_up: set[str] = set()
            for turn in candidates:
                if turn.tenant in held_up:
                    continue
                admitted = self._try(turn, now, not tried, turn.tenant not in tried, is_overdue)
                tried.add(turn.tenant)
                if admitted is not None:
                    line.take(turn.id)
                    line.admitted(now)
                    del self.held[turn.id]
                    return admitted
                bucket = line.held.bucket(turn.id)
                is_due = self._is_due(turn)
                if (bucket.is_returning or is_due) and self._could_fit(turn):
                    if is_due or bucket.num_begun > 1:
                        break
                    held_up.add(turn.tenant)
        return None

    def _try(
        self, turn: Turn, now: float, is_first: bool, is_tenants_first: bool, is_overdue: bool
    ) -> Admitted | None:
        """1. it fits; 2. it is the first, and somebody who probably has ended gives way, or one with longer to go
        is parked; 3. it is the first of its tenant, and those yield that hold much more of the pool; 4. it is
        overdue, and idle residents yield; 5. it fits beside nobody, and has the pool to itself."""
        pools = self._fleet.eligible(turn)
        fitting = [pool for pool in pools if self._fits(turn, pool)]
        if fitting:
            return Admitted(turn, fitting, Reason.ADMITTED if self._is_old(turn, now) else Reason.FREE)
        for pool in pools:
            if is_first and (self._makes_way(turn, pool, now) or self._parks(turn, pool)):
                return Admitted(turn, [pool], Reason.ADMITTED)
            if is_tenants_first and self._takes_part(turn, pool):
                return Admitted(turn, [pool], Reason.ADMITTED)
        if is_overdue:
            for pool in pools:
                if self._yields(turn, pool):
                    return Admitted(turn, [pool], Reason.YIELDED)
        alone = next((pool for pool in pools if self._clears(turn, pool, is_overdue)), None)
        return None if alone is None else Admitted(turn, [alone], Reason.ALONE)

    def _takes_part(self, turn: Turn, pool: Pool) -> bool:
        """Let idle residents of tenants go that hold more of the pool than the turn's own, until it fits; none by
        which its tenant would have less than that."""
        surplus = self._fleet.surplus(turn, pool) if len(self._fleet.tenants.known) > 1 else {}
        for session in list(pool.idle.values()) if surplus else ():
            left_blocks = surplus.get(session.tenant, 0.0) - session.held_blocks
            if left_blocks >= 0 and session.urgency <= turn.urgency:
                surplus[session.tenant] = left_blocks
                self._fleet.release(session)
                if self._fits(turn, pool):
                    return True
        return False

    def _is_due(self, turn: Turn) -> bool:
        """Whether other tenants have to make room for it, as soon as sessions of theirs are idle."""
        for pool in self._fleet.eligible(turn) if len(self._fleet.tenants.known) > 1 else ():
            for tenant, blocks in self._fleet.surplus(turn, pool).items():
                part = pool.parts[tenant]
                if part.blocks <= blocks * part.num_residents:
                    return True
        return False

    def _is_old(self, turn: Turn, now: float) -> bool:
        return self.held[turn.id].held.since(turn.id) < now

    def _fits(self, turn: Turn, pool: Pool) -> bool:
        """Whether it fits now, and costs the fleet less than holding it."""
        if pool.capacity.tokens is None:
            return True
        new_tokens = pool.new_tokens(turn)
        if not pool.has_room(new_tokens, self._limits.ceiling):
            return False
        session, family = self._fleet.sessions[turn.session_id], self._fleet.families[turn.family_id]
        return is_worth(pool, session, family, new_tokens, self._limits.price)

    def _could_fit(self, turn: Turn) -> bool:
        """Whether some pool is large enough for it; who is not waits for one of its own and holds up nobody."""
        ceiling = self._limits.ceiling
        return any(
            pool.prompt_tokens(turn) <= ceiling * (pool.capacity.tokens or math.inf)
            for pool in self._fleet.eligible(turn)
        )

    def _makes_way(self, turn: Turn, pool: Pool, now: float) -> bool:
        """Let idle residents go, longest idle first, that are probably at their end: whose room is worth more to
        the turn than the chance that they come back costs."""
        for session in self._may_leave(turn, pool):
            family = self._fleet.families[session.family_id]
            if not should_give_way(pool, session, family, self._limits.price, now):
                continue
            self._fleet.release(session)
            if self._fits(turn, pool):
                return True
        return False

    def _parks(self, turn: Turn, pool: Pool) -> bool:
        """Let idle residents wait that have longer to go, the longest first, until shorter sessions have gone."""
        session, idle = self._fleet.sessions[turn.session_id], self._may_leave(turn, pool)
        for other in to_park(pool, session, idle, self._fleet.families, len(self.held), self._limits.price):
            self._fleet.release(other)
            other.is_parked = True
            if self._fits(turn, pool):
                return True
        return False

    def _yields(self, turn: Turn, pool: Pool) -> bool:
        """Make room now for a turn past the bound: idle residents give way, longest idle first."""
        for session in self._may_leave(turn, pool):
            if pool.has_room(pool.new_tokens(turn), self._limits.ceiling):
                break
            self._fleet.release(session)
        return pool.has_room(pool.new_tokens(turn), self._limits.ceiling)

    def _may_leave(self, turn: Turn, pool: Pool) -> list[Session]:
        """Idle residents of no higher class, longest idle first; not all, where they are many."""
        idle = islice(pool.idle.values(), self._limits.tries)
        return [session for session in idle if session.urgency <= turn.urgency]

    def _clears(self, turn: Turn, pool: Pool, is_overdue: bool) -> bool:
        """Whether a session that fits beside nobody has the pool to itself: all others are idle, and have ended
        or have to yield."""
        idle = list(pool.idle.values())
        if len(idle) < pool.ledger.num_residents:
            return False
        if any(session.urgency > turn.urgency or not (is_overdue or session.is_expired) for session in idle):
            return False
        for session in idle:
            self._fleet.release(session)
        return True

    # ---- orders

    def line(self, model: str) -> Line:
        """Of those who wait for the model."""
        if model not in self._lines:
            self._lines[model] = Line(self._rank)
        return self._lines[model]

    def _is_full_for(self, tenant: str) -> bool:
        """Whether the tenant has its part of the queue, as one of those that wait."""
        lines = self._lines.values()
        tenants = {tenant}.union(other for line in lines for _, other in line.held.flows)
        return len(tenants) * sum(line.held.num_of(tenant) for line in lines) >= self._limits.max_queue

    def _waits_for(self, session: Session) -> bool:
        """Whether a parent waits for this session."""
        return self._limits.sub_agents_return and session.parent_id in self._fleet.sessions

    def _last_to_keep(self, session: Session) -> tuple[int, bool, float, float]:
        """The lowest class first, then whose lease has run out, then whose tenant has most, then who is furthest
        from its end."""
        family = self._fleet.families[session.family_id]
        return (
            -session.urgency,
            session.is_expired,
            self._part_of(session),
            self._policy.rank(family, session.num_begun, session.declared_turns),
        )

    def _part_of(self, session: Session) -> float:
        """What its tenant has of its pool, over its weight."""
        pool = self._fleet.home(session)
        return 0.0 if pool is None else self._fleet.blocks_of(session.tenant, pool)

    def _rank(self, bucket: Bucket) -> float:
        return self._policy.rank(self._fleet.families[bucket.family_id], bucket.num_begun, bucket.declared)
