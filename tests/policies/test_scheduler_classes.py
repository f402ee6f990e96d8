"""The order of turns by class, model, tenant and parent."""

from __future__ import annotations

from dataclasses import replace

from policies.admission import Limits
from policies.types import ReplicaReported
from tests.policies.test_scheduler import Fleet, ids
from tests.policies.turns_of import TOKENS_PER_BLOCK, TOKENS_PER_CHAR, done, turn


def test_residents_of_a_higher_class_keep_their_cache() -> None:
    fleet = Fleet()
    fleet.arrive(turn("vip1", ("vip", 60), session="vip", priority_class=1, remaining=50))
    fleet.tell(done("vip1"), 1.0)
    fleet.arrive(turn("a", ("a", 60), at=2.0, remaining=0))
    for number in range(2, 40):
        assert fleet.arrive(
            turn(f"vip{number}", ("vip", 60), session="vip", at=5.0 * number, priority_class=1, remaining=50)
        )
        assert fleet.tell(done(f"vip{number}"), 5.0 * number + 1) == []


def test_who_waits_for_one_model_never_holds_up_who_waits_for_another() -> None:
    fleet = Fleet(replicas=0)
    for model in "mn":
        fleet.tell(ReplicaReported(model, frozenset(model), 100 * TOKENS_PER_BLOCK, 8, 0, TOKENS_PER_CHAR), 0.0)
    fleet.arrive(turn("a", ("a", 90), remaining=0))
    assert fleet.arrive(turn("b", ("b", 90), at=1.0, remaining=0)) == []
    other = replace(turn("c", ("c", 90), at=100.0, remaining=0), model="n")
    assert ids(fleet.arrive(other)) == ["c"]


def test_a_sub_agent_goes_before_new_sessions_unless_that_is_switched_off() -> None:
    for is_on in (True, False):
        fleet = Fleet(limits=Limits(sub_agents_return=is_on))
        fleet.arrive(turn("p1", ("p", 80), session="p", remaining=0))
        fleet.arrive(turn("new", ("new", 50), at=1.0, remaining=0))
        fleet.arrive(replace(turn("child", ("child", 50), at=2.0, remaining=0), parent_id="p"))
        assert ids(fleet.tell(done("p1"), 3.0)) == ["child" if is_on else "new"]


def test_the_tenant_that_got_least_lately_goes_first() -> None:
    fleet = Fleet()
    fleet.arrive(replace(turn("a", ("a", 90), remaining=0), tenant="busy"))
    fleet.arrive(replace(turn("b", ("b", 90), at=1.0, remaining=0), tenant="busy"))
    fleet.arrive(replace(turn("c", ("c", 90), at=2.0, remaining=0), tenant="idle"))
    fleet.arrive(replace(turn("d", ("d", 90), at=3.0, remaining=0), tenant="idle"))
    order = [ids(fleet.tell(done(name, 11_520, 100), 4.0 + at))[0] for at, name in enumerate(["a", "c", "b"])]
    assert order == ["c", "b", "d"]


def test_a_class_below_0_waits_while_others_come_however_long_that_is() -> None:
    fleet = Fleet()
    fleet.arrive(turn("a0", ("a0", 90), remaining=0))
    fleet.arrive(turn("low", ("low", 90), at=0.5, priority_class=-10, remaining=0))
    for number in range(1, 30):
        fleet.arrive(turn(f"a{number}", (f"a{number}", 90), at=10.0 * number, remaining=0))
        assert ids(fleet.tell(done(f"a{number - 1}"), 10.0 * number + 1)) == [f"a{number}"]
    assert ids(fleet.tell(done("a29"), 400.0)) == ["low"]
