"""Laws of the gate of a pool that opens and closes: each change is announced once."""

from __future__ import annotations

from benchmarks.simulation.fleets import FLEETS
from benchmarks.simulation.simulator import Simulation
from policies.admission import Limits
from policies.fleet import GateState
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import Decision, Fact, Switched


class Watching(Scheduler):
    """Collects what it announces beside what its view shows."""

    def __init__(self) -> None:
        super().__init__(Turns(), Limits())
        self.announced: list[Switched] = []
        self.shown = [GateState.HOLDS]

    def tell(self, fact: Fact, now: float) -> tuple[list[Decision], float | None]:
        told = super().tell(fact, now)
        self.announced += (decision for decision in told[0] if isinstance(decision, Switched))
        for replica in self.view(counts_sessions=False).replicas:
            if replica.gate is not self.shown[-1]:
                self.shown.append(replica.gate)
        return told


def test_each_change_of_a_gate_is_announced_once() -> None:
    fleet, scheduler = FLEETS["slow"], Watching()
    Simulation(scheduler, fleet.world).run(fleet.draw(1))
    states = [GateState.OPEN if one.is_open else GateState.HOLDS for one in scheduler.announced]
    assert states
    assert [GateState.HOLDS, *states] == scheduler.shown
