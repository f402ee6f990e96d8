"""What a gate would save, where none holds sessions: the ledger of `policy.name: observe`.

A queue with as many places as sessions fit into the pool. A session takes a place as soon as one is free. It keeps
the place for its own tool times and for the times that its turns would take: the real ones, times a factor of the
fluid model (`throughput.py`), the time of a turn among as many sessions as fit over that among all. It counts once
it has ended. Where all fit, or where all together are faster than those that fit, the gate would be open: then
turns take as long as they do, and no session waits for a place.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace

from policies.fleet import Fleet, Pool
from policies.shadow_clocks import Clocks, mean_gap_s, modelled_s
from policies.throughput import Load
from policies.turns import Turns
from policies.types import ReplicaId, Session, SessionId, Turn


@dataclass(slots=True)
class Stay:
    """One session in the queue."""

    began_at: float
    over_at: float
    """When its last turn ended, really."""
    pool: Pool
    gated_s: float = 0.0
    """Its time behind the gate, without the wait for a place."""
    num_turns: int = 0
    own_tokens: float = 0.0
    """That the sessions around it held on average, summed over its turns."""
    room_tokens: float | None = None
    """Of the pool beside what the sessions share. None: they fitted at all of its turns."""
    quiet_until: float = 0.0
    """When it counts as ended."""


def gated_part_of(load: Load, pool: Pool, now: float) -> float | None:
    """Return the part of its time that a turn takes if only those that fit are there; None where they are slower
    than all together."""
    fitting = replace(load, num_sessions=load.num_fitting)
    gated_s, all_s, gap_s = modelled_s(fitting, pool, now), modelled_s(load, pool, now), mean_gap_s(pool)
    if load.num_fitting * (all_s + gap_s) <= load.num_sessions * (gated_s + gap_s):
        return None
    return min(1.0, gated_s / all_s)


class ObservedGate(Clocks):
    """Owns the queue. Written by the Scheduler."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet, counts=True)
        self._stays: dict[SessionId, Stay] = {}
        self._lease_s = Turns().lease_s
        self._taken: dict[ReplicaId, list[float]] = {}
        """When the places of a pool that are taken become free."""

    def came_back(self, session: Session, now: float) -> None:
        super().came_back(session, now)
        if (stay := self._stays.get(session.id)) is not None:
            stay.gated_s += now - session.idle_since

    def finished(self, turn: Turn, now: float) -> None:
        session = self._fleet.sessions[turn.session_id]
        clock, pool = self._clocks.get(session.id), self._fleet.pools.get(session.replica_id or "")
        if clock is None or pool is None:
            return
        stay = self._stays.get(session.id)
        if stay is None:
            stay = self._stays[session.id] = Stay(clock.wanted_at, now, pool)
        num, own_tokens = clock.met
        load = self._load(clock.met, pool, turn)
        gated_part = None if load is None else gated_part_of(load, pool, now)
        if load is not None and gated_part is not None:
            stay.room_tokens = load.room_tokens
        stay.num_turns, stay.over_at = stay.num_turns + 1, now
        stay.own_tokens += own_tokens / num
        stay.gated_s += (now - clock.wanted_at) * (1.0 if gated_part is None else gated_part)
        stay.quiet_until = now + self._lease_s(session, self._fleet.families[session.family_id])
        self.quiet.put(stay.quiet_until, session.id)

    def ended(self, session_id: SessionId) -> None:
        """Keep it: without leases an idle session seems to have ended at once."""

    def expire(self, now: float) -> None:
        while (entry := self.quiet.pop(now)) is not None:
            until, session_id = entry
            stay, session = self._stays.get(session_id), self._fleet.sessions.get(session_id)
            if stay is not None and stay.quiet_until == until and session is not None and not session.num_running:
                self._settle(session_id, now)

    def forget(self, session_id: SessionId) -> None:
        self._settle(session_id, -math.inf)
        super().forget(session_id)

    def _settle(self, session_id: SessionId, now: float) -> None:
        """Count a session that has ended."""
        super().ended(session_id)
        stay = self._stays.pop(session_id, None)
        if stay is None:
            return
        starts_at = stay.began_at
        if stay.room_tokens is not None:
            num_places = stay.room_tokens * stay.num_turns / stay.own_tokens
            taken = self._taken.setdefault(stay.pool.replica.id, [])
            while taken and len(taken) >= num_places:
                starts_at = max(starts_at, heapq.heappop(taken))
            heapq.heappush(taken, starts_at + stay.gated_s)
        real_s = stay.over_at - stay.began_at
        stay.pool.gate_time.saw_turn(starts_at - stay.began_at, real_s - stay.gated_s, max(now, stay.over_at))
