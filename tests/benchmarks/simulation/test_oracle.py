"""Laws of the oracles and bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulation.arms import figures
from benchmarks.simulation.oracle import (
    SumLedger,
    floor_tokens,
    makespan_bound_s,
    session_cap,
    shortest_first,
    shortest_in_bounds,
)
from benchmarks.simulation.simulator import Simulation, World
from benchmarks.simulation.workloads import BOUNDED, HEAVY, mixed, plain
from gateway.cli.demo_fleet import FleetShape
from gateway.embedded.model import EngineSpec
from policies.admission import Limits
from policies.fifo import Passthrough
from policies.scheduler import Scheduler
from policies.turns import Turns

WORLD = World(EngineSpec(2_500))
BASE = plain(FleetShape(40), 1)


def test_an_infinite_cache_computes_the_floor() -> None:
    roomy = World(EngineSpec(1_000_000))
    computed = Simulation(Scheduler(Passthrough(), Limits()), roomy).run(BASE).uncached_tokens
    rounding = sum(len(run.calls) for run in BASE) * roomy.spec.block_tokens
    assert floor_tokens(BASE) <= computed <= floor_tokens(BASE) + rounding


def test_bounds_agree_with_those_that_were_worked_out_for_the_base_fleet() -> None:
    assert makespan_bound_s(BASE, WORLD) == pytest.approx(28.3, rel=0.05)
    assert makespan_bound_s(BASE, WORLD, at_peaks=True) == pytest.approx(34.1, rel=0.05)


def test_no_arm_beats_the_bound() -> None:
    bound_s = makespan_bound_s(BASE, WORLD)
    for arm in (
        Scheduler(Passthrough(), Limits()),
        Scheduler(Turns(), Limits()),
        session_cap(BASE, WORLD, 20),
        shortest_first(BASE, WORLD, 1.25),
    ):
        assert Simulation(arm, WORLD).run(BASE).makespan_s > bound_s


def test_a_session_cap_holds() -> None:
    result = Simulation(session_cap(BASE, WORLD, 7), WORLD).run(BASE)
    began = {turn.session_id: turn.dispatched_at for turn in result.turns if turn.index == 0}
    changes = [(at, 1) for at in began.values()] + [(session.done_at, -1) for session in result.sessions]
    at_once = most = 0
    for _, change in sorted(changes):
        at_once += change
        most = max(most, at_once)
    assert most == 7


def test_the_oracle_that_fits_peaks_never_evicts_what_is_needed_again() -> None:
    result = Simulation(shortest_first(BASE, WORLD, 1.0), WORLD).run(BASE)
    assert result.uncached_tokens <= floor_tokens(BASE) * 1.05


def test_a_sum_ledger_admits_fewer_siblings() -> None:
    def admitted_at_once(ledger: Scheduler | SumLedger) -> int:
        result = Simulation(ledger, replace(WORLD, sample_chars_per_token=4.0)).run(BASE)
        return sum(turn.dispatched_at == 0.0 for turn in result.turns)

    union = admitted_at_once(Scheduler(Turns(), Limits()))
    assert admitted_at_once(SumLedger(Scheduler(Turns(), Limits()))) < union


def test_the_oracle_in_bounds_lets_nobody_starve() -> None:
    runs, world = mixed((BOUNDED, HEAVY), 150, 1, 1.2, 0.1), World(EngineSpec(2_500))
    most = [
        figures(Simulation(make(runs, world, 1.25), world).run(runs)).most_of_bound
        for make in (shortest_first, shortest_in_bounds)
    ]
    assert most[0] > 3.0
    assert most[1] < 2.0
