"""Batches at full size: 10,000 lines with the official SDK, and 200 agent runs under a gateway that is killed."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from aiohttp import web

from gateway.cli.demo_process import command
from tests.path.fake_engine import Call, FakeEngine
from tests.path.killed import GatewayProcess, connected, rows_of
from tests.path.test_batches_agents import says

NUM_LINES = 10_000
NUM_RUNS, NUM_TURNS, NUM_KILLS = 200, 4, 20
CHAT: Any = "/v1/chat/completions"
RUNS: Any = "/v1/turngate/agent_runs"
TOOLS = '[{"use": "tests.path.batch_tools:look"}]'


async def over(client: openai.AsyncOpenAI, batch: Any, within_s: float) -> Any:
    async with asyncio.timeout(within_s):
        while batch.status in ("validating", "in_progress", "finalizing"):
            await asyncio.sleep(0.2)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def test_ten_thousand_lines_from_upload_to_output(tmp_path: Path) -> None:
    system = {"role": "system", "content": "You are a careful clerk. " * 40}
    rows = (
        {
            "custom_id": f"r{n}",
            "method": "POST",
            "url": CHAT,
            "body": {
                "model": "embedded",
                "messages": [system, {"role": "user", "content": f"Case {n}"}],
                "max_tokens": 8,
            },
        }
        for n in range(NUM_LINES)
    )
    data = b"\n".join(map(orjson.dumps, rows))
    speed = ("--set", "embedded.speed=100", "--set", "logging.level=warning", "--set", "probing.hints=false")
    serve = ["serve", "--port", "0", "--engine", "embedded", "--batches", str(tmp_path), *speed]
    async with command(serve) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        began = time.monotonic()
        file = await client.files.create(file=("in.jsonl", data), purpose="batch")
        batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        done = await over(client, batch, 300)
        output = await rows_of(client, done.output_file_id)
        print(f"{NUM_LINES} lines in {time.monotonic() - began:.1f} s")
    assert [row["custom_id"] for row in output] == [f"r{n}" for n in range(NUM_LINES)]
    assert done.request_counts.completed == NUM_LINES
    assert done.usage.output_tokens == sum(row["response"]["body"]["usage"]["completion_tokens"] for row in output)


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    engine = FakeEngine()
    await engine.start()
    yield engine
    await engine.stop()


async def test_the_largest_file_is_never_held_in_memory(engine: FakeEngine, tmp_path: Path) -> None:
    async def hangs(call: Call) -> None:
        await asyncio.Event().wait()

    text = "word " * 800
    file = tmp_path / "in.jsonl"
    with file.open("wb") as out:
        for n in range(50_000):
            body = {"model": "m", "messages": [{"role": "user", "content": f"{n} {text}"}]}
            row = {"custom_id": str(n), "method": "POST", "url": CHAT, "body": body}
            out.write(orjson.dumps(row) + b"\n")
    assert file.stat().st_size > 195 * 2**20
    gateway = GatewayProcess(engine, tmp_path / "batches")
    await gateway.start()
    engine.plays = [hangs] * 10_000  # not before: it would hang the probes too
    before = gateway.most_memory_bytes()
    async with connected(gateway) as client:
        with file.open("rb") as source:
            uploaded = await client.files.create(file=source, purpose="batch")
        after_upload = gateway.most_memory_bytes()
        batch: Any = await client.batches.create(input_file_id=uploaded.id, endpoint=CHAT, completion_window="24h")
        async with asyncio.timeout(120):
            while batch.status == "validating":
                await asyncio.sleep(0.2)
                batch = await client.batches.retrieve(batch.id)
        after_validation = gateway.most_memory_bytes()
        assert batch.request_counts.total == 50_000
        await client.batches.cancel(batch.id)
    await gateway.kill()
    used_mb = [(bytes_ - before) // 2**20 for bytes_ in (after_upload, after_validation)]
    print(f"{used_mb} MB to upload, and to validate too")
    assert used_mb[0] < 24
    assert used_mb[1] < 160


async def test_agent_runs_under_a_gateway_that_is_killed_go_on_at_their_last_turn(
    engine: FakeEngine, tmp_path: Path
) -> None:
    asked: defaultdict[str, list[int]] = defaultdict(list)

    async def play(call: Call) -> web.StreamResponse:
        messages = call.body["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        asked[messages[0]["content"]].append(turn)
        await asyncio.sleep(0.02)
        answer = says(text="done") if turn == NUM_TURNS - 1 else says(("look", f"{turn}"))
        return await call.reply(200, answer)

    engine.plays = [play] * 100_000
    rows = [
        {"custom_id": f"a{n}", "method": "POST", "url": RUNS, "body": {"task": f"Task {n}.", "tools": ["look"]}}
        for n in range(NUM_RUNS)
    ]
    gateway = GatewayProcess(engine, tmp_path, "--set", f"tools.use={TOOLS}")
    await gateway.start()
    async with connected(gateway) as client:
        file = await client.files.create(file=("in.jsonl", b"\n".join(map(orjson.dumps, rows))), purpose="batch")
        batch = await client.batches.create(input_file_id=file.id, endpoint=RUNS, completion_window="24h")
    chance = random.Random(7)
    for _ in range(NUM_KILLS):
        await engine.has_seen(len(engine.calls) + chance.randrange(1, NUM_RUNS * NUM_TURNS // NUM_KILLS))
        await gateway.kill()
        await gateway.start()
    async with connected(gateway) as client:
        done = await over(client, batch, 120)
        output = await rows_of(client, done.output_file_id)
    await gateway.kill()
    assert sorted(row["custom_id"] for row in output) == sorted(f"a{n}" for n in range(NUM_RUNS))
    assert all(row["response"]["body"]["output"] == "done" for row in output)
    assert all(row["response"]["body"]["turns"] == NUM_TURNS for row in output)
    assert all(turns == sorted(turns) and set(turns) == set(range(NUM_TURNS)) for turns in asked.values())
    num_repeated = sum(map(len, asked.values())) - NUM_RUNS * NUM_TURNS
    print(f"{num_repeated} of {NUM_RUNS * NUM_TURNS} turns were asked again after {NUM_KILLS} kills")
    assert num_repeated <= NUM_KILLS * 16
