"""What a session costs the others of a pool and what holding it costs, in seconds of sessions.

One more session in the batch gains one turn per cycle c (decode and tool). Each token that it makes the pool evict
takes s seconds to have again, which delays the r running turns and the session itself. So a session pays while
evicted tokens per turn x s x (r + 1) <= c: n / c(n), the turns per second of n sessions, grows with n as long as
n dc <= c.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from policies.fleet import Pool
from policies.forecast import (
    Stage,
    append_tokens,
    chance_of_return,
    expected_turns,
    output_tokens,
    private_tokens,
)
from policies.throughput import Load
from policies.types import Family, FamilyId, Session, TurnKind

Stages: TypeAlias = Mapping[tuple[FamilyId, Stage], float]
"""Numbers of sessions by family and progress."""


def turn_value_tokens(pool: Pool) -> float:
    """Tokens that may be evicted per turn of one more session."""
    return pool.pace.cycle_s / (pool.pace.miss_token_s * (pool.num_busy + 1))


MOST_SCARCITY = 3.0
"""Sessions that wait per resident, beyond which more change nothing: then the pool is full for all of a stay."""


def evicted_tokens(pool: Pool, session: Session, family: Family, new_tokens: float) -> float:
    """Tokens per turn by which the residents outgrow the pool because of the session, which adds so many now, over
    the rest of its life."""
    assert pool.capacity.tokens is not None
    own = pool.reserve.of(family, (session.num_begun, session.remaining_turns))
    others = pool.reserve.forecast or [0.0] * len(own)
    room_tokens = pool.capacity.tokens - pool.resident_tokens
    if max(others) + max(own) + new_tokens <= room_tokens:
        return 0.0
    overflow_tokens = 0.0
    for other_growth, own_growth in zip(others, own, strict=True):
        together, without = other_growth + own_growth + new_tokens - room_tokens, other_growth - room_tokens
        overflow_tokens += (together if together > 0 else 0.0) - (without if without > 0 else 0.0)
    turns = 1 + expected_turns(family, session.num_begun, session.remaining_turns)
    return overflow_tokens / min(turns, len(own))


def is_worth_admitting(pool: Pool, session: Session, family: Family, new_tokens: float, num_waiting: int) -> bool:
    """Whether a session that fits now, and adds so many tokens, costs the fleet less than holding it.

    While k sessions wait, those of the n residents that end are replaced, for about k / n of a session's stay
    (Little's law). Until then the evictions delay those that wait, too; after it the pool has room. So they count
    k / n times.
    """
    evicted = evicted_tokens(pool, session, family, new_tokens)
    if not evicted:
        return True
    scarcity = min(MOST_SCARCITY, num_waiting / max(1, pool.ledger.num_residents))
    return scarcity * evicted <= turn_value_tokens(pool)


def is_cheap(pool: Pool, session: Session, family: Family, new_tokens: float) -> bool:
    """Whether a session costs less than one cycle in all its life, even if each of its tokens evicts another. A
    call without tools is all of it, as long as no session of its family went on."""
    growth = pool.reserve.of(family, (session.num_begun, session.remaining_turns))
    if session.kind is TurnKind.SINGLE and not any(family.continued):
        growth = growth[:1]
    return sum(max(0.0, new_tokens + more) for more in growth) <= turn_value_tokens(pool)


def load_of(pool: Pool, families: Mapping[FamilyId, Family], waiting: Stages) -> Load | None:
    """Return the sessions that reside in a pool or wait for it; None: there are none."""
    assert pool.capacity.tokens is not None
    num = own_tokens = turn_tokens = lost_tokens = num_turns = 0.0
    shared_tokens = pool.resident_tokens
    sizes: dict[FamilyId, tuple[Family, float, float, float]] = {}
    for stages, are_residents in ((pool.reserve.stages(), True), (waiting, False)):
        for (family_id, (num_begun, declared)), weight in stages.items():
            if family_id not in sizes:
                family = families[family_id]
                sizes[family_id] = (
                    family,
                    private_tokens(family),
                    append_tokens(family),
                    output_tokens(family),
                )
            family, first_tokens, append, answer_tokens = sizes[family_id]
            prompt_tokens = first_tokens + (num_begun - 1 if num_begun > 1 else 0) * append
            left = expected_turns(family, num_begun if num_begun > 1 else 1, declared)
            num += weight
            num_turns += weight * (1 + left)
            own_tokens += weight * (prompt_tokens + left / 2 * append + answer_tokens)
            lost_tokens += weight * left * (prompt_tokens + (left - 1 if left > 1 else 0.0) / 2 * append)
            turn_tokens += weight * append
            shared_tokens -= weight * prompt_tokens * are_residents
    if not num:
        return None
    own_tokens = max(1.0, own_tokens / num)
    room_tokens = max(own_tokens, pool.capacity.tokens - max(0.0, shared_tokens))
    return Load(max(1.0, num), own_tokens, turn_tokens / num, lost_tokens / num_turns, room_tokens)


def outgrows(pool: Pool) -> bool:
    """Whether the residents and their next answers exceed the pool."""
    return pool.capacity.tokens is not None and pool.held_tokens > pool.capacity.tokens


def should_give_way(pool: Pool, session: Session, family: Family, now: float) -> bool:
    """Whether the room of an idle session is worth more to a session that waits.

    If the idle one comes back, its private tokens are computed again, and it waits as long as it spared the other,
    which takes a turn meanwhile.
    """
    value_tokens = turn_value_tokens(pool)
    private_tokens = pool.tokens(pool.ledger.private_blocks(session.id))
    return chance_of_return(session, family, now) * (private_tokens + value_tokens) <= value_tokens
