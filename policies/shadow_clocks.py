"""The ledger of time of a fleet: what its gate costs and saves against no gate, in seconds of sessions.

A shadow clock per session tells when it would stand where it is now without a gate. Each turn that ends moves the
clock on by the session's own tool time, and by the time that a turn takes without a gate: n / X - E[g], by the
fluid model (`throughput.py`), with the n sessions that live at that time of their clocks, and the sizes that they
have then. The gate saved that time less the one that the turn took at its engine, and cost the turn's wait for
residency. So saved less held is the session's end without a gate less its real end.

Where all contexts of the shadow fit, a turn takes as long as it really took. While the gate is open, the model
gives a factor: the time of a turn among the sessions of the shadow over that among the real ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TypeAlias

from policies.fleet import Fleet, Pool
from policies.forecast import append_tokens, output_tokens
from policies.gate_time import GateTime
from policies.idle import Timers
from policies.throughput import FEWEST_GAPS, Load, means_kept_s, turns_per_s
from policies.types import Family, FamilyId, Session, SessionId, Turn

NEAR_STEP_S = 3.0
"""Of the clocks, for which turns count as equally long for a while."""
FINE = 8
"""Parts of a factor e, and of the tokens of a turn, that count as equal."""
LEAST_TURN_S, MOST_TURN_S = 1e-3, 600.0
"""A turn takes no longer without a gate: clients have given up by then."""
MODELLED = 0.93
"""Part of the modelled time that a turn takes without a gate, fitted to simulated fleets
(`benchmarks/simulation/results/ledger.md`): their sessions begin together, and fill the pool only later."""

# ---- who lives at a time of the clocks

STEP_S = 2.0
MOST_STEPS = 512
"""Of the times that differ; what happened earlier counts as before all of them."""


Sums: TypeAlias = tuple[float, float]
"""(sessions, tokens that they hold)."""


class Population:
    """Sums over the sessions that live at a time of the clocks."""

    def __init__(self) -> None:
        self._first = 0
        self._nums, self._tokens = [0.0], [0.0]
        """Changes by step."""
        self.now: Sums = (0.0, 0.0)
        """Of all changes: of the sessions that really live."""

    def change(self, at: float, num: int, own_tokens: float) -> None:
        """Change the sums from that time on."""
        before, own_before = self.now
        self.now = before + num, own_before + own_tokens
        index = int(at / STEP_S) - self._first
        if index >= len(self._nums):
            index = self._reach(index)
        elif index < 0:
            index = 0
        self._nums[index] += num
        self._tokens[index] += own_tokens

    def at(self, at: float) -> Sums:
        end = max(1, int(at / STEP_S) + 1 - self._first)
        num, own_tokens = self.now  # most clocks are near the last step, and few steps are behind them
        return num - sum(self._nums[end:]), own_tokens - sum(self._tokens[end:])

    def _reach(self, index: int) -> int:
        """Make the step at an index the latest one; return its new index."""
        extra = max(0, index + 1 - MOST_STEPS)
        self._first += extra
        for changes in (self._nums, self._tokens):
            changes[: extra + 1] = [sum(changes[: extra + 1])]
            changes.extend([0.0] * (index + 1 - extra - len(changes)))
        return index - extra


def modelled_s(load: Load, pool: Pool, now: float) -> float:
    """Return how long a turn takes beside so many, without a gate, and above 0. The pool must have seen a gap."""
    key = int(FINE * log(load.num_sessions)), int(FINE * log(load.own_tokens))
    known_s = pool.gate_time.known(now).get(key)
    if known_s is None:
        means_s = means_kept_s(pool.pace.gaps.ordered)
        turn_s = load.num_sessions / turns_per_s(load.num_sessions, load, pool.pace, means_s) - means_s[-1]
        known_s = MODELLED * min(MOST_TURN_S, max(LEAST_TURN_S, turn_s))
        pool.gate_time.known(now)[key] = known_s
    return known_s


def mean_gap_s(pool: Pool) -> float:
    gaps_s = pool.pace.gaps.ordered
    return sum(gaps_s) / len(gaps_s)


# ---- the clocks


@dataclass(slots=True)
class Clock:
    """The shadow of one session."""

    at: float
    """When it would have begun its turn, or ended its last one, without a gate."""
    family_id: FamilyId
    shared_chars: int
    """Of its prompts: those of its family."""
    own_tokens: float = 0.0
    lost_tokens: float = 0.0
    wanted_at: float = 0.0
    ready_at: float = 0.0
    """When its turn came, and when it had residency, really."""
    is_over: bool = True
    """Whether it counts as ended."""
    met: Sums = (0.0, 0.0)
    """Of the real sessions when its turn came."""
    time: GateTime | None = None
    """Of the pool of its last turn."""
    child: tuple[float, float] | None = None
    """When its sub-agent's last turn ended: by the clock, and really."""


class Clocks:
    """Owns the clocks of the sessions of a fleet. Written by the Scheduler."""

    def __init__(self, fleet: Fleet, counts: bool) -> None:
        """`counts`: whether there is a gate to count for."""
        self._fleet, self._counts = fleet, counts
        self.quiet = Timers()
        """When to call `expire`."""
        self._clocks: dict[SessionId, Clock] = {}
        self._population = Population()
        self._families: dict[FamilyId, tuple[int, int, float]] = {}
        """Living sessions of each, the length of their shared prefix, and its part of a pool: as many of the pools
        have it as its sessions are at."""
        self._firsts: dict[FamilyId, Clock] = {}
        """Sessions whose family has shown no shared prefix so far."""
        self._shared_chars = 0.0
        self._lost_tokens = 0.0
        """That evictions would cost the turns of all living sessions."""

    def began(self, session: Session, shared_chars: int, parent: Session | None, now: float) -> None:
        """The first turn of a session came. A sub-agent begins by the clock of its parent."""
        if not self._counts:
            return
        if session.id in self._clocks:
            self.forget(session.id)
        clock = self._clocks[session.id] = Clock(now, session.family_id, shared_chars)
        if not shared_chars:
            self._firsts.setdefault(session.family_id, clock)
        elif (first := self._firsts.pop(session.family_id, None)) is not None:
            self._share_prefix(first, shared_chars)
        above = None if parent is None else self._clocks.get(parent.id)
        if parent is not None and above is not None:
            clock.at = above.at + max(0.0, now - parent.idle_since)

    def _share_prefix(self, clock: Clock, shared_chars: int) -> None:
        """What the first session of a family has in common with the second one is not its own either."""
        own_tokens, lost_tokens = clock.own_tokens, clock.lost_tokens
        shared_tokens = shared_chars * self._fleet.families[clock.family_id].tokens_per_char
        clock.shared_chars = shared_chars
        clock.own_tokens = max(0.0, own_tokens - shared_tokens)
        clock.lost_tokens = max(0.0, lost_tokens - shared_tokens)
        if not clock.is_over:
            self._population.change(clock.at, 0, clock.own_tokens - own_tokens)
            self._lost_tokens += clock.lost_tokens - lost_tokens

    def came_back(self, session: Session, now: float) -> None:
        """An idle session sends a turn; it may have waited for sub-agents."""
        clock = self._clocks.get(session.id)
        if clock is None:
            return
        gap_s = now - session.idle_since
        if clock.child is not None and clock.child[1] >= session.idle_since:
            child_at, child_ended_at = clock.child
            shadow_s = max(gap_s, child_at + now - child_ended_at - clock.at)
            if clock.time is not None:
                clock.time.saw_turn(0.0, shadow_s - gap_s, now)
            gap_s = shadow_s
        clock.at, clock.child = clock.at + gap_s, None

    def wants(self, session: Session, family: Family, turn: Turn, now: float) -> None:
        """A turn came."""
        clock = self._clocks.get(session.id)
        if clock is None:
            return
        ratio, num = family.tokens_per_char, 0
        _, prefix_chars, _ = self._families.get(clock.family_id, (0, clock.shared_chars, 0.0))
        lost_tokens = session.prompt_tokens - min(clock.shared_chars, prefix_chars) * ratio
        lost_tokens = lost_tokens if lost_tokens > 0.0 else 0.0
        own_chars = turn.chars - clock.shared_chars
        own_tokens = (own_chars * ratio if own_chars > 0 else 0.0) + output_tokens(family)
        if clock.is_over:
            clock.own_tokens, clock.lost_tokens, clock.is_over, num = 0.0, 0.0, False, 1
            self._count(clock, 1)
        self._population.change(clock.at, num, own_tokens - clock.own_tokens)
        self._lost_tokens += lost_tokens - clock.lost_tokens
        clock.own_tokens, clock.lost_tokens = own_tokens, lost_tokens
        clock.wanted_at = clock.ready_at = now
        clock.met = self._population.now

    def ready(self, session_id: SessionId, now: float) -> None:
        """The turn of a session waits for residency no longer."""
        if (clock := self._clocks.get(session_id)) is not None:
            clock.ready_at = now

    def finished(self, turn: Turn, now: float) -> None:
        """A turn of a session is complete."""
        session = self._fleet.sessions[turn.session_id]
        clock, pool = self._clocks.get(session.id), self._fleet.pools.get(session.replica_id or "")
        if clock is None or pool is None:
            return
        turn_s = now - clock.ready_at
        near_s, step = pool.gate_time.near(now), int(clock.at / NEAR_STEP_S)
        shadow_s = near_s.get(step)
        if (
            shadow_s is None
            and len(pool.pace.gaps) >= FEWEST_GAPS
            and (shadow := self._load(self._population.at(clock.at), pool, turn)) is not None
        ):
            shadow_s = near_s[step] = modelled_s(shadow, pool, now)
        if shadow_s is None:
            shadow_s = turn_s
        elif pool.switch.is_open and not self._fleet.tenants.are_rivals:
            real = self._load(clock.met, pool, turn)
            shadow_s = turn_s if real is None else turn_s * shadow_s / modelled_s(real, pool, now)
        clock.at += shadow_s
        clock.time = pool.gate_time
        clock.time.saw_turn(clock.ready_at - clock.wanted_at, shadow_s - turn_s, now)
        if (parent := self._clocks.get(session.parent_id or "")) is not None:
            parent.child = clock.at, now

    def _load(self, sums: Sums, pool: Pool, turn: Turn) -> Load | None:
        """Return the sessions of the turn's pool; None where they fit, or nothing is known."""
        num, own_tokens = sums
        size_tokens = pool.capacity.tokens
        if size_tokens is None or num < 1 or len(pool.pace.gaps) < FEWEST_GAPS:
            return None
        if len(self._fleet.pools) > 1:
            part = 1 / max(1, len(self._fleet.eligible(turn)))
            num, own_tokens = part * num, part * own_tokens
        room_tokens = size_tokens - self._shared_chars * pool.ratio.value
        if own_tokens <= room_tokens:
            return None
        lost_part = self._lost_tokens / max(1.0, self._population.now[1])
        own_tokens /= num
        turn_tokens = append_tokens(self._fleet.families[turn.family_id])
        return Load(num, own_tokens, turn_tokens, lost_part * own_tokens, max(own_tokens, room_tokens))

    def ended(self, session_id: SessionId) -> None:
        """The session counts as ended until it comes back."""
        clock = self._clocks.get(session_id)
        if clock is not None and not clock.is_over:
            self._population.change(clock.at, -1, -clock.own_tokens)
            self._lost_tokens -= clock.lost_tokens
            self._count(clock, -1)
            clock.is_over = True

    def expire(self, now: float) -> None:
        """The time of a timer has come."""

    def forget(self, session_id: SessionId) -> None:
        self.ended(session_id)
        clock = self._clocks.pop(session_id, None)
        if clock is not None and self._firsts.get(clock.family_id) is clock:
            del self._firsts[clock.family_id]

    def _count(self, clock: Clock, num: int) -> None:
        """Count the living sessions of a family; its prefix takes room while there is one."""
        before, chars, part_chars = self._families.pop(clock.family_id, (0, 0, 0.0))
        self._shared_chars -= part_chars
        if (num_living := before + num) > 0:
            chars = min(chars, clock.shared_chars) or chars or clock.shared_chars
            part_chars = chars * (1 - (1 - 1 / max(1, len(self._fleet.pools))) ** num_living)
            self._families[clock.family_id] = num_living, chars, part_chars
            self._shared_chars += part_chars
