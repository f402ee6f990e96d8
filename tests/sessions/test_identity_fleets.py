"""Synthetic fleets, whose truth is known, are recognised by content alone."""

from __future__ import annotations

import pytest

from tests.sessions.fleet_scores import FleetScore, replay, score
from tests.sessions.fleets import fleet, requests, rows

SIZES = {1: 6, 8: 4, 64: 1}
"""Fleets of each row by the number of agents at once: 209 in all."""
LEAST_F1 = 0.98


@pytest.mark.parametrize("row", rows())
def test_sessions_are_found_whatever_the_client_does_to_its_history(row: str) -> None:
    scores = [score(replay(fleet(row, size, seed))) for size, count in SIZES.items() for seed in range(count)]
    total = sum(scores, FleetScore())
    assert total.f1 >= LEAST_F1, total
    assert total.wrong_turns <= total.requests / 1000, total
    assert total.merged_tenants == 0, total
    assert total.wrong_parents == 0, total
    assert total.found_parents >= 0.9 * total.children, total
    assert total.side_turns == 0, total


@pytest.mark.parametrize("row", rows())
def test_a_fleet_is_the_same_from_the_same_seed(row: str) -> None:
    once, again = ([(event.at, event.request.body) for event in requests(fleet(row, 8, 1))] for _ in range(2))
    assert once == again


def test_every_row_is_met_by_two_hundred_fleets_in_all() -> None:
    assert len(rows()) * sum(SIZES.values()) >= 200
