from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.batches.line_executor import LOW, ORDINARY, STARVED_S, ConcurrencyLimiter, Load, Pace
from tests.deadline import DEADLINE_S


class Fleet:
    def __init__(self) -> None:
        self.load = Load(slots=0, used=0, waiting=1)
        self.now = 0.0
        self.looked = asyncio.Event()

    def look(self) -> Load:
        self.looked.set()
        return self.load

    async def is_looked_at(self) -> None:
        self.looked.clear()
        await asyncio.wait_for(self.looked.wait(), DEADLINE_S)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
async def limiter(fleet: Fleet) -> AsyncIterator[ConcurrencyLimiter]:
    limiter = ConcurrencyLimiter(Pace(8), fleet.look, lambda: fleet.now)
    limiter.start()
    yield limiter
    await limiter.stop()


class Asked:
    """Lines that wait for a place, and leave it when told."""

    def __init__(self, limiter: ConcurrencyLimiter) -> None:
        self._window = limiter
        self.order: list[tuple[str, int]] = []
        self.entered: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.leave: dict[int, asyncio.Event] = {}

    def add(self, tenant: str) -> int:
        number = len(self.tasks)
        self.leave[number] = asyncio.Event()
        self.tasks.append(asyncio.create_task(self._ask(tenant, number)))
        return number

    async def _ask(self, tenant: str, number: int) -> None:
        async with self._window.place(tenant) as priority_class:
            self.order.append((tenant, priority_class))
            self.entered.append(number)
            await self.leave[number].wait()

    async def until(self, num_in: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.order) < num_in:
                await asyncio.sleep(0)


async def test_lines_trickle_one_by_one_while_others_wait_and_tenants_take_turns(
    limiter: ConcurrencyLimiter,
) -> None:
    asked = Asked(limiter)
    for tenant in ("a", "a", "a", "b", "b"):
        asked.add(tenant)
    for num_in in range(1, 6):
        await asked.until(num_in)
        assert limiter.in_flight == 1
        asked.leave[asked.entered[-1]].set()
    await asyncio.gather(*asked.tasks)
    assert limiter.in_flight == 0
    assert asked.order == [(tenant, LOW) for tenant in ("a", "a", "b", "a", "b")]


async def test_a_line_whose_task_ends_gives_its_place_on(limiter: ConcurrencyLimiter) -> None:
    asked = Asked(limiter)
    asked.add("a")
    await asked.until(1)
    asked.add("a")
    asked.add("a")
    await asyncio.sleep(0)
    asked.tasks[1].cancel()
    asked.tasks[0].cancel()
    await asked.until(2)
    assert limiter.in_flight == 1
    asked.leave[2].set()
    await asyncio.wait(asked.tasks)
    assert limiter.in_flight == 0


async def test_one_line_goes_as_an_ordinary_turn_when_none_comes_back(
    limiter: ConcurrencyLimiter, fleet: Fleet
) -> None:
    asked = Asked(limiter)
    for _ in range(3):
        asked.add("a")
    await asked.until(1)
    fleet.now = STARVED_S
    await asked.until(2)
    for _ in range(3):
        await fleet.is_looked_at()
    assert asked.order == [("a", LOW), ("a", ORDINARY)]
    for event in asked.leave.values():
        event.set()
    await asyncio.gather(*asked.tasks)


async def test_an_idle_fleet_lets_more_in(limiter: ConcurrencyLimiter, fleet: Fleet) -> None:
    fleet.load = Load(slots=100, used=0, waiting=0)
    asked = Asked(limiter)
    for _ in range(12):
        asked.add("a")
    await asked.until(8)
    await fleet.is_looked_at()
    assert limiter.in_flight == 8
    for event in asked.leave.values():
        event.set()
    await asyncio.gather(*asked.tasks)
