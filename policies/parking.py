"""Parking: between two turns a session that will hold much room for long makes way for shorter ones that wait.

Only where clients have said how long both are. Learned lengths part classes, not the sessions of a class, and
parking by them makes first turns wait past the bound for a few percent of the mean (decision 9). And only within a
tenant: nobody loses its cache by what another tenant declares. A sub-agent is not parked: its parent waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from policies.fleet import Pool
from policies.growth import append_tokens, output_tokens, private_tokens
from policies.types import Family, FamilyId, Session
from policies.worth import share_tokens

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
