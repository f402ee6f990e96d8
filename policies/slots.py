"""Turns that hold a slot: the hints that they start with, and what each teaches of its replica, its family and its
session when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from policies import learning
from policies.admission_queue import AdmissionQueue
from policies.capacity import shown_by
from policies.engine_queue import EngineCall, EngineTime
from policies.fleet import Fleet, Pool
from policies.forecast import expected_turns, output_tokens
from policies.learning import LEAST_OUTPUT_TOKEN_S, LONG_PREFILL_S
from policies.reuse import Reuse
from policies.types import (
    BLOCK_CHARS,
    COMPLETE,
    SIDE,
    Ending,
    Family,
    Hints,
    Left,
    Session,
    SessionId,
    Turn,
    TurnId,
    TurnKind,
    Usage,
)


@dataclass(slots=True)
class RunningTurn:
    """A turn in its slot."""

    turn: Turn
    pool: Pool
    missing_tokens: float
    """Tokens of its prompt that the cache should not have."""
    evicted_tokens: float
    """Those of them that it had before."""
    began_at: float
    """When its prefill began; after its first byte, when its decoding did."""
    started_at: float
    engine_call: EngineCall
    prefilled_tokens: float
    """Tokens that its replica had computed for all turns when it began, then when its first byte came."""
    alone_s: float | None = None
    """Time of its prefill, if no other one ran beside it."""
    answer_tokens: float = 0.0
    """Expected length of its answer."""
    reuse: Reuse | None = None
    """Of the last prompt of its session. None: there is none that this one continues."""
    decoding_tokens: float = 0.0
    """Half of the answers that its replica decoded when it began: what they took then, on average."""
    prefilled_s: float = 0.0
    """How long its replica had computed prompts when it began, and then its own prefill."""
    beside_s: float = 0.0
    """How long its replica computed prompts of others until its first byte."""


LEAST_SLOT_S, LEAST_TOKENS = 0.05, 64.0
"""The least that a turn is charged, so that many small turns do not count as none."""
MOSTLY = 0.75
"""Share of the returns of a family that found their last prompt, beyond which a miss says something."""
LIKELY, LONG_TOKENS = 0.5, 1_024.0
"""Turns still to be expected of a session, and length of its family's answers, from which on an engine may prefill
the next prompt ahead. For short answers its extra request costs the others more time than it saves (decision
4)."""


MOST_URGENCY = 100.0
_AGENT = TurnKind.AGENT
"""A global, as is `SIDE`."""


class Slots:
    """Owns the running turns. Written by the Scheduler."""

    def __init__(self, fleet: Fleet, queue_of: Callable[[str], AdmissionQueue]) -> None:
        """`queue_of`: the admission queue of a model."""
        self._fleet, self._queue_of = fleet, queue_of
        self._running: dict[TurnId, RunningTurn] = {}

    def occupy(self, turn: Turn, pool: Pool, missing_tokens: float, evicted_tokens: float, now: float) -> None:
        """Give the turn a slot of the pool."""
        pace = pool.pace
        call = pool.engine_queue.send(len(pool.replica.running), now)
        pace.prefill_began(turn.id, not pool.replica.queued_prefill_tokens, now)
        pool.replica.occupy_slot(turn.id, round(missing_tokens))
        pool.sent_ahead.sent(turn, missing_tokens, pace, now)
        running = RunningTurn(turn, pool, missing_tokens, evicted_tokens, now, now, call, pace.prefilled_tokens)
        running.prefilled_s = pace.prefilled_s
        self._running[turn.id] = running
        if pool.backpressure.is_on:
            pool.backpressure.sent(turn, pool.prompt_tokens(turn))
        self._touch(running)
        if self._fleet.tenants.are_rivals:
            family = self._fleet.families[self._fleet.sessions[turn.session_id].family_id]
            tokens = max(LEAST_TOKENS, missing_tokens + output_tokens(family))
            charge = pool.queue.rates.charge(turn, tokens, None, self._fleet.tenants.usually_open())
            self._queue_of(turn.model).shares.began(turn, charge, now)
            pool.queue.shares.began(turn, charge, now)

    def _touch(self, running: RunningTurn) -> None:
        """Let the turn hold its prompt in the pool. That of a side request is not looked for again."""
        turn, distances = running.turn, running.pool.reuse
        if turn.kind is SIDE:
            distances.begin(turn.id, turn.id, turn.blocks, turn.chars)
            distances.forget(turn.id)
        else:
            running.reuse = distances.begin(turn.id, turn.session_id, turn.blocks, turn.chars)
            running.decoding_tokens = running.pool.answering_tokens / 2
        running.answer_tokens = output_tokens(self._fleet.families[turn.family_id])
        running.pool.answering_tokens += running.answer_tokens

    def hints(self, turn: Turn, pool: Pool, is_shared: bool, is_ordered: bool) -> Hints:
        """Return the hints for the turn's engine. Its file owns polarity, range and field names.

        The highest urgency is 100. An agent turn that is the last has 80, one with one more to follow 40, and so
        on; side requests have 0. Each class of the operator moves it by 10, so batches are below 0.

        `is_shared`: other tenants use the engine, too. Its queue does not know tenants, so all turns of a class
        have the least urgency of that class. Then no turn overtakes an earlier one, whatever its client declares
        and whatever was learned.

        `is_ordered`: the gate keeps the order of the engine's queue, where none is to overtake another.
        """
        session = self._fleet.sessions[turn.session_id]
        family = self._fleet.families[turn.family_id]
        remaining = expected_turns(family, session.num_begun, session.remaining_turns)
        own = 0.0 if is_shared or turn.kind is SIDE else 80.0 / (1.0 + remaining)
        urgency = own + 10 * turn.priority_class
        if is_ordered:
            urgency = min(0, 10 * turn.priority_class)
        # By place: names take thrice the time to pass.
        return Hints(
            round(urgency if abs(urgency) <= MOST_URGENCY else math.copysign(MOST_URGENCY, urgency)),  # urgency
            None if is_shared else remaining,  # remaining_turns
            None if family.output_tokens is None else round(family.output_tokens),  # expected_output_tokens
            self._may_prefill_next(turn, session, pool),  # prefills_next
            session.id,  # session_id
            session.parent_id,
        )

    def _may_prefill_next(self, turn: Turn, session: Session, pool: Pool) -> bool:
        """Whether the session is likely to go on after a long answer, and the pool has room for the guess."""
        family = self._fleet.families[session.family_id]
        if turn.kind is not _AGENT or (family.output_tokens or 0.0) < LONG_TOKENS or not pool.is_roomy:
            return False
        return expected_turns(family, session.num_begun, session.remaining_turns) >= LIKELY

    def first_byte(self, turn_id: TurnId, now: float) -> bool:
        """End the prefill of a turn; harmless for one that has left its slot already. Return whether its engine
        may take another call for it."""
        running = self._running.get(turn_id)
        if running is None:
            return False
        pace = running.pool.pace
        running.pool.replica.end_prefill(turn_id)
        running.pool.sent_ahead.begun(turn_id)
        running.alone_s = pace.prefill_ended(turn_id, running.missing_tokens, now)
        own_s = self._prefill_took_s(running, now)
        running.beside_s = self._others_s(running, now)
        pace.prefilled_s, pace.prefilled_until = pace.prefilled_s + own_s, now
        running.prefilled_s += own_s
        running.began_at, running.prefilled_tokens = now, pace.prefilled_tokens
        alone_s = pace.prefill_token_s * running.missing_tokens
        running.pool.engine_queue.first_byte(running.engine_call, alone_s, now)
        return running.pool.backpressure.started(turn_id)

    def _prefill_took_s(self, running: RunningTurn, now: float) -> float:
        """Return how long the prefill of a turn took that ends now, or how long it has lasted."""
        pool = running.pool
        begun_at = running.started_at + pool.engine_queue.slot_wait_s(running.engine_call)
        return pool.pace.prefill_took_s(running.missing_tokens, begun_at, now)

    def _others_s(self, running: RunningTurn, now: float) -> float:
        """Return how long the replica of a turn has computed prompts of others since the turn began: those that
        are done, and a long one that is not."""
        pool, pace = running.pool, running.pool.pace
        others_s = pace.prefilled_s - running.prefilled_s
        if pace.prefill_token_s * pool.replica.queued_prefill_tokens >= LONG_PREFILL_S:
            others = (self._running[other] for other, tokens in pool.replica.running.items() if tokens)
            long = (
                other
                for other in others
                if other is not running and pace.prefill_token_s * other.missing_tokens >= LONG_PREFILL_S
            )
            if (first := next(long, None)) is not None:
                others_s += min(self._prefill_took_s(first, now), now - running.started_at)
        return max(0.0, others_s)

    def engine_time(self, turn_id: TurnId, usage: Usage, is_whole: bool, now: float) -> EngineTime | None:
        """Return where the time of a call went that ends now; None when it has no slot. `is_whole`: its answer
        came at once, so that its first byte says nothing."""
        running = self._running.get(turn_id)
        if running is None:
            return None
        computed_tokens = running.missing_tokens
        if usage.prompt_tokens is not None and usage.cached_tokens is not None:
            computed_tokens = usage.prompt_tokens - usage.cached_tokens
        return running.pool.engine_queue.split(
            running.engine_call,
            running.pool.pace,
            is_whole,
            now,
            computed_tokens,
            running.beside_s,
            max(0.0, self._others_s(running, now) - running.beside_s),
        )

    def queued_sessions(self) -> frozenset[SessionId]:
        """Return the sessions whose turn waits in its engine's queue now."""
        waits = (running for running in self._running.values() if running.pool.engine_queue.waiting)
        return frozenset(
            running.turn.session_id
            for running in waits
            if running.engine_call.first_byte_at is None
            and running.pool.engine_queue.is_queued(running.engine_call)
        )

    def holders(self, pool: Pool) -> Iterator[tuple[SessionId, str]]:
        """Return the sessions whose turns hold the slots of a pool, with their tenants, longest first."""
        for turn_id in pool.replica.running:
            turn = self._running[turn_id].turn
            yield turn.session_id, turn.tenant

    def free(self, fact: Left, now: float) -> Turn | None:
        """Take the slot back and learn from the turn; None when it has no slot. A complete agent turn changes the
        statistics of its family."""
        running = self._running.pop(fact.turn_id, None)
        if running is None:
            return None
        turn, pool, usage = running.turn, running.pool, fact.usage
        pool.replica.free_slot(turn.id)
        pool.sent_ahead.begun(turn.id)
        pool.engine_queue.ended(now)
        if fact.ending is Ending.REFUSED:
            pool.backpressure.refused(turn.id)
        else:
            pool.backpressure.started(turn.id)
        answer_chars = (usage.output_tokens or 0) / pool.ratio.value
        found_chars = round((pool.kept_answers or 0.0) * answer_chars)
        pool.reuse.end(turn.id, found_chars, round(answer_chars) - found_chars)
        pool.answering_tokens -= running.answer_tokens
        session = self._fleet.sessions[turn.session_id]
        session.num_running -= 1
        if self._fleet.tenants.are_rivals:
            self._charge(running, session, fact, now)
        if fact.ending is COMPLETE and turn.kind is not SIDE:
            self._time(running, session, fact, now)
            if session.presumed_blocks:
                _judge_history(running, session, self._fleet.families[session.family_id], fact)
            self._judge_cache(running, session, fact)
            self._learn(turn, session, pool, fact)
        return turn

    def __contains__(self, turn_id: TurnId) -> bool:
        return turn_id in self._running

    def take_back(self, turn_id: TurnId, now: float) -> None:
        """Take back the slot of a turn that an error ended, if it has one, or half of one."""
        with suppress(Exception):  # its parts may be missing
            self.free(Left(turn_id, Ending.CANCELLED), now)
        for pool in self._fleet.pools.values():
            pool.replica.free_slot(turn_id)

    def _time(self, running: RunningTurn, session: Session, fact: Left, now: float) -> None:
        """Learn from the times of a complete turn. Where the engine says how many tokens it computed, that counts;
        one that never finds a cached token may not say it."""
        pace, usage, alone_s = running.pool.pace, fact.usage, running.alone_s
        session.decode_s = now - running.began_at
        others_tokens = pace.prefilled_tokens - running.prefilled_tokens
        missing_tokens, evicted_tokens = running.missing_tokens, running.evicted_tokens
        num_output = usage.output_tokens or 0
        if num_output > 1 and session.decode_s < LEAST_OUTPUT_TOKEN_S * num_output:  # its answer came whole
            session.decode_s = max(0.0, now - running.started_at - pace.prefill_s(missing_tokens))
            alone_s = None
        if num_output:
            num_running = 1 + len(running.pool.replica.running)
            pace.saw_decode(session.decode_s, others_tokens, num_output, num_running)
        if alone_s is None:
            return
        computed_tokens = missing_tokens
        if usage.prompt_tokens is not None and (usage.cached_tokens or pace.counts_cached):
            pace.counts_cached = True
            computed_tokens = usage.prompt_tokens - (usage.cached_tokens or 0)
        elif usage.prompt_tokens is not None:
            computed_tokens = min(missing_tokens, usage.prompt_tokens)
        if not evicted_tokens:
            pace.saw_prefill(computed_tokens, alone_s)
        else:
            pace.saw_return(max(0.0, missing_tokens - evicted_tokens), evicted_tokens, alone_s)

    def _charge(self, running: RunningTurn, session: Session, fact: Left, now: float) -> None:
        """Charge the fair shares. An answer of unknown length counts as long as those of its family."""
        turn, usage, tokens = running.turn, fact.usage, 0.0
        if usage.prompt_tokens is not None and usage.cached_tokens is not None:
            tokens = usage.prompt_tokens - usage.cached_tokens
        elif fact.ending is not Ending.REFUSED:
            tokens = running.missing_tokens
        if usage.output_tokens is not None:
            tokens += usage.output_tokens
        elif fact.ending is not Ending.REFUSED:
            tokens += output_tokens(self._fleet.families[session.family_id])
        queue, slot_s = running.pool.queue, max(LEAST_SLOT_S, now - running.started_at)
        tokens = max(LEAST_TOKENS, tokens)
        charge = queue.rates.charge(turn, tokens, slot_s, self._fleet.tenants.usually_open())
        queue.rates.saw(turn.tenant, tokens, slot_s)
        self._queue_of(turn.model).shares.ended(turn, charge, now)
        queue.shares.ended(turn, charge, now)

    def _judge_cache(self, running: RunningTurn, session: Session, fact: Left) -> None:
        """Tell the pool's capacity what the cached part of the session's last prompt shows.

        A miss counts only where the session was found before, or most of its family are. So engines that report no
        cached tokens, always 0, or never find a prompt again change nothing.
        """
        cached_tokens, pool = fact.usage.cached_tokens, running.pool
        if cached_tokens is None or not session.prompt_tokens or running.turn.is_retry:
            return
        pool.grain_tokens = math.gcd(pool.grain_tokens, cached_tokens)
        found_before, session.found_prefix = session.found_prefix, False
        if running.reuse is None:
            return
        ratio, missed_tokens = pool.ratio.value, max(0, session.prompt_tokens - cached_tokens)
        distance_tokens, private_tokens = ratio * running.reuse.distance_chars, ratio * running.reuse.private_chars
        edges = pool.grain_tokens, ratio * BLOCK_CHARS
        shown = shown_by(distance_tokens, private_tokens, missed_tokens, running.decoding_tokens, *edges)
        if shown is None:
            return
        family = self._fleet.families[session.family_id]
        is_credible = found_before or (family.found_share or 0.0) > MOSTLY
        session.found_prefix = shown.most_tokens == math.inf
        family.found_share = learning.blend(family.found_share, session.found_prefix)
        if session.found_prefix:
            pool.saw_answer(cached_tokens - session.prompt_tokens, family)
        if session.found_prefix or is_credible:
            pool.capacity.saw(shown)

    def _learn(self, turn: Turn, session: Session, pool: Pool, fact: Left) -> None:
        """Learn from a finished call about its session, its family and its model."""
        family = self._fleet.families[session.family_id]
        prompt_tokens = fact.usage.prompt_tokens or round(pool.prompt_tokens(turn))
        if fact.usage.prompt_tokens:
            pool.ratio.saw(turn.chars, fact.usage.prompt_tokens)
            family.tokens_per_char = pool.ratio.value
        learning.saw_answer(family, session, prompt_tokens, fact.usage.output_tokens, turn.is_retry)
        learning.saw_tools(family, session, fact.tool_names, fact.tool_s)


def _judge_history(running: RunningTurn, session: Session, family: Family, fact: Left) -> None:
    """Learn whether the history of a session that came with one was cached, once its engine has ever reported a
    cached token."""
    presumed_blocks, session.presumed_blocks = session.presumed_blocks, 0
    cached_tokens, history, pool = fact.usage.cached_tokens, running.turn.history, running.pool
    if history is None or cached_tokens is None or not (cached_tokens or pool.pace.counts_cached):
        return
    least_tokens = pool.tokens(history.last_chars // BLOCK_CHARS - presumed_blocks / 2)
    family.num_unfound = max(0, family.num_unfound + (-1 if cached_tokens >= least_tokens else 1))
