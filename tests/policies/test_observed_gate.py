"""Laws of `observe`: it foresees what the gate would save, and changes nothing."""

from __future__ import annotations

import pytest

from benchmarks.simulation.fleets import FLEETS
from benchmarks.simulation.gate_ledger import AFTERWARDS, of_fleet
from benchmarks.simulation.simulator import Simulation, SimulationResult
from policies.admission import Limits
from policies.fifo import Observe, Passthrough
from policies.policy import Policy
from policies.scheduler import Scheduler
from policies.types import SessionForgotten, Tick


@pytest.mark.parametrize("name", ["base", "n80"])
def test_it_foresees_what_the_gate_saves(name: str) -> None:
    assert of_fleet(FLEETS[name], [1]).foreseen_error <= 0.4


def played(name: str, policy: Policy) -> tuple[Scheduler, SimulationResult]:
    fleet = FLEETS[name]
    scheduler = Scheduler(policy, Limits())
    return scheduler, Simulation(scheduler, fleet.world).run(fleet.draw(1))


@pytest.mark.parametrize("name", ["base", "w4", "fam4hi", "sub"])
def test_it_dispatches_as_passthrough_does(name: str) -> None:
    observed, passed = (played(name, policy)[1] for policy in (Observe(), Passthrough()))
    assert [(one.session_id, one.index, one.replica_id) for one in observed.turns] == [
        (one.session_id, one.index, one.replica_id) for one in passed.turns
    ]
    for one, other in zip(observed.turns, passed.turns, strict=True):
        assert one.dispatched_at == one.wanted_at == pytest.approx(other.dispatched_at)


@pytest.mark.parametrize("name", ["ctl", "slow", "pauses"])
def test_where_a_gate_would_be_open_it_would_save_little(name: str) -> None:
    found = of_fleet(FLEETS[name], [1])
    assert abs(found.foreseen_s) <= 0.03 * found.straight_s


def test_other_policies_without_a_gate_count_nothing() -> None:
    scheduler, _ = played("base", Passthrough())
    [replica] = scheduler.view().replicas
    assert replica.gate_held_s == replica.gate_saved_s == 0.0


def test_sessions_count_once_and_leave_nothing_when_they_are_forgotten() -> None:
    scheduler, result = played("base", Observe())
    scheduler.tell(Tick(), AFTERWARDS)
    saved_s = scheduler.view().replicas[0].gate_saved_s
    for session in result.sessions:
        scheduler.tell(SessionForgotten(session.id), AFTERWARDS)
    assert scheduler.view().replicas[0].gate_saved_s == saved_s > 0.0
    clocks = scheduler._clocks
    assert not clocks._clocks
    assert not getattr(clocks, "_stays")  # noqa: B009
