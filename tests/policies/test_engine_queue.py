"""Laws of the inferred queue of an engine."""

from __future__ import annotations

import pytest

from policies.engine_queue import EngineCall, EngineQueue, EngineTime
from policies.learning import Pace


def split(
    queue: EngineQueue, call: EngineCall, first_byte_at: float | None, ended_at: float, pace: Pace | None = None
) -> EngineTime:
    pace = pace or Pace()
    if first_byte_at is not None:
        queue.first_byte(call, pace.prefill_s(400.0), first_byte_at)
    return queue.split(call, pace, first_byte_at is None, ended_at, 400.0, 0.0)


def twelve_calls(queue: EngineQueue, is_whole: bool) -> list[EngineTime]:
    """Twelve equal calls at once at an engine of four slots, 3 s each; its first poll comes after 4 s."""
    calls, spent = [queue.send(number, 0.0) for number in range(12)], []
    for group in range(3):
        if group == 1:
            queue.saw(running=4, waiting=4, num_sent=8, now=4.0)
        four = calls[4 * group : 4 * group + 4]
        for call in four:
            if not is_whole:
                queue.first_byte(call, 0.05, 3.0 * group + 0.1)
        for call in four:
            spent.append(queue.split(call, Pace(), is_whole, 3.0 * group + 3.0, 400.0, 0.0))
        for _ in four:
            queue.ended(3.0 * group + 3.0)
    return spent


@pytest.mark.parametrize("is_whole", [False, True], ids=["streamed", "whole"])
def test_of_twelve_equal_calls_at_four_slots_eight_queued_as_long_as_those_before_them_ran(is_whole: bool) -> None:
    for number, spent in enumerate(twelve_calls(EngineQueue(), is_whole)):
        waited_s = 3.0 * (number // 4)
        assert spent.queue_s == pytest.approx(waited_s)
        assert spent.queue_s + spent.prefill_s + spent.decode_s == pytest.approx(waited_s + 3.0)


def test_a_call_whose_place_has_not_come_is_queued_now() -> None:
    queue = EngineQueue()
    calls = [queue.send(number, 0.0) for number in range(6)]
    assert not any(map(queue.is_queued, calls))
    queue.saw(running=4, waiting=2, num_sent=6, now=0.5)
    assert [queue.is_queued(call) for call in calls] == [False] * 4 + [True] * 2
    queue.ended(1.0)
    assert [queue.is_queued(call) for call in calls[4:]] == [False, True]


def test_a_late_first_byte_counts_as_queue_only_where_the_speed_is_known_and_the_engine_never_says() -> None:
    pace, queue = Pace(), EngineQueue()
    assert split(queue, queue.send(0, 0.0), 5.0, 6.0, pace).queue_s == 0.0
    for _ in range(20):
        pace.saw_prefill(400.0, 0.1)
    queue = EngineQueue()
    assert split(queue, queue.send(0, 0.0), 5.0, 6.0, pace).queue_s == pytest.approx(4.9, abs=0.05)
    queue = EngineQueue()
    assert split(queue, queue.send(0, 0.0), 0.12, 1.0, pace).queue_s == 0.0


def test_nothing_queued_where_all_polls_meanwhile_say_so_and_without_a_poll_a_late_first_byte_is_unclear() -> None:
    pace, queue = Pace(), EngineQueue()
    for _ in range(20):
        pace.saw_prefill(400.0, 0.1)
    queue.saw(running=0, waiting=0, num_sent=0, now=-1.0)
    late = split(queue, queue.send(0, 0.0), 5.0, 6.0, pace)
    assert (late.queue_s, late.unclear_s) == pytest.approx((0.0, 4.9), abs=0.05)
    call = queue.send(0, 6.0)
    queue.saw(running=1, waiting=0, num_sent=1, now=7.0)
    denied = split(queue, call, 11.0, 12.0, pace)
    assert (denied.queue_s, denied.unclear_s) == (0.0, 0.0)


def test_many_prompts_at_once_wait_for_each_other_until_the_iteration_that_computes_them_begins() -> None:
    """Each iteration ends two of the prompts, and computes a part of the next one."""
    pace, queue = Pace(), EngineQueue()
    for _ in range(20):
        pace.saw_prefill(400.0, 0.6)
    queue.saw(running=0, waiting=0, num_sent=0, now=-1.0)
    calls, spent = [queue.send(number, 0.0) for number in range(8)], []
    for number, call in enumerate(calls):
        if number == 4:
            queue.saw(running=7, waiting=1, num_sent=8, now=3.0)
        queue.first_byte(call, 0.4, 1.25 * (1 + number // 2))
    for call in calls:
        spent.append(queue.split(call, pace, False, 20.0, 400.0, 0.0))
        queue.ended(20.0)
    begun = [0.0, 0.0, 0.0, 1.25, 1.25, 2.5, 2.5, 3.75]
    assert not any(one.unclear_s for one in spent)
    assert [one.queue_s for one in spent] == pytest.approx(begun)


def test_a_call_began_after_the_polls_that_count_it_as_waiting_and_before_the_first_that_does_not() -> None:
    """It came whole; the engine ran four calls of which none ended."""
    queue = EngineQueue()
    calls = [queue.send(number, 0.0) for number in range(6)]
    for now, running, waiting in ((1.0, 4, 2), (2.0, 5, 1), (3.0, 6, 0)):
        queue.saw(running, waiting, num_sent=6, now=now)
    spent = [queue.split(call, Pace(), True, 9.0, 400.0, 0.0) for call in calls]
    assert [one.queue_s for one in spent] == pytest.approx([0.0, 0.0, 0.0, 0.0, 1.5, 2.5])
    assert spent[5].unclear_s == pytest.approx(0.5)


def test_calls_of_others_in_the_queue_do_not_count_as_our_own() -> None:
    queue = EngineQueue()
    call = queue.send(0, 0.0)
    queue.saw(running=4, waiting=3, num_sent=1, now=1.0)
    assert queue.split(call, Pace(), True, 4.0, 400.0, 0.0).queue_s == 0.0


def test_the_part_of_the_queue_in_which_the_engine_computed_other_prompts_is_said() -> None:
    pace, queue = Pace(), EngineQueue()
    calls = [queue.send(number, 0.0) for number in range(2)]
    queue.saw(running=1, waiting=1, num_sent=2, now=1.0)
    queue.ended(4.0)
    queue.first_byte(calls[1], 0.0, 4.05)
    spent = queue.split(calls[1], pace, False, 5.0, 10.0, 3.0)
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
        queue.saw(running, waiting, running + waiting, 0.0)
        assert queue.slots == slots


def test_an_answer_that_stood_still_for_a_prompt_of_another_call_is_beside_it_and_not_decode() -> None:
    def stood_still(stalled_s: float) -> EngineTime:
        queue = EngineQueue()
        call = queue.send(0, 0.0)
        queue.first_byte(call, 0.0, 0.1)
        return queue.split(call, Pace(), False, 3.0, 10.0, 0.0, stalled_s)

    spent = stood_still(2.5)
    assert (spent.beside_s, spent.decode_s) == pytest.approx((2.5, 0.4))
    assert spent.prefill_s == pytest.approx(2.6)
    short = stood_still(0.05)
    assert (short.beside_s, short.decode_s) == pytest.approx((0.0, 2.9))
