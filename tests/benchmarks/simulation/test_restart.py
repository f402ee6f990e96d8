"""The experiment on restarts compares like with like."""

from __future__ import annotations

from unittest.mock import patch

from benchmarks.simulation import restart
from benchmarks.simulation.fleets import FLEETS
from benchmarks.simulation.restart import SHARES, RestartFigures


def test_a_proxy_without_memory_loses_nothing_when_it_is_replaced_and_its_open_calls_when_it_is_killed() -> None:
    fleets = {"base": FLEETS["base"], "n80": FLEETS["base"]}
    with patch.object(restart, "FLEETS", fleets), patch.object(restart, "SHARES", SHARES[2:3]):
        found: dict[str, RestartFigures] = restart.restart([1]).data
    assert found["base, replaced: straight"].makespan == 1.0
    assert found["base, killed: straight"].makespan > 1.05
