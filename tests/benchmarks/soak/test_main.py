"""A slice of `python -m benchmarks.soak`: nothing is lost, counted twice, or kept."""

from __future__ import annotations

from benchmarks.soak.__main__ import soak


async def test_every_request_ends_once_and_nothing_is_left_behind() -> None:
    run = await soak(seconds=3, num_clients=12, faults=0.3, seed=11, pace=6)
    assert len(run.clients.records) >= 12
    assert list(run.faults(is_short=True)) == []


async def test_hostile_requests_beside_them_change_nothing() -> None:
    run = await soak(seconds=3, num_clients=4, faults=0.1, seed=12, pace=6, num_hostile=2)
    assert sum("-hostile-" in request_id for request_id in run.clients.records) >= 2
    assert list(run.faults(is_short=True)) == []
