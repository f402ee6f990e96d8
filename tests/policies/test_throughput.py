from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.learning import Pace
from policies.throughput import Load, Switch, means_kept_s, share_longer, turns_per_s

ROOM_TOKENS = 38_000.0


def pace(gap_s: float, token_s: float = 1.3e-4) -> Pace:
    """A pool whose turns decode 120 tokens, and whose sessions pause for about so long."""
    seen = Pace()
    for number in range(32):
        seen.saw_prefill(500 + 100 * (number % 8), 0.03 + token_s * (500 + 100 * (number % 8)))
        seen.saw_decode(2.4 + 0.005 * (number % 16), 0.0, 120, 1 + number % 16)
        seen.saw_cycle(2.4, gap_s * (0.5 + number / 32))
    return seen


def load(num_sessions: float) -> Load:
    return Load(num_sessions, 1_800.0, 520.0, 1_200.0, ROOM_TOKENS)


def rate(num_residents: float, load: Load, pace: Pace) -> float:
    return turns_per_s(num_residents, load, pace, means_kept_s(pace.gaps.ordered))


def test_where_all_fit_each_session_adds_its_turns() -> None:
    at_ten, at_twenty = (rate(num, load(num), pace(0.5)) for num in (10, 20))
    assert 1.5 * at_ten < at_twenty <= 2 * at_ten


def test_with_short_tools_those_that_fit_are_faster_than_all() -> None:
    crowd, seen = load(40), pace(0.5)
    assert rate(crowd.num_fitting, crowd, seen) > 1.2 * rate(40, crowd, seen)


@pytest.mark.parametrize(
    ("gap_s", "token_s"),
    [pytest.param(30.0, 1.3e-4, id="slow tools"), pytest.param(2.0, 1e-6, id="misses that cost nothing")],
)
def test_the_gate_opens_where_holding_does_not_pay(gap_s: float, token_s: float) -> None:
    switch = Switch()
    switch.judge(load(40), pace(gap_s, token_s), 0.0)
    assert switch.is_open


def test_an_open_gate_closes_once_holding_pays_again_and_stays_open_between() -> None:
    switch = Switch()
    switch.judge(load(40), pace(30.0), 0.0)
    assert not switch.is_due(0.4)
    switch.judge(load(40), pace(0.5), 0.5)
    assert switch.is_open
    for second in range(1, 30):
        switch.judge(load(40), pace(0.5), float(second))
    assert not switch.is_open


@given(st.lists(st.floats(0.01, 100), min_size=6, max_size=64), st.floats(0, 200))
def test_the_kept_time_is_the_one_that_its_mean_says(gaps_s: list[float], mean_s: float) -> None:
    """The share of longer gaps falls from 1 to 0 as the mean of min(gap, T) rises to that of the gaps."""
    gaps_s.sort()
    share = share_longer(means_kept_s(gaps_s), mean_s)
    assert 0.0 <= share <= 1.0
    if mean_s > sum(gaps_s) / len(gaps_s):
        assert share == 0.0
    if 0 < mean_s < gaps_s[0] * 0.999:
        assert share == 1.0
