"""What the experiments compare: arms by name, and the figures of one simulated fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from benchmarks.simulation.oracle import RequestCap, SumLedger, session_cap, shortest_first, shortest_in_bounds
from benchmarks.simulation.placement import least_loaded, round_robin
from benchmarks.simulation.router import Ungated
from benchmarks.simulation.simulator import Decider, SimulatedTurn, Simulation, SimulationResult, World
from benchmarks.simulation.workloads import AgentRun
from gateway.cli.demo_fleet import quantile
from policies.admission import Limits
from policies.admission_queue import FAIR
from policies.deadline import EarliestDeadline
from policies.fifo import Fifo
from policies.scheduler import Scheduler
from policies.turns import Turns

ArmFactory: TypeAlias = Callable[[Sequence[AgentRun], World], Decider]
FIFO_REQUESTS = 16
"""The request cap that published clients use."""
BUDGETS = (1.0, 1.25, 1.5)
"""Real peaks that the oracle lets a cache hold, as shares of it; it takes whichever turns out best."""

HOLD_BOUND_S = Limits().hold_bound_s
INFINITE_CACHE = "infinite cache"
"""The straight arm on engines that never evict."""
CAPS = (16, 18, 20, 22, 24, 28)


def _straight(_runs: Sequence[AgentRun], _world: World) -> Decider:
    return Ungated()


def _fifo(_runs: Sequence[AgentRun], _world: World) -> Decider:
    return RequestCap(Scheduler(Fifo(), Limits()), FIFO_REQUESTS)


def _turns(_runs: Sequence[AgentRun], _world: World) -> Decider:
    return Scheduler(Turns(), Limits())


class HoldsNothing(Turns):
    """Orders the turns that wait for a slot."""

    gates_residency = False


def _holds_nothing(_runs: Sequence[AgentRun], _world: World) -> Decider:
    return Scheduler(HoldsNothing(), Limits())


def _deadline(_runs: Sequence[AgentRun], _world: World) -> Decider:
    return Scheduler(EarliestDeadline(), Limits())


def _least_loaded(_runs: Sequence[AgentRun], _world: World) -> Decider:
    return Scheduler(Turns(least_loaded), Limits())


def _round_robin(_runs: Sequence[AgentRun], _world: World) -> Decider:
    return Scheduler(Turns(round_robin), Limits())


def _sum_ledger(runs: Sequence[AgentRun], world: World) -> Decider:
    return SumLedger(_turns(runs, world))


ARMS: Mapping[str, Sequence[ArmFactory]] = {
    "straight": [_straight],
    "fifo": [_fifo],
    "turns": [_turns],
    "holds nothing": [_holds_nothing],
    "deadline": [_deadline],
    "turns, least loaded": [_least_loaded],
    "turns, round robin": [_round_robin],
    "sum ledger": [_sum_ledger],
    "oracle": [partial(shortest_first, budget=budget) for budget in BUDGETS],
    "oracle in bounds": [partial(shortest_in_bounds, budget=budget) for budget in BUDGETS],
    "oracle cap": [partial(session_cap, num_sessions=num) for num in CAPS],
}
"""Several ways to an arm: the one with the least mean completion counts, which is fair to oracles alone."""


@dataclass(frozen=True, slots=True)
class SimulatedFigures:
    """One arm, one fleet; seconds and tokens."""

    makespan_s: float
    mean_session_s: float
    p99_session_s: float
    p99_ttft_first_s: float
    p99_ttft_later_s: float
    max_wait_s: float
    """At the gate."""
    most_of_bound: float
    """Longest wait for a first turn as a share of its bound: HOLD_BOUND_S, or FAIR times the wait that the same
    starts would have meant in the order of arrivals."""
    uncached_tokens: int
    output_tokens_per_s: float
    of_class: Mapping[str, float]
    """Mean completion by class of sessions."""
    ttft_later_of_class_s: Mapping[str, float]
    """Mean over the later turns of a class."""


Measure: TypeAlias = Callable[[SimulatedFigures], float]


def figures(result: SimulationResult, after_s: float = 0.0) -> SimulatedFigures:
    """Of the sessions that arrived after that time; makespan, tokens and throughput are those of all."""
    sessions = [s for s in result.sessions if s.arrived_at >= after_s and not s.is_child]
    counted = {session.id for session in sessions}
    turns = [turn for turn in result.turns if turn.session_id in counted]
    classes: dict[str, list[float]] = {}
    for session in sessions:
        classes.setdefault(session.label, []).append(session.completion_s)
    label_of = {session.id: session.label for session in sessions}
    ttfts_s: dict[str, list[float]] = {}
    for turn in turns:
        if turn.index > 0:
            ttfts_s.setdefault(label_of[turn.session_id], []).append(turn.ttft_s)
    completions_s = [session.completion_s for session in sessions]
    return SimulatedFigures(
        makespan_s=result.makespan_s,
        mean_session_s=_mean(completions_s),
        p99_session_s=quantile(completions_s, 0.99),
        p99_ttft_first_s=quantile([turn.ttft_s for turn in turns if turn.index == 0], 0.99),
        p99_ttft_later_s=quantile([turn.ttft_s for turn in turns if turn.index > 0] or [0.0], 0.99),
        max_wait_s=max(turn.dispatched_at - turn.wanted_at for turn in turns),
        most_of_bound=_most_of_bound([turn for turn in turns if turn.index == 0]),
        uncached_tokens=result.uncached_tokens,
        output_tokens_per_s=sum(turn.output_tokens for turn in result.turns) / result.makespan_s,
        of_class={label: _mean(values) for label, values in sorted(classes.items())},
        ttft_later_of_class_s={label: _mean(values) for label, values in sorted(ttfts_s.items())},
    )


def _most_of_bound(first: Sequence[SimulatedTurn]) -> float:
    in_order = sorted(first, key=lambda turn: turn.wanted_at)
    starts = sorted(turn.dispatched_at for turn in first)
    return max(
        (turn.dispatched_at - turn.wanted_at) / max(HOLD_BOUND_S, FAIR * (start - turn.wanted_at))
        for turn, start in zip(in_order, starts, strict=True)
    )


def play(
    arm: str, runs: Sequence[AgentRun], world: World, num_at_once: int | None = None, after_s: float = 0.0
) -> SimulatedFigures:
    """One simulation, or the best of several for an oracle."""
    if arm == INFINITE_CACHE:
        arm, world = "straight", replace(world, spec=replace(world.spec, num_blocks=1 << 30))
    ways = [figures(Simulation(make(runs, world), world).run(runs, num_at_once), after_s) for make in ARMS[arm]]
    return min(ways, key=lambda one: one.mean_session_s)


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One point of a sweep: a fleet for each seed, in one world."""

    draw: Callable[[int], Sequence[AgentRun]]
    world: World
    num_at_once: int | None = None
    """Closed loop of that many; None: open."""
    after_s: float = 0.0


Sweep: TypeAlias = Mapping[str, Sequence[Sequence[SimulatedFigures]]]
"""Arm -> for each cell the figures of every seed."""


def sweep(arms: Sequence[str], cells: Sequence[SweepCell], seeds: Sequence[int]) -> Sweep:
    """Every arm plays the same fleets."""
    fleets = [[cell.draw(seed) for seed in seeds] for cell in cells]
    return {
        arm: [
            [play(arm, runs, cell.world, cell.num_at_once, cell.after_s) for runs in drawn]
            for cell, drawn in zip(cells, fleets, strict=True)
        ]
        for arm in arms
    }


def mean(runs: Sequence[SimulatedFigures], of: Measure) -> float:
    return _mean(list(map(of, runs)))


def ratio(ours: Sequence[SimulatedFigures], base: Sequence[SimulatedFigures], of: Measure) -> float:
    """Of sums over the seeds."""
    return sum(map(of, ours)) / sum(map(of, base))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def makespan_s(figures: SimulatedFigures) -> float:
    return figures.makespan_s


def session_s(figures: SimulatedFigures) -> float:
    return figures.mean_session_s


def p99_session_s(figures: SimulatedFigures) -> float:
    return figures.p99_session_s


def p99_ttft_later_s(figures: SimulatedFigures) -> float:
    return figures.p99_ttft_later_s


def uncached(figures: SimulatedFigures) -> float:
    return figures.uncached_tokens


def throughput(figures: SimulatedFigures) -> float:
    return figures.output_tokens_per_s
