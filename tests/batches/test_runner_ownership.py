"""Laws of who works on a batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from gateway.batches.objects import Batch, Status
from gateway.batches.runner import HOLD_S, Ownership
from tests.batches.test_store import batch


@dataclass
class Shared:
    """A store that several gateways share, whose clock the test moves."""

    live: dict[str, Batch] = field(default_factory=dict)
    holders: dict[str, tuple[str, float]] = field(default_factory=dict)
    now: float = 0.0

    async def live_batches(self) -> list[Batch]:
        return list(self.live.values())

    async def hold(self, batch_id: str, owner: str, hold_s: float) -> bool:
        holder, until = self.holders.get(batch_id, ("", 0.0))
        if holder != owner and until > self.now:
            return False
        self.holders[batch_id] = owner, self.now + hold_s
        return True

    async def let_go(self, batch_id: str, owner: str) -> None:
        if self.holders.get(batch_id, ("", 0))[0] == owner:
            del self.holders[batch_id]


@dataclass
class Work:
    begun: list[tuple[str, Status]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    async def work_on(self, batch: Batch) -> None:
        self.begun.append((batch.id, batch.status))

    def drop(self, batch_id: str) -> None:
        self.dropped.append(batch_id)


@dataclass
class Gateway:
    work: Work
    ownership: Ownership


@pytest.fixture
def shared() -> Shared:
    return Shared({"a": batch("a"), "b": batch("b")})


@pytest.fixture
def gateways(shared: Shared) -> tuple[Gateway, Gateway]:
    works = Work(), Work()
    first, second = (
        Gateway(work, Ownership(shared, work.work_on, work.drop, str(n))) for n, work in enumerate(works)
    )
    return first, second


async def test_one_gateway_works_on_each_batch(shared: Shared, gateways: tuple[Gateway, Gateway]) -> None:
    first, second = gateways
    for _ in range(3):
        await first.ownership.round()
        await second.ownership.round()
    assert (first.work.begun, second.work.begun) == ([("a", Status.VALIDATING), ("b", Status.VALIDATING)], [])


async def test_a_batch_that_a_gateway_leaves_is_taken_at_once(
    shared: Shared, gateways: tuple[Gateway, Gateway]
) -> None:
    first, second = gateways
    await first.ownership.round()
    await first.ownership.leave()
    await second.ownership.round()
    assert [name for name, _ in second.work.begun] == ["a", "b"]


async def test_a_batch_of_a_dead_gateway_is_taken_after_its_hold(
    shared: Shared, gateways: tuple[Gateway, Gateway]
) -> None:
    first, second = gateways
    await first.ownership.round()
    shared.now = HOLD_S + 1
    await second.ownership.round()
    assert [name for name, _ in second.work.begun] == ["a", "b"]
    await first.ownership.round()
    assert first.work.dropped == ["a", "b"]


async def test_a_cancellation_at_another_gateway_reaches_the_owner_of_the_batch(
    shared: Shared, gateways: tuple[Gateway, Gateway]
) -> None:
    first, second = gateways
    await first.ownership.round()
    shared.live["a"] = replace(shared.live["a"], status=Status.CANCELLING)
    await second.ownership.offer(shared.live["a"])
    await first.ownership.round()
    await first.ownership.round()
    assert (first.work.begun[2:], second.work.begun) == ([("a", Status.CANCELLING)], [])


async def test_a_batch_that_is_over_is_held_no_longer(shared: Shared, gateways: tuple[Gateway, Gateway]) -> None:
    first, _ = gateways
    await first.ownership.round()
    del shared.live["a"]
    await first.ownership.round()
    shared.live["a"] = batch("a")
    await first.ownership.round()
    assert [name for name, _ in first.work.begun] == ["a", "b", "a"]
