"""Laws of the circuit breaker, on plain numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.breaker import Breaker, BreakerRules, BreakerState

RULES = BreakerRules(failures=3, window_s=10, open_s=5, max_open_s=20)


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker(RULES)
    assert [breaker.failed(at) for _ in range(3)] == [False, False, True]
    return breaker


def test_a_circuit_opens_at_so_many_failures_and_not_before() -> None:
    assert opened().state(0.0) is BreakerState.OPEN


def test_failures_that_are_the_smaller_part_of_the_calls_do_not_open_it() -> None:
    breaker = Breaker(RULES)
    for _ in range(20):
        breaker.worked(0.0)
        breaker.worked(0.0)
        assert not breaker.failed(0.0)


def test_failures_that_are_long_ago_do_not_count() -> None:
    breaker = Breaker(RULES)
    assert not any(breaker.failed(now) for now in (0.0, 11.0, 22.0, 33.0))


def test_a_call_that_works_on_trial_closes_it_and_wipes_its_slate() -> None:
    breaker = opened()
    assert breaker.state(4.9) is BreakerState.OPEN
    assert breaker.state(5.0) is BreakerState.HALF_OPEN
    assert breaker.worked(5.0)
    assert breaker.state(5.0) is BreakerState.CLOSED
    assert not breaker.failed(5.0)


def test_each_trial_that_fails_keeps_it_open_for_twice_as_long_up_to_a_bound() -> None:
    breaker, now = opened(), 0.0
    for open_s in (5.0, 10.0, 20.0, 20.0):
        assert breaker.state(now + open_s - 0.1) is BreakerState.OPEN
        now += open_s
        assert breaker.state(now) is BreakerState.HALF_OPEN
        assert breaker.failed(now)


def test_an_answer_to_a_call_from_before_it_opened_does_not_close_it() -> None:
    breaker = opened()
    assert not breaker.worked(1.0)
    assert breaker.state(1.0) is BreakerState.OPEN


def test_a_circuit_can_be_forbidden_to_open() -> None:
    breaker = Breaker(RULES)
    assert not any(breaker.failed(0.0, may_open=False) for _ in range(9))
    assert breaker.state(0.0) is BreakerState.CLOSED


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from(["worked", "failed"]))))
def test_a_circuit_is_never_open_for_longer_than_the_bound(calls: list[tuple[float, str]]) -> None:
    breaker, now = Breaker(RULES), 0.0
    for after_s, what in calls:
        now += after_s
        breaker.failed(now) if what == "failed" else breaker.worked(now)
        assert breaker.state(now + RULES.max_open_s) is not BreakerState.OPEN
        if what == "worked":
            assert breaker.state(now) is not BreakerState.HALF_OPEN
