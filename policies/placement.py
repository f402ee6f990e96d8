"""Where a turn runs: pure choices among the replicas that may take it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from policies.types import FamilyId, ReplicaId

DECODE_TOKENS_PER_TURN = 256.0
"""Work that each running turn puts before a new one, in tokens of prefill: what a mixed batch costs."""


@dataclass(frozen=True, slots=True)
class Option:
    """One replica, as a turn would find it."""

    replica_id: ReplicaId
    missing_tokens: float
    """Prompt tokens that are not expected in its cache."""
    queued_tokens: float
    """Prefill that is already ahead."""
    num_running: int
    free_slots: float
    is_home: bool
    """Whether the session's prefix was last computed there and is still expected there."""


Place: TypeAlias = Callable[[Sequence[Option], FamilyId, int], Option]
"""(options, family, ordinal of the placement) -> the chosen one; `options` is never empty."""


def weight(replica_id: ReplicaId, family_id: FamilyId) -> int:
    """Rendezvous weight (Thaler and Ravishankar, 1998): several gateways lean the same way without talking."""
    digest = hashlib.blake2b(f"{family_id}|{replica_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest)


def by_prefix(options: Sequence[Option], family_id: FamilyId, _ordinal: int) -> Option:
    """Least prefill before the first token: missing prefix, queued prefill and decode load; home wins ties."""

    def cost(option: Option) -> tuple[bool, int, bool]:
        work = option.missing_tokens + option.queued_tokens + DECODE_TOKENS_PER_TURN * option.num_running
        return option.free_slots == 0, round(work / DECODE_TOKENS_PER_TURN), not option.is_home

    best = min(cost(option) for option in options)
    tied = [option for option in options if cost(option) == best]
    return tied[0] if len(tied) == 1 else max(tied, key=lambda option: weight(option.replica_id, family_id))
