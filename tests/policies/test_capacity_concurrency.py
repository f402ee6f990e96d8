"""Laws of how many calls an engine runs at once that does not state it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.capacity import Concurrency
from policies.types import CacheLost, ReplicaReported
from tests.policies.test_scheduler import Fleet, ids
from tests.policies.turns_of import done, turn

Polls = list[tuple[int, int]]
"""(Running, waiting) of each."""


def learned(polls: Polls, is_wanted: bool = True) -> list[int | None]:
    """What is believed after each."""
    concurrency, found = Concurrency(), []
    for running, waiting in polls:
        concurrency.saw(running, waiting, is_wanted)
        found.append(concurrency.slots)
    return found


@pytest.mark.parametrize(
    ("polls", "slots"),
    [
        pytest.param([(500, 0)] * 9, None, id="no queue"),
        pytest.param([(3, 40), (90, 10), (100, 0)] * 9, None, id="a burst on its way into the batch"),
        pytest.param(
            [(n, 400 - n) for n in range(1, 60)], None, id="what runs grows: one prefill after the other"
        ),
        pytest.param([(0, 9)] * 9, None, id="it stands still"),
        pytest.param([(64, 5), (64, 7)], None, id="two polls may be chance"),
        pytest.param([(64, 5), (64, 7), (64, 1)], 64, id="it is full"),
        pytest.param([(40, 5), (36, 7), (41, 1), (38, 4), (39, 4)], 41, id="it fluctuates for want of blocks"),
    ],
)
def test_what_runs_beside_a_queue_that_stays_is_what_it_can_run(polls: Polls, slots: int | None) -> None:
    assert learned(polls)[-1] == slots


FULL: Polls = [(64, 5)] * 3


def test_a_bound_follows_what_runs_at_once() -> None:
    assert learned([*FULL, (80, 3)])[-1] == 80


def test_a_bound_that_holds_turns_back_is_tried_ever_faster_until_there_is_a_queue() -> None:
    assert learned([*FULL, *[(64, 0)] * 4])[3:] == [72, 88, 120, 184]
    assert learned([*FULL, (64, 0), (64, 8), (64, 8), (64, 8), (64, 0)])[3:] == [72, 72, 72, 64, 72]
    assert learned([(1, 1)] * 3 + [(1, 0)] * 5)[3:] == [2, 4, 8, 16, 32]


def test_a_bound_that_holds_nobody_back_stays() -> None:
    assert learned([*FULL, *[(2, 0)] * 9], is_wanted=False)[-1] == 64


def engine_with(slots: int, num_polls: int, num_turns: int = 500) -> list[int | None]:
    """A fleet that always has more turns than the engine has slots, which it does not state."""
    concurrency, believed = Concurrency(), []
    for _ in range(num_polls):
        sent = num_turns if concurrency.slots is None else min(num_turns, concurrency.slots)
        running = min(slots, sent)
        concurrency.saw(running, sent - running, is_wanted=sent < num_turns)
        believed.append(concurrency.slots)
    return believed


@given(st.integers(1, 400))
def test_the_slots_of_an_engine_are_found_and_never_undercut(slots: int) -> None:
    believed = engine_with(slots, 40)
    assert believed[2] == slots
    assert all(one is not None and slots <= one <= slots + max(1, slots // 8) for one in believed[2:])


@given(st.integers(1, 100), st.integers(100, 400))
def test_a_bound_that_was_wrong_heals_within_some_polls(wrong: int, slots: int) -> None:
    concurrency = Concurrency()
    for _ in range(3):
        concurrency.saw(wrong, 9, is_wanted=True)
    for _ in range(10):
        assert concurrency.slots is not None
        concurrency.saw(min(slots, concurrency.slots), max(0, concurrency.slots - slots), is_wanted=True)
    assert concurrency.slots is not None
    assert concurrency.slots >= slots


def polled(fleet: Fleet, now: float, running: int, waiting: int) -> list[str]:
    fact = ReplicaReported("r", frozenset("m"), waiting=waiting, running=running, is_on_trial=False)
    return ids(fleet.tell(fact, now))


def test_an_engine_that_states_nothing_takes_all_until_it_shows_a_queue() -> None:
    fleet = Fleet(replicas=0)
    polled(fleet, 0.0, 0, 0)
    for number in range(500):
        assert ids(fleet.arrive(turn(f"t{number}"))) == [f"t{number}"]
    for second in range(3):
        assert polled(fleet, 1.0 + second, 300, 200) == []
    assert fleet.arrive(turn("late", at=4.0)) == []
    for number in range(200):
        assert fleet.tell(done(f"t{number}"), 5.0) == []
    assert ids(fleet.tell(done("t200"), 6.0)) == ["late"]
    [replica] = fleet.scheduler.view().replicas
    assert replica.slots == 300


def test_turns_go_as_soon_as_a_poll_gives_them_slots() -> None:
    fleet = Fleet(replicas=0)
    for name in "ab":
        fleet.tell(ReplicaReported("r", frozenset("m")), 0.0)
        fleet.arrive(turn(name))
    for second in range(3):
        polled(fleet, 1.0 + second, 2, 1)
    for number in range(5):
        assert fleet.arrive(turn(f"t{number}", at=5.0)) == []
    assert polled(fleet, 6.0, 2, 0) == ["t0"]
    assert polled(fleet, 7.0, 3, 0) == ["t1", "t2"]
    assert polled(fleet, 8.0, 5, 0) == ["t3", "t4"]


def test_what_is_stated_is_not_learned_and_a_trial_lasts_no_longer_than_it_does() -> None:
    for stated, free in ((4, 4), (None, None)):
        fleet = Fleet(replicas=0)
        fleet.tell(ReplicaReported("r", slots=stated, running=9, waiting=9, is_on_trial=True), 0.0)
        assert fleet.scheduler.view().replicas[0].slots == 1
        fleet.tell(ReplicaReported("r", share=0.5), 0.0)
        assert fleet.scheduler.view().replicas[0].slots == 1
        for second in range(9):
            fleet.tell(ReplicaReported("r", slots=stated, running=9, waiting=9, is_on_trial=False), 1.0 + second)
        assert fleet.scheduler.view().replicas[0].slots == (2 if free else 4)  # its half; of 9 that run


def test_an_engine_that_was_restarted_is_another_one() -> None:
    fleet = Fleet(replicas=0)
    for second in range(3):
        polled(fleet, float(second), 2, 1)
    assert fleet.scheduler.view().replicas[0].slots == 2
    fleet.tell(CacheLost("r", None), 4.0)
    polled(fleet, 5.0, 0, 0)
    assert fleet.scheduler.view().replicas[0].slots is None
