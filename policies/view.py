"""What an observer may see of the fleet, copied at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policies.fleet import Fleet, Pool
from policies.types import Hold, ReplicaId, SessionState


@dataclass(frozen=True, slots=True)
class ReplicaView:
    id: ReplicaId
    is_healthy: bool
    slots: int
    slots_used: int
    residency_tokens: int
    """Union over its resident sessions: a shared block counts once."""
    capacity_tokens: int | None
    """As the engine states it."""
    ceiling_tokens: int | None
    """Up to which sessions are admitted, of the capacity that it has shown."""


@dataclass(frozen=True, slots=True)
class FleetView:
    sessions: Mapping[SessionState, int] = field(default_factory=dict)
    num_families: int = 0
    waiting: Mapping[Hold, int] = field(default_factory=dict)
    """Turns at the gate, by what they wait for."""
    replicas: Sequence[ReplicaView] = ()


def view_of(
    fleet: Fleet, num_held: int, num_ready: int, ceiling: float, counts_sessions: bool = True
) -> FleetView:
    """`num_held` turns wait for residency, `num_ready` for a slot. Counting sessions takes a look at each."""
    sessions = fleet.sessions.values() if counts_sessions else ()
    return FleetView(
        sessions=Counter(session.state for session in sessions),
        num_families=len(fleet.families),
        waiting={Hold.RESIDENCY: num_held, Hold.SLOT: num_ready},
        replicas=[_replica(pool, ceiling) for pool in fleet.pools.values()],
    )


def _replica(pool: Pool, ceiling: float) -> ReplicaView:
    replica, capacity_tokens = pool.replica, pool.capacity.tokens
    return ReplicaView(
        id=replica.id,
        is_healthy=replica.is_healthy,
        slots=replica.slots,
        slots_used=len(replica.running),
        residency_tokens=round(pool.resident_tokens),
        capacity_tokens=pool.capacity.stated_tokens,
        ceiling_tokens=None if capacity_tokens is None else round(ceiling * capacity_tokens),
    )
