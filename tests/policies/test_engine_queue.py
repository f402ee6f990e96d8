"""Laws of the inferred queue of an engine."""

from __future__ import annotations

import pytest

from policies.engine_queue import EngineQueue, EngineTime
from policies.learning import Pace


def split(
    queue: EngineQueue, place: int, first_byte_at: float | None, ended_at: float, pace: Pace | None = None
) -> EngineTime:
    return queue.split(pace or Pace(), place, 0, 0.0, first_byte_at, ended_at, 400.0, 0.0)


def twelve_calls(queue: EngineQueue) -> list[int]:
    """Twelve equal calls at once at an engine of four slots, 3 s each; its first poll comes after 4 s."""
    places = [queue.place(number) for number in range(12)]
    for second in (3.0, 6.0, 9.0):
        if second == 6.0:
            queue.saw(running=4, waiting=4)
        for _ in range(4):
            queue.ended(second)
    return places


@pytest.mark.parametrize("is_whole", [False, True], ids=["streamed", "whole"])
def test_of_twelve_equal_calls_at_four_slots_eight_queued_as_long_as_those_before_them_ran(is_whole: bool) -> None:
    queue = EngineQueue()
    places = twelve_calls(queue)
    for number, place in enumerate(places):
        waited_s = 3.0 * (number // 4)
        spent = split(queue, place, None if is_whole else waited_s + 0.1, waited_s + 3.0)
        assert spent.queue_s == pytest.approx(waited_s)
        assert spent.queue_s + spent.prefill_s + spent.decode_s == pytest.approx(waited_s + 3.0)


def test_a_call_whose_place_has_not_come_is_queued_now() -> None:
    queue = EngineQueue()
    places = [queue.place(number) for number in range(6)]
    assert not any(map(queue.is_queued, places))
    queue.saw(running=4, waiting=2)
    assert [queue.is_queued(place) for place in places] == [False] * 4 + [True] * 2
    queue.ended(1.0)
    assert [queue.is_queued(place) for place in places[4:]] == [False, True]


def test_a_late_first_byte_counts_as_queue_only_where_the_speed_is_known_and_the_engine_does_not_deny_it() -> None:
    pace, queue = Pace(), EngineQueue()
    assert split(queue, queue.place(0), 5.0, 6.0, pace).queue_s == 0.0
    for _ in range(20):
        pace.saw_prefill(400.0, 0.1)
    assert split(queue, queue.place(0), 5.0, 6.0, pace).queue_s == pytest.approx(4.9, abs=0.05)
    assert split(queue, queue.place(0), 0.12, 1.0, pace).queue_s == 0.0
    queue.saw(running=1, waiting=0)
    assert split(queue, queue.place(0), 5.0, 6.0, pace).queue_s == 0.0


def test_the_part_of_the_queue_in_which_the_engine_computed_other_prompts_is_said() -> None:
    pace, queue = Pace(), EngineQueue()
    places = [queue.place(number) for number in range(2)]
    queue.saw(running=1, waiting=1)
    queue.ended(4.0)
    spent = queue.split(pace, places[1], 0, 0.0, 4.05, 5.0, 10.0, 3.0)
    assert spent.queue_s == 4.0
    assert spent.queue_beside_s == pytest.approx(3.0, abs=0.05)
    assert spent.queue_s + spent.prefill_s + spent.decode_s == pytest.approx(5.0)


def test_slots_follow_what_runs_upwards_and_start_again_with_each_queue() -> None:
    queue = EngineQueue()
    for running, waiting, slots in (
        (3, 0, None),
        (2, 5, 2),
        (4, 3, 4),
        (3, 1, 4),
        (8, 0, 8),
        (5, 1, 5),
        (6, 0, 6),
    ):
        queue.saw(running, waiting)
        assert queue.slots == slots


def test_an_answer_that_stood_still_for_a_prompt_of_another_call_is_beside_it_and_not_decode() -> None:
    spent = EngineQueue().split(Pace(), 0, 0, 0.0, 0.1, 3.0, 10.0, 0.0, 2.5)
    assert (spent.beside_s, spent.decode_s) == pytest.approx((2.5, 0.4))
    assert spent.prefill_s == pytest.approx(2.6)
    short = EngineQueue().split(Pace(), 0, 0, 0.0, 0.1, 3.0, 10.0, 0.0, 0.05)
    assert (short.beside_s, short.decode_s) == pytest.approx((0.0, 2.9))
