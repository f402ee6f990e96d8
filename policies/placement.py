"""Placement: on which replica a turn runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from policies.types import FamilyId, ReplicaId

DECODE_TOKENS_PER_TURN = 256.0
"""Work that each running turn puts before a new one, in tokens of prefill: the cost of a mixed batch."""


@dataclass(frozen=True, slots=True)
class Option:
    """One replica, as a turn would find it."""

    replica_id: ReplicaId
    missing_tokens: float
    """Prompt tokens that its cache is not expected to have."""
    queued_tokens: float
    """Tokens of prefill that are already queued there."""
    num_running: int
    free_slots: float
    is_home: bool
    """Whether the session's prefix was last computed there and is still expected there."""


Place: TypeAlias = Callable[[Sequence[Option], FamilyId, int], Option]
"""(options, family, ordinal of the placement) -> the chosen one; `options` is never empty."""


def rendezvous_weight(replica_id: ReplicaId, family_id: FamilyId) -> int:
    """Return the rendezvous weight (Thaler and Ravishankar, 1998), by which several gateways choose alike without
    talking to each other."""
    digest = hashlib.blake2b(f"{family_id}|{replica_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest)


def by_prefix(options: Sequence[Option], family_id: FamilyId, _ordinal: int) -> Option:
    """Choose the least work before the first token: missing prefix, queued prefill and decode load. Home wins
    ties, then the rendezvous weight."""

    def cost(option: Option) -> tuple[bool, int, bool]:
        work = option.missing_tokens + option.queued_tokens + DECODE_TOKENS_PER_TURN * option.num_running
        return option.free_slots == 0, round(work / DECODE_TOKENS_PER_TURN), not option.is_home

    best = min(cost(option) for option in options)
    tied = [option for option in options if cost(option) == best]
    if len(tied) == 1:
        return tied[0]
    return max(tied, key=lambda option: rendezvous_weight(option.replica_id, family_id))
