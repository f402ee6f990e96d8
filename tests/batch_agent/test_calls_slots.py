from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.calls import Slots
from tests.deadline import DEADLINE_S


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_those_with_the_fewest_turns_to_come_go_first_then_the_first_to_ask() -> None:
    slots, order = Slots(1), []

    async def agent(name: str, remaining: int) -> None:
        await slots.take(remaining)
        order.append(name)
        slots.give()

    await slots.take(0)
    tasks = [asyncio.create_task(agent(name, turns)) for name, turns in (("a", 3), ("b", 1), ("c", 3), ("d", 0))]
    await settled()
    slots.give()
    await asyncio.gather(*tasks)
    assert order == ["d", "b", "a", "c"]


async def test_a_waiter_that_is_granted_and_cancelled_at_once_gives_its_slot_back() -> None:
    slots = Slots(1)
    await slots.take(0)
    waiter = asyncio.create_task(slots.take(0))
    await settled()
    slots.give()
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert slots.used == 0
    async with asyncio.timeout(DEADLINE_S):
        await slots.take(0)


async def test_room_is_reported_only_while_no_agent_waits() -> None:
    slots = Slots(2)
    assert await slots.room() == 2
    await slots.take(0)
    assert await slots.room() == 1
    await slots.take(0)
    asked = asyncio.create_task(slots.room())
    waiter = asyncio.create_task(slots.take(0))
    await settled()
    slots.give()
    await waiter
    await settled()
    assert not asked.done()
    slots.give()
    assert await asked == 1


@given(st.lists(st.sampled_from(["take", "give", "cancel"]), max_size=40), st.integers(1, 3))
def test_no_order_of_events_loses_a_slot_or_hands_out_one_too_many(events: list[str], limit: int) -> None:
    async def play() -> None:
        slots, held = Slots(limit), 0
        waiting: list[asyncio.Task[None]] = []
        for event in events:
            if event == "take":
                waiting.append(asyncio.create_task(slots.take(len(waiting) % 3)))
            elif event == "give" and held:
                slots.give()
                held -= 1
            elif event == "cancel" and waiting:
                waiting.pop().cancel()
            await settled()
            done = [task for task in waiting if task.done()]
            held += sum(not task.cancelled() for task in done)
            waiting = [task for task in waiting if not task.done()]
            assert held == slots.used <= limit
            assert not waiting or held == limit
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(play())
