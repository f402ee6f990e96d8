"""What real engines publish of their cache, as the gateway understands it: evictions, of whom, and resets. SGLang
says where it publishes, so the gateway is not told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from gateway.telemetry.factlog import read
from policies.types import Arrived, CacheLost, Dispatch, Left, SessionId, TurnId
from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.gateway import Gateway, engine_url, gateway
from tests.real.process import free_port
from tests.real.sglang import Sglang, SglangOptions, sglang_server
from tests.real.vllm import Vllm, VllmOptions, vllm_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

CAPACITY_TOKENS = 6400
BLOCK_TOKENS = 32
DEADLINE_S = 120.0
NUM_SESSIONS, NUM_TURNS = 8, 16
WITHIN_TOKENS, LEAST_SHARE = 128, 0.99
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small_sglang() -> AsyncIterator[Sglang]:
    async with sglang_server(SglangOptions(capacity_tokens=CAPACITY_TOKENS)) as running:
        yield running


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
async def publishing_vllm() -> AsyncIterator[tuple[Vllm, dict[str, Any]]]:
    """vLLM with a small cache, and its entry in the configuration: it connects to where its events are heard."""
    port = free_port()
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{port}"}
    options = VllmOptions(
        num_blocks=CAPACITY_TOKENS // BLOCK_TOKENS,
        block_tokens=BLOCK_TOKENS,
        max_context_tokens=6000,
        extra_arguments=("--kv-events-config", json.dumps(config)),
    )
    async with vllm_server(options) as running:
        yield running, {"url": engine_url("vllm", running.base_url), "kv_events": [f"@tcp://127.0.0.1:{port}"]}


async def test_vllm_says_which_session_lost_how_much_and_when_all_is_gone(tmp_path: Path) -> None:
    async with publishing_vllm() as (running, engine):
        await assert_losses_are_known(running, engine, tmp_path / "facts.jsonl")


async def test_sglang_says_which_session_lost_how_much_and_when_all_is_gone(
    small_sglang: Sglang, tmp_path: Path
) -> None:
    engine = {"url": engine_url("sglang", small_sglang.base_url)}
    await assert_losses_are_known(small_sglang, engine, tmp_path / "facts.jsonl")


async def test_a_gateway_that_starts_late_knows_the_horizon_and_counts_no_history(small_sglang: Sglang) -> None:
    for name in "abcd":
        await ask(small_sglang.base_url, small_sglang.model, name, prompt(name, 600))
    engine = engine_url("sglang", small_sglang.base_url)
    async with gateway(engine) as late, asyncio.timeout(DEADLINE_S):
        while not await late.metric("turngate_kv_horizon_seconds"):
            await asyncio.sleep(0.1)
        assert await late.metric("turngate_kv_evicted_blocks_total") == 0


async def test_what_is_cached_of_each_session_is_known_while_the_engine_evicts_all_the_time(
    small_sglang: Sglang, tmp_path: Path
) -> None:
    """Known is what the gateway expected when it sent the turn, less what the engine reported before it computed
    it. The first turn of a session has nothing of its own there."""
    facts = tmp_path / "facts.jsonl"
    await small_sglang.reset_prefix_cache()
    async with gateway(engine_url("sglang", small_sglang.base_url), logging__facts=str(facts)) as front:
        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
            for number in range(NUM_SESSIONS):
                group.create_task(run_session(http, f"{front.base_url}/v1/chat/completions", number))
        evicted = await front.metric("turngate_kv_evicted_blocks_total")
    errors = errors_of_later_turns(facts)
    near = sum(abs(error) <= WITHIN_TOKENS for error in errors)
    print("turns", len(errors), "near", near, "worst", min(errors), max(errors), "evicted", evicted)
    assert evicted > CAPACITY_TOKENS
    assert len(errors) == NUM_SESSIONS * (NUM_TURNS - 1)
    assert near >= LEAST_SHARE * len(errors), sorted(errors)


async def run_session(http: aiohttp.ClientSession, url: str, number: int) -> None:
    """Turns of one agent, each grown from the one before."""
    words = " ".join(f"result {line} of agent {number}" for line in range(12))
    messages = [{"role": "system", "content": "You are an agent of a fleet. " * 20}]
    for turn in range(NUM_TURNS):
        messages.append({"role": "user", "content": f"Turn {turn}. {words}"})
        body = {"model": "tiny", "messages": messages, "tools": [TOOL], "max_tokens": 12, "ignore_eos": True}
        async with http.post(url, json=body, headers={"X-Turngate-Session": f"fleet-{number}"}) as response:
            answer = await response.json()
            assert response.status == 200, answer
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or "-"})


def errors_of_later_turns(facts: Path) -> list[int]:
    """Tokens that the engine found beyond those that were known."""
    sessions: dict[TurnId, SessionId] = {}
    known: dict[TurnId, int] = {}
    seen: set[SessionId] = set()
    errors = []
    for _, fact, decisions in read(facts):
        if isinstance(fact, Arrived):
            sessions[fact.turn.id] = fact.turn.session_id
        if isinstance(fact, CacheLost):
            for turn, tokens in known.items():
                known[turn] = min(tokens, (fact.kept_tokens or {}).get(sessions[turn], tokens))
        if isinstance(fact, Left):
            assert fact.usage.cached_tokens is not None
            expected_tokens = known.pop(fact.turn_id)
            if sessions[fact.turn_id] in seen:
                errors.append(fact.usage.cached_tokens - expected_tokens)
            seen.add(sessions[fact.turn_id])
        known |= {each.turn_id: each.expected_cached_tokens for each in decisions if isinstance(each, Dispatch)}
    return errors


async def assert_losses_are_known(running: Vllm | Sglang, engine: dict[str, Any], facts: Path) -> None:
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
    print("prompt", first["prompt_tokens"], "kept", left_tokens, "cached", cached_tokens, "horizon", horizon_s)
    assert cached_tokens <= left_tokens < first["prompt_tokens"]
    assert left_tokens - cached_tokens <= 128 + BLOCK_TOKENS
    assert any(loss.kept_tokens is None for loss in losses(facts))
    assert horizon_s > 0


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
