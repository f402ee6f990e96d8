"""An engine's own queue: side requests, agents of four dialects and a batch that wait there get their first tokens
in the gateway's order, and what runs is not preempted for them. Where it does not rank all of them, most wait at
the gate."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from openai import AsyncOpenAI

from gateway.engines.base import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.real.gateway import sample
from tests.real.sglang import Sglang, SglangOptions, sglang_server
from tests.real.shim import Exchange
from tests.real.vllm import Vllm, VllmOptions, vllm_server
from tests.real.wire import Wire, long_answer, wire

DIALECTS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
LEVELS = {0: 3, 1: 3, 3: 2, 8: 0, 30: 0}
"""Turns that agents say to be still to come, and the levels that SGLang is told of them."""
REMAINING = tuple(LEVELS)
NUM_SIDE, NUM_BATCH = 6, 4
LEAST_SHARE = {"sglang": 0.85, "vllm": 0.95}
"""With SGLang all were in order while the gateway had a core. On cores that others keep busy it is late now and
then, and a batch that waits in the engine comes between."""
LEAST_PAIRS = {"sglang": 20, "vllm": 300}
"""That wait in the engine."""
DEADLINE_S = 120.0
POLLED_S = 2.5
"""Within it the gateway has seen what waits in the engine."""
MOST_OPEN = {"policy__slots_per_replica": 64}
"""So no slot keeps anything back, and the engine, which runs one call at a time, queues the others."""
FUNCTION = {"name": "bash", "description": "Runs it.", "parameters": {"type": "object", "properties": {}}}


@dataclass(frozen=True)
class Queued:
    """A call that waited for the engine."""

    path: str
    level: int
    """Higher goes first."""
    came_s: float
    first_token_s: float


@asynccontextmanager
async def narrow(kind: str) -> AsyncIterator[Vllm | Sglang]:
    """An engine that runs one call at a time."""
    if kind == "sglang":
        async with sglang_server(SglangOptions(max_running=1, header_overrides=True)) as running:
            yield running
    else:
        async with vllm_server(VllmOptions(max_running=1)) as other:
            yield other


def agent_body(path: str, model: str, text: str) -> dict[str, Any]:
    shared = {"model": model, "stream": True}
    messages = [{"role": "user", "content": text}]
    match path:
        case "/v1/completions":
            return shared | {"prompt": text, "max_tokens": 20, "ignore_eos": True}
        case "/v1/responses":
            return shared | {"input": text, "tools": [{"type": "function", **FUNCTION}], "max_output_tokens": 20}
        case "/v1/messages":
            tool = {"name": "bash", "description": "Runs it.", "input_schema": FUNCTION["parameters"]}
            return shared | {"messages": messages, "tools": [tool], "max_tokens": 20}
    tools = [{"type": "function", "function": FUNCTION}]
    return shared | {"messages": messages, "tools": tools, "max_tokens": 20, "ignore_eos": True}


async def ask_all(wired: Wire) -> None:
    """Every kind of request at once. Each session is in its first turn."""
    async with asyncio.TaskGroup() as group:
        for path in DIALECTS:
            for remaining in REMAINING:
                name = f"{path.rpartition('/')[2]}-{remaining}"
                headers = {"X_Turngate_Session": name, "X_Turngate_Remaining_Turns": str(remaining)}
                group.create_task(
                    wired.send(path, agent_body(path, wired.model, f"I am agent {name}."), **headers)
                )
        for number in range(NUM_SIDE):
            body = agent_body(CHAT, wired.model, f"Give a title for task {number}.")
            del body["tools"]
            group.create_task(wired.send(CHAT, body))


async def start_batch(wired: Wire) -> None:
    async with AsyncOpenAI(base_url=f"{wired.gateway.base_url}/v1", api_key="none", max_retries=0) as client:
        lines = [
            {"custom_id": f"r{n}", "method": "POST", "url": CHAT, "body": batch_body(wired.model, n)}
            for n in range(NUM_BATCH)
        ]
        content = b"\n".join(map(orjson.dumps, lines))
        file = await client.files.create(file=("in.jsonl", content), purpose="batch")
        await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )


def batch_body(model: str, number: int) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": f"Line {number}."}], "max_tokens": 2}


async def until_waiting(kind: str, engine: Vllm | Sglang, wired: Wire, num: int) -> None:
    """In the engine's queue, or at the gate."""
    async with asyncio.timeout(DEADLINE_S):
        while await num_waiting(kind, engine) + await wired.gateway.metric("turngate_queue_depth") != num:
            await asyncio.sleep(0.2)


async def num_waiting(kind: str, engine: Vllm | Sglang) -> int:
    if kind == "vllm":
        return int(await sample(engine.metrics_url, "vllm:num_requests_waiting"))
    async with aiohttp.ClientSession() as http, http.get(f"{engine.base_url}/v1/loads") as response:
        return sum(int(load["num_waiting_reqs"]) for load in (await response.json())["loads"])


def level_of(kind: str, call: Exchange) -> int | None:
    """vLLM's as it was told. SGLang is told one level while the gate keeps the order: there by the client's words,
    where a title says nothing, and a completion, which is no agent's, goes after all agents."""
    if kind == "vllm":
        headers = {name.lower(): value for name, value in call.received.headers}
        return -int(headers.get("x-vllm-priority", 0))
    if b"Line " in call.received.body:
        return -1
    if call.received.path == COMPLETIONS:
        return 0
    agent = re.search(rb"I am agent \w+-(\d+)", call.received.body)
    return None if agent is None else LEVELS[int(agent[1])]


def first_token_s(call: Exchange) -> float:
    """When its first text came; of an answer that comes whole, when it came."""
    seen = b""
    for at_s, chunk in call.chunks:
        seen += chunk
        if b"event-stream" not in dict(call.response_headers).get("Content-Type", "").encode():
            return at_s
        if any(has_text(line) for line in seen.split(b"\n")):
            return at_s
    raise AssertionError(f"no token in {seen[:2000]!r}")


def has_text(line: bytes) -> bool:
    """Whether a line of a stream is an event that carries something that the model wrote."""
    if not line.startswith(b"data: {"):
        return False
    try:
        event = json.loads(line.removeprefix(b"data: "))
    except json.JSONDecodeError:
        return False  # its rest is to come
    if str(event.get("type", "")).endswith(("delta", "message_stop", "response.completed")):
        return True
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if (
            choice.get("text")
            or choice.get("finish_reason")
            or any(delta.get(k) for k in ("content", "tool_calls"))
        ):
            return True
    return False


def pairs_in_order(calls: Iterable[Queued], in_engine: bool) -> tuple[int, int]:
    """Pairs of different levels, and those of them in the order of their levels. `in_engine`: only those that
    waited there at the same time."""
    pairs = [
        (one, other)
        for one, other in combinations(calls, 2)
        if one.level != other.level
        and (not in_engine or max(one.came_s, other.came_s) < min(one.first_token_s, other.first_token_s))
    ]
    right = [(one.level > other.level) == (one.first_token_s < other.first_token_s) for one, other in pairs]
    return len(pairs), sum(right)


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
async def test_first_tokens_come_in_the_gateway_s_order_and_nothing_is_preempted(
    kind: str, tmp_path: Path
) -> None:
    num_all = len(DIALECTS) * len(REMAINING) + NUM_SIDE
    async with (
        narrow(kind) as engine,
        wire(kind, engine.base_url, engine.model, batches__directory=str(tmp_path), **MOST_OPEN) as wired,
    ):
        # From the first call on that an engine does not rank, its queue is kept short for a minute.
        await wired.send(RESPONSES, agent_body(RESPONSES, wired.model, "I came before."))
        async with asyncio.TaskGroup() as group, long_answer(engine.base_url, engine.model) as runner:
            began_s = time.monotonic()
            await start_batch(wired)
            await until_waiting(kind, engine, wired, NUM_BATCH)
            await asyncio.sleep(POLLED_S)
            group.create_task(ask_all(wired))
            await until_waiting(kind, engine, wired, NUM_BATCH + num_all)
            assert runner.content.exception() is None
            left_s = time.monotonic()
        posts = await wired.ended_posts()
        num_preempted = await sample(engine.metrics_url, "vllm:num_preemptions_total")
    assert {call.status for call in posts} == {200}
    asked = [call for call in posts if call.received.path in DIALECTS and call.started_s > began_s]
    calls = [
        Queued(call.received.path, level, call.started_s, first_token_s(call))
        for call in asked
        if (level := level_of(kind, call)) is not None
    ]
    num, num_right = pairs_in_order(calls, in_engine=True)
    print("calls", len(asked), "pairs", num, "in order", num_right)
    print("with those that waited at the gate:", *pairs_in_order(calls, in_engine=False))
    assert len(asked) == NUM_BATCH + num_all
    assert num_preempted == 0
    assert min(call.first_token_s for call in calls) > left_s, "what ran was preempted"
    assert len({call.level for call in calls}) >= 4
    assert num >= LEAST_PAIRS[kind]
    assert num_right >= LEAST_SHARE[kind] * num, sorted(
        (call.first_token_s, call.level, call.path) for call in calls
    )
