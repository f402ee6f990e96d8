"""Other gateways, as arms put them in front of an engine; `python -m tests.real.install peers` installs them."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import orjson

from benchmarks.fleet.engines import Engine
from tests.real.parts import PEERS_PYTHON, require
from tests.real.process import free_port, server
from tests.real.shim import Request, shim

READY_WITHIN_S = 60.0
SGLANG_FIELDS = frozenset(
    ("separate_reasoning", "stream_reasoning", "no_stop_trim", "include_reasoning", "return_hidden_states")
)
"""vllm-router adds these to every chat body, and Dynamo answers 400 to all of them."""

PROGRAM_OPTIONS = {"program_scheduling_enable_key": "auto", "global_queue": True}
"""Sessions are known by their headers: `auto`."""
MOCKER_COSTS = {
    "prefill_cost_model": {
        "intercept_seconds": 0.008,
        "linear_seconds_per_1k_tokens": 0.13,
        "quadratic_seconds_per_1k_tokens_squared": 0.0,
    },
    "decode_throughput_model": {
        "fixed_step_seconds": 0.015,
        "batch_step_seconds_per_request": 4e-5,
        "context_step_seconds_per_token": 1.1e-7,
    },
}
"""The timing table of the mocker, in the form that the router is calibrated in."""


@asynccontextmanager
async def smg(engine: Engine) -> AsyncIterator[str]:
    async with _proxy("smg", ["launch", "--backend", "vllm", "--policy", "cache_aware"], engine) as base_url:
        yield base_url


@asynccontextmanager
async def vllm_router(engine: Engine) -> AsyncIterator[str]:
    async with _vllm_router(engine, []) as base_url:
        yield base_url


@asynccontextmanager
async def vllm_router_programs(engine: Engine) -> AsyncIterator[str]:
    """Its recommended deployment: a global queue, the engine's capacity, and the engine's costs."""
    options = PROGRAM_OPTIONS | {"token_capacity_per_dp_rank": engine.capacity_tokens}
    if engine.kind == "dynamo":
        options |= MOCKER_COSTS
    program_options = orjson.dumps(options).decode()
    flags = ["--enable-program-scheduling", "--program-scheduling-config-json", program_options]
    async with _vllm_router(engine, flags) as base_url:
        yield base_url


@asynccontextmanager
async def _vllm_router(engine: Engine, flags: Sequence[str]) -> AsyncIterator[str]:
    async with AsyncExitStack() as stack:
        if engine.kind == "dynamo":
            between = await stack.enter_async_context(shim(engine.base_url, without_sglang_fields))
            engine = replace(engine, base_url=between.base_url)
        yield await stack.enter_async_context(_proxy("vllm-router", ["--policy", "cache_aware", *flags], engine))


def without_sglang_fields(request: Request) -> Request:
    if not request.path.startswith("/v1/chat/completions"):
        return request
    body = orjson.loads(request.body)
    kept = {key: value for key, value in body.items() if key not in SGLANG_FIELDS}
    return replace(request, body=orjson.dumps(kept))


@asynccontextmanager
async def _proxy(name: str, arguments: Sequence[str], engine: Engine) -> AsyncIterator[str]:
    """Ready when it lists the engine's model."""
    command = PEERS_PYTHON.with_name(name)
    require("peers", command)
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"
    places = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    options = [*arguments, "--worker-urls", engine.base_url, *places, "--log-level", "error"]

    async def is_ready(session: aiohttp.ClientSession) -> bool:
        async with session.get(f"{base_url}/v1/models") as response:
            return response.status == 200 and engine.model in await response.text()

    with tempfile.TemporaryDirectory(prefix="turngate-peer-") as log_dir:
        async with server(name, [command, *options], {}, Path(log_dir)) as running:
            await running.wait_until_ready(is_ready, READY_WITHIN_S)
            yield base_url
