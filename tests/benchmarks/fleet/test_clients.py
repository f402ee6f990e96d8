"""Laws of the clients that do more than an unmodified one."""

import asyncio

from benchmarks.fleet.clients import SessionCapClient, SlotsClient
from gateway.cli.demo_fleet import PlannedSession, PlannedTurn
from tests.deadline import DEADLINE_S

TURNS = (PlannedTurn(1_000, 100, 0.5), PlannedTurn(1_500, 100, 0.5))


def session(number: int, arrives_at: float = 0.0) -> PlannedSession:
    return PlannedSession(f"s{number}", "family", arrives_at, 800, TURNS)


async def test_session_cap_lets_the_next_session_in_when_one_has_left() -> None:
    client = SessionCapClient(1)
    async with client.place(session(0), 0):
        pass
    waiting = asyncio.ensure_future(client.place(session(1), 0).__aenter__())
    await asyncio.sleep(0)
    assert not waiting.done()
    await client.left(session(0))
    await asyncio.wait_for(waiting, DEADLINE_S)


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
