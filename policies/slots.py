"""Turns that hold a slot, and what each of them teaches: of its replica, of its family, of its session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from policies import learning
from policies.admission_queue import Line
from policies.capacity import MET
from policies.fleet import Fleet, Pool
from policies.forecast import expected_turns, output_tokens
from policies.types import Ending, Left, Session, Turn, TurnId, TurnKind


@dataclass(slots=True)
class Running:
    """One turn in its slot."""

    turn: Turn
    pool: Pool
    missing_tokens: float
    """Of its prompt, that the cache should not have."""
    began_at: float
    """Its prefill or, after its first byte, its decoding."""
    started_at: float
    prefilled_tokens: float = 0.0
    """What its replica had computed for everybody when its first byte came."""


LEAST_MS, LEAST_TOKENS = 50.0, 64.0
"""That a turn is charged, so that many small ones do not count as none."""
LIKELY, LONG_TOKENS = 0.5, 1_024.0
"""Turns still to be expected of a session, and length of its family's answers, for which an engine may prefill the
next prompt ahead: for short ones its extra request costs the others more time than it saves (decision 4)."""


class Slots:
    """Written by the Scheduler."""

    def __init__(self, fleet: Fleet, line: Callable[[str], Line]) -> None:
        """`line`: of those who wait for a model."""
        self._fleet, self._line = fleet, line
        self._running: dict[TurnId, Running] = {}

    def start(self, turn: Turn, pool: Pool, missing_tokens: float, now: float) -> None:
        """It takes a slot of the pool."""
        pool.pace.prefill_began(turn.id, missing_tokens, not pool.replica.queued_prefill_tokens, now)
        pool.replica.begin(turn.id, round(missing_tokens))
        self._running[turn.id] = Running(turn, pool, missing_tokens, now, now)
        session = self._fleet.sessions[turn.session_id]
        if len(self._fleet.tenants.known) > 1:
            expected_tokens = missing_tokens + output_tokens(self._fleet.families[session.family_id])
            self._line(turn.model).shares.began(turn, max(LEAST_TOKENS, expected_tokens), now)
            pool.ready.shares.began(turn, pool.ready.usual_ms, now)
        session.prefills_next = pool.trial.asks() if self._may_prefill_next(turn, session, pool) else None

    def _may_prefill_next(self, turn: Turn, session: Session, pool: Pool) -> bool:
        """Whether the session is likely to go on after a long answer, and there is room for what may be needed."""
        family = self._fleet.families[session.family_id]
        if turn.kind is not TurnKind.AGENT or (family.output_tokens or 0.0) < LONG_TOKENS or not pool.is_roomy:
            return False
        return expected_turns(family, session.num_begun, session.remaining_turns) >= LIKELY

    def first_byte(self, turn_id: TurnId, now: float) -> None:
        """Its prefill is over; nothing happens when it has left its slot already."""
        running = self._running.get(turn_id)
        if running is None:
            return
        pace = running.pool.pace
        running.pool.replica.prefilled(turn_id)
        pace.prefill_ended(turn_id, running.missing_tokens, now)
        running.began_at, running.prefilled_tokens = now, pace.prefilled_tokens

    def left(self, fact: Left, now: float) -> Turn | None:
        """It gives its slot back; None when it has none. A complete agent turn changes its family's statistics."""
        running = self._running.pop(fact.turn_id, None)
        if running is None:
            return None
        turn, pool, usage = running.turn, running.pool, fact.usage
        pool.replica.end(turn.id)
        session = self._fleet.sessions[turn.session_id]
        session.num_running -= 1
        if len(self._fleet.tenants.known) > 1:
            self._charge(running, session, fact, now)
        computed_tokens = running.missing_tokens
        if usage.prompt_tokens is not None and usage.cached_tokens is not None:
            computed_tokens = usage.prompt_tokens - usage.cached_tokens
        if fact.ending is Ending.COMPLETE and turn.kind is not TurnKind.SIDE:
            session.decode_s = now - running.began_at
            session.others_tokens = pool.pace.prefilled_tokens - running.prefilled_tokens
            self._compare(running, session, fact, computed_tokens)
            self._learn(turn, session, pool, fact)
        return turn

    def _charge(self, running: Running, session: Session, fact: Left, now: float) -> None:
        """What it took of the fair shares. An answer whose length nobody told counts as long as its family's."""
        turn, ready, usage = running.turn, running.pool.ready, fact.usage
        slot_ms = max(LEAST_MS, 1e3 * (now - running.started_at))
        ready.usual_ms = learning.blend(ready.usual_ms, slot_ms)
        ready.shares.ended(turn, slot_ms, now)
        tokens = 0.0
        if usage.prompt_tokens is not None and usage.cached_tokens is not None:
            tokens = usage.prompt_tokens - usage.cached_tokens
        elif fact.ending is not Ending.REFUSED:
            tokens = running.missing_tokens
        if usage.output_tokens is not None:
            tokens += usage.output_tokens
        elif fact.ending is not Ending.REFUSED:
            tokens += output_tokens(self._fleet.families[session.family_id])
        self._line(turn.model).shares.ended(turn, max(LEAST_TOKENS, tokens), now)

    def _compare(self, running: Running, session: Session, fact: Left, computed_tokens: float) -> None:
        """Whether the engine still had the session's last prompt, which it should have, and which it had the time
        before: engines that say nothing of their cache, always 0, or never find a prompt again are not asked."""
        cached_tokens, pool = fact.usage.cached_tokens, running.pool
        if cached_tokens is None or not session.prompt_tokens or running.turn.is_retry:
            return
        if session.prefills_next is not None and session.output_tokens:
            found = (cached_tokens - session.prompt_tokens) / session.output_tokens
            pool.trial.saw(session.prefills_next, min(1.0, max(0.0, found)))
        found_before, least_tokens = session.found_prefix, MET * session.prompt_tokens
        session.found_prefix = cached_tokens >= least_tokens
        is_expected = pool.prompt_tokens(running.turn) - running.missing_tokens >= least_tokens
        wanted_tokens = session.prompt_tokens if is_expected and found_before else 0
        missed_tokens = 0 if session.found_prefix else wanted_tokens - cached_tokens
        pool.capacity.saw(computed_tokens, wanted_tokens, max(0, missed_tokens), pool.resident_tokens)

    def _learn(self, turn: Turn, session: Session, pool: Pool, fact: Left) -> None:
        """What a finished call teaches about its session, its family and its model."""
        family = self._fleet.families[session.family_id]
        prompt_tokens = fact.usage.prompt_tokens or round(pool.prompt_tokens(turn))
        if fact.usage.prompt_tokens:
            pool.ratio.saw(turn.chars, fact.usage.prompt_tokens)
        learning.saw_answer(family, session, prompt_tokens, fact.usage.output_tokens, turn.is_retry)
        learning.saw_tools(family, session, fact.tool_names, fact.tool_s)
