from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from policies.admission import Limits
from policies.fifo import Fifo
from policies.policy import Policy
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import (
    Arrived,
    Dispatch,
    Ending,
    Fact,
    Hold,
    Left,
    Reason,
    Refusal,
    Reject,
    ReplicaLost,
    ReplicaReported,
    SessionEnded,
    Tick,
    Turn,
    TurnKind,
)
from tests.policies.turns_of import TOKENS_PER_BLOCK, TOKENS_PER_CHAR, done, turn

BIG = ("big", 40)


class Fleet:
    """A scheduler with a transcript: each call is a fact, each answer its decisions."""

    def __init__(
        self,
        policy: Policy | None = None,
        blocks: int = 100,
        slots: int = 8,
        replicas: int = 1,
        limits: Limits | None = None,
    ) -> None:
        self.scheduler = Scheduler(policy or Turns(), limits or Limits())
        self.wake_at: float | None = None
        for number in range(replicas):
            self.tell(
                ReplicaReported(f"r{number}", None, blocks * TOKENS_PER_BLOCK, slots, 0, TOKENS_PER_CHAR), 0.0
            )

    def tell(self, fact: Fact, now: float) -> list[Dispatch | Reject]:
        """What is decided about turns."""
        decisions, self.wake_at = self.scheduler.tell(fact, now)
        return [decision for decision in decisions if isinstance(decision, Dispatch | Reject)]

    def arrive(self, arriving: Turn) -> list[Dispatch | Reject]:
        return self.tell(Arrived(arriving), arriving.arrived_at)


def ids(decisions: Sequence[Dispatch | Reject]) -> list[str]:
    return [decision.turn_id for decision in decisions]


def test_with_room_for_everybody_nothing_waits() -> None:
    fleet = Fleet(blocks=1_000)
    for number in range(8):
        [decision] = fleet.arrive(turn(f"t{number}", ("shared", 10), (f"s{number}", 2)))
        assert isinstance(decision, Dispatch)
        assert decision.reason is Reason.FREE


def test_a_session_that_does_not_fit_waits_until_another_ends() -> None:
    fleet = Fleet()
    assert fleet.arrive(turn("a", ("a", 70), remaining=0))
    assert fleet.arrive(turn("b", ("b", 70), at=1.0, remaining=0)) == []
    [decision] = fleet.tell(done("a"), 2.0)
    assert (decision.turn_id, decision.reason) == ("b", Reason.ADMITTED)  # type: ignore[union-attr]


def test_a_shared_prefix_lets_siblings_in_that_a_sum_would_hold() -> None:
    fleet = Fleet()
    for name in "abcd":
        assert ids(fleet.arrive(turn(name, ("shared", 60), (name, 3), remaining=0))) == [name]


def test_a_resident_session_waits_for_a_slot_only() -> None:
    fleet = Fleet(slots=1)
    fleet.arrive(turn("a1", ("a", 40), session="a", remaining=1))
    fleet.tell(done("a1"), 1.0)
    fleet.arrive(turn("b1", ("b", 30), session="b", at=1.0, remaining=0))
    assert fleet.arrive(turn("a2", ("a", 42), session="a", at=2.0, remaining=0)) == []
    [decision] = fleet.tell(done("b1"), 3.0)
    assert (decision.turn_id, decision.reason) == ("a2", Reason.RESIDENT)  # type: ignore[union-attr]


def test_who_has_fewer_turns_to_go_goes_first() -> None:
    fleet = Fleet()
    fleet.arrive(turn("a", ("a", 90), remaining=0))
    fleet.arrive(turn("long", ("long", 50), at=1.0, remaining=9))
    fleet.arrive(turn("short", ("short", 50), at=2.0, remaining=0))
    assert ids(fleet.tell(done("a"), 3.0)) == ["short"]


def test_an_idle_session_keeps_its_residency_for_its_lease_and_no_longer() -> None:
    fleet = Fleet(blocks=400)
    fleet.arrive(turn("a1", ("a", 240), session="a", remaining=3))
    fleet.tell(done("a1"), 1.0)
    assert fleet.arrive(turn("b", ("b", 240), at=2.0, remaining=0)) == []
    assert fleet.wake_at is not None
    assert ids(fleet.tell(Tick(), fleet.wake_at)) == ["b"]


def test_a_session_that_says_it_has_ended_frees_its_room_at_once() -> None:
    fleet = Fleet(blocks=400)
    fleet.arrive(turn("a1", ("a", 240), session="a", remaining=3))
    fleet.tell(done("a1"), 1.0)
    fleet.arrive(turn("b", ("b", 240), at=2.0, remaining=0))
    assert ids(fleet.tell(SessionEnded("a"), 2.5)) == ["b"]


def test_past_the_bound_idle_residents_yield_to_the_oldest() -> None:
    fleet = Fleet()
    fleet.arrive(turn("a1", ("a", 60), session="a", remaining=50))
    fleet.arrive(turn("b", ("b", 60), remaining=60))
    for number in range(1, 12):
        assert fleet.tell(done(f"a{number}"), 5.0 * number) == []
        assert fleet.arrive(turn(f"a{number + 1}", ("a", 60), session="a", at=5.0 * number + 1, remaining=50))
    [decision] = fleet.tell(done("a12"), 61.0)
    assert (decision.turn_id, decision.reason) == ("b", Reason.YIELDED)  # type: ignore[union-attr]


def test_a_session_larger_than_the_ceiling_runs_alone() -> None:
    fleet = Fleet()
    fleet.arrive(turn("a", ("a", 20), remaining=0))
    assert fleet.arrive(turn("huge", ("huge", 500), at=1.0)) == []
    [decision] = fleet.tell(done("a"), 2.0)
    assert (decision.turn_id, decision.reason) == ("huge", Reason.ALONE)  # type: ignore[union-attr]
    assert fleet.arrive(turn("next", ("next", 5), at=3.0, remaining=0)) == []
    fleet.tell(SessionEnded("huge"), 4.0)
    assert ids(fleet.tell(done("huge"), 5.0)) == []
    assert fleet.wake_at is not None
    assert ids(fleet.tell(Tick(), fleet.wake_at)) == ["next"]


def test_residents_that_outgrow_the_pool_are_held_at_their_next_turn_furthest_from_the_end_first() -> None:
    fleet = Fleet()
    for name, remaining in (("near", 1), ("far", 2)):
        fleet.arrive(turn(f"{name}1", (name, 30), session=name, remaining=remaining))
        fleet.tell(done(f"{name}1"), 1.0)
    assert ids(fleet.arrive(turn("near2", ("near", 180), session="near", at=2.0, remaining=0))) == ["near2"]
    assert fleet.arrive(turn("far2", ("far", 40), session="far", at=3.0, remaining=1)) == []
    assert ids(fleet.tell(done("near2"), 4.0)) == ["far2"]


def test_a_side_request_needs_a_slot_but_no_residency() -> None:
    fleet = Fleet()
    fleet.arrive(turn("a", ("a", 90), remaining=0))
    [decision] = fleet.arrive(turn("title", ("title", 40), at=1.0, kind=TurnKind.SIDE))
    assert (decision.turn_id, decision.reason) == ("title", Reason.SIDE)  # type: ignore[union-attr]


def slow_queue() -> Fleet:
    """A fleet whose gate has let one turn through every 100 s, the last at 600 s, with two waiting."""
    fleet = Fleet()
    fleet.arrive(turn("a", ("a", 90), remaining=0))
    for number in range(8):
        fleet.arrive(turn(f"w{number}", (f"w{number}", 90), remaining=0))
    for number, name in enumerate(["a", "w0", "w1", "w2", "w3", "w4"]):
        fleet.tell(done(name), 100.0 * (number + 1))
    return fleet


def test_a_wait_longer_than_the_client_survives_is_refused_on_arrival() -> None:
    fleet = slow_queue()
    [decision] = fleet.arrive(turn("late", ("late", 90), at=601.0, max_wait_s=200.0))
    assert isinstance(decision, Reject)
    assert decision.refusal is Refusal.TOO_LONG
    assert decision.retry_after_s == pytest.approx(3 * (601 - 100) / 6)


def test_nobody_is_refused_on_the_evidence_of_a_few_admissions() -> None:
    fleet = Fleet()
    fleet.arrive(turn("a", ("a", 90), remaining=0))
    for number in range(8):
        fleet.arrive(turn(f"w{number}", (f"w{number}", 90), remaining=0))
    fleet.tell(done("a"), 1_000.0)
    assert fleet.arrive(turn("late", ("late", 90), at=1_001.0, max_wait_s=200.0)) == []


def test_a_refused_session_keeps_its_place_for_twice_the_time() -> None:
    fleet = slow_queue()
    fleet.arrive(turn("late", ("late", 90), session="s", at=601.0, max_wait_s=200.0))
    fleet.arrive(turn("rival", ("rival", 90), at=602.0, remaining=None))
    fleet.arrive(turn("again", ("late", 90), session="s", at=851.0, is_retry=True))
    for number, name in enumerate(["w5", "w6"]):
        fleet.tell(done(name), 852.0 + number)
    assert ids(fleet.tell(done("w7"), 855.0)) == ["again"]


def test_a_client_that_leaves_the_queue_and_returns_keeps_its_place() -> None:
    fleet = Fleet()
    fleet.arrive(turn("a", ("a", 90), remaining=0))
    fleet.arrive(turn("b", ("b", 50), session="b", at=1.0, remaining=0))
    fleet.arrive(turn("c", ("c", 50), session="c", at=2.0, remaining=0))
    fleet.tell(Left("b", Ending.CANCELLED), 3.0)
    fleet.arrive(turn("b again", ("b", 50), session="b", at=4.0, remaining=0, is_retry=True))
    assert ids(fleet.tell(done("a"), 5.0)) == ["b again"]


def test_a_deadline_that_the_queue_cannot_meet_is_refused_early() -> None:
    [decision] = slow_queue().arrive(turn("late", ("late", 90), at=601.0, deadline_at=610.0))
    assert isinstance(decision, Reject)
    assert decision.refusal is Refusal.DEADLINE


def test_without_a_replica_the_answer_is_now_not_later() -> None:
    fleet = Fleet(replicas=0)
    [decision] = fleet.arrive(turn("a"))
    assert isinstance(decision, Reject)
    assert decision.refusal is Refusal.NO_REPLICA


def test_a_lost_replica_gives_its_queue_to_the_others() -> None:
    fleet = Fleet(Fifo(), slots=1, replicas=2)
    first = fleet.arrive(turn("a"))
    second = fleet.arrive(turn("b"))
    fleet.arrive(turn("c"))
    lost = next(d.replica_id for d in [*first, *second] if isinstance(d, Dispatch))
    running = {d.replica_id: d.turn_id for d in [*first, *second] if isinstance(d, Dispatch)}
    fleet.tell(Left(running[lost], Ending.FAILED), 1.0)
    fleet.tell(ReplicaLost(lost), 1.0)
    other = next(replica_id for replica_id in running if replica_id != lost)
    decided = fleet.tell(done(running[other]), 2.0)
    assert all(isinstance(d, Dispatch) and d.replica_id == other for d in decided)


def test_a_failed_call_goes_to_a_replica_that_has_not_failed_it() -> None:
    fleet = Fleet(replicas=2)
    [first] = fleet.arrive(turn("a", ("p", 4)))
    assert isinstance(first, Dispatch)
    fleet.tell(Left("a", Ending.FAILED), 1.0)
    excluded = frozenset({first.replica_id})
    [second] = fleet.arrive(turn("a'", ("p", 4), session="a", at=1.0, is_retry=True, excluded=excluded))
    assert isinstance(second, Dispatch)
    assert second.replica_id != first.replica_id


def test_a_session_returns_to_the_replica_that_holds_its_prefix() -> None:
    fleet = Fleet(blocks=1_000, replicas=4)
    [first] = fleet.arrive(turn("a1", ("a", 50), session="a", remaining=1))
    fleet.tell(done("a1"), 1.0)
    [second] = fleet.arrive(turn("a2", ("a", 52), session="a", at=2.0, remaining=0))
    assert isinstance(first, Dispatch)
    assert isinstance(second, Dispatch)
    assert second.replica_id == first.replica_id
    assert second.expected_cached_tokens == 50 * TOKENS_PER_BLOCK


def test_an_engine_that_does_not_tell_its_capacity_is_not_gated() -> None:
    fleet = Fleet(replicas=0)
    fleet.tell(ReplicaReported("r0"), 0.0)
    for number in range(30):
        assert len(fleet.arrive(turn(f"t{number}", (f"t{number}", 500)))) == 1


def test_hints_rise_as_a_session_nears_its_end() -> None:
    fleet = Fleet(blocks=1_000)
    urgencies = []
    for number, remaining in enumerate([3, 2, 1, 0]):
        [decision] = fleet.arrive(turn(f"a{number}", ("a", 5 + number), session="a", remaining=remaining))
        assert isinstance(decision, Dispatch)
        urgencies.append(decision.hints.urgency)
        fleet.tell(done(f"a{number}"), 0.0)
    assert urgencies == sorted(set(urgencies))


def test_a_session_that_has_probably_ended_gives_way_before_its_lease_ends() -> None:
    fleet = Fleet()
    for number in range(8):  # its family's sessions end after one turn, or come back at once
        for step in range(2):
            fleet.arrive(turn(f"x{number}.{step}", session=f"x{number}", at=number + 0.1 * step))
            fleet.tell(done(f"x{number}.{step}"), number + 0.1 * step)
            fleet.tell(SessionEnded(f"x{number}"), number + 0.5) if step else None
    fleet.arrive(turn("a", ("a", 60), at=20.0))
    fleet.tell(done("a"), 21.0)
    [decision] = fleet.arrive(turn("b", ("b", 60), at=23.0))
    assert isinstance(decision, Dispatch)


def test_a_turn_that_waits_is_refused_when_its_deadline_comes() -> None:
    fleet = Fleet()
    fleet.arrive(turn("a", ("a", 90), remaining=0))
    assert fleet.arrive(turn("b", ("b", 90), at=1.0, deadline_at=5.0)) == []
    assert fleet.wake_at == 5.0
    [decision] = fleet.tell(Tick(), 5.0)
    assert isinstance(decision, Reject)
    assert decision.refusal is Refusal.DEADLINE
    assert fleet.tell(Left("b", Ending.CANCELLED), 5.0) == []


def test_a_turn_that_may_not_go_yet_waits_for_its_time_and_holds_up_nobody() -> None:
    fleet = Fleet(Fifo(), slots=1)
    later = replace(turn("back", session="a", is_retry=True), not_before=5.0)
    assert fleet.tell(Arrived(later), 1.0) == []
    assert fleet.wake_at == 5.0
    assert fleet.scheduler.view().waiting[Hold.REPLICA] == 1
    assert ids(fleet.arrive(turn("b", at=2.0))) == ["b"]
    assert fleet.arrive(turn("c", at=3.0)) == []
    assert fleet.tell(Tick(), 5.0) == []
    assert ids(fleet.tell(done("b"), 6.0)) == ["back"], "it has come first"
    assert ids(fleet.tell(done("back"), 7.0)) == ["c"]


def test_a_turn_that_may_not_go_yet_can_leave_and_has_its_deadline() -> None:
    fleet = Fleet()
    assert fleet.tell(Arrived(replace(turn("a"), not_before=9.0)), 1.0) == []
    assert fleet.tell(Left("a", Ending.CANCELLED), 2.0) == []
    assert fleet.tell(Arrived(replace(turn("b", deadline_at=4.0), not_before=9.0)), 3.0) == []
    [refused] = fleet.tell(Tick(), 4.0)
    assert isinstance(refused, Reject)
    assert refused.refusal is Refusal.DEADLINE
    assert fleet.tell(Tick(), 9.0) == []
    assert sum(fleet.scheduler.view().waiting.values()) == 0


def test_a_turn_whose_time_comes_when_nobody_is_up_is_refused() -> None:
    fleet = Fleet()
    fleet.tell(Arrived(replace(turn("a"), not_before=9.0)), 1.0)
    assert fleet.tell(ReplicaLost("r0"), 2.0) == []
    [refused] = fleet.tell(Tick(), 9.0)
    assert isinstance(refused, Reject)
    assert refused.refusal is Refusal.NO_REPLICA


@pytest.mark.parametrize("blocks", [90, 97, 98, 99, 100, 101, 150])
def test_a_turn_as_large_as_an_empty_pool_goes_there(blocks: int) -> None:
    fleet = Fleet()
    for number in range(20):
        at = 4.0 * number
        assert fleet.arrive(turn(f"t{number}", ("a", 2 + number), session="a", at=at))
        fleet.tell(done(f"t{number}", output_tokens=9), at + 1.0)
    fleet.tell(SessionEnded("a"), 300.0)
    [decision] = fleet.arrive(turn("giant", ("giant", blocks), at=400.0))
    assert isinstance(decision, Dispatch)
