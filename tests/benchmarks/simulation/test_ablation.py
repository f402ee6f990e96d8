from __future__ import annotations

from unittest.mock import patch

from benchmarks.simulation.ablation import REPLACED
from benchmarks.simulation.arms import play
from benchmarks.simulation.experiments import BASE
from benchmarks.simulation.workloads import plain
from gateway.cli.demo_fleet import FleetShape


def test_each_mechanism_of_the_ablation_exists_and_a_fleet_ends_without_it() -> None:
    runs = plain(FleetShape(12), 1)
    for parts in REPLACED.values():
        for part in parts:
            with patch.object(*part):
                assert play("turns", runs, BASE).makespan_s > 0
