"""Synthetic fleets, whose truth is known, are recognised by content alone."""

from __future__ import annotations

import pytest

from tests.sessions.fleet_scores import replay, score
from tests.sessions.fleets import fleet, requests, rows


@pytest.mark.parametrize("row", rows())
def test_tenants_with_equal_fleets_share_no_session(row: str) -> None:
    assert score(replay(fleet(row, 8, 0))).merged_tenants == 0


@pytest.mark.parametrize("row", rows())
def test_a_fleet_is_the_same_from_the_same_seed(row: str) -> None:
    once, again = ([(event.at, event.request.body) for event in requests(fleet(row, 8, 1))] for _ in range(2))
    assert once == again
