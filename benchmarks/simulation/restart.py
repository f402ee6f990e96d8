"""The experiment on a gateway that is restarted in mid-fleet: what its forgetting costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.simulation.arms import ArmFactory
from benchmarks.simulation.fleets import FLEETS
from benchmarks.simulation.report import Bar, Outcome
from benchmarks.simulation.router import Ungated
from benchmarks.simulation.simulator import Restart, Simulation, SimulationResult, World
from benchmarks.simulation.workloads import AgentRun
from policies.admission import Limits
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import History

NAMES = ("base", "n80")
SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85)
"""Of the makespan without a restart: when the gateway is restarted."""
MOST = 1.05
COMPARED = ("replaced: turns", "killed: turns", "killed: straight")


class Unread(Simulation):
    """Its gateway does not read histories: a session that comes for the first time is new."""

    def _history(self, run: AgentRun, index: int) -> History | None:
        return None


@dataclass(frozen=True, slots=True)
class RestartFigures:
    """Makespan and mean completion with a restart, as parts of those without: by SHARES, then over all."""

    makespans: Sequence[float]
    means: Sequence[float]
    makespan: float
    mean: float


def restart(seeds: Sequence[int]) -> Outcome:
    """Both ways to restart, with histories and without, beside a proxy that has no memory to lose."""
    ways: dict[str, tuple[type[Simulation], ArmFactory, bool]] = {
        "turns": (Simulation, lambda _runs, _world: Scheduler(Turns(), Limits()), False),
        "turns, lessons kept": (Simulation, lambda _runs, _world: Scheduler(Turns(), Limits()), True),
        "turns, histories not read": (Unread, lambda _runs, _world: Scheduler(Turns(), Limits()), False),
        "straight": (Simulation, lambda _runs, _world: Ungated(), False),
    }
    found = {
        f"{name}, {'killed' if is_killed else 'replaced'}: {way}": _measured(
            FLEETS[name].world, [FLEETS[name].draw(seed) for seed in seeds], *ways[way], is_killed
        )
        for name in NAMES
        for is_killed in (False, True)
        for way in ways
    }
    return Outcome(
        "The gateway is restarted at a tenth, a quarter, ... of the fleet's makespan. Makespan / mean "
        "completion are parts of those without a restart, summed over the seeds. *Replaced*: as in a "
        "rolling update the new gateway is up before, and the old one ends the turns that run. *Killed*: it"
        " is back after 1 s, all open calls die, and SDKs send them again; turns that ran are computed "
        "again, which costs a proxy without memory (straight) as much. *Lessons kept*: the new one reads what the"
        " old one has learned (`learned_file`).",
        ["fleet", "all", *(f"at {share:g}" for share in SHARES)],
        [
            [name, _pair(one.makespan, one.mean), *map(_pair, one.makespans, one.means)]
            for name, one in found.items()
        ],
        found,
        _bars(found),
    )


def _bars(found: Mapping[str, RestartFigures]) -> list[Bar]:
    bars = []
    for name in NAMES:
        replaced, killed, base = (found[f"{name}, {way}"] for way in COMPARED)
        bars += [
            Bar(f"{name}, replaced: makespan", replaced.makespan, most=MOST),
            Bar(f"{name}, replaced: mean", replaced.mean, most=MOST),
            Bar(f"{name}, killed: makespan, over straight", killed.makespan / base.makespan, most=MOST),
            Bar(f"{name}, killed: mean, over straight", killed.mean / base.mean, most=MOST),
        ]
    return bars


def _measured(
    world: World,
    fleets: Sequence[Sequence[AgentRun]],
    simulation: type[Simulation],
    make: ArmFactory,
    keeps_lessons: bool,
    is_killed: bool,
) -> RestartFigures:
    whole = [simulation(make(runs, world), world).run(runs) for runs in fleets]
    makespans, means = [], []
    for share in SHARES:
        results = [
            simulation(
                make(runs, world),
                world,
                Restart(
                    share * base.makespan_s,
                    lambda runs=runs: make(runs, world),  # type: ignore[misc]
                    is_killed,
                    keeps_lessons,
                ),
            ).run(runs)
            for runs, base in zip(fleets, whole, strict=True)
        ]
        makespans.append(_makespan_s(results) / _makespan_s(whole))
        means.append(_mean_s(results) / _mean_s(whole))
    num = len(SHARES)
    return RestartFigures(makespans, means, sum(makespans) / num, sum(means) / num)


def _makespan_s(results: Sequence[SimulationResult]) -> float:
    return sum(result.makespan_s for result in results)


def _mean_s(results: Sequence[SimulationResult]) -> float:
    return sum(result.mean_session_s for result in results)


def _pair(makespan: float, mean: float) -> str:
    return f"{makespan:.3f} / {mean:.3f}"
