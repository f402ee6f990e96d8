"""Laws of the arms: each plays the same fleets, and figures are those of the sessions that count."""

from __future__ import annotations

from functools import partial

from benchmarks.simulation.arms import ARMS, INFINITE_CACHE, SweepCell, ratio, session_s, sweep, uncached
from benchmarks.simulation.simulator import World
from benchmarks.simulation.workloads import BOUNDED, mixed, plain
from gateway.cli.demo_fleet import FleetShape
from gateway.embedded.model import EngineSpec

SMALL = World(EngineSpec(600))


def test_every_arm_plays_the_same_fleets_to_their_end() -> None:
    arms = [*ARMS, INFINITE_CACHE]
    found = sweep(arms, [SweepCell(partial(plain, FleetShape(12, (2, 3))), SMALL)], [1, 2])
    for arm in arms:
        (runs,) = found[arm]
        assert len(runs) == 2
        assert all(
            ours.uncached_tokens >= best.uncached_tokens
            for ours, best in zip(runs, found[INFINITE_CACHE][0], strict=True)
        )


def test_classes_are_told_apart_and_early_sessions_left_out() -> None:
    cells = [
        SweepCell(partial(mixed, (BOUNDED,), 6, rate_per_s=0.1, scale=0.01), SMALL, after_s=after_s)
        for after_s in (0.0, 20.0)
    ]
    everyone, late = sweep(["straight"], cells, [1])["straight"]
    assert set(everyone[0].of_class) == {"bounded"}
    assert everyone[0].uncached_tokens == late[0].uncached_tokens
    assert ratio(everyone, everyone, session_s) == 1.0
    assert ratio(everyone, late, uncached) == 1.0
