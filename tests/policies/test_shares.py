"""Laws of fair queueing between tenants."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.shares import HALF_LIFE_S, LATELY_S, RANK_STEP, Flow, Rates, Shares, Tenants, coarse
from policies.types import Turn
from tests.policies.turns_of import turn

A, B, C = (0, "a"), (0, "b"), (0, "c")


def of(flow: Flow, name: str = "x", weight: float = 1.0) -> Turn:
    return replace(turn(name, priority_class=flow[0]), tenant=flow[1], weight=weight)


def served(shares: Shares, flow: Flow, amount: float, now: float = 0.0, weight: float = 1.0) -> None:
    shares.began(of(flow, weight=weight), amount, now)
    shares.ended(of(flow, weight=weight), amount, now)


def test_what_a_flow_got_counts_half_after_a_half_life() -> None:
    shares = Shares()
    served(shares, A, 1_000)
    assert shares.got(A, HALF_LIFE_S) == pytest.approx(500)
    served(shares, A, 100, HALF_LIFE_S)
    assert shares.got(A, HALF_LIFE_S) == pytest.approx(600)


def test_a_turn_counts_as_soon_as_it_begins_and_in_the_end_for_what_it_took() -> None:
    shares = Shares()
    shares.began(of(A), 300.0, 0.0)
    assert shares.got(A, 0.0) == 300
    shares.ended(of(A), 100.0, 1.0)
    assert shares.got(A, 1.0) == 100
    shares.ended(of(A, "began before anything was counted"), 100.0, 1.0)
    assert shares.got(A, 1.0) == 200


def test_a_guess_that_was_too_high_is_no_debt_of_those_who_came_meanwhile() -> None:
    shares = Shares()
    for number in range(4):
        shares.began(of(A, f"{number}"), 3_000.0, 0.0)
    shares.joined(B, [A], 0.0)
    for number in range(4):
        shares.ended(of(A, f"{number}"), 50.0, 1.0)
    assert shares.in_order([A, B], 1.0) == [B, A]


def test_silence_earns_no_credit() -> None:
    shares = Shares()
    served(shares, A, 1_000)
    served(shares, B, 3_000)
    shares.joined(C, [A, B], 0.0)
    assert shares.got(C, 0.0) == 1_000


def test_a_flow_whose_turns_run_was_not_silent() -> None:
    """Else a tenant of which no turn waits for a moment would lose what it has not got."""
    shares = Shares()
    served(shares, A, 1_000)
    shares.began(of(B), 100.0, 0.0)
    shares.joined(B, [A], 0.0)
    assert shares.got(B, 0.0) == 100.0
    shares.ended(of(B), 100.0, 0.0)
    shares.joined(B, [A], 0.0)
    assert shares.got(B, 0.0) == 1_000


def test_who_begins_to_wait_alone_starts_where_the_last_one_began() -> None:
    shares = Shares()
    served(shares, A, 1_000)
    served(shares, A, 500)
    shares.joined(B, [], 0.0)
    assert shares.got(B, 0.0) == 1_000
    assert shares.in_order([A, B], 0.0) == [B, A]


def test_classes_have_nothing_to_do_with_each_other() -> None:
    shares, vip, batch = Shares(), (1, "v"), (-10, "a")
    served(shares, vip, 1e9)
    served(shares, batch, 1e9)
    served(shares, A, 100)
    shares.joined(B, [vip, batch, A], 0.0)
    assert shares.got(B, 0.0) == 100
    assert shares.in_order([batch, A, vip], 0.0) == [vip, A, batch]


def test_of_equals_who_has_not_been_served_for_longest_goes_first() -> None:
    shares = Shares()
    for at, flow in enumerate((A, B, C)):
        shares.began(of(flow), 0.0, float(at))
    shares.began(of(A), 0.0, 9.0)
    assert shares.in_order([A, C, B], 9.0) == [B, C, A]


COSTS = st.lists(st.floats(1.0, 50.0), min_size=200, max_size=200)


@given(COSTS, st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=2, max_size=4))
def test_flows_that_always_wait_get_by_their_weights(costs: list[float], weights: list[float]) -> None:
    """To within the largest turn of each: Goyal, Vin and Cheng, Start-time Fair Queuing, SIGCOMM 1996."""
    shares, flows = Shares(), [(0, str(number)) for number in range(len(weights))]
    got = dict.fromkeys(flows, 0.0)
    for cost in costs:
        flow = shares.in_order(flows, 0.0)[0]
        weight = weights[flows.index(flow)]
        served(shares, flow, cost, weight=weight)
        got[flow] += cost / weight
    assert max(got.values()) - min(got.values()) <= 50.0 / min(weights) + 1.0


def test_several_tenants_are_about_until_one_has_been_alone_for_long() -> None:
    tenants = Tenants()
    for now in range(5):
        tenants.arrived(of(A), float(now))
        assert not tenants.are_several(float(now))
    tenants.arrived(of(B), 5.0)
    tenants.arrived(of(A), 6.0)
    assert tenants.are_several(6.0)
    assert tenants.are_several(5.0 + LATELY_S - 1)
    tenants.arrived(of(A), 5.0 + LATELY_S)
    assert not tenants.are_several(5.0 + LATELY_S)


def rates() -> Rates:
    """Of three tenants; the answers of the last one are long."""
    found = Rates()
    for tenant, slot_s in (("a", 1.0), ("b", 2.0), ("long", 10.0)):
        found.saw(tenant, 400.0, slot_s)
    return found


def test_the_tenant_that_wants_most_is_charged_for_the_time_of_its_slots_too() -> None:
    """At the fewest tokens per second that another one gets."""
    few = {"a": 5.0, "b": 5.0}
    assert rates().charge(of((0, "long")), 400.0, 10.0, {**few, "long": 6.0}) == 2_000.0
    assert rates().charge(of((0, "long")), 400.0, None, {**few, "long": 6.0}) == 2_000.0
    assert rates().charge(of((0, "long")), 9_000.0, 10.0, {**few, "long": 6.0}) == 9_000.0


def test_any_other_tenant_is_charged_its_tokens() -> None:
    """It may have more turns: a few long prompts are a flood, too."""
    open_turns, found = {"a": 5.0, "b": 6.0, "long": 5.0}, rates()
    assert found.charge(of(A), 300.0, 50.0, open_turns) == 300.0
    assert found.charge(of((0, "long")), 400.0, 10.0, open_turns) == 400.0
    assert found.charge(of(B), 300.0, 1.0, open_turns) == 300.0
    found.saw("prompts", 6_000.0, 1.0)
    assert found.charge(of(B), 300.0, 2.0, {"b": 9.0, "prompts": 1.0}) == 300.0


def test_beside_tenants_of_unknown_pace_only_tokens_count() -> None:
    assert rates().charge(of((0, "long")), 400.0, 10.0, {"long": 9.0, "new": 1.0}) == 400.0
    assert rates().charge(of((0, "long")), 400.0, 10.0, {"long": 9.0}) == 400.0


def test_open_turns_count_over_the_weight_of_their_tenant() -> None:
    tenants = Tenants()
    for number in range(3):
        tenants.arrived(of(A, f"{number}", weight=3.0), 0.0)
    tenants.arrived(of(B), 0.0)
    assert tenants.open_turns == pytest.approx({"a": 1.0, "b": 1.0})
    assert set(tenants.usually_open()) == {"a", "b"}
    for number in range(3):
        tenants.left(of(A, f"{number}", weight=3.0))
    assert set(tenants.open_turns) == {"b"}


RANKS = st.floats(-1e12, 1e12, allow_subnormal=False)


@given(RANKS, RANKS)
def test_coarse_ranks_keep_the_order_of_those_that_differ_by_more_than_a_step(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert coarse(low) <= coarse(high)
    if high - low > 2 * RANK_STEP * max(abs(low), abs(high)):
        assert coarse(low) < coarse(high)


def test_a_flow_is_ahead_of_one_that_got_less_and_has_running_turns() -> None:
    shares = Shares()
    shares.began(of(A), 100.0, 0.0)
    assert not shares.is_ahead(A, 0.0)
    shares.began(of(B, "b"), 10.0, 0.0)
    assert shares.is_ahead(A, 0.0)
    assert not shares.is_ahead(B, 0.0)
    shares.ended(of(B, "b"), 10.0, 0.0)
    assert not shares.is_ahead(A, 0.0)
