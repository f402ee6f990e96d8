"""Laws of the room for bodies that are on their way in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from gateway.core.errors import Refused
from gateway.core.transport import BodyTooLarge, HeaderList
from gateway.request.incoming_bodies import FEWEST_WAITING, SMALL_BYTES, SMALL_SHARE, TINY_BYTES, IncomingBodies
from tests.clock import Clock
from tests.clock import clock as clock

MB = 2**20
MOST, ROOM = 8 * MB, 32 * MB


class Body:
    """A request whose body comes when the test says so."""

    method, path, query, remote = "POST", "/", "", ""
    header_list: HeaderList = ()

    def __init__(self, num_bytes: int, *, has_length: bool = True) -> None:
        self.headers: Mapping[str, str] = {"content-length": str(num_bytes)} if has_length else {}
        self.num_bytes = num_bytes
        self.is_read = False
        self.has_come = asyncio.Event()

    async def read(self, limit_bytes: int) -> bytes:
        self.is_read = True
        await self.has_come.wait()
        return bytes(self.num_bytes)

    async def chunks(self, limit_bytes: int) -> AsyncIterator[bytes]:
        yield bytes(min(self.num_bytes, TINY_BYTES + 1))
        if self.num_bytes > TINY_BYTES + 1:
            yield (await self.read(limit_bytes))[TINY_BYTES + 1 :]


async def begin(bodies: IncomingBodies, key: str, *sent: Body) -> list[asyncio.Task[bytes]]:
    tasks = [asyncio.create_task(bodies.read(body, MOST, ROOM, key)) for body in sent]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


async def test_bodies_that_are_half_sent_hold_no_more_than_the_bound_in_all() -> None:
    bodies, sent = IncomingBodies(), [Body(6 * MB) for _ in range(25)]
    tasks = await begin(bodies, "", *sent)
    assert [body.is_read for body in sent] == [True] * 5 + [False] * 20
    for body in sent:
        body.has_come.set()
    assert [len(body) for body in await asyncio.gather(*tasks)] == [6 * MB] * 25
    assert bodies.held == {}


async def test_the_bodies_of_one_key_hold_no_more_than_its_share() -> None:
    bodies, flood, other = IncomingBodies(), [Body(4 * MB) for _ in range(25)], Body(4 * MB)
    tasks = await begin(bodies, "flood", *flood)
    assert sum(body.is_read for body in flood) == 2
    tasks += await begin(bodies, "other", other)
    assert other.is_read
    for body in (*flood, other):
        body.has_come.set()
    await asyncio.gather(*tasks)


async def test_a_body_as_long_as_is_allowed_is_read_whatever_the_bound_is() -> None:
    body = Body(8 * MB)
    body.has_come.set()
    assert len(await IncomingBodies().read(body, MOST, 1, "a")) == 8 * MB


async def test_small_bodies_wait_for_nothing() -> None:
    bodies = IncomingBodies()
    tasks = await begin(bodies, "", *[Body(8 * MB) for _ in range(9)])
    for small in (Body(SMALL_BYTES), Body(TINY_BYTES, has_length=False)):
        small.has_come.set()
        assert len(await bodies.read(small, MOST, ROOM, "")) == small.num_bytes
    for task in tasks:
        task.cancel()


async def test_no_more_wait_for_room_than_would_fill_it_and_other_keys_have_their_own_places() -> None:
    bodies, sent = IncomingBodies(), [Body(8 * MB) for _ in range(1 + FEWEST_WAITING)]
    tasks = await begin(bodies, "flood", *sent)
    with pytest.raises(Refused):
        await bodies.read(Body(8 * MB), MOST, ROOM, "flood")
    tasks += await begin(bodies, "other", other := Body(8 * MB))
    assert other.is_read
    for task in tasks:
        task.cancel()


async def test_many_small_bodies_need_room_like_large_ones() -> None:
    bodies, room = IncomingBodies(), 4 * MB
    sent = [Body(SMALL_BYTES) for _ in range(40)]
    tasks = [asyncio.create_task(bodies.read(body, MOST, room, "")) for body in sent]
    for _ in range(5):
        await asyncio.sleep(0)
    assert sum(body.is_read for body in sent) * SMALL_BYTES == (1 + SMALL_SHARE) * room == bodies.num_bytes
    for body in sent:
        body.has_come.set()
    assert [len(body) for body in await asyncio.gather(*tasks)] == [SMALL_BYTES] * 40
    assert bodies.num_bytes == 0


async def test_a_body_without_a_length_takes_the_room_of_the_longest() -> None:
    bodies, sent = IncomingBodies(), [Body(MB, has_length=False) for _ in range(9)]
    tasks = await begin(bodies, "", *sent)
    assert sum(body.is_read for body in sent) == 4
    for body in sent:
        body.has_come.set()
    assert [len(body) for body in await asyncio.gather(*tasks)] == [MB] * 9


async def test_who_leaves_gives_its_room_back() -> None:
    bodies, sent, next_one = IncomingBodies(), [Body(8 * MB) for _ in range(6)], Body(8 * MB)
    tasks = await begin(bodies, "", *sent)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert bodies.held == {}
    [task] = await begin(bodies, "", next_one)
    assert next_one.is_read
    task.cancel()


async def test_a_body_that_drips_loses_its_room_and_one_that_waits_is_told_when_to_try_again(clock: Clock) -> None:
    bodies = IncomingBodies(wait_s=10, grace_s=100)
    tasks = await begin(bodies, "", *[Body(8 * MB) for _ in range(5)])
    clock.advance(11)
    with pytest.raises(Refused) as refused:
        await tasks[4]
    assert (refused.value.failure.status, refused.value.failure.retry_after_s) == (429, 1.0)
    clock.advance(100 + 8 * MB / 2**16)
    for task in tasks[:4]:
        with pytest.raises(Refused) as refused:
            await task
        assert refused.value.failure.status == 408
    assert bodies.held == {}


async def test_a_body_that_says_it_is_too_long_takes_no_room() -> None:
    with pytest.raises(BodyTooLarge):
        await IncomingBodies().read(Body(9 * MB), MOST, ROOM, "")
