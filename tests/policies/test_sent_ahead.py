"""Laws of what an engine is sent ahead of what it computes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.learning import Pace
from policies.sent_ahead import AHEAD_S, LOST_S, NUM_AHEAD, NUM_AHEAD_OF_SHARE, SentAhead
from tests.policies.turns_of import turn

PACE = Pace()


def test_prompts_are_sent_ahead_until_they_take_long_to_compute() -> None:
    ahead, tokens = SentAhead(), 0.6 * AHEAD_S / PACE.prefill_token_s
    for number, has_room in enumerate((True, True, False)):
        assert ahead.has_room(number, PACE, True, 0.0) is has_room
        ahead.sent(turn(f"t{number}"), tokens, PACE, 0.0)
    ahead.begun("t0")
    assert not ahead.has_room(3, PACE, True, 0.0)
    ahead.begun("t1")
    assert ahead.has_room(3, PACE, True, 0.0)


@pytest.mark.parametrize("slots", [1, 4, 64])
def test_an_engine_of_unknown_slots_is_found_to_have_as_many_as_answers_were_under_way(slots: int) -> None:
    """Then its own queue has two turns."""
    ahead, begun, waiting = SentAhead(), list[str](), list[str]()
    for number in range(400):
        if ahead.has_room(len(begun) + len(waiting), PACE, False, float(number)):
            waiting.append(f"t{number}")
            ahead.sent(turn(waiting[-1]), 10.0, PACE, float(number))
        elif len(begun) == slots:
            begun.pop(0)
        if waiting and len(begun) < slots:
            begun.append(waiting.pop(0))
            ahead.begun(begun[-1])
    assert len(begun) >= slots - 1
    assert len(waiting) <= NUM_AHEAD


@pytest.mark.parametrize(("streams", "counts_s"), [(True, LOST_S), (False, 0.5)])
def test_a_prompt_whose_answer_shows_no_beginning_does_not_count_for_ever(streams: bool, counts_s: float) -> None:
    ahead = SentAhead()
    ahead.sent(replace(turn("whole"), streams=streams), 2 * AHEAD_S / PACE.prefill_token_s, PACE, 0.0)
    assert not ahead.has_room(1, PACE, True, counts_s)
    assert ahead.has_room(1, PACE, True, ahead.next_at())


def test_an_engine_that_restarted_has_shown_nothing() -> None:
    ahead = SentAhead()
    assert ahead.has_room(50, PACE, False, 0.0)
    assert ahead.has_room(51, PACE, False, 0.0)
    ahead.restarted()
    for number in range(NUM_AHEAD):
        ahead.sent(turn(f"t{number}"), 1.0, PACE, 0.0)
    assert not ahead.has_room(NUM_AHEAD, PACE, False, 0.0)


def test_a_tenant_that_got_more_sends_less_ahead_to_slots_that_are_not_known() -> None:
    ahead = SentAhead()
    ahead.sent(turn("begun"), 10.0, PACE, 0.0)
    ahead.begun("begun")
    for number in range(NUM_AHEAD):
        assert ahead.has_room(1 + number, PACE, False, 0.0, is_ahead=True) is (number < NUM_AHEAD_OF_SHARE)
        assert ahead.has_room(1 + number, PACE, False, 0.0)
        assert ahead.has_room(1 + number, PACE, True, 0.0, is_ahead=True)
        ahead.sent(turn(f"t{number}"), 10.0, PACE, 0.0)
