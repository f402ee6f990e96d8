"""What an observer may see of the fleet, copied at one moment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policies import forecast
from policies.fleet import Fleet, Pool
from policies.types import Hold, ReplicaId, Session, SessionId, SessionState

USUAL_SLOTS = 256
"""The default of vLLM's `--max-num-seqs` on most GPUs."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    id: ReplicaId
    is_healthy: bool
    slots: int | None
    """None: endless, as far as anybody knows."""
    slots_used: int
    residency_tokens: int
    """Union over its resident sessions: a shared block counts once."""
    capacity_tokens: int | None
    """As the engine states it."""
    ceiling_tokens: int | None
    """Up to which sessions are admitted, of the capacity that it has shown."""
    num_residents: int = 0

    @property
    def assumed_slots(self) -> int:
        """For those who cut work for it beforehand."""
        return USUAL_SLOTS if self.slots is None else self.slots


@dataclass(frozen=True, slots=True)
class SessionView:
    state: SessionState
    replica_id: ReplicaId | None
    """Where its prefix was last computed. None: nowhere yet."""
    is_resident: bool
    is_expired: bool
    """While idle: it outstayed its lease, and stays resident only until somebody needs the room."""
    calls_tools: bool
    """Whether its last answer called a tool."""
    lease_until: float
    """While idle, of the Scheduler's clock."""
    prompt_tokens: int
    """Of its last turn."""
    expected_turns: float
    """Still to come: declared, or learned from its family."""


@dataclass(frozen=True, slots=True)
class FleetView:
    sessions: Mapping[SessionState, int] = field(default_factory=dict)
    num_families: int = 0
    waiting: Mapping[Hold, int] = field(default_factory=dict)
    """Turns at the gate, by what they wait for."""
    replicas: Sequence[ReplicaView] = ()
    named: Mapping[SessionId, SessionView] = field(default_factory=dict)
    """Of the sessions that were asked for, those that the Scheduler remembers."""


def view_of(
    fleet: Fleet,
    waiting: Mapping[Hold, int],
    ceiling: float,
    counts_sessions: bool = True,
    named: frozenset[SessionId] = frozenset(),
) -> FleetView:
    """Counting sessions takes a look at each."""
    sessions = fleet.sessions.values() if counts_sessions else ()
    return FleetView(
        sessions=Counter(session.state for session in sessions),
        num_families=len(fleet.families),
        waiting=waiting,
        replicas=[_replica(pool, ceiling) for pool in fleet.pools.values()],
        named={id_: _session(fleet, fleet.sessions[id_]) for id_ in named if id_ in fleet.sessions},
    )


def _session(fleet: Fleet, session: Session) -> SessionView:
    family = fleet.families[session.family_id]
    return SessionView(
        state=session.state,
        replica_id=session.replica_id,
        is_resident=session.is_resident,
        is_expired=session.is_expired,
        calls_tools=bool(session.tools),
        lease_until=session.lease_until,
        prompt_tokens=session.prompt_tokens,
        expected_turns=forecast.expected_turns(family, session.num_begun, session.remaining_turns, keeps=False),
    )


def _replica(pool: Pool, ceiling: float) -> ReplicaView:
    replica, capacity_tokens = pool.replica, pool.capacity.tokens
    return ReplicaView(
        id=replica.id,
        is_healthy=replica.is_healthy,
        slots=None if replica.own_slots == math.inf else int(replica.own_slots),
        slots_used=len(replica.running),
        residency_tokens=round(pool.resident_tokens),
        num_residents=pool.ledger.num_residents,
        capacity_tokens=pool.capacity.stated_tokens,
        ceiling_tokens=None if capacity_tokens is None else round(ceiling * capacity_tokens),
    )
