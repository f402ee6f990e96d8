from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.capacity import LOWERED, RAISED, Capacity


def stated(tokens: int) -> Capacity:
    capacity = Capacity()
    capacity.state(tokens)
    return capacity


def test_a_pool_of_unknown_size_is_endless_until_it_evicts() -> None:
    capacity = Capacity()
    assert capacity.tokens is None
    capacity.saw_eviction(100, 5_000)
    assert capacity.tokens == 5_000


def test_what_the_engine_states_holds_while_nothing_is_evicted() -> None:
    capacity = stated(1_000)
    for _ in range(100):
        capacity.saw(500)
    assert capacity.tokens == 1_000


def test_it_is_lowered_once_per_turnover_however_many_evictions_are_seen() -> None:
    capacity = stated(1_000)
    for _ in range(5):
        capacity.saw_eviction(100, 900)
    assert capacity.tokens == LOWERED * 1_000
    capacity.saw_eviction(600, 900)
    assert capacity.tokens == LOWERED**2 * 1_000


def test_it_recovers_by_and_by_up_to_what_was_stated() -> None:
    capacity = stated(1_000)
    capacity.saw_eviction(0, 900)
    capacity.saw(950)
    assert capacity.tokens == pytest.approx(LOWERED * (1 + RAISED) * 1_000)
    for _ in range(10):
        capacity.saw(1_000)
    assert capacity.tokens == 1_000


def test_an_engine_of_another_size_is_another_engine() -> None:
    capacity = stated(1_000)
    capacity.saw_eviction(0, 900)
    capacity.state(1_000)
    assert capacity.tokens == LOWERED * 1_000
    capacity.state(2_000)
    assert capacity.tokens == 2_000


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 5_000))))
def test_it_never_exceeds_what_was_stated(events: list[tuple[bool, float]]) -> None:
    capacity = stated(1_000)
    for is_eviction, tokens in events:
        if is_eviction:
            capacity.saw_eviction(tokens, 900)
        else:
            capacity.saw(tokens)
        assert capacity.tokens is not None
        assert 0 < capacity.tokens <= 1_000
