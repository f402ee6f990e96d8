"""What admitting a session is worth to the fleet and what it costs, both in tokens of prefill.

One more session in the batch gains one turn per cycle Z (decode and tool, undelayed). Each token that it makes the
pool evict is computed again, and that delays those who run, r of them, and itself. So its turns pay while
price x evicted x (r + 1) <= Z. Who waits for a tool is not delayed; where tools are slow, thrash is cheap.
"""

from __future__ import annotations

import math

from policies.fleet import Pool, chain_is_cached
from policies.remaining import chance_of_return, expected_turns, idle_left_s
from policies.types import Family, Session


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
