"""Two gateway processes that share their batches, one of which is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from redis.asyncio import Redis

from gateway.batches.runner import HOLD_S
from tests.deadline import DEADLINE_S
from tests.path.batches import asks, create
from tests.path.fake_engine import Call, FakeEngine, completion
from tests.path.killed import GatewayProcess, connected, rows_of
from tests.valkey import valkey as valkey
from tests.valkey import valkey_server as valkey_server

NUM_LINES = 120


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def gateways(engine: FakeEngine, tmp_path: Path, valkey: str) -> AsyncIterator[list[GatewayProcess]]:
    await engine.start()
    shared = ("--set", f"batches.redis={valkey}")
    processes = [GatewayProcess(engine, tmp_path / "batches", *shared) for _ in range(2)]
    await asyncio.gather(*(process.start() for process in processes))
    yield processes
    for process in processes:
        await process.kill()
    await engine.stop()


async def end_holds(valkey: str) -> None:
    """As time does: what is left of the dead one's holds, which nobody renews, passes at once."""
    async with Redis.from_url(valkey) as redis:
        holders = await redis.keys("*:holder:*")
        assert holders
        for holder in holders:
            assert 0 < await redis.pttl(holder) <= 1000 * HOLD_S
            await redis.pexpire(holder, 1)


async def test_when_the_gateway_that_works_on_a_batch_is_killed_another_goes_on(
    engine: FakeEngine, gateways: list[GatewayProcess], valkey: str
) -> None:
    async def play(call: Call) -> web.StreamResponse:
        return await call.reply(200, completion(call.body["messages"][0]["content"]))

    engine.plays = [play] * 10_000
    async with connected(gateways[0]) as client:
        batch: Any = await create(client, [asks(f"r{n}") for n in range(NUM_LINES)])
    await engine.has_seen(NUM_LINES // 3)
    await gateways[0].kill()
    await end_holds(valkey)
    async with connected(gateways[1]) as client, asyncio.timeout(DEADLINE_S):
        while batch.status in ("validating", "in_progress", "finalizing"):
            await asyncio.sleep(0.02)
            batch = await client.batches.retrieve(batch.id)
        output = await rows_of(client, batch.output_file_id)
    assert [row["custom_id"] for row in output] == [f"r{n}" for n in range(NUM_LINES)]
    assert batch.request_counts.completed == NUM_LINES
