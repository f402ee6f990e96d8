"""Laws of asking again: bounded in number and in time, never hot, and no more of what breaks an engine."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import EngineFault, Failure, Outcome
from gateway.request.engine_errors import FIRST_S, LONGEST_S, Attempts, EngineFailed
from policies.types import Ending
from tests.policies.turns_of import turn

BOUND_S = 300.0


def failure(fault: EngineFault, retry_after_s: float | None = None, code: str | None = None) -> EngineFailed:
    told = Failure(503, "server_error", "no", code=code)
    failed = EngineFailed(Outcome.ENGINE_REFUSED, told, Ending.REFUSED, True, fault)
    failed.retry_after_s = retry_after_s
    return failed


def of(most: int = 3, chance: float = 0.5, **about: float) -> Attempts:
    return Attempts(turn("t", max_wait_s=BOUND_S, **about), most, lambda: chance)  # type: ignore[arg-type]


@given(chance=st.floats(0, 0.999), asked=st.one_of(st.none(), st.floats(0.001, 1e4)))
def test_a_replica_that_stays_full_is_asked_seldom_and_a_last_time_at_the_bound(
    chance: float, asked: float | None
) -> None:
    attempts, now, asked_at = of(chance=chance), 0.0, [0.0]
    while True:
        attempts.elsewhere("e1", failure(EngineFault.FULL, asked), now)
        assert attempts.turn.excluded == {"e1"}, "until nobody else is left"
        if not attempts.later(now, is_committed=True):
            break
        assert attempts.turn.excluded == frozenset()
        now = attempts.turn.not_before
        asked_at.append(now)
    assert asked_at[-1] == BOUND_S
    assert len(asked_at) <= 2 * BOUND_S / LONGEST_S + 7
    pauses = [after - before for before, after in pairwise(asked_at[:-1])]
    assert all(pause >= max(FIRST_S / 2, asked or 0.0) - 1e-9 for pause in pauses)


def test_all_replicas_are_asked_before_the_call_waits_for_the_first_that_is_free() -> None:
    attempts = of(chance=0.0)
    assert attempts.elsewhere("e1", failure(EngineFault.FULL, 20.0), 0.0)
    assert attempts.elsewhere("e2", failure(EngineFault.FULL, 5.0), 1.0)
    assert (set(attempts.turn.excluded), attempts.turn.not_before) == ({"e1", "e2"}, 0.0)
    assert attempts.later(1.0, is_committed=True)
    assert (set(attempts.turn.excluded), attempts.turn.not_before) == ({"e1"}, 6.0 + FIRST_S / 2)


@pytest.mark.parametrize(
    "fault", [EngineFault.RESET, EngineFault.STATUS, EngineFault.NO_ANSWER, EngineFault.ERROR]
)
def test_what_breaks_engines_is_asked_no_oftener_than_before(fault: EngineFault) -> None:
    attempts, num_asked, now = of(most=3), 0, 0.0
    while True:
        num_asked += 1
        attempts.elsewhere("e1", failure(fault), now)
        if not attempts.later(now, is_committed=True):
            break
        now = attempts.turn.not_before
    assert num_asked == 3


@pytest.mark.parametrize(
    ("failed", "is_committed", "waits"),
    [
        (failure(EngineFault.FULL), True, True),
        (failure(EngineFault.FULL), False, False),
        (failure(EngineFault.FULL, code="insufficient_quota"), True, False),
        (failure(EngineFault.REFUSED), True, True),
        (failure(EngineFault.KEY), True, False),
        (failure(EngineFault.NO_MODEL), True, False),
        (None, True, True),
        (None, False, False),
    ],
)
def test_only_what_may_pass_is_waited_for(failed: EngineFailed | None, is_committed: bool, waits: bool) -> None:
    attempts = of()
    if failed is not None:
        attempts.elsewhere("e1", failed, 0.0)
    assert attempts.later(0.0, is_committed) is waits


def test_a_full_queue_is_waited_for_whoever_could_ask_again() -> None:
    attempts, failed = of(), failure(EngineFault.FULL)
    failed.is_queue_full = True
    attempts.elsewhere("e1", failed, 0.0)
    assert attempts.later(0.0, is_committed=False)


def test_nothing_is_asked_after_the_clients_deadline() -> None:
    attempts = of(deadline_at=7.0)
    attempts.elsewhere("e1", failure(EngineFault.FULL, 60.0), 1.0)
    assert attempts.later(1.0, is_committed=True)
    assert attempts.turn.not_before == 7.0
    attempts.elsewhere("e1", failure(EngineFault.FULL, 60.0), 7.0)
    assert not attempts.later(7.0, is_committed=True)


def test_each_go_is_a_turn_of_its_own_with_the_arrival_of_the_first() -> None:
    attempts = of(at=3.0)
    seen = [attempts.turn]
    for now in (4.0, 6.0, 9.0):
        attempts.elsewhere("e1", failure(EngineFault.FULL), now)
        assert attempts.later(now, is_committed=True)
        seen.append(attempts.turn)
    assert len({one.id for one in seen}) == 4
    assert {one.arrived_at for one in seen} == {3.0}
    assert [one.is_retry for one in seen] == [False, True, True, True]
    assert math.isfinite(seen[-1].not_before)
