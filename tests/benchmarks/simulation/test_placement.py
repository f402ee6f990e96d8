"""Laws of the placements that the product's is compared with."""

from __future__ import annotations

from benchmarks.simulation.placement import least_loaded, round_robin
from tests.policies.test_placement import option


def test_least_loaded_looks_at_running_turns_only() -> None:
    assert least_loaded([option("a", running=3), option("b", missing=9_000, running=1)], "f", 0).replica_id == "b"


def test_round_robin_visits_each_in_turn() -> None:
    replicas = [option(name) for name in "cab"]
    assert [round_robin(replicas, "f", n).replica_id for n in range(6)] == ["a", "b", "c"] * 2
