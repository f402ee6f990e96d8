"""Laws of the clients that do more than an unmodified one."""

import asyncio

from benchmarks.fleet.clients import SessionCapClient, SlotsClient
from benchmarks.simulation.workloads import AgentRun
from tests.deadline import DEADLINE_S


def session(number: int, parent_id: str | None = None) -> AgentRun:
    return AgentRun(f"s{number}", "family", 0.0, (), parent_id=parent_id)


async def test_session_cap_lets_the_next_session_in_when_one_has_left() -> None:
    client = SessionCapClient(1)
    async with client.place(session(0), 0):
        pass
    waiting = asyncio.ensure_future(client.place(session(1), 0).__aenter__())
    await asyncio.sleep(0)
    assert not waiting.done()
    await client.left(session(0))
    await asyncio.wait_for(waiting, DEADLINE_S)


async def test_sub_agent_runs_under_the_place_of_its_parent() -> None:
    client = SessionCapClient(1)
    async with client.place(session(0), 0):
        pass
    async with asyncio.timeout(DEADLINE_S), client.place(session(1, parent_id="s0"), 0):
        await client.left(session(1, parent_id="s0"))
    waiting = asyncio.ensure_future(client.place(session(2), 0).__aenter__())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_free_slot_goes_to_the_session_with_most_turns_done() -> None:
    client, order = SlotsClient(1), []

    async def turn(number: int, index: int) -> None:
        async with client.place(session(number), index):
            order.append(number)

    async with client.place(session(0), 0):
        waiting = [asyncio.ensure_future(turn(number, index)) for number, index in ((1, 0), (2, 1), (3, 1))]
        await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_S)
    assert order == [2, 3, 1]
