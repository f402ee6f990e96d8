"""Laws of the order in which turns get the slots of a replica."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from policies.admission_queue import FAIR
from policies.dispatch_queue import DispatchQueue
from policies.types import Turn
from tests.policies.turns_of import turn

BOUND_S = 60.0


def ready(*turns: tuple[Turn, float]) -> DispatchQueue:
    waiting = DispatchQueue()
    for one, rank in turns:
        waiting.put(one, (rank,), 0.0)
    return waiting


def test_the_best_goes_first() -> None:
    waiting = ready((turn("slow"), 2.0), (turn("quick"), 1.0))
    assert [waiting.pop(-BOUND_S, 0.0).id for _ in range(2)] == ["quick", "slow"]


@pytest.mark.parametrize("num_before", [0, 1, 9])
def test_nobody_is_overtaken_for_ever(num_before: int) -> None:
    """One slot a second, and each second a better turn arrives."""
    waiting = ready(*((turn(f"before {n}"), 0.0) for n in range(num_before)), (turn("unlucky"), 9.0))
    for second in range(1, 1_000):
        waiting.put(turn(f"t{second}", at=second), (0.0,), 0.0)
        if waiting.pop(second - BOUND_S, 0.0).id == "unlucky":
            assert second == max(BOUND_S, FAIR * (num_before + 1))
            return
    raise AssertionError("it starves")


def test_where_all_wait_too_long_every_other_slot_still_goes_to_the_best() -> None:
    waiting = ready(*((turn(f"t{n}"), -n) for n in range(10)))
    assert [waiting.pop(3_600.0 - BOUND_S, 0.0).id for _ in range(6)] == ["t9", "t0", "t8", "t1", "t7", "t2"]


def test_who_failed_at_another_replica_has_waited_since_it_came() -> None:
    waiting = ready(*((turn(f"t{n}", at=100.0), 0.0) for n in range(4)))
    waiting.put(turn("again", at=10.0, is_retry=True), (9.0,), 0.0)
    for second in range(1, 100):
        waiting.put(turn(f"n{second}", at=100.0 + second), (0.0,), 0.0)
        if waiting.pop(100.0 + second - BOUND_S, 0.0).id == "again":
            assert second == FAIR * 5
            return
    raise AssertionError("it starves")


def test_a_class_below_the_others_waits_for_as_long_as_they_come() -> None:
    waiting = ready((turn("batch", priority_class=-1), 1.0))
    for second in range(1, 500):
        waiting.put(turn(f"t{second}", at=second), (0.0,), 0.0)
        assert waiting.pop(second - BOUND_S, 0.0).id != "batch"


def test_what_has_left_is_not_kept() -> None:
    waiting, chance = ready((turn("stays"), 9.0)), random.Random(1)
    for number in range(5_000):
        waiting.put(turn(f"t{number}"), (chance.random(),), 0.0)
        waiting.remove(f"t{number}")
    assert len(waiting) == 1
    assert sum(len(queue.best) + len(queue.oldest) for queue in waiting._queues.values()) <= 200
    assert waiting.pop(-BOUND_S, 0.0).id == "stays"


def test_who_came_alone_and_has_left_takes_no_turn_of_later_ones() -> None:
    waiting = ready((turn("leaves"), 0.0))
    waiting.remove("leaves")
    waiting.put(turn("goes"), (1.0,), 0.0)
    assert waiting.pop(-BOUND_S, 0.0).id == "goes"
    for name, rank in (("slow", 2.0), ("quick", 1.0), ("middle", 1.5)):
        waiting.put(turn(name), (rank,), 0.0)
    assert [waiting.pop(-BOUND_S, 0.0).id for _ in range(3)] == ["quick", "middle", "slow"]


def of(tenant: str, name: str, priority_class: int = 0, at: float = 0.0) -> Turn:
    return replace(turn(name, priority_class=priority_class, at=at), tenant=tenant)


def test_tenants_go_by_what_they_got_and_a_tenants_own_turns_by_their_order() -> None:
    waiting = DispatchQueue()
    for number in range(4):
        waiting.put(of("a", f"a{number}"), (-number,), 0.0)
    waiting.put(of("b", "b0"), (9.0,), 0.0)
    waiting.put(of("b", "b1"), (8.0,), 0.0)
    order = []
    for _ in range(6):
        one = waiting.pop(-BOUND_S, 0.0)
        waiting.shares.began(one, 100.0, 0.0)
        order.append(one.id)
    assert order == ["a3", "b1", "a2", "b0", "a1", "a0"]


def test_among_tenants_a_turn_is_overtaken_by_few_of_its_own_tenant() -> None:
    """Not only after a minute: their part of the slots may make each wait short."""
    waiting = DispatchQueue()
    waiting.put(of("b", "b"), (0.0,), 0.0)
    for number in range(9):
        waiting.put(of("a", f"before {number}"), (0.0,), 0.0)
    waiting.put(of("a", "unlucky"), (9.0,), 0.0)
    for number in range(1, 100):
        waiting.put(of("a", f"t{number}"), (0.0,), 0.0)
        one = waiting.pop(-BOUND_S, 0.0)
        waiting.shares.began(one, 0.0 if one.tenant == "a" else 1e9, 0.0)
        if one.id == "unlucky":
            assert number <= FAIR * 10 + 1
            return
    raise AssertionError("it starves")


def test_a_higher_class_goes_first_and_who_waits_too_long_beside_it_by_turns() -> None:
    waiting = ready(
        *((of("vip", f"v{n}", priority_class=1), 0.0) for n in range(9)), (of("a", "a"), 0.0), (of("b", "b"), 0.0)
    )
    now = 2 * BOUND_S
    order = [waiting.pop(now - BOUND_S, now).id for _ in range(11)]
    assert order[:3] == ["v0", "v1", "v2"]
    assert {"a", "b"} <= set(order)
