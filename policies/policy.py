"""The contract of a policy: pure answers about values. A policy never writes, waits or looks at a clock."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from policies.types import Family, FamilyId, ReplicaId, Session, Turn


class Progress(Protocol):
    """How far a session had come when a turn of it arrived. A Session is one."""

    @property
    def num_begun(self) -> int:
        """Agent turns that have arrived, with the one in question."""
        ...

    @property
    def declared_turns(self) -> int | None:
        """Turns after it that the client announced. None: the client announced nothing."""
        ...


class Policy(Protocol):
    """What the Scheduler asks. One file per policy; the configuration names it by short name or import path."""

    name: str
    bounds_slots: bool
    """Whether a turn waits for a free slot of its replica."""
    gates_residency: bool
    """Whether a session waits until the cache of its replica has room for it."""
    ranks_turns: bool
    """Whether `rank` looks at the turn itself. False: it ranks all turns alike whose sessions are of one family
    and have come equally far, so the Scheduler ranks them once."""

    def rank(self, turn: Turn, session: Progress, family: Family) -> float:
        """Return the place of a waiting turn in the order of its tenant's turns: the lowest goes first, and age
        decides between equals. It must not depend on the time at which it is asked."""
        ...

    def forecast(self, family: Family, num_begun: int, declared: int | None) -> Sequence[float]:
        """Return the expected change of the tokens that a session holds after 0, 1, ... further turns. The result
        always has the same length. `declared`: turns to come, None where they are not known."""
        ...

    def lease_s(self, session: Session, family: Family) -> float:
        """Return how long the session stays resident once it is idle."""
        ...

    def place(self, options: Sequence[Option], family_id: FamilyId, ordinal: int) -> Option:
        """Return the replica to run on. `options` is never empty; `ordinal` counts placements."""
        ...


# ---- placement: where a turn runs

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
