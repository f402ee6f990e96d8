"""The engines: each lends a fresh one per cell, or the same one with an empty cache where a start takes long."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from benchmarks.fleet.player import prose
from benchmarks.simulation.fleets import AgentFleet
from gateway.cli.demo_process import command
from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.gateway import sample
from tests.real.parts import SGLANG_SMALL_MODEL_DIR, SMALL_MODEL_DIR
from tests.real.sglang import SglangOptions, sglang_server
from tests.real.vllm import VllmOptions, vllm_server


@dataclass(frozen=True, slots=True)
class Engine:
    base_url: str
    kind: str
    """As the gateway calls it."""
    model: str
    capacity_tokens: int
    """Of the KV caches behind the URL together."""
    metrics_urls: tuple[str, ...] = ()
    """Where `vllm:num_preemptions_total` is counted. Empty: it does not count any."""
    hits_answers: bool = False
    """Whether an answer that comes back inside the next prompt is found in its cache; the mocker's is random text,
    which is cut into other tokens when it comes back."""

    async def preemptions(self) -> int:
        return sum([int(await sample(url, "vllm:num_preemptions_total")) for url in self.metrics_urls])


Fresh = Callable[..., AbstractAsyncContextManager[Engine]]
"""Lends an engine with an empty cache; keywords change its options."""


@asynccontextmanager
async def embedded(fleet: AgentFleet) -> AsyncIterator[Fresh]:
    assert fleet.world.num_replicas == 1, "the embedded engine has one worker"
    capacity_tokens = fleet.world.spec.capacity_tokens
    capacity = f"embedded.capacity_tokens={capacity_tokens}"

    @asynccontextmanager
    async def fresh() -> AsyncIterator[Engine]:
        async with command(
            ["engine", "--port", "0", "--set", capacity, "--set", "embedded.slots=256"]
        ) as base_url:
            yield Engine(base_url, "vllm", "embedded", capacity_tokens, hits_answers=True)

    yield fresh


@asynccontextmanager
async def dynamo(fleet: AgentFleet) -> AsyncIterator[Fresh]:
    spec = fleet.world.spec
    options = DynamoOptions(
        num_workers=fleet.world.num_replicas, num_blocks=spec.num_blocks, block_tokens=spec.block_tokens
    )

    @asynccontextmanager
    async def fresh(**changes: Any) -> AsyncIterator[Engine]:
        async with dynamo_stack(replace(options, **changes)) as stack:
            metrics_urls = tuple(worker.metrics_url for worker in stack.workers)
            yield Engine(stack.base_url, "dynamo", stack.model, options.capacity_tokens, metrics_urls)

    yield fresh


@asynccontextmanager
async def vllm(fleet: AgentFleet) -> AsyncIterator[Fresh]:
    """One server for all cells: it takes a minute to start."""
    assert fleet.world.num_replicas == 1, "vLLM runs as one worker here"
    spec = fleet.world.spec
    options = VllmOptions(
        SMALL_MODEL_DIR, num_blocks=spec.num_blocks, block_tokens=spec.block_tokens, max_context_tokens=16_384
    )
    async with vllm_server(options) as server:
        engine = Engine(
            server.base_url,
            "vllm",
            server.model,
            spec.capacity_tokens,
            (server.metrics_url,),
            hits_answers=True,
        )

        @asynccontextmanager
        async def fresh() -> AsyncIterator[Engine]:
            await server.reset_prefix_cache()
            yield engine

        yield fresh


@asynccontextmanager
async def sglang(fleet: AgentFleet) -> AsyncIterator[Fresh]:
    """One server for all cells, like vLLM's. Its blocks are single tokens."""
    assert fleet.world.num_replicas == 1, "SGLang runs as one worker here"
    capacity_tokens = fleet.world.spec.capacity_tokens
    options = SglangOptions(
        SGLANG_SMALL_MODEL_DIR,
        capacity_tokens=capacity_tokens,
        extra_arguments=("--context-length", "16384"),
    )
    async with sglang_server(options) as server:
        engine = Engine(server.base_url, "sglang", server.model, capacity_tokens, hits_answers=True)

        @asynccontextmanager
        async def fresh() -> AsyncIterator[Engine]:
            await server.reset_prefix_cache()
            yield engine

        yield fresh


ENGINES = {"embedded": embedded, "dynamo": dynamo, "vllm": vllm, "sglang": sglang}
PARALLEL = {"embedded": 2, "dynamo": 4, "vllm": 1, "sglang": 1}
"""Cells at a time. The mocker sleeps instead of computing, so that up to nine stacks disturb each other by less
than 1 %; vLLM and SGLang compute."""


async def measured_chars_per_token(engine: Engine) -> float:
    """Of the texts that the fleets send, by the engine's own tokenizer."""
    num_chars = 20_000
    message = {"role": "user", "content": prose("calibration", num_chars)}
    body = {"model": engine.model, "messages": [message], "max_tokens": 1}
    url = f"{engine.base_url}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        response.raise_for_status()
        usage = (await response.json())["usage"]
    return num_chars / float(usage["prompt_tokens"])
