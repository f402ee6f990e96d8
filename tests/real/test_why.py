"""`turngate why` on the real Dynamo and the real vLLM: each known cause of slowness comes first, its split is the
client's time, and the engine's queue is that of the engine's own figure where it has one."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from gateway.cli.demo_fleet import prose
from tests.causes import CASES, Site
from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.gateway import engine_url, gateway, sample
from tests.real.rewrites import forced, replayed
from tests.real.scripts import Answer, Call
from tests.real.shim import Request, shim
from tests.real.vllm import VllmOptions, vllm_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOOKUP = Answer("I look it up.", (Call("lookup", {"q": "a"}),))


def calls_tool(request: Request) -> Request:
    """Dynamo's mocker calls the tool where one is offered."""
    return replayed(lambda body, turn: LOOKUP)(request) if b'"tools"' in request.body else request


@dataclass(frozen=True)
class Running:
    """An engine, and what the cases have to know of it."""

    kind: str
    base_url: str
    model: str
    long_tokens: int
    num_output: int
    slots: int
    metrics_urls: Sequence[str] = ()
    """Where the engine states its queue."""
    tool_fields: dict[str, Any] = field(default_factory=dict)

    async def chars_per_token(self) -> float:
        """In the texts of the cases."""
        num_chars = 8_000
        text = prose(f"size {random.random()}", num_chars)
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
        url = f"{self.base_url}/v1/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            return num_chars / float((await response.json())["usage"]["prompt_tokens"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_dynamo() -> AsyncIterator[Running]:
    options = DynamoOptions(max_running=2, num_blocks=4000, replies=(LOOKUP,))
    async with dynamo_stack(options) as stack, shim(stack.base_url, calls_tool) as scripted:
        yield Running("dynamo", scripted.base_url, stack.model, 10_000, 60, options.max_running)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_vllm() -> AsyncIterator[Running]:
    """One of its own, as that of the other tests has too many slots to fill."""
    options = VllmOptions(max_running=2)
    async with vllm_server(options) as server:
        yield Running(
            "vllm",
            server.base_url,
            server.model,
            8_000,
            400,
            options.max_running,
            [server.metrics_url],
            forced(LOOKUP),
        )


@pytest.fixture(params=["dynamo", "vllm"])
def engine(request: pytest.FixtureRequest) -> Running:
    found: Running = request.getfixturevalue(f"on_{request.param}")
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_a_known_cause_comes_first_and_the_split_is_the_client_s_time(
    engine: Running, case: Callable[[Site], Awaitable[None]]
) -> None:
    async with AsyncExitStack() as other:
        second = await other.enter_async_context(shim(engine.base_url))

        @asynccontextmanager
        async def serve(num_replicas: int = 1, **settings: Any) -> AsyncIterator[str]:
            urls = [engine_url(engine.kind, base) for base in (engine.base_url, second.base_url)][:num_replicas]
            async with gateway(*urls, probing__interval_s=0.1, **settings) as front:
                yield front.base_url

        async def queue_s() -> float | None:
            sums = [await sample(url, "vllm:request_queue_time_seconds_sum") for url in engine.metrics_urls]
            return sum(sums) if sums else None

        await case(
            Site(
                serve,
                other.aclose,
                engine.model,
                engine.long_tokens,
                queue_s,
                engine.tool_fields,
                await engine.chars_per_token(),
                engine.num_output,
                engine.slots,
            )
        )
