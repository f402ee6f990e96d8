"""A client that is gone, however and whenever it goes, leaves an idle engine and no used slot within a second."""

import asyncio
import json
import math
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.gateway import Gateway, engine_url, gateway, sample
from tests.real.sglang import Sglang
from tests.real.vllm import Vllm
from tests.real.wire import long_answer

pytestmark = pytest.mark.asyncio(loop_scope="module")

IDLE_WITHIN_S = 1.0
PHASE_DEADLINE_S = 120.0
MAX_TRIES = 5
LONG_PROMPT_WORDS = 25_000
"""Seconds of prefill on vLLM and Dynamo, within their contexts."""
SGLANG_PROMPT_WORDS = 10_000
SILENT = ("prefill", "plain")
SGLANG_LOOKS_S = 4.0
"""Time between two looks for clients that are gone, before the first byte (SGLANG_REQUEST_STATE_WAIT_TIMEOUT)."""
RST_ON_CLOSE = struct.pack("ii", 1, 0)
CLIENT = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(sys.stdin.buffer.read())
while part := connection.recv(65536):
    sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()
"""
tasks = count()


@dataclass(frozen=True)
class Setup:
    """An engine, and a gateway that gives it one turn at a time."""

    gateway: Gateway
    model: str
    num_in_engine: Callable[[bool], Awaitable[float]]
    """Running and waiting, as the engine itself says. Its argument: whether before their first byte."""
    long_prompt_words: int = LONG_PROMPT_WORDS
    looks_s: float = 0.0
    """Time between two looks of the engine for clients that are gone, before its first byte."""

    async def is_empty(self, is_silent: bool) -> bool:
        return await self.num_in_engine(is_silent) == 0 and await self.gateway.metric("turngate_slots_used") == 0


def counted_by(metrics_url: str) -> Callable[[bool], Awaitable[float]]:
    async def num_in_engine(is_silent: bool) -> float:
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        return sum([await sample(metrics_url, name) for name in names])

    return num_in_engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_vllm(vllm_process: Vllm) -> AsyncIterator[Setup]:
    async with gateway(engine_url("vllm", vllm_process.base_url), policy__slots_per_replica=1) as front:
        yield Setup(front, vllm_process.model, counted_by(vllm_process.metrics_url))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_sglang(sglang_process: Sglang) -> AsyncIterator[Setup]:
    """Its scheduler does not tell of what it prefills, its HTTP server tells late that a stream has ended."""
    url, path = sglang_process.base_url, "/v1/chat/completions"

    async def num_in_engine(is_silent: bool) -> float:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/v1/loads") as response:
            (load,) = (await response.json())["loads"]
        num_open = (
            await sample(f"{url}/metrics", "sglang:http_requests_active", endpoint=path) if is_silent else 0.0
        )
        return max(float(load["num_running_reqs"] + load["num_waiting_reqs"]), num_open)

    async with gateway(engine_url("sglang", sglang_process.base_url), policy__slots_per_replica=1) as front:
        yield Setup(front, sglang_process.model, num_in_engine, SGLANG_PROMPT_WORDS, SGLANG_LOOKS_S)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_dynamo() -> AsyncIterator[Setup]:
    """At its own speed: prefills must last."""
    async with (
        dynamo_stack(DynamoOptions(num_blocks=8192)) as stack,
        gateway(engine_url("dynamo", stack.base_url), policy__slots_per_replica=1) as front,
    ):
        yield Setup(front, stack.model, counted_by(stack.workers[0].metrics_url))


@pytest.fixture(params=["vllm", "sglang", "dynamo"])
def setup(request: pytest.FixtureRequest) -> Setup:
    found: Setup = request.getfixturevalue(f"on_{request.param}")
    return found


@dataclass(frozen=True)
class Client:
    reader: asyncio.StreamReader
    leave: Callable[[], None]


def request_bytes(body: dict[str, Any]) -> bytes:
    text = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: any\r\nContent-Length: {len(text)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + text


@asynccontextmanager
async def client(way: str, port: int, request: bytes) -> AsyncIterator[Client]:
    """Has sent the request on entry. `way`: how it leaves, by FIN, by RST, or killed as a process."""
    if way == "kill":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-ISc", CLIENT, str(port)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request)
        process.stdin.write_eof()
        yield Client(process.stdout, process.kill)
        await process.wait()
        return
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = writer.get_extra_info("socket")
    writer.write(request)
    await writer.drain()

    def leave() -> None:
        if way == "rst":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST_ON_CLOSE)
        else:
            connection.shutdown(socket.SHUT_RDWR)
        writer.transport.abort()

    yield Client(reader, leave)
    writer.transport.abort()


def body_of(phase: str, setup: Setup) -> dict[str, Any]:
    """An answer that would last far longer than the test. No two prompts begin alike, so none is cached."""
    prompt = f"Task {next(tasks)}. " + "word " * (setup.long_prompt_words if phase == "prefill" else 10)
    return {
        "model": setup.model,
        "messages": [{"role": "user", "content": prompt}],
        "stream": phase != "plain",
        "max_tokens": 2_000 if phase == "prefill" else 20_000,
        "ignore_eos": True,
    }


async def seconds_until(is_so: Callable[[], Awaitable[bool]]) -> float:
    started = time.monotonic()
    async with asyncio.timeout(PHASE_DEADLINE_S):
        while not await is_so():
            await asyncio.sleep(0.005)
    return time.monotonic() - started


async def seconds_to_idle(setup: Setup, phase: str, way: str) -> float:
    """From the client's end to the moment at which neither engine nor gateway knows of it any more; infinite where
    the client left too late for `phase`."""
    front, is_silent = setup.gateway, phase in SILENT
    port = int(front.base_url.rpartition(":")[2])
    request = request_bytes(body_of(phase, setup))

    async def is_queued() -> bool:
        return await front.metric("turngate_queue_depth") == 1

    async def is_in_engine() -> bool:
        return await setup.num_in_engine(is_silent) == 1

    async def is_empty() -> bool:
        return await setup.is_empty(is_silent)

    async def has_left_queue() -> bool:
        return await front.metric("turngate_queue_depth") == 0

    async with AsyncExitStack() as stack:
        if phase == "queued":
            holder = await stack.enter_async_context(long_answer(front.base_url, setup.model))
        victim = await stack.enter_async_context(client(way, port, request))
        if phase == "stream":
            await asyncio.wait_for(victim.reader.readuntil(b"data: {"), PHASE_DEADLINE_S)
        else:
            await seconds_until(is_queued if phase == "queued" else is_in_engine)
        victim.leave()
        if phase != "queued":
            took_s = await seconds_until(is_empty)
        else:
            took_s = await seconds_until(has_left_queue)
            await seconds_until(is_in_engine)
            assert await front.metric("turngate_slots_used") == 1
            holder.close()
            took_s = max(took_s, await seconds_until(is_empty))
        if phase != "stream" and await victim.reader.read():
            return math.inf  # the answer had begun: this try was of another phase
    return took_s


@pytest.mark.parametrize("way", ["fin", "rst", "kill"])
@pytest.mark.parametrize("phase", ["queued", "prefill", "stream", "plain"])
async def test_a_client_that_is_gone_leaves_nothing_behind(setup: Setup, phase: str, way: str) -> None:
    gone = await setup.gateway.metric("turngate_outcomes_total", outcome="client_gone")
    took_s: list[float] = []
    # A machine that stalls for a second says nothing about the gateway; a leak would last.
    within_s = IDLE_WITHIN_S + (setup.looks_s if phase in SILENT else 0.0)
    while not took_s or (min(took_s) > within_s and len(took_s) < MAX_TRIES):
        took_s.append(await seconds_to_idle(setup, phase, way))
    print(f"idle after {min(took_s):.3f} s, try {len(took_s)}")
    assert min(took_s) <= within_s
    num_gone = len(took_s) * (2 if phase == "queued" else 1)
    assert await setup.gateway.metric("turngate_outcomes_total", outcome="client_gone") == gone + num_gone
