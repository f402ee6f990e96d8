"""A gateway in front of fake engines, and a client that sees raw bytes."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from gateway.app import App
from gateway.config.settings import Settings
from tests.clock import Clock as Clock
from tests.clock import clock as clock
from tests.deadline import DEADLINE_S
from tests.path.fake_engine import FakeEngine
from tests.transport.loops import AIOHTTP, FAST, FAST_ON_ASYNCIO, LoopFactory, carrier

PROTOCOL_SUITES = {
    "test_batches_files": "a request body that is read in chunks, and one that breaks off",
    "test_cancellation": "a client that leaves, in every phase of a request",
    "test_drain": "a server that stops while requests run and wait",
    "test_faults": "an engine whose connection or answer breaks",
    "test_faults_client": "a client that is slow, that leaves, or that sends broken framing",
    "test_faults_engine": "an engine whose answer is malformed, too long or cut",
    "test_faults_silent": "an engine that goes silent: the time-outs of an upstream call",
    "test_relay_bytes": "the bytes of a stream, however the engine cuts them into chunks",
    "test_security_bodies": "a body that is too long, packed or ambiguous, and the bounds of headers",
    "test_security_secrets": "a parser that quotes what it cannot read",
}
"""Files whose laws depend on the transport, each with the part of HTTP that it exercises."""


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Protocol suites run over both transports, and so does one test of each other file. The rest runs over
    `fast`, the default. Gateways that are processes choose their transport themselves."""
    source = _source(item.path)
    if "GatewayProcess" in source or "tests.path.fleet" in source:
        return FAST
    default = FAST_ON_ASYNCIO if "clock." in source else FAST
    is_smoke = item.name == _smoke_test(item.path)
    return AIOHTTP | default if is_smoke or item.path.stem in PROTOCOL_SUITES else default


@cache
def _source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _smoke_test(path: Path) -> str | None:
    """The first test of a file without parameters; if all have some, the first."""
    tests = [node for node in ast.parse(_source(path)).body if isinstance(node, ast.AsyncFunctionDef)]
    tests = [node for node in tests if node.name.startswith("test_")]
    plain = [node for node in tests if not any("parametrize" in ast.unparse(one) for one in node.decorator_list)]
    return next((node.name for node in (*plain, *tests)), None)


@dataclass
class Gateway:
    """One running gateway, its engines, and a client."""

    app: App
    engines: list[FakeEngine]
    client: aiohttp.ClientSession
    clock: Clock
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.app.port}{path}"

    def post(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(self.url(path), json=body, headers=named)

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(self.url(path), headers={n.replace("_", "-"): v for n, v in headers.items()})

    def begin(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> asyncio.Task[Answer]:
        """A request in the background; cancelling it is a client that leaves."""
        task = asyncio.create_task(self.ask(body, path, **headers))
        self.tasks.append(task)
        return task

    async def ask(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> Answer:
        async with self.post(body, path, **headers) as response:
            return await rest_of(response)

    @property
    def slots_used(self) -> int:
        return sum(replica.slots_used for replica in self.app.parts.gate.view().replicas)

    @property
    def num_waiting(self) -> int:
        return sum(self.app.parts.gate.view().waiting.values())

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Lets the loop run until something is so that nothing announces."""
        async with asyncio.timeout(DEADLINE_S):
            while not is_so():
                await asyncio.sleep(0)

    async def is_empty(self) -> None:
        """Returns once no slot is used, nobody waits, and no engine works."""
        for engine in self.engines:
            await engine.is_idle()
        await self.until(lambda: self.slots_used == 0 and self.num_waiting == 0)


@dataclass
class Answer:
    status: int
    headers: Any
    body: bytes = b""
    is_cut: bool = False


async def rest_of(response: aiohttp.ClientResponse) -> Answer:
    """What is still to come of an answer, up to its end or its break."""
    answer = Answer(response.status, response.headers)
    try:
        async for part in response.content.iter_any():
            answer.body += part
    except aiohttp.ClientPayloadError:
        answer.is_cut = True
    return answer


Start = Callable[..., Awaitable[Gateway]]


@pytest.fixture
async def start(clock: Clock) -> AsyncIterator[Start]:
    """Starts a gateway in front of the given engines; keyword arguments are sections of the settings."""
    running: list[Gateway] = []

    async def start(*engines: FakeEngine, kind: str = "vllm", **sections: Any) -> Gateway:
        for engine in engines:
            if not engine.port:
                await engine.start()
        tree = {
            "listen": {"port": 0},
            "transport": carrier(),
            "engines": [
                {"url": f"{kind}://127.0.0.1:{engine.port}", "name": f"e{n}"}
                for n, engine in enumerate(engines, 1)
            ],
            "probing": {"hints": False, "interval_s": 3600},
            "timeouts": {"shutdown_grace_s": 0},
        }
        app = App(Settings.model_validate(tree | sections), clock.now)
        await app.start()
        timeout, as_many_as_asked = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
        client = aiohttp.ClientSession(timeout=timeout, connector=as_many_as_asked)
        running.append(Gateway(app, list(engines), client, clock))
        return running[-1]

    yield start
    for gateway in running:
        for task in gateway.tasks:
            task.cancel()
        await asyncio.gather(*gateway.tasks, return_exceptions=True)
        await gateway.client.close()
        await gateway.app.stop()
        for engine in gateway.engines:
            await engine.stop()


@pytest.fixture
async def sdk() -> AsyncIterator[Callable[..., openai.AsyncOpenAI]]:
    """Connects the official SDK to a gateway."""
    clients: list[openai.AsyncOpenAI] = []

    def connect(gateway: Gateway, key: str = "none", **more: Any) -> openai.AsyncOpenAI:
        clients.append(openai.AsyncOpenAI(base_url=gateway.url("/v1"), api_key=key, max_retries=0, **more))
        return clients[-1]

    yield connect
    for client in clients:
        await client.close()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()
