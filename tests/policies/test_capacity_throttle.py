"""Laws of the calls that a service is sent at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.capacity import CUT_FACTOR, FIRST_LIMIT, MAX_LIMIT, Throttle


def test_it_doubles_per_round_until_something_is_refused() -> None:
    throttle = Throttle(8)
    for _ in range(8):
        throttle.answered(8)
    assert throttle.limit == 16


def test_after_a_refusal_a_whole_round_adds_one() -> None:
    throttle = Throttle(10)
    throttle.refused(begun_at=0, in_flight=10, now=1)
    assert throttle.limit == 7
    for _ in range(8):
        throttle.answered(7)
    assert throttle.limit == 8


def test_refusals_of_calls_from_before_a_cut_are_no_news() -> None:
    throttle = Throttle(100)
    for _ in range(50):
        throttle.refused(begun_at=0, in_flight=100, now=1)
    assert throttle.limit == 70
    throttle.refused(begun_at=1.5, in_flight=100, now=2)
    assert throttle.limit == int(CUT_FACTOR * 70)


def test_it_is_cut_from_what_was_in_flight() -> None:
    throttle = Throttle(100)
    throttle.refused(begun_at=0, in_flight=10, now=1)
    assert throttle.limit == 7


def test_a_limit_that_nobody_reaches_does_not_grow() -> None:
    throttle = Throttle()
    for _ in range(1000):
        throttle.answered(3)
    assert throttle.limit == FIRST_LIMIT


@pytest.mark.parametrize(("start", "limit"), [(0, 1), (1, 1), (5_000, MAX_LIMIT)])
def test_it_starts_within_its_bounds(start: float, limit: int) -> None:
    assert Throttle(start).limit == limit


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 2_000)), max_size=200))
def test_it_stays_within_its_bounds(events: list[tuple[bool, int]]) -> None:
    throttle = Throttle()
    for now, (is_refused, in_flight) in enumerate(events):
        if is_refused:
            throttle.refused(now - 0.5, in_flight, now)
        else:
            throttle.answered(in_flight)
        assert 1 <= throttle.limit <= MAX_LIMIT
