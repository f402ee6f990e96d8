"""Idle sessions: their leases, and when their silence counts as their end."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from policies import learning
from policies.fleet import Fleet
from policies.policy import Policy
from policies.types import Family, Session, SessionId

NEVER = math.inf, ""


class Timers:
    """A heap of (time, id). Entries are never taken back: the reader of one checks whether it still holds."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self.next_at, self.next_whose = NEVER
        """The earliest entry."""

    def put(self, at: float, whose: str) -> None:
        heapq.heappush(self._heap, (at, whose))
        self.next_at, self.next_whose = self._heap[0]

    def pop(self, now: float) -> tuple[float, str] | None:
        """Remove the earliest entry whose time has come, if there is one."""
        return None if self.next_at > now else self.drop()

    def drop(self) -> tuple[float, str]:
        """Remove the earliest entry; there must be one."""
        entry = heapq.heappop(self._heap)
        self.next_at, self.next_whose = self._heap[0] if self._heap else NEVER
        return entry


LEASES = 3.0
"""Leases for which an idle session stays resident, unless it gives way before."""


class IdleSessions:
    """Keeps the leases of sessions without a turn. Written by the Scheduler."""

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        relearn: Callable[[Family], None],
        presumed_ended: Callable[[SessionId], None],
    ) -> None:
        self._fleet, self._policy, self._relearn, self._presumed_ended = fleet, policy, relearn, presumed_ended
        self.leases = Timers()
        self.outrun = Timers()
        """Ends of leases that no longer hold: their sessions came back, or are forgotten. While turns wait, the
        Scheduler looks at these times, too: idle sessions are less likely to come back then, and may give way."""

    def rest(self, session: Session, now: float) -> bool:
        """Begin the lease of a session that has no turn left. Return whether that is so."""
        if session.num_running or session.num_waiting:
            return False
        session.idle_since = session.lease_until = now
        home = self._fleet.home(session)
        if home is not None:
            home.idle[session.id] = session
        try:
            session.lease_until += self._policy.lease_s(session, self._fleet.families[session.family_id])
        finally:
            self.leases.put(session.lease_until, session.id)
        return True

    def ended(self, session: Session, now: float) -> None:
        """End the session, as its client said."""
        self._fleet.release(session)
        session.lease_until = now
        self.leases.put(now, session.id)

    def expire(self, now: float) -> bool:
        """End the leases that have run out; return whether there were any. Their sessions count as ended until
        they come back. They stay resident while the room is not needed, for LEASES leases at most."""
        happened = False
        while self.outrun.pop(now) is not None:
            pass
        while (entry := self.leases.pop(now)) is not None:
            until, session = entry[0], self._whose(*entry)
            if session is None:
                continue
            happened = True
            kept_until = session.idle_since + LEASES * (until - session.idle_since)
            if session.is_recalled:
                self._presume_ended(session)
                self._fleet.forget(session)
                continue
            if session.is_expired or kept_until <= now:
                self._fleet.release(session)
            else:
                session.lease_until = kept_until
                self.leases.put(kept_until, session.id)
            if not session.is_expired:
                session.is_expired = True
                self._presume_ended(session)
        self._set_aside()
        return happened

    def came_back(self, session: Session) -> None:
        """Void the lease of a session that sends a turn."""
        if self.leases.next_whose == session.id:
            self._set_aside()

    def _set_aside(self) -> None:
        """Move leases that no longer hold aside, so that the next one holds."""
        leases = self.leases
        while leases.next_whose and self._whose(leases.next_at, leases.next_whose) is None:
            self.outrun.put(*leases.drop())

    def _whose(self, until: float, session_id: SessionId) -> Session | None:
        """Return the session whose lease ends then; None where it has come back since, or is forgotten."""
        session = self._fleet.sessions.get(session_id)
        if session is None or session.lease_until != until or session.num_running or session.num_waiting:
            return None
        return session

    def _presume_ended(self, session: Session) -> None:
        family = self._fleet.families[session.family_id]
        learning.saw_end(family, session)
        self._presumed_ended(session.id)
        self._relearn(family)
