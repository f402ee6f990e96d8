"""Shares of a replica: they add up, follow demand, and leave a part to each member."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.membership import EQUAL, shares
from policies.capacity import Capacity, Shown
from policies.types import Replica


@given(st.dictionaries(st.text(min_size=1), st.floats(0, 1e9), min_size=1, max_size=8))
def test_shares_of_members_that_know_the_same_add_up_to_one(demand: dict[str, float]) -> None:
    demands = {member: {"r": tokens} for member, tokens in demand.items()}
    mine = {member: shares(member, demands, ["r"])["r"] for member in demands}
    assert sum(mine.values()) == pytest.approx(1)
    assert min(mine.values()) >= EQUAL / len(mine) - 1e-9


def test_without_demand_all_have_alike() -> None:
    assert shares("a", {"a": {}, "b": {}}, ["r", "s"]) == {"r": 0.5, "s": 0.5}


def test_a_share_scales_what_may_be_filled_and_not_what_was_learned() -> None:
    capacity = Capacity()
    capacity.state(1000)
    capacity.share = 0.25
    assert capacity.tokens == 250
    for _ in range(2):
        capacity.saw(Shown(200, 200))
    assert capacity.tokens == pytest.approx(200)
    capacity.share = 1.0
    assert capacity.tokens == pytest.approx(800)


def test_a_share_of_slots_is_never_none() -> None:
    assert Replica("r", slots=8, share=0.5).own_slots == 4
    assert Replica("r", slots=8, share=0.01).own_slots == 1
