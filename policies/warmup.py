"""Warm-ups: the lost cache of an idle session is computed again just before its next turn, while no turn waits.

A warm-up pays when the session comes back to it. A guard stops warm-ups while fewer than PAYS of them pay; every
TRIAL-th one is then still made.
"""

from __future__ import annotations

from policies.fleet import Fleet, Pool
from policies.forecast import FEWEST_GAPS, chance_of_return, gaps_of
from policies.idle import Timers
from policies.learning import blend
from policies.types import Family, Session, SessionId, SessionState, WarmedUp, WarmUp

LEAST_TOKENS = 1_024
"""A smaller loss is not worth a request."""
LEAST_CHANCE = 0.5
"""Chance of return below which a session is not warmed up."""
EARLY = 0.25
"""Quantile of the past idle times at which a session is expected back."""
AGAIN_S = 1.0
"""Least time after which a warm-up that found the engine busy or full is considered again."""
PAYS, TRIAL = 0.5, 16


class WarmUps:
    """Decides when to warm up which session. Written by the Scheduler."""

    def __init__(self, fleet: Fleet, ceiling: float, is_on: bool) -> None:
        self._fleet, self._ceiling, self._is_on = fleet, ceiling, is_on
        self.timers = Timers()
        self._under_way: dict[SessionId, Pool] = {}
        self._warm: set[SessionId] = set()
        """Sessions that were warmed up and have neither come back nor lost their cache again."""
        self._paid = 1.0
        self._num_chances = 0

    def lost(self, session: Session, now: float) -> None:
        """Plan the warm-up of a session that lost its residency or its cache, but for one whose last warm-up was
        lost before it paid."""
        if session.id in self._warm:
            self._warm.discard(session.id)
            self._paid = blend(self._paid, 0.0)
        elif self._is_on and session.id in self._fleet.sessions and session.state is SessionState.IDLE:
            due_at = self._due_at(session, self._fleet.families[session.family_id])
            if due_at is not None:
                self.timers.put(max(now, due_at), session.id)

    def came_back(self, session: Session) -> None:
        """Count the warm-up of a session that sends a turn as paid."""
        if session.id in self._warm:
            self._warm.discard(session.id)
            self._paid = blend(self._paid, 1.0)

    def forget_session(self, session_id: SessionId) -> None:
        self._warm.discard(session_id)
        if (pool := self._under_way.pop(session_id, None)) is not None:
            pool.replica.free_slot(_slot(session_id))

    def ended(self, fact: WarmedUp) -> None:
        """End a warm-up, whether or not the engine computed it."""
        pool = self._under_way.pop(fact.session_id, None)
        session = self._fleet.sessions.get(fact.session_id)
        if pool is None:
            return
        pool.replica.free_slot(_slot(fact.session_id))
        pool.reuse.end(_slot(fact.session_id))
        if session is None or session.num_running or session.num_waiting:
            return
        if fact.is_done:
            self._warm.add(session.id)
        else:
            self._fleet.release(session)

    def due(self, now: float, is_quiet: bool) -> list[tuple[Session, WarmUp]]:
        """Begin the warm-ups whose time has come; their sessions are resident again. `is_quiet`: no turn waits."""
        begun = []
        while (entry := self.timers.pop(now)) is not None:
            session = self._fleet.sessions.get(entry[1])
            pool = None if session is None else self._pool(session, now)
            if session is None or pool is None:
                continue
            if not is_quiet or pool.replica.queued_prefill_tokens or not self._has_room(session, pool):
                self.timers.put(now + max(AGAIN_S, EARLY * (now - session.idle_since)), session.id)
            elif self._is_allowed():
                missing_tokens = _missing_tokens(session, pool)
                self._fleet.keep(session, pool)
                self._under_way[session.id] = pool
                pool.replica.occupy_slot(_slot(session.id), round(missing_tokens))
                pool.reuse.begin(_slot(session.id), session.id, session.blocks, 0)
                begun.append((session, WarmUp(session.id, pool.replica.id, round(missing_tokens))))
        return begun

    def _pool(self, session: Session, now: float) -> Pool | None:
        """Return where a session is worth being warmed up; None where it is not."""
        pool = None if session.replica_id is None else self._fleet.pools[session.replica_id]
        if pool is None or session.num_running or session.num_waiting:
            return None
        if not pool.replica.is_healthy or _missing_tokens(session, pool) < LEAST_TOKENS:
            return None
        chance = chance_of_return(session, self._fleet.families[session.family_id], now)
        return pool if chance >= LEAST_CHANCE else None

    def _has_room(self, session: Session, pool: Pool) -> bool:
        if pool.capacity.tokens is None or not pool.replica.free_slots:
            return False
        new_tokens = pool.tokens(pool.ledger.new_blocks(session.blocks))
        return pool.has_room(new_tokens, self._ceiling)

    def _is_allowed(self) -> bool:
        self._num_chances += 1
        return self._paid >= PAYS or not self._num_chances % TRIAL

    def _due_at(self, session: Session, family: Family) -> float | None:
        """Return when to begin, so that the warm-up ends as the session comes back; None where that is not
        known."""
        pool = None if session.replica_id is None else self._fleet.pools.get(session.replica_id)
        gaps_s = gaps_of(session, family)
        if pool is None or (session.tool_s is None and len(gaps_s) < FEWEST_GAPS):
            return None
        idle_s = gaps_s.quantile(EARLY) if session.tool_s is None else session.tool_s
        return session.idle_since + idle_s - pool.pace.prefill_s(session.prompt_tokens)


def _missing_tokens(session: Session, pool: Pool) -> float:
    return pool.tokens(len(session.blocks) - pool.ledger.expected_blocks(session.blocks))


def _slot(session_id: SessionId) -> str:
    """Return the id that a warm-up has in the place of a turn's."""
    return f"warm-up {session_id}"
