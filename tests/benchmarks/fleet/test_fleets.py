"""Laws of the runs that answer a question together: their order, and fleets and arms that there are."""

import pytest

from benchmarks.fleet.arms import ARMS
from benchmarks.fleet.fleets import FLEETS, SESSION_CAPS, SUITES, Job


def test_cells_run_seed_by_seed_each_starting_with_another_arm() -> None:
    job = Job("dynamo", "base", ("a", "b"), (1, 2), others=("c",), other_seeds=(2,))
    assert job.cells() == [("b", 1), ("a", 1), ("c", 2), ("a", 2), ("b", 2)]


@pytest.mark.parametrize("suite", SUITES)
def test_each_job_of_a_suite_names_fleets_and_arms_that_there_are(suite: str) -> None:
    for job in SUITES[suite]:
        assert job.fleet in FLEETS
        assert {*job.arms, *job.others} <= set(ARMS)
    assert set(SESSION_CAPS) <= set(FLEETS)


def test_each_job_has_a_result_file_of_its_own() -> None:
    for jobs in SUITES.values():
        names = [job.name for job in jobs]
        assert len(names) == len(set(names))
