"""Laws of sliding windows: never far above the limit, faded when it was said, corrected where it was added."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.limits import LocalCounters

W = 10.0


@given(st.lists(st.tuples(st.floats(0.01, 8), st.floats(0, 6)), max_size=60), st.floats(0, 1e9))
def test_what_is_admitted_stays_below_twice_the_limit_in_any_window(
    steps: list[tuple[float, float]], start: float
) -> None:
    counters, now, limit = LocalCounters(), start, 5.0
    admitted: list[tuple[float, float]] = []
    for amount, pause_s in steps:
        now += pause_s
        if counters.used("k", W, now).total + min(amount, limit) <= limit:
            counters.count("k", W, min(amount, limit), now)
            admitted.append((now, min(amount, limit)))
        assert sum(n for at, n in admitted if at > now - W) <= 2 * limit + 1e-6
        current = [n for at, n in admitted if at // W == now // W]
        assert sum(current) <= limit + 1e-6


@given(st.lists(st.tuples(st.floats(0.01, 4), st.floats(0, 6)), min_size=1, max_size=30), st.floats(0, 5))
def test_use_has_faded_when_it_was_said_to_and_not_much_sooner(
    steps: list[tuple[float, float]], room: float
) -> None:
    counters, now = LocalCounters(), 1000.0
    for amount, pause_s in steps:
        now += pause_s
        counters.count("k", W, amount, now)
    wait_s = counters.used("k", W, now).fades_to_s(room)
    assert 0 <= wait_s <= 2 * W
    if wait_s > 1:
        assert counters.used("k", W, now + wait_s - 0.5).total > room - 1e-9
    assert counters.used("k", W, now + wait_s + 1e-6).total <= room + 1e-3


def test_use_that_is_corrected_counts_where_it_was_added_and_never_below_nothing() -> None:
    counters = LocalCounters()
    counters.count("k", W, 8, at=9)
    counters.count("k", W, 1, at=11)
    counters.count("k", W, -6, at=9)
    assert counters.used("k", W, 15).total == pytest.approx(1 + 2 * 0.5)
    counters.count("k", W, -6, at=9)
    assert counters.used("k", W, 15).total == 1
    counters.count("k", W, 5, at=-30)
    assert counters.used("k", W, 15).total == 1


def test_a_clock_that_is_set_back_neither_forgets_nor_doubles() -> None:
    counters = LocalCounters()
    counters.count("k", W, 4, at=100)
    assert counters.used("k", W, 95).total == 4
    counters.count("k", W, 1, at=50)
    assert counters.used("k", W, 105).total == 4
