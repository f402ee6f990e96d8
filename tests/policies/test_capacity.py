from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.capacity import LOWERED, MAX_OVER_STATED, RAISED, Capacity


def stated(tokens: int) -> Capacity:
    capacity = Capacity()
    capacity.state(tokens)
    return capacity


def turnover(capacity: Capacity, missed: float, resident_tokens: float, size_tokens: float = 1_000) -> None:
    """So many tokens are computed as the pool holds, and a share of those looked for is missed."""
    capacity.saw(size_tokens, 2_000, missed * 2_000, resident_tokens)


def test_a_pool_of_unknown_size_is_endless_until_it_evicts() -> None:
    capacity = Capacity()
    turnover(capacity, 0.0, 5_000, size_tokens=5_000)
    assert capacity.tokens is None
    turnover(capacity, 0.5, 5_000, size_tokens=5_000)
    assert capacity.tokens == LOWERED * 5_000


def test_a_pool_of_unknown_size_learns_nothing_while_nobody_is_kept_there() -> None:
    capacity = Capacity()
    capacity.saw(1_000, 2_000, 1_000, 0)
    assert capacity.tokens is None


def test_what_the_engine_states_holds_while_residents_leave_room() -> None:
    capacity = stated(1_000)
    for _ in range(100):
        turnover(capacity, 0.0, 500)
    assert capacity.tokens == 1_000


def test_it_is_lowered_once_per_turnover_however_many_evictions_are_seen() -> None:
    capacity = stated(1_000)
    for _ in range(10):
        capacity.saw(100, 1_000, 900, 900)
    assert capacity.tokens == LOWERED * 1_000


def test_misses_that_the_residents_were_let_in_to_cause_lower_nothing() -> None:
    capacity = stated(1_000)
    turnover(capacity, 0.1, 1_100)
    assert capacity.tokens == 1_000


def test_a_pool_that_keeps_more_than_was_stated_is_found_larger_by_and_by() -> None:
    capacity = stated(1_000)
    for _ in range(200):
        turnover(capacity, 0.0, capacity.tokens or 0, size_tokens=2_000)
    assert capacity.tokens == MAX_OVER_STATED * 1_000


def test_a_step_too_many_is_taken_back_and_the_next_one_waits_longer() -> None:
    capacity = stated(1_000)
    sizes = []
    for _ in range(12):
        turnover(capacity, 0.5 if capacity.tokens != 1_000 else 0.0, 1_000, size_tokens=2_000)
        sizes.append(capacity.tokens)
    raised = pytest.approx((1 + RAISED) * 1_000)
    assert sizes == [1_000, raised, *[1_000] * 8, raised, 1_000]


def test_engines_that_are_never_asked_move_nothing() -> None:
    capacity = stated(1_000)
    for _ in range(100):
        capacity.saw(1_000, 0, 0, 1_000)
    assert capacity.tokens == 1_000


def test_an_engine_of_another_size_is_another_engine() -> None:
    capacity = stated(1_000)
    turnover(capacity, 0.5, 900)
    capacity.state(1_000)
    assert capacity.tokens == LOWERED * 1_000
    capacity.state(2_000)
    assert capacity.tokens == 2_000


@given(st.lists(st.tuples(st.floats(0, 5_000), st.floats(0, 1), st.floats(0, 3_000))))
def test_it_stays_between_nothing_and_the_most_that_is_believed(turns: list[tuple[float, float, float]]) -> None:
    capacity = stated(1_000)
    for computed_tokens, missed, resident_tokens in turns:
        capacity.saw(computed_tokens, 1_000, missed * 1_000, resident_tokens)
        assert capacity.tokens is not None
        assert 0 < capacity.tokens <= MAX_OVER_STATED * 1_000
