"""A gateway process that is killed, at any moment, and started again on the same directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.deadline import DEADLINE_S
from tests.path.fake_engine import Call, FakeEngine, completion
from tests.path.killed import GatewayProcess, connected, rows_of

NUM_LINES = 300
CHAT: Any = "/v1/chat/completions"


@pytest.fixture
async def gateway(engine: FakeEngine, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    await engine.start()
    process = GatewayProcess(engine, tmp_path / "batches")
    await process.start()
    yield process
    await process.kill()
    await engine.stop()


def lines() -> bytes:
    body = {"model": "m", "messages": []}
    rows = [
        {"custom_id": f"r{n}", "method": "POST", "url": CHAT, "body": body | {"seed": n}} for n in range(NUM_LINES)
    ]
    return b"\n".join(orjson.dumps(row) for row in rows)


async def test_no_line_is_lost_and_none_is_twice_in_the_output(
    engine: FakeEngine, gateway: GatewayProcess
) -> None:
    async def play(call: Call) -> web.StreamResponse:
        if call.body["seed"] % 50 == 7:
            return await call.reply(400, {"error": {"message": "no", "type": "invalid_request_error"}})
        return await call.reply(200, completion(f"answer {call.body['seed']}"))

    engine.plays = [play] * 10_000
    async with connected(gateway) as client:
        file = await client.files.create(file=("in.jsonl", lines()), purpose="batch")
        batch: Any = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    for num_calls in (0, 40, 150, 290):
        if num_calls:
            await engine.has_seen(num_calls)
        await gateway.kill()
        await gateway.start()
    async with connected(gateway) as client, asyncio.timeout(DEADLINE_S):
        while batch.status in ("validating", "in_progress", "finalizing"):
            await asyncio.sleep(0.05)
            batch = await client.batches.retrieve(batch.id)
        output = await rows_of(client, batch.output_file_id)
        errors = await rows_of(client, batch.error_file_id)
    numbers = range(NUM_LINES)
    assert [row["custom_id"] for row in output] == [f"r{n}" for n in numbers if n % 50 != 7]
    assert [row["custom_id"] for row in errors] == [f"r{n}" for n in numbers if n % 50 == 7]
    assert all(
        row["response"]["body"]["choices"][0]["message"]["content"][7:] == row["custom_id"][1:] for row in output
    )
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (NUM_LINES, len(output), len(errors))
    assert batch.usage.output_tokens == 2 * len(output)
