"""What a policy answers is what the Scheduler does: who may become resident, and who leaves."""

from __future__ import annotations

import pytest

from policies.fleet import Pool
from policies.turns import Turns
from policies.types import Family, Session
from tests.policies.test_scheduler import Fleet, ids
from tests.policies.turns_of import done, turn


class OneByOne(Turns):
    def fits(self, pool: Pool, session: Session, family: Family, new_tokens: float, num_waiting: int) -> bool:
        return not pool.ledger.num_residents


class LeavesFirst(Turns):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._first = name

    def victim_rank(self, session: Session, family: Family) -> float:
        return float(session.id == self._first)


def test_a_session_that_the_policy_refuses_waits_although_there_is_room() -> None:
    fleet = Fleet(OneByOne(), blocks=1_000)
    assert ids(fleet.arrive(turn("a1", ("a", 2), session="a", remaining=0))) == ["a1"]
    assert not fleet.arrive(turn("b1", ("b", 2), session="b"))
    assert ids(fleet.tell(done("a1"), 1.0)) == ["b1"]


@pytest.mark.parametrize("first", ["a", "b"])
def test_where_residents_outgrow_the_pool_the_highest_rank_leaves(first: str) -> None:
    fleet = Fleet(LeavesFirst(first))
    for name in ("a", "b", "big"):
        fleet.arrive(turn(f"{name}1", (name, 30), session=name, remaining=2))
        fleet.tell(done(f"{name}1"), 1.0)
    fleet.arrive(turn("big2", ("big", 60), session="big", at=2.0, remaining=1))
    went = [
        name
        for name in ("a", "b")
        if fleet.arrive(turn(f"{name}2", (name, 31), session=name, at=3.0, remaining=1))
    ]
    assert went == [name for name in ("a", "b") if name != first]
