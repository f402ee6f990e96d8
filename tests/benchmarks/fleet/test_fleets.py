"""The order of a job's cells."""

from benchmarks.fleet.fleets import Job


def test_cells_run_seed_by_seed_each_starting_with_another_arm() -> None:
    job = Job("dynamo", "base", ("a", "b"), (1, 2), others=("c",), other_seeds=(2,))
    assert job.cells() == [("b", 1), ("a", 1), ("c", 2), ("a", 2), ("b", 2)]
