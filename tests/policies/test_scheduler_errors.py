"""A policy that raises: the turn it was asked about gives all back, and the others go on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from policies.admission import Limits
from policies.policy import Policy
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import Arrived, Dispatch, Fact, Hold, Left, Reject, ReplicaReported, SessionState, Tick, TurnId
from tests.policies.test_scheduler import Fleet, ids
from tests.policies.turns_of import TOKENS_PER_BLOCK, TOKENS_PER_CHAR, done, turn

ASKED = ("rank", "forecast", "fits", "victim_rank", "lease_s", "place")
NUM_SESSIONS, TURNS_EACH = 40, 4


class Broken(Exception):
    """Of a policy that was tested too little."""


class Failing(Turns):
    """`Turns` whose functions of some names raise as often as `fails` says."""

    def __init__(self, names: tuple[str, ...] = ASKED, fails: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self.fails = fails
        for name in names:
            setattr(self, name, self._failing(getattr(self, name)))

    def _failing(self, asked: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            if self.fails():
                raise Broken
            return asked(*arguments)

        return ask


class Transcript:
    """A fleet with every decision and every error in one."""

    def __init__(self, policy: Policy) -> None:
        self.scheduler, self.now = Scheduler(policy, Limits(hold_bound_s=5.0)), 0.0
        self.errors: list[TurnId | None] = []
        self.decided: list[TurnId] = []
        self.running: list[TurnId] = []
        self.scheduler.on_error = lambda turn_id, _: self.errors.append(turn_id)
        for name in ("r0", "r1"):
            self.tell(ReplicaReported(name, None, 100 * TOKENS_PER_BLOCK, 4, 0, TOKENS_PER_CHAR))

    def tell(self, fact: Fact) -> None:
        self.now += 0.1
        decisions, _ = self.scheduler.tell(fact, self.now)
        for decision in decisions:
            if isinstance(decision, Dispatch | Reject):
                self.decided.append(decision.turn_id)
            if isinstance(decision, Dispatch):
                self.running.append(decision.turn_id)


@pytest.mark.parametrize("names", [*((name,) for name in ASKED if name != "victim_rank"), ASKED], ids="+".join)
def test_after_errors_of_the_policy_nothing_is_held_and_every_turn_heard_one_thing(names: tuple[str, ...]) -> None:
    chance = random.Random(f"{names}")
    policy = Failing(names, lambda: chance.random() < 0.1)
    fleet = Transcript(policy)
    sent = []
    for number in range(NUM_SESSIONS * TURNS_EACH):
        session, size = f"s{number % NUM_SESSIONS}", 5 + number // NUM_SESSIONS + number % 17
        arriving = turn(f"t{number}", (session, size), session=session, at=fleet.now, family=f"f{number % 3}")
        sent.append(arriving.id)
        fleet.tell(Arrived(arriving))
        while len(fleet.running) > chance.randint(2, 8):
            fleet.tell(done(fleet.running.pop(0), 5, 3))
    policy.fails = lambda: False
    while fleet.running or any(fleet.scheduler.view().waiting.values()):
        fleet.tell(done(fleet.running.pop(0)) if fleet.running else Tick())
    fleet.now += 1_000.0
    fleet.tell(Tick())
    view = fleet.scheduler.view()
    assert set(view.sessions) <= {SessionState.IDLE}
    assert not any(view.waiting[hold] for hold in Hold)
    assert [(replica.slots_used, replica.residency_tokens) for replica in view.replicas] == [(0, 0), (0, 0)]
    assert len(fleet.decided) == len(set(fleet.decided))
    assert set(sent) == set(fleet.decided) | {turn_id for turn_id in fleet.errors if turn_id is not None}
    assert fleet.errors


def test_a_turn_that_an_error_ended_keeps_no_slot_no_room_and_no_busy_session() -> None:
    failing = Failing(("rank",), lambda: True)
    fleet = Transcript(failing)
    fleet.tell(Arrived(turn("a", ("a", 70))))
    fleet.tell(Left("a", ending=done("a").ending))
    assert (fleet.errors, fleet.decided) == (["a"], [])
    failing.fails = lambda: False
    view = fleet.scheduler.view()
    assert view.sessions == {SessionState.IDLE: 1}
    assert [(replica.slots_used, replica.num_residents) for replica in view.replicas] == [(0, 0), (0, 0)]
    fleet.tell(Arrived(turn("b", ("b", 70))))
    assert fleet.decided == ["b"]


def test_without_a_hearer_an_error_of_the_policy_is_raised() -> None:
    with pytest.raises(Broken):
        Fleet(Failing(("rank",), lambda: True)).arrive(turn("a", ("a", 70)))


@pytest.mark.parametrize(("name", "failed", "goes_on"), [("rank", "c", "b"), ("fits", "b", "c")])
def test_a_waiting_turn_that_meets_an_error_leaves_the_queue_to_the_others(
    name: str, failed: TurnId, goes_on: TurnId
) -> None:
    policy = Failing((name,))
    fleet = Fleet(policy)
    errors: list[TurnId | None] = []
    fleet.scheduler.on_error = lambda turn_id, _: errors.append(turn_id)
    fleet.arrive(turn("a", ("a", 70), remaining=0))
    assert [fleet.arrive(turn(other, (other, 70), at=1.0, remaining=0)) for other in "bc"] == [[], []]
    left = iter([True])
    policy.fails = lambda: next(left, False)
    assert ids(fleet.tell(done("a"), 2.0)) == [goes_on]
    assert errors == [failed]
