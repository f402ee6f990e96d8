"""Laws of the policy `deadline`: of the turns that wait, the one with the earliest deadline goes first."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.admission import Limits
from policies.admission_queue import Bucket, HeldTurns
from policies.deadline import EarliestDeadline
from policies.scheduler import Scheduler
from policies.types import Arrived, Dispatch, Fact, Reject, ReplicaReported, SessionEnded
from tests.policies.turns_of import TOKENS_PER_BLOCK, done, turn

FLOW = (0, "t")


class OneSlot:
    """A fleet of one replica with one slot and room for one session of 60 blocks."""

    def __init__(self, slots: int = 1) -> None:
        self.scheduler = Scheduler(EarliestDeadline(), Limits())
        self.tell(ReplicaReported("r0", None, 100 * TOKENS_PER_BLOCK, slots, 0))

    def tell(self, fact: Fact, now: float = 0.0) -> list[str]:
        decisions, _ = self.scheduler.tell(fact, now)
        return [d.turn_id for d in decisions if isinstance(d, Dispatch | Reject)]

    def order(self, *names: str, now: float) -> list[str]:
        """End the running turn and its session, again and again; returns the order in which the others go."""
        served: list[str] = []
        running = list(names)
        while running:
            name = running.pop()
            running += self.tell(done(name), now)
            running += self.tell(SessionEnded(name), now)
            served += running
        return served


def test_at_the_gate_the_earliest_deadline_goes_first_and_turns_without_one_last_by_age() -> None:
    fleet = OneSlot()
    assert fleet.tell(Arrived(turn("runs", ("runs", 60)))) == ["runs"]
    for number, (name, deadline_at) in enumerate([("old", None), ("late", 900.0), ("soon", 500.0), ("new", None)]):
        arriving = turn(name, (name, 60), at=0.1 * number, deadline_at=deadline_at)
        assert fleet.tell(Arrived(arriving), 0.1 * number) == []
    assert fleet.order("runs", now=1.0) == ["soon", "late", "old", "new"]


def test_the_earliest_deadline_gets_the_next_slot() -> None:
    fleet = OneSlot()
    fleet.tell(Arrived(turn("runs", ("runs", 2))))
    for name, deadline_at in (("none", None), ("late", 900.0), ("soon", 500.0)):
        fleet.tell(Arrived(turn(name, (name, 2), deadline_at=deadline_at)))
    assert [fleet.tell(done(name), 1.0) for name in ("runs", "soon", "late")] == [["soon"], ["late"], ["none"]]


def test_deadlines_of_one_tenant_take_no_turn_from_another() -> None:
    fleet = OneSlot()
    fleet.tell(Arrived(turn("runs", ("runs", 2))))
    fleet.tell(Arrived(replace(turn("quiet", ("quiet", 2)), tenant="other")))
    for name in "abc":
        fleet.tell(Arrived(turn(name, (name, 2), deadline_at=10.0)), 0.5)
    assert fleet.tell(done("runs"), 1.0) == ["quiet"]


def test_a_turn_with_an_early_deadline_is_not_refused_for_the_wait_of_those_that_it_overtakes() -> None:
    fleet = OneSlot()
    running = fleet.tell(Arrived(turn("first", ("first", 60))))
    for number in range(60):
        fleet.tell(Arrived(turn(f"n{number}", (f"n{number}", 60))))
    for second in range(1, 11):  # ten admissions, one a second: fifty more take fifty seconds
        [name] = running
        running = fleet.tell(done(name), float(second)) + fleet.tell(SessionEnded(name), float(second))
    urgent = turn("urgent", ("urgent", 60), at=10.0, deadline_at=20.0)
    assert fleet.tell(Arrived(urgent), 10.0) == []
    [name] = running
    assert fleet.tell(done(name), 11.0) + fleet.tell(SessionEnded(name), 11.0) == ["urgent"]


@given(st.lists(st.tuples(st.sampled_from(["put", "take"]), st.none() | st.integers(0, 5)), max_size=60))
@settings(max_examples=300, deadline=None)
def test_the_incremental_order_and_places_equal_a_full_sort(steps: list[tuple[str, int | None]]) -> None:
    def rank(one: object, _bucket: Bucket) -> float:
        deadline_at = getattr(one, "deadline_at", None)
        return math.inf if deadline_at is None else deadline_at

    held = HeldTurns(rank)
    present: dict[str, tuple[float, float, int]] = {}
    for number, (action, deadline) in enumerate(steps):
        if action == "put":
            deadline_at = None if deadline is None else float(deadline)
            name = str(number)
            bucket = Bucket(0, False, "t", "f", 1, None, turn_id=name)
            held.put(turn(name, deadline_at=deadline_at), bucket, float(number % 7))
            present[name] = (math.inf if deadline_at is None else deadline_at, float(number % 7), number)
        elif present:
            name = sorted(present)[(deadline or 0) % len(present)]
            held.remove(name)
            del present[name]
        expected = sorted(present, key=lambda name: present[name])
        heads = held.heads(100, [FLOW]) if held else []
        assert [head.id for head in heads] == expected
        assert [held.num_before(FLOW, name) for name in expected] == list(range(len(expected)))
