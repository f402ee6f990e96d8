"""Laws of the table that compares the gateway's ledger with what the gate really saved."""

from dataclasses import replace

import pytest

from benchmarks.fleet.cells import Cell, FleetFigures
from benchmarks.fleet.ledger import of_fleet, table

FIGURES = FleetFigures(40.0, 20.0, 20.0, 30.0, 40.0, 5.0, 2.0, 1_500, 1_000, 9_000, 0, 0, 5.0, 1.0)


def cell(arm: str, seed: int, sessions_s: float, held_s: float = 0.0, saved_s: float = 0.0) -> Cell:
    found = replace(FIGURES, sessions_s=sessions_s, gate_held_s=held_s, gate_saved_s=saved_s)
    return Cell(arm, seed, 0.5, 0.01, found, [], [])


def test_the_ledger_is_compared_over_the_seeds_that_were_played_with_and_without_the_gate() -> None:
    cells = [cell("straight", 1, 100.0), cell("turns", 1, 70.0, 10.0, 30.0), cell("turns", 2, 1.0, 99.0)]
    found = of_fleet("base", {(one.arm, one.seed): one for one in cells})
    assert (found.straight_s, found.difference_s, found.net_s) == (100.0, 30.0, 20.0)
    assert "| base | 100 | 0.300 | 0.200 | 0.67 | 10.0 | 30.0 |  |" in table([("base", found)])


@pytest.mark.parametrize(("saved_s", "wrong"), [(30.0, "none"), (5.0, "base")])
def test_a_net_of_the_wrong_sign_is_named(saved_s: float, wrong: str) -> None:
    cells = [cell("straight", 1, 100.0), cell("turns", 1, 70.0, 10.0, saved_s)]
    found = of_fleet("base", {(one.arm, one.seed): one for one in cells})
    assert f"wrong sign: {wrong}." in table([("base", found)])
