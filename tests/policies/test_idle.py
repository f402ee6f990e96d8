"""Laws of idle sessions: while no turn waits only leases that hold wake the driver; a look changes nothing."""

from __future__ import annotations

import random

from policies.admission import Limits
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import Arrived, Decision, Ending, FirstByte, Left, ReplicaReported, Tick
from tests.policies.turns_of import TOKENS_PER_BLOCK, turn


def fleet(capacity_blocks: int = 1_000) -> Scheduler:
    scheduler = Scheduler(Turns(), Limits())
    scheduler.tell(ReplicaReported("r", None, capacity_blocks * TOKENS_PER_BLOCK, 8, 0), 0.0)
    return scheduler


def test_a_lease_that_its_session_did_not_outstay_wakes_nobody() -> None:
    scheduler = fleet()
    for name in ("a", "b"):
        scheduler.tell(Arrived(turn(f"{name}.0", session=name)), 0.0)
    _, first_at = scheduler.tell(Left("a.0", Ending.COMPLETE), 1.0)
    _, wake_at = scheduler.tell(Left("b.0", Ending.COMPLETE), 2.0)
    assert first_at is not None
    assert wake_at == first_at
    _, wake_at = scheduler.tell(Arrived(turn("a.1", session="a", at=3.0)), 3.0)
    assert wake_at == first_at + 1.0, "that of b"
    _, wake_at = scheduler.tell(Arrived(turn("b.1", session="b", at=4.0)), 4.0)
    assert wake_at is None


def test_while_anybody_waits_the_driver_looks_again_where_a_lease_would_have_ended() -> None:
    scheduler = fleet(20)
    scheduler.tell(Arrived(turn("a.0", ("a", 12), session="a")), 0.0)
    _, lease_ends_at = scheduler.tell(Left("a.0", Ending.COMPLETE), 1.0)
    _, wake_at = scheduler.tell(Arrived(turn("a.1", ("a", 12), session="a", at=2.0)), 2.0)
    assert wake_at is None
    decisions, wake_at = scheduler.tell(Arrived(turn("b.0", ("b", 12), session="b", at=3.0)), 3.0)
    assert not decisions, "it waits"
    assert wake_at == lease_ends_at


def test_who_looks_at_sessions_changes_no_decision() -> None:
    looked_at, alone = (played(looks) for looks in (True, False))
    assert looked_at == alone


def played(looks: bool) -> list[Decision]:
    scheduler, rng, decisions = fleet(60), random.Random(3), list[Decision]()
    for number in range(400):
        name, now = f"s{rng.randrange(6)}", float(number)
        blocks = (("shared", 10), (name, rng.randrange(2, 20)))
        arriving = turn(f"t{number}", *blocks, session=name, at=now, family=f"f{len(name) % 2}")
        decisions += scheduler.tell(Arrived(arriving), now)[0]
        decisions += scheduler.tell(FirstByte(arriving.id), now + 0.2)[0]
        decisions += scheduler.tell(Left(arriving.id, Ending.COMPLETE), now + 0.4)[0]
        decisions += scheduler.tell(Tick(), now + 0.5)[0]
        if looks:
            scheduler.view(named=frozenset(f"s{index}" for index in range(6)))
    return decisions
