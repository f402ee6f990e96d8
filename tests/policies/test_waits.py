"""Laws of the notes about waits: a dispatch says for what its turn waited, behind which sessions, and how long."""

from __future__ import annotations

from dataclasses import replace

from policies.admission import Limits
from policies.policy import Policy
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import Arrived, Dispatch, ReplicaReported, WaitCause
from policies.waits import MOST_BEHIND
from tests.policies.turns_of import TOKENS_PER_BLOCK, TOKENS_PER_CHAR, done, turn


def scheduler(capacity_tokens: int, slots: int, policy: Policy | None = None) -> Scheduler:
    made = Scheduler(policy or Turns(), Limits())
    made.tell(ReplicaReported("r", None, capacity_tokens, slots, 0, TOKENS_PER_CHAR), 0.0)
    return made


def dispatches(made: Scheduler, fact: object, now: float) -> dict[str, Dispatch]:
    decisions, _ = made.tell(fact, now)  # type: ignore[arg-type]
    return {one.turn_id: one for one in decisions if isinstance(one, Dispatch)}


def test_a_turn_that_goes_at_once_has_no_wait() -> None:
    made = scheduler(10**6, 4)
    assert dispatches(made, Arrived(turn("a")), 1.0)["a"].waited is None


def test_a_wait_for_a_slot_names_the_sessions_that_had_the_slots() -> None:
    made = scheduler(10**6, 4)
    for name in ("a", "b", "c", "d"):
        dispatches(made, Arrived(turn(name)), 1.0)
    assert not dispatches(made, Arrived(turn("e")), 2.0)
    waited = dispatches(made, done("a"), 5.0)["e"].waited
    assert waited is not None
    assert (waited.cause, waited.slot_s, waited.room_s) == (WaitCause.SLOT, 3.0, 0.0)
    assert waited.behind == (("a", "t"), ("b", "t"), ("c", "t"))
    assert len(waited.behind) == MOST_BEHIND


def test_a_wait_for_room_names_the_sessions_that_hold_it() -> None:
    made = scheduler(10 * TOKENS_PER_BLOCK, 4)
    dispatches(made, Arrived(turn("a", ("a", 8), session="A")), 1.0)
    assert not dispatches(made, Arrived(turn("b", ("b", 8), session="B")), 2.0)
    waited = dispatches(made, done("a", 8 * TOKENS_PER_BLOCK), 4.0)["b"].waited
    assert waited is not None
    assert (waited.cause, waited.behind, waited.slot_s) == (WaitCause.ROOM, (("A", "t"),), 0.0)
    assert waited.room_s == 2.0


def test_a_tenant_that_got_more_than_others_that_wait_waits_for_its_share() -> None:
    made = scheduler(10**6, 1)
    for name in ("b", "a"):  # from here on the tenants are charged
        dispatches(made, Arrived(replace(turn(name), tenant=name)), 0.0)
    waited = [dispatches(made, done("b"), 1.0)]
    for name in ("b1", "a2"):
        dispatches(made, Arrived(replace(turn(name), tenant=name[0])), 2.0)
    waited += [dispatches(made, done("a"), 10.0), dispatches(made, done("b1"), 11.0)]
    causes = {name: one.waited.cause for each in waited for name, one in each.items() if one.waited is not None}
    assert causes == {"a": WaitCause.SLOT, "b1": WaitCause.SLOT, "a2": WaitCause.SHARE}


def test_a_turn_that_leaves_the_queue_leaves_no_note() -> None:
    made = scheduler(10**6, 1)
    for name in ("a", "b"):
        dispatches(made, Arrived(turn(name)), 1.0)
    assert made._waits._notes.keys() == {"b"}
    made.tell(done("b"), 2.0)
    assert not made._waits._notes
