"""Other gateways, as arms put them in front of an engine; `python -m tests.real.install peers` installs them."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import orjson

from benchmarks.fleet.engines import Engine
from tests.real.parts import PEERS_PYTHON, require
from tests.real.process import free_port, server
from tests.real.shim import Request, shim

READY_WITHIN_S = 60.0
SGLANG_FIELDS = (
    *("separate_reasoning", "stream_reasoning", "no_stop_trim", "include_reasoning", "return_hidden_states"),
    *("no_stop_trim", "continue_final_message", "return_routed_experts"),
)
"""vllm-router adds these to every chat body; Dynamo refuses each of them with 400."""

Front = Callable[[Engine], AbstractAsyncContextManager[str]]


@asynccontextmanager
async def smg(engine: Engine) -> AsyncIterator[str]:
    async with _proxy("smg", ["launch", "--backend", "vllm", "--policy", "cache_aware"], engine) as base_url:
        yield base_url


def vllm_router(*options: str) -> Front:
    @asynccontextmanager
    async def serve(engine: Engine) -> AsyncIterator[str]:
        async with AsyncExitStack() as stack:
            if engine.kind == "dynamo":
                between = await stack.enter_async_context(shim(engine.base_url, without_sglang_fields))
                engine = replace(engine, base_url=between.base_url)
            arguments = ["--policy", "cache_aware", *options]
            yield await stack.enter_async_context(_proxy("vllm-router", arguments, engine))

    return serve


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
    options = [*arguments, "--worker-urls", engine.base_url, *places, "--log-level", "warn"]

    async def is_ready(session: aiohttp.ClientSession) -> bool:
        async with session.get(f"{base_url}/v1/models") as response:
            return response.status == 200 and engine.model in await response.text()

    with tempfile.TemporaryDirectory(prefix="turngate-peer-") as log_dir:
        async with server(name, [command, *options], {}, Path(log_dir)) as running:
            await running.wait_until_ready(is_ready, READY_WITHIN_S)
            yield base_url
