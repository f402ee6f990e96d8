from __future__ import annotations

import pytest

from policies.forecast import PRIOR_TURNS, expected_turns, hazard, will_return
from policies.types import Family, Session


def family(ended: dict[int, int], continued: dict[int, int]) -> Family:
    longest = max([*ended, *continued], default=-1) + 1
    return Family(
        "f",
        ended=[ended.get(k, 0) for k in range(longest)],
        continued=[continued.get(k, 0) for k in range(longest)],
    )


FOUR = family(ended={4: 100}, continued={1: 100, 2: 100, 3: 100})


def test_a_family_of_which_nothing_is_known_has_the_prior_at_every_stage() -> None:
    for num_begun in range(6):
        assert expected_turns(Family("f"), num_begun, None) == PRIOR_TURNS


@pytest.mark.parametrize(("num_begun", "remaining"), [(1, 3.0), (2, 2.0), (3, 1.0), (4, 0.0)])
def test_a_bounded_task_comes_nearer_to_its_end_with_each_turn(num_begun: int, remaining: float) -> None:
    assert expected_turns(FOUR, num_begun, None) == pytest.approx(remaining, abs=0.12)


def test_a_declared_number_beats_the_curve() -> None:
    assert expected_turns(FOUR, 1, 17) == 17


def test_a_heavy_tail_expects_more_turns_the_deeper_a_session_is() -> None:
    ended = {1: 50, 2: 20, 4: 10, 8: 5, 16: 3, 32: 2}
    continued = {k: sum(n for at, n in ended.items() if at > k) for k in range(1, 33)}
    heavy = family(ended, continued)
    assert expected_turns(heavy, 1, None) < expected_turns(heavy, 3, None) < expected_turns(heavy, 9, None)


def test_sessions_that_are_still_running_are_censored() -> None:
    assert hazard(family(ended={3: 10}, continued={1: 50, 2: 50}), 3) > 0.9


def test_who_declares_no_further_turn_is_not_expected_back() -> None:
    assert will_return(Session("s", "f", "t", num_begun=1, remaining_turns=0), FOUR) == 0
    assert will_return(Session("s", "f", "t", num_begun=3), FOUR) > 0.9
    assert will_return(Session("s", "f", "t", num_begun=4), FOUR) < 0.1
