"""A slice of `python -m benchmarks.batches.chaos`: durable agents while their processes are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.batches.chaos import WAYS, Size


@pytest.mark.parametrize("way", WAYS)
async def test_each_result_comes_once_and_only_what_was_in_flight_is_done_again(way: str, tmp_path: Path) -> None:
    found = await WAYS[way](Size(num_agents=16, num_kills=1), tmp_path)
    assert (found.gateway_kills, found.client_kills) == (1, way == "client")
    assert (found.results, found.lost, found.doubled, found.wrong) == (16, 0, 0, 0)
    assert found.problems == []
    assert (found.backward, found.run_twice) == (0, 0)
    assert found.repeated <= 16 * (found.gateway_kills + found.client_kills)
