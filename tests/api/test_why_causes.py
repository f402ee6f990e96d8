"""Laws of `turngate why` on the embedded engine: each known cause of slowness comes first, and its split is the
client's time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from gateway.app import App
from gateway.config.settings import Embedded, Settings
from gateway.embedded.server import InProcessEngine
from tests.causes import CASES, Site
from tests.real.gateway import sample

SPEED = 2.0
LONG_TOKENS = 16_000
SCRIPT = [{"tool_calls": [{"name": "lookup", "arguments": {"q": "a"}}]}, {"output_tokens": 4}]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    engines = [InProcessEngine(Embedded(speed=SPEED, slots=2)) for _ in range(2)]
    ports = [await engine.start() for engine in engines]
    async with AsyncExitStack() as one, AsyncExitStack() as other:
        one.push_async_callback(engines[0].stop)
        other.push_async_callback(engines[1].stop)

        @asynccontextmanager
        async def serve(num_replicas: int = 1, **settings: Any) -> AsyncIterator[str]:
            tree: dict[str, Any] = {
                "listen": {"port": 0},
                "engines": [f"vllm://127.0.0.1:{port}" for port in ports[:num_replicas]],
                "probing": {"interval_s": 0.1},
                "timeouts": {"shutdown_grace_s": 0},
            }
            for path, value in settings.items():
                section, _, key = path.partition("__")
                tree[section] = tree.get(section, {}) | {key: value} if key else value
            app = App(Settings.model_validate(tree))
            await app.start()
            try:
                yield f"http://127.0.0.1:{app.port}"
            finally:
                await app.stop()

        async def queue_s() -> float:
            return await sample(f"http://127.0.0.1:{ports[0]}/metrics", "vllm:request_queue_time_seconds_sum")

        fields = {"embedded_script": SCRIPT}
        yield Site(serve, other.aclose, "embedded", LONG_TOKENS, queue_s, fields, num_output=120)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_a_known_cause_comes_first_and_the_split_is_the_client_s_time(
    case: Callable[[Site], Awaitable[None]], site: Site
) -> None:
    await case(site)
