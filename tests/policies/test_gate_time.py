"""Laws of the ledger of time of one pool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.gate_time import BIN_S, RECENT_S, GateTime


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 100), st.floats(-100, 100)), min_size=1, max_size=200))
def test_the_net_is_what_was_saved_less_what_was_held(turns: list[tuple[float, float, float]]) -> None:
    time, now = GateTime(), 0.0
    for after_s, held_s, saved_s in turns:
        now += after_s
        time.saw_turn(held_s, saved_s, now)
    assert time.net_s == pytest.approx(sum(saved_s - held_s for _, held_s, saved_s in turns), abs=1e-6)
    least = sum(BIN_S for _ in time._recent)
    assert least <= RECENT_S + 3 * BIN_S


def test_the_net_of_the_last_minute_forgets_what_is_older() -> None:
    time = GateTime()
    time.saw_turn(5.0, 0.0, 0.0)
    assert time.recent_s(30.0) == -5.0
    time.saw_turn(0.0, 2.0, 90.0)
    assert time.recent_s(90.0) == 2.0
    assert time.net_s == -3.0


def test_computed_times_are_forgotten_after_a_while() -> None:
    time = GateTime()
    time.known(0.0)[1, 2] = 4.0
    time.near(0.0)[1] = 4.0
    assert time.known(1.0) == {(1, 2): 4.0}
    assert time.near(1.0) == {1: 4.0}
    assert not time.known(60.0)
    assert not time.near(60.0)
