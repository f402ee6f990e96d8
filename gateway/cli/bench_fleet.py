"""The fleet that `turngate bench` plays: one that fits the engine's pool and speed, or that of a log of facts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gateway.cli.demo_fleet import FleetShape, PlannedSession, PlannedTurn, draw
from gateway.telemetry.factlog import Header
from policies.types import BLOCK_CHARS, Arrived, Blocks, Decision, Ending, Fact, Left, Turn, TurnId, TurnKind

OVERCOMMIT = 2.1
"""Contexts of the fleet at their largest, as a part of the pool: about half of the agents fit at once, as in the
fleet `base` of benchmarks/fleet."""
POOL_SHARE = 0.01
"""Of the pool: a tool's result, and a task. The shared prefix is five times as long. So 40 to 50 agents come."""
SHARED_UNITS = 5
OUTPUT_TOKENS = (72, 168)
MOST_OUTPUT_SHARE = 0.42
"""Of a tool's result: the longest answer. It bears on small pools."""
TURN_COUNTS = (4, 3, 2)
CONTEXT_SHARE = 0.9
"""Of the engine's context length that a session may fill."""
CACHED_SHARE = 0.5
"""Of the prompts that an engine beyond its cache finds again: a guess for the time that a run takes."""
GAP_S = (0.3, 0.8)
LEAST_TOKENS = 16


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """What one call at a time showed."""

    chars_per_token: float
    prefill_token_s: float
    decode_token_s: float

    def run_s(self, sessions: Sequence[PlannedSession]) -> float:
        """Return about how long the sessions take where contexts outgrow the cache."""
        turns = [turn for session in sessions for turn in session.turns]
        prefill_s = (1 - CACHED_SHARE) * sum(turn.prompt_tokens for turn in turns) * self.prefill_token_s
        longest_s = max(
            sum(turn.output_tokens * self.decode_token_s + turn.gap_s for turn in session.turns)
            for session in sessions
        )
        return prefill_s + longest_s + max(session.arrives_at for session in sessions)


@dataclass(frozen=True, slots=True)
class BenchFleet:
    sessions: tuple[PlannedSession, ...]
    """Of the first repeat."""
    shape: FleetShape | None = None
    """From which other repeats draw their sessions. None: all repeats play the same ones."""

    def of(self, repeat: int, edition: str) -> list[PlannedSession]:
        """Return the sessions of a run. Texts of two editions share nothing, so that no run finds those of
        another in the cache."""
        sessions = self.sessions if self.shape is None or not repeat else draw(self.shape, seed=repeat + 1)
        return [replace(one, id=f"{one.id} {edition}", family_id=f"{one.family_id} {edition}") for one in sessions]

    @property
    def num_turns(self) -> int:
        return sum(len(session.turns) for session in self.sessions)

    @property
    def peak_tokens(self) -> int:
        """All contexts at their largest, the prefix of a family counted once."""
        shared = {session.family_id: session.shared_tokens for session in self.sessions}
        own = (_largest_tokens(session) - session.shared_tokens for session in self.sessions)
        return sum(shared.values()) + sum(own)

    def __str__(self) -> str:
        num_families = len({session.family_id for session in self.sessions})
        shared = sum(session.shared_tokens for session in self.sessions) / len(self.sessions)
        prefix = "one shared prefix" if num_families == 1 else f"{num_families} families with a shared prefix"
        return (
            f"{len(self.sessions)} agents, {self.num_turns} turns, {prefix} of {shared:,.0f} tokens; together "
            f"their contexts grow to {self.peak_tokens:,} tokens"
        )


def _largest_tokens(session: PlannedSession) -> int:
    return max(turn.prompt_tokens + turn.output_tokens for turn in session.turns)


# ---- a fleet of the size of the pool


def fleet_of_pool(
    pool_tokens: int,
    context_tokens: int | None,
    speed: EngineSpeed,
    num_agents: int | None,
    sought_run_s: float,
    most_run_s: float,
) -> BenchFleet:
    """Return a fleet whose contexts grow to twice the pool, or one of so many agents of that size.

    It has fewer turns where a run would take longer than `sought_run_s`. Raises RuntimeError where one of the
    fewest would take longer than `most_run_s`."""
    for num_turns in TURN_COUNTS:
        shape = _shape(pool_tokens, context_tokens, num_agents, num_turns)
        sessions = tuple(draw(shape, seed=1))
        run_s = speed.run_s(sessions)
        if run_s <= (most_run_s if num_turns == TURN_COUNTS[-1] else sought_run_s):
            return BenchFleet(sessions, shape)
    raise RuntimeError(
        f"one run would take about {run_s:,.0f} s, as the engine computes {1 / speed.prefill_token_s:,.0f} tokens "
        f"of prompts per second and its pool has {pool_tokens:,}: give it more --minutes, or fewer --agents"
    )


def _shape(pool_tokens: int, context_tokens: int | None, num_agents: int | None, num_turns: int) -> FleetShape:
    """Return the shape whose sessions have the same size at their end with any number of turns."""
    unit = POOL_SHARE * pool_tokens
    if context_tokens is not None:
        largest = SHARED_UNITS + TURN_COUNTS[0] * (1 + MOST_OUTPUT_SHARE)
        unit = min(unit, CONTEXT_SHARE * context_tokens / largest)
    unit = max(LEAST_TOKENS, unit)
    most_output = max(2, min(OUTPUT_TOKENS[1], round(MOST_OUTPUT_SHARE * unit)))
    least_output = max(1, round(most_output * OUTPUT_TOKENS[0] / OUTPUT_TOKENS[1]))
    own_tokens = TURN_COUNTS[0] * unit + num_turns * (least_output + most_output) / 2
    usual = max(1, math.ceil((OVERCOMMIT * pool_tokens - SHARED_UNITS * unit) / own_tokens))
    append_tokens = round(unit * TURN_COUNTS[0] / num_turns)
    return FleetShape(
        num_sessions=num_agents or usual,
        lengths=(num_turns,),
        shared_tokens=round(SHARED_UNITS * unit),
        first_tokens=append_tokens,
        append_tokens=append_tokens,
        output_tokens=(least_output, most_output),
        gap_s=GAP_S,
    )


# ---- the fleet of a log of facts


@dataclass(frozen=True, slots=True)
class _LoggedTurn:
    turn: Turn
    ended_at: float
    prompt_tokens: int
    output_tokens: int


def fleet_of_facts(log: Iterable[Header | tuple[float, Fact, list[Decision]]], window_s: float) -> BenchFleet:
    """Return the sessions of a log in its busiest `window_s` seconds, from the last start of the gateway in it:
    their times of arrival, sizes, answers and pauses. A session that had begun before comes with its whole prompt.

    Side requests, and turns without an answer, are left out. Raises ValueError where nothing is left."""
    turns = _answered(log)
    if not turns:
        raise ValueError("it has no answered turn of an agent since the last start of its gateway")
    begins_at = _busiest(turns, window_s)
    of_session: dict[str, list[_LoggedTurn]] = defaultdict(list)
    for one in turns:
        if begins_at <= one.turn.arrived_at < begins_at + window_s:
            of_session[one.turn.session_id].append(one)
    prefixes = _prefixes([own[0] for own in of_session.values()])
    sessions = [
        _planned(own, prefixes[own[0].turn.family_id], own[0].turn.arrived_at - begins_at)
        for own in of_session.values()
    ]
    return BenchFleet(tuple(sorted(sessions, key=lambda session: session.arrives_at)))


def _answered(log: Iterable[Header | tuple[float, Fact, list[Decision]]]) -> list[_LoggedTurn]:
    """Return the turns that were answered, in order of arrival."""
    turns: list[_LoggedTurn] = []
    open_turns: dict[TurnId, Turn] = {}
    for line in log:
        if isinstance(line, Header):
            turns, open_turns = [], {}
            continue
        now, fact, _ = line
        if isinstance(fact, Arrived) and fact.turn.kind is not TurnKind.SIDE:
            open_turns[fact.turn.id] = fact.turn
        elif isinstance(fact, Left) and (turn := open_turns.pop(fact.turn_id, None)) is not None:
            usage = fact.usage
            if fact.ending is Ending.COMPLETE and usage.prompt_tokens:
                turns.append(_LoggedTurn(turn, now, usage.prompt_tokens, max(1, usage.output_tokens or 1)))
    return sorted(turns, key=lambda one: one.turn.arrived_at)


def _busiest(turns: Sequence[_LoggedTurn], window_s: float) -> float:
    """Return the start of the window with the most tokens of prompts."""
    best_at, most, tokens, end = turns[0].turn.arrived_at, 0, 0, 0
    for one in turns:
        while end < len(turns) and turns[end].turn.arrived_at < one.turn.arrived_at + window_s:
            tokens += turns[end].prompt_tokens
            end += 1
        if tokens > most:
            best_at, most = one.turn.arrived_at, tokens
        tokens -= one.prompt_tokens
    return best_at


def _prefixes(firsts: Sequence[_LoggedTurn]) -> dict[str, int]:
    """Return the tokens that the first prompts of each family share."""
    of_family: dict[str, list[_LoggedTurn]] = defaultdict(list)
    for one in firsts:
        of_family[one.turn.family_id].append(one)
    found = {}
    for family_id, own in of_family.items():
        num_blocks = 0 if len(own) == 1 else min(_shared_blocks(own[0], one) for one in own[1:])
        first = own[0]
        tokens = num_blocks * BLOCK_CHARS * first.prompt_tokens / max(1, first.turn.chars)
        found[family_id] = max(LEAST_TOKENS, round(tokens))
    return found


def _shared_blocks(one: _LoggedTurn, other: _LoggedTurn) -> int:
    mine: Blocks = one.turn.blocks
    pairs = zip(mine, other.turn.blocks, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(other.turn.blocks)))


def _planned(own: Sequence[_LoggedTurn], shared_tokens: int, arrives_at: float) -> PlannedSession:
    turns = []
    for one, following in zip(own, [*own[1:], None], strict=True):
        gap_s = 0.0 if following is None else max(0.0, following.turn.arrived_at - one.ended_at)
        turns.append(PlannedTurn(max(LEAST_TOKENS, one.prompt_tokens), one.output_tokens, gap_s))
    first = own[0].turn
    shared_tokens = min(shared_tokens, turns[0].prompt_tokens)
    return PlannedSession(first.session_id, first.family_id, arrives_at, shared_tokens, tuple(turns))
