"""Laws of backpressure: what an engine would refuse, or put into another order, stays at the gate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.backpressure import SHORT_S
from policies.fifo import Passthrough
from policies.types import Dispatch, Ending, FirstByte, Left, QueueLimits, ReplicaReported, Turn
from tests.policies.test_scheduler import Fleet, ids
from tests.policies.turns_of import TOKENS_PER_BLOCK, done, turn


def limited(limits: QueueLimits, slots: int = 8, share: float = 1.0) -> Fleet:
    fleet = Fleet(blocks=1_000, slots=slots)
    fleet.tell(ReplicaReported("r0", limits=limits, share=share), 0.0)
    return fleet


def polled(fleet: Fleet, now: float, waiting: int, running: int = 1) -> list[str]:
    """The turns that go when a poll has these counts."""
    return ids(fleet.tell(ReplicaReported("r0", running=running, waiting=waiting), now))


def arrived(fleet: Fleet, num: int, at: float = 1.0) -> list[str]:
    """The turns that go of so many that come at once."""
    return [id_ for number in range(num) for id_ in ids(fleet.arrive(turn(f"t{number}", at=at)))]


def test_no_more_calls_wait_for_their_first_byte_than_the_queue_of_the_engine_takes() -> None:
    fleet = limited(QueueLimits(waiting=3))
    assert arrived(fleet, 6) == ["t0", "t1", "t2"]
    assert ids(fleet.tell(FirstByte("t0"), 2.0)) == ["t3"]
    assert ids(fleet.tell(done("t1"), 3.0)) == ["t4"]
    assert ids(fleet.tell(done("t0"), 4.0)) == []


def test_a_part_of_an_engine_has_that_part_of_its_queue_and_at_least_one_place() -> None:
    assert arrived(limited(QueueLimits(waiting=4), slots=32, share=0.5), 6) == ["t0", "t1"]
    assert arrived(limited(QueueLimits(waiting=4), slots=32, share=0.1), 6) == ["t0"]
    assert arrived(limited(QueueLimits(waiting=0)), 6) == ["t0"]


def test_a_call_whose_answer_comes_whole_has_begun_once_three_polls_saw_no_queue() -> None:
    fleet = limited(QueueLimits(waiting=2))
    assert arrived(fleet, 5) == ["t0", "t1"]
    assert polled(fleet, 2.0, waiting=0) == []
    assert polled(fleet, 3.0, waiting=0) == []
    assert polled(fleet, 4.0, waiting=0) == ["t2", "t3"]


def test_calls_that_polls_saw_waiting_keep_their_places() -> None:
    fleet = limited(QueueLimits(waiting=2))
    arrived(fleet, 6)
    for second in (2.0, 3.0, 4.0):
        assert polled(fleet, second, waiting=2) == []
    assert polled(fleet, 5.0, waiting=1) == ["t2"]


def test_calls_of_others_in_the_queue_leave_the_rest_and_one_call_may_always_go() -> None:
    fleet = limited(QueueLimits(waiting=4))
    polled(fleet, 0.5, waiting=2)
    assert arrived(fleet, 4) == ["t0", "t1"]
    full = limited(QueueLimits(waiting=4))
    polled(full, 0.5, waiting=4)
    assert arrived(full, 4) == ["t0"]


def test_an_engine_that_refuses_beyond_so_many_calls_gets_no_more_at_once() -> None:
    assert arrived(limited(QueueLimits(calls=2)), 4) == ["t0", "t1"]
    assert len(arrived(limited(QueueLimits(calls=100)), 12)) == 8


@pytest.mark.parametrize(
    "limits",
    [QueueLimits(prompt_tokens=3 * TOKENS_PER_BLOCK), QueueLimits(prefill_tokens=3 * TOKENS_PER_BLOCK)],
    ids=["prompt_tokens", "prefill_tokens"],
)
def test_prompts_without_a_first_byte_stay_below_what_the_engine_takes(limits: QueueLimits) -> None:
    fleet = limited(limits)
    turns = [turn(f"t{number}", (f"s{number}", 2), at=1.0) for number in range(4)]
    assert [id_ for one in turns for id_ in ids(fleet.arrive(one))] == ["t0", "t1"]
    assert ids(fleet.tell(FirstByte("t0"), 2.0)) == ["t2"]


def test_an_engine_that_says_it_is_full_gets_nothing_until_it_says_otherwise() -> None:
    fleet = limited(QueueLimits())
    assert arrived(fleet, 1) == ["t0"]
    fleet.tell(FirstByte("t0"), 1.5)
    fleet.tell(ReplicaReported("r0", limits=QueueLimits(is_full=True)), 2.0)
    assert ids(fleet.arrive(turn("late", at=3.0))) == []
    assert ids(fleet.tell(ReplicaReported("r0", limits=QueueLimits()), 4.0)) == ["late"]


def test_an_engine_that_refused_a_call_gets_no_other_until_one_begins_or_ends_there_or_a_poll_comes() -> None:
    for news in (FirstByte("t0"), done("t0"), ReplicaReported("r0", running=1, waiting=0)):
        fleet = limited(QueueLimits(waiting=3))
        assert arrived(fleet, 2) == ["t0", "t1"]
        fleet.tell(Left("t1", Ending.REFUSED), 2.0)
        assert ids(fleet.arrive(turn("next", at=3.0))) == []
        assert ids(fleet.tell(news, 4.0)) == ["next"]


def test_an_engine_that_refused_its_only_call_gets_the_next() -> None:
    fleet = limited(QueueLimits(waiting=3))
    assert arrived(fleet, 1) == ["t0"]
    fleet.tell(Left("t0", Ending.REFUSED), 2.0)
    assert ids(fleet.arrive(turn("next", at=3.0))) == ["next"]


def test_a_policy_that_bounds_no_slots_bounds_no_queue() -> None:
    fleet = Fleet(Passthrough(), blocks=1_000, slots=1)
    fleet.tell(ReplicaReported("r0", limits=QueueLimits(waiting=1)), 0.0)
    assert len(arrived(fleet, 4)) == 4


# ---- calls that the engine does not rank


def unranked(turn_id: str, at: float, remaining: int | None = None) -> Turn:
    return replace(turn(turn_id, at=at, remaining=remaining), unranked=frozenset(("r0",)))


def ranked_late(fleet: Fleet) -> list[str]:
    """The turns that go of: one that the engine does not rank, five others, and then the best of all."""
    went = ids(fleet.arrive(unranked("first", 1.0, remaining=9)))
    for number in range(5):
        went += ids(fleet.arrive(turn(f"next{number}", at=2.0, remaining=8 - number)))
    return went + ids(fleet.arrive(unranked("best", 3.0, remaining=0)))


FEW = ["first", "next0"]


def test_while_calls_come_that_an_engine_does_not_rank_few_wait_there_and_the_gate_orders_the_others() -> None:
    fleet = limited(QueueLimits(), slots=32)
    polled(fleet, 0.5, waiting=1)
    assert ranked_late(fleet) == FEW
    assert ids(fleet.tell(FirstByte("next0"), 4.0)) == ["best"]
    assert ids(fleet.tell(done("first"), 5.0)) == ["next4"]


def test_an_engine_without_a_queue_gets_them_all() -> None:
    fleet = limited(QueueLimits(), slots=32)
    polled(fleet, 0.5, waiting=0)
    assert len(ranked_late(fleet)) == 7


def test_an_engine_that_ranks_all_its_calls_may_queue_them() -> None:
    fleet = limited(QueueLimits(), slots=32)
    polled(fleet, 0.5, waiting=1)
    assert len(arrived(fleet, 5)) == 5


def test_some_time_after_the_last_such_call_the_queue_is_not_kept_short_any_more() -> None:
    fleet = limited(QueueLimits(), slots=32)
    polled(fleet, 0.5, waiting=1)
    assert ids(fleet.arrive(unranked("first", 1.0))) == ["first"]
    assert len(arrived(fleet, 5, at=2.0)) == 1
    assert len(polled(fleet, 2.0 + SHORT_S, waiting=1)) == 4


def test_batches_which_the_engine_puts_last_in_any_case_take_no_place_of_the_short_queue() -> None:
    fleet = limited(QueueLimits(waiting=100), slots=32)
    for number in range(4):
        [sent] = fleet.arrive(turn(f"b{number}", at=0.1, priority_class=-2))
        assert isinstance(sent, Dispatch)
    polled(fleet, 0.5, waiting=4)
    assert ranked_late(fleet) == FEW


def test_calls_that_wait_there_then_have_one_rank_but_batches_which_stay_behind() -> None:
    fleet = limited(QueueLimits(), slots=32)
    urgencies = {}
    for waiting, name in ((0, "before"), (1, "short")):
        polled(fleet, 0.5, waiting=waiting)
        last = unranked(f"{name} last", 1.0, remaining=0)
        batch = turn(f"{name} batch", at=1.0, priority_class=-2)
        for one in (last, batch):
            for sent in fleet.arrive(one):
                assert isinstance(sent, Dispatch)
                urgencies[sent.turn_id] = sent.hints.urgency
    assert urgencies["before last"] == 80
    assert urgencies["short last"] == 0
    assert urgencies["short batch"] < 0
