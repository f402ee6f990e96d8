"""What real engines publish of their cache, as the gateway understands it: evictions, of whom, and resets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.telemetry.factlog import read
from policies.types import CacheLost, SessionId
from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.gateway import Gateway, engine_url, gateway
from tests.real.process import free_port
from tests.real.sglang import Sglang, SglangOptions, sglang_server
from tests.real.vllm import Vllm, VllmOptions, vllm_server

CAPACITY_TOKENS = 6400
BLOCK_TOKENS = 32
DEADLINE_S = 120.0


async def ask(base_url: str, model: str, session: str, text: str) -> dict[str, Any]:
    """Usage of one short answer."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    async with aiohttp.ClientSession() as http:
        headers = {"X-Turngate-Session": session}
        async with http.post(f"{base_url}/v1/chat/completions", json=body, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
    usage: dict[str, Any] = answer["usage"]
    return usage


def prompt(session: str, num_words: int) -> str:
    return f"session {session}: " + " ".join(f"{session}{number}" for number in range(num_words))


def losses(facts: Path) -> list[CacheLost]:
    return [fact for _, fact, _ in read(facts) if isinstance(fact, CacheLost)]


def kept(facts: Path) -> dict[SessionId, int]:
    """The last that was said of each session."""
    told: dict[SessionId, int] = {}
    for loss in losses(facts):
        told.update(loss.kept_tokens or {})
    return told


async def until_evicted(running: Gateway) -> float:
    async with asyncio.timeout(DEADLINE_S):
        while not (number := await running.metric("turngate_kv_evicted_blocks_total")):
            await asyncio.sleep(0.1)
    return number


async def session_id(running: Gateway, position: int) -> SessionId:
    found: SessionId = (await running.sessions())[position]["session"]
    return found


@asynccontextmanager
async def publishing(kind: str) -> AsyncIterator[tuple[Vllm | Sglang, list[Any]]]:
    """An engine with a small cache, and where its events are heard."""
    if kind == "sglang":
        async with sglang_server(SglangOptions(capacity_tokens=CAPACITY_TOKENS)) as running:
            url, replay_url = (f"tcp://127.0.0.1:{running.events_port + n}" for n in range(2))
            yield running, [{"url": url, "replay_url": replay_url}]
        return
    port = free_port()
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{port}"}
    options = VllmOptions(
        num_blocks=CAPACITY_TOKENS // BLOCK_TOKENS,
        block_tokens=BLOCK_TOKENS,
        max_context_tokens=6000,
        extra_arguments=("--kv-events-config", json.dumps(config)),
    )
    async with vllm_server(options) as running:
        yield running, [f"@tcp://127.0.0.1:{port}"]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_an_engine_says_which_session_lost_how_much_and_when_all_is_gone(kind: str, tmp_path: Path) -> None:
    facts = tmp_path / "facts.jsonl"
    async with publishing(kind) as (running, sources):
        engine = {"url": engine_url(kind, running.base_url), "kv_events": sources}
        async with gateway(engines=[engine], logging__facts=str(facts)) as front:
            first = await ask(front.base_url, running.model, "a", prompt("a", 600))
            for name in ("b", "c", "d"):
                await ask(front.base_url, running.model, name, prompt(name, 600))
            assert await until_evicted(front) > 0
            again = await ask(front.base_url, running.model, "a", prompt("a", 600))
            cached_tokens = again["prompt_tokens_details"]["cached_tokens"]
            lost_id = await session_id(front, 0)
            await running.reset_prefix_cache()
            await asyncio.sleep(1.5)  # the log of facts is flushed once a second
            await ask(front.base_url, running.model, "b", "hello")
            horizon_s = await front.metric("turngate_kv_horizon_seconds")
        left_tokens = kept(facts)[lost_id]
        if kind == "sglang":
            await assert_history_is_known_and_not_counted(engine)
    print("prompt", first["prompt_tokens"], "kept", left_tokens, "cached", cached_tokens, "horizon", horizon_s)
    assert cached_tokens <= left_tokens < first["prompt_tokens"]
    assert left_tokens - cached_tokens <= 128 + BLOCK_TOKENS
    assert any(loss.kept_tokens is None for loss in losses(facts))
    assert horizon_s > 0


async def assert_history_is_known_and_not_counted(engine: dict[str, Any]) -> None:
    """By a gateway that starts beside an engine that has worked for a while."""
    async with gateway(engines=[engine]) as late, asyncio.timeout(DEADLINE_S):
        while not await late.metric("turngate_kv_horizon_seconds"):
            await asyncio.sleep(0.1)
        assert await late.metric("turngate_kv_evicted_blocks_total") == 0


async def test_dynamo_counts_evictions_although_it_names_no_session(tmp_path: Path) -> None:
    port, replay, facts = free_port(), free_port(), tmp_path / "facts.jsonl"
    options = DynamoOptions(
        num_blocks=100,
        speedup_ratio=1000.0,
        worker_arguments=("--zmq-kv-events-ports", str(port), "--zmq-replay-ports", str(replay)),
    )
    async with dynamo_stack(options) as dynamo:
        await ask(dynamo.base_url, dynamo.model, "early", prompt("early", 100))
        source = {"url": f"tcp://127.0.0.1:{port}", "replay_url": f"tcp://127.0.0.1:{replay}"}
        engine = {"url": engine_url("dynamo", dynamo.base_url), "kv_events": [source]}
        async with gateway(engines=[engine], logging__facts=str(facts)) as running:
            for name in ("a", "b", "c", "d"):
                await ask(running.base_url, dynamo.model, name, prompt(name, 200))
            evicted = await until_evicted(running)
            horizon_s = await running.metric("turngate_kv_horizon_seconds")
    print("evicted", evicted, "horizon", horizon_s)
    assert horizon_s > 0
    assert kept(facts) == {}
