"""Laws of the table that compares simulator and engines: the same fleets, one row per arm, sums over the seeds."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fleet import report
from benchmarks.fleet.calibration import Pair, pairs, table
from benchmarks.fleet.cells import Cell, FleetFigures, workload_of
from benchmarks.fleet.fleets import FLEETS
from benchmarks.results import write
from benchmarks.simulation.arms import SimulatedFigures, play

REAL = FleetFigures(40.0, 20.0, 20.0, 30.0, 40.0, 5.0, 2.0, 1_500, 1_000, 9_000, 0, 0, 5.0, 1.0)
SIMULATED = SimulatedFigures(36.0, 20.0, 40.0, 5.0, 1.0, 0.0, 1.0, 1_500, 10.0, {}, {})


def pair(arm: str, seed: int, factor: float = 1.0) -> Pair:
    real = replace(REAL, makespan_s=factor * REAL.makespan_s)
    return Pair("base", arm, seed, 0.5, 0.01, real, SIMULATED)


def test_each_arm_has_a_row_with_both_figures_and_their_ratio() -> None:
    rows = [
        line for line in table([pair("straight", 1), pair("straight", 2, 2.0)]).splitlines() if "| base" in line
    ]
    assert rows == [
        "| base | straight | 1 2 | 60.0 -> 36.0 (0.60) | 20.0 -> 20.0 (1.00) | 40.0 -> 40.0 (1.00)"
        " | 5.00 -> 5.00 (1.00) | 2.00 -> 1.00 (0.50) | 1,500 -> 1,500 (1.00) |"
    ]


def test_gains_are_of_the_seeds_that_both_arms_ran() -> None:
    found = [pair("straight", 1), pair("straight", 2, 9.0), pair("turns", 1, 0.8)]
    assert "\n| base | 0.80 -> 1.00 | 1.00 -> 1.00 |\n" in table(found)


@pytest.mark.parametrize("is_current", [True, False])
def test_cells_of_a_fleet_that_has_changed_since_are_left_out(tmp_path: Path, is_current: bool) -> None:
    fleet = FLEETS["below"]
    workload = workload_of(fleet, 1) if is_current else "of yesterday"
    cells = {("straight", 1): Cell("straight", 1, 0.5, 0.01, REAL, [[0.0, 40.0]], [], workload)}
    write(tmp_path, "dynamo-below", report.table(cells, ""), report.data_of(cells))
    expected = [Pair("below", "straight", 1, 0.5, 0.01, REAL, play("straight", fleet.draw(1), fleet.world))]
    assert list(pairs(tmp_path)) == (expected if is_current else [])
