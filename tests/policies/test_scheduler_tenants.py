"""Transcripts of several tenants: which one makes room, and which declarations are believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.shares import LATELY_S
from policies.turns import Turns
from policies.types import Dispatch, FirstByte, Hold, Reason, ReplicaReported, Turn, TurnKind
from tests.policies.tenants import Agents, Tenants
from tests.policies.test_scheduler import Fleet, ids
from tests.policies.turns_of import done, turn


def of(tenant: str, one: Turn, **more: object) -> Turn:
    return replace(one, tenant=tenant, family_id=tenant, **more)  # type: ignore[arg-type]


def idle(fleet: Fleet, tenant: str, name: str, blocks: int, remaining: int = 1) -> None:
    """A session between two turns."""
    assert fleet.arrive(of(tenant, turn(name, (name, blocks), remaining=remaining)))
    fleet.tell(done(name), 0.0)


def test_a_tenant_that_holds_much_of_a_pool_makes_room_for_one_that_holds_little_at_once() -> None:
    fleet = Fleet(blocks=400)
    for name in "abc":
        idle(fleet, "rich", name, 100)
    assert fleet.arrive(of("rich", turn("d", ("d", 100), at=1.0, remaining=1))) == []
    [decision] = fleet.arrive(of("poor", turn("x", ("x", 100), at=1.0)))
    assert isinstance(decision, Dispatch)
    assert (decision.turn_id, decision.reason) == ("x", Reason.ADMITTED)


@pytest.mark.parametrize(
    ("weight", "priority_class"),
    [pytest.param(0.4, 0, id="it has no more than its share"), pytest.param(1.0, -1, id="it is of a lower class")],
)
def test_it_makes_no_room_for_who_may_not_have_it(weight: float, priority_class: int) -> None:
    fleet = Fleet(blocks=400)
    for name in "abc":
        idle(fleet, "rich", name, 100)
    poor = of("poor", turn("x", ("x", 100), at=1.0, priority_class=priority_class), weight=weight)
    assert fleet.arrive(poor) == []


def test_among_tenants_an_engine_is_sent_its_next_prompt_when_it_has_begun_a_long_one() -> None:
    fleet = Fleet(slots=100, blocks=1_000)
    fleet.arrive(of("other", turn("x", ("x", 1))))
    assert ids(fleet.arrive(of("rich", turn("long", ("long", 200), at=1.0)))) == ["long"]
    assert fleet.arrive(of("rich", turn("next", ("next", 200), at=1.0))) == []
    assert ids(fleet.tell(FirstByte("long"), 5.0)) == ["next"]


def test_one_tenant_alone_sends_all_that_has_a_slot() -> None:
    fleet = Fleet(slots=100, blocks=1_000)
    assert [ids(fleet.arrive(turn(f"t{number}", (f"{number}", 200)))) for number in range(3)] == [
        ["t0"],
        ["t1"],
        ["t2"],
    ]


def test_a_session_that_is_all_that_its_tenant_has_makes_room_for_nobody() -> None:
    fleet = Fleet()
    idle(fleet, "one", "a", 80)
    assert fleet.arrive(of("other", turn("x", ("x", 30), at=1.0))) == []


def test_a_tenant_that_holds_much_of_a_pool_gets_more_room_only_for_as_many_turns_as_run() -> None:
    """Else turns that wait for a slot keep the room from tenants that could use it before."""
    fleet = Fleet(slots=1, blocks=400)
    for tenant in ("poor", "quiet", "still"):
        fleet.arrive(of(tenant, turn(f"{tenant}1", (tenant, 1))))
    for name in "abc":
        fleet.arrive(of("rich", turn(name, (name, 100), at=1.0)))
    assert fleet.scheduler.view().waiting == {Hold.SLOT: 4, Hold.RESIDENCY: 1, Hold.REPLICA: 0}
    fleet.arrive(of("poor", turn("y", ("y", 100), at=1.0)))
    assert fleet.scheduler.view().waiting == {Hold.SLOT: 5, Hold.RESIDENCY: 1, Hold.REPLICA: 0}


def test_a_tenant_that_is_far_behind_for_want_of_room_goes_before_smaller_turns_of_others() -> None:
    """Else it makes up for all of them in a row, once it has waited for a minute."""
    fleet = Fleet(slots=16, blocks=100)
    idle(fleet, "large", "a", 55)
    went = [turn_id for name in ("s0", "s1") for turn_id in ids(fleet.arrive(of("small", turn(name, (name, 20)))))]
    assert fleet.arrive(of("large", turn("b", ("b", 55)))) == []
    for number in range(2, 30):
        went += ids(fleet.tell(done(f"s{number - 2}"), 1.0)) if f"s{number - 2}" in went else []
        went += ids(fleet.arrive(of("small", turn(f"s{number}", (f"s{number}", 20), at=1.0))))
    assert went.index("b") * 20 <= 55 + 100 + 2 * 20


def test_residents_that_outgrow_the_pool_are_held_of_the_tenant_that_has_most_of_it() -> None:
    """However near to their end they say that they are."""
    fleet = Fleet(blocks=400)
    for name in "abc":
        idle(fleet, "rich", name, 60)
    idle(fleet, "poor", "x", 60)
    assert ids(fleet.arrive(of("rich", turn("a2", ("a", 330), session="a", at=0.2, remaining=0)))) == ["a2"]
    fleet.tell(FirstByte("a2"), 0.25)
    assert ids(fleet.arrive(of("poor", turn("x2", ("x", 61), session="x", at=0.3, remaining=98)))) == ["x2"]
    assert fleet.arrive(of("rich", turn("b2", ("b", 61), session="b", at=0.4, remaining=0))) == []


def test_what_waits_for_a_parent_that_was_named_holds_up_its_own_tenant_only() -> None:
    for tenant, goes in (("one", []), ("other", ["small"])):
        fleet = Fleet()
        fleet.arrive(of("third", turn("runs", ("runs", 50), remaining=0)))
        fleet.arrive(of("one", turn("parent", ("p", 10), remaining=0)))
        fleet.arrive(of("one", turn("child", ("child", 70), at=1.0, remaining=0), parent_id="parent"))
        assert ids(fleet.arrive(of(tenant, turn("small", ("small", 5), at=2.0, remaining=0)))) == goes


def test_lengths_that_are_declared_are_not_believed_while_other_tenants_are_about() -> None:
    fleet = Fleet(blocks=1_000)

    def believed(at: float) -> float:
        fleet.arrive(of("one", turn(f"a{at}", ("a", 5), session="a", at=at, remaining=40)))
        fleet.tell(done(f"a{at}"), at)
        return fleet.scheduler.view(named=frozenset("a")).named["a"].expected_turns

    assert believed(0.0) == 40
    fleet.arrive(of("other", turn("x", at=1.0)))
    assert believed(2.0) < 10
    assert believed(1.0 + LATELY_S) == 40


def test_a_session_id_gives_no_residency_to_a_prompt_that_does_not_continue_the_session() -> None:
    """Among several tenants; else a client could keep its room in the cache with any prompt."""
    fleet = Fleet(slots=100)
    fleet.arrive(of("other", turn("x", ("x", 40))))
    fleet.arrive(of("one", turn("a1", ("a", 30), session="a")))
    fleet.tell(done("a1"), 0.0)
    [goes_on] = fleet.arrive(of("one", turn("a2", ("a", 35), session="a", at=0.1)))
    assert isinstance(goes_on, Dispatch)
    assert goes_on.reason is Reason.RESIDENT
    fleet.tell(done("a2"), 0.2)
    assert fleet.arrive(of("one", turn("a3", ("another", 70), session="a", at=0.3))) == []
    assert fleet.scheduler.view().replicas[0].num_residents == 1


def test_one_tenant_alone_may_give_its_session_another_prompt() -> None:
    fleet = Fleet(slots=100)
    fleet.arrive(turn("a1", ("a", 30), session="a"))
    fleet.tell(done("a1"), 0.0)
    [decision] = fleet.arrive(turn("a2", ("another", 70), session="a", at=0.3))
    assert isinstance(decision, Dispatch)
    assert decision.reason is Reason.RESIDENT


def urgency(fleet: Fleet, one: Turn) -> int:
    [decision] = fleet.arrive(one)
    assert isinstance(decision, Dispatch)
    if not decision.hints.urgency > 10 * one.priority_class:
        assert decision.hints.remaining_turns is None, "Dynamo orders by it, too"
    return decision.hints.urgency


def test_engines_get_the_least_urgency_of_a_class_as_soon_as_there_are_two_tenants() -> None:
    fleet = Fleet(blocks=1_000, slots=100)
    assert urgency(fleet, of("one", turn("a", remaining=0))) == 80
    assert urgency(fleet, of("other", turn("x", remaining=0))) == 0
    assert urgency(fleet, of("one", turn("b", remaining=0))) == 0
    assert urgency(fleet, of("one", turn("vip", remaining=0, priority_class=2))) == 20
    assert urgency(fleet, of("one", turn("batch", remaining=0, priority_class=-10))) == -100


def test_another_gateway_at_the_same_engine_may_have_other_tenants() -> None:
    fleet = Fleet(blocks=1_000, slots=100)
    fleet.tell(ReplicaReported("r0", share=0.5, has_strangers=True), 0.0)
    assert urgency(fleet, of("one", turn("a", remaining=0))) == 0
    fleet.tell(ReplicaReported("r0", share=1.0, has_strangers=False), 1.0)
    assert urgency(fleet, of("one", turn("b", remaining=0, at=1.0))) == 80


def side(name: str, session: str, at: float = 1.0) -> Turn:
    return of("one", turn(name, (name, 60), session=session, kind=TurnKind.SIDE, at=at))


def test_side_requests_pass_the_gate_one_at_a_time_beside_a_resident_session() -> None:
    """Among several tenants; else a client could pass it with all that it asks."""
    fleet = Fleet(slots=100)
    fleet.arrive(of("other", turn("x", ("x", 10))))
    fleet.arrive(of("one", turn("a", ("a", 60))))
    fleet.tell(FirstByte("a"), 0.5)
    [first] = fleet.arrive(side("title", "a"))
    assert isinstance(first, Dispatch)
    assert first.reason is Reason.SIDE
    assert fleet.arrive(side("another", "a")) == []
    assert fleet.arrive(side("of no session", "unknown")) == []
    fleet.tell(done("title"), 2.0)
    assert ids(fleet.arrive(side("again", "a", at=2.0))) == ["again"]
    fleet.tell(done("again"), 3.0)
    waiting = ids([*fleet.tell(done("a"), 3.0), *fleet.tell(done("x"), 3.0)])
    assert set(waiting) <= {"another", "of no session"}


def test_a_side_request_that_waited_leaves_nothing_behind() -> None:
    fleet = Fleet(slots=100)
    fleet.arrive(of("other", turn("x", ("x", 10))))
    assert ids(fleet.arrive(side("title", "unknown"))) == ["title"]
    residents = fleet.scheduler.view().replicas[0].num_residents
    fleet.tell(done("title"), 2.0)
    assert fleet.scheduler.view().replicas[0].num_residents == residents - 1


def test_a_gate_that_is_open_for_one_tenant_holds_again_as_soon_as_there_are_two() -> None:
    slow = Agents("slow", 60, num_turns=4, prompt_tokens=1_200, gap_s=20.0)
    alone, together = (
        Tenants(Turns(), [slow, *others], capacity_tokens=30_000)
        for others in ([], [Agents("late", 1, gap_s=1.0, begins_at=150.0)])
    )
    for fleet in alone, together:
        fleet.play(300.0)
    assert any(at > 150.0 for at in alone.open_at)
    assert together.open_at
    assert max(together.open_at) <= 150.0
