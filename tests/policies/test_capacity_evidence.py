"""Laws of what the Scheduler believes of a pool's size, whatever its engine reports: on simulated fleets."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.simulation.fleets import FLEETS
from benchmarks.simulation.simulator import SimulatedTurn, Simulation
from policies.admission import Limits
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import Usage

HEAD_TOKENS = 2_000
"""What all sessions of the fleet share."""


class Reporting(Simulation):
    """An engine that reports cached tokens in its own way."""

    report: Callable[[int, random.Random], int | None] = staticmethod(lambda cached_tokens, _rng: cached_tokens)
    rng = random.Random(3)

    def _usage(self, simulated: SimulatedTurn) -> Usage:
        return replace(super()._usage(simulated), cached_tokens=self.report(simulated.cached_tokens, self.rng))


def believed(
    name: str, stated: float = 1.0, report: Callable[[int, random.Random], int | None] | None = None
) -> list[float]:
    """The sizes that are believed in the end, over the true one."""
    fleet = FLEETS[name]
    scheduler = Scheduler(Turns(), Limits())
    simulation = Reporting(scheduler, replace(fleet.world, stated_capacity=stated))
    if report is not None:
        simulation.report = report
    simulation.run(fleet.draw(1))
    return [
        (replica.capacity_tokens or 0) / fleet.world.spec.capacity_tokens for replica in scheduler.view().replicas
    ]


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(lambda tokens, _: tokens, id="as it is"),
        pytest.param(lambda tokens, _: None, id="nothing"),
        pytest.param(lambda tokens, _: 0, id="always 0"),
        pytest.param(lambda tokens, _: min(tokens, HEAD_TOKENS), id="never more than the shared head"),
        pytest.param(lambda tokens, _: tokens // 544 * 544, id="blocks of 544"),
        pytest.param(lambda tokens, _: max(0, tokens - 25), id="a template that costs a few tokens"),
        pytest.param(lambda tokens, _: max(0, tokens - 200), id="a template that costs many"),
    ],
)
@pytest.mark.parametrize("fleet", ["base", "open1.5"])
def test_a_right_size_stays_whatever_the_engine_reports(
    fleet: str, report: Callable[[int, random.Random], int | None]
) -> None:
    assert believed(fleet, 1.0, report) == [pytest.approx(1.0, abs=0.02)]


@pytest.mark.parametrize("fleet", ["base", "open1.5"])
def test_an_engine_that_loses_one_prompt_in_twenty_counts_as_a_tenth_smaller_at_most(fleet: str) -> None:
    sizes = believed(fleet, 1.0, lambda tokens, rng: tokens if rng.random() > 0.05 else 0)
    assert sizes == [pytest.approx(1.0, abs=0.12)]


@pytest.mark.parametrize(
    "stated",
    [
        *(0.6, 0.8, 0.95, 1.05, 1.2),
        pytest.param(
            1.4,
            marks=pytest.mark.xfail(
                strict=True, reason="all evict each other from the start, so no session is ever found"
            ),
        ),
    ],
)
def test_a_size_that_was_stated_wrong_is_found_in_overload(stated: float) -> None:
    assert believed("n120", stated) == [pytest.approx(1.0, abs=0.03)]


@pytest.mark.parametrize("fleet", ["ctl", "bursts", "slow", "long", "w4", "subf", "heavy", "giant"])
def test_a_right_size_stays_on_any_fleet(fleet: str) -> None:
    assert all(size == pytest.approx(1.0, abs=0.02) for size in believed(fleet))
